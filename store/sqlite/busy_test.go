package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// hold makes the next statement of a transaction run until goOn is called.
func hold(t *testing.T, w *worker) (runs <-chan struct{}, goOn func()) {
	entered, release := make(chan struct{}), make(chan struct{})
	var first sync.Once
	sqlite.SetFault(w.db, func(step string) error {
		if step == "statement" {
			first.Do(func() {
				close(entered)
				<-release
			})
		}
		return nil
	})
	goOn = sync.OnceFunc(func() { close(release) })
	t.Cleanup(goOn)
	return entered, goOn
}

func in(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// inTime runs fn beside the test, so that a failure does not hang it.
func inTime[T any](t *testing.T, what string, fn func() T) T {
	t.Helper()
	done := make(chan T, 1)
	go func() { done <- fn() }()
	return soon(t, what, done)
}

// A goroutine that a handler leaves behind keeps its own transaction at most.
func TestStatementLeftRunningKeepsNoEngine(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for name, end := range map[string]func(ctx context.Context, txn store.Txn[*sql.Tx]) error{
			"commit": func(ctx context.Context, txn store.Txn[*sql.Tx]) error {
				if _, err := txn.Commit(ctx, completed("x")); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("commit: %v, want ErrUnavailable", err)
				}
				return nil
			},
			"rollback": func(ctx context.Context, txn store.Txn[*sql.Tx]) error { return txn.Rollback(ctx) },
		} {
			txn := w.begin(t, name)
			w.write(t, txn, name)
			runs, goOn := hold(t, w)
			ran := make(chan error, 1)
			go func() { ran <- write(context.WithoutCancel(t.Context()), txn.Tx(), name) }()
			soon(t, "statement", runs)
			if err := inTime(t, name, func() error { return end(in(t, 5*time.Millisecond), txn) }); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			w.state(t, store.Processing, name) // its statement runs
			goOn()
			soon(t, "statement", ran)
			eventually(t, "lock is free", func() bool {
				v, err := w.store.Settle(t.Context(), gateOf(name).Key)
				return err == nil && v.State == store.Free
			})
			w.rowsAre(t)
		}

		// The same while the statement left behind still waits for its turn.
		holder := w.begin(t, "holder")
		w.write(t, holder, "holder")
		undone, done := w.begin(t, "undone"), w.begin(t, "done")
		ran := make(chan error, 2)
		go func() { ran <- write(context.WithoutCancel(t.Context()), undone.Tx(), "undone") }()
		eventually(t, "a unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		if err := soon(t, "rollback", rollback(t, undone)); err != nil {
			t.Errorf("rollback: %v", err)
		}
		if err := soon(t, "statement", ran); !errors.Is(err, store.ErrAborted) && !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("statement of a unit given up: %v", err)
		}
		w.state(t, store.Free, "undone")
		go func() { ran <- write(context.WithoutCancel(t.Context()), done.Tx(), "done") }()
		eventually(t, "a unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		second := commit(t, done, "x")
		if e := soon(t, "commit", commit(t, holder, "x")); e.err != nil {
			t.Errorf("commit of the holder: %v", e.err)
		}
		if e := soon(t, "commit", second); e.err != nil {
			t.Errorf("commit behind a statement that waited: %v", e.err)
		}
		soon(t, "statement", ran) // before the commit, or too late for it
		w.state(t, store.Completed, "done")
	})
}
