package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestTheCatalogThatAuditsCompareIsThatOfTheMigrations(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	got, err := postgres.Catalog(t.Context(), d.admin)
	must(t, "Catalog", err)
	if *rewrite {
		must(t, "WriteFile", os.WriteFile("catalog.txt", []byte(strings.Join(got, "\n")+"\n"), 0o600))
	}
	want, err := os.ReadFile("catalog.txt")
	must(t, "ReadFile", err)
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(want)), "\n"), got); diff != "" {
		t.Errorf("-want +got (go test -run %s -rewrite writes it anew):\n%s", t.Name(), diff)
	}
}

// audit reads everything, as the role that runs.
func (d *database) audit(t *testing.T, o *store.AuditOptions) []store.Proof {
	t.Helper()
	if o == nil {
		o = &store.AuditOptions{All: true}
	}
	pool := d.pool(t, "unavez_app", nil)
	defer pool.Close()
	proofs, err := postgres.Audit(context.WithoutCancel(t.Context()), pool, o)
	must(t, "Audit", err)
	return proofs
}

// broken gives the codes that are violated, with what is named.
func broken(proofs []store.Proof) map[string][]string {
	all := map[string][]string{}
	for _, p := range proofs {
		if p.Broken > 0 {
			all[p.Code] = p.First
		}
	}
	return all
}

// busy leaves operations of every kind behind, in every state.
func busy(t *testing.T, d *database) {
	t.Helper()
	w := large(d, t)
	engine, err := unavez.New(w.Store, nil)
	must(t, "New", err)
	ctx := t.Context()
	lost := errors.New("no answer")
	for round := range 3 {
		for n := range 40 {
			op := unavez.Operation{Tenant: "acme", Effect: "order.import.v1", Key: []string{fmt.Sprint(round, "-", n)}, Lease: time.Minute}
			switch n % 8 {
			case 0, 1, 2:
				w.do(t, dayGate("busy", fmt.Sprint(round), fmt.Sprint(n)), fmt.Sprint("busy ", round, n))
			case 3: // longer than the ring takes
				gate := dayGate("long", fmt.Sprint(round), fmt.Sprint(n))
				gate.Retention = 30 * day
				w.do(t, gate, fmt.Sprint("long ", round, n))
			case 4:
				_, err = engine.Lease(ctx, op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
					_, err := unavez.Step(ctx, a, "pay", func(context.Context, string) (int, error) { return n, nil }, nil)
					return unavez.Result{Code: 201, Body: []byte("paid")}, err
				}, nil)
				must(t, "Lease", err)
			default: // ends without telling
				_, err = engine.Lease(ctx, op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
					_, err := unavez.Step(ctx, a, "pay", func(context.Context, string) (int, error) { return 0, lost }, nil)
					return unavez.Result{}, err
				}, nil)
				if err == nil {
					t.Fatal("an answer that was lost came")
				}
				action := store.Action{Key: op.Identity().Key(), Actor: "ana", Reason: "asked the bank"}
				switch n % 8 {
				case 6:
					must(t, "Complete", w.Complete(ctx, action, store.Result{Code: 200, Body: []byte("paid")}, 2*day, 30*day))
				case 7:
					must(t, "Release", w.Release(ctx, action))
					_, err = engine.Lease(ctx, op, func(context.Context, *unavez.Attempt) (unavez.Result, error) { return unavez.Result{Code: 200}, nil }, nil)
					must(t, "Lease again", err)
				}
			}
		}
		gate := dayGate("running", fmt.Sprint(round))
		a, _, err := w.Claim(ctx, store.Claim{Gate: gate, Lease: 30 * day, DerivedKey: gate.Identity.DerivedKey("")})
		must(t, "Claim", err)
		must(t, "SaveStep", w.SaveStep(ctx, a.Key, a.Fence, store.Step{Name: "pay", Done: round > 0}))
		d.advance(t, day+time.Minute)
		w.purge(t)
	}
	// Entries: done, waiting behind one that does, and not read yet.
	entries := []store.Entry{entryOf("done", "x"), entryOf("blocked", "x"), entryOf("behind", "x"), entryOf("gap", "y")}
	w.append(t, entries...)
	w.finish(t, entries[0])
	share, err := w.Keep(ctx, store.Keeping{Worker: "worker", Lease: 30 * day})
	must(t, "Keep", err)
	_, cursor := w.read(t, "", 10)
	for i, e := range entries[1:] {
		e, err := w.Load(ctx, e.Key)
		must(t, "Load", err)
		if i != 1 {
			hold := share.Held[store.LaneOf(e.Order, w.Lanes())].Hold
			must(t, "Block", w.Block(ctx, store.Blocking{Hold: hold, Entry: &e, Gap: i == 2}))
		}
	}
	var marks []store.Mark
	for _, held := range share.Held {
		marks = append(marks, store.Mark{Hold: held.Hold, Cursor: cursor})
	}
	_, err = w.Keep(ctx, store.Keeping{Worker: "worker", Lease: 30 * day, Marks: marks})
	must(t, "Keep", err)
	w.append(t, entryOf("unread", "x"))
	must(t, "Close", engine.Close(ctx))
	w.pool.Close()
}

func TestAuditOfABusyDatabaseFindsNothing(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	busy(t, d)
	for _, o := range []*store.AuditOptions{{All: true}, {Sample: 3}, {All: true, Page: 1}} {
		proofs := d.audit(t, o)
		if want := len(store.Invariants()); len(proofs) != want {
			t.Errorf("%d proofs, want %d", len(proofs), want)
		}
		for _, p := range proofs {
			if p.Broken != 0 || p.Looked == 0 || p.Left != "" && o.All {
				t.Errorf("%+v", p)
			}
			if sampled := p.Code == store.ResultIntact || p.Code == store.IdentityTrue || p.Code == store.EntryTrue; !o.All && sampled != (p.Left != "") {
				t.Errorf("a sample: %+v", p)
			}
		}
	}
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.tombstone_0"); n == 0 {
		t.Error("the run left no tombstones: it was not busy")
	}
}

// violation plants one, as the owner of the schema could, and tells what an
// audit must say.
type violation struct {
	code string
	sql  string
	says string // in one of the names; empty means KEY
	also []string
}

func TestAuditFindsEachViolation(t *testing.T) {
	t.Parallel()
	const (
		outcome = "(SELECT key FROM unavez.outcome_table LIMIT 1)"
		attempt = "(SELECT key FROM unavez.attempt WHERE state = 4 ORDER BY key LIMIT 1)"
		live    = "(SELECT slot FROM unavez.ledger)"
	)
	all := []violation{
		{code: store.OneOutcome, sql: "INSERT INTO unavez.outcome_3 SELECT * FROM unavez.outcome_table WHERE key = " + outcome},
		{code: store.EndedOnce, sql: "UPDATE unavez.attempt SET state = 1, expires = now() + interval '1 hour', fence = 7, key = k, operation = o, derived = x FROM (SELECT a.key AS k, 'acme/order.import.v1/x' o, 'uv1' x FROM unavez.outcome_table a LIMIT 1) z WHERE key = " + attempt, also: []string{store.IdentityTrue, store.History}},
		{code: store.Fences, sql: "UPDATE unavez.attempt SET fence = 0 WHERE key = " + attempt, also: []string{store.History}},
		{code: store.Fences, sql: "UPDATE unavez.step SET fence = 9 WHERE key = (SELECT key FROM unavez.step LIMIT 1)"},
		{code: store.Fences, sql: "UPDATE unavez.outcome_table SET attempt = 0 WHERE key = " + outcome},
		{code: store.LegalStates, sql: "UPDATE unavez.outcome_table SET state = 5 WHERE key = " + outcome, also: []string{store.ResultIntact}},
		{code: store.LegalStates, sql: "ALTER TABLE unavez.attempt DROP CONSTRAINT attempt_state_check; UPDATE unavez.attempt SET state = 9 WHERE key = " + attempt, also: []string{store.TablesTrue, store.History}},
		{code: store.LegalStates, sql: "UPDATE unavez.attempt SET state = 1, expires = changed - interval '1 second', fence = fence + 1 WHERE key = " + attempt, also: []string{store.LeasesEnd}},
		{code: store.LegalStates, sql: "UPDATE unavez.tombstone_0 SET short = '\\x0102030405060708090a' WHERE key = (SELECT key FROM unavez.tombstone_0 LIMIT 1)"},
		{code: store.History, sql: "UPDATE unavez.attempt SET state = 5 WHERE key = " + attempt},
		{code: store.History, sql: "DELETE FROM unavez.transition WHERE key = " + attempt},
		{code: store.History, sql: "UPDATE unavez.transition SET from_state = 6 WHERE key = " + attempt},
		{code: store.History, sql: "DELETE FROM unavez.outcome_2 WHERE key IN (SELECT key FROM unavez.transition WHERE to_state = 6)"},
		{code: store.Tombstones, sql: "INSERT INTO unavez.tombstone_0 SELECT key, forgets, '' FROM unavez.outcome_table WHERE key = " + outcome},
		{code: store.Tombstones, sql: "INSERT INTO unavez.tombstone_0 SELECT key, now() + interval '1 day', '' FROM unavez.attempt WHERE key = " + attempt},
		{code: store.Tombstones, sql: "UPDATE unavez.ledger SET tombstone_live = 3; UPDATE unavez.slot SET state = 'sealed' WHERE ring = 'tombstone' AND number = 1; INSERT INTO unavez.tombstone_1 SELECT key, forgets + interval '1 s', '' FROM unavez.tombstone_0 LIMIT 1"},
		{code: store.ResultIntact, sql: "UPDATE unavez.outcome_table SET body = body || '\\x00' WHERE key = " + outcome},
		{code: store.ResultIntact, sql: "UPDATE unavez.outcome_table SET code = code + 1 WHERE key = " + outcome},
		{code: store.ResultThere, sql: "UPDATE unavez.outcome_table SET unreplayable = true, body = '\\x01' WHERE key = " + outcome, also: []string{store.ResultIntact}},
		{code: store.ResultThere, sql: "UPDATE unavez.outcome_table SET header = '\\x0000' WHERE key = " + outcome, also: []string{store.ResultIntact}},
		{code: store.ResultThere, sql: "UPDATE unavez.outcome_table SET operation = 'acme/http//k', code = 7 WHERE key = " + outcome, also: []string{store.ResultIntact, store.IdentityTrue}},
		{code: store.IdentityTrue, sql: "UPDATE unavez.outcome_table SET operation = operation || 'x' WHERE key = " + outcome},
		{code: store.IdentityTrue, sql: "UPDATE unavez.attempt SET operation = 'other/effect/1' WHERE key = " + attempt},
		{code: store.DerivedKey, sql: "UPDATE unavez.attempt SET derived = 'uv1-0' WHERE key = " + attempt},
		{code: store.TimesInOrder, sql: "UPDATE unavez.outcome_table SET forgets = expires - interval '1 s' WHERE key = " + outcome},
		{code: store.TimesInOrder, sql: "UPDATE unavez.attempt SET changed = created - interval '1 s', due = now() WHERE key = " + attempt},
		{code: store.Purged, sql: "UPDATE unavez.outcome_table SET ended = ended - interval '90 d', expires = now() - interval '2 h' WHERE key = " + outcome},
		{code: store.Purged, sql: "INSERT INTO unavez.outcome_3 SELECT (o).* FROM (SELECT o FROM unavez.outcome_table o WHERE key = " + outcome + ") z; DELETE FROM unavez.outcome_table WHERE key IN (SELECT key FROM unavez.outcome_3); UPDATE unavez.outcome_3 SET ended = now() - interval '80 h', expires = now() WHERE key IN (SELECT key FROM unavez.outcome_3 ORDER BY expires DESC LIMIT 1)"},
		{code: store.SlotLayout, sql: "UPDATE unavez.ledger SET live = live & ~(1 << " + live + ")", says: "ledger has it live", also: []string{store.SlotsUnused}},
		{code: store.SlotLayout, sql: "UPDATE unavez.ledger SET slot = (slot + 1) % 4", says: "the ledger writes to"},
		{code: store.SlotLayout, sql: "UPDATE unavez.slot SET state = 'sealed' WHERE state = 'current' AND ring = 'tombstone'", says: "0 slots of tombstone are current"},
		{code: store.SlotLayout, sql: "UPDATE unavez.ledger SET ring = 1000", says: "retention is 1000", also: []string{store.Purged}},
		{code: store.SlotLayout, sql: "DELETE FROM unavez.slot WHERE ring = 'tombstone' AND number = 2", says: "tombstone_2 has no row"},
		{code: store.SlotsUnused, sql: "INSERT INTO unavez.outcome_0 SELECT (o).* FROM (SELECT o FROM unavez.outcome_table o WHERE key = " + outcome + ") z; DELETE FROM unavez.outcome_table WHERE key IN (SELECT key FROM unavez.outcome_0); UPDATE unavez.slot SET state = 'retired' WHERE ring = 'outcome' AND number = 0", says: "outcome_0 "},
		{code: store.SlotsUnused, sql: "INSERT INTO unavez.tombstone_2 VALUES (gen_random_uuid(), now(), '')", says: "tombstone_2 "},
		{code: store.SlotsSealed, sql: "UPDATE unavez.slot SET until = now() - interval '1 s' WHERE ring = 'outcome' AND state = 'sealed'", says: "outcome_"},
		{code: store.StepsOwned, sql: "DELETE FROM unavez.attempt WHERE key IN (SELECT key FROM unavez.step LIMIT 1)"},
		{code: store.LeasesEnd, sql: "UPDATE unavez.attempt SET state = 1, fence = fence + 1, changed = created, expires = now() - interval '61 min' WHERE key = " + attempt, also: []string{store.LegalStates}},
		{code: store.FunctionsTrue, sql: "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('unavez.finish_joined'::regproc), 'UV001', 'UV009'); END $$", says: "unavez.finish_joined(uuid"},
		{code: store.FunctionsTrue, sql: "ALTER FUNCTION unavez.gate SECURITY DEFINER", says: "other attributes"},
		{code: store.FunctionsTrue, sql: "ALTER FUNCTION unavez.gate RESET search_path", says: "other attributes"},
		{code: store.FunctionsTrue, sql: "CREATE FUNCTION unavez.lock_of(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1'", says: "not of this program", also: []string{store.Privileges}},
		{code: store.FunctionsTrue, sql: "DROP FUNCTION unavez.derived_key", says: "unavez.derived_key is missing"},
		{code: store.TablesTrue, sql: "ALTER TABLE unavez.outcome_1 DROP CONSTRAINT outcome_1_pkey", says: "missing: constraint outcome_1 PRIMARY KEY (key)"},
		{code: store.TablesTrue, sql: "ALTER TABLE unavez.outcome_1 SET UNLOGGED", says: "outcome_1 ru"},
		{code: store.TablesTrue, sql: "CREATE FUNCTION public.quiet() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER quiet BEFORE INSERT ON unavez.attempt FOR EACH ROW EXECUTE FUNCTION public.quiet()", says: "trigger attempt quiet"},
		{code: store.TablesTrue, sql: "CREATE RULE quiet AS ON DELETE TO unavez.step DO INSTEAD NOTHING", says: "rule step quiet"},
		{code: store.TablesTrue, sql: "ALTER TABLE unavez.attempt ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON unavez.attempt USING (true)", says: "policy attempt mine"},
		{code: store.TablesTrue, sql: "CREATE UNIQUE INDEX mine ON unavez.outcome_0 (operation)", says: "index CREATE UNIQUE INDEX mine"},
		{code: store.Privileges, sql: "GRANT UPDATE ON unavez.outcome_0 TO unavez_app", says: "REVOKE UPDATE ON unavez.outcome_0 FROM unavez_app"},
		{code: store.Privileges, sql: "GRANT CREATE ON SCHEMA unavez TO unavez_app", says: "REVOKE CREATE ON SCHEMA unavez FROM unavez_app"},
		{code: store.Privileges, sql: "GRANT DELETE ON unavez.transition TO PUBLIC", says: "FROM PUBLIC"},
		{code: store.Privileges, sql: "ALTER TABLE unavez.attempt OWNER TO unavez_app; GRANT CREATE ON SCHEMA unavez TO unavez_app; ALTER TABLE unavez.step OWNER TO postgres", says: "step is owned by postgres"},
		{code: store.Agreed, sql: "UPDATE unavez.setting SET value = '2' WHERE name = 'protocol'", says: `setting protocol is "2"`},
		{code: store.Agreed, sql: "UPDATE unavez.setting SET value = '1000' WHERE name = 'lanes'", says: "setting lanes is 1000", also: []string{store.EntryTrue}},
		{code: store.EntryTrue, sql: "UPDATE unavez.queue_0 SET lane = (lane + 1) % 256 WHERE key IN (SELECT key FROM unavez.queue ORDER BY sequence DESC LIMIT 1)"},
		{code: store.EntryTrue, sql: "UPDATE unavez.queue_0 SET note = replace(note::text, 'order.import', 'order.export')::json WHERE key IN (SELECT key FROM unavez.queue ORDER BY sequence LIMIT 1)"},
		{code: store.NonePassed, sql: "DELETE FROM unavez.blocked WHERE gap"},
		{code: store.NonePassed, sql: "DELETE FROM unavez.blocked WHERE NOT gap"},
		{code: store.BlockedTrue, sql: "UPDATE unavez.blocked SET lane = (lane + 1) % 256"},
		{code: store.BlockedTrue, sql: "UPDATE unavez.blocked SET sequence = sequence + 1", also: []string{store.NonePassed}},
		{code: store.Agreed, sql: "INSERT INTO unavez.ledger SELECT * FROM unavez.ledger", says: "2 rows"},
	}
	d := fresh(t, nil)
	busy(t, d)
	d.admin.Close() // who is connected keeps a database from being copied
	for _, v := range all {
		t.Run(v.code, func(t *testing.T) {
			t.Parallel()
			restored, undo := d.copied(t)
			defer undo()
			restored.exec(t, v.sql)
			got := broken(restored.audit(t, nil))
			names := got[v.code]
			if len(names) == 0 || v.says != "" && !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, v.says) }) {
				t.Errorf("%s: %q; want one with %q", v.sql, names, v.says)
			}
			if v.says == "" {
				for _, n := range names {
					if _, err := store.ParseKey(n[strings.LastIndexByte(n, ' ')+1:]); err != nil {
						t.Errorf("%s: %q names no key", v.sql, n)
					}
				}
			}
			for code := range got {
				if code != v.code && !slices.Contains(v.also, code) {
					t.Errorf("%s: also %s %q", v.sql, code, got[code])
				}
			}
		})
	}
	for _, i := range store.Invariants() {
		if !slices.ContainsFunc(all, func(v violation) bool { return v.code == i.Code }) {
			t.Errorf("nothing plants a violation of %s", i.Code)
		}
	}
}

// copied gives a copy of a database, which undo drops.
func (d *database) copied(t *testing.T) (c *database, undo func()) {
	t.Helper()
	config, err := pgx.ParseConfig(testenv.Postgres(t))
	must(t, "ParseConfig", err)
	server, err := pgx.ConnectConfig(t.Context(), config)
	must(t, "Connect", err)
	at, err := url.Parse(d.url)
	must(t, "Parse", err)
	from := strings.TrimPrefix(at.Path, "/")
	name := "test_" + strings.ToLower(rand.Text())
	if _, err := server.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+from); err != nil {
		t.Fatal(err)
	}
	at.Path = "/" + name
	c = &database{url: at.String()}
	c.admin, err = open(c.url, "", nil)
	must(t, "open", err)
	return c, func() {
		c.admin.Close()
		_, err := server.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)")
		must(t, "DROP DATABASE", errors.Join(err, server.Close(context.WithoutCancel(t.Context()))))
	}
}

// A part that is over its limit counts once, however often it is tried.
func TestAuditTriesASlowPartAgainInHalves(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, `INSERT INTO unavez.outcome_table SELECT unavez.key_of('t', 'e', ARRAY[n::text]), now(), now() + interval '1 day', now() + interval '2 days', 200, 1, 0, 6, false,
		unavez.text_of('t', 'e', ARRAY[n::text]), '', unavez.checksum(unavez.key_of('t', 'e', ARRAY[n::text]), 6::smallint, 0, '', 200, false, '', ''), '', '' FROM generate_series(1, 20000) n`)
	for limit := 10 * time.Millisecond; limit < time.Minute; limit *= 2 { // the shortest that this machine can do
		pool := d.pool(t, "unavez_app", nil)
		proofs, err := postgres.Audit(t.Context(), pool, &store.AuditOptions{Limit: limit})
		pool.Close()
		if errors.Is(err, store.ErrLimit) || errors.Is(err, store.ErrUnavailable) {
			continue
		}
		must(t, "Audit", err)
		for _, p := range proofs {
			if p.Broken != 0 || p.Code == store.OneOutcome && p.Looked != 20000 || p.Code == store.TimesInOrder && p.Looked != 20000 {
				t.Errorf("limit %v: %+v", limit, p)
			}
		}
		return
	}
	t.Error("no limit was long enough")
}
