package source

import (
	"net/http"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Stripe signs "timestamp.body" with HMAC-SHA256; only v1 digests count, of
// which it sends two while a secret is rolled. It repeats for three days, and
// its event list reaches back thirty. An event of a connected account names the
// account, and two accounts may not share an identity. pending_webhooks counts
// the endpoints that have not taken the event yet and differs between deliveries
// of one event and in the event list, so it is no part of what is compared.
// (docs.stripe.com/webhooks, docs.stripe.com/api/events.)
func Stripe() *Contract {
	s := must(Signing{
		Header: "Stripe-Signature", Param: "v1", Timestamp: "t", Signed: "{timestamp}.{body}",
	}.ready())
	return &Contract{
		Name: "stripe", Class: Logical,
		Success: http.StatusOK, Refused: http.StatusBadRequest, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 20 * time.Second, Window: 30 * 24 * time.Hour, Listed: true,
		Verify: s.verify, Read: readStripe, Stable: stableWithout("$.pending_webhooks"),
	}
}

func readStripe(r *Request) ([]Item, error) {
	o, fault := object(r.Text())
	if fault != nil {
		return nil, fault
	}
	return []Item{stripeEvent(r.Text(), o)}, nil
}

// stripeEvent reads one event, as it arrives and as the event list gives it.
func stripeEvent(raw []byte, in exact.Object) Item {
	item := Item{Raw: raw}
	id, fault := need(in, "id")
	kind, missing := need(in, "type")
	if fault == nil {
		fault = missing
	}
	if item.Fault = fault; fault != nil {
		return item
	}
	e := &Event{ID: []string{id}, Delivery: id, Type: kind, Data: raw, ContentType: "application/json"}
	if account := in.Text("account"); account != "" {
		e.ID = append(e.ID, account)
		e.Tenant = account
	}
	if created, err := in.Part("created"); err == nil {
		e.Time, _ = instant(created, time.Second)
	}
	if subject, err := exact.PartAt(raw, "data", "object", "id"); err == nil {
		e.Subject = []string{subject}
	}
	item.Event = e
	return item
}

// object reads a body that must be one JSON object.
func object(text []byte) (exact.Object, *Fault) {
	o, err := exact.ReadObject(text)
	if err != nil {
		return nil, &Fault{Reason: MalformedBody, Cause: err}
	}
	return o, nil
}

// need is a member that an event cannot do without.
func need(o exact.Object, name string) (string, *Fault) {
	part, err := o.Part(name)
	if err != nil {
		return "", &Fault{Reason: MissingField, Field: name, Cause: err}
	}
	return part, nil
}
