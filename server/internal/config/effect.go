package config

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/rule"
	"github.com/unavez/unavez/source"
)

// Effect is what events bring about: a request to an application.
type Effect struct {
	// Name is the effect name.
	Name string `yaml:"name"`
	// When is an expression that says which events it wants; empty means all.
	When string `yaml:"when"`
	// Key are expressions for the parts that name the operation; none means the
	// event's own identity.
	Key []string `yaml:"key"`
	// OrderBy are expressions for the parts of the ordering key; none means no
	// order.
	OrderBy []string `yaml:"order_by"`
	// Version is an expression for the number of the change among those of its
	// ordering key.
	Version string `yaml:"version"`
	// Contiguous says that versions are integers without gaps.
	Contiguous bool `yaml:"contiguous"`
	// GapWait is how long an early one waits.
	GapWait time.Duration `yaml:"gap_wait"`
	// Send is the request that makes the effect.
	Send *Send `yaml:"send"`
	// Unknown is hold, retry or probe; it has no default.
	Unknown string `yaml:"unknown"`
	// Probe asks the application, for unknown: probe.
	Probe *Probe `yaml:"probe"`
	// Retry says how failures are tried again.
	Retry Retry `yaml:"retry"`
	// Owner is the team that its dead letters belong to.
	Owner string `yaml:"owner"`
	// Retention of the outcome.
	Retention time.Duration `yaml:"retention"`
	// Tombstone is how long the identity is remembered after that.
	Tombstone time.Duration `yaml:"tombstone"`
	// Limit of a transaction of the store.
	Limit time.Duration `yaml:"limit"`
	// Lease is how long a dead worker keeps the operation.
	Lease time.Duration `yaml:"lease"`

	// WhenRule, KeyRule, OrderRule and VersionRule are the expressions,
	// compiled; nil without.
	WhenRule    *rule.When
	KeyRule     rule.Parts
	OrderRule   rule.Parts
	VersionRule *rule.Text
	// Wants are the names of the sources whose events it can want.
	Wants []string
}

// Send is the request that makes an effect.
type Send struct {
	// URL of the application.
	URL string `yaml:"url"`
	// Secrets sign the request by Standard Webhooks; all of them, while one is
	// rotated.
	Secrets []Secret `yaml:"secrets"`
	// Headers of the request.
	Headers map[string]Secret `yaml:"headers"`
	// Timeout of the answer.
	Timeout time.Duration `yaml:"timeout"`
	// Done are statuses, beside those of the 200s, that say that the effect has
	// happened.
	Done []int `yaml:"done"`
	// NotDone are statuses that say that it has not and may be tried again,
	// beside 408, 425 and 429.
	NotDone []int `yaml:"not_done"`
}

// Retry says how a failure is tried again.
type Retry struct {
	// First delay, doubled each time.
	First time.Duration `yaml:"first"`
	// Longest delay.
	Longest time.Duration `yaml:"longest"`
	// Attempts in all.
	Attempts int `yaml:"attempts"`
	// Age after which it is not tried again.
	Age time.Duration `yaml:"age"`
}

// effect checks one effect.
func (c *checker) effect(path string, e *Effect) {
	switch {
	case e.Name == "":
		c.fault(path+".name", "missing (write name: order.import.v1; it is part of the identity of its operations and never changes)")
	case len(e.Name) > 200 || strings.ContainsFunc(e.Name, func(r rune) bool { return r <= ' ' || r == '/' || r > '~' }):
		c.fault(path+".name", "%q, want 1 to 200 printable characters without / and spaces", e.Name)
	case e.Name == "http" || strings.HasPrefix(e.Name, reservedEffects):
		c.fault(path+".name", "%q is a name of the server's own", e.Name)
	}
	var err error
	if e.When != "" {
		if e.WhenRule, err = c.cel().When(e.When); err != nil {
			c.fault(path+".when", "%v", err)
		}
	}
	e.KeyRule = c.parts(path+".key", e.Key)
	e.OrderRule = c.parts(path+".order_by", e.OrderBy)
	if e.Version != "" {
		if e.VersionRule, err = c.cel().Text(e.Version); err != nil {
			c.fault(path+".version", "%v", err)
		}
		if len(e.OrderBy) == 0 {
			c.fault(path+".version", "needs order_by: versions are compared among the events of one ordering key")
		}
	}
	if e.Contiguous && e.Version == "" {
		c.fault(path+".contiguous", "needs version: the number that has no gaps")
	}
	if c.given(path+".gap_wait") && !e.Contiguous {
		c.fault(path+".gap_wait", "needs contiguous: true")
	}
	set(&e.GapWait, DefaultGapWait)
	within(c, path+".gap_wait", e.GapWait, time.Second, 30*24*time.Hour)
	c.reach(path, e)
	c.send(path, e)
	c.retry(path+".retry", &e.Retry)
	c.effectTiming(path, e)
	c.effectUnknown(path, e)
}

// reservedEffects is the front of the effect names that the product uses itself.
const reservedEffects = "unavez."

// reach finds the sources whose events an effect can want.
func (c *checker) reach(path string, e *Effect) {
	keyless := ""
	for i := range c.config.Sources {
		s := &c.config.Sources[i]
		if e.WhenRule != nil && !e.WhenRule.Possible(s.Name) {
			continue
		}
		e.Wants = append(e.Wants, s.Name)
		if s.Event != nil && len(s.Event.ID) == 0 && keyless == "" {
			keyless = s.Name
		}
	}
	if e.When != "" && e.WhenRule == nil {
		return // of whose events is told when that fault has gone
	}
	if keyless != "" && len(e.Key) == 0 {
		c.fault(path+".key", "missing: source %s names no id of its events, so each delivery would be an operation of its own (write key: with what names the operation)", keyless)
	}
	if len(e.Wants) == 0 && len(c.config.Sources) > 0 && !c.has(path) {
		c.warn(path+".when", "can hold for no event of any source")
	}
}

func (c *checker) send(path string, e *Effect) {
	at := path + ".send"
	s := e.Send
	if s == nil {
		c.fault(at, "missing: what makes the effect (write send: {url: http://127.0.0.1:9000/imports})")
		return
	}
	if s.URL == "" {
		c.fault(at+".url", "missing (write url: http://127.0.0.1:9000/imports)")
	} else {
		c.target(at+".url", s.URL)
	}
	c.signingSecrets(at+".secrets", s.Secrets)
	c.headers(at+".headers", s.Headers)
	for name := range s.Headers {
		if slices.Contains(madeHeaders(), http.CanonicalHeaderKey(name)) || strings.HasPrefix(http.CanonicalHeaderKey(name), "Ce-") {
			c.fault(at+".headers."+name, "is made by the server itself")
		}
	}
	set(&s.Timeout, DefaultTimeout)
	within(c, at+".timeout", s.Timeout, 10*time.Millisecond, unavez.MaxLease)
	for i, status := range s.Done {
		field := fmt.Sprintf("%s.done[%d]", at, i)
		if status < 300 || status > 599 {
			c.fault(field, "%d, want a status from 300 to 599 (those of the 200s are done anyway)", status)
		}
		if slices.Contains(s.NotDone, status) {
			c.fault(field, "%d is in not_done too", status)
		}
		if status == http.StatusGone {
			c.fault(field, "410 disables the target")
		}
	}
	for i, status := range s.NotDone {
		field := fmt.Sprintf("%s.not_done[%d]", at, i)
		if status < 400 || status > 599 {
			c.fault(field, "%d, want a status from 400 to 599", status)
		}
		if status == http.StatusGone {
			c.fault(field, "410 disables the target")
		}
	}
}

// madeHeaders are those of a request that the server makes.
func madeHeaders() []string {
	return []string{"Idempotency-Key", "Content-Type", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "User-Agent"}
}

// signingSecrets checks what Standard Webhooks signs with.
func (c *checker) signingSecrets(path string, list []Secret) {
	check := source.StandardWebhooks("").Secret
	for i, secret := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case secret.Empty():
			c.fault(at, "empty")
		case !strings.HasPrefix(secret.Reveal(), "whsec_"):
			c.fault(at, "want whsec_ and base64 of 24 to 64 random bytes (printf whsec_; openssl rand -base64 32)")
		case check(secret.Reveal()) != nil:
			c.fault(at, "want whsec_ and base64 of 24 to 64 random bytes (printf whsec_; openssl rand -base64 32)")
		}
	}
}

func (c *checker) retry(path string, r *Retry) {
	set(&r.First, DefaultRetryFirst)
	set(&r.Longest, max(DefaultRetryLongest, r.First))
	set(&r.Attempts, DefaultRetryAttempts)
	set(&r.Age, DefaultRetryAge)
	within(c, path+".first", r.First, time.Millisecond, 24*time.Hour)
	within(c, path+".longest", r.Longest, r.First, 24*time.Hour)
	within(c, path+".attempts", r.Attempts, 1, 10_000)
	within(c, path+".age", r.Age, time.Second, 90*24*time.Hour)
}

// effectTiming checks the durations of an effect against each other and against
// how long its senders repeat.
func (c *checker) effectTiming(path string, e *Effect) {
	longest, sender := time.Duration(0), ""
	for i := range c.config.Sources {
		s := &c.config.Sources[i]
		if s.Made != nil && slices.Contains(e.Wants, s.Name) && s.Made.Window > longest {
			longest, sender = s.Made.Window, s.Name
		}
	}
	at := path + ".retention"
	switch {
	case e.Retention != 0:
	case c.config.Inbox.Retention != 0:
		e.Retention, at = c.config.Inbox.Retention, "inbox.retention"
	default:
		e.Retention = max(2*longest, DefaultInboxRetention)
	}
	if !c.given(path + ".tombstone") {
		e.Tombstone = c.config.Inbox.Tombstone
	}
	set(&e.Limit, unavez.DefaultLimit)
	set(&e.Lease, unavez.DefaultLease)
	within(c, at, e.Retention, unavez.MinRetention, unavez.MaxRetention)
	within(c, path+".tombstone", e.Tombstone, time.Second, unavez.MaxRetention)
	within(c, path+".limit", e.Limit, time.Millisecond, unavez.MaxLimit)
	within(c, path+".lease", e.Lease, time.Second, unavez.MaxLease)
	switch {
	case e.Retention < longest:
		c.fault(at, "%s is shorter than the %s for which source %s repeats a delivery: the last repeat could be a new operation (write %s or more)", days(e.Retention), days(longest), sender, days(longest))
	case 2*e.Retention < 3*longest:
		c.warn(at, "%s is under 1.5 times the %s for which source %s repeats a delivery: a repeat that comes late could be a new operation (%s is safe)", days(e.Retention), days(longest), sender, days(2*longest))
	}
	if e.Send == nil {
		return
	}
	if e.Lease < e.Send.Timeout && e.Unknown != "hold" {
		c.fault(path+".lease", "%v is shorter than the timeout %v of send: the operation could be taken over while its first call is still under way (raise lease, or lower send.timeout)", e.Lease, e.Send.Timeout)
	}
	if most := max(e.Limit, e.Send.Timeout); e.Retention < 2*most {
		c.fault(at, "%v is under twice the longest limit of the effect, %v", e.Retention, most)
	}
}

// days shows a duration as it would be written.
func days(d time.Duration) string {
	if d != 0 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	text := d.String()
	for _, nothing := range []string{"m0s", "h0m"} { // of 1h0m0s
		if before, ok := strings.CutSuffix(text, nothing); ok {
			text = before + nothing[:1]
		}
	}
	return text
}

func (c *checker) effectUnknown(path string, e *Effect) {
	at := path + ".unknown"
	if e.Unknown == "" {
		c.fault(at, "missing: say what happens when the application's answer is lost. hold: a person decides. retry: sent again with the same Idempotency-Key, for applications that deduplicate by it. probe: the application is asked first")
		return
	}
	if !c.word(at, e.Unknown, "hold", "retry", "probe") {
		return
	}
	switch {
	case e.Unknown == "probe" && e.Probe == nil:
		c.fault(path+".probe", "missing: unknown: probe needs the question (write probe: {url: …, done: [{status: 200}], not_done: [{status: 404}]})")
	case e.Unknown != "probe" && e.Probe != nil:
		c.fault(path+".probe", "given, but unknown is %s (write unknown: probe, or remove it)", e.Unknown)
	}
	if e.Probe == nil {
		return
	}
	timeout := DefaultTimeout
	if e.Send != nil {
		timeout = e.Send.Timeout
	}
	c.probe(path+".probe", e.Probe, timeout)
	for _, place := range []string{"{key}", "{principal}"} {
		if strings.Contains(e.Probe.URL, place) {
			c.fault(path+".probe.url", "%s is of requests; an effect has {derived_key} and {tenant}", place)
			return
		}
	}
	if e.Probe.URL != "" && !strings.Contains(e.Probe.URL, "{derived_key}") {
		c.fault(path+".probe.url", "names no operation: every question would be the same (use {derived_key})")
	}
}
