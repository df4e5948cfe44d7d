package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/unavez/unavez/store"
)

// rings proves what the ledger's row and the life of the slots say together.
func (a *auditor) rings(ctx context.Context) error {
	return a.snapshot(ctx, func(ctx context.Context, tx pgx.Tx, l *layoutFound) error {
		var rows int64
		var spoken string
		const agreed = "SELECT (SELECT count(*) FROM unavez.ledger), coalesce((SELECT value FROM unavez.setting WHERE name = 'protocol'), '')"
		if err := tx.QueryRow(ctx, agreed).Scan(&rows, &spoken); err != nil {
			return err
		}
		a.Look(2, store.Agreed)
		if rows != 1 {
			a.Break(store.Agreed, 1, fmt.Sprintf("unavez.ledger has %d rows, want 1", rows))
		}
		if spoken != protocol {
			a.Break(store.Agreed, 1, fmt.Sprintf("setting protocol is %q, want %q", spoken, protocol))
		}
		if rows != 1 {
			a.Leave(store.SlotLayout, "the ledger has not one row")
			return nil
		}
		a.Look(outcomeSlots+tombstoneSlots, store.SlotLayout)
		for _, fault := range l.faults() {
			a.Break(store.SlotLayout, 1, fault)
		}
		return nil
	})
}

// faults tells where the ledger's row and the slots contradict each other.
func (l *layoutFound) faults() (all []string) {
	fault := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	ring := func(name string, slots, current, live int) {
		currents := 0
		for n := range slots {
			place := fmt.Sprintf("%s_%d", name, n)
			state, ok := l.states[place]
			read := live&(1<<n) != 0
			switch {
			case !ok:
				fault("%s has no row in unavez.slot", place)
			case read != (state == "current" || state == "sealed"):
				fault("%s is %s, and the ledger has it live: %v", place, state, read)
			case state == "current" && current != n && current != -1:
				fault("%s is current, and the ledger writes to %d", place, current)
			}
			if state == "current" {
				currents++
			}
		}
		if currents != 1 {
			fault("%d slots of %s are current, want 1", currents, name)
		}
		if live>>slots != 0 || current >= slots || current < -1 {
			fault("the ledger names slots of %s that do not exist", name)
		}
	}
	ring(ringOutcome, outcomeSlots, l.slot, l.live&^(liveTable|liveAttempt))
	ring(ringTombstone, tombstoneSlots, l.tombstoneSlot, l.tombstoneLive)
	if len(l.states) > outcomeSlots+tombstoneSlots {
		fault("unavez.slot has %d rows, want %d", len(l.states), outcomeSlots+tombstoneSlots)
	}
	if l.tombstoneSlot < 0 {
		fault("the ledger has no slot for tombstones")
	}
	if l.ring < microseconds(minRing) {
		fault("the ring's retention is %d microseconds, want at least %d", l.ring, microseconds(minRing))
	}
	return all
}

// size estimates how many rows some tables have, from their bytes.
func (a *auditor) size(ctx context.Context, tables []string) (rows int64, err error) {
	const text = "SELECT coalesce(sum(pg_catalog.pg_relation_size('unavez.' || t)), 0)::pg_catalog.int8 / 150 FROM pg_catalog.unnest($1::pg_catalog.text[]) t"
	err = a.pool.QueryRow(ctx, text, tables).Scan(&rows)
	return rows, err
}

// keySpace is how many parts keys can be told by: their first four bytes.
const keySpace = int64(math.MaxUint32) + 1

// between are the first and the last key of a part of the space.
func between(from, to int64) (first, last pgtype.UUID) {
	first.Valid, last.Valid = true, true
	binary.BigEndian.PutUint32(first.Bytes[:], uint32(from))
	for i := range last.Bytes {
		last.Bytes[i] = 0xff
	}
	binary.BigEndian.PutUint32(last.Bytes[:], uint32(to-1))
	return first, last
}

// keys proves what several tables say of one operation. A part of the keys is
// looked at in all tables at once, by their primary keys.
func (a *auditor) keys(ctx context.Context) error {
	rows, err := a.size(ctx, append(append(outcomePlaces(), tombstonePlaces()...), "attempt", "transition", "step"))
	if err != nil {
		return err
	}
	step := max(1, keySpace/max(1, rows/int64(a.o.Page)))
	return a.pages(ctx, keySpace, step, func(ctx context.Context, tx pgx.Tx, l *layoutFound, p *page, from, to int64) error {
		first, last := between(from, to)
		for code, text := range a.keyTexts(l) {
			if err := a.proves(ctx, tx, p, code, text, first, last); err != nil {
				return err
			}
		}
		if err := a.proves(ctx, tx, p, store.Fences, "SELECT count(*), "+a.verdict("wrong")+" FROM ("+
			"SELECT s.key, s.fence NOT BETWEEN 1 AND coalesce((SELECT x.fence FROM unavez.attempt x WHERE x.key = s.key), s.fence) AS wrong"+
			" FROM unavez.step s WHERE s."+inRange+") v", first, last); err != nil {
			return err
		}
		return a.attempts(ctx, tx, p, first, last)
	})
}

// inRange selects a part of the keys.
const inRange = "key BETWEEN $1::uuid AND $2::uuid"

// keyTexts are the statements by the invariant that they prove.
func (a *auditor) keyTexts(l *layoutFound) map[string]string {
	outcomes, tombs := l.read(outcomePlaces()), l.read(tombstonePlaces())
	edges := "(from_state BETWEEN 1 AND 5 AND to_state BETWEEN 2 AND 5 OR from_state BETWEEN 2 AND 7 AND to_state IN (6, 7))"
	return map[string]string{
		store.OneOutcome: "SELECT coalesce(sum(n), 0)::int8, " + a.verdict("n > 1") + " FROM (" +
			"SELECT key, count(*) AS n FROM (" + union("key", inRange, outcomes) + ") u GROUP BY key) v",

		store.EndedOnce: "SELECT count(*), " + a.verdict("ended") + " FROM (" +
			"SELECT a.key, EXISTS (" + union("1", "key = a.key", outcomes) + ") AS ended FROM unavez.attempt a WHERE a." + inRange + ") v",

		// Only keys that stand in two places are looked at closely.
		store.Tombstones: "WITH t AS (" + union("key", inRange, tombs) + ")," +
			" twice AS MATERIALIZED (SELECT key FROM t JOIN (" + union("key", inRange, outcomes) + ") o USING (key)" +
			" UNION SELECT key FROM t JOIN unavez.attempt USING (key) UNION SELECT key FROM t GROUP BY key HAVING count(*) > 1)," +
			" v AS (SELECT key FROM twice w WHERE EXISTS (SELECT FROM unavez.attempt x WHERE x.key = w.key)" +
			" OR EXISTS (SELECT FROM (" + union("expires, forgets", "key = w.key", outcomes) + ") o WHERE o.expires > clock_timestamp()" +
			" OR EXISTS (SELECT FROM (" + union("forgets", "key = w.key", tombs) + ") d WHERE d.forgets <> o.forgets))" +
			" OR (SELECT count(DISTINCT forgets) FROM (" + union("forgets", "key = w.key", tombs) + ") d) > 1)" +
			" SELECT (SELECT count(*) FROM t), " + a.verdict("true") + " FROM v",

		store.History: "WITH h AS (SELECT *, row_number() OVER (PARTITION BY key ORDER BY id DESC) = 1 AS last FROM unavez.transition WHERE " + inRange + ")," +
			" v AS (SELECT key, NOT " + edges + " OR attempt < 1 OR actor = ''" +
			" OR last AND to_state >= 6 AND NOT EXISTS (SELECT FROM (" + union("state", "key = h.key", outcomePlaces()) + ") o WHERE o.state = h.to_state)" +
			" OR last AND EXISTS (SELECT FROM unavez.attempt x WHERE x.key = h.key" +
			" AND CASE WHEN x.state = 1 THEN h.attempt >= x.fence ELSE h.to_state <> x.state OR h.attempt <> x.fence END) AS wrong FROM h" +
			" UNION ALL SELECT key, NOT EXISTS (SELECT FROM h WHERE h.key = x.key) FROM unavez.attempt x WHERE x." + inRange + " AND x.state <> 1)" +
			" SELECT count(*), " + a.verdict("wrong") + " FROM v",

		store.StepsOwned: "SELECT count(*), " + a.verdict("lost") + " FROM (" +
			"SELECT s.key, NOT EXISTS (SELECT FROM unavez.attempt x WHERE x.key = s.key) AS lost FROM unavez.step s WHERE s." + inRange + ") v",
	}
}

// attempts proves what each unfinished operation says of itself.
func (a *auditor) attempts(ctx context.Context, tx pgx.Tx, p *page, first, last pgtype.UUID) error {
	for code, wrong := range map[string]string{
		store.Fences: "fence < 1",
		store.LegalStates: "state NOT BETWEEN 1 AND 5 OR state = 1 AND expires <= changed OR state = 2 AND due < changed" +
			" OR version < 0 OR octet_length(fingerprint) > 64 OR octet_length(origin) > 1024 OR octet_length(reason) > 1024",
		store.TimesInOrder: "changed < created",
		store.LeasesEnd:    fmt.Sprintf("state = 1 AND expires < clock_timestamp() - %d * interval '1 microsecond'", microseconds(a.o.Grace)),
	} {
		text := "SELECT count(*), " + a.verdict(wrong) + " FROM unavez.attempt WHERE " + inRange
		if err := a.proves(ctx, tx, p, code, text, first, last); err != nil {
			return err
		}
	}
	rows, err := tx.Query(ctx, "SELECT key, operation, derived FROM unavez.attempt WHERE "+inRange, first, last)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key pgtype.UUID
		var operation, derived string
		if err := rows.Scan(&key, &operation, &derived); err != nil {
			return err
		}
		id := store.Key(key.Bytes)
		p.look(1, store.IdentityTrue, store.DerivedKey)
		identity, err := store.ParseText(operation)
		if err != nil || identity.Key() != id {
			p.broken(store.IdentityTrue, 1, "attempt "+id.String())
			continue
		}
		if derived != identity.DerivedKey("") {
			p.broken(store.DerivedKey, 1, id.String())
		}
	}
	return rows.Err()
}

// blockRows is about how many outcomes a block of 8 KiB holds.
const blockRows = 40

// places proves what each row of the large tables says of itself, in the order
// in which they lie on the disk.
func (a *auditor) places(ctx context.Context) error {
	perPage := int64(max(1, a.o.Page/blockRows))
	blocks := map[string]int64{}
	var parts int64
	all := append(outcomePlaces(), tombstonePlaces()...)
	for _, place := range all {
		var n int64
		const text = "SELECT pg_catalog.pg_relation_size($1::pg_catalog.text::pg_catalog.regclass) / pg_catalog.current_setting('block_size')::pg_catalog.int8"
		if err := a.pool.QueryRow(ctx, text, "unavez."+place).Scan(&n); err != nil {
			return err
		}
		blocks[place] = n
		parts += (n + perPage - 1) / perPage
	}
	share := max(1, int64(a.o.Sample)/max(1, parts)) // of each part
	for i, place := range all {
		outcomes := i <= outcomeSlots
		err := a.pages(ctx, blocks[place], perPage, func(ctx context.Context, tx pgx.Tx, l *layoutFound, p *page, from, to int64) error {
			if err := a.rows(ctx, tx, l, p, place, outcomes, from, to); err != nil || !outcomes {
				return err
			}
			return a.results(ctx, tx, p, place, share, from, to)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	if a.read < a.rowsSeen {
		for _, code := range []string{store.ResultIntact, store.IdentityTrue} {
			a.Leave(code, fmt.Sprintf("a sample of %d outcomes out of %d", a.read, a.rowsSeen))
		}
	}
	return nil
}

// inBlocks selects a part of a table by the place of its rows.
func inBlocks(from, to int64) string {
	return fmt.Sprintf("ctid >= '(%d,0)'::tid AND ctid < '(%d,0)'::tid", from, to)
}

// rows proves what SQL can of each row.
func (a *auditor) rows(ctx context.Context, tx pgx.Tx, l *layoutFound, p *page, place string, outcomes bool, from, to int64) error {
	ends := map[bool]string{true: "expires", false: "forgets"}[outcomes]
	wrong := map[string]string{store.LegalStates: "octet_length(short) > 8"}
	if outcomes {
		wrong = map[string]string{
			store.Fences:       "attempt < 1",
			store.LegalStates:  "state NOT IN (6, 7) OR version < 0 OR octet_length(fingerprint) > 64 OR octet_length(checksum) <> 16",
			store.ResultThere:  "unreplayable AND octet_length(body) > 0 OR state = 6 AND NOT unreplayable AND split_part(operation, '/', 2) = 'http' AND code NOT BETWEEN 100 AND 999",
			store.TimesInOrder: "expires < ended OR forgets < expires",
			store.Purged:       fmt.Sprintf("expires < clock_timestamp() - %d * interval '1 microsecond'", microseconds(a.o.Grace)),
		}
	}
	if state, isSlot := l.states[place]; isSlot {
		// A slot is written to for half of the ring's retention and emptied when
		// all of it is over.
		if outcomes {
			wrong[store.Purged] = fmt.Sprintf("ended < clock_timestamp() - %d * interval '1 microsecond' AND coalesce((SELECT s.until FROM unavez.slot s WHERE s.ring || '_' || s.number = '%s'), '-infinity')"+
				" < clock_timestamp() - %d * interval '1 microsecond'", l.ring+l.ring/2+microseconds(a.o.Grace), place, microseconds(a.o.Grace))
		}
		wrong[store.SlotsUnused], wrong[store.SlotsSealed] = "false", "false"
		if !l.reads(place) {
			wrong[store.SlotsUnused] = ends + " > clock_timestamp()"
		}
		if state == "empty" {
			wrong[store.SlotsUnused] = "true"
		}
		if l.measured[place] {
			wrong[store.SlotsSealed] = fmt.Sprintf("%s > (SELECT s.until FROM unavez.slot s WHERE s.ring || '_' || s.number = '%s')", ends, place)
		}
	}
	text := "SELECT count(*)"
	var looked int64
	dest := []any{&looked}
	type found struct {
		code   string
		broken int64
		names  []string
	}
	var all []*found
	for code, mark := range wrong {
		f := &found{code: code}
		all, dest = append(all, f), append(dest, &f.broken, &f.names)
		text += ", " + a.verdict(mark)
	}
	if err := tx.QueryRow(ctx, text+" FROM unavez."+place+" WHERE "+inBlocks(from, to)).Scan(dest...); err != nil {
		return err
	}
	if outcomes {
		p.notes = append(p.notes, func(*store.Proofs) { a.rowsSeen += looked })
	}
	for _, f := range all {
		for i := range f.names {
			f.names[i] = place + " " + f.names[i]
		}
		p.look(looked, f.code)
		p.broken(f.code, f.broken, f.names...)
	}
	return nil
}

// results proves what a result's checksum and its identity say, by this
// program's own means and not by the database's functions.
func (a *auditor) results(ctx context.Context, tx pgx.Tx, p *page, place string, share, from, to int64) error {
	text := "SELECT key, operation, state, version, fingerprint, code, unreplayable, checksum, header, body FROM unavez." + place + " WHERE " + inBlocks(from, to)
	if !a.o.All {
		text += fmt.Sprintf(" LIMIT %d", share)
	}
	rows, err := tx.Query(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key pgtype.UUID
		var operation string
		var state int16
		var version int32
		var code int64
		var checksum, header []byte
		o := &store.Outcome{}
		if err := rows.Scan(&key, &operation, &state, &version, &o.Fingerprint.Sum, &code, &o.Result.NotReplayable, &checksum, &header, &o.Result.Body); err != nil {
			return err
		}
		id := store.Key(key.Bytes)
		o.State, o.Fingerprint.Version, o.Result.Code = store.State(state), int(version), int(code)
		name := place + " " + id.String()
		p.look(1, store.ResultIntact, store.IdentityTrue)
		p.notes = append(p.notes, func(*store.Proofs) { a.read++ })
		if identity, err := store.ParseText(operation); err != nil || identity.Key() != id {
			p.broken(store.IdentityTrue, 1, name)
		}
		if o.Result.Header, err = store.ParseHeader(header); err != nil {
			p.broken(store.ResultThere, 1, name)
		}
		if err != nil || !bytes.Equal(o.Checksum(id), checksum) {
			p.broken(store.ResultIntact, 1, name)
		}
	}
	return rows.Err()
}
