package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/unavez/unavez/store"
)

const (
	// quantum bounds the entries of one key that run in one turn, where they are
	// read for it alone.
	quantum = 64
	// troubleFirst and troubleLast bound the pause after the store's trouble.
	troubleFirst, troubleLast = 20 * time.Millisecond, 5 * time.Second
	// flyingFirst is the pause before an operation that runs elsewhere is asked
	// about again; it doubles. After flyingLong its key gets a blocked row, so that
	// the cursor does not wait for it, and it is asked every flyingPoll at most.
	flyingFirst, flyingLong, flyingPoll = 20 * time.Millisecond, 2 * time.Second, 5 * time.Second
)

// pump starts tasks while there is something to do and room for it, and sets the
// timer for what comes next. The mutex is held.
func (in *Inbox[Tx]) pump() {
	if in.phase != started {
		return
	}
	next, some := in.board.due(time.Now())
	for in.running < in.opts.Concurrency {
		t := in.board.pick()
		if t == nil {
			break
		}
		in.running++
		go in.work(t)
	}
	if !some {
		return
	}
	if in.timer == nil {
		in.timer = time.AfterFunc(time.Until(next), in.onTime)
		return
	}
	in.timer.Reset(time.Until(next))
}

func (in *Inbox[Tx]) onTime() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.pump()
}

// work is one task.
func (in *Inbox[Tx]) work(t *task) {
	defer func() { // also when a handler ends its goroutine
		in.mu.Lock()
		defer in.mu.Unlock()
		in.board.leave(t)
		in.running--
		for _, ln := range t.lanes() {
			if ln.leaving && ln.busy == 0 {
				poke(in.round)
			}
		}
		if in.reader.full && in.room() >= min(in.opts.Window/4+1, 256) {
			in.reader.full = false
			poke(in.wake)
		}
		in.pump()
		in.gather()
	}()
	if t.sizes[0] > 0 {
		in.together(t)
		return
	}
	for n := 1; in.step(t, t.lines[0]); n++ {
		if n >= quantum {
			return
		}
	}
}

// step does the next thing that a line needs, and reports whether the task should
// go on with it at once.
func (in *Inbox[Tx]) step(t *task, l *line) bool {
	ln, now := t.lane, time.Now()
	in.mu.Lock()
	due, resting := l.resting()
	if ln.lost || ln.leaving || in.phase != started || l.until.After(now) || resting && (due.IsZero() || due.After(now)) {
		in.mu.Unlock()
		return false
	}
	l.until = time.Time{}
	var it *item
	if len(l.items) > 0 {
		it = l.items[0]
	}
	check, behind, row, spill := l.check, l.paging, l.row != 0 || l.leftover != 0, l.spill
	// Of one that came early, what is before it may be in the store only; if it fails,
	// its row becomes the key's.
	unread := it != nil && it.gap && behind && l.after < it.entry.Sequence
	in.mu.Unlock()
	switch {
	case spill != nil:
		return in.coverSpill(ln.ctx, l, spill)
	case resting:
		return in.page(ln.ctx, l)
	case check:
		return in.closeGap(ln.ctx, l)
	case unread:
		return in.page(ln.ctx, l)
	case it != nil:
		return in.attempt(ln.ctx, l, it) && (behind || row)
	case behind:
		return in.page(ln.ctx, l)
	case row:
		return in.unblock(ln.ctx, l)
	}
	return false
}

// coverSpill writes the blocked row behind what is held of a key.
func (in *Inbox[Tx]) coverSpill(ctx context.Context, l *line, e *store.Entry) bool {
	if err := in.store.Block(ctx, store.Blocking{Hold: l.lane.hold, Entry: e}); err != nil {
		return in.troubled(l, nil, err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if l.lane.lost {
		return false
	}
	in.board.stand(l, e.Sequence)
	return true
}

// page reads more of what waits behind a blocked row.
//
// Nothing is missed: an entry that the reader has passed by was visible to the
// reader before, so that a read that begins after that sees it too. So passed is
// cleared first; where the read finds nothing and passed is still clear, nothing
// was passed by that it has not seen, and from then on, in the same moment, the
// reader passes nothing by any more. What it does find counts up to the first that
// was passed by meanwhile, which may have committed after the read and before what
// stands behind it. An append that commits later is read by the reader, whatever
// becomes of the row.
func (in *Inbox[Tx]) page(ctx context.Context, l *line) bool {
	in.mu.Lock()
	l.passed = 0
	after, rested := l.after, l.rest
	limit := 1
	if rested == nil {
		limit = max(1, min(quantum, in.room()))
	}
	in.mu.Unlock()
	entries, err := in.store.Followers(ctx, l.order, after, limit)
	if err != nil {
		return in.troubled(l, nil, err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case l.lane.lost:
		return false
	case len(entries) == 0:
		if l.passed == 0 {
			in.board.drain(l)
		}
		return true
	}
	for i := range entries {
		e := entries[i]
		if l.passed != 0 && e.Sequence > l.passed {
			if i == 0 {
				return true
			}
			break
		}
		l.after = e.Sequence
		if l.gapOf(e.Sequence) != nil {
			continue
		}
		it := &item{entry: e, trait: in.trait(&e)}
		if rested != nil && rested.key == e.Key {
			it.fence, it.asked, it.alert = rested.fence, rested.asked, rested.alert
		}
		in.clock.hear(e.Arrived)
		in.board.hold(l, it)
	}
	l.rest = nil
	in.board.clothe(l)
	return l.batch(2) < 2 // else it can go with others
}

// unblock removes the row of a key of which nothing waits any more.
func (in *Inbox[Tx]) unblock(ctx context.Context, l *line) bool {
	in.mu.Lock()
	if l.row != 0 {
		l.leftover, l.row = l.row, 0
	}
	row, hold := l.leftover, l.lane.hold
	in.mu.Unlock()
	if err := in.store.Unblock(ctx, hold, l.order, row); err != nil {
		return in.troubled(l, nil, err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if l.lane.lost {
		return false
	}
	l.leftover = 0
	in.board.drained++
	return true
}

// attempt runs an entry and writes down what came of it. It reports whether the
// line can go on.
func (in *Inbox[Tx]) attempt(ctx context.Context, l *line, it *item) (on bool) {
	if l.suspect && !in.charge(ctx, l, it) {
		return false
	}
	returned := false
	defer func() {
		if !returned { // the handler has ended its goroutine
			in.settle(ctx, l, it, in.exited(ctx, l.lane, it))
		}
	}()
	var r run
	if it.trait != nil && it.trait.hint {
		r = in.fetch(ctx, l, it)
	} else {
		r = in.try(ctx, l.lane, it)
	}
	returned = true
	return in.settle(ctx, l, it, r)
}

// exited is what a run came to whose handler has ended its goroutine. In a
// transaction it has failed. Outside of one nobody can tell what it did: the
// engine has written so, and what is to happen then is not for a retry to decide.
func (in *Inbox[Tx]) exited(ctx context.Context, ln *lane, it *item) run {
	err := errors.New("the handler ended its goroutine")
	if it.trait == nil || !it.trait.lease {
		return run{class: failed, err: err}
	}
	r := in.judge(ctx, in.effects[it.trait.name], ln.hold, it)
	if r.err == nil {
		r.err = err
	}
	return r
}

// settle acts on what a run came to.
func (in *Inbox[Tx]) settle(ctx context.Context, l *line, it *item, r run) bool {
	switch r.class {
	case ended:
		return in.finished(ctx, l, it, r)
	case lost:
		return in.troubled(l, it, errors.Join(store.ErrLaneLost, r.err))
	case later:
		return in.troubled(l, it, r.err)
	case flying:
		return in.inFlight(ctx, l, it, r)
	case rests:
		return in.rests(ctx, l, it, r)
	case failed, hopeless:
		return in.failed(ctx, l, it, r)
	case soon:
		return in.park(ctx, l, it, r)
	}
	return false
}

// troubled acts on an error of the store: nothing of the entry has changed, and it
// is tried again after a pause, unless the lane is lost.
func (in *Inbox[Tx]) troubled(l *line, it *item, err error) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case l.lane.lost:
	case errors.Is(err, store.ErrLaneLost):
		in.lose(l.lane)
	default:
		n := 3
		if it != nil {
			it.troubles++
			n = min(it.troubles, 10)
		}
		l.until = time.Now().Add(jitter(min(troubleFirst<<n, troubleLast)))
	}
	return false
}

// jitter is a duration between a half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// finished lets go of an entry that is done.
func (in *Inbox[Tx]) finished(ctx context.Context, l *line, it *item, r run) bool {
	if it.gap {
		if err := in.store.Unblock(ctx, l.lane.hold, l.order, it.entry.Sequence); err != nil {
			return in.troubled(l, it, err)
		}
	}
	in.mu.Lock()
	if !l.lane.lost {
		in.board.remove(l, it)
		l.suspect = false
		if it.trait != nil && it.trait.contiguous && r.how == "completed" {
			l.last = it.entry.Note.Version
			l.check = len(l.gaps) > 0
		}
	}
	in.mu.Unlock()
	in.ends(it, r)
	return true
}

// inFlight lets an entry wait whose operation runs elsewhere.
func (in *Inbox[Tx]) inFlight(ctx context.Context, l *line, it *item, r run) bool {
	it.asked++
	wait := flyingFirst << min(it.asked, 12)
	if wait >= flyingLong {
		wait = max(min(r.after, flyingPoll), time.Second)
		return in.block(ctx, l, it, rest{state: store.Processing, fence: it.fence, asked: it.asked, due: time.Now().Add(jitter(wait))}, nil)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	l.until = time.Now().Add(jitter(wait))
	return false
}

// rests lets an entry wait whose operation is at rest.
func (in *Inbox[Tx]) rests(ctx context.Context, l *line, it *item, r run) bool {
	a := r.verdict.Attempt
	if a == nil {
		a = &store.Attempt{Fence: it.fence}
	}
	in.mu.Lock()
	known := l.gapOf(it.entry.Sequence)
	if known != nil && r.verdict.State == store.Parked { // read once more
		in.board.remove(l, it)
	}
	in.mu.Unlock()
	if known != nil && r.verdict.State == store.Parked {
		return true
	}
	if r.verdict.State == store.Unknown {
		it.asked++
	}
	w := in.resting(it.trait, r.verdict.State, a, it.asked, in.clock.since(it.entry.Arrived))
	w.stuck = it.trait == nil
	if !w.due.IsZero() {
		w.due = latest(w.due, time.Now().Add(r.after))
	}
	return in.block(ctx, l, it, w, r.err)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// resting is how a key waits for an operation in the given state.
func (in *Inbox[Tx]) resting(t *trait, state store.State, a *store.Attempt, asked int, age time.Duration) rest {
	w := rest{state: state, fence: a.Fence, asked: asked}
	now := time.Now()
	switch state {
	case store.Processing:
		w.due = now.Add(max(min(a.LeaseLeft, flyingPoll), flyingFirst))
	case store.Retryable:
		w.due = now.Add(max(a.DueIn, 0))
	case store.Unknown:
		if t != nil && t.repeats && !t.retry.over(a.Fence, age) {
			w.due = now.Add(t.retry.delay(a.Fence + int64(asked)))
		}
	case store.Free:
		if t != nil {
			w.due = now
		}
	}
	return w
}
