package target

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/server/internal/outbound"
	"github.com/unavez/unavez/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loopback() outbound.Policy {
	return outbound.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
}

func open(t *testing.T, p outbound.Policy, o Options) *Target {
	t.Helper()
	transport := Transport(p)
	t.Cleanup(transport.CloseIdleConnections)
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	target, err := New(transport, o)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestAnAnswerIsReadByItsStatus(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	target := open(t, loopback(), Options{URL: "http://127.0.0.1:1/", Done: []int{409}, NotDone: []int{502}, Now: func() time.Time { return now }})
	for _, c := range []struct {
		status  int
		after   string
		verdict Verdict
		wait    time.Duration
	}{
		{200, "", Done, 0},
		{204, "5", Done, 0},
		{409, "", Done, 0},
		{301, "", Refused, 0},
		{307, "", Refused, 0},
		{400, "", Refused, 0},
		{404, "9", Refused, 9 * time.Second},
		{408, "", NotDone, 0},
		{425, "", NotDone, 0},
		{429, "120", NotDone, 2 * time.Minute},
		{429, "Mon, 30 Nov 2026 12:00:30 GMT", NotDone, 30 * time.Second},
		{429, "Mon, 30 Nov 2026 11:00:00 GMT", NotDone, 0},
		{429, "soon", NotDone, 0},
		{429, "999999999", NotDone, MaxRetryAfter},
		{410, "", Gone, 0},
		{500, "", Unknown, 0},
		{502, "", NotDone, 0},
		{503, "", Unknown, 0},
		{503, "0", NotDone, 0},
		{503, "7", NotDone, 7 * time.Second},
		{503, "soon", Unknown, 0},
		{504, "7", Unknown, 7 * time.Second},
	} {
		got := target.Read(c.status, http.Header{"Retry-After": {c.after}})
		if got.Verdict != c.verdict || got.RetryAfter != c.wait || (got.Err == nil) != (c.verdict == Done) {
			t.Errorf("%d, Retry-After %q: %+v, want verdict %d after %v", c.status, c.after, got, c.verdict, c.wait)
		}
	}
}

func TestARequestCarriesTheEventUnderItsKeySignedWithEverySecret(t *testing.T) {
	t.Parallel()
	const fresh, old = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd"
	var seen *http.Request
	var body []byte
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = r.Clone(context.WithoutCancel(r.Context()))
		body, _ = io.ReadAll(r.Body)
	}))
	defer srv.Close()
	target := open(t, loopback(), Options{URL: srv.URL + "/imports?x=1", Secrets: []string{fresh, old}, Headers: map[string]string{"Authorization": "Bearer a"}})
	e := &inbox.Event{
		Tenant: "acme", Source: "shop", Type: "order/paid", ID: []string{"7", "ü"}, Subject: []string{"7", "order", "42"}, Version: "3", Effect: "order.import.v1",
		Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Data: []byte(`{"id":42}`), ContentType: "application/json", Unsigned: true,
	}
	if got := target.Call(t.Context(), messageOf("uv1-00", 3, e)); got.Verdict != Done || got.Status != 200 {
		t.Fatalf("%+v", got)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": "uv1-00", "Webhook-Id": "uv1-00", "Content-Type": "application/json", "Authorization": "Bearer a", "Unavez-Effect": "order.import.v1", "Unavez-Attempt": "3",
		"Ce-Specversion": "1.0", "Ce-Id": "7/%C3%BC", "Ce-Source": "/shop", "Ce-Type": "order/paid", "Ce-Subject": "7/order/42", "Ce-Time": "2026-11-30T12:00:00Z",
		"Ce-Tenant": "acme", "Ce-Version": "3", "Ce-Unsigned": "true", "User-Agent": "unavez",
	} {
		if got := seen.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if string(body) != `{"id":42}` || seen.URL.RawQuery != "x=1" || seen.ContentLength != 9 || target.URL() != srv.URL+"/imports" {
		t.Errorf("body %q, length %d, query %q, shown as %s", body, seen.ContentLength, seen.URL.RawQuery, target.URL())
	}
	// The receiver's side of the same scheme accepts it under either secret.
	for _, secret := range []string{fresh, old} {
		contract := source.StandardWebhooks("")
		request := &source.Request{Method: "POST", Header: seen.Header, Body: body, At: time.Now()}
		if _, err := contract.Verify(t.Context(), &source.Config{Secrets: []source.Secret{source.NewSecret("s", secret)}}, request); err != nil {
			t.Errorf("%s: %v", secret, err)
		}
	}
	// Nothing of it is read on.
	if got := target.Call(t.Context(), messageOf("uv1-01", 1, &inbox.Event{Source: "shop"})); got.Verdict != Done || len(body) != 0 || seen.Header.Get("Ce-Id") != "uv1-01" {
		t.Errorf("an event without content: %+v, %q", got, body)
	}
}

// listen answers each connection by a function.
func listen(t *testing.T, serve func(n int64, c net.Conn)) (address string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	connections = &atomic.Int64{}
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(connections.Add(1), c)
			_ = c.Close() // the test looks at the other side
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // ends the loop
		<-ended
	})
	return l.Addr().String(), connections
}

// request reads one request from a connection.
func request(c net.Conn, b *bufio.Reader) error {
	r, err := http.ReadRequest(b)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// A request whose connection dies is on the wire once, with a body and without
// one: net/http would send it again on the second connection.
func TestARecordedAttemptIsOneWireAttempt(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"id":1}`, ""} {
		var requests atomic.Int64
		address, connections := listen(t, func(_ int64, c net.Conn) {
			b := bufio.NewReader(c)
			for i := 0; ; i++ {
				if request(c, b) != nil {
					return
				}
				requests.Add(1)
				if i > 0 {
					return // the second request of a connection gets no answer
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		})
		target := open(t, loopback(), Options{URL: "http://" + address})
		if got := target.Call(t.Context(), Message{ID: "a", Body: []byte(body)}); got.Verdict != Done {
			t.Fatalf("%q: %+v", body, got)
		}
		if got := target.Call(t.Context(), Message{ID: "b", Body: []byte(body)}); got.Verdict != Unknown || got.Err == nil {
			t.Errorf("%q: %+v, want unknown", body, got)
		}
		if requests.Load() != 2 || connections.Load() != 1 {
			t.Errorf("%q: %d requests on %d connections, want 2 on 1", body, requests.Load(), connections.Load())
		}
	}
}

func TestWhatWasNeverSentIsNotDone(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close() // its port refuses now
	if got := open(t, loopback(), Options{URL: "http://" + free.Addr().String()}).Call(t.Context(), Message{ID: "a", Body: []byte("x")}); got.Verdict != NotDone {
		t.Errorf("a refused connection: %+v", got)
	}
	plain, _ := listen(t, func(_ int64, c net.Conn) { _, _ = io.WriteString(c, "no TLS here, whoever asks\n") })
	if got := open(t, loopback(), Options{URL: "https://" + plain}).Call(t.Context(), Message{ID: "a", Body: []byte("x")}); got.Verdict != NotDone {
		t.Errorf("a failed handshake: %+v", got)
	}
	silent, _ := listen(t, func(_ int64, c net.Conn) { _ = request(c, bufio.NewReader(c)) })
	if got := open(t, loopback(), Options{URL: "http://" + silent}).Call(t.Context(), Message{ID: "a", Body: []byte("x")}); got.Verdict != Unknown {
		t.Errorf("a request without an answer: %+v", got)
	}
	half, _ := listen(t, func(_ int64, c net.Conn) {
		_ = request(c, bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"half")
	})
	if got := open(t, loopback(), Options{URL: "http://" + half}).Call(t.Context(), Message{ID: "a", Body: []byte("x")}); got.Verdict != Done || got.Status != 201 {
		t.Errorf("a head says what happened: %+v", got)
	}
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer slow.Close()
	defer close(release)
	if got := open(t, loopback(), Options{URL: slow.URL, Timeout: 50 * time.Millisecond}).Call(t.Context(), Message{ID: "a", Body: []byte("x")}); got.Verdict != Unknown || !errors.Is(got.Err, context.DeadlineExceeded) {
		t.Errorf("a timeout: %+v", got)
	}
}

// Whatever leads to an address that is not allowed is refused before anything
// is connected to, and is told.
func TestAddressesThatAreNotAllowedAreRefusedForGood(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "169.254.169.254", "[::ffff:10.0.0.1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::1]"} {
		got := open(t, outbound.Policy{}, Options{URL: "http://" + host + ":" + port}).Call(t.Context(), Message{ID: "a", Body: []byte("x")})
		if got.Verdict != Refused || !errors.Is(got.Err, outbound.ErrRefused) {
			t.Errorf("%s: %+v", host, got)
		}
	}
	if served.Load() != 0 {
		t.Errorf("%d requests arrived", served.Load())
	}
	got := open(t, loopback(), Options{URL: srv.URL}).Call(t.Context(), Message{ID: "a", Body: []byte("x")})
	if got.Verdict != Refused || got.Err == nil || !strings.Contains(got.Err.Error(), "redirects are not followed") || served.Load() != 1 {
		t.Errorf("a redirect: %+v, %d requests", got, served.Load())
	}
}

func TestASecretOfTheURLIsNotShown(t *testing.T) {
	t.Parallel()
	target := open(t, outbound.Policy{}, Options{URL: "http://127.0.0.1:1/a?token=canary"})
	got := target.Call(t.Context(), Message{ID: "a", Body: []byte("x")})
	if text := fmt.Sprint(got.Err, target.URL()); strings.Contains(text, "canary") {
		t.Error(text)
	}
	if _, err := New(nil, Options{URL: "nothing"}); err == nil {
		t.Error("no URL is accepted")
	}
	if _, err := New(nil, Options{URL: "http://a", Secrets: []string{"whsec_%canary"}}); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a secret that is none: %v", err)
	}
}
