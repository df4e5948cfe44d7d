package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/unavez/unavez/server/internal/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a server in this process, on loopback ports of its own, in front of an
// application that does what it is told.
type bed struct {
	t        *testing.T
	app      *app
	file     string
	requests string // base URL
	admin    string
	log      *lines
	reload   chan struct{}
	client   *http.Client
	stop     context.CancelFunc
	ended    chan error
}

// lines collects what is logged and lets a test wait for it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	grew chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.grew)
	l.grew = make(chan struct{})
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait blocks until the text is logged.
func (l *lines) wait(t *testing.T, text string) {
	t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for {
		l.mu.Lock()
		found, grew := strings.Contains(l.text.String(), text), l.grew
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-grew:
		case <-limit.C:
			t.Fatalf("%q was not logged; got:\n%s", text, l)
		}
	}
}

// app is an application. Its answers are functions by path.
type app struct {
	*httptest.Server
	mu   sync.Mutex
	runs map[string]int
	seen map[string]*http.Request
	do   map[string]http.HandlerFunc
}

func newApp(t *testing.T) *app {
	a := &app{runs: map[string]int{}, seen: map[string]*http.Request{}, do: map[string]http.HandlerFunc{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.runs[r.Method+" "+r.URL.Path]++
		a.seen[r.URL.Path] = r.Clone(context.WithoutCancel(r.Context()))
		n, do := a.runs[r.Method+" "+r.URL.Path], a.do[r.URL.Path]
		a.mu.Unlock()
		if do != nil {
			do(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/17")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"run":%d}`, n)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *app) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[what]
}

func (a *app) last(path string) *http.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[path]
}

func (a *app) set(path string, do http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.do[path] = do
}

// dies takes the request and closes the connection in the middle of the answer.
func dies(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the request has arrived whole
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"half") // it is cut anyway
	_ = c.Close()
}

// text fills the application's address into a configuration.
func (b *bed) text(configuration string) string {
	return strings.ReplaceAll(configuration, "APP", b.app.URL)
}

// start serves a configuration on SQLite. APP and the listeners are filled in.
func start(t *testing.T, configuration string, change ...func(*Options)) *bed {
	t.Helper()
	return startOn(t, newApp(t), "store: sqlite:"+filepath.Join(t.TempDir(), "unavez.db"), configuration, change...)
}

// startOn does the same in front of an application and on the store and lease
// that are given.
func startOn(t *testing.T, app *app, place, configuration string, change ...func(*Options)) *bed {
	t.Helper()
	b := &bed{t: t, app: app, file: filepath.Join(t.TempDir(), "unavez.yaml"), log: &lines{grew: make(chan struct{})}, reload: make(chan struct{}, 1)}
	b.write(place + "\nlisten: 127.0.0.1:0\n" + configuration)
	b.serve(change...)
	return b
}

func (b *bed) write(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.file, []byte(b.text(text)), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// edit changes the file as it stands.
func (b *bed) edit(old, new string) {
	b.t.Helper()
	data, err := os.ReadFile(b.file)
	if err != nil {
		b.t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		b.t.Fatalf("%q is not in the configuration", old)
	}
	b.write(strings.Replace(string(data), old, new, 1))
}

func (b *bed) serve(change ...func(*Options)) {
	b.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	started := make(chan [2]string, 1)
	o := Options{
		File: b.file, Out: io.Discard, Log: b.log, Version: "test", Reload: b.reload, Poll: time.Hour, AdminListen: "127.0.0.1:0",
		Started: func(requests, admin string) { started <- [2]string{requests, admin} },
	}
	for _, f := range change {
		f(&o)
	}
	b.ended = make(chan error, 1)
	go func() { b.ended <- Serve(ctx, o) }()
	b.stop = stop
	select {
	case at := <-started:
		b.requests, b.admin = "http://"+at[0], "http://"+at[1]
	case err := <-b.ended:
		stop()
		b.t.Fatalf("serve: %v", err)
	}
	transport := &http.Transport{}
	b.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	b.t.Cleanup(func() {
		transport.CloseIdleConnections()
		b.halt()
	})
}

// halt stops the server and waits for its end.
func (b *bed) halt() {
	b.stop()
	select {
	case err, ok := <-b.ended:
		if ok && err != nil {
			b.t.Errorf("serve ended with %v", err)
		}
		if ok {
			close(b.ended)
		}
	case <-time.After(40 * time.Second):
		b.t.Error("serve does not end")
	}
}

// reply is an answer, read.
type reply struct {
	status int
	header http.Header
	body   string
}

// problem is the type of the problem that was answered.
func (r reply) problem() string {
	var p struct{ Type string }
	if json.Unmarshal([]byte(r.body), &p) != nil {
		return ""
	}
	_, kind, _ := strings.Cut(p.Type, "#")
	return kind
}

// send sends a request; header lines come as name, value, ….
func (b *bed) send(method, path, body string, header ...string) reply {
	b.t.Helper()
	return b.sendTo(b.requests, method, path, body, header...)
}

func (b *bed) sendTo(base, method, path, body string, header ...string) reply {
	b.t.Helper()
	req, err := http.NewRequest(method, base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		if header[i] == "Content-Type" {
			req.Header.Del(header[i])
		}
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	return reply{resp.StatusCode, resp.Header, string(got)}
}

// post sends a keyed order.
func (b *bed) post(path, key string, header ...string) reply {
	b.t.Helper()
	return b.send(http.MethodPost, path, `{"customer":"c-1"}`, append([]string{"Idempotency-Key", key}, header...)...)
}

// operation asks the admin API about an operation, nil if nothing is known.
func (b *bed) operation(name string) *admin.Operation {
	b.t.Helper()
	path, err := operationPath(name)
	if err != nil {
		b.t.Fatal(err)
	}
	got := b.sendTo(b.admin, http.MethodGet, path, "")
	if got.status == http.StatusNotFound {
		return nil
	}
	var op admin.Operation
	if err := json.Unmarshal([]byte(got.body), &op); err != nil {
		b.t.Fatalf("%d %s", got.status, got.body)
	}
	return &op
}

// eventually polls for what happens in the background.
func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			b.t.Fatalf("not within the time: %s\n%s", what, b.log)
		}
	}
}

// metric reads one sample.
func (b *bed) metric(name string) string {
	b.t.Helper()
	for line := range strings.Lines(b.sendTo(b.admin, http.MethodGet, "/metrics", "").body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// raw sends bytes on a connection of their own and reads to its end.
func (b *bed) raw(text string) string {
	b.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(b.requests, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		b.t.Fatal(err)
	}
	got, _ := io.ReadAll(c) // a reset after the answer is fine
	return string(got)
}

// single is the front of a configuration with one trusted caller.
const single = `
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
`

// contains tells whether the text was logged.
func contains(l *lines, text string) bool { return strings.Contains(l.String(), text) }
