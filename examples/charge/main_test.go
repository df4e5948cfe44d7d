package main

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "github.com/unavez/unavez/internal/gateway"

	"github.com/unavez/unavez/httpkey"
)

const order1 = `{"customer":"c-1","amount":3000,"currency":"BRL"}`

// setupGateway serves a sandbox gateway in the test's own process: it outlives
// the workers that are killed, and its log is the witness.
func setupGateway(t *testing.T, opts *sandbox.Options) (*sandbox.Gateway, string) {
	t.Helper()
	g := sandbox.New(opts)
	h := httptest.NewServer(g)
	t.Cleanup(func() {
		g.Close()
		h.Close()
	})
	return g, h.URL
}

// plan says how the gateway's next calls behave.
func plan(t *testing.T, g *sandbox.Gateway, behaviours ...sandbox.Behaviour) {
	t.Helper()
	if err := g.Plan(behaviours...); err != nil {
		t.Fatal(err)
	}
}

// events of the gateway's log, without arrivals.
func events(g *sandbox.Gateway) []sandbox.Event {
	var all []sandbox.Event
	for _, e := range g.Log() {
		if e.Event != sandbox.Arrived {
			all = append(all, e.Event)
		}
	}
	return all
}

// wantEvents compares the gateway's log, without arrivals.
func wantEvents(t *testing.T, g *sandbox.Gateway, want ...sandbox.Event) {
	t.Helper()
	if got := events(g); !slices.Equal(got, want) {
		t.Errorf("gateway's log: got %v, want %v", got, want)
	}
}

// server is a shop that serves, in this process or in another.
type server struct {
	t   *testing.T
	url string
}

// setup serves a shop with an empty database in this process.
func setup(t *testing.T, gatewayURL string, args ...string) (server, *shop) {
	t.Helper()
	args = append([]string{
		"-gateway", gatewayURL, "-db", filepath.Join(t.TempDir(), "charge.db"),
		"-timeout", "1m", "-settle", "1ms",
	}, args...)
	s, err := open(configure(args))
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.routes())
	t.Cleanup(func() {
		h.Close()
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return server{t, h.URL}, s
}

// reply is what a client sees.
type reply struct {
	status     int
	body       string
	location   string
	retryAfter string
	replayed   bool
}

func (r reply) String() string {
	return fmt.Sprintf("%d %s (location %q, retry after %q, replayed %v)", r.status, strings.TrimSpace(r.body), r.location, r.retryAfter, r.replayed)
}

// ordered is the reply to order1, as order number id paid by a charge.
func ordered(id int, charge string) reply {
	return reply{
		status:   201,
		body:     fmt.Sprintf(`{"id":%d,"customer":"c-1","amount":3000,"currency":"BRL","charge":%q}`+"\n", id, charge),
		location: fmt.Sprintf("/orders/%d", id),
	}
}

// again is the same reply as a duplicate gets it.
func (r reply) again() reply {
	r.replayed = true
	return r
}

// send orders once. A lost answer has status 0.
func (s server) send(key, body string) reply {
	// One request is one on the wire, also when a reused connection dies.
	return s.through(&http.Transport{DisableKeepAlives: true}, key, body)
}

// insist orders as a client does that keeps its key and tries again until it
// knows.
func (s server) insist(key, body string) reply {
	return s.through(&httpkey.Transport{
		Base:     &http.Transport{DisableKeepAlives: true},
		Attempts: 1000, Total: time.Minute, Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond,
	}, key, body)
}

func (s server) through(transport http.RoundTripper, key, body string) reply {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), "POST", s.url+"/orders", strings.NewReader(body))
	if err != nil {
		s.t.Error(err) // not Fatal: senders run in goroutines of their own
		return reply{}
	}
	if key != "" {
		r.Header.Set(httpkey.KeyHeader, key)
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return reply{}
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}
	}
	h := response.Header
	return reply{response.StatusCode, string(got), h.Get("Location"), h.Get("Retry-After"), h.Get(httpkey.ReplayedHeader) == "true"}
}

// wantOrders counts the orders.
func wantOrders(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), `select count(*) from orders`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Errorf("got %d orders, want %d", n, want)
	}
}

// isUnknown tells the answer of an operation that nobody can tell about.
func isUnknown(r reply) bool {
	return r.status == http.StatusConflict && strings.Contains(r.body, "#outcome-unknown")
}

func TestOneKeyIsOneChargeAndOneOrder(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"repeat", "probe", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			gateway, url := setupGateway(t, nil)
			server, shop := setup(t, url, "-unknown", unknown)
			first := server.send("k1", order1)
			if want := ordered(1, "ch_1"); first != want {
				t.Fatalf("first: got %v, want %v", first, want)
			}
			if second := server.send("k1", order1); second != first.again() {
				t.Errorf("second: got %v, want %v", second, first.again())
			}
			if other := server.send("k1", strings.Replace(order1, "3000", "3001", 1)); other.status != 422 {
				t.Errorf("other order with the same key: got %v, want 422", other)
			}
			wantEvents(t, gateway, sandbox.Charged)
			wantOrders(t, shop.db, 1)
			if other := server.send("k2", order1); other != ordered(2, "ch_2") {
				t.Errorf("other key: got %v, want a second order", other)
			}
		})
	}
}

func TestFiftyAtOnceAreOneCharge(t *testing.T) {
	t.Parallel()
	gateway, url := setupGateway(t, nil)
	server, shop := setup(t, url)
	release := make(chan struct{})
	plan(t, gateway, sandbox.Behaviour{Kind: sandbox.Slow, Until: release})
	replies := make(chan reply, 50)
	for range 50 {
		go func() { replies <- server.send("k1", order1) }()
	}
	for range 49 { // all but the one that waits for the gateway
		if got := <-replies; got.status != 409 || got.retryAfter == "" {
			t.Errorf("while the first one runs: got %v, want 409 with Retry-After", got)
		}
	}
	close(release)
	if got := <-replies; got != ordered(1, "ch_1") {
		t.Errorf("the first one: got %v, want %v", got, ordered(1, "ch_1"))
	}
	wantEvents(t, gateway, sandbox.Charged)
	wantOrders(t, shop.db, 1)
}

func TestALostAnswerIsUnknownAndThePolicyDecides(t *testing.T) {
	t.Parallel()
	for _, lost := range []sandbox.Kind{sandbox.LostAnswer, sandbox.FailAfter} {
		for _, c := range []struct {
			unknown string
			gateway sandbox.Options
			again   reply           // to the second request
			events  []sandbox.Event // at the gateway
		}{
			{"repeat", sandbox.Options{}, ordered(1, "ch_1"), []sandbox.Event{sandbox.Charged, sandbox.Duplicate}},
			{"probe", sandbox.Options{}, ordered(1, "ch_1"), []sandbox.Event{sandbox.Charged, sandbox.Probed}},
			{"probe", sandbox.Options{IgnoreKeys: true}, ordered(1, "ch_1"), []sandbox.Event{sandbox.Charged, sandbox.Probed}},
			{"hold", sandbox.Options{IgnoreKeys: true}, reply{}, []sandbox.Event{sandbox.Charged}},
		} {
			t.Run(fmt.Sprintf("%s %s %+v", lost, c.unknown, c.gateway), func(t *testing.T) {
				t.Parallel()
				gateway, url := setupGateway(t, &c.gateway)
				server, shop := setup(t, url, "-unknown", c.unknown)
				plan(t, gateway, sandbox.Behaviour{Kind: lost})
				first := server.send("k1", order1)
				if !isUnknown(first) || (first.retryAfter == "") != (c.unknown == "hold") {
					t.Errorf("first: got %v, want 409 outcome-unknown, with Retry-After unless it is held", first)
				}
				second := server.send("k1", order1)
				if c.unknown == "hold" {
					if !isUnknown(second) || second.retryAfter != "" {
						t.Errorf("second: got %v, want 409 outcome-unknown for good", second)
					}
					wantOrders(t, shop.db, 0)
				} else {
					if second != c.again {
						t.Errorf("second: got %v, want %v", second, c.again)
					}
					if third := server.send("k1", order1); third != c.again.again() {
						t.Errorf("third: got %v, want %v", third, c.again.again())
					}
					wantOrders(t, shop.db, 1)
				}
				wantEvents(t, gateway, c.events...)
			})
		}
	}
}

func TestNothingChargedLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"repeat", "probe", "hold"} {
		t.Run(unknown+" gateway busy", func(t *testing.T) {
			t.Parallel()
			gateway, url := setupGateway(t, nil)
			server, shop := setup(t, url, "-unknown", unknown)
			plan(t, gateway, sandbox.Behaviour{Kind: sandbox.FailBefore})
			if first := server.send("k1", order1); first.status != 503 || first.retryAfter == "" {
				t.Errorf("first: got %v, want 503 with Retry-After", first)
			}
			if second := server.send("k1", order1); second != ordered(1, "ch_1") {
				t.Errorf("second: got %v, want %v", second, ordered(1, "ch_1"))
			}
			wantEvents(t, gateway, sandbox.Failed, sandbox.Charged)
			wantOrders(t, shop.db, 1)
		})
		t.Run(unknown+" gateway down", func(t *testing.T) {
			t.Parallel()
			down := httptest.NewServer(nil)
			down.Close()
			server, shop := setup(t, down.URL, "-unknown", unknown)
			for range 2 {
				if got := server.send("k1", order1); got.status != 503 || got.retryAfter == "" {
					t.Errorf("got %v, want 503 with Retry-After", got)
				}
			}
			wantOrders(t, shop.db, 0)
		})
	}
}

func TestADeclinedChargeIsFrozenWithoutAnOrder(t *testing.T) {
	t.Parallel()
	gateway, url := setupGateway(t, nil)
	server, shop := setup(t, url)
	plan(t, gateway, sandbox.Behaviour{Kind: sandbox.Refuse})
	first := server.send("k1", order1)
	if first.status != 402 || first.replayed {
		t.Errorf("first: got %v, want 402", first)
	}
	if second := server.send("k1", order1); second != first.again() {
		t.Errorf("second: got %v, want %v", second, first.again())
	}
	wantEvents(t, gateway, sandbox.Refused)
	wantOrders(t, shop.db, 0)
}

func TestTheProbeWaitsForACallThatIsStillUnderWay(t *testing.T) {
	t.Parallel()
	gateway, url := setupGateway(t, &sandbox.Options{IgnoreKeys: true})
	server, shop := setup(t, url, "-unknown", "probe", "-timeout", "500ms", "-settle", "5s")
	release := make(chan struct{})
	plan(t, gateway, sandbox.Behaviour{Kind: sandbox.Slow, Until: release})
	if first := server.send("k1", order1); !isUnknown(first) {
		t.Fatalf("the gateway is slower than we wait: got %v, want 409 outcome-unknown", first)
	}
	second := make(chan reply, 1)
	go func() { second <- server.send("k1", order1) }()
	probed := func(log []sandbox.Entry) bool {
		return slices.ContainsFunc(log, func(e sandbox.Entry) bool { return e.Event == sandbox.Probed })
	}
	if err := gateway.Await(t.Context(), probed); err != nil {
		t.Fatal(err)
	}
	close(release) // the charge comes after the first look and within -settle
	if got := <-second; got != ordered(1, "ch_1") {
		t.Errorf("second: got %v, want %v", got, ordered(1, "ch_1"))
	}
	wantEvents(t, gateway, sandbox.Probed, sandbox.Charged, sandbox.Probed)
	wantOrders(t, shop.db, 1)
}

func TestTheProbeDoesNotChooseBetweenCharges(t *testing.T) {
	t.Parallel()
	// What repeat does at a gateway that ignores keys: a second charge. The
	// probe that follows leaves it to a person.
	gateway, url := setupGateway(t, &sandbox.Options{IgnoreKeys: true})
	args := []string{"-db", filepath.Join(t.TempDir(), "charge.db")}
	wrong, _ := setup(t, url, append(args, "-unknown", "repeat")...)
	plan(t, gateway, sandbox.Behaviour{Kind: sandbox.LostAnswer}, sandbox.Behaviour{Kind: sandbox.LostAnswer})
	for range 2 {
		if got := wrong.send("k1", order1); !isUnknown(got) {
			t.Errorf("got %v, want 409 outcome-unknown", got)
		}
	}
	right, shop := setup(t, url, append(args, "-unknown", "probe")...)
	if got := right.send("k1", order1); !isUnknown(got) {
		t.Errorf("got %v, want 409 outcome-unknown", got)
	}
	wantEvents(t, gateway, sandbox.Charged, sandbox.Charged, sandbox.Probed)
	wantOrders(t, shop.db, 0)
}

func TestWhatIsNoOrderIsNotCharged(t *testing.T) {
	t.Parallel()
	gateway, url := setupGateway(t, nil)
	server, _ := setup(t, url)
	for _, c := range []struct {
		key, body string
		status    int
	}{
		{"", order1, 400},
		{`"k1`, order1, 400},
		{"k2", ``, 400},
		{"k3", `[]`, 400},
		{"k4", order1 + order1, 400},
		{"k5", strings.Replace(order1, "{", `{"id":1,`, 1), 400},
		{"k6", strings.Replace(order1, "3000", "30.5", 1), 400},
		{"k7", strings.Replace(order1, "3000", "0", 1), 422},
		{"k8", strings.Replace(order1, "c-1", "", 1), 422},
		{"k9", strings.Replace(order1, "BRL", "", 1), 422},
		{"k10", strings.Repeat(" ", 1<<20) + order1, 413},
	} {
		got := server.send(c.key, c.body)
		if got.status != c.status {
			t.Errorf("%q %.80s: got %v, want %d", c.key, c.body, got, c.status)
		}
		// An answer about the order itself is frozen; what is refused before
		// there is an operation is not.
		again := server.send(c.key, c.body)
		if frozen := strings.HasPrefix(c.key, "k") && c.status != 413; again.body != got.body || again.replayed != frozen {
			t.Errorf("%q %.80s again: got %v, want %v", c.key, c.body, again, got)
		}
	}
	if log := gateway.Log(); len(log) > 0 {
		t.Errorf("the gateway was called: %+v", log)
	}
	if _, err := open(configure([]string{"-unknown", "guess"})); err == nil {
		t.Error("an unknown policy was taken")
	}
	if got := server.send("k1", order1); got != ordered(1, "ch_1") {
		t.Errorf("an order after all: got %v, want %v", got, ordered(1, "ch_1"))
	}
}
