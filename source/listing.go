package source

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Listing is how a sender is asked for what happened, so that what was never
// delivered is found. Like a contract it is data and pure functions; package
// inbox makes the calls.
type Listing struct {
	// First is the call for what happened since an instant, inclusive.
	First func(since time.Time) Call
	// Read takes the answer to a call apart. The error is a *Fault.
	Read func(call Call, answer Answer) (Page, error)
	// Pause is the least time between two calls that the sender wants.
	Pause time.Duration
	// Reach is how far back the list goes, 0 if the sender does not say.
	Reach time.Duration
	// Stable says that the address of a next page goes on behind the same thing
	// also when others have happened meanwhile: it names a place, not a number of
	// pages.
	Stable bool
	// Ascending says that the list has the oldest first, so that each page that
	// was read is a step forward, and not the last one only.
	Ascending bool
}

// Call is a GET request of the sender's API. Its JSON form is stored in the
// cursor of a reading.
type Call struct {
	// URL is an address below the API's base, as "/v1/events?limit=100", or a
	// whole one that the sender gave.
	URL string `json:"url"`
	// Detail says that it asks for one thing of a list.
	Detail bool `json:"detail,omitempty"`
	// Since is the instant that the reading began with.
	Since time.Time `json:"since"`
	// Number counts the pages of lists that are asked for by number, from 1.
	Number int `json:"number,omitempty"`
}

// Answer is the sender's answer to a call.
type Answer struct {
	Status int         // of the answer
	Header http.Header // with canonical names
	Body   []byte      // whole
}

// Page is what an answer says.
type Page struct {
	Items   []Item    // as a delivery would have brought them
	Details []Call    // for what the list only names
	Next    *Call     // nil at the end of the list
	Latest  time.Time // the newest instant on the page, by the sender's clock; zero if none
}

// errStatus: the sender has no list for us.
var errStatus = errors.New("not the status of a list")

// listed is the array at a path of an answer, "" for the answer itself.
func listed(a Answer, path ...string) ([][]byte, error) {
	if a.Status != http.StatusOK {
		return nil, &Fault{Reason: WrongType, Field: "status " + strconv.Itoa(a.Status), Cause: errStatus}
	}
	if err := exact.Check(a.Body); err != nil {
		return nil, &Fault{Reason: MalformedBody, Cause: err}
	}
	value, err := exact.Lookup(a.Body, path...)
	if err != nil {
		return nil, &Fault{Reason: MissingField, Field: strings.Join(path, "."), Cause: err}
	}
	elements, err := exact.Elements(value)
	if err != nil {
		return nil, &Fault{Reason: MalformedBody, Field: strings.Join(path, "."), Cause: err}
	}
	return elements, nil
}

// nextLink is the address of the relation "next" of a Link header (RFC 8288),
// "" for none.
func nextLink(h http.Header) string {
	for _, line := range h.Values("Link") {
		for link := range strings.SplitSeq(line, ",") {
			address, params, _ := strings.Cut(link, ";")
			address = strings.TrimSpace(address)
			if !strings.HasPrefix(address, "<") || !strings.HasSuffix(address, ">") {
				continue
			}
			for param := range strings.SplitSeq(params, ";") {
				name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
				if strings.EqualFold(name, "rel") && strings.Trim(value, `"`) == "next" {
					return address[1 : len(address)-1]
				}
			}
		}
	}
	return ""
}

// latest is the later one of two instants.
func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// StripeListing says which events of Stripe are asked for.
type StripeListing struct {
	// Types are names of event types, or "*"-patterns as Stripe has them; at most
	// 20. None is all.
	Types []string
	// Undelivered asks only for events that an endpoint has not taken.
	Undelivered bool
}

// Listing reads GET /v1/events below https://api.stripe.com: newest first, 100 at
// a time, each page behind the last event of the one before. It reaches back 30
// days. Stripe writes an event there in the API version that the account had when
// it happened: where an endpoint has another one, the same event is written
// differently in the list. (docs.stripe.com/api/events/list,
// docs.stripe.com/webhooks/process-undelivered-events.)
func (l StripeListing) Listing() *Listing {
	return &Listing{
		Pause: 50 * time.Millisecond, Reach: 30 * 24 * time.Hour, Stable: true,
		First: func(since time.Time) Call {
			q := url.Values{"limit": {"100"}, "created[gte]": {strconv.FormatInt(since.Unix(), 10)}}
			for _, kind := range l.Types {
				q.Add("types[]", kind)
			}
			if l.Undelivered {
				q.Set("delivery_success", "false")
			}
			return Call{URL: "/v1/events?" + q.Encode(), Since: since}
		},
		Read: readStripeList,
	}
}

func readStripeList(call Call, a Answer) (Page, error) {
	elements, err := listed(a, "data")
	if err != nil {
		return Page{}, err
	}
	var p Page
	last := ""
	for _, raw := range elements {
		o, fault := object(raw)
		if fault != nil {
			p.Items = append(p.Items, Item{Raw: raw, Fault: fault})
			continue
		}
		item := stripeEvent(raw, o)
		if item.Event != nil {
			p.Latest, last = latest(p.Latest, item.Event.Time), item.Event.ID[0]
		}
		p.Items = append(p.Items, item)
	}
	if more, err := exact.Lookup(a.Body, "has_more"); err == nil && string(more) == "true" {
		next, err := withQuery(call.URL, "starting_after", last)
		if err != nil || last == "" {
			return Page{}, refusef(MissingField, "data", "there is more, but no event to go on from")
		}
		p.Next = &Call{URL: next, Since: call.Since}
	}
	return p, nil
}

// withQuery sets one parameter of an address.
func withQuery(address, name, value string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// GitHubDeliveries reads the deliveries of one webhook below
// https://api.github.com: the hook is "/repos/{owner}/{repo}/hooks/{id}",
// "/orgs/{org}/hooks/{id}" or "/app/hook". The list is newest first and reaches
// back three days; it names deliveries, and the content of those that were not
// answered with 2xx is asked for one by one. Those that were are durable already.
// (docs.github.com/rest, "Repository webhooks": list deliveries, get a delivery.)
func GitHubDeliveries(hook string) *Listing {
	return &Listing{
		Pause: time.Second, Reach: 3 * 24 * time.Hour, Stable: true,
		First: func(since time.Time) Call { return Call{URL: hook + "/deliveries?per_page=100", Since: since} },
		Read: func(call Call, a Answer) (Page, error) {
			if call.Detail {
				return readGitHubDelivery(a)
			}
			return readGitHubDeliveries(hook, call, a)
		},
	}
}

func readGitHubDeliveries(hook string, call Call, a Answer) (Page, error) {
	elements, err := listed(a)
	if err != nil {
		return Page{}, err
	}
	var p Page
	old := false
	for _, raw := range elements {
		o, fault := object(raw)
		if fault != nil {
			return Page{}, fault
		}
		id, err := o.Part("id")
		at, ok := Instant(o.Text("delivered_at"))
		if err != nil || !isNumber(id) || !ok {
			return Page{}, refuse(MissingField, "id, delivered_at")
		}
		p.Latest = latest(p.Latest, at)
		if old = at.Before(call.Since); old {
			break
		}
		if status, err := o.Part("status_code"); err == nil && len(status) == 3 && status[0] == '2' {
			continue
		}
		p.Details = append(p.Details, Call{URL: hook + "/deliveries/" + id, Detail: true, Since: call.Since})
	}
	if next := nextLink(a.Header); next != "" && !old && len(elements) > 0 {
		p.Next = &Call{URL: next, Since: call.Since}
	}
	return p, nil
}

// readGitHubDelivery makes the request that was delivered out of what is kept of
// it. The payload is written anew there; see Contract.Stable.
func readGitHubDelivery(a Answer) (Page, error) {
	if a.Status != http.StatusOK {
		return Page{}, &Fault{Reason: WrongType, Field: "status " + strconv.Itoa(a.Status), Cause: errStatus}
	}
	o, fault := object(a.Body)
	if fault != nil {
		return Page{}, fault
	}
	payload, err := exact.Lookup(a.Body, "request", "payload")
	if err != nil {
		return Page{}, &Fault{Reason: MissingField, Field: "request.payload", Cause: err}
	}
	h := http.Header{"Content-Type": {"application/json"}}
	h.Set("X-GitHub-Delivery", o.Text("guid"))
	h.Set("X-GitHub-Event", o.Text("event"))
	items, err := readGitHub(&Request{Header: h, Body: payload})
	return Page{Items: items}, err
}

// NuvemshopOrders reads the orders of one store that have changed, below
// https://api.nuvemshop.com.br: GET /v1/{store}/orders?updated_at_min=…, 200 at a
// time, by the Link header. Each order is the event order/updated of its version,
// as what a hint fetches is; and order/created, order/paid, order/cancelled and
// order/fulfilled where that happened within the time that is read. An effect
// that means once for each order names the order in its key.
// (tiendanube.github.io/api-documentation: "Pagination", "Rate limiting",
// "Order".)
func NuvemshopOrders(store string) *Listing {
	return &Listing{
		Pause: 500 * time.Millisecond,
		First: func(since time.Time) Call {
			q := url.Values{"updated_at_min": {since.UTC().Format(time.RFC3339)}, "per_page": {"200"}, "page": {"1"}}
			return Call{URL: "/v1/" + url.PathEscape(store) + "/orders?" + q.Encode(), Since: since}
		},
		Read: func(call Call, a Answer) (Page, error) { return readNuvemshopOrders(store, call, a) },
	}
}

func readNuvemshopOrders(store string, call Call, a Answer) (Page, error) {
	if a.Status == http.StatusNotFound {
		return Page{}, nil // an empty list: "Last page is 0"
	}
	elements, err := listed(a)
	if err != nil {
		return Page{}, err
	}
	contract := Nuvemshop()
	var p Page
	for _, raw := range elements {
		o, fault := object(raw)
		if fault != nil {
			p.Items = append(p.Items, Item{Raw: raw, Fault: fault})
			continue
		}
		id, err := o.Part("id")
		at, ok := Instant(o.Text("updated_at"))
		if err != nil || !ok {
			p.Items = append(p.Items, Item{Raw: raw, Fault: refuse(MissingField, "id, updated_at")})
			continue
		}
		p.Latest = latest(p.Latest, at)
		for _, kind := range []struct{ name, at string }{
			{"order/created", "created_at"},
			{"order/paid", "paid_at"},
			{"order/cancelled", "cancelled_at"},
			{"order/fulfilled", "shipped_at"},
			{"order/updated", "updated_at"},
		} {
			if happened, ok := Instant(o.Text(kind.at)); !ok || happened.Before(call.Since) {
				continue
			}
			hint := &Event{Type: kind.name, Tenant: store, Subject: []string{store, "order", id}, Hint: true}
			e, err := contract.fetched(hint, "application/json", raw)
			if err != nil {
				return Page{}, err
			}
			p.Items = append(p.Items, Item{Event: e, Raw: raw})
		}
	}
	if next := nextLink(a.Header); next != "" && len(elements) > 0 {
		p.Next = &Call{URL: next, Since: call.Since}
	}
	return p, nil
}
