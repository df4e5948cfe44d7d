package httpkey_test

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store"
)

// Case 36, in one worker.
func TestAHundredAtOnceRunOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		entered, leave := make(chan struct{}), make(chan struct{})
		srv := s.handled(t, nil, func(w http.ResponseWriter, r *http.Request, put insert) error {
			close(entered)
			<-leave
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
		<-entered
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
		close(leave)
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
		entered, leave := make(chan struct{}), make(chan struct{})
		srv := s.handled(t, nil, func(w http.ResponseWriter, r *http.Request, put insert) error {
			close(entered)
			<-leave
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
		<-entered
		got := send(t, q)
		wantProblem(t, got, 409, "in-flight")
		if n, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || n < 1 || n > 5 {
			t.Errorf("retry after %q", got.header.Get("Retry-After"))
		}
		wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "y"}), 422, "key-reused")
		close(leave)
		first := <-done
		wantReplay(t, first, send(t, q))
		wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "y"}), 422, "key-reused")
	})
}

// Case 41.
func TestPreferWaitGetsTheReplayOrA409InTime(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		entered, leave := make(chan struct{}), make(chan struct{})
		opts := quiet()
		opts.Wait = 20 * time.Second
		srv := s.handled(t, opts, func(w http.ResponseWriter, r *http.Request, put insert) error {
			close(entered)
			<-leave
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
		<-entered
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
		close(leave)
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
		both := make(chan struct{}, 2)
		all := make(chan struct{})
		srv := s.handled(t, nil, func(_ http.ResponseWriter, _ *http.Request, put insert) error {
			both <- struct{}{}
			<-all // before the first statement
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
		<-both
		<-both
		close(all)
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

// Case 53, and the rule of Wrap.
func TestAPlainHandlersStatusDecides(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var status atomic.Int64
		handler := func(w http.ResponseWriter, r *http.Request) {
			if err := s.insert(r.Context(), "x"); err != nil {
				t.Error(err)
			}
			n := int(status.Load())
			w.WriteHeader(n)
			fmt.Fprintf(w, "answer %d", n)
		}
		srv := s.wrapped(t, nil, handler)
		rows := 0
		for _, n := range []int64{500, 503, 408, 425, 429, 501} {
			key := "of" + strconv.FormatInt(n, 10)
			status.Store(n)
			if got := send(t, request{url: srv.URL, key: key}); got.status != int(n) || got.body != fmt.Sprintf("answer %d", n) {
				t.Fatalf("%d: %d %s", n, got.status, got.body)
			}
			s.wantRows(t, rows)
			status.Store(201)
			first := send(t, request{url: srv.URL, key: key})
			if first.status != 201 || first.header.Get("Idempotent-Replayed") != "" {
				t.Fatalf("second call after %d: %d", n, first.status)
			}
			rows++
			wantReplay(t, first, send(t, request{url: srv.URL, key: key}))
		}
		for _, n := range []int64{200, 302, 400, 404, 409, 422} {
			status.Store(n)
			key := "of" + strconv.FormatInt(n, 10)
			first := send(t, request{url: srv.URL, key: key})
			rows++
			wantReplay(t, first, send(t, request{url: srv.URL, key: key}))
		}
		s.wantRows(t, rows)

		opts := quiet()
		opts.Commit = func(status int) bool { return status < 400 }
		own := s.wrapped(t, opts, handler)
		status.Store(402)
		for range 2 {
			if got := send(t, request{url: own.URL, key: "own"}); got.status != 402 || got.header.Get("Idempotent-Replayed") != "" {
				t.Fatalf("by a rule of its own: %d %v", got.status, got.header)
			}
		}
		s.wantRows(t, rows)
	})
}

// Case 55, and what a returned error does.
func TestAReturnedErrorRollsBack(t *testing.T) {
	secret := errors.New("pq: password of db-7 is hunter2")
	for _, tc := range []struct {
		name   string
		err    error
		writes bool
		status int
		frozen bool
	}{
		{"a 400 before any write", httpkey.Errorf(400, "quantity: want 1 or more"), false, 400, true},
		{"a 404", httpkey.Errorf(404, "no such order: %w", secret), false, 404, true},
		{"a wrapped 422", fmt.Errorf("checking: %w", &httpkey.Error{Status: 422, Type: "https://shop.example/full", Title: "Full", Err: secret}), false, 422, true},
		{"a 409 after a write", httpkey.Errorf(409, "sold"), true, 409, false},
		{"a 408", &httpkey.Error{Status: 408}, false, 408, false},
		{"a 425", &httpkey.Error{Status: 425}, false, 425, false},
		{"a 429", &httpkey.Error{Status: 429, Header: http.Header{"Retry-After": {"7"}}}, false, 429, false},
		{"a 503", &httpkey.Error{Status: 503, Err: secret}, false, 503, false},
		{"any other error", secret, true, 500, false},
		{"a status that is none", &httpkey.Error{Status: 200, Detail: "x"}, false, 500, false},
		{"an error of another engine", &unavez.Error{Code: unavez.CodeInFlight, Err: secret}, false, 500, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, s *shop) {
				var runs atomic.Int64
				opts, log := logged()
				srv := s.handled(t, opts, func(w http.ResponseWriter, r *http.Request, put insert) error {
					if runs.Add(1) > 1 {
						return put("x")
					}
					if tc.writes {
						if err := put("x"); err != nil {
							t.Error(err)
						}
					}
					w.Header().Set("X-Own", "1")
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, "half an answer")
					return tc.err
				})
				q := request{url: srv.URL, key: "k", body: "x"}
				first := send(t, q)
				if first.status != tc.status || first.header.Get("Content-Type") != "application/problem+json" || first.header.Get("X-Own") != "" ||
					strings.Contains(first.body, "half") || strings.Contains(first.body, "hunter2") {
					t.Fatalf("answer %d %v %s", first.status, first.header, first.body)
				}
				s.wantRows(t, 0)
				if tc.status >= 500 && errors.Is(tc.err, secret) && !strings.Contains(log.String(), "hunter2") {
					t.Errorf("the log does not know why: %s", log)
				}
				again := send(t, q)
				if tc.frozen {
					wantReplay(t, first, again)
					wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "corrected"}), 422, "key-reused")
				} else if again.status != 200 || runs.Load() != 2 {
					t.Fatalf("the key is not free: %d %s", again.status, again.body)
				}
			})
		})
	}
}

// Case 57, a lost commit and a closed engine.
func TestTroubleOfTheStoreIsA503(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts, log := logged()
		srv := s.handled(t, opts, creates(&runs))
		q := request{url: srv.URL + "/%1b[31m%0d%0afake%20line", key: "k"}
		want := func(status int, kind string) {
			t.Helper()
			got := send(t, q)
			wantProblem(t, got, status, kind)
			if status == 503 && got.header.Get("Retry-After") == "" {
				t.Errorf("%s without Retry-After", kind)
			}
			if strings.Contains(got.body, "secret") {
				t.Errorf("%s tells internals: %s", kind, got.body)
			}
			s.wantRows(t, 0)
		}
		secret := errors.New("secret of the store")
		s.fault.set(fmt.Errorf("%w: %w", store.ErrUnavailable, secret), nil)
		want(503, "store-unavailable")
		if runs.Load() != 0 || !strings.Contains(log.String(), "secret of the store") {
			t.Fatalf("%d runs; log %s", runs.Load(), log)
		}
		s.fault.set(fmt.Errorf("%w: %w", store.ErrDamaged, secret), nil)
		want(500, "result-damaged")
		for _, tc := range []struct {
			err    error
			status int
			kind   string
		}{
			{store.ErrUnavailable, 503, "store-unavailable"},
			{store.ErrLimit, 503, "limit-exceeded"},
			{store.ErrAborted, 500, "transaction-aborted"},
			{store.ErrForeignCommit, 500, "foreign-commit"},
			{errors.New("anything"), 500, "internal"},
		} {
			s.fault.set(nil, fmt.Errorf("%w: %w", tc.err, secret))
			want(tc.status, tc.kind)
		}
		for _, r := range log.String() {
			if r < 0x20 && r != '\n' || r == 0x7f || strings.Contains(log.String(), "\nfake") {
				t.Fatalf("raw control character of the client in the log: %q", log)
			}
		}
		s.fault.set(nil, nil)
		before := runs.Load()
		first := send(t, q)
		wantReplay(t, first, send(t, q))
		if first.status != 201 || runs.Load() != before+1 {
			t.Errorf("after all that: %d, %d runs", first.status, runs.Load()-before)
		}
	})
}

func TestAHandlerOverItsLimitIsRolledBackAndTheKeyFree(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts := quiet()
		opts.Limit = 50 * time.Millisecond
		srv := s.handled(t, opts, func(w http.ResponseWriter, r *http.Request, put insert) error {
			if runs.Add(1) == 1 {
				if err := put("x"); err != nil {
					t.Error(err)
				}
				<-r.Context().Done()
			}
			w.WriteHeader(http.StatusCreated)
			return nil
		})
		q := request{url: srv.URL, key: "k"}
		got := send(t, q)
		wantProblem(t, got, 503, "limit-exceeded")
		if got.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		s.wantRows(t, 0)
		first := send(t, q)
		if first.status != 201 {
			t.Fatalf("%d %s", first.status, first.body)
		}
		wantReplay(t, first, send(t, q))
	})
}

func TestAClosedEngineAnswers503(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		srv := s.handled(t, nil, creates(&runs))
		s.close()
		got := send(t, request{url: srv.URL, key: "k"})
		wantProblem(t, got, 503, "shutting-down")
		if got.header.Get("Retry-After") == "" || runs.Load() != 0 {
			t.Errorf("%v, %d runs", got.header, runs.Load())
		}
	})
}

// Handle gives every request a transaction; that of a safe method is rolled back.
func TestASafeRequestUnderHandleChangesNothing(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		srv := s.handled(t, nil, creates(&runs))
		for i := range 2 {
			got := send(t, request{method: "GET", url: srv.URL, key: "k"})
			if got.status != 201 || got.body != fmt.Sprintf(`{"run":%d}`, i+1) || got.header.Get("Idempotent-Replayed") != "" {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		s.wantRows(t, 0)
	})
}

func TestTheObserverHearsWhatBecameOfARequest(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var mu sync.Mutex
		var heard []string
		opts := quiet()
		opts.Observe = func(o httpkey.Observation) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, fmt.Sprintf("%s %d %d", o.Type, o.Status, len(o.ID)))
		}
		srv := s.wrapped(t, opts, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/broken" {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		for _, q := range []request{{}, {key: "k"}, {key: "k"}, {key: "k", body: "y"}, {key: "b", url: "/broken"}, {method: "GET"}} {
			q.url = srv.URL + q.url
			send(t, q)
		}
		want := "[key-missing 400 0 completed 200 32 replayed 200 32 key-reused 422 32 rolled-back 502 32]"
		mu.Lock()
		defer mu.Unlock()
		if got := fmt.Sprint(heard); got != want {
			t.Errorf("heard %s\nwant  %s", got, want)
		}
	})
}

func TestAnAbortedTransactionNeverClaimsSuccess(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var status atomic.Int64
		var runs atomic.Int64
		plain := s.wrapped(t, nil, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			w.WriteHeader(int(status.Load()))
			io.WriteString(w, "mine")
		})
		returning := s.handled(t, nil, func(w http.ResponseWriter, r *http.Request, _ insert) error {
			runs.Add(1)
			return &httpkey.Error{Status: 409, Title: "Sold"}
		})
		s.fault.set(nil, store.ErrAborted)
		status.Store(201)
		wantProblem(t, send(t, request{url: plain.URL, key: "a"}), 500, "transaction-aborted")
		status.Store(409)
		for range 2 { // sent as it is, and the key is free
			if got := send(t, request{url: plain.URL, key: "b"}); got.status != 409 || got.body != "mine" {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if got := send(t, request{url: returning.URL, key: "c"}); got.status != 409 || !strings.Contains(got.body, "Sold") {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		if runs.Load() != 5 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

// Case 45, seen from outside: the answer is lost and the repeat gets it.
func TestAHangUpDoesNotStopTheHandler(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		entered, leave := make(chan struct{}), make(chan struct{})
		var gone sync.WaitGroup
		gone.Add(1)
		h, err := s.handle(nil, quiet(), func(w http.ResponseWriter, r *http.Request, put insert) error {
			if runs.Load() == 0 {
				close(entered)
				<-leave
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
				defer gone.Done()
				context.AfterFunc(r.Context(), func() { close(leave) })
			}
			h.ServeHTTP(w, r)
		}))
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			<-entered
			hangUp()
		}()
		if _, err := try(ctx, client(), request{url: srv.URL, key: "k"}); err == nil {
			t.Fatal("the client has an answer")
		}
		gone.Wait()
		got := send(t, request{url: srv.URL, key: "k"})
		if got.body != `{"run":1}` || got.header.Get("Idempotent-Replayed") != "true" || runs.Load() != 1 {
			t.Fatalf("repeat: %d %s, %d runs", got.status, got.body, runs.Load())
		}
		s.wantRows(t, 1)
	})
}

func TestAHangUpStopsTheHandlerThatAskedForIt(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		entered, ended := make(chan struct{}), make(chan error, 1)
		opts := quiet()
		opts.CancelOnDisconnect = true
		srv := s.handled(t, opts, func(_ http.ResponseWriter, r *http.Request, _ insert) error {
			close(entered)
			<-r.Context().Done()
			ended <- r.Context().Err()
			return r.Context().Err()
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			<-entered
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

// Retention: D10.
func TestAfterTheRetentionTheKeyIsExpiredAndThenNew(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts := quiet()
		opts.Retention, opts.Tombstone = 10*time.Second, 10*time.Second
		srv := s.handled(t, opts, creates(&runs))
		q := request{url: srv.URL, key: "k", body: "x"}
		first := send(t, q)
		wantReplay(t, first, send(t, q))
		s.advance(11 * time.Second)
		wantProblem(t, send(t, q), 422, "key-expired")
		wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "y"}), 422, "key-reused")
		s.advance(10 * time.Second)
		if got := send(t, q); got.status != 201 || got.header.Get("Idempotent-Replayed") != "" || runs.Load() != 2 {
			t.Fatalf("after the tombstone: %d %v, %d runs", got.status, got.header, runs.Load())
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
	entered, leave := make(chan struct{}), make(chan struct{})
	opts := quiet()
	opts.Wait = time.Minute
	var arrived atomic.Int64
	const waiters = 2000
	h, err := s.handle(nil, opts, func(w http.ResponseWriter, _ *http.Request, _ insert) error {
		close(entered)
		<-leave
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
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nPrefer: wait=60\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"); err != nil {
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
	<-entered
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
	close(leave)
	for i, conn := range conns {
		got, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 ") || strings.Contains(string(got), "Idempotent-Replayed") != (i > 0) {
			t.Fatalf("connection %d: %v, %.200q", i, err, got)
		}
	}
}
