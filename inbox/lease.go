package inbox

import (
	"context"
	"errors"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// leased runs an entry in lease mode.
func (in *Inbox[Tx]) leased(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item) run {
	e := &it.entry
	if ef.trait.versioned && it.fence == 0 {
		if r, over := in.precede(ctx, ef, hold, it); over {
			return r
		}
	}
	op := ef.operation(e.Note.Identity, e, hold)
	if !it.two() {
		op.Fingerprint = e.Fingerprint
	}
	var event *Event
	joined := false
	out, err := in.engine.Lease(ctx, op, func(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, error) {
		event = eventOfEntry(e, attempt.Fence())
		var result unavez.Result
		err := in.caught(ef, func() (err error) {
			result, err = ef.Run(ctx, attempt, event)
			return err
		})
		return result, in.certain(ef, it, attempt.Fence(), err)
	}, func(ctx context.Context, tx Tx, result *unavez.Result) error {
		joined = false
		if ef.Finish != nil {
			if event == nil { // the effect had happened before, as a probe says
				event = eventOfEntry(e, max(it.fence, 1))
			}
			if err := in.caught(ef, func() error { return ef.Finish(ctx, tx, event, result) }); err != nil {
				return err
			}
		}
		if err := in.setVersion(ctx, tx, ef, it); err != nil {
			return err
		}
		if !it.two() {
			return nil
		}
		own := ef.operation(e.Note.Event, e, hold)
		own.Fingerprint = e.Fingerprint
		_, err := in.engine.Join(ctx, tx, own, func(context.Context) (unavez.Result, error) { return unavez.Result{}, nil })
		joined = err == nil
		return err
	})
	switch {
	case err != nil:
		return in.classifyLease(ctx, ef, hold, it, err)
	case it.two() && (!joined || out.Replayed):
		reason := ""
		if out.State == store.Discarded {
			reason = string(out.Result.Body)
		}
		return in.endEntry(ctx, ef, hold, it, out.State, reason)
	}
	return endedBy(out, version{})
}

// certain turns an error of Run whose effect certainly did not happen into what
// the engine is to write down: when it is tried again, or that it is not.
func (in *Inbox[Tx]) certain(ef *effect[Tx], it *item, fence int64, err error) error {
	after, again := unavez.IsAgain(err)
	if !again && !unavez.IsNeverStarted(err) && (!ef.trait.hint || err == nil || unavez.IsDead(err)) {
		return err
	}
	retry := ef.trait.retry
	if retry.over(fence, in.clock.since(it.entry.Arrived)) {
		return unavez.Dead(overLimit(fence, err))
	}
	if after == 0 {
		after = retry.delay(fence)
	}
	return unavez.Again(err, after)
}

// classifyLease says what an error of the engine in lease mode means.
func (in *Inbox[Tx]) classifyLease(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item, err error) run {
	var said *unavez.Error
	if !errors.As(err, &said) {
		said = &unavez.Error{}
	}
	r := in.classify(ctx, ef, hold, it, err)
	if r.class == failed || r.class == hopeless {
		if judged := in.judge(ctx, ef, hold, it); judged.class != later {
			return judged // a claim was made, and says how it ended
		}
	}
	if r.class == rests && r.verdict.State == store.Unknown {
		r.after = said.RetryAfter // as its probe says; a retry has its own time
	}
	if r.err == nil {
		r.err = err
	}
	return r
}

// precede asks, before anything is done outside, whether a later version has
// taken effect already: in a transaction that is taken back unless the entry ends
// by it. It reports whether the entry's run is over with that.
func (in *Inbox[Tx]) precede(ctx context.Context, ef *effect[Tx], hold store.Hold, it *item) (run, bool) {
	own := ef.operation(it.entry.Note.Event, &it.entry, hold)
	own.Fingerprint = it.entry.Fingerprint
	var judged version
	out, err := in.engine.Do(ctx, own, func(ctx context.Context, tx Tx) (unavez.Result, error) {
		var err error
		if judged, err = in.judgeVersion(ctx, tx, ef, it); err != nil {
			return unavez.Result{}, err
		}
		if judged.is == fresh {
			return unavez.Result{}, errFresh
		}
		return unavez.Result{}, judged.end()
	})
	switch {
	case err == nil:
		return endedBy(out, judged), true
	case errors.Is(err, errFresh):
		return run{}, false
	case errors.Is(err, errEarly):
		return run{class: soon, missing: judged.missing}, true
	}
	switch unavez.CodeOf(err) {
	case unavez.CodeRetrying, unavez.CodeUnknown, unavez.CodeParked, unavez.CodeDead:
		return run{}, false // it was asked when its first attempt began
	}
	return in.classify(ctx, ef, hold, it, err), true
}

// errFresh takes back the transaction that only asked.
var errFresh = errors.New("no later version has taken effect")
