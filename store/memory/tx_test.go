package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store"
)

// bed is a store with its clock.
type bed struct {
	*testing.T
	s     *Store
	clock *manual
}

func setup(t *testing.T) bed {
	t.Parallel()
	clock := newManual()
	return bed{t, New(&Options{Now: clock.now}), clock}
}

func (b bed) tx() *Tx {
	b.Helper()
	tx, err := b.s.BeginTx(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return tx
}

func (b bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b bed) is(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("error %v, want %v", err, want)
	}
}

// put commits one row.
func (b bed) put(key, value string) {
	b.Helper()
	tx := b.tx()
	b.must(tx.Put(key, value))
	b.must(tx.Commit())
}

func (b bed) sees(tx *Tx, want map[string]string) {
	b.Helper()
	got, err := tx.All()
	b.must(err)
	if !maps.Equal(got, want) {
		b.Errorf("the transaction sees %v, want %v", got, want)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		value, ok, err := tx.Get(key)
		b.must(err)
		if wanted, there := want[key]; value != wanted || ok != there {
			b.Errorf("the transaction sees %s = %q, %v; want %q, %v", key, value, ok, wanted, there)
		}
	}
}

func gateOf(part string) store.Gate {
	id := store.Identity{Tenant: "t", Effect: "e", Parts: []string{part}}
	return store.Gate{Identity: id, Key: id.Key(), Limit: time.Minute, Retention: time.Hour, Tombstone: time.Hour}
}

func (b bed) begin(gate store.Gate) store.Txn[*Tx] {
	b.Helper()
	txn, v, err := b.s.Begin(b.Context(), gate)
	b.must(err)
	if txn == nil {
		b.Fatalf("refused: %+v", v)
	}
	return txn
}

func done() store.End { return store.End{State: store.Completed, Result: store.Result{Code: 200}} }

func TestATransactionSeesTheRowsOfItsBeginningAndItsOwn(t *testing.T) {
	b := setup(t)
	b.put("a", "1")
	b.put("b", "1")
	tx := b.tx()
	b.put("a", "2")
	other := b.tx()
	b.must(other.Delete("b"))
	b.must(other.Put("c", "1"))
	b.must(other.Commit())
	b.sees(tx, map[string]string{"a": "1", "b": "1"})
	b.must(tx.Put("d", "own"))
	b.must(tx.Delete("d"))
	b.must(tx.Put("d", "own again"))
	b.sees(tx, map[string]string{"a": "1", "b": "1", "d": "own again"})
	b.must(tx.Delete("a"))
	b.sees(tx, map[string]string{"b": "1", "d": "own again"})
	b.must(tx.Rollback())
	b.sees(b.tx(), map[string]string{"a": "2", "c": "1"})
	if value, ok := b.s.Get("a"); value != "2" || !ok {
		t.Errorf("Get: %q, %v", value, ok)
	}
	if value, ok := b.s.Get("b"); ok {
		t.Errorf("Get of a deleted row: %q", value)
	}
}

func TestTheFirstToCommitARowWins(t *testing.T) {
	b := setup(t)
	b.put("a", "0")
	first, second, deleter, reader := b.tx(), b.tx(), b.tx(), b.tx()
	b.must(first.Put("a", "first"))
	b.must(second.Put("a", "second"))
	b.must(second.Put("b", "second"))
	b.must(deleter.Delete("a"))
	if _, _, err := reader.Get("a"); err != nil {
		t.Fatal(err)
	}
	b.must(reader.Put("c", "what is only read is not watched"))
	b.must(first.Commit())
	b.is(second.Commit(), store.ErrAborted)
	b.is(deleter.Commit(), store.ErrAborted)
	b.must(reader.Commit())
	if got := b.s.All(); len(got) != 2 || got["a"] != "first" {
		t.Errorf("rows: %v", got)
	}
}

func TestVersionsThatNobodySeesAreDropped(t *testing.T) {
	b := setup(t)
	old := b.tx()
	for i := range 100 {
		b.put("a", fmt.Sprint(i))
	}
	if n := len(b.s.rows.versions["a"]); n != 100 {
		t.Errorf("%d versions beside an old transaction, want 100", n)
	}
	b.sees(old, map[string]string{})
	b.must(old.Rollback())
	b.put("a", "last")
	if n := len(b.s.rows.versions["a"]); n != 1 {
		t.Errorf("%d versions without one, want 1", n)
	}
	tx := b.tx()
	b.must(tx.Delete("a"))
	b.must(tx.Commit())
	if len(b.s.rows.versions) != 0 || len(b.s.rows.open) != 0 {
		t.Errorf("left after a deletion: %v, %v", b.s.rows.versions, b.s.rows.open)
	}
}

func TestAnEndedTransactionAnswersEveryCall(t *testing.T) {
	b := setup(t)
	for _, end := range []func(*Tx) error{(*Tx).Commit, (*Tx).Rollback} {
		tx := b.tx()
		back, err := tx.Savepoint()
		b.must(err)
		b.must(end(tx))
		_, _, getErr := tx.Get("a")
		_, allErr := tx.All()
		_, saveErr := tx.Savepoint()
		joined, _, joinErr := b.s.Join(t.Context(), tx, gateOf("ended"))
		for i, err := range []error{tx.Put("a", "1"), tx.Delete("a"), getErr, allErr, saveErr, back(), joinErr, tx.Commit(), tx.Rollback()} {
			if err == nil {
				t.Errorf("call %d of an ended transaction: no error", i)
			}
		}
		if joined != nil {
			t.Error("joined an ended transaction")
		}
	}
	if got := b.s.All(); len(got) != 0 {
		t.Errorf("rows: %v", got)
	}
	if len(b.s.locks) != 0 {
		t.Errorf("locks: %v", b.s.locks)
	}
}

func TestASavepointIsRolledBackToAsOftenAsWanted(t *testing.T) {
	b := setup(t)
	tx := b.tx()
	b.must(tx.Put("a", "1"))
	back, err := tx.Savepoint()
	b.must(err)
	for range 2 {
		b.must(tx.Put("a", "2"))
		b.must(tx.Put("b", "2"))
		b.must(back())
		b.sees(tx, map[string]string{"a": "1"})
	}
	b.must(tx.Commit())
	if got := b.s.All(); len(got) != 1 {
		t.Errorf("rows: %v", got)
	}
}

// A handler may itself run another operation inside its transaction.
func TestAnOperationJoinsTheEnginesOwnTransaction(t *testing.T) {
	b := setup(t)
	for _, commits := range []bool{false, true} {
		outer := b.begin(gateOf("outer"))
		inner, v, err := b.s.Join(t.Context(), outer.Tx(), gateOf("inner"))
		b.must(err)
		if inner == nil {
			t.Fatalf("refused: %+v", v)
		}
		if again, v, err := b.s.Join(t.Context(), outer.Tx(), gateOf("outer")); again != nil || v.State != store.Processing || err != nil {
			t.Fatalf("an operation inside itself: %+v, %v", v, err)
		}
		b.must(outer.Tx().Put("a", "1"))
		_, err = inner.Finish(t.Context(), done())
		b.must(err)
		inner.Leave() // too late: its fate is the outer one's
		if again, v, err := b.s.Join(t.Context(), outer.Tx(), gateOf("inner")); again != nil || v.State != store.Completed || err != nil {
			t.Fatalf("after its finish: %+v, %v", v, err)
		}
		_, err = inner.Finish(t.Context(), done())
		b.is(err, store.ErrDuplicate)
		want := store.Free
		if commits {
			_, err = outer.Commit(t.Context(), done())
			want = store.Completed
		} else {
			err = outer.Rollback(t.Context())
		}
		b.must(err)
		for _, name := range []string{"outer", "inner"} {
			if v, err := b.s.Settle(t.Context(), gateOf(name).Key); err != nil || v.State != want {
				t.Errorf("%s: %v, %v; want %v", name, v.State, err, want)
			}
		}
	}
}

func TestAnOperationIsFreeWhenItsLimitIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bed{T: t, s: New(nil)}
		gate := gateOf("slow")
		gate.Limit = time.Second
		txn := b.begin(gate)
		b.must(txn.Tx().Put("a", "slow"))
		time.Sleep(gate.Limit - time.Millisecond)
		b.must(txn.Tx().Put("b", "slow"))
		if again, v, err := b.s.Begin(t.Context(), gate); again != nil || v.State != store.Processing || err != nil {
			t.Fatalf("before the limit: %+v, %v", v, err)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		next := b.begin(gate) // though the first handler still works
		b.is(txn.Tx().Put("a", "late"), store.ErrLimit)
		_, _, err := txn.Tx().Get("a")
		b.is(err, store.ErrLimit)
		_, err = txn.Commit(t.Context(), done())
		b.is(err, store.ErrLimit)
		b.must(txn.Rollback(t.Context()))
		b.must(next.Tx().Put("a", "next"))
		_, err = next.Commit(t.Context(), done())
		b.must(err)
		time.Sleep(time.Hour)
		if got := b.s.All(); len(got) != 1 || got["a"] != "next" {
			t.Errorf("rows: %v", got)
		}
	})
}

func TestAFinishGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bed{T: t, s: New(nil)}
		gate := gateOf("waiting")
		if _, _, err := b.s.Claim(t.Context(), store.Claim{Gate: gate, Lease: time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		next := gate
		next.From = 1
		takeover := b.begin(next)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		txn, err := b.s.Finish(ctx, gate, 1)
		if txn != nil || time.Since(began) != 3*time.Second {
			t.Errorf("a finish beside a takeover: %v after %v", txn, time.Since(began))
		}
		b.is(err, context.DeadlineExceeded)
		_, err = takeover.Commit(t.Context(), done())
		b.must(err)
	})
}

func TestAClockThatGoesBackStandsStill(t *testing.T) {
	b := setup(t)
	gate := gateOf("first")
	first, err := b.begin(gate).Commit(t.Context(), done())
	b.must(err)
	b.clock.advance(-time.Hour)
	second, err := b.begin(gateOf("second")).Commit(t.Context(), done())
	b.must(err)
	if !second.At.Equal(first.At) {
		t.Errorf("outcomes at %v, then at %v", first.At, second.At)
	}
	b.clock.advance(time.Hour + time.Minute)
	v, err := b.s.Look(t.Context(), gate.Key)
	b.must(err)
	if v.Outcome.Left != gate.Retention-time.Minute {
		t.Errorf("left %v", v.Outcome.Left)
	}
}

func TestNothingIsKeptOfWhatIsOver(t *testing.T) {
	b := setup(t)
	for i := range 50 {
		gate := gateOf(fmt.Sprint(i))
		switch i % 3 {
		case 0:
			_, err := b.begin(gate).Commit(t.Context(), done())
			b.must(err)
		case 1:
			b.must(b.begin(gate).Rollback(t.Context()))
		case 2:
			_, _, err := b.s.Claim(t.Context(), store.Claim{Gate: gate, Lease: time.Minute})
			b.must(err)
			b.must(b.s.Rest(t.Context(), gate.Key, 1, store.Rest{State: store.Dead, Reason: "refused"}))
			action := store.Action{Key: gate.Key, Actor: "ana", Reason: "test"}
			b.must(b.s.Discard(t.Context(), action, time.Hour, time.Hour))
		}
	}
	for range 2 {
		b.clock.advance(90 * time.Minute)
		_, err := b.s.Purge(t.Context(), 1000)
		b.must(err)
	}
	s := b.s
	if len(s.outcomes)+len(s.attempts)+len(s.transitions)+len(s.locks)+len(s.rows.open) != 0 {
		t.Errorf("left: %d outcomes, %d attempts, %d histories, %d locks, %d snapshots",
			len(s.outcomes), len(s.attempts), len(s.transitions), len(s.locks), len(s.rows.open))
	}
}

func TestATakeoverWhoseAttemptIsGoneCommitsNothing(t *testing.T) {
	b := setup(t)
	gate := gateOf("gone")
	_, _, err := b.s.Claim(t.Context(), store.Claim{Gate: gate, Lease: time.Minute})
	b.must(err)
	b.clock.advance(time.Hour)
	next := gate
	next.From = 1
	takeover := b.begin(next)
	b.must(takeover.Tx().Put("a", "1"))
	// The holder wakes up and knows that it has sent nothing.
	b.must(b.s.Rest(t.Context(), gate.Key, 1, store.Rest{State: store.Free, Reason: "never started"}))
	_, err = takeover.Commit(t.Context(), done())
	b.is(err, store.ErrLeaseLost)
	if v, err := b.s.Settle(t.Context(), gate.Key); err != nil || v.State != store.Free || len(b.s.All()) != 0 {
		t.Errorf("%+v, %v, rows %v", v, err, b.s.All())
	}
}
