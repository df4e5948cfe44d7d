package server

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// shops are two senders that name stores, and carry a person's demand out.
const shops = `
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {poll: 20ms}
sources:
  - {name: nuvem, contract: nuvemshop, path: /in/nuvem, secrets: [` + shopSecret + `], types: ["*"], erase: true, fetch: {url: APP/api},
     subject: ["subject[0]", "'customers'", "has(data.customer) ? [data.customer.id] : []"]}
  - {name: shopify, contract: shopify, path: /in/shopify, secrets: [` + shopSecret + `], types: [orders/*, customers/*, shop/*], erase: true,
     subject: ["subject[0]", "'customers'", "has(data.customer) ? [data.customer.id] : []"]}
effects:
  - {name: event.keep.v1, key: [source, type, id], send: {url: "APP/imports"}, unknown: hold, retry: {first: 1h, longest: 1h}}
`

// kept tells, by sender and id, what the queue holds of content.
func (b *bed) kept(t *testing.T, keys map[string]string) (names []string) {
	t.Helper()
	for name, key := range keys {
		got := b.sendTo(b.admin, http.MethodGet, "/api/entries/"+key+"?payload=true", "")
		if got.status != 200 {
			t.Fatalf("%s: %+v", name, got)
		}
		if !strings.Contains(got.body, `"erased":true`) {
			names = append(names, name)
		} else if strings.Contains(got.body, "canary") {
			t.Errorf("%s is erased and there: %s", name, got.body)
		}
	}
	return names
}

func TestADemandOfTheSenderErasesAPersonOrAWholeStoreAndNothingElse(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shops)
		var mu sync.Mutex
		keys, demands := map[string]string{}, []string{}
		b.app.set("/imports", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // what is cut off is not what is looked for
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(r.Header.Get("Unavez-Type"), "redact") {
				demands = append(demands, r.Header.Get("Unavez-Type")+" "+string(body))
			}
			w.WriteHeader(http.StatusNoContent)
		})
		for _, path := range []string{"/api/v1/7/orders/1", "/api/v1/7/orders/2", "/api/v1/8/orders/3"} {
			b.app.set(path, func(w http.ResponseWriter, _ *http.Request) {
				id := path[len(path)-1:]
				_, _ = fmt.Fprintf(w, `{"id":%s,"updated_at":"2026-01-02T00:00:00Z","customer":{"id":4%s,"email":"canary@example.com"}}`, id, id)
			})
		}
		nuvem := func(body string) {
			t.Helper()
			if got := b.send(http.MethodPost, "/in/nuvem", body, "X-Linkedstore-Hmac-Sha256", sign(shopSecret, body)); got.status != 200 {
				t.Fatalf("%s: %+v", body, got)
			}
		}
		shopify := func(shop, topic, id, body string) {
			t.Helper()
			sum, err := hex.DecodeString(sign(shopSecret, body))
			if err != nil {
				t.Fatal(err)
			}
			got := b.send(http.MethodPost, "/in/shopify", body, "X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(sum),
				"X-Shopify-Shop-Domain", shop, "X-Shopify-Topic", topic, "X-Shopify-Event-Id", id)
			if got.status != 200 {
				t.Fatalf("%s: %+v", body, got)
			}
		}
		order := func(shop, id string) {
			t.Helper()
			shopify(shop, "orders/create", id, `{"id":`+id+`,"customer":{"id":9`+id+`,"email":"canary@example.com"}}`)
		}
		for _, hint := range []string{`{"store_id":7,"event":"order/paid","id":1}`, `{"store_id":7,"event":"order/paid","id":2}`, `{"store_id":8,"event":"order/paid","id":3}`} {
			nuvem(hint)
		}
		order("a.myshopify.com", "1")
		order("a.myshopify.com", "2")
		order("b.myshopify.com", "3")
		b.eventually("all are done", func() bool { return b.state("event.keep.v1", "completed") == "6" })
		for _, o := range pageOf(b, "completed") {
			if got := b.sendTo(b.admin, http.MethodGet, "/api/entries/"+o, ""); got.status == 200 && !strings.Contains(got.body, `"hint":true`) {
				keys[o] = o
			}
		}
		if len(keys) != 6 {
			t.Fatalf("%d entries of 6", len(keys))
		}
		left := func(want int, after string) {
			t.Helper()
			if got := b.kept(t, keys); len(got) != want {
				t.Errorf("after %s %d are left, want %d", after, len(got), want)
			}
		}
		left(6, "nothing")
		customer := `{"store_id":7,"event":"customers/redact","customer":{"id":41,"email":"canary@example.com"}}`
		nuvem(customer)
		nuvem(customer) // its repetition erases no demand
		left(5, "the demand of one customer")
		shopify("a.myshopify.com", "customers/redact", "r1", `{"shop_domain":"a.myshopify.com","customer":{"id":91}}`)
		left(4, "that of one of Shopify's")
		shopify("a.myshopify.com", "shop/redact", "r2", `{"shop_domain":"a.myshopify.com","customer":{"id":91}}`) // not a body of that topic
		left(4, "a customer's demand under another topic")
		for range 2 {
			nuvem(`{"store_id":7,"event":"store/redact"}`)
			left(3, "the demand of store 7")
		}
		shopify("a.myshopify.com", "shop/redact", "r3", `{"shop_domain":"a.myshopify.com"}`)
		left(2, "the demand of a.myshopify.com")
		b.eventually("the demands are carried on, with their content", func() bool {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, d := range demands {
				if !strings.Contains(d, `"store_id":7`) && !strings.Contains(d, `"shop_domain":"a.`) {
					t.Fatalf("a demand without content: %s", d)
				}
				n++
			}
			return n >= 4
		})
		before := b.imports()
		order("a.myshopify.com", "1") // the identity is kept: no second effect
		if got := b.metric(`unavez_event_duplicates_total{source="shopify"}`); got != "1" || b.imports() != before {
			t.Errorf("%s duplicates, %d imports more", got, b.imports()-before)
		}
		// By hand, what is left of one source, and of the tenant.
		erase := func(e EraseOptions) string {
			t.Helper()
			e.By, e.Reason = "ana", "asked by letter"
			out, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.Erase(t.Context(), out, false, e) })
			if err != nil {
				return err.Error()
			}
			return out
		}
		if got := erase(EraseOptions{}); !strings.Contains(got, "subject: missing") {
			t.Error(got)
		}
		if got := erase(EraseOptions{Subject: []string{"1"}, Source: "nuvem"}); !strings.Contains(got, "beside source or account") {
			t.Error(got)
		}
		if got := erase(EraseOptions{Source: "nuvem", Account: "9"}); !strings.HasPrefix(got, "0 payloads erased") {
			t.Error(got)
		}
		if got := erase(EraseOptions{Source: "nuvem", Account: "8"}); !strings.HasPrefix(got, "2 payloads erased") { // the hint, and what it brought
			t.Error(got)
		}
		left(1, "store 8 by hand")
		if got := erase(EraseOptions{Account: "b.myshopify.com"}); !strings.HasPrefix(got, "1 payload erased") {
			t.Error(got)
		}
		left(0, "everything")
		b.halt()
		for _, line := range []string{"canary@", shopSecret} {
			if contains(b.log, line) {
				t.Errorf("the log has %q", line)
			}
		}
	})
}

// pageOf are the keys of the operations in a state.
func pageOf(b *bed, state string) (keys []string) {
	type list struct {
		Operations []struct{ Key, Effect string }
	}
	for _, o := range page[list](b, "/api/operations?limit=1000&state="+state).Operations {
		keys = append(keys, o.Key)
	}
	return keys
}
