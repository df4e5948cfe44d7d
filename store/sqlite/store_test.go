package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	ncruces "github.com/ncruces/go-sqlite3/driver"
	"go.uber.org/goleak"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
	"github.com/unavez/unavez/store/storetest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("UNAVEZ_SQLITE_CHILD"); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// drivers are the drivers that every test here runs on.
func drivers() map[string]driver.Driver {
	return map[string]driver.Driver{"modernc": &modernc.Driver{}, "ncruces": &ncruces.SQLite{}}
}

// each runs a test on every driver.
func each(t *testing.T, run func(t *testing.T, drv driver.Driver)) {
	t.Parallel()
	for name, drv := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, drv)
		})
	}
}

// worker is one process's view of a database.
type worker struct {
	db    *sql.DB
	store *sqlite.Store
	path  string
}

// patient is for tests in which a busy machine must not reach a limit.
func patient() *sqlite.Options {
	return &sqlite.Options{HandlerLimit: time.Minute, TransactionLimit: time.Minute, BusyTimeout: time.Minute}
}

func open(t *testing.T, drv driver.Driver, path string, opts *sqlite.Options) *worker {
	t.Helper()
	db, err := sqlite.OpenDB(drv, path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	s, err := sqlite.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &worker{db: db, store: s, path: path}
}

// fresh is a worker on a new file with a table of business rows.
func fresh(t *testing.T, drv driver.Driver, opts *sqlite.Options) *worker {
	t.Helper()
	w := open(t, drv, filepath.Join(t.TempDir(), "a ?%b.db"), opts)
	w.exec(t, "CREATE TABLE business (row TEXT NOT NULL, once TEXT UNIQUE)")
	return w
}

// together is fresh with groups that take in whoever comes, however long that takes
// on a busy machine.
func together(t *testing.T, drv driver.Driver) *worker {
	t.Helper()
	w := fresh(t, drv, patient())
	sqlite.KeepGroupsOpen(w.db)
	return w
}

func (w *worker) exec(t *testing.T, text string, args ...any) {
	t.Helper()
	if _, err := w.db.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func (w *worker) rows(t *testing.T) []string {
	t.Helper()
	rows, err := readRows(t.Context(), w.db)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func readRows(ctx context.Context, from interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
},
) (out []string, err error) {
	rows, err := from.QueryContext(ctx, "SELECT row FROM business")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var row string
		if err := rows.Scan(&row); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

func write(ctx context.Context, tx *sql.Tx, row string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO business (row) VALUES (?)", row)
	return err
}

// advance moves every stored instant back, which is the clock moved forward.
func (w *worker) advance(t *testing.T, d time.Duration) {
	t.Helper()
	ms := d.Milliseconds()
	w.exec(t, "UPDATE unavez_outcome SET at = at - ?1, expires = expires - ?1, forgets = forgets - ?1", ms)
	w.exec(t, "UPDATE unavez_tombstone SET forgets = forgets - ?1", ms)
	w.exec(t, "UPDATE unavez_attempt SET expires = expires - ?1, due = due - ?1, created = created - ?1, changed = changed - ?1", ms)
	w.exec(t, "UPDATE unavez_transition SET at = at - ?1", ms)
	w.exec(t, "UPDATE unavez_queue SET arrived = arrived - ?1", ms)
	w.exec(t, "UPDATE unavez_delivery SET at = at - ?1", ms)
	w.exec(t, "UPDATE unavez_quarantine SET arrived = arrived - ?1", ms)
	w.exec(t, "UPDATE unavez_lane SET expires = expires - ?1", ms)
	w.exec(t, "UPDATE unavez_worker SET expires = expires - ?1", ms)
	w.exec(t, "UPDATE unavez_position SET expires = expires - ?1", ms)
	w.exec(t, "UPDATE unavez_version SET day = day - ?1 / 86400000", ms)
}

func harness(t *testing.T, drv driver.Driver) storetest.Harness[*sql.Tx] {
	w := fresh(t, drv, patient())
	other := func(t *testing.T) *worker { return open(t, drv, w.path, patient()) }
	return storetest.Harness[*sql.Tx]{
		Ledger:  w.store,
		Advance: w.advance,
		Write:   write,
		Read: func(ctx context.Context, tx *sql.Tx) ([]string, error) {
			return readRows(ctx, tx)
		},
		Rows: w.rows,
		BeginForeign: func(ctx context.Context) (*sql.Tx, func() error, func() error, error) {
			tx, err := w.db.BeginTx(ctx, nil)
			if err != nil {
				return nil, nil, nil, err
			}
			return tx, tx.Commit, tx.Rollback, nil
		},
		Damage: func(t *testing.T, key store.Key) {
			w.exec(t, "UPDATE unavez_outcome SET body = CAST('X' || substr(CAST(body AS TEXT), 2) AS BLOB) WHERE key = ?", key[:])
		},
		Smuggle: func(t *testing.T, id store.Identity) {
			key := id.Key()
			o := store.Outcome{State: store.Completed, Result: store.Result{Code: 299}, Attempt: 1}
			other(t).exec(t, `INSERT INTO unavez_outcome (key, operation, state, attempt, at, expires, forgets, code, unreplayable, version, checksum)
				VALUES (?, ?, 6, 1, unixepoch() * 1000, unixepoch() * 1000 + 3600000, unixepoch() * 1000 + 7200000, 299, 0, 0, ?)`,
				key[:], id.Text(), o.Checksum(key))
		},
		Second: func(t *testing.T) store.Ledger[*sql.Tx] { return other(t).store },
		Savepoint: func(ctx context.Context, tx *sql.Tx) (func() error, error) {
			if _, err := tx.ExecContext(ctx, "SAVEPOINT mine"); err != nil {
				return nil, err
			}
			return func() error {
				_, err := tx.ExecContext(ctx, "ROLLBACK TO mine")
				return err
			}, nil
		},
		EndByHandler: []func(ctx context.Context, tx *sql.Tx) error{
			func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
			func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
			func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "COMMIT")
				return err
			},
			func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO business (row) VALUES ('half'); ROLLBACK")
				return err
			},
		},
		Abort: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO business (row, once) VALUES ('aborted', 'x'), ('aborted', 'x')")
			return err
		},
		LoseAnswer: func(t *testing.T, took bool) {
			step := map[bool]string{true: "committed", false: "commit"}[took]
			lost := false
			sqlite.SetFault(w.db, func(at string) error {
				if at != step || lost {
					return nil
				}
				lost = true
				return errors.New("the answer is lost")
			})
		},
		Crash: func(t *testing.T, gate store.Gate, row string) {
			c := start(t, "hold", drv, w.path, gate.Identity.Parts...)
			defer c.kill()
			c.wait("wrote " + row)
		},
	}
}

func TestStoreHoldsWhatEveryStorePromises(t *testing.T) {
	for name, drv := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Harness[*sql.Tx] { return harness(t, drv) })
		})
	}
}

// process is another worker: this test program, started anew.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
}

// nameOf is the driver's name in drivers.
func nameOf(drv driver.Driver) string {
	if _, ok := drv.(*ncruces.SQLite); ok {
		return "ncruces"
	}
	return "modernc"
}

// start runs a role of child in a process of its own.
func start(t *testing.T, role string, drv driver.Driver, path string, parts ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{nameOf(drv), path}, parts...)...)
	cmd.Env = append(os.Environ(), "UNAVEZ_SQLITE_CHILD="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{t, cmd, bufio.NewScanner(out)}
}

// wait reads what the process says until it says want.
func (p *process) wait(want string) {
	p.t.Helper()
	for p.out.Scan() {
		if p.out.Text() == want {
			return
		}
	}
	p.t.Fatalf("process ended without saying %q: %v", want, p.out.Err())
}

// kill ends the process without a goodbye and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	_ = p.cmd.Wait()         // it was killed
}

// child is the other worker's program.
func child(role string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "child %s: %v\n", role, err)
			os.Exit(1)
		}
	}
	drv, path, parts := drivers()[os.Args[1]], os.Args[2], os.Args[3:]
	db, err := sqlite.OpenDB(drv, path, patient())
	fail(err)
	s, err := sqlite.New(db, nil)
	fail(err)
	gate := gateOf(parts...)
	switch role {
	case "hold": // stand still inside a transaction
		txn, v, err := s.Begin(ctx, gate)
		fail(err)
		if txn == nil {
			fail(fmt.Errorf("begin: %v", v.State))
		}
		fail(write(ctx, txn.Tx(), parts[0]))
		fmt.Println("wrote " + parts[0])
		select {}
	case "queue":
		fail(queueChild(s, parts[0], parts[1]))
	case "write": // one operation, which may fail
		txn, _, err := s.Begin(ctx, gate)
		fail(err)
		fail(write(ctx, txn.Tx(), parts[0]))
		_, err = txn.Commit(ctx, completed("x"))
		fail(err)
	case "count": // run operations until killed
		for i := 0; ; i++ {
			gate := gateOf(parts[0], fmt.Sprint(i))
			txn, v, err := s.Begin(ctx, gate)
			fail(err)
			if txn == nil && v.State == store.Completed {
				fmt.Printf("done %d\n", i)
				continue
			}
			if txn == nil && v.State == store.Processing {
				i-- // the other worker has it
				runtime.Gosched()
				continue
			}
			if txn == nil {
				fail(fmt.Errorf("begin: %v", v.State))
			}
			fail(write(ctx, txn.Tx(), fmt.Sprintf("%s %d", parts[0], i)))
			_, err = txn.Commit(ctx, completed("x"))
			fail(err)
			fmt.Printf("done %d\n", i)
		}
	}
}

func gateOf(parts ...string) store.Gate {
	id := store.Identity{Tenant: "tenant", Effect: "order.create.v1", Parts: parts}
	return store.Gate{
		Identity: id, Key: id.Key(), Fingerprint: store.Fingerprint{Version: 1, Sum: []byte("fingerprint")},
		Limit: time.Minute, Retention: time.Hour, Tombstone: time.Hour,
	}
}

func completed(body string) store.End {
	return store.End{State: store.Completed, Result: store.Result{Code: 201, Body: []byte(body)}}
}
