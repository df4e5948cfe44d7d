//go:build unix

package conform_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/conform"
)

// seen is what a script could read of an answer.
type seen struct {
	Status     int     `json:"status"`
	Replayed   *string `json:"replayed"`
	RetryAfter *string `json:"retryAfter"`
	Location   *string `json:"location"`
	Link       *string `json:"link"`
	Type       *string `json:"type"`
	Body       string  `json:"body"`
}

// is reports whether a header that a script may read has a value.
func is(header *string, value string) bool { return header != nil && *header == value }

func TestBrowserOfAnotherOriginPaysOnce(t *testing.T) {
	t.Parallel()
	chromium := needChromium(t)
	p := startPair(t, buildApp(t))
	page := httptest.NewServer(http.FileServer(http.Dir("testdata")))
	defer page.Close()
	b := startBrowser(t, chromium)
	for _, route := range []string{conform.RoutePlain, conform.RouteHandle, conform.RouteRetry} {
		t.Run(route, func(t *testing.T) {
			op := route + "/browser"
			p.plan(t, op, conform.Plan{Runs: []conform.Behaviour{{
				Status: http.StatusCreated, Rows: 1, Body: []byte(`{"id":7}`), SleepBefore: 1500 * time.Millisecond,
				Header: []conform.Line{{Name: "Content-Type", Value: "application/json"}, {Name: "Location", Value: "/orders/7"}},
			}}})
			address := page.URL + "/page.html?" + url.Values{"app": {p.url(1)}, "path": {conform.PathWork + op}}.Encode()
			shop := b.open(t, address)
			for ready := false; !ready; {
				shop.evaluate(t, &ready, `document.readyState === "complete" && typeof paid === "function"`)
			}
			shop.doubleClick(t, 100, 50)
			var flows [][]seen
			shop.evaluate(t, &flows, `paid()`)
			p.paidOnce(t, op, flows)
			errorsReadable(t, shop, op)
		})
	}
	t.Run("the workers end well", func(t *testing.T) { p.quit(t) })
}

// paidOnce wants two clicks to have made one order and to have got one answer.
func (p *pair) paidOnce(t *testing.T, op string, flows [][]seen) {
	t.Helper()
	if len(flows) != 2 {
		t.Fatalf("clicks: got %d posts, want 2: %+v", len(flows), flows)
	}
	firsts, replays, inFlight := 0, 0, 0
	for _, flow := range flows {
		for _, a := range flow[:len(flow)-1] { // pay went on while it was 409
			inFlight++
			if !is(a.RetryAfter, "1") && !is(a.RetryAfter, "2") {
				t.Errorf("409: Retry-After, as the script reads it: got %v in %+v, want 1 or 2", a.RetryAfter, a)
			}
			readable(t, a, "in-flight")
		}
		last := flow[len(flow)-1]
		if last.Status != http.StatusCreated || last.Body != `{"id":7}` || !is(last.Location, "/orders/7") {
			t.Errorf("answer to a click: got %+v, want 201, the order and its Location", last)
		}
		switch {
		case last.Replayed == nil:
			firsts++
		case *last.Replayed == "true":
			replays++
		}
	}
	if firsts != 1 || replays != 1 || inFlight == 0 {
		t.Errorf("answers: got %d first ones, %d replays, %d times 409; want 1, 1 and some: %+v", firsts, replays, inFlight, flows)
	}
	var c conform.Count
	if err := p.get(t.Context(), 1, conform.PathCount+op, &c); err != nil {
		t.Fatal(err)
	}
	if c.Runs != 1 || c.Rows != 1 {
		t.Errorf("two clicks: got %d runs and %d orders, want one", c.Runs, c.Rows)
	}
}

// errorsReadable wants a script to be able to read why it was refused.
func errorsReadable(t *testing.T, shop tab, op string) {
	t.Helper()
	var a seen
	shop.evaluate(t, &a, `post(key, '{"customer":"c-2"}')`)
	if a.Status != http.StatusUnprocessableEntity {
		t.Errorf("another order with the same key: got %+v, want 422", a)
	}
	readable(t, a, "key-reused")
	shop.evaluate(t, &a, `post(null)`)
	if a.Status != http.StatusBadRequest {
		t.Errorf("no key: got %+v, want 400", a)
	}
	readable(t, a, "key-missing")
	shop.evaluate(t, &a, `post(key, order, { "Prefer": "wait=1" })`)
	if a.Status != http.StatusCreated || !is(a.Replayed, "true") {
		t.Errorf("%s: the order again: got %+v, want the replay, readable", op, a)
	}
}

// readable wants a problem of a kind whose Link the script can read too.
func readable(t *testing.T, a seen, kind string) {
	t.Helper()
	var p struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil || !strings.HasSuffix(p.Type, "#"+kind) || !is(a.Type, "application/problem+json") {
		t.Errorf("problem: got %+v (%v), want the type %s", a, err, kind)
	}
	if a.Link == nil || !strings.Contains(*a.Link, p.Type) {
		t.Errorf("problem %s: Link, as the script reads it: got %v, want %s", kind, a.Link, p.Type)
	}
}

// plan sets a path's plan.
func (p *pair) plan(t *testing.T, op string, plan conform.Plan) {
	t.Helper()
	body, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.url(1)+conform.PathPlan+op, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("plan of %s: got %s", op, a.Status)
	}
}
