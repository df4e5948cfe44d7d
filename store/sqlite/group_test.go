package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(time.Minute)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
		<-tick.C
	}
}

func (w *worker) begin(t *testing.T, parts ...string) store.Txn[*sql.Tx] {
	t.Helper()
	txn, v, err := w.store.Begin(t.Context(), gateOf(parts...))
	if err != nil || txn == nil {
		t.Fatalf("begin %v: state %v, %v", parts, v.State, err)
	}
	return txn
}

func (w *worker) write(t *testing.T, txn store.Txn[*sql.Tx], row string) {
	t.Helper()
	if err := write(t.Context(), txn.Tx(), row); err != nil {
		t.Fatalf("write %s: %v", row, err)
	}
}

func (w *worker) state(t *testing.T, want store.State, parts ...string) {
	t.Helper()
	v, err := w.store.Settle(t.Context(), gateOf(parts...).Key)
	if err != nil || v.State != want {
		t.Fatalf("operation %v: state %v, %v; want %v", parts, v.State, err, want)
	}
}

func (w *worker) rowsAre(t *testing.T, want ...string) {
	t.Helper()
	got := w.rows(t)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("rows %q, want %q", got, want)
	}
}

// ended is how a commit in another goroutine ended.
type ended struct {
	outcome *store.Outcome
	err     error
}

func commit(t *testing.T, txn store.Txn[*sql.Tx], body string) chan ended {
	done := make(chan ended, 1)
	go func() {
		o, err := txn.Commit(context.WithoutCancel(t.Context()), completed(body))
		done <- ended{o, err}
	}()
	return done
}

// follow makes first hold the writer and second wait for it, then commits
// first: when follow returns, second runs in the same group.
func (w *worker) follow(t *testing.T, first, second string, statement func(ctx context.Context, tx *sql.Tx) error) (store.Txn[*sql.Tx], chan ended, chan error) {
	t.Helper()
	a, b := w.begin(t, first), w.begin(t, second)
	w.write(t, a, first)
	ran := make(chan error, 1)
	go func() { ran <- statement(context.WithoutCancel(t.Context()), b.Tx()) }()
	eventually(t, "second unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
	return b, commit(t, a, first), ran
}

// X14: an interrupted write rolls a whole SQLite transaction back. A cancelled
// context therefore never reaches a statement.
func TestCancelledStatementLosesNoNeighbour(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		ctx, cancel := context.WithCancel(t.Context())
		b, first, ran := w.follow(t, "one", "two", func(_ context.Context, tx *sql.Tx) error {
			timer := time.AfterFunc(5*time.Millisecond, cancel)
			defer timer.Stop()
			_, err := tx.ExecContext(ctx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
				INSERT INTO business (row) SELECT 'many' FROM n WHERE i % 1000 = 0`)
			return err
		})
		if err := <-ran; err != nil {
			t.Logf("the cancelled statement: %v", err)
		}
		// The context is over; the unit is not.
		if err := write(t.Context(), b.Tx(), "two"); err != nil {
			t.Fatalf("statement after the cancelled one: %v", err)
		}
		if _, err := b.Tx().ExecContext(ctx, "SELECT 1"); !errors.Is(err, context.Canceled) && ctx.Err() != nil {
			t.Errorf("statement with a cancelled context: %v", err)
		}
		second := commit(t, b, "two")
		for name, done := range map[string]chan ended{"one": first, "two": second} {
			if e := <-done; e.err != nil {
				t.Errorf("%s: %v", name, e.err)
			}
			w.state(t, store.Completed, name)
		}
		if n := len(w.rows(t)); n != 202 && n != 2 {
			t.Errorf("%d rows: the cancelled statement is there in part", n)
		}
	})
}

func TestUnitsThatWaitShareACommit(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		const n = 64
		holder := w.begin(t, "holder")
		w.write(t, holder, "holder")
		var wg sync.WaitGroup
		for i := range n {
			txn := w.begin(t, fmt.Sprint(i))
			wg.Go(func() {
				if err := write(t.Context(), txn.Tx(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
				if _, err := txn.Commit(t.Context(), completed("x")); err != nil {
					t.Error(err)
				}
			})
		}
		eventually(t, "all wait", func() bool { return sqlite.Waiting(w.db) == n })
		before := sqlite.StatsOf(w.db)
		if e := <-commit(t, holder, "x"); e.err != nil {
			t.Fatal(e.err)
		}
		wg.Wait()
		after := sqlite.StatsOf(w.db)
		if units := after.Units - before.Units; units != n+1 {
			t.Errorf("%d units committed, want %d", units, n+1)
		}
		if commits := after.Commits - before.Commits; commits > 8 {
			t.Errorf("%d commits for %d units", commits, n+1)
		}
		if got := len(w.rows(t)); got != n+1 {
			t.Errorf("%d rows, want %d", got, n+1)
		}
	})
}

func TestOpenGroupIsSeenByNobody(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		b, first, ran := w.follow(t, "one", "two", func(ctx context.Context, tx *sql.Tx) error { return write(ctx, tx, "two") })
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		// "one" is released and "two" has the turn, with no statement that runs.
		look := func(want store.State) {
			t.Helper()
			for _, from := range []*worker{w, open(t, drv, w.path, patient())} {
				if v, err := from.store.Look(t.Context(), gateOf("one").Key); err != nil || v.State != want {
					t.Errorf("look: %v, %v; want %v", v.State, err, want)
				}
			}
		}
		look(store.Free)
		w.state(t, store.Processing, "one")
		w.rowsAre(t)
		for name, done := range map[string]chan ended{"one": first, "two": commit(t, b, "two")} {
			if e := <-done; e.err != nil {
				t.Errorf("%s: %v", name, e.err)
			}
		}
		look(store.Completed)
		w.rowsAre(t, "one", "two")
	})
}

func TestLostGroupAnswersNobody(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		for _, text := range []string{
			"INSERT OR ROLLBACK INTO business (row, once) VALUES ('two', 'x'), ('two', 'x')",
			"INSERT INTO business (row, once) VALUES ('two', 'boom')",
		} {
			w.exec(t, `CREATE TRIGGER IF NOT EXISTS boom BEFORE INSERT ON business WHEN new.once = 'boom'
				BEGIN SELECT CASE WHEN 1 THEN raise(ROLLBACK, 'boom') END; END`)
			b, first, ran := w.follow(t, "one", "two", func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, text)
				return err
			})
			met := <-ran
			if !errors.Is(met, store.ErrAborted) {
				t.Errorf("the statement: %v, want ErrAborted", met)
			}
			// Without the connector this would autocommit.
			if err := write(t.Context(), b.Tx(), "stray"); !errors.Is(err, store.ErrAborted) || err.Error() != met.Error() {
				t.Errorf("the next statement: %v, want the first error", err)
			}
			if e := <-first; e.outcome != nil || !errors.Is(e.err, store.ErrLost) {
				t.Errorf("neighbour: %+v, %v; want ErrLost", e.outcome, e.err)
			}
			if o, err := b.Commit(t.Context(), completed("two")); o != nil || !errors.Is(err, store.ErrAborted) {
				t.Errorf("commit: %+v, %v; want ErrAborted", o, err)
			}
			w.rowsAre(t)
			w.state(t, store.Free, "one")
			w.state(t, store.Free, "two")
		}
		txn := w.begin(t, "one")
		w.write(t, txn, "again")
		if e := <-commit(t, txn, "x"); e.err != nil {
			t.Fatal(e.err)
		}
		w.rowsAre(t, "again")
	})
}

func TestFailedStatementLeavesTheUnitUsable(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		txn := w.begin(t, "one")
		tx := txn.Tx()
		insert := func() error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO business (row, once) VALUES ('a', 'same')")
			return err
		}
		if err := insert(); err != nil {
			t.Fatal(err)
		}
		if err := insert(); err == nil || !strings.Contains(err.Error(), "UNIQUE") {
			t.Errorf("violated constraint: %v", err)
		}
		if _, err := tx.ExecContext(t.Context(), "NONSENSE"); err == nil {
			t.Error("a syntax error is none")
		}
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO business (row) VALUES (?, ?)", 1); err == nil {
			t.Error("a missing argument is none")
		}
		w.write(t, txn, "b")
		if e := <-commit(t, txn, "x"); e.err != nil {
			t.Fatal(e.err)
		}
		w.rowsAre(t, "a", "b")
	})
}

func TestStuckHandlerLosesTheTurn(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.HandlerLimit = 500 * time.Millisecond
		w := fresh(t, drv, opts)
		a := w.begin(t, "stuck")
		w.write(t, a, "stuck")
		rows, err := a.Tx().QueryContext(t.Context(), "SELECT row FROM business")
		if err != nil {
			t.Fatal(err)
		}
		// a does nothing more; others go on once its time is over.
		for i := range 3 {
			b := w.begin(t, "other", fmt.Sprint(i))
			if err := write(t.Context(), b.Tx(), "other"); err != nil {
				t.Fatal(err)
			}
			if e := <-commit(t, b, "x"); e.err != nil {
				t.Fatal(e.err)
			}
		}
		if rows.Next() {
			t.Error("rows go on after their transaction")
		}
		if err := rows.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := write(t.Context(), a.Tx(), "late"); !errors.Is(err, store.ErrLimit) {
			t.Errorf("late statement: %v, want ErrLimit", err)
		}
		w.state(t, store.Processing, "stuck") // its handler still runs
		if _, err := a.Commit(t.Context(), completed("late")); !errors.Is(err, store.ErrLimit) {
			t.Errorf("late commit: %v, want ErrLimit", err)
		}
		w.state(t, store.Free, "stuck")
		if n := sqlite.StatsOf(w.db).Taken; n != 1 {
			t.Errorf("turn taken %d times, want once", n)
		}
		w.rowsAre(t, "other", "other", "other")
	})
}

func TestWhatComesBeforeTheFirstStatementRunsBesideOthers(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.HandlerLimit = time.Second
		w := fresh(t, drv, opts)
		slow := w.begin(t, "slow before its first statement")
		for i := range 20 {
			txn := w.begin(t, fmt.Sprint(i))
			w.write(t, txn, "x")
			if e := <-commit(t, txn, "x"); e.err != nil {
				t.Fatal(e.err)
			}
		}
		timer := time.NewTimer(opts.HandlerLimit + opts.HandlerLimit/4)
		<-timer.C
		w.write(t, slow, "slow")
		if e := <-commit(t, slow, "x"); e.err != nil {
			t.Fatal(e.err)
		}
	})
}

func TestDeferredConstraintFailsAlone(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		w.exec(t, "CREATE TABLE parent (id INTEGER PRIMARY KEY)")
		w.exec(t, "CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
		orphan := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO child VALUES (1)")
			return err
		}
		b, first, ran := w.follow(t, "one", "orphan", orphan)
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		if e := <-commit(t, b, "x"); !errors.Is(e.err, store.ErrUnavailable) {
			t.Errorf("orphan in a group: %v", e.err)
		}
		if e := <-first; !errors.Is(e.err, store.ErrUnavailable) {
			t.Errorf("its neighbour: %v", e.err)
		}
		w.rowsAre(t)
		// From now on it does not take neighbours with it.
		b, first, ran = w.follow(t, "one", "orphan", orphan)
		if e := <-first; e.err != nil {
			t.Errorf("neighbour of the second try: %v", e.err)
		}
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		if e := <-commit(t, b, "x"); !errors.Is(e.err, store.ErrAborted) {
			t.Errorf("orphan alone: %v, want ErrAborted", e.err)
		}
		w.rowsAre(t, "one")
		w.state(t, store.Free, "orphan")
		// A transaction of the application gets SQLite's own error.
		tx, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := orphan(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err == nil || !strings.Contains(err.Error(), "FOREIGN KEY") {
			t.Errorf("commit of an orphan: %v", err)
		}
	})
}

func TestUnknownCommitIsResolvedByANewConnection(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for _, step := range []string{"begin", "finish", "commit", "committed"} {
			txn := w.begin(t, step)
			fail := true
			sqlite.SetFault(w.db, func(at string) error {
				if at == step && fail {
					fail = false
					return errors.New("lightning")
				}
				return nil
			})
			werr := write(t.Context(), txn.Tx(), step)
			_, err := txn.Commit(t.Context(), completed(step))
			want := store.Free
			switch step {
			case "begin":
				if werr == nil {
					t.Error("begin: the statement did not fail")
				}
				if err == nil {
					want = store.Completed // the commit's own try went through
				}
			case "finish":
				if err == nil || errors.Is(err, store.ErrCommitUnknown) {
					t.Errorf("finish: %v", err)
				}
			case "committed":
				want = store.Completed
				fallthrough
			case "commit":
				if !errors.Is(err, store.ErrCommitUnknown) {
					t.Errorf("%s: %v, want ErrCommitUnknown", step, err)
				}
			}
			w.state(t, want, step)
		}
		w.rowsAre(t, "committed")
		w.exec(t, "DELETE FROM business")
	})
}
