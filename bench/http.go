package main

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	driver "modernc.org/sqlite"

	"github.com/unavez/unavez/httpkey"
)

const body = `{"customer":"c-1","amount":42}`

// reply is the 200-byte answer that every server gives.
func reply(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(answer) // a client that has gone is not measured
}

// serveVariant runs one measured server on a free port and prints its address.
func serveVariant(name, dir string) error {
	handler, err := handlerOf(name, dir)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, handler)
}

// handlerOf makes the handler of a measured server.
func handlerOf(name, dir string) (http.Handler, error) {
	switch name {
	case "no-op": // reads what is asked and writes the answer
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the load generator sends whole bodies
			reply(w)
		}), nil
	case "same-lines": // as no-op, with the header lines of a replay
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Idempotent-Replayed", "true")
			reply(w)
		}), nil
	}
	if _, err := driver.Fdatasync(true); err != nil { // for both variants; the driver's default is fsync
		return nil, err
	}
	path := filepath.Join(dir, name+".db")
	if name == "bare" {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(10000)&_txlock=immediate")
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(1)
		if _, err := db.Exec(schema); err != nil {
			return nil, err
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			tx, err := db.BeginTx(r.Context(), nil)
			if err == nil {
				defer tx.Rollback()
				_, err = tx.ExecContext(r.Context(), `insert into orders(customer, amount, note) values (?, 42, ?)`, "c-1", note)
			}
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			reply(w)
		}), nil
	}
	engine, db, err := openEngine(path)
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(schema); err != nil {
		return nil, err
	}
	layer, err := httpkey.New(engine, func(*http.Request) (httpkey.Scope, error) {
		return httpkey.Scope{Tenant: "bench", Principal: "bench"}, nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return layer.Handle(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		if _, err := tx.ExecContext(r.Context(), `insert into orders(customer, amount, note) values (?, 42, ?)`, "c-1", note); err != nil {
			return err
		}
		reply(w)
		return nil
	}), nil
}

// child is a measured server in a process of its own.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(name, dir string) (*child, error) {
	cmd := exec.Command(must(os.Executable()), "-serve", name, "-dir", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	return &child{cmd: cmd, addr: strings.TrimSpace(addr)}, err
}

// measureHTTP compares the CPU of server processes under the same load.
func measureHTTP(s settings) error {
	dir, err := os.MkdirTemp(s.dir, "unavez-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	children := map[string]*child{}
	for _, name := range []string{"no-op", "same-lines", "bare", "unavez"} {
		c, err := startChild(name, dir)
		if err != nil {
			return err
		}
		defer func() { _ = c.cmd.Process.Kill() }() // it is this program's own
		children[name] = c
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	var n atomic.Int64
	post := func(c *child, key func() string) func(context.Context) error {
		return func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+"/orders", strings.NewReader(body))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Idempotency-Key", key())
			response, err := client.Do(r)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				return err
			}
			if response.StatusCode != http.StatusCreated {
				return fmt.Errorf("%s answered %s", c.addr, response.Status)
			}
			return nil
		}
	}
	fresh := func() string { return strconv.FormatInt(n.Add(1), 10) }
	same := func() string { return "k-same" }
	named := func(name, server string, key func() string) variant {
		c := children[server]
		return variant{name: name, op: post(c, key), cpu: func() time.Duration { return cpuOf(c.cmd.Process.Pid) }}
	}
	if err := post(children["unavez"], same)(context.Background()); err != nil { // the one that is replayed
		return err
	}
	noop, replay := named("no-op handler", "no-op", same), named("unavez, replay", "unavez", same)
	lines := named("no-op handler, header of a replay", "same-lines", same)
	bare, keyed := named("bare handler with its own transaction", "bare", fresh), named("unavez, new key", "unavez", fresh)
	beside := func(title string, l load, base variant, others ...variant) {
		found := compare(s, l, append([]variant{base}, others...))
		fmt.Println(title)
		for _, v := range append([]variant{base}, others...) {
			row(v.name, found[v.name], found[base.name])
		}
	}
	fmt.Println("HTTP, CPU of the server process")
	beside("replay, 32 callers, 3200/s", load{32, 10 * time.Millisecond}, noop, lines, replay)
	beside("replay, 32 callers, as fast as answered", load{callers: 32}, noop, lines, replay)
	beside("new key, 32 callers, 800/s", load{32, 40 * time.Millisecond}, bare, keyed)
	beside("new key, 1 caller, as fast as answered", load{callers: 1}, bare, keyed)
	beside("new key, 32 callers, as fast as answered", load{callers: 32}, bare, keyed)
	fmt.Println()
	return nil
}
