package unavez

import (
	"context"
	"errors"
	"time"

	"github.com/unavez/unavez/store"
)

// End is how a batch ends one of its operations; see [store.End].
type End = store.End

// Found is what a batch found, or left, of one of its operations.
type Found struct {
	// Outcome that the operation has; nil if it has none.
	Outcome *Outcome
	// Err is an [*Error] that says why it has no part in the batch: in flight,
	// at rest, another payload, discarded. Nil if it may run.
	Err error
}

// Batch runs several operations in one transaction: all that fn ends commit
// together, or none does. fn gets the transaction and what was found of each
// operation, in the order of ops; for those that may run (no outcome, no error)
// it returns an end, or nil to leave it as it is. It is called at most once, and
// not if none may run.
//
// What it is for are short handlers of many operations that may be run again:
// where the transaction is lost, Batch returns an error, nothing happened, and
// the operations should be run singly. Nothing waits for a duplicate in flight.
// Keys must be distinct. The first operation's Limit is the batch's; where the
// lane of any of them is lost, nothing is committed.
// Operations that rest are never taken over.
func (e *Engine[Tx]) Batch(ctx context.Context, ops []Operation, fn func(ctx context.Context, tx Tx, found []Found) ([]*End, error)) ([]Found, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	first, err := e.begin(ops[0])
	if err != nil {
		return nil, err
	}
	defer e.flights.leave()
	batches, ok := e.ledger.(store.Batches[Tx])
	if !ok {
		return nil, first.fail(CodeInvalid, 0, errors.New("this store has no batches"))
	}
	b := &batch[Tx]{e: e, calls: make([]*call, len(ops)), found: make([]Found, len(ops))}
	defer b.leave()
	for i := range ops {
		c, err := e.begin(ops[i])
		if err != nil {
			return nil, err
		}
		e.flights.leave() // the first one's stands for all
		b.calls[i] = c
	}
	b.enter()
	return b.found, b.run(ctx, batches, fn)
}

// batch is one call of Batch.
type batch[Tx any] struct {
	e     *Engine[Tx]
	calls []*call
	found []Found
	mine  map[store.Key]*flight
	gates []store.Gate
	at    []int // of each gate, the place of its operation
}

// enter takes a place in the table of what runs in this worker for each
// operation, so that duplicates here need not ask the database.
func (b *batch[Tx]) enter() {
	b.mine = make(map[store.Key]*flight, len(b.calls))
	for i, c := range b.calls {
		if known, ok := b.e.cache.get(c.gate.Key, c.started); ok {
			b.judge(i, store.Verdict{State: known.State, Outcome: known})
			continue
		}
		f, mine := b.e.flights.enter(c.gate.Key, c.gate.Fingerprint)
		if !mine {
			b.found[i].Err = c.fail(CodeInFlight, time.Second, nil)
			continue
		}
		b.mine[c.gate.Key] = f
		b.gates, b.at = append(b.gates, c.gate), append(b.at, i)
	}
}

// leave gives the places up, with the outcomes for those who wait.
func (b *batch[Tx]) leave() {
	for i, c := range b.calls {
		if c == nil {
			continue
		}
		if f := b.mine[c.gate.Key]; f != nil {
			delete(b.mine, c.gate.Key)
			b.e.flights.end(c.gate.Key, f, b.found[i].Outcome)
		}
	}
}

// judge says what a verdict means for the operation at a place.
func (b *batch[Tx]) judge(i int, v store.Verdict) {
	out, err := b.calls[i].judge(v)
	if out != nil {
		copied := *out
		copied.Replayed = true
		out = &copied
	}
	b.found[i] = Found{Outcome: out, Err: err}
}

// run is the transaction.
func (b *batch[Tx]) run(ctx context.Context, batches store.Batches[Tx], fn func(context.Context, Tx, []Found) ([]*End, error)) error {
	if len(b.gates) == 0 {
		return nil
	}
	lead := b.calls[b.at[0]]
	limit := lead.op.Limit
	begin, cancel := context.WithTimeout(ctx, limit)
	txn, verdicts, err := batches.BeginBatch(begin, b.gates)
	cancel()
	if err != nil {
		return lead.storeError(err)
	}
	for _, f := range b.mine {
		b.e.flights.begins(f)
	}
	for n, v := range verdicts {
		if v.State != store.Free {
			b.judge(b.at[n], v)
		}
	}
	if txn == nil {
		return nil
	}
	defer func() {
		record := b.e.recordings.begin(ctx)
		_ = txn.Rollback(record) // does nothing once the batch has ended
	}()
	until := time.Now().Add(limit)
	work, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	ends, err := fn(work, txn.Tx(), b.found)
	switch {
	case takenBack(err):
		return lead.storeError(err)
	case err != nil:
		return err
	case !time.Now().Before(until):
		return lead.fail(CodeLimit, time.Second, nil)
	}
	return b.commit(ctx, lead, txn, ends)
}

// commit ends the operations that have an end.
func (b *batch[Tx]) commit(ctx context.Context, lead *call, txn store.Batch[Tx], ends []*End) error {
	if len(ends) != len(b.calls) {
		return lead.fail(CodeInvalid, 0, errors.New("batch: the function must return an end, or nil, for each operation"))
	}
	mine := make([]*End, len(b.at))
	ended := false
	for n, i := range b.at {
		if b.found[i] == (Found{}) {
			mine[n] = ends[i]
			ended = ended || mine[n] != nil
		}
	}
	if !ended {
		return nil
	}
	record := b.e.recordings.begin(ctx)
	at, era := time.Now(), b.e.cache.current()
	outcomes, err := txn.Commit(record, mine)
	if errors.Is(err, store.ErrCommitUnknown) {
		return b.settle(record, mine, err)
	}
	if err != nil {
		return lead.storeError(err)
	}
	for n, out := range outcomes {
		if out == nil {
			continue
		}
		i := b.at[n]
		b.found[i].Outcome = out
		if out.State == store.Completed {
			b.e.cache.put(b.calls[i].gate.Key, out, at, era)
		}
		b.e.sees(b.calls[i], SawCompleted, out.Attempt, false, nil)
	}
	return nil
}

// settle finds out about a commit whose answer was lost: it took effect for all
// of them or for none.
func (b *batch[Tx]) settle(ctx context.Context, ends []*End, lost error) error {
	for n, end := range ends {
		if end == nil {
			continue
		}
		i := b.at[n]
		c := b.calls[i]
		verdict, err := b.e.settle(ctx, c)
		switch {
		case err != nil:
			return c.fail(CodeUnresolved, time.Second, errors.Join(lost, err))
		case verdict.State == store.Free:
			return c.fail(CodeAborted, time.Second, lost)
		}
		if found := verdict.Outcome; found != nil && sameResult(found.Result, end.Result) {
			b.found[i].Outcome = found
			continue
		}
		b.judge(i, verdict)
	}
	return nil
}
