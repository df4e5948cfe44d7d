package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// append appends entries, of which the same must be said.
func (w *worker) append(t *testing.T, want store.Appended, entries ...store.Entry) {
	t.Helper()
	said, err := w.store.Append(t.Context(), store.Arrival{Entries: entries})
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	for i := range said {
		if said[i] != want {
			t.Fatalf("append: entry %d is %v, want %v", i+1, said[i], want)
		}
	}
}

// done ends an entry without an effect.
func (w *worker) done(t *testing.T, e store.Entry) {
	t.Helper()
	txn, v, err := w.store.Begin(t.Context(), laneGate(e, store.Hold{}))
	if err != nil || txn == nil {
		t.Fatalf("begin: %v, %v", v.State, err)
	}
	if _, err := txn.Commit(t.Context(), completed("done")); err != nil {
		t.Fatal(err)
	}
}

// read reads everything since a cursor: sequences by name, and the next cursor.
func (w *worker) read(t *testing.T, since string) (names []string, sequences []int64, cursor string) {
	t.Helper()
	lanes := make([]int, w.store.Lanes())
	for i := range lanes {
		lanes[i] = i
	}
	page, err := w.store.Read(t.Context(), store.Reading{Lanes: lanes, Since: since, Limit: store.MaxReading})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		names, sequences = append(names, string(e.Payload)), append(sequences, e.Sequence)
	}
	return names, sequences, page.Until
}

func (w *worker) reads(t *testing.T, want ...string) {
	t.Helper()
	if names, _, _ := w.read(t, ""); !slices.Equal(names, want) {
		t.Fatalf("read %q, want %q", names, want)
	}
}

func TestAppendOfALostGroupKeepsNothing(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		first, last := w.begin(t, "first"), w.begin(t, "last")
		w.write(t, first, "first")
		arrival := store.Arrival{
			Entries:     []store.Entry{numbered("a", 0), numbered("a", 1)},
			Quarantined: []store.Quarantined{{Key: gateOf("q").Key, Source: "a", Reason: "schema"}},
		}
		appended, ran := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := w.store.Append(context.WithoutCancel(t.Context()), arrival)
			appended <- err
		}()
		eventually(t, "the append waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		go func() {
			_, err := last.Tx().ExecContext(context.WithoutCancel(t.Context()), "INSERT OR ROLLBACK INTO business (row, once) VALUES ('x', 'x'), ('x', 'x')")
			ran <- err
		}()
		eventually(t, "the last unit waits", func() bool { return sqlite.Waiting(w.db) == 2 })
		committed := commit(t, first, "first")
		if err := soon(t, "statement", ran); err == nil {
			t.Fatal("a statement that makes SQLite leave the transaction: no error")
		}
		if err := soon(t, "append", appended); !errors.Is(err, store.ErrLost) || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("append: %v, want ErrLost", err)
		}
		if e := soon(t, "commit", committed); !errors.Is(e.err, store.ErrLost) {
			t.Errorf("commit: %v, want ErrLost", e.err)
		}
		if err := last.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		w.reads(t)
		if items, err := w.store.Quarantined(t.Context(), "", store.Key{}, 10); err != nil || len(items) != 0 {
			t.Errorf("quarantined: %v, %v", items, err)
		}
		if _, err := w.store.Append(t.Context(), arrival); err != nil {
			t.Error(err)
		}
		w.reads(t, "0", "1")
	})
}

func TestAppendWaitsWithinItsContext(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		holder := w.begin(t, "holder")
		w.write(t, holder, "holder")
		_, err := w.store.Append(in(t, 5*time.Millisecond), store.Arrival{Entries: []store.Entry{numbered("a", 0)}})
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFull) {
			t.Errorf("append: %v, want ErrUnavailable", err)
		}
		if e := soon(t, "commit", commit(t, holder, "x")); e.err != nil {
			t.Error(e.err)
		}
		w.reads(t)
		w.append(t, store.New, numbered("a", 0))
	})
}

// Appends that wait for the disk together share its next sync.
func TestAppendsShareACommit(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := together(t, drv)
		holder := w.begin(t, "holder")
		w.write(t, holder, "holder")
		const n = 40
		before := sqlite.StatsOf(w.db)
		errs := make(chan error, n)
		for i := range n {
			go func() {
				_, err := w.store.Append(context.WithoutCancel(t.Context()), store.Arrival{Entries: []store.Entry{numbered("a", i)}})
				errs <- err
			}()
		}
		eventually(t, "all appends wait", func() bool { return sqlite.Waiting(w.db) == n })
		if e := soon(t, "commit", commit(t, holder, "x")); e.err != nil {
			t.Error(e.err)
		}
		for range n {
			if err := soon(t, "append", errs); err != nil {
				t.Error(err)
			}
		}
		if after := sqlite.StatsOf(w.db); after.Commits-before.Commits != 1 || after.Units-before.Units != n+1 {
			t.Errorf("%d commits of %d units, want one of %d", after.Commits-before.Commits, after.Units-before.Units, n+1)
		}
	})
}

func TestRoomCountsWhatIsNotDone(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		s, err := sqlite.New(w.db, &sqlite.StoreOptions{Room: 3})
		if err != nil {
			t.Fatal(err)
		}
		w.store = s
		refused := func(e ...store.Entry) {
			t.Helper()
			_, err := s.Append(t.Context(), store.Arrival{Entries: e})
			if !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "Room") {
				t.Fatalf("append over the room: %v", err)
			}
		}
		full := func() float64 {
			t.Helper()
			c, err := s.QueueCounts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return c.Full
		}
		// For a moment after something was done, a queue that was full may still say so.
		fits := func(e ...store.Entry) {
			t.Helper()
			eventually(t, "there is room", func() bool {
				_, err := s.Append(t.Context(), store.Arrival{Entries: e})
				if err != nil && !errors.Is(err, store.ErrFull) {
					t.Fatal(err)
				}
				return err == nil
			})
		}
		// What is done takes no room, however long it is kept.
		for i := range 10 {
			fits(numbered("done", i))
			w.done(t, numbered("done", i))
		}
		fits(numbered("a", 0), numbered("a", 1))
		refused(numbered("a", 2), numbered("a", 3))
		fits(numbered("a", 2))
		refused(numbered("a", 3))
		eventually(t, "the queue is full", func() bool { return full() == 1 })
		w.append(t, store.Duplicate, numbered("a", 0), numbered("done", 3))
		if _, err := s.Append(t.Context(), store.Arrival{Quarantined: []store.Quarantined{{Key: gateOf("q").Key}}}); err != nil {
			t.Errorf("a quarantined item when the queue is full: %v", err)
		}
		tx, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(t.Context(), tx, "with an entry"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Enqueue(t.Context(), tx, []store.Entry{numbered("a", 3)}); !errors.Is(err, store.ErrFull) {
			t.Errorf("append in a transaction: %v", err)
		}
		if err := tx.Commit(); err == nil {
			t.Error("a transaction commits without the entry that it was to append")
		}
		w.rowsAre(t)
		// Another store on the file knows it as well.
		other, err := sqlite.New(open(t, drv, w.path, patient()).db, &sqlite.StoreOptions{Room: 3})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Append(t.Context(), store.Arrival{Entries: []store.Entry{numbered("a", 3)}}); !errors.Is(err, store.ErrFull) {
			t.Errorf("append by another worker: %v", err)
		}
		w.done(t, numbered("a", 1))
		fits(numbered("a", 3))
		refused(numbered("a", 4))
	})
}

// The cursor that all lanes have passed, and the blocked rows before it, tell what
// is not done; nothing else before it is looked at.
func TestCountsOfWhatIsNotDone(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		share, err := w.store.Keep(ctx, store.Keeping{Worker: "w", Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		holdOf := func(e store.Entry) store.Hold { return share.Held[store.LaneOf(e.Order, len(share.Held))].Hold }
		block := func(e store.Entry, gap bool) {
			t.Helper()
			stored, err := w.store.Load(ctx, e.Key)
			if err == nil {
				err = w.store.Block(ctx, store.Blocking{Hold: holdOf(e), Entry: &stored, Gap: gap})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		counts := func() store.QueueCounts {
			t.Helper()
			c, err := w.store.QueueCounts(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		is := func(when string, depth map[string]int64) {
			t.Helper()
			c := counts()
			if fmt.Sprint(c.Depth) != fmt.Sprint(depth) {
				t.Errorf("%s: depth %v, want %v", when, c.Depth, depth)
			}
			total := int64(0)
			for _, n := range depth {
				total += n
			}
			eventually(t, when+": the room", func() bool { return counts().Full == float64(total)/1_000_000 })
		}
		for i := range 12 {
			w.append(t, store.New, numbered("a", i), numbered("b", i))
		}
		is("appended", map[string]int64{"a": 12, "b": 12})
		// Of a: 0 blocks 3, 6 and 9; 4 waits at a gap; all else is done. Of b: all done but 11.
		for i := range 12 {
			if i%3 != 0 && i != 4 {
				w.done(t, numbered("a", i))
			}
			if i != 11 {
				w.done(t, numbered("b", i))
			}
		}
		block(numbered("a", 0), false)
		block(numbered("a", 4), true)
		block(numbered("b", 11), false)
		is("blocked", map[string]int64{"a": 5, "b": 1})
		_, _, cursor := w.read(t, "")
		k := store.Keeping{Worker: "w", Lease: time.Hour}
		for _, h := range share.Held {
			k.Marks = append(k.Marks, store.Mark{Hold: h.Hold, Cursor: cursor})
		}
		if _, err := w.store.Keep(ctx, k); err != nil {
			t.Fatal(err)
		}
		is("all lanes have passed", map[string]int64{"a": 5, "b": 1})
		w.append(t, store.New, numbered("c", 0), numbered("a", 12))
		is("more came", map[string]int64{"a": 6, "b": 1, "c": 1})
		w.done(t, numbered("b", 11))
		is("one is done", map[string]int64{"a": 6, "c": 1})
		w.advance(t, time.Hour)
		if c := counts(); c.Blocked != 3 || c.Orphans != 256 || c.Oldest["a"] < time.Hour || c.Oldest["a"] > time.Hour+time.Minute {
			t.Errorf("counts: %+v", c)
		}
	})
}

func TestLanesOfAFileAreDecidedOnce(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		path := filepath.Join(t.TempDir(), "x.db")
		lanes := func(path string, wanted int) (int, error) {
			db, err := sqlite.OpenDB(drv, path, patient())
			if err != nil {
				return 0, err
			}
			defer db.Close()
			s, err := sqlite.New(db, &sqlite.StoreOptions{Lanes: wanted})
			if err != nil {
				return 0, err
			}
			return s.Lanes(), nil
		}
		// Workers that start together agree, whoever is first.
		found, errs := make(chan int, 4), make(chan error, 4)
		for i := range 4 {
			go func() {
				n, err := lanes(path, 8+8*(i%2))
				found <- n
				errs <- err
			}()
		}
		agreed, refused := 0, 0
		for range 4 {
			if n := <-found; n != 0 {
				if agreed != 0 && agreed != n {
					t.Errorf("two workers found %d and %d lanes", agreed, n)
				}
				agreed = n
			}
			if err := <-errs; err != nil {
				refused++
				if !strings.Contains(err.Error(), "Lanes") {
					t.Errorf("refused with %v", err)
				}
			}
		}
		if agreed == 0 || refused != 2 {
			t.Errorf("%d lanes agreed on, %d workers refused", agreed, refused)
		}
		if n, err := lanes(path, 0); n != agreed || err != nil {
			t.Errorf("a worker that takes what there is: %d, %v; want %d", n, err, agreed)
		}
		if n, err := lanes(filepath.Join(t.TempDir(), "y.db"), 0); n != 256 || err != nil {
			t.Errorf("by default %d lanes, %v", n, err)
		}
		w := fresh(t, drv, patient())
		_, err := sqlite.New(w.db, &sqlite.StoreOptions{Lanes: -1, Payloads: 1 << 62, Versions: time.Hour, Room: -1})
		for _, field := range []string{"Lanes", "Payloads", "Versions", "Room"} {
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("faulty options: %v, which does not name %s", err, field)
			}
		}
	})
}

// A file of the first version keeps what it has, and gets a queue.
func TestFileOfTheFirstVersionGetsAQueue(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		path := filepath.Join(t.TempDir(), "x.db")
		db, err := sqlite.OpenDB(drv, path, patient())
		if err != nil {
			t.Fatal(err)
		}
		if err := sqlite.MigrateTo(db, 1); err != nil {
			t.Fatal(err)
		}
		w := &worker{db: db, path: path}
		w.exec(t, "CREATE TABLE business (row TEXT NOT NULL, once TEXT UNIQUE)")
		w.smuggle(t, "old")
		if _, err := sqlite.New(db, &sqlite.StoreOptions{NoMigrate: true}); err == nil || !strings.Contains(err.Error(), "version 1") {
			t.Errorf("an old schema without migrating: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		w = open(t, drv, path, patient())
		w.state(t, store.Completed, "old")
		w.append(t, store.New, numbered("a", 0))
		w.reads(t, "0")
	})
}

// What was erased is not in the file any more, once the log is in the file.
func TestErasedPayloadsAreNotInTheFile(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		subject := store.SubjectKey("tenant", []string{"customer", "7"})
		secret := func(n int) []byte { return []byte(strings.Repeat(fmt.Sprintf("secret %d of the customer; ", n), 200)) }
		for i := range 5 {
			e, item := numbered("a", i), store.Quarantined{Key: gateOf("item", strconv.Itoa(i)).Key, Payload: secret(10 + i)}
			if e.Payload = secret(i); i%2 == 0 {
				e.Subject, item.Subject = subject, subject
			}
			if _, err := w.store.Append(ctx, store.Arrival{Entries: []store.Entry{e}, Quarantined: []store.Quarantined{item}}); err != nil {
				t.Fatal(err)
			}
		}
		action := store.Action{Key: subject, Actor: "ana", Reason: "asked by letter"}
		for _, want := range []int{6, 0} {
			if n, err := w.store.Erase(ctx, action); n != want || err != nil {
				t.Fatalf("erased %d, %v; want %d", n, err, want)
			}
		}
		var decisions int
		if err := w.db.QueryRowContext(ctx, "SELECT count(*) FROM unavez_decision WHERE what = 'erase' AND actor = 'ana' AND key = ?", subject[:]).Scan(&decisions); err != nil || decisions != 2 {
			t.Errorf("%d decisions written down, %v", decisions, err)
		}
		w.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
		file, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			for _, n := range []int{i, 10 + i} {
				kept := bytes.Contains(file, []byte(fmt.Sprintf("secret %d of the customer", n)))
				if kept != (i%2 == 1) {
					t.Errorf("payload %d is in the file: %v", n, kept)
				}
			}
		}
	})
}

func TestRepetitionsOfASenderFillNoDisk(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		w.append(t, store.New, numbered("a", 0))
		again := make([]store.Entry, 600)
		for i := range again {
			again[i] = numbered("a", 0)
		}
		for range 3 {
			w.append(t, store.Duplicate, again...)
		}
		if all, err := w.store.Deliveries(t.Context(), again[0].Key, store.MaxReading); err != nil || len(all) != 1000 {
			t.Errorf("%d deliveries, %v; want 1000", len(all), err)
		}
	})
}

// One row that somebody damaged does not hide the others.
func TestEntryWithADamagedNoteIsReadWithoutIt(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		w.append(t, store.New, numbered("a", 0), numbered("a", 1))
		w.exec(t, "UPDATE unavez_queue SET note = 'damaged' WHERE id = 1")
		w.reads(t, "0", "1")
		if e, err := w.store.Load(t.Context(), numbered("a", 0).Key); err != nil || e.Note.Source != "" || e.Order != numbered("a", 0).Order {
			t.Errorf("a damaged entry: %+v, %v", e, err)
		}
		if c, err := w.store.QueueCounts(t.Context()); err != nil || c.Depth["a"] != 1 || c.Depth[""] != 1 {
			t.Errorf("counts beside a damaged entry: %+v, %v", c, err)
		}
	})
}

// Entries that a transaction of the application appends are its own statement.
func TestEnqueueInAForeignTransactionIsRefused(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		entries := []store.Entry{numbered("a", 0)}
		reader, err := w.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Rollback()
		if _, err := w.store.Enqueue(ctx, reader, entries); err == nil {
			t.Error("appended in a transaction that only reads")
		}
		foreign, err := open(t, drv, w.path, patient()).db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer foreign.Rollback()
		if _, err := w.store.Enqueue(ctx, foreign, entries); err == nil {
			t.Error("appended in a transaction of another database")
		}
		ended, err := w.db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := ended.Rollback(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Enqueue(ctx, ended, entries); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("appended in a transaction that has ended: %v", err)
		}
		w.reads(t)
	})
}

// What was too young for one purge is found by the next, which goes on behind what
// was looked at.
func TestPurgeGoesOnWhereItStood(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		for round := range 3 {
			for i := range 4 {
				e := numbered(strconv.Itoa(round), i)
				w.append(t, store.New, e)
				g := laneGate(e, store.Hold{})
				g.Retention = 1000 * 24 * time.Hour
				txn, _, err := w.store.Begin(ctx, g)
				if err == nil {
					_, err = txn.Commit(ctx, completed("x"))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if n, err := w.store.Purge(ctx, 100); err != nil || n != 0 {
				t.Fatalf("purged %d too early, %v", n, err)
			}
			w.advance(t, payloads+time.Minute)
			for _, want := range []int{3, 1, 0} {
				if n, err := w.store.Purge(ctx, 3); err != nil || n != want {
					t.Fatalf("round %d: purged %d, %v; want %d", round, n, err, want)
				}
			}
		}
	})
}

// A key whose outcome is forgotten may have another life before a purge comes: its
// old entry is not done by that, and must not be done again.
func TestForgottenEntryIsNotDoneAgain(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		e := numbered("a", 0)
		lives := map[string]func() error{
			"a claim": func() error {
				a, v, err := w.store.Claim(ctx, store.Claim{Gate: laneGate(e, store.Hold{}), Lease: time.Hour, DerivedKey: "uv1-test"})
				if err != nil || a == nil {
					return fmt.Errorf("refused: %v, %w", v.State, err)
				}
				return w.store.Rest(ctx, e.Key, a.Fence, store.Rest{State: store.Free})
			},
			"a transaction": func() error {
				w.done(t, e)
				return nil
			},
		}
		for name, begin := range lives {
			w.append(t, store.New, e)
			w.done(t, e)
			w.advance(t, 3*time.Hour) // over retention and tombstone, and not purged
			if err := begin(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			w.reads(t)
			w.advance(t, 3*time.Hour)
			if _, err := w.store.Purge(ctx, 100); err != nil {
				t.Fatal(err)
			}
			w.reads(t)
		}
	})
}

// A lane that is taken while a transaction of it has run no statement, or waits for
// its turn, is lost to that transaction, however it was begun.
func TestTransactionThatWaitsLosesItsLane(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		e := numbered("a", 0)
		end := completed("x")
		ways := map[string]func(g store.Gate) (*sql.Tx, func() error){
			"Begin": func(g store.Gate) (*sql.Tx, func() error) {
				txn, _, err := w.store.Begin(ctx, g)
				if err != nil {
					t.Fatal(err)
				}
				return txn.Tx(), func() error { _, err := txn.Commit(ctx, end); return err }
			},
			"Finish": func(g store.Gate) (*sql.Tx, func() error) {
				txn, err := w.store.Finish(ctx, g, 0)
				if err != nil {
					t.Fatal(err)
				}
				return txn.Tx(), func() error { _, err := txn.Commit(ctx, end); return err }
			},
			"BeginBatch": func(g store.Gate) (*sql.Tx, func() error) {
				batch, _, err := w.store.BeginBatch(ctx, []store.Gate{g})
				if err != nil {
					t.Fatal(err)
				}
				return batch.Tx(), func() error { _, err := batch.Commit(ctx, []*store.End{&end}); return err }
			},
			"Join": func(g store.Gate) (*sql.Tx, func() error) {
				tx, err := w.db.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				joined, _, err := w.store.Join(ctx, tx, g)
				if err != nil {
					t.Fatal(err)
				}
				return tx, func() error {
					_, err := joined.Finish(ctx, end)
					if failed := tx.Commit(); err == nil {
						err = failed
					}
					return err
				}
			},
		}
		for name, way := range ways {
			for _, writes := range []bool{false, true} {
				share, err := w.store.Keep(ctx, store.Keeping{Worker: "before " + name, Lease: time.Hour})
				if err != nil || len(share.Held) != w.store.Lanes() {
					t.Fatalf("%d lanes, %v", len(share.Held), err)
				}
				tx, commit := way(laneGate(e, share.Held[store.LaneOf(e.Order, w.store.Lanes())].Hold))
				w.advance(t, 2*time.Hour)
				if _, err := w.store.Keep(ctx, store.Keeping{Worker: "behind " + name, Lease: time.Millisecond}); err != nil {
					t.Fatal(err)
				}
				if writes {
					if err := write(ctx, tx, name); err != nil {
						t.Fatal(err)
					}
				}
				if err := commit(); !errors.Is(err, store.ErrLaneLost) {
					t.Errorf("%s, writes %v: %v, want ErrLaneLost", name, writes, err)
				}
				w.rowsAre(t)
				if v, err := w.store.Settle(ctx, e.Key); err != nil || v.State != store.Free {
					t.Errorf("%s, writes %v: %v, %v", name, writes, v.State, err)
				}
				w.advance(t, 2*time.Hour)
			}
		}
	})
}
