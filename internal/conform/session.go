package conform

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// The header names of the suite.
const (
	headerKey      = "Idempotency-Key"
	headerReplayed = "Idempotent-Replayed"
	headerRetry    = "Retry-After"
	// origin is where the requests say that they come from.
	origin = "https://shop.example"
)

// session is one run of one case: a principal of its own, and the rules that
// each of its answers is held to.
type session struct {
	ctx     context.Context // of the case; it ends with it
	r       *Runner
	id      string // prefix of its principals
	restore []func()

	mu      sync.Mutex
	err     error
	broken  error // first answer that broke a rule, from any goroutine
	ops     int
	seen    Counters     // answers by the engine's word for them
	lost    bool         // answers went missing, so that counters may be higher
	planned map[int]bool // statuses that the handler answers with, in a form of its own
	allowed map[int]bool // 5xx that the layer may answer with
}

func newSession(ctx context.Context, r *Runner) *session {
	return &session{ctx: ctx, r: r, id: "c" + strings.ToLower(rand.Text()[:10]), seen: Counters{}, planned: map[int]bool{}, allowed: map[int]bool{}}
}

// leave undoes what the case has done to its target, newest first.
func (s *session) leave() {
	for _, f := range slices.Backward(s.restore) {
		f()
	}
}

// later is called when the case is over, however it ends.
func (s *session) later(f func()) { s.restore = append(s.restore, f) }

// fail ends the case with an error, from the case's own goroutine only.
func (s *session) fail(format string, args ...any) {
	s.mu.Lock()
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
	s.mu.Unlock()
	runtime.Goexit()
}

// op is one operation path of a case.
type op struct {
	name string // below /t/
	path string
}

// at makes a path below the operation's, or with a query.
func (o op) at(more string) op {
	if strings.HasPrefix(more, "?") {
		return op{name: o.name, path: o.path + more}
	}
	return op{name: o.name + more, path: o.path + more}
}

// op makes a new path on a route, and plans it. A service without control
// endpoints has its one path, and takes no plan.
func (s *session) op(route string, plan Plan) op {
	if s.r.about == nil {
		return op{path: s.r.target.Path}
	}
	s.mu.Lock()
	s.ops++
	name := fmt.Sprintf("%s/%s/%d", route, s.id, s.ops)
	s.mu.Unlock()
	o := op{name: name, path: PathWork + name}
	s.plan(o, plan)
	return o
}

// ok is a plan of one behaviour: a row and 201.
func ok() Plan { return runs(created("done")) }

// runs is a plan of behaviours.
func runs(b ...Behaviour) Plan { return Plan{Runs: b} }

// created writes a row and answers 201 with a body.
func created(body string) Behaviour {
	return Behaviour{Status: http.StatusCreated, Header: []Line{{"Content-Type", "text/plain; charset=utf-8"}}, Body: []byte(body), Rows: 1}
}

// plan says what the handler of an operation does from now on.
func (s *session) plan(o op, plan Plan) {
	for _, b := range plan.Runs {
		s.expect(b.Status)
		if b.Panic != "" {
			s.expect(http.StatusInternalServerError) // the outer recovery's
		}
	}
	body, err := json.Marshal(plan)
	if err != nil {
		s.fail("plan: %w", err)
	}
	s.control(http.MethodPut, PathPlan+o.name, body, nil)
}

// expect says that the handler answers with a status; such an answer need not
// be a problem.
func (s *session) expect(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planned[status] = true
}

// allow says that the layer may answer with a 5xx.
func (s *session) allow(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed[status] = true
}

// control speaks to a control endpoint, of the worker that answers.
func (s *session) control(method, path string, body []byte, result any) {
	q := request{base: s.r.target.P1, method: method, path: path, body: body}
	a, err := s.r.exchange(s.ctx, q)
	if err != nil && s.r.target.P2 != "" && s.ctx.Err() == nil { // P1 may be dead
		q.base = s.r.target.P2
		a, err = s.r.exchange(s.ctx, q)
	}
	if err != nil {
		s.fail("control endpoint: %w", err)
	}
	if a.status/100 != 2 {
		s.fail("control endpoint: %v: got %v", q, a)
	}
	if result != nil {
		if err := json.Unmarshal(a.body, result); err != nil {
			s.fail("control endpoint: %v: %w", q, err)
		}
	}
}

// count asks what happened on a path.
func (s *session) count(o op) Count {
	var c Count
	s.control(http.MethodGet, PathCount+o.name, nil, &c)
	return c
}

// wantRuns wants a number of handler runs. A service without control endpoints
// cannot be asked; its answers are compared instead.
func (s *session) wantRuns(o op, runs int) {
	if s.r.about == nil {
		return
	}
	if got := s.count(o).Runs; got != runs {
		s.fail("%s: runs: got %d, want %d", o.path, got, runs)
	}
}

// wantCount wants runs and committed rows.
func (s *session) wantCount(o op, runs, rows int) {
	s.wantRuns(o, runs)
	if s.r.about == nil {
		return
	}
	if got := s.count(o).Rows; got != rows {
		s.fail("%s: committed rows: got %d, want %d", o.path, got, rows)
	}
}

// key makes a new key, a UUID as a client would send it, quoted.
func key() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf(`"%x-%x-%x-%x-%x"`, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// post is a POST of the case's principal to a worker, 1 or 2.
func (s *session) post(worker int, o op, key string) request {
	q := request{
		base: s.base(worker), method: http.MethodPost, path: o.path,
		header: http.Header{"Content-Type": {s.r.target.ContentType}, "Origin": {origin}}, body: s.r.target.Body,
	}
	if key != "" {
		q.keys = []string{key}
	}
	if s.r.about != nil {
		q.header.Set("Authorization", s.bearer(""))
		q.body = []byte(`{"amount":1500,"to":"c-1"}`)
	}
	return q
}

// base is a worker's URL; a service with one worker has it twice.
func (s *session) base(worker int) string {
	if worker == 2 && s.r.target.P2 != "" {
		return s.r.target.P2
	}
	return s.r.target.P1
}

// principal of the case; more tells several apart.
func (s *session) principal(more string) string { return s.id + more }

// bearer is the Authorization line of a principal of tenant acme.
func (s *session) bearer(more string) string { return "Bearer " + s.principal(more) + "@acme" }

// with returns the request with a header line set.
func (q request) with(name, value string) request {
	q.header = q.header.Clone()
	q.header.Set(name, value)
	return q
}

// send sends a request and holds its answer to the rules. It may be called from
// any goroutine.
func (s *session) send(q request) (*answer, error) {
	a, err := s.r.exchange(s.ctx, q)
	if err != nil {
		return nil, err
	}
	s.hold(a)
	return a, nil
}

// do is send for the case's own goroutine; no answer ends the case.
func (s *session) do(q request) *answer {
	a, err := s.send(q)
	if err != nil {
		s.fail("%w", err)
	}
	s.check()
	return a
}

// reply is an answer on its way.
type reply struct {
	answer *answer
	err    error
}

// start sends a request in the background.
func (s *session) start(q request) <-chan reply {
	c := make(chan reply, 1)
	go func() {
		a, err := s.send(q)
		c <- reply{a, err}
	}()
	return c
}

// await waits for an answer on its way.
func (s *session) await(c <-chan reply) *answer {
	got := <-c
	if got.err != nil {
		s.fail("%w", got.err)
	}
	s.check()
	return got.answer
}

// check ends the case when one of its answers has broken a rule.
func (s *session) check() {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		s.fail("%w", broken)
	}
}

// pause lets time pass.
func (s *session) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		s.fail("%w", context.Cause(s.ctx))
	}
}

// until asks until ask says yes, at most for limit.
func (s *session) until(limit, every time.Duration, what string, ask func() bool) {
	deadline := time.Now().Add(limit)
	for !ask() {
		if time.Now().After(deadline) {
			s.fail("after %v: still not: %s", limit, what)
		}
		s.pause(every)
	}
}

// running waits until the handler of an operation has been entered n times.
func (s *session) running(o op, n int) {
	s.until(10*time.Second, 20*time.Millisecond, fmt.Sprintf("%s: run %d has started", o.path, n), func() bool {
		return s.count(o).Runs >= n
	})
}

// slack is a time that a service may take, on this target.
func (s *session) slack(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.r.target.Slack)
}

// settle ends a case that has passed so far: the rules, and the counters.
func (s *session) settle() {
	s.check()
	if s.r.about == nil {
		return
	}
	var counters Counters
	s.control(http.MethodGet, PathCounters+url.PathEscape(s.id), nil, &counters)
	s.mu.Lock()
	seen, lost := maps.Clone(s.seen), s.lost
	s.mu.Unlock()
	for _, word := range []string{countReplayed, countMismatch, countInFlight} {
		if got, want := counters[word], seen[word]; got != want && (!lost || got < want) {
			s.fail("counter %s: got %d, and the case has seen %d such answers", word, got, want)
		}
	}
}

// The engine's words for what the suite sees too.
const (
	countReplayed = "replayed"
	countMismatch = "key-reused"
	countInFlight = "in-flight"
	countLost     = "lease-lost"
	countPurged   = "purged"
)
