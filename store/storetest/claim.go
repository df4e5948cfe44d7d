package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez/store"
)

// claimTests hold the way of an operation in lease mode from claim to outcome.
func claimTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a claim tells its attempt", run: claimTells[Tx]},
		{name: "a claimed operation is processing for everybody", run: claimedForAll[Tx]},
		{name: "one of many racing claims is granted", run: claimRace[Tx]},
		{name: "claims and transactions race to one effect", run: mixedRace[Tx]},
		{name: "a finish commits outcome and rows and ends the attempt", run: finishCommits[Tx]},
		{name: "a finish given up leaves the attempt as it was", run: finishRollback[Tx]},
		{name: "another worker can finish with the fence", run: finishElsewhere[Tx]},
		{name: "a finish finds an outcome that is there already", run: finishDuplicate[Tx]},
		{name: "a finish without a claim is decided by the ledger", run: finishUnclaimed[Tx]},
		{name: "one of many racing finishes without a claim commits", run: finishUnclaimedRace[Tx]},
		{name: "renewing counts from now", run: renew[Tx]},
		{name: "steps are kept by name", run: steps[Tx]},
		{name: "steps outlive attempts and end with the outcome", run: stepsOutlive[Tx]},
	}
}

// claim takes an operation that must be claimable.
func (b *bed[Tx]) claim(gate store.Gate) *store.Attempt {
	b.Helper()
	attempt, v, err := b.attempts.Claim(b.ctx, claimOf(gate))
	b.must("Claim", err)
	if attempt == nil {
		b.Fatalf("Claim: refused with state %v, attempt %+v", v.State, v.Attempt)
	}
	return attempt
}

// claimRefused is the verdict of a claim that must not be granted.
func (b *bed[Tx]) claimRefused(gate store.Gate, want store.State) store.Verdict {
	b.Helper()
	attempt, v, err := b.attempts.Claim(b.ctx, claimOf(gate))
	b.must("Claim", err)
	if attempt != nil {
		b.Fatalf("Claim: granted %+v, want %v", attempt, want)
	}
	b.verdict("Claim", v, want)
	return v
}

// rest brings a new operation to rest in the given state.
func (b *bed[Tx]) rest(gate store.Gate, state store.State) {
	b.Helper()
	attempt := b.claim(gate)
	rest := store.Rest{State: state, Reason: "why " + state.String()}
	if state == store.Retryable {
		rest.DueIn = time.Hour
	}
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, attempt.Fence, rest))
}

// expire claims an operation and lets its lease run out.
func (b *bed[Tx]) expire(gate store.Gate) *store.Attempt {
	b.Helper()
	attempt := b.claim(gate)
	b.Advance(b.T, lease+margin)
	return attempt
}

// end finishes an attempt with one business row.
func (b *bed[Tx]) end(gate store.Gate, fence int64, row string) *store.Outcome {
	b.Helper()
	txn, err := b.attempts.Finish(b.ctx, gate, fence)
	b.must("Finish", err)
	b.write(txn, row)
	return b.commit(txn, completed(answer(row)))
}

// lost checks that every write under a fence is refused.
func (b *bed[Tx]) lost(l store.Attempts[Tx], gate store.Gate, fence int64) {
	b.Helper()
	b.is("Renew", l.Renew(b.ctx, gate.Key, fence, lease), store.ErrLeaseLost)
	b.is("SaveStep", l.SaveStep(b.ctx, gate.Key, fence, store.Step{Name: "late", Done: true}), store.ErrLeaseLost)
	for _, state := range []store.State{store.Retryable, store.Parked, store.Unknown, store.Dead, store.Free} {
		b.is("Rest", l.Rest(b.ctx, gate.Key, fence, store.Rest{State: state, Reason: "late"}), store.ErrLeaseLost)
	}
	txn, err := l.Finish(b.ctx, gate, fence)
	if txn != nil {
		b.Fatal("Finish: a lost attempt got a transaction")
	}
	b.is("Finish", err, store.ErrLeaseLost)
}

func claimTells[Tx any](b *bed[Tx]) {
	gate := b.gate("claimed", "with two parts")
	a := b.claim(gate)
	if a.Key != gate.Key || a.Identity.Key() != gate.Key || a.Fence != 1 || a.State != store.Processing ||
		!a.Fingerprint.Equal(gate.Fingerprint) || a.DerivedKey != gate.Identity.DerivedKey("") || a.Origin != "POST /orders" {
		b.Errorf("first attempt: %+v", a)
	}
	if a.Identity.Text() != gate.Identity.Text() {
		b.Errorf("identity %q, want %q", a.Identity.Text(), gate.Identity.Text())
	}
	b.around("lease left", a.LeaseLeft, lease)
	if a.Created.IsZero() || !a.Changed.Equal(a.Created) {
		b.Errorf("created %v, changed %v", a.Created, a.Changed)
	}
	for _, id := range []store.Identity{
		{Tenant: "", Effect: "http", Parts: []string{"a/b", "", "ü %2F \x00 '\""}},
		{Tenant: "日本", Effect: "x", Parts: []string{"1"}},
	} {
		a := b.claim(gateOf(id))
		if a.Identity.Key() != id.Key() {
			b.Errorf("identity %+v came back as %+v", id, a.Identity)
		}
		if v := b.look(gateOf(id), store.Processing); v.Attempt == nil || v.Attempt.Identity.Key() != id.Key() {
			b.Errorf("identity %+v came back as %+v", id, v.Attempt)
		}
	}
}

func claimedForAll[Tx any](b *bed[Tx]) {
	gate := b.gate("running")
	b.claim(gate)
	b.Advance(b.T, 20*time.Minute)
	other := gate
	other.Fingerprint = store.Fingerprint{Version: 4, Sum: []byte("another payload")}
	check := func(call string, v store.Verdict) {
		b.Helper()
		a := v.Attempt
		if v.State != store.Processing || a == nil {
			b.Fatalf("%s: %+v, want processing with its attempt", call, v)
		}
		if a.State != store.Processing || a.Fence != 1 || !a.Fingerprint.Equal(gate.Fingerprint) || a.Key != gate.Key {
			b.Errorf("%s: attempt %+v", call, a)
		}
		b.around(call+": lease left", a.LeaseLeft, lease-20*time.Minute)
	}
	for i := range b.workers {
		for _, from := range []int64{0, 1, 2} {
			other.From = from
			attempt, v, err := b.claimer(i).Claim(b.ctx, claimOf(other))
			b.must("Claim", err)
			if attempt != nil {
				b.Fatalf("Claim from %d of a running operation: %+v", from, attempt)
			}
			check("Claim", v)
			check("Begin", b.refused(b.worker(i), other, store.Processing))
		}
	}
	check("Look", b.look(gate, store.Processing))
	check("Settle", b.settled(gate, store.Processing))
	f := b.caller()
	joined, v, err := b.Ledger.Join(b.ctx, f.tx, other)
	b.must("Join", err)
	if joined != nil {
		b.Fatal("Join of a claimed operation: joined")
	}
	check("Join", v)
	b.must("rollback", f.rollback())
}

func claimRace[Tx any](b *bed[Tx]) {
	const racers = 12
	gate := b.gate("claimed by many")
	race := func(wantFence int64) {
		b.Helper()
		var granted atomic.Int64
		b.together(racers, func(i int) error {
			attempt, v, err := b.claimer(i).Claim(b.ctx, claimOf(gate))
			switch {
			case err != nil:
				return fmt.Errorf("claim: %w", err)
			case attempt == nil && v.State != store.Processing && v.State != store.Unknown:
				return fmt.Errorf("claim refused with state %v", v.State)
			case attempt != nil && attempt.Fence != wantFence:
				return fmt.Errorf("fence %d, want %d", attempt.Fence, wantFence)
			case attempt != nil:
				granted.Add(1)
			}
			return nil
		})
		if n := granted.Load(); n != 1 {
			b.Fatalf("fence %d: %d claims granted, want 1", wantFence, n)
		}
	}
	race(1)
	b.Advance(b.T, lease+margin)
	for from := int64(1); from <= 3; from++ {
		gate.From = from
		race(from + 1)
		b.Advance(b.T, lease+margin)
	}
}

func mixedRace[Tx any](b *bed[Tx]) {
	const rounds, racers = 6, 8
	var want []string
	for round := range rounds {
		gate := b.gate("both modes", fmt.Sprint(round))
		row := fmt.Sprint(round)
		want = append(want, row)
		b.together(racers, func(i int) error {
			for b.ctx.Err() == nil {
				var txn store.Txn[Tx]
				var v store.Verdict
				var err error
				if i%2 == 0 {
					txn, v, err = b.worker(i).Begin(b.ctx, gate)
				} else {
					var attempt *store.Attempt
					if attempt, v, err = b.claimer(i/2).Claim(b.ctx, claimOf(gate)); attempt != nil {
						txn, err = b.claimer(i/2).Finish(b.ctx, gate, attempt.Fence)
					}
				}
				switch {
				case err != nil:
					return fmt.Errorf("racer %d: %w", i, err)
				case txn == nil && v.State == store.Completed:
					return nil
				case txn == nil && v.State == store.Processing:
					runtime.Gosched()
					continue
				case txn == nil:
					return fmt.Errorf("racer %d: state %v", i, v.State)
				}
				if err := b.Write(b.ctx, txn.Tx(), row); err != nil {
					return errors.Join(err, txn.Rollback(b.ctx))
				}
				if _, err := txn.Commit(b.ctx, completed(answer(row))); err != nil {
					return fmt.Errorf("racer %d: commit: %w", i, err)
				}
			}
			return b.ctx.Err()
		})
	}
	b.rows(want...)
}

func finishCommits[Tx any](b *bed[Tx]) {
	gate := b.gate("finished")
	b.claim(gate)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true, Result: []byte("ok")}))
	txn, err := b.attempts.Finish(b.ctx, gate, 1)
	b.must("Finish", err)
	b.write(txn, "finished")
	b.rows()
	if _, v, err := b.claimer(1).Claim(b.ctx, claimOf(gate)); err != nil || v.State != store.Processing {
		b.Errorf("Claim beside a finish: state %v, %v; want processing", v.State, err)
	}
	made := b.commit(txn, completed(answer("finished")))
	if made.Attempt != 1 || !made.Fingerprint.Equal(gate.Fingerprint) || made.Left != gate.Retention {
		b.Errorf("outcome: %+v", made)
	}
	for i := range b.workers {
		v := b.refused(b.worker(i), gate, store.Completed)
		if err := sameOutcome(made, v.Outcome); err != nil {
			b.Error(err)
		}
	}
	b.claimRefused(gate, store.Completed)
	b.lost(b.attempts, gate, 1)
	b.rows("finished")
	b.Advance(b.T, retention+margin)
	b.claimRefused(gate, store.Expired)
	b.Advance(b.T, tombstone)
	if a := b.claim(gate); a.Fence != 1 {
		b.Errorf("fence of the second life: %d, want 1", a.Fence)
	}
	if left, err := b.attempts.Steps(b.ctx, gate.Key); err != nil || len(left) != 0 {
		b.Errorf("steps of the second life: %+v, %v", left, err)
	}
}

func finishRollback[Tx any](b *bed[Tx]) {
	gate := b.gate("finish given up")
	b.claim(gate)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true}))
	txn, err := b.attempts.Finish(b.ctx, gate, 1)
	b.must("Finish", err)
	b.write(txn, "given up")
	b.rollback(txn)
	b.rows()
	v := b.look(gate, store.Processing)
	if v.Attempt == nil || v.Attempt.Fence != 1 {
		b.Fatalf("after the rollback: %+v", v.Attempt)
	}
	if kept, err := b.attempts.Steps(b.ctx, gate.Key); err != nil || len(kept) != 1 {
		b.Errorf("steps after the rollback: %+v, %v", kept, err)
	}
	b.must("Renew", b.attempts.Renew(b.ctx, gate.Key, 1, lease))
	b.end(gate, 1, "second try")
	b.rows("second try")
}

func finishElsewhere[Tx any](b *bed[Tx]) {
	gate := b.gate("finished elsewhere")
	a := b.claim(gate)
	other := b.claimer(1)
	b.must("Renew", other.Renew(b.ctx, gate.Key, a.Fence, 2*lease))
	b.must("SaveStep", other.SaveStep(b.ctx, gate.Key, a.Fence, store.Step{Name: "charge"}))
	txn, err := other.Finish(b.ctx, gate, a.Fence)
	b.must("Finish", err)
	b.write(txn, "elsewhere")
	b.commit(txn, completed(answer("elsewhere")))
	b.refused(b.Ledger, gate, store.Completed)
	b.rows("elsewhere")
}

func finishDuplicate[Tx any](b *bed[Tx]) {
	gate := b.gate("finished twice")
	b.claim(gate)
	b.Smuggle(b.T, gate.Identity)
	txn, err := b.attempts.Finish(b.ctx, gate, 1)
	if txn != nil {
		b.Fatal("Finish: a transaction though an outcome exists")
	}
	b.is("Finish", err, store.ErrDuplicate)
	if v := b.refused(b.Ledger, gate, store.Completed); v.Outcome.Result.Code != 299 {
		b.Errorf("outcome: %+v", v.Outcome)
	}
	b.claimRefused(gate, store.Completed)
}

func finishUnclaimed[Tx any](b *bed[Tx]) {
	gate := b.gate("unclaimed")
	if o := b.end(gate, 0, "unclaimed"); o.Attempt != 1 {
		b.Errorf("attempt of the outcome: %d, want 1", o.Attempt)
	}
	refuse := func(gate store.Gate) {
		b.Helper()
		txn, err := b.claimer(1).Finish(b.ctx, gate, 0)
		if txn != nil {
			b.Fatal("Finish: a second outcome was let in")
		}
		b.is("Finish", err, store.ErrDuplicate)
	}
	refuse(gate)
	b.Advance(b.T, gate.Retention+margin)
	refuse(gate) // the identity is still remembered
	given := b.gate("given up")
	txn, err := b.attempts.Finish(b.ctx, given, 0)
	b.must("Finish", err)
	b.write(txn, "given up")
	b.rollback(txn)
	b.look(given, store.Free)

	// A claim of somebody else ends with it, whatever became of that.
	for _, state := range []store.State{store.Processing, store.Unknown, store.Parked, store.Dead, store.Retryable} {
		gate := b.gate("claimed elsewhere", state.String())
		if state == store.Processing {
			b.claim(gate)
		} else {
			b.rest(gate, state)
		}
		b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true}))
		if o := b.end(gate, 0, "over "+state.String()); o.Attempt != 2 {
			b.Errorf("over %v: attempt %d, want 2", state, o.Attempt)
		}
		b.lost(b.claimer(1), gate, 1)
		b.stepsAre(gate)
		b.refused(b.worker(1), gate, store.Completed)
	}
	b.rows("unclaimed", "over processing", "over unknown", "over parked", "over dead", "over retryable")
}

func finishUnclaimedRace[Tx any](b *bed[Tx]) {
	gate := b.gate("race without a claim")
	var won, late atomic.Int64
	b.together(8, func(i int) error {
		txn, err := b.claimer(i).Finish(b.ctx, gate, 0)
		if errors.Is(err, store.ErrDuplicate) {
			late.Add(1)
			return nil
		}
		if err != nil {
			return err
		}
		if err := b.Write(b.ctx, txn.Tx(), "won"); err != nil {
			return errors.Join(err, txn.Rollback(b.ctx))
		}
		if _, err := txn.Commit(b.ctx, completed(answer("won"))); err != nil {
			return err
		}
		won.Add(1)
		return nil
	})
	if won.Load() != 1 || late.Load() != 7 {
		b.Errorf("%d won and %d were late", won.Load(), late.Load())
	}
	b.rows("won")
}

func renew[Tx any](b *bed[Tx]) {
	gate := b.gate("renewed")
	b.claim(gate)
	for range 4 {
		b.Advance(b.T, lease-margin)
		b.must("Renew", b.attempts.Renew(b.ctx, gate.Key, 1, lease))
		v := b.refused(b.worker(1), gate, store.Processing)
		b.around("lease left", v.Attempt.LeaseLeft, lease)
	}
	b.must("Renew for less", b.attempts.Renew(b.ctx, gate.Key, 1, 2*margin))
	b.around("lease left", b.look(gate, store.Processing).Attempt.LeaseLeft, 2*margin)
	b.is("Renew with another fence", b.attempts.Renew(b.ctx, gate.Key, 2, lease), store.ErrLeaseLost)
	b.is("Renew of nothing", b.attempts.Renew(b.ctx, b.gate("nothing").Key, 1, lease), store.ErrLeaseLost)
	b.Advance(b.T, 3*margin)
	b.is("Renew of an expired lease", b.attempts.Renew(b.ctx, gate.Key, 1, lease), store.ErrLeaseLost)
	b.refused(b.Ledger, gate, store.Unknown)
}

func sameStep(a, b store.Step) bool {
	return a.Name == b.Name && a.Done == b.Done && a.Fence == b.Fence && bytes.Equal(a.Result, b.Result)
}

// stepsAre compares the stored steps.
func (b *bed[Tx]) stepsAre(gate store.Gate, want ...store.Step) {
	b.Helper()
	for i := range b.workers {
		got, err := b.claimer(i).Steps(b.ctx, gate.Key)
		b.must("Steps", err)
		if len(got) != len(want) {
			b.Fatalf("steps: %+v, want %+v", got, want)
		}
		for i := range got {
			if !sameStep(got[i], want[i]) {
				b.Errorf("step %d: %+v, want %+v", i, got[i], want[i])
			}
		}
	}
}

func steps[Tx any](b *bed[Tx]) {
	gate := b.gate("steps")
	b.stepsAre(gate)
	b.claim(gate)
	b.stepsAre(gate)
	save := func(s store.Step) {
		b.Helper()
		b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, s))
	}
	save(store.Step{Name: "ship"})
	save(store.Step{Name: "charge"})
	b.stepsAre(gate, store.Step{Name: "charge", Fence: 1}, store.Step{Name: "ship", Fence: 1})
	save(store.Step{Name: "charge", Done: true, Result: everyByte()})
	save(store.Step{Name: "a", Done: true})
	b.stepsAre(gate,
		store.Step{Name: "a", Done: true, Fence: 1},
		store.Step{Name: "charge", Done: true, Fence: 1, Result: everyByte()},
		store.Step{Name: "ship", Fence: 1})
	b.is("SaveStep with another fence", b.attempts.SaveStep(b.ctx, gate.Key, 2, store.Step{Name: "x"}), store.ErrLeaseLost)
	b.is("SaveStep of nothing", b.attempts.SaveStep(b.ctx, b.gate("nothing").Key, 1, store.Step{Name: "x"}), store.ErrLeaseLost)
	other := b.gate("other")
	b.claim(other)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, other.Key, 1, store.Step{Name: "ship", Done: true}))
	b.stepsAre(other, store.Step{Name: "ship", Done: true, Fence: 1})
}

func stepsOutlive[Tx any](b *bed[Tx]) {
	gate := b.gate("steps outlive")
	b.claim(gate)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true, Result: []byte("c-1")}))
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "ship"}))
	b.Advance(b.T, lease+margin)
	gate.From = 1
	b.claim(gate)
	b.stepsAre(gate, store.Step{Name: "charge", Done: true, Fence: 1, Result: []byte("c-1")}, store.Step{Name: "ship", Fence: 1})
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 2, store.Step{Name: "ship", Done: true}))
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 2, store.Rest{State: store.Unknown, Reason: "no answer"}))
	b.stepsAre(gate, store.Step{Name: "charge", Done: true, Fence: 1, Result: []byte("c-1")}, store.Step{Name: "ship", Done: true, Fence: 2})
	gate.From = 2
	b.claim(gate)
	b.end(gate, 3, "done")
	b.stepsAre(gate)
}
