package inbox

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// part is a function of an effect that takes key parts out of the data.
func part(path ...string) func(*Event) ([]string, error) {
	return func(e *Event) ([]string, error) {
		p, err := exact.PartAt(e.Data, path...)
		return []string{p}, err
	}
}

func TestAMaskTouchesNeitherIdentityNorKeyNorFingerprint(t *testing.T) {
	t.Parallel()
	s := gitHub("hub")
	s.Mask = []string{"$.customer.email", "$.items[*].note"}
	b := between(t, nil, []Source{s}, want{name: "by-mail.v1", key: part("customer", "email"), when: func(e *Event) (bool, error) {
		return strings.Contains(string(e.Data), "canary@example.com"), nil
	}})
	body := `{"customer":{"email":"canary@example.com","id":9007199254740993},"items":[{"note":"canary note"},{"note":1e400}]}`
	b.answers(b.push("hub", "1", body), 200)
	b.answers(b.push("hub", "1", body), 200)
	b.answers(b.push("hub", "1", strings.Replace(body, "canary note", "canary other", 1)), 200)
	got := b.entries()
	if len(got) != 1 || string(got[0].Payload) != `{"customer":{"email":"***","id":9007199254740993},"items":[{"note":"***"},{"note":"***"}]}` {
		t.Fatalf("entries %+v", got)
	}
	if got[0].Note.Identity.Parts[0] != "canary@example.com" || b.count("conflict", "") != 1 || b.count("duplicate", "") != 1 {
		t.Errorf("operation %v; %d conflicts", got[0].Note.Identity, b.count("conflict", ""))
	}
}

func TestWhatCannotBeMaskedIsKeptWithoutContent(t *testing.T) {
	t.Parallel()
	hub, eg := gitHub("hub"), grid(t, "grid")
	hub.Mask, eg.Mask, eg.Types = []string{"$.email"}, []string{"$.data.email"}, []string{"Shop.*"}
	b := between(t, nil, []Source{hub, eg})
	b.answers(b.push("hub", "1", "email=canary"), 200)
	b.answers(b.grid("grid", []byte(`[{"topic":"t","id":"1","eventType":"Other","data":{"email":"canary"}},{"id":"2","x":[{"data":{"email":"canary"}}]}]`)), 200)
	b.answers(b.grid("grid", []byte("canary no json")), 200)
	if len(b.entries()) != 0 || len(b.quarantined()) != 4 {
		t.Fatalf("%d entries, %d in quarantine", len(b.entries()), len(b.quarantined()))
	}
	reasons := map[string]int{}
	for _, q := range b.quarantined() {
		reasons[q.Reason]++
		if strings.Contains(fmt.Sprintf("%+v %s", q, q.Payload), "canary") {
			t.Errorf("%s: kept as %+v: %s", q.Reason, q, q.Payload)
		}
	}
	if want := map[string]int{"mask": 1, "type": 1, "missing_field": 1, "malformed_body": 1}; !reflect.DeepEqual(reasons, want) {
		t.Errorf("reasons %v", reasons)
	}
}

func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	one, two, many := gitHub("one"), gitHub("two"), gitHub("many")
	one.Tenant, two.Tenant = "T1", "T2"
	many.TenantFunc = func(e *source.Event) (string, error) {
		p, err := exact.PartAt(e.Data, "tenant")
		if p == "panics" {
			panic("canary")
		}
		return p, err
	}
	b := between(t, nil, []Source{one, two, many})
	for _, name := range []string{"one", "two", "one", "two"} {
		b.answers(b.push(name, "same", `{}`), 200)
	}
	b.answers(b.push("many", "1", `{"tenant":"T1"}`), 200)
	b.answers(b.push("many", "1", `{"tenant":"T2"}`), 200)
	b.answers(b.push("many", "2", `{}`), 200)
	b.answers(b.push("many", "3", `{"tenant":"panics"}`), 200)
	b.answers(b.push("many", "4", `{"tenant":""}`), 200)
	tenants := map[string]int{}
	for _, e := range b.entries() {
		tenants[e.Note.Event.Tenant+" "+e.Note.Source]++
	}
	if diff := cmp.Diff(map[string]int{"T1 one": 1, "T2 two": 1, "T1 many": 1, "T2 many": 1}, tenants); diff != "" {
		t.Error(diff)
	}
	if n := b.count("quarantined", "tenant"); n != 3 {
		t.Errorf("%d without tenant", n)
	}
}

func TestAnEventIsAppendedOncePerEffectThatWantsIt(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")},
		want{name: "all.v1"},
		want{name: "none.v1", when: func(*Event) (bool, error) { return false, nil }},
		want{
			name: "order.v1", key: part("order"), orderBy: part("order"),
			version: func(e *Event) (string, error) { p, _ := exact.PartAt(e.Data, "v"); return p, nil },
		})
	b.answers(b.push("hub", "1", `{"order":7,"v":1}`), 200)
	b.answers(b.push("hub", "2", `{"order":7.0,"v":"2026-01-02T03:04:05Z"}`), 200)
	b.answers(b.push("hub", "2", `{"order":7.0,"v":"2026-01-02T03:04:05Z"}`), 200)
	got := b.entries()
	if len(got) != 4 || b.count("duplicate", "") != 2 {
		t.Fatalf("%d entries", len(got))
	}
	var orders []store.Entry
	for _, e := range got {
		if e.Note.Identity.Effect == "order.v1" {
			orders = append(orders, e)
		} else if e.Key != e.Operation || e.Order != e.Key {
			t.Errorf("an effect without key or order: %+v", e)
		}
	}
	if orders[0].Operation != orders[1].Operation || orders[0].Key == orders[1].Key || orders[0].Order != orders[1].Order {
		t.Errorf("two events of one operation: %+v", orders)
	}
	if orders[0].Note.Version != "1" || orders[1].Note.Version != "2026-01-02T03:04:05Z" {
		t.Errorf("versions %q, %q", orders[0].Note.Version, orders[1].Note.Version)
	}
	if b := between(t, nil, []Source{gitHub("hub")}, want{name: "none.v1", when: func(*Event) (bool, error) { return false, nil }}); b.push("hub", "1", "{}").StatusCode != 200 || b.count("ignored", "") != 1 || len(b.entries()) != 0 {
		t.Errorf("an event that nobody wants: %+v", b.sights)
	}
}

func TestAnEffectThatFailsOnAnEventKeepsItForAPerson(t *testing.T) {
	t.Parallel()
	canary := errors.New("canary in an error")
	long := strings.Repeat("x", 2000)
	parts := func(parts []string, err error) func(*Event) ([]string, error) {
		return func(*Event) ([]string, error) { return parts, err }
	}
	for name, tc := range map[string]struct {
		w      want
		reason string
	}{
		"when":          {want{when: func(*Event) (bool, error) { return true, canary }}, "effect"},
		"when panics":   {want{when: func(*Event) (bool, error) { panic("canary") }}, "effect"},
		"key":           {want{key: parts(nil, canary)}, "effect"},
		"no key":        {want{key: parts(nil, nil)}, "identity"},
		"empty key":     {want{key: parts([]string{"", ""}, nil)}, "identity"},
		"long key":      {want{key: parts([]string{long}, nil)}, "identity"},
		"key not UTF-8": {want{key: parts([]string{"\xff"}, nil)}, "identity"},
		"order":         {want{orderBy: parts(nil, canary)}, "effect"},
		"long order":    {want{orderBy: parts([]string{long}, nil)}, "identity"},
		"version":       {want{version: func(*Event) (string, error) { return "", canary }}, "effect"},
		"no number":     {want{version: func(*Event) (string, error) { return "canary", nil }}, "version"},
		"long number":   {want{version: func(*Event) (string, error) { return strings.Repeat("1", 2000), nil }}, "version"},
	} {
		tc.w.name = "bad.v1"
		b := between(t, nil, []Source{gitHub("hub")}, want{name: "good.v1"}, tc.w)
		for range 2 {
			b.answers(b.push("hub", "1", `{}`), 200)
		}
		kept := b.quarantined()
		if len(b.entries()) != 0 || len(kept) != 1 || kept[0].Reason != tc.reason || !strings.Contains(kept[0].Detail, "bad.v1") {
			t.Errorf("%s: %d entries, %+v", name, len(b.entries()), kept)
		}
		if shown := fmt.Sprintf("%+v %s", kept, b.log.String()); strings.Contains(shown, "canary") {
			t.Errorf("%s: shows what was in it: %s", name, shown)
		}
	}
	// What is wrong may be mended, and then something else be wrong: both are seen.
	reason := "when"
	b := between(t, nil, []Source{gitHub("hub")}, want{name: "a.v1", when: func(*Event) (bool, error) {
		return reason == "key", map[bool]error{true: canary}[reason == "when"]
	}, key: parts(nil, nil)})
	b.answers(b.push("hub", "1", `{}`), 200)
	reason = "key"
	b.answers(b.push("hub", "1", `{}`), 200)
	if n := len(b.quarantined()); n != 2 {
		t.Errorf("%d rows", n)
	}
}

func TestAnEventWithoutIdentityIsOneOfItsOwn(t *testing.T) {
	t.Parallel()
	c, err := source.Described{Token: &source.Token{Header: "X-Token"}, Type: "'stock'"}.Contract()
	if err != nil {
		t.Fatal(err)
	}
	s := Source{Name: "erp", Contract: c, Types: []string{"*"}, Config: source.Config{Secrets: []source.Secret{source.NewSecret("s", "t0ken")}}}
	b := between(t, nil, []Source{s}, want{name: "stock.v1", key: part("sku")})
	for range 2 {
		b.answers(b.post("erp", []byte(`{"sku":"A"}`), "X-Token", "t0ken"), 200)
	}
	got := b.entries()
	if len(got) != 2 || got[0].Key == got[1].Key || got[0].Operation != got[1].Operation || !got[0].Note.Unsigned {
		t.Errorf("entries %+v", got)
	}
	if b.count("delivery", "no_identity") != 2 {
		t.Errorf("not counted: %+v", b.sights)
	}
	if _, err := newReceiver(b.store, []Source{s}, []want{{name: "stock.v1"}}, nil); err == nil || !strings.Contains(err.Error(), "Effect.Key") {
		t.Errorf("without any key it is taken: %v", err)
	}
	b = between(t, nil, []Source{s}, want{name: "keyed.v1", key: part("sku")}, want{name: "keyless.v1"})
	b.answers(b.post("erp", []byte(`{"sku":"A"}`), "X-Token", "t0ken"), 200)
	if len(b.entries()) != 0 || b.count("quarantined", "identity") != 1 {
		t.Errorf("an effect without key took it: %+v", b.entries())
	}
}

func nuvemshop(name string) Source {
	return Source{
		Name: name, Contract: source.Nuvemshop(), Types: []string{"order/*", "product/*", "customers/redact", "store/redact"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("app", gitHubSecret)}},
		Fetch: func(context.Context, *Event, string) (int, string, []byte, error) {
			return 0, "", nil, errors.New("not here")
		},
	}
}

// hint is one delivery of Nuvemshop.
func (b *receiving) hint(name, body string) *http.Response {
	b.t.Helper()
	sum := strings.TrimPrefix(signed(gitHubSecret, "", "", []byte(body))[1], "sha256=")
	return b.post(name, []byte(body), "X-Linkedstore-Hmac-Sha256", sum)
}

func TestHintsOfOneResourceShareAnOrderingKeyAndNoIdentity(t *testing.T) {
	t.Parallel()
	s := nuvemshop("shop")
	s.Schemas = map[string][]byte{"order/*": []byte(`{"required":["total"]}`)} // of what will be fetched
	b := between(t, nil, []Source{s}, want{name: "order.v1", when: func(*Event) (bool, error) { panic("asked about a hint") }})
	for _, body := range []string{
		`{"store_id":1,"event":"order/paid","id":5}`, `{"store_id":1,"event":"order/paid","id":5}`,
		`{"store_id":1,"event":"order/created","id":5}`, `{"store_id":2,"event":"order/paid","id":5}`,
	} {
		b.answers(b.hint("shop", body), 200)
	}
	got := b.entries()
	orders := map[store.Key]int{}
	keys := map[store.Key]bool{}
	for _, e := range got {
		orders[e.Order]++
		keys[e.Key] = true
		if e.Note.Identity.Effect != fetchEffect || !e.Note.Hint {
			t.Errorf("entry %+v", e.Note)
		}
	}
	if len(got) != 4 || len(keys) != 4 || len(orders) != 3 || orders[got[0].Order] != 2 {
		t.Errorf("%d entries, %d keys, %d ordering keys", len(got), len(keys), len(orders))
	}
	b.answers(b.hint("shop", `{"store_id":1,"event":"category/updated","id":5}`), 200)
	if b.count("quarantined", "type") != 1 || b.count("delivery", "no_identity") != 0 {
		t.Errorf("sights %+v", b.sights)
	}
}

func TestAnErasureIsCarriedOutBeforeItIsAcknowledged(t *testing.T) {
	t.Parallel()
	shop := Source{
		Name: "shop", Contract: source.Shopify(), Types: []string{"*"}, Erase: true,
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("app", "hush")}},
		SubjectFunc: func(e *Event) ([]string, error) {
			person, err := exact.PartAt(e.Data, "customer", "id")
			if err != nil {
				return nil, nil
			}
			return []string{"customer", person}, nil
		},
	}
	b := between(t, nil, []Source{shop}, want{name: "order.v1", when: func(e *Event) (bool, error) { return e.Erasure == "", nil }})
	send := func(topic, id, body string) *http.Response {
		sum := signed("hush", "", "", []byte(body))[1]
		return b.post("shop", []byte(body), "X-Shopify-Hmac-Sha256", base64Of(t, sum), "X-Shopify-Shop-Domain", "a.myshopify.com",
			"X-Shopify-Topic", topic, "X-Shopify-Event-Id", id)
	}
	order := `{"id":1,"customer":{"id":191167,"email":"canary@example.com"}}`
	b.answers(send("orders/create", "e1", order), 200)
	b.answers(send("orders/create", "e2", `{"id":2,"customer":{"id":2}}`), 200)
	// A genuine order under another topic asks for nothing.
	b.answers(send("customers/redact", "e3", order), 200)
	if e := b.entries(); e[0].Erased || len(e) != 2 || b.count("quarantined", "missing_field") != 1 {
		t.Fatalf("an order was taken for an erasure: %+v", e)
	}
	redact := `{"shop_id":1,"shop_domain":"a.myshopify.com","customer":{"id":191167,"email":"canary@example.com"}}`
	b.answers(send("customers/redact", "e4", redact), 200)
	got := b.entries()
	if !got[0].Erased || len(got[0].Payload) != 0 || got[1].Erased {
		t.Fatalf("after the erasure: %+v", got)
	}
	b.answers(send("orders/create", "e1", order), 200)
	if n := len(b.entries()); n != 2 || b.count("duplicate", "") != 1 {
		t.Errorf("%d entries: the identity was forgotten", n)
	}
	b.answers(send("customers/redact", "e5", `{"shop_domain":"a.myshopify.com"}`), 200)
	if b.count("quarantined", "subject") != 1 {
		t.Errorf("one that names nobody: %+v", b.sights)
	}

	var down failing
	b = between(t, func(q store.Queue) store.Queue { return &noErase{failing: down.over(q).(*failing)} }, []Source{shop})
	b.answers(send("customers/redact", "e4", redact), 503)
	b.answers(send("shop/redact", "e6", `{"shop_domain":"a.myshopify.com"}`), 503)
	if _, err := newReceiver(&down, []Source{shop}, []want{{name: "e"}}, nil); err == nil || !strings.Contains(err.Error(), "erase") {
		t.Errorf("a store that cannot erase: %v", err)
	}
}

// noErase is a store whose erasures fail.
type noErase struct{ *failing }

func (noErase) Erase(context.Context, store.Action) (int, error) { return 0, store.ErrUnavailable }
func (noErase) EraseAccount(context.Context, store.Action, store.Account) (int, error) {
	return 0, store.ErrUnavailable
}

// base64Of is a digest "sha256=hex" in base64.
func base64Of(t testing.TB, sum string) string {
	t.Helper()
	var raw []byte
	if _, err := fmt.Sscanf(strings.TrimPrefix(sum, "sha256="), "%x", &raw); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func TestHandshakesAreAnsweredOnlyWhenProven(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{grid(t, "grid")})
	body := []byte(`[{"eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]`)
	got := b.send("grid", "POST", "/in/grid?code=canary-code", body, "Aeg-Event-Type", "SubscriptionValidation")
	if text := b.answers(got, 200); text != `{"validationResponse":"512d38b6"}` || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("answer %q", text)
	}
	for _, target := range []string{"/in/grid", "/in/grid?code=wrong", "/in/grid?code=canary-code&code=canary-code"} {
		if text := b.answers(b.send("grid", "POST", target, body, "Aeg-Event-Type", "SubscriptionValidation"), 401); text != "" {
			t.Errorf("%s: answer %q", target, text)
		}
	}
	options := func(target, origin string) *http.Response {
		return b.send("grid", "OPTIONS", target, nil, "WebHook-Request-Origin", origin, "WebHook-Request-Rate", "120")
	}
	got = options("/in/grid?code=canary-code", "eventgrid.azure.net")
	b.answers(got, 200)
	if got.Header.Get("WebHook-Allowed-Origin") != "eventgrid.azure.net" || got.Header.Get("WebHook-Allowed-Rate") != "120" {
		t.Errorf("headers %v", got.Header)
	}
	got = options("/in/grid?code=canary-code", "evil.example")
	b.answers(got, 200)
	if got.Header.Get("WebHook-Allowed-Origin") != "" {
		t.Errorf("headers %v", got.Header)
	}
	b.answers(options("/in/grid?code=no", "eventgrid.azure.net"), 401)
	if len(b.entries())+len(b.quarantined()) != 0 || b.count("delivery", "") != 0 {
		t.Error("a handshake was taken for a delivery")
	}
	// Our own trouble is never the sender's fault.
	s := grid(t, "grid")
	s.ConfigFunc = func() source.Config { return source.Config{} }
	b = between(t, nil, []Source{s})
	b.answers(b.grid("grid", gridEvents(1)), 503)
	b.answers(options("/in/grid?code=canary-code", "eventgrid.azure.net"), 503)
}

func TestSchemasNeitherLoadNorCompute(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"$ref":"https://example.com/schema.json"}`, `{"$ref":"file:///etc/passwd"}`, `{"$ref":"other.json"}`,
		`{"$schema":"https://example.com/meta"}`, `{"type":"nothing"}`, `{`, `{"minimum":1e999999999}`, `{"a":1,"a":2}`,
	} {
		if _, err := newSchemas(map[string][]byte{"x": []byte(text)}); err == nil {
			t.Errorf("%s is a schema", text)
		}
	}
	s, err := newSchemas(map[string][]byte{
		"*":       []byte(`{"type":"object"}`),
		"order/*": []byte(`{"$defs":{"n":{"type":"integer","maximum":1e500}},"properties":{"n":{"$ref":"#/$defs/n"},"name":{"pattern":"^a+$"}},"additionalProperties":false}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ kind, data, want string }{
		{"other", `{"n":"x"}`, ""},
		{"other", `[]`, "does not fit #/type"},
		{"order/x", `{"n":9007199254740993}`, ""},
		{"order/x", `{"n":1e400}`, ""},
		{"order/x", `{"n":1e501}`, "does not fit #/$defs/n/maximum"},
		{"order/x", `{"n":1.5}`, "does not fit #/$defs/n/type"},
		{"order/x", `{"name":"canary"}`, "does not fit #/properties/name/pattern"},
		{"order/x", `{"canary":1}`, "does not fit #/additionalProperties"},
		{"order/x", `{"n":1e999999999}`, errNumber.Error()},
		{"order/x", `{"n":-1E-2000}`, errNumber.Error()},
		{"order/x", `{"n":` + strings.Repeat("1", 2000) + `}`, errNumber.Error()},
		{"order/x", `{"name":"1e999999999"}`, "does not fit #/properties/name/pattern"},
		{"order/x", `{"n":1,"n":2}`, "not JSON that every reader understands alike"},
		{"order/x", ``, "not JSON that every reader understands alike"},
	} {
		got := ""
		if err := s.check(tc.kind, []byte(tc.data)); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s %.60s: %q, want %q", tc.kind, tc.data, got, tc.want)
		}
	}
}

func TestFaultsOfSourcesAreReportedAllAtOnce(t *testing.T) {
	t.Parallel()
	good := gitHub("good")
	_, err := newReceiver(nil, []Source{
		{Name: "bad name"},
		{Name: "x", Contract: source.StandardWebhooks(""), Types: []string{"a*b"}, Config: source.Config{Secrets: []source.Secret{source.NewSecret("s", "canary-secret")}}},
		{Name: "y", Contract: source.Nuvemshop(), Types: []string{"*"}, Schemas: map[string][]byte{"*": []byte("{")}, Mask: []string{"email"}, Silence: time.Millisecond, BodyLimit: -1},
		good, good,
	}, []want{{name: "e"}, {name: "e"}, {name: ""}, {name: fetchEffect}}, &Options{Flush: time.Hour, FlushSize: 5000})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		"queue: none", `"bad name"`, "contract: none", "types: none", `"a*b"`, "secret s:", "fetch: none", "schemas:", "mask:", "silence:", "body limit",
		`source "good": named twice`, `effect "e": named twice`, `effect ""`, fetchEffect, "flush: 1h", "flush size: 5000",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("says nothing of %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("shows a secret: %v", err)
	}
}

func TestRetentionIsHeldToTheWindowOfTheSenders(t *testing.T) {
	t.Parallel()
	adyen, err := source.Described{Signing: &source.Signing{Header: "X-Sig"}, ID: []string{"body.id"}, Type: "'x'", Window: 30 * 24 * time.Hour}.Contract()
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	b := between(t, nil, []Source{gitHub("hub"), {Name: "pay", Contract: adyen, Types: []string{"*"}}})
	for _, tc := range []struct {
		asked, want time.Duration
		warned, ok  bool
	}{{0, 60 * day, false, true}, {7 * day, 0, false, false}, {30 * day, 30 * day, true, true}, {45 * day, 45 * day, false, true}} {
		got, warning, err := b.Retention(tc.asked, nil)
		if got != tc.want || (warning != "") != tc.warned || (err == nil) != tc.ok {
			t.Errorf("%v: %v, %q, %v", tc.asked, got, warning, err)
		}
	}
	// Of a source that an effect does not take from, nothing is asked.
	if got, warning, err := b.Retention(7*day, []string{"hub"}); got != 7*day || warning != "" || err != nil {
		t.Errorf("of hub alone: %v, %q, %v", got, warning, err)
	}
	if got, _, _ := between(t, nil, []Source{gitHub("hub")}).Retention(0, nil); got != 7*day {
		t.Errorf("at least a week: %v", got)
	}
}

// TestNothingOfADeliveryShows sends secrets and contents through everything that
// can go wrong, and looks for them in logs, sights, alerts and answers.
func TestNothingOfADeliveryShows(t *testing.T) {
	t.Parallel()
	hub := gitHub("hub")
	hub.Config.Secrets = []source.Secret{source.NewSecret("now", "canary-secret")}
	hub.Types = []string{"push", "issues*"}
	hub.Schemas = map[string][]byte{"issues*": []byte(`{"properties":{"a":{"enum":[1]}}}`)}
	var down failing
	b := between(t, down.over, []Source{hub, grid(t, "grid")}, want{name: "e", key: func(e *Event) ([]string, error) {
		if strings.Contains(string(e.Data), "fail") {
			return nil, fmt.Errorf("canary of %s", e.Data)
		}
		return []string{"canary-part"}, nil
	}})
	answers := ""
	send := func(kind, id, body string, header ...string) {
		sent := append(signed("canary-secret", id, kind, []byte(body)), header...)
		got := b.post("hub", []byte(body), sent...)
		answers += fmt.Sprint(b.answers(got, got.StatusCode), got.Header)
	}
	send("push", "1", `{"email":"canary"}`)
	send("push", "1", `{"email":"canary 2"}`) // conflict
	send("fork", "2", `{"email":"canary"}`)
	send("issues", "3", `{"a":"canary"}`)
	send("push", "4", `canary`)
	send("push", "5", `{"fail":"canary"}`)
	send("push", "6", `canary`, "Content-Encoding", "br")
	send("push", "7", `{}`, "X-Hub-Signature-256", "sha256=canary")
	send("push", "8", `{}`, "X-Correlation-Id", "canary \n\x1b[31m")
	answers += b.answers(b.grid("grid", []byte(`[{"topic":"canary","id":"canary"}]`)), 200)
	got := b.send("grid", "POST", "/in/grid?code=canary-wrong", nil)
	answers += b.answers(got, 401)
	down.with(store.ErrUnavailable)
	send("push", "9", `{"email":"canary"}`)
	down.with(nil)
	shown := map[string]string{
		"log": b.log.String(), "sights": fmt.Sprintf("%+v", b.sights), "alerts": fmt.Sprintf("%+v", b.alerts), "answers": answers,
	}
	for what, text := range shown {
		if i := strings.Index(text, "canary"); i >= 0 {
			t.Errorf("%s: %q", what, text[max(i-80, 0):min(i+80, len(text))])
		}
	}
	if b.count("conflict", "")+b.count("quarantined", "")+b.count("rejected", "") < 7 || len(b.log.String()) < 500 {
		t.Errorf("nothing went wrong: %+v", b.sights)
	}
	for line := range strings.Lines(b.log.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no line of JSON: %q", line)
		}
	}
}

// FuzzBatch takes arrays apart: each item is an entry or in quarantine, and a
// repetition adds nothing.
func FuzzBatch(f *testing.F) {
	for _, s := range []string{
		string(gridEvents(3, 1)), `[]`, `{}`, `[{"topic":"t","id":"1","eventType":"x"},{"topic":"t","id":"1","eventType":"x","data":1}]`,
		`[1,"a",null]`, `{"topic":"t","id":"\u0000","eventType":"x"}`, `[{"topic":"t","id":1e400,"eventType":"\ud800"}]`,
	} {
		f.Add([]byte(s))
	}
	s := grid(f, "grid")
	s.Mask = []string{"$.data.secret", "$.subject"}
	s.Schemas = map[string][]byte{"Shop.*": []byte(`{"properties":{"data":{"required":["total"]}}}`)}
	f.Fuzz(func(t *testing.T, body []byte) {
		b := between(t, nil, []Source{s})
		items, err := s.Contract.Read(&source.Request{Header: http.Header{}, Body: body})
		want := len(items)
		if err != nil {
			want = 1
		}
		receipt, failed := b.Receive(t.Context(), "grid", gridRequest(body))
		if failed != nil {
			t.Fatal(failed)
		}
		if n := receipt.New + receipt.Duplicates + receipt.Conflicts + receipt.Quarantined; n != want || receipt.Ignored != 0 {
			t.Fatalf("%q: %d items, %+v", body, want, receipt)
		}
		entries, kept := len(b.entries()), len(b.quarantined())
		again, failed := b.Receive(t.Context(), "grid", gridRequest(body))
		if failed != nil || again.New != 0 || len(b.entries()) != entries || len(b.quarantined()) != kept {
			t.Fatalf("%q again: %+v, %v, %d entries after %d, %d in quarantine after %d", body, again, failed, len(b.entries()), entries, len(b.quarantined()), kept)
		}
	})
}

func gridRequest(body []byte) *source.Request {
	r, err := http.NewRequest(http.MethodPost, "/in/grid?code=canary-code", nil)
	if err != nil {
		panic(err)
	}
	return &source.Request{Method: "POST", URL: r.URL, Header: http.Header{}, Body: body, At: time.Now()}
}

func TestOneFactForTwoTopicsIsTwoEvents(t *testing.T) {
	t.Parallel()
	// The identity of a sender that names an order and what became of it.
	c, err := source.Described{Token: &source.Token{Header: "X-Token"}, ID: []string{"body.order", "body.event"}, Type: "body.event"}.Contract()
	if err != nil {
		t.Fatal(err)
	}
	erp := Source{Name: "erp", Contract: c, Types: []string{"*"}, Config: source.Config{Secrets: []source.Secret{source.NewSecret("s", "t0ken")}}}
	shop := Source{Name: "shop", Contract: source.Shopify(), Types: []string{"*"}, Config: source.Config{Secrets: []source.Secret{source.NewSecret("app", "hush")}}}
	b := between(t, nil, []Source{erp, shop})
	for range 2 {
		for _, event := range []string{"paid", "shipped"} {
			b.answers(b.post("erp", []byte(`{"order":7,"event":"`+event+`"}`), "X-Token", "t0ken"), 200)
		}
	}
	if n := len(b.entries()); n != 2 {
		t.Errorf("%d entries, want one for each of paid and shipped", n)
	}
	// Two subscriptions, one action: one event id, two webhook ids.
	body := []byte(`{"id":1,"updated_at":"2026-01-02T03:04:05Z"}`)
	sum := base64Of(t, signed("hush", "", "", body)[1])
	for range 3 {
		for topic, webhook := range map[string]string{"orders/create": "w1", "orders/updated": "w2"} {
			b.answers(b.post("shop", body, "X-Shopify-Hmac-Sha256", sum, "X-Shopify-Shop-Domain", "a.myshopify.com",
				"X-Shopify-Topic", topic, "X-Shopify-Event-Id", "e1", "X-Shopify-Webhook-Id", webhook), 200)
		}
	}
	if n := len(b.entries()); n != 4 {
		t.Errorf("%d entries, want two more: one for each topic", n)
	}
}

func TestTheNameOfAHeaderHasNoCase(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	for i, name := range []string{"x-hub-signature-256", "X-HUB-SIGNATURE-256"} {
		body := []byte(fmt.Sprintf(`{"n":%d}`, i))
		header := signed(gitHubSecret, fmt.Sprint(i), "push", body)
		header[0] = name
		b.answers(b.post("hub", body, header...), 200)
	}
}

func TestASignedChallengeIsAnsweredAndAnUnsignedOneIsNot(t *testing.T) {
	t.Parallel()
	config := source.Config{Secrets: []source.Secret{source.NewSecret("now", gitHubSecret)}}
	b := between(t, nil, []Source{
		{Name: "slack", Contract: source.Slack(), Types: []string{"*"}, Config: config},
		{Name: "zoom", Contract: source.Zoom(), Types: []string{"*"}, Config: config},
	})
	for name, body := range map[string]string{
		"slack": `{"type":"url_verification","challenge":"canary-challenge"}`,
		"zoom":  `{"event":"endpoint.url_validation","event_ts":1,"payload":{"plainToken":"canary-challenge"}}`,
	} {
		stamp := fmt.Sprint(time.Now().Unix())
		front := map[string]string{"slack": "X-Slack-", "zoom": "x-zm-"}[name]
		sum := strings.TrimPrefix(signed(gitHubSecret, "", "", []byte("v0:"+stamp+":"+body))[1], "sha256=")
		send := func(sum string) *http.Response {
			return b.post(name, []byte(body), front+"Signature", "v0="+sum, front+"Request-Timestamp", stamp)
		}
		if text := b.answers(send(sum), 200); !strings.Contains(text, "canary-challenge") {
			t.Errorf("%s: answer %q", name, text)
		}
		if text := b.answers(send(strings.Repeat("0", 64)), 401); text != "" {
			t.Errorf("%s, forged: answer %q", name, text)
		}
		if text := b.answers(b.post(name, []byte(body)), 401); text != "" {
			t.Errorf("%s, unsigned: answer %q", name, text)
		}
	}
	if len(b.entries())+len(b.quarantined()) != 0 || b.count("ignored", "handshake") != 2 {
		t.Errorf("sights %+v", b.sights)
	}
}
