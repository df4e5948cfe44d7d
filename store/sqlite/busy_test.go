package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"maps"
	"strconv"
	"strings"
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

func TestRunningStatementKeepsNobodyPastItsLimit(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		claim := store.Claim{Gate: gateOf("leased"), Lease: time.Hour}
		lease, _, err := w.store.Claim(t.Context(), claim)
		if err != nil || lease == nil {
			t.Fatalf("claim: %v", err)
		}
		undone := w.begin(t, "undone")
		w.write(t, undone, "undone")
		rows, err := undone.Tx().QueryContext(t.Context(), "SELECT row FROM business")
		if err != nil {
			t.Fatal(err)
		}
		if err := undone.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}

		// "released" is in the group of "long", whose statement runs.
		released, long := w.begin(t, "released"), w.begin(t, "long")
		idle, silent := w.begin(t, "idle"), w.begin(t, "silent")
		w.write(t, released, "released")
		runs, goOn := hold(t, w)
		ran := make(chan error, 1)
		go func() { ran <- write(context.WithoutCancel(t.Context()), long.Tx(), "long") }()
		eventually(t, "second unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		type result = struct{ err error }
		first := make(chan result, 1)
		record, recorded := context.WithCancel(context.WithoutCancel(t.Context()))
		defer recorded()
		go func() {
			_, err := released.Commit(record, completed("released"))
			first <- result{err}
		}()
		soon(t, "statement", runs)

		// What waits gives up with its context, or at its deadline.
		// database/sql may see first that a context is over.
		gaveUp := func(err error) bool {
			return (errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) && !errors.Is(err, store.ErrCommitUnknown)
		}
		if err := inTime(t, "statement", func() error { return write(in(t, 5*time.Millisecond), idle.Tx(), "idle") }); !gaveUp(err) {
			t.Errorf("statement within a context: %v", err)
		}
		if err := inTime(t, "rollback", func() error { return idle.Rollback(t.Context()) }); err != nil {
			t.Errorf("rollback of what has run no statement: %v", err)
		}
		w.state(t, store.Free, "idle")
		limited := gateOf("limited")
		limited.Limit = 20 * time.Millisecond
		txn, _, err := w.store.Begin(t.Context(), limited)
		if err != nil {
			t.Fatal(err)
		}
		if err := inTime(t, "statement", func() error { return write(t.Context(), txn.Tx(), "limited") }); !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrLimit) {
			t.Errorf("statement over the operation's limit: %v", err)
		}
		if err := inTime(t, "commit", func() error { _, err := txn.Commit(t.Context(), completed("x")); return err }); !errors.Is(err, store.ErrLimit) {
			t.Errorf("commit over the operation's limit: %v, want ErrLimit", err)
		}
		w.state(t, store.Free, "limited")
		if err := inTime(t, "commit", func() error { _, err := silent.Commit(in(t, 5*time.Millisecond), completed("x")); return err }); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("commit without a statement: %v", err)
		}
		w.state(t, store.Free, "silent")
		if err := inTime(t, "renewal", func() error { return w.store.Renew(in(t, 5*time.Millisecond), claim.Key, lease.Fence, time.Hour) }); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("renewal: %v", err)
		}
		if err := inTime(t, "insert", func() error {
			_, err := w.db.ExecContext(in(t, 5*time.Millisecond), "INSERT INTO business (row) VALUES ('own')")
			return err
		}); !gaveUp(err) {
			t.Errorf("statement outside a transaction: %v", err)
		}
		if err := inTime(t, "close of rows", rows.Close); err != nil {
			t.Errorf("close of rows: %v", err)
		}
		tx, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := inTime(t, "join", func() error {
			j, _, err := w.store.Join(t.Context(), tx, gateOf("joined"))
			if j == nil {
				err = errors.Join(err, errors.New("not joined"))
			}
			return errors.Join(err, tx.Rollback())
		}); err != nil {
			t.Errorf("join: %v", err)
		}
		w.state(t, store.Free, "joined")

		// What is released waits for the commit, or hears that nobody knows.
		recorded()
		if r := soon(t, "commit", first); !errors.Is(r.err, store.ErrCommitUnknown) {
			t.Errorf("released unit: %v, want ErrCommitUnknown", r.err)
		}
		w.state(t, store.Processing, "released")
		goOn()
		if err := soon(t, "long statement", ran); err != nil {
			t.Errorf("long statement: %v", err)
		}
		if e := soon(t, "commit", commit(t, long, "x")); e.err != nil {
			t.Errorf("commit of long: %v", e.err)
		}
		eventually(t, "the group's end frees the lock", func() bool {
			v, err := w.store.Settle(t.Context(), gateOf("released").Key)
			return err == nil && v.State == store.Completed
		})
		w.rowsAre(t, "released", "long")
	})
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

// An application that bounds its connections does not make a gate wait past
// its context, nor end the transaction with it.
func TestBeginWaitsWithinItsContext(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		w.db.SetMaxOpenConns(1)
		ctx, cancel := context.WithCancel(t.Context())
		txn, _, err := w.store.Begin(ctx, gateOf("one"))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, _, err := w.store.Begin(in(t, 5*time.Millisecond), gateOf("two")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("begin: %v", err)
		}
		w.state(t, store.Free, "two")
		w.write(t, txn, "one")
		if e := soon(t, "commit", commit(t, txn, "x")); e.err != nil {
			t.Error(e.err)
		}
		w.rowsAre(t, "one")
	})
}

// Who waits behind a handler that is at work gives up when its own time is over,
// in the order of those times, whoever came first; who has time left gets the turn.
func TestWhoWaitsForTheWriterGivesUpAtItsOwnTime(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		busy := w.begin(t, "busy")
		w.write(t, busy, "busy")
		ended := make(chan string, 3)
		waits := func(name string, limit time.Duration) chan error {
			gate := gateOf(name)
			gate.Limit = limit
			txn, _, err := w.store.Begin(t.Context(), gate)
			if err != nil || txn == nil {
				t.Fatalf("begin %s: %v", name, err)
			}
			done := make(chan error, 1)
			before := sqlite.Waiting(w.db)
			go func() {
				ctx := context.WithoutCancel(t.Context())
				err := write(ctx, txn.Tx(), name)
				ended <- name
				if err == nil {
					_, err = txn.Commit(ctx, completed(name))
				}
				done <- errors.Join(err, txn.Rollback(ctx))
			}()
			eventually(t, name+" waits", func() bool { return sqlite.Waiting(w.db) > before })
			return done
		}
		patient := waits("patient", time.Minute)
		late := waits("late", 3*time.Second)
		early := waits("early", 2*time.Second)
		for _, name := range []string{"early", "late"} {
			if first := soon(t, name, ended); first != name {
				t.Fatalf("%s gave up, want %s before it", first, name)
			}
		}
		for name, done := range map[string]chan error{"early": early, "late": late} {
			if err := soon(t, name, done); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "more work waits for it than its time allows") {
				t.Errorf("%s: %v, want that the writer is busy", name, err)
			}
		}
		if _, err := busy.Commit(t.Context(), completed("busy")); err != nil {
			t.Fatal(err)
		}
		if err := soon(t, "patient", patient); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "busy", "patient")
		w.state(t, store.Free, "early")
	})
}

// Gates that come together are answered together, each for its own operation,
// whatever size the crowd has.
func TestACrowdOfGatesFindsWhatIsStored(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for _, size := range []int{1, 2, 4, 5, 16, 17, 64, 65, 130} {
			keys := make([]store.Key, size)
			for i := range keys {
				keys[i] = gateOf("crowd", strconv.Itoa(size), strconv.Itoa(i)).Key
			}
			for _, i := range []int{0, size - 1} {
				if v, err := w.store.Look(t.Context(), keys[i]); err != nil || v.State != store.Free {
					continue
				}
				txn := w.begin(t, "crowd", strconv.Itoa(size), strconv.Itoa(i))
				if _, err := txn.Commit(t.Context(), completed("done")); err != nil {
					t.Fatal(err)
				}
			}
			known, err := sqlite.Known(w.store, keys)
			if err != nil {
				t.Fatal(err)
			}
			want := map[store.Key]bool{keys[0]: true, keys[size-1]: true}
			if !maps.Equal(known, want) {
				t.Errorf("of %d operations %d are known, want the first and the last", size, len(known))
			}
		}
	})
}
