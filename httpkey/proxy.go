package httpkey

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"time"

	"github.com/unavez/unavez"
)

// Defaults of a proxy.
const (
	// DefaultTimeout bounds one attempt at the upstream.
	DefaultTimeout = 60 * time.Second
	// DefaultDialTimeout bounds the making of a connection, TLS included.
	DefaultDialTimeout = 10 * time.Second
)

// ProxyOptions of a [Proxy]. The zero value of every field but Unknown means
// its default.
type ProxyOptions struct {
	// Options in common with a Layer. Commit and CancelOnDisconnect mean
	// nothing here: an attempt that was sent is waited for.
	Options
	// Unknown is what happens when an attempt ended without telling whether
	// the application did it: unavez.Hold, unavez.Retry or an unavez.Probe.
	// Required: there is no safe default.
	Unknown unavez.Unknown
	// Lease is the length of the lease of an attempt, renewed while it runs;
	// default the engine's.
	Lease time.Duration
	// Timeout bounds one attempt, from the dial to the end of the answer, and
	// for requests that are not keyed the time to the answer's head; default
	// DefaultTimeout.
	Timeout time.Duration
	// NotDone lists the upstream statuses that declare that nothing was done:
	// the answer is passed on and the key is free. nil means 408, 425 and 429.
	NotDone []int
	// Final lists the 5xx statuses that declare that the application is done
	// with the request for good: they are frozen. Any other 5xx leaves the
	// operation unknown.
	Final []int
	// DerivedKeyHeader, when not empty, carries the operation's derived key to
	// the upstream, which is unique over tenants and principals where the
	// client's own key is not. "Idempotency-Key" replaces the client's.
	DerivedKeyHeader string
	// Identify, when not nil, writes who is calling into the request to the
	// upstream, keyed or not, after the client's own identity headers (but for
	// Authorization and Cookie) have been taken out.
	Identify func(header http.Header, caller Scope)
	// PreserveHost sends the client's Host to the upstream instead of the
	// upstream's own.
	PreserveHost bool
	// Reuse keeps connections of keyed requests open. Without it each keyed
	// request has a connection of its own, so that a connection that dies
	// while idle cannot make an operation unknown.
	Reuse bool
	// Dial makes connections to the upstream; default a net.Dialer with
	// DefaultDialTimeout. No proxy of the environment is used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is the client configuration for an https upstream; default the
	// system's roots and TLS 1.2 and up.
	TLS *tls.Config
}

// Proxy stands in front of an HTTP application in any language and makes its
// keyed requests take effect once, in lease mode: at most one attempt whose end
// is not known, and then the policy. It is safe for concurrent use.
type Proxy[Tx any] struct {
	engine *unavez.Engine[Tx]
	edge   *edge
	front
}

// front is the side of a proxy that looks at the upstream.
type front struct {
	ProxyOptions
	upstream *url.URL
	keyed    *http.Transport
	plain    *httputil.ReverseProxy
	open     *http.Transport
}

// NewProxy makes a proxy in front of upstream, an http or https URL whose path
// comes before that of the request. The scope function may be nil only with
// Options.SingleTenant. Close the proxy when done.
func NewProxy[Tx any](engine *unavez.Engine[Tx], scope ScopeFunc, upstream *url.URL, opts *ProxyOptions) (*Proxy[Tx], error) {
	var o ProxyOptions
	if opts != nil {
		o = *opts
	}
	o.CancelOnDisconnect = false
	e, err := newEdge(scope, o.Options)
	faults := []error{err}
	if engine == nil {
		faults = append(faults, errors.New("engine: none (make one with unavez.New)"))
	} else {
		faults = append(faults, oneTenant(o.Options, engine.SingleTenant()))
	}
	if upstream == nil || upstream.Scheme != "http" && upstream.Scheme != "https" || upstream.Host == "" {
		faults = append(faults, errors.New("upstream: want an http or https URL with a host"))
	}
	faults = append(faults, o.resolve()...)
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("httpkey: proxy: %w", err)
	}
	p := &Proxy[Tx]{engine: engine, edge: e, front: front{ProxyOptions: o, upstream: upstream}}
	p.Options = e.Options
	p.keyed = p.transport()
	p.keyed.DisableKeepAlives = !o.Reuse
	p.open = p.transport()
	p.open.ResponseHeaderTimeout = p.Timeout
	p.plain = p.reverse(e)
	return p, nil
}

// resolve fills the defaults and reports every fault of the proxy's own options.
func (o *ProxyOptions) resolve() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	switch policy := o.Unknown.(type) {
	case nil:
		fault("unknown: no policy (declare unavez.Hold, unavez.Retry or an unavez.Probe)")
	case unavez.Policy:
		if policy != unavez.Hold && policy != unavez.Retry {
			fault("unknown: %v is no policy of a proxy", policy)
		}
	case unavez.Probe:
		if policy == nil {
			fault("unknown: the probe is nil")
		}
	}
	if o.ClaimByLease && o.Unknown != unavez.Unknown(unavez.Retry) {
		fault("claim by lease: only for what is declared repeatable (set Unknown to unavez.Retry)")
	}
	defaultTo(&o.Timeout, DefaultTimeout)
	if o.Timeout < 0 {
		fault("timeout: %v", o.Timeout)
	}
	if o.Lease < 0 || o.Lease > unavez.MaxLease {
		fault("lease: %v, at most %v", o.Lease, unavez.MaxLease)
	}
	if o.NotDone == nil {
		o.NotDone = []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}
	}
	for _, status := range o.NotDone {
		if status < 400 || status > 599 {
			fault("not done: status %d is no refusal", status)
		}
		if slices.Contains(o.Final, status) {
			fault("status %d is both not done and final", status)
		}
	}
	for _, status := range o.Final {
		if status < 500 || status > 599 {
			fault("final: status %d is no 5xx", status)
		}
	}
	return faults
}

// Close closes the idle connections to the upstream.
func (p *Proxy[Tx]) Close() {
	p.front.keyed.CloseIdleConnections()
	p.open.CloseIdleConnections()
}

// ServeHTTP passes one request to the upstream, once if it is keyed.
func (p *Proxy[Tx]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.CORS != nil && isPreflight(r) {
		p.CORS.preflight(w, r)
		return
	}
	if !p.edge.keyed(r) {
		p.pass(p.edge, w, r)
		return
	}
	x := &exchange{}
	problem := x.admit(p.edge, w, r)
	if problem == nil {
		problem = pathProblem(r)
	}
	if problem != nil {
		x.fail(problem)
		return
	}
	x.op.Unknown, x.op.Lease, x.op.ClaimByLease = p.Unknown, p.Lease, p.ClaimByLease
	var got *answer
	defer func() {
		if got != nil {
			got.body.close()
		}
	}()
	// Detached: an attempt that has begun is waited for, since its end must be known.
	out, err := p.engine.Lease(r.Context(), x.op, func(ctx context.Context, _ *unavez.Attempt) (unavez.Result, error) {
		a, err := p.attempt(ctx, x)
		if err != nil {
			return unavez.Result{}, err
		}
		got = a
		p.undress(a.header)
		return p.classify(a, x.ResponseLimit)
	}, nil)
	p.end(x, got, out, err)
}

// end answers by what became of the operation.
func (p *Proxy[Tx]) end(x *exchange, got *answer, out unavez.Outcome, err error) {
	var refused *upstreamAnswer
	var dead *notSent
	switch {
	case err == nil && (out.Replayed || got == nil):
		x.replays(out.Result)
	case got != nil && got.lost && (err == nil || errors.As(err, &refused)):
		x.fail(layerProblem(http.StatusBadGateway, TypeAnswerTooLarge, "The application has answered; its answer is too large to be passed on.", err))
	case err == nil, errors.As(err, &refused):
		// The application's own answer, whatever is recorded: frozen, key free
		// or unknown.
		what := SawCompleted
		if err != nil {
			what = SawRolledBack
			if unavez.CodeOf(err) == unavez.CodeUnknown {
				what = string(unavez.CodeUnknown)
			}
		}
		p.dress(got.header, x.r)
		x.sends(got, what, err)
	case errors.As(err, &dead) && unavez.CodeOf(err) == unavez.CodeInternal:
		problem := layerProblem(http.StatusServiceUnavailable, TypeUpstreamDown, "This attempt has sent nothing. Repeat the request with the same key.", err)
		problem.Header = http.Header{"Retry-After": {"1"}}
		x.fail(problem)
	default:
		problem := engineProblem(err)
		if _, held := p.Unknown.(unavez.Policy); unavez.CodeOf(err) == unavez.CodeUnknown && (!held || p.Unknown == unavez.Retry) {
			problem.nextDecides()
		}
		x.fail(problem)
	}
}

// upstreamAnswer is the error of an attempt whose answer is passed on and not
// frozen.
type upstreamAnswer struct{ status int }

func (u *upstreamAnswer) Error() string { return fmt.Sprintf("the application answered %d", u.status) }

// classify says what an upstream answer means for the operation.
func (f *front) classify(a *answer, limit int64) (unavez.Result, error) {
	switch {
	case a.status < 200 || a.status > 599:
		return unavez.Result{}, fmt.Errorf("the application answered %d, which is no final status", a.status)
	case slices.Contains(f.NotDone, a.status):
		return unavez.Result{}, unavez.NeverStarted(&upstreamAnswer{a.status})
	case a.status < 500, slices.Contains(f.Final, a.status):
		return a.freeze(nil, limit), nil
	}
	return unavez.Result{}, &upstreamAnswer{a.status}
}
