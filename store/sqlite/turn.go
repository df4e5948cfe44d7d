package sqlite

import (
	"context"
	"time"

	"github.com/unavez/unavez/store"
)

// expect announces the unit, so that a group about to commit lets it come.
func (u *unit) expect() {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	if !u.opening {
		u.opening = true
		u.w.opening++
	}
}

// unexpect takes it back: the unit will not come.
func (u *unit) unexpect() {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	u.forgo()
}

// forgo takes back expect. The caller holds mu.
func (u *unit) forgo() {
	if u.opening {
		u.opening = false
		u.w.opening--
	}
}

// start waits for the turn and begins the unit; ctx ends the wait only. The
// caller has set the state to unitWaiting. When start returns nil the unit runs
// and has the connection.
func (u *unit) start(ctx context.Context) error {
	w := u.w
	err := w.ask(ctx, u)
	if err == nil {
		if err = u.first(ctx); err != nil {
			w.pass(u)
		}
	}
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.state == unitWaiting {
		u.become(unitIdle)
	}
	if u.err != nil {
		return u.err
	}
	return err
}

// first makes the unit run: in the group that is open, or in a new one.
func (u *unit) first(ctx context.Context) error {
	w := u.w
	if u.kind == unitOwn || u.alone {
		w.flush()
	}
	if err := w.begin(ctx, u); err != nil {
		return err
	}
	w.use.lock()
	var err error
	switch {
	case w.group == nil:
		err = errClosed()
	case u.kind != unitOwn && w.group.units > 0:
		err = u.save()
	}
	if err != nil {
		w.lose(err)
		w.use.unlock()
		return classify(err)
	}
	now := time.Now()
	u.group, u.until = w.group, now.Add(u.limit)
	if u.deadline.Before(u.until) {
		u.until = u.deadline
	}
	w.mu.Lock()
	gone := u.state == unitEnded
	if !gone {
		u.become(unitRunning)
	}
	w.mu.Unlock()
	if gone { // given up while it began
		u.undo(u.err)
		w.use.unlock()
		return u.err
	}
	if u.kind != unitInternal {
		w.limit.at(u.until)
	}
	return nil
}

// become changes the state. The caller holds mu.
func (u *unit) become(state unitState) {
	u.state = state
	if u.asked != nil {
		close(u.asked)
		u.asked = nil
	}
}

// stop makes the unit one that has ended, for its first reason.
func (u *unit) stop(cause error) {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	if u.err == nil {
		u.err = cause
	}
	u.become(unitEnded)
}

// enter makes the connection the unit's for one statement; leave gives it back.
// While another unit's statement runs, a unit that has ended hears so at once,
// and one that waits gives up with ctx or at its deadline.
func (u *unit) enter(ctx context.Context) error {
	w := u.w
	for {
		w.mu.Lock()
		switch u.state {
		case unitEnded:
			defer w.mu.Unlock()
			return u.over()
		case unitIdle:
			u.become(unitWaiting)
			w.mu.Unlock()
			return u.start(ctx)
		case unitWaiting: // a goroutine that its handler left behind
			if u.asked == nil {
				u.asked = make(chan struct{})
			}
			asked := u.asked
			w.mu.Unlock()
			select {
			case <-asked:
				continue
			case <-ctx.Done():
				return busyWithOwn(ctx)
			}
		}
		w.mu.Unlock()
		if !w.use.lockIn(ctx) {
			return busyWithOwn(ctx)
		}
		if u.state == unitRunning && (u.kind == unitInternal || time.Now().Before(u.until)) {
			return nil
		}
		late := u.state == unitRunning
		if late {
			u.undo(u.overLimit())
		}
		w.use.unlock()
		if late {
			w.pass(u)
			u.abandon()
		}
	}
}

// over is what a statement of a unit that has ended gets. The caller holds mu.
func (u *unit) over() error {
	if u.err != nil {
		return u.err
	}
	return &fault{kind: store.ErrAborted, text: "transaction has ended already"}
}

// ended reports whether nothing of the unit runs any more.
func (u *unit) ended() bool {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	return u.state == unitEnded
}

// busyWithOwn is for a unit that could not be ended in time because a statement
// of it still runs, in a goroutine that its handler left behind.
func busyWithOwn(ctx context.Context) error {
	return unavailable("a statement that the handler left behind still runs", context.Cause(ctx))
}

func (u *unit) leave() {
	lost := u.state == unitEnded
	u.w.use.unlock()
	if lost {
		u.w.pass(u)
	}
}

// quit ends a unit that does not run; false when it does.
func (u *unit) quit(cause error) bool {
	w := u.w
	w.mu.Lock()
	defer w.mu.Unlock()
	u.forgo()
	if u.state == unitRunning {
		return false
	}
	if u.err == nil {
		u.err = cause
	}
	u.become(unitEnded)
	w.dequeue(u)
	return true
}
