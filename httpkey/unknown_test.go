package httpkey_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store"
)

func TestWhatAnUpstreamAnswerMeans(t *testing.T) {
	for _, tc := range []struct {
		status int
		opts   httpkey.ProxyOptions
		want   string // frozen, free, unknown, again
	}{
		{200, httpkey.ProxyOptions{}, "frozen"},
		{303, httpkey.ProxyOptions{}, "frozen"},
		{400, httpkey.ProxyOptions{}, "frozen"},
		{422, httpkey.ProxyOptions{}, "frozen"},
		{408, httpkey.ProxyOptions{}, "free"},
		{425, httpkey.ProxyOptions{}, "free"},
		{429, httpkey.ProxyOptions{}, "free"},
		{429, httpkey.ProxyOptions{NotDone: []int{}}, "frozen"},
		{500, httpkey.ProxyOptions{}, "unknown"},
		{502, httpkey.ProxyOptions{}, "unknown"},
		{503, httpkey.ProxyOptions{}, "unknown"},
		{504, httpkey.ProxyOptions{}, "unknown"},
		{503, httpkey.ProxyOptions{NotDone: []int{503}}, "free"},
		{500, httpkey.ProxyOptions{Final: []int{500}}, "frozen"},
		{500, httpkey.ProxyOptions{Unknown: unavez.Retry}, "again"},
	} {
		t.Run(fmt.Sprintf("%d %s", tc.status, tc.want), func(t *testing.T) {
			eachStore(t, func(t *testing.T, s *shop) {
				var calls atomic.Int64
				up := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if calls.Add(1) > 1 {
						io.WriteString(w, "second")
						return
					}
					w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
					w.WriteHeader(tc.status)
					fmt.Fprintf(w, "the application says %d", tc.status)
				}))
				opts := tc.opts
				if opts.Unknown == nil {
					opts.Unknown = unavez.Hold
				}
				srv := s.proxied(t, up.URL, &opts)
				q := request{url: srv.URL, key: "k"}
				first := send(t, q)
				if first.status != tc.status || first.body != fmt.Sprintf("the application says %d", tc.status) {
					t.Fatalf("first answer %d %s", first.status, first.body)
				}
				again := send(t, q)
				switch tc.want {
				case "frozen":
					wantReplay(t, first, again)
				case "free", "again":
					if again.status != 200 || again.body != "second" {
						t.Fatalf("second call: %d %s", again.status, again.body)
					}
					wantReplay(t, again, send(t, q))
				case "unknown":
					wantProblem(t, again, 409, "outcome-unknown")
				}
			})
		})
	}
}

func TestAnAnswerWithoutAFinalStatusIsUnknown(t *testing.T) {
	for _, status := range []string{"000", "050", "101", "600", "999"} {
		t.Run(status, func(t *testing.T) {
			eachStore(t, func(t *testing.T, s *shop) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						_, _ = c.Read(make([]byte, 64<<10))
						_, _ = io.WriteString(c, "HTTP/1.1 "+status+" Odd\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhm")
						_ = c.Close()
					}
				}()
				srv := s.proxied(t, "http://"+l.Addr().String(), &httpkey.ProxyOptions{Unknown: unavez.Hold})
				for range 2 {
					wantProblem(t, send(t, request{url: srv.URL, key: "k"}), 409, "outcome-unknown")
				}
			})
		})
	}
}

func TestWhatWasNeverSentLeavesTheKeyFree(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var calls atomic.Int64
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { calls.Add(1) })
		up := server(t, h)
		secure := httptest.NewUnstartedServer(h)
		secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		secure.StartTLS()
		t.Cleanup(secure.Close)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))

		var broken atomic.Bool
		refusing := func(ctx context.Context, network, address string) (net.Conn, error) {
			if broken.Load() {
				return nil, errors.New("dial of a secret host: refused")
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
		var trust atomic.Pointer[x509.CertPool]
		trust.Store(x509.NewCertPool())
		for name, tc := range map[string]struct {
			opts     httpkey.ProxyOptions
			upstream string
			repair   func()
		}{
			"dial": {httpkey.ProxyOptions{Dial: refusing}, up.URL, func() { broken.Store(false) }},
			"TLS": {httpkey.ProxyOptions{TLS: &tls.Config{
				InsecureSkipVerify: true, // VerifyConnection does it, by roots that the test changes
				VerifyConnection: func(state tls.ConnectionState) error {
					_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: trust.Load()})
					return err
				},
			}}, secure.URL, func() { trust.Store(roots) }},
		} {
			broken.Store(true)
			before := calls.Load()
			tc.opts.Unknown = unavez.Hold
			srv := s.proxied(t, tc.upstream, &tc.opts)
			q := request{url: srv.URL, key: name}
			for range 2 {
				got := send(t, q)
				wantProblem(t, got, 503, "upstream-unreachable")
				if got.header.Get("Retry-After") == "" || strings.Contains(got.body, "secret") {
					t.Errorf("%s: %v %s", name, got.header, got.body)
				}
			}
			tc.repair()
			first := send(t, q)
			if first.status != 200 || calls.Load() != before+1 {
				t.Fatalf("%s: after the repair %d %s, %d calls", name, first.status, first.body, calls.Load()-before)
			}
			wantReplay(t, first, send(t, q))
		}
	})
}

// lost is an upstream that does the work once and loses the answer.
func lost(t *testing.T, how func(conn net.Conn)) (string, func() int) {
	t.Helper()
	return wireServer(t, func(n int, conn net.Conn, _ *http.Request, _ string) bool {
		if n == 0 {
			how(conn)
			return false
		}
		return ok(conn)
	})
}

func TestALostAnswerIsUnknownAndThePolicyDecides(t *testing.T) {
	cut := func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf") // and then nothing
	}
	eachStore(t, func(t *testing.T, s *shop) {
		for name, how := range map[string]func(net.Conn){"no answer": func(net.Conn) {}, "half an answer": cut} {
			up, count := lost(t, how)
			srv := s.proxied(t, up, &httpkey.ProxyOptions{Unknown: unavez.Hold})
			q := request{url: srv.URL, key: "hold " + name, body: "x"}
			wantProblem(t, send(t, q), 409, "outcome-unknown")
			wantProblem(t, send(t, q), 409, "outcome-unknown")
			if count() != 1 {
				t.Errorf("%s: %d calls under hold", name, count())
			}

			up, count = lost(t, how)
			srv = s.proxied(t, up, &httpkey.ProxyOptions{Unknown: unavez.Retry})
			q = request{url: srv.URL, key: "retry " + name, body: "x"}
			got := send(t, q)
			wantProblem(t, got, 409, "outcome-unknown")
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After although asking again decides")
			}
			first := send(t, q)
			if first.status != 201 || count() != 2 {
				t.Fatalf("%s: %d, %d calls under retry", name, first.status, count())
			}
			wantReplay(t, first, send(t, q))

			for verdict, calls := range map[unavez.Verdict]int{unavez.Done: 1, unavez.NotDone: 2, unavez.CannotTell: 1} {
				up, count = lost(t, how)
				probe := func(_ context.Context, a *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
					return unavez.Result{Code: 201, Body: []byte("ok")}, verdict, nil
				}
				srv = s.proxied(t, up, &httpkey.ProxyOptions{Unknown: unavez.Probe(probe)})
				q = request{url: srv.URL, key: "probe " + name + verdict.String(), body: "x"}
				wantProblem(t, send(t, q), 409, "outcome-unknown")
				got := send(t, q)
				if verdict == unavez.CannotTell {
					wantProblem(t, got, 409, "outcome-unknown")
				} else if got.status != 201 || got.body != "ok" {
					t.Fatalf("%s, %v: %d %s", name, verdict, got.status, got.body)
				}
				if count() != calls {
					t.Errorf("%s, %v: %d calls, want %d", name, verdict, count(), calls)
				}
			}
		}
	})
}

func TestTheTimeLimitOfAnAttemptLeavesItUnknown(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		stuck := make(chan struct{})
		up := server(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
		defer close(stuck)
		srv := s.proxied(t, up.URL, &httpkey.ProxyOptions{Unknown: unavez.Hold, Timeout: 200 * time.Millisecond})
		q := request{url: srv.URL, key: "k"}
		wantProblem(t, send(t, q), 409, "outcome-unknown")
		wantProblem(t, send(t, q), 409, "outcome-unknown")
		wantProblem(t, send(t, request{method: "GET", url: srv.URL}), 504, "upstream-timeout")
	})
}

// A released operation runs again under its own key; a completed one answers
// what the person said.
func TestAPersonDecidesAboutAHeldOperation(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		for _, decision := range []string{"release", "complete", "discard"} {
			up, count := lost(t, func(net.Conn) {})
			srv := s.proxied(t, up, nil)
			q := request{url: srv.URL, key: decision, body: "x"}
			wantProblem(t, send(t, q), 409, "outcome-unknown")
			action := store.Action{
				Key:   unavez.Operation{Effect: "http", Key: []string{"", decision}}.Identity().Key(),
				Actor: "ana", Reason: "looked",
			}
			var err error
			switch decision {
			case "release":
				err = s.ops.Release(t.Context(), action)
			case "complete":
				err = s.ops.Complete(t.Context(), action, store.Result{Code: 201, Body: []byte("by hand")}, time.Hour, time.Hour)
			case "discard":
				err = s.ops.Discard(t.Context(), action, time.Hour, time.Hour)
			}
			if err != nil {
				t.Fatal(err)
			}
			got := send(t, q)
			switch decision {
			case "release":
				if got.status != 201 || got.body != "ok" || count() != 2 {
					t.Errorf("released: %d %s, %d calls", got.status, got.body, count())
				}
			case "complete":
				if got.status != 201 || got.body != "by hand" || got.header.Get("Idempotent-Replayed") != "true" || count() != 1 {
					t.Errorf("completed: %d %s, %d calls", got.status, got.body, count())
				}
			case "discard":
				wantProblem(t, got, 409, "operation-discarded")
			}
		}
	})
}
