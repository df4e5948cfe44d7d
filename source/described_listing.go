package source

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// DescribedListing is a listing that a configuration writes down. What it lists
// are the events themselves, so that the places of the parts of their identity
// lead to the same values as those of the deliveries.
type DescribedListing struct {
	// Path of the list below the API's base, with {since} where the instant
	// stands, as "/events?from={since}&limit=100".
	Path string

	// Since is how the instant is written: "rfc3339" (default, in UTC), "unix" or
	// "unix_ms".
	Since string

	// Items is the path of member names to the array, as "data.events"; empty
	// where the answer is the array.
	Items string

	// ID, Type, Subject, Version and Tenant are as in Described, of an item:
	// "body.id", or a fixed text in quotes.
	ID      []string
	Type    string
	Subject []string
	Version string
	Tenant  string

	// Time is the place of the instant by which the list is asked for, a text of
	// RFC 3339 or a number of Unix seconds. Required.
	Time string

	// Next says how the list goes on: "link" for a Link header, a place in the
	// answer ("body.next") whose value is an address, or with Parameter the value
	// of that parameter; "number" counts Parameter up from 1 until a page is
	// empty. Empty: the list is one page.
	Next, Parameter string

	// Stable says that an address or a value of Next goes on behind the same thing
	// also when others have happened meanwhile.
	Stable bool

	// Ascending says that the list has the oldest first.
	Ascending bool

	// Empty are statuses that stand for an empty list, beside 200 with one.
	Empty []int

	// Pause is the least time between two calls.
	Pause time.Duration
}

// listing is a DescribedListing made ready.
type listing struct {
	DescribedListing
	facts described
	at    *place
	next  *place
	items []string
}

// Listing checks the description. It reports every fault at once, each with the
// name of its field.
func (d DescribedListing) Listing() (*Listing, error) {
	l := &listing{DescribedListing: d}
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	body := func(field, text string) *place {
		if text == "" {
			return nil
		}
		p, err := parsePlace(text)
		switch {
		case err != nil:
			fault(fmt.Errorf("%s: %w", field, err))
		case p.fixed == "" && p.from != "body":
			fault(fmt.Errorf("%s: %q; what is listed has a body only", field, text))
		}
		return &p
	}
	if !strings.HasPrefix(d.Path, "/") || !strings.Contains(d.Path, "{since}") {
		fault(fmt.Errorf(`path: %q; want one below the base with {since}, as "/events?from={since}"`, d.Path))
	}
	switch d.Since {
	case "", "rfc3339", "unix", "unix_ms":
	default:
		fault(fmt.Errorf("since: %q is none of rfc3339, unix, unix_ms", d.Since))
	}
	if d.Items != "" {
		l.items = strings.Split(d.Items, ".")
	}
	for i, text := range d.ID {
		if p := body(fmt.Sprintf("id[%d]", i), text); p != nil {
			l.facts.id = append(l.facts.id, *p)
		}
	}
	for i, text := range d.Subject {
		if p := body(fmt.Sprintf("subject[%d]", i), text); p != nil {
			l.facts.subject = append(l.facts.subject, *p)
		}
	}
	l.facts.kind, l.facts.version, l.facts.owner = body("type", d.Type), body("version", d.Version), body("tenant", d.Tenant)
	l.at = body("time", d.Time)
	if len(l.facts.id) == 0 {
		fault(errors.New("id: empty; without an identity everything listed would be new each time"))
	}
	if l.facts.kind == nil || l.at == nil {
		fault(errors.New("type, time: both are required"))
	}
	switch {
	case d.Next == "number" && d.Parameter == "":
		fault(errors.New("parameter: empty; name the one that counts the pages"))
	case d.Next == "", d.Next == "number":
	case d.Next == "link":
		if d.Parameter != "" {
			fault(errors.New("parameter: not together with next: link"))
		}
	default:
		l.next = body("next", d.Next)
	}
	if d.Stable && (d.Next == "" || d.Next == "number") {
		fault(errors.New("stable: pages that are counted are not"))
	}
	if d.Pause < 0 {
		fault(errors.New("pause: negative"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Listing{First: l.first, Read: l.read, Pause: d.Pause, Stable: d.Stable, Ascending: d.Ascending}, nil
}

func (l *listing) first(since time.Time) Call {
	text := since.UTC().Format(time.RFC3339)
	switch l.Since {
	case "unix":
		text = strconv.FormatInt(since.Unix(), 10)
	case "unix_ms":
		text = strconv.FormatInt(since.UnixMilli(), 10)
	}
	c := Call{URL: strings.ReplaceAll(l.Path, "{since}", url.QueryEscape(text)), Since: since}
	if l.Next == "number" {
		c.Number = 1
		if address, err := withQuery(c.URL, l.Parameter, "1"); err == nil {
			c.URL = address
		}
	}
	return c
}

func (l *listing) read(call Call, a Answer) (Page, error) {
	for _, status := range l.Empty {
		if a.Status == status {
			return Page{}, nil
		}
	}
	elements, err := listed(a, l.items...)
	if err != nil {
		return Page{}, err
	}
	var p Page
	for _, raw := range elements {
		r := &Request{Header: http.Header{"Content-Type": {"application/json"}}, Body: raw}
		items, err := l.facts.read(r)
		if err != nil {
			return Page{}, err
		}
		if at, fault := l.at.take(r, raw); fault != nil {
			items[0] = Item{Raw: raw, Fault: fault}
		} else if happened, ok := moment(at); !ok {
			items[0] = Item{Raw: raw, Fault: refuse(MissingField, l.Time)}
		} else {
			p.Latest = latest(p.Latest, happened)
			if items[0].Event != nil {
				items[0].Event.Time = happened
			}
		}
		p.Items = append(p.Items, items...)
	}
	if len(elements) > 0 {
		p.Next, err = l.follow(call, a)
	}
	return p, err
}

// follow is the call for the next page, nil at the end.
func (l *listing) follow(call Call, a Answer) (*Call, error) {
	next := Call{Since: call.Since}
	var err error
	switch {
	case l.Next == "":
		return nil, nil
	case l.Next == "link":
		next.URL = nextLink(a.Header)
	case l.Next == "number":
		next.Number = max(call.Number, 1) + 1
		next.URL, err = withQuery(call.URL, l.Parameter, strconv.Itoa(next.Number))
	default:
		value, fault := l.next.take(&Request{}, a.Body)
		switch {
		case fault != nil || value == "":
			return nil, nil
		case l.Parameter == "":
			next.URL = value
		default:
			next.URL, err = withQuery(call.URL, l.Parameter, value)
		}
	}
	if err != nil {
		return nil, &Fault{Reason: MissingField, Field: l.Next, Cause: err}
	}
	if next.URL == "" || next.URL == call.URL {
		return nil, nil
	}
	return &next, nil
}

// moment reads an instant as a list gives it.
func moment(text string) (time.Time, bool) {
	if at, ok := Instant(text); ok {
		return at, true
	}
	return instant(text, time.Second)
}
