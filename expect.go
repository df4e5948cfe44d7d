package unavez

import (
	"context"
	"sync/atomic"

	"github.com/unavez/unavez/store"
)

// expectation is a guess whether the next gate finds an outcome, from what the
// last ones found. A gate that does takes three round trips, a read one; where
// the guess is wrong the read comes on top of the three of a new operation. So
// reading first pays where more than a third of the gates find something, as
// after a restart, when a queue of repeats comes in and the cache is empty.
type expectation struct {
	share atomic.Int64 // of the last few gates, in units of 1/1024
}

// likely reports whether reading first is expected to pay, with some margin.
func (e *expectation) likely() bool { return e.share.Load() > 512 }

// saw counts a gate, or a read in its place, that has found an outcome or not.
// Calls at the same time may count as fewer.
func (e *expectation) saw(found bool) {
	now := e.share.Load()
	target := int64(0)
	if found {
		target = 1024
	}
	e.share.Store(now + (target-now)/8)
}

// expected reads the ledger where a replay is likely. It answers with an outcome
// only, which is final; everything else is for the gate to find.
func (e *Engine[Tx]) expected(ctx context.Context, c *call) (*Outcome, error) {
	if !e.replays.likely() {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, c.op.Limit)
	defer cancel()
	verdict, err := e.ledger.Look(limited, c.gate.Key)
	if err != nil || verdict.Outcome == nil {
		return nil, nil // the gate has the last word
	}
	e.replays.saw(true)
	return c.judge(verdict)
}

// counts notes what a gate has found.
func (e *Engine[Tx]) counts(verdict store.Verdict) {
	e.replays.saw(verdict.Outcome != nil)
}
