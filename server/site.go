package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/server/internal/auth"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/server/internal/outbound"
	"github.com/unavez/unavez/server/internal/probe"
	"github.com/unavez/unavez/store"
)

// site is one configuration made into a handler.
type site struct {
	config  *config.Config
	handler http.Handler
	probes  map[string]routeProbe // by route
	intake  *intake               // nil where nothing is received
	close   func()                // of all but the intake, which the next site may have
}

// routeProbe is the probe of one route, with what the background needs to act
// on its answer.
type routeProbe struct {
	asker                *probe.Asker
	retention, tombstone time.Duration
}

// parts are what every site of a process shares.
type parts struct {
	engine     engine
	operations store.Operations
	metrics    *observe.Metrics
	log        *slog.Logger
	suspects   *suspects
	generation atomic.Int64  // of intakes with a name of their own
	resolver   *net.Resolver // of the names of targets; nil means that of the system
}

// transport is for every call that a configuration makes the server make.
func (p *parts) transport(c *config.Config) *http.Transport {
	policy := c.Outbound.Policy()
	policy.Resolver = p.resolver
	return outbound.Transport(policy)
}

// waitFloor is what a keyed request may take beside the work itself: waiting
// for the one in flight, probing, and sending the answer to a slow client.
const waitFloor = httpkey.DefaultWait + time.Minute

// newSite wires one configuration. Its sources receive on the intake that is
// current when a delivery arrives.
func newSite(c *config.Config, p *parts, in *intake, current func() *intake) (*site, error) {
	transport := p.transport(c)
	client := outbound.Client(transport)
	closers := []func(){transport.CloseIdleConnections}
	s := &site{config: c, probes: map[string]routeProbe{}, intake: in, close: func() {
		for _, f := range closers {
			f()
		}
	}}
	scope := auth.Scope(c.Auth, client)
	mux := http.NewServeMux()
	preflights := map[string]http.Handler{}
	for i := range c.HTTP {
		route := &c.HTTP[i]
		proxy, asker, err := newProxy(c, route, scope, client, transport, p)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("http[%d]: %w", i, err)
		}
		closers = append(closers, proxy.Close)
		if asker != nil {
			s.probes[route.Route] = routeProbe{asker, route.Retention, route.Tombstone}
		}
		handler := within(route, p.log, proxy)
		mux.Handle(route.Route, handler)
		if _, path, ofMethod := strings.Cut(route.Route, " "); ofMethod && route.CORS != nil {
			if _, ok := preflights[path]; !ok {
				preflights[strings.TrimSpace(path)] = handler
			}
		}
	}
	for i := range c.Sources {
		mux.Handle(c.Sources[i].Path, deliveries(c.Sources[i].Name, current))
	}
	for path, handler := range preflights {
		register(mux, "OPTIONS "+path, handler)
	}
	s.handler = routed(mux, p.log)
	return s, nil
}

// routed answers what no route takes as everything else is answered, with a
// problem and a line in the log.
func routed(mux *http.ServeMux, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		said := &written{header: http.Header{}, status: http.StatusOK}
		refuse.ServeHTTP(said, r) // 404, or 405 with Allow
		if said.status < 400 {    // the way to the path in its clean form
			refuse.ServeHTTP(w, r)
			return
		}
		detail := "No route of this server has this path."
		if said.status == http.StatusMethodNotAllowed {
			w.Header()["Allow"] = said.header["Allow"]
			detail = "The routes of this path take other methods."
		}
		log.LogAttrs(r.Context(), slog.LevelInfo, "request",
			slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", said.status),
			slog.String("state", "no-route"), slog.String("correlation", observe.Correlation(r.Context())))
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(said.status)
		_ = json.NewEncoder(w).Encode(map[string]any{ // the client has gone if it fails
			"type": "about:blank", "title": http.StatusText(said.status), "status": said.status, "detail": detail,
		})
	})
}

// register adds a pattern unless the configuration has it already.
func register(mux *http.ServeMux, pattern string, handler http.Handler) {
	defer func() { _ = recover() }() // net/http panics for a pattern it has
	mux.Handle(pattern, handler)
}

// newProxy makes the proxy of one route.
func newProxy(c *config.Config, route *config.Route, scope httpkey.ScopeFunc, client *http.Client, transport *http.Transport, p *parts) (proxy, *probe.Asker, error) {
	o := &httpkey.ProxyOptions{
		Options: httpkey.Options{
			SingleTenant:  c.Auth.SingleTenant,
			Required:      route.Methods,
			Optional:      []string{},
			RequestLimit:  int64(route.RequestLimit),
			ResponseLimit: int64(route.ResponseLimit),
			Retention:     route.Retention,
			Tombstone:     route.Tombstone,
			Limit:         route.Limit,
			Wait:          route.Wait,
			ClaimByLease:  route.Claim == "lease",
			Fingerprint:   httpkey.FingerprintOptions{JSON: route.Fingerprint.JSON, Include: route.Fingerprint.Include, Exclude: route.Fingerprint.Exclude},
			Docs:          c.DocsURL,
			Origin:        route.Route,                   // by which the background finds the route's probe
			Logger:        slog.New(slog.DiscardHandler), // causes are in the line that access writes
		},
		Lease:            route.Lease,
		Timeout:          route.Timeout,
		NotDone:          append([]int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}, route.NotDone...),
		Final:            route.Final,
		DerivedKeyHeader: route.DerivedKeyHeader,
		Dial:             transport.DialContext, // with the check of the address
	}
	if route.Key == "optional" {
		o.Required, o.Optional = []string{}, route.Methods
	}
	if route.Tombstone == 0 {
		o.Tombstone = -1
	}
	if route.Wait == 0 {
		o.Wait = -1
	}
	if c.Auth.Mode == "forward" {
		o.IdentityHeaders = []string{c.Auth.TenantHeader, c.Auth.PrincipalHeader}
	}
	if c.Auth.Mode == "credential" && c.Auth.Cookie == "" {
		o.IdentityHeaders = append(o.IdentityHeaders, "Authorization")
	}
	if names := c.Auth.Identify; names != (config.Identify{}) {
		o.Identify = func(header http.Header, caller httpkey.Scope) {
			for name, value := range map[string]string{names.Tenant: caller.Tenant, names.Principal: caller.Principal} {
				if name != "" {
					header.Set(name, value)
				}
			}
		}
		for _, name := range []string{names.Tenant, names.Principal} {
			if name != "" {
				o.IdentityHeaders = append(o.IdentityHeaders, name)
			}
		}
	}
	if cors := route.CORS; cors != nil {
		o.CORS = &httpkey.CORS{Origins: cors.Origins, Credentials: cors.Credentials, Headers: cors.Headers, MaxAge: cors.MaxAge}
	}
	var asker *probe.Asker
	switch route.Unknown {
	case "retry":
		o.Unknown = unavez.Retry
	case "probe":
		var err error
		if asker, err = probe.New(*route.Probe, client, time.Now); err != nil {
			return nil, nil, err
		}
		o.Unknown = foreground(asker, p)
	default:
		o.Unknown = unavez.Hold
	}
	o.Observe = func(seen httpkey.Observation) {
		p.metrics.Request(seen)
		access(p.log, route.Route, seen)
		if asker == nil || seen.Type != string(unavez.CodeUnknown) {
			return
		}
		if key, err := store.ParseKey(seen.ID); err == nil {
			p.suspects.add(key, route.Route)
		}
	}
	made, err := p.engine.proxy(scope, route.Target, o)
	return made, asker, err
}

// access writes the one line of a keyed request. It names the operation by its
// key's hash, never by what the client sent.
func access(log *slog.Logger, route string, seen httpkey.Observation) {
	ctx := seen.Request.Context()
	attrs := []slog.Attr{
		slog.String("route", route), slog.String("method", seen.Request.Method),
		slog.Int("status", seen.Status), slog.String("state", seen.Type), slog.Float64("duration_ms", float64(seen.Duration.Microseconds())/1000),
		slog.String("correlation", observe.Correlation(ctx)),
	}
	if seen.ID != "" {
		attrs = append(attrs, slog.String("tenant", seen.Tenant), slog.String("operation", seen.ID))
	}
	if d := observe.Duplicate(seen); d != "" {
		attrs = append(attrs, slog.String("duplicate", d))
	}
	level := slog.LevelInfo
	if seen.Status >= 500 || observe.LostAnswer(seen) {
		level = slog.LevelWarn
		if seen.Err != nil {
			attrs = append(attrs, slog.String("error", causeText(seen.Err)))
		}
	}
	log.LogAttrs(ctx, level, "request", attrs...)
}

// causeText is an error without the name of its operation, which holds the
// client's key; the line has the code already.
func causeText(err error) string {
	var e *unavez.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	if e != nil {
		return string(e.Code)
	}
	return err.Error()
}

// within bounds what a request of a route may take. The time for reading is
// that of the listener until the body has arrived; then the client may wait as
// long as the work takes. Time for writing is bounded where the answer is: a
// request without a key may stream.
func within(route *config.Route, log *slog.Logger, next http.Handler) http.Handler {
	longest := max(route.Timeout, route.Limit) + waitFloor
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		whole := func() {
			if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
				log.DebugContext(r.Context(), "read deadline", "error", err)
			}
		}
		if slices.Contains(route.Methods, r.Method) {
			if err := control.SetWriteDeadline(time.Now().Add(longest)); err != nil {
				log.DebugContext(r.Context(), "write deadline", "error", err)
			}
		}
		if r.Body == nil || r.Body == http.NoBody {
			whole()
		} else {
			r.Body = &arriving{ReadCloser: r.Body, whole: whole}
		}
		next.ServeHTTP(w, r)
	})
}

// arriving is a body that tells when it has arrived.
type arriving struct {
	io.ReadCloser
	whole func()
	once  sync.Once
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	// Only the whole body ends its time limit: net/http reads on after an
	// error, to use the connection again.
	if err == io.EOF {
		a.once.Do(a.whole)
	}
	return n, err
}
