//go:build unix

package conform_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// needChromium finds the browser. A machine without one may leave the test out;
// CI may not.
func needChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("no chromium on the PATH, and this is CI")
	}
	t.Skip("no chromium on the PATH")
	return ""
}

// browser is a headless Chromium, driven by the DevTools protocol over a pipe:
// JSON objects, each with a zero byte behind it.
type browser struct {
	cmd *exec.Cmd
	out io.WriteCloser

	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	dead    error
}

// message is what the browser answers with.
type message struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startBrowser starts Chromium with an empty profile.
func startBrowser(t *testing.T, path string) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "conform-chromium-*")
	if err != nil {
		t.Fatal(err)
	}
	toBrowser, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--user-data-dir="+profile, "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // descriptors 3 and 4
	cmd.Env = append(os.Environ(), "HOME="+profile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = toBrowser.Close() // the browser has its own
	_ = fromBrowser.Close()
	b := &browser{cmd: cmd, out: out, waiting: map[int]chan message{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(in)
	}()
	t.Cleanup(func() {
		_ = out.Close() // the browser ends with its pipe
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err := cmd.Wait()
		_ = in.Close()
		<-read
		_ = os.RemoveAll(profile) // a helper process may still write there
		if t.Failed() {
			t.Logf("chromium: %v\n%s", err, stderr.Bytes())
		}
	})
	return b
}

// tab is a page of the browser.
type tab struct {
	b       *browser
	session string
}

// open opens a page.
func (b *browser) open(t *testing.T, url string) tab {
	t.Helper()
	var target struct {
		TargetID string `json:"targetId"`
	}
	tab{b: b}.call(t, &target, "Target.createTarget", map[string]any{"url": url})
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	tab{b: b}.call(t, &attached, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	return tab{b, attached.SessionID}
}

// read hands answers to those who wait for them, until the pipe ends.
func (b *browser) read(in io.Reader) {
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadBytes(0)
		b.mu.Lock()
		if err != nil {
			b.dead = fmt.Errorf("chromium: %w", err)
			for _, c := range b.waiting {
				close(c)
			}
			b.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) == nil && b.waiting[m.ID] != nil {
			b.waiting[m.ID] <- m
			delete(b.waiting, m.ID)
		}
		b.mu.Unlock()
	}
}

// call makes one call of the protocol.
func (b *browser) call(ctx context.Context, session string, into any, method string, params map[string]any) error {
	b.mu.Lock()
	if b.dead != nil {
		defer b.mu.Unlock()
		return b.dead
	}
	b.last++
	id, c := b.last, make(chan message, 1)
	b.waiting[id] = c
	b.mu.Unlock()
	m := map[string]any{"id": id, "method": method, "params": params}
	if session != "" {
		m["sessionId"] = session
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := b.out.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case answer, ok := <-c:
		switch {
		case !ok:
			return errors.New("chromium: ended")
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		}
		return json.Unmarshal(answer.Result, into)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

// call makes one call about the page.
func (p tab) call(t *testing.T, into any, method string, params map[string]any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := p.b.call(ctx, p.session, into, method, params); err != nil {
		t.Fatal(err)
	}
}

// evaluate runs an expression in the page, waits for its promise, and reads
// its value.
func (p tab) evaluate(t *testing.T, into any, expression string) {
	t.Helper()
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	p.call(t, &got, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
	if got.Exception != nil {
		t.Fatalf("%s: %s %s", expression, got.Exception.Text, got.Exception.Exception.Description)
	}
	if err := json.Unmarshal(got.Result.Value, into); err != nil {
		t.Fatalf("%s: %v: %s", expression, err, got.Result.Value)
	}
}

// doubleClick presses the mouse twice at a place of the page, as a person does.
func (p tab) doubleClick(t *testing.T, x, y int) {
	t.Helper()
	for count := 1; count <= 2; count++ {
		for _, kind := range []string{"mousePressed", "mouseReleased"} {
			p.call(t, &struct{}{}, "Input.dispatchMouseEvent", map[string]any{
				"type": kind, "x": x, "y": y, "button": "left", "clickCount": count,
			})
		}
	}
}
