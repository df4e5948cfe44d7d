package fault_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// names of the workers of all flows; each has a store of its own.
func names() []string { return []string{"before", "one", "two", "three", "rest"} }

// must ends a test that cannot be prepared.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onSQLite is a bed on a file, with a connection of its own for each worker.
func onSQLite(t *testing.T) *bed[*sql.Tx] {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fault.db")
	dbs, stores := map[string]*sql.DB{}, map[string]*sqlite.Store{}
	for _, name := range append(names(), "") {
		// Who stands still inside a transaction keeps the others waiting, for so long.
		db, err := sqlite.OpenDB(&modernc.Driver{}, path, &sqlite.Options{BusyTimeout: 2 * quiet})
		must(t, err)
		t.Cleanup(func() { must(t, db.Close()) })
		dbs[name] = db
		stores[name], err = sqlite.New(db, nil)
		must(t, err)
	}
	outside := dbs[""]
	exec := func(text string, args ...any) {
		_, err := outside.ExecContext(t.Context(), text, args...)
		must(t, err)
	}
	exec("CREATE TABLE effect (op BLOB NOT NULL, run TEXT NOT NULL, payload TEXT NOT NULL)")
	return &bed[*sql.Tx]{
		store: stores[""], of: func(worker string) backing[*sql.Tx] { return stores[worker] },
		now: time.Now,
		write: func(ctx context.Context, tx *sql.Tx, op store.Key, run, payload string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (op, run, payload) VALUES (?, ?, ?)", op[:], run, payload)
			return err
		},
		rows: func(op store.Key) map[string]string {
			rows, err := outside.QueryContext(t.Context(), "SELECT run, payload FROM effect WHERE op = ?", op[:])
			must(t, err)
			defer rows.Close()
			all := map[string]string{}
			for rows.Next() {
				var run, payload string
				must(t, rows.Scan(&run, &payload))
				all[run] = payload
			}
			must(t, rows.Err())
			return all
		},
		begin: func(ctx context.Context, worker string) (*sql.Tx, func() error, func() error, error) {
			tx, err := dbs[worker].BeginTx(ctx, nil)
			if err != nil {
				return nil, nil, nil, err
			}
			return tx, tx.Commit, tx.Rollback, nil
		},
		jump: func(op store.Key, d time.Duration) {
			const text = "UPDATE unavez_attempt SET expires = expires - ?1, due = due - ?1, created = created - ?1, changed = changed - ?1 WHERE key = ?2"
			_, err := outside.ExecContext(t.Context(), text, d.Milliseconds(), op[:])
			if !errors.Is(err, store.ErrUnavailable) { // somebody stands still inside a transaction: the clock stands too
				must(t, err)
			}
		},
	}
}

// onPostgres is a bed on a database of its own.
func onPostgres(t *testing.T, opts *postgres.Options) *bed[pgx.Tx] {
	t.Helper()
	url := testenv.NewDatabase(t)
	pool := func(role string) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(url)
		must(t, err)
		config.MaxConns = 8
		if role != "" {
			config.ConnConfig.RuntimeParams["role"] = role
		}
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		t.Cleanup(p.Close)
		return p
	}
	admin := pool("")
	exec := func(text string, args ...any) {
		_, err := admin.Exec(t.Context(), text, args...)
		must(t, err)
	}
	exec(postgres.Roles())
	exec("DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO unavez_migrate', current_database()); END $$")
	exec("CREATE TABLE public.effect (op uuid NOT NULL, run text NOT NULL, payload text NOT NULL); GRANT ALL ON public.effect TO unavez_app; GRANT USAGE ON SCHEMA public TO unavez_app")
	must(t, postgres.Migrate(t.Context(), pool("unavez_migrate"), nil))
	pools, stores := map[string]*pgxpool.Pool{}, map[string]*postgres.Store{}
	for _, name := range append(names(), "") {
		var err error
		pools[name] = pool("unavez_app")
		stores[name], err = postgres.New(pools[name], opts)
		must(t, err)
	}
	return &bed[pgx.Tx]{
		store: stores[""], of: func(worker string) backing[pgx.Tx] { return stores[worker] },
		now: time.Now,
		write: func(ctx context.Context, tx pgx.Tx, op store.Key, run, payload string) error {
			_, err := tx.Exec(ctx, "INSERT INTO public.effect (op, run, payload) VALUES ($1, $2, $3)", [16]byte(op), run, payload)
			return err
		},
		rows: func(op store.Key) map[string]string {
			rows, err := admin.Query(t.Context(), "SELECT run, payload FROM public.effect WHERE op = $1", [16]byte(op))
			must(t, err)
			all := map[string]string{}
			var run, payload string
			_, err = pgx.ForEachRow(rows, []any{&run, &payload}, func() error {
				all[run] = payload
				return nil
			})
			must(t, err)
			return all
		},
		begin: func(ctx context.Context, worker string) (pgx.Tx, func() error, func() error, error) {
			tx, err := pools[worker].Begin(ctx)
			if err != nil {
				return nil, nil, nil, err
			}
			end := context.WithoutCancel(ctx)
			return tx, func() error { return tx.Commit(end) }, func() error { return tx.Rollback(end) }, nil
		},
		jump: func(op store.Key, d time.Duration) {
			exec("UPDATE unavez.attempt SET expires = expires - $1::interval, due = due - $1::interval, created = created - $1::interval, changed = changed - $1::interval WHERE key = $2", d, [16]byte(op))
		},
	}
}

// realFlows are those that run on every database: the first of them in the short
// run too.
func realFlows[Tx any](where string) []*flow[Tx] {
	all := []*flow[Tx]{
		doFlow[Tx](), joinFlow[Tx](), leaseFlow[Tx]("probe", probing()), redriveFlow[Tx](),
		refuseFlow[Tx](), leaseFlow[Tx]("hold", unavez.Hold), leaseFlow[Tx]("retry", unavez.Retry), leaseFlow[Tx]("steps", unavez.Steps),
		retryFlow[Tx](), takeoverFlow[Tx](), personFlow[Tx](), httpFlow[Tx](),
	}
	if !*long {
		all = all[:4]
	}
	for _, f := range all {
		f.name += " on " + where
		f.wants = nil
	}
	return all
}

// allAlone runs flows on a real database, one after another.
func allAlone[Tx any](t *testing.T, b *bed[Tx], flows []*flow[Tx]) {
	t.Helper()
	for _, f := range flows {
		t.Run(f.name, func(t *testing.T) { alone(t, b, f).report(t, bounds{}, nil, f.wants) })
	}
}

func TestSQLiteUnderEveryFault(t *testing.T) {
	t.Parallel()
	allAlone(t, onSQLite(t), realFlows[*sql.Tx]("sqlite"))
}

func TestPostgresUnderEveryFault(t *testing.T) {
	t.Parallel()
	allAlone(t, onPostgres(t, nil), realFlows[pgx.Tx]("postgres"))
	lazy := realFlows[pgx.Tx]("postgres, lazy")
	allAlone(t, onPostgres(t, &postgres.Options{Lazy: true}), lazy[:1])
}
