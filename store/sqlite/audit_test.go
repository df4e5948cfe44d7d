package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// busy leaves operations of every kind behind, in every state.
func busy(t *testing.T, w *worker) {
	t.Helper()
	engine, err := unavez.New(w.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for round := range 3 {
		for n := range 20 {
			op := unavez.Operation{Tenant: "acme", Effect: "order.import.v1", Key: []string{fmt.Sprint(round, "-", n)}, Lease: time.Minute, Retention: 48 * time.Hour}
			key := op.Identity().Key()
			switch n % 5 {
			case 0, 1:
				_, err := engine.Do(ctx, op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
					return unavez.Result{Code: 201, Header: []unavez.Field{{Name: "A", Value: "b"}}, Body: []byte(op.Key[0])}, write(ctx, tx, op.Key[0])
				})
				ok("Do", err)
			case 2:
				_, err := engine.Lease(ctx, op, func(context.Context, *unavez.Attempt) (unavez.Result, error) { return unavez.Result{Code: 200}, nil }, nil)
				ok("Lease", err)
			default: // ends without telling
				_, err := engine.Lease(ctx, op, func(context.Context, *unavez.Attempt) (unavez.Result, error) {
					return unavez.Result{}, errors.New("no answer")
				}, nil)
				if err == nil {
					t.Fatal("an answer that was lost came")
				}
				if n%5 == 3 {
					ok("Complete", w.store.Complete(ctx, store.Action{Key: key, Actor: "ana", Reason: "asked"}, store.Result{Code: 200}, 48*time.Hour, 48*time.Hour))
				}
			}
		}
		id := store.Identity{Tenant: "acme", Effect: "running", Parts: []string{fmt.Sprint(round)}}
		gate := store.Gate{Identity: id, Key: id.Key(), Limit: time.Second, Retention: time.Hour, Tombstone: time.Hour}
		a, _, err := w.store.Claim(ctx, store.Claim{Gate: gate, Lease: 1000 * time.Hour, DerivedKey: id.DerivedKey("")})
		ok("Claim", err)
		ok("SaveStep", w.store.SaveStep(ctx, a.Key, a.Fence, store.Step{Name: "pay"}))
		w.advance(t, 25*time.Hour)
		_, err = w.store.Purge(ctx, 1000)
		ok("Purge", err)
	}
	ok("Close", engine.Close(ctx))
	queued(t, w)
}

// queued leaves entries behind: done, waiting behind a blocked row, at a gap, and
// not read yet.
func queued(t *testing.T, w *worker) {
	t.Helper()
	ctx := t.Context()
	for i := range 30 {
		w.append(t, store.New, numbered("sender", i))
	}
	share, err := w.store.Keep(ctx, store.Keeping{Worker: "worker", Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, _, cursor := w.read(t, "")
	for i := range 30 {
		e, err := w.store.Load(ctx, numbered("sender", i).Key)
		if err != nil {
			t.Fatal(err)
		}
		switch hold := share.Held[store.LaneOf(e.Order, len(share.Held))].Hold; {
		case i == 20: // its key waits: 23, 26 and 29 with it
			err = w.store.Block(ctx, store.Blocking{Hold: hold, Entry: &e, Attempt: &store.Resting{
				Fence: 1, Rest: store.Rest{State: store.Retryable, Reason: "no answer"}, DerivedKey: e.Note.Identity.DerivedKey(""),
			}})
		case i == 21:
			err = w.store.Block(ctx, store.Blocking{Hold: hold, Entry: &e, Gap: true})
		case i < 20 || i%3 != 2:
			w.done(t, e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	k := store.Keeping{Worker: "worker", Lease: time.Hour}
	for _, h := range share.Held {
		k.Marks = append(k.Marks, store.Mark{Hold: h.Hold, Cursor: cursor})
	}
	if _, err := w.store.Keep(ctx, k); err != nil {
		t.Fatal(err)
	}
	w.append(t, store.New, numbered("late", 0))
}

func audit(t *testing.T, drv driver.Driver, path string, o *store.AuditOptions) []store.Proof {
	t.Helper()
	proofs, err := sqlite.Audit(t.Context(), drv, path, o)
	if err != nil {
		t.Fatal(err)
	}
	return proofs
}

func TestAuditOfABusyFileFindsNothing(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		busy(t, w)
		for _, o := range []*store.AuditOptions{{All: true}, {Sample: 3}, {All: true, Page: 1}} {
			for _, p := range audit(t, drv, w.path, o) {
				if p.Broken != 0 || p.Looked == 0 || p.Left != "" && o.All {
					t.Errorf("%+v", p)
				}
				if sampled := p.Code == store.ResultIntact || p.Code == store.IdentityTrue || p.Code == store.EntryTrue; !o.All && sampled != (p.Left != "") {
					t.Errorf("a sample: %+v", p)
				}
			}
		}
	})
}

func TestAuditFindsEachViolationInAFile(t *testing.T) {
	const (
		outcome = "(SELECT max(id) FROM unavez_outcome)"
		attempt = "(SELECT key FROM unavez_attempt WHERE state = 4 ORDER BY key LIMIT 1)"
		now     = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
	)
	all := []struct {
		code, sql string
		also      []string
	}{
		{store.OneOutcome, "CREATE TABLE x AS SELECT * FROM unavez_outcome; DROP TABLE unavez_outcome; ALTER TABLE x RENAME TO unavez_outcome; UPDATE unavez_outcome SET key = (SELECT key FROM unavez_outcome WHERE id = " + outcome + ") WHERE id > " + outcome + " - 2", []string{store.TablesTrue, store.IdentityTrue, store.ResultIntact, store.History, store.NonePassed}},
		{store.EndedOnce, "UPDATE unavez_attempt SET key = (SELECT key FROM unavez_outcome WHERE id = " + outcome + ") WHERE key = (SELECT key FROM unavez_attempt WHERE state = 1 LIMIT 1)", []string{store.IdentityTrue, store.StepsOwned, store.History}},
		{store.Fences, "UPDATE unavez_attempt SET fence = 0 WHERE key = " + attempt, []string{store.History}},
		{store.Fences, "UPDATE unavez_step SET fence = 9", nil},
		{store.Fences, "UPDATE unavez_outcome SET attempt = 0 WHERE id = " + outcome, nil},
		{store.LegalStates, "UPDATE unavez_outcome SET state = 3 WHERE id = " + outcome, []string{store.ResultIntact, store.History}},
		{store.LegalStates, "UPDATE unavez_attempt SET state = 9 WHERE key = " + attempt, []string{store.History}},
		{store.LegalStates, "UPDATE unavez_attempt SET fingerprint = zeroblob(65) WHERE key = " + attempt, nil},
		{store.LegalStates, "UPDATE unavez_tombstone SET short = zeroblob(9)", nil},
		{store.History, "UPDATE unavez_attempt SET state = 5 WHERE key = " + attempt, nil},
		{store.History, "DELETE FROM unavez_transition WHERE key = " + attempt, nil},
		{store.History, "UPDATE unavez_transition SET to_state = 1 WHERE key = " + attempt, nil},
		{store.History, "DELETE FROM unavez_outcome WHERE key IN (SELECT key FROM unavez_transition WHERE to_state = 6)", nil},
		{store.Tombstones, "INSERT INTO unavez_tombstone SELECT key, forgets, NULL FROM unavez_outcome WHERE id = " + outcome, nil},
		{store.Tombstones, "INSERT INTO unavez_tombstone SELECT key, 9999999999999, NULL FROM unavez_attempt WHERE key = " + attempt, nil},
		{store.ResultIntact, "UPDATE unavez_outcome SET body = x'00' WHERE id = " + outcome, nil},
		{store.ResultThere, "UPDATE unavez_outcome SET unreplayable = 1, body = x'00' WHERE id = " + outcome, []string{store.ResultIntact}},
		{store.ResultThere, "UPDATE unavez_outcome SET operation = 'acme/http//k', code = 7, state = 6 WHERE id = " + outcome, []string{store.ResultIntact, store.IdentityTrue, store.History}},
		{store.ResultThere, "UPDATE unavez_outcome SET header = x'0000' WHERE id = " + outcome, []string{store.ResultIntact}},
		{store.IdentityTrue, "UPDATE unavez_outcome SET operation = operation || 'x' WHERE id = " + outcome, nil},
		{store.IdentityTrue, "UPDATE unavez_attempt SET operation = '%zz' WHERE key = " + attempt, nil},
		{store.DerivedKey, "UPDATE unavez_attempt SET derived = 'uv1-0' WHERE key = " + attempt, nil},
		{store.TimesInOrder, "UPDATE unavez_outcome SET forgets = expires - 1 WHERE id = " + outcome, nil},
		{store.TimesInOrder, "UPDATE unavez_attempt SET created = changed + 1 WHERE key = " + attempt, nil},
		{store.Purged, "UPDATE unavez_outcome SET at = at - 999999999, expires = " + now + " - 3700000 WHERE id = " + outcome, nil},
		{store.Purged, "UPDATE unavez_tombstone SET forgets = " + now + " - 3700000", nil},
		{store.StepsOwned, "DELETE FROM unavez_attempt WHERE key IN (SELECT key FROM unavez_step)", nil},
		{store.LeasesEnd, "UPDATE unavez_attempt SET created = 1, changed = 1, expires = " + now + " - 3700000 WHERE state = 1", nil},
		{store.TablesTrue, "CREATE TRIGGER quiet BEFORE INSERT ON unavez_attempt BEGIN SELECT RAISE(IGNORE); END", nil},
		{store.TablesTrue, "DROP INDEX unavez_outcome_kept", nil},
		{store.TablesTrue, "ALTER TABLE unavez_step ADD COLUMN mine TEXT", nil},
		{store.Agreed, "UPDATE unavez_setting SET value = '2' WHERE name = 'protocol'", nil},
		{store.Agreed, "DELETE FROM unavez_lane WHERE lane = 255", []string{store.EntryTrue}},
		{store.Agreed, "UPDATE unavez_setting SET value = '512' WHERE name = 'lanes'", nil},
		{store.Agreed, "UPDATE unavez_lane SET cursor = '999' WHERE lane = 255", nil},
		{store.EntryTrue, "UPDATE unavez_queue SET lane = (lane + 1) % 256 WHERE id = 31", nil},
		{store.EntryTrue, "UPDATE unavez_queue SET ordering = zeroblob(16) WHERE id = 31", nil},
		{store.EntryTrue, "UPDATE unavez_queue SET note = '{' WHERE id = 31", nil},
		{store.LegalStates, "UPDATE unavez_queue SET fingerprint = zeroblob(65) WHERE id = 31", nil},
		{store.NonePassed, "DELETE FROM unavez_blocked WHERE gap = 0", nil},
		{store.NonePassed, "DELETE FROM unavez_blocked WHERE gap = 1", nil},
		{store.NonePassed, "UPDATE unavez_lane SET cursor = '31'", nil},
		{store.NonePassed, "DELETE FROM unavez_outcome WHERE key = (SELECT key FROM unavez_queue WHERE id = 1)", nil},
		{store.BlockedTrue, "UPDATE unavez_blocked SET lane = (lane + 1) % 256", nil},
		{store.BlockedTrue, "INSERT INTO unavez_blocked SELECT coalesce(ordering, key), id, lane, 0, key, key FROM unavez_queue WHERE id = 24", nil},
		{store.Tombstones, "INSERT INTO unavez_tombstone SELECT key, 9999999999999, NULL FROM unavez_queue WHERE id = 31", nil},
	}
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		busy(t, w)
		w.exec(t, "CREATE INDEX mine ON unavez_outcome (operation)") // this may stay
		w.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
		file, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, v := range all {
			path := filepath.Join(t.TempDir(), "copy.db")
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			db, err := sqlite.OpenDB(drv, path, patient())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), v.sql); err != nil {
				t.Fatalf("%s: %v", v.sql, err)
			}
			found := false
			for _, p := range audit(t, drv, path, &store.AuditOptions{All: true}) { // beside the worker
				seen[p.Code] = seen[p.Code] || p.Broken > 0
				switch {
				case p.Broken == 0:
				case p.Code == v.code:
					found = len(p.First) > 0
					if key, err := store.ParseKey(p.First[0]); p.Code != store.TablesTrue && p.Code != store.Agreed && (err != nil || key == store.Key{}) {
						t.Errorf("%s: %q names no key", v.sql, p.First)
					}
				case !slices.Contains(v.also, p.Code):
					t.Errorf("%s: also %+v", v.sql, p)
				}
			}
			if !found {
				t.Errorf("%s: %s is not found", v.sql, v.code)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, p := range audit(t, drv, w.path, nil) {
			if !seen[p.Code] {
				t.Errorf("nothing plants a violation of %s", p.Code)
			}
		}
	})
}

func TestAuditRefusesWhatIsNoStore(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		missing := filepath.Join(t.TempDir(), "missing.db")
		if _, err := sqlite.Audit(t.Context(), drv, missing, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a missing file: %v", err)
		}
		if _, err := os.Stat(missing); err == nil {
			t.Error("looking has made the file")
		}
		other := filepath.Join(t.TempDir(), "other.db")
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := sqlite.Audit(t.Context(), drv, other, nil); err == nil || !strings.Contains(err.Error(), "holds no operations") {
			t.Errorf("an empty file: %v", err)
		}
		if _, err := sqlite.Audit(t.Context(), drv, other, &store.AuditOptions{Page: -1}); err == nil {
			t.Error("a negative page is taken")
		}
	})
}
