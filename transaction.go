package unavez

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// once runs the operation here unless it has an outcome or runs already: it is
// the part that Do and Lease share. run returns the outcome that it committed
// or found, or an error; one with CodeInFlight means that the operation runs
// at another worker.
func (e *Engine[Tx]) once(ctx context.Context, c *call, run func(context.Context, *flight) (*Outcome, error)) (Outcome, error) {
	key := c.gate.Key
	deadline := c.started.Add(c.op.Wait)
	for now := c.started; ; now = time.Now() {
		if found, ok := e.cache.get(key, now); ok {
			return e.replay(c, found, true)
		}
		f, mine := e.flights.enter(key, c.gate.Fingerprint)
		if mine {
			out, err := e.runFlight(ctx, c, f, run)
			if !f.remote {
				return out, err
			}
		} else if found := e.flights.found(ctx, f); found != nil {
			return e.replay(c, found, true)
		}
		mismatch, retryAfter := e.flights.look(c, f)
		if mismatch {
			e.sees(c, string(CodeMismatch), 0, true, nil)
			return Outcome{}, c.fail(CodeMismatch, 0, nil)
		}
		if !e.flights.wait(ctx, key, f, time.Until(deadline)) {
			e.sees(c, string(CodeInFlight), 0, true, ctx.Err())
			return Outcome{}, c.fail(CodeInFlight, retryAfter, ctx.Err())
		}
		if f.outcome != nil {
			return e.replay(c, f.outcome, true)
		}
	}
}

// runFlight runs the caller's own flight to its end, or hands it over to the
// poller when the operation is in flight elsewhere and the caller would wait.
func (e *Engine[Tx]) runFlight(ctx context.Context, c *call, f *flight, run func(context.Context, *flight) (*Outcome, error)) (out Outcome, err error) {
	var ended *Outcome
	handedOver := false
	defer func() { // also when the handler panics
		if !handedOver {
			e.flights.end(c.gate.Key, f, ended)
		}
	}()
	at, era := time.Now(), e.cache.current()
	found, err := run(ctx, f)
	if err != nil {
		var failure *Error
		if errors.As(err, &failure) && failure.Code == CodeInFlight && failure.Key == c.gate.Key && c.op.Wait > 0 {
			handedOver = true
			e.flights.sent(c.gate.Key, f, failure.RetryAfter)
		} else {
			e.sees(c, whatOf(err), f.fence, false, err)
		}
		return Outcome{}, err
	}
	ended = found
	if found.State == store.Completed {
		e.cache.put(c.gate.Key, found, at, era)
	}
	if found.Replayed {
		e.sees(c, SawReplayed, found.Attempt, false, nil)
	} else {
		e.sees(c, SawCompleted, found.Attempt, false, nil)
	}
	return *found, nil
}

// whatOf names a failed run for the observer.
func whatOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return SawRolledBack
}

// Do runs fn once for the operation, in a transaction of its own: fn's writes
// on tx, the outcome and its frozen result commit together. A duplicate gets
// the first outcome, with Replayed set, and fn does not run.
//
// When fn returns an error, or panics, everything is rolled back and the key is
// free; Do returns that error as it is, unless it is the store's own (it wraps
// one of the store package's errors): that becomes an [*Error] around it. See
// [Refuse] for a "no" that is to be frozen. Every other failure is an [*Error]. The context that fn gets ends at
// the operation's limit; work that is slower is rolled back with CodeLimit.
// Cancelling ctx cancels fn's context, but no longer what comes after fn.
//
// A commit whose answer is lost is found out before Do returns, as long as the
// store can be asked; else the code is CodeUnresolved, and the same call made
// again settles it.
func (e *Engine[Tx]) Do(ctx context.Context, op Operation, fn func(ctx context.Context, tx Tx) (Result, error)) (Outcome, error) {
	c, err := e.begin(op)
	if err != nil {
		return Outcome{}, err
	}
	defer e.flights.leave()
	return e.once(ctx, c, func(ctx context.Context, f *flight) (*Outcome, error) {
		out, err := e.transact(ctx, c, f, fn)
		if c.op.Rerunnable && errors.Is(err, store.ErrLost) {
			c.gate.Alone = true
			out, err = e.transact(ctx, c, f, fn)
		}
		return out, err
	})
}

// transact is transaction mode: gate, work, outcome and commit.
func (e *Engine[Tx]) transact(ctx context.Context, c *call, f *flight, fn func(context.Context, Tx) (Result, error)) (*Outcome, error) {
	if found, err := e.expected(ctx, c); found != nil || err != nil {
		return found, err
	}
	gate := c.gate
	gate.Eager = c.op.OwnsRetries // whose handler must not begin before it is known whether this is a retry
	out, err := e.transactOnce(ctx, c, f, gate, fn)
	if errors.Is(err, errAgain) {
		gate.Eager = true
		out, err = e.transactOnce(ctx, c, f, gate, fn)
	}
	return out, err
}

// unwritten commits the end that a handler's error asks for, if the handler
// wrote nothing; else the error stands.
func (e *Engine[Tx]) unwritten(ctx context.Context, c *call, txn store.Txn[Tx], end store.End, asked error) (*Outcome, error) {
	end.Unwritten = true
	out, err := e.commit(ctx, c, txn, end)
	if errors.Is(err, store.ErrWrote) {
		return nil, asked
	}
	return out, err
}

// errAgain: what a gate that went with the handler's first statement found was
// over by the time it was read, as the rows of an operation that is forgotten.
var errAgain = errors.New("found by the gate, and gone")

// transactOnce is one transaction.
func (e *Engine[Tx]) transactOnce(ctx context.Context, c *call, f *flight, gate store.Gate, fn func(context.Context, Tx) (Result, error)) (*Outcome, error) {
	// The gate too is bounded: a database that is there and does not answer must
	// not hold the caller.
	limit := time.Now().Add(c.op.Limit)
	work, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	txn, verdict, err := e.ledger.Begin(work, gate)
	if err == nil && txn == nil && c.mayTakeOver(verdict) {
		gate.From = verdict.Attempt.Fence
		txn, verdict, err = e.ledger.Begin(work, gate)
	}
	if err != nil {
		return nil, c.storeError(err)
	}
	if txn == nil {
		e.counts(verdict)
		return c.judge(verdict)
	}
	e.flights.begins(f)
	committed := false
	defer func() { // also when the handler panics
		if !committed {
			e.rollback(ctx, txn)
		}
	}()
	if c.op.Detached {
		work, cancel = context.WithDeadline(context.WithoutCancel(ctx), limit)
		defer cancel()
	}
	result, refused, err := handled(work, txn, fn)
	if refused || errors.Is(err, store.ErrRefused) {
		return e.turnedAway(ctx, c, txn)
	}
	e.counts(verdict)
	if !time.Now().Before(limit) { // by the clock: after a pause the context's timer may not have fired yet
		return nil, c.fail(CodeLimit, time.Second, err)
	}
	var no *refusal
	var without *discard
	switch {
	case errors.As(err, &no):
		return e.unwritten(ctx, c, txn, store.End{State: store.Completed, Result: no.result}, err)
	case errors.As(err, &without):
		return e.unwritten(ctx, c, txn, without.end(), err)
	case takenBack(err):
		return nil, c.storeError(err)
	case err != nil:
		return nil, err
	}
	out, err := e.commit(ctx, c, txn, store.End{State: store.Completed, Result: result})
	committed = err == nil && !out.Replayed
	return out, err
}

// handled runs the handler, and reports whether the gate refused it, where that
// went with its first statement. Then it does not matter what the handler makes
// of that: an error, a result, or a panic.
func handled[Tx any](ctx context.Context, txn store.Txn[Tx], fn func(context.Context, Tx) (Result, error)) (result Result, refused bool, err error) {
	late, ok := txn.(store.Late)
	if !ok {
		result, err = fn(ctx, txn.Tx())
		return result, false, err
	}
	defer func() {
		if refused = late.Refused(); refused {
			_ = recover() // of what its own statement failing led to
		}
	}()
	result, err = fn(ctx, txn.Tx())
	return result, false, err
}

// turnedAway is the answer to an operation whose gate went with the handler's first
// statement and said no.
func (e *Engine[Tx]) turnedAway(ctx context.Context, c *call, txn store.Txn[Tx]) (*Outcome, error) {
	record := e.recordings.begin(ctx)
	var verdict store.Verdict
	var err error
	if late, ok := txn.(store.Late); ok {
		verdict, err = late.Verdict(record)
	} else { // wrapped by somebody who does not know of it
		e.rollback(ctx, txn)
		verdict, err = e.ledger.Settle(record, c.gate.Key)
	}
	switch {
	case err != nil:
		return nil, c.storeError(err)
	case verdict.State == store.Free:
		return nil, c.fail(CodeUnavailable, time.Second, errAgain)
	}
	e.counts(verdict)
	return c.judge(verdict)
}

// takenBack reports whether a handler's error is the store's own word that the
// transaction is gone: a handler that returns what its statement gave it is
// then not the one that said no.
func takenBack(err error) bool {
	for _, gone := range []error{store.ErrUnavailable, store.ErrLaneLost, store.ErrLimit, store.ErrAborted, store.ErrForeignCommit} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// mayTakeOver reports whether this call is the one that runs a retryable
// operation again.
func (c *call) mayTakeOver(v store.Verdict) bool {
	return v.State == store.Retryable && c.op.OwnsRetries && v.Attempt.DueIn <= 0 && c.samePayload(v.Attempt.Fingerprint)
}

// rollback gives a transaction up, whatever became of the caller.
func (e *Engine[Tx]) rollback(ctx context.Context, txn store.Txn[Tx]) {
	record := e.recordings.begin(ctx)
	_ = txn.Rollback(record) // the transaction is lost either way, and its key free
}

// commit ends a transaction and, when the answer is lost, finds out.
func (e *Engine[Tx]) commit(ctx context.Context, c *call, txn store.Txn[Tx], end store.End) (*Outcome, error) {
	record := e.recordings.begin(ctx)
	out, err := txn.Commit(record, end)
	switch {
	case err == nil:
		return out, nil
	case errors.Is(err, store.ErrWrote):
		return nil, err
	case errors.Is(err, store.ErrRefused):
		return e.turnedAway(ctx, c, txn)
	case errors.Is(err, store.ErrDuplicate):
		verdict, lookErr := e.ledger.Look(record, c.gate.Key)
		if lookErr != nil {
			return nil, c.storeError(lookErr)
		}
		if verdict.State == store.Free {
			return nil, c.fail(CodeUnavailable, time.Second, err)
		}
		return c.judge(verdict)
	case errors.Is(err, store.ErrCommitUnknown):
		verdict, settleErr := e.settle(record, c)
		switch {
		case settleErr != nil:
			return nil, c.fail(CodeUnresolved, time.Second, errors.Join(err, settleErr))
		case verdict.State == store.Free:
			return nil, c.fail(CodeAborted, time.Second, err)
		}
		if found := verdict.Outcome; found != nil && sameResult(found.Result, end.Result) {
			found.Replayed = false
			return found, nil // this call's own, also where a duplicate's answer would be an error
		}
		return c.judge(verdict)
	}
	return nil, c.storeError(err)
}

// settle asks what became of a commit until the old transaction is over.
func (e *Engine[Tx]) settle(ctx context.Context, c *call) (store.Verdict, error) {
	pause := pollFirst
	for {
		verdict, err := e.ledger.Settle(ctx, c.gate.Key)
		if err == nil && (verdict.State != store.Processing || verdict.Attempt != nil) {
			return verdict, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(pause*2, pollLast)
		case <-ctx.Done():
			timer.Stop()
			return store.Verdict{}, errors.Join(err, context.Cause(ctx))
		}
	}
}

// sameResult reports whether a found result is the one that was to be committed.
func sameResult(a, b Result) bool {
	return a.Code == b.Code && a.NotReplayable == b.NotReplayable && string(a.Body) == string(b.Body) && slices.Equal(a.Header, b.Header)
}

// Join runs fn once for the operation, inside the transaction tx that the
// caller has opened and goes on to commit: fn's writes, the caller's and the
// outcome commit together. A duplicate gets the first outcome and fn does not run.
//
// After an error the caller must roll back. Refuse has no special meaning here.
// When the answer of the caller's own COMMIT is lost, [Engine.Look] tells: the
// outcome, or CodeNotFound for "rolled back", or CodeInFlight for "ask again".
// Join never waits for a duplicate in flight, since it holds a connection.
func (e *Engine[Tx]) Join(ctx context.Context, tx Tx, op Operation, fn func(ctx context.Context) (Result, error)) (Outcome, error) {
	op.Wait = 0
	c, err := e.begin(op)
	if err != nil {
		return Outcome{}, err
	}
	defer e.flights.leave()
	if found, ok := e.cache.get(c.gate.Key, c.started); ok {
		return e.replay(c, found, true)
	}
	f, mine := e.flights.enter(c.gate.Key, c.gate.Fingerprint)
	if !mine {
		mismatch, retryAfter := e.flights.look(c, f)
		if mismatch {
			return Outcome{}, c.fail(CodeMismatch, 0, nil)
		}
		return Outcome{}, c.fail(CodeInFlight, retryAfter, nil)
	}
	e.flights.begins(f)
	defer e.flights.end(c.gate.Key, f, nil) // not the outcome: the caller has not committed yet
	out, err := e.joined(ctx, c, tx, fn)
	if err != nil {
		e.sees(c, whatOf(err), 0, false, err)
		return Outcome{}, err
	}
	if out.Replayed {
		e.sees(c, SawReplayed, out.Attempt, false, nil)
	}
	return *out, nil
}

// joined is the part of Join between the caller's BEGIN and COMMIT.
func (e *Engine[Tx]) joined(ctx context.Context, c *call, tx Tx, fn func(context.Context) (Result, error)) (*Outcome, error) {
	gate := c.gate
	part, verdict, err := e.ledger.Join(ctx, tx, gate)
	if err == nil && part == nil && c.mayTakeOver(verdict) {
		gate.From = verdict.Attempt.Fence
		part, verdict, err = e.ledger.Join(ctx, tx, gate)
	}
	if err != nil {
		return nil, c.storeError(err)
	}
	if part == nil {
		return c.judge(verdict)
	}
	finished := false
	defer func() {
		if !finished {
			part.Leave()
		}
	}()
	result, err := fn(ctx)
	end := store.End{State: store.Completed, Result: result}
	var without *discard
	switch {
	case errors.As(err, &without):
		end = without.end()
	case err != nil:
		return nil, err
	}
	record := e.recordings.begin(ctx) // a connection may be silent for ever
	out, err := part.Finish(record, end)
	if errors.Is(err, store.ErrDuplicate) {
		return nil, c.fail(CodeInFlight, time.Second, fmt.Errorf("finished elsewhere meanwhile, roll back: %w", err))
	}
	if err != nil {
		return nil, c.storeError(err)
	}
	finished = true
	return out, nil
}
