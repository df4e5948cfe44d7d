package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// maxWrites is how often an attempt is tried to be written where others move it.
const maxWrites = 4

// block writes that the key of an entry waits, as its operation rests already.
func (in *Inbox[Tx]) block(ctx context.Context, l *line, it *item, w rest, why error) bool {
	err := in.store.Block(ctx, store.Blocking{Hold: l.lane.hold, Entry: &it.entry})
	if errors.Is(err, store.ErrCommitUnknown) {
		err = in.store.Block(ctx, store.Blocking{Hold: l.lane.hold, Entry: &it.entry})
	}
	if err != nil {
		return in.troubled(l, it, err)
	}
	in.covered(l, it, w, why)
	return false
}

// stand notes that the row of a line is that of the given sequence for certain.
func (b *board) stand(l *line, sequence int64) {
	l.row, l.leftover = sequence, 0
	b.pay(l)
}

// precede is stand where the row may have taken the place of one for a later entry,
// between which and this one not all has been read: it is read behind this row, in order.
func (b *board) precede(l *line, sequence int64) {
	b.stand(l, sequence)
	if l.rest != nil {
		b.cover(l, sequence+1)
		l.rest, l.after = nil, sequence
	}
}

// covered lets go of everything of a key behind its blocked row, and remembers
// what it waits for.
func (in *Inbox[Tx]) covered(l *line, it *item, w rest, why error) {
	w.key, w.operation = it.entry.Key, it.entry.Operation
	told := in.conditions(it, &w, why)
	in.mu.Lock()
	if !l.lane.lost {
		sequence := it.entry.Sequence
		in.board.cover(l, sequence)
		in.board.pay(l)
		in.board.forgetGap(l, sequence)
		l.row, l.leftover, l.paging, l.after, l.suspect = sequence, 0, true, sequence-1, false
		l.rest = &w
	}
	in.mu.Unlock()
	for _, c := range told {
		in.opts.Alert(c)
	}
	in.observe(&it.entry, seen(w.state, w.due.IsZero()), classOf(why), 0)
}

// failed counts a run that has failed, and says when the entry is tried again.
func (in *Inbox[Tx]) failed(ctx context.Context, l *line, it *item, r run) bool {
	retry := Retry{}.filled()
	if it.trait != nil {
		retry = it.trait.retry
	}
	age := in.clock.since(it.entry.Arrived)
	fence, verdict, err := in.write(ctx, l, it, false, func(found int64) (int64, store.Rest) {
		runs := found + 1
		switch {
		case r.class == hopeless:
			return runs, store.Rest{State: store.Dead, Reason: r.err.Error()}
		case retry.over(runs, age):
			return runs, store.Rest{State: store.Dead, Reason: overLimit(runs, r.err).Error()}
		case r.after > 0:
			return runs, store.Rest{State: store.Retryable, Reason: r.err.Error(), DueIn: r.after}
		}
		return runs, store.Rest{State: store.Retryable, Reason: r.err.Error(), DueIn: retry.delay(runs)}
	})
	return in.written(ctx, l, it, fence, verdict, err, r.err)
}

// overLimit is the reason of an entry that is not tried again. It has the text of
// the last failure and not its mark: one of Again would win over Dead.
func overLimit(runs int64, err error) error {
	given := fmt.Errorf("given up after %d runs: %v", runs, err)
	var h *handlerError
	if errors.As(err, &h) {
		return &handlerError{given}
	}
	return given
}

// written goes on after an attempt was written, or could not be.
func (in *Inbox[Tx]) written(ctx context.Context, l *line, it *item, fence int64, v store.Verdict, err, why error) bool {
	switch {
	case err != nil:
		return in.troubled(l, it, err)
	case fence == 0 && v.Attempt == nil: // it has ended meanwhile: the gate says how
		it.known = true
		return true
	case fence == 0: // somebody has moved it meanwhile
		return in.rests(ctx, l, it, run{class: rests, verdict: v, err: why})
	}
	it.fence = fence
	in.covered(l, it, in.resting(it.trait, v.State, v.Attempt, 0, 0), why)
	return false
}

// write writes the attempt of an entry as it rests, with the blocked row of its
// key. rest says, for the fence that is found, which number to write and how it
// rests. The fence that was written comes with the attempt; 0 says that nothing
// was: the verdict tells what is there, with no attempt where the operation has
// ended.
func (in *Inbox[Tx]) write(ctx context.Context, l *line, it *item, gap bool, rests func(found int64) (fence int64, rest store.Rest)) (int64, store.Verdict, error) {
	found, unsure := it.fence, int64(0)
	entry := it.entry
	if it.two() {
		entry.Fingerprint = store.Fingerprint{} // other events with other payloads may name the operation
	}
	var failed error
	for range maxWrites {
		fence, rest := rests(found)
		err := in.store.Block(ctx, store.Blocking{Hold: l.lane.hold, Entry: &entry, Gap: gap, Attempt: &store.Resting{
			Found: found, Fence: fence, Rest: rest, DerivedKey: entry.Note.Identity.DerivedKey(""), Origin: entry.Note.Source,
		}})
		switch {
		case err == nil:
			return fence, store.Verdict{State: rest.State, Attempt: &store.Attempt{Fence: fence, State: rest.State, DueIn: rest.DueIn}}, nil
		case errors.Is(err, store.ErrDuplicate):
			return 0, store.Verdict{}, nil
		case errors.Is(err, store.ErrCommitUnknown):
			unsure = fence
			failed = err
			continue
		case !errors.Is(err, store.ErrConflict):
			return 0, store.Verdict{}, err
		}
		failed = err
		v, err := in.store.ledger.Look(ctx, entry.Operation)
		if err != nil && !errors.Is(err, store.ErrDamaged) {
			return 0, store.Verdict{}, err
		}
		a := v.Attempt
		switch {
		case a == nil && (v.State.Final() || v.State == store.Expired || err != nil):
			return 0, store.Verdict{}, nil
		case a == nil:
			found = 0
		case a.Fence == unsure && a.State == rest.State: // the answer that was lost
			return a.Fence, v, nil
		case a.State == store.Retryable, a.State == store.Parked, a.State == store.Unknown:
			found = a.Fence
		default:
			return 0, v, nil
		}
	}
	return 0, store.Verdict{}, failed
}

// charge counts, before a suspect runs, the run in which its former worker may
// have been lost; so that one that kills its worker comes to the end of its
// attempts like any other failure. A first offence is tried again at once, and a
// later one after a delay, in which the rest of the lane goes on. It reports
// whether the entry may run now.
func (in *Inbox[Tx]) charge(ctx context.Context, l *line, it *item) bool {
	innocent := func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		l.suspect = false
		return true
	}
	if it.trait == nil || it.trait.lease { // a claim was committed before it ran, and counts
		return innocent()
	}
	v, err := in.store.ledger.Look(ctx, it.entry.Operation)
	switch {
	case err != nil && !errors.Is(err, store.ErrDamaged):
		return in.troubled(l, it, err)
	case v.State == store.Free:
		it.fence = 0
	case v.State == store.Retryable && v.Attempt.DueIn <= 0:
		it.fence = v.Attempt.Fence
	default: // it did not run: it has ended, or is at rest
		it.known = true
		return innocent()
	}
	retry := it.trait.retry
	fence, verdict, err := in.write(ctx, l, it, it.gap, func(found int64) (int64, store.Rest) {
		runs, rest := found+1, store.Rest{State: store.Retryable, Reason: errWorkerLost.Error()}
		switch {
		case retry.over(runs, 0):
			rest.State, rest.Reason = store.Dead, overLimit(runs, errWorkerLost).Error()
		case found > 0:
			rest.DueIn = retry.delay(runs)
		}
		return runs, rest
	})
	if err != nil || fence == 0 || verdict.State == store.Dead || verdict.Attempt.DueIn > 0 {
		return in.written(ctx, l, it, fence, verdict, err, errWorkerLost)
	}
	it.fence = fence
	in.mu.Lock()
	defer in.mu.Unlock()
	l.suspect = false
	if !it.gap && !l.lane.lost {
		in.board.precede(l, it.entry.Sequence)
	}
	return true
}

// errWorkerLost is the reason of a run of which nobody knows how it ended.
var errWorkerLost = errors.New("its worker was lost, and it may have been what the worker ran")

// adopt brings what is known of a key in line with its blocked row as it is
// stored. Fresh says that the lane was just taken. It returns a condition that has
// ended. The mutex is held.
func (in *Inbox[Tx]) adopt(ln *lane, w *store.Waiting, fresh bool) (over *Condition) {
	if w.Gap {
		in.adoptGap(ln, w, fresh)
		return nil
	}
	l := ln.line(w.Order)
	defer in.board.schedule(l)
	state := w.State
	if w.Done {
		state = store.Completed
	}
	switch r := l.rest; {
	case l.running, l.row != 0 && r == nil:
		return nil // it is on its way, and knows better
	case fresh:
		l.row, l.paging, l.after, l.rest = w.Sequence, true, w.Sequence-1, &rest{}
	case l.row == w.Sequence:
		if r.state == state && r.fence == w.Fence || r.stuck && !w.Done {
			return nil
		}
		if !w.Done && 0 < w.Fence && w.Fence < r.fence {
			return nil // read before the last attempt: until an operation has ended its fence only grows
		}
	case l.row != 0 && l.row < w.Sequence, ln.catching:
		return nil // read before the row was moved, or before it was known
	default:
		// Nobody knows how old this look is: what the key waits for is looked up
		// once more, from here on.
		in.board.owe(l, w.Sequence)
		l.paging, l.after = true, w.Sequence-1
		l.rest = &rest{key: w.Key, operation: w.Operation, state: store.Processing, due: time.Now()}
		return nil
	}
	before := l.rest
	next := in.resting(nil, state, &store.Attempt{Fence: w.Fence, LeaseLeft: w.LeaseLeft, DueIn: w.DueIn}, before.asked, 0)
	switch state {
	case store.Free:
		// The row may be there because more was read than is held of a key: then
		// entries before it are still to be read.
		if next.unread = ln.catching; !next.unread {
			next.due = time.Now()
		}
	case store.Completed, store.Discarded, store.Expired, store.Unknown:
		next.due = time.Now() // what it means is for its effect to say
	case store.Dead, store.Parked:
		next.alert = kindOf(state)
	}
	if before.unread && ln.catching { // whatever became of the entry since
		next.unread, next.due = true, time.Time{}
	}
	next.key, next.operation = w.Key, w.Operation
	if before.alert != "" && next.alert == "" && state != store.Unknown {
		over = &Condition{Kind: before.alert, Key: w.Operation, Over: true}
	}
	l.rest = &next
	if fresh && ln.doubt && (state == store.Retryable && w.DueIn <= 0 || state == store.Free || w.Done) {
		l.suspect = true
	}
	return over
}
