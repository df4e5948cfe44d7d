package storetest

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez/store"
)

// effectTests hold: at most one committed effect per operation, and a free
// operation is free at once.
func effectTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "one effect of many racing duplicates", run: oneEffect[Tx]},
		{name: "operations do not wait for each other", run: sideBySide[Tx]},
		{name: "a duplicate in flight is answered at once", run: inFlight[Tx]},
		{name: "a rollback frees the operation and leaves no row", run: rollbackFrees[Tx]},
		{name: "a transaction ends once", run: endsOnce[Tx]},
		{name: "rows and outcome appear together", run: together[Tx]},
		{name: "an outcome that is there already takes the rows with it", run: duplicateOutcome[Tx]},
		{name: "settle tells what became of a commit", run: settle[Tx]},
		{name: "a lost answer of a commit is unknown", needs: func(h *Harness[Tx]) bool { return h.LoseAnswer != nil }, run: lostAnswer[Tx]},
		{name: "peek tells who is in flight", run: peek[Tx]},
		{name: "a killed worker leaves neither rows nor lock", needs: func(h *Harness[Tx]) bool { return h.Crash != nil }, run: crash[Tx]},
	}
}

func oneEffect[Tx any](b *bed[Tx]) {
	const rounds, racers = 12, 12
	var want []string
	for round := range rounds {
		gate := b.gate("raced", fmt.Sprint(round))
		row := fmt.Sprintf("order %d", round)
		want = append(want, row)
		var commits atomic.Int64
		bodies := make([]string, racers)
		b.together(racers, func(i int) error {
			shy := i%3 == 0 // gives its first transaction up
			for b.ctx.Err() == nil {
				txn, v, err := b.worker(i).Begin(b.ctx, gate)
				switch {
				case err != nil:
					return fmt.Errorf("racer %d: begin: %w", i, err)
				case txn == nil && v.State == store.Completed:
					bodies[i] = string(v.Outcome.Result.Body)
					return nil
				case txn == nil && v.State == store.Processing:
					runtime.Gosched()
					continue
				case txn == nil:
					return fmt.Errorf("racer %d: state %v", i, v.State)
				}
				if err := b.Write(b.ctx, txn.Tx(), row); err != nil {
					return errors.Join(fmt.Errorf("racer %d: write: %w", i, err), txn.Rollback(b.ctx))
				}
				if shy {
					shy = false
					if err := txn.Rollback(b.ctx); err != nil {
						return fmt.Errorf("racer %d: rollback: %w", i, err)
					}
					continue
				}
				o, err := txn.Commit(b.ctx, completed(answer(fmt.Sprintf("racer %d", i))))
				if err != nil {
					return fmt.Errorf("racer %d: commit: %w", i, err)
				}
				commits.Add(1)
				bodies[i] = string(o.Result.Body)
				return nil
			}
			return b.ctx.Err()
		})
		if n := commits.Load(); n != 1 {
			b.Fatalf("round %d: %d commits, want 1", round, n)
		}
		for i, body := range bodies {
			if body != bodies[0] || body == "" {
				b.Fatalf("round %d: racer %d got %q, racer 0 got %q", round, i, body, bodies[0])
			}
		}
	}
	b.rows(want...)
}

func sideBySide[Tx any](b *bed[Tx]) {
	first := b.begin(b.worker(0), b.gate("first"))
	second := b.begin(b.worker(1), b.gate("second"))
	b.write(second, "second")
	b.commit(second, completed(answer("second")))
	b.rows("second")
	b.write(first, "first")
	b.commit(first, completed(answer("first")))
	b.rows("first", "second")
}

func inFlight[Tx any](b *bed[Tx]) {
	gate := b.gate("slow")
	txn := b.begin(b.Ledger, gate)
	inTransaction := func(call string, v store.Verdict) {
		b.Helper()
		if v.State != store.Processing || v.Attempt != nil || v.Outcome != nil {
			b.Fatalf("%s: %+v, want processing without attempt", call, v)
		}
	}
	duplicates := func() {
		b.Helper()
		for i := range b.workers {
			inTransaction("Begin", b.refused(b.worker(i), gate, store.Processing))
			v, err := b.worker(i).Settle(b.ctx, gate.Key)
			b.must("Settle", err)
			inTransaction("Settle", v)
		}
	}
	duplicates()
	if b.attempts != nil {
		attempt, v, err := b.claimer(1).Claim(b.ctx, claimOf(gate))
		b.must("Claim", err)
		if attempt != nil {
			b.Fatalf("Claim of an operation in a transaction: %+v", attempt)
		}
		inTransaction("Claim", v)
	}
	tx, _, rollback, err := b.BeginForeign(b.ctx)
	b.must("BeginForeign", err)
	joined, v, err := b.Ledger.Join(b.ctx, tx, gate)
	b.must("Join", err)
	if joined != nil {
		b.Fatal("Join of an operation in a transaction: joined")
	}
	inTransaction("Join", v)
	b.must("rollback", rollback())

	b.write(txn, "slow")
	duplicates()
	b.look(gate, store.Free) // what is not committed cannot be seen
	b.commit(txn, completed(answer("slow")))
	for i := range b.workers {
		b.refused(b.worker(i), gate, store.Completed)
	}
	b.rows("slow")
}

func rollbackFrees[Tx any](b *bed[Tx]) {
	gate := b.gate("given up")
	for i := range 3 {
		txn := b.begin(b.worker(i), gate)
		b.write(txn, "given up")
		b.rollback(txn)
		b.rows()
		b.look(gate, store.Free)
	}
	b.do(gate, "done")
	b.rows("done")
}

func endsOnce[Tx any](b *bed[Tx]) {
	gate := b.gate("ended by commit")
	txn := b.begin(b.Ledger, gate)
	first := b.commit(txn, completed(answer("first")))
	if o, err := txn.Commit(b.ctx, completed(answer("second"))); err == nil {
		b.Errorf("second Commit: %+v, want an error", o)
	}
	b.rollback(txn)
	v := b.look(gate, store.Completed)
	if err := sameOutcome(first, v.Outcome); err != nil {
		b.Errorf("outcome after a second end: %v", err)
	}

	gate = b.gate("ended by rollback")
	txn = b.begin(b.Ledger, gate)
	b.rollback(txn)
	b.rollback(txn)
	if o, err := txn.Commit(b.ctx, completed(answer("late"))); err == nil {
		b.Errorf("Commit after Rollback: %+v, want an error", o)
	}
	b.look(gate, store.Free)

	// The late calls of an ended transaction do not touch its successor.
	next := b.begin(b.Ledger, gate)
	b.rollback(txn)
	b.refused(b.worker(1), gate, store.Processing)
	b.rollback(next)
}

func together[Tx any](b *bed[Tx]) {
	gate := b.gate("visible")
	txn := b.begin(b.Ledger, gate)
	b.write(txn, "visible")
	seen, err := b.Read(b.ctx, txn.Tx())
	b.must("Read", err)
	if len(seen) != 1 || seen[0] != "visible" {
		b.Errorf("rows inside the transaction: %q", seen)
	}
	b.rows()
	b.look(gate, store.Free)
	b.commit(txn, completed(answer("visible")))
	b.rows("visible")
	b.look(gate, store.Completed)

	other := b.begin(b.worker(1), b.gate("later"))
	seen, err = b.Read(b.ctx, other.Tx())
	b.must("Read", err)
	if len(seen) != 1 {
		b.Errorf("rows inside the next transaction: %q", seen)
	}
	b.rollback(other)
}

func duplicateOutcome[Tx any](b *bed[Tx]) {
	gate := b.gate("smuggled")
	txn := b.begin(b.Ledger, gate)
	b.Smuggle(b.T, gate.Identity)
	// The write may already find out; then the commit says so.
	if err := b.Write(b.ctx, txn.Tx(), "second effect"); err != nil {
		b.Logf("Write: %v", err)
	}
	b.commitFails(txn, completed(answer("second effect")), store.ErrDuplicate)
	b.rows()
	v := b.refused(b.worker(1), gate, store.Completed)
	if v.Outcome.Result.Code != 299 {
		b.Errorf("outcome after the refused second one: %+v", v.Outcome)
	}
}

func settle[Tx any](b *bed[Tx]) {
	gate := b.gate("settled")
	b.settled(gate, store.Free)
	txn := b.begin(b.worker(1), gate)
	b.settled(gate, store.Processing)
	b.rollback(txn)
	b.settled(gate, store.Free)
	// Asking takes nothing: the operation can run.
	o := b.do(gate, "settled")
	v := b.settled(gate, store.Completed)
	if err := sameOutcome(o, v.Outcome); err != nil {
		b.Errorf("outcome by Settle: %v", err)
	}
	b.Advance(b.T, retention+margin)
	if v := b.settled(gate, store.Expired); string(v.Short) != string(gate.Fingerprint.Short()) {
		b.Errorf("Settle: front of the fingerprint %x, want %x", v.Short, gate.Fingerprint.Short())
	}
}

func lostAnswer[Tx any](b *bed[Tx]) {
	for _, took := range []bool{true, false} {
		gate := b.gate("lost answer", fmt.Sprint(took))
		txn := b.begin(b.Ledger, gate)
		b.write(txn, fmt.Sprint(took))
		b.LoseAnswer(b.T, took)
		if o, err := txn.Commit(b.ctx, completed(answer("lost"))); !errors.Is(err, store.ErrCommitUnknown) || o != nil {
			b.Fatalf("Commit with a lost answer: %+v, %v", o, err)
		}
		b.must("Rollback", txn.Rollback(b.ctx))
		want := store.Free
		if took {
			want = store.Completed
		}
		b.eventually("Settle", func() bool {
			v, err := b.Ledger.Settle(b.ctx, gate.Key)
			return err == nil && v.State != store.Processing
		})
		b.settled(gate, want)
	}
	b.rows("true")
}

func peek[Tx any](b *bed[Tx]) {
	running, ended, free := b.gate("running"), b.gate("ended"), b.gate("free")
	b.do(ended, "ended")
	txn := b.begin(b.worker(1), running)
	keys := []store.Key{free.Key, running.Key, ended.Key, running.Key}
	want := []bool{false, true, false, true}
	if b.attempts != nil {
		leased, rested := b.gate("leased"), b.gate("rested")
		b.claim(leased)
		b.rest(rested, store.Dead)
		keys, want = append(keys, leased.Key, rested.Key), append(want, true, false)
	}
	states, err := b.Ledger.Peek(b.ctx, keys)
	b.must("Peek", err)
	if len(states) != len(keys) {
		b.Fatalf("Peek: %d states for %d keys", len(states), len(keys))
	}
	for i, state := range states {
		if (state == store.Processing) != want[i] {
			b.Errorf("Peek: key %d is %v, in flight should be %v", i, state, want[i])
		}
	}
	b.rollback(txn)
	if states, err = b.Ledger.Peek(b.ctx, nil); err != nil || len(states) != 0 {
		b.Errorf("Peek of nothing: %v, %v", states, err)
	}
	b.do(free, "free") // peeking took no lock
}

func crash[Tx any](b *bed[Tx]) {
	gate := b.gate("killed")
	b.Crash(b.T, gate, "killed")
	b.eventually("Begin after the worker's death", func() bool {
		txn, _, err := b.Ledger.Begin(b.ctx, gate)
		if err != nil || txn == nil {
			return false
		}
		return txn.Rollback(b.ctx) == nil
	})
	b.rows()
	b.do(gate, "again")
	b.rows("again")
}

// eventually asks until the answer is yes, at most as long as the test may run.
func (b *bed[Tx]) eventually(what string, ask func() bool) {
	b.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("%s: not in time", what)
		}
	}
}
