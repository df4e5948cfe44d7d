//go:build unix

package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// host of every throw-away server.
const host = "127.0.0.1"

// process is a server program that a test runs, until the test ends at the
// latest. Its methods are for the test's goroutine.
type process struct {
	tb    testing.TB
	name  string
	ready string // what the program logs when it serves
	build func() *exec.Cmd

	running *exec.Cmd
	logged  *output
	exited  chan struct{} // closed when the program has ended
	drained chan struct{} // closed when its children, who hold the log too, have
}

// start runs the program and waits until it is ready. The error of a program
// that ends instead carries the end of its log.
func (p *process) start() error {
	p.tb.Helper()
	if p.running != nil {
		return errors.New(p.name + " is running")
	}
	cmd := p.build()
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	_ = write.Close() // the program has its own
	if err != nil {
		_ = read.Close()
		return err
	}
	logged := &output{}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		defer read.Close()
		logged.drain(read)
	}()
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // that it ended is what counts; most ends are a signal's
	}()
	p.running, p.logged, p.exited, p.drained = cmd, logged, exited, drained
	select {
	case <-logged.said(p.ready):
		return nil
	case <-exited:
		<-drained
	case <-time.After(limit):
	}
	p.kill()
	return fmt.Errorf("%s did not start:\n%s", p.name, logged.tail())
}

// says waits for a line of the log that holds text.
func (p *process) says(text string) {
	p.tb.Helper()
	select {
	case <-p.logged.said(text):
	case <-p.exited:
		p.tb.Fatalf("%s ended; want it to say %q:\n%s", p.name, text, p.logged.tail())
	case <-time.After(limit):
		p.tb.Fatalf("%s does not say %q:\n%s", p.name, text, p.logged.tail())
	}
}

// kill ends the program and its children at once, stopped ones too.
func (p *process) kill() {
	p.tb.Helper()
	if p.running == nil {
		return
	}
	p.signal(syscall.SIGKILL)
	p.wait()
}

// over tells whether the program has ended; its number may be another's now.
func (p *process) over() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// signal sends to the program and to its children. The program is stopped first,
// so that it has no more of them, and still has them while they are looked up.
func (p *process) signal(s syscall.Signal) {
	p.tb.Helper()
	if p.running == nil {
		p.tb.Fatalf("%s is not running", p.name)
	}
	if p.over() {
		return
	}
	parent := p.running.Process.Pid
	_ = syscall.Kill(parent, syscall.SIGSTOP) // errors: one that has ended needs none
	for _, pid := range append(children(parent), parent) {
		_ = syscall.Kill(pid, s)
	}
}

// wait waits for the end of a program that was told to end, and of its children.
func (p *process) wait() {
	p.tb.Helper()
	late := time.After(limit)
	for _, end := range []<-chan struct{}{p.exited, p.drained} {
		select {
		case <-end:
		case <-late:
			p.tb.Fatalf("%s does not end:\n%s", p.name, p.logged.tail())
		}
	}
	p.running = nil
}

// children gives the processes whose parent is pid.
func children(pid int) (all []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil || len(entries) == 0 {
		out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output() // status 1 is none
		for field := range strings.FieldsSeq(string(out)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
		return all
	}
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile("/proc/" + entry.Name() + "/stat") // gone since
		_, rest, _ := strings.Cut(string(stat), ") ")
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && parent == pid {
			all = append(all, child)
		}
	}
	return all
}

// output keeps the end of a program's log and tells of its lines.
type output struct {
	mu    sync.Mutex
	lines []string
	waits map[string]chan struct{}
}

// kept is how many lines of a log are kept.
const kept = 200

func (o *output) drain(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		o.add(lines.Text())
	}
	_, _ = io.Copy(io.Discard, r) // a line too long: the program must not block
}

func (o *output) add(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.lines) == kept {
		o.lines = o.lines[1:]
	}
	o.lines = append(o.lines, line)
	for text, told := range o.waits {
		if strings.Contains(line, text) {
			close(told)
			delete(o.waits, text)
		}
	}
}

// said gives a channel that is closed when a line holds text, one of the kept
// lines included.
func (o *output) said(text string) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	told := o.waits[text]
	if told == nil {
		told = make(chan struct{})
	}
	for _, line := range o.lines {
		if strings.Contains(line, text) {
			close(told)
			delete(o.waits, text)
			return told
		}
	}
	if o.waits == nil {
		o.waits = map[string]chan struct{}{}
	}
	o.waits[text] = told
	return told
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines[max(0, len(o.lines)-30):], "\n")
}

// freePort gives a port that nothing listens on. It is below 32768, so that it
// does not become the near end of an outgoing connection while the server that
// had it is down, and below the ports of scripts/services.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 1000 {
		port := 10_000 + rand.IntN(9_000)
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			tb.Fatal(err)
		}
		return port
	}
	tb.Fatal("no free port on loopback")
	return 0
}

func address(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// first starts a server at a port, and tries another when somebody was quicker
// to take it.
func first(tb testing.TB, start func(port int) error) {
	tb.Helper()
	var err error
	for range 3 {
		if err = start(freePort(tb)); err == nil {
			return
		}
	}
	tb.Fatal(err)
}
