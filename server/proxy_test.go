package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/observe"
)

const holding = single + `
http:
  - {route: POST /orders, upstream: APP, unknown: hold}
  - {route: GET /orders/, upstream: APP}
`

func TestARepeatGetsTheFirstAnswerByteForByteAndTheApplicationIsCalledOnce(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	first, second := b.post("/orders", "k-1"), b.post("/orders", "k-1")
	if first.status != 201 || first.header.Get("Idempotent-Replayed") != "" || first.header.Get("Location") != "/orders/17" {
		t.Errorf("first: %+v", first)
	}
	if second.status != 201 || second.body != first.body || second.header.Get("Idempotent-Replayed") != "true" || second.header.Get("Location") != "/orders/17" {
		t.Errorf("second: %+v", second)
	}
	if n := b.app.count("POST /orders"); n != 1 {
		t.Errorf("%d calls of the application", n)
	}
	for name, want := range map[string]string{
		"unavez_replays_total": "1", "unavez_completed_total": "1", "unavez_claims_total": "1",
		`unavez_duplicates_total{duplicate="after"}`: "1", `unavez_unfinished{state="unknown"}`: "0",
	} {
		if got := b.metric(name); got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if other := b.send(http.MethodPost, "/orders", `{"customer":"c-2"}`, "Idempotency-Key", "k-1"); other.status != 422 || b.metric("unavez_mismatches_total") != "1" {
		t.Errorf("another request with the key: %+v", other)
	}
	if got := b.send(http.MethodGet, "/orders/17", ""); got.status != 201 || got.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("a GET is passed through: %+v", got)
	}
	b.log.wait(t, `"duplicate":"after"`)
}

func TestAHeldUnknownOperationIsSettledByAPerson(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		decision Decision
		status   int
		runs     int
		header   string
	}{
		{Decision{Action: "complete", Status: 201, Header: []string{"Location: /orders/99"}, Body: []byte(`{"id":99}`)}, 201, 1, "/orders/99"},
		{Decision{Action: "release"}, 201, 2, "/orders/17"},
		{Decision{Action: "discard"}, 409, 1, ""},
	} {
		t.Run(c.decision.Action, func(t *testing.T) {
			t.Parallel()
			b := start(t, holding)
			b.app.set("/orders", dies)
			first, second := b.post("/orders", "k-1"), b.post("/orders", "k-1")
			if first.problem() != "outcome-unknown" || second.problem() != "outcome-unknown" || first.status != 409 {
				t.Fatalf("first %+v, second %+v", first, second)
			}
			if n := b.app.count("POST /orders"); n != 1 {
				t.Errorf("%d calls while it is unknown", n)
			}
			if b.metric(`unavez_unfinished{state="unknown"}`) != "1" || b.metric("unavez_unknown_total") != "1" {
				t.Error("the metrics do not show it")
			}
			b.app.set("/orders", nil)

			ops, err := OpenOps(t.Context(), OpsOptions{Admin: b.admin})
			if err != nil {
				t.Fatal(err)
			}
			defer ops.Close()
			var out bytes.Buffer
			if err := ops.List(t.Context(), &out, false, ListOptions{States: []string{"unknown"}, Limit: 10}); err != nil || !strings.Contains(out.String(), "/http//k-1") {
				t.Errorf("list: %v\n%s", err, &out)
			}
			seen := b.operation("/http//k-1")
			if seen == nil || seen.State != "unknown" || seen.Attempt != 1 || !strings.HasPrefix(seen.DerivedKey, "uv1-") {
				t.Fatalf("shown as %+v", seen)
			}
			d := c.decision
			d.By, d.Reason, d.Attempt = "ana", "asked the warehouse", seen.Attempt+1
			if err := ops.Act(t.Context(), &out, false, "/http//k-1", d); err == nil || b.metric("unavez_conflicts_total") != "1" {
				t.Errorf("a decision about another attempt: %v", err)
			}
			d.Attempt = seen.Attempt
			out.Reset()
			if err := ops.Act(t.Context(), &out, false, "/http//k-1", d); err != nil || !strings.Contains(out.String(), "by ana: asked the warehouse") {
				t.Errorf("decision: %v\n%s", err, &out)
			}
			third, fourth := b.post("/orders", "k-1"), b.post("/orders", "k-1")
			if third.status != c.status || third.header.Get("Location") != c.header || fourth.status != c.status || fourth.body != third.body {
				t.Errorf("after the decision: %+v, then %+v", third, fourth)
			}
			if n := b.app.count("POST /orders"); n != c.runs {
				t.Errorf("%d calls of the application, want %d", n, c.runs)
			}
		})
	}
}

func TestARetryRouteSendsTheSameKeysAgain(t *testing.T) {
	t.Parallel()
	b := start(t, single+"http: [{route: POST /orders, upstream: APP, unknown: retry, derived_key_header: X-Derived}]\n")
	b.app.set("/orders", dies)
	if first := b.post("/orders", "k-1"); first.problem() != "outcome-unknown" || first.header.Get("Retry-After") == "" {
		t.Fatalf("first: %+v", first)
	}
	before := b.app.last("/orders")
	b.app.set("/orders", nil)
	if second := b.post("/orders", "k-1"); second.status != 201 || b.app.count("POST /orders") != 2 {
		t.Errorf("second: %+v after %d calls", second, b.app.count("POST /orders"))
	}
	after := b.app.last("/orders")
	for _, name := range []string{"Idempotency-Key", "X-Derived"} {
		if before.Header.Get(name) == "" || before.Header.Get(name) != after.Header.Get(name) {
			t.Errorf("%s was %q, then %q", name, before.Header.Get(name), after.Header.Get(name))
		}
	}
}

const probing = single + `
http:
  - route: POST /orders
    upstream: APP
    unknown: probe
    probe:
      url: APP/probe?key={key}&derived={derived_key}
      headers: {X-Key: "{derived_key}"}
      settle: 0s
      done: [{status: 200, json: $.state, is: [paid]}]
      not_done: [{status: 404}]
      result: {status: 201, json: $.order, headers: [Location]}
`

func TestAProbeDecidesWhatHappenedBeforeTheRequestRunsAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		probe  http.HandlerFunc
		status int
		body   string
		runs   int
	}{
		{"done", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/orders/5")
			fmt.Fprint(w, `{"state":"paid","order":{"id":5, "n":1.0}}`)
		}, 201, `{"id":5, "n":1.0}`, 1},
		{"not done", http.NotFound, 201, `{"run":2}`, 2},
		{"cannot tell", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"state":"pending"}`) }, 409, "", 1},
		{"down", dies, 409, "", 1},
		{"done without a result", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"state":"paid"}`) }, 409, "", 1},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, 409, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, probing)
			b.app.set("/probe", c.probe)
			b.app.set("/orders", dies)
			if first := b.post("/orders", "k&1"); first.status != 409 {
				t.Fatalf("first: %+v", first)
			}
			b.app.set("/orders", nil)
			second := b.post("/orders", "k&1")
			if second.status != c.status || c.body != "" && second.body != c.body {
				t.Errorf("second: %+v", second)
			}
			if n := b.app.count("POST /orders"); n != c.runs {
				t.Errorf("%d calls of the application, want %d", n, c.runs)
			}
			asked := b.app.last("/probe")
			if asked == nil || asked.URL.Query().Get("key") != "k&1" || asked.Header.Get("X-Key") != asked.URL.Query().Get("derived") || asked.Header.Get("X-Key") == "" {
				t.Errorf("asked %v", asked)
			}
			if b.app.count("GET /elsewhere") > 0 {
				t.Error("a redirect of the probe was followed")
			}
		})
	}
}

func TestTheBackgroundSettlesWhatItsProbeCanTell(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[string]string{"done": "completed", "not done": "retryable"} {
		t.Run(verdict, func(t *testing.T) {
			t.Parallel()
			b := start(t, probing)
			b.app.set("/orders", dies)
			if verdict == "done" {
				b.app.set("/probe", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"state":"paid","order":{"id":5}}`) })
			} else {
				b.app.set("/probe", http.NotFound)
			}
			b.post("/orders", "k-1")
			b.eventually("the operation is "+want, func() bool { return b.operation("/http//k-1").State == want })
			op := b.operation("/http//k-1")
			if n := len(op.History); n == 0 || op.History[n-1].Actor != "probe" {
				t.Errorf("history %+v", op.History)
			}
			if n := b.app.count("POST /orders"); n != 1 {
				t.Errorf("the background called the application: %d calls", n)
			}
		})
	}
}

func TestTheBackgroundSettlesWhatWasLeftBeforeARestart(t *testing.T) {
	t.Parallel()
	b := start(t, probing)
	b.app.set("/orders", dies)
	b.app.set("/probe", dies)
	b.post("/orders", "k-1")
	if op := b.operation("/http//k-1"); op.State != "unknown" || op.Origin != "POST /orders" {
		t.Fatalf("%+v", op)
	}
	b.halt()
	b.app.set("/probe", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"state":"paid","order":{"id":5}}`) })
	b.serve()
	b.eventually("the operation is completed", func() bool { return b.operation("/http//k-1").State == "completed" })
	if got := b.post("/orders", "k-1"); got.status != 201 || got.body != `{"id":5}` || b.app.count("POST /orders") != 1 {
		t.Errorf("then %+v after %d calls", got, b.app.count("POST /orders"))
	}
}

func TestNotDoneIsNotBelievedBeforeTheSettleDelay(t *testing.T) {
	t.Parallel()
	b := start(t, strings.Replace(probing, "settle: 0s", "settle: 1h", 1))
	b.app.set("/probe", http.NotFound)
	b.app.set("/orders", dies)
	b.post("/orders", "k-1")
	b.app.set("/orders", nil)
	if second := b.post("/orders", "k-1"); second.problem() != "outcome-unknown" || b.app.count("POST /orders") != 1 {
		t.Errorf("second: %+v after %d calls", second, b.app.count("POST /orders"))
	}
}

func TestStatusesByDeclarationFreeTheKeyOrFreezeTheAnswer(t *testing.T) {
	t.Parallel()
	b := start(t, single+"http: [{route: POST /orders, upstream: APP, unknown: hold, not_done: [503], final: [500]}]\n")
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for key, c := range map[string]struct{ first, runs, again int }{
		"free": {503, 2, 201}, "final": {500, 1, 500}, "refused": {422, 1, 422}, "unknown": {502, 1, 409}, "busy": {429, 2, 201},
	} {
		before := b.app.count("POST /orders")
		b.app.set("/orders", status(c.first))
		if got := b.post("/orders", key); got.status != c.first {
			t.Errorf("%s: first %d", key, got.status)
		}
		b.app.set("/orders", nil)
		if got := b.post("/orders", key); got.status != c.again {
			t.Errorf("%s: then %d, want %d", key, got.status, c.again)
		}
		if n := b.app.count("POST /orders") - before; n != c.runs {
			t.Errorf("%s: %d calls, want %d", key, n, c.runs)
		}
	}
}

func TestNothingWasSentWhereTheApplicationIsDown(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.app.Close()
	for range 2 {
		if got := b.post("/orders", "k-1"); got.status != 503 || got.problem() != "upstream-unreachable" || got.header.Get("Retry-After") == "" {
			t.Errorf("got %+v", got)
		}
	}
	if op := b.operation("/http//k-1"); op != nil {
		t.Errorf("it is remembered: %+v", op)
	}
}

func TestForgedHeadersDoNotReachTheApplication(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	for _, named := range []string{"Idempotency-Key", "idempotency-key, close", "X-Tenant", "Authorization"} {
		if got := b.post("/orders", "k-0", "Connection", named); got.status != 400 {
			t.Errorf("Connection: %s gave %d", named, got.status)
		}
	}
	got := b.raw("POST /orders HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: k-2\r\nConnection: close, X-Harmless\r\nX-Harmless: 1\r\n" +
		"X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Host: evil.example\r\nX-Forwarded-Proto: https\r\nForwarded: for=10.0.0.1\r\nX-Real-Ip: 10.0.0.1\r\n" +
		"X-Tenant: other\r\nIdempotent-Replayed: true\r\nContent-Length: 2\r\n\r\n{}")
	if !strings.HasPrefix(got, "HTTP/1.1 201 ") {
		t.Fatalf("got %q", got)
	}
	seen := b.app.last("/orders").Header
	if !slices.Equal(seen["X-Forwarded-For"], []string{"127.0.0.1"}) || !slices.Equal(seen["X-Forwarded-Proto"], []string{"http"}) || !slices.Equal(seen["X-Forwarded-Host"], []string{"shop.example"}) {
		t.Errorf("the application sees %v", seen)
	}
	for _, name := range []string{"Forwarded", "X-Real-Ip", "X-Tenant", "Idempotent-Replayed", "X-Harmless"} {
		if seen.Get(name) != "" {
			t.Errorf("the application sees %s: %s", name, seen.Get(name))
		}
	}
}

func TestAmbiguousRequestsReachNeitherTheApplicationNorTheLedger(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	smuggled := "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: smuggled\r\nContent-Length: 2\r\n\r\n{}"
	for name, head := range map[string]string{
		"length and coding": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":       "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
		"folded":            "X-A: b\r\n\tc\r\nContent-Length: 2\r\n\r\n{}",
		"bare LF":           "X-A: b\nContent-Length: 2\r\n\r\n{}",
	} {
		got := b.raw("POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: first\r\n" + head + smuggled)
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") || strings.Count(got, "HTTP/1.1") != 1 {
			t.Errorf("%s: answered %q", name, got)
		}
	}
	if n := b.app.count("POST /orders"); n != 0 {
		t.Errorf("%d calls of the application", n)
	}
	if got := b.metric("unavez_refused_connections_total"); got != "4" {
		t.Errorf("%s connections counted", got)
	}
}

func TestABrowsersPreflightIsAnsweredForARouteOfOneMethod(t *testing.T) {
	t.Parallel()
	b := start(t, single+"http: [{route: POST /orders, upstream: APP, unknown: hold, cors: {origins: [https://shop.example], credentials: true}}]\n")
	got := b.send(http.MethodOptions, "/orders", "", "Origin", "https://shop.example", "Access-Control-Request-Method", "POST")
	if got.status != 204 || got.header.Get("Access-Control-Allow-Origin") != "https://shop.example" || !strings.Contains(got.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
		t.Errorf("preflight: %+v", got)
	}
	if got := b.send(http.MethodPost, "/orders", "{}", "Origin", "https://shop.example"); got.status != 400 || got.header.Get("Access-Control-Allow-Origin") != "https://shop.example" {
		t.Errorf("an error of the layer: %+v", got)
	}
}

func TestAPrivateUpstreamIsRefusedWhenConnectingToo(t *testing.T) {
	t.Parallel()
	app, log := newApp(t), &lines{grew: make(chan struct{})}
	c, err := config.Parse([]byte(strings.ReplaceAll("store: sqlite:x.db\n"+single+"http: [{route: /, upstream: APP, unknown: hold}]\n", "APP", app.URL)), config.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	c.Outbound.Prefixes = nil // as where a name leads to a private address
	s, err := openSQLite(filepath.Join(t.TempDir(), "x.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	engine, err := s.engine(&unavez.Options{SingleTenant: true})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(t.Context())
	metrics := observe.NewMetrics(observe.Gauges{Counts: s.store.Counts, Refused: func() float64 { return 0 }, Open: func() float64 { return 0 }})
	site, err := newSite(c, &parts{engine: engine, operations: s.store, metrics: metrics, log: observe.Logger(log, "json", slog.LevelInfo), suspects: newSuspects()}, nil, func() *intake { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer site.close()
	for method, want := range map[string]int{http.MethodPost: 503, http.MethodGet: 502} {
		r := httptest.NewRequest(method, "/orders", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k-1")
		w := httptest.NewRecorder()
		site.handler.ServeHTTP(w, r)
		if w.Code != want || strings.Contains(w.Body.String(), "127.0.0.1") {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
	}
	if app.count("POST /orders")+app.count("GET /orders") > 0 {
		t.Error("the application was reached")
	}
	log.wait(t, "outbound.allow does not list it")
}
