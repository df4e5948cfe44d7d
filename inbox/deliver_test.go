package inbox

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store/memory"
)

// application is what events are delivered to, and what arrived there.
type application struct {
	*httptest.Server
	mu      sync.Mutex
	arrived []*http.Request
	bodies  []string
}

func serve(t testing.TB, answer http.HandlerFunc) *application {
	t.Helper()
	a := &application{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // cut off where the test cuts it off
		a.mu.Lock()
		a.arrived, a.bodies = append(a.arrived, r), append(a.bodies, string(body))
		a.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(a.Close)
	return a
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

func (a *application) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.arrived)
}

// attempted runs one attempt of a new operation, and says how it ended.
func attempted(t testing.TB, o DeliverOptions, e *Event) (unavez.Result, error) {
	t.Helper()
	if o.Client == nil {
		o.Client = &http.Client{}
	}
	run, err := Deliver(o)
	if err != nil {
		t.Fatal(err)
	}
	return attempt(t, run, e, fmt.Sprint(time.Now().UnixNano()))
}

func attempt(t testing.TB, run Run, e *Event, id string) (result unavez.Result, failed error) {
	t.Helper()
	engine, err := unavez.New(memory.New(nil), &unavez.Options{SingleTenant: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	op := unavez.Operation{Effect: "send.v1", Key: []string{id}}
	_, _ = engine.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
		result, failed = run(ctx, a, e)
		return result, failed
	}, nil)
	return result, failed
}

// verdict is what an attempt's error means to the engine.
func verdict(err error) string {
	switch {
	case err == nil:
		return "done"
	case unavez.IsDead(err):
		return "dead"
	case unavez.IsNeverStarted(err):
		return "never started"
	}
	if after, ok := unavez.IsAgain(err); ok {
		return "again " + after.String()
	}
	return "unknown"
}

func TestADeliveryCarriesTheEventAndItsIdentity(t *testing.T) {
	t.Parallel()
	app := serve(t, status(204))
	secrets := []source.Secret{
		source.NewSecret("new", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), source.NewSecret("old", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
		source.NewSecret("gone", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").Expiring(time.Now().Add(-time.Hour)),
	}
	e := &Event{
		Tenant: "acmé", Source: "shop", Type: "order/paid", ID: []string{"12/3", "50%"}, Subject: []string{"12", "order"}, Version: "7",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", -3*3600)), Data: []byte(`{"n":9007199254740993}`), ContentType: "application/json",
		Correlation: "c-1", Effect: "send.v1", Sequence: 42, Unsigned: true,
	}
	run, err := Deliver(DeliverOptions{URL: app.URL + "/in?x=1", Client: app.Client(), Secrets: secrets, Header: http.Header{"Authorization": {"Bearer t"}}})
	if err != nil {
		t.Fatal(err)
	}
	result, err := attempt(t, run, e, "one")
	if err != nil || result.Code != 204 {
		t.Fatalf("%+v, %v", result, err)
	}
	r := app.arrived[0]
	key := unavez.Operation{Effect: "send.v1", Key: []string{"one"}}.Identity().DerivedKey("")
	for name, want := range map[string]string{
		"Idempotency-Key": key, "Webhook-Id": key, "Content-Type": "application/json", "Authorization": "Bearer t",
		"Unavez-Effect": "send.v1", "Unavez-Source": "shop", "Unavez-Type": "order/paid", "Unavez-Tenant": "acm%C3%A9",
		"Unavez-Event": "12%2F3/50%25", "Unavez-Subject": "12/order", "Unavez-Version": "7", "Unavez-Time": "2026-01-02T06:04:05.000000006Z",
		"Unavez-Sequence": "42", "Unavez-Attempt": "1", "Unavez-Unsigned": "true", "Unavez-Erased": "", "X-Correlation-Id": "c-1",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if r.Method != "POST" || r.URL.String() != "/in?x=1" || app.bodies[0] != string(e.Data) || r.ContentLength != int64(len(e.Data)) {
		t.Errorf("%s %s %q, length %d", r.Method, r.URL, app.bodies[0], r.ContentLength)
	}
	// The receiving side verifies it with our own contract, under either secret.
	for i, s := range secrets[:2] {
		in := &source.Request{Method: "POST", URL: r.URL, Header: r.Header, Body: []byte(app.bodies[0]), At: time.Now()}
		if _, err := source.StandardWebhooks("").Verify(t.Context(), &source.Config{Secrets: []source.Secret{s}}, in); err != nil {
			t.Errorf("secret %d: %v", i, err)
		}
	}
	if n := len(strings.Fields(r.Header.Get("Webhook-Signature"))); n != 2 {
		t.Errorf("%d signatures, want 2: the third secret has expired", n)
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, status(200))
	for _, tc := range []struct {
		answer http.HandlerFunc
		done   []int
		not    []int
		want   string
	}{
		{status(200), nil, nil, "done"},
		{status(202), nil, nil, "done"},
		{status(409), []int{409}, nil, "done"},
		{status(409), nil, nil, "dead"},
		{status(400), nil, nil, "dead"},
		{status(401), nil, nil, "dead"},
		{status(404), nil, nil, "dead"},
		{status(410), nil, nil, "dead"},
		{status(422), nil, nil, "dead"},
		{status(408), nil, nil, "again 0s"},
		{status(425), nil, nil, "again 0s"},
		{status(429), nil, nil, "again 0s"},
		{status(429, "Retry-After", "120"), nil, nil, "again 2m0s"},
		{status(503, "Retry-After", "7"), nil, nil, "again 7s"},
		{status(503), nil, nil, "unknown"},
		{status(503), nil, []int{503}, "again 0s"},
		{status(503, "Retry-After", "7"), nil, []int{502}, "unknown"},
		{status(500), nil, nil, "unknown"},
		{status(502), nil, nil, "unknown"},
		{status(500), nil, []int{500}, "again 0s"},
		{status(301, "Location", elsewhere.URL), nil, nil, "dead"},
		{status(302, "Location", elsewhere.URL), nil, nil, "dead"},
		{status(303, "Location", elsewhere.URL), nil, nil, "unknown"},
		{status(307, "Location", elsewhere.URL), nil, nil, "dead"},
		{status(308, "Location", elsewhere.URL), nil, nil, "dead"},
		{func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil, nil, "unknown"},
	} {
		app := serve(t, tc.answer)
		_, err := attempted(t, DeliverOptions{URL: app.URL, Done: tc.done, NotDone: tc.not}, &Event{Data: []byte("x")})
		if got := verdict(err); got != tc.want {
			t.Errorf("%v, done %v, not done %v: %s, want %s", err, tc.done, tc.not, got, tc.want)
		}
		if app.count() != 1 {
			t.Errorf("%v: %d requests, want 1", err, app.count())
		}
	}
	if elsewhere.count() != 0 {
		t.Errorf("%d redirects were followed", elsewhere.count())
	}
}

// wires is a server that handles each of its connections by a function.
func wires(t testing.TB, handle func(n int, conn net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer conn.Close()
				handle(n, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	return "http://" + l.Addr().String()
}

func TestWhatWasNeverSentNeverStarted(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + dead.Addr().String()
	_ = dead.Close()
	tlsServer := httptest.NewTLSServer(http.HandlerFunc(status(200)))
	defer tlsServer.Close()
	notTLS := wires(t, func(_ int, conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) })

	for name, o := range map[string]DeliverOptions{
		"refused":           {URL: refused},
		"unknown authority": {URL: tlsServer.URL},
		"no TLS there":      {URL: strings.Replace(notTLS, "http:", "https:", 1)},
		"no such host":      {URL: "http://no-such-host.invalid"},
	} {
		if _, err := attempted(t, o, &Event{}); verdict(err) != "never started" {
			t.Errorf("%s: %s: %v", name, verdict(err), err)
		}
	}

	private := errors.New("address is private")
	o := DeliverOptions{
		URL: refused, Forbidden: func(err error) bool { return errors.Is(err, private) },
		Client: &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, private }}},
	}
	if _, err := attempted(t, o, &Event{}); verdict(err) != "dead" || !strings.Contains(err.Error(), private.Error()) {
		t.Errorf("forbidden: %s: %v", verdict(err), err)
	}
}

func TestWhatMayHaveArrivedIsUnknown(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]func(int, net.Conn){
		"closed after the request": func(_ int, conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
		},
		"closed at the first byte": func(_ int, conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1))
		},
		"half an answer": func(_ int, conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = conn.Write([]byte("HTTP/1.1 20"))
		},
	} {
		var mu sync.Mutex
		connections := 0
		address := wires(t, func(n int, conn net.Conn) {
			mu.Lock()
			connections = n
			mu.Unlock()
			handle(n, conn)
		})
		_, err := attempted(t, DeliverOptions{URL: address}, &Event{Data: []byte("x")})
		mu.Lock()
		if verdict(err) != "unknown" || connections != 1 {
			t.Errorf("%s: %s after %d connections: %v", name, verdict(err), connections, err)
		}
		mu.Unlock()
	}
	// Nothing comes back in time.
	release := make(chan struct{})
	defer close(release)
	silent := wires(t, func(_ int, conn net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		<-release
	})
	if _, err := attempted(t, DeliverOptions{URL: silent, Timeout: 50 * time.Millisecond}, &Event{}); verdict(err) != "unknown" {
		t.Errorf("no answer: %s: %v", verdict(err), err)
	}
}

// TestOneAttemptIsOneRequest reuses a connection that the server closes at the
// second request without an answer: net/http sends a POST with Idempotency-Key
// again there, if it can.
func TestOneAttemptIsOneRequest(t *testing.T) {
	t.Parallel()
	for _, data := range [][]byte{[]byte("content"), nil} {
		for _, reuse := range []bool{true, false} {
			var mu sync.Mutex
			requests := 0
			address := wires(t, func(_ int, conn net.Conn) {
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					mu.Lock()
					requests++
					n := requests
					mu.Unlock()
					if n == 2 {
						return // dead, without an answer
					}
					_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
				}
			})
			run, err := Deliver(DeliverOptions{URL: address, Client: &http.Client{}, Reuse: reuse})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := attempt(t, run, &Event{Data: data}, "1"); err != nil {
				t.Fatal(err)
			}
			_, err = attempt(t, run, &Event{Data: data}, "2")
			mu.Lock()
			if verdict(err) != "unknown" || requests != 2 {
				t.Errorf("%q, reuse %v: %s after %d requests, want unknown after 2: %v", data, reuse, verdict(err), requests, err)
			}
			mu.Unlock()
		}
	}
}

// TestTheTransportAloneWouldSendTwice shows that the server of the test above
// makes net/http repeat itself.
func TestTheTransportAloneWouldSendTwice(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	requests := 0
	address := wires(t, func(_ int, conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			mu.Lock()
			requests++
			n := requests
			mu.Unlock()
			if n == 2 {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		}
	})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "k")
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	if requests != 3 {
		t.Errorf("%d requests for two attempts; the test beside this one proves nothing", requests)
	}
}

func TestAGoneTargetIsLeftAlone(t *testing.T) {
	t.Parallel()
	answer := http.StatusGone
	app := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(answer) })
	var alerts []Condition
	d := &deliverer{DeliverOptions: DeliverOptions{URL: app.URL, Client: app.Client(), Alert: func(c Condition) { alerts = append(alerts, c) }}}
	if err := d.check(); err != nil {
		t.Fatal(err)
	}
	d.Timeout, d.client = time.Minute, &http.Client{Transport: d.transport()}
	_, err := attempt(t, d.run, &Event{}, "1")
	if verdict(err) != "dead" || len(alerts) != 1 || alerts[0].Over {
		t.Errorf("410: %s, alerts %+v", verdict(err), alerts)
	}
	_, err = attempt(t, d.run, &Event{}, "2")
	if after, ok := unavez.IsAgain(err); !ok || after < 59*time.Minute || app.count() != 1 {
		t.Errorf("while it is left alone: %v after %d requests", err, app.count())
	}
	d.gone, answer = time.Now(), http.StatusOK
	if _, err = attempt(t, d.run, &Event{}, "3"); err != nil || len(alerts) != 2 || !alerts[1].Over {
		t.Errorf("once it is back: %v, alerts %+v", err, alerts)
	}
}

func TestAForeignTransportIsJudgedByItsTraces(t *testing.T) {
	t.Parallel()
	app := serve(t, status(200))
	through := func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) { return next.RoundTrip(r) })
	}
	o := DeliverOptions{URL: app.URL, Client: &http.Client{Transport: through(http.DefaultTransport)}}
	if _, err := attempted(t, o, &Event{Data: []byte("x")}); err != nil {
		t.Error(err)
	}
	o.URL = "http://127.0.0.1:1"
	if _, err := attempted(t, o, &Event{}); verdict(err) != "never started" {
		t.Errorf("refused: %s", verdict(err))
	}
	o.Client = &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("who knows") })}
	if _, err := attempted(t, o, &Event{}); verdict(err) != "unknown" {
		t.Errorf("without traces: %s", verdict(err))
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestDeliveriesToHTTPSAreHTTP1AndCounted(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			w.WriteHeader(500)
		}
		if r.Header.Get("Unavez-Type") == "cut" {
			panic(http.ErrAbortHandler)
		}
	}))
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{}
	srv.StartTLS()
	defer srv.Close()
	run, err := Deliver(DeliverOptions{URL: srv.URL, Client: srv.Client(), Reuse: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, kind := range []string{"a", "b", "cut"} {
		want := map[bool]string{false: "done", true: "unknown"}[kind == "cut"]
		if _, err := attempt(t, run, &Event{Type: kind}, fmt.Sprint(i)); verdict(err) != want {
			t.Errorf("%s: %s: %v", kind, verdict(err), err)
		}
	}
}

func TestFaultsOfADeliveryAreReportedAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Deliver(DeliverOptions{
		URL: "ftp://x", Timeout: -1, Secrets: []source.Secret{source.NewSecret("s", "canary-secret")}, Done: []int{200}, NotDone: []int{201},
		Header: http.Header{"unavez-type": {"x"}, "Webhook-Id": {"x"}},
	})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"url", "client", "timeout", "secrets", "done: status 200", "not done: status 201", "unavez-type", "Webhook-Id"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nsays nothing of %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("shows a secret: %v", err)
	}
	if _, err := Deliver(DeliverOptions{URL: "http://user:canary@host/", Client: http.DefaultClient}); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("user and password: %v", err)
	}
}

func TestErrorsOfADeliveryDoNotShowItsAddress(t *testing.T) {
	t.Parallel()
	u := url.URL{Scheme: "http", Host: "127.0.0.1:1", Path: "/", RawQuery: "token=canary"}
	_, err := attempted(t, DeliverOptions{URL: u.String()}, &Event{})
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v", err)
	}
}
