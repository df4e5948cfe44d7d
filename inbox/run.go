package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// class is what a run of an entry came to.
type class int

const (
	// ended: the entry is done.
	ended class = iota
	// lost: the lane has another holder.
	lost
	// later: the store had trouble; nothing of the entry has changed.
	later
	// flying: its operation runs elsewhere.
	flying
	// rests: its operation is at rest in the store, as the verdict says.
	rests
	// failed: the handler has failed, and the run counts.
	failed
	// hopeless: trying again does not mend it.
	hopeless
	// soon: its version came early.
	soon
)

// run is what a run of an entry came to, and what goes with it.
type run struct {
	class   class
	how     string        // of an ended one: "completed", "discarded", "stale"
	at      time.Time     // of an ended one, by the database's clock; zero if it had ended before
	after   time.Duration // of failed and flying: not before, 0 leaves it open
	err     error
	verdict store.Verdict // of rests
	missing string        // of soon: what it waits for
}

// two tells that an entry is an event that names an operation by another identity.
func (it *item) two() bool { return it.entry.Key != it.entry.Operation }

// try runs the first entry of a line once.
func (in *Inbox[Tx]) try(ctx context.Context, ln *lane, it *item) run {
	ef := in.effects[it.entry.Note.Identity.Effect]
	if ef == nil {
		return run{class: rests, verdict: store.Verdict{State: store.Free}, err: errors.New("this worker has no effect of that name")}
	}
	if err := in.load(ctx, it); err != nil {
		return in.trouble(err)
	}
	var r run
	if ef.trait.lease {
		r = in.leased(ctx, ef, ln.hold, it)
	} else {
		r = in.transacted(ctx, ef, ln.hold, it)
	}
	if ctx.Err() != nil && (r.class == failed || r.class == later) {
		return run{class: later, err: context.Cause(ctx)} // cancelled by us
	}
	return r
}

// trouble is what an error of the store itself means.
func (in *Inbox[Tx]) trouble(err error) run {
	if errors.Is(err, store.ErrLaneLost) {
		return run{class: lost, err: err}
	}
	return run{class: later, err: err}
}

// transacted runs an entry in transaction mode: the rows of its effect, the
// outcome of the operation and that of the entry commit together.
func (in *Inbox[Tx]) transacted(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item) run {
	e := &it.entry
	own := ef.operation(e.Note.Event, e, hold)
	own.Fingerprint = e.Fingerprint
	own.OwnsRetries = it.fence > 0 || it.known
	event := eventOfEntry(e, it.fence+1)
	var judged version
	var dropped string
	effect := func(ctx context.Context, tx Tx) error {
		if err := in.caught(ef, func() error { return ef.handle(ctx, tx, event) }); err != nil {
			return err
		}
		return in.setVersion(ctx, tx, ef, it)
	}
	out, err := in.engine.Do(ctx, own, func(ctx context.Context, tx Tx) (unavez.Result, error) {
		var err error
		if judged, err = in.judgeVersion(ctx, tx, ef, it); err == nil {
			err = judged.end()
		}
		if err != nil {
			return unavez.Result{}, err
		}
		if !it.two() {
			return unavez.Result{}, effect(ctx, tx)
		}
		named := ef.operation(e.Note.Identity, e, hold)
		named.OwnsRetries = true
		_, err = in.engine.Join(ctx, tx, named, func(ctx context.Context) (unavez.Result, error) {
			err := effect(ctx, tx)
			if reason, ok := unavez.IsDiscard(err); ok {
				dropped = reason
				err = errDropped
			}
			return unavez.Result{}, err
		})
		return unavez.Result{}, err
	})
	switch {
	case err == nil:
		return endedBy(out, judged)
	case errors.Is(err, errDropped):
		return in.discardBoth(ctx, ef, hold, it, dropped)
	case errors.Is(err, errEarly):
		return run{class: soon, missing: judged.missing}
	}
	return in.classify(ctx, ef, hold, it, err)
}

// errDropped takes back the transaction of a handler that has discarded.
var errDropped = errors.New("discarded by the handler")

// handle is the handler of one entry.
func (ef *effect[Tx]) handle(ctx context.Context, tx Tx, e *Event) error {
	if ef.HandleBatch != nil {
		return ef.HandleBatch(ctx, tx, []*Event{e})
	}
	return ef.Handle(ctx, tx, e)
}

// endedBy is an entry that has an outcome now.
func endedBy(out unavez.Outcome, judged version) run {
	r := run{class: ended, how: "completed"}
	switch {
	case judged.is == stale && out.State == store.Discarded:
		r.how = "stale"
	case out.State == store.Discarded:
		r.how = "discarded"
	}
	if !out.Replayed {
		r.at = out.At
	}
	return r
}

// discardBoth ends the operation that an entry names, and then the entry, without
// their effect: two commits, of which the first makes the second certain.
func (in *Inbox[Tx]) discardBoth(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item, reason string) run {
	named := ef.operation(it.entry.Note.Identity, &it.entry, hold)
	named.OwnsRetries = true
	_, err := in.engine.Do(ctx, named, func(context.Context, Tx) (unavez.Result, error) {
		return unavez.Result{}, unavez.Discard(reason)
	})
	if err != nil && unavez.CodeOf(err) != unavez.CodeDiscarded {
		return in.classify(ctx, ef, hold, it, err)
	}
	return in.endEntry(ctx, ef, hold, it, store.Discarded, reason)
}

// endEntry ends an entry whose operation has ended already.
func (in *Inbox[Tx]) endEntry(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item, state store.State, reason string) run {
	if !it.two() {
		return run{class: ended, how: state.String()}
	}
	own := ef.operation(it.entry.Note.Event, &it.entry, hold)
	own.Fingerprint = it.entry.Fingerprint
	out, err := in.engine.Do(ctx, own, func(context.Context, Tx) (unavez.Result, error) {
		if state == store.Discarded {
			return unavez.Result{}, unavez.Discard(reason)
		}
		return unavez.Result{}, nil
	})
	if err != nil {
		return in.classify(ctx, ef, hold, it, err)
	}
	return endedBy(out, version{})
}

// maxAborts is how often in a row the database may give an entry's transaction up
// before that counts as a failure of the entry.
const maxAborts = 10

// classify says what an error of the engine, or of the handler through it, means.
func (in *Inbox[Tx]) classify(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item, err error) run {
	said, engine := err.(*unavez.Error) // not errors.As: a handler may pass on what another operation got
	if !engine {
		return handlerFailed(err)
	}
	if said.Key != it.entry.Key && said.Key != it.entry.Operation {
		return handlerFailed(err)
	}
	switch said.Code {
	case unavez.CodeLaneLost:
		return run{class: lost, err: err}
	case unavez.CodeInFlight:
		return run{class: flying, after: said.RetryAfter, err: err}
	case unavez.CodeUnavailable, unavez.CodeUnresolved, unavez.CodeClosed, unavez.CodeLeaseLost:
		return run{class: later, err: err}
	case unavez.CodeAborted:
		if it.aborts++; it.aborts <= maxAborts {
			return run{class: later, err: err}
		}
		return run{class: failed, err: err}
	case unavez.CodeInvalid:
		return run{class: hopeless, err: err}
	case unavez.CodeExpired, unavez.CodeDiscarded, unavez.CodeNotReplayable, unavez.CodeDamaged:
		if said.Key == it.entry.Key { // there is one, whatever it is
			return run{class: ended, how: "completed"}
		}
		return in.judge(ctx, ef, hold, it)
	case unavez.CodeMismatch, unavez.CodeRetrying, unavez.CodeParked, unavez.CodeUnknown, unavez.CodeDead:
		return in.judge(ctx, ef, hold, it)
	}
	return run{class: failed, err: err} // over its limit, ended by the handler, or of no known kind
}

// handlerFailed is what an error of the handler's own means.
func handlerFailed(err error) run {
	after, _ := unavez.IsAgain(err)
	_, discarded := unavez.IsDiscard(err)
	switch {
	case unavez.IsDead(err):
		return run{class: hopeless, err: err}
	case discarded: // and the transaction had written
		return run{class: hopeless, err: fmt.Errorf("discarded by a handler that had written: %w", err)}
	}
	return run{class: failed, after: after, err: err}
}

// judge reads what the store knows of an entry's operation.
func (in *Inbox[Tx]) judge(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item) run {
	v, err := in.store.ledger.Look(ctx, it.entry.Operation)
	if errors.Is(err, store.ErrDamaged) {
		if !it.two() {
			return run{class: ended, how: "completed"}
		}
		return run{class: rests, verdict: store.Verdict{State: store.Parked}, err: err}
	}
	if err != nil {
		return in.trouble(err)
	}
	in.hear(v)
	switch v.State {
	case store.Completed, store.Expired:
		return in.endEntry(ctx, ef, hold, it, store.Completed, "")
	case store.Discarded:
		return in.endEntry(ctx, ef, hold, it, store.Discarded, "the operation was discarded")
	case store.Free:
		return run{class: later}
	case store.Retryable:
		it.fence = v.Attempt.Fence
		if v.Attempt.DueIn <= 0 && !ef.trait.lease { // in lease mode its pause is over already
			return run{class: later}
		}
	}
	return run{class: rests, verdict: v}
}

// hear takes the database's instants from what was read.
func (in *Inbox[Tx]) hear(v store.Verdict) {
	if v.Outcome != nil {
		in.clock.hear(v.Outcome.At)
	}
	if v.Attempt != nil {
		in.clock.hear(v.Attempt.Changed)
	}
}
