package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez/store"
)

// actionTests hold what a person can decide, and when.
func actionTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a person's action fits the state or is refused", run: actionMatrix[Tx]},
		{name: "a released operation may run at once", run: released[Tx]},
		{name: "an action is refused when the operation has moved on", run: actionFence[Tx]},
		{name: "an action without actor or reason is refused", run: actionSigned[Tx]},
		{name: "a person's result is frozen and kept", run: personCompletes[Tx]},
		{name: "a discarded operation never runs again", run: personDiscards[Tx]},
		{name: "a person and a worker do not both end an operation", run: personRaces[Tx]},
	}
}

// The actions of a person, by name.
const (
	actRelease  = "release"
	actRedrive  = "redrive"
	actComplete = "complete"
	actDiscard  = "discard"
)

func (b *bed[Tx]) act(name string, action store.Action) error {
	switch name {
	case actRelease:
		return b.ops.Release(b.ctx, action)
	case actRedrive:
		return b.ops.Redrive(b.ctx, action)
	case actComplete:
		return b.ops.Complete(b.ctx, action, answer("by hand"), retention, tombstone)
	default:
		return b.ops.Discard(b.ctx, action, retention, tombstone)
	}
}

func actionMatrix[Tx any](b *bed[Tx]) {
	none := map[string]bool{}
	ends := map[string]bool{actComplete: true, actDiscard: true}
	goesOn := map[string]bool{actComplete: true, actDiscard: true, actRelease: true}
	for _, c := range []struct {
		name    string
		bring   func(gate store.Gate)
		state   store.State // that a refused action leaves
		allowed map[string]bool
	}{
		{"expired lease", func(g store.Gate) { b.expire(g) }, store.Unknown, goesOn},
		{"processing", func(g store.Gate) { b.claim(g) }, store.Processing, none},
		{"retryable", func(g store.Gate) { b.rest(g, store.Retryable) }, store.Retryable, ends},
		{"parked", func(g store.Gate) { b.rest(g, store.Parked) }, store.Parked, goesOn},
		{"unknown", func(g store.Gate) { b.rest(g, store.Unknown) }, store.Unknown, goesOn},
		{"dead", func(g store.Gate) { b.rest(g, store.Dead) }, store.Dead, map[string]bool{actComplete: true, actDiscard: true, actRedrive: true}},
		{"completed", func(g store.Gate) { b.do(g, "row") }, store.Completed, none},
		{"discarded", func(g store.Gate) {
			b.commit(b.begin(b.Ledger, g), store.End{State: store.Discarded})
		}, store.Discarded, none},
	} {
		for _, name := range []string{actRelease, actRedrive, actComplete, actDiscard} {
			gate := b.gate(c.name, name)
			c.bring(gate)
			err := b.act(name, store.Action{Key: gate.Key, Actor: "ana", Reason: "because"})
			if !c.allowed[name] {
				if !errors.Is(err, store.ErrConflict) {
					b.Errorf("%s of %s: %v, want ErrConflict", name, c.name, err)
				}
				b.look(gate, c.state)
				continue
			}
			if err != nil {
				b.Errorf("%s of %s: %v", name, c.name, err)
				continue
			}
			switch name {
			case actComplete:
				b.look(gate, store.Completed)
			case actDiscard:
				b.look(gate, store.Discarded)
			default:
				if a := b.look(gate, store.Retryable).Attempt; a.Fence != 1 || a.DueIn > 0 || a.Reason != "because" {
					b.Errorf("%s of %s: %+v", name, c.name, a)
				}
			}
			if err := b.act(name, store.Action{Key: gate.Key, Actor: "ana", Reason: "again"}); !errors.Is(err, store.ErrConflict) {
				b.Errorf("second %s of %s: %v, want ErrConflict", name, c.name, err)
			}
		}
	}
	for _, name := range []string{actRelease, actRedrive, actComplete, actDiscard} {
		gate := b.gate("nothing", name)
		b.is(name+" of nothing", b.act(name, store.Action{Key: gate.Key, Actor: "ana", Reason: "because"}), store.ErrNotFound)
		b.look(gate, store.Free)
	}
}

func released[Tx any](b *bed[Tx]) {
	gate := b.gate("released")
	b.rest(gate, store.Unknown)
	b.must("Release", b.ops.Release(b.ctx, store.Action{Key: gate.Key, Actor: "ana", Reason: "not charged"}))
	b.claimRefused(gate, store.Retryable) // by the one who owns retries only
	gate.From = 1
	if a := b.claim(gate); a.Fence != 2 {
		b.Errorf("fence after the release: %d", a.Fence)
	}
	b.lost(b.attempts, gate, 1)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 2, store.Rest{State: store.Dead, Reason: "refused"}))
	b.must("Redrive", b.ops.Redrive(b.ctx, store.Action{Key: gate.Key, Fence: 2, Actor: "bo", Reason: "fixed"}))
	gate.From = 2
	txn := b.takes(b.worker(1), gate, store.Retryable)
	b.write(txn, "done")
	if o := b.commit(txn, completed(answer("done"))); o.Attempt != 3 {
		b.Errorf("attempt of the outcome: %d, want 3", o.Attempt)
	}
	b.rows("done")

	// A delay counts for its own attempt only.
	gate = b.gate("released early")
	b.claim(gate)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Parked, Reason: "gap", DueIn: time.Hour}))
	b.must("Release", b.ops.Release(b.ctx, store.Action{Key: gate.Key, Actor: "ana", Reason: "no gap"}))
	gate.From = 1
	b.claim(gate)
}

func actionFence[Tx any](b *bed[Tx]) {
	for _, c := range []struct {
		name  string
		state store.State
	}{
		{actRelease, store.Unknown},
		{actRedrive, store.Dead},
		{actComplete, store.Unknown},
		{actDiscard, store.Dead},
	} {
		gate := b.gate("moved on", c.name)
		b.rest(gate, store.Parked)
		gate.From = 1
		b.claim(gate)
		b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 2, store.Rest{State: c.state, Reason: "why"}))
		for _, fence := range []int64{1, 3} {
			b.is(c.name, b.act(c.name, store.Action{Key: gate.Key, Fence: fence, Actor: "ana", Reason: "because"}), store.ErrConflict)
		}
		b.look(gate, c.state)
		b.must(c.name, b.act(c.name, store.Action{Key: gate.Key, Fence: 2, Actor: "ana", Reason: "because"}))
	}
}

func actionSigned[Tx any](b *bed[Tx]) {
	for _, c := range []struct {
		name  string
		state store.State
	}{
		{actRelease, store.Parked},
		{actRedrive, store.Dead},
		{actComplete, store.Unknown},
		{actDiscard, store.Unknown},
	} {
		gate := b.gate("unsigned", c.name)
		b.rest(gate, c.state)
		for _, action := range []store.Action{
			{Reason: "because"},
			{Actor: "ana"},
			{Actor: strings.Repeat("a", 201), Reason: "because"},
			{Actor: "ana", Reason: strings.Repeat("r", 1025)},
		} {
			action.Key = gate.Key
			if err := b.act(c.name, action); err == nil {
				b.Errorf("%s with an actor of %d and a reason of %d bytes: no error", c.name, len(action.Actor), len(action.Reason))
			}
			b.look(gate, c.state)
		}
		longest := store.Action{Key: gate.Key, Actor: strings.Repeat("a", 200), Reason: strings.Repeat("r", 1024)}
		b.must(c.name, b.act(c.name, longest))
	}
}

func personCompletes[Tx any](b *bed[Tx]) {
	gate := b.gate("completed by hand")
	b.rest(gate, store.Unknown)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge"}))
	action := store.Action{Key: gate.Key, Fence: 1, Actor: "ana", Reason: "seen in the gateway's books"}
	b.must("Complete", b.ops.Complete(b.ctx, action, answer("by hand"), time.Hour, 2*time.Hour))
	for i := range b.workers {
		o := b.refused(b.worker(i), gate, store.Completed).Outcome
		if !sameResult(o.Result, answer("by hand")) || o.Attempt != 1 || !o.Fingerprint.Equal(gate.Fingerprint) {
			b.Errorf("outcome: %+v", o)
		}
		b.around("left", o.Left, time.Hour)
	}
	b.lost(b.attempts, gate, 1)
	b.stepsAre(gate)
	b.Advance(b.T, time.Hour+margin)
	b.expired(b.Ledger, gate)
	b.Advance(b.T, 2*time.Hour)
	b.look(gate, store.Free)
	b.rows()
}

func personDiscards[Tx any](b *bed[Tx]) {
	gate := b.gate("discarded by hand")
	b.expire(gate)
	b.must("Discard", b.ops.Discard(b.ctx, store.Action{Key: gate.Key, Actor: "ana", Reason: "test order"}, time.Hour, time.Hour))
	o := b.refused(b.worker(1), gate, store.Discarded).Outcome
	if !sameResult(o.Result, store.Result{}) || o.Attempt != 1 || !o.Fingerprint.Equal(gate.Fingerprint) {
		b.Errorf("outcome: %+v", o)
	}
	gate.From = 1
	b.claimRefused(gate, store.Discarded)
	b.lost(b.attempts, gate, 1)
	b.Advance(b.T, time.Hour+margin)
	b.expired(b.Ledger, gate)
}

func personRaces[Tx any](b *bed[Tx]) {
	gate := b.gate("taken over while a person decides")
	b.restDue(gate, store.Unknown)
	gate.From = 1
	txn := b.takes(b.Ledger, gate, store.Unknown)
	for _, name := range []string{actComplete, actDiscard} {
		b.is(name+" of an operation in flight", b.act(name, store.Action{Key: gate.Key, Actor: "ana", Reason: "because"}), store.ErrConflict)
	}
	b.write(txn, "taken over")
	b.commit(txn, completed(answer("taken over")))
	want := []string{"taken over"}

	for round := range 10 {
		gate := b.gate("race", fmt.Sprint(round))
		row := fmt.Sprint(round)
		b.restDue(gate, store.Unknown)
		var ended atomic.Int64
		b.together(4, func(i int) error {
			from := gate
			from.From = 1
			switch i {
			case 0, 1:
				err := b.act([]string{actComplete, actDiscard}[i], store.Action{Key: gate.Key, Actor: "ana", Reason: "because"})
				if err == nil {
					ended.Add(1)
				} else if !errors.Is(err, store.ErrConflict) {
					return err
				}
			case 2:
				txn, _, err := b.worker(1).Begin(b.ctx, from)
				if err != nil || txn == nil {
					return err
				}
				if err := b.Write(b.ctx, txn.Tx(), row); err != nil {
					return errors.Join(err, txn.Rollback(b.ctx))
				}
				if _, err = txn.Commit(b.ctx, completed(answer("by transaction"))); err != nil {
					return err
				}
				ended.Add(100)
			case 3:
				txn, err := b.attempts.Finish(b.ctx, gate, 1)
				if errors.Is(err, store.ErrLeaseLost) || errors.Is(err, store.ErrDuplicate) {
					return nil
				}
				if err != nil {
					return err
				}
				if err := b.Write(b.ctx, txn.Tx(), row); err != nil {
					return errors.Join(err, txn.Rollback(b.ctx))
				}
				if _, err = txn.Commit(b.ctx, completed(answer("by finish"))); err != nil {
					return err
				}
				ended.Add(100)
			}
			return nil
		})
		switch ended.Load() {
		case 100:
			want = append(want, row)
		case 1:
		default:
			b.Fatalf("round %d: ended %d times (hundreds by workers)", round, ended.Load())
		}
		v, err := b.Ledger.Look(b.ctx, gate.Key)
		b.must("Look", err)
		if !v.State.Final() {
			b.Fatalf("round %d: %v", round, v.State)
		}
	}
	b.rows(want...)
}

// expireTests hold how leases that ran out are swept up.
func expireTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "expired leases become unknown in batches", run: expireBatches[Tx]},
		{name: "an expiry does not take a renewed lease", run: expireRace[Tx]},
		{name: "an expiry is written once, by whoever meets it first", run: expireOnce[Tx]},
	}
}

func expireBatches[Tx any](b *bed[Tx]) {
	expire := func(limit, want int) []store.Attempt {
		b.Helper()
		got, err := b.upkeep.Expire(b.ctx, limit)
		b.must("Expire", err)
		if len(got) != want {
			b.Fatalf("Expire(%d): %d attempts, want %d", limit, len(got), want)
		}
		return got
	}
	want := map[store.Key]store.Gate{}
	for i := range 5 {
		gate := b.gate("expired", fmt.Sprint(i))
		b.claim(gate)
		want[gate.Key] = gate
	}
	expire(10, 0)
	b.Advance(b.T, lease+margin)
	b.claim(b.gate("live"))
	b.rest(b.gate("dead"), store.Dead)
	for _, n := range []int{2, 2, 1, 0} {
		for _, a := range expire(2, n) {
			gate, ok := want[a.Key]
			if !ok {
				b.Fatalf("expired: %+v, which is none or was there before", a)
			}
			delete(want, a.Key)
			if a.State != store.Unknown || a.Fence != 1 || a.Identity.Text() != gate.Identity.Text() ||
				!a.Fingerprint.Equal(gate.Fingerprint) || a.DerivedKey != gate.Identity.DerivedKey("") || a.Reason == "" {
				b.Errorf("expired attempt: %+v", a)
			}
			b.refused(b.Ledger, gate, store.Unknown)
			b.is("Renew", b.attempts.Renew(b.ctx, gate.Key, 1, lease), store.ErrLeaseLost)
			if b.ops != nil {
				b.history(gate, store.Transition{From: store.Processing, To: store.Unknown, Attempt: 1})
			}
		}
	}
	b.refused(b.Ledger, b.gate("live"), store.Processing)
	b.refused(b.Ledger, b.gate("dead"), store.Dead)
}

func expireRace[Tx any](b *bed[Tx]) {
	for round := range 10 {
		gate := b.gate("renewed or expired", fmt.Sprint(round))
		b.claim(gate)
		b.Advance(b.T, lease-margin)
		b.together(2, func(i int) error {
			if i == 0 {
				return b.attempts.Renew(b.ctx, gate.Key, 1, lease)
			}
			expired, err := b.upkeep.Expire(b.ctx, 10)
			for _, a := range expired {
				if a.Key == gate.Key {
					return fmt.Errorf("expired a live lease: %+v", a)
				}
			}
			return err
		})
		b.refused(b.Ledger, gate, store.Processing)
	}
}

func expireOnce[Tx any](b *bed[Tx]) {
	refused, taken, swept := b.gate("met by a claim"), b.gate("taken over by a claim"), b.gate("met by nobody")
	for _, gate := range []store.Gate{refused, taken, swept} {
		b.claim(gate)
	}
	b.Advance(b.T, lease+margin)
	b.look(swept, store.Unknown) // reading writes nothing
	b.refused(b.worker(1), swept, store.Unknown)
	b.claimRefused(refused, store.Unknown)
	taken.From = 1
	b.claim(taken)
	got, err := b.upkeep.Expire(b.ctx, 10)
	b.must("Expire", err)
	if len(got) != 1 || got[0].Key != swept.Key {
		b.Errorf("Expire: %+v, want the one that nobody had met", got)
	}
	b.claimRefused(swept, store.Unknown)
	if b.ops == nil {
		return
	}
	for _, gate := range []store.Gate{refused, taken, swept} {
		b.history(gate, store.Transition{From: store.Processing, To: store.Unknown, Attempt: 1})
	}
}
