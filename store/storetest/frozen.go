package storetest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// frozenTests hold: every duplicate gets the first outcome, byte for byte, or a
// clear error.
func frozenTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an outcome is frozen byte for byte", run: frozen[Tx]},
		{name: "fingerprints are kept as they came", run: fingerprints[Tx]},
		{name: "a stored result is the store's own copy", run: copies[Tx]},
		{name: "all workers read the same instant", run: instants[Tx]},
		{name: "a damaged result is an error and never runs again", run: damaged[Tx]},
		{name: "a damaged result is marked in the list", needs: func(h *Harness[Tx]) bool { return h.has("Operations") }, run: damagedListed[Tx]},
		{name: "a damaged result is replaced by a person, never by a run", needs: func(h *Harness[Tx]) bool { return h.has("Operations") }, run: damagedReplaced[Tx]},
	}
}

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

func frozen[Tx any](b *bed[Tx]) {
	long := make([]store.Field, 300)
	for i := range long {
		long[i] = store.Field{Name: fmt.Sprintf("X-Line-%d", i), Value: strings.Repeat("v", i)}
	}
	results := map[string]store.Result{
		"nothing":          {},
		"no body":          {Code: 204, Header: []store.Field{{Name: "Location", Value: "/orders/1"}}},
		"nil and empty":    {Code: 200, Header: []store.Field{}, Body: []byte{}},
		"binary body":      {Code: 200, Body: bytes.Repeat(everyByte(), 1024)},
		"binary header":    {Code: 200, Header: []store.Field{{Name: "X-Bytes", Value: string(everyByte())}, {Name: "\xff\x00", Value: ""}}},
		"empty names":      {Code: 200, Header: []store.Field{{}, {Name: "", Value: "x"}, {Name: "x", Value: ""}}},
		"several values":   {Code: 200, Header: []store.Field{{Name: "Link", Value: "<b>"}, {Name: "ETag", Value: `"1"`}, {Name: "Link", Value: "<a>"}, {Name: "link", Value: "<a>"}}},
		"many lines":       {Code: 200, Header: long},
		"own code":         {Code: -7, Body: []byte("x")},
		"large code":       {Code: 1<<31 - 1},
		"not replayable":   {Code: 200, Header: []store.Field{{Name: "Content-Type", Value: "video/mp4"}}, NotReplayable: true},
		"body of zeros":    {Code: 200, Body: make([]byte, 10)},
		"invalid encoding": {Code: 200, Body: []byte("\xc3\x28\xa0")},
	}
	for name, result := range results {
		gate := b.gate("frozen", name)
		txn := b.begin(b.Ledger, gate)
		made := b.commit(txn, completed(result))
		if made.State != store.Completed || made.Attempt != 1 || !sameResult(made.Result, result) || !made.Fingerprint.Equal(gate.Fingerprint) {
			b.Errorf("%s: committed %.300s", name, fmt.Sprintf("%+v", made))
		}
		if made.Replayed {
			b.Errorf("%s: the first outcome says that it is a replay", name)
		}
		if made.Left != gate.Retention {
			b.Errorf("%s: left %v of a new outcome, want %v", name, made.Left, gate.Retention)
		}
		found := []*store.Outcome{b.look(gate, store.Completed).Outcome, b.settled(gate, store.Completed).Outcome}
		for i := range b.workers {
			found = append(found, b.refused(b.worker(i), gate, store.Completed).Outcome)
		}
		for i, o := range found {
			if err := sameOutcome(made, o); err != nil {
				b.Errorf("%s: read %d: %v", name, i, err)
			}
			if !o.Replayed {
				b.Errorf("%s: read %d does not say that it is a replay", name, i)
			}
			b.around(name+": left", o.Left, gate.Retention)
		}
	}
}

func fingerprints[Tx any](b *bed[Tx]) {
	for i, fp := range []store.Fingerprint{
		{},
		{Version: 0, Sum: []byte{}},
		{Version: 0, Sum: []byte{0}},
		{Version: 1, Sum: everyByte()[:32]},
		{Version: 32767, Sum: everyByte()[192:]},
		{Version: 2, Sum: []byte("short")},
	} {
		gate := b.gate("fingerprint", fmt.Sprint(i))
		gate.Fingerprint = fp
		b.commit(b.begin(b.Ledger, gate), completed(answer("x")))
		// The duplicate comes with another payload; the store compares nothing.
		other := gate
		other.Fingerprint = store.Fingerprint{Version: 9, Sum: []byte("other")}
		v := b.refused(b.worker(1), other, store.Completed)
		if !v.Outcome.Fingerprint.Equal(fp) {
			b.Errorf("fingerprint %+v came back as %+v", fp, v.Outcome.Fingerprint)
		}
		b.Advance(b.T, retention+margin)
		v = b.refused(b.worker(1), other, store.Expired)
		if !bytes.Equal(v.Short, fp.Short()) {
			b.Errorf("front of fingerprint %+v came back as %x", fp, v.Short)
		}
	}
}

func copies[Tx any](b *bed[Tx]) {
	gate := b.gate("copied")
	sum := bytes.Clone(gate.Fingerprint.Sum)
	txn := b.begin(b.Ledger, gate)
	result := answer("original")
	made := b.commit(txn, completed(result))
	spoil := func(r store.Result, fp store.Fingerprint) {
		clear(r.Body)
		clear(r.Header)
		clear(fp.Sum)
	}
	spoil(result, gate.Fingerprint)
	spoil(made.Result, made.Fingerprint)
	for range 2 {
		o := b.look(gate, store.Completed).Outcome
		if !sameResult(o.Result, answer("original")) || !bytes.Equal(o.Fingerprint.Sum, sum) {
			b.Fatalf("a caller's change reached the stored outcome: %+v", o)
		}
		spoil(o.Result, o.Fingerprint)
	}
}

func instants[Tx any](b *bed[Tx]) {
	gate := b.gate("instant")
	before := b.do(b.gate("before"), "before").At
	o := b.do(gate, "instant")
	if o.At.IsZero() || o.At.Before(before) {
		b.Errorf("outcomes at %v, then at %v", before, o.At)
	}
	for i := range b.workers {
		v := b.refused(b.worker(i), gate, store.Completed)
		if !v.Outcome.At.Equal(o.At) {
			b.Errorf("worker %d reads %v, committed was %v", i, v.Outcome.At, o.At)
		}
	}
	b.Advance(b.T, time.Hour)
	b.around("left after an hour", b.look(gate, store.Completed).Outcome.Left, retention-time.Hour)
}

func damaged[Tx any](b *bed[Tx]) {
	gate := b.gate("damaged")
	b.do(gate, "damaged")
	b.Damage(b.T, gate.Key)
	for i := range b.workers {
		txn, _, err := b.worker(i).Begin(b.ctx, gate)
		if txn != nil {
			b.Fatal("Begin: a damaged operation may run")
		}
		b.is("Begin", err, store.ErrDamaged)
		_, err = b.worker(i).Look(b.ctx, gate.Key)
		b.is("Look", err, store.ErrDamaged)
		_, err = b.worker(i).Settle(b.ctx, gate.Key)
		b.is("Settle", err, store.ErrDamaged)
		if b.attempts != nil {
			attempt, _, err := b.claimer(i).Claim(b.ctx, claimOf(gate))
			if attempt != nil {
				b.Fatal("Claim: a damaged operation may run")
			}
			b.is("Claim", err, store.ErrDamaged)
		}
	}
	tx, _, rollback, err := b.BeginForeign(b.ctx)
	b.must("BeginForeign", err)
	joined, _, err := b.Ledger.Join(b.ctx, tx, gate)
	if joined != nil {
		b.Fatal("Join: a damaged operation may run")
	}
	b.is("Join", err, store.ErrDamaged)
	b.must("rollback", rollback())
	b.rows("damaged")
	b.do(b.gate("sound"), "sound")
}

func damagedListed[Tx any](b *bed[Tx]) {
	bad, good := b.gate("damaged"), b.gate("sound")
	b.do(bad, "damaged")
	b.do(good, "sound")
	b.Damage(b.T, bad.Key)
	records, err := b.ops.List(b.ctx, store.Filter{States: []store.State{store.Completed}})
	b.must("List", err)
	if len(records) != 2 {
		b.Fatalf("List: %d records, want 2", len(records))
	}
	for _, r := range records {
		if r.Damaged != (r.Key == bad.Key) {
			b.Errorf("List: %v damaged: %v", r.Identity.Parts, r.Damaged)
		}
	}
	r, _, _, err := b.ops.Show(b.ctx, bad.Key)
	b.must("Show", err)
	if !r.Damaged {
		b.Error("Show: the damaged result is not marked")
	}
}

func damagedReplaced[Tx any](b *bed[Tx]) {
	for name, state := range map[string]store.State{actComplete: store.Completed, actDiscard: store.Discarded} {
		gate := b.gate("damaged", name)
		b.do(gate, name)
		action := store.Action{Key: gate.Key, Actor: "ana", Reason: "restored from the books"}
		b.is(name+" of a sound result", b.act(name, action), store.ErrConflict)
		b.Damage(b.T, gate.Key)
		for _, goesOn := range []string{actRelease, actRedrive} {
			b.is(goesOn, b.act(goesOn, action), store.ErrConflict)
		}
		action.Fence = 2
		b.is(name+" of another attempt", b.act(name, action), store.ErrConflict)
		_, err := b.Ledger.Look(b.ctx, gate.Key)
		b.is("Look after refused actions", err, store.ErrDamaged)

		b.Advance(b.T, time.Hour)
		action.Fence = 1
		b.must(name, b.act(name, action))
		want := store.Result{}
		if name == actComplete {
			want = answer("by hand")
		}
		for i := range b.workers {
			o := b.refused(b.worker(i), gate, state).Outcome
			if !sameResult(o.Result, want) || o.Attempt != 1 || !o.Fingerprint.Equal(gate.Fingerprint) {
				b.Errorf("%s: outcome %+v", name, o)
			}
			b.around("left", o.Left, retention)
		}
		b.history(gate, store.Transition{From: store.Completed, To: state, Attempt: 1, Actor: "ana", Reason: action.Reason})
		r, _, _, err := b.ops.Show(b.ctx, gate.Key)
		b.must("Show", err)
		if r.Damaged || r.State != state || r.Attempt != 1 || r.Identity.Text() != gate.Identity.Text() {
			b.Errorf("%s: %+v", name, r)
		}
		b.is("second "+name, b.act(name, action), store.ErrConflict)
	}
	b.rows(actComplete, actDiscard)
	if b.upkeep == nil {
		return
	}
	gate := b.gate("damaged", actComplete)
	b.Advance(b.T, retention+margin)
	b.expired(b.Ledger, gate)
	b.Advance(b.T, tombstone)
	b.look(gate, store.Free)
}
