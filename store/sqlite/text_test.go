package sqlite_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// commits are ways to end a transaction by text.
func commits() []string {
	return []string{
		"COMMIT", "commit;", " \t\r\n\fCoMmIt", " \vCOMMIT", " \v ROLLBACK", "SELECT 1; \vCOMMIT", "SELECT $a('); COMMIT; --')", "SELECT @a::b(\"); COMMIT; --)", "END", "END TRANSACTION", "COMMIT TRANSACTION", "ROLLBACK", "ROLLBACK TRANSACTION", "BEGIN", "BEGIN IMMEDIATE",
		"-- a comment\nCOMMIT", "/* a comment */ COMMIT", "/**/COMMIT", "/*/ still one */COMMIT", "\ufeffCOMMIT", ";COMMIT", ";;;\ufeff;COMMIT",
		"SELECT 1; COMMIT", "SELECT ';'; COMMIT", "SELECT \";\"; COMMIT", "SELECT `;`; COMMIT", "SELECT [;]; COMMIT", "SELECT 'it''s;'; COMMIT", "SELECT x'00'; COMMIT",
		"SELECT 'a' -- '\n; COMMIT", "SELECT 1 /* ; */; COMMIT", "SELECT 1 --;\n;COMMIT--",
		"CREATE TRIGGER t AFTER INSERT ON business BEGIN SELECT 1; END; COMMIT",
		"CREATE TEMP TRIGGER t AFTER INSERT ON business BEGIN SELECT CASE WHEN 1 THEN 2 END; SELECT 2; END; COMMIT",
		"CREATE TEMPORARY TRIGGER t AFTER INSERT ON business BEGIN SELECT 1; /* x */ END /* y */ ; COMMIT",
		"CREATE TABLE trigger_begin (a); COMMIT",
		"RELEASE unavez_unit", "RELEASE SAVEPOINT unavez_unit", "RELEASE \"UNAVEZ_unit\"", "RELEASE [unavez_unit]", "RELEASE 'unavez_unit'", "release savepoint `unavez_unit`",
		"ROLLBACK TO unavez_unit", "ROLLBACK TO SAVEPOINT unavez_unit", "ROLLBACK TRANSACTION TO SAVEPOINT unavez_unit", "ROLLBACK TRANSACTION TO unavez_unit",
		"SAVEPOINT unavez_unit", "INSERT INTO business (row) VALUES ('x'); END",
	}
}

func TestTextCannotEndAHandlersTransaction(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for i, text := range commits() {
			if err := sqlite.Refused(text); !errors.Is(err, store.ErrForeignCommit) {
				t.Errorf("%q: %v, want ErrForeignCommit", text, err)
				continue
			}
			txn := w.begin(t, fmt.Sprint(i))
			w.write(t, txn, "half")
			var err error
			if i%2 == 0 {
				_, err = txn.Tx().ExecContext(t.Context(), text)
			} else {
				_, err = txn.Tx().PrepareContext(t.Context(), text)
			}
			if !errors.Is(err, store.ErrForeignCommit) {
				t.Errorf("%q: %v, want ErrForeignCommit", text, err)
			}
			if _, err := txn.Commit(t.Context(), completed("x")); !errors.Is(err, store.ErrForeignCommit) {
				t.Errorf("commit after %q: %v, want ErrForeignCommit", text, err)
			}
			w.rowsAre(t)
			w.state(t, store.Free, fmt.Sprint(i))
		}
	})
}

func TestTextThatDoesNotBelongInATransactionIsRefused(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		txn := w.begin(t, "one")
		for _, text := range []string{
			"PRAGMA journal_mode = DELETE", "PRAGMA main.journal_mode = DELETE", "PRAGMA \"journal_mode\" = DELETE", "pragma synchronous(0)", "PRAGMA foreign_keys = 0",
			"PRAGMA defer_foreign_keys = 1", "PRAGMA wal_checkpoint", "PRAGMA optimize", "PRAGMA unheard_of", "SELECT 1; PRAGMA synchronous = 0",
			"EXPLAIN PRAGMA query_only = 1", "EXPLAIN QUERY PLAN PRAGMA locking_mode = exclusive", "explain pragma main.writable_schema = 1", " \vPRAGMA query_only = 1",
			"VACUUM", "VACUUM INTO 'x'", "ATTACH 'other.db' AS other", "DETACH main",
		} {
			if _, err := txn.Tx().ExecContext(t.Context(), text); err == nil || errors.Is(err, store.ErrForeignCommit) {
				t.Errorf("%s: %v, want a refusal", text, err)
			}
		}
		// The unit goes on, and its own savepoints are its own.
		for _, text := range []string{
			"INSERT INTO business (row) VALUES ('kept')", "SAVEPOINT mine", "INSERT INTO business (row) VALUES ('undone')", "ROLLBACK TO mine", "RELEASE mine",
			"SAVEPOINT \"a;b\"", "ROLLBACK TRANSACTION TO SAVEPOINT \"a;b\"", "RELEASE SAVEPOINT \"a;b\"",
			"PRAGMA table_info(business)", "PRAGMA main.user_version", "EXPLAIN COMMIT",
			"CREATE TABLE begin_end (\"commit\" TEXT)", "INSERT INTO begin_end (\"commit\") VALUES ('; COMMIT; --')",
			"CREATE TRIGGER t AFTER INSERT ON business BEGIN INSERT INTO begin_end VALUES ('x'); SELECT CASE WHEN 1 THEN 2 END; END",
			"INSERT INTO begin_end SELECT 1 FROM business; ; -- nothing\n", "",
		} {
			if _, err := txn.Tx().ExecContext(t.Context(), text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
		if _, err := txn.Commit(t.Context(), completed("x")); err != nil {
			t.Fatal(err)
		}
		w.rowsAre(t, "kept")
	})
}

func TestStatementsAreCountedAsSQLiteDoes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, ";": 0, "-- x": 0, "/* ; */": 0, "/* open ; SELECT 1": 0, "SELECT 1": 1, "SELECT 1;": 1, "SELECT 1; -- x": 1, "SELECT ';'": 1,
		"SELECT 1; SELECT 2": 2, "CREATE TRIGGER a AFTER INSERT ON b BEGIN SELECT 1; SELECT 2; END": 1,
		"CREATE TRIGGER a AFTER INSERT ON b BEGIN SELECT 1; END; SELECT 2": 2, "EXPLAIN QUERY PLAN CREATE TRIGGER a AFTER INSERT ON b BEGIN SELECT 1; END": 1,
		"SELECT 'open ; SELECT 1": 1, "SELECT 1 / 2; SELECT 3": 2, "SELECT a->>'$.b;c'": 1,
	} {
		if got := sqlite.Statements(text); got != want {
			t.Errorf("%q: %d statements, want %d", text, got, want)
		}
	}
}

// FuzzText: whatever a handler runs, it commits nothing by itself.
func FuzzText(f *testing.F) {
	for _, text := range commits() {
		f.Add(text)
	}
	f.Add("INSERT OR ROLLBACK INTO business (row, once) VALUES ('a', 'x'), ('a', 'x'); INSERT INTO business (row) VALUES ('stray')")
	db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(f.TempDir(), "fuzz.db"), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	s, err := sqlite.New(db, nil)
	if err != nil {
		f.Fatal(err)
	}
	w := &worker{db: db, store: s}
	if _, err := db.Exec("CREATE TABLE business (row TEXT NOT NULL, once TEXT UNIQUE)"); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		txn := w.begin(t, "one")
		w.write(t, txn, "half")
		if _, err := txn.Tx().ExecContext(t.Context(), text); err != nil {
			t.Logf("refused: %v", err)
		}
		if err := txn.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		w.rowsAre(t)
		w.state(t, store.Free, "one")
	})
}

func TestAnalyzeIsAWrite(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		w.exec(t, "INSERT INTO business (row) VALUES ('a')")
		txn := w.begin(t, "one")
		if _, err := txn.Tx().ExecContext(t.Context(), "ANALYZE"); err != nil {
			t.Fatal(err)
		}
		end := completed("no")
		end.Unwritten = true
		if _, err := txn.Commit(t.Context(), end); !errors.Is(err, store.ErrWrote) {
			t.Errorf("commit of nothing after ANALYZE: %v, want ErrWrote", err)
		}
	})
}
