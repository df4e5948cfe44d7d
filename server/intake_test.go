package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/server/internal/admin"
)

// onBoth runs a test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, place string)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, "store: sqlite:"+filepath.Join(t.TempDir(), "unavez.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, migrated(t))
	})
}

// shopSecret signs what the sender of these tests sends.
const shopSecret = "a-secret-of-the-shop-canary"

// shop is a sender that signs the body, with an effect that imports orders.
const shop = `
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {lease: 2s, poll: 20ms}
sources:
  - name: shop
    contract: hmac
    path: /in/shop
    secrets: [{name: new, value: ` + shopSecret + `}]
    types: [order/*]
    signing: {header: X-Signature}
    event: {id: [header.X-Event-Id], type: header.X-Event-Type, subject: [body.id], version: body.version}
    window: 1h
effects:
  - name: order.import.v1
    key: [data.id]
    order_by: [data.id]
    send: {url: "APP/imports", timeout: 5s}
    unknown: retry
    retry: {first: 20ms, longest: 100ms, attempts: 5}
    owner: orders-team
`

// sign is the signature of a body.
func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, body) // a hash never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// deliver sends one signed event.
func (b *bed) deliver(id, kind, body string, header ...string) reply {
	b.t.Helper()
	return b.send(http.MethodPost, "/in/shop", body, append([]string{
		"X-Signature", sign(shopSecret, body), "X-Event-Id", id, "X-Event-Type", kind,
	}, header...)...)
}

// imports tells how often the application was asked for an import.
func (b *bed) imports() int { return b.app.count("POST /imports") }

// state counts the entries of an effect that came to a state.
func (b *bed) state(effect, state string) string {
	b.t.Helper()
	return b.metric(`unavez_entries_total{effect="` + effect + `",state="` + state + `"}`)
}

func TestAnEventTakesEffectOnceHoweverOftenItArrives(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		const body = `{"id":42,"version":1,"customer":"ana"}`
		if got := b.deliver("e-1", "order/created", body); got.status != 200 || got.body != "" {
			t.Fatalf("%+v", got)
		}
		b.eventually("the import", func() bool { return b.imports() == 1 })
		b.eventually("its outcome", func() bool { return b.state("order.import.v1", "completed") == "1" })
		seen := b.app.last("/imports")
		if seen.Header.Get("Unavez-Effect") != "order.import.v1" || seen.Header.Get("Unavez-Type") != "order/created" || !strings.HasPrefix(seen.Header.Get("Idempotency-Key"), "uv1-") ||
			seen.Header.Get("Content-Type") != "application/json" {
			t.Errorf("the application saw %v", seen.Header)
		}
		for range 3 {
			if got := b.deliver("e-1", "order/created", body); got.status != 200 {
				t.Fatalf("a repetition: %+v", got)
			}
		}
		// Another event that names the same operation.
		if got := b.deliver("e-2", "order/paid", `{"id":42,"version":2}`); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		b.eventually("the second event has ended", func() bool {
			return b.metric(`unavez_queue_depth{source="shop"}`) == "" && b.state("order.import.v1", "completed") == "2"
		})
		if b.imports() != 1 {
			t.Errorf("%d imports", b.imports())
		}
		for name, want := range map[string]string{
			`unavez_deliveries_total{source="shop"}`:                        "5",
			`unavez_event_duplicates_total{source="shop"}`:                  "3",
			`unavez_verified_total{source="shop",verified_with="new"}`:      "5",
			`unavez_delivery_duration_seconds_count{source="shop"}`:         "5",
			`unavez_entry_duration_seconds_count{effect="order.import.v1"}`: "2",
		} {
			if got := b.metric(name); got != want {
				t.Errorf("%s is %q, want %s", name, got, want)
			}
		}
	})
}

func TestWhatIsNotAuthenticIsRefusedAndLeavesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		const body = `{"id":42}`
		for name, header := range map[string][]string{
			"unsigned":        {"X-Event-Id", "1", "X-Event-Type", "order/created"},
			"another secret":  {"X-Event-Id", "1", "X-Event-Type", "order/created", "X-Signature", sign("other", body)},
			"another body":    {"X-Event-Id", "1", "X-Event-Type", "order/created", "X-Signature", sign(shopSecret, body+" ")},
			"an empty secret": {"X-Event-Id", "1", "X-Event-Type", "order/created", "X-Signature", sign("", body)},
		} {
			if got := b.send(http.MethodPost, "/in/shop", body, header...); got.status != 401 || got.body != "" {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if got := b.send(http.MethodGet, "/in/shop", ""); got.status != 405 || got.header.Get("Allow") != "POST" {
			t.Errorf("GET: %+v", got)
		}
		if got := b.send(http.MethodPost, "/in/other", body); got.status != 404 {
			t.Errorf("another path: %+v", got)
		}
		if got := b.metric(`unavez_rejected_total{reason="bad_signature",source="shop"}`); got != "3" {
			t.Errorf("%s bad signatures", got)
		}
		if got := b.metric(`unavez_rejected_total{reason="missing_header",source="shop"}`); got != "1" {
			t.Errorf("%s without a signature", got)
		}
		if b.imports() != 0 {
			t.Error("an effect")
		}
	})
}

func TestHundredAtOnceOverTwoReplicasAreOneEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		app := newApp(t)
		first := startOn(t, app, place, shop)
		second := startOn(t, app, place, shop)
		const body = `{"id":7,"version":1}`
		var group sync.WaitGroup
		var mu sync.Mutex
		statuses := map[int]int{}
		for i := range 100 {
			group.Go(func() {
				b := []*bed{first, second}[i%2]
				got := b.deliver("e-1", "order/created", body)
				mu.Lock()
				defer mu.Unlock()
				statuses[got.status]++
			})
		}
		group.Wait()
		if statuses[200] != 100 {
			t.Fatalf("answers %v", statuses)
		}
		sum := func(name string) int {
			n := 0
			for _, b := range []*bed{first, second} {
				var v int
				_, _ = fmt.Sscan(b.metric(name), &v) // none is zero
				n += v
			}
			return n
		}
		first.eventually("the outcome", func() bool { return sum(`unavez_entries_total{effect="order.import.v1",state="completed"}`) == 1 })
		if n := sum(`unavez_event_duplicates_total{source="shop"}`); n != 99 || app.count("POST /imports") != 1 {
			t.Errorf("%d duplicates, %d imports", n, app.count("POST /imports"))
		}
	})
}

func TestASlowApplicationKeepsNoSenderWaiting(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		release := make(chan struct{})
		arrived := make(chan struct{}, 10)
		b.app.set("/imports", func(w http.ResponseWriter, _ *http.Request) {
			arrived <- struct{}{}
			<-release
			w.WriteHeader(http.StatusNoContent)
		})
		const body = `{"id":7,"version":1}`
		if got := b.deliver("e-1", "order/created", body); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		<-arrived
		for range 3 { // while it runs
			begun := time.Now()
			if got := b.deliver("e-1", "order/created", body); got.status != 200 {
				t.Errorf("a repetition while it runs: %+v", got)
			}
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("answered after %v", took)
			}
		}
		close(release)
		b.eventually("the outcome", func() bool { return b.state("order.import.v1", "completed") == "1" })
		if b.imports() != 1 {
			t.Errorf("%d imports", b.imports())
		}
	})
}

// page reads JSON of the admin API.
func page[T any](b *bed, path string) (value T) {
	b.t.Helper()
	got := b.sendTo(b.admin, http.MethodGet, path, "")
	if err := json.Unmarshal([]byte(got.body), &value); err != nil || got.status != 200 {
		b.t.Fatalf("%s: %d %s", path, got.status, got.body)
	}
	return value
}

func TestWhatCannotBeAnOperationIsKeptAndReadmitted(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		for range 2 {
			if got := b.deliver("e-1", "stock/changed", `{"id":1,"version":1}`); got.status != 200 {
				t.Fatalf("%+v", got)
			}
		}
		if got := b.deliver("e-2", "order/created", `{"no":"id"}`); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		kept := page[admin.QuarantinePage](b, "/api/quarantine?source=shop")
		reasons := map[string]admin.Quarantined{}
		for _, q := range kept.Items {
			reasons[q.Reason] = q
		}
		if len(kept.Items) != 2 || reasons["type"].Type != "stock/changed" || reasons["missing_field"].Source != "shop" {
			t.Fatalf("%+v", kept)
		}
		decide := func(key, action string) reply {
			return b.sendTo(b.admin, http.MethodPost, "/api/quarantine/"+key+"/"+action, `{"by":"ana","reason":"looked at it"}`)
		}
		if got := decide(reasons["type"].Key, "readmit"); got.status != 409 || !strings.Contains(got.body, "does not accept this type") {
			t.Errorf("as long as the type is not accepted: %+v", got)
		}
		b.edit("types: [order/*]", "types: [order/*, stock/*]")
		b.reload <- struct{}{}
		b.log.wait(t, `"msg":"reloaded"`)
		if got := decide(reasons["type"].Key, "readmit"); got.status != 200 || !strings.Contains(got.body, `"new":1`) {
			t.Errorf("%+v", got)
		}
		if got := decide(reasons["missing_field"].Key, "discard"); got.status != 200 {
			t.Errorf("%+v", got)
		}
		if got := decide(reasons["type"].Key, "discard"); got.status != 404 {
			t.Errorf("what is gone: %+v", got)
		}
		b.eventually("the import", func() bool { return b.imports() == 1 })
		if left := page[admin.QuarantinePage](b, "/api/quarantine"); len(left.Items) != 0 {
			t.Errorf("%+v", left)
		}
		for _, line := range []string{`"action":"readmit"`, `"action":"discard quarantined"`, `"by":"ana"`} {
			if !contains(b.log, line) {
				t.Errorf("no %s in the log", line)
			}
		}
	})
}

// What an effect keeps has to outlast the senders that it takes from, and no others:
// check and serve say the same of it.
func TestAnEffectIsHeldToTheTimeOfItsOwnSenders(t *testing.T) {
	const slow = `
  - name: pay
    contract: hmac
    path: /in/pay
    secrets: [{name: new, value: ` + shopSecret + `}]
    types: ["*"]
    signing: {header: X-Signature}
    event: {id: [header.X-Event-Id], type: header.X-Event-Type}
    window: 720h
effects:
  - name: pay.v1
    when: source == "pay"
    send: {url: "APP/pay"}
    unknown: retry`
	text := strings.Replace(shop, "\neffects:", slow, 1)
	text = strings.Replace(text, "    owner: orders-team\n", "    owner: orders-team\n    when: source == \"shop\"\n    retention: 24h\n", 1)
	b := startOn(t, newApp(t), "store: sqlite:"+filepath.Join(t.TempDir(), "a.db"), text)
	if result := b.deliver("e-1", "order/created", `{"id":1,"version":1}`); result.status != 200 {
		t.Fatalf("%+v", result)
	}
	b.eventually("it has ended", func() bool { return b.state("order.import.v1", "completed") == "1" })
	if n := b.app.count("POST /pay"); n != 0 {
		t.Errorf("%d requests of the other effect", n)
	}
}
