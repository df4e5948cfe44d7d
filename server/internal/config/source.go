package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/server/internal/rule"
	"github.com/unavez/unavez/source"
)

// Source is one sender of webhooks.
type Source struct {
	// Name of the source; it is part of the identity of its events.
	Name string `yaml:"name"`
	// Contract of its kind of sender, or hmac or token for one that is
	// described here.
	Contract string `yaml:"contract"`
	// Path of the request listener that the sender delivers to.
	Path string `yaml:"path"`
	// Secrets that a delivery may be proved with; two of them while one is
	// rotated.
	Secrets []SourceSecret `yaml:"secrets"`
	// Tenant that its events belong to.
	Tenant string `yaml:"tenant"`
	// TenantFrom is an expression that names the tenant instead.
	TenantFrom string `yaml:"tenant_from"`
	// Types that are accepted; the last character may be *.
	Types []string `yaml:"types"`
	// Schemas are the texts of JSON Schemas by type.
	Schemas map[string]string `yaml:"schemas"`
	// Mask are paths whose values are not kept.
	Mask []string `yaml:"mask"`
	// Subject are expressions for the parts that name whose data an event holds.
	Subject []string `yaml:"subject"`
	// Erase carries out what the sender asks on behalf of a person.
	Erase bool `yaml:"erase"`
	// BodyLimit bounds a body.
	BodyLimit Size `yaml:"body_limit"`
	// PlainLimit bounds a body without its Content-Encoding.
	PlainLimit Size `yaml:"plain_limit"`
	// Tolerance of signed timestamps, on both sides.
	Tolerance time.Duration `yaml:"tolerance"`
	// Silence is how long it may send nothing before an alert; 0 means never.
	Silence time.Duration `yaml:"silence"`
	// URL is the address that the sender was told, for schemes that sign it.
	URL string `yaml:"url"`
	// Prefix of the three headers (standard-webhooks).
	Prefix string `yaml:"prefix"`
	// Token says where a fixed secret stands (token, cloudevents, event-grid).
	Token *TokenPlace `yaml:"token"`
	// Signing says how the sender signs (hmac).
	Signing *Signing `yaml:"signing"`
	// Event says where the facts of an event stand (hmac, token).
	Event *Facts `yaml:"event"`
	// Success is the status for a durable delivery (hmac, token).
	Success int `yaml:"success"`
	// Window is how long the sender repeats a delivery (hmac, token).
	Window time.Duration `yaml:"window"`
	// Timeout is how long the sender waits (hmac, token).
	Timeout time.Duration `yaml:"timeout"`
	// Entra is what access tokens must say (event-grid).
	Entra *Entra `yaml:"entra"`
	// Origins that may ask for the right to deliver (event-grid).
	Origins []string `yaml:"origins"`
	// Rate is the most deliveries a minute that is granted (event-grid).
	Rate int `yaml:"rate"`
	// Fetch is where the resource of a hint is read.
	Fetch *Fetch `yaml:"fetch"`
	// Reconcile are lists of the sender, for what was missed.
	Reconcile []Reconcile `yaml:"reconcile"`

	// Made is the contract, ready.
	Made *source.Contract
	// TenantRule is TenantFrom, compiled; nil without.
	TenantRule *rule.Text
	// SubjectRule is Subject, compiled.
	SubjectRule rule.Parts
}

// SourceSecret is a secret with a name; in the file also the bare text.
type SourceSecret struct {
	// Name that metrics and logs call it by; its place in the list if empty.
	Name string `yaml:"name"`
	// Value of it.
	Value Secret `yaml:"value"`
	// Until is when it is no longer accepted.
	Until time.Time `yaml:"until"`
}

// Ready are the secrets of a source as its contract wants them.
func Ready(list []SourceSecret) []source.Secret {
	all := make([]source.Secret, len(list))
	for i, s := range list {
		all[i] = source.NewSecret(s.Name, s.Value.Reveal()).Expiring(s.Until)
	}
	return all
}

// TokenPlace is where a fixed secret stands.
type TokenPlace struct {
	// Header that carries it.
	Header string `yaml:"header"`
	// Prefix in front of it in the header.
	Prefix string `yaml:"prefix"`
	// Query is the parameter that carries it instead.
	Query string `yaml:"query"`
}

// Signing is how a sender signs with a shared secret; see source.Signing.
type Signing struct {
	// Header carries the digest.
	Header string `yaml:"header"`
	// Prefix stands before the digest.
	Prefix string `yaml:"prefix"`
	// Param names the digest in a list.
	Param string `yaml:"param"`
	// Encoding of the digest: hex, base64 or base64url.
	Encoding string `yaml:"encoding"`
	// Hash is sha256, sha512 or sha1.
	Hash string `yaml:"hash"`
	// Key is what the secret is written in: text, hex or base64.
	Key string `yaml:"key"`
	// Signed is what the digest is over.
	Signed string `yaml:"signed"`
	// Timestamp is the header, or with Param the parameter, of the time.
	Timestamp string `yaml:"timestamp"`
	// Milliseconds is the unit of the timestamp, instead of seconds.
	Milliseconds bool `yaml:"milliseconds"`
	// ID is the header that Signed calls {id}.
	ID string `yaml:"id"`
}

// Facts are the places of what an event says: header.NAME, query.NAME,
// body.MEMBER.MEMBER, or a fixed text in quotes.
type Facts struct {
	// ID are the parts of the identity.
	ID []string `yaml:"id"`
	// Delivery identifies the arrival, for people.
	Delivery string `yaml:"delivery"`
	// Type of the event.
	Type string `yaml:"type"`
	// Subject are the parts that name the resource.
	Subject []string `yaml:"subject"`
	// Version orders the changes of one resource.
	Version string `yaml:"version"`
	// Tenant is whom the message names.
	Tenant string `yaml:"tenant"`
	// Volatile are paths of members that change between the repetitions of one
	// event.
	Volatile []string `yaml:"volatile"`
}

// Entra is what an access token of Microsoft Entra ID must say.
type Entra struct {
	// Audience is the application of the receiving side.
	Audience string `yaml:"audience"`
	// Issuers that are accepted.
	Issuers []string `yaml:"issuers"`
	// Principals are the client applications that are accepted.
	Principals []string `yaml:"principals"`
	// Claims that name the principal.
	Claims []string `yaml:"claims"`
	// Keys is the URL of the issuers' keys, where it is not Entra's own.
	Keys string `yaml:"keys"`
}

// Fetch is how the sender's API is asked for a resource.
type Fetch struct {
	// URL is the base of the API; the contract knows the path below.
	URL string `yaml:"url"`
	// Headers of the request.
	Headers map[string]Secret `yaml:"headers"`
	// Tenants have headers of their own, by the tenant's name.
	Tenants map[string]map[string]Secret `yaml:"tenants"`
	// Timeout of the answer.
	Timeout time.Duration `yaml:"timeout"`
}

// Reconcile is one list of the sender in which what was never delivered is
// looked for.
type Reconcile struct {
	// Name tells several lists of one source apart.
	Name string `yaml:"name"`
	// URL is the base of the API.
	URL string `yaml:"url"`
	// Headers of the request.
	Headers map[string]Secret `yaml:"headers"`
	// Interval between two readings.
	Interval time.Duration `yaml:"interval"`
	// Overlap is how far a reading reaches behind the one before.
	Overlap time.Duration `yaml:"overlap"`
	// Back is how far back the very first reading goes.
	Back time.Duration `yaml:"back"`
	// Timeout of an answer.
	Timeout time.Duration `yaml:"timeout"`
	// Store whose orders are listed (nuvemshop).
	Store string `yaml:"store"`
	// Hook whose deliveries are listed, as /repos/OWNER/REPO/hooks/ID (github).
	Hook string `yaml:"hook"`
	// Types that are asked for; none means all (stripe).
	Types []string `yaml:"types"`
	// Undelivered asks for what no endpoint has taken (stripe).
	Undelivered bool `yaml:"undelivered"`
	// List describes the list (hmac, token).
	List *List `yaml:"list"`

	// Listing is the list, ready.
	Listing *source.Listing
}

// List is a list that is described here; see source.DescribedListing.
type List struct {
	// Path below the base, with {since}.
	Path string `yaml:"path"`
	// Since is how the instant is written: rfc3339, unix or unix_ms.
	Since string `yaml:"since"`
	// Items is the path of member names to the array.
	Items string `yaml:"items"`
	// ID, Type, Subject, Version, Tenant and Time are places of an item.
	ID      []string `yaml:"id"`
	Type    string   `yaml:"type"`
	Subject []string `yaml:"subject"`
	Version string   `yaml:"version"`
	Tenant  string   `yaml:"tenant"`
	Time    string   `yaml:"time"`
	// Next says how the list goes on: link, number, or a place of the answer.
	Next string `yaml:"next"`
	// Parameter that Next counts, or whose value it is.
	Parameter string `yaml:"parameter"`
	// Stable says that Next goes on behind the same thing also later.
	Stable bool `yaml:"stable"`
	// Ascending says that the list has the oldest first.
	Ascending bool `yaml:"ascending"`
	// Empty are statuses that stand for an empty list.
	Empty []int `yaml:"empty"`
	// Pause is the least time between two calls.
	Pause time.Duration `yaml:"pause"`
}

// Bounds of a source.
const (
	minTolerance = time.Second
	maxTolerance = time.Hour
	minSilence   = 10 * time.Second
	maxSilence   = 90 * 24 * time.Hour
	minInterval  = time.Second
	maxInterval  = 24 * time.Hour
	maxMask      = 64
	maxParts     = 16
)

// source checks one sender.
func (c *checker) source(path string, s *Source) {
	switch {
	case s.Name == "":
		c.fault(path+".name", "missing (write name: shop; it is part of the identity of its events and never changes)")
	case !isName(s.Name):
		c.fault(path+".name", "%q, want 1 to 64 letters, digits, - and _", s.Name)
	}
	s.Made = c.contract(path, s)
	c.secrets(path, s)
	c.tenant(path, s)
	if len(s.Types) == 0 {
		c.fault(path+".types", "missing: which types are accepted (write types: [order/*], or [\"*\"] for all); another authentic type goes to quarantine")
	}
	for i, text := range s.Types {
		c.pattern(fmt.Sprintf("%s.types[%d]", path, i), text)
	}
	for kind, text := range s.Schemas {
		c.pattern(path+".schemas."+kind, kind)
		if err := inbox.CheckSchema([]byte(text)); err != nil {
			c.fault(path+".schemas."+kind, "no JSON Schema that stands on its own: %s (write one, or ${file:order.schema.json})", schemaFault(err))
		}
	}
	c.mask(path+".mask", s.Mask)
	s.SubjectRule = c.parts(path+".subject", s.Subject)
	set(&s.BodyLimit, inbox.DefaultBodyLimit)
	set(&s.PlainLimit, 4*s.BodyLimit)
	within(c, path+".body_limit", s.BodyLimit, minBody, maxBody)
	if c.given(path + ".plain_limit") {
		within(c, path+".plain_limit", s.PlainLimit, max(minBody, min(s.BodyLimit, maxBody)), 4*maxBody)
	}
	if s.Tolerance != 0 {
		within(c, path+".tolerance", s.Tolerance, minTolerance, maxTolerance)
	}
	if !c.given(path+".silence") && c.config.Alerts != nil {
		s.Silence = c.config.Alerts.Silence
	}
	if s.Silence != 0 {
		within(c, path+".silence", s.Silence, minSilence, maxSilence)
	}
	if s.Erase && len(s.Subject) == 0 {
		c.fault(path+".erase", "needs subject: the parts that name whose data an event holds (write subject: [\"subject[0]\", \"'customers'\", data.customer.id])")
	}
	c.fetch(path, s)
	c.lists(path, s)
}

// Bounds of a body as it arrives.
const (
	minBody Size = 1 << 10
	maxBody Size = 64 << 20
)

// tenant checks whom events belong to. It must not be whoever writes the body
// that decides it.
func (c *checker) tenant(path string, s *Source) {
	single := c.config.Auth.SingleTenant || c.config.Auth.Mode == "single_tenant"
	switch {
	case s.Tenant != "" && s.TenantFrom != "":
		c.fault(path+".tenant_from", "given beside tenant: one of them decides")
	case s.Tenant == "" && s.TenantFrom == "" && !single:
		c.fault(path+".tenant", "missing: whom do its events belong to (write tenant: NAME, tenant_from: tenant for the account that the sender's message names, or say auth: {mode: single_tenant})")
	}
	if s.TenantFrom == "" {
		return
	}
	var err error
	if s.TenantRule, err = c.cel().Text(s.TenantFrom); err != nil {
		c.fault(path+".tenant_from", "%v", err)
		return
	}
	covered := !slices.Contains([]string{"event-grid", "cloudevents", "token"}, s.Contract)
	if s.Signing != nil && s.Signing.Signed != "" && !strings.Contains(s.Signing.Signed, "{body}") {
		covered = false
	}
	if !covered {
		c.fault(path+".tenant_from", "the proof of this contract does not cover the message: whoever knows the secret could name any tenant (write tenant: NAME, and a source for each)")
		return
	}
	if s.Contract == "shopify" && (s.TenantRule.Reads("tenant") || s.TenantRule.Reads("attributes")) {
		c.warn(path+".tenant_from", "the shop stands in a header that Shopify does not sign: who has seen a genuine delivery of one shop can send it for another")
	}
}

// cel is the language of expressions.
func (c *checker) cel() *rule.Language {
	if c.language == nil {
		l, err := rule.New()
		if err != nil {
			panic(err) // of the program: it has no input
		}
		c.language = l
	}
	return c.language
}

// parts compiles the expressions of a key.
func (c *checker) parts(path string, texts []string) (all rule.Parts) {
	if len(texts) > maxParts {
		c.fault(path, "%d parts, at most %d", len(texts), maxParts)
	}
	for i, text := range texts {
		at := fmt.Sprintf("%s[%d]", path, i)
		part, err := c.cel().Part(text)
		if err != nil {
			c.fault(at, "%v", err)
			continue
		}
		all = append(all, part)
	}
	return all
}

// pattern checks a type, or the front of one before a *.
func (c *checker) pattern(path, text string) {
	if i := strings.IndexByte(text, '*'); text == "" || i >= 0 && i < len(text)-1 {
		c.fault(path, "%q: write a type, or the front of one with a * as its last character (order/*)", text)
	}
}

// mask checks paths into JSON; they may name every element of a list.
func (c *checker) mask(path string, list []string) {
	for i, text := range list {
		if _, err := exact.ParsePath(text); err != nil {
			c.fault(fmt.Sprintf("%s[%d]", path, i), "%q is not a path into JSON (write $.customer.email or $.items[*].name)", text)
		}
	}
	if len(list) > maxMask {
		c.fault(path, "%d paths, at most %d", len(list), maxMask)
	}
}

// schemaFault is one line of what is wrong with a schema: where, if it says so.
func schemaFault(err error) string {
	var invalid *jsonschema.SchemaValidationError
	var inner *jsonschema.ValidationError
	if !errors.As(err, &invalid) || !errors.As(invalid.Err, &inner) {
		return firstLine(err.Error())
	}
	for len(inner.Causes) > 0 {
		inner = inner.Causes[0]
	}
	return firstLine(inner.Error())
}

// fetch checks where hints are read.
func (c *checker) fetch(path string, s *Source) {
	at := path + ".fetch"
	if s.Made == nil {
		return
	}
	if s.Fetch == nil {
		if s.Made.Fetch != nil {
			c.fault(at, "missing: %s sends only that something has changed; say where its API is (write fetch: {url: https://…, headers: {…}})", s.Contract)
		}
		return
	}
	if s.Made.Fetch == nil {
		c.fault(at, "given, but the messages of %s carry their content", s.Contract)
		return
	}
	f := s.Fetch
	c.base(at+".url", f.URL)
	c.headers(at+".headers", f.Headers)
	for tenant, headers := range f.Tenants {
		c.headers(at+".tenants."+tenant, headers)
	}
	set(&f.Timeout, DefaultFetchTimeout)
	within(c, at+".timeout", f.Timeout, 100*time.Millisecond, time.Minute)
}

// base checks the base URL of an API.
func (c *checker) base(path, text string) {
	if text == "" {
		c.fault(path, "missing (write url: https://api.example)")
		return
	}
	if u := c.target(path, text); u != nil && u.RawQuery != "" {
		c.fault(path, "holds a query; the contract adds its own")
	}
}

// headers checks header lines that are sent as they stand.
func (c *checker) headers(path string, list map[string]Secret) {
	for name, value := range list {
		switch {
		case !IsHeader(name):
			c.fault(path+"."+name, "not the name of a header")
		case strings.ContainsAny(value.Reveal(), "\r\n\x00"):
			c.fault(path+"."+name, "holds a line break")
		case slices.Contains([]string{"Host", "Content-Length", "Transfer-Encoding", "Connection"}, http.CanonicalHeaderKey(name)):
			c.fault(path+"."+name, "is made by the connection itself")
		}
	}
}

// paths registers those of the sources beside the routes.
func (c *checker) paths(mux *http.ServeMux) {
	first := map[string]int{}
	names := map[string]int{}
	for i := range c.config.Sources {
		s := &c.config.Sources[i]
		at := fmt.Sprintf("sources[%d]", i)
		if other, ok := names[s.Name]; ok && s.Name != "" {
			c.fault(at+".name", "%q is sources[%d] already", s.Name, other)
		} else {
			names[s.Name] = i
		}
		u, err := url.Parse(s.Path)
		switch {
		case s.Path == "":
			c.fault(at+".path", "missing (write path: /in/%s)", cmp.Or(s.Name, "shop"))
			continue
		case err != nil || !strings.HasPrefix(s.Path, "/") || s.Path == "/" || u.Path != s.Path || strings.ContainsAny(s.Path, "{}") || path.Clean(s.Path) != s.Path:
			c.fault(at+".path", "%q is not a path (write /in/shop: clean, without a pattern, a query or a / at its end)", s.Path)
			continue
		}
		if other, ok := first[s.Path]; ok {
			c.fault(at+".path", "%q is sources[%d] already", s.Path, other)
			continue
		}
		first[s.Path] = i
		if text := register(mux, s.Path); text != "" {
			c.fault(at+".path", "%s", text)
		}
		if _, pattern := mux.Handler(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: s.Path}}); pattern != s.Path && !c.has(at+".path") {
			c.fault(at+".path", "%q: the route %s takes its deliveries (choose another path)", s.Path, pattern)
		}
	}
}
