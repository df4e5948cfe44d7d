package storetest

import (
	"fmt"

	"github.com/unavez/unavez/store"
)

// joinTests hold the same promises inside a transaction that the caller owns.
func joinTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a joined outcome is committed by its caller", run: joinCommit[Tx]},
		{name: "a joined outcome vanishes with its caller's rollback", run: joinRollback[Tx]},
		{name: "a joined operation is in flight for others", run: joinInFlight[Tx]},
		{name: "joining an ended operation leaves the caller's transaction usable", run: joinFound[Tx]},
		{name: "an operation given up by its caller is free", run: joinLeave[Tx]},
		{name: "an operation is joined once in one transaction", run: joinTwice[Tx]},
		{name: "several operations join one transaction", run: joinSeveral[Tx]},
		{name: "a joined outcome needs the transaction of its gate", run: joinForeign[Tx]},
		{name: "a second outcome stops the caller", needs: func(h *Harness[Tx]) bool { return !h.Exclusive }, run: joinDuplicate[Tx]},
		{name: "a finish survives the rollback of a savepoint", needs: func(h *Harness[Tx]) bool { return h.Savepoint != nil }, run: joinSavepoint[Tx]},
	}
}

// foreign is a transaction of the caller's own.
type foreign[Tx any] struct {
	tx               Tx
	commit, rollback func() error
}

// caller opens a transaction of the caller's own; the test ends it.
func (b *bed[Tx]) caller() foreign[Tx] {
	b.Helper()
	tx, commit, rollback, err := b.BeginForeign(b.ctx)
	b.must("BeginForeign", err)
	return foreign[Tx]{tx, commit, rollback}
}

// join joins an operation that must be free.
func (b *bed[Tx]) join(f foreign[Tx], gate store.Gate) store.Joined {
	b.Helper()
	joined, v, err := b.Ledger.Join(b.ctx, f.tx, gate)
	b.must("Join", err)
	if joined == nil || v.State != store.Free {
		b.Fatalf("Join: state %v, joined %v; want a free operation", v.State, joined != nil)
	}
	return joined
}

func (b *bed[Tx]) finish(joined store.Joined, body string) *store.Outcome {
	b.Helper()
	o, err := joined.Finish(b.ctx, completed(answer(body)))
	b.must("Finish", err)
	return o
}

func joinCommit[Tx any](b *bed[Tx]) {
	gate := b.gate("joined")
	f := b.caller()
	b.must("Write", b.Write(b.ctx, f.tx, "before"))
	joined := b.join(f, gate)
	b.must("Write", b.Write(b.ctx, f.tx, "joined"))
	made := b.finish(joined, "joined")
	if made.State != store.Completed || made.Attempt != 1 || made.Left != gate.Retention || !sameResult(made.Result, answer("joined")) {
		b.Errorf("joined outcome: %+v", made)
	}
	b.must("Write", b.Write(b.ctx, f.tx, "after"))
	b.look(gate, store.Free)
	b.rows()
	b.must("commit", f.commit())
	v := b.refused(b.worker(1), gate, store.Completed)
	if err := sameOutcome(made, v.Outcome); err != nil {
		b.Error(err)
	}
	b.settled(gate, store.Completed)
	b.rows("before", "joined", "after")
}

func joinRollback[Tx any](b *bed[Tx]) {
	gate := b.gate("joined in vain")
	f := b.caller()
	joined := b.join(f, gate)
	b.must("Write", b.Write(b.ctx, f.tx, "joined"))
	b.finish(joined, "joined")
	b.must("rollback", f.rollback())
	b.rows()
	b.look(gate, store.Free)
	b.do(gate, "again")
	b.rows("again")
}

func joinInFlight[Tx any](b *bed[Tx]) {
	gate := b.gate("joined and running")
	f := b.caller()
	joined := b.join(f, gate)
	duplicates := func() {
		b.Helper()
		for i := range b.workers {
			if v := b.refused(b.worker(i), gate, store.Processing); v.Attempt != nil {
				b.Errorf("in flight in a transaction, with attempt %+v", v.Attempt)
			}
			v, err := b.worker(i).Settle(b.ctx, gate.Key)
			b.must("Settle", err)
			b.verdict("Settle", v, store.Processing)
		}
	}
	duplicates()
	b.must("Write", b.Write(b.ctx, f.tx, "joined"))
	duplicates()
	b.finish(joined, "joined")
	duplicates() // the outcome is not committed yet
	b.must("commit", f.commit())
	for i := range b.workers {
		b.refused(b.worker(i), gate, store.Completed)
	}
}

func joinFound[Tx any](b *bed[Tx]) {
	gate := b.gate("ended before")
	made := b.do(gate, "ended before")
	f := b.caller()
	joined, v, err := b.Ledger.Join(b.ctx, f.tx, gate)
	b.must("Join", err)
	b.verdict("Join", v, store.Completed)
	if joined != nil {
		b.Fatal("Join of an ended operation: joined")
	}
	if err := sameOutcome(made, v.Outcome); err != nil {
		b.Error(err)
	}
	b.must("Write", b.Write(b.ctx, f.tx, "caller's own"))
	b.must("commit", f.commit())
	b.rows("ended before", "caller's own")
}

func joinLeave[Tx any](b *bed[Tx]) {
	gate := b.gate("left")
	f := b.caller()
	joined := b.join(f, gate)
	b.must("Write", b.Write(b.ctx, f.tx, "left"))
	joined.Leave()
	joined.Leave()
	b.must("rollback", f.rollback())
	b.rows()
	b.settled(gate, store.Free)
	b.do(gate, "again")
	b.rows("again")

	// Given up too late, when another one runs it.
	gate = b.gate("left late")
	f = b.caller()
	joined = b.join(f, gate)
	b.must("rollback", f.rollback())
	next := b.begin(b.worker(1), gate)
	joined.Leave()
	b.refused(b.worker(0), gate, store.Processing)
	b.settled(gate, store.Processing)
	b.commit(next, completed(answer("next")))
}

func joinTwice[Tx any](b *bed[Tx]) {
	gate := b.gate("joined twice")
	f := b.caller()
	joined := b.join(f, gate)
	b.must("Write", b.Write(b.ctx, f.tx, "once"))
	b.finish(joined, "once")
	second, v, err := b.Ledger.Join(b.ctx, f.tx, gate)
	b.must("Join", err)
	if second != nil || v.State != store.Completed && v.State != store.Processing {
		b.Fatalf("second Join in the same transaction: state %v, joined %v", v.State, second != nil)
	}
	b.must("commit", f.commit())
	b.refused(b.Ledger, gate, store.Completed)
	b.rows("once")
}

func joinSeveral[Tx any](b *bed[Tx]) {
	f := b.caller()
	gates := []store.Gate{b.gate("several", "1"), b.gate("several", "2"), b.gate("several", "3")}
	var joined []store.Joined
	for _, gate := range gates {
		joined = append(joined, b.join(f, gate))
	}
	for i, j := range joined {
		b.must("Write", b.Write(b.ctx, f.tx, fmt.Sprint(i)))
		b.finish(j, fmt.Sprint(i))
	}
	b.must("commit", f.commit())
	for i, gate := range gates {
		if v := b.refused(b.Ledger, gate, store.Completed); string(v.Outcome.Result.Body) != fmt.Sprint(i) {
			b.Errorf("operation %d: %s", i, v.Outcome.Result.Body)
		}
	}
	b.rows("0", "1", "2")
}

func joinForeign[Tx any](b *bed[Tx]) {
	for _, commits := range []bool{false, true} {
		gate := b.gate("another transaction", fmt.Sprint(commits))
		f := b.caller()
		joined := b.join(f, gate)
		if commits {
			b.must("commit", f.commit())
		} else {
			b.must("rollback", f.rollback())
		}
		o, err := joined.Finish(b.ctx, completed(answer("late")))
		b.is("Finish after the transaction's end", err, store.ErrForeignCommit)
		if o != nil {
			b.Errorf("Finish after the transaction's end: %+v", o)
		}
		joined.Leave()
		b.settled(gate, store.Free)
		b.do(gate, fmt.Sprint(commits))
	}
}

func joinDuplicate[Tx any](b *bed[Tx]) {
	gate := b.gate("joined late")
	f := b.caller()
	joined := b.join(f, gate)
	// An outcome that nobody may write while the operation is locked.
	b.Smuggle(b.T, gate.Identity)
	o, err := joined.Finish(b.ctx, completed(answer("second")))
	b.is("Finish", err, store.ErrDuplicate)
	if o != nil {
		b.Errorf("Finish: %+v", o)
	}
	b.must("rollback", f.rollback())
	b.rows()
	if v := b.refused(b.Ledger, gate, store.Completed); v.Outcome.Result.Code != 299 {
		b.Errorf("outcome: %+v", v.Outcome)
	}
}

func joinSavepoint[Tx any](b *bed[Tx]) {
	gate := b.gate("joined in a savepoint")
	f := b.caller()
	b.must("Write", b.Write(b.ctx, f.tx, "before"))
	back, err := b.Savepoint(b.ctx, f.tx)
	b.must("Savepoint", err)
	joined := b.join(f, gate)
	b.must("Write", b.Write(b.ctx, f.tx, "undone"))
	b.must("rollback to savepoint", back())
	b.must("Write", b.Write(b.ctx, f.tx, "joined"))
	made := b.finish(joined, "joined")
	if v := b.refused(b.worker(1), gate, store.Processing); v.Attempt != nil {
		b.Errorf("in flight in a transaction, with attempt %+v", v.Attempt)
	}
	b.must("commit", f.commit())
	v := b.refused(b.worker(1), gate, store.Completed)
	if err := sameOutcome(made, v.Outcome); err != nil {
		b.Error(err)
	}
	b.rows("before", "joined")

	// An outcome inside the savepoint goes with it.
	gate = b.gate("finished in a savepoint")
	f = b.caller()
	back, err = b.Savepoint(b.ctx, f.tx)
	b.must("Savepoint", err)
	joined = b.join(f, gate)
	b.finish(joined, "undone")
	b.must("rollback to savepoint", back())
	b.must("commit", f.commit())
	b.look(gate, store.Free)
	b.do(gate, "again")
}
