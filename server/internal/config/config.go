package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/unavez/unavez/server/internal/rule"
)

// Size is a number of bytes; in the file also with a unit, such as 256KiB.
type Size int64

// String is a size as it is written: whole KiB, MiB or GiB with their unit.
func (s Size) String() string {
	for _, unit := range []struct {
		name string
		size Size
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= unit.size && s%unit.size == 0 {
			return fmt.Sprintf("%d%s", s/unit.size, unit.name)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Config is a whole configuration with its defaults filled in.
type Config struct {
	// Store is where operations are kept: sqlite:PATH, or the URL of a
	// PostgreSQL database.
	Store Secret `yaml:"store"`
	// Lease is the URL of a Redis in front of the store; empty means none.
	Lease Secret `yaml:"lease"`
	// Listen is the address for requests.
	Listen string `yaml:"listen"`
	// Admin is the second listener.
	Admin Admin `yaml:"admin"`
	// Outbound bounds every connection the binary opens.
	Outbound Outbound `yaml:"outbound"`
	// Auth says who is calling.
	Auth Auth `yaml:"auth"`
	// HTTP are the routes in front of the application.
	HTTP []Route `yaml:"http"`
	// Sources are the senders of webhooks.
	Sources []Source `yaml:"sources"`
	// Effects are what events bring about.
	Effects []Effect `yaml:"effects"`
	// Alerts tells people of what needs them; nil means nobody.
	Alerts *Alerts `yaml:"alerts"`
	// Inbox is how entries are received and run.
	Inbox Inbox `yaml:"inbox"`
	// Log of the process.
	Log Log `yaml:"log"`
	// Limits of the listeners.
	Limits Limits `yaml:"limits"`
	// DocsURL is the base of the links in error answers.
	DocsURL string `yaml:"docs_url"`
	// Unsafe names checks of unavez doctor that would keep the server from
	// starting, and are known.
	Unsafe []string `yaml:"unsafe"`

	// Place is Store, parsed.
	Place Place
	// Warnings are what is accepted and probably not meant.
	Warnings Faults

	language *rule.Language
}

// Language is what the expressions of the configuration are compiled in; nil
// where there are none.
func (c *Config) Language() *rule.Language { return c.language }

// Admin is the listener for operators.
type Admin struct {
	// Listen is its address.
	Listen string `yaml:"listen"`
	// Token is what a caller must send as a bearer token; required beyond loopback.
	Token Secret `yaml:"token"`
}

// Outbound is the policy of every connection the binary opens.
type Outbound struct {
	// Allow lists address ranges that are private and still allowed.
	Allow []string `yaml:"allow"`

	// Prefixes are Allow, parsed.
	Prefixes []netip.Prefix
}

// Auth says how callers are told apart.
type Auth struct {
	// Mode is forward, token, credential or single_tenant.
	Mode string `yaml:"mode"`
	// SingleTenant declares that there is one tenant, so that none is named.
	SingleTenant bool `yaml:"single_tenant"`
	// Tenant that every caller belongs to (credential).
	Tenant string `yaml:"tenant"`
	// URL to ask (forward).
	URL string `yaml:"url"`
	// Timeout of the question (forward).
	Timeout time.Duration `yaml:"timeout"`
	// TenantHeader of the answer (forward).
	TenantHeader string `yaml:"tenant_header"`
	// PrincipalHeader of the answer (forward).
	PrincipalHeader string `yaml:"principal_header"`
	// Headers of the request that are passed on (forward).
	Headers []string `yaml:"headers"`
	// Tokens that are known (token).
	Tokens []Token `yaml:"tokens"`
	// Cookie that holds the credential; empty means Authorization (credential).
	Cookie string `yaml:"cookie"`
	// Identify names headers that tell the application who is calling.
	Identify Identify `yaml:"identify"`
}

// Identify are the headers that tell the application who is calling. What the
// client sends under these names is taken out.
type Identify struct {
	// Tenant is the header for the tenant; empty means none.
	Tenant string `yaml:"tenant"`
	// Principal is the header for the principal; empty means none.
	Principal string `yaml:"principal"`
}

// Token is one known bearer token, by its hash.
type Token struct {
	// SHA256 of the token, 64 hexadecimal digits.
	SHA256 string `yaml:"sha256"`
	// Tenant it is bound to.
	Tenant string `yaml:"tenant"`
	// Principal it stands for.
	Principal string `yaml:"principal"`
}

// Route is one pattern in front of the application.
type Route struct {
	// Route is a pattern of net/http, such as POST /orders/{id}/payments.
	Route string `yaml:"route"`
	// Upstream is the application's base URL.
	Upstream string `yaml:"upstream"`
	// Unknown is hold, retry or probe; it has no default.
	Unknown string `yaml:"unknown"`
	// Claim is store or lease: what says that an attempt has begun.
	Claim string `yaml:"claim"`
	// Probe asks the application, for unknown: probe.
	Probe *Probe `yaml:"probe"`
	// Key is required or optional.
	Key string `yaml:"key"`
	// Methods that are keyed.
	Methods []string `yaml:"methods"`
	// Fingerprint options.
	Fingerprint Fingerprint `yaml:"fingerprint"`
	// Retention of the frozen answer.
	Retention time.Duration `yaml:"retention"`
	// Tombstone is how long the key is remembered after that.
	Tombstone time.Duration `yaml:"tombstone"`
	// Wait is the longest "Prefer: wait" that is honoured; 0 means none.
	Wait time.Duration `yaml:"wait"`
	// Limit of a transaction of the store.
	Limit time.Duration `yaml:"limit"`
	// Lease is how long a dead worker keeps the key.
	Lease time.Duration `yaml:"lease"`
	// Timeout of the application's answer.
	Timeout time.Duration `yaml:"timeout"`
	// RequestLimit bounds the body of a keyed request.
	RequestLimit Size `yaml:"request_limit"`
	// ResponseLimit bounds the stored answer.
	ResponseLimit Size `yaml:"response_limit"`
	// NotDone are statuses by which the application says that it has done
	// nothing, beside 408, 425 and 429: the key is free again.
	NotDone []int `yaml:"not_done"`
	// Final are 5xx statuses that are frozen like any answer; any other 5xx
	// leaves the operation unknown.
	Final []int `yaml:"final"`
	// DerivedKeyHeader carries the derived key to the application.
	DerivedKeyHeader string `yaml:"derived_key_header"`
	// CORS for browsers; nil means none.
	CORS *CORS `yaml:"cors"`

	// Target is Upstream, parsed.
	Target *url.URL
}

// Fingerprint says what makes two requests with one key the same.
type Fingerprint struct {
	// JSON compares JSON bodies by value and not by bytes.
	JSON bool `yaml:"json"`
	// Include lists the only members that count.
	Include []string `yaml:"include"`
	// Exclude lists members that do not count.
	Exclude []string `yaml:"exclude"`
}

// Probe is an HTTP question about what became of an attempt.
type Probe struct {
	// Method, GET unless given.
	Method string `yaml:"method"`
	// URL with {key}, {derived_key}, {tenant} and {principal}.
	URL string `yaml:"url"`
	// Headers of the question, with the same places.
	Headers map[string]Secret `yaml:"headers"`
	// Timeout of the question.
	Timeout time.Duration `yaml:"timeout"`
	// Settle is how long after the attempt's end "not done" is believed.
	Settle time.Duration `yaml:"settle"`
	// Done are the answers that mean it happened.
	Done []Answer `yaml:"done"`
	// NotDone are the answers that mean it did not and will not.
	NotDone []Answer `yaml:"not_done"`
	// Result is what duplicates then get.
	Result Result `yaml:"result"`
}

// Answer matches the answer of a probe: all that is given must hold.
type Answer struct {
	// Status is one of these; empty means any.
	Status []int `yaml:"status"`
	// JSON names a member of the body, such as $.state.
	JSON string `yaml:"json"`
	// Is lists the values of that member that match.
	Is []string `yaml:"is"`
}

// Result is made from the probe's answer.
type Result struct {
	// Status to answer with; 0 means the probe's.
	Status int `yaml:"status"`
	// JSON names the member that is the body; empty means the whole body.
	JSON string `yaml:"json"`
	// Headers of the probe's answer that are kept.
	Headers []string `yaml:"headers"`
}

// CORS are the headers for browsers of other origins.
type CORS struct {
	// Origins that are allowed, or * for any without credentials.
	Origins []string `yaml:"origins"`
	// Credentials allows cookies and Authorization.
	Credentials bool `yaml:"credentials"`
	// Headers that requests may carry besides the layer's own.
	Headers []string `yaml:"headers"`
	// MaxAge of a preflight's answer.
	MaxAge time.Duration `yaml:"max_age"`
}

// Log of the process.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level"`
	// Format is auto, json or text; auto is text on a terminal.
	Format string `yaml:"format"`
}

// Limits of both listeners.
type Limits struct {
	// Connections at a time on the request listener.
	Connections int `yaml:"connections"`
	// HeaderSize bounds the head of a request.
	HeaderSize Size `yaml:"header_size"`
	// HeaderTimeout bounds its arrival.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// ReadTimeout bounds the arrival of a whole request.
	ReadTimeout time.Duration `yaml:"read_timeout"`
	// IdleTimeout ends a connection without requests.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// Drain bounds a graceful stop.
	Drain time.Duration `yaml:"drain"`
}

// Parse reads a configuration and checks it. The error, if any, is Faults with
// every fault there is.
func Parse(data []byte, env Environment) (*Config, error) {
	root, further, err := parseDocument(data)
	if err != nil {
		return nil, err
	}
	c := &Config{}
	d := &decoder{env: env.orDefault(), faults: further, lines: map[string]int{}, later: laterFields()}
	d.anchors = map[string]ast.Node{}
	if root != nil {
		d.decode(root, reflect.ValueOf(c).Elem(), "")
	}
	broken := map[string]bool{}
	for _, f := range d.faults {
		broken[f.Field] = true
	}
	check := &checker{config: c, lines: d.lines, broken: broken, faults: d.faults}
	check.all()
	if len(check.faults) > 0 {
		return nil, check.faults.sorted()
	}
	c.Warnings, c.language = check.warnings.sorted(), check.language
	return c, nil
}

// laterFields names what the format reserves for coming versions.
func laterFields() map[string]string {
	return map[string]string{
		"send":     "not in this version: the outbox comes later",
		"machines": "not in this version: statecharts come later",
	}
}
