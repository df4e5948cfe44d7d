package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

func TestDatabaseServesTheApplicationToo(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		result, err := w.db.ExecContext(ctx, "INSERT INTO business (row) VALUES (?), (?)", "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := result.RowsAffected(); err != nil || n != 2 {
			t.Errorf("%d rows affected, %v", n, err)
		}
		if id, err := result.LastInsertId(); err != nil || id != 2 {
			t.Errorf("last id %d, %v", id, err)
		}
		var row string
		if err := w.db.QueryRowContext(ctx, "INSERT INTO business (row) VALUES ('c') RETURNING row").Scan(&row); err != nil || row != "c" {
			t.Errorf("insert returning: %q, %v", row, err)
		}
		if err := w.db.QueryRowContext(ctx, "WITH x(v) AS (VALUES ('d')) INSERT INTO business (row) SELECT v FROM x RETURNING row").Scan(&row); err != nil || row != "d" {
			t.Errorf("insert behind with: %q, %v", row, err)
		}
		if err := w.db.QueryRowContext(ctx, "WITH x(v) AS (VALUES (?)) SELECT v FROM x", "read").Scan(&row); err != nil || row != "read" {
			t.Errorf("select behind with: %q, %v", row, err)
		}
		if err := w.db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&row); err != nil || row != "wal" {
			t.Errorf("pragma: %q, %v", row, err)
		}
		for _, name := range []string{"foreign_keys", "query_only"} {
			var on int
			if err := w.db.QueryRowContext(ctx, "PRAGMA "+name).Scan(&on); err != nil || on != 1 {
				t.Errorf("pragma %s of a reader: %d, %v", name, on, err)
			}
		}
		// Another worker sees each of them: they are committed.
		open(t, drv, w.path, patient()).rowsAre(t, "a", "b", "c", "d")
		stmt, err := w.db.PrepareContext(ctx, "INSERT INTO business (row) VALUES (?)")
		if err != nil {
			t.Fatal(err)
		}
		defer stmt.Close()
		for range 3 {
			if _, err := stmt.ExecContext(ctx, "p"); err != nil {
				t.Error(err)
			}
		}
		if _, err := stmt.ExecContext(ctx); err == nil {
			t.Error("a missing argument is none")
		}
		if _, err := w.db.PrepareContext(ctx, "SELEC"); err == nil {
			t.Error("a syntax error does not show when the statement is prepared")
		}
		for _, text := range []string{"VACUUM", "PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA user_version = 7", "ANALYZE"} {
			if _, err := w.db.ExecContext(ctx, text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
		var version int
		if err := w.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil || version != 7 {
			t.Errorf("user_version %d, %v", version, err)
		}
		for _, text := range []string{"BEGIN", "COMMIT", "ROLLBACK", "INSERT INTO business (row) VALUES ('x'); COMMIT", "PRAGMA journal_mode = DELETE", "PRAGMA synchronous = OFF", "ATTACH 'x.db' AS x"} {
			if _, err := w.db.ExecContext(ctx, text); err == nil {
				t.Errorf("%s: no error", text)
			}
		}
		// A script is whole or nothing.
		if _, err := w.db.ExecContext(ctx, "INSERT INTO business (row) VALUES ('half'); INSERT INTO nowhere VALUES (1)"); err == nil {
			t.Error("a script with a fault: no error")
		}
		w.rowsAre(t, "a", "b", "c", "d", "p", "p", "p")
		if err := w.db.PingContext(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestTransactionsOfTheApplication(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		ctx := t.Context()
		look, err := w.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := w.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			t.Fatal(err)
		}
		if err := write(ctx, tx, "one"); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "one")
		// The snapshot is from when it was opened.
		if rows, err := readRows(ctx, look); err != nil || len(rows) != 0 {
			t.Errorf("snapshot: %q, %v", rows, err)
		}
		if err := write(ctx, look, "no"); err == nil || !strings.Contains(err.Error(), "read only") {
			t.Errorf("write in a transaction that only reads: %v", err)
		}
		if _, _, err := w.store.Join(ctx, look, gateOf("one")); err == nil {
			t.Error("joined a transaction that only reads")
		}
		if err := look.Commit(); err != nil {
			t.Error(err)
		}

		// Rows of one statement inside rows of the same.
		tx, err = w.db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(ctx, tx, "two"); err != nil {
			t.Fatal(err)
		}
		pairs := 0
		outer, err := tx.QueryContext(ctx, "SELECT row FROM business")
		if err != nil {
			t.Fatal(err)
		}
		for outer.Next() {
			inner, err := tx.QueryContext(ctx, "SELECT row FROM business")
			if err != nil {
				t.Fatal(err)
			}
			for inner.Next() {
				pairs++
			}
			if err := errors.Join(inner.Err(), inner.Close()); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(outer.Err(), outer.Close()); err != nil || pairs != 4 {
			t.Errorf("%d pairs, %v", pairs, err)
		}
		types, err := columnTypes(ctx, tx)
		if err != nil || types != "TEXT" {
			t.Errorf("column type %q, %v", types, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		w.rowsAre(t, "one")

		// A context that ends before the commit ends the transaction.
		short, cancel := context.WithCancel(ctx)
		tx, err = w.db.BeginTx(short, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(ctx, tx, "cancelled"); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := tx.Commit(); err == nil {
			t.Error("commit after its context's end: no error")
		}
		w.exec(t, "INSERT INTO business (row) VALUES ('next')")
		w.rowsAre(t, "one", "next")

		other, err := sql.Open(map[string]string{"modernc": "sqlite", "ncruces": "sqlite3"}[nameOf(drv)], filepath.Join(t.TempDir(), "other.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := sqlite.New(other, nil); err == nil || !strings.Contains(err.Error(), "sqlite.OpenDB") {
			t.Errorf("a database opened otherwise: %v", err)
		}
		foreign, err := other.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer foreign.Rollback()
		if _, _, err := w.store.Join(ctx, foreign, gateOf("one")); err == nil {
			t.Error("joined a transaction of another database")
		}
	})
}

func columnTypes(ctx context.Context, tx *sql.Tx) (string, error) {
	rows, err := tx.QueryContext(ctx, "SELECT row FROM business")
	if err != nil {
		return "", err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return "", err
	}
	return types[0].DatabaseTypeName(), rows.Err()
}

func TestTransactionOverItsLimitLosesTheTurn(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.TransactionLimit = 50 * time.Millisecond
		w := fresh(t, drv, opts)
		tx, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(t.Context(), tx, "stuck"); err != nil {
			t.Fatal(err)
		}
		txn := w.begin(t, "other")
		w.write(t, txn, "other")
		if e := <-commit(t, txn, "x"); e.err != nil {
			t.Fatal(e.err)
		}
		if err := tx.Commit(); !errors.Is(err, store.ErrLimit) {
			t.Errorf("commit over the limit: %v, want ErrLimit", err)
		}
		w.rowsAre(t, "other")
	})
}

// Locked never reaches a caller: not with two workers that read, write, and
// write in transactions at once.
func TestNobodyHearsThatTheDatabaseIsLocked(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.BusyTimeout = 0 // the default
		a := fresh(t, drv, opts)
		b := open(t, drv, a.path, opts)
		ctx := t.Context()
		var wg sync.WaitGroup
		for n, w := range []*worker{a, b} {
			for c := range 4 {
				wg.Go(func() {
					for i := range 25 {
						name := fmt.Sprint(n, c, i)
						var err error
						switch c {
						case 0:
							_, err = w.db.ExecContext(ctx, "INSERT INTO business (row) VALUES (?)", name)
						case 1:
							_, err = readRows(ctx, w.db)
							w.db.QueryRowContext(ctx, "INSERT INTO business (row) VALUES (?) RETURNING row", name).Scan(&name)
						case 2:
							var tx *sql.Tx
							if tx, err = w.db.BeginTx(ctx, nil); err == nil {
								_, err = readRows(ctx, tx)
								err = errors.Join(err, write(ctx, tx, name), tx.Commit())
							}
						case 3:
							txn := w.begin(t, name)
							err = write(ctx, txn.Tx(), name)
							_, failed := txn.Commit(ctx, completed("x"))
							err = errors.Join(err, failed)
						}
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
				})
			}
		}
		wg.Wait()
		if n := len(a.rows(t)); n != 200 {
			t.Errorf("%d rows, want 200", n)
		}
	})
}

func TestDatabaseIsOpenedOnAFileOnly(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		for _, path := range []string{"", ":memory:", "file:x.db?mode=memory", "file::memory:"} {
			if db, err := sqlite.OpenDB(drv, path, nil); err == nil {
				t.Errorf("%q: opened", path)
				db.Close()
			}
		}
		if _, err := sqlite.OpenDB(drv, filepath.Join(t.TempDir(), "no such folder", "x.db"), nil); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("missing folder: %v", err)
		}
		opts := &sqlite.Options{HandlerLimit: -1, GroupSize: -1, MaxReaders: 1 << 20, Synchronous: 9}
		_, err := sqlite.OpenDB(drv, filepath.Join(t.TempDir(), "x.db"), opts)
		for _, field := range []string{"HandlerLimit", "GroupSize", "MaxReaders", "Synchronous"} {
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("faulty options: %v, which does not name %s", err, field)
			}
		}
		// Two names of one file have one gate.
		dir := t.TempDir()
		a := open(t, drv, filepath.Join(dir, "x.db"), patient())
		link := filepath.Join(dir, "link.db")
		if err := os.Symlink(filepath.Join(dir, "x.db"), link); err != nil {
			t.Fatal(err)
		}
		b := open(t, drv, link, patient())
		txn := a.begin(t, "one")
		b.state(t, store.Processing, "one")
		if err := txn.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseEndsWhatIsOpen(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		txn := w.begin(t, "one")
		w.write(t, txn, "one")
		waits := w.begin(t, "two")
		blocked := make(chan error, 1)
		go func() { blocked <- write(context.Background(), waits.Tx(), "two") }()
		eventually(t, "second unit waits", func() bool { return sqlite.Waiting(w.db) == 1 })
		if err := w.db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-blocked; !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("statement that waited: %v", err)
		}
		for name, txn := range map[string]store.Txn[*sql.Tx]{"one": txn, "two": waits} {
			if _, err := txn.Commit(t.Context(), completed("x")); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("commit of %s: %v", name, err)
			}
		}
		if _, _, err := w.store.Begin(t.Context(), gateOf("three")); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("begin: %v", err)
		}
		if err := w.store.Close(); err != nil {
			t.Errorf("close of the store: %v", err)
		}
		again := open(t, drv, w.path, patient())
		again.rowsAre(t)
		again.state(t, store.Free, "one")
		if err := again.store.Close(); err != nil {
			t.Error(err)
		}
	})
}
