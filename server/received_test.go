package server

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/server/internal/admin"
)

func TestASecretIsRotatedWithoutARestart(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		post := func(id, secret string) int {
			body := `{"id":1,"version":1}`
			return b.send(http.MethodPost, "/in/shop", body, "X-Signature", sign(secret, body), "X-Event-Id", id, "X-Event-Type", "order/created").status
		}
		reload := func(old, new string) {
			t.Helper()
			n := strings.Count(b.log.String(), `"msg":"reloaded"`)
			b.edit(old, new)
			b.reload <- struct{}{}
			b.eventually("the reload", func() bool { return strings.Count(b.log.String(), `"msg":"reloaded"`) > n })
		}
		const fresh = "the-secret-of-tomorrow-canary"
		one := "secrets: [{name: new, value: " + shopSecret + "}]"
		both := "secrets: [{name: new, value: " + fresh + "}, {name: old, value: " + shopSecret + "}]"
		if post("e-1", shopSecret) != 200 || post("e-2", fresh) != 401 {
			t.Error("before the rotation")
		}
		taken := func() bool { return b.metric(`unavez_lanes_total{event="taken"}`) == "256" }
		b.eventually("all lanes are taken", taken)
		reload(one, both)
		if post("e-3", shopSecret) != 200 || post("e-4", fresh) != 200 {
			t.Error("while both overlap")
		}
		if got := b.metric(`unavez_verified_total{source="shop",verified_with="old"}`); got != "1" {
			t.Errorf("verified with the old one: %s", got)
		}
		reload(both, "secrets: [{name: new, value: "+fresh+"}]")
		if post("e-5", shopSecret) != 401 || post("e-6", fresh) != 200 {
			t.Error("after the rotation")
		}
		// A secret moves no lane: the inbox goes on.
		if !taken() {
			t.Error("lanes were taken again")
		}
	})
}

func TestSourcesAndEffectsChangeWhileEventsAreUnderWay(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		arrived, release := make(chan struct{}, 1), make(chan struct{})
		goOn := sync.OnceFunc(func() { close(release) })
		defer goOn()
		b.app.set("/imports", func(w http.ResponseWriter, _ *http.Request) {
			select {
			case arrived <- struct{}{}:
				<-release
			default:
			}
			w.WriteHeader(http.StatusNoContent)
		})
		b.deliver("e-1", "order/created", `{"id":1,"version":1}`)
		<-arrived // it runs on the old inbox
		for i := range 20 {
			b.deliver(fmt.Sprint("w-", i), "order/created", fmt.Sprintf(`{"id":%d,"version":1}`, i+100))
		}
		b.edit("path: /in/shop", "path: /in/market")
		b.edit(b.app.URL+"/imports", b.app.URL+"/orders")
		b.reload <- struct{}{}
		b.log.wait(t, `"msg":"reloaded"`)
		if got := b.deliver("e-2", "order/created", `{"id":2,"version":1}`); got.status != 404 {
			t.Errorf("the old path: %+v", got)
		}
		body := `{"id":3,"version":1}`
		if got := b.send(http.MethodPost, "/in/market", body, "X-Signature", sign(shopSecret, body), "X-Event-Id", "e-3", "X-Event-Type", "order/created"); got.status != 200 {
			t.Errorf("the new path: %+v", got)
		}
		b.eventually("the new target", func() bool { return b.app.count("POST /orders") >= 1 })
		goOn()
		b.eventually("all have ended once", func() bool { return b.state("order.import.v1", "completed") == "22" })
		if n := b.app.count("POST /imports") + b.app.count("POST /orders"); n != 22 {
			t.Errorf("%d requests for 22 events", n)
		}
		// A faulty configuration is refused and the one in place goes on.
		b.edit("unknown: retry", "unknown: perhaps")
		b.reload <- struct{}{}
		b.log.wait(t, "effects[0].unknown")
		body = `{"id":4,"version":1}`
		if got := b.send(http.MethodPost, "/in/market", body, "X-Signature", sign(shopSecret, body), "X-Event-Id", "e-4", "X-Event-Type", "order/created"); got.status != 200 {
			t.Errorf("after a refused one: %+v", got)
		}
	})
}

// tenants has one sender for two tenants, and callers of the routes beside it.
const tenants = `
auth: {mode: credential, tenant: acme}
outbound: {allow: [127.0.0.1/32]}
inbox: {poll: 20ms}
http: [{route: POST /orders, upstream: APP, unknown: hold}]
sources:
  - name: shop
    contract: hmac
    path: /in/shop
    secrets: [` + shopSecret + `]
    types: ["*"]
    signing: {header: X-Signature}
    event: {id: [header.X-Event-Id], type: header.X-Event-Type, subject: [body.id], tenant: body.account}
    tenant_from: tenant
    window: 1h
effects:
  - {name: order.import.v1, key: [data.id], send: {url: "APP/imports"}, unknown: hold}
`

func TestOneEventOfTwoTenantsIsTwo(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, tenants)
		var mu sync.Mutex
		seen := map[string]int{}
		b.app.set("/imports", func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			seen[r.Header.Get("Unavez-Tenant")+" "+r.Header.Get("Idempotency-Key")]++
		})
		for range 2 {
			for _, account := range []string{"T1", "T2"} {
				if got := b.deliver("e-1", "order/created", `{"id":1,"account":"`+account+`"}`); got.status != 200 {
					t.Fatalf("%+v", got)
				}
			}
		}
		b.eventually("both have ended", func() bool { return b.state("order.import.v1", "completed") == "2" })
		mu.Lock()
		defer mu.Unlock()
		if len(seen) != 2 {
			t.Errorf("%v", seen)
		}
		for _, account := range []string{"T1", "T2"} {
			list := page[admin.Page](b, "/api/operations?state=completed&effect=order.import.v1&tenant="+account)
			if len(list.Operations) != 2 { // the event, and the operation that it names
				t.Errorf("%s: %+v", account, list)
			}
			for _, o := range list.Operations {
				if o.Tenant != account {
					t.Errorf("%s sees %+v", account, o)
				}
			}
		}
		// Without an account there is no tenant, and no operation.
		if got := b.deliver("e-2", "order/created", `{"id":1}`); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		if kept := page[admin.QuarantinePage](b, "/api/quarantine"); len(kept.Items) != 1 {
			t.Errorf("%+v", kept)
		}
	})
}

// grid is a subscription of Event Grid.
const grid = `
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {poll: 20ms}
sources:
  - name: grid
    contract: event-grid
    path: /in/grid
    secrets: [grid-secret-canary]
    token: {query: code}
    types: [Shop.*]
    schemas: {Shop.*: '{"type":"object","properties":{"data":{"required":["total"]}}}'}
effects:
  - {name: order.import.v1, send: {url: "APP/imports"}, unknown: hold}
`

func TestABatchOfEventGridKeepsGoodItemsAndBadOnesApart(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, grid)
		validation := `[{"id":"v","topic":"t","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]`
		if got := b.send(http.MethodPost, "/in/grid", validation, "Aeg-Event-Type", "SubscriptionValidation"); got.status != 401 || strings.Contains(got.body, "512d38b6") {
			t.Errorf("a handshake without the secret: %+v", got)
		}
		if got := b.send(http.MethodPost, "/in/grid?code=grid-secret-canary", validation, "Aeg-Event-Type", "SubscriptionValidation"); got.status != 200 || got.body != `{"validationResponse":"512d38b6"}` {
			t.Errorf("a handshake: %+v", got)
		}
		if got := b.send(http.MethodOptions, "/in/grid?code=grid-secret-canary", "", "WebHook-Request-Origin", "eventgrid.azure.net", "WebHook-Request-Rate", "120"); got.status != 200 ||
			got.header.Get("WebHook-Allowed-Origin") != "eventgrid.azure.net" || got.header.Get("WebHook-Allowed-Rate") != "120" {
			t.Errorf("a preflight: %+v", got)
		}
		if got := b.send(http.MethodOptions, "/in/grid?code=grid-secret-canary", "", "WebHook-Request-Origin", "evil.example"); got.header.Get("WebHook-Allowed-Origin") != "" {
			t.Errorf("a preflight of another: %+v", got)
		}
		var events []string
		for i := range 100 {
			data := `{"total":1}`
			if i == 57 {
				data = `{}`
			}
			events = append(events, fmt.Sprintf(`{"topic":"/t","subject":"/orders/%d","id":"%d","eventType":"Shop.OrderPaid","eventTime":"2026-11-30T12:00:00Z","data":%s,"dataVersion":"1"}`, i, i, data))
		}
		batch := "[" + strings.Join(events, ",") + "]"
		for range 2 {
			if got := b.send(http.MethodPost, "/in/grid?code=grid-secret-canary", batch, "Aeg-Event-Type", "Notification"); got.status != 200 {
				t.Fatalf("%+v", got)
			}
		}
		b.eventually("99 effects", func() bool { return b.state("order.import.v1", "completed") == "99" })
		kept := page[admin.QuarantinePage](b, "/api/quarantine?source=grid")
		if b.imports() != 99 || len(kept.Items) != 1 || kept.Items[0].Reason != "schema" || kept.Items[0].ID[1] != "57" {
			t.Errorf("%d imports, %+v", b.imports(), kept)
		}
		if b.app.last("/imports").Header.Get("Unavez-Unsigned") != "true" {
			t.Error("the application is not told that the body is not signed")
		}
	})
}

// What leads to an address that is not allowed is dead at once, by a reason that
// is shown, and nothing is connected to: also where the name led elsewhere when
// it was looked at last.
func TestTargetsThatAreNotAllowedAreRefusedWhenTheyAreCalled(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		app := newApp(t)
		_, port, err := net.SplitHostPort(strings.TrimPrefix(app.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		addresses := func(texts ...string) (list []netip.Addr) {
			for _, text := range texts {
				list = append(list, netip.MustParseAddr(text))
			}
			return list
		}
		configuration := strings.Replace(shop, `"APP/imports"`, `"http://target.test:`+port+`/imports"`, 1)
		b := startOn(t, app, place, configuration, func(o *Options) {
			o.resolver = testenv.Names(t, addresses("127.0.0.1", "169.254.169.254", "10.0.0.1", "127.0.0.2")...)
		})
		b.deliver("e-0", "order/created", `{"id":"0","version":1}`)
		b.eventually("the first address is called", func() bool { return b.imports() == 1 })
		for i, address := range []string{"169.254.169.254", "10.0.0.1", "127.0.0.2"} {
			b.deliver(fmt.Sprint("e-", i+1), "order/created", fmt.Sprintf(`{"id":"%d","version":1}`, i+1))
			b.eventually(address+" is refused", func() bool { return len(b.dead()) == i+1 })
			if last := b.dead()[i]; !strings.Contains(last.Reason, address) || !strings.Contains(last.Reason, "outbound.allow does not list it") || last.Attempt != 1 {
				t.Errorf("%s: %+v", address, last)
			}
		}
		if b.imports() != 1 {
			t.Error("it was connected to")
		}
	})
}

func TestARedirectIsNotFollowedAndAGoneTargetIsLeftAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		app, h := newApp(t), &hook{}
		app.set("/alerts", h.serve)
		b := startOn(t, app, place, alerting+shop)
		app.set("/imports", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, app.URL+"/secret", http.StatusTemporaryRedirect)
		})
		b.deliver("e-1", "order/created", `{"id":1,"version":1}`)
		b.eventually("it is dead", func() bool { return len(b.dead()) == 1 })
		if app.count("POST /secret") != 0 || !strings.Contains(b.dead()[0].Reason, "answered 307") {
			t.Errorf("followed %d times, %+v", app.count("POST /secret"), b.dead())
		}
		app.set("/imports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
		b.deliver("e-2", "order/created", `{"id":2,"version":1}`)
		b.eventually("it is dead", func() bool { return len(b.dead()) == 2 })
		b.eventually("an alert", func() bool { return len(h.of("unavez.held")) == 1 })
		before := b.imports()
		b.deliver("e-3", "order/created", `{"id":3,"version":1}`)
		b.eventually("it waits", func() bool { return b.state("order.import.v1", "retry") == "1" })
		if b.imports() != before {
			t.Error("a target that is gone was called")
		}
		if one := h.of("unavez.held")[0]; one.Data.Effect != "order.import.v1" || one.Data.Owner != "orders-team" || !strings.Contains(one.Data.Text, "410") {
			t.Errorf("%+v", one)
		}
	})
}

// Secrets and masked values are put wherever a sender can put one; none comes out.
func TestMaskedValuesAndSecretsAreInNothingThatIsKeptOrShown(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		configuration := strings.Replace(shop, "    types: [order/*]", "    types: [order/*]\n    mask: [$.customer.email]\n    subject: [\"has(data.customer) ? [data.customer.id] : []\"]", 1)
		b := startOn(t, newApp(t), place, "log: {level: debug}\n"+configuration)
		b.app.set("/imports", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if !strings.Contains(string(body), `"email":"***"`) {
				t.Errorf("the application got %s", body)
			}
			w.WriteHeader(http.StatusBadRequest)
		})
		const body = `{"id":1,"version":1,"customer":{"id":"c-7","email":"canary@example.com"}}`
		for range 2 {
			if got := b.deliver("e-1", "order/created", body, "Authorization", "Bearer header-canary"); got.status != 200 {
				t.Fatalf("%+v", got)
			}
		}
		b.deliver("e-1", "order/created", strings.Replace(body, "canary@", "other-canary@", 1)) // seen before the mask
		b.deliver("e-2", "stock/changed", body)
		b.eventually("it is dead", func() bool { return len(b.dead()) == 1 })
		if got := b.metric(`unavez_event_conflicts_total{source="shop"}`); got != "1" {
			t.Errorf("%s conflicts", got)
		}
		dead := b.dead()[0]
		shown, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.Show(t.Context(), out, false, dead.Key, false) })
		if err != nil {
			t.Error(err)
		}
		kept := page[admin.QuarantinePage](b, "/api/quarantine")
		item := page[admin.Quarantined](b, "/api/quarantine/"+kept.Items[0].Key+"?payload=true")
		entries := []string{string(item.Payload)}
		for _, path := range []string{"/api/operations", "/api/operations/" + dead.Key, "/api/blocked", "/api/quarantine", "/metrics"} {
			entries = append(entries, b.sendTo(b.admin, http.MethodGet, path, "").body)
		}
		for _, text := range append(entries, shown, b.log.String()) {
			if i := strings.Index(text, "canary"); i >= 0 {
				t.Errorf("shows a secret: …%s…", text[max(0, i-200):min(len(text), i+60)])
			}
		}
		if !strings.Contains(string(item.Payload), `"email":"***"`) || !contains(b.log, `"msg":"payload shown"`) {
			t.Errorf("kept %s", item.Payload)
		}
		// Erased on demand: the content goes, the identity stays.
		if out, err := b.ops(func(o *Ops, out *bytes.Buffer) error {
			return o.Erase(t.Context(), out, false, EraseOptions{Subject: []string{"c-7"}, By: "ana", Reason: "by letter"})
		}); err != nil || !strings.Contains(out, "2 payloads erased") {
			t.Errorf("%v %s", err, out)
		}
		if item := page[admin.Quarantined](b, "/api/quarantine/"+kept.Items[0].Key+"?payload=true"); !item.Erased || item.Payload != nil {
			t.Errorf("%+v", item)
		}
		if got := b.deliver("e-1", "order/created", body); got.status != 200 || b.imports() != 1 {
			t.Errorf("a repetition after the erasure: %+v, %d imports", got, b.imports())
		}
	})
}

// Without its store the server answers 503 within two seconds, and what comes
// again afterwards takes effect once.
func TestAStoreThatIsDownIsAnsweredAtOnceAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]func(*testing.T) (place string, cut, mend func()){
		"sqlite": lockedFile, "postgres": relayed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			place, cut, mend := down(t)
			b := startOn(t, newApp(t), place, shop)
			if got := b.deliver("e-0", "order/created", `{"id":9,"version":1}`); got.status != 200 {
				t.Fatalf("%+v", got)
			}
			b.eventually("the first effect", func() bool { return b.state("order.import.v1", "completed") == "1" })
			cut()
			begun := time.Now()
			got := b.deliver("e-1", "order/created", `{"id":1,"version":1}`)
			if took := time.Since(begun); got.status != 503 || got.header.Get("Retry-After") == "" || took > 2500*time.Millisecond {
				t.Errorf("%+v after %v", got, took)
			}
			mend()
			b.eventually("it is taken", func() bool { return b.deliver("e-1", "order/created", `{"id":1,"version":1}`).status == 200 })
			b.eventually("one effect", func() bool { return b.state("order.import.v1", "completed") == "2" })
			if b.imports() != 2 {
				t.Errorf("%d imports", b.imports())
			}
		})
	}
}

// lockedFile is a file of SQLite that another program can lock.
func lockedFile(t *testing.T) (place string, cut, mend func()) {
	path := filepath.Join(t.TempDir(), "unavez.db")
	var conn *sql.Conn
	return "store: sqlite:" + path, func() {
			db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(20000)") // the server writes now and then
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() }) // only for the lock
			if conn, err = db.Conn(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
				t.Fatal(err)
			}
		}, func() {
			if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
				t.Error(err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
}

// relayed is a database behind a relay that can be cut.
func relayed(t *testing.T) (place string, cut, mend func()) {
	line := migrated(t)
	at, rest, _ := strings.Cut(strings.TrimPrefix(line, "store: "), "\n")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	gate := testenv.StartRelay(t, u.Host)
	u.Host = gate.Addr()
	return "store: " + u.String() + "\n" + rest, gate.Cut, gate.Mend
}
