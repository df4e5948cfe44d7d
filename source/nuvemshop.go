package source

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Nuvemshop (Tiendanube) signs the raw body with HMAC-SHA256 in hex under the
// app's client secret, one secret for every store: the store comes from the
// signed body, never from the URL. A message names a store, an event and an id
// and nothing else: the same bytes are sent for two changes of one product, so
// it is a hint, and what changed is read from the API and compared by its
// updated_at. Its documentation gives 48 hours in one place and three days in
// another; three are counted. (tiendanube.github.io/api-documentation, "Webhook";
// dev.nuvemshop.com.br, "Webhooks".)
func Nuvemshop() *Contract {
	s := must(Signing{Header: "X-Linkedstore-Hmac-Sha256"}.ready())
	return &Contract{
		Name: "nuvemshop", Class: Hint,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 3 * time.Second, Window: 3 * 24 * time.Hour, Listed: true,
		Verify: s.verify, Read: readNuvemshop, Fetch: fetchNuvemshop,
	}
}

func readNuvemshop(r *Request) ([]Item, error) {
	o, fault := object(r.Text())
	if fault != nil {
		return nil, fault
	}
	item := Item{Raw: r.Text()}
	store, fault := need(o, "store_id")
	if fault == nil && !isNumber(store) {
		fault = refusef(MissingField, "store_id", "not a number")
	}
	kind, missing := need(o, "event")
	if fault == nil {
		fault = missing
	}
	if item.Fault = fault; fault != nil {
		return []Item{item}, nil
	}
	e := &Event{Type: kind, Tenant: store, Data: r.Text(), ContentType: "application/json"}
	family, _, found := cutLast(kind, "/")
	if !found {
		item.Fault = refusef(MissingField, "event", "%q has no family", cut(kind))
		return []Item{item}, nil
	}
	switch kind {
	case "store/redact":
		e.Erasure, e.Subject = EraseTenant, []string{store, "store"}
	case "customers/redact", "customers/data_request":
		e.Erasure, e.Subject = EraseCustomer, []string{store, "customers"}
		if kind == "customers/data_request" {
			e.Erasure = ExportData
		}
		if person, err := exact.PartAt(r.Text(), "customer", "id"); err == nil {
			e.Subject = append(e.Subject, person)
		}
	default:
		id, err := o.Part("id")
		if err != nil {
			// Events of the app itself (app/uninstalled) have no id of a resource.
			id = store
		}
		e.Subject = []string{store, family, id}
		e.Hint = nuvemshopPath(family) != ""
	}
	item.Event = e
	return []Item{item}, nil
}

// nuvemshopPath is where the API keeps the resources of a family, "" where it
// cannot be fetched.
func nuvemshopPath(family string) string {
	switch family {
	case "order", "product", "customer":
		return family + "s"
	case "category":
		return "categories"
	}
	return ""
}

func fetchNuvemshop(e *Event) (Fetch, error) {
	if !e.Hint || len(e.Subject) != 3 {
		return Fetch{}, refusef(MissingField, "event", "%q is no hint", cut(e.Type))
	}
	store, family, id := e.Subject[0], e.Subject[1], e.Subject[2]
	return Fetch{
		Path:    "/v1/" + url.PathEscape(store) + "/" + nuvemshopPath(family) + "/" + url.PathEscape(id),
		Version: []string{"updated_at"},
		Gone:    []int{http.StatusNotFound, http.StatusGone},
	}, nil
}

// cutLast cuts at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

func isNumber(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// cut shortens what a sender wrote, for a message.
func cut(text string) string { return text[:min(len(text), 64)] }
