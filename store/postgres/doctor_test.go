package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// doctor looks at a database over a pool that changes nothing of it.
func doctor(t *testing.T, pool *pgxpool.Pool, o *postgres.DoctorOptions) map[string]store.Check {
	t.Helper()
	all, err := postgres.Doctor(t.Context(), pool, o)
	must(t, "Doctor", err)
	seen := map[string]store.Check{}
	for _, c := range all {
		if c.Value == "" || c.Why == "" || c.Way == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = c
	}
	return seen
}

// sees checks the level and a part of the value of one check.
func sees(t *testing.T, seen map[string]store.Check, name string, level store.Level, value string) {
	t.Helper()
	if c, ok := seen[name]; !ok || c.Level != level || !strings.Contains(c.Value, value) {
		t.Errorf("%s: %v %q; want %v with %q", name, c.Level, c.Value, level, value)
	}
}

func TestDoctorFindsNothingWhereAllIsWell(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t)
	d := prepare(t, server.URL())
	d.migrate(t, nil)
	pool := d.pool(t, "unavez_app", nil)
	seen := doctor(t, pool, nil)
	for _, c := range postgres.Checks() {
		got, ok := seen[c.Name]
		if !ok {
			t.Errorf("%s is not looked at", c.Name)
		}
		// What a server has by default is its maker's choice.
		if got.Level != store.Sound && c.Name != "postgres.checksums" {
			t.Errorf("%s: %v %q", c.Name, got.Level, got.Value)
		}
	}
	if n := len(doctor(t, pool, &postgres.DoctorOptions{Start: true})); n == 0 || n >= len(seen) {
		t.Errorf("%d of %d checks before a start", n, len(seen))
	}

	// A transaction that is open for long, a slot that nobody reads, a table
	// that is not vacuumed, another history.
	d.exec(t, "SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
	d.exec(t, "ALTER TABLE unavez.outcome_2 SET (autovacuum_enabled = false)")
	d.exec(t, "UPDATE unavez.ledger SET timeline = 'FFFFFFFF'")
	seen = doctor(t, pool, &postgres.DoctorOptions{Retention: 72 * time.Hour})
	sees(t, seen, "postgres.horizon", store.Warning, "logical replication slot forgotten is idle")
	sees(t, seen, "postgres.autovacuum", store.Warning, "not for outcome_2")
	sees(t, seen, "postgres.incarnation", store.Warning, "not the one that was last written to")
	sees(t, seen, "postgres.settings", store.Warning, "a configured one of 72h0m0s")
	d.exec(t, "UPDATE unavez.ledger SET timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), doubted = clock_timestamp() + interval '5 min'")
	sees(t, doctor(t, pool, nil), "postgres.incarnation", store.Warning, "first claims are unknown for another")

	tx, err := d.admin.Begin(t.Context())
	must(t, "Begin", err)
	_, err = tx.Exec(t.Context(), "PREPARE TRANSACTION 'old'")
	must(t, "PREPARE", err)
	_ = tx.Rollback(t.Context()) // it is another's now
	if seen := doctor(t, pool, nil); strings.Contains(seen["postgres.horizon"].Value, "old") {
		t.Errorf("a new prepared transaction counts as old: %q", seen["postgres.horizon"].Value)
	}
	d.exec(t, "ROLLBACK PREPARED 'old'")

	d.exec(t, "SELECT pg_drop_replication_slot('forgotten')")
	standby := server.Standby()
	sees(t, doctor(t, pool, nil), "postgres.standbys", store.Warning, "1, none of them synchronous")
	behind, err := open(standby.URL(), "", nil)
	must(t, "open", err)
	defer behind.Close()
	sees(t, doctor(t, behind, nil), "postgres.primary", store.Refused, "a standby")
	d.exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	d.exec(t, "SELECT pg_reload_conf()")
	eventually(t, "the server knows", func() bool {
		return ask[string](t, d, "SHOW synchronous_standby_names") == "nobody"
	})
	sees(t, doctor(t, pool, nil), "postgres.standbys", store.Warning, "none of nobody is connected")
	local := d.pool(t, "unavez_app", func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "remote_write" })
	sees(t, doctor(t, local, nil), "postgres.standbys", store.Warning, "remote_write (by the URL)")
	d.exec(t, "ALTER SYSTEM RESET synchronous_standby_names")
	d.exec(t, "SELECT pg_reload_conf()")

	server.Stop()
	sees(t, doctor(t, pool, nil), "postgres.reachable", store.Refused, "connect")
}

func TestDoctorRefusesAServerThatLoses(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t, "fsync=off", "full_page_writes=off", "synchronous_commit=off", "autovacuum=off", "autovacuum_vacuum_insert_threshold=-1",
		"max_locks_per_transaction=10", "max_connections=20", "superuser_reserved_connections=18", "zero_damaged_pages=on")
	pool, err := open(server.URL(), "", nil)
	must(t, "open", err)
	defer pool.Close()
	seen := doctor(t, pool, nil)
	for _, name := range []string{"postgres.fsync", "postgres.full_page_writes", "postgres.synchronous_commit"} {
		sees(t, seen, name, store.Refused, "off (command line)")
	}
	sees(t, seen, "postgres.autovacuum", store.Warning, "autovacuum off; autovacuum_vacuum_insert_threshold -1")
	sees(t, seen, "postgres.locks", store.Warning, "16 connections may hold about 384")
	sees(t, doctor(t, pool, &postgres.DoctorOptions{Batch: 50}), "postgres.locks", store.Warning, "16 connections may hold about 1168")
	sees(t, seen, "postgres.connections", store.Warning, "of 20 are free, this worker may open 16 more")
	sees(t, seen, "postgres.checksums", store.Warning, "zero_damaged_pages on")
	sees(t, seen, "postgres.schema", store.Refused, "none")
	sees(t, seen, "postgres.role", store.Warning, "superuser")
}

func TestDoctorNamesEveryGrantThatIsMissing(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	role := "test_" + strings.ToLower(rand.Text())
	d.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := d.admin.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role)
		must(t, "DROP ROLE", err)
	})
	pool := d.pool(t, role, nil)
	seen := doctor(t, pool, nil)
	sees(t, seen, "postgres.grants", store.Refused, "GRANT USAGE ON SCHEMA unavez TO ")
	sees(t, seen, "postgres.schema", store.Refused, "not to be read")
	if _, err := postgres.New(pool, nil); err == nil {
		t.Error("a store opens without a right")
	}
	statements := strings.Split(seen["postgres.grants"].Value, "; ")
	if len(statements) < 40 {
		t.Errorf("only %d statements", len(statements))
	}
	for i, text := range statements {
		d.exec(t, text)
		if i == 0 || i == len(statements)-2 {
			left := strings.Split(doctor(t, pool, nil)["postgres.grants"].Value, "; ")
			if len(left) != len(statements)-i-1 {
				t.Errorf("after %q: %d are missing of %d", text, len(left), len(statements))
			}
		}
	}
	sees(t, doctor(t, pool, nil), "postgres.grants", store.Sound, "all there")
	w, err := postgres.New(pool, nil)
	must(t, "New", err)
	busyAs(t, w)
	for code, names := range broken(d.audit(t, nil)) { // the role's own rights are what the audit finds
		if code != store.Privileges {
			t.Errorf("%s %q", code, names)
		}
	}
}

// busyAs runs what needs a right, each once.
func busyAs(t *testing.T, s *postgres.Store) {
	t.Helper()
	ctx := t.Context()
	gate := dayGate("granted")
	a, _, err := s.Claim(ctx, store.Claim{Gate: gate, Lease: time.Minute, DerivedKey: gate.Identity.DerivedKey("")})
	must(t, "Claim", err)
	must(t, "SaveStep", s.SaveStep(ctx, a.Key, a.Fence, store.Step{Name: "pay"}))
	must(t, "Rest", s.Rest(ctx, a.Key, a.Fence, store.Rest{State: store.Dead, Reason: "no"}))
	must(t, "Redrive", s.Redrive(ctx, store.Action{Key: a.Key, Actor: "ana", Reason: "asked"}))
	must(t, "Discard", s.Discard(ctx, store.Action{Key: a.Key, Actor: "ana", Reason: "asked"}, 2*day, day))
	_, err = s.Purge(ctx, 100)
	must(t, "Purge", err)
}

func TestDoctorSeesWhatARoleIsGiven(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	at, err := url.Parse(d.url)
	must(t, "Parse", err)
	role := "test_" + strings.ToLower(rand.Text())
	d.exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'x' IN ROLE unavez_app")
	t.Cleanup(func() {
		d.admin.Close()
		server, err := pgx.Connect(context.WithoutCancel(t.Context()), testenv.Postgres(t))
		must(t, "Connect", err)
		_, err = server.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+role)
		must(t, "DROP ROLE", err)
		must(t, "Close", server.Close(context.WithoutCancel(t.Context())))
	})
	at.User = url.UserPassword(role, "x")
	look := func(settings ...string) map[string]store.Check {
		t.Helper()
		for _, s := range settings {
			d.exec(t, "ALTER ROLE "+role+" "+s)
		}
		pool, err := open(at.String(), "", nil)
		must(t, "open", err)
		defer pool.Close()
		return doctor(t, pool, nil)
	}
	database := strings.TrimPrefix(at.Path, "/")
	sees(t, look(), "postgres.synchronous_commit", store.Sound, "on")
	sees(t, look("IN DATABASE "+database+" SET synchronous_commit = off"), "postgres.synchronous_commit", store.Refused, "off (by ALTER ROLE … IN DATABASE)")
	sees(t, doctor(t, d.admin, nil), "postgres.synchronous_commit", store.Warning, "on; role "+role+" has off")
	d.exec(t, fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET synchronous_commit; ALTER DATABASE %s SET synchronous_commit = off", role, database, database))
	sees(t, look(), "postgres.synchronous_commit", store.Refused, "off (by ALTER DATABASE); database "+database+" has off")
	seen := look("SET synchronous_commit = local", "SET default_transaction_isolation = 'serializable'", "SET statement_timeout = '2s'",
		"SET lock_timeout = '1min'", "SET search_path = unavez, public")
	sees(t, seen, "postgres.synchronous_commit", store.Warning, "local (by ALTER ROLE); database")
	sees(t, seen, "postgres.isolation", store.Warning, "serializable (by ALTER ROLE)")
	sees(t, seen, "postgres.timeouts", store.Warning, "statement_timeout 2s")
	sees(t, seen, "postgres.search_path", store.Warning, "unavez, public")
	if strings.Contains(seen["postgres.timeouts"].Value, "lock_timeout") {
		t.Errorf("a limit that is long enough is warned of: %q", seen["postgres.timeouts"].Value)
	}
	sees(t, look("SET search_path = public, pg_catalog"), "postgres.search_path", store.Warning, "public, pg_catalog")
	sees(t, look("SET default_transaction_read_only = on"), "postgres.primary", store.Refused, "read only")
	if m := look("RESET ALL"); m["postgres.isolation"].Level != store.Sound || m["postgres.timeouts"].Level != store.Sound {
		t.Errorf("after RESET: %+v", m)
	}
	d.exec(t, "DELETE FROM unavez.migration WHERE version = (SELECT max(version) FROM unavez.migration)")
	sees(t, look(), "postgres.schema", store.Refused, "this program's is")
}

func TestDoctorSeesAPooler(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	at, err := url.Parse(d.url)
	must(t, "Parse", err)
	for _, c := range []struct {
		pool, mode string
		level      store.Level
		says       string
	}{
		{"transaction", "cache_statement", store.Refused, "loses prepared statements"},
		{"transaction", "exec", store.Sound, "without prepared statements"},
		{"session", "cache_statement", store.Sound, "keeps a session's server"},
	} {
		t.Run(c.pool+" "+c.mode, func(t *testing.T) {
			bouncer := testenv.StartPgBouncer(t, d.url, "unavez_app", "pool_mode="+c.pool)
			pool, err := open(strings.Replace(bouncer.URL(strings.TrimPrefix(at.Path, "/")), "exec_mode=exec", "exec_mode="+c.mode, 1), "", nil)
			must(t, "open", err)
			defer pool.Close()
			for range 3 { // what a look leaves behind must not break the next one
				sees(t, doctor(t, pool, nil), "postgres.pooler", c.level, c.says)
			}
		})
	}
}
