package fault_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/fault"
)

// line is the director of one schedule on a real database, which nobody can stop
// in the middle: the actors act one after another, and one thing goes wrong. Who
// stands still does so until all others have ended.
type line struct {
	fault  fault.Fault // what goes wrong, and where
	prompt bool        // what is on the wire arrives before the next step, else when nobody moves
	jump   func(d time.Duration)
	depart func(fault.Note)

	held   chan struct{} // somebody stands still
	resume chan struct{}
	landed chan struct{} // one for each step of the wire that has arrived

	mu     sync.Mutex
	free   bool
	fired  bool
	wire   *delivery
	leaves map[fault.Point]chan struct{} // when each step of the wire arrives
	trace  []moved
}

// delivery is what is on the wire, until it arrives.
type delivery struct {
	leave chan struct{}
	sent  int
}

func newLine(f fault.Fault, prompt bool) *line {
	return &line{fault: f, prompt: prompt, held: make(chan struct{}), resume: make(chan struct{}), landed: make(chan struct{}, 16), wire: newDelivery(), leaves: map[fault.Point]chan struct{}{}}
}

func newDelivery() *delivery {
	return &delivery{leave: make(chan struct{})}
}

func (l *line) born(name string) *fault.Life { return fault.NewLife(name, l) }

// pass and wait move the database's clock: no flow here needs another.
func (l *line) pass(d time.Duration) { l.jump(d) }
func (l *line) wait(d time.Duration) { l.jump(d) }

func (l *line) drain(free bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = free
}

// Sent counts what is on the wire.
func (l *line) Sent(at fault.Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wire.sent++
	l.leaves[at] = l.wire.leave
}

// Arrive lets every step go but the one.
func (l *line) Arrive(_ context.Context, at fault.Point) fault.Kind {
	if at.Wire {
		l.mu.Lock()
		leave := l.leaves[at]
		l.mu.Unlock()
		<-leave
		return fault.None
	}
	if l.prompt {
		l.deliver()
	}
	l.mu.Lock()
	if l.free {
		l.mu.Unlock()
		return fault.None
	}
	kind := fault.None
	if at == l.fault.Point && !l.fired {
		l.fired, kind = true, l.fault.Kind
	}
	l.trace = append(l.trace, moved{Fault: fault.Fault{Point: at, Kind: kind}})
	l.mu.Unlock()
	switch kind {
	case fault.Pause, fault.Stop:
		if kind == fault.Stop {
			l.jump(overLease)
		}
		close(l.held)
		<-l.resume
		return fault.None
	case fault.Jump:
		l.jump(overLease)
		return fault.None
	}
	return kind
}

// Depart passes on what a step came to.
func (l *line) Depart(n fault.Note) {
	l.depart(n)
	if n.Wire {
		l.landed <- struct{}{}
	}
}

// deliver lets arrive what is on the wire, and waits for that.
func (l *line) deliver() {
	l.mu.Lock()
	leaves := l.wire
	l.wire = newDelivery()
	l.mu.Unlock()
	close(leaves.leave)
	for range leaves.sent {
		<-l.landed
	}
}

// patience bounds one actor; quiet is how long one moves nowhere before what is on
// the wire arrives.
const (
	patience = time.Minute
	quiet    = 200 * time.Millisecond
)

// run lets the actors act in their order.
func (l *line) run(_, _ []string, actors []func()) bool {
	var standing chan struct{}
	for _, act := range actors {
		done := make(chan struct{})
		go func() {
			defer close(done)
			act()
		}()
		held := l.held
		if standing != nil {
			held = nil
		}
		switch l.ends(done, held) {
		case stood:
			standing = done
		case stuck:
			return false
		}
	}
	if standing != nil {
		close(l.resume)
		if l.ends(standing, nil) == stuck {
			return false
		}
	}
	l.deliver()
	return true
}

// What became of an actor.
type end int

const (
	ended end = iota
	stood
	stuck
)

// ends waits for an actor's end, or for its standing still.
func (l *line) ends(done, held chan struct{}) end {
	limit := time.After(patience)
	for {
		select {
		case <-done:
			return ended
		case <-held:
			return stood
		case <-time.After(quiet):
			l.deliver()
		case <-limit:
			return stuck
		}
	}
}

// alone runs a flow on a real database: without a fault, to learn its steps, and
// then with each fault at each of them.
func alone[Tx any](t *testing.T, b *bed[Tx], f *flow[Tx]) *evidence {
	t.Helper()
	e := newEvidence(f.name)
	play := func(broken fault.Fault, prompt bool) []moved {
		e.Schedules++
		l := newLine(broken, prompt)
		name := fmt.Sprint(f.name, " ", e.Schedules)
		r := newRecord(b.now)
		s := newScene(f, b, r, l, name)
		l.depart, l.jump = r.note, func(d time.Duration) { b.jump(s.key, d) }
		s.play(func() {})
		e.count(l.trace, r.seen)
		if found := r.violations(); len(found) > 0 {
			e.Violations++
			t.Errorf("%s: %v with %v (prompt: %v): %v", f.name, found, broken, prompt, l.trace)
		}
		return l.trace
	}
	for _, step := range play(fault.Fault{}, false) {
		for _, kind := range fault.Kinds(step.Step) {
			play(fault.Fault{Point: step.Point, Kind: kind}, false)
			switch kind {
			case fault.Lose, fault.Cut, fault.Late, fault.Kill, fault.Die:
				play(fault.Fault{Point: step.Point, Kind: kind}, true)
			}
			if e.Violations > 5 {
				return e
			}
		}
	}
	return e
}
