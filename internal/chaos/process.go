package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// startLimit of a worker, on a machine that is busy.
const startLimit = time.Minute

// worker is one worker process, or the place of one that is being replaced.
type worker struct {
	command func() *exec.Cmd
	setup   Setup
	saw     func(what string)

	mu      sync.Mutex
	running *exec.Cmd
	stdin   io.Closer
	exited  chan struct{}
	address string
	log     *tail
}

// start runs it and waits until it listens.
func (w *worker) start(ctx context.Context) error {
	setup, err := json.Marshal(w.setup)
	if err != nil {
		return err
	}
	cmd := w.command()
	detach(cmd)
	log := &tail{}
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
	listening, exited := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			switch word, value, _ := strings.Cut(lines.Text(), " "); word {
			case saidListening:
				listening <- value
			case saidSaw:
				w.saw(value)
			}
		}
		_ = cmd.Wait() // that it has ended is what counts
	}()
	if _, err = stdin.Write(append(setup, '\n')); err == nil {
		timer := time.NewTimer(startLimit)
		defer timer.Stop()
		select {
		case address := <-listening:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.running, w.stdin, w.exited, w.address, w.log = cmd, stdin, exited, address, log
			return nil
		case <-exited:
			err = errors.New("it ended")
		case <-timer.C:
			err = errors.New("it does not listen")
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	_ = cmd.Process.Kill() // it may have ended
	<-exited
	return fmt.Errorf("worker: %w\n%s", err, log)
}

// at is its address; empty before it has one.
func (w *worker) at() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.address
}

// kill ends it at once, as kill -9 does, and waits for that.
func (w *worker) kill() {
	w.mu.Lock()
	cmd, exited := w.running, w.exited
	w.running = nil
	w.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill() // it may have ended
		<-exited
	}
}

// end lets it stop in order, and kills it when it does not: one of its
// connections may be silent.
func (w *worker) end() {
	w.mu.Lock()
	cmd, exited, stdin := w.running, w.exited, w.stdin
	w.running = nil
	w.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = stdin.Close() // that is the sign
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
		_ = cmd.Process.Kill() // it may have ended
		<-exited
	}
}

// pause stops it as it stands, and resume lets it go on. Neither does anything
// to one that has ended.
func (w *worker) pause() error  { return w.signal(stop) }
func (w *worker) resume() error { return w.signal(resume) }

func (w *worker) signal(send func(*exec.Cmd) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		return nil
	}
	select {
	case <-w.exited: // its number may be another's now
		return errors.New("worker: it has ended\n" + w.log.String())
	default:
		return send(w.running)
	}
}

// died tells whether a worker has ended that nobody killed, and what it said.
func (w *worker) died() (said string, died bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		return "", false
	}
	select {
	case <-w.exited:
		return w.log.String(), true
	default:
		return "", false
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write keeps the last 8 KiB.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 8<<10 {
		t.text = t.text[len(t.text)-8<<10:]
	}
	return len(p), nil
}

// String is what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
