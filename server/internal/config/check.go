package config

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/rule"
)

// checker fills defaults in and notes every fault of the values.
type checker struct {
	config *Config
	lines  map[string]int
	broken map[string]bool // fields that have a fault already
	faults Faults

	warnings Faults
	language *rule.Language // nil until an expression is compiled
}

// fault notes a fault at a field, or at the nearest field above one that is
// missing.
func (c *checker) fault(path, format string, args ...any) {
	if c.broken[path] {
		return
	}
	c.faults = append(c.faults, Fault{Line: c.line(path), Field: path, Text: fmt.Sprintf(format, written(args)...)})
}

// warn notes what is accepted and probably not meant.
func (c *checker) warn(path, format string, args ...any) {
	c.warnings = append(c.warnings, Fault{Line: c.line(path), Field: path, Text: fmt.Sprintf(format, written(args)...)})
}

// line is that of a field, or of the nearest field above one that is missing.
func (c *checker) line(path string) (line int) {
	for at := path; line == 0; {
		line = c.lines[at]
		i := max(strings.LastIndexByte(at, '.'), strings.LastIndexByte(at, '['))
		if i < 0 {
			break
		}
		at = at[:i]
	}
	return line
}

func (c *checker) given(path string) bool { return c.lines[path] > 0 }

func (c *checker) all() {
	c.store()
	c.unsafe()
	c.outbound()
	c.listeners()
	c.auth()
	c.log()
	if c.config.DocsURL == "" {
		c.config.DocsURL = DefaultDocsURL
	} else {
		c.address("docs_url", c.config.DocsURL)
	}
	if len(c.config.HTTP)+len(c.config.Sources) == 0 {
		c.fault("http", "no routes and no sources (add at least one: - {route: POST /orders, upstream: http://…, unknown: hold})")
	}
	for i := range c.config.HTTP {
		c.route(fmt.Sprintf("http[%d]", i), &c.config.HTTP[i])
	}
	c.inbox()
	c.patterns()
}

// store checks where operations are kept, and the lease in front. The values
// may hold a password, so no message shows them.
func (c *checker) store() {
	var err error
	if c.config.Place, err = ParsePlace(c.config.Store.Reveal()); err != nil {
		c.fault("store", "%v", err)
	}
	if c.config.Lease.Empty() {
		return
	}
	if err := checkLease(c.config.Lease); err != nil {
		c.fault("lease", "%v", err)
	}
}

// Unsafe are the checks that a configuration may name as known: those of what
// the store keeps. Nothing works on what fails the others.
func Unsafe() []string {
	return []string{"postgres.fsync", "postgres.full_page_writes", "postgres.synchronous_commit", "sqlite.file_system"}
}

func (c *checker) unsafe() {
	for i, name := range c.config.Unsafe {
		if !slices.Contains(Unsafe(), name) {
			c.fault(fmt.Sprintf("unsafe[%d]", i), "%q is not a check that may be named here (%s)", name, strings.Join(Unsafe(), ", "))
		}
	}
}

func (c *checker) outbound() {
	for i, text := range c.config.Outbound.Allow {
		path := fmt.Sprintf("outbound.allow[%d]", i)
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			if address, err := netip.ParseAddr(text); err == nil {
				c.fault(path, "%q is one address (write %s/%d)", text, text, address.BitLen())
			} else {
				c.fault(path, "%q is not an address range (write 10.0.0.0/8 or 127.0.0.1/32)", text)
			}
			continue
		}
		if prefix != prefix.Masked() {
			c.fault(path, "%q has bits behind its length (write %s)", text, prefix.Masked())
		}
		if prefix.Bits() == 0 {
			c.fault(path, "%q allows every address; list the private ranges that are really needed", text)
		}
		c.config.Outbound.Prefixes = append(c.config.Outbound.Prefixes, prefix.Masked())
	}
}

func (c *checker) listeners() {
	l := &c.config.Limits
	set(&c.config.Listen, DefaultListen)
	set(&c.config.Admin.Listen, DefaultAdminListen)
	otherwise := DefaultLimits()
	set(&l.Connections, otherwise.Connections)
	set(&l.HeaderSize, otherwise.HeaderSize)
	set(&l.HeaderTimeout, otherwise.HeaderTimeout)
	set(&l.ReadTimeout, otherwise.ReadTimeout)
	set(&l.IdleTimeout, otherwise.IdleTimeout)
	set(&l.Drain, otherwise.Drain)
	within(c, "limits.connections", l.Connections, 1, 1_000_000)
	within(c, "limits.header_size", l.HeaderSize, 1<<10, 1<<20)
	within(c, "limits.header_timeout", l.HeaderTimeout, 100*time.Millisecond, time.Minute)
	within(c, "limits.read_timeout", l.ReadTimeout, 100*time.Millisecond, 10*time.Minute)
	within(c, "limits.idle_timeout", l.IdleTimeout, 100*time.Millisecond, time.Hour)
	within(c, "limits.drain", l.Drain, 100*time.Millisecond, 10*time.Minute)
	if l.HeaderTimeout > l.ReadTimeout {
		c.fault("limits.header_timeout", "%v is longer than limits.read_timeout %v, which counts the head too", l.HeaderTimeout, l.ReadTimeout)
	}
	c.listen("listen", c.config.Listen)
	if c.listen("admin.listen", c.config.Admin.Listen) && !Loopback(c.config.Admin.Listen) && c.config.Admin.Token.Empty() {
		c.fault("admin.token", "missing: %s is reachable from other hosts (set a token, or listen on 127.0.0.1)", c.config.Admin.Listen)
	}
	if token := c.config.Admin.Token; !token.Empty() && len(token.Reveal()) < minToken {
		c.fault("admin.token", "shorter than %d characters (openssl rand -hex 32 makes a good one)", minToken)
	}
	if c.config.Listen == c.config.Admin.Listen && !strings.HasSuffix(c.config.Listen, ":0") {
		c.fault("admin.listen", "the same address as listen: requests and admin are two listeners")
	}
}

// minToken keeps guessable admin tokens out.
const minToken = 16

func (c *checker) listen(path, address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		c.fault(path, "%q is not an address (write 127.0.0.1:8080 or :8080)", address)
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		c.fault(path, "%q has no port from 0 to 65535", address)
		return false
	}
	return true
}

// Loopback reports whether an address to listen on is reachable from this host
// only. A name other than localhost is not trusted to be.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (c *checker) log() {
	set(&c.config.Log.Level, "info")
	set(&c.config.Log.Format, "auto")
	c.word("log.level", c.config.Log.Level, "debug", "info", "warn", "error")
	c.word("log.format", c.config.Log.Format, "auto", "json", "text")
}

func (c *checker) word(path, value string, words ...string) bool {
	if slices.Contains(words, value) {
		return true
	}
	c.fault(path, "%q, want %s", value, alternatives(words))
	return false
}

func alternatives(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// address checks the base URL of something the binary or a person calls.
func (c *checker) address(path, text string) *url.URL {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		c.fault(path, "not a URL (write http://host:port)") // the text may hold a password
	case u.Scheme != "http" && u.Scheme != "https":
		c.fault(path, "not an http:// or https:// URL")
	case u.Host == "" || u.Hostname() == "":
		c.fault(path, "no host (write http://host:port)")
	case u.User != nil:
		c.fault(path, "holds a user or password; send it in a header instead")
	case u.Fragment != "":
		c.fault(path, "holds a fragment (#…), which is never sent")
	default:
		return u
	}
	return nil
}

// target is an address that the binary itself connects to. Names are resolved
// when connecting and checked again there; what can be seen now is said now.
func (c *checker) target(path, text string) *url.URL {
	u := c.address(path, text)
	if u == nil {
		return nil
	}
	host := u.Hostname()
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err == nil && !c.config.Outbound.Policy().Allows(ip) {
		ip = ip.Unmap().WithZone("")
		c.fault(path, "%s is a private address that outbound.allow does not list (add %s/%d)", ip, ip, ip.BitLen())
	}
	return u
}

// patterns finds routes that are no patterns or cover each other.
func (c *checker) patterns() {
	mux := http.NewServeMux()
	first := map[string]int{}
	for i, route := range c.config.HTTP {
		path := fmt.Sprintf("http[%d].route", i)
		if route.Route == "" {
			c.fault(path, "missing (write route: POST /orders)")
			continue
		}
		if other, ok := first[route.Route]; ok {
			c.fault(path, "%q is http[%d] already", route.Route, other)
			continue
		}
		first[route.Route] = i
		if text := register(mux, route.Route); text != "" {
			c.fault(path, "%s", text)
		}
	}
	c.paths(mux)
}

// register tries a pattern; net/http tells what is wrong with it by panicking.
func register(mux *http.ServeMux, pattern string) (fault string) {
	defer func() {
		if p := recover(); p != nil {
			text := firstLine(fmt.Sprint(p))
			if at := strings.Index(text, "(registered at"); at > 0 {
				text = "conflicts with another route: one request could match both (make one of them more specific)"
			}
			fault = fmt.Sprintf("%q: %s", pattern, text)
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return ""
}

// set gives a field its default.
func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// within checks a bound; a duration or size is shown as it would be written.
func within[T int | Size | time.Duration](c *checker, path string, value, low, high T) {
	if value < low || value > high {
		c.fault(path, "%v, want %v to %v", value, low, high)
	}
}

// written are the values of a message, as they are written in a file.
func written(args []any) []any {
	args = slices.Clone(args)
	for i, value := range args {
		if d, ok := value.(time.Duration); ok {
			args[i] = days(d)
		}
	}
	return args
}

// DefaultLimits of the listeners.
func DefaultLimits() Limits {
	return Limits{
		Connections: 10_000, HeaderSize: 64 << 10, HeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, Drain: 20 * time.Second,
	}
}

// Defaults of what only the binary has. The others are those of the library.
const (
	DefaultListen       = "127.0.0.1:8080"
	DefaultAdminListen  = "127.0.0.1:8081"
	DefaultTimeout      = unavez.DefaultLease
	DefaultAuthTimeout  = 5 * time.Second
	DefaultProbeTimeout = 5 * time.Second
	DefaultDocsURL      = "https://github.com/unavez/unavez/blob/main/docs/http-api.md"
)
