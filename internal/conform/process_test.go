//go:build unix

package conform_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite" // for the process that takes the database away

	"github.com/unavez/unavez/internal/conform"
)

// pair is two workers of the conformance app on one database, each a process.
type pair struct {
	bin, db, runs string
	client        *http.Client

	mu      sync.Mutex
	workers [3]*worker // 1 and 2
}

// worker is one process, or the last one that ran.
type worker struct {
	addr   string
	log    string
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	err    error // of the process, once exited is closed
}

// built is the conformance app, built once for all tests of the package.
var built struct {
	once     sync.Once
	dir, bin string
	err      error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // what is left lies in the system's temporary folder
	}
	os.Exit(code)
}

// buildApp builds the app, with the race detector if the test has it.
func buildApp(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "conform-app-*"); built.err != nil {
			return
		}
		built.bin = filepath.Join(built.dir, "app")
		args := []string{"build", "-o", built.bin}
		if raceEnabled {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, "./app")...).CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.bin
}

// startPair starts two workers on a new database.
func startPair(t *testing.T, bin string) *pair {
	t.Helper()
	dir := t.TempDir()
	p := &pair{
		bin: bin, db: filepath.Join(dir, "conform.db"), runs: filepath.Join(dir, "runs"),
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	t.Cleanup(func() {
		for n := 1; n <= 2; n++ {
			if w := p.workers[n]; w != nil && w.cmd != nil {
				_ = w.cmd.Process.Kill() // it has ended already, unless the test failed
				<-w.exited
			}
		}
		if t.Failed() && *showLogs {
			logs, err := p.logs()
			t.Logf("logs of the workers (%v):\n%s", err, logs)
		}
	})
	for n := 1; n <= 2; n++ {
		p.workers[n] = &worker{addr: "127.0.0.1:0", log: filepath.Join(dir, fmt.Sprintf("worker-%d.log", n))}
		if err := p.launch(n); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *pair) url(n int) string { return "http://" + p.workers[n].addr }

// launch starts worker n and waits until it listens.
func (p *pair) launch(n int) error {
	w := p.workers[n]
	log, err := os.OpenFile(w.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.bin, "-addr", w.addr, "-db", p.db, "-runs", p.runs, "-until-eof")
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	started := &worker{log: w.log, addr: w.addr, cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		started.err = cmd.Wait()
		close(started.exited)
	}()
	if readErr != nil {
		<-started.exited
		text, _ := os.ReadFile(w.log) // the error of the process says the rest
		return fmt.Errorf("worker %d: %w\n%s", n, errors.Join(readErr, started.err), text)
	}
	started.addr = strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	p.workers[n] = started
	return nil
}

// answers reports whether a worker answers.
func (p *pair) answers(ctx context.Context, n int) bool {
	return p.get(ctx, n, conform.PathAbout, &conform.About{}) == nil
}

// get reads a control endpoint.
func (p *pair) get(ctx context.Context, n int, path string, into any) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url(n)+path, nil)
	if err != nil {
		return err
	}
	a, err := p.client.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	return json.NewDecoder(a.Body).Decode(into)
}

// Kill implements conform.Control.
func (p *pair) Kill(ctx context.Context, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[n]
	if err := w.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-w.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Start implements conform.Control.
func (p *pair) Start(ctx context.Context, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		select {
		case <-p.workers[n].exited:
			return p.launch(n)
		default:
		}
		if p.answers(ctx, n) { // it is not about to end
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// Stop implements conform.Control.
func (p *pair) Stop(ctx context.Context, n int) error {
	if err := p.workers[n].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for { // the signal has arrived when the process no longer answers
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		answers := p.answers(short, n)
		cancel()
		if !answers || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Cont implements conform.Control.
func (p *pair) Cont(_ context.Context, n int) error {
	err := p.workers[n].cmd.Process.Signal(syscall.SIGCONT)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Begin implements conform.Outage: somebody else holds the writer of the file.
func (p *pair) Begin(ctx context.Context) (func() error, error) {
	db, err := sql.Open("sqlite", "file:"+p.db+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, "BEGIN EXCLUSIVE")
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return errors.Join(err, conn.Close(), db.Close())
	}, nil
}

// logs is everything the workers have written.
func (p *pair) logs() ([]byte, error) {
	var all bytes.Buffer
	for n := 1; n <= 2; n++ {
		text, err := os.ReadFile(p.workers[n].log)
		if err != nil {
			return nil, err
		}
		all.Write(text)
	}
	return all.Bytes(), nil
}

// quit ends both workers as an operator would, and wants them to end well.
func (p *pair) quit(t *testing.T) {
	t.Helper()
	for n := 1; n <= 2; n++ {
		w := p.workers[n]
		if err := w.stdin.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-w.exited:
		case <-time.After(20 * time.Second):
			t.Errorf("worker %d: still runs 20 s after it was told to stop", n)
			continue
		}
		if w.err != nil {
			t.Errorf("worker %d: %v", n, w.err)
		}
	}
	logs, err := p.logs()
	if err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"DATA RACE", "panic: ", "database is locked"} {
		if i := bytes.Index(logs, []byte(bad)); i >= 0 {
			t.Errorf("the logs hold %q:\n%s", bad, logs[i:min(i+4000, len(logs))])
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var (
	_ conform.Control = (*pair)(nil)
	_ conform.Outage  = (*pair)(nil)
)
