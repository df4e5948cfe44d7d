package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/unavez/unavez/store"
)

// inspector opens a file for looking only: no writer, no gate, no migration.
// The file must exist.
func inspector(drv driver.Driver, path string) (*connector, error) {
	if drv == nil {
		return nil, errors.New("sqlite store: no driver (pass &sqlite.Driver{} of modernc.org/sqlite, or &driver.SQLite{} of ncruces)")
	}
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		return nil, err
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite store: path %q: %w", path, err)
	}
	if _, err := os.Stat(full); err != nil { // opening it would make it
		return nil, fmt.Errorf("sqlite store: %w", err)
	}
	return &connector{path: full, opts: o, drv: drv}, nil
}

// Audit proves the invariants of [store.Invariants] that SQLite has, over the
// live file, beside running workers. It only reads, in short transactions, and
// keeps nobody from writing. nil options mean the defaults; Limit is not used,
// since each statement looks at one page. An error says that the audit could
// not be carried out.
func Audit(ctx context.Context, drv driver.Driver, path string, opts *store.AuditOptions) ([]store.Proof, error) {
	o, err := opts.Complete()
	if err != nil {
		return nil, fmt.Errorf("sqlite store: %w", err)
	}
	c, err := inspector(drv, path)
	if err != nil {
		return nil, err
	}
	r, err := c.open(false)
	if err != nil {
		return nil, fmt.Errorf("sqlite store: audit: %w", err)
	}
	a := &auditor{c: c, r: r, o: o, Proofs: store.NewProofs(
		o.Offenders, store.OneOutcome, store.EndedOnce, store.Fences, store.LegalStates, store.History, store.Tombstones, store.ResultIntact,
		store.ResultThere, store.IdentityTrue, store.DerivedKey, store.TimesInOrder, store.Purged, store.StepsOwned, store.LeasesEnd, store.TablesTrue, store.Agreed,
		store.EntryTrue, store.NonePassed, store.BlockedTrue,
	)}
	for _, part := range []func(context.Context) error{a.schema, a.keys, a.results, a.queue} {
		if err == nil {
			err = part(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite store: audit: %w", classify(err)), r.close())
	}
	return a.All(), r.close()
}

// auditor is one audit.
type auditor struct {
	*store.Proofs
	c          *connector
	r          *raw
	o          store.AuditOptions
	seen, read int64 // outcomes that were looked at by SQL, and read whole
}

// snapshot runs fn on one state of the file.
func (a *auditor) snapshot(fn func() error) error {
	if _, err := a.r.exec("BEGIN"); err != nil {
		return err
	}
	err := fn()
	if _, e := a.r.exec("ROLLBACK"); err == nil {
		err = e
	}
	return err
}

// schema proves that what the promises rest on is what this program made.
func (a *auditor) schema(context.Context) error {
	all, err := steps()
	if err != nil {
		return err
	}
	want, err := a.made(all)
	if err != nil {
		return err
	}
	return a.snapshot(func() error {
		at, err := version(a.r)
		switch newest := int64(len(all)); {
		case err != nil:
			return err
		case at == 0:
			return errors.New("the file holds no operations: is it the right one?")
		case at != newest:
			return fmt.Errorf("schema is at version %d, this program wants %d: run unavez migrate, or audit with the version that serves", at, newest)
		}
		got, err := objects(a.r)
		if err != nil {
			return err
		}
		for name, text := range want {
			if found, ok := got[name]; !ok {
				a.Break(store.TablesTrue, 1, "missing: "+name)
			} else if found != text {
				a.Break(store.TablesTrue, 1, "different: "+name)
			}
		}
		for name, text := range got {
			a.Look(1, store.TablesTrue)
			// An index of somebody's own that makes nothing unique changes no answer.
			if _, ok := want[name]; !ok && !strings.HasPrefix(text, "CREATE INDEX ") {
				a.Break(store.TablesTrue, 1, "not of this program: "+name)
			}
		}
		a.Look(1, store.Agreed)
		var spoken string
		_, err = a.r.row("SELECT value FROM unavez_setting WHERE name = 'protocol'", nil, func(v []driver.Value) error { spoken = word(v[0]); return nil })
		if spoken != protocol {
			a.Break(store.Agreed, 1, fmt.Sprintf("setting protocol is %q, want %q", spoken, protocol))
		}
		return err
	})
}

// made gives what the migrations make, in a database of its own in memory.
func (a *auditor) made(all []migration) (map[string]string, error) {
	conn, err := a.c.drv.Open(":memory:")
	if err != nil {
		return nil, err
	}
	r := &raw{conn: conn, stmts: map[string]*prepared{}}
	for _, m := range all {
		if err == nil {
			_, err = r.execArgs(context.Background(), m.sql, 2, nil)
		}
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	want, err := objects(r)
	return want, errors.Join(err, r.close())
}

// objects are the parts of the schema, by their kind and name.
func objects(r *raw) (map[string]string, error) {
	all := map[string]string{}
	const text = "SELECT type || ' ' || name || CASE WHEN name = tbl_name THEN '' ELSE ' of ' || tbl_name END, coalesce(sql, '')" +
		" FROM sqlite_schema WHERE substr(tbl_name, 1, 7) = 'unavez_'"
	err := r.query(text, nil, func(v []driver.Value) error {
		all[word(v[0])] = word(v[1])
		return nil
	})
	return all, err
}

// proves notes the rows that a statement finds: those that violate an
// invariant, by key.
func (a *auditor) proves(code, text string, args ...driver.Value) error {
	err := a.r.query(text, args, func(v []driver.Value) error {
		a.Break(code, 1, keyOf(v[0]).String())
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", code, err)
	}
	return nil
}

// looks counts the rows of a part of a table.
func (a *auditor) looks(text string, args []driver.Value, codes ...string) error {
	n, err := a.r.number(text, args...)
	a.Look(n, codes...)
	return err
}

// keySpace is how many parts keys can be told by: their first four bytes.
const keySpace = int64(math.MaxUint32) + 1

// inRange selects a part of the keys.
const inRange = "key BETWEEN ?1 AND ?2"

// keys proves what several tables say of one operation, for one part of the
// keys after the other.
func (a *auditor) keys(ctx context.Context) error {
	rows, err := a.r.number("SELECT coalesce(max(id), 0) + (SELECT count(*) FROM unavez_tombstone) FROM unavez_outcome")
	if err != nil {
		return err
	}
	step := max(1, keySpace/max(1, rows/int64(a.o.Page)))
	for from := int64(0); from < keySpace; from += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		first, last := make([]byte, 16), bytes.Repeat([]byte{0xff}, 16)
		binary.BigEndian.PutUint32(first, uint32(from))
		binary.BigEndian.PutUint32(last, uint32(min(from+step, keySpace)-1))
		if err := a.snapshot(func() error { return a.part([]driver.Value{first, last}) }); err != nil {
			return err
		}
	}
	return nil
}

// part proves what is to be proved of a part of the keys.
func (a *auditor) part(keys []driver.Value) error {
	for table, codes := range map[string][]string{
		"unavez_outcome":    {store.OneOutcome},
		"unavez_attempt":    {store.EndedOnce, store.Fences, store.LegalStates, store.TimesInOrder, store.LeasesEnd, store.History},
		"unavez_tombstone":  {store.Tombstones, store.LegalStates, store.Purged},
		"unavez_transition": {store.History},
		"unavez_step":       {store.StepsOwned, store.Fences},
	} {
		if err := a.looks("SELECT count(*) FROM "+table+" WHERE "+inRange, keys, codes...); err != nil {
			return err
		}
	}
	const overdue = "CAST(unixepoch('subsec') * 1000 AS INTEGER) - ?3"
	const edges = "(from_state BETWEEN 1 AND 5 AND to_state BETWEEN 2 AND 5 OR from_state BETWEEN 2 AND 7 AND to_state IN (6, 7))"
	grace := append(keys[:len(keys):len(keys)], a.o.Grace.Milliseconds())
	for _, one := range []struct {
		code, text string
		args       []driver.Value
	}{
		{store.OneOutcome, "SELECT key FROM unavez_outcome WHERE " + inRange + " GROUP BY key HAVING count(*) > 1", keys},
		{store.EndedOnce, "SELECT key FROM unavez_attempt a WHERE " + inRange + " AND EXISTS (SELECT 1 FROM unavez_outcome o WHERE o.key = a.key)", keys},
		{store.Fences, "SELECT key FROM unavez_attempt WHERE " + inRange + " AND fence < 1", keys},
		{store.Fences, "SELECT key FROM unavez_step s WHERE " + inRange + " AND (fence < 1 OR fence > (SELECT fence FROM unavez_attempt a WHERE a.key = s.key))", keys},
		{store.LegalStates, "SELECT key FROM unavez_attempt WHERE " + inRange + " AND (state NOT BETWEEN 1 AND 5 OR state = 1 AND expires <= changed OR state = 2 AND due < changed" +
			" OR version < 0 OR length(fingerprint) > 64 OR length(CAST(origin AS BLOB)) > 1024 OR length(CAST(reason AS BLOB)) > 1024 OR length(key) <> 16)", keys},
		{store.LegalStates, "SELECT key FROM unavez_tombstone WHERE " + inRange + " AND (length(short) > 8 OR length(key) <> 16)", keys},
		{store.TimesInOrder, "SELECT key FROM unavez_attempt WHERE " + inRange + " AND changed < created", keys},
		{store.LeasesEnd, "SELECT key FROM unavez_attempt WHERE " + inRange + " AND state = 1 AND expires < " + overdue, grace},
		{store.Tombstones, "SELECT key FROM unavez_tombstone t WHERE " + inRange +
			" AND (EXISTS (SELECT 1 FROM unavez_outcome o WHERE o.key = t.key) OR EXISTS (SELECT 1 FROM unavez_attempt a WHERE a.key = t.key))", keys},
		{store.Tombstones, "SELECT key FROM unavez_tombstone t WHERE " + inRange + " AND EXISTS (SELECT 1 FROM unavez_queue q WHERE q.key = t.key)", keys},
		{store.Purged, "SELECT key FROM unavez_tombstone WHERE " + inRange + " AND forgets < " + overdue, grace},
		{store.StepsOwned, "SELECT key FROM unavez_step s WHERE " + inRange + " AND NOT EXISTS (SELECT 1 FROM unavez_attempt a WHERE a.key = s.key)", keys},
		{store.History, "SELECT key FROM unavez_transition WHERE " + inRange + " AND (NOT " + edges + " OR attempt < 1 OR actor = '')", keys},
		{store.History, "SELECT key FROM unavez_transition t WHERE " + inRange + " AND id = (SELECT max(id) FROM unavez_transition l WHERE l.key = t.key)" +
			" AND (to_state >= 6 AND NOT EXISTS (SELECT 1 FROM unavez_outcome o WHERE o.key = t.key AND o.state = t.to_state)" +
			" OR EXISTS (SELECT 1 FROM unavez_attempt a WHERE a.key = t.key" +
			" AND CASE WHEN a.state = 1 THEN t.attempt >= a.fence ELSE t.to_state <> a.state OR t.attempt <> a.fence END))", keys},
		{store.History, "SELECT key FROM unavez_attempt a WHERE " + inRange + " AND state <> 1 AND NOT EXISTS (SELECT 1 FROM unavez_transition t WHERE t.key = a.key)", keys},
	} {
		if err := a.proves(one.code, one.text, one.args...); err != nil {
			return err
		}
	}
	return a.r.query("SELECT key, operation, derived FROM unavez_attempt WHERE "+inRange, keys, func(v []driver.Value) error {
		key := keyOf(v[0])
		a.Look(1, store.IdentityTrue, store.DerivedKey)
		switch id, err := store.ParseText(word(v[1])); {
		case err != nil || id.Key() != key:
			a.Break(store.IdentityTrue, 1, key.String())
		case id.DerivedKey("") != word(v[2]):
			a.Break(store.DerivedKey, 1, key.String())
		}
		return nil
	})
}

// results proves what each outcome says of itself, in the order of the commits.
func (a *auditor) results(ctx context.Context) error {
	last, err := a.r.number("SELECT coalesce(max(id), 0) FROM unavez_outcome")
	if err != nil {
		return err
	}
	page := int64(a.o.Page)
	share := max(1, int64(a.o.Sample)/max(1, (last+page-1)/page))
	if a.o.All {
		share = page
	}
	first, err := a.r.number("SELECT coalesce(min(id), 0) FROM unavez_outcome")
	if err != nil {
		return err
	}
	for from := first; from <= last; from += page {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.snapshot(func() error { return a.outcomes([]driver.Value{from, min(from+page-1, last)}, share) }); err != nil {
			return err
		}
	}
	if a.read < a.seen {
		for _, code := range []string{store.ResultIntact, store.IdentityTrue} {
			a.Leave(code, fmt.Sprintf("a sample of %d outcomes out of %d", a.read, a.seen))
		}
	}
	return nil
}

// outcomes proves what is to be proved of a part of the outcomes.
func (a *auditor) outcomes(ids []driver.Value, share int64) error {
	const part = " WHERE id BETWEEN ?1 AND ?2"
	n, err := a.r.number("SELECT count(*) FROM unavez_outcome"+part, ids...)
	if err != nil {
		return err
	}
	a.seen += n
	for code, wrong := range map[string]string{
		store.Fences:       "attempt < 1",
		store.LegalStates:  "state NOT IN (6, 7) OR version < 0 OR length(fingerprint) > 64 OR length(checksum) <> 16 OR length(key) <> 16",
		store.ResultThere:  "unreplayable AND length(body) > 0 OR state = 6 AND NOT unreplayable AND instr(operation, '/http/') = instr(operation, '/') AND instr(operation, '/http/') > 0 AND code NOT BETWEEN 100 AND 999",
		store.TimesInOrder: "expires < at OR forgets < expires",
		store.Purged:       fmt.Sprintf("expires < CAST(unixepoch('subsec') * 1000 AS INTEGER) - %d", a.o.Grace.Milliseconds()),
	} {
		a.Look(n, code)
		if err := a.proves(code, "SELECT key FROM unavez_outcome"+part+" AND ("+wrong+")", ids...); err != nil {
			return err
		}
	}
	const text = "SELECT key, operation, state, version, fingerprint, code, unreplayable, checksum, header, body FROM unavez_outcome" + part + " LIMIT ?3"
	return a.r.query(text, append(ids[:len(ids):len(ids)], share), func(v []driver.Value) error {
		key := keyOf(v[0])
		a.read++
		a.Look(1, store.ResultIntact, store.IdentityTrue)
		if id, err := store.ParseText(word(v[1])); err != nil || id.Key() != key {
			a.Break(store.IdentityTrue, 1, key.String())
		}
		header, err := store.ParseHeader(blob(v[8]))
		o := store.Outcome{
			State:       store.State(integer(v[2])),
			Fingerprint: store.Fingerprint{Version: int(integer(v[3])), Sum: blob(v[4])},
			Result:      store.Result{Code: int(integer(v[5])), NotReplayable: integer(v[6]) != 0, Header: header, Body: blob(v[9])},
		}
		if err != nil {
			a.Break(store.ResultThere, 1, key.String())
		}
		if err != nil || !bytes.Equal(o.Checksum(key), blob(v[7])) {
			a.Break(store.ResultIntact, 1, key.String())
		}
		return nil
	})
}
