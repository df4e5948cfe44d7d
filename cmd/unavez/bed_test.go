package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	rewrite = flag.Bool("rewrite", false, "write the golden files anew")
	binary  string
)

// TestMain builds the program once: these tests are about the process.
func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "unavez-test-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "unavez")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir) // the test's own folder
	os.Exit(code)
}

// result is what a finished command left.
type result struct {
	code     int
	out, err string
}

// invoke runs the program to its end.
func invoke(t *testing.T, dir string, env []string, args ...string) result {
	t.Helper()
	c := exec.CommandContext(t.Context(), binary, args...)
	var out, errs bytes.Buffer
	c.Dir, c.Stdout, c.Stderr = dir, &out, &errs
	c.Env = append(os.Environ(), env...)
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// child is the program, serving.
type child struct {
	t        *testing.T
	cmd      *exec.Cmd
	requests string
	admin    string
	log      journal
	out      string // file of the start lines
	exited   chan struct{}
	err      error
}

// journal is every line that a child has logged.
type journal struct {
	mu    sync.Mutex
	lines []string
	read  int           // lines that wait has passed
	grew  chan struct{} // closed by the next line
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
	if j.grew != nil {
		close(j.grew)
		j.grew = nil
	}
}

// next gives the next line that holds the text; or what tells of further lines.
func (j *journal) next(text string) (line string, grew <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.read < len(j.lines) {
		line = j.lines[j.read]
		if j.read++; strings.Contains(line, text) {
			return line, nil
		}
	}
	if j.grew == nil {
		j.grew = make(chan struct{})
	}
	return "", j.grew
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

// serve starts the program in a folder, with variables in its environment, and
// waits until it listens.
func serve(t *testing.T, dir string, env ...string) *child {
	t.Helper()
	s := &child{t: t, out: filepath.Join(t.TempDir(), "out"), exited: make(chan struct{})}
	s.cmd = exec.Command(binary, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	s.cmd.Env = append(os.Environ(), env...)
	out, err := os.Create(s.out)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() // the child has its own
	s.cmd.Dir, s.cmd.Stdout = dir, out
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			s.log.add(lines.Text())
		}
	})
	go func() {
		reading.Wait() // Wait closes the pipe
		s.err = s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended already
		<-s.exited
	})
	var listening struct{ Requests, Admin string }
	if err := json.Unmarshal([]byte(s.wait(`"msg":"listening"`)), &listening); err != nil {
		t.Fatal(err)
	}
	s.requests, s.admin = "http://"+listening.Requests, "http://"+listening.Admin
	return s
}

// wait reads log lines until one holds the text.
func (s *child) wait(text string) string {
	s.t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		line, grew := s.log.next(text)
		if grew == nil {
			return line
		}
		select {
		case <-grew:
		case <-s.exited:
			s.t.Fatalf("it ended before %q was logged; got\n%s", text, &s.log)
		case <-limit.C:
			s.t.Fatalf("%q was not logged; got\n%s", text, &s.log)
		}
	}
}

// end waits for the process and gives its exit code.
func (s *child) end() int {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(30 * time.Second):
		s.t.Fatal("the process does not end")
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *child) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

type reply struct {
	status int
	header http.Header
	body   string
}

func send(t *testing.T, method, url, body string, header ...string) (reply, error) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(got)}, err
}

func must(t *testing.T, r reply, err error) reply {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const order = `{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500}]}`

func post(t *testing.T, s *child, key string, header ...string) reply {
	t.Helper()
	r, err := send(t, http.MethodPost, s.requests+"/orders", order, append([]string{"Idempotency-Key", key}, header...)...)
	return must(t, r, err)
}

// orders counts what the example holds.
func orders(t *testing.T, s *child) int {
	t.Helper()
	r, err := send(t, http.MethodGet, s.requests+"/orders", "")
	var list struct{ Orders []any }
	if err := json.Unmarshal([]byte(must(t, r, err).body), &list); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	return len(list.Orders)
}
