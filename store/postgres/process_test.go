package postgres_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// process is another worker: this test program, started anew.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// start runs a role of child in a process of its own.
func start(t *testing.T, role, url string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{url}, args...)...)
	cmd.Env = append(os.Environ(), "UNAVEZ_POSTGRES_CHILD="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{t, cmd, in, bufio.NewScanner(out)}
}

// wait reads what the process says until it says want.
func (p *process) wait(want string) {
	p.t.Helper()
	for p.out.Scan() {
		if p.out.Text() == want {
			return
		}
	}
	p.t.Fatalf("process ended without saying %q: %v", want, p.out.Err())
}

// goOn lets a process go on that waits to be told so.
func (p *process) goOn() {
	p.t.Helper()
	if err := p.in.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// signal sends a signal that does not end it, or lets it go on.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process without a goodbye and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	_ = p.cmd.Wait()         // it was killed
}
