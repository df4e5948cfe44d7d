package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// endTests hold how a transaction can end other than by a plain commit.
func endTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an unwritten end after a write rolls back and frees", run: unwrittenWrote[Tx]},
		{name: "an unwritten end of a handler that only read is frozen", run: unwrittenRead[Tx]},
		{name: "a transaction ended by its handler commits nothing", needs: func(h *Harness[Tx]) bool { return len(h.EndByHandler) > 0 }, run: foreignEnd[Tx]},
		{name: "an aborted transaction commits nothing", needs: func(h *Harness[Tx]) bool { return h.Abort != nil }, run: aborted[Tx]},
		{name: "work over its limit commits nothing", run: limit[Tx]},
		{name: "a cancelled context leaves no lock behind", run: cancelled[Tx]},
		{name: "an outcome can be a discarded one", run: discardedOutcome[Tx]},
	}
}

func unwrittenWrote[Tx any](b *bed[Tx]) {
	gate := b.gate("refused after a write")
	txn := b.begin(b.Ledger, gate)
	b.write(txn, "half")
	b.commitFails(txn, store.End{State: store.Completed, Result: answer("no"), Unwritten: true}, store.ErrWrote)
	b.rows()
	b.look(gate, store.Free)
	b.do(gate, "whole")
	b.rows("whole")
}

func unwrittenRead[Tx any](b *bed[Tx]) {
	b.do(b.gate("other"), "other")
	for _, reads := range []bool{false, true} {
		gate := b.gate("refused", fmt.Sprint(reads))
		txn := b.begin(b.Ledger, gate)
		if reads {
			_, err := b.Read(b.ctx, txn.Tx())
			b.must("Read", err)
		}
		b.commit(txn, store.End{State: store.Completed, Result: answer("no"), Unwritten: true})
		v := b.refused(b.worker(1), gate, store.Completed)
		if !sameResult(v.Outcome.Result, answer("no")) {
			b.Errorf("frozen refusal: %+v", v.Outcome.Result)
		}
	}
}

func foreignEnd[Tx any](b *bed[Tx]) {
	for i, end := range b.EndByHandler {
		for _, commits := range []bool{true, false} {
			gate := b.gate("ended by handler", fmt.Sprint(i), fmt.Sprint(commits))
			txn := b.begin(b.Ledger, gate)
			b.write(txn, fmt.Sprintf("way %d", i))
			if err := end(b.ctx, txn.Tx()); err != nil {
				b.Logf("way %d: the handler got: %v", i, err)
			}
			if commits {
				b.commitFails(txn, completed(answer("no")), store.ErrForeignCommit)
			} else {
				b.must("Rollback", txn.Rollback(b.ctx))
			}
			b.rows()
			b.look(gate, store.Free)
			b.rollback(b.begin(b.worker(1), gate))
		}
	}
	b.do(b.gate("next"), "next") // the store goes on
	b.rows("next")
}

func aborted[Tx any](b *bed[Tx]) {
	gate := b.gate("aborted")
	txn := b.begin(b.Ledger, gate)
	b.write(txn, "aborted")
	if err := b.Abort(b.ctx, txn.Tx()); err != nil {
		b.Logf("the handler got: %v", err)
	}
	b.commitFails(txn, completed(answer("no")), store.ErrAborted)
	b.look(gate, store.Free)
	rows := b.Rows(b.T)
	for _, row := range rows {
		if row == "aborted" {
			b.Errorf("committed rows: %q", rows)
		}
	}
	b.do(gate, "again")
}

// limit is the one test that waits for time to pass: the limit is short.
func limit[Tx any](b *bed[Tx]) {
	for _, writes := range []bool{true, false} {
		gate := b.gate("slow handler", fmt.Sprint(writes))
		gate.Limit = 100 * time.Millisecond
		txn, v, err := b.Ledger.Begin(b.ctx, gate)
		b.must("Begin", err)
		b.verdict("Begin", v, store.Free)
		if writes {
			if err := b.Write(b.ctx, txn.Tx(), "slow"); err != nil {
				b.Logf("write under the limit: %v", err) // on a machine slower than the limit
			}
		}
		timer := time.NewTimer(3 * gate.Limit)
		<-timer.C
		b.commitFails(txn, completed(answer("late")), store.ErrLimit)
		b.rows()
		gate.Limit = patience
		b.rollback(b.begin(b.worker(1), gate))
	}
}

func cancelled[Tx any](b *bed[Tx]) {
	gone, cancel := context.WithCancel(b.ctx)
	cancel()
	gate := b.gate("cancelled")

	if txn, _, err := b.Ledger.Begin(gone, gate); err == nil && txn != nil {
		b.must("Rollback", txn.Rollback(gone))
	}
	b.settled(gate, store.Free)

	txn := b.begin(b.Ledger, gate)
	b.write(txn, "given up")
	if err := txn.Rollback(gone); err != nil {
		b.Errorf("Rollback with a cancelled context: %v", err)
	}
	b.rows()
	b.settled(gate, store.Free)

	// A commit under a cancelled context either commits or does not; it never
	// leaves the operation in between, nor rows without an outcome.
	txn = b.begin(b.Ledger, gate)
	b.write(txn, "perhaps")
	_, err := txn.Commit(gone, completed(answer("perhaps")))
	b.must("Rollback", txn.Rollback(b.ctx))
	switch {
	case err == nil:
		b.settled(gate, store.Completed)
		b.rows("perhaps")
	case errors.Is(err, store.ErrCommitUnknown):
		v, err := b.Ledger.Settle(b.ctx, gate.Key)
		b.must("Settle", err)
		if v.State == store.Processing {
			b.Fatal("Settle after the cancelled commit: still in flight")
		}
	default:
		b.settled(gate, store.Free)
		b.rows()
	}

	// A context that ends while the handler works does not undo the commit's
	// own, and the handler's transaction frees its lock as always.
	gate = b.gate("cancelled while working")
	working, stop := context.WithCancel(b.ctx)
	txn, v, err := b.Ledger.Begin(working, gate)
	b.must("Begin", err)
	b.verdict("Begin", v, store.Free)
	stop()
	b.must("Rollback", txn.Rollback(b.ctx))
	b.settled(gate, store.Free)

	if b.attempts == nil {
		return
	}
	gate = b.gate("cancelled claim")
	if attempt, _, err := b.attempts.Claim(gone, claimOf(gate)); err == nil && attempt != nil {
		b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, attempt.Fence, store.Rest{State: store.Free, Reason: "test"}))
	}
	b.settled(gate, store.Free)
	attempt := b.claim(gate)
	if txn, err := b.attempts.Finish(gone, gate, attempt.Fence); err == nil {
		b.must("Rollback", txn.Rollback(gone))
	}
	txn, err = b.attempts.Finish(b.ctx, gate, attempt.Fence)
	b.must("Finish after a cancelled one", err)
	b.commit(txn, completed(answer("done")))
}

func discardedOutcome[Tx any](b *bed[Tx]) {
	gate := b.gate("stale")
	txn := b.begin(b.Ledger, gate)
	result := store.Result{Code: 409, Body: []byte("stale version")}
	o := b.commit(txn, store.End{State: store.Discarded, Result: result})
	v := b.refused(b.worker(1), gate, store.Discarded)
	if err := sameOutcome(o, v.Outcome); err != nil {
		b.Error(err)
	}
	if v.Outcome.State != store.Discarded || !sameResult(v.Outcome.Result, result) {
		b.Errorf("discarded outcome: %+v", v.Outcome)
	}
	b.look(gate, store.Discarded)
}
