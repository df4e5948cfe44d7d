package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// soon is what comes out of a channel, unless that takes for ever.
func soon[T any](t *testing.T, what string, from <-chan T) (out T) {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case out = <-from:
	case <-timer.C:
		t.Fatalf("%s: not in time", what)
	}
	return out
}

func rollback(t *testing.T, txn store.Txn[*sql.Tx]) chan error {
	done := make(chan error, 1)
	go func() { done <- txn.Rollback(context.WithoutCancel(t.Context())) }()
	return done
}

// rawRow leaves rows open on the transaction in the way that makes database/sql
// wait for them for ever.
func rawRow(t *testing.T, txn store.Txn[*sql.Tx], text string) *sql.Rows {
	t.Helper()
	rows, err := txn.Tx().QueryContext(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	var raw sql.RawBytes
	if !rows.Next() {
		t.Fatalf("no row: %v", rows.Err())
	}
	if err := rows.Scan(&raw); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestRowsLeftOpenKeepNothing(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		const look = "SELECT v FROM (SELECT 'a' AS v UNION ALL SELECT 'b')"
		const change = "INSERT INTO business (row) VALUES ('returned'), ('more') RETURNING row"
		for _, text := range []string{look, change} {
			// As the first unit of a group and, in a savepoint, as a later one.
			kept := w.begin(t, "kept", text)
			w.write(t, kept, "kept")
			rows := rawRow(t, kept, text)
			behind := w.begin(t, "behind", text)
			ran := make(chan error, 1)
			go func() { ran <- write(context.WithoutCancel(t.Context()), behind.Tx(), "behind") }()
			eventually(t, "second unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
			first := commit(t, kept, "x")
			if err := soon(t, "statement behind it", ran); err != nil {
				t.Fatal(err)
			}
			others := rawRow(t, behind, text)
			second := commit(t, behind, "x")
			for name, done := range map[string]chan ended{"kept": first, "behind": second} {
				if e := soon(t, "commit of "+name, done); e.err != nil {
					t.Errorf("commit of %s with open rows: %v", name, e.err)
				}
				w.state(t, store.Completed, name, text)
			}

			undone := w.begin(t, "undone", text)
			w.write(t, undone, "undone")
			more := rawRow(t, undone, text)
			if err := soon(t, "rollback", rollback(t, undone)); err != nil {
				t.Errorf("rollback with open rows: %v", err)
			}
			w.state(t, store.Free, "undone", text)

			for _, open := range []*sql.Rows{rows, others, more} {
				if open.Next() {
					t.Error("rows go on after their transaction")
				}
				if err := open.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			for _, txn := range []store.Txn[*sql.Tx]{kept, behind, undone} {
				if err := write(t.Context(), txn.Tx(), "late"); !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, store.ErrAborted) {
					t.Errorf("late statement: %v", err)
				}
				if err := txn.Tx().Commit(); err == nil {
					t.Error("late commit: no error")
				}
			}
		}
		w.rowsAre(t, "kept", "behind", "kept", "behind", "returned", "more", "returned", "more")
	})
}

// A handler that ends its transaction itself is still that operation's handler.
func TestLockOutlivesAForeignRollback(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		txn := w.begin(t, "one")
		w.write(t, txn, "one")
		if err := txn.Tx().Rollback(); !errors.Is(err, store.ErrForeignCommit) {
			t.Errorf("rollback by the handler: %v", err)
		}
		w.state(t, store.Processing, "one")
		if _, err := txn.Commit(t.Context(), completed("x")); !errors.Is(err, store.ErrForeignCommit) {
			t.Errorf("commit after it: %v", err)
		}
		w.state(t, store.Free, "one")
		w.rowsAre(t)
	})
}

// A transaction that the application never ends gives up, at its limit, what
// it has joined.
func TestLeakedTransactionKeepsNoOperation(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.TransactionLimit = 200 * time.Millisecond
		w := fresh(t, drv, opts)
		free := func(name string) {
			t.Helper()
			eventually(t, name+" is free", func() bool {
				v, err := w.store.Settle(t.Context(), gateOf(name).Key)
				return err == nil && v.State == store.Free
			})
		}
		done, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		j, _, err := w.store.Join(t.Context(), done, gateOf("done"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Finish(t.Context(), completed("x")); err != nil && !errors.Is(err, store.ErrLimit) {
			t.Fatal(err)
		}
		free("done")
		if err := done.Commit(); !errors.Is(err, store.ErrLimit) {
			t.Errorf("commit: %v, want ErrLimit", err)
		}

		runs, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if j, _, err = w.store.Join(t.Context(), runs, gateOf("runs")); err != nil {
			t.Fatal(err)
		}
		taken := sqlite.StatsOf(w.db).Taken
		if err := write(t.Context(), runs, "runs"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "limit", func() bool { return sqlite.StatsOf(w.db).Taken > taken })
		w.state(t, store.Processing, "runs") // what joined it still does something
		j.Leave()
		free("runs")
		if err := runs.Rollback(); err != nil {
			t.Error(err)
		}
		w.rowsAre(t)
	})
}
