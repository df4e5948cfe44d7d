package httpkey_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez/httpkey"
)

// creates is a handler that counts its runs, writes one row and answers 201
// with its own number.
func creates(runs *atomic.Int64) func(http.ResponseWriter, *http.Request, insert) error {
	return func(w http.ResponseWriter, r *http.Request, put insert) error {
		n := runs.Add(1)
		if err := put("order"); err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, err := fmt.Fprintf(w, `{"run":%d}`, n)
		return err
	}
}

// Cases 1, 3, 4, 5, 7, 9.
func TestOneKeyOneRun(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts, log := logged()
		srv := s.handled(t, opts, creates(&runs))

		wantProblem(t, send(t, request{url: srv.URL}), 400, "key-missing")
		for _, key := range []string{"   ", `""`, `"  "`, "a,b", `"a`, `"a";p=1`, "a\x80b", strings.Repeat("k", 256)} {
			wantProblem(t, send(t, request{url: srv.URL, key: key}), 400, "key-malformed")
		}
		wantProblem(t, send(t, request{url: srv.URL, header: http.Header{"Idempotency-Key": {""}}}), 400, "key-malformed")
		for _, two := range [][]string{{"k", "k"}, {"k", "l"}} {
			wantProblem(t, send(t, request{url: srv.URL, header: http.Header{"Idempotency-Key": two}}), 400, "key-malformed")
		}
		if runs.Load() != 0 || s.rows() != 0 {
			t.Fatalf("%d runs, %d rows of requests without a key", runs.Load(), s.rows())
		}

		first := send(t, request{url: srv.URL, key: `"8e03978e-40d5-43e8-bc93-6894a57f9324"`})
		if first.status != 201 || first.body != `{"run":1}` {
			t.Fatalf("first answer %d %s", first.status, first.body)
		}
		wantReplay(t, first, send(t, request{url: srv.URL, key: `"8e03978e-40d5-43e8-bc93-6894a57f9324"`}))
		wantReplay(t, first, send(t, request{url: srv.URL, key: "8e03978e-40d5-43e8-bc93-6894a57f9324"}))

		for i, key := range []string{"k-123", "../../x", "'; drop table"} {
			first := send(t, request{url: srv.URL, key: key})
			wantReplay(t, first, send(t, request{url: srv.URL, key: strconv.Quote(key)}))
			if got := runs.Load(); got != int64(i+2) {
				t.Fatalf("%d runs", got)
			}
		}
		s.wantRows(t, 4)
		for _, r := range log.String() {
			if r < 0x20 && r != '\n' || r == 0x7f {
				t.Fatalf("raw control character in the log: %q", log)
			}
		}
	})
}

// Case 9: what net/http lets through of control bytes, and what it does not.
func TestControlBytesInAKeyNeverReachTheHandler(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		srv := s.handled(t, nil, creates(&runs))
		for _, b := range []byte{0x00, 0x01, 0x0a, 0x0d, 0x1b, 0x7f, 0x80, 0xff} {
			got := raw(t, srv.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\nIdempotency-Key: a"+string([]byte{b})+"b\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("key with byte %#x: %.60q", b, got)
			}
		}
		if runs.Load() != 0 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

// raw writes bytes to the server and reads everything that comes back.
func raw(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil && len(got) == 0 {
		t.Fatal(err)
	}
	return string(got)
}

// Case 2.
func TestAnOptionalKeyMayBeLeftOut(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts := quiet()
		opts.Optional = []string{"POST", "DELETE"}
		srv := s.handled(t, opts, creates(&runs))
		for i := range 2 {
			got := send(t, request{url: srv.URL, body: "same"})
			if got.status != 201 || got.body != fmt.Sprintf(`{"run":%d}`, i+1) || got.header.Get("Idempotent-Replayed") != "" {
				t.Fatalf("request %d: %d %s", i, got.status, got.body)
			}
		}
		s.wantRows(t, 2)
		first := send(t, request{url: srv.URL, key: "k"})
		wantReplay(t, first, send(t, request{url: srv.URL, key: "k"}))
		wantProblem(t, send(t, request{url: srv.URL, key: `"`}), 400, "key-malformed")
	})
}

// Case 11, and a forged marker.
func TestSafeMethodsPassThrough(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		srv := s.wrapped(t, nil, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			if r.Header.Get("Idempotent-Replayed") != "" {
				t.Error("a forged marker reached the handler")
			}
			if err := s.insert(r.Context(), "x"); r.Method != "POST" && err == nil {
				t.Error("an unkeyed request has a transaction")
			}
			w.WriteHeader(http.StatusAccepted)
		})
		forged := http.Header{"Idempotent-Replayed": {"true"}}
		for i, method := range []string{"GET", "GET", "HEAD", "HEAD", "OPTIONS", "OPTIONS"} {
			got := send(t, request{method: method, url: srv.URL, key: "k", header: forged})
			if got.status != 202 || got.header.Get("Idempotent-Replayed") != "" || runs.Load() != int64(i+1) {
				t.Fatalf("%s: %d %v after %d runs", method, got.status, got.header, runs.Load())
			}
		}
		first := send(t, request{url: srv.URL, key: "k", header: forged})
		wantReplay(t, first, send(t, request{url: srv.URL, key: "k"}))
	})
}

// Case 12.
func TestDeleteOnceAnswersTheSameTwice(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		gone := false
		srv := s.wrapped(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if gone {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			gone = true
			w.WriteHeader(http.StatusNoContent)
		})
		first := send(t, request{method: "DELETE", url: srv.URL + "/t/1", key: "d"})
		again := send(t, request{method: "DELETE", url: srv.URL + "/t/1", key: "d"})
		if first.status != 204 {
			t.Fatalf("status %d", first.status)
		}
		wantReplay(t, first, again)
		if got := send(t, request{method: "DELETE", url: srv.URL + "/t/1"}); got.status != 404 {
			t.Fatalf("without a key: %d", got.status)
		}
	})
}

// Case 22.
func TestABodyOverTheLimitIsRefusedAfterOneByteMore(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		opts := quiet()
		opts.RequestLimit = 64 << 10
		var runs, read atomic.Int64
		h, err := s.handle(nil, opts, creates(&runs))
		if err != nil {
			t.Fatal(err)
		}
		srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = counting{r.Body, &read}
			h.ServeHTTP(w, r)
		}))
		for _, chunks := range []bool{true, false} {
			read.Store(0)
			got := send(t, request{url: srv.URL, key: "k", body: strings.Repeat("x", 200<<10), chunks: chunks})
			wantProblem(t, got, 413, "request-too-large")
			if n := read.Load(); n > 64<<10+1 {
				t.Errorf("read %d bytes", n)
			}
		}
		got := send(t, request{url: srv.URL, key: "k", body: strings.Repeat("x", 64<<10), chunks: true})
		if got.status != 201 || runs.Load() != 1 {
			t.Fatalf("a body at the limit, after refusals of the key: %d, %d runs", got.status, runs.Load())
		}
	})
}

type counting struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// Case 23; and chunks, Expect: 100-continue, and CL with TE.
func TestTheHandlerSeesTheExactBodyOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		body := strings.Repeat("0123456789abcdef", 1000)
		var runs atomic.Int64
		var want atomic.Value
		want.Store(body)
		srv := s.handled(t, nil, func(w http.ResponseWriter, r *http.Request, _ insert) error {
			runs.Add(1)
			got, err := io.ReadAll(r.Body)
			if err != nil || string(got) != want.Load() || r.ContentLength != int64(len(got)) || r.GetBody != nil || len(r.TransferEncoding) != 0 {
				t.Errorf("body of %d bytes (%v), ContentLength %d, TransferEncoding %v", len(got), err, r.ContentLength, r.TransferEncoding)
			}
			if more, err := r.Body.Read(make([]byte, 1)); more != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the body goes on: %d, %v", more, err)
			}
			return nil
		})
		for i, q := range []request{
			{key: "a", body: body},
			{key: "b", body: body, chunks: true},
			{key: "c", body: body, header: http.Header{"Expect": {"100-continue"}}},
		} {
			q.url = srv.URL
			if got := send(t, q); got.status != 200 || runs.Load() != int64(i+1) {
				t.Fatalf("request %d: %d %s", i, got.status, got.body)
			}
		}
		want.Store("hello")
		// net/http goes by the chunks and drops the Content-Length.
		got := raw(t, srv.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: d\r\nContent-Length: 3\r\n"+
			"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		if strings.Count(got, "HTTP/1.1 200 ") != 1 || runs.Load() != 4 {
			t.Fatalf("CL and TE: %d runs, %.200q", runs.Load(), got)
		}
		want.Store("")
		if got := send(t, request{url: srv.URL, key: "f"}); got.status != 200 {
			t.Fatalf("no body: %d", got.status)
		}
	})
}

// Cases 25, 26, 28, 29, 30.
func TestAKeyNamesOneRequest(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		srv := s.handled(t, nil, creates(&runs))
		canonical := quiet()
		canonical.Fingerprint = httpkey.FingerprintOptions{JSON: true, Exclude: []string{"$.meta.sentAt"}}
		byValue := s.handled(t, canonical, creates(&runs))
		json := http.Header{"Content-Type": {"application/json"}}
		for i, tc := range []struct {
			a, b   request
			replay bool
		}{
			{request{body: "payload X"}, request{body: "payload Y"}, false},
			{request{body: `{"a":1,"b":2}`, header: json}, request{body: `{"b": 2, "a": 1}`, header: json}, false},
			{request{url: "/?to=alice"}, request{url: "/?to=mallory"}, false},
			{request{url: "/?a=1&b=2"}, request{url: "/?b=2&a=1"}, true},
			{request{url: "/t/a/1/refund", body: "x"}, request{url: "/t/a/2/refund", body: "x"}, false},
			{request{method: "POST"}, request{method: "PATCH"}, false},
		} {
			tc.a.key, tc.b.key = "k"+strconv.Itoa(i), "k"+strconv.Itoa(i)
			tc.a.url, tc.b.url = srv.URL+tc.a.url, srv.URL+tc.b.url
			before := runs.Load()
			first := send(t, tc.a)
			if tc.replay {
				wantReplay(t, first, send(t, tc.b))
			} else {
				wantProblem(t, send(t, tc.b), 422, "key-reused")
			}
			wantReplay(t, first, send(t, tc.a))
			if runs.Load() != before+1 {
				t.Errorf("case %d: %d runs", i, runs.Load()-before)
			}
		}
		q := request{url: byValue.URL, key: "v", header: json, body: `{"a":1,"meta":{"sentAt":1,"by":"x"}}`}
		first := send(t, q)
		q.body = `{"meta":{"by":"\u0078","sentAt":2} , "a":1.0}`
		wantReplay(t, first, send(t, q))
		q.body = `{"meta":{"by":"y","sentAt":2} , "a":1.0}`
		wantProblem(t, send(t, q), 422, "key-reused")
	})
}

// Cases 32, 33, 35.
func TestCallersNeverShareAnAnswer(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		var revoked atomic.Bool
		opts := quiet()
		opts.SingleTenant = false
		opts.AuthorizeReplay = func(*http.Request) error {
			if revoked.Load() {
				return httpkey.Errorf(http.StatusForbidden, "not any more")
			}
			return nil
		}
		srv := s.handled(t, opts, creates(&runs))
		callers := []string{"a/alice", "b/alice", "a/bob", "a b/x", "a/b x"}
		for i, c := range callers {
			got := send(t, request{url: srv.URL, key: "same", header: bearer(c)})
			if want := fmt.Sprintf(`{"run":%d}`, i+1); got.body != want {
				t.Fatalf("%s got %s, want %s", c, got.body, want)
			}
		}
		for i, c := range callers {
			got := send(t, request{url: srv.URL, key: "same", header: bearer(c)})
			if want := fmt.Sprintf(`{"run":%d}`, i+1); got.body != want || got.header.Get("Idempotent-Replayed") != "true" {
				t.Fatalf("%s got %s again, want %s", c, got.body, want)
			}
		}
		got := send(t, request{url: srv.URL, key: "same"})
		if got.status != 401 || got.header.Get("WWW-Authenticate") != "Bearer" {
			t.Fatalf("nobody: %d %v", got.status, got.header)
		}
		for _, c := range []string{"a/", "/x", "/"} {
			wantProblem(t, send(t, request{url: srv.URL, key: "same", header: bearer(c)}), 500, "scope-missing")
		}
		revoked.Store(true)
		if got := send(t, request{url: srv.URL, key: "same", header: bearer("a/alice")}); got.status != 403 || strings.Contains(got.body, "run") {
			t.Fatalf("revoked: %d %s", got.status, got.body)
		}
		revoked.Store(false)
		if got := send(t, request{url: srv.URL, key: "same", header: bearer("a/alice")}); got.body != `{"run":1}` {
			t.Fatalf("after that: %d %s", got.status, got.body)
		}
		if runs.Load() != int64(len(callers)) {
			t.Fatalf("%d runs", runs.Load())
		}
		if _, err := s.handle(nil, &httpkey.Options{}, creates(&runs)); err == nil {
			t.Error("a layer without scope function and without a word about it")
		}
	})
}

func TestConnectionMayNotNameTheKey(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		opts := quiet()
		opts.IdentityHeaders = []string{"x-shop"}
		srv := s.handled(t, opts, creates(&runs))
		for _, tokens := range []string{"Idempotency-Key", "close, idempotency-key", "X-Tenant", "keep-alive,x-shop", "authorization", "Cookie"} {
			wantProblem(t, send(t, request{url: srv.URL, key: "k", header: http.Header{"Connection": {tokens}}}), 400, "connection-header")
		}
		if got := send(t, request{url: srv.URL, key: "k", header: http.Header{"Connection": {"keep-alive, X-Other"}}}); got.status != 201 {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
}

func TestFaultsOfTheOptionsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	s := onMemory(t)
	_, err := s.handle(nil, &httpkey.Options{
		Required: []string{"GET", "POST"}, Optional: []string{"POST"}, RequestLimit: -1, ResponseLimit: 1 << 40,
		Wait: time.Hour, Retention: time.Millisecond, Limit: -1, Docs: "http://x/#y",
		Fingerprint: httpkey.FingerprintOptions{Include: []string{"$.a"}}, CORS: &httpkey.CORS{Origins: []string{"*"}, Credentials: true},
	}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"scope:", "methods:", "request limit:", "response limit:", "wait:", "retention:", "limit:", "docs:", "fingerprint:", "cors:"} {
		if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, field) }) {
			t.Errorf("no word about %s in\n%v", field, err)
		}
	}
}
