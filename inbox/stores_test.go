package inbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	driver "modernc.org/sqlite"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store/memory"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// promise is something that the inbox promises on every store.
type promise[Tx any] struct {
	name    string
	holds   func(b *bed[Tx])
	outside bool // others than the store are spoken to, so that a bubble's clock would stand still
	small   bool // what a server would do for it, another promise has it do too
}

// promises are those for which the store has to do something. On the store in
// memory they run in a bubble, with a clock of its own.
func promises[Tx any]() []promise[Tx] {
	return []promise[Tx]{
		{name: "every entry takes effect once in the order of its key", holds: everyEntry[Tx], small: true},
		{name: "a holder that was paused before an entry does not run it", holds: pausedBefore[Tx]},
		{name: "a holder that was paused in a handler cannot commit", holds: pausedInHandler[Tx]},
		{name: "an entry whose worker was killed runs once more and counts", holds: killedInHandler[Tx]},
		{name: "a worker that stops hands its lanes over at once", holds: handsOver[Tx]},
		{name: "lanes are shared out when workers come and go", holds: sharedOut[Tx]},
		{name: "entries behind the ones that are held wait for them", holds: behindHeld[Tx]},
		{name: "what fails is tried again within its limits and then dead", holds: triedAgain[Tx]},
		{name: "how a failure is declared decides", holds: declared[Tx], small: true},
		{name: "ten failures are listed and a permanent one is the only one", holds: tenTimes[Tx]},
		{name: "a worker that stands still in lease mode ends nothing", holds: pausedInRun[Tx]},
		{name: "one failing key holds up nobody else", holds: poisoned[Tx]},
		{name: "a stale version is discarded", holds: staleVersion[Tx]},
		{name: "a version that comes early waits for those before it", holds: earlyVersion[Tx]},
		{name: "events that name one operation bring it about once, in transactions", holds: func(b *bed[Tx]) { oneOperation(b, "transaction") }},
		{name: "events that name one operation bring it about once, in batches", holds: func(b *bed[Tx]) { oneOperation(b, "batch") }},
		{name: "events that name one operation bring it about once, in lease mode", holds: func(b *bed[Tx]) { oneOperation(b, "lease") }},
		{name: "a hint and the list bring one event per version", holds: hintAndList[Tx]},
		{name: "a quarantined item that is readmitted takes effect", holds: readmitted[Tx]},
		{name: "a delivered event reaches its application under one key", holds: delivered[Tx], outside: true, small: true},
	}
}

// storms are those on a server or a file.
func storms[Tx any]() []promise[Tx] {
	return []promise[Tx]{
		{name: "order and once hold in a storm, in transactions", holds: func(b *bed[Tx]) { stormy(b, false) }},
		{name: "order and once hold in a storm, in batches", holds: func(b *bed[Tx]) { stormy(b, true) }},
	}
}

func TestPromisesHoldOnMemory(t *testing.T) {
	t.Parallel()
	for _, p := range promises[*memory.Tx]() {
		t.Run(p.name, func(t *testing.T) {
			if p.outside {
				t.Parallel()
				onReal(t, database[*memory.Tx](inMemory{memory.New(nil)}), p.holds)
				return
			}
			inBubble(t, p.holds)
		})
	}
}

func TestPromisesHoldOnSQLite(t *testing.T) {
	t.Parallel()
	for _, p := range append(promises[*sql.Tx](), storms[*sql.Tx]()...) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			onReal(t, database[*sql.Tx](newFile(t)), p.holds)
		})
	}
}

func TestPromisesHoldOnPostgres(t *testing.T) {
	t.Parallel()
	model := newModel(t)
	t.Run("all", func(t *testing.T) {
		for _, p := range append(promises[pgx.Tx](), append(storms[pgx.Tx](), promise[pgx.Tx]{name: "another history of the database loses nothing", holds: anotherHistory[pgx.Tx]})...) {
			if p.small {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				onReal(t, database[pgx.Tx](model.copy(t)), p.holds)
			})
		}
	})
}

// onReal runs a test on a database outside of this process' memory.
func onReal[Tx any](t *testing.T, db database[Tx], run func(b *bed[Tx])) {
	b := newBed(t, db)
	b.real, b.patience = true, 3*patience
	b.pass = func(time.Duration) {} // it passes by itself
	run(b)
}

// lanes of a queue in these tests: a worker comes to know of each.
const lanes = 16

// inFile is a database in SQLite; each worker has connections of its own.
type inFile struct {
	path string
	own  *sql.DB
}

func newFile(t testing.TB) *inFile {
	t.Helper()
	f := &inFile{path: filepath.Join(t.TempDir(), "inbox.db")}
	f.own = f.connect(t)
	if _, err := f.own.ExecContext(t.Context(), "CREATE TABLE business (key TEXT PRIMARY KEY, value TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *inFile) connect(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sqlite.OpenDB(&driver.Driver{}, f.path, &sqlite.Options{HandlerLimit: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// open gives a worker whose open transaction, when it is cut off, ends by its limit.
func (f *inFile) open(t testing.TB) (backend[*sql.Tx], func()) {
	t.Helper()
	s, err := sqlite.New(f.connect(t), &sqlite.StoreOptions{Lanes: lanes, Room: 2_000_000})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() {}
}

func (f *inFile) get(ctx context.Context, tx *sql.Tx, key string) (value string, err error) {
	err = tx.QueryRowContext(ctx, "SELECT value FROM business WHERE key = ?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}

func (f *inFile) set(ctx context.Context, tx *sql.Tx, key, value string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO business (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return err
}

func (f *inFile) rows(t testing.TB) map[string]string {
	t.Helper()
	found, err := f.own.QueryContext(context.WithoutCancel(t.Context()), "SELECT key, value FROM business")
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	all := map[string]string{}
	for found.Next() {
		var key, value string
		if err := found.Scan(&key, &value); err != nil {
			t.Fatal(err)
		}
		all[key] = value
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// model is a database of PostgreSQL from which those of the tests are copied,
// which costs a tenth of migrating one.
type model struct {
	url  *url.URL
	name string
	mu   sync.Mutex
}

func newModel(t *testing.T) *model {
	t.Helper()
	at, err := url.Parse(testenv.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	m := &model{url: at, name: strings.TrimPrefix(at.Path, "/")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	admin := connect(t, at.String(), "", "admin")
	exec := func(text string) {
		_, err := admin.Exec(t.Context(), text)
		must(err)
	}
	exec(postgres.Roles())
	exec("DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO unavez_migrate', current_database()); END $$")
	exec("CREATE TABLE public.business (key text PRIMARY KEY, value text NOT NULL); GRANT ALL ON public.business TO unavez_app; GRANT USAGE ON SCHEMA public TO unavez_app")
	owner := connect(t, at.String(), "unavez_migrate", "admin")
	must(postgres.Migrate(t.Context(), owner, &postgres.Settings{Lanes: lanes}))
	owner.Close()
	admin.Close()
	return m
}

// connect opens connections under a name.
func connect(t testing.TB, url, role, name string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 6
	config.ConnConfig.RuntimeParams["application_name"] = name
	if role != "" {
		config.ConnConfig.RuntimeParams["role"] = role
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// copy makes a database of a test's own.
func (m *model) copy(t testing.TB) *inPostgres {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	do := func(text string) error {
		m.mu.Lock() // one copies at a time
		defer m.mu.Unlock()
		conn, err := pgx.Connect(context.WithoutCancel(t.Context()), testenv.Postgres(t))
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(t.Context()))
		_, err = conn.Exec(context.WithoutCancel(t.Context()), text)
		return err
	}
	if err := do("CREATE DATABASE " + name + " TEMPLATE " + m.name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := do("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	at := *m.url
	at.Path = "/" + name
	return &inPostgres{url: at.String(), own: connect(t, at.String(), "", "test")}
}

// inPostgres is a database in PostgreSQL; each worker has connections of its own.
type inPostgres struct {
	url     string
	own     *pgxpool.Pool
	workers atomic.Int64
}

// open gives a worker whose connections can be cut.
func (p *inPostgres) open(t testing.TB) (backend[pgx.Tx], func()) {
	t.Helper()
	name := fmt.Sprint("worker-", p.workers.Add(1))
	s, err := postgres.New(connect(t, p.url, "unavez_app", name), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, func() {
		const text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()"
		if _, err := p.own.Exec(context.WithoutCancel(t.Context()), text, name); err != nil {
			t.Error(err)
		}
	}
}

func (p *inPostgres) get(ctx context.Context, tx pgx.Tx, key string) (value string, err error) {
	err = tx.QueryRow(ctx, "SELECT value FROM public.business WHERE key = $1", key).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return value, err
}

func (p *inPostgres) set(ctx context.Context, tx pgx.Tx, key, value string) error {
	_, err := tx.Exec(ctx, "INSERT INTO public.business (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return err
}

func (p *inPostgres) rows(t testing.TB) map[string]string {
	t.Helper()
	found, err := p.own.Query(context.WithoutCancel(t.Context()), "SELECT key, value FROM public.business")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	var key, value string
	if _, err := pgx.ForEachRow(found, []any{&key, &value}, func() error {
		all[key] = value
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// comesToRest waits, in a bubble, until nothing moves any more.
func (b *bed[Tx]) comesToRest() {
	if !b.real {
		synctest.Wait()
	}
}
