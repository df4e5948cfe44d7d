package sqlite_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

func TestPurgeOfTheQueue(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		s, err := sqlite.New(w.db, &sqlite.StoreOptions{Payloads: 24 * time.Hour, Versions: 100 * 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		w.store = s
		ctx := t.Context()
		purge := func(want int) {
			t.Helper()
			// Small batches: no call does more than it was asked to.
			total := 0
			for {
				n, err := s.Purge(ctx, 3)
				if err != nil || n > 3 {
					t.Fatalf("purge: %d, %v", n, err)
				}
				if total += n; n < 3 {
					break
				}
			}
			if total != want {
				t.Fatalf("purged %d rows, want %d", total, want)
			}
		}
		deliveries := func(e store.Entry, want int) {
			t.Helper()
			if all, err := s.Deliveries(ctx, e.Key, 10); err != nil || len(all) != want {
				t.Fatalf("%d deliveries, %v; want %d", len(all), err, want)
			}
		}
		long := func(e store.Entry, retention time.Duration) {
			t.Helper()
			g := laneGate(e, store.Hold{})
			g.Retention = retention
			txn, _, err := s.Begin(ctx, g)
			if err == nil {
				_, err = txn.Commit(ctx, completed("x"))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var last int64
		for i := range 12 {
			w.append(t, store.New, numbered("a", i))
			w.append(t, store.Duplicate, numbered("a", i))
		}
		// Not done: 0, 1 and 2. The result of 3 is over before its payload.
		for i := 3; i < 12; i++ {
			long(numbered("a", i), map[bool]time.Duration{true: 12 * time.Hour, false: 1000 * time.Hour}[i == 3])
		}
		elsewhere := numbered("elsewhere", 0)
		long(elsewhere, 1000*time.Hour)
		w.append(t, store.Duplicate, elsewhere)
		_, sequences, _ := w.read(t, "0")
		last = sequences[len(sequences)-1]
		purge(0)
		w.advance(t, 13*time.Hour)
		purge(1)
		if _, err := s.Load(ctx, numbered("a", 3).Key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an entry outlives its result: %v", err)
		}
		deliveries(numbered("a", 4), 1)
		deliveries(elsewhere, 1)
		// Done later than it arrived: kept from then on.
		long(numbered("a", 2), 1000*time.Hour)
		w.advance(t, 12*time.Hour)
		sqlite.ForgetSweep(s)
		purge(9 + 1 - 1) // 4 to 11, and the delivery of elsewhere; the entry done last stays
		deliveries(numbered("a", 4), 0)
		deliveries(elsewhere, 0)
		names, _, _ := w.read(t, "0")
		if want := []string{"0", "1", "2"}; !slices.Equal(names, want) {
			t.Fatalf("left: %q, want %q", names, want)
		}
		w.append(t, store.Duplicate, numbered("a", 4))
		w.advance(t, 25*time.Hour)
		sqlite.ForgetSweep(s)
		purge(2) // 2, and the delivery of 4
		w.advance(t, 1000*24*time.Hour)
		sqlite.ForgetSweep(s)
		purge(10) // results, for good
		w.reads(t, "0", "1")
		deliveries(numbered("a", 0), 1)
		// No sequence comes again.
		w.done(t, numbered("a", 0))
		w.done(t, numbered("a", 1))
		w.advance(t, 1000*24*time.Hour)
		purge(2)
		var left int
		if err := w.db.QueryRowContext(ctx, "SELECT count(*) FROM unavez_queue").Scan(&left); err != nil || left != 0 {
			t.Fatalf("%d entries left, %v", left, err)
		}
		w.append(t, store.New, numbered("a", 0))
		if _, sequences, _ := w.read(t, ""); len(sequences) != 1 || sequences[0] <= last {
			t.Errorf("sequences %v behind %d", sequences, last)
		}
	})
}

func TestVersionsAreForgottenByTheDay(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		s, err := sqlite.New(w.db, &sqlite.StoreOptions{Versions: 100 * 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		set := func(name, number string) {
			t.Helper()
			txn := w.begin(t, name, number)
			if err := s.SetVersion(t.Context(), txn.Tx(), gateOf(name).Key, store.Version{Number: number}); err != nil {
				t.Fatal(err)
			}
			if e := <-commit(t, txn, "x"); e.err != nil {
				t.Fatal(e.err)
			}
		}
		there := func(name string) (is bool) {
			t.Helper()
			txn := w.begin(t, "look")
			_, is, err := s.Version(t.Context(), txn.Tx(), gateOf(name).Key)
			if err := errors.Join(err, txn.Rollback(t.Context())); err != nil {
				t.Fatal(err)
			}
			return is
		}
		set("old", "1")
		set("renewed", "1")
		w.advance(t, 99*24*time.Hour)
		set("renewed", "2")
		if _, err := s.Purge(t.Context(), 100); err != nil || !there("old") {
			t.Errorf("a version was forgotten too early: %v", err)
		}
		w.advance(t, 48*time.Hour)
		if _, err := s.Purge(t.Context(), 100); err != nil || there("old") || !there("renewed") {
			t.Errorf("old is there: %v, renewed: %v, %v", there("old"), there("renewed"), err)
		}
	})
}

// What is left of an earlier life goes when the operation ends again, and the entry
// that has come for that does not go with it.
func TestEntryThatComesAgainIsKeptWhenItsEarlierLifeGoes(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		e := numbered("a", 0)
		begins := func(e store.Entry, retention time.Duration) store.Txn[*sql.Tx] {
			t.Helper()
			g := laneGate(e, store.Hold{})
			g.Retention, g.Tombstone = retention, retention
			txn, v, err := w.store.Begin(t.Context(), g)
			if err != nil || txn == nil {
				t.Fatalf("Begin: %v, %v", v.State, err)
			}
			return txn
		}
		ends := func(txn store.Txn[*sql.Tx]) {
			t.Helper()
			if _, err := txn.Commit(t.Context(), completed("x")); err != nil {
				t.Fatal(err)
			}
		}
		w.append(t, store.New, e)
		ends(begins(e, time.Hour))
		w.advance(t, 90*time.Minute)
		if _, err := w.store.Purge(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Load(t.Context(), e.Key); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("an entry outlives its result: %v", err)
		}
		ends(begins(numbered("b", 0), time.Minute))
		w.advance(t, time.Hour) // its tombstone is over, and still there; so is another's outcome
		again := begins(e, time.Hour)
		w.append(t, store.New, e)
		ends(again)
		got, err := w.store.Load(t.Context(), e.Key)
		if err != nil || string(got.Payload) != string(e.Payload) {
			t.Errorf("the entry is %q, %v; want the payload %q", got.Payload, err, e.Payload)
		}
	})
}
