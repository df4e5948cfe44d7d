package httpkey

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
)

// Defaults of this package; those of the core are in its defaults.go.
const (
	// DefaultWait is the longest "Prefer: wait" that is honoured.
	DefaultWait = 30 * time.Second
	// DefaultSpoolLimit bounds one answer, in bytes.
	DefaultSpoolLimit = 256 << 20
)

const (
	// maxResponseLimit bounds Options.ResponseLimit: a stored answer is one row.
	maxResponseLimit = 16 << 20
	// maxOrigin is the longest origin, in bytes.
	maxOrigin = 1024
)

// Scope says who is calling. It comes from authentication.
type Scope struct {
	// Tenant of the caller; empty only with Options.SingleTenant.
	Tenant string
	// Principal is the caller itself; two of them never share a key. Empty
	// only with Options.SingleTenant.
	Principal string
}

// ScopeFunc authenticates a request and names its caller. It is called before
// the key is looked up. An [Error] of it, such as a 401, is the answer; any
// other error is a 500 without its text.
type ScopeFunc = func(*http.Request) (Scope, error)

// Options of a [Layer] and, but for those that say otherwise, of a [Proxy].
// The zero value of every field means its default.
type Options struct {
	// SingleTenant declares that there is one tenant and that callers may
	// share keys, so that there may be no scope function.
	SingleTenant bool
	// Required lists the methods that must carry a key; nil means POST and
	// PATCH, less those in Optional. An empty list that is not nil means none.
	Required []string
	// Optional lists the methods whose key is honoured when there is one; nil
	// means PUT and DELETE, less those in Required. All other methods pass
	// through; GET, HEAD, OPTIONS and TRACE cannot be listed.
	Optional []string
	// RequestLimit bounds the body of a keyed request, in bytes; default
	// unavez.DefaultRequestLimit.
	RequestLimit int64
	// ResponseLimit bounds the stored answer, header and body, in bytes;
	// default unavez.DefaultResponseLimit, at most 16 MiB. A larger answer is
	// sent whole the first time and is not replayable.
	ResponseLimit int64
	// SpoolLimit bounds any answer of a keyed request, in bytes; default
	// DefaultSpoolLimit. What is over 1 MiB waits for the commit in a file.
	SpoolLimit int64
	// Retention and Tombstone are those of the operation; default the engine's.
	Retention time.Duration
	// Tombstone as in unavez.Operation; negative means none.
	Tombstone time.Duration
	// Limit bounds the transaction; default the engine's.
	Limit time.Duration
	// ClaimByLease is that of the operation: the engine's fast lease takes the
	// place of the claim in lease mode, under the policy unavez.Retry only. A
	// Layer follows it in its handlers of that policy; a Proxy of another policy
	// is refused.
	ClaimByLease bool
	// Wait is the longest "Prefer: wait" that is honoured; default
	// DefaultWait, negative means that nobody waits.
	Wait time.Duration
	// Fingerprint says what makes two requests with one key different.
	Fingerprint FingerprintOptions
	// Commit decides by the status whether the transaction of a plain handler
	// commits (Layer.Wrap only); nil means everything but 5xx, 408, 425 and 429.
	Commit func(status int) bool
	// Rerunnable declares that a handler may run twice for one request as long as
	// only one run's transaction commits (Layer.Handle and Layer.Wrap only); see
	// unavez.Operation.
	Rerunnable bool
	// CancelOnDisconnect cancels the handler when the client hangs up (Layer
	// only). Otherwise it runs to its end and a repeated request gets the answer;
	// only a client that hangs up before its turn gives its place up.
	CancelOnDisconnect bool
	// AuthorizeReplay, when not nil, is asked before a stored answer is sent
	// again. Its error is the answer, 403 unless an [Error] says otherwise; the
	// record is untouched.
	AuthorizeReplay func(*http.Request) error
	// IdentityHeaders lists further request headers that say who is calling. A
	// request whose Connection header names one of them, or the key, is refused:
	// a proxy on the way would strip it. Authorization, Cookie, X-Tenant,
	// X-Tenant-Id and X-Principal are always among them.
	IdentityHeaders []string
	// CORS, when not nil, puts CORS headers on the layer's own answers (Layer:
	// errors and replays; Proxy: everything, preflights included).
	CORS *CORS
	// Origin is where the operator sees that an operation came in; default the
	// pattern of the http.ServeMux that the request went through.
	Origin string
	// Docs is the page that describes the types of problems; default DefaultDocs.
	Docs string
	// Logger gets the causes of the layer's own 5xx answers; default
	// slog.Default.
	Logger *slog.Logger
	// Observe, when not nil, is told of every request that the layer answers,
	// not of those that pass through. It is called from many goroutines and must
	// not block.
	Observe func(Observation)
}

// Observation is what became of one request.
type Observation struct {
	// Request as it came in; its body has been read.
	Request *http.Request
	// Tenant and Principal are those of the scope, once they are known.
	Tenant, Principal string
	// ID names the operation in logs and for the operator: 32 hexadecimal
	// digits, never the client's own key; "" before there is a valid key.
	ID string
	// Type is one of the Saw constants or the type of the problem.
	Type string
	// Status that was answered.
	Status int
	// Duration until the answer was ready.
	Duration time.Duration
	// Err is the cause, where there is one.
	Err error
}

// What an Observation can say beside the type of a problem.
const (
	SawCompleted  = "completed"   // the first answer, committed and frozen
	SawRolledBack = "rolled-back" // an answer that is not frozen; the key is free
	SawReplayed   = "replayed"    // a frozen answer, sent again
	SawProblem    = "problem"     // a problem that has no type of the layer's own
)

// resolve copies the options, fills the defaults and reports every fault.
func (o Options) resolve(scope ScopeFunc) (Options, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	o.Required, o.Optional = methods(o.Required, o.Optional, fault)
	o.IdentityHeaders = append(identityHeaders(), o.IdentityHeaders...)
	for i, name := range o.IdentityHeaders {
		o.IdentityHeaders[i] = http.CanonicalHeaderKey(name)
	}
	defaultTo(&o.RequestLimit, unavez.DefaultRequestLimit)
	defaultTo(&o.ResponseLimit, unavez.DefaultResponseLimit)
	defaultTo(&o.SpoolLimit, DefaultSpoolLimit)
	defaultTo(&o.Wait, DefaultWait)
	defaultTo(&o.Docs, DefaultDocs)
	o.Wait = max(o.Wait, 0)
	if o.Commit == nil {
		o.Commit = commits
	}
	if scope == nil && !o.SingleTenant {
		fault("scope: no function (pass one that names tenant and principal, or declare Options.SingleTenant)")
	}
	if o.RequestLimit < 0 {
		fault("request limit: %d bytes", o.RequestLimit)
	}
	if o.ResponseLimit < 0 || o.ResponseLimit > maxResponseLimit {
		fault("response limit: %d bytes, at most %d", o.ResponseLimit, maxResponseLimit)
	}
	if o.SpoolLimit < o.ResponseLimit {
		fault("spool limit: %d bytes, less than the response limit of %d", o.SpoolLimit, o.ResponseLimit)
	}
	if o.Wait > unavez.MaxWait {
		fault("wait: %v, at most %v", o.Wait, unavez.MaxWait)
	}
	if o.Retention != 0 && (o.Retention < unavez.MinRetention || o.Retention > unavez.MaxRetention) {
		fault("retention: %v, want %v to %v", o.Retention, unavez.MinRetention, unavez.MaxRetention)
	}
	if o.Tombstone > unavez.MaxRetention {
		fault("tombstone: %v, at most %v", o.Tombstone, unavez.MaxRetention)
	}
	if o.Limit < 0 || o.Limit > unavez.MaxLimit {
		fault("limit: %v, at most %v", o.Limit, unavez.MaxLimit)
	}
	if len(o.Origin) > maxOrigin {
		fault("origin: %d bytes, at most %d", len(o.Origin), maxOrigin)
	}
	if u, err := url.Parse(o.Docs); err != nil || u.Fragment != "" || strings.ContainsAny(o.Docs, "<>\" ") {
		fault("docs: %q is no URL without a fragment", o.Docs)
	}
	if err := o.Fingerprint.validate(); err != nil {
		faults = append(faults, err)
	}
	if err := o.CORS.validate(); err != nil {
		faults = append(faults, err)
	}
	return o, errors.Join(faults...)
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// methods fills the two lists of methods.
func methods(required, optional []string, fault func(string, ...any)) (must, may []string) {
	fill := func(list, otherwise, other []string) []string {
		if list != nil {
			return slices.Clone(list)
		}
		return slices.DeleteFunc(otherwise, func(m string) bool { return slices.Contains(other, m) })
	}
	must = fill(required, []string{http.MethodPost, http.MethodPatch}, optional)
	may = fill(optional, []string{http.MethodPut, http.MethodDelete}, required)
	for _, m := range append(slices.Clone(must), may...) {
		switch m {
		case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
			fault("methods: %q takes no key", m)
		}
	}
	for _, m := range must {
		if slices.Contains(may, m) {
			fault("methods: %s is both required and optional", m)
		}
	}
	return must, may
}

// commits is the default rule: a plain handler's transaction commits unless
// the status says that nothing was done or that it may succeed later.
func commits(status int) bool { return status < 500 && !passing(status) }

// passing statuses are 4xx that the same request may get over.
func passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return false
}

func identityHeaders() []string {
	return []string{"Authorization", "Cookie", "X-Tenant", "X-Tenant-Id", "X-Principal"}
}
