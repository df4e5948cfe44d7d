package httpkey_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez/httpkey"
)

// Case 36, in one worker.
func TestAHundredAtOnceRunOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		g := newGate()
		defer g.open()
		srv := s.handled(t, nil, func(w http.ResponseWriter, r *http.Request, put insert) error {
			g.pass()
			return creates(&runs)(w, r, put)
		})
		q := request{url: srv.URL, key: "k", body: "x"}
		firstDone := make(chan reply, 1)
		go func() {
			got, err := try(t.Context(), client(), q)
			if err != nil {
				t.Error(err)
			}
			firstDone <- got
		}()
		g.arrived(t)
		var wg sync.WaitGroup
		for range 99 {
			wg.Go(func() {
				at := time.Now()
				got, err := try(t.Context(), client(), q)
				if err != nil || got.status != 409 {
					t.Errorf("duplicate: %d, %v", got.status, err)
				}
				if took := time.Since(at); took > 5*time.Second {
					t.Errorf("a duplicate waited %v for its 409", took)
				}
			})
		}
		wg.Wait()
		g.open()
		wantReplay(t, <-firstDone, send(t, q))
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
		s.wantRows(t, 1)
	})
}

// Cases 37, 38.
func TestInFlightIsToldApartFromAnotherRequest(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		g := newGate()
		defer g.open()
		srv := s.handled(t, nil, func(w http.ResponseWriter, r *http.Request, put insert) error {
			g.pass()
			return creates(&runs)(w, r, put)
		})
		q := request{url: srv.URL, key: "k", body: "x"}
		done := make(chan reply, 1)
		go func() {
			got, err := try(t.Context(), client(), q)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		g.arrived(t)
		got := send(t, q)
		wantProblem(t, got, 409, "in-flight")
		if n, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || n < 1 || n > 5 {
			t.Errorf("retry after %q", got.header.Get("Retry-After"))
		}
		wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "y"}), 422, "key-reused")
		g.open()
		first := <-done
		wantReplay(t, first, send(t, q))
		wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "y"}), 422, "key-reused")
	})
}

// Case 41.
func TestPreferWaitGetsTheReplayOrA409InTime(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		g := newGate()
		defer g.open()
		opts := quiet()
		opts.Wait = 20 * time.Second
		srv := s.handled(t, opts, func(w http.ResponseWriter, r *http.Request, put insert) error {
			g.pass()
			return creates(&runs)(w, r, put)
		})
		q := request{url: srv.URL, key: "k"}
		done := make(chan reply, 2)
		post := func(q request) {
			got, err := try(t.Context(), client(), q)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}
		go post(q)
		g.arrived(t)
		at := time.Now()
		got := send(t, request{url: srv.URL, key: "k", header: http.Header{"Prefer": {"respond-async, wait=1"}}})
		wantProblem(t, got, 409, "in-flight")
		if took := time.Since(at); took < time.Second || took > 4*time.Second {
			t.Errorf("waited %v, want 1 s", took)
		}
		if got.header.Get("Preference-Applied") != "wait=1" {
			t.Errorf("applied %q", got.header.Get("Preference-Applied"))
		}
		// More is asked for than is granted; the end of the first wakes it.
		waiting := request{url: srv.URL, key: "k", header: http.Header{"Prefer": {"wait=600"}}}
		go post(waiting)
		g.open()
		a, b := <-done, <-done
		if a.header.Get("Idempotent-Replayed") != "" {
			a, b = b, a
		}
		wantReplay(t, a, b)
		if b.header.Get("Preference-Applied") != "wait=20" || runs.Load() != 1 {
			t.Errorf("applied %q, %d runs", b.header.Get("Preference-Applied"), runs.Load())
		}
	})
}

// Case 42: the second request ends while the first is still running.
func TestTwoKeysRunSideBySide(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		a, b := newGate(), newGate()
		defer a.open()
		defer b.open()
		srv := s.handled(t, nil, func(_ http.ResponseWriter, r *http.Request, put insert) error {
			map[string]*gate{"a": a, "b": b}[r.Header.Get("Idempotency-Key")].pass() // before the first statement
			return put("x")
		})
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b"} {
			wg.Go(func() {
				if got, err := try(t.Context(), client(), request{url: srv.URL, key: key}); err != nil || got.status != 200 {
					t.Errorf("%s: %d, %v", key, got.status, err)
				}
			})
		}
		a.arrived(t)
		b.arrived(t)
		a.open()
		b.open()
		wg.Wait()
		s.wantRows(t, 2)
	})
}

// Case 52.
func TestAPanicRollsBackAndReachesTheOuterRecovery(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		failing := func(w http.ResponseWriter, r *http.Request, put insert) error {
			switch runs.Add(1) {
			case 1:
				panic("before any write")
			case 2:
				if err := put("x"); err != nil {
					t.Error(err)
				}
				w.WriteHeader(http.StatusCreated)
				io.WriteString(w, "half an answer")
				panic(http.ErrAbortHandler)
			}
			return creates(&runs)(w, r, put)
		}
		h, err := s.handle(nil, quiet(), failing)
		if err != nil {
			t.Fatal(err)
		}
		recovered := make(chan any, 2)
		srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if p := recover(); p != nil {
					recovered <- p
					w.WriteHeader(http.StatusInternalServerError)
				}
			}()
			h.ServeHTTP(w, r)
		}))
		for range 2 {
			if got := send(t, request{url: srv.URL, key: "k"}); got.status != 500 || got.body != "" {
				t.Fatalf("answer to a panic: %d %s", got.status, got.body)
			}
		}
		if a, b := <-recovered, <-recovered; a != "before any write" || b != any(http.ErrAbortHandler) {
			t.Errorf("recovered %v and %v", a, b)
		}
		s.wantRows(t, 0)
		first := send(t, request{url: srv.URL, key: "k"})
		if first.status != 201 {
			t.Fatalf("retry: %d", first.status)
		}
		wantReplay(t, first, send(t, request{url: srv.URL, key: "k"}))
		s.wantRows(t, 1)
	})
}

// Case 45, seen from outside: the answer is lost and the repeat gets it.
func TestAHangUpDoesNotStopTheHandler(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		g := newGate()
		defer g.open()
		gone := newGate()
		gone.open()
		h, err := s.handle(nil, quiet(), func(w http.ResponseWriter, r *http.Request, put insert) error {
			if runs.Load() == 0 {
				g.pass()
			}
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler was cancelled: %v", err)
			}
			return creates(&runs)(w, r, put)
		})
		if err != nil {
			t.Fatal(err)
		}
		var first atomic.Bool
		srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if first.CompareAndSwap(false, true) { // the client is gone before the handler ends
				defer gone.pass()
				context.AfterFunc(r.Context(), g.open)
			}
			h.ServeHTTP(w, r)
		}))
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			g.wait()
			hangUp()
		}()
		if _, err := try(ctx, client(), request{url: srv.URL, key: "k"}); err == nil {
			t.Fatal("the client has an answer")
		}
		gone.arrived(t)
		got := send(t, request{url: srv.URL, key: "k"})
		if got.body != `{"run":1}` || got.header.Get("Idempotent-Replayed") != "true" || runs.Load() != 1 {
			t.Fatalf("repeat: %d %s, %d runs", got.status, got.body, runs.Load())
		}
		s.wantRows(t, 1)
	})
}

func TestAHangUpStopsTheHandlerThatAskedForIt(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		g, ended := newGate(), make(chan error, 1)
		g.open()
		opts := quiet()
		opts.CancelOnDisconnect = true
		srv := s.handled(t, opts, func(_ http.ResponseWriter, r *http.Request, _ insert) error {
			g.pass()
			<-r.Context().Done()
			ended <- r.Context().Err()
			return r.Context().Err()
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			g.wait()
			hangUp()
		}()
		if _, err := try(ctx, client(), request{url: srv.URL, key: "k"}); err == nil {
			t.Fatal("the client has an answer")
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestWhatAKeyedRouteRefusesToItsHandler(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		srv := s.wrapped(t, nil, func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			if err := c.Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
			if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("hijack: %v", err)
			}
			if err := c.EnableFullDuplex(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("full duplex: %v", err)
			}
			if r.URL.Path == "/upgrade" {
				w.WriteHeader(http.StatusSwitchingProtocols)
				return
			}
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("body of 204: %v", err)
			}
			w.WriteHeader(http.StatusOK) // too late
		})
		if got := send(t, request{url: srv.URL, key: "k"}); got.status != 204 {
			t.Errorf("%d", got.status)
		}
		wantProblem(t, send(t, request{url: srv.URL + "/upgrade", key: "u"}), 500, "internal")
	})
}

func TestErrorsAndReplaysCanBeReadAcrossOrigins(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts := quiet()
		opts.CORS = &httpkey.CORS{Origins: []string{"https://shop.example"}, Credentials: true, Expose: []string{"X-Own"}}
		srv := s.handled(t, opts, creates(&runs))
		check := func(origin string, got reply, allowed string) {
			t.Helper()
			if got.header.Get("Access-Control-Allow-Origin") != allowed || got.header.Get("Vary") != "Origin" {
				t.Fatalf("%s: allowed %q, vary %q", origin, got.header.Get("Access-Control-Allow-Origin"), got.header.Get("Vary"))
			}
			exposed := strings.Join(got.header["Access-Control-Expose-Headers"], ",")
			for _, name := range []string{"Idempotent-Replayed", "Retry-After", "Link", "Location", "X-Own"} {
				if allowed != "" && !strings.Contains(exposed, name) {
					t.Errorf("%s is not exposed: %s", name, exposed)
				}
			}
		}
		for origin, allowed := range map[string]string{"https://shop.example": "https://shop.example", "https://evil.example": ""} {
			header := http.Header{"Origin": {origin}}
			check(origin, send(t, request{url: srv.URL, header: header}), allowed)
			send(t, request{url: srv.URL, key: "k", header: header})
			check(origin, send(t, request{url: srv.URL, key: "k", header: header}), allowed)
			check(origin, send(t, request{url: srv.URL, key: "k", body: "y", header: header}), allowed)
		}
	})
}

func TestHeadersOfTheLayersAroundAreNotFrozen(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		h, err := s.wrap(nil, quiet(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Vary", "Accept")
			w.Header().Set("X-Changed", "by the handler")
			w.Header().Del("X-Removed")
		}))
		if err != nil {
			t.Fatal(err)
		}
		var n atomic.Int64
		srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", strconv.FormatInt(n.Add(1), 10))
			w.Header().Set("Vary", "Origin")
			w.Header().Set("X-Changed", "around")
			w.Header().Set("X-Removed", "around")
			h.ServeHTTP(w, r)
		}))
		first := send(t, request{url: srv.URL, key: "k"})
		again := send(t, request{url: srv.URL, key: "k"})
		if first.header.Get("X-Removed") != "" {
			t.Error("a removed header was sent")
		}
		for i, got := range []reply{first, again} {
			if got.header.Get("X-Request-Id") != strconv.Itoa(i+1) || strings.Join(got.header["Vary"], ",") != "Origin,Accept" || got.header.Get("X-Changed") != "by the handler" {
				t.Errorf("answer %d: %v", i, got.header)
			}
		}
	})
}

// Each waiting duplicate costs a connection of net/http and not much more.
func TestMemoryOfWaitingDuplicatesIsBounded(t *testing.T) {
	s := onMemory(t)
	g := newGate()
	defer g.open()
	opts := quiet()
	opts.Wait, opts.Limit = patience, patience
	var arrived atomic.Int64
	const waiters = 2000
	h, err := s.handle(nil, opts, func(w http.ResponseWriter, _ *http.Request, _ insert) error {
		g.pass()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		h.ServeHTTP(w, r)
	}))
	conns := make([]net.Conn, waiters+1)
	dial := func(i int) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns[i] = conn
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nPrefer: wait=600\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"); err != nil {
			t.Fatal(err)
		}
	}
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	dial(0)
	g.arrived(t)
	before := memory()
	for i := 1; i <= waiters; i++ {
		dial(i)
	}
	for arrived.Load() < waiters+1 {
		runtime.Gosched()
	}
	if each := (memory() - before) / waiters; each > 40<<10 && !raceDetector {
		t.Errorf("%d bytes for each waiting duplicate", each)
	} else {
		t.Logf("%d bytes for each waiting duplicate", each)
	}
	g.open()
	for i, conn := range conns {
		got, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 ") || strings.Contains(string(got), "Idempotent-Replayed") != (i > 0) {
			t.Fatalf("connection %d: %v, %.200q", i, err, got)
		}
	}
}
