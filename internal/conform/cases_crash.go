package conform

import (
	"context"
	"net/http"
	"time"
)

// dies posts to worker 1, which is planned to kill itself, and waits for the
// connection to break. The worker is started again before the case ends.
func (s *session) dies(o op, k string) {
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	s.later(s.revive)
	if a, err := s.send(s.post(1, o, k)); err == nil {
		s.fail("%v: got %v, want the worker to die", a.request, a)
	}
}

// revive starts worker 1 again; it does nothing to a worker that runs.
func (s *session) revive() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), requestLimit)
	defer cancel()
	if err := s.r.target.Control.Start(ctx, 1); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = err
		}
	}
}

// retry asks worker 2 every 200 ms until it gets something else than "in
// flight", at most for limit. It tells how often it was in flight.
func (s *session) retry(o op, k string, limit time.Duration) (a *answer, inFlight int) {
	s.until(limit, 200*time.Millisecond, o.path+": a retry gets something else than 409", func() bool {
		a = s.do(s.post(2, o, k))
		if !a.is(countInFlight) {
			return true
		}
		inFlight++
		return false
	})
	return a, inFlight
}

// crash kills worker 1 at a point, retries at worker 2 until the operation has
// an answer, and wants rows=1. The answer is the retry's own run or a replay.
func (s *session) crash(route, exit string, runs int, replayed bool) {
	b := created("once")
	o, k := s.op(route, Plan{Runs: []Behaviour{b}, Exit: exit}), key()
	s.dies(o, k)
	a, inFlight := s.retry(o, k, s.r.about.Lease+s.slack(2*time.Second))
	if !replayed {
		s.wantFirst(a, b.Status)
	} else if a.header.Get(headerReplayed) != "true" || a.status != b.Status || string(a.body) != string(b.Body) {
		s.fail("%v: killed %s: got %v, want the replay of the committed answer", a.request, exit, a)
	}
	if leased(route) && (exit == ExitAfterClaim || exit == ExitBeforeCommit) && inFlight == 0 {
		s.fail("%s: killed %s under a lease: the first retry ran at once, want 409 until the lease has run out", o.path, exit)
	}
	s.wantCount(o, runs, 1)
	s.revive()
	again := s.do(s.post(1, o, k))
	if again.header.Get(headerReplayed) != "true" {
		s.fail("%v: at the worker that was killed: got %v, want a replay", again.request, again)
	}
	s.wantSame(again, a)
	s.wantCount(o, runs, 1)
}

// killedAfterClaim is case 43.
func killedAfterClaim(s *session) {
	for _, route := range modes() {
		s.crash(route, ExitAfterClaim, 1, false)
	}
}

// killedBeforeClaim kills as soon as the request has arrived.
func killedBeforeClaim(s *session) {
	for _, route := range modes() {
		s.crash(route, ExitBeforeClaim, 1, false)
	}
}

// killedAtWork kills from outside, with the handler between its start and its
// first statement.
func killedAtWork(s *session) {
	for _, route := range modes() {
		long := created("never")
		long.SleepBefore = 20 * time.Second
		o, k := s.op(route, runs(long, created("once"))), key()
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
		running := s.start(s.post(1, o, k))
		s.running(o, 1)
		s.later(s.revive)
		if err := s.r.target.Control.Kill(s.ctx, 1); err != nil {
			s.fail("%w", err)
		}
		if got := <-running; got.err == nil {
			s.fail("%s: of a killed worker: got %v, want no answer", o.path, got.answer)
		}
		a, inFlight := s.retry(o, k, s.r.about.Lease+s.slack(2*time.Second))
		s.wantFirst(a, http.StatusCreated)
		if leased(route) && inFlight == 0 {
			s.fail("%s: killed under a lease: the first retry ran at once, want 409 until the lease has run out", o.path)
		}
		s.wantCount(o, 2, 1)
		s.revive()
		s.wantReplay(s.do(s.post(1, o, k)), a)
	}
}

// killedBeforeCommit is case 44. In lease mode the handler is an application
// behind a proxy, which writes its row once per key.
func killedBeforeCommit(s *session) {
	for _, route := range modes() {
		s.crash(route, ExitBeforeCommit, 2, false)
	}
}

// killedAfterCommit is case 45, at three points between the commit and the answer.
func killedAfterCommit(s *session) {
	for _, route := range modes() {
		for _, exit := range []string{ExitAfterCommit, ExitAfterStore, ExitBeforeWrite} {
			s.crash(route, exit, 1, true)
		}
	}
}

// killedAfterEffect is case 51.
func killedAfterEffect(s *session) {
	lease := s.r.about.Lease
	for _, route := range leases() {
		b := created("charged")
		b.Effects = 1
		o, k := s.op(route, Plan{Runs: []Behaviour{b}, Exit: ExitAfterEffect}), key()
		s.dies(o, k)
		a, _ := s.retry(o, k, lease+s.slack(2*time.Second))
		c := s.count(o)
		for _, effect := range c.Effects {
			if effect == "" || effect != c.Effects[0] {
				s.fail("%s: keys of the outside calls: got %q, want the same derived key in each", o.path, c.Effects)
			}
		}
		switch route {
		case RouteLease: // the interrupted step was probed, and not called again
			s.wantFirst(a, b.Status)
			if len(c.Effects) != 1 || c.Runs != 2 || c.Rows != 1 {
				s.fail("%s: with steps: got %d runs, %d rows and %d outside calls, want 2, 1 and 1", o.path, c.Runs, c.Rows, len(c.Effects))
			}
		case RouteHold:
			s.wantProblem(a, kindUnknown, http.StatusConflict)
			s.wantProblem(s.do(s.post(2, o, k)), kindUnknown, http.StatusConflict)
			if len(c.Effects) != 1 || c.Runs != 1 {
				s.fail("%s: on hold: got %d runs and %d outside calls, want 1 and 1", o.path, c.Runs, len(c.Effects))
			}
		case RouteRetry:
			s.wantFirst(a, b.Status)
			if len(c.Effects) != 2 || c.Runs != 2 {
				s.fail("%s: with retry: got %d runs and %d outside calls, want 2 and 2 with one key", o.path, c.Runs, len(c.Effects))
			}
		case RouteProbe:
			s.wantStatus(a, b.Status)
			if a.header.Get(headerReplayed) != "" { // the probe's answer: a replay to the client, the outcome to the engine
				s.mu.Lock()
				s.seen[countReplayed]--
				s.mu.Unlock()
			}
			if len(c.Effects) != 1 || c.Runs != 1 {
				s.fail("%s: with a probe that says done: got %d runs and %d outside calls, want 1 and 1", o.path, c.Runs, len(c.Effects))
			}
		}
		if got := s.counters()[kindUnknown]; route == RouteHold && got == 0 {
			s.fail("counter %s: got 0, want the answers of the operation on hold", kindUnknown)
		}
		s.revive()
	}
}

// stoppedTransaction is case 48 in transaction mode. A store that can end the
// transaction of a stopped worker lets the retry run meanwhile; where it cannot
// (SQLite) the key stays in flight until the worker goes on.
func stoppedTransaction(s *session) {
	s.allow(http.StatusServiceUnavailable)
	about := s.r.about
	first := created("first")
	first.SleepBefore = time.Second
	o, k := s.op(RouteLimited, runs(first, created("second"))), key()
	running := s.start(s.post(1, o, k))
	s.running(o, 1)
	s.stop(1)
	var other *answer // of worker 2, while worker 1 is stopped
	for end := time.Now().Add(2 * max(about.Lease, about.ShortLimit)); time.Now().Before(end) && other == nil; {
		a := s.do(s.post(2, o, k))
		switch {
		case a.is(countInFlight), a.status == http.StatusServiceUnavailable:
			s.wantRetryAfter(a, about.ShortLimit)
		case about.Store == "sqlite":
			s.fail("%v: while the other worker is stopped: got %v, want 409 or 503", a.request, a)
		default:
			s.wantFirst(a, http.StatusCreated)
			other = a
		}
		s.pause(200 * time.Millisecond)
	}
	if other == nil && about.Store != "sqlite" {
		s.fail("%s: the key was in flight for twice the limit of its stopped transaction", o.path)
	}
	s.cont(1)
	a := s.await(running)
	if other != nil && a.status/100 == 2 && a.header.Get(headerReplayed) == "" {
		s.fail("%v: of the worker that was stopped: got %v, and the operation had completed elsewhere", a.request, a)
	}
	final, _ := s.retry(o, k, s.slack(5*time.Second))
	s.wantStatus(final, http.StatusCreated)
	if other != nil {
		s.wantReplay(final, other)
		if got := s.counters()[countLost]; got != 1 {
			s.fail("counter %s: got %d, want 1", countLost, got)
		}
	}
	for worker := 1; worker <= 2; worker++ {
		again := s.do(s.post(worker, o, k))
		s.wantSame(again, final)
		if again.header.Get(headerReplayed) != "true" {
			s.fail("%v: got %v, want a replay", again.request, again)
		}
	}
	if got := s.count(o).Rows; got != 1 {
		s.fail("%s: committed rows: got %d, want 1", o.path, got)
	}
}

// stoppedLease is case 48 in lease mode: the finish of the stopped worker is
// refused, and its rows with it. The application behind a proxy, which has its
// own, writes one for each key.
func stoppedLease(s *session) {
	s.allow(http.StatusServiceUnavailable)
	for _, route := range []string{RouteLease, RouteRetry} {
		s.stopUnderLease(route)
	}
}

func (s *session) stopUnderLease(route string) {
	before := s.counters()[countLost]
	first := created("first")
	first.SleepBefore = time.Second
	o, k := s.op(route, runs(first, created("second"))), key()
	running := s.start(s.post(1, o, k))
	s.running(o, 1)
	s.stop(1)
	started := time.Now()
	other, inFlight := s.retry(o, k, s.r.about.Lease+s.slack(2*time.Second))
	s.wantFirst(other, http.StatusCreated)
	if inFlight == 0 || string(other.body) != "second" {
		s.fail("%v: got %v after %d answers of 409, want the second run once the lease is over", other.request, other, inFlight)
	}
	if rest := 2*s.r.about.Lease - time.Since(started); rest > 0 {
		s.pause(rest)
	}
	s.cont(1)
	a := s.await(running)
	if a.header.Get(headerReplayed) == "true" {
		s.wantReplay(a, other)
	} else {
		s.wantProblem(a, kindLeaseLost, http.StatusServiceUnavailable)
	}
	if got := s.counters()[countLost] - before; got != 1 {
		s.fail("%s: counter %s: got %d, want 1", o.path, countLost, got)
	}
	s.wantReplay(s.do(s.post(1, o, k)), other)
	s.wantReplay(s.do(s.post(2, o, k)), other)
	s.wantCount(o, 2, 1)
}

// stop suspends a worker until the case is over, or cont.
func (s *session) stop(worker int) {
	s.later(func() {
		_ = s.r.target.Control.Cont(context.WithoutCancel(s.ctx), worker) // it goes on already, unless the case failed
	})
	if err := s.r.target.Control.Stop(s.ctx, worker); err != nil {
		s.fail("%w", err)
	}
}

func (s *session) cont(worker int) {
	if err := s.r.target.Control.Cont(s.ctx, worker); err != nil {
		s.fail("%w", err)
	}
}

// handlerPanics is case 52.
func handlerPanics(s *session) {
	for _, when := range []string{PanicBefore, PanicAfter} {
		for _, route := range []string{RoutePlain, RouteHandle} {
			bad := created("never")
			bad.Panic = when
			o, k := s.op(route, runs(bad, created("after all"))), key()
			s.wantFirst(s.do(s.post(1, o, k)), http.StatusInternalServerError)
			s.wantCount(o, 1, 0)
			a := s.do(s.post(2, o, k))
			s.wantFirst(a, http.StatusCreated)
			s.wantReplay(s.do(s.post(1, o, k)), a)
			s.wantCount(o, 2, 1)
		}
	}
	// In lease mode nobody can tell what it did, and the policy decides.
	for _, route := range []string{RouteLease, RouteRetry} {
		bad := created("never")
		bad.Panic = PanicBefore
		o, k := s.op(route, runs(bad, created("after all"))), key()
		first := s.do(s.post(1, o, k))
		s.wantStatus(first, http.StatusConflict, http.StatusInternalServerError)
		a, _ := s.retry(o, k, s.r.about.Lease+s.slack(2*time.Second))
		s.wantFirst(a, http.StatusCreated)
		s.wantCount(o, 2, 1)
	}
}

// foreignCommit: a handler that commits would have its rows without the outcome.
func foreignCommit(s *session) {
	s.allow(http.StatusInternalServerError)
	for _, route := range []string{RoutePlain, RouteHandle} {
		for _, end := range []string{EndCall, EndText} {
			bad := created("committed by myself")
			bad.End = end
			o, k := s.op(route, runs(bad, created("as it should be"))), key()
			s.wantProblem(s.do(s.post(1, o, k)), kindForeign, http.StatusInternalServerError)
			s.wantCount(o, 1, 0)
			second := s.do(s.post(2, o, k))
			s.wantFirst(second, http.StatusCreated)
			s.wantReplay(s.do(s.post(1, o, k)), second)
			s.wantCount(o, 2, 1)
		}
	}
}

// overLimit: a handler slower than its transaction is rolled back, key free.
func overLimit(s *session) {
	s.allow(http.StatusServiceUnavailable)
	slow := created("too slow")
	slow.SleepBefore = s.r.about.ShortLimit + time.Second
	o, k := s.op(RouteLimited, runs(slow, created("in time"))), key()
	a := s.do(s.post(1, o, k))
	s.wantProblem(a, kindLimit, http.StatusServiceUnavailable)
	s.wantRetryAfter(a, s.r.about.ShortLimit)
	s.wantCount(o, 1, 0)
	second := s.do(s.post(2, o, k))
	s.wantFirst(second, http.StatusCreated)
	s.wantReplay(s.do(s.post(1, o, k)), second)
	s.wantCount(o, 2, 1)
}
