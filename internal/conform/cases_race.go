package conform

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// slow is a plan whose first run takes its time before its first statement.
func slow(d time.Duration) Plan {
	b := created("slow")
	b.SleepBefore = d
	return runs(b)
}

// lasts is the longest Retry-After on a route: what is left of the lease, or
// the limit of a transaction.
func (s *session) lasts(route string) time.Duration {
	if leased(route) {
		return s.r.about.Lease
	}
	return s.r.about.Limit
}

// hundredAtOnce is case 36.
func hundredAtOnce(s *session) {
	routes := []string{""}
	if s.r.about != nil {
		routes = modes()
	}
	for _, route := range routes {
		s.burst(s.op(route, slow(time.Second)), 100)
	}
}

// burst posts one request n times at once, half to each worker.
func (s *session) burst(o op, n int) {
	k := key()
	answers, errs := make([]*answer, n), make([]error, n)
	var all sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-gate
			answers[i], errs[i] = s.send(s.post(1+i%2, o, k))
		})
	}
	close(gate)
	all.Wait()
	s.check()
	var first *answer
	inFlight := 0
	for i, a := range answers {
		switch {
		case errs[i] != nil:
			s.fail("duplicate %d of %d: %w", i+1, n, errs[i])
		case a.status/100 == 2 && a.header.Get(headerReplayed) == "" && first != nil:
			s.fail("%v: two first answers: %v and %v", a.request, first, a)
		case a.status/100 == 2 && a.header.Get(headerReplayed) == "":
			first = a
		case a.status == http.StatusConflict:
			inFlight++
			if limit := s.slack(300 * time.Millisecond); s.r.about != nil && a.took > limit {
				s.fail("%v: a duplicate in flight was answered after %v, want under %v", a.request, a.took, limit)
			}
			s.wantProblem(a, countInFlight, http.StatusConflict)
		case a.status/100 != 2:
			s.fail("%v: duplicate: got %v, want 409 or a replay", a.request, a)
		}
	}
	if first == nil {
		s.fail("%s: %d posts at once: no first answer, %d of them 409", o.path, n, inFlight)
	}
	for _, a := range answers {
		if a != first && a.status/100 == 2 {
			s.wantReplay(a, first)
		}
	}
	s.wantReplay(s.do(s.post(1, o, k)), first)
	s.wantReplay(s.do(s.post(2, o, k)), first)
	s.wantCount(o, 1, 1)
}

// inFlight is case 37.
func inFlight(s *session) {
	for _, route := range modes() {
		o, k := s.op(route, slow(1500*time.Millisecond)), key()
		running := s.start(s.post(1, o, k))
		s.running(o, 1)
		for worker := 1; worker <= 2; worker++ {
			a := s.do(s.post(worker, o, k))
			s.wantInFlight(a, s.lasts(route))
			if limit := s.slack(time.Second); a.took > limit {
				s.fail("%v: answered after %v, want at once", a.request, a.took)
			}
		}
		first := s.await(running)
		s.wantFirst(first, http.StatusCreated)
		s.wantReplay(s.do(s.post(1, o, k)), first)
		s.wantReplay(s.do(s.post(2, o, k)), first)
		s.wantCount(o, 1, 1)
	}
}

// inFlightMismatch is case 38.
func inFlightMismatch(s *session) {
	for _, route := range modes() {
		o, k := s.op(route, slow(1500*time.Millisecond)), key()
		running := s.start(s.post(1, o, k))
		s.running(o, 1)
		other := func(worker int) request {
			q := s.post(worker, o, k)
			q.body = []byte(`{"amount":1,"to":"mallory"}`)
			return q
		}
		s.wantProblem(s.do(other(1)), countMismatch, http.StatusUnprocessableEntity)
		if leased(route) { // the fingerprint stands in the attempt
			s.wantProblem(s.do(other(2)), countMismatch, http.StatusUnprocessableEntity)
		} else {
			s.wantInFlight(s.do(other(2)), s.lasts(route))
		}
		first := s.await(running)
		s.wantFirst(first, http.StatusCreated)
		for worker := 1; worker <= 2; worker++ {
			s.wantProblem(s.do(other(worker)), countMismatch, http.StatusUnprocessableEntity)
		}
		s.wantReplay(s.do(s.post(2, o, k)), first)
		s.wantCount(o, 1, 1)
	}
}

// preferWait is case 41, at the same worker and at the other. The routes are
// tried at the same time, since the long ones take ten seconds.
func preferWait(s *session) {
	type waiter struct {
		route  string
		worker int
		o      op
		k      string
		short  bool
		first  <-chan reply
		wait   <-chan reply
	}
	var all []*waiter
	for _, route := range modes() {
		for worker := 1; worker <= 2; worker++ {
			for _, d := range []time.Duration{time.Second, 10 * time.Second} {
				w := &waiter{route: route, worker: worker, o: s.op(route, slow(d)), k: key(), short: d == time.Second}
				w.first = s.start(s.post(1, w.o, w.k))
				s.running(w.o, 1)
				w.wait = s.start(s.post(worker, w.o, w.k).with("Prefer", "wait=5"))
				all = append(all, w)
			}
		}
	}
	for _, w := range all {
		waited := s.await(w.wait)
		what := fmt.Sprintf("%v: Prefer: wait=5 at worker %d", waited.request, w.worker)
		if w.short {
			first := s.await(w.first)
			s.wantFirst(first, http.StatusCreated)
			s.wantReplay(waited, first)
			if limit := s.slack(1500 * time.Millisecond); waited.took > limit {
				s.fail("%s: got the replay after %v, want within %v", what, waited.took, limit)
			}
			continue
		}
		s.wantInFlight(waited, s.lasts(w.route))
		if low, high := 4500*time.Millisecond, s.slack(6*time.Second); waited.took < low || waited.took > high {
			s.fail("%s: got 409 after %v, want after 5 s", what, waited.took)
		}
	}
	for _, w := range all {
		if !w.short {
			first := s.await(w.first)
			s.wantFirst(first, http.StatusCreated)
			s.wantReplay(s.do(s.post(w.worker, w.o, w.k)), first)
		}
		s.wantCount(w.o, 1, 1)
	}
}

// twoKeys is case 42, on all routes at the same time.
func twoKeys(s *session) {
	var ops []op
	for _, route := range modes() {
		ops = append(ops, s.op(route, slow(time.Second)))
	}
	var replies []<-chan reply
	started := time.Now()
	for _, o := range ops {
		replies = append(replies, s.start(s.post(1, o, key())), s.start(s.post(1, o, key())))
	}
	for _, r := range replies {
		s.wantFirst(s.await(r), http.StatusCreated)
	}
	if took, limit := time.Since(started), s.slack(1500*time.Millisecond); took > limit {
		s.fail("%d keys at once, one second each, took %v, want under %v", len(replies), took, limit)
	}
	for _, o := range ops {
		s.wantCount(o, 2, 2)
	}
}

// clientHangsUp is case 46: the handler runs to its end and the next request
// gets the answer.
func clientHangsUp(s *session) {
	for _, route := range modes() {
		o, k := s.op(route, slow(time.Second)), key()
		s.hangUp(s.post(1, o, k), func() { s.running(o, 1) })
		s.until(s.slack(5*time.Second), 100*time.Millisecond, o.path+": the abandoned run has committed", func() bool {
			return s.count(o).Rows == 1
		})
		var a *answer
		s.until(s.slack(5*time.Second), 100*time.Millisecond, o.path+": the answer can be had", func() bool {
			a = s.do(s.post(2, o, k))
			return !a.is(countInFlight)
		})
		if a.header.Get(headerReplayed) != "true" || a.status != http.StatusCreated || string(a.body) != "slow" {
			s.fail("%v: after a client hung up: got %v, want the replay of its answer", a.request, a)
		}
		s.wantCount(o, 1, 1)
	}
}

// renewedLease is case 47.
func renewedLease(s *session) {
	lease := s.r.about.Lease
	type running struct {
		o     op
		k     string
		first <-chan reply
	}
	var all []running
	for _, route := range leases() {
		all = append(all, running{o: s.op(route, slow(3*lease)), k: key()})
	}
	started := time.Now()
	for i, w := range all {
		all[i].first = s.start(s.post(1, w.o, w.k))
	}
	for _, w := range all {
		s.running(w.o, 1)
	}
	s.pause(lease*5/2 - time.Since(started))
	for _, w := range all {
		for worker := 1; worker <= 2; worker++ {
			s.wantInFlight(s.do(s.post(worker, w.o, w.k)), lease)
		}
	}
	for _, w := range all {
		first := s.await(w.first)
		s.wantFirst(first, http.StatusCreated)
		s.wantReplay(s.do(s.post(2, w.o, w.k)), first)
		s.wantCount(w.o, 1, 1)
	}
}
