package main

import (
	"bufio"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store/sqlite"
)

// roleEnv makes this test binary the shop: as it is, or one that stops at a
// point, says so and waits to be killed.
const roleEnv = "ORDERS_TEST_ROLE"

const (
	rolePlain  = "plain"
	roleMiddle = "stop in the middle of the transaction"
	roleAnswer = "stop between commit and answer"
	roleParcel = "stop while the carrier books"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case rolePlain:
		main()
	default:
		if err := stopping(role, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// stopped says so, and waits to be killed.
func stopped() {
	fmt.Println("stopped")
	select {}
}

// stopping is the shop with a point at which it stops.
func stopping(role string, args []string) error {
	lite := &modernc.Driver{}
	lite.MustRegisterScalarFunction("stopped", 0, func(*modernc.FunctionContext, []driver.Value) (driver.Value, error) {
		stopped()
		return nil, nil
	})
	c := config{sqlite: lite, parcel: parcel}
	addr := c.parse(args)
	if role == roleParcel {
		c.parcel = func(context.Context, string, order) (string, error) { stopped(); return "", nil }
	}
	p, err := open(context.Background(), c)
	if err != nil {
		return err
	}
	handler := p.handler
	switch role {
	case roleMiddle: // order and first item are written, the second item is not
		db, err := sqlite.OpenDB(lite, c.store, nil)
		if err != nil {
			return err
		}
		_, err = db.Exec(`create trigger stop before insert on order_item when new.line = 2 begin select stopped(); end`)
		if err = errors.Join(err, db.Close()); err != nil {
			return err
		}
	case roleAnswer:
		routes := handler
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { routes.ServeHTTP(muted{w}, r) })
	}
	return serve(addr, handler)
}

// muted is a connection on which the answer does not get out.
type muted struct{ http.ResponseWriter }

func (muted) WriteHeader(int) { stopped() }

// child is the shop in a process of its own.
type child struct {
	server
	way   string // its library, where it has one
	cmd   *exec.Cmd
	lines chan string // of its standard output; closed at its end
}

// spawn starts a child and waits until it listens.
func spawn(t *testing.T, role string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, lines: make(chan string, 100)}
	go func() {
		defer close(c.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			c.lines <- scanner.Text()
		}
	}()
	t.Cleanup(c.kill)
	c.server = server{t, strings.TrimPrefix(c.await(t, "listening on "), "listening on ")}
	return c
}

// await waits for a line that begins so.
func (c *child) await(t *testing.T, prefix string) string {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("the child ended before it said %q", prefix)
			}
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-deadline:
			t.Fatalf("the child did not say %q", prefix)
		}
	}
}

// kill is kill -9. It is safe to call twice.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	for range c.lines {      // until its end of the pipe is closed
	}
	_ = c.cmd.Wait() // killed, as it should be
}

func TestAKilledWorkerLeavesOneOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		role     string
		replayed bool // the first answer that a client sees
	}{
		{roleMiddle, false},
		{roleAnswer, true},
	} {
		t.Run(c.role, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "orders.db")
			victim := spawn(t, c.role, "-addr", "127.0.0.1:0", "-store", path)
			lost := make(chan reply, 1)
			go func() { lost <- victim.send("POST", "/orders", "k1", order1) }()
			victim.await(t, "stopped")
			victim.kill()
			if got := <-lost; got.status != 0 {
				t.Fatalf("the killed worker answered %v", got)
			}

			db := look(t, path)
			if _, err := db.ExecContext(t.Context(), `drop trigger if exists stop`); err != nil {
				t.Fatal(err)
			}
			left := 0
			if c.replayed {
				left = 1
			}
			if n := count(t, db, "orders"); n != left {
				t.Errorf("the killed worker left %d orders, want %d", n, left)
			}

			next := spawn(t, rolePlain, "-addr", "127.0.0.1:0", "-store", path)
			first := next.send("POST", "/orders", "k1", order1)
			if first.status != 201 || first.location != "/orders/1" || first.replayed != c.replayed {
				t.Errorf("after the kill: got %v, want 201, replayed %v", first, c.replayed)
			}
			first.replayed = true
			if second := next.send("POST", "/orders", "k1", order1); second != first {
				t.Errorf("once more: got %v, want %v", second, first)
			}
			if n, m := count(t, db, "orders"), count(t, db, "order_item"); n != 1 || m != 2 {
				t.Errorf("got %d orders with %d items, want 1 with 2", n, m)
			}
		})
	}
}
