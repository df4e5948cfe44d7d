package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

func TestWorkersMayMigrateTogether(t *testing.T) {
	t.Parallel()
	d := bare(t)
	pool := d.pool(t, "unavez_migrate", nil)
	errs := make(chan error)
	for range 6 {
		go func() { errs <- postgres.Migrate(t.Context(), pool, nil) }()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	w := d.worker(t, nil)
	w.do(t, gateOf("after"), "after")
	rowsAre(t, d, "after")
}

func TestSchemaOfAnotherProgramIsRefused(t *testing.T) {
	t.Parallel()
	d := bare(t)
	refuses := func(why string) {
		t.Helper()
		if _, err := postgres.New(d.pool(t, "unavez_app", nil), nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("New: %v, want %q", err, why)
		}
	}
	refuses("run unavez migrate")
	d.migrate(t, nil)
	d.worker(t, nil)
	d.exec(t, "INSERT INTO unavez.migration (version, name) SELECT max(version) + 1, 'of a newer program' FROM unavez.migration")
	refuses("newer than this program's")
	if err := postgres.Migrate(t.Context(), d.pool(t, "unavez_migrate", nil), nil); err == nil || !strings.Contains(err.Error(), "newer than this program's") {
		t.Errorf("Migrate: %v", err)
	}
	d.exec(t, "DELETE FROM unavez.migration WHERE name = 'of a newer program'")
	d.exec(t, "UPDATE unavez.setting SET value = '2' WHERE name = 'protocol'")
	refuses("protocol")
	d.exec(t, "UPDATE unavez.setting SET value = '1' WHERE name = 'protocol'")
	d.worker(t, nil)
	d.exec(t, "DELETE FROM unavez.migration WHERE version = (SELECT max(version) FROM unavez.migration)")
	refuses("run unavez migrate")
}

func TestNothingIsFoundByASearchPath(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	// A function of the same name, with arguments that fit better, and an
	// operator: whoever looks for them by path finds these.
	d.exec(t, `CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;
		CREATE FUNCTION evil.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
		CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
		CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
		CREATE TABLE evil.ledger (x int); CREATE TABLE evil.attempt (x int)`)
	d.exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil, pg_catalog', current_database()); END $$")
	w := d.worker(t, nil)
	if path := ""; w.pool.QueryRow(t.Context(), "SHOW search_path").Scan(&path) != nil || path != "evil, pg_catalog" {
		t.Fatalf("search path %q", path)
	}
	gate := gateOf("by path")
	w.do(t, gate, "once")
	if _, _, err := w.Begin(t.Context(), gate); err != nil {
		t.Error(err)
	}
	if _, err := w.Settle(t.Context(), gate.Key); err != nil {
		t.Error(err)
	}
	if _, err := w.Purge(t.Context(), 10); err != nil {
		t.Error(err)
	}
	if _, err := w.Counts(t.Context()); err != nil {
		t.Error(err)
	}
	rowsAre(t, d, "once")
}

func TestAppMayNotChangeWhatIsStoredOtherwise(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	w.do(t, gateOf("kept"), "kept")
	for _, text := range []string{
		"UPDATE unavez.outcome_0 SET body = ''", "UPDATE unavez.transition SET reason = ''", "DELETE FROM unavez.migration", "UPDATE unavez.setting SET value = '2'",
		"DROP TABLE unavez.outcome_0", "CREATE TABLE unavez.mine (x int)", "ALTER TABLE unavez.attempt DROP COLUMN reason", "DROP SCHEMA unavez CASCADE",
		"CREATE OR REPLACE FUNCTION unavez.forget(uuid) RETURNS void LANGUAGE sql AS ''", "INSERT INTO unavez.ledger DEFAULT VALUES", "TRUNCATE unavez.transition",
	} {
		if _, err := w.pool.Exec(t.Context(), text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func TestSettingsAreTheDatabases(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	pool := d.pool(t, "unavez_migrate", nil)
	if err := postgres.Migrate(context.Background(), pool, &postgres.Settings{Ring: time.Minute}); err == nil {
		t.Error("Migrate: a ring shorter than two transactions")
	}
	d.migrate(t, &postgres.Settings{Ring: 7 * day})
	w := d.worker(t, nil)
	week, month := dayGate("week"), dayGate("month")
	week.Retention, month.Retention = 7*day, 30*day
	w.do(t, week, "week")
	w.do(t, month, "month")
	if slot, table := ask[int](t, d, "SELECT count(*) FROM unavez.outcome_0"), ask[int](t, d, "SELECT count(*) FROM unavez.outcome_table"); slot != 1 || table != 1 {
		t.Errorf("%d rows in the ring, %d in the table", slot, table)
	}
	d.migrate(t, nil) // leaves the settings
	if us := ask[int64](t, d, "SELECT ring FROM unavez.ledger"); us != (7 * day).Microseconds() {
		t.Errorf("ring of %d µs", us)
	}
	d.migrate(t, &postgres.Settings{NoRing: true})
	d.migrate(t, &postgres.Settings{})
	w.do(t, gateOf("again in the ring"), "again")
	if slot := ask[int](t, d, "SELECT count(*) FROM unavez.outcome_0"); slot != 2 {
		t.Errorf("%d rows in the ring", slot)
	}
}

// Two deploys that were given other settings: what is in the database holds for
// both, from their next statement on.
func TestTwoDeploysWithOtherSettingsExcludeEachOther(t *testing.T) {
	t.Parallel()
	d := fresh(t, &postgres.Settings{Ring: 4 * day})
	first := d.worker(t, nil)
	open, held := dayGate("open"), dayGate("held")
	txn := first.begin(t, open) // before the second deploy
	for _, settings := range []*postgres.Settings{{NoRing: true}, {Ring: day}, {Ring: 30 * day}} {
		d.migrate(t, settings)
		second := d.worker(t, nil)
		if other, v, err := second.Begin(t.Context(), open); err != nil || other != nil || v.State != store.Processing {
			t.Fatalf("%+v: Begin of what runs in the other deploy: %v, %v", settings, v.State, err)
		}
		claim := store.Claim{Gate: open, Lease: time.Minute}
		if made, v, err := second.Claim(t.Context(), claim); err != nil || made != nil || v.State != store.Processing {
			t.Fatalf("%+v: Claim of what runs in the other deploy: %v, %v", settings, v.State, err)
		}
		for n, workers := range [][2]*worker{{first, second}, {second, first}} {
			gate := dayGate("each way", fmt.Sprintf("%+v %d", *settings, n))
			workers[0].do(t, gate, "once")
			if other, v, err := workers[1].Begin(t.Context(), gate); err != nil || other != nil || v.State != store.Completed {
				t.Fatalf("%+v: Begin of what the other deploy did: %v, %v", settings, v.State, err)
			}
		}
	}
	must(t, "write", write(t.Context(), txn.Tx(), "open"))
	_, err := txn.Commit(t.Context(), completed("open"))
	must(t, "Commit", err)
	second := d.worker(t, nil)
	second.state(t, open, store.Completed)
	second.do(t, held, "held")
	first.state(t, held, store.Completed)
	if n := ask[int](t, d, "SELECT count(*) FROM (SELECT key FROM unavez.outcome GROUP BY key HAVING count(*) > 1) twice"); n != 0 {
		t.Errorf("%d operations have two outcomes", n)
	}
	if n := len(d.rows(t)); n != 3*2+2 {
		t.Errorf("%d rows", n)
	}
}
