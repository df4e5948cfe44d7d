package main

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/unavez/unavez/httpkey"
)

// measureWaiters holds duplicates of one slow operation over real connections
// and reads what each costs, server and client socket together.
func measureWaiters(s settings) error {
	dir, err := os.MkdirTemp(s.dir, "unavez-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	engine, _, err := openEngine(filepath.Join(dir, "waiters.db"))
	if err != nil {
		return err
	}
	layer, err := httpkey.New(engine, func(*http.Request) (httpkey.Scope, error) {
		return httpkey.Scope{Tenant: "bench", Principal: "bench"}, nil
	}, nil)
	if err != nil {
		return err
	}
	started, end := make(chan struct{}), make(chan struct{})
	handler := layer.Handle(func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) error {
		close(started)
		<-end
		reply(w)
		return nil
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }() // ends with Close
	defer server.Close()

	const duplicates = 2000
	var wg sync.WaitGroup
	send := func() {
		conn := must(net.Dial("tcp", listener.Addr().String()))
		wg.Go(func() {
			defer conn.Close()
			_, _ = fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nIdempotency-Key: k-1\r\nPrefer: wait=60\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			_, _ = conn.Read(make([]byte, 1)) // held until the answer comes
		})
	}
	send()
	<-started
	before := memory()
	for range duplicates {
		send()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	<-ctx.Done() // every duplicate has arrived and waits
	each := float64(memory()-before) / duplicates / 1024
	fmt.Printf("%d waiting duplicates: %.1f KiB each (server side, client socket and this program's goroutine together)\n\n", duplicates, each)
	close(end)
	wg.Wait()
	return nil
}

// memory is what the process holds: heap in use and stacks.
func memory() uint64 {
	runtime.GC()
	settle()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
