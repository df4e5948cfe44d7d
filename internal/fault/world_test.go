package fault_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/internal/fault"
)

// world is the director of one schedule, inside a bubble of synctest: nothing
// moves but what it lets move, one step at a time.
type world struct {
	bounds bounds
	pick   func(options []option) int
	jump   func(d time.Duration) // moves the database's clock
	depart func(fault.Note)      // keeps the record
	after  func()                // looks at what a step has left

	arrived chan struct{} // something has come to a step, or ended

	mu       sync.Mutex
	waiting  []*entry
	lives    map[string]*fault.Life
	works    map[string]string // actors to the worker that each begins with
	frozen   map[string]int    // lives that stand still, with the count of ends at which they began to
	alive    int               // actors
	ended    int               // actors that have ended
	free     bool              // everything goes at once, without fault
	last     string            // the thread that moved last
	switches int               // preemptions so far
	faults   []fault.Fault     // that were given
	trace    []moved           // every step that was let go
}

// bounds are how far a search goes.
type bounds struct {
	preemptions int
	faults      int
	// aftermath is how many more faults there may be, at steps that only a fault
	// leads to.
	aftermath int
}

// aftermath are the steps that only a fault leads to, in most flows.
func aftermath(step string) bool {
	return slices.Contains([]string{fault.Settle, fault.Rollback, fault.Rest, fault.Look, fault.Steps, fault.Probe, fault.Renew}, step)
}

// entry is a step that waits for its turn.
type entry struct {
	at      fault.Point
	turn    chan fault.Kind
	stopped bool // it has had its fault
}

// thread is what a preemption is counted by.
func (e *entry) thread() string {
	if e.at.Wire {
		return e.at.Life + "~"
	}
	return e.at.Life
}

// moved is a step that was let go; forced says that it was no choice.
type moved struct {
	fault.Fault
	forced bool
}

// option is one way to go on.
type option struct {
	entry *entry
	kind  fault.Kind
	cost  int // in preemptions
}

// start is the step before an actor's first.
const start = "start"

func newWorld(b bounds, pick func([]option) int) *world {
	return &world{
		bounds: b, pick: pick, arrived: make(chan struct{}, 1),
		lives: map[string]*fault.Life{}, works: map[string]string{}, frozen: map[string]int{},
		after: func() {},
	}
}

// born makes a worker.
func (w *world) born(name string) *fault.Life {
	l := fault.NewLife(name, w)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lives[name] = l
	return l
}

func (w *world) signal() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// Sent has nothing to do: in a bubble, everything comes to its step before the
// next choice.
func (w *world) Sent(fault.Point) {}

// Arrive waits for the step's turn.
func (w *world) Arrive(_ context.Context, at fault.Point) fault.Kind {
	w.mu.Lock()
	if w.free {
		w.mu.Unlock()
		return fault.None
	}
	e := &entry{at: at, turn: make(chan fault.Kind, 1)}
	w.waiting = append(w.waiting, e)
	w.mu.Unlock()
	w.signal()
	return <-e.turn
}

// Depart passes on what a step came to.
func (w *world) Depart(note fault.Note) { w.depart(note) }

// run lets the actors go, step by step, until all have ended and nothing is on
// the wire. It reports false when they are stuck.
func (w *world) run(names, workers []string, actors []func()) bool {
	w.alive = len(actors)
	for i, name := range names {
		w.works[name] = workers[i]
	}
	for i, act := range actors {
		go func() {
			defer func() {
				w.mu.Lock()
				w.alive--
				w.ended++
				w.mu.Unlock()
				w.signal()
			}()
			w.Arrive(context.Background(), fault.Point{Life: names[i], Step: start, Nth: 1})
			act()
		}()
	}
	for {
		synctest.Wait()
		if w.bury() {
			continue
		}
		w.after()
		w.thaw(false)
		options := w.options()
		switch {
		case len(options) > 0:
			w.give(options[w.pick(options)])
		case w.thaw(true):
		case w.over():
			return true
		default: // only time can bring something
			select {
			case <-w.arrived:
			case <-time.After(time.Hour):
				return false
			}
		}
	}
}

// over reports whether everybody has ended.
func (w *world) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.alive == 0 && len(w.waiting) == 0
}

// drain lets everything go from now on, or no longer.
func (w *world) drain(free bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free = free
}

// bury wakes those of a killed worker who wait, so that they end.
func (w *world) bury() (some bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = slices.DeleteFunc(w.waiting, func(e *entry) bool {
		l := w.lives[e.at.Life]
		if l == nil || e.at.Wire || !l.Dead() {
			return false
		}
		e.turn <- fault.Gone
		some = true
		return true
	})
	return some
}

// thaw lets go on who stands still: those who have waited for another's end, or
// all of them. It reports whether there was one.
func (w *world) thaw(all bool) (some bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for life, since := range w.frozen {
		if all || w.ended > since {
			delete(w.frozen, life)
			some = true
		}
	}
	return some
}

// options are the ways to go on, within the bounds; the first is to go on with
// who moved last, without a fault.
func (w *world) options() []option {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ready []*entry
	running := false
	for _, e := range w.waiting {
		if _, still := w.frozen[e.at.Life]; still && !e.at.Wire {
			continue
		}
		ready = append(ready, e)
		running = running || e.thread() == w.last
	}
	slices.SortFunc(ready, func(a, b *entry) int {
		mine := func(e *entry) int {
			if e.thread() == w.last {
				return 0
			}
			return 1
		}
		return cmp.Or(
			mine(a)-mine(b), strings.Compare(a.at.Life, b.at.Life), boolean(a.at.Wire)-boolean(b.at.Wire),
			strings.Compare(a.at.Step, b.at.Step), a.at.Nth-b.at.Nth,
		)
	})
	var all []option
	first := map[string]bool{} // of each thread, in this order, one step is to be had for nothing
	for _, e := range ready {
		cost := boolean(running && e.thread() != w.last || first[e.thread()])
		first[e.thread()] = true
		if w.switches+cost > w.bounds.preemptions {
			continue
		}
		all = append(all, option{e, fault.None, cost})
		if e.at.Wire || e.stopped || !w.mayFail(e.at.Step) {
			continue
		}
		for _, kind := range fault.Kinds(e.at.Step) {
			all = append(all, option{e, kind, cost})
		}
	}
	return all
}

// mayFail reports whether the bounds allow a fault at a step; the mutex is held.
func (w *world) mayFail(step string) bool {
	after := 0
	for _, f := range w.faults {
		after += boolean(aftermath(f.Step))
	}
	if aftermath(step) && after < w.bounds.aftermath {
		return true
	}
	return len(w.faults)-min(after, w.bounds.aftermath) < w.bounds.faults
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// give lets a step go, with its fault.
func (w *world) give(o option) {
	w.mu.Lock()
	w.switches += o.cost
	w.last = o.entry.thread()
	if o.entry.at.Step == start {
		w.last = w.works[w.last]
	}
	f := fault.Fault{Point: o.entry.at, Kind: o.kind}
	w.trace = append(w.trace, moved{Fault: f})
	if o.kind != fault.None {
		w.faults = append(w.faults, f)
	}
	kind := o.kind
	switch kind {
	case fault.Pause, fault.Stop:
		o.entry.stopped = true
		w.frozen[o.entry.at.Life] = w.ended
		w.mu.Unlock()
		if kind == fault.Stop {
			w.pass(overLease)
		}
		return
	case fault.Jump:
		kind = fault.None
		w.mu.Unlock()
		w.land()
		w.jump(overLease)
		w.mu.Lock()
	}
	w.release(o.entry, kind)
	w.mu.Unlock()
}

// release wakes an entry; the mutex is held.
func (w *world) release(e *entry, kind fault.Kind) {
	w.waiting = slices.DeleteFunc(w.waiting, func(x *entry) bool { return x == e })
	e.turn <- kind
}

// land lets the outside calls that are under way arrive: none is under way for
// longer than the time after which a probe is believed, by any clock.
func (w *world) land() {
	w.letGo(func(e *entry) bool { return e.at.Wire && e.at.Step == fault.Call })
}

// letGo wakes those that are meant, one after another.
func (w *world) letGo(meant func(*entry) bool) {
	for {
		synctest.Wait()
		w.mu.Lock()
		i := slices.IndexFunc(w.waiting, meant)
		if i < 0 {
			w.mu.Unlock()
			return
		}
		w.trace = append(w.trace, moved{fault.Fault{Point: w.waiting[i].at}, true})
		w.release(w.waiting[i], fault.None)
		w.mu.Unlock()
	}
}

// pass lets time pass. Who does not stand still renews its leases meanwhile, and
// makes no other step.
func (w *world) pass(d time.Duration) {
	w.land()
	until := time.Now().Add(d)
	for {
		w.letGo(func(e *entry) bool {
			_, still := w.frozen[e.at.Life]
			return !still && !e.at.Wire && slices.Contains([]string{fault.Renew, fault.Prolong, fault.Take}, e.at.Step)
		})
		select {
		case <-w.arrived:
		case <-time.After(time.Until(until)):
			return
		}
	}
}

// wait is how the code of an actor lets time pass.
func (w *world) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// story is the schedule in one line.
func (w *world) story() string {
	var b strings.Builder
	for i, f := range w.trace {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, f.Fault)
	}
	return b.String()
}
