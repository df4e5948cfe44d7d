package main

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the tests' own statements

	"github.com/unavez/unavez/internal/testenv"
)

// onStores runs a test with a folder whose ./unavez.yaml may say
// "store: ${STORE}", on SQLite and on PostgreSQL, migrated.
func onStores(t *testing.T, test func(t *testing.T, dir string, env []string)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		test(t, dir, []string{"STORE=sqlite:" + filepath.Join(dir, "unavez.db"), "UNSAFE=sqlite.file_system"})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		at := testenv.NewDatabase(t)
		if got := invoke(t, t.TempDir(), nil, "migrate", "--store", at); got.code != 0 {
			t.Fatalf("migrate: %+v", got)
		}
		test(t, t.TempDir(), []string{"STORE=" + at, "UNSAFE=postgres.fsync"})
	})
}

const hush = "the-secret-of-the-shop-canary"

// shopFile is a sender that signs the body, and an effect that imports orders.
const shopFile = `
store: ${STORE}
unsafe: ["${UNSAFE}"]
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {lease: 2s, poll: 20ms}
sources:
  - name: shop
    contract: hmac
    path: /in/shop
    secrets: [{name: today, value: ` + hush + `}]
    types: [order/*]
    signing: {header: X-Signature}
    event: {id: [header.X-Event-Id], type: header.X-Event-Type, subject: [body.id], version: body.version}
    window: 1h
effects:
  - name: order.import.v1
    key: [data.id]
    order_by: [data.id]
    send: {url: "APP/imports", timeout: 2s}
    unknown: retry
    lease: 2s
    retry: {first: 20ms, longest: 100ms, attempts: 5}
`

// imports is an application that deduplicates by the derived key, as its
// configuration says.
type imports struct {
	*httptest.Server
	mu      sync.Mutex
	calls   int
	effects map[string]int // committed, by key
	do      func(w http.ResponseWriter, r *http.Request, commit func() bool)
}

func newImports(t *testing.T) *imports {
	a := &imports{effects: map[string]int{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // it has arrived whole
		if r.URL.Path == "/alerts" {
			return
		}
		a.mu.Lock()
		a.calls++
		do := a.do
		a.mu.Unlock()
		commit := func() bool { // whether it is the first
			a.mu.Lock()
			defer a.mu.Unlock()
			a.effects[r.Header.Get("Idempotency-Key")]++
			return a.effects[r.Header.Get("Idempotency-Key")] == 1
		}
		if do != nil {
			do(w, r, commit)
			return
		}
		commit()
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *imports) then(do func(w http.ResponseWriter, r *http.Request, commit func() bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.do = do
}

func (a *imports) count() (calls, effects int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls, len(a.effects)
}

func digest(body string) string { return signed(hush, body) }

func signed(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, body) // a hash never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// deliver sends a signed event.
func (s *child) deliver(id, body string) (reply, error) {
	s.t.Helper()
	return send(s.t, http.MethodPost, s.requests+"/in/shop", body, "X-Signature", digest(body), "X-Event-Id", id, "X-Event-Type", "order/created")
}

// taken sends a signed event and wants it to be acknowledged.
func (s *child) taken(id, body string) {
	s.t.Helper()
	r, err := s.deliver(id, body)
	if got := must(s.t, r, err); got.status != 200 || got.body != "" {
		s.t.Fatalf("%s: %+v", id, got)
	}
}

// eventually polls for what happens in the background.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(60 * time.Second)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not within the time: %s", what)
		}
	}
}

// listed counts the operations in a state, by the command line.
func (s *child) listed(state string) (n int) {
	s.t.Helper()
	got := invoke(s.t, s.t.TempDir(), nil, "ops", "list", "--admin", s.admin, "--state", state, "--json", "--limit", "100000")
	var page struct{ Operations []any }
	if err := json.Unmarshal([]byte(got.out), &page); err != nil {
		s.t.Fatalf("%v: %+v", err, got)
	}
	return len(page.Operations)
}

// metric reads one sample.
func (s *child) metric(name string) string {
	s.t.Helper()
	r, err := send(s.t, http.MethodGet, s.admin+"/metrics", "")
	for line := range strings.Lines(must(s.t, r, err).body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// audited wants every invariant to hold over what a test has left.
func audited(t *testing.T, dir string, env []string) {
	t.Helper()
	if got := invoke(t, dir, env, "audit", "--all"); got.code != 0 {
		t.Errorf("audit: %+v", got)
	}
}

func TestADeliveryWhoseWorkerIsKilledBeforeItsCommitWasNeverTakenAndTakesEffectOnce(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		app := newImports(t)
		hold, waits, release := blockStore(t, env[0])
		configure(t, dir, strings.ReplaceAll(shopFile, "APP", app.URL))
		s := serve(t, dir, env...)
		s.taken("e-0", `{"id":1,"version":1}`)
		eventually(t, "the first effect", func() bool { _, n := app.count(); return n == 1 })
		hold() // no commit comes to its end
		lost := make(chan error, 1)
		go func() {
			got, err := s.deliver("e-1", `{"id":2,"version":1}`)
			if err == nil && got.status == 200 {
				err = errors.New("acknowledged")
			} else {
				err = nil
			}
			lost <- err
		}()
		eventually(t, "it waits for the store", func() bool { return s.metric("unavez_connections") != "0" && waits() })
		s.signal(syscall.SIGKILL)
		s.end()
		if err := <-lost; err != nil {
			t.Error(err)
		}
		release()
		s = serve(t, dir, env...)
		for range 2 {
			s.taken("e-1", `{"id":2,"version":1}`)
		}
		eventually(t, "both have ended", func() bool { return s.listed("completed") == 4 }) // two events, two operations
		if _, n := app.count(); n != 2 || s.metric(`unavez_event_duplicates_total{source="shop"}`) != "1" {
			t.Errorf("%d effects, %s duplicates", n, s.metric(`unavez_event_duplicates_total{source="shop"}`))
		}
		audited(t, dir, env)
	})
}

// blockStore gives what keeps every arrival at a store from its commit, what tells
// (where the store can) that one waits, and what lets the later ones go on: one that
// waits when its worker was killed is over.
func blockStore(t *testing.T, variable string) (hold func(), waits func() bool, release func()) {
	t.Helper()
	const blocked = "FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() WHERE NOT granted"
	at := strings.TrimPrefix(variable, "STORE=")
	driver, take, count, end := "pgx", "BEGIN; LOCK TABLE unavez.queue_0, unavez.queue_1, unavez.queue_2, unavez.queue_3 IN SHARE MODE",
		"SELECT count(*) "+blocked, "SELECT count(pg_terminate_backend(pid)) "+blocked
	if path, ok := strings.CutPrefix(at, "sqlite:"); ok {
		driver, at, take, count, end = "sqlite", path, "BEGIN IMMEDIATE", "SELECT 1", "SELECT 1"
	}
	db, err := sql.Open(driver, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // with its lock
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do := func(text string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(text string) (n int) {
		t.Helper()
		if err := conn.QueryRowContext(t.Context(), text).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	return func() { do(take) }, func() bool { return ask(count) > 0 }, func() {
		ask(end)
		do("ROLLBACK")
	}
}

// The first byte of the answer is on its way when the worker dies: what it says was
// committed, and the sender does not know.
func TestADeliveryWhoseAnswerIsLostWithItsWorkerTakesEffectOnce(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		app := newImports(t)
		arrived, release := make(chan struct{}, 10), make(chan struct{})
		app.then(func(w http.ResponseWriter, _ *http.Request, commit func() bool) {
			arrived <- struct{}{}
			<-release
			commit()
			w.WriteHeader(http.StatusNoContent)
		})
		configure(t, dir, strings.ReplaceAll(shopFile, "APP", app.URL))
		s := serve(t, dir, env...)
		const body = `{"id":1,"version":1}`
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.requests, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "POST /in/shop HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Signature: %s\r\nX-Event-Id: e-1\r\nX-Event-Type: order/created\r\nContent-Length: %d\r\n\r\n%s",
			digest(body), len(body), body); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(conn).ReadByte(); err != nil {
			t.Fatal(err)
		}
		s.signal(syscall.SIGKILL)
		s.end()
		close(release)
		s = serve(t, dir, env...)
		for range 3 {
			s.taken("e-1", body)
		}
		eventually(t, "it has ended", func() bool { return s.listed("completed") == 2 })
		if _, n := app.count(); n != 1 || s.metric(`unavez_event_duplicates_total{source="shop"}`) != "3" {
			t.Errorf("%d effects, %s duplicates", n, s.metric(`unavez_event_duplicates_total{source="shop"}`))
		}
		audited(t, dir, env)
	})
}

// The worker is killed while the application works: before it has committed, and
// after.
func TestAnEventWhoseWorkerIsKilledWhileTheApplicationWorksTakesEffectOnce(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprint("committed ", committed), func(t *testing.T) {
			onStores(t, func(t *testing.T, dir string, env []string) {
				app := newImports(t)
				arrived := make(chan struct{}, 1)
				app.then(func(w http.ResponseWriter, r *http.Request, commit func() bool) {
					select {
					case arrived <- struct{}{}: // the first
						if committed {
							commit()
						}
						<-r.Context().Done() // the caller is gone: what was not committed is rolled back
					default:
						commit()
						w.WriteHeader(http.StatusNoContent)
					}
				})
				configure(t, dir, strings.ReplaceAll(shopFile, "APP", app.URL))
				s := serve(t, dir, env...)
				s.taken("e-1", `{"id":1,"version":1}`)
				eventually(t, "it runs", func() bool { return len(arrived) == 1 })
				s.signal(syscall.SIGKILL)
				s.end()
				s = serve(t, dir, env...)
				eventually(t, "it has ended", func() bool { return s.listed("completed") == 2 })
				if calls, n := app.count(); n != 1 || calls != 2 {
					t.Errorf("%d effects in %d calls", n, calls)
				}
				s.taken("e-1", `{"id":1,"version":1}`)
				audited(t, dir, env)
			})
		})
	}
}

// A worker that is stopped in the middle loses its lanes and its lease. What it
// comes back with is refused.
func TestAStoppedWorkersEventIsDoneByAnotherOneAndItsOwnEndIsRefused(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		app := newImports(t)
		arrived, release := make(chan struct{}, 1), make(chan struct{})
		app.then(func(w http.ResponseWriter, _ *http.Request, commit func() bool) {
			select {
			case arrived <- struct{}{}: // the first, whose answer comes late
				<-release
			default:
			}
			commit()
			w.WriteHeader(http.StatusNoContent)
		})
		configure(t, dir, strings.ReplaceAll(shopFile, "APP", app.URL))
		one := serve(t, dir, env...)
		one.taken("e-1", `{"id":1,"version":1}`)
		eventually(t, "it runs", func() bool { return len(arrived) == 1 })
		one.signal(syscall.SIGSTOP)
		two := serve(t, dir, env...)
		eventually(t, "the other one has done it", func() bool { return two.listed("completed") == 2 })
		close(release) // the answer waits for the stopped one
		one.signal(syscall.SIGCONT)
		eventually(t, "it has seen that it lost", func() bool { return strings.Contains(one.log.String(), "lost") })
		if calls, n := app.count(); n != 1 || calls != 2 || two.listed("completed") != 2 {
			t.Errorf("%d effects in %d calls", n, calls)
		}
		for _, s := range []*child{one, two} {
			s.taken("e-1", `{"id":1,"version":1}`)
		}
		audited(t, dir, env)
	})
}

// Two workers of their own, a hundred copies at once.
func TestAHundredCopiesAtTwoWorkersAreOneEvent(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		app := newImports(t)
		configure(t, dir, strings.ReplaceAll(shopFile, "APP", app.URL))
		workers := []*child{serve(t, dir, env...), serve(t, dir, env...)}
		var group sync.WaitGroup
		var mu sync.Mutex
		answers := map[int]int{}
		for i := range 100 {
			group.Go(func() {
				got, err := workers[i%2].deliver("e-1", `{"id":1,"version":1}`)
				mu.Lock()
				defer mu.Unlock()
				if answers[got.status]++; err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if answers[200] != 100 {
			t.Fatalf("%v", answers)
		}
		sum := 0
		for _, s := range workers {
			n := 0
			_, _ = fmt.Sscan(s.metric(`unavez_event_duplicates_total{source="shop"}`), &n) // none is zero
			sum += n
		}
		eventually(t, "it has ended", func() bool { return workers[0].listed("completed") == 2 })
		if calls, n := app.count(); sum != 99 || calls != 1 || n != 1 {
			t.Errorf("%d duplicates, %d calls, %d effects", sum, calls, n)
		}
		audited(t, dir, env)
	})
}

// Without its database the process answers within two seconds, and what comes
// again takes effect once.
func TestADatabaseThatIsGoneIsAnsweredAndWhatComesAgainTakesEffectOnce(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(testenv.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, t.TempDir(), nil, "migrate", "--store", at.String()); got.code != 0 {
		t.Fatalf("migrate: %+v", got)
	}
	gate := testenv.StartRelay(t, at.Host)
	at.Host = gate.Addr()
	app, dir, env := newImports(t), t.TempDir(), []string{"STORE=" + at.String(), "UNSAFE=postgres.fsync"}
	configure(t, dir, strings.ReplaceAll(shopFile, "APP", app.URL))
	s := serve(t, dir, env...)
	s.taken("e-0", `{"id":1,"version":1}`)
	gate.Cut() // connections are refused
	for range 3 {
		begun := time.Now()
		r, err := s.deliver("e-1", `{"id":2,"version":1}`)
		if got := must(t, r, err); got.status != 503 || got.header.Get("Retry-After") == "" || time.Since(begun) > 4*time.Second {
			t.Errorf("%+v after %v", got, time.Since(begun))
		}
	}
	gate.Mend()
	eventually(t, "it is taken", func() bool { r, err := s.deliver("e-1", `{"id":2,"version":1}`); return err == nil && r.status == 200 })
	eventually(t, "both have ended", func() bool { return s.listed("completed") == 4 })
	if _, n := app.count(); n != 2 {
		t.Errorf("%d effects", n)
	}
	audited(t, dir, env)
}
