package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/storetest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("UNAVEZ_POSTGRES_CHILD"); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// database is one test's own, migrated.
type database struct {
	url    string
	pooler string        // of the same database behind a pooler, if workers go there
	admin  *pgxpool.Pool // a superuser
}

// fresh makes a database with a table of business rows. The schema is made by a
// member of unavez_migrate, and everything runs as unavez_app.
func fresh(t testing.TB, settings *postgres.Settings) *database {
	t.Helper()
	d := bare(t)
	d.migrate(t, settings)
	return d
}

// bare makes a database without the schema.
func bare(t testing.TB) *database {
	t.Helper()
	return prepare(t, testenv.NewDatabase(t))
}

func prepare(t testing.TB, url string) *database {
	t.Helper()
	d := &database{url: url}
	d.admin = d.pool(t, "", nil)
	d.exec(t, postgres.Roles())
	d.exec(t, "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO unavez_migrate', current_database()); END $$")
	d.exec(t, "CREATE TABLE public.business (row text NOT NULL, once text UNIQUE); GRANT ALL ON public.business TO unavez_app; GRANT USAGE ON SCHEMA public TO unavez_app")
	return d
}

func (d *database) migrate(t testing.TB, settings *postgres.Settings) {
	t.Helper()
	pool := d.pool(t, "unavez_migrate", nil)
	defer pool.Close()
	if err := postgres.Migrate(t.Context(), pool, settings); err != nil {
		t.Fatal(err)
	}
	d.flaw(t)
}

// pool opens connections as a role, or as the superuser.
func (d *database) pool(t testing.TB, role string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	address := d.url
	if role == "unavez_app" {
		address = d.app()
	}
	pool, err := open(address, role, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() { // it may have kept a connection, for which Close would wait
			go pool.Close()
			return
		}
		pool.Close()
	})
	return pool
}

// app is where workers connect.
func (d *database) app() string {
	if d.pooler != "" {
		return d.pooler
	}
	return d.url
}

func open(url, role string, change func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	// A pooler has the role by itself, and refuses to be told.
	if role != "" && config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeExec {
		config.ConnConfig.RuntimeParams["role"] = role
	}
	if change != nil {
		change(config)
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

// worker is one process's view of a database.
type worker struct {
	*postgres.Store
	pool *pgxpool.Pool
	wire *wire
}

func (d *database) worker(t testing.TB, opts *postgres.Options, changes ...func(*pgxpool.Config)) *worker {
	t.Helper()
	w := &worker{wire: &wire{}}
	w.pool = d.pool(t, "unavez_app", func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = w.wire.dial
		// A connection that was idle for a second would be asked first, which is a trip.
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		for _, change := range changes {
			change(c)
		}
	})
	var err error
	if w.Store, err = postgres.New(w.pool, opts); err != nil {
		t.Fatal(err)
	}
	return w
}

func (d *database) exec(t testing.TB, text string, args ...any) {
	t.Helper()
	if _, err := d.admin.Exec(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// ask reads one value.
func ask[T any](t *testing.T, d *database, text string, args ...any) (v T) {
	t.Helper()
	if err := d.admin.QueryRow(t.Context(), text, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func (d *database) rows(t *testing.T) []string {
	t.Helper()
	rows, err := readRows(t.Context(), d.admin)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func readRows(ctx context.Context, from interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
},
) ([]string, error) {
	rows, err := from.Query(ctx, "SELECT row FROM public.business")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func write(ctx context.Context, tx pgx.Tx, row string) error {
	_, err := tx.Exec(ctx, "INSERT INTO public.business (row) VALUES ($1)", row)
	return err
}

// advance moves every stored instant back, which is the clock moved forward.
func (d *database) advance(t *testing.T, by time.Duration) {
	t.Helper()
	for _, text := range []string{
		"UPDATE unavez.outcome_0 SET ended = ended - $1::interval, expires = expires - $1::interval, forgets = forgets - $1::interval",
		"UPDATE unavez.outcome_1 SET ended = ended - $1::interval, expires = expires - $1::interval, forgets = forgets - $1::interval",
		"UPDATE unavez.outcome_2 SET ended = ended - $1::interval, expires = expires - $1::interval, forgets = forgets - $1::interval",
		"UPDATE unavez.outcome_3 SET ended = ended - $1::interval, expires = expires - $1::interval, forgets = forgets - $1::interval",
		"UPDATE unavez.outcome_table SET ended = ended - $1::interval, expires = expires - $1::interval, forgets = forgets - $1::interval",
		"UPDATE unavez.tombstone_0 SET forgets = forgets - $1::interval",
		"UPDATE unavez.tombstone_1 SET forgets = forgets - $1::interval",
		"UPDATE unavez.tombstone_2 SET forgets = forgets - $1::interval",
		"UPDATE unavez.attempt SET expires = expires - $1::interval, due = due - $1::interval, created = created - $1::interval, changed = changed - $1::interval",
		"UPDATE unavez.transition SET at = at - $1::interval",
		"UPDATE unavez.slot SET since = since - $1::interval, until = until - $1::interval",
		"UPDATE unavez.queue_0 SET arrived = arrived - $1::interval",
		"UPDATE unavez.queue_1 SET arrived = arrived - $1::interval",
		"UPDATE unavez.queue_2 SET arrived = arrived - $1::interval",
		"UPDATE unavez.queue_3 SET arrived = arrived - $1::interval",
		"UPDATE unavez.queue_slot SET since = since - $1::interval, sealed = sealed - $1::interval",
		"UPDATE unavez.delivery SET at = at - $1::interval",
		"UPDATE unavez.quarantine SET arrived = arrived - $1::interval",
		"UPDATE unavez.lane SET expires = expires - $1::interval WHERE holder <> ''",
		"UPDATE unavez.worker SET expires = expires - $1::interval",
		"UPDATE unavez.position SET expires = expires - $1::interval",
	} {
		d.exec(t, text, by)
	}
}

// smuggle puts an outcome past the protocol, where one of a short retention
// goes, or also where one of a long retention does.
func (d *database) smuggle(t *testing.T, id store.Identity, long bool) {
	t.Helper()
	key := id.Key()
	o := store.Outcome{State: store.Completed, Result: store.Result{Code: 299}, Attempt: 1}
	// Where it would go if its retention were short, and if it were long.
	tables := []string{ask[string](t, d, "SELECT CASE WHEN slot < 0 THEN 'outcome_table' ELSE 'outcome_' || slot END FROM unavez.ledger")}
	if long && tables[0] != "outcome_table" {
		tables = append(tables, "outcome_table")
	}
	for _, table := range tables {
		d.exec(t, "INSERT INTO unavez."+table+` (key, ended, expires, forgets, code, attempt, version, state, unreplayable, operation, fingerprint, checksum, header, body)
				VALUES ($1, now(), now() + interval '1 hour', now() + interval '2 hours', 299, 1, 0, 6, false, $2, '', $3, '', '')`,
			[16]byte(key), id.Text(), o.Checksum(key))
	}
}

// common is what a harness says of a database, whatever its transactions are.
func common[Tx any](d *database) storetest.Harness[Tx] {
	return storetest.Harness[Tx]{
		Advance: d.advance,
		Rows:    d.rows,
		Damage: func(t *testing.T, key store.Key) {
			for _, table := range []string{"outcome_0", "outcome_1", "outcome_2", "outcome_3", "outcome_table"} {
				d.exec(t, "UPDATE unavez."+table+" SET body = set_byte(body, 0, get_byte(body, 0) # 1) WHERE key = $1", [16]byte(key))
			}
		},
		Smuggle: func(t *testing.T, id store.Identity) { d.smuggle(t, id, false) },
		Crash: func(t *testing.T, gate store.Gate, row string) {
			c := start(t, "hold", d.app(), append([]string{row}, gate.Identity.Parts...)...)
			defer c.kill()
			c.wait("wrote")
		},
	}
}

// harness describes a database by one of its workers.
func harness(t *testing.T, d *database, first *worker, second func(t *testing.T) *worker) storetest.Harness[pgx.Tx] {
	h := common[pgx.Tx](d)
	h.Ledger = first.Store
	h.Write = write
	h.Read = func(ctx context.Context, tx pgx.Tx) ([]string, error) { return readRows(ctx, tx) }
	h.BeginForeign = func(ctx context.Context) (pgx.Tx, func() error, func() error, error) {
		tx, err := first.pool.Begin(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // one that has ended needs none
		return tx, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }, nil
	}
	h.Second = func(t *testing.T) store.Ledger[pgx.Tx] { return second(t).Store }
	h.Savepoint = func(ctx context.Context, tx pgx.Tx) (func() error, error) {
		return func() error { return says(ctx, tx, "ROLLBACK TO mine") }, says(ctx, tx, "SAVEPOINT mine")
	}
	h.EndByHandler = endsByHandler()
	h.Abort = func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "SELECT 1/0") }
	h.LoseAnswer = func(_ *testing.T, took bool) { first.wire.lose(took) }
	return h
}

// endsByHandler are the ways in which a handler can try to end the engine's transaction.
func endsByHandler() []func(ctx context.Context, tx pgx.Tx) error {
	return []func(ctx context.Context, tx pgx.Tx) error{
		func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "COMMIT") },
		func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "rollback") },
		func(ctx context.Context, tx pgx.Tx) error {
			return says(ctx, tx, "INSERT INTO public.business (row) VALUES ('half;'); /* ; */ END")
		},
		func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("INSERT INTO public.business (row) VALUES ('half')")
			batch.Queue("COMMIT")
			return tx.SendBatch(ctx, batch).Close()
		},
		func(ctx context.Context, tx pgx.Tx) error {
			point, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return says(ctx, point, "-- end\nABORT")
		},
		// Below the transaction nothing can refuse; what it undid stays undone.
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, "ROLLBACK")
			return err
		},
	}
}

func says(ctx context.Context, tx pgx.Tx, text string) error {
	_, err := tx.Exec(ctx, text)
	return err
}

func TestStoreHoldsWhatEveryStorePromises(t *testing.T) {
	for name, change := range map[string]struct {
		config func(*pgxpool.Config)
		store  func(*worker)
		opts   *postgres.Options
	}{
		"rows": {},
		"ring": {store: func(w *worker) { postgres.SetSmall(w.Store, 0, smallTombstones) }}, // every slot of outcomes counts as large
		"lazy": {opts: &postgres.Options{Lazy: true}},
		"lazy pooler": {
			opts:   &postgres.Options{Lazy: true},
			config: func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec },
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := &beds{t: t}
			storetest.Run(t, func(t *testing.T) storetest.Harness[pgx.Tx] {
				d := all.fresh(t)
				open := func(t *testing.T) *worker {
					w := d.worker(t, change.opts, func(c *pgxpool.Config) {
						if change.config != nil {
							change.config(c)
						}
					})
					if change.store != nil {
						change.store(w)
					}
					return w
				}
				h := harness(t, d, open(t), open)
				if change.opts != nil && change.opts.Lazy {
					h.Ledger = &leading{Store: h.Ledger.(*postgres.Store)}
					h.Second = func(t *testing.T) store.Ledger[pgx.Tx] { return &leading{Store: open(t).Store} }
				}
				return h
			})
		})
	}
}

// smallTombstones leaves the tombstones' own ring as it is.
const smallTombstones = 1 << 20

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

// child is the other worker's program.
func child(role string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "child %s: %v\n", role, err)
			os.Exit(1)
		}
	}
	url, row, parts := os.Args[1], os.Args[2], os.Args[3:]
	hold := &holding{sends: role == "commit sent"}
	pool, err := open(url, "unavez_app", func(c *pgxpool.Config) { c.ConnConfig.DialFunc = hold.dial })
	fail(err)
	s, err := postgres.New(pool, nil)
	fail(err)
	gate := gateOf(parts...)
	if role == "stopped" {
		gate.Limit = time.Second
	}
	fence := int64(0)
	if role == "claim" || role == "finish" {
		attempt, v, err := s.Claim(ctx, store.Claim{Gate: gate, Lease: time.Minute})
		fail(err)
		if attempt == nil {
			fail(errors.New("claim: " + v.State.String()))
		}
		fence = attempt.Fence
	}
	var txn store.Txn[pgx.Tx]
	switch role {
	case "claim":
	case "finish":
		txn, err = s.Finish(ctx, gate, fence)
		fail(err)
	default:
		var v store.Verdict
		txn, v, err = s.Begin(ctx, gate)
		fail(err)
		if txn == nil {
			fail(errors.New("begin: " + v.State.String()))
		}
	}
	if role != "claim" && role != "gate" {
		fail(write(ctx, txn.Tx(), row))
	}
	if role == "commit sent" || role == "commit held" {
		hold.armed.Store(true)
		_, err := txn.Commit(ctx, completed(row))
		fail(err)
	}
	if role == "committed" {
		_, err := txn.Commit(ctx, completed(row))
		fail(err)
	}
	fmt.Println("wrote")
	if role == "stopped" { // goes on when it is told that its key was free
		_, err := io.ReadAll(os.Stdin)
		fail(err)
		_, err = txn.Commit(ctx, completed(row))
		if !errors.Is(err, store.ErrLimit) {
			fail(fmt.Errorf("commit: %w", err))
		}
		fmt.Println("refused")
	}
	select {}
}
