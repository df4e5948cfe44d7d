package httpkey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// insert writes one business row on the transaction of a handler.
type insert func(row string) error

// shop is an application on one store: what the cases need, whatever the
// type of the store's transactions.
type shop struct {
	handle  func(httpkey.ScopeFunc, *httpkey.Options, func(http.ResponseWriter, *http.Request, insert) error) (http.Handler, error)
	wrap    func(httpkey.ScopeFunc, *httpkey.Options, http.Handler) (http.Handler, error)
	insert  func(ctx context.Context, row string) error // under wrap
	proxy   func(httpkey.ScopeFunc, *url.URL, *httpkey.ProxyOptions) (http.Handler, error)
	rows    func() int
	ops     store.Operations
	advance func(time.Duration)
	fault   *fault
	close   func()
}

// fault is what goes wrong next, in any store.
type fault struct {
	mu           sync.Mutex
	begin        error // instead of a gate
	commitBefore error // instead of a commit
}

func (f *fault) set(begin, commitBefore error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin, f.commitBefore = begin, commitBefore
}

func (f *fault) get() (begin, commitBefore error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin, f.commitBefore
}

// failing is a ledger with faults.
type failing[Tx any] struct {
	store.Ledger[Tx]
	store.Attempts[Tx]
	fault *fault
}

func (f *failing[Tx]) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	if err, _ := f.fault.get(); err != nil {
		return nil, store.Verdict{}, err
	}
	txn, verdict, err := f.Ledger.Begin(ctx, gate)
	if txn != nil {
		txn = &failingTxn[Tx]{txn, f.fault}
	}
	return txn, verdict, err
}

type failingTxn[Tx any] struct {
	store.Txn[Tx]
	fault *fault
}

func (f *failingTxn[Tx]) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if _, err := f.fault.get(); err != nil {
		return nil, errors.Join(err, f.Rollback(ctx))
	}
	return f.Txn.Commit(ctx, end)
}

func newShop[Tx any](t *testing.T, ledger store.Ledger[Tx], put func(context.Context, Tx, string) error, rows func() int) *shop {
	t.Helper()
	s := &shop{rows: rows, fault: &fault{}, ops: ledger.(store.Operations)}
	engine, err := unavez.New[Tx](&failing[Tx]{ledger, ledger.(store.Attempts[Tx]), s.fault}, &unavez.Options{
		SingleTenant: true, Limit: 5 * time.Second, Lease: 2 * time.Second, CacheSize: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	s.handle = func(scope httpkey.ScopeFunc, opts *httpkey.Options, fn func(http.ResponseWriter, *http.Request, insert) error) (http.Handler, error) {
		layer, err := httpkey.New(engine, scope, opts)
		if err != nil {
			return nil, err
		}
		return layer.Handle(func(w http.ResponseWriter, r *http.Request, tx Tx) error {
			return fn(w, r, func(row string) error { return put(r.Context(), tx, row) })
		}), nil
	}
	s.wrap = func(scope httpkey.ScopeFunc, opts *httpkey.Options, h http.Handler) (http.Handler, error) {
		layer, err := httpkey.New(engine, scope, opts)
		if err != nil {
			return nil, err
		}
		return layer.Wrap(h), nil
	}
	s.insert = func(ctx context.Context, row string) error {
		tx, ok := httpkey.Tx[Tx](ctx)
		if !ok {
			return errors.New("no transaction")
		}
		return put(ctx, tx, row)
	}
	s.proxy = func(scope httpkey.ScopeFunc, upstream *url.URL, opts *httpkey.ProxyOptions) (http.Handler, error) {
		p, err := httpkey.NewProxy(engine, scope, upstream, opts)
		if err == nil {
			t.Cleanup(p.Close)
		}
		return p, err
	}
	s.close = func() {
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	return s
}

// eachStore runs a test on every store.
func eachStore(t *testing.T, run func(t *testing.T, s *shop)) {
	t.Helper()
	t.Parallel()
	for name, open := range stores() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, open(t))
		})
	}
}

func onMemory(t *testing.T) *shop {
	t.Helper()
	var clock, n atomic.Int64
	m := memory.New(&memory.Options{Now: func() time.Time { return time.Now().Add(time.Duration(clock.Load())) }})
	s := newShop(t, store.Ledger[*memory.Tx](m), func(_ context.Context, tx *memory.Tx, row string) error {
		tx.Put(fmt.Sprintf("%d %s", n.Add(1), row), row)
		return nil
	}, func() int { return len(m.All()) })
	s.advance = func(d time.Duration) { clock.Add(int64(d)) }
	return s
}

// server serves a handler over TCP; what it would log is kept.
func server(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

// gate is a place where a handler stands still until the test lets it go on.
type gate struct {
	entered, left chan struct{}
	enter, leave  sync.Once
}

func newGate() *gate { return &gate{entered: make(chan struct{}), left: make(chan struct{})} }

// pass is for the handler.
func (g *gate) pass() {
	g.enter.Do(func() { close(g.entered) })
	<-g.left
}

// open lets the handler go on. Tests defer it, so that a failure ends them.
func (g *gate) open() { g.leave.Do(func() { close(g.left) }) }

// wait waits for the handler, as long as anything here is waited for.
func (g *gate) wait() bool {
	select {
	case <-g.entered:
		return true
	case <-time.After(patience):
		return false
	}
}

// arrived fails the test when the handler does not come.
func (g *gate) arrived(t *testing.T) {
	t.Helper()
	if !g.wait() {
		t.Fatal("the handler was not called")
	}
}

// patience bounds every wait, so that a test fails and does not hang.
const patience = time.Minute

// reply is an answer as the client sees it.
type reply struct {
	status int
	header http.Header
	body   string
}

// request is what a client sends; the zero value is a POST of nothing.
type request struct {
	method string
	url    string
	key    string // written as it is; "" sends no header
	body   string
	header http.Header
	chunks bool // no Content-Length
}

func client() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 200},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send sends one request over a connection of its own kind.
func send(t *testing.T, q request) reply {
	t.Helper()
	got, err := try(t.Context(), client(), q)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func try(ctx context.Context, c *http.Client, q request) (reply, error) {
	defer c.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if q.method == "" {
		q.method = http.MethodPost
	}
	var body io.Reader = strings.NewReader(q.body)
	if q.chunks {
		body = struct{ io.Reader }{body}
	}
	r, err := http.NewRequestWithContext(ctx, q.method, q.url, body)
	if err != nil {
		return reply{}, err
	}
	for name, values := range q.header {
		r.Header[name] = values
	}
	if q.key != "" {
		r.Header.Set("Idempotency-Key", q.key)
	}
	response, err := c.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(content)}, err
}

// wantProblem fails unless the answer is a problem of the type with status.
func wantProblem(t *testing.T, got reply, status int, kind string) map[string]any {
	t.Helper()
	var p map[string]any
	uri := httpkey.DefaultDocs + "#" + kind
	switch {
	case got.status != status:
		t.Fatalf("status %d, want %d %s: %s", got.status, status, kind, got.body)
	case got.header.Get("Content-Type") != "application/problem+json":
		t.Fatalf("content type %q of a problem", got.header.Get("Content-Type"))
	case json.Unmarshal([]byte(got.body), &p) != nil:
		t.Fatalf("problem %q is not JSON", got.body)
	case p["type"] != uri || p["status"] != float64(status) || p["title"] == "":
		t.Fatalf("problem %v, want type %s and status %d", p, uri, status)
	case got.header.Get("Link") != "<"+uri+`>; rel="describedby"`:
		t.Fatalf("link %q of problem %s", got.header.Get("Link"), kind)
	case got.header.Get("Idempotent-Replayed") != "":
		t.Fatalf("problem %s is marked as a replay", kind)
	}
	return p
}

// wantReplay fails unless again is the replay of first: status, lines that
// matter, body byte for byte, with the marker that first has not.
func wantReplay(t *testing.T, first, again reply) {
	t.Helper()
	if first.header.Get("Idempotent-Replayed") != "" {
		t.Fatal("the first answer is marked as a replay")
	}
	if again.header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("answer %d %s is no replay", again.status, again.body)
	}
	a, b := first, again
	a.header, b.header = a.header.Clone(), b.header.Clone()
	for _, name := range []string{"Date", "Set-Cookie", "Idempotent-Replayed", "Www-Authenticate", "Connection", "Preference-Applied"} {
		a.header.Del(name)
		b.header.Del(name)
	}
	if a.header.Get("Cache-Control") == "" {
		if b.header.Get("Cache-Control") != "no-store" {
			t.Errorf("a replay may be cached: %q", b.header.Get("Cache-Control"))
		}
		b.header.Del("Cache-Control")
	}
	if diff := cmp.Diff(a, b, cmp.AllowUnexported(reply{})); diff != "" {
		t.Fatalf("replay differs (-first +again):\n%.2000s", diff)
	}
}

// caller is a scope function by a bearer token "tenant/principal".
func caller(r *http.Request) (httpkey.Scope, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	tenant, principal, two := strings.Cut(token, "/")
	if !ok || !two {
		return httpkey.Scope{}, &httpkey.Error{Status: 401, Header: http.Header{"WWW-Authenticate": {"Bearer"}}}
	}
	return httpkey.Scope{Tenant: tenant, Principal: principal}, nil
}

func bearer(s string) http.Header { return http.Header{"Authorization": {"Bearer " + s}} }

// quiet are options without a log, for one tenant.
func quiet() *httpkey.Options {
	return &httpkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)}
}

// logged are options with a log that the test can read.
func logged() (*httpkey.Options, *syncBuffer) {
	var b syncBuffer
	return &httpkey.Options{SingleTenant: true, Logger: slog.New(slog.NewTextHandler(&b, nil))}, &b
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// handled serves a handler of Handle over TCP; without options for one tenant.
func (s *shop) handled(t *testing.T, opts *httpkey.Options, fn func(http.ResponseWriter, *http.Request, insert) error) *httptest.Server {
	t.Helper()
	if opts == nil {
		opts = quiet()
	}
	var scope httpkey.ScopeFunc
	if !opts.SingleTenant {
		scope = caller
	}
	h, err := s.handle(scope, opts, fn)
	if err != nil {
		t.Fatal(err)
	}
	return server(t, h)
}

// wrapped serves a plain handler over TCP.
func (s *shop) wrapped(t *testing.T, opts *httpkey.Options, fn http.HandlerFunc) *httptest.Server {
	t.Helper()
	if opts == nil {
		opts = quiet()
	}
	h, err := s.wrap(nil, opts, fn)
	if err != nil {
		t.Fatal(err)
	}
	return server(t, h)
}

// wantRows fails unless as many business rows are committed.
func (s *shop) wantRows(t *testing.T, want int) {
	t.Helper()
	if got := s.rows(); got != want {
		t.Fatalf("%d rows, want %d", got, want)
	}
}
