package unavez

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/store"
)

// maxFinishes is how often a finish is tried when the database took it back.
const maxFinishes = 4

// Lease runs an operation whose effect is outside the database, or takes long.
// A claim is committed first, then run works with no transaction open while
// its lease is renewed, then finish (which may be nil) writes the business rows
// in the transaction that commits the outcome. A duplicate gets the outcome,
// and neither function runs.
//
// With Operation.ClaimByLease the fast lease may take the claim's place; see
// there. The context of run ends when the lease is lost, and its outside calls
// should carry the attempt's derived key. How run ends decides:
//
//   - nil: finish, outcome, commit. The finish is refused, with CodeLeaseLost,
//     when another attempt has taken over meanwhile.
//   - an error of [NeverStarted]: nothing was sent; the key is free, and Lease
//     returns the error.
//   - an error of [Refuse]: the outside said no for good; its result is frozen
//     without finish.
//   - any other error, a panic, a lost lease, a killed worker: the operation is
//     unknown. What the next call does is Operation.Unknown.
//
// finish may run more than once when the database gives its transaction up.
// Cancelling ctx cancels run, but no longer what comes after it.
func (e *Engine[Tx]) Lease(ctx context.Context, op Operation, run func(ctx context.Context, attempt *Attempt) (Result, error), finish func(ctx context.Context, tx Tx, result *Result) error) (Outcome, error) {
	c, err := e.begin(op)
	if err != nil {
		return Outcome{}, err
	}
	defer e.flights.leave()
	if e.attempts == nil {
		return Outcome{}, c.fail(CodeInvalid, 0, errors.New("this store has no lease mode"))
	}
	return e.once(ctx, c, func(ctx context.Context, f *flight) (*Outcome, error) {
		return e.leased(ctx, c, f, run, finish)
	})
}

// leased is lease mode, between the worker's own table and the answer.
func (e *Engine[Tx]) leased(ctx context.Context, c *call, f *flight, run func(context.Context, *Attempt) (Result, error), finish func(context.Context, Tx, *Result) error) (*Outcome, error) {
	fast, found, err := e.acquire(ctx, c)
	if found != nil || err != nil {
		return found, err
	}
	done := false
	defer func() { fast.release(ctx, done, c.op.Retention) }()

	a, probed, verdict, err := e.start(ctx, c, fast)
	if err != nil {
		return nil, err
	}
	if a == nil {
		if verdict.State == store.Processing {
			e.refused.confirmed(c.gate.Key)
		}
		return c.judge(verdict)
	}
	e.flights.begins(f)
	a.fast = fast
	f.fence = a.Fence()
	e.flights.leased(f, a.validUntil())
	if probed != nil {
		out, err := e.finish(ctx, c, a, store.End{State: store.Completed, Result: *probed}, finish)
		done = err == nil
		return out, err
	}
	out, err := e.attempt(ctx, c, f, a, run, finish)
	done = err == nil
	return out, err
}

// claim takes the durable lease, following the operation's policy when an
// attempt at rest is in the way. A result comes with the attempt when a probe
// said that the effect has happened. A nil attempt comes with the verdict.
func (e *Engine[Tx]) claim(ctx context.Context, c *call) (*Attempt, *Result, store.Verdict, error) {
	request := c.claim()
	at := time.Now()
	row, verdict, err := e.claimOnce(ctx, request)
	if err != nil {
		return nil, nil, verdict, c.storeError(err)
	}
	if row != nil {
		a, err := e.newAttempt(ctx, c, row, at)
		return a, nil, verdict, err
	}
	resting := verdict.Attempt
	if resting == nil || !c.samePayload(resting.Fingerprint) {
		return nil, nil, verdict, nil
	}
	var result *Result
	switch {
	case verdict.State == store.Retryable && resting.DueIn <= 0:
	case verdict.State == store.Unknown:
		goOn, err := e.decide(ctx, c, resting, &result)
		if err != nil || !goOn {
			return nil, nil, verdict, err
		}
	default:
		return nil, nil, verdict, nil
	}
	request.From = resting.Fence
	at = time.Now()
	row, verdict, err = e.claimOnce(ctx, request)
	if err != nil {
		return nil, nil, verdict, c.storeError(err)
	}
	if row == nil { // somebody else was quicker
		return nil, nil, verdict, nil
	}
	a, err := e.newAttempt(ctx, c, row, at)
	return a, result, verdict, err
}

// claim is the request for a first attempt.
func (c *call) claim() store.Claim {
	return store.Claim{Gate: c.gate, Lease: c.op.Lease, DerivedKey: c.gate.Identity.DerivedKey(""), Origin: c.op.Origin}
}

// claimOnce asks for the lease, for no longer than a transaction may take: a
// database that is there and does not answer must not hold the caller.
func (e *Engine[Tx]) claimOnce(ctx context.Context, request store.Claim) (*store.Attempt, store.Verdict, error) {
	limited, cancel := context.WithTimeout(ctx, request.Limit)
	defer cancel()
	return e.attempts.Claim(limited, request)
}

// decide applies Operation.Unknown to an attempt that ended without telling.
func (e *Engine[Tx]) decide(ctx context.Context, c *call, resting *store.Attempt, result **Result) (goOn bool, err error) {
	switch policy := c.op.Unknown.(type) {
	case Policy:
		return policy == Retry || policy == Steps, nil
	case Probe:
		found, verdict, err := policy(ctx, viewOf(c, resting))
		e.sees(c, SawProbed, resting.Fence, false, err)
		if err != nil {
			wait := time.Second
			var later interface{ RetryAfter() time.Duration }
			if errors.As(err, &later) {
				wait = max(later.RetryAfter(), wait)
			}
			return false, c.fail(CodeUnknown, wait, fmt.Errorf("probe: %w", err))
		}
		if verdict == Done {
			*result = &found
		}
		return verdict == Done || verdict == NotDone, nil
	}
	return false, c.fail(CodeInvalid, 0, fmt.Errorf("unknown policy %T", c.op.Unknown))
}

// attempt runs the work of a claimed attempt and ends it.
func (e *Engine[Tx]) attempt(ctx context.Context, c *call, f *flight, a *Attempt, run func(context.Context, *Attempt) (Result, error), finish func(context.Context, Tx, *Result) error) (*Outcome, error) {
	if c.op.Detached {
		ctx = context.WithoutCancel(ctx)
	}
	work, lost := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(renewed)
		e.renew(c, f, a, stop, lost)
	}()
	halt := func() {
		close(stop)
		<-renewed
		lost(nil)
	}
	ended := false
	defer func() { // a panic or Goexit of run: nobody can tell what it did
		if !ended {
			halt()
			_, _ = e.rest(ctx, c, a, errors.New("the attempt panicked")) // the panic goes on
		}
	}()
	result, err := run(work, a)
	cause := context.Cause(work)
	ended = true
	halt()

	var no *refusal
	var never *neverStarted
	var without *discard
	var later *again
	switch {
	case err == nil:
		return e.finish(ctx, c, a, store.End{State: store.Completed, Result: result}, finish)
	case errors.As(err, &no):
		return e.finish(ctx, c, a, store.End{State: store.Completed, Result: no.result}, nil)
	case errors.As(err, &without):
		return e.finish(ctx, c, a, without.end(), nil)
	case errors.As(err, &later) && !errors.Is(cause, store.ErrLeaseLost):
		return e.settles(ctx, c, a, store.Rest{State: store.Retryable, Reason: err.Error(), DueIn: later.after}, c.fail(CodeRetrying, max(later.after, time.Second), err))
	case IsDead(err) && !errors.Is(cause, store.ErrLeaseLost):
		return e.settles(ctx, c, a, store.Rest{State: store.Dead, Reason: err.Error()}, c.fail(CodeDead, 0, err))
	case errors.As(err, &never) && !errors.Is(cause, store.ErrLeaseLost):
		return nil, e.free(ctx, c, a, err)
	}
	if errors.Is(cause, store.ErrLeaseLost) {
		return e.overtaken(ctx, c, a, errors.Join(err, cause))
	}
	return e.rest(ctx, c, a, err)
}

// renew keeps the lease at a third of its length until stop, and cancels the
// work when it is lost: refused by the database, or not confirmed in time. An
// attempt that has no claim yet gets one instead: what takes long can afford it.
func (e *Engine[Tx]) renew(c *call, f *flight, a *Attempt, stop <-chan struct{}, lost context.CancelCauseFunc) {
	length := c.op.Lease
	pause := length / 3
	for {
		timer := time.NewTimer(pause)
		select {
		case <-stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		at := time.Now()
		ctx, cancel := context.WithDeadline(context.Background(), a.validUntil())
		err := e.prolong(ctx, c, a)
		cancel()
		switch {
		case err == nil:
			a.extend(at.Add(length))
			e.flights.leased(f, at.Add(length))
			a.fast.renew(length)
			pause = length / 3
		case errors.Is(err, store.ErrLeaseLost), !time.Now().Before(a.validUntil()):
			lost(errors.Join(store.ErrLeaseLost, err))
			a.extend(time.Time{})
			return
		default: // the database may come back before the lease has run out
			pause = min(length/20, time.Until(a.validUntil()))
		}
	}
}

// prolong renews the claim of an attempt, or makes it.
func (e *Engine[Tx]) prolong(ctx context.Context, c *call, a *Attempt) error {
	if fence := a.claimed(); fence != 0 {
		return e.attempts.Renew(ctx, c.gate.Key, fence, c.op.Lease)
	}
	return e.secure(ctx, c, a)
}

// finish ends an attempt with its outcome: fence, ledger, business rows,
// outcome, commit.
func (e *Engine[Tx]) finish(ctx context.Context, c *call, a *Attempt, end store.End, finish func(context.Context, Tx, *Result) error) (*Outcome, error) {
	var failed error
	for try := range maxFinishes {
		if try > 0 && !a.pause(time.Duration(try)*pollLast) {
			break
		}
		out, again, err := e.finishOnce(ctx, c, a, end, finish)
		if !again {
			return out, err
		}
		failed = err
	}
	return e.rest(ctx, c, a, fmt.Errorf("the effect happened and could not be recorded: %w", failed))
}

// finishOnce is one try; again says that the database took everything back and
// the attempt is still ours.
func (e *Engine[Tx]) finishOnce(ctx context.Context, c *call, a *Attempt, end store.End, finish func(context.Context, Tx, *Result) error) (out *Outcome, again bool, err error) {
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.op.Limit)
	defer cancel()
	fence := a.claimed()
	txn, err := e.attempts.Finish(record, c.gate, fence)
	switch {
	case errors.Is(err, store.ErrLeaseLost), errors.Is(err, store.ErrDuplicate):
		out, err := e.overtaken(ctx, c, a, err)
		return out, false, err
	case errors.Is(err, store.ErrLaneLost):
		out, err := e.rest(ctx, c, a, err)
		return out, false, err
	case err != nil:
		return nil, true, err
	}
	defer e.rollback(ctx, txn)
	if fence == 0 && a.forgotten(c.op.Retention) { // after the read: what was committed since is not forgotten at that instant
		return nil, false, c.fail(CodeLeaseLost, time.Second, errForgotten)
	}
	if finish != nil {
		if err := finish(record, txn.Tx(), &end.Result); err != nil {
			e.rollback(ctx, txn)
			if takenBack(err) {
				return nil, true, err
			}
			out, err := e.rest(ctx, c, a, fmt.Errorf("finish: %w", err))
			return out, false, err
		}
	}
	out, err = e.commit(ctx, c, txn, end)
	switch code := CodeOf(err); {
	case code == CodeAborted, code == CodeUnavailable, code == CodeLimit, code == CodeInFlight, code == CodeLeaseLost && fence == 0:
		return nil, true, err
	}
	if fence == 0 && out != nil && out.Replayed {
		e.sees(c, SawLeaseLost, a.Fence(), false, store.ErrDuplicate)
	}
	return out, false, err
}

// free gives an attempt back that sent nothing. A first attempt leaves nothing
// behind; where there is memory that must stay (an earlier attempt, finished
// steps), the operation is retryable at once: going on was decided already.
func (e *Engine[Tx]) free(ctx context.Context, c *call, a *Attempt, cause error) error {
	record := e.recordings.begin(ctx)
	fence := a.claimed()
	if fence == 0 {
		return cause
	}
	err := store.ErrConflict
	if fence == 1 {
		err = e.attempts.Rest(record, c.gate.Key, fence, store.Rest{State: store.Free})
	}
	if errors.Is(err, store.ErrConflict) {
		err = e.attempts.Rest(record, c.gate.Key, fence, store.Rest{State: store.Retryable, Reason: "not started: " + cause.Error()})
	}
	if errors.Is(err, store.ErrLeaseLost) {
		return c.fail(CodeLeaseLost, time.Second, cause)
	}
	return cause // if it could not be given back, the claim ends by expiring
}

// settles ends an attempt whose effect certainly did not happen, and gives said.
func (e *Engine[Tx]) settles(ctx context.Context, c *call, a *Attempt, rest store.Rest, said error) (*Outcome, error) {
	record := e.recordings.begin(ctx)
	err := e.secure(record, c, a)
	if err == nil {
		err = e.attempts.Rest(record, c.gate.Key, a.claimed(), rest)
	}
	switch {
	case errors.Is(err, store.ErrLeaseLost):
		return e.overtaken(ctx, c, a, errors.Join(said, err))
	case err != nil: // the claim ends by expiring, as unknown
		return nil, c.fail(CodeUnknown, 0, errors.Join(said, err))
	}
	return nil, said
}

// rest leaves the operation unknown, and gives the error that says so; or
// the answer of overtaken when it has been taken over or ended by somebody else
// meanwhile. When even that cannot be written, the lease runs out and the claim
// becomes unknown by itself.
func (e *Engine[Tx]) rest(ctx context.Context, c *call, a *Attempt, cause error) (*Outcome, error) {
	record := e.recordings.begin(ctx)
	reason := "the attempt ended without telling whether its effect happened"
	if cause != nil {
		reason = cause.Error()
	}
	err := e.secure(record, c, a)
	if err == nil {
		err = e.attempts.Rest(record, c.gate.Key, a.claimed(), store.Rest{State: store.Unknown, Reason: reason})
	}
	if errors.Is(err, store.ErrLeaseLost) {
		return e.overtaken(ctx, c, a, errors.Join(cause, err))
	}
	e.sees(c, SawUnknown, a.Fence(), false, errors.Join(cause, err))
	return nil, c.fail(CodeUnknown, 0, cause)
}

// fastLease is the part of an attempt that the fast lease holds; its zero
// value holds nothing.
type fastLease struct {
	leaser lease.Leaser
	key    string
	token  string
	held   bool      // it was granted
	at     time.Time // it was asked for
}

// acquire asks the fast lease. It answers a duplicate in flight by itself, for
// as long as it is to be believed, and reads the ledger where a mark says that
// the operation has completed.
func (e *Engine[Tx]) acquire(ctx context.Context, c *call) (*fastLease, *Outcome, error) {
	none := &fastLease{}
	if e.opts.Leaser == nil {
		return none, nil, nil
	}
	mine := &fastLease{leaser: e.opts.Leaser, key: c.gate.Key.String(), token: rand.Text(), at: time.Now()}
	value := lease.Value{Token: mine.token, Version: c.gate.Fingerprint.Version, Fingerprint: c.gate.Fingerprint.Sum}
	held, other, left, err := mine.leaser.Acquire(ctx, mine.key, value, c.op.Lease)
	switch {
	case err != nil:
		e.sees(c, SawLeaserFailed, 0, false, err)
		return mine, nil, nil // it may hold all the same, and is given back at the end
	case held:
		mine.held = true
		e.refused.granted(c.gate.Key)
		return mine, nil, nil
	case other.Completed:
		limited, cancel := context.WithTimeout(ctx, c.op.Limit)
		defer cancel()
		verdict, err := e.ledger.Look(limited, c.gate.Key)
		if err == nil && verdict.Outcome != nil {
			found, err := c.judge(verdict)
			return none, found, err
		}
	case !c.samePayload(Fingerprint{Version: other.Version, Sum: other.Fingerprint}):
		// "Another payload" is for good: only the database says that.
	case e.refused.believe(c.gate.Key, other.Token, c.op.Lease):
		return none, nil, c.fail(CodeInFlight, min(max(left, time.Second), c.op.Lease), nil)
	}
	return none, nil, nil
}

// renew extends the fast lease; the database's decides, so its failure is not an event.
func (l *fastLease) renew(life time.Duration) {
	if l.leaser == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), life/3)
	defer cancel()
	_, _ = l.leaser.Renew(ctx, l.key, l.token, life) // the database's lease decides
}

// release gives the fast lease back, or leaves the mark of a commit.
func (l *fastLease) release(ctx context.Context, done bool, retention time.Duration) {
	if l.leaser == nil {
		return
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if marker, ok := l.leaser.(lease.Marker); ok && done {
		_ = marker.Complete(record, l.key, l.token, min(retention, markLife)) // a mark only saves work
		return
	}
	_ = l.leaser.Release(record, l.key, l.token) // else it ends by itself
}

// markLife bounds the life of the mark behind a commit: it is there for bursts.
const markLife = time.Minute
