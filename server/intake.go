package server

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/server/internal/answer"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/keys"
	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/server/internal/outbound"
	"github.com/unavez/unavez/server/internal/probe"
	rules "github.com/unavez/unavez/server/internal/rule"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// running is an inbox.Inbox, whatever its transactions are.
type running interface {
	Receiver() *inbox.Receiver
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Wake()
	Redrive(ctx context.Context, r inbox.Redrive) (inbox.Redriven, error)
}

// effect is an inbox.Effect without the type of its transaction.
type effect struct {
	name                               string
	sources                            []string
	when                               func(*inbox.Event) (bool, error)
	key, orderBy                       func(*inbox.Event) ([]string, error)
	version                            func(*inbox.Event) (string, error)
	contiguous                         bool
	gapWait                            time.Duration
	run                                inbox.Run
	unknown                            unavez.Unknown
	retry                              inbox.Retry
	owner                              string
	limit, lease, retention, tombstone time.Duration
}

// effectsOf are the effects for an engine's transactions.
func effectsOf[Tx any](list []effect) []inbox.Effect[Tx] {
	all := make([]inbox.Effect[Tx], len(list))
	for i, e := range list {
		all[i] = inbox.Effect[Tx]{
			Name: e.name, Sources: e.sources, When: e.when, Key: e.key, OrderBy: e.orderBy, Version: e.version, Contiguous: e.contiguous, GapWait: e.gapWait,
			Run: e.run, Unknown: e.unknown, Retry: e.retry, Owner: e.owner,
			Limit: e.limit, Lease: e.lease, Retention: e.retention, Tombstone: e.tombstone,
		}
	}
	return all
}

// inbox makes an inbox over the engine and the queue of its store.
func (e engineOf[Tx]) inbox(queue store.Queue, sources []inbox.Source, effects []effect, o *inbox.Options) (running, error) {
	in, err := inbox.New(e.Engine, queue, sources, effectsOf[Tx](effects), o)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// once runs an operation of the server's own in lease mode.
func (e engineOf[Tx]) once(ctx context.Context, op unavez.Operation, run func(context.Context, *unavez.Attempt) (unavez.Result, error)) (unavez.Outcome, error) {
	return e.Lease(ctx, op, run, nil)
}

// intake is the inbox of one configuration: what its sources receive and what
// becomes of it. It outlives a reload that does not touch it; another one takes
// its place while it ends what it has begun.
type intake struct {
	running
	config  *config.Config
	secrets atomic.Pointer[map[string]source.Config] // by source
	alerts  *alerter
	close   func()

	mu      sync.Mutex
	inside  int           // requests on their way
	leaving bool          // no further ones
	emptied chan struct{} // closed when leaving and none is inside
}

// newIntake makes the inbox of a configuration, nil where it has no sources. It
// is not started.
func newIntake(c *config.Config, p *parts, q store.Queue) (*intake, error) {
	if len(c.Sources) == 0 {
		return nil, nil
	}
	if q == nil {
		return nil, errors.New("sources: this store has no queue")
	}
	transport := p.transport(c)
	client := outbound.Client(transport)
	in := &intake{config: c, close: transport.CloseIdleConnections, emptied: make(chan struct{})}
	in.keep(c, issuers(c, client))
	in.alerts = newAlerter(c, client, p)
	sources := make([]inbox.Source, len(c.Sources))
	for i := range c.Sources {
		sources[i] = in.source(c, &c.Sources[i], client)
	}
	var faults []error
	effects := make([]effect, len(c.Effects))
	for i := range c.Effects {
		var err error
		if effects[i], err = in.effect(c, &c.Effects[i], client, p); err != nil {
			faults = append(faults, fmt.Errorf("effects[%d]: %w", i, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	o := &inbox.Options{
		Worker: c.Inbox.Worker, Lease: c.Inbox.Lease, Flush: c.Inbox.Flush, FlushSize: c.Inbox.FlushSize, Poll: c.Inbox.Poll,
		Concurrency: c.Inbox.Concurrency, Window: c.Inbox.Window, Retention: c.Inbox.Retention, Tombstone: c.Inbox.Tombstone,
		Log: p.log, Alert: in.alerts.tell,
		Observe: func(s inbox.Sight) {
			p.metrics.Sight(s)
			observe.Delivery(p.log, s)
		},
	}
	if o.Worker != "" && p.generation.Add(1) > 1 { // the one before still has lanes
		o.Worker = fmt.Sprintf("%s.%d", o.Worker, p.generation.Load())
	}
	var err error
	if in.running, err = p.engine.inbox(q, sources, effects, o); err != nil {
		return nil, err
	}
	return in, nil
}

// issuers has the keys of those that the sources trust, nil where none does.
func issuers(c *config.Config, client *http.Client) func(context.Context, string, string) (crypto.PublicKey, error) {
	addresses := map[string]string{}
	for i := range c.Sources {
		if e := c.Sources[i].Entra; e != nil {
			for _, issuer := range e.Issuers {
				if addresses[issuer] = e.Keys; e.Keys == "" {
					addresses[issuer] = config.KeysOf(issuer)
				}
			}
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	return keys.New(client, addresses, time.Now).Key
}

// keep stores what the contracts are asked with: secrets may be replaced while
// requests arrive.
func (in *intake) keep(c *config.Config, key func(context.Context, string, string) (crypto.PublicKey, error)) {
	all := map[string]source.Config{}
	for i := range c.Sources {
		s := &c.Sources[i]
		all[s.Name] = source.Config{Secrets: config.Ready(s.Secrets), Tolerance: s.Tolerance, Keys: key, URL: s.URL}
	}
	in.secrets.Store(&all)
}

// rotate takes the secrets of another configuration over that is alike in
// everything else that is received.
func (in *intake) rotate(next *config.Config) {
	var key func(context.Context, string, string) (crypto.PublicKey, error)
	for _, c := range *in.secrets.Load() {
		key = c.Keys
	}
	in.keep(next, key)
}

// sameReceiving reports whether two configurations receive and run alike, but
// for the secrets of sources.
func sameReceiving(a, b *config.Config) bool { return reflect.DeepEqual(receiving(a), receiving(b)) }

// receiving is what of a configuration an intake is made of, without what it can
// take over and without what is compiled.
func receiving(c *config.Config) any {
	sources, effects := slices.Clone(c.Sources), slices.Clone(c.Effects)
	for i := range sources {
		s := &sources[i]
		s.Secrets, s.Made, s.TenantRule, s.SubjectRule = nil, nil, nil, nil
		s.Reconcile = slices.Clone(s.Reconcile)
		for j := range s.Reconcile {
			s.Reconcile[j].Listing = nil
		}
	}
	for i := range effects {
		e := &effects[i]
		e.WhenRule, e.KeyRule, e.OrderRule, e.VersionRule = nil, nil, nil, nil
	}
	return []any{sources, effects, c.Alerts, c.Inbox, c.Outbound}
}

// source is one sender as the inbox wants it.
func (in *intake) source(c *config.Config, s *config.Source, client *http.Client) inbox.Source {
	made := inbox.Source{
		Name: s.Name, Contract: s.Made, Tenant: s.Tenant, Types: s.Types, Mask: s.Mask, Erase: s.Erase,
		BodyLimit: int64(s.BodyLimit), PlainLimit: int64(s.PlainLimit), Silence: s.Silence,
		ConfigFunc: func() source.Config { return (*in.secrets.Load())[s.Name] },
	}
	if len(s.Schemas) > 0 {
		made.Schemas = map[string][]byte{}
		for kind, text := range s.Schemas {
			made.Schemas[kind] = []byte(text)
		}
	}
	language := c.Language()
	if rule := s.TenantRule; rule != nil {
		made.TenantFunc = func(e *source.Event) (string, error) { return rule.Of(rules.OfMessage(s.Name, e)) }
	}
	if parts := s.SubjectRule; len(parts) > 0 {
		made.SubjectFunc = func(e *inbox.Event) ([]string, error) { return parts.Of(language.Scope(e)) }
	}
	if s.Fetch != nil {
		made.Fetch = fetcher(s.Fetch, int64(s.PlainLimit), client)
	}
	for i := range s.Reconcile {
		r := &s.Reconcile[i]
		made.Polls = append(made.Polls, inbox.Poll{
			Name: r.Name, Listing: r.Listing, Base: r.URL, Client: client, Interval: r.Interval, Overlap: r.Overlap, Back: r.Back, Timeout: r.Timeout,
			Authorize: func(request *http.Request) error {
				request.Header.Set("User-Agent", userAgent)
				for name, value := range r.Headers {
					request.Header.Set(name, value.Reveal())
				}
				return nil
			},
		})
	}
	return made
}

// userAgent of the calls that the server makes by itself, where no header names another.
const userAgent = "unavez"

// effect is one effect as the inbox wants it.
func (in *intake) effect(c *config.Config, e *config.Effect, client *http.Client, p *parts) (effect, error) {
	language := c.Language()
	made := effect{
		name: e.Name, sources: append([]string{}, e.Wants...), contiguous: e.Contiguous, owner: e.Owner, unknown: unavez.Hold,
		retry: inbox.Retry{First: e.Retry.First, Longest: e.Retry.Longest, Attempts: e.Retry.Attempts, Age: e.Retry.Age},
		limit: e.Limit, lease: e.Lease, retention: e.Retention, tombstone: e.Tombstone,
	}
	if e.Contiguous {
		made.gapWait = e.GapWait
	}
	if rule := e.WhenRule; rule != nil {
		made.when = func(event *inbox.Event) (bool, error) { return rule.Holds(language.Scope(event)) }
	}
	if parts := e.KeyRule; len(parts) > 0 {
		made.key = func(event *inbox.Event) ([]string, error) { return parts.Of(language.Scope(event)) }
	}
	if parts := e.OrderRule; len(parts) > 0 {
		made.orderBy = func(event *inbox.Event) ([]string, error) { return parts.Of(language.Scope(event)) }
	}
	if rule := e.VersionRule; rule != nil {
		made.version = func(event *inbox.Event) (string, error) { return rule.Of(language.Scope(event)) }
	}
	switch e.Unknown {
	case "retry":
		made.unknown = unavez.Retry
	case "probe":
		asker, err := probe.New(*e.Probe, client, time.Now)
		if err != nil {
			return effect{}, err
		}
		made.unknown = foreground(asker, p)
	}
	var err error
	made.run, err = inbox.Deliver(inbox.DeliverOptions{
		URL: e.Send.URL, Client: client, Secrets: signing(e.Send.Secrets), Header: headerOf(e.Send.Headers), Timeout: e.Send.Timeout,
		Done: e.Send.Done, NotDone: notDone(e.Send.NotDone),
		Forbidden: func(err error) bool { return errors.Is(err, outbound.ErrRefused) },
		Alert: func(condition inbox.Condition) {
			condition.Effect, condition.Owner = e.Name, e.Owner
			in.alerts.tell(condition)
		},
	})
	return made, err
}

// notDone are the statuses that say that nothing was done; nil is what an
// application says without being asked.
func notDone(list []int) []int {
	if len(list) == 0 {
		return nil
	}
	return append([]int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}, list...)
}

func signing(list []config.Secret) []source.Secret {
	all := make([]source.Secret, len(list))
	for i, s := range list {
		all[i] = source.NewSecret(fmt.Sprint(i+1), s.Reveal())
	}
	return all
}

func headerOf(list map[string]config.Secret) http.Header {
	h := http.Header{"User-Agent": {userAgent}}
	for name, value := range list {
		h.Set(name, value.Reveal())
	}
	return h
}

// fetcher reads the resources of hints below the base of a sender's API.
func fetcher(f *config.Fetch, limit int64, client *http.Client) func(context.Context, *inbox.Event, string) (int, string, []byte, error) {
	return func(ctx context.Context, e *inbox.Event, path string) (int, string, []byte, error) {
		headers := maps.Clone(f.Headers)
		if len(f.Tenants) > 0 {
			own, ok := f.Tenants[e.Tenant]
			if !ok && len(f.Headers) == 0 {
				return 0, "", nil, unavez.Dead(errors.New("fetch: the configuration has no headers for this tenant (add it to fetch.tenants, then redrive)"))
			}
			if headers == nil {
				headers = map[string]config.Secret{}
			}
			maps.Copy(headers, own)
		}
		ctx, cancel := context.WithTimeout(ctx, f.Timeout)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, trimSlash(f.URL)+path, nil)
		if err != nil {
			return 0, "", nil, unavez.Dead(errors.New("fetch: the address of the resource is none"))
		}
		request.Header = headerOf(headers)
		request.Header.Set("Accept", "application/json")
		response, err := client.Do(request)
		switch {
		case errors.Is(err, outbound.ErrRefused):
			return 0, "", nil, unavez.Dead(fmt.Errorf("fetch: %w", plainError(err)))
		case err != nil:
			return 0, "", nil, fmt.Errorf("fetch: %w", plainError(err))
		}
		defer response.Body.Close()
		status := response.StatusCode
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			if after, ok := retryAfter(response.Header, time.Now()); ok {
				return status, "", nil, unavez.Again(fmt.Errorf("fetch: status %d", status), after)
			}
		}
		body, err := answer.ReadBody(response.Body, limit)
		if err != nil {
			return status, "", nil, fmt.Errorf("fetch: %w", err)
		}
		return status, response.Header.Get("Content-Type"), body, nil
	}
}

// enter lets a request in, unless the intake is being left.
func (in *intake) enter() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.leaving {
		return false
	}
	in.inside++
	return true
}

func (in *intake) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.inside--
	in.empties()
}

// empties tells when the last request has gone. The mutex is held.
func (in *intake) empties() {
	if in.leaving && in.inside == 0 {
		select {
		case <-in.emptied:
		default:
			close(in.emptied)
		}
	}
}

// deliveries receives those of a source, on the intake that is in place.
func deliveries(name string, current func() *intake) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := current()
		for in != nil && !in.enter() {
			if next := current(); next != in { // it was replaced in this moment
				in = next
				continue
			}
			in = nil // the process stops
		}
		if in == nil {
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer in.leave()
		r.Header.Set("X-Correlation-Id", observe.Correlation(r.Context()))
		in.Receiver().Handler(name).ServeHTTP(w, r)
	})
}

// end lets what is inside come to its end, hands the lanes back and gives the
// rest up. Calling it on nil does nothing.
func (in *intake) end(ctx context.Context) error {
	if in == nil {
		return nil
	}
	in.mu.Lock()
	in.leaving = true
	in.empties()
	in.mu.Unlock()
	select {
	case <-in.emptied:
	case <-ctx.Done():
	}
	err := in.Stop(ctx)
	in.alerts.stop(ctx)
	in.close()
	return err
}
