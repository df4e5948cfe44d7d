package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/internal/conform"
	"github.com/unavez/unavez/store"
)

// The settings of the specification's harness.
const (
	lease          = 2 * time.Second
	limit          = 15 * time.Second
	shortLimit     = 2 * time.Second
	longRetention  = time.Hour
	shortRetention = 10 * time.Second
	retentionLimit = 5 * time.Second // transaction limit on the route of shortRetention
	requestLimit   = 64 << 10
	responseLimit  = 256 << 10
)

// app is one worker.
type app[Tx any] struct {
	*backend[Tx]
	journal *journal
	exits   *exits
	engine  *unavez.Engine[Tx]
	logger  *slog.Logger
}

// settingsOf are the options of a route.
func (a *app[Tx]) settingsOf(route string) httpkey.Options {
	o := httpkey.Options{
		RequestLimit: requestLimit, ResponseLimit: responseLimit, Limit: limit,
		Retention: longRetention, Tombstone: longRetention, Logger: a.logger,
	}
	switch route {
	case conform.RouteOptional:
		o.Required, o.Optional = []string{}, []string{http.MethodPost, http.MethodPatch}
	case conform.RouteMethods:
		o.Required = []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}
	case conform.RouteJSON:
		o.Fingerprint.JSON = true
	case conform.RouteExclude:
		o.Fingerprint.JSON = true
		o.Fingerprint.Exclude = []string{"$.meta.sentAt"}
	case conform.RouteHook:
		o.AuthorizeReplay = func(r *http.Request) error {
			caller, err := scope(r)
			if err == nil && a.journal.revoked(caller.Principal) {
				err = errors.New("revoked")
			}
			return err
		}
	case conform.RouteLimited:
		o.Limit = shortLimit
	case conform.RouteShort:
		o.Retention, o.Tombstone, o.Limit = shortRetention, shortRetention, retentionLimit
	}
	return o
}

// routes makes the handlers by route; behind is the base URL of the application
// behind the proxies. The function closes what the handlers hold.
func (a *app[Tx]) routes(behind string) (map[string]http.Handler, func(), error) {
	handlers := map[string]http.Handler{}
	for _, route := range []string{
		conform.RoutePlain, conform.RouteHandle, conform.RouteOptional, conform.RouteMethods, conform.RouteJSON,
		conform.RouteExclude, conform.RouteHook, conform.RouteLimited, conform.RouteShort, conform.RouteLease,
	} {
		o := a.settingsOf(route)
		layer, err := httpkey.New(a.engine, scope, &o)
		if err != nil {
			return nil, nil, err
		}
		switch route {
		case conform.RouteHandle:
			handlers[route] = cross(layer.Handle(a.handle))
		case conform.RouteLease:
			handlers[route] = cross(layer.Lease(unavez.Steps, a.leased))
		default:
			handlers[route] = cross(layer.Wrap(http.HandlerFunc(a.plain)))
		}
	}
	upstream, err := url.Parse(behind)
	if err != nil {
		return nil, nil, err
	}
	var proxies []*httpkey.Proxy[Tx]
	for route, unknown := range map[string]unavez.Unknown{
		conform.RouteHold: unavez.Hold, conform.RouteRetry: unavez.Retry, conform.RouteProbe: unavez.Probe(a.probe),
	} {
		o := a.settingsOf(route)
		o.CORS = &httpkey.CORS{Origins: []string{"*"}} // a proxy answers preflights itself
		proxy, err := httpkey.NewProxy(a.engine, scope, upstream, &httpkey.ProxyOptions{
			Options: o, Unknown: unknown, Lease: lease, Timeout: limit, DerivedKeyHeader: effectKeyHeader,
		})
		if err != nil {
			return nil, nil, err
		}
		proxies = append(proxies, proxy)
		handlers[route] = proxy
	}
	return handlers, func() {
		for _, p := range proxies {
			p.Close()
		}
	}, nil
}

// probe asks the fake provider.
func (a *app[Tx]) probe(_ context.Context, attempt *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
	done, err := a.journal.charged(attempt.DerivedKey())
	if err != nil || !done {
		return unavez.Result{}, unavez.NotDone, err
	}
	return unavez.Result{
		Code: http.StatusCreated, Body: []byte("charged, as the provider says"),
		Header: []store.Field{{Name: "Content-Type", Value: "text/plain; charset=utf-8"}},
	}, unavez.Done, nil
}

// scope reads "Bearer principal@tenant"; nobody checks the name.
func scope(r *http.Request) (httpkey.Scope, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		p := httpkey.Errorf(http.StatusUnauthorized, "say who is calling: Authorization: Bearer principal@tenant")
		p.Header = http.Header{"Www-Authenticate": {"Bearer"}}
		return httpkey.Scope{}, p
	}
	principal, tenant, _ := strings.Cut(token, "@")
	return httpkey.Scope{Tenant: tenant, Principal: principal}, nil
}

// principalOf is the caller of an operation.
func principalOf(id store.Identity) string {
	if len(id.Parts) == 0 {
		return ""
	}
	return id.Parts[0]
}

// handler is everything in front of the routes: control endpoints, recovery,
// the plan.
func (a *app[Tx]) handler(routes map[string]http.Handler) http.Handler {
	names := []string{}
	for name := range routes {
		names = append(names, name)
	}
	slices.Sort(names)
	mux := http.NewServeMux()
	a.control(mux, names)
	mux.HandleFunc(conform.PathWork+"{op...}", func(w http.ResponseWriter, r *http.Request) {
		r, err := a.withPlan(r)
		if err != nil {
			problem(w, err)
			return
		}
		p := plannedOf(r.Context())
		route, _, _ := strings.Cut(p.op, "/")
		serve := routes[route]
		if serve == nil {
			serve = routes[conform.RoutePlain]
		}
		serve.ServeHTTP(&dying{ResponseWriter: w, exits: a.exits, planned: p}, r)
	})
	return recovered(mux)
}

// withPlan puts the plan of the request's path into its context.
func (a *app[Tx]) withPlan(r *http.Request) (*http.Request, error) {
	op := strings.TrimPrefix(r.URL.Path, conform.PathWork)
	plan, err := a.journal.plan(op)
	if err != nil {
		return nil, err
	}
	return r.WithContext(context.WithValue(r.Context(), planKey{}, planned{op: op, plan: plan})), nil
}

// dying is a response that kills its worker before the first byte.
type dying struct {
	http.ResponseWriter
	exits   *exits
	planned planned
}

// WriteHeader dies where the plan says so.
func (d *dying) WriteHeader(status int) {
	d.exits.at(d.planned, conform.ExitBeforeWrite)
	d.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (d *dying) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// recovered is the outer recovery of the application.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				http.Error(w, "the handler panicked", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// cross is the CORS middleware of the application, outside the layer: any
// origin, without credentials.
func cross(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", "*")
			h.Set("Access-Control-Expose-Headers", "Idempotent-Replayed, Retry-After, Link, Location")
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				h.Del("Access-Control-Expose-Headers")
				h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
				h.Set("Access-Control-Allow-Headers", "Content-Type, Authorization, Idempotency-Key, Prefer")
				h.Set("Access-Control-Max-Age", "600")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
