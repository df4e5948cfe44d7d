package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	sandbox "github.com/unavez/unavez/internal/gateway"
)

// roleEnv makes this test binary the shop: as it is, or one that stops at a
// point, says so, and goes on when its standard input says so.
const roleEnv = "CHARGE_TEST_ROLE"

const (
	rolePlain  = "plain"
	roleBefore = "stop before the charge"
	roleAfter  = "stop between charge and record"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	c := configure(os.Args[1:])
	if role != rolePlain {
		c.transport = stopper{role: role, base: c.transport}
	}
	if err := run(c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// stopper is the way to the gateway, with a point at which it stops.
type stopper struct {
	role string
	base http.RoundTripper
}

func (s stopper) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.role == roleBefore {
		s.stop()
	}
	response, err := s.base.RoundTrip(r)
	if s.role == roleAfter {
		s.stop()
	}
	return response, err
}

func (stopper) stop() {
	fmt.Println("stopped")
	_, _ = os.Stdin.Read(make([]byte, 1)) // a byte, or the end of the test
}

// child is the shop in a process of its own.
type child struct {
	server
	cmd   *exec.Cmd
	stdin io.Writer
	lines chan string // of its standard output; closed at its end
}

// spawn starts a child and waits until it listens.
func spawn(t *testing.T, role string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, stdin: in, lines: make(chan string, 100)}
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

// goOn lets a child that has stopped go on.
func (c *child) goOn(t *testing.T) {
	t.Helper()
	if _, err := c.stdin.Write([]byte{'\n'}); err != nil {
		t.Fatal(err)
	}
}

// signal sends a signal.
func (c *child) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// kill is kill -9. It is safe to call twice.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	for range c.lines {      // until its end of the pipe is closed
	}
	_ = c.cmd.Wait() // killed, as it should be
}

func TestAWorkerKilledAroundTheChargeLeavesOneCharge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, role, unknown string
		gateway             sandbox.Options
		events              []sandbox.Event
	}{
		{"keys honoured, charged", roleAfter, "repeat", sandbox.Options{}, []sandbox.Event{sandbox.Charged, sandbox.Duplicate}},
		{"keys honoured, not charged", roleBefore, "repeat", sandbox.Options{}, []sandbox.Event{sandbox.Charged}},
		{"keys ignored, found", roleAfter, "probe", sandbox.Options{IgnoreKeys: true}, []sandbox.Event{sandbox.Charged, sandbox.Probed}},
		{"keys ignored, not found", roleBefore, "probe", sandbox.Options{IgnoreKeys: true}, []sandbox.Event{sandbox.Probed, sandbox.Probed, sandbox.Charged}},
		{"keys ignored, seen late", roleAfter, "probe", sandbox.Options{IgnoreKeys: true, ReadDelay: 2 * time.Second}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			gateway, url := setupGateway(t, &c.gateway)
			path := filepath.Join(t.TempDir(), "charge.db")
			args := []string{"-db", path, "-gateway", url, "-unknown", c.unknown, "-lease", "1s", "-settle", "1ms"}
			if c.gateway.ReadDelay > 0 {
				args = append(args, "-settle", c.gateway.ReadDelay.String())
			}
			victim := spawn(t, c.role, args...)
			lost := make(chan reply, 1)
			go func() { lost <- victim.send("k1", order1) }()
			victim.await(t, "stopped")
			victim.kill()
			if got := <-lost; got.status != 0 {
				t.Fatalf("the killed worker answered %v", got)
			}

			next := spawn(t, rolePlain, args...)
			// In flight until the lease has run out, then unknown, then decided.
			if early := next.send("k1", order1); early.status != 409 && early.status != 201 {
				t.Errorf("right after the kill: got %v, want 409", early)
			}
			last := next.insist("k1", order1)
			last.replayed = false // the early one may have been late enough
			if last != ordered(1, "ch_1") {
				t.Errorf("after the kill: got %v, want %v", last, ordered(1, "ch_1"))
			}
			if again := next.send("k1", order1); again != last.again() {
				t.Errorf("once more: got %v, want %v", again, last.again())
			}
			if c.events != nil {
				wantEvents(t, gateway, c.events...)
			}
			charges := 0
			for _, e := range events(gateway) {
				if e == sandbox.Charged {
					charges++
				}
			}
			if charges != 1 {
				t.Errorf("got %d charges, want 1", charges)
			}
			if other := next.send("k2", order1); other != ordered(2, "ch_2") {
				t.Errorf("another order: got %v, want %v", other, ordered(2, "ch_2"))
			}
		})
	}
}

func TestAKilledWorkerIsHeldForAPerson(t *testing.T) {
	t.Parallel()
	gateway, url := setupGateway(t, &sandbox.Options{IgnoreKeys: true})
	args := []string{"-db", filepath.Join(t.TempDir(), "charge.db"), "-gateway", url, "-unknown", "hold", "-lease", "1s"}
	victim := spawn(t, roleAfter, args...)
	go victim.send("k1", order1)
	victim.await(t, "stopped")
	victim.kill()
	next := spawn(t, rolePlain, args...)
	for range 2 { // insist ends at an answer without Retry-After
		if got := next.insist("k1", order1); !isUnknown(got) || got.retryAfter != "" {
			t.Errorf("got %v, want 409 outcome-unknown for good", got)
		}
	}
	wantEvents(t, gateway, sandbox.Charged)
}

func TestAWorkerPausedPastItsLeaseCannotRecord(t *testing.T) {
	t.Parallel()
	gateway, url := setupGateway(t, nil)
	args := []string{"-db", filepath.Join(t.TempDir(), "charge.db"), "-gateway", url, "-lease", "1s"}
	paused := spawn(t, roleAfter, args...)
	late := make(chan reply, 1)
	go func() { late <- paused.send("k1", order1) }()
	paused.await(t, "stopped")
	paused.signal(t, syscall.SIGSTOP)
	next := spawn(t, rolePlain, args...)
	if got := next.insist("k1", order1); got != ordered(1, "ch_1") {
		t.Errorf("the worker that took over: got %v, want %v", got, ordered(1, "ch_1"))
	}
	paused.signal(t, syscall.SIGCONT)
	paused.goOn(t)
	if got := <-late; got.status != 503 || got.retryAfter == "" {
		t.Errorf("the paused worker: got %v, want 503 with Retry-After", got)
	}
	if got := paused.insist("k1", order1); got != ordered(1, "ch_1").again() {
		t.Errorf("asked again: got %v, want %v", got, ordered(1, "ch_1").again())
	}
	wantEvents(t, gateway, sandbox.Charged, sandbox.Duplicate)
}
