package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/admin"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/framing"
	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/server/internal/orders"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// Options of [Serve]. Only Out and Log are required.
type Options struct {
	// File is the configuration. Empty means ./unavez.yaml, and the example
	// when there is none.
	File string
	// Listen and AdminListen, when not empty, take the place of the addresses
	// in the configuration.
	Listen, AdminListen string
	// Out gets the start lines for people.
	Out io.Writer
	// Log gets the log lines.
	Log io.Writer
	// Version of the binary.
	Version string
	// Reload asks for the configuration to be read again, like a change of the
	// file does; nil means only the latter.
	Reload <-chan struct{}
	// Poll is the time between looks at the file; default 2 s.
	Poll     time.Duration
	resolver *net.Resolver // of the names of targets; nil means that of the system

	// Started, when not nil, is told the addresses once both listeners take
	// connections.
	Started func(requests, admin string)
}

// process is a running server.
type process struct {
	parts
	opts      Options
	started   *config.Config // what cannot change
	site      atomic.Pointer[site]
	storage   *storage
	lease     *fastLease // nil without one
	listeners struct{ requests, admin *framing.Listener }
	level     *slog.LevelVar
	stopping  atomic.Bool
	retiring  sync.WaitGroup // intakes whose place another one has taken
}

// Serve runs until ctx ends, and then stops gracefully; an error means that it
// could not start or had to stop. See the package comment.
func Serve(ctx context.Context, o Options) error {
	if o.Poll == 0 {
		o.Poll = 2 * time.Second
	}
	loaded, err := load(&o)
	if err != nil {
		return err
	}
	p := &process{opts: o, started: loaded.config, level: &slog.LevelVar{}}
	p.resolver = o.resolver
	p.level.Set(observe.Level(loaded.config.Log.Level))
	p.log = observe.Logger(o.Log, loaded.config.Log.Format, p.level)
	if err := p.open(ctx, loaded); err != nil {
		return errors.Join(err, p.close(context.WithoutCancel(ctx)))
	}
	err = p.run(ctx, loaded)
	return errors.Join(err, p.close(context.WithoutCancel(ctx)))
}

// open makes everything that lives as long as the process.
func (p *process) open(ctx context.Context, loaded *loaded) error {
	c := loaded.config
	noted, err := examine(ctx, loaded)
	if err != nil {
		return err
	}
	if loaded.example {
		p.storage, err = openSQLite(c.Place.Path, &sqlite.Options{HandlerLimit: orders.HandlerLimit})
	} else {
		p.storage, err = openStorage(ctx, c.Place)
	}
	if err != nil {
		return err
	}
	for _, c := range noted {
		said := "what is stored may be lost"
		if c.Level == store.Accepted {
			said = "the configuration accepts what may be lost"
		}
		p.log.WarnContext(ctx, said, "check", c.Name, "level", c.Level, "value", c.Value, "why", c.Why)
	}
	p.warn(loaded)
	p.operations, p.suspects = p.storage.store, newSuspects()
	p.metrics = observe.NewMetrics(observe.Gauges{
		Counts:  p.operations.Counts,
		Queue:   p.queueCounts,
		Refused: func() float64 { return float64(p.listeners.requests.Refused()) },
		Open:    func() float64 { return float64(p.listeners.requests.Open()) },
		Version: p.opts.Version,
	})
	// Each route bounds its own operations; who is calling is the edge's affair.
	o := &unavez.Options{SingleTenant: true, Observe: p.metrics.Engine}
	if !c.Lease.Empty() {
		if p.lease, err = openLease(ctx, c.Lease, p.storage.name, p.log); p.lease == nil {
			return err
		}
		if err != nil {
			p.metrics.LeaserFailed()
		}
		o.Leaser = p.lease
	}
	if p.engine, err = p.storage.engine(o); err != nil {
		return err
	}
	if p.listeners.requests, err = listen(ctx, "listen", c.Listen, c.Limits.Connections, c.Limits.IdleTimeout); err != nil {
		return err
	}
	if p.listeners.admin, err = listen(ctx, "admin.listen", c.Admin.Listen, adminConnections, c.Limits.IdleTimeout); err != nil {
		return err
	}
	s, err := p.build(ctx, loaded)
	if err != nil {
		return err
	}
	p.site.Store(s)
	return nil
}

// adminConnections bounds the connections of the admin listener.
const adminConnections = 256

func listen(ctx context.Context, field, address string, connections int, stall time.Duration) (*framing.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (is another unavez running? choose another address)", field, err)
	}
	return framing.Listen(l, connections, stall), nil
}

// build makes the site of a configuration, or that of the example. An intake that
// the configuration does not touch goes over into it.
func (p *process) build(ctx context.Context, l *loaded) (*site, error) {
	if l.example {
		return p.example(ctx, l.config)
	}
	in := (*intake)(nil)
	if old := p.intake(); old != nil && sameReceiving(old.config, l.config) {
		in = old
	}
	if in == nil {
		var err error
		if in, err = newIntake(l.config, &p.parts, p.storage.queue()); err != nil {
			return nil, err
		}
	}
	s, err := newSite(l.config, &p.parts, in, p.intake)
	if err != nil && in != p.intake() {
		err = errors.Join(err, in.end(ctx))
	}
	return s, err
}

// intake is the one that is in place, nil if there is none.
func (p *process) intake() *intake {
	if s := p.site.Load(); s != nil {
		return s.intake
	}
	return nil
}

// queueCounts are those of the store, where something is received.
func (p *process) queueCounts(ctx context.Context) (store.QueueCounts, bool, error) {
	counter, ok := p.storage.store.(store.QueueCounter)
	if p.intake() == nil || !ok {
		return store.QueueCounts{}, false, nil
	}
	counts, err := counter.QueueCounts(ctx)
	return counts, true, err
}

// run serves until ctx ends or a listener fails.
func (p *process) run(ctx context.Context, loaded *loaded) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var background sync.WaitGroup
	up := &upkeep{parts: &p.parts, store: p.storage.store, pause: upkeepPause, probes: func(origin string) (routeProbe, bool) {
		route, ok := p.site.Load().probes[origin]
		return route, ok
	}}
	background.Go(func() { up.run(work) })
	if !loaded.example {
		background.Go(func() { p.watch(work, loaded) })
	}
	if in := p.intake(); in != nil {
		if err := in.Start(work); err != nil {
			stop()
			background.Wait()
			return err
		}
	}
	requests := p.httpServer(observe.Correlated(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.site.Load().handler.ServeHTTP(w, r)
	})))
	requests.ConnState = p.listeners.requests.Hijacked
	operators := p.httpServer(observe.Correlated(p.admin()))
	operators.WriteTimeout = time.Minute

	failed := make(chan error, 2)
	serve := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() { serve(requests, p.listeners.requests) })
	serving.Go(func() { serve(operators, p.listeners.admin) })
	p.announce(loaded)

	var err error
	select {
	case <-ctx.Done():
		p.log.Info("stopping", "within", p.site.Load().config.Limits.Drain)
	case err = <-failed:
		p.log.Error("listener failed", "error", err)
	}
	p.stopping.Store(true)
	drain, cancel := context.WithTimeout(context.Background(), p.site.Load().config.Limits.Drain)
	defer cancel()
	// Requests first: operators may still look while they end.
	err = errors.Join(err, p.shut(drain, "requests", requests))
	stop()
	background.Wait() // no configuration is taken over any more
	p.retiring.Wait()
	err = errors.Join(err, p.intake().end(drain), p.engine.Close(drain), p.shut(drain, "admin", operators))
	serving.Wait()
	if err == nil {
		p.log.Info("stopped")
	}
	return err
}

// shut ends a listener: gracefully until the drain limit, then by force. What a
// killed request had not committed never happened.
func (p *process) shut(ctx context.Context, name string, s *http.Server) error {
	err := s.Shutdown(ctx)
	if err == nil {
		return nil
	}
	p.log.Warn("connections were cut at the drain limit", "listener", name)
	return s.Close()
}

// httpServer has the limits of the configuration that the process started with.
func (p *process) httpServer(handler http.Handler) *http.Server {
	l := p.started.Limits
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: l.HeaderTimeout,
		ReadTimeout:       l.ReadTimeout,
		IdleTimeout:       l.IdleTimeout,
		MaxHeaderBytes:    int(l.HeaderSize),
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
}

// readyLimit is how long a database may take to show that it is there.
const readyLimit = 5 * time.Second

// admin makes the handler for operators.
func (p *process) admin() http.Handler {
	return admin.New(admin.Options{
		Operations: p.operations,
		Token:      func() config.Secret { return p.site.Load().config.Admin.Token },
		Keep:       func() (time.Duration, time.Duration) { return longestKept(p.site.Load().config) },
		Queue:      p.storage.received(),
		Inbox: func() admin.Inbox {
			if in := p.intake(); in != nil {
				return in
			}
			return nil
		},
		Owner: func(effect string) string { return ownerOf(p.site.Load().config, effect) },
		Ready: func(ctx context.Context) error {
			if p.stopping.Load() {
				return errors.New("stopping")
			}
			ctx, cancel := context.WithTimeout(ctx, readyLimit)
			defer cancel()
			_, err := p.operations.Counts(ctx)
			return err
		},
		Metrics: p.metrics.Handler(),
		Acted:   p.metrics.Acted,
		Logger:  p.log,
		Version: p.opts.Version,
	})
}

// ownerOf is the team that an effect's operations belong to, "" if nobody's.
func ownerOf(c *config.Config, effect string) string {
	if e := c.Effect(effect); e != nil {
		return e.Owner
	}
	return ""
}

// longestKept is how long a decision's result is kept: an operation does not
// say which route or effect it belongs to, so the longest of them.
func longestKept(c *config.Config) (retention, tombstone time.Duration) {
	retention, tombstone = unavez.DefaultRetention, unavez.DefaultTombstone
	for _, r := range c.HTTP {
		retention, tombstone = max(retention, r.Retention), max(tombstone, r.Tombstone)
	}
	for _, e := range c.Effects {
		retention, tombstone = max(retention, e.Retention), max(tombstone, e.Tombstone)
	}
	return retention, tombstone
}

// announce tells people where to go, and tests that it may begin.
func (p *process) announce(l *loaded) {
	requests, operators := p.listeners.requests.Addr().String(), p.listeners.admin.Addr().String()
	if l.example {
		exampleLines(p.opts.Out, requests, operators, l.config.Place.Path)
	}
	p.log.Info("listening", "requests", requests, "admin", operators, "version", p.opts.Version, "configuration", l.name)
	if p.opts.Started != nil {
		p.opts.Started(requests, operators)
	}
}

// close gives back what open made, as far as it came.
func (p *process) close(ctx context.Context) error {
	var faults []error
	if s := p.site.Load(); s != nil {
		s.close()
	}
	for _, l := range []*framing.Listener{p.listeners.requests, p.listeners.admin} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			faults = append(faults, err)
		}
	}
	if p.engine != nil {
		ended, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		// A second call: what has not ended by now is left to the next start.
		_ = p.engine.Close(ended)
	}
	if p.lease != nil {
		faults = append(faults, p.lease.Close())
	}
	if p.storage != nil {
		faults = append(faults, p.storage.close())
	}
	return errors.Join(faults...)
}
