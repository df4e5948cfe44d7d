package httpkey_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
)

// proxied serves a proxy in front of the upstream over TCP.
func (s *shop) proxied(t *testing.T, upstream string, opts *httpkey.ProxyOptions) *httptest.Server {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	if opts == nil {
		opts = &httpkey.ProxyOptions{Unknown: unavez.Hold}
	}
	var scope httpkey.ScopeFunc
	if opts.IdentityHeaders == nil {
		opts.SingleTenant = true
	} else {
		scope = caller
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	h, err := s.proxy(scope, u, opts)
	if err != nil {
		t.Fatal(err)
	}
	return server(t, h)
}

// wireServer is an upstream that shows what is on the wire: it reads requests
// from each connection and lets script answer the n-th one of all, from 0.
// script returns false to hang up.
func wireServer(t *testing.T, script func(n int, conn net.Conn, r *http.Request, body string) bool) (address string, count func() int) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					if !script(int(n.Add(1)-1), conn, r, string(body)) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return "http://" + l.Addr().String(), func() int { return int(n.Load()) }
}

func ok(conn net.Conn) bool {
	_, err := io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\nX-Up: 1\r\n\r\nok")
	return err == nil
}

func TestAProxiedRequestReachesTheApplicationOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		type seen struct {
			r    *http.Request
			body string
		}
		got := make(chan seen, 10)
		up := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			got <- seen{r, string(body)}
			w.Header().Set("Location", "/orders/1")
			w.Header().Add("Set-Cookie", "a=1")
			w.Header().Set("Idempotent-Replayed", "true") // the application's own layer; not ours
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, "<html>"+string(body))
		}))
		srv := s.proxied(t, up.URL+"/app/", &httpkey.ProxyOptions{
			Unknown: unavez.Hold, DerivedKeyHeader: "X-Operation-Key",
			Options: httpkey.Options{IdentityHeaders: []string{"X-Shop"}},
			Identify: func(h http.Header, c httpkey.Scope) {
				h.Set("X-Tenant", c.Tenant)
				h.Set("X-Shop", "by the proxy")
			},
		})
		header := bearer("acme/alice")
		for name, value := range map[string]string{
			"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Host": "evil", "X-Forwarded-Proto": "gopher", "X-Forwarded-Port": "1", "Forwarded": "for=6.6.6.6",
			"X-Real-Ip": "6.6.6.6", "X-Tenant": "victim", "X-Shop": "victim", "X-Principal": "root", "Te": "trailers", "Keep-Alive": "timeout=5",
			"Proxy-Connection": "x", "Idempotent-Replayed": "true", "Content-Type": "application/json", "Cookie": "c=1",
		} {
			header.Set(name, value)
		}
		q := request{url: srv.URL + "/orders%2Fx/?b=2&a=1", key: `"k-1"`, body: `{"a":1}`, header: header}
		first := send(t, q)
		if first.status != 201 || first.body != `<html>{"a":1}` || first.header.Get("Set-Cookie") == "" {
			t.Fatalf("first answer %d %v %s", first.status, first.header, first.body)
		}
		wantReplay(t, first, send(t, q))
		if len(got) != 1 {
			t.Fatalf("%d requests at the application", len(got))
		}
		r := <-got
		id := unavez.Operation{Tenant: "acme", Effect: "http", Key: []string{"alice", "k-1"}}.Identity()
		want := http.Header{
			"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {srv.Listener.Addr().String()}, "X-Forwarded-Proto": {"http"},
			"X-Tenant": {"acme"}, "X-Shop": {"by the proxy"}, "Content-Type": {"application/json"}, "Cookie": {"c=1"},
			"Authorization": {"Bearer acme/alice"}, "Idempotency-Key": {`"k-1"`}, "X-Operation-Key": {id.DerivedKey("")},
			"Content-Length": {"7"}, "Connection": {"close"}, "User-Agent": {"Go-http-client/1.1"},
			"Accept-Encoding": nil,
		}
		for name := range r.r.Header {
			if _, known := want[name]; !known {
				t.Errorf("%s: %q reached the application", name, r.r.Header[name])
			}
		}
		for name, values := range want {
			if name != "Connection" && name != "Accept-Encoding" && !slices.Equal(r.r.Header[name], values) {
				t.Errorf("%s: %q, want %q", name, r.r.Header[name], values)
			}
		}
		if r.r.RequestURI != "/app/orders%2Fx/?b=2&a=1" || r.body != `{"a":1}` || len(r.r.TransferEncoding) != 0 || r.r.Host != up.Listener.Addr().String() {
			t.Errorf("%s of %q with %q", r.r.RequestURI, r.r.Host, r.body)
		}
		for _, path := range []string{"/../secret", "/a/%2e%2e/secret", "/./x"} {
			got := raw(t, srv.Listener.Addr().String(), "POST "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\nAuthorization: Bearer a/b\r\nIdempotency-Key: p\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "path-refused") {
				t.Errorf("%s: %.100q", path, got)
			}
		}
		wantProblem(t, send(t, request{url: srv.URL, key: "c", header: http.Header{"Authorization": {"Bearer a/b"}, "Connection": {"X-Shop"}}}), 400, "connection-header")
	})
}

// net/http re-sends a request that carries an Idempotency-Key when a
// connection it kept is dead; here one attempt is on the wire once.
func TestOneAttemptIsOnTheWireOnce(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse %v", reuse), func(t *testing.T) {
			eachStore(t, func(t *testing.T, s *shop) {
				up, count := wireServer(t, func(n int, conn net.Conn, r *http.Request, _ string) bool {
					return n == 0 && ok(conn) // the second request is read, and then the connection is dead
				})
				srv := s.proxied(t, up, &httpkey.ProxyOptions{Unknown: unavez.Hold, Reuse: reuse})
				for i, body := range []string{"", ""} {
					got := send(t, request{url: srv.URL, key: fmt.Sprintf("k%d", i), body: body})
					if i == 0 && (got.status != 201 || got.body != "ok") {
						t.Fatalf("%d %s", got.status, got.body)
					}
					if i == 1 {
						p := wantProblem(t, got, 409, "outcome-unknown")
						if p["operation"] == "" || got.header.Get("Retry-After") != "" {
							t.Errorf("%v %v", p, got.header)
						}
					}
				}
				if count() != 2 {
					t.Fatalf("%d requests on the wire, want 2", count())
				}
				wantProblem(t, send(t, request{url: srv.URL, key: "k1"}), 409, "outcome-unknown")
				if count() != 2 {
					t.Fatalf("%d requests on the wire after a repeat, want 2", count())
				}
			})
		})
	}
}

// The experiment behind the test above: it must still show what it guards against.
func TestNetHTTPStillSendsAKeyedRequestTwice(t *testing.T) {
	t.Parallel()
	up, count := wireServer(t, func(n int, conn net.Conn, r *http.Request, _ string) bool {
		return n != 1 && ok(conn)
	})
	c := client()
	defer c.CloseIdleConnections()
	for i := range 2 {
		r, err := http.NewRequestWithContext(t.Context(), "POST", up, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", fmt.Sprint(i))
		response, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(response.Body); err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	if count() != 3 {
		t.Errorf("%d requests on the wire: net/http has changed, and Reuse can be looked at again", count())
	}
}

// Case 47, and 37 in lease mode: a renewed lease keeps duplicates out.
func TestAnAttemptLongerThanItsLeaseRunsOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		g := newGate()
		defer g.open()
		var calls atomic.Int64
		up := server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			g.pass()
			io.WriteString(w, "done")
		}))
		srv := s.proxied(t, up.URL, &httpkey.ProxyOptions{Unknown: unavez.Retry, Lease: 1500 * time.Millisecond})
		q := request{url: srv.URL, key: "k"}
		done := make(chan reply, 1)
		go func() {
			got, err := try(t.Context(), client(), q)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		g.arrived(t)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for until := time.Now().Add(2500 * time.Millisecond); time.Now().Before(until); <-tick.C {
			got := send(t, q)
			wantProblem(t, got, 409, "in-flight")
			if after := got.header.Get("Retry-After"); after != "1" && after != "2" {
				t.Fatalf("retry after %q of a lease of 1.5 s", after)
			}
		}
		wantProblem(t, send(t, request{url: srv.URL, key: "k", body: "other"}), 422, "key-reused")
		g.open()
		wantReplay(t, <-done, send(t, q))
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

func TestAHangUpDoesNotStopAnAttempt(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		g := newGate()
		defer g.open()
		up := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			io.WriteString(w, "done")
		}))
		srv := s.proxied(t, up.URL, nil)
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			g.wait()
			hangUp()
		}()
		q := request{url: srv.URL, key: "k"}
		if _, err := try(ctx, client(), q); err == nil {
			t.Fatal("the client has an answer")
		}
		g.open()
		q.header = http.Header{"Prefer": {"wait=20"}}
		if got := send(t, q); got.body != "done" || got.header.Get("Idempotent-Replayed") != "true" {
			t.Fatalf("%d %s", got.status, got.body)
		}
	})
}

func TestALargeUpstreamAnswerIsWholeOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var calls atomic.Int64
		up := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			n := 3 << 20
			if r.URL.Path == "/huge" {
				n = 9 << 20
			}
			io.WriteString(w, strings.Repeat("x", n))
		}))
		srv := s.proxied(t, up.URL, &httpkey.ProxyOptions{Unknown: unavez.Hold, Options: httpkey.Options{SpoolLimit: 8 << 20}})
		q := request{url: srv.URL, key: "k"}
		if got := send(t, q); got.status != 200 || len(got.body) != 3<<20 {
			t.Fatalf("%d, %d bytes", got.status, len(got.body))
		}
		wantProblem(t, send(t, q), 422, "not-replayable")
		q = request{url: srv.URL + "/huge", key: "h"}
		wantProblem(t, send(t, q), 502, "answer-too-large")
		wantProblem(t, send(t, q), 422, "not-replayable")
		if calls.Load() != 2 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

func TestUnkeyedRequestsAreProxiedPlainly(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		next := make(chan struct{})
		up := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/stream":
				io.WriteString(w, "one\n")
				w.(http.Flusher).Flush()
				<-next
				io.WriteString(w, "two\n")
			case "/upgrade":
				if r.Header.Get("Upgrade") != "echo" || r.Header.Get("X-Tenant") != "" || r.Header.Get("X-Forwarded-For") != "127.0.0.1" {
					t.Errorf("upgrade with %v", r.Header)
				}
				w.Header().Set("Connection", "Upgrade")
				w.Header().Set("Upgrade", "echo")
				w.WriteHeader(http.StatusSwitchingProtocols)
				conn, in, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				io.Copy(conn, io.LimitReader(in, 4)) // part of it may have been read ahead
			default:
				w.Header().Set("Idempotent-Replayed", "true")
				w.WriteHeader(http.StatusTeapot)
			}
		}))
		srv := s.proxied(t, up.URL, nil)
		for range 2 {
			if got := send(t, request{method: "GET", url: srv.URL, key: "k"}); got.status != 418 || got.header.Get("Idempotent-Replayed") != "" {
				t.Fatalf("%d %v", got.status, got.header)
			}
		}
		response, err := client().Get(srv.URL + "/stream")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		in := bufio.NewReader(response.Body)
		for _, want := range []string{"one\n", "two\n"} {
			if line, err := in.ReadString('\n'); err != nil || line != want {
				t.Fatalf("%q, %v", line, err)
			}
			if want == "one\n" {
				close(next)
			}
		}
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Tenant: victim\r\n\r\n")
		in = bufio.NewReader(conn)
		switched, err := http.ReadResponse(in, nil)
		if err != nil || switched.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("upgrade: %v, %v", switched, err)
		}
		fmt.Fprint(conn, "ping")
		if echo, err := io.ReadAll(in); string(echo) != "ping" {
			t.Errorf("echo %q, %v", echo, err)
		}
		wantProblem(t, send(t, request{url: srv.URL}), 400, "key-missing")
	})
}

func TestTheProxyAnswersForTheBrowser(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		up := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Access-Control-Allow-Credentials", "false")
		}))
		srv := s.proxied(t, up.URL, &httpkey.ProxyOptions{Unknown: unavez.Hold, Options: httpkey.Options{CORS: &httpkey.CORS{
			Origins: []string{"https://shop.example"}, Headers: []string{"X-Own"}, Credentials: true,
		}}})
		origin := http.Header{"Origin": {"https://shop.example"}}
		got := send(t, request{method: "OPTIONS", url: srv.URL, header: http.Header{
			"Origin": origin["Origin"], "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"idempotency-key"},
		}})
		allowed := got.header.Get("Access-Control-Allow-Headers")
		if got.status != 204 || !strings.Contains(got.header.Get("Access-Control-Allow-Methods"), "POST") ||
			!strings.Contains(allowed, "Idempotency-Key") || !strings.Contains(allowed, "Prefer") || !strings.Contains(allowed, "X-Own") {
			t.Errorf("preflight: %d %v", got.status, got.header)
		}
		for _, q := range []request{{}, {key: "k"}, {key: "k"}, {key: "k", body: "y"}, {method: "GET"}} {
			q.url, q.header = srv.URL, origin.Clone()
			got := send(t, q)
			exposed := strings.Join(got.header["Access-Control-Expose-Headers"], ",")
			if !slices.Equal(got.header["Access-Control-Allow-Origin"], origin["Origin"]) || got.header.Get("Access-Control-Allow-Credentials") != "true" ||
				!strings.Contains(exposed, "Idempotent-Replayed") || !strings.Contains(exposed, "Retry-After") {
				t.Errorf("%d %v", got.status, got.header)
			}
		}
	})
}

func TestAProxyWithoutAPolicyIsRefused(t *testing.T) {
	t.Parallel()
	s := onMemory(t)
	_, err := s.proxy(nil, &url.URL{Scheme: "ftp"}, &httpkey.ProxyOptions{NotDone: []int{200}, Final: []int{404}, Timeout: -1, Lease: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, word := range []string{"scope:", "upstream:", "unknown:", "not done:", "final:", "timeout:", "lease:"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("no word about %s in\n%v", word, err)
		}
	}
	if _, err := s.proxy(caller, &url.URL{Scheme: "http", Host: "x"}, &httpkey.ProxyOptions{Unknown: unavez.Steps}); err == nil {
		t.Error("a proxy has no steps")
	}
	for policy, refused := range map[unavez.Policy]bool{unavez.Hold: true, unavez.Retry: false} {
		_, err := s.proxy(caller, &url.URL{Scheme: "http", Host: "x"}, &httpkey.ProxyOptions{Unknown: policy, Options: httpkey.Options{ClaimByLease: true}})
		if (err != nil) != refused {
			t.Errorf("claim by lease under %v: %v", policy, err)
		}
	}
}
