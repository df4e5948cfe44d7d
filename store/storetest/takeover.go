package storetest

import (
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// takeoverTests hold how a transaction takes an attempt at rest over.
func takeoverTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a transaction takes an attempt at rest over and ends it", run: takeover[Tx]},
		{name: "a takeover given up leaves the attempt as it was", run: takeoverRollback[Tx]},
		{name: "a takeover is in flight for others", run: takeoverInFlight[Tx]},
		{name: "a caller's transaction takes an attempt at rest over", run: takeoverJoin[Tx]},
		{name: "a late finish waits for the takeover and is refused", run: finishWaits[Tx]},
		{name: "a read-only takeover is frozen and ends the attempt", run: takeoverUnwritten[Tx]},
	}
}

// takes begins a transaction that takes an attempt at rest over.
func (b *bed[Tx]) takes(l store.Ledger[Tx], gate store.Gate, found store.State) store.Txn[Tx] {
	b.Helper()
	txn, v, err := l.Begin(b.ctx, gate)
	b.must("Begin", err)
	if txn == nil {
		b.Fatalf("Begin from %d: refused with state %v, attempt %+v", gate.From, v.State, v.Attempt)
	}
	b.verdict("Begin", v, found)
	if v.Attempt.Fence != gate.From {
		b.Errorf("Begin from %d: found %+v", gate.From, v.Attempt)
	}
	return txn
}

// restDue brings an operation to rest so that it may be taken over from fence 1.
func (b *bed[Tx]) restDue(gate store.Gate, state store.State) {
	b.Helper()
	b.claim(gate)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: state, Reason: "why"}))
}

func takeover[Tx any](b *bed[Tx]) {
	var want []string
	for _, state := range []store.State{store.Retryable, store.Parked, store.Unknown} {
		gate := b.gate("takeover", state.String())
		b.restDue(gate, state)
		b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true}))
		gate.From = 2
		b.refused(b.worker(1), gate, state)
		gate.From = 1
		txn := b.takes(b.worker(1), gate, state)
		b.write(txn, state.String())
		want = append(want, state.String())
		made := b.commit(txn, completed(answer(state.String())))
		if made.Attempt != 2 {
			b.Errorf("%v: attempt of the outcome %d, want 2", state, made.Attempt)
		}
		v := b.refused(b.Ledger, gate, store.Completed)
		if err := sameOutcome(made, v.Outcome); err != nil {
			b.Error(err)
		}
		b.lost(b.attempts, gate, 1)
		b.stepsAre(gate)
		// The attempt's row is gone: nothing is left when the outcome is.
		b.Advance(b.T, retention+tombstone+margin)
		b.look(gate, store.Free)
	}
	b.rows(want...)

	gate := b.gate("takeover", "of a lease seen to have expired by nobody")
	b.expire(gate)
	gate.From = 1
	txn := b.takes(b.worker(1), gate, store.Unknown)
	b.commit(txn, completed(answer("expired")))
	b.lost(b.attempts, gate, 1)

	gate = b.gate("takeover", "of a dead one")
	b.restDue(gate, store.Dead)
	gate.From = 1
	b.refused(b.Ledger, gate, store.Dead)
	b.claimRefused(gate, store.Dead)
}

func takeoverRollback[Tx any](b *bed[Tx]) {
	for _, state := range []store.State{store.Retryable, store.Parked, store.Unknown} {
		gate := b.gate("takeover given up", state.String())
		b.restDue(gate, state)
		before := b.look(gate, state).Attempt
		gate.From = 1
		for i := range 2 {
			txn := b.takes(b.worker(i), gate, state)
			b.write(txn, "given up")
			b.rollback(txn)
			after := b.look(gate, state).Attempt
			if after.Fence != 1 || after.Reason != "why" || !after.Created.Equal(before.Created) {
				b.Errorf("%v: attempt after the rollback %+v", state, after)
			}
		}
	}
	b.rows()
}

func takeoverInFlight[Tx any](b *bed[Tx]) {
	gate := b.gate("takeover in flight")
	b.restDue(gate, store.Unknown)
	gate.From = 1
	txn := b.takes(b.Ledger, gate, store.Unknown)
	for i := range b.workers {
		if v := b.refused(b.worker(i), gate, store.Processing); v.Attempt != nil {
			b.Errorf("Begin beside a takeover: attempt %+v", v.Attempt)
		}
		attempt, v, err := b.claimer(i).Claim(b.ctx, claimOf(gate))
		b.must("Claim", err)
		b.verdict("Claim", v, store.Processing)
		if attempt != nil || v.Attempt != nil {
			b.Errorf("Claim beside a takeover: %+v, attempt %+v", attempt, v.Attempt)
		}
		b.settled(gate, store.Processing)
	}
	b.commit(txn, completed(answer("done")))
	b.claimRefused(gate, store.Completed)
}

func takeoverJoin[Tx any](b *bed[Tx]) {
	gate := b.gate("takeover by a caller")
	b.rest(gate, store.Retryable)
	gate.From = 1
	f := b.caller()
	joined, v, err := b.Ledger.Join(b.ctx, f.tx, gate)
	b.must("Join", err)
	b.verdict("Join", v, store.Retryable)
	if joined != nil {
		b.Fatal("Join: took over what is not due")
	}
	b.must("rollback", f.rollback())
	b.Advance(b.T, time.Hour+margin)
	for _, commits := range []bool{false, true} {
		f = b.caller()
		joined, v, err = b.Ledger.Join(b.ctx, f.tx, gate)
		b.must("Join", err)
		b.verdict("Join", v, store.Retryable)
		if joined == nil {
			b.Fatal("Join: a due operation was refused")
		}
		b.must("Write", b.Write(b.ctx, f.tx, "joined"))
		if o := b.finish(joined, "joined"); o.Attempt != 2 {
			b.Errorf("attempt of the outcome: %d, want 2", o.Attempt)
		}
		if commits {
			b.must("commit", f.commit())
		} else {
			b.must("rollback", f.rollback())
			b.look(gate, store.Retryable)
		}
	}
	b.refused(b.Ledger, gate, store.Completed)
	b.lost(b.attempts, gate, 1)
	b.rows("joined")
}

func finishWaits[Tx any](b *bed[Tx]) {
	for _, commits := range []bool{true, false} {
		gate := b.gate("late finish", fmt.Sprint(commits))
		b.expire(gate)
		next := gate
		next.From = 1
		txn := b.takes(b.Ledger, next, store.Unknown)
		type finished struct {
			txn store.Txn[Tx]
			err error
		}
		late := make(chan finished, 1)
		go func() {
			txn, err := b.claimer(1).Finish(b.ctx, gate, 1)
			late <- finished{txn, err}
		}()
		grace := time.NewTimer(50 * time.Millisecond)
		select {
		case got := <-late:
			b.Fatalf("Finish beside a takeover: transaction %v, %v; want it to wait", got.txn != nil, got.err)
		case <-grace.C: // it waits, or has not come that far
		}
		if commits {
			b.write(txn, "takeover")
			b.commit(txn, completed(answer("takeover")))
		} else {
			b.rollback(txn)
		}
		got := <-late
		if commits {
			if got.txn != nil {
				b.Fatal("Finish: a lost attempt got a transaction")
			}
			b.is("Finish", got.err, store.ErrLeaseLost)
			continue
		}
		b.must("Finish", got.err)
		b.write(got.txn, "late")
		b.commit(got.txn, completed(answer("late")))
	}
	b.rows("takeover", "late")
}

func takeoverUnwritten[Tx any](b *bed[Tx]) {
	gate := b.gate("refused takeover")
	b.restDue(gate, store.Retryable)
	gate.From = 1
	txn := b.takes(b.Ledger, gate, store.Retryable)
	b.commit(txn, store.End{State: store.Completed, Result: answer("no"), Unwritten: true})
	b.refused(b.Ledger, gate, store.Completed)
	b.lost(b.attempts, gate, 1)

	gate = b.gate("refused takeover that wrote")
	b.restDue(gate, store.Retryable)
	gate.From = 1
	txn = b.takes(b.Ledger, gate, store.Retryable)
	b.write(txn, "half")
	b.commitFails(txn, store.End{State: store.Completed, Result: answer("no"), Unwritten: true}, store.ErrWrote)
	b.look(gate, store.Retryable)
	b.rows()
}
