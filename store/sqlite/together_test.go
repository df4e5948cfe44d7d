package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// smuggle writes an outcome past every lock and check.
func (w *worker) smuggle(t *testing.T, parts ...string) {
	t.Helper()
	gate := gateOf(parts...)
	o := store.Outcome{State: store.Completed, Result: store.Result{Code: 299}, Attempt: 1}
	w.exec(t, `INSERT INTO unavez_outcome (key, operation, state, attempt, at, expires, forgets, code, unreplayable, version, checksum)
		VALUES (?, ?, 6, 1, unixepoch() * 1000, unixepoch() * 1000 + 3600000, unixepoch() * 1000 + 7200000, 299, 0, 0, ?)`,
		gate.Key[:], gate.Identity.Text(), o.Checksum(gate.Key))
}

// The outcomes of a group are written together. One that is there already, by a
// worker with a broken lock, takes its group with it: no row stays without its
// outcome, and nobody is told that it was.
func TestOutcomeThatIsThereAlreadyLosesItsGroupWhole(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		a, b := w.begin(t, "one"), w.begin(t, "two")
		w.smuggle(t, "two")
		w.write(t, a, "one")
		ran := make(chan error, 1)
		go func() { ran <- write(context.WithoutCancel(t.Context()), b.Tx(), "two") }()
		eventually(t, "second unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		first := commit(t, a, "one")
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		second := commit(t, b, "two")
		for name, done := range map[string]chan ended{"one": first, "two": second} {
			if e := <-done; !errors.Is(e.err, store.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, e.err)
			}
		}
		w.rowsAre(t)
		w.state(t, store.Free, "one")
		w.state(t, store.Completed, "two")

		again := w.begin(t, "one")
		w.write(t, again, "one")
		if _, err := again.Commit(t.Context(), completed("one")); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "one")
	})
}

// A refusal is frozen where its handler has changed nothing. What the trigger of
// a view has written, which no statement counts, is gone then, in the first unit
// of a group as behind another one.
func TestRefusalKeepsNothingThatAViewsTriggerWrote(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		w.exec(t, "CREATE VIEW shown AS SELECT row FROM business")
		w.exec(t, "CREATE TRIGGER shown_insert INSTEAD OF INSERT ON shown BEGIN INSERT INTO business (row) VALUES (NEW.row); END")
		statements := map[string]string{
			"view":    "INSERT INTO shown (row) VALUES ('by the trigger')",
			"nothing": "UPDATE business SET row = 'changed' WHERE row = 'no such row'",
		}
		refusal := store.End{State: store.Completed, Result: store.Result{Code: 409, Body: []byte("no")}, Unwritten: true}
		for name, statement := range statements {
			txn := w.begin(t, "alone", name)
			if _, err := txn.Tx().ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
			if _, err := txn.Commit(t.Context(), refusal); err != nil {
				t.Errorf("%s, alone: %v", name, err)
			}
			w.state(t, store.Completed, "alone", name)

			b, first, ran := w.follow(t, "before "+name, "behind "+name, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, statement)
				return err
			})
			if err := <-ran; err != nil {
				t.Fatal(err)
			}
			if _, err := b.Commit(t.Context(), refusal); err != nil {
				t.Errorf("%s, in a group: %v", name, err)
			}
			if e := <-first; e.err != nil {
				t.Errorf("the one before %s: %v", name, e.err)
			}
			w.state(t, store.Completed, "behind "+name)
		}
		w.rowsAre(t, "before view", "before nothing")

		b, first, ran := w.follow(t, "before a row", "behind", func(ctx context.Context, tx *sql.Tx) error { return write(ctx, tx, "a row") })
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		if _, err := b.Commit(t.Context(), refusal); !errors.Is(err, store.ErrWrote) {
			t.Errorf("refusal after a row: %v, want ErrWrote", err)
		}
		if e := <-first; e.err != nil {
			t.Error(e.err)
		}
		w.state(t, store.Free, "behind")
		w.rowsAre(t, "before view", "before nothing", "before a row")
	})
}

// Gates that come together are answered by one statement, each with its own.
func TestGatesThatComeTogetherGetTheirOwnAnswers(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		const n = 64
		for i := range n / 2 {
			txn := w.begin(t, fmt.Sprint(2*i))
			if _, err := txn.Commit(t.Context(), completed(fmt.Sprint(2*i))); err != nil {
				t.Fatal(err)
			}
		}
		// A group that is open keeps the gates off the writer's connection.
		holder := w.begin(t, "holder")
		w.write(t, holder, "holder")
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				<-start
				txn, v, err := w.store.Begin(t.Context(), gateOf(fmt.Sprint(i)))
				switch {
				case err != nil:
					t.Errorf("%d: %v", i, err)
				case i%2 == 0 && (v.State != store.Completed || string(v.Outcome.Result.Body) != fmt.Sprint(i)):
					t.Errorf("%d: %v, %+v; want its outcome", i, v.State, v.Outcome)
				case i%2 == 1 && txn == nil:
					t.Errorf("%d: %v, want a transaction", i, v.State)
				}
				if txn != nil {
					if err := txn.Rollback(t.Context()); err != nil {
						t.Errorf("%d: %v", i, err)
					}
				}
			})
		}
		close(start)
		wg.Wait()
		if _, err := holder.Commit(t.Context(), completed("holder")); err != nil {
			t.Fatal(err)
		}
	})
}

// Whose group is lost through another unit runs again by itself, if that is
// declared to be harmless; else it is told, and its key is free.
func TestLostGroupIsRunAgainOnlyWhereThatIsDeclared(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		engine, err := unavez.New(w.store, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range []bool{true, false} {
			name := fmt.Sprint("declared ", declared)
			other := w.begin(t, "other", name)
			ran := make(chan error, 1)
			runs := 0
			op := unavez.Operation{Tenant: "t", Effect: "order", Key: []string{name}, Rerunnable: declared}
			out, err := engine.Do(t.Context(), op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
				runs++
				if err := write(ctx, tx, name); err != nil || runs > 1 {
					return unavez.Result{Code: runs}, err
				}
				go func() {
					_, err := other.Tx().ExecContext(context.WithoutCancel(t.Context()),
						"INSERT OR ROLLBACK INTO business (row, once) VALUES ('x', 'x'), ('x', 'x')")
					ran <- err
				}()
				eventually(t, "the other unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
				return unavez.Result{Code: runs}, nil
			})
			if err := <-ran; !errors.Is(err, store.ErrAborted) {
				t.Errorf("the other's statement: %v, want ErrAborted", err)
			}
			if err := other.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			if declared {
				if err != nil || runs != 2 || out.Result.Code != 2 || out.Attempt != 1 || out.Replayed {
					t.Errorf("%s: %+v, %v after %d runs", name, out, err, runs)
				}
				continue
			}
			if unavez.CodeOf(err) != unavez.CodeUnavailable || runs != 1 {
				t.Errorf("%s: %v after %d runs, want CodeUnavailable after one", name, err, runs)
			}
			if _, err := engine.Look(t.Context(), op); unavez.CodeOf(err) != unavez.CodeNotFound {
				t.Errorf("%s: %v, want its key free", name, err)
			}
		}
		w.rowsAre(t, "declared true")
		if err := engine.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A unit that runs alone takes nobody into its group, and joins none.
func TestUnitAloneSharesNoCommit(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		gate := gateOf("alone")
		gate.Alone = true
		alone, _, err := w.store.Begin(t.Context(), gate)
		if err != nil || alone == nil {
			t.Fatal(err)
		}
		before := w.begin(t, "before")
		w.write(t, before, "before")
		ran := make(chan error, 1)
		go func() { ran <- write(context.WithoutCancel(t.Context()), alone.Tx(), "alone") }()
		eventually(t, "the unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		first := commit(t, before, "before")
		if e := <-first; e.err != nil {
			t.Fatal(e.err)
		}
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "before") // durable already
		behind := w.begin(t, "behind")
		go func() { ran <- write(context.WithoutCancel(t.Context()), behind.Tx(), "behind") }()
		eventually(t, "the next unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		if _, err := alone.Commit(t.Context(), completed("alone")); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "before", "alone") // without the one behind it
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		if _, err := behind.Commit(t.Context(), completed("behind")); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "before", "alone", "behind")
	})
}
