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

// victim is an operation whose worker was killed.
type victim struct {
	route string
	o     op
	k     string
	b     Behaviour
	// first is what a retry at worker 2 got at once.
	first *answer
}

// mourn retries at worker 2 at once, then starts worker 1 again. Under a lease
// the operation is in flight until the lease has run out.
func (s *session) mourn(v *victim, held bool) {
	v.first = s.do(s.post(2, v.o, v.k))
	if held && leased(v.route) && !v.first.is(countInFlight) {
		s.fail("%v: killed under a lease: got %v, want 409 until the lease has run out", v.first.request, v.first)
	}
	s.revive()
}

// outcome is the first answer of a retry that is not "in flight".
func (s *session) outcome(v *victim) *answer {
	if !v.first.is(countInFlight) {
		return v.first
	}
	a, _ := s.retry(v.o, v.k, s.r.about.Lease+s.slack(2*time.Second))
	return a
}

// crash kills worker 1 at a point, on each route, retries at worker 2 until the
// operation has an answer, and wants rows=1. The answer is the retry's own run
// or a replay. The leases run out side by side.
func (s *session) crash(exit string, runs int, replayed bool) {
	var victims []*victim
	for _, route := range modes() {
		v := &victim{route: route, b: created("once"), k: key()}
		v.o = s.op(route, Plan{Runs: []Behaviour{v.b}, Exit: exit})
		s.dies(v.o, v.k)
		s.mourn(v, exit == ExitAfterClaim || exit == ExitBeforeCommit)
		victims = append(victims, v)
	}
	for _, v := range victims {
		a := s.outcome(v)
		if !replayed {
			s.wantFirst(a, v.b.Status)
		} else if a.header.Get(headerReplayed) != "true" || a.status != v.b.Status || string(a.body) != string(v.b.Body) {
			s.fail("%v: killed %s: got %v, want the replay of the committed answer", a.request, exit, a)
		}
		s.wantCount(v.o, runs, 1)
		again := s.do(s.post(1, v.o, v.k))
		if again.header.Get(headerReplayed) != "true" {
			s.fail("%v: at the worker that was killed: got %v, want a replay", again.request, again)
		}
		s.wantSame(again, a)
		s.wantCount(v.o, runs, 1)
	}
}

// killedAfterClaim is case 43.
func killedAfterClaim(s *session) { s.crash(ExitAfterClaim, 1, false) }

// killedBeforeClaim kills as soon as the request has arrived.
func killedBeforeClaim(s *session) { s.crash(ExitBeforeClaim, 1, false) }

// killedAtWork kills from outside, with handlers of every kind between their
// start and their first statement.
func killedAtWork(s *session) {
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	var victims []*victim
	var replies []<-chan reply
	for _, route := range modes() {
		v := &victim{route: route, b: created("never"), k: key()}
		v.b.SleepBefore = 20 * time.Second
		v.o = s.op(route, runs(v.b, created("once")))
		replies = append(replies, s.start(s.post(1, v.o, v.k)))
		s.running(v.o, 1)
		victims = append(victims, v)
	}
	s.later(s.revive)
	if err := s.r.target.Control.Kill(s.ctx, 1); err != nil {
		s.fail("%w", err)
	}
	for i, v := range victims {
		if got := <-replies[i]; got.err == nil {
			s.fail("%s: of a killed worker: got %v, want no answer", v.o.path, got.answer)
		}
		s.mourn(v, true)
	}
	for _, v := range victims {
		a := s.outcome(v)
		s.wantFirst(a, http.StatusCreated)
		s.wantCount(v.o, 2, 1)
		s.wantReplay(s.do(s.post(1, v.o, v.k)), a)
	}
}

// killedBeforeCommit is case 44. The application behind a proxy writes its row
// once per key.
func killedBeforeCommit(s *session) { s.crash(ExitBeforeCommit, 2, false) }

// killedAfterCommit is case 45, at three points between the commit and the answer.
func killedAfterCommit(s *session) {
	for _, exit := range []string{ExitAfterCommit, ExitAfterStore, ExitBeforeWrite} {
		s.crash(exit, 1, true)
	}
}

// killedAfterEffect is case 51.
func killedAfterEffect(s *session) {
	var victims []*victim
	for _, route := range leases() {
		v := &victim{route: route, b: created("charged"), k: key()}
		v.b.Effects = 1
		v.o = s.op(route, Plan{Runs: []Behaviour{v.b}, Exit: ExitAfterEffect})
		s.dies(v.o, v.k)
		s.mourn(v, true)
		victims = append(victims, v)
	}
	for _, v := range victims {
		a := s.outcome(v)
		c := s.count(v.o)
		for _, effect := range c.Effects {
			if effect == "" || effect != c.Effects[0] {
				s.fail("%s: keys of the outside calls: got %q, want the same derived key in each", v.o.path, c.Effects)
			}
		}
		runs, effects := 1, 1
		switch v.route {
		case RouteLease: // the interrupted step is probed, and not called again
			runs = 2
			s.wantFirst(a, v.b.Status)
		case RouteRetry:
			runs, effects = 2, 2
			s.wantFirst(a, v.b.Status)
		case RouteHold:
			s.wantProblem(a, kindUnknown, http.StatusConflict)
			s.wantProblem(s.do(s.post(2, v.o, v.k)), kindUnknown, http.StatusConflict)
			if s.counters()[kindUnknown] == 0 {
				s.fail("counter %s: got 0, want the answers of the operation on hold", kindUnknown)
			}
		case RouteProbe:
			s.wantStatus(a, v.b.Status)
			if a.header.Get(headerReplayed) != "" { // a replay to the client, the outcome to the engine
				s.mu.Lock()
				s.seen[countReplayed]--
				s.mu.Unlock()
			}
		}
		if c.Runs != runs || len(c.Effects) != effects {
			s.fail("%s: got %d runs and %d outside calls, want %d and %d", v.o.path, c.Runs, len(c.Effects), runs, effects)
		}
		if v.route == RouteLease && c.Rows != 1 {
			s.fail("%s: committed rows: got %d, want 1", v.o.path, c.Rows)
		}
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
	lease := s.r.about.Lease
	var victims []*victim
	var replies []<-chan reply
	for _, route := range []string{RouteLease, RouteRetry} {
		v := &victim{route: route, b: created("first"), k: key()}
		v.b.SleepBefore = time.Second
		v.o = s.op(route, runs(v.b, created("second")))
		replies = append(replies, s.start(s.post(1, v.o, v.k)))
		victims = append(victims, v)
	}
	for _, v := range victims {
		s.running(v.o, 1)
	}
	s.stop(1)
	started := time.Now()
	others := make([]*answer, len(victims))
	for _, v := range victims {
		v.first = s.do(s.post(2, v.o, v.k))
		s.wantInFlight(v.first, lease)
	}
	for i, v := range victims {
		others[i] = s.outcome(v)
		s.wantFirst(others[i], http.StatusCreated)
		if string(others[i].body) != "second" {
			s.fail("%v: got %v, want the second run", others[i].request, others[i])
		}
	}
	if rest := 2*lease - time.Since(started); rest > 0 {
		s.pause(rest)
	}
	s.cont(1)
	for i, v := range victims {
		a := s.await(replies[i])
		if a.header.Get(headerReplayed) == "true" {
			s.wantReplay(a, others[i])
		} else {
			s.wantProblem(a, kindLeaseLost, http.StatusServiceUnavailable)
		}
		s.wantReplay(s.do(s.post(1, v.o, v.k)), others[i])
		s.wantReplay(s.do(s.post(2, v.o, v.k)), others[i])
		s.wantCount(v.o, 2, 1)
	}
	if got, want := s.counters()[countLost], len(victims); got != want {
		s.fail("counter %s: got %d, want %d", countLost, got, want)
	}
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
