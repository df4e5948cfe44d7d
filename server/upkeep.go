package server

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/server/internal/probe"
	"github.com/unavez/unavez/store"
)

// Sizes and pauses of the upkeep. The batches are small so that a request never
// waits for one.
const (
	purgeBatch   = 200
	expireBatch  = 100
	maxSuspects  = 10_000
	upkeepPause  = 2 * time.Second
	purgePause   = 10 * time.Millisecond
	idlePurges   = 15  // pauses between purges that find nothing
	idleScans    = 150 // pauses between looks for what is unknown
	scanPage     = 500
	maxProbeWait = 5 * time.Minute
)

// suspect is an unknown operation of a route with a probe.
type suspect struct {
	key    store.Key
	origin string // the route it came in by
	due    time.Time
	wait   time.Duration
}

// suspects are what is to be probed in the background: what this process saw
// become unknown, what a dead worker left behind, and what the store knew at
// the start.
type suspects struct {
	mu   sync.Mutex
	list map[store.Key]suspect
}

func newSuspects() *suspects { return &suspects{list: map[store.Key]suspect{}} }

func (s *suspects) add(key store.Key, origin string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.list[key]; !known && len(s.list) < maxSuspects {
		s.list[key] = suspect{key: key, origin: origin}
	}
}

func (s *suspects) remove(key store.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, key)
}

// later puts a suspect off, each time for longer.
func (s *suspects) later(one suspect, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.wait = min(max(2*one.wait, time.Second), maxProbeWait)
	one.due = now.Add(one.wait)
	s.list[one.key] = one
}

func (s *suspects) due(now time.Time) (list []suspect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.list {
		if !one.due.After(now) {
			list = append(list, one)
		}
	}
	return list
}

// foreground is the probe that a repeated request runs.
func foreground(asker *probe.Asker, p *parts) unavez.Probe {
	return func(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
		result, verdict, err := asker.Ask(ctx, probe.Subject{Identity: attempt.Identity(), DerivedKey: attempt.DerivedKey(), Ended: attempt.Changed()})
		p.metrics.Probed(verdict, err)
		p.log.InfoContext(ctx, "probed", "operation", attempt.Key().String(), "verdict", verdict.String(), "error", errorText(err), "correlation", observe.Correlation(ctx))
		return result, verdict, err
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// upkeep is the background work of a process.
type upkeep struct {
	*parts
	store  store.Upkeep
	probes func(origin string) (routeProbe, bool) // of the site that is in place
	pause  time.Duration
	rest   int // pauses until the next purge
	scan   int // pauses until the next look for what is unknown
}

// run works until the context ends. It never gives up: what fails now is tried
// again after the next pause.
func (u *upkeep) run(ctx context.Context) {
	for {
		u.expire(ctx)
		u.collect(ctx)
		u.probe(ctx)
		u.purge(ctx)
		if !u.sleep(ctx, u.pause) {
			return
		}
	}
}

func (u *upkeep) failed(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		u.log.WarnContext(ctx, "upkeep", "what", what, "error", err)
	}
}

// expire turns attempts whose worker is gone into unknown.
func (u *upkeep) expire(ctx context.Context) {
	for ctx.Err() == nil {
		list, err := u.store.Expire(ctx, expireBatch)
		if err != nil {
			u.failed(ctx, "expire", err)
			return
		}
		for _, a := range list {
			u.log.WarnContext(ctx, "lease ran out", "operation", a.Key.String(), "tenant", a.Identity.Tenant, "route", a.Origin, "state", a.State.String(), "attempt", a.Fence)
			u.suspects.add(a.Key, a.Origin)
		}
		u.metrics.Expired(len(list))
		if len(list) < expireBatch {
			return
		}
	}
}

// collect looks for unknown operations that nobody told this process of: those
// of another worker, or of the time before a restart or a new configuration.
func (u *upkeep) collect(ctx context.Context) {
	if u.scan--; u.scan > 0 {
		return
	}
	u.scan = idleScans
	filter := store.Filter{States: []store.State{store.Unknown}, Limit: scanPage}
	for seen := 0; seen < maxSuspects; seen += scanPage {
		records, err := u.operations.List(ctx, filter)
		if err != nil {
			u.failed(ctx, "looking for what is unknown", err)
			return
		}
		for _, r := range records {
			if _, ok := u.probes(r.Origin); ok {
				u.suspects.add(r.Key, r.Origin)
			}
		}
		if len(records) < scanPage {
			return
		}
		last := records[len(records)-1]
		filter.After = &store.Cursor{Changed: last.Changed, Key: last.Key}
	}
}

// purge forgets what is over its retention, in small batches with pauses, so
// that no request waits for it. What is left after a while waits for the next
// round, for there is other work.
func (u *upkeep) purge(ctx context.Context) {
	if u.rest--; u.rest > 0 {
		return
	}
	u.rest = 0
	for until := time.Now().Add(u.pause); time.Now().Before(until); {
		n, err := u.store.Purge(ctx, purgeBatch)
		if err != nil {
			u.failed(ctx, "purge", err)
			return
		}
		u.metrics.Purged(n)
		if n > 0 {
			u.log.DebugContext(ctx, "purged", "rows", n)
		}
		if n < purgeBatch {
			u.rest = idlePurges
			return
		}
		if !u.sleep(ctx, purgePause) {
			return
		}
	}
}

// sleep waits for half to one and a half of a pause, so that workers do not
// keep step; false means that the context has ended.
func (u *upkeep) sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause/2 + rand.N(pause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// probe asks about what is unknown.
func (u *upkeep) probe(ctx context.Context) {
	for _, one := range u.suspects.due(time.Now()) {
		if ctx.Err() != nil {
			return
		}
		settled, err := u.settle(ctx, one)
		switch {
		case err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict):
			u.failed(ctx, "probe", err)
			u.suspects.later(one, time.Now())
		case settled || err != nil: // gone, or somebody else was quicker
			u.suspects.remove(one.key)
		default:
			u.suspects.later(one, time.Now())
		}
	}
}

// prober is the name under which the background acts.
const prober = "probe"

// settle asks about one operation and acts on the answer. The action carries
// the attempt that was asked about: when it has moved on, nothing happens.
func (u *upkeep) settle(ctx context.Context, one suspect) (settled bool, err error) {
	route, ok := u.probes(one.origin)
	if !ok {
		return true, nil // not, or no longer, ours to probe
	}
	record, _, _, err := u.operations.Show(ctx, one.key)
	if err != nil {
		return false, err
	}
	if record.State != store.Unknown {
		return record.State != store.Processing, nil
	}
	result, verdict, err := route.asker.Ask(ctx, probe.Subject{Identity: record.Identity, DerivedKey: record.DerivedKey, Ended: record.Changed})
	u.metrics.Probed(verdict, err)
	if err != nil {
		return false, err
	}
	action := store.Action{Key: one.key, Fence: record.Attempt, Actor: prober, Reason: "the probe answered: " + verdict.String()}
	switch verdict {
	case unavez.Done:
		if err = u.operations.Complete(ctx, action, result, route.retention, route.tombstone); err == nil {
			u.metrics.Acted("complete", false)
		}
	case unavez.NotDone:
		// The request is not stored: the next repeat of it runs.
		if err = u.operations.Release(ctx, action); err == nil {
			u.metrics.Acted("release", false)
		}
	default:
		return false, nil
	}
	if err == nil {
		u.log.LogAttrs(ctx, slog.LevelInfo, "settled by probe", slog.String("operation", one.key.String()), slog.String("verdict", verdict.String()), slog.Int64("attempt", record.Attempt))
	}
	return err == nil, err
}
