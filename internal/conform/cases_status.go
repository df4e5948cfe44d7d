package conform

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"
)

// rolledBackFirst is case 53, and the statuses that are never recorded.
func rolledBackFirst(s *session) {
	for _, route := range []string{RoutePlain, RouteHandle} {
		for _, status := range []int{http.StatusServiceUnavailable, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError} {
			no := created("not now")
			no.Status = status
			if route == RouteHandle {
				no.Error = "not now"
			}
			o, k := s.op(route, runs(no, created("now"))), key()
			s.wantFirst(s.do(s.post(1, o, k)), status)
			s.wantCount(o, 1, 0)
			second := s.do(s.post(2, o, k))
			s.wantFirst(second, http.StatusCreated)
			s.wantReplay(s.do(s.post(1, o, k)), second)
			s.wantCount(o, 2, 1)
		}
	}
}

// clientErrors is case 55.
func clientErrors(s *session) {
	for _, route := range modes() {
		no := Behaviour{Status: http.StatusBadRequest, Header: []Line{{"Content-Type", "text/plain"}}, Body: []byte("amount is missing")}
		if route == RouteHandle {
			no = Behaviour{Status: http.StatusBadRequest, Error: "amount is missing"}
		}
		o, k := s.op(route, runs(no, created("never"))), key()
		first := s.do(s.post(1, o, k))
		s.wantFirst(first, http.StatusBadRequest)
		if !bytes.Contains(first.body, []byte("amount is missing")) {
			s.fail("%v: got %v, want the handler's own text", first.request, first)
		}
		s.wantReplay(s.do(s.post(1, o, k)), first)
		s.wantReplay(s.do(s.post(2, o, k)), first)
		corrected := s.post(1, o, k)
		corrected.body = []byte(`{"amount":2,"to":"c-1"}`)
		s.wantProblem(s.do(corrected), countMismatch, http.StatusUnprocessableEntity)
		s.wantCount(o, 1, 0)

		if route == RouteLease { // its answer is written when its outside effect has happened
			continue
		}
		no.Status, no.Error = http.StatusTooManyRequests, strings.Replace(no.Error, "amount is missing", "slow down", 1)
		o, k = s.op(route, runs(no, created("now"))), key()
		s.wantFirst(s.do(s.post(1, o, k)), http.StatusTooManyRequests)
		s.wantFirst(s.do(s.post(2, o, k)), http.StatusCreated)
		s.wantCount(o, 2, 1)
	}
	// A 4xx of a handler that returns an error after it wrote is rolled back.
	wrote := Behaviour{Status: http.StatusConflict, Error: "written first", Rows: 1}
	o, k := s.op(RouteHandle, runs(wrote, created("now"))), key()
	s.wantFirst(s.do(s.post(1, o, k)), http.StatusConflict)
	s.wantCount(o, 1, 0)
	s.wantFirst(s.do(s.post(1, o, k)), http.StatusCreated)
	s.wantCount(o, 2, 1)
	// A 4xx of a plain handler is its decision: it commits and is recorded.
	o, k = s.op(RoutePlain, runs(Behaviour{Status: http.StatusConflict, Rows: 1, Body: []byte("no")})), key()
	first := s.do(s.post(1, o, k))
	s.wantFirst(first, http.StatusConflict)
	s.wantReplay(s.do(s.post(2, o, k)), first)
	s.wantCount(o, 1, 1)
}

// outage is case 57.
func outage(s *session) {
	s.allow(http.StatusServiceUnavailable)
	about := s.r.about
	type try struct {
		o op
		k string
	}
	var tries []try
	for _, route := range modes() {
		tries = append(tries, try{s.op(route, ok()), key()})
	}
	end, err := s.r.target.Outage.Begin(s.ctx)
	if err != nil {
		s.fail("%w", err)
	}
	over := false
	finish := func() {
		if !over {
			over = true
			if err := end(); err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.err == nil {
					s.err = err
				}
			}
		}
	}
	s.later(finish)
	var replies []<-chan reply
	for _, t := range tries {
		replies = append(replies, s.start(s.post(1, t.o, t.k)))
	}
	for i, t := range tries {
		a := s.await(replies[i])
		s.wantProblem(a, kindUnavailable, http.StatusServiceUnavailable)
		s.wantRetryAfter(a, 10*time.Second)
		if limit := about.StoreTimeout + s.slack(time.Second); a.took > limit {
			s.fail("%v: answered after %v, want within the store's timeout, %v", a.request, a.took, limit)
		}
		// SQLite needs its writer only where something is written: at the claim
		// in lease mode, at the handler's first statement otherwise.
		c := s.count(t.o)
		if c.Rows != 0 || c.Runs != 0 && (about.Store != "sqlite" || leased(modes()[i])) {
			s.fail("%s: while the database cannot be used: got %d runs and %d rows, want none", t.o.path, c.Runs, c.Rows)
		}
	}
	finish()
	for _, t := range tries {
		before := s.count(t.o).Runs
		a := s.do(s.post(1, t.o, t.k))
		s.wantFirst(a, http.StatusCreated)
		s.wantReplay(s.do(s.post(2, t.o, t.k)), a)
		s.wantCount(t.o, before+1, 1)
	}
}

// retention is D10. The keys of both parts are made at the same time, one is
// asked for all the time and one only at the end of each part.
func retention(s *session) {
	about := s.r.about
	o, asked, left := s.op(RouteShort, ok()), key(), key()
	first := s.do(s.post(1, o, asked))
	made := time.Now()
	s.wantFirst(first, http.StatusCreated)
	s.wantFirst(s.do(s.post(2, o, left)), http.StatusCreated)

	s.asking(o, asked, made, about.Retention, "the answer is kept", func(a *answer) bool { return a.header.Get(headerReplayed) == "true" })
	for worker := 1; worker <= 2; worker++ { // it was made a moment later
		s.until(s.slack(3*time.Second), 250*time.Millisecond, o.path+": the second key is expired too", func() bool {
			return s.do(s.post(worker, o, left)).is(kindExpired)
		})
	}
	other := s.post(1, o, asked)
	other.body = []byte(`{"amount":2,"to":"c-1"}`)
	s.wantProblem(s.do(other), countMismatch, http.StatusUnprocessableEntity)
	s.wantCount(o, 2, 2)

	last := s.asking(o, asked, made, about.Retention+about.Tombstone, "the key is remembered", func(a *answer) bool { return a.is(kindExpired) })
	s.wantFirst(last, http.StatusCreated)
	s.wantReplay(s.do(s.post(2, o, asked)), last)
	s.until(s.slack(3*time.Second), 250*time.Millisecond, o.path+": the second key is free too", func() bool {
		return s.do(s.post(1, o, left)).status == http.StatusCreated
	})
	s.wantCount(o, 4, 4)
	var all Counters
	s.control(http.MethodGet, PathCounters, nil, &all)
	if all[countPurged] == 0 {
		s.fail("counter %s: got 0, want the rows over their retention", countPurged)
	}
}

// asking asks both workers until still says no, which must be after d since
// made. It returns the first other answer.
func (s *session) asking(o op, k string, made time.Time, d time.Duration, what string, still func(*answer) bool) (a *answer) {
	worker := 0
	s.until(d+s.slack(3*time.Second), 250*time.Millisecond, "after "+d.String()+": no longer: "+what, func() bool {
		worker = 3 - max(worker, 1)
		a = s.do(s.post(worker, o, k))
		return !still(a)
	})
	// What was made was made a little before its answer came.
	if age, low := time.Since(made), d-s.slack(time.Second); age < low {
		s.fail("%v: %s for %v only, want %v: got %v", a.request, what, age, d, a)
	}
	return a
}

// connectionHeader: a proxy on the way would strip what Connection names.
func connectionHeader(s *session) {
	for _, route := range modes() {
		o, k := s.op(route, ok()), key()
		for _, name := range []string{headerKey, "x-tenant", "close, Authorization"} {
			q := s.post(1, o, k)
			text := s.text(q, headerKey+": "+k+"\r\nConnection: "+name+"\r\n", len(q.body)) + string(q.body)
			a, err := s.r.raw(s.ctx, q.base, text)
			if err != nil {
				s.fail("%w", err)
			}
			if a == nil {
				s.fail("Connection: %s: got no answer, want 400", name)
			}
			s.wantProblem(a, kindConnection, http.StatusBadRequest)
		}
		s.wantRuns(o, 0)
	}
}

// twoLengths: Content-Length beside Transfer-Encoding is refused, or is one
// request that reaches the handler once.
func twoLengths(s *session) {
	o, k := s.op(RoutePlain, ok()), key()
	q := s.post(1, o, k)
	text := s.text(q, headerKey+": "+k+"\r\nTransfer-Encoding: chunked\r\n", 4) + "2\r\n{}\r\n0\r\n\r\n"
	a, err := s.r.raw(s.ctx, q.base, text)
	if err != nil {
		s.fail("%w", err)
	}
	if a == nil || a.status == http.StatusBadRequest {
		s.wantRuns(o, 0)
		return
	}
	s.wantStatus(a, http.StatusCreated)
	s.wantCount(o, 1, 1)
}

// hangUp sends a request and gives up once ready returns.
func (s *session) hangUp(q request, ready func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	gone := make(chan error, 1)
	go func() {
		_, err := s.r.exchange(ctx, q)
		gone <- err
	}()
	ready()
	cancel()
	if err := <-gone; err == nil {
		s.fail("%v: answered before the client could hang up", q)
	}
}

// counters are the engine's, for this case.
func (s *session) counters() Counters {
	var c Counters
	s.control(http.MethodGet, PathCounters+s.id, nil, &c)
	return c
}
