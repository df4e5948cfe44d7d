package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/source"
)

// contracts are the fields that the contracts know beside those of every source.
func contracts() map[string][]string {
	return map[string][]string{
		"github":            {},
		"shopify":           {},
		"nuvemshop":         {},
		"stripe":            {"tolerance"},
		"slack":             {"tolerance"},
		"zoom":              {"tolerance"},
		"standard-webhooks": {"tolerance", "prefix"},
		"event-grid":        {"token", "entra", "origins", "rate"},
		"cloudevents":       {"token"},
		"hmac":              {"tolerance", "signing", "event", "success", "window", "timeout", "url"},
		"token":             {"token", "event", "success", "window", "timeout"},
	}
}

// contract makes the contract of a source, nil if it has a fault.
func (c *checker) contract(path string, s *Source) *source.Contract {
	known := contracts()
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	if s.Contract == "" {
		c.fault(path+".contract", "missing: which kind of sender is it (%s)", alternatives(names))
		return nil
	}
	fields, ok := known[s.Contract]
	if !ok {
		hint := ""
		if near := nearest(s.Contract, names); near != "" {
			hint = "did you mean " + near + "? "
		}
		c.fault(path+".contract", "%q is not a contract of this version (%s%s; a sender that signs with a shared secret is described with hmac, one with a fixed token with token)", s.Contract, hint, alternatives(names))
		return nil
	}
	for _, field := range []string{"tolerance", "prefix", "token", "entra", "origins", "rate", "signing", "event", "success", "window", "timeout", "url"} {
		if c.given(path+"."+field) && !slices.Contains(fields, field) {
			c.fault(path+"."+field, "not a field of contract %s", s.Contract)
		}
	}
	before := len(c.faults)
	made := c.make(path, s)
	if len(c.faults) > before {
		return nil
	}
	return made
}

// make builds the contract that is named.
func (c *checker) make(path string, s *Source) *source.Contract {
	var made *source.Contract
	var err error
	switch s.Contract {
	case "github":
		return source.GitHub()
	case "shopify":
		return source.Shopify()
	case "nuvemshop":
		return source.Nuvemshop()
	case "stripe":
		return source.Stripe()
	case "slack":
		return source.Slack()
	case "zoom":
		return source.Zoom()
	case "standard-webhooks":
		if s.Prefix != "" && !IsHeader(s.Prefix) {
			c.fault(path+".prefix", "%q is not the front of a header's name (write svix for svix-id)", s.Prefix)
			return nil
		}
		return source.StandardWebhooks(s.Prefix)
	case "event-grid":
		return c.eventGrid(path, s)
	case "cloudevents":
		if s.Token == nil {
			c.fault(path+".token", "missing: CloudEvents are not signed; say where the secret stands (write token: {header: Authorization, prefix: \"Bearer \"})")
			return nil
		}
		if made, err = source.CloudEvents(s.Token.token()); err != nil {
			c.faultsOf(path, err)
		}
	default:
		return c.described(path, s)
	}
	return made
}

func (t *TokenPlace) token() source.Token {
	return source.Token{Header: t.Header, Prefix: t.Prefix, Query: t.Query}
}

func (c *checker) eventGrid(path string, s *Source) *source.Contract {
	o := source.EventGridOptions{Origins: s.Origins, Rate: s.Rate}
	if s.Token == nil && s.Entra == nil {
		c.fault(path+".token", "missing: Event Grid signs nothing; say where the secret stands that you put into its subscription (write token: {query: code}), or write entra: {…}, or both")
		return nil
	}
	if s.Token != nil {
		token := s.Token.token()
		o.Secret = &token
	}
	if e := s.Entra; e != nil {
		o.Entra = &source.Bearer{Audience: e.Audience, Issuers: e.Issuers, Principals: e.Principals, Claims: e.Claims}
		for field, missing := range map[string]bool{"audience": e.Audience == "", "issuers": len(e.Issuers) == 0, "principals": len(e.Principals) == 0} {
			if missing {
				c.fault(path+".entra."+field, "missing: a token that says nothing about it could be anybody's")
			}
		}
		c.keys(path+".entra", e)
	}
	if s.Rate < 0 {
		c.fault(path+".rate", "%d deliveries a minute, want 1 or more, or no rate", s.Rate)
	}
	if c.has(path) {
		return nil
	}
	made, err := source.EventGrid(o)
	if err != nil {
		c.faultsOf(path, err)
	}
	return made
}

// has reports whether a field, or one below it, has a fault.
func (c *checker) has(path string) bool {
	return slices.ContainsFunc(c.faults, func(f Fault) bool { return f.Field == path || strings.HasPrefix(f.Field, path+".") })
}

// keys checks where an issuer's keys are read, for each of them.
func (c *checker) keys(path string, e *Entra) {
	if e.Keys != "" {
		if u := c.target(path+".keys", e.Keys); u != nil && u.Scheme != "https" && !Loopback(u.Host) {
			c.fault(path+".keys", "not https: whoever stands between could sign")
		}
		return
	}
	for i, issuer := range e.Issuers {
		if KeysOf(issuer) == "" {
			c.fault(fmt.Sprintf("%s.issuers[%d]", path, i), "%q is no issuer of Entra, as https://login.microsoftonline.com/TENANT/v2.0 or https://sts.windows.net/TENANT/ (for another one write keys: with the URL of its keys)", issuer)
		}
	}
}

// KeysOf is where Entra publishes the keys of one of its issuers, "" for what
// is none. (learn.microsoft.com, entra identity platform: "Access tokens",
// "Validate the issuer".)
func KeysOf(issuer string) string {
	u, err := url.Parse(issuer)
	if err != nil || u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return ""
	}
	tenant, rest, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if tenant == "" || strings.Trim(tenant, "0123456789abcdefABCDEF-") != "" {
		return ""
	}
	switch {
	case u.Host == "login.microsoftonline.com" && rest == "v2.0":
		return "https://login.microsoftonline.com/" + tenant + "/discovery/v2.0/keys"
	case u.Host == "sts.windows.net" && rest == "":
		return "https://login.microsoftonline.com/" + tenant + "/discovery/keys"
	}
	return ""
}

// described makes the contract of a sender that has none of its own.
func (c *checker) described(path string, s *Source) *source.Contract {
	d := source.Described{Name: s.Contract, Success: s.Success, Timeout: s.Timeout, Window: s.Window}
	if s.Window == 0 {
		c.fault(path+".window", "missing: how long does the sender repeat a delivery, by itself or by a person's hand (write window: 24h)")
	} else {
		within(c, path+".window", s.Window, time.Minute, maxWindow)
	}
	within(c, path+".timeout", s.Timeout, 0, time.Hour)
	if s.Contract == "hmac" {
		if s.Signing == nil {
			c.fault(path+".signing", "missing: how does the sender sign (write signing: {header: X-Signature})")
			return nil
		}
		w := s.Signing
		d.Signing = &source.Signing{
			Header: w.Header, Prefix: w.Prefix, Param: w.Param, Encoding: w.Encoding, Hash: w.Hash, Key: w.Key,
			Signed: w.Signed, Timestamp: w.Timestamp, Milliseconds: w.Milliseconds, ID: w.ID,
		}
		if strings.Contains(w.Signed, "{url}") != (s.URL != "") {
			c.fault(path+".url", "give it, and {url} in signing.signed, or neither")
		}
		if s.URL != "" {
			c.address(path+".url", s.URL)
		}
		// By itself, so that a fault is told at the fields of signing.
		if _, err := (source.Described{Signing: d.Signing, Type: "'x'"}).Contract(); err != nil {
			c.faultsOf(path+".signing", err)
		}
	} else {
		if s.Token == nil {
			c.fault(path+".token", "missing: where does the token stand (write token: {header: X-Token}, or {query: code})")
			return nil
		}
		token := s.Token.token()
		d.Token = &token
		if _, err := (source.Described{Token: d.Token, Type: "'x'"}).Contract(); err != nil {
			c.faultsOf(path, err)
		}
	}
	if s.Event == nil {
		c.fault(path+".event", "missing: where do the facts of an event stand (write event: {id: [header.X-Event-Id], type: body.type, subject: [body.data.id]})")
		return nil
	}
	e := s.Event
	d.ID, d.Delivery, d.Type, d.Subject, d.Version, d.Tenant = e.ID, e.Delivery, e.Type, e.Subject, e.Version, e.Tenant
	d.Volatile = e.Volatile
	if _, err := (source.Described{
		Token: &source.Token{Header: "X"}, ID: d.ID, Delivery: d.Delivery, Type: d.Type, Subject: d.Subject, Version: d.Version, Tenant: d.Tenant,
		Volatile: d.Volatile,
	}).Contract(); err != nil {
		c.faultsOf(path+".event", err)
	}
	if s.Success != 0 && (s.Success < 200 || s.Success > 299) {
		c.fault(path+".success", "%d is no status of the 200s", s.Success)
	}
	if c.has(path) {
		return nil
	}
	made, err := d.Contract()
	if err != nil {
		c.faultsOf(path, err)
	}
	return made
}

// maxWindow is the longest that a sender may be said to repeat.
const maxWindow = 365 * 24 * time.Hour

// faultsOf notes the faults that a contract has found. Each begins with the
// name of its field.
func (c *checker) faultsOf(path string, err error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range many.Unwrap() {
			c.faultsOf(path, one)
		}
		return
	}
	field, text, ok := strings.Cut(err.Error(), ": ")
	if !ok || strings.ContainsAny(field, " ,") {
		c.fault(path, "%v", err)
		return
	}
	c.fault(path+"."+field, "%s", text)
}

// secrets checks those of a source against its contract. No message shows one.
func (c *checker) secrets(path string, s *Source) {
	needed := s.Made == nil || s.Contract != "event-grid" || s.Token != nil
	if len(s.Secrets) == 0 && needed {
		c.fault(path+".secrets", "missing: without a secret nothing is authentic (write secrets: [\"${SHOP_SECRET}\"])")
	}
	if len(s.Secrets) > 0 && !needed {
		c.fault(path+".secrets", "given, but no token: says where the secret stands")
	}
	first := map[string]bool{}
	for i := range s.Secrets {
		secret := &s.Secrets[i]
		at := fmt.Sprintf("%s.secrets[%d]", path, i)
		set(&secret.Name, fmt.Sprint(i+1))
		if !isName(secret.Name) {
			c.fault(at+".name", "%q, want 1 to 64 letters, digits, - and _", secret.Name)
		}
		if first[secret.Name] {
			c.fault(at+".name", "%q is there twice: metrics could not tell which one verified", secret.Name)
		}
		first[secret.Name] = true
		if secret.Value.Empty() {
			c.fault(at, "empty: anybody can sign with an empty secret")
			continue
		}
		if s.Made == nil || s.Made.Secret == nil {
			continue
		}
		if err := s.Made.Secret(secret.Value.Reveal()); err != nil {
			var digit hex.InvalidByteError
			text := err.Error()
			if errors.As(err, &digit) { // it quotes the secret
				text = "not hexadecimal digits"
			}
			c.fault(at, "%s", text)
		}
	}
}

// isName reports whether a text can name a source or a secret.
func isName(text string) bool {
	return len(text) >= 1 && len(text) <= 64 && strings.Trim(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == ""
}
