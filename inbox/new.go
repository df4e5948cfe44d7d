package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// Defaults and bounds of the running of entries; see [Options].
const (
	// DefaultLease of lanes.
	DefaultLease = 10 * time.Second
	// DefaultPoll is how long the queue is left alone.
	DefaultPoll = 250 * time.Millisecond
	// DefaultConcurrency bounds the entries that run at one time.
	DefaultConcurrency = 16
	// DefaultWindow bounds the entries that are read ahead.
	DefaultWindow = 2000
	// MaxWindow is the largest window that is accepted.
	MaxWindow = 1_000_000

	minLease, maxLease = 100 * time.Millisecond, 10 * time.Minute
	minPoll, maxPoll   = time.Millisecond, time.Minute
	maxConcurrency     = 10_000
	maxRetry           = 30 * 24 * time.Hour
	defaultGapWait     = time.Hour
)

// Inbox runs what its receiver makes durable. Make it with [New]; Start begins
// and Stop ends the work. Its methods may be called concurrently.
type Inbox[Tx any] struct {
	engine   *unavez.Engine[Tx]
	store    abilities[Tx]
	receiver *Receiver
	effects  map[string]*effect[Tx]
	opts     Options
	log      *slog.Logger
	clock    clock

	mu       sync.Mutex
	board    board
	running  int // tasks
	phase    phase
	gathered chan struct{} // closed when stopping and no task runs
	timer    *time.Timer   // for the first of board.later
	reader   reader

	wake   chan struct{} // the reader
	round  chan struct{} // the keeper
	look   chan struct{} // the watcher
	tell   chan struct{} // the one who wakes other workers
	cancel context.CancelFunc
	parts  sync.WaitGroup // the long-running parts
	once   sync.Once
	ended  error
}

// phase is how far the life of an inbox has come.
type phase int

const (
	unstarted phase = iota
	started
	stopping // nothing new begins
	stopped
)

// abilities are what the inbox needs of the store.
type abilities[Tx any] struct {
	store.Queue
	store.Lanes
	store.Operations
	store.Quarantine
	ledger interface {
		Look(ctx context.Context, key store.Key) (store.Verdict, error)
	}
	enqueuer store.Enqueuer[Tx]
	versions store.Versions[Tx]
	signal   store.Signal // nil if it has none
}

// need asserts one ability of the store.
func need[Ability any](queue store.Queue, name, what string) (Ability, error) {
	ability, ok := queue.(Ability)
	if !ok {
		return ability, fmt.Errorf("queue: the store has no %s, which %s", name, what)
	}
	return ability, nil
}

// assert collects the abilities that sources and effects want of the store.
func (in *Inbox[Tx]) assert(queue store.Queue) error {
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	s := abilities[Tx]{Queue: queue}
	var err error
	s.Lanes, err = need[store.Lanes](queue, "store.Lanes", "running entries needs")
	fault(err)
	s.Operations, err = need[store.Operations](queue, "store.Operations", "dead letters need")
	fault(err)
	s.Quarantine, err = need[store.Quarantine](queue, "store.Quarantine", "what cannot be an operation needs")
	fault(err)
	ledger, err := need[store.Ledger[Tx]](queue, "store.Ledger of the engine's transactions", "its outcomes need")
	fault(err)
	s.ledger = ledger
	s.signal, _ = queue.(store.Signal)
	for _, ef := range in.effects {
		if ef.Version != nil && s.versions == nil {
			s.versions, err = need[store.Versions[Tx]](queue, "store.Versions", fmt.Sprintf("effect %s needs (Version)", ef.Name))
			fault(err)
		}
		if ef.trait.batch {
			_, err = need[store.Batches[Tx]](queue, "store.Batches", fmt.Sprintf("effect %s needs (Batch)", ef.Name))
			fault(err)
		}
		if ef.trait.lease {
			_, err = need[store.Attempts[Tx]](queue, "store.Attempts", fmt.Sprintf("effect %s needs (Run, or Fetch of a source)", ef.Name))
			fault(err)
		}
		if ef.trait.hint && s.enqueuer == nil {
			s.enqueuer, err = need[store.Enqueuer[Tx]](queue, "store.Enqueuer", "Fetch of a source needs")
			fault(err)
		}
	}
	in.store = s
	return errors.Join(faults...)
}

// New makes an inbox over the queue of the engine's own store. Every fault of
// sources, effects, options and store is reported at once. Engine and store stay
// the caller's to close, after Stop.
func New[Tx any](engine *unavez.Engine[Tx], queue store.Queue, sources []Source, effects []Effect[Tx], opts *Options) (*Inbox[Tx], error) {
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	if engine == nil {
		fault(errors.New("engine: none (make one with unavez.New)"))
	}
	if queue == nil {
		return nil, fmt.Errorf("inbox: %w", errors.Join(append(faults, errors.New("queue: none (pass the engine's store)"))...))
	}
	in := &Inbox[Tx]{
		engine: engine, effects: map[string]*effect[Tx]{}, board: newBoard(), gathered: make(chan struct{}),
		wake: make(chan struct{}, 1), round: make(chan struct{}, 1), look: make(chan struct{}, 1), tell: make(chan struct{}, 1),
	}
	if opts != nil {
		in.opts = *opts
	}
	fault(in.opts.fill())
	in.log = in.opts.Log
	wants := make([]want, len(effects))
	for i := range effects {
		wants[i] = effects[i].want()
	}
	receiver, err := newReceiver(queue, sources, wants, &in.opts)
	fault(err)
	in.receiver = receiver
	for i := range effects {
		fault(in.add(effects[i]))
	}
	in.addFetch(sources)
	fault(in.checkTenants(sources))
	fault(in.assert(queue))
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	receiver.appended = in.appended
	if s, ok := queue.(store.Incarnated); ok {
		s.OnIncarnation(in.otherHistory)
	}
	return in, nil
}

// fill sets what is left open, and reports what cannot be.
func (o *Options) fill() error {
	var faults []error
	if o.Worker == "" {
		host, _ := os.Hostname() // only a name for people
		o.Worker = fmt.Sprintf("%.100s-%d-%s", host, os.Getpid(), rand.Text()[:8])
	}
	if len(o.Worker) > store.MaxActor {
		faults = append(faults, fmt.Errorf("worker: %d bytes, at most %d", len(o.Worker), store.MaxActor))
	}
	defaultTo(&o.Lease, DefaultLease)
	defaultTo(&o.Poll, DefaultPoll)
	defaultTo(&o.Concurrency, DefaultConcurrency)
	defaultTo(&o.Window, DefaultWindow)
	within := func(name string, d, low, high time.Duration) {
		if d < low || d > high {
			faults = append(faults, fmt.Errorf("%s: %v, want %v to %v", name, d, low, high))
		}
	}
	within("lease", o.Lease, minLease, maxLease)
	within("poll", o.Poll, minPoll, maxPoll)
	if o.Concurrency < 1 || o.Concurrency > maxConcurrency {
		faults = append(faults, fmt.Errorf("concurrency: %d, want 1 to %d", o.Concurrency, maxConcurrency))
	}
	if o.Window < 1 || o.Window > MaxWindow {
		faults = append(faults, fmt.Errorf("window: %d, want 1 to %d", o.Window, MaxWindow))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(Sight) {}
	}
	if o.Alert == nil {
		o.Alert = func(Condition) {}
	}
	return errors.Join(faults...)
}

// Receiver is the inbox's own; see there for what it takes.
func (in *Inbox[Tx]) Receiver() *Receiver { return in.receiver }

// Start begins to take lanes and to run entries, until Stop. It returns at once
// and does not wait for the store, which may come later. Starting twice does
// nothing; after Stop it is an error. Cancelling ctx ends nothing once it has
// returned.
func (in *Inbox[Tx]) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch in.phase {
	case started:
		return nil
	case stopping, stopped:
		return errors.New("inbox: was stopped (make a new one)")
	}
	in.phase = started
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	in.cancel = cancel
	parts := []func(context.Context){in.keep, in.read, in.watch}
	if in.store.signal != nil {
		parts = append(parts, in.listen, in.notify)
	}
	for _, part := range parts {
		in.parts.Go(func() { part(life) })
	}
	in.receiver.start()
	return nil
}

// Wake says that something may have been appended by other means than the
// inbox's own receiver, such as [unavez.Engine.Do] with an Enqueuer or an append
// in SQL, or that a person has acted on an operation.
func (in *Inbox[Tx]) Wake() {
	poke(in.wake)
	poke(in.look)
}

// appended is Wake for the receiver, which also wakes the other workers.
func (in *Inbox[Tx]) appended() {
	poke(in.wake)
	poke(in.tell)
}

// poke leaves a mark in a channel of one place.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stopGrace is how long cancelled handlers have when Stop's context has ended.
const stopGrace = time.Second

// Stop receives nothing more, lets what runs come to its end, stores how far
// everything has come and hands the lanes to the other workers, who go on at
// once. When ctx ends first, the handlers are cancelled; lanes in which one still
// runs after a second are left to run out, and the error says so. Calling it
// twice, or unstarted, is safe: the second call waits for the first.
func (in *Inbox[Tx]) Stop(ctx context.Context) error {
	in.once.Do(func() { in.ended = in.stop(ctx) })
	return in.ended
}

func (in *Inbox[Tx]) stop(ctx context.Context) error {
	in.mu.Lock()
	before := in.phase
	in.phase = stopping
	for _, ln := range in.board.lanes {
		ln.leaving = true // handed back one by one, when nothing runs in it
	}
	poke(in.round)
	in.gather()
	in.mu.Unlock()
	if before == unstarted {
		return nil
	}
	failed := in.receiver.stop(ctx)
	select {
	case <-in.gathered:
	case <-ctx.Done():
		in.mu.Lock()
		for _, ln := range in.board.lanes {
			ln.cancel()
		}
		in.mu.Unlock()
		timer := time.NewTimer(stopGrace)
		defer timer.Stop()
		select {
		case <-in.gathered:
		case <-timer.C:
			failed = errors.Join(failed, fmt.Errorf("inbox: handlers still run: %w", context.Cause(ctx)))
		}
	}
	in.cancel() // the keeper among them, which renewed the lanes until now
	in.parts.Wait()
	return errors.Join(failed, in.handAllBack(ctx))
}

// gather closes gathered when nothing runs and nothing will. The mutex is held.
func (in *Inbox[Tx]) gather() {
	if in.phase < stopping || in.running > 0 {
		return
	}
	select {
	case <-in.gathered:
	default:
		close(in.gathered)
	}
}

// handAllBack frees the lanes in which nothing runs.
func (in *Inbox[Tx]) handAllBack(ctx context.Context) error {
	in.mu.Lock()
	in.phase = stopped
	if in.timer != nil {
		in.timer.Stop()
	}
	var marks []store.Mark
	all := true
	for _, ln := range in.board.lanes {
		if all = all && ln.busy == 0; ln.busy == 0 {
			marks = append(marks, store.Mark{Hold: ln.hold, Cursor: ln.mark()})
		}
		in.board.lose(ln)
	}
	in.mu.Unlock()
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	if err := in.store.HandBack(record, in.opts.Worker, marks, all); err != nil {
		return fmt.Errorf("inbox: lanes could not be handed back, they run out in %v: %w", in.opts.Lease, err)
	}
	return nil
}

// recordLimit bounds the writing down of what has happened.
const recordLimit = 10 * time.Second
