package config

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/server/internal/answer"
	"github.com/unavez/unavez/server/internal/outbound"
)

// Policy is the outbound policy in the form that connections check.
func (o Outbound) Policy() outbound.Policy { return outbound.Policy{Allow: o.Prefixes} }

func (c *checker) route(path string, r *Route) {
	if r.Upstream == "" {
		c.fault(path+".upstream", "missing (write upstream: http://127.0.0.1:9000)")
	} else {
		r.Target = c.target(path+".upstream", r.Upstream)
		if r.Target != nil && r.Target.RawQuery != "" {
			c.fault(path+".upstream", "holds a query; the request's own is sent")
		}
	}
	c.timing(path, r)
	set(&r.Key, "required")
	c.word(path+".key", r.Key, "required", "optional")
	set(&r.RequestLimit, Size(unavez.DefaultRequestLimit))
	set(&r.ResponseLimit, Size(unavez.DefaultResponseLimit))
	within(c, path+".request_limit", r.RequestLimit, 1, 64<<20)
	within(c, path+".response_limit", r.ResponseLimit, 1<<10, 16<<20)
	c.methods(path, r)
	c.statuses(path, r)
	c.fingerprint(path+".fingerprint", &r.Fingerprint)
	c.unknown(path, r)
	c.claim(path+".claim", r)
	if r.CORS != nil {
		c.cors(path+".cors", r.CORS)
	}
}

// timing checks the durations of a route against each other.
func (c *checker) timing(path string, r *Route) {
	set(&r.Retention, unavez.DefaultRetention)
	if !c.given(path + ".tombstone") {
		r.Tombstone = unavez.DefaultTombstone
	}
	set(&r.Limit, unavez.DefaultLimit)
	set(&r.Lease, unavez.DefaultLease)
	if r.Timeout == 0 {
		r.Timeout = min(DefaultTimeout, r.Lease)
	}
	if !c.given(path + ".wait") {
		r.Wait = httpkey.DefaultWait
	}
	within(c, path+".wait", r.Wait, 0, unavez.MaxWait)
	within(c, path+".retention", r.Retention, unavez.MinRetention, unavez.MaxRetention)
	within(c, path+".tombstone", r.Tombstone, 0, unavez.MaxRetention)
	within(c, path+".limit", r.Limit, time.Millisecond, unavez.MaxLimit)
	within(c, path+".lease", r.Lease, time.Second, unavez.MaxLease)
	within(c, path+".timeout", r.Timeout, 10*time.Millisecond, unavez.MaxLease)
	if longest := max(r.Limit, r.Timeout); r.Retention < 2*longest {
		c.fault(path+".retention", "%v is under twice the longest limit of the route, %v: an answer could expire before its own client has asked again", r.Retention, longest)
	}
	if r.Lease < r.Timeout && r.Unknown != "hold" {
		c.fault(path+".lease", "%v is shorter than the upstream's timeout %v: the operation could be taken over while its first call is still under way (raise lease, or lower timeout)", r.Lease, r.Timeout)
	}
}

func (c *checker) methods(path string, r *Route) {
	method, _, ofRoute := strings.Cut(r.Route, " ")
	known := []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}
	if len(r.Methods) == 0 {
		r.Methods = []string{http.MethodPost, http.MethodPatch}
		if ofRoute && (method == http.MethodPut || method == http.MethodDelete) {
			c.fault(path+".methods", "missing: %s is keyed only when said so (write methods: [%s])", method, method)
		}
		return
	}
	for i, m := range r.Methods {
		at := fmt.Sprintf("%s.methods[%d]", path, i)
		if !slices.Contains(known, m) {
			c.fault(at, "%q cannot be keyed (want %s)", m, alternatives(known))
		} else if ofRoute && method != m {
			c.fault(at, "%s, but the route is for %s only", m, method)
		}
	}
}

func (c *checker) statuses(path string, r *Route) {
	for i, status := range r.NotDone {
		at := fmt.Sprintf("%s.not_done[%d]", path, i)
		if status < 400 || status > 599 {
			c.fault(at, "%d, want a status from 400 to 599", status)
		}
		if slices.Contains(r.Final, status) {
			c.fault(at, "%d is in final too", status)
		}
	}
	for i, status := range r.Final {
		if status < 500 || status > 599 {
			c.fault(fmt.Sprintf("%s.final[%d]", path, i), "%d, want a status from 500 to 599 (others are final anyway)", status)
		}
	}
	if name := r.DerivedKeyHeader; name != "" && !IsHeader(name) {
		c.fault(path+".derived_key_header", "%q is not the name of a header", name)
	}
}

// IsHeader reports whether a text is the name of a header (RFC 9110 5.6.2).
func IsHeader(name string) bool {
	return name != "" && strings.Trim(name, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// maxPaths bounds the paths of a fingerprint; each costs time at every member.
const maxPaths = 64

func (c *checker) fingerprint(path string, f *Fingerprint) {
	paths := func(name string, list []string) {
		for i, text := range list {
			// Unlike a probe's, these paths may name every element of a list.
			if _, err := answer.ParsePath(strings.ReplaceAll(text, "[*]", "[0]")); err != nil {
				c.fault(fmt.Sprintf("%s.%s[%d]", path, name, i), "%q is not a path into JSON (write $.meta.sentAt or $.items[*].note)", text)
			}
		}
		if len(list) > maxPaths {
			c.fault(path+"."+name, "%d paths, at most %d", len(list), maxPaths)
		}
		if len(list) > 0 && !f.JSON {
			c.fault(path+"."+name, "needs json: true beside it")
		}
	}
	paths("include", f.Include)
	paths("exclude", f.Exclude)
}

func (c *checker) unknown(path string, r *Route) {
	at := path + ".unknown"
	if method, _, ok := strings.Cut(r.Route, " "); ok && r.Unknown == "" && slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, method) {
		return // never keyed
	}
	if r.Unknown == "" {
		c.fault(at, "missing: say what happens when the application's answer is lost. hold: a person decides. retry: sent again with the same key, for applications that deduplicate by it. probe: the application is asked first")
		return
	}
	if !c.word(at, r.Unknown, "hold", "retry", "probe") {
		return
	}
	if r.Unknown == "probe" && r.Probe == nil {
		c.fault(path+".probe", "missing: unknown: probe needs the question (write probe: {url: …, done: [{status: 200}], not_done: [{status: 404}]})")
	}
	if r.Unknown != "probe" && r.Probe != nil {
		c.fault(path+".probe", "given, but unknown is %s (write unknown: probe, or remove it)", r.Unknown)
	}
	if r.Probe != nil {
		c.probe(path+".probe", r.Probe, r.Timeout)
	}
}

// claim refuses the lease in the claim's place where a second run is not
// declared to be harmless.
func (c *checker) claim(at string, r *Route) {
	set(&r.Claim, "store")
	switch {
	case !c.word(at, r.Claim, "store", "lease") || r.Claim == "store":
	case r.Unknown != "retry":
		c.fault(at, "lease needs unknown: retry: a worker that dies leaves no trace of its attempt, and a Redis that forgets lets two run at once (write claim: store)")
	case c.config.Lease.Empty():
		c.fault(at, "lease, but no lease is configured (write lease: redis://… at the top, or claim: store)")
	}
}

// probe checks a question; timeout is that of the call that it asks about.
func (c *checker) probe(path string, p *Probe, timeout time.Duration) {
	set(&p.Method, http.MethodGet)
	set(&p.Timeout, DefaultProbeTimeout)
	if !c.given(path + ".settle") {
		p.Settle = timeout
	}
	c.word(path+".method", p.Method, http.MethodGet, http.MethodHead, http.MethodPost)
	within(c, path+".timeout", p.Timeout, 10*time.Millisecond, time.Minute)
	within(c, path+".settle", p.Settle, 0, unavez.MaxLease)
	if p.URL == "" {
		c.fault(path+".url", "missing (write url: http://127.0.0.1:9000/orders?key={derived_key})")
	} else {
		filled, err := answer.Fill(p.URL, answer.Places{Key: "k", DerivedKey: "d", Tenant: "t", Principal: "p"}, url.QueryEscape)
		if err != nil {
			c.fault(path+".url", "%v", err)
		} else {
			c.target(path+".url", filled)
			if filled == p.URL {
				c.fault(path+".url", "names no operation: every question would be the same (use {derived_key} or {key})")
			}
		}
	}
	for name, value := range p.Headers {
		if !IsHeader(name) {
			c.fault(path+".headers", "%q is not the name of a header", name)
		}
		if _, err := answer.Fill(value.Reveal(), answer.Places{}, nil); err != nil {
			c.fault(path+".headers."+name, "names an unknown place (known: {key}, {derived_key}, {tenant}, {principal})")
		}
	}
	if len(p.Done) == 0 {
		c.fault(path+".done", "missing: which answers mean that it happened (write done: [{status: 200}])")
	}
	for i, a := range p.Done {
		c.answer(fmt.Sprintf("%s.done[%d]", path, i), a)
	}
	for i, a := range p.NotDone {
		c.answer(fmt.Sprintf("%s.not_done[%d]", path, i), a)
	}
	if p.Result.Status != 0 {
		within(c, path+".result.status", p.Result.Status, 200, 499)
	}
	for i, name := range p.Result.Headers {
		at := fmt.Sprintf("%s.result.headers[%d]", path, i)
		if !IsHeader(name) {
			c.fault(at, "%q is not the name of a header", name)
		} else if answer.NeverFrozen(name) {
			c.fault(at, "%s is never part of a stored answer", name)
		}
	}
	if p.Result.JSON != "" {
		if _, err := answer.ParsePath(p.Result.JSON); err != nil {
			c.fault(path+".result.json", "%v", err)
		}
	}
	if p.Method == http.MethodHead && (p.Result.JSON != "" || slices.ContainsFunc(append(slices.Clone(p.Done), p.NotDone...), func(a Answer) bool { return a.JSON != "" })) {
		c.fault(path+".method", "HEAD has no body to look into")
	}
}

func (c *checker) answer(path string, a Answer) {
	if len(a.Status) == 0 && a.JSON == "" {
		c.fault(path, "matches every answer (give status, or json and is)")
	}
	for i, status := range a.Status {
		if status < 100 || status > 599 {
			c.fault(fmt.Sprintf("%s.status[%d]", path, i), "%d is not a status", status)
		}
	}
	if a.JSON != "" {
		if _, err := answer.ParsePath(a.JSON); err != nil {
			c.fault(path+".json", "%v", err)
		}
	}
	if (a.JSON == "") != (len(a.Is) == 0) {
		c.fault(path, "json and is belong together: {json: $.state, is: [paid]}")
	}
}

func (c *checker) cors(path string, cors *CORS) {
	set(&cors.MaxAge, 10*time.Minute)
	within(c, path+".max_age", cors.MaxAge, 0, 24*time.Hour)
	if len(cors.Origins) == 0 {
		c.fault(path+".origins", "missing (write origins: [https://shop.example])")
	}
	for i, origin := range cors.Origins {
		at := fmt.Sprintf("%s.origins[%d]", path, i)
		if origin == "*" {
			if cors.Credentials {
				c.fault(at, "* with credentials: browsers refuse it; list the origins")
			}
			continue
		}
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin {
			c.fault(at, "%q is not an origin (write https://shop.example, without a path)", origin)
		}
	}
}
