package unavez

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// Work by the fast lease alone: where the operation is declared repeatable
// (Operation.ClaimByLease), the fast lease takes the place of the claim, and
// nothing durable precedes the work. The steps, and what a fault does at each:
//
//	acquire    SET NX PX in Redis
//	look       one SELECT: an outcome is the answer; an attempt at rest or under
//	           a claim is left to the claim, which honours it
//	work       for a third of the lease; then the claim is made after all, and
//	           the attempt is like any other
//	finish     lock · read ledger, raising if found · business rows · INSERT
//	           outcome · COMMIT; a claim of somebody else ends with it
//	mark       the lease becomes the mark of the commit
//
//   - Killed before the finish: nothing was stored. The lease runs out, and the
//     next call runs again, with the same derived key: it comes from the
//     identity. Killed after the claim: unknown, as always.
//   - Paused past the lease: another runs meanwhile. Whoever finishes first has
//     the outcome; the other finds it, gives up its rows, and answers with it.
//   - Two at once (Redis was flushed, failed over, evicted the lease, or grants
//     everybody): the same.
//   - One by the lease and one by a claim at once (a worker that does not reach
//     Redis, or has none): the same; the claim's row ends with the outcome.
//   - Redis does not answer, or its answer is lost, or it refuses for longer
//     than a lease lasts: the claim is made as if there were no Redis.
//   - The work fails without telling: the claim is made and left unknown, so
//     that it shows; the next call runs again.
//   - The answer of the COMMIT is lost: the ledger tells, as always.
//   - Paused for longer than the retention: an outcome of somebody else could be
//     forgotten already. The finish is refused.

// start lets the work begin: by the fast lease alone, where the operation allows
// that and nothing is stored of it, and else by a claim. The results are those of claim.
func (e *Engine[Tx]) start(ctx context.Context, c *call, fast *fastLease) (*Attempt, *Result, store.Verdict, error) {
	if !c.op.ClaimByLease || !fast.held {
		return e.claim(ctx, c)
	}
	limited, cancel := context.WithTimeout(ctx, c.op.Limit)
	defer cancel()
	verdict, err := e.ledger.Look(limited, c.gate.Key)
	switch {
	case err != nil:
		return nil, nil, verdict, c.storeError(err)
	case verdict.State == store.Free && time.Since(fast.at) < c.op.Lease/3:
		return e.unclaimed(c, fast), nil, verdict, nil
	case verdict.State.Final(), verdict.State == store.Expired:
		return nil, nil, verdict, nil
	}
	return e.claim(ctx, c)
}

// unclaimed is the attempt that the fast lease alone stands for.
func (e *Engine[Tx]) unclaimed(c *call, fast *fastLease) *Attempt {
	now := time.Now()
	a := viewOf(c, &store.Attempt{Key: c.gate.Key, DerivedKey: c.gate.Identity.DerivedKey(""), Created: now, Changed: now})
	a.until, a.began = fast.at.Add(c.op.Lease), fast.at
	a.save = e.saves(c, a)
	e.sees(c, SawLeased, a.Fence(), false, nil)
	return a
}

// saves stores the steps of an attempt. A finished step has to be remembered, so
// its attempt is claimed first.
func (e *Engine[Tx]) saves(c *call, a *Attempt) func(context.Context, store.Step) error {
	return func(ctx context.Context, step store.Step) error {
		if err := e.secure(ctx, c, a); err != nil {
			return err
		}
		step.Fence = a.claimed()
		return e.attempts.SaveStep(ctx, a.key, step.Fence, step)
	}
}

// secure makes the claim of an attempt that has none yet. It fails with
// store.ErrLeaseLost where a claim or an outcome of somebody else is there. A
// claim whose answer is lost is taken for somebody else's at the next try.
func (e *Engine[Tx]) secure(ctx context.Context, c *call, a *Attempt) error {
	a.claiming.Lock()
	defer a.claiming.Unlock()
	if a.claimed() != 0 {
		return nil
	}
	at := time.Now()
	row, verdict, err := e.claimOnce(ctx, c.claim())
	if err != nil {
		return err
	}
	if row == nil {
		return fmt.Errorf("claimed or ended by somebody else (%v): %w", verdict.State, store.ErrLeaseLost)
	}
	a.claims(row.Fence)
	a.extend(at.Add(c.op.Lease))
	e.sees(c, SawClaimed, row.Fence, false, nil)
	return nil
}

// overtaken answers for an attempt that somebody else has taken over or ended.
// Where it is repeatable by declaration, the outcome of the other is its answer
// too; that it has lost is seen either way.
func (e *Engine[Tx]) overtaken(ctx context.Context, c *call, a *Attempt, cause error) (*Outcome, error) {
	if c.op.ClaimByLease {
		record := e.recordings.begin(ctx)
		verdict, err := e.ledger.Look(record, c.gate.Key)
		if err == nil && verdict.Outcome != nil {
			e.sees(c, SawLeaseLost, a.Fence(), false, cause)
			return c.judge(verdict)
		}
	}
	return nil, c.fail(CodeLeaseLost, time.Second, cause)
}

// forgotten tells whether an outcome that was committed since the attempt began
// may be forgotten by now. A claim would tell; without one there are the
// worker's clocks: the monotonic one, which may stand still while the machine
// sleeps, and the other, which may be set.
func (a *Attempt) forgotten(retention time.Duration) bool {
	now := time.Now()
	return now.Sub(a.began) >= retention || now.Round(0).Sub(a.began.Round(0)) >= retention
}

// errForgotten refuses the finish of an attempt without a claim that is too old.
var errForgotten = errors.New("the attempt had no claim and began longer ago than the retention")
