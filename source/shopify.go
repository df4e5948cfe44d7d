package source

import (
	"net/http"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Shopify signs the raw body with HMAC-SHA256 in base64 under the app's client
// secret, and repeats eight times within four hours; events may come a day late.
// X-Shopify-Event-Id is the same for all webhooks that one action causes, so the
// identity is (shop, topic, event id); X-Shopify-Webhook-Id names the delivery.
// The headers are not signed: a sender who repeats a genuine body under another
// event id makes another event, which only a key part from the payload stops.
// (shopify.dev, webhooks: "HTTPS delivery", "Ignore duplicates", "Delivery
// structure".)
func Shopify() *Contract {
	s := must(Signing{Header: "X-Shopify-Hmac-Sha256", Encoding: "base64"}.ready())
	return &Contract{
		Name: "shopify", Class: Composite,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 5 * time.Second, Window: 24 * time.Hour,
		Verify: s.verify, Read: readShopify,
	}
}

func readShopify(r *Request) ([]Item, error) {
	item := Item{Raw: r.Text()}
	var values [3]string
	for i, name := range []string{"X-Shopify-Shop-Domain", "X-Shopify-Topic", "X-Shopify-Event-Id"} {
		if values[i], item.Fault = header(r, name); item.Fault != nil {
			return []Item{item}, nil
		}
	}
	shop, topic, event := values[0], values[1], values[2]
	o, fault := object(r.Text())
	if item.Fault = fault; fault != nil {
		return []Item{item}, nil
	}
	e := &Event{
		ID: []string{shop, topic, event}, Delivery: optional(r.Header, "X-Shopify-Webhook-Id"),
		Type: topic, Tenant: shop, Data: r.Text(), ContentType: "application/json",
		Version: o.Text("updated_at"),
	}
	if id, err := o.Part("id"); err == nil {
		family, _, _ := cutLast(topic, "/")
		e.Subject = []string{shop, family, id}
	}
	if at, err := time.Parse(time.RFC3339Nano, optional(r.Header, "X-Shopify-Triggered-At")); err == nil {
		e.Time = at
	}
	e.Erasure = map[string]Erasure{
		"customers/redact": EraseCustomer, "shop/redact": EraseTenant, "customers/data_request": ExportData,
	}[topic]
	if e.Erasure != "" {
		// The topic is not signed: what the body of another topic lacks tells
		// that it is not such a body under another name.
		if o.Text("shop_domain") != shop {
			item.Fault = refusef(MissingField, "shop_domain", "not that of the header")
			return []Item{item}, nil
		}
		e.Subject = []string{shop, "shop"}
		_, named := o["customer"]
		if named && e.Erasure == EraseTenant {
			item.Fault = refusef(MissingField, "customer", "a body about a customer under the topic of a whole shop")
			return []Item{item}, nil
		}
		if person, err := exact.PartAt(r.Text(), "customer", "id"); err == nil {
			e.Subject = []string{shop, "customers", person}
		}
	}
	item.Event = e
	return []Item{item}, nil
}
