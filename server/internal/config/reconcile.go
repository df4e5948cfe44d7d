package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/unavez/unavez/source"
)

// lists checks those that are read for what was missed.
func (c *checker) lists(path string, s *Source) {
	if len(s.Reconcile) == 0 || s.Made == nil {
		return
	}
	kind := map[string]string{"nuvemshop": "store", "github": "hook", "stripe": "types, undelivered", "hmac": "list", "token": "list"}[s.Contract]
	if kind == "" {
		c.fault(path+".reconcile", "given, but %s cannot be asked for what was missed", s.Contract)
		return
	}
	first := map[string]int{}
	for i := range s.Reconcile {
		r := &s.Reconcile[i]
		at := fmt.Sprintf("%s.reconcile[%d]", path, i)
		if r.Name != "" && !isName(r.Name) {
			c.fault(at+".name", "%q, want 1 to 64 letters, digits, - and _", r.Name)
		}
		if other, ok := first[r.Name]; ok {
			c.fault(at+".name", "%q is %s.reconcile[%d] already: give each list a name of its own", r.Name, path, other)
		}
		first[r.Name] = i
		for _, field := range []string{"store", "hook", "types", "undelivered", "list"} {
			if c.given(at+"."+field) && !strings.Contains(kind, field) {
				c.fault(at+"."+field, "not a field of contract %s (it has %s)", s.Contract, kind)
			}
		}
		c.base(at+".url", r.URL)
		c.headers(at+".headers", r.Headers)
		c.listing(at, s, r)
		set(&r.Interval, DefaultReconcile)
		set(&r.Overlap, DefaultOverlap)
		set(&r.Back, r.Overlap)
		set(&r.Timeout, DefaultListTimeout)
		within(c, at+".interval", r.Interval, minInterval, maxInterval)
		within(c, at+".overlap", r.Overlap, 0, maxInterval)
		within(c, at+".back", r.Back, r.Overlap, maxWindow)
		within(c, at+".timeout", r.Timeout, 100*time.Millisecond, 5*time.Minute)
	}
}

// listing makes the list of a sender.
func (c *checker) listing(at string, s *Source, r *Reconcile) {
	switch s.Contract {
	case "nuvemshop":
		if r.Store == "" || strings.Trim(r.Store, "0123456789") != "" {
			c.fault(at+".store", "%q: want the number of the store whose orders are listed", r.Store)
			return
		}
		r.Listing = source.NuvemshopOrders(r.Store)
	case "github":
		if !strings.HasPrefix(r.Hook, "/") || strings.HasSuffix(r.Hook, "/") || strings.ContainsAny(r.Hook, "?#") {
			c.fault(at+".hook", "%q: want the path of the hook (/repos/OWNER/REPO/hooks/ID, /orgs/ORG/hooks/ID or /app/hook)", r.Hook)
			return
		}
		r.Listing = source.GitHubDeliveries(r.Hook)
	case "stripe":
		if len(r.Types) > maxStripeTypes {
			c.fault(at+".types", "%d types, Stripe takes at most %d", len(r.Types), maxStripeTypes)
		}
		r.Listing = source.StripeListing{Types: r.Types, Undelivered: r.Undelivered}.Listing()
	default:
		l := r.List
		if l == nil {
			c.fault(at+".list", "missing: where is the list (write list: {path: \"/events?from={since}\", items: data, id: [body.id], type: body.type, time: body.created_at})")
			return
		}
		var err error
		r.Listing, err = source.DescribedListing{
			Path: l.Path, Since: l.Since, Items: l.Items, ID: l.ID, Type: l.Type, Subject: l.Subject, Version: l.Version, Tenant: l.Tenant,
			Time: l.Time, Next: l.Next, Parameter: l.Parameter, Stable: l.Stable, Ascending: l.Ascending, Empty: l.Empty, Pause: l.Pause,
		}.Listing()
		if err != nil {
			c.faultsOf(at+".list", err)
		}
	}
}

// maxStripeTypes is how many types a list of Stripe may be asked for.
const maxStripeTypes = 20
