package httpkey_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
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
			{store.ErrAborted, 503, "transaction-aborted"},
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
		opts.Limit = 400 * time.Millisecond
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
		wantProblem(t, send(t, request{url: plain.URL, key: "a"}), 503, "transaction-aborted")
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
