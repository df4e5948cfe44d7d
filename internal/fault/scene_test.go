package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/fault"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/store"
)

// The times of all flows. They are the bubble's own, or moved by the driver.
const (
	leaseLength = 30 * time.Second
	overLease   = leaseLength * 6 / 5
	// settleTime is how long after an attempt's end a probe is not believed when
	// it says "not done"; no outside call is under way for so long.
	settleTime = 10 * time.Second
	retention  = time.Hour
	tombstone  = 2 * time.Hour
)

// backing is a store with everything that flows use.
type backing[Tx any] interface {
	fault.Inner[Tx]
	store.Operations
	store.Upkeep
}

// bed is a database that flows run on.
type bed[Tx any] struct {
	store backing[Tx] // as a worker sees it that takes no part
	// of is the database as a worker sees it; nil is that of everybody.
	of func(worker string) backing[Tx]
	// write inserts a business row: which run made it, for which operation.
	write func(ctx context.Context, tx Tx, op store.Key, run, payload string) error
	// rows reads the committed ones of an operation, run to payload, over another
	// connection.
	rows func(op store.Key) map[string]string
	// begin opens a transaction of the caller's own, at a worker.
	begin func(ctx context.Context, worker string) (tx Tx, commit, rollback func() error, err error)
	// jump moves the database's clock ahead.
	jump func(op store.Key, d time.Duration)
	now  func() time.Time
}

// director is a fault.Director that runs actors.
type director interface {
	fault.Director
	// run lets the actors act; false says that they do not come to an end.
	run(names, workers []string, actors []func()) bool
	// drain lets everything go from now on, without fault.
	drain(bool)
	// born makes a worker.
	born(name string) *fault.Life
	// pass lets time pass, outside of the schedule.
	pass(d time.Duration)
	// wait lets time pass for an actor.
	wait(d time.Duration)
}

// flow is one protocol of the product with everybody who takes part in it.
type flow[Tx any] struct {
	name string
	// op holds the settings of the operation; the name of the schedule comes
	// behind its key parts.
	op unavez.Operation
	// options of the workers' engines.
	options func(s *scene[Tx], w *worker[Tx]) *unavez.Options
	// prepare makes what is there before.
	prepare func(s *scene[Tx])
	// actors act at the same time.
	actors []actor[Tx]
	// rest brings the operation to rest when everybody has ended; nil asks by Do
	// until there is an answer.
	rest func(s *scene[Tx])
	// audit looks at what is particular to the flow; nil is nothing.
	audit func(s *scene[Tx])
	// takes is how long the work takes after its call.
	takes time.Duration
	// jitter says that the product waits for random times in it, so that a schedule
	// is not always the same again.
	jitter bool
	// patience is how long a client waits before it asks again.
	patience time.Duration
	// forgetful says that the other system does not honour keys.
	forgetful bool
	// steps are those at which every fault must have happened.
	steps []string
	// wants must have happened at least once in the whole run.
	wants []string
}

// actor is somebody who acts on a worker.
type actor[Tx any] struct {
	name, worker string
	act          func(s *scene[Tx], w *worker[Tx], name string)
}

// worker is a living program with an engine of its own.
type worker[Tx any] struct {
	life   *fault.Life
	store  *fault.Store[Tx]
	engine *unavez.Engine[Tx]
	people *fault.Operator
	keeper *fault.Keeper
	client *http.Client
}

// scene is one schedule of a flow on a bed.
type scene[Tx any] struct {
	*record
	flow     *flow[Tx]
	bed      *bed[Tx]
	director director
	op       unavez.Operation
	key      store.Key
	outside  *outside
	fast     *fastLease
	workers  map[string]*worker[Tx]
	rowless  bool   // the operation ends without a business row
	watch    func() // is called after each step; nil looks at the operation's state
	kept     time.Time
	// forgotten is the run of an earlier operation of the same identity, whose row
	// is left.
	forgotten string
}

func newScene[Tx any](f *flow[Tx], b *bed[Tx], r *record, d director, name string) *scene[Tx] {
	s := &scene[Tx]{flow: f, bed: b, record: r, director: d, workers: map[string]*worker[Tx]{}}
	s.op = f.op
	s.op.Tenant, s.op.Key = "acme", append(slices.Clone(f.op.Key), name)
	if s.op.Effect == "" {
		s.op.Effect = "order.create.v1"
	}
	if s.op.Payload == nil {
		s.op.Payload = []byte("10 EUR")
	}
	s.op.Lease, s.op.Retention, s.op.Tombstone = leaseLength, retention, tombstone
	s.key = s.op.Identity().Key()
	s.outside = newOutside(r, s.key, !f.forgetful)
	s.fast = newFastLease(b.now)
	return s
}

// start makes a worker.
func (s *scene[Tx]) start(name string) *worker[Tx] {
	w := &worker[Tx]{life: s.director.born(name)}
	inner := s.bed.store
	if s.bed.of != nil {
		inner = s.bed.of(name)
	}
	w.store = fault.NewStore(w.life, fault.Inner[Tx](inner))
	w.people = fault.NewOperator(w.life, inner)
	w.keeper = fault.NewKeeper(w.life, inner)
	w.client = &http.Client{Transport: fault.NewTransport(w.life, fault.Direct{Handler: s.outside})}
	opts := &unavez.Options{}
	if s.flow.options != nil {
		opts = s.flow.options(s, w)
	}
	opts.Observe = func(o unavez.Observation) { s.saw("saw " + o.What) }
	engine, err := unavez.New(w.store, opts)
	if err != nil {
		panic(err) // a fault of the flow
	}
	w.engine = engine
	s.workers[name] = w
	return w
}

// play runs the whole schedule, to its audit. prepared is called when what is there
// before has been made.
func (s *scene[Tx]) play(prepared func()) {
	if s.flow.prepare != nil {
		s.director.drain(true)
		s.flow.prepare(s)
		s.director.drain(false)
	}
	prepared()
	var names, workers []string
	var acts []func()
	for _, a := range s.flow.actors {
		if s.workers[a.worker] == nil {
			s.start(a.worker)
		}
		names, workers = append(names, a.name), append(workers, a.worker)
		acts = append(acts, func() { a.act(s, s.workers[a.worker], a.name) })
	}
	if !s.director.run(names, workers, acts) {
		s.breaks("I16", "stuck")
	}
	s.director.drain(true)
	s.toRest()
	s.close()
}

// close ends the workers, who have nothing left to do.
func (s *scene[Tx]) close() {
	for _, w := range s.workers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := w.engine.Close(ctx); err != nil {
			s.breaks("I16", "worker %s does not come to its end: %v", w.life.Name(), err)
		}
		cancel()
	}
}

// asks is a client that calls a worker, once more where it is told that it may.
// What it is told goes into the record.
func (s *scene[Tx]) asks(w *worker[Tx], client string, op unavez.Operation, call func(ctx context.Context) (unavez.Outcome, error)) {
	for range 2 {
		if !s.ask(w, client, op, call) {
			return
		}
		if s.flow.patience > 0 {
			s.director.wait(s.flow.patience)
		}
	}
}

// ask is one call; it reports whether another one makes sense.
func (s *scene[Tx]) ask(w *worker[Tx], client string, op unavez.Operation, call func(ctx context.Context) (unavez.Outcome, error)) bool {
	before := s.ranSoFar()
	a := answer{client: client, payload: string(op.Payload), lost: true}
	defer func() { // also when the worker is killed, or panics
		if p := recover(); p != nil && p != fault.ErrPanic { //nolint:errorlint // the very value
			panic(p)
		}
		a.runs = s.ranSince(before, client)
		s.told(a)
	}()
	out, err := call(context.Background())
	if w.life.Dead() {
		return false
	}
	if errors.Is(err, errNoAnswer) {
		return true
	}
	a.lost, a.err = false, err
	if err == nil {
		a.outcome = &out
	}
	return unavez.SafeToRetry(err) || errors.Is(err, fault.ErrHandler) || errors.Is(err, fault.ErrDown)
}

// errNoAnswer is the error of a call that did not come back.
var errNoAnswer = errors.New("no answer")

// do is a client of transaction mode.
func do[Tx any](s *scene[Tx], w *worker[Tx], client string) { s.do(w, client, s.op) }

func (s *scene[Tx]) do(w *worker[Tx], client string, op unavez.Operation) {
	s.asks(w, client, op, func(ctx context.Context) (unavez.Outcome, error) {
		return w.engine.Do(ctx, op, s.handles(w, client, op))
	})
}

// handles is the handler: one business row, named after the run that made it.
func (s *scene[Tx]) handles(w *worker[Tx], client string, op unavez.Operation) func(context.Context, Tx) (unavez.Result, error) {
	return func(ctx context.Context, tx Tx) (unavez.Result, error) {
		run := s.ran(client, string(op.Payload))
		if err := w.life.At(ctx, fault.Handler, tx); err != nil {
			return unavez.Result{}, err
		}
		if err := s.bed.write(ctx, tx, s.key, run, string(op.Payload)); err != nil {
			return unavez.Result{}, err
		}
		if err := w.life.At(ctx, fault.Handler, tx); err != nil {
			return unavez.Result{}, err
		}
		return unavez.Result{Code: 201, Header: []unavez.Field{{Name: "Location", Value: "/orders/1"}}, Body: []byte(run)}, nil
	}
}

// lease is a client of lease mode, with one outside call.
func leaseMode[Tx any](s *scene[Tx], w *worker[Tx], client string) {
	s.asks(w, client, s.op, func(ctx context.Context) (unavez.Outcome, error) {
		return s.lease(ctx, w, client, s.op)
	})
}

func (s *scene[Tx]) lease(ctx context.Context, w *worker[Tx], client string, op unavez.Operation) (unavez.Outcome, error) {
	if _, probes := op.Unknown.(unavez.Probe); probes {
		op.Unknown = unavez.Probe(func(ctx context.Context, a *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
			charge, verdict, err := s.probe(ctx, w, a.DerivedKey(), s.bed.now().Sub(a.Changed()))
			return result(charge), verdict, err
		})
	}
	run := func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
		if err := w.life.At(ctx, fault.Run, nil); err != nil {
			return unavez.Result{}, err
		}
		if op.Unknown != unavez.Unknown(unavez.Steps) {
			charge, err := s.call(ctx, w, a.Fence(), "", a.DerivedKey())
			if s.flow.takes > 0 {
				s.director.wait(s.flow.takes)
			}
			if errors.Is(err, fault.ErrRefused) {
				err = unavez.NeverStarted(err)
			}
			return result(charge), err
		}
		var all []string
		for _, step := range steps() {
			charge, err := unavez.Step(ctx, a, step, func(ctx context.Context, key string) (string, error) {
				return s.call(ctx, w, a.Fence(), step, key)
			}, func(ctx context.Context, key string) (string, unavez.Verdict, error) {
				s.director.wait(settleTime) // the earlier attempt may have ended just now
				return s.probe(ctx, w, key, settleTime)
			})
			if err != nil {
				return unavez.Result{}, err
			}
			all = append(all, charge)
		}
		return result(strings.Join(all, ", ")), nil
	}
	return w.engine.Lease(ctx, op, run, s.finishes(w, client, op))
}

// steps are those of the policy Steps.
func steps() []string { return []string{"reserve", "charge"} }

func result(charge string) unavez.Result { return unavez.Result{Code: 201, Body: []byte(charge)} }

// finishes is the finish: one business row.
func (s *scene[Tx]) finishes(w *worker[Tx], client string, op unavez.Operation) func(context.Context, Tx, *unavez.Result) error {
	return func(ctx context.Context, tx Tx, _ *unavez.Result) error {
		run := s.ran(client, string(op.Payload))
		if err := w.life.At(ctx, fault.Handler, tx); err != nil {
			return err
		}
		return s.bed.write(ctx, tx, s.key, run, string(op.Payload))
	}
}

// call is the outside call.
func (s *scene[Tx]) call(ctx context.Context, w *worker[Tx], fence int64, step, key string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://outside/", nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set(attemptHeader, fmt.Sprint(fence))
	r.Header.Set(stepHeader, step)
	return answered(w.client.Do(r))
}

// probe asks the other system. That it knows nothing is conclusive only when the
// last call can no longer be under way.
func (s *scene[Tx]) probe(ctx context.Context, w *worker[Tx], key string, since time.Duration) (string, unavez.Verdict, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://outside/", nil)
	if err != nil {
		return "", unavez.CannotTell, err
	}
	r.Header.Set("Idempotency-Key", key)
	charge, err := answered(w.client.Do(r))
	switch {
	case err != nil:
		return "", unavez.CannotTell, err
	case charge != "":
		return charge, unavez.Done, nil
	case since < settleTime:
		s.saw("probe could not tell")
		return "", unavez.CannotTell, nil
	}
	return "", unavez.NotDone, nil
}

// answered reads an answer; "" says that there is no such thing.
func answered(answer *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return "", err
	}
	if answer.StatusCode == http.StatusNotFound {
		return "", nil
	}
	return string(body), nil
}

// toRest ends the schedule: no more faults, a new worker, and the operation asked
// for until it is at rest. Then everything is audited.
func (s *scene[Tx]) toRest() {
	if s.flow.rest != nil {
		s.flow.rest(s)
	} else {
		s.restByDo()
	}
	rows := s.bed.rows(s.key)
	delete(rows, s.forgotten)
	s.auditAnswers(rows)
	s.auditState(rows)
	if s.flow.audit != nil {
		s.flow.audit(s)
	}
}

// restByDo asks by Do until there is an answer.
func (s *scene[Tx]) restByDo() {
	w := s.start("rest")
	s.untilFinal(func(ctx context.Context) (unavez.Outcome, error) {
		return w.engine.Do(ctx, s.op, s.handles(w, "rest", s.op))
	}, w)
}

// restByLease asks by Lease until there is an answer. A person decides what only
// a person can: by the other system's own log.
func restByLease[Tx any](s *scene[Tx]) {
	w := s.start("rest")
	s.director.pass(overLease)
	if _, err := w.keeper.Expire(context.Background(), 100); err != nil {
		s.breaks("I16", "expire: %v", err)
	}
	s.untilFinal(func(ctx context.Context) (unavez.Outcome, error) { return s.lease(ctx, w, "rest", s.op) }, w)
}

// untilFinal asks until the answer is final: the first time as a client, then
// once more as a duplicate.
func (s *scene[Tx]) untilFinal(call func(ctx context.Context) (unavez.Outcome, error), w *worker[Tx]) {
	for try := range 10 {
		again := s.ask(w, "rest", s.op, call)
		last := s.last()
		switch {
		case last.err == nil:
			s.ask(w, "rest", s.op, call)
			return
		case unavez.CodeOf(last.err) == unavez.CodeExpired:
			return
		case unavez.CodeOf(last.err) == unavez.CodeUnknown && (s.op.Unknown == nil || s.op.Unknown == unavez.Unknown(unavez.Hold)):
			s.person(w)
		case !again && unavez.CodeOf(last.err) != unavez.CodeUnknown:
			s.breaks("I16", "not at rest: %v", last.err)
			return
		}
		s.director.pass(time.Duration(try) * settleTime)
	}
	s.breaks("I16", "not at rest after ten calls: %v", s.last().err)
}

func (s *scene[Tx]) last() answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers[len(s.answers)-1]
}

// person decides about an operation that is held: with a call in the other
// system's log it has happened, else it may go on.
func (s *scene[Tx]) person(w *worker[Tx]) {
	ctx := context.Background()
	listed, err := w.people.List(ctx, store.Filter{States: []store.State{store.Unknown}, Limit: store.MaxPage})
	found := false
	for _, r := range listed {
		found = found || r.Key == s.key
	}
	if !found {
		s.breaks("I16", "unknown, and in no list: %v", err)
	}
	action := store.Action{Key: s.key, Actor: "anna", Reason: "looked at the gateway's log"}
	s.outside.mu.Lock()
	charge, done := s.outside.charges[s.op.Identity().DerivedKey("")]
	s.outside.mu.Unlock()
	if done {
		s.saw("ended by a person")
		err = w.people.Complete(ctx, action, result(charge), retention, tombstone)
	} else {
		s.saw("released by a person")
		err = w.people.Release(ctx, action)
	}
	if err != nil {
		s.breaks("I16", "a person cannot decide: %v", err)
	}
}

// auditState holds the ledger to the business rows: one is there exactly when the
// other is.
func (s *scene[Tx]) auditState(rows map[string]string) {
	v, err := s.bed.store.Look(context.Background(), s.key)
	if err != nil {
		s.breaks("I8", "look: %v", err)
		return
	}
	switch completed := v.State == store.Completed || v.State == store.Expired; {
	case completed && len(rows) == 0 && !s.rowless && !s.byPerson():
		s.breaks("I8", "an outcome without its business row")
	case s.byPerson() && len(rows) > 0:
		s.breaks("I8", "a person has ended it without a business row, and there is %v", rows)
	case !completed && len(rows) > 0:
		s.breaks("I8", "business rows %v, and the ledger says %v", rows, v.State)
	}
}

// fastLease is a fast lease that can lose everything.
type fastLease struct {
	fresh func() fault.FastLease
	fault.FastLease
}

func (f *fastLease) forget() { f.FastLease = f.fresh() }

var _ lease.Leaser = (*fastLease)(nil)
