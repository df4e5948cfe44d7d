package storetest

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/unavez/unavez/store"
)

// fenceTests hold what becomes of an attempt whose holder is gone.
func fenceTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an expired lease makes the operation unknown and not free", run: expiredUnknown[Tx]},
		{name: "an attempt is taken over by its exact fence only", run: takeoverByFence[Tx]},
		{name: "a holder that was taken over can write nothing", run: zombie[Tx]},
		{name: "a late answer that nobody has overtaken is accepted", run: lateAnswer[Tx]},
		{name: "the derived key and the origin of the first claim are kept", run: derivedKey[Tx]},
	}
}

func expiredUnknown[Tx any](b *bed[Tx]) {
	gate := b.gate("expired")
	b.expire(gate)
	check := func(call string, v store.Verdict) {
		b.Helper()
		b.verdict(call, v, store.Unknown)
		if v.Attempt.Fence != 1 || v.Attempt.Key != gate.Key || !v.Attempt.Fingerprint.Equal(gate.Fingerprint) ||
			v.Attempt.DerivedKey != gate.Identity.DerivedKey("") || v.Attempt.Origin != "POST /orders" {
			b.Errorf("%s: attempt %+v", call, v.Attempt)
		}
		if ran := v.Attempt.Changed.Sub(v.Attempt.Created); ran < lease-time.Millisecond {
			b.Errorf("%s: unknown %v after its claim, but it held its lease for %v", call, ran, lease)
		}
	}
	check("Look", b.look(gate, store.Unknown))
	check("Begin", b.refused(b.worker(1), gate, store.Unknown))
	check("Settle", b.settled(gate, store.Unknown))
	f := b.caller()
	joined, v, err := b.Ledger.Join(b.ctx, f.tx, gate)
	b.must("Join", err)
	if joined != nil {
		b.Fatal("Join of an unknown operation: joined")
	}
	check("Join", v)
	b.must("rollback", f.rollback())
	for range 2 {
		v := b.claimRefused(gate, store.Unknown)
		check("Claim", v)
		if v.Attempt.Reason == "" {
			b.Error("unknown without a reason")
		}
	}
	check("Look", b.look(gate, store.Unknown))
}

func takeoverByFence[Tx any](b *bed[Tx]) {
	gate := b.gate("taken over")
	b.expire(gate)
	for _, from := range []int64{2, 3, -1} {
		gate.From = from
		b.claimRefused(gate, store.Unknown)
		b.refused(b.worker(1), gate, store.Unknown)
	}
	for fence := int64(1); fence <= 5; fence++ {
		gate.From = fence
		a := b.claim(gate)
		if a.Fence != fence+1 || a.State != store.Processing {
			b.Fatalf("taken over from %d: %+v", fence, a)
		}
		b.around("lease left", a.LeaseLeft, lease)
		b.claimRefused(gate, store.Processing)
		b.Advance(b.T, lease+margin)
		b.claimRefused(gate, store.Unknown) // From names the attempt before
	}
	// From only allows: it does not demand an attempt at rest.
	free := b.gate("free")
	free.From = 7
	if a := b.claim(free); a.Fence != 1 {
		b.Errorf("claim of a free operation: fence %d, want 1", a.Fence)
	}
	free = b.gate("free for a transaction")
	free.From = 7
	b.rollback(b.begin(b.Ledger, free))
}

func zombie[Tx any](b *bed[Tx]) {
	gate := b.gate("zombie")
	b.expire(gate)
	next := gate
	next.From = 1
	b.claim(next)
	for i := range b.workers {
		b.lost(b.claimer(i), gate, 1)
		b.lost(b.claimer(i), gate, 3)
	}
	b.lost(b.attempts, b.gate("never claimed"), 1)
	v := b.look(gate, store.Processing)
	if v.Attempt == nil || v.Attempt.Fence != 2 {
		b.Fatalf("the successor's attempt: %+v", v.Attempt)
	}
	b.stepsAre(gate)
	made := b.end(gate, 2, "successor")
	if made.Attempt != 2 {
		b.Errorf("attempt of the outcome: %d, want 2", made.Attempt)
	}
	b.lost(b.attempts, gate, 1)
	b.lost(b.attempts, gate, 2)
	b.rows("successor")
}

func lateAnswer[Tx any](b *bed[Tx]) {
	gate := b.gate("late")
	b.expire(gate)
	b.end(gate, 1, "late")
	gate = b.gate("late and seen to be unknown")
	b.expire(gate)
	b.claimRefused(gate, store.Unknown)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true}))
	if o := b.end(gate, 1, "late and seen"); o.Attempt != 1 {
		b.Errorf("attempt of the outcome: %d", o.Attempt)
	}
	gate = b.gate("never started, said late")
	b.expire(gate)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Free, Reason: "refused connection"}))
	b.look(gate, store.Free)
	b.rows("late", "late and seen")
}

func derivedKey[Tx any](b *bed[Tx]) {
	gate := b.gate("derived key")
	claim := claimOf(gate)
	claim.DerivedKey = "uv1-first"
	_, _, err := b.attempts.Claim(b.ctx, claim)
	b.must("Claim", err)
	for fence := int64(1); fence < 4; fence++ {
		b.Advance(b.T, lease+margin)
		claim.From, claim.DerivedKey, claim.Origin = fence, fmt.Sprintf("uv1-another-%d", fence), "PUT /orders"
		a, _, err := b.attempts.Claim(b.ctx, claim)
		b.must("Claim", err)
		if a == nil || a.DerivedKey != "uv1-first" || a.Origin != "POST /orders" {
			b.Fatalf("attempt %d: %+v, want the first derived key and origin", fence+1, a)
		}
	}
}

// restTests hold how an attempt ends without an outcome.
func restTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an operation at rest tells its state and never runs by itself", run: atRest[Tx]},
		{name: "an attempt that never started frees the operation", run: restFree[Tx]},
		{name: "an attempt with a finished step is not free again", run: restFreeRefused[Tx]},
		{name: "a retryable operation runs when it is due", run: restRetryable[Tx]},
		{name: "a reason is cut to a readable kibibyte", run: restReason[Tx]},
	}
}

func atRest[Tx any](b *bed[Tx]) {
	for _, state := range []store.State{store.Retryable, store.Parked, store.Unknown, store.Dead} {
		gate := b.gate("at rest", state.String())
		b.rest(gate, state)
		check := func(call string, v store.Verdict) {
			b.Helper()
			b.verdict(call, v, state)
			a := v.Attempt
			if a.Fence != 1 || a.Key != gate.Key || a.Reason != "why "+state.String() || !a.Fingerprint.Equal(gate.Fingerprint) ||
				a.Identity.Text() != gate.Identity.Text() || a.DerivedKey != gate.Identity.DerivedKey("") {
				b.Errorf("%s: attempt %+v", call, a)
			}
			if a.Created.IsZero() || a.Changed.Before(a.Created) {
				b.Errorf("%s: created %v, changed %v", call, a.Created, a.Changed)
			}
			if state == store.Retryable {
				b.around(call+": due in", a.DueIn, time.Hour)
			}
		}
		for i := range b.workers {
			check("Begin", b.refused(b.worker(i), gate, state))
			attempt, v, err := b.claimer(i).Claim(b.ctx, claimOf(gate))
			b.must("Claim", err)
			if attempt != nil {
				b.Fatalf("Claim of an operation at rest: %+v", attempt)
			}
			check("Claim", v)
		}
		check("Look", b.look(gate, state))
		check("Settle", b.settled(gate, state))
		b.is("Renew at rest", b.attempts.Renew(b.ctx, gate.Key, 1, lease), store.ErrLeaseLost)
	}
	b.Advance(b.T, 365*24*time.Hour)
	for _, state := range []store.State{store.Retryable, store.Parked, store.Unknown, store.Dead} {
		b.refused(b.Ledger, b.gate("at rest", state.String()), state)
	}
	gate := b.gate("rest of no kind")
	b.claim(gate)
	for _, state := range []store.State{store.Processing, store.Completed, store.Discarded, store.Expired, 77} {
		if err := b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: state, Reason: "test"}); err == nil {
			b.Errorf("Rest as %v: no error", state)
		}
	}
	b.look(gate, store.Processing)
}

func restFree[Tx any](b *bed[Tx]) {
	gate := b.gate("never started")
	b.claim(gate)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge"}))
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Free, Reason: "connection refused"}))
	b.look(gate, store.Free)
	b.lost(b.attempts, gate, 1)
	b.stepsAre(gate)
	b.rollback(b.begin(b.worker(1), gate))
	if a := b.claim(gate); a.Fence != 1 {
		b.Errorf("fence after a free rest: %d, want 1", a.Fence)
	}
	b.end(gate, 1, "done")
}

func restFreeRefused[Tx any](b *bed[Tx]) {
	gate := b.gate("started")
	b.claim(gate)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true, Result: []byte("ok")}))
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "ship"}))
	free := store.Rest{State: store.Free, Reason: "connection refused"}
	other := b.gate("another operation, with a step that is not finished")
	b.claim(other)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, other.Key, 1, store.Step{Name: "ship"}))
	b.must("Rest of another operation", b.attempts.Rest(b.ctx, other.Key, 1, free))
	b.look(other, store.Free)
	b.is("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, free), store.ErrConflict)
	if v := b.look(gate, store.Processing); v.Attempt == nil || v.Attempt.Fence != 1 {
		b.Fatalf("after the refused rest: %+v", v.Attempt)
	}
	b.stepsAre(gate, store.Step{Name: "charge", Done: true, Fence: 1, Result: []byte("ok")}, store.Step{Name: "ship", Fence: 1})
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Retryable, Reason: "busy"}))
	gate.From = 1
	b.claim(gate)
	b.is("Rest of a later attempt", b.attempts.Rest(b.ctx, gate.Key, 2, free), store.ErrConflict)
	b.end(gate, 2, "done")
}

func restRetryable[Tx any](b *bed[Tx]) {
	for _, transaction := range []bool{false, true} {
		gate := b.gate("retryable", fmt.Sprint(transaction))
		row := fmt.Sprint(transaction)
		b.rest(gate, store.Retryable)
		for _, from := range []int64{0, 1, 2} {
			gate.From = from
			b.around("due in", b.claimRefused(gate, store.Retryable).Attempt.DueIn, time.Hour)
			b.around("due in", b.refused(b.worker(1), gate, store.Retryable).Attempt.DueIn, time.Hour)
		}
		b.Advance(b.T, time.Hour+margin)
		for _, from := range []int64{0, 2} {
			gate.From = from
			if left := b.claimRefused(gate, store.Retryable).Attempt.DueIn; left > 0 {
				b.Errorf("due in %v, want 0 or less", left)
			}
			b.refused(b.worker(1), gate, store.Retryable)
		}
		gate.From = 1
		if transaction {
			txn, _, err := b.Ledger.Begin(b.ctx, gate)
			b.must("Begin", err)
			if txn == nil {
				b.Fatal("Begin: a due operation was refused")
			}
			b.write(txn, row)
			b.commit(txn, completed(answer(row)))
		} else {
			if a := b.claim(gate); a.Fence != 2 || a.State != store.Processing {
				b.Errorf("second attempt: %+v", a)
			}
			b.end(gate, 2, row)
		}
		b.refused(b.Ledger, gate, store.Completed)
	}
	b.rows("false", "true")
	gate := b.gate("retryable at once")
	b.claim(gate)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Retryable, Reason: "busy"}))
	gate.From = 1
	b.claim(gate)
}

func restReason[Tx any](b *bed[Tx]) {
	gate := b.gate("long reason")
	b.claim(gate)
	long := "x" + strings.Repeat("é", 1000)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Dead, Reason: long}))
	got := b.look(gate, store.Dead).Attempt.Reason
	if len(got) > 1024 || len(got) < 1000 || !strings.HasPrefix(long, got) || !utf8.ValidString(got) {
		b.Errorf("reason of %d bytes, valid %v: %q", len(got), utf8.ValidString(got), got)
	}
}
