package source_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/source"
)

func post(body string, header ...string) *source.Request {
	r := &source.Request{
		Method: "POST", URL: &url.URL{Path: "/in/x"}, Header: http.Header{}, Body: []byte(body),
		At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// one reads a request that holds one event.
func one(t *testing.T, c *source.Contract, r *source.Request) *source.Event {
	t.Helper()
	items, err := c.Read(r)
	if err != nil || len(items) != 1 {
		t.Fatalf("%s: %d items, %v", c.Name, len(items), err)
	}
	if items[0].Fault != nil {
		t.Fatalf("%s: %v", c.Name, items[0].Fault)
	}
	return items[0].Event
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestShopifyKeepsTopicsApartAndRetriesTogether(t *testing.T) {
	t.Parallel()
	send := func(topic, event, webhook string) *source.Event {
		return one(t, source.Shopify(), post(`{"id":820982911946154508,"updated_at":"2026-01-02T00:00:00-03:00","total_price":"10.50"}`,
			"X-Shopify-Shop-Domain", "a.myshopify.com", "X-Shopify-Topic", topic,
			"X-Shopify-Event-Id", event, "X-Shopify-Webhook-Id", webhook, "X-Shopify-Triggered-At", "2026-01-02T03:04:05.123Z"))
	}
	created, updated, again := send("orders/create", "e1", "w1"), send("orders/updated", "e1", "w2"), send("orders/create", "e1", "w1")
	if cmp.Equal(created.ID, updated.ID) {
		t.Errorf("two topics of one action are one event: %q", created.ID)
	}
	same(t, "a retry", again, created)
	same(t, "both name one resource", updated.Subject, created.Subject)
	same(t, "the resource keeps its digits", created.Subject, []string{"a.myshopify.com", "orders", "820982911946154508"})
	same(t, "version", created.Version, "2026-01-02T00:00:00-03:00")
	if created.Time.IsZero() || created.Tenant != "a.myshopify.com" || created.Delivery != "w1" {
		t.Errorf("got %+v", created)
	}
	if e := one(t, source.Shopify(), post(`{"shop_domain":"a.myshopify.com","customer":{"id":191167}}`,
		"X-Shopify-Shop-Domain", "a.myshopify.com", "X-Shopify-Topic", "customers/redact", "X-Shopify-Event-Id", "e2")); e.Erasure != source.EraseCustomer || e.Subject[2] != "191167" {
		t.Errorf("customers/redact: %+v", e)
	}
	whole := func(body string) source.Item {
		items, err := source.Shopify().Read(post(body, "X-Shopify-Shop-Domain", "a.myshopify.com", "X-Shopify-Topic", "shop/redact", "X-Shopify-Event-Id", "e3"))
		if err != nil || len(items) != 1 {
			t.Fatalf("%d items, %v", len(items), err)
		}
		return items[0]
	}
	if got := whole(`{"shop_id":1,"shop_domain":"a.myshopify.com"}`); got.Event == nil || got.Event.Erasure != source.EraseTenant || got.Event.Tenant != "a.myshopify.com" {
		t.Errorf("shop/redact: %+v", got)
	}
	// The topic is not signed: what asks for a customer's data asks for no shop's.
	for _, body := range []string{`{"shop_domain":"a.myshopify.com","customer":{"id":191167}}`, `{"shop_domain":"a.myshopify.com","customer":null}`, `{"shop_domain":"b.myshopify.com"}`} {
		if got := whole(body); got.Fault == nil {
			t.Errorf("shop/redact with %s: %+v", body, got)
		}
	}
}

func TestGitHubTakesAnyBytes(t *testing.T) {
	t.Parallel()
	latin1 := "\xef\xbb\xbf{\"a\":\"\xe9\"}"
	e := one(t, source.GitHub(), post(latin1, "X-GitHub-Delivery", "72d3162e", "X-GitHub-Event", "push"))
	if string(e.Data) != latin1 || e.Type != "push" {
		t.Errorf("got %+v", e)
	}
	same(t, "identity", e.ID, []string{"72d3162e"})
	e = one(t, source.GitHub(), post(`{"action":"opened","repository":{"id":9007199254740993}}`, "X-GitHub-Delivery", "1", "X-GitHub-Event", "issues"))
	if e.Type != "issues.opened" || e.Subject[0] != "9007199254740993" {
		t.Errorf("got %+v", e)
	}
	items, err := source.GitHub().Read(post(`{}`, "X-GitHub-Event", "push"))
	if err != nil || len(items) != 1 || items[0].Fault == nil || items[0].Fault.Field != "X-GitHub-Delivery" {
		t.Errorf("without a delivery id: %+v, %v", items, err)
	}
}

func TestStripeKeepsAccountsApart(t *testing.T) {
	t.Parallel()
	e := one(t, source.Stripe(), post(`{"id":"evt_1","type":"charge.succeeded","created":1533204620,"account":"acct_1","data":{"object":{"id":"ch_1"}}}`))
	same(t, "identity", e.ID, []string{"evt_1", "acct_1"})
	same(t, "subject", e.Subject, []string{"ch_1"})
	if e.Time.Unix() != 1533204620 || e.Tenant != "acct_1" {
		t.Errorf("got %+v", e)
	}
	for _, body := range []string{`{"id":"evt_1"}`, `{"type":"x"}`, `{"id":{},"type":"x"}`} {
		if items, err := source.Stripe().Read(post(body)); err != nil || items[0].Fault == nil {
			t.Errorf("%s: %+v, %v", body, items, err)
		}
	}
	if _, err := source.Stripe().Read(post(`{"id":"a","id":"b","type":"x"}`)); err == nil {
		t.Error("an id twice is read")
	}
}

func TestNuvemshopSendsHints(t *testing.T) {
	t.Parallel()
	c := source.Nuvemshop()
	e := one(t, c, post(`{"store_id":123,"event":"order/paid","id":9007199254740993}`))
	if !e.Hint || len(e.ID) != 0 || e.Tenant != "123" {
		t.Errorf("got %+v", e)
	}
	fetch, err := c.Fetch(e)
	if err != nil || fetch.Path != "/v1/123/orders/9007199254740993" {
		t.Errorf("fetch %+v, %v", fetch, err)
	}
	same(t, "created and paid name one resource",
		one(t, c, post(`{"store_id":123,"event":"order/created","id":9007199254740993}`)).Subject, e.Subject)

	for body, want := range map[string]source.Erasure{
		`{"store_id":1,"event":"store/redact"}`:                                                        source.EraseTenant,
		`{"store_id":1,"event":"customers/redact","customer":{"id":7},"orders_to_redact":[213]}`:       source.EraseCustomer,
		`{"store_id":1,"event":"customers/data_request","customer":{"id":7},"orders_requested":[213]}`: source.ExportData,
	} {
		if e := one(t, c, post(body)); e.Erasure != want || e.Hint {
			t.Errorf("%s: %+v", body, e)
		}
	}
	for _, body := range []string{
		`{"event":"order/paid","id":1}`, `{"store_id":"../1","event":"order/paid","id":1}`,
		`{"store_id":1,"id":1}`, `{"store_id":1,"event":"order","id":1}`,
	} {
		if items, err := c.Read(post(body)); err != nil || items[0].Fault == nil {
			t.Errorf("%s: %+v, %v", body, items, err)
		}
	}
	if e := one(t, c, post(`{"store_id":1,"event":"app/uninstalled"}`)); e.Hint {
		t.Errorf("the app itself cannot be fetched: %+v", e)
	}
}

func TestStandardWebhooksWithAPublicKey(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := source.StandardWebhooks("")
	config := &source.Config{Secrets: []source.Secret{source.NewSecret("k", "whpk_"+base64.StdEncoding.EncodeToString(public))}}
	r := post(`{"type":"invoice.paid","timestamp":"2026-01-02T03:04:05Z","data":{"id":"i1"}}`)
	stamp := strconv.FormatInt(r.At.Unix(), 10)
	sign := func(id string) string {
		return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(id+"."+stamp+"."+string(r.Body))))
	}
	r.Header.Set("webhook-id", "m1")
	r.Header.Set("webhook-timestamp", stamp)
	r.Header.Set("webhook-signature", "v1,AAAA "+sign("m1"))
	proof, err := c.Verify(t.Context(), config, r)
	if err != nil || proof.Method != "ed25519" || !proof.Body {
		t.Errorf("got %+v, %v", proof, err)
	}
	e := one(t, c, r)
	same(t, "identity", e.ID, []string{"m1"})
	if e.Type != "invoice.paid" || e.Subject[0] != "i1" || e.Time.IsZero() {
		t.Errorf("got %+v", e)
	}

	r.Header.Set("webhook-signature", strings.Replace(sign("m1"), "v1a,", "v1,", 1))
	if _, err := c.Verify(t.Context(), config, r); reason(t, err) != source.BadSignature {
		t.Errorf("labelled v1: %v", err)
	}
	r.Header.Set("webhook-id", "m.1")
	r.Header.Set("webhook-signature", sign("m.1"))
	if _, err := c.Verify(t.Context(), config, r); reason(t, err) != source.MalformedHeader {
		t.Errorf("a dot in the id: %v", err)
	}
}

func TestWeakKeysAreRefusedAtConfiguration(t *testing.T) {
	t.Parallel()
	check := source.StandardWebhooks("").Secret
	zero := make([]byte, 32)
	identity := append([]byte{1}, make([]byte, 31)...)
	flipped := append(append([]byte{}, make([]byte, 31)...), 0x80)
	for _, key := range [][]byte{zero, identity, flipped} {
		if check("whpk_"+base64.StdEncoding.EncodeToString(key)) == nil {
			t.Errorf("%x is taken for a key", key)
		}
	}
	for _, text := range []string{"", "whsec_", "whsec_AAAA", "whpk_AAAA", "not base64!"} {
		if check(text) == nil {
			t.Errorf("%q is taken for a secret", text)
		}
	}
	if err := check("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); err != nil {
		t.Error(err)
	}
}

func grid(t *testing.T, o source.EventGridOptions) *source.Contract {
	t.Helper()
	c, err := source.EventGrid(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEventGridValidationNeedsTheSecret(t *testing.T) {
	t.Parallel()
	c := grid(t, source.EventGridOptions{Secret: &source.Token{Query: "code"}})
	config := &source.Config{Secrets: []source.Secret{source.NewSecret("now", "s3cret")}}
	body := `[{"id":"1","topic":"/t","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]`
	r := post(body, "aeg-event-type", "SubscriptionValidation")
	if reply, err := c.Handshake(t.Context(), config, r); reason(t, err) != source.MissingHeader || reply != nil {
		t.Errorf("without the secret: %+v, %v", reply, err)
	}
	r.URL.RawQuery = "code=wrong"
	if reply, err := c.Handshake(t.Context(), config, r); reason(t, err) != source.BadSignature || reply != nil {
		t.Errorf("with a wrong secret: %+v, %v", reply, err)
	}
	r.URL.RawQuery = "code=s3cret&code=s3cret"
	if _, err := c.Handshake(t.Context(), config, r); reason(t, err) != source.MalformedHeader {
		t.Errorf("with two: %v", err)
	}
	r.URL.RawQuery = "code=s3cret"
	reply, err := c.Handshake(t.Context(), config, r)
	if err != nil || reply.Status != 200 || string(reply.Body) != `{"validationResponse":"512d38b6"}` {
		t.Errorf("got %+v, %v", reply, err)
	}
	if reply, err := c.Handshake(t.Context(), config, post(`[]`)); reply != nil || err != nil {
		t.Errorf("a delivery is a handshake: %+v, %v", reply, err)
	}
}

func TestEventGridPreflightGrantsListedOrigins(t *testing.T) {
	t.Parallel()
	c := grid(t, source.EventGridOptions{Secret: &source.Token{Query: "code"}, Rate: 100})
	config := &source.Config{Secrets: []source.Secret{source.NewSecret("now", "s3cret")}}
	ask := func(origin, rate string) (*source.Reply, error) {
		r := post("", "WebHook-Request-Origin", origin, "WebHook-Request-Rate", rate)
		r.Method, r.URL.RawQuery = "OPTIONS", "code=s3cret"
		return c.Handshake(t.Context(), config, r)
	}
	reply, err := ask("eventgrid.azure.net", "120")
	if err != nil || reply.Status != 200 || reply.Header.Get("WebHook-Allowed-Origin") != "eventgrid.azure.net" || reply.Header.Get("WebHook-Allowed-Rate") != "100" {
		t.Errorf("got %+v, %v", reply, err)
	}
	if reply, err = ask("eventgrid.azure.net", "60"); err != nil || reply.Header.Get("WebHook-Allowed-Rate") != "60" {
		t.Errorf("got %+v, %v", reply, err)
	}
	if reply, err = ask("evil.example", "60"); err != nil || reply.Header.Get("WebHook-Allowed-Origin") != "" {
		t.Errorf("an origin that is not listed: %+v, %v", reply, err)
	}
	if _, err = ask("eventgrid.azure.net", "many"); reason(t, err) != source.MalformedHeader {
		t.Errorf("a rate that is no number: %v", err)
	}
	if _, err := source.EventGrid(source.EventGridOptions{}); err == nil {
		t.Error("a subscription without proof is accepted")
	}
	if _, err := source.EventGrid(source.EventGridOptions{Entra: &source.Bearer{}}); err == nil || !strings.Contains(err.Error(), "audience") || !strings.Contains(err.Error(), "principals") {
		t.Errorf("an empty Entra: %v", err)
	}
}

func TestEventGridKeepsGoodItemsOfABatch(t *testing.T) {
	t.Parallel()
	c := grid(t, source.EventGridOptions{Secret: &source.Token{Header: "X-Secret"}})
	good := func(i int) string {
		return fmt.Sprintf(`{"id":"%d","topic":"/t","subject":"orders/%d","eventType":"Order.Created","eventTime":"2026-01-02T03:04:05.1234567Z","data":{"n":9007199254740993},"dataVersion":"1"}`, i, i)
	}
	body := "[" + good(0) + `,{"id":"1","topic":"/t"},{"id":"2","id":"3","topic":"/t","eventType":"x"},"text", ` + good(4) + "]"
	items, err := c.Read(post(body, "aeg-event-type", "Notification"))
	if err != nil || len(items) != 5 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	for i, want := range []bool{true, false, false, false, true} {
		if (items[i].Event != nil) != want || (items[i].Fault != nil) == want || len(items[i].Raw) == 0 {
			t.Errorf("item %d: %+v", i, items[i])
		}
	}
	if string(items[4].Event.Data) != good(4) {
		t.Errorf("the data is %s", items[4].Event.Data)
	}
	same(t, "identity", items[4].Event.ID, []string{"/t", "4"})
	same(t, "a single event", one(t, c, post(good(4))), items[4].Event)

	cloud := `[{"specversion":"1.0","id":"1","source":"/s","type":"Order.Created","subject":"o1","data":{"n":1}},{"specversion":"1.0","id":"2"}]`
	items, err = c.Read(post(cloud, "Content-Type", "application/cloudevents-batch+json; charset=utf-8"))
	if err != nil || len(items) != 2 || items[0].Event == nil || items[1].Fault == nil {
		t.Fatalf("%+v, %v", items, err)
	}
	same(t, "identity of a CloudEvent", items[0].Event.ID, []string{"/s", "1"})
	for _, bad := range []string{``, `nonsense`, `"text"`, `[1,`} {
		if _, err := c.Read(post(bad)); reason(t, err) != source.MalformedBody {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestKeysThatCannotBeHadAreNoRefusal(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		if v.ID != "pubsub-oidc-derived" {
			continue
		}
		config := v.config(t)
		config.Keys = func(context.Context, string, string) (crypto.PublicKey, error) { return nil, errors.New("no route") }
		_, err := verify(t, v)(t.Context(), config, v.request())
		var fault *source.Fault
		if err == nil || errors.As(err, &fault) {
			t.Errorf("got %v; want an error that is no fault of the sender", err)
		}
	}
}

func TestDescribedFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := source.Described{
		Signing: &source.Signing{Header: "bad header", Hash: "md5", Encoding: "x", Signed: "{nonce}", Key: "y", Timestamp: "t"},
		ID:      []string{"header.", "nowhere.x", "body..a"}, Success: 302,
	}.Contract()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"header:", "hash:", "encoding:", "signed:", "key:", "timestamp:", "id[0]", "id[1]", "id[2]", "success:", "type:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in:\n%v", want, err)
		}
	}
}

func TestDescribedPlaces(t *testing.T) {
	t.Parallel()
	c, err := source.Described{
		Token: &source.Token{Header: "Authorization", Prefix: "Bearer "},
		ID:    []string{"body.order.id", "body.order.state", "query.shop"}, Type: "header.X-Kind",
		Subject: []string{"body.order.id"}, Version: "body.order.version", Tenant: "query.shop", Delivery: "header.X-Try",
	}.Contract()
	if err != nil {
		t.Fatal(err)
	}
	r := post(`{"order":{"id":9007199254740993,"state":"paid","version":1.50}}`, "X-Kind", "order.paid", "Authorization", "bearer  s3cret")
	r.URL.RawQuery = "shop=a%20b"
	e := one(t, c, r)
	same(t, "identity", e.ID, []string{"9007199254740993", "paid", "a b"})
	if e.Version != "1.5" || e.Tenant != "a b" || e.Type != "order.paid" || e.Delivery != "" {
		t.Errorf("got %+v", e)
	}
	if _, err := c.Verify(t.Context(), &source.Config{Secrets: []source.Secret{source.NewSecret("k", "s3cret")}}, r); err != nil {
		t.Error(err)
	}
	r.URL.RawQuery = ""
	if items, err := c.Read(r); err != nil || items[0].Fault == nil || items[0].Fault.Reason != source.MissingField || items[0].Fault.Field != "query.shop" {
		t.Errorf("a part is missing: %+v, %v", items, err)
	}
}

// TestReadersKeepTheBytes feeds random bodies: whatever is read carries bytes of
// the body, and nothing panics.
func TestReadersKeepTheBytes(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{`{`, `}`, `[`, `]`, `,`, `:`, `"id"`, `"type"`, `"store_id"`, `"event"`, `"order/paid"`, `1`, `1e400`, `null`, `"a"`, `"topic"`, `"eventType"`, ` `, "\xff"}
	all := []*source.Contract{
		source.GitHub(), source.Stripe(), source.Shopify(), source.Nuvemshop(), source.StandardWebhooks(""),
		grid(t, source.EventGridOptions{Secret: &source.Token{Query: "c"}}),
	}
	for range 20_000 {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		r := post(b.String(), "X-GitHub-Event", "e", "X-GitHub-Delivery", "d", "webhook-id", "w",
			"X-Shopify-Shop-Domain", "s", "X-Shopify-Topic", "t/u", "X-Shopify-Event-Id", "e")
		for _, c := range all {
			items, err := c.Read(r)
			if err != nil {
				_ = reason(t, err)
				continue
			}
			for _, item := range items {
				if (item.Event == nil) == (item.Fault == nil) {
					t.Fatalf("%s: %q gave %+v", c.Name, b.String(), item)
				}
				if item.Event != nil && !bytes.Contains(r.Body, item.Event.Data) {
					t.Fatalf("%s: %q gave the data %q", c.Name, b.String(), item.Event.Data)
				}
			}
		}
	}
}
