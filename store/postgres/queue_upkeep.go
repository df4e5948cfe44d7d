package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// queueSlots is how many slots the ring of the queue has.
const queueSlots = 4

// queueSlot is what a purge knows of a slot of the queue.
type queueSlot struct {
	number  int
	state   string
	closed  bool
	old     bool // current: written to for its whole time; sealed: kept for its whole time
	overdue bool // the same half a time later
	bytes   int64
	empty   bool // current, without rows
}

func (q queueSlot) table() string { return fmt.Sprintf("unavez.queue_%d", q.number) }

// queue turns the ring of the queue and empties what is over.
//
//	empty ── turn ──► current ── half of Payloads, or full ──► sealed ── closed, half of Payloads ──► all done or carried over ──► empty
//
// A slot is closed under a SHARE lock, which no uncommitted append lets through:
// what comes later finds the slot sealed. Then its rows are looked at in their
// order; those that are not done are carried to the current slot, with their
// sequence. It is emptied under ACCESS EXCLUSIVE NOWAIT, when nothing has come in
// since it was closed.
func (p *purge) queue(ctx context.Context) error {
	for {
		all, share, err := p.queueRing(ctx)
		if err != nil || len(all) < queueSlots {
			return err // another worker purges
		}
		current, next := all[queueSlots-1], all[0]
		if current.empty {
			if err := p.tx(ctx, func(tx pgx.Tx) error { return renewQueue(ctx, tx, current) }); err != nil && !errors.Is(err, errInUse) {
				return err
			}
			current.old = false // there is nothing in it to grow old
		}
		turns := current.old || current.bytes >= share
		var oldest *queueSlot
		for i := range all[:queueSlots-1] {
			if all[i].state == "sealed" {
				oldest = &all[i]
				break
			}
		}
		further := false
		switch {
		case turns && next.state == "empty":
			further, err = p.turnQueue(ctx, current, next, current.overdue || current.bytes >= share+share/2)
		case oldest == nil:
		case !oldest.closed:
			further, err = true, p.tx(ctx, func(tx pgx.Tx) error { return closeQueue(ctx, tx, *oldest) })
		case oldest.old || turns:
			further, err = p.emptyQueue(ctx, *oldest, current, oldest.old, current.bytes < 2*share)
		}
		if errors.Is(err, errInUse) {
			return nil // the next purge tries again
		}
		if err != nil || !further {
			return err
		}
	}
}

// queueRing reads the ring from the slot after the current one on, and the share
// of the room that each slot has.
func (p *purge) queueRing(ctx context.Context) (all []queueSlot, share int64, err error) {
	const text = "WITH c AS (SELECT x.number FROM unavez.queue_slot x WHERE x.state = 'current')," +
		" t AS (SELECT (SELECT value::pg_catalog.int8 FROM unavez.setting WHERE name = 'queue_payload') / 2 * interval '1 microsecond' AS half," +
		" (SELECT value::pg_catalog.int8 FROM unavez.setting WHERE name = 'queue_bytes') / 4 AS share)" +
		" SELECT s.number, s.state, s.closed IS NOT NULL, coalesce(s.sealed, s.since) <= pg_catalog.clock_timestamp() - t.half," +
		" coalesce(s.sealed, s.since) <= pg_catalog.clock_timestamp() - t.half * 1.5," +
		" (SELECT pg_catalog.pg_relation_size(k.oid) + pg_catalog.pg_relation_size(k.reltoastrelid) FROM pg_catalog.pg_class k WHERE k.oid = pg_catalog.format('unavez.queue_%s', s.number)::pg_catalog.regclass), t.share, s.state = 'current' AND CASE s.number WHEN 0 THEN NOT EXISTS (SELECT FROM unavez.queue_0)" +
		" WHEN 1 THEN NOT EXISTS (SELECT FROM unavez.queue_1) WHEN 2 THEN NOT EXISTS (SELECT FROM unavez.queue_2) ELSE NOT EXISTS (SELECT FROM unavez.queue_3) END" +
		" FROM unavez.queue_slot s, c, t ORDER BY (s.number - c.number - 1 + 4) % 4"
	err = p.tx(ctx, func(tx pgx.Tx) (err error) {
		all, err = collect(ctx, tx, text, nil, func(row pgx.CollectableRow) (q queueSlot, err error) {
			err = row.Scan(&q.number, &q.state, &q.closed, &q.old, &q.overdue, &q.bytes, &share, &q.empty)
			return q, err
		})
		return err
	})
	return all, share, err
}

// lockQueue takes a slot at once or not at all.
func lockQueue(ctx context.Context, tx pgx.Tx, q queueSlot, mode string) error {
	err := classify(errOf(tx.Exec(ctx, "LOCK TABLE "+q.table()+" IN "+mode)))
	if errors.Is(err, store.ErrUnavailable) {
		return errors.Join(errInUse, err)
	}
	return err
}

// turnQueue makes the next slot the current one. It waits a moment for the
// appends that are under way, which keeps others waiting as long: when all that
// has come into the old slot is committed, an append finds there what it knows.
// Where transactions that stay open keep the lock from it for too long the ring
// turns without, and a key that one of them appends may come into two slots;
// then the ledger decides which of the two entries runs.
func (p *purge) turnQueue(ctx context.Context, from, to queueSlot, overdue bool) (bool, error) {
	turn := func(locked bool) error {
		return p.tx(ctx, func(tx pgx.Tx) error {
			if locked {
				if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '100ms'"); err != nil {
					return err
				}
				if err := lockQueue(ctx, tx, from, "SHARE MODE"); err != nil {
					return err
				}
			}
			const seal = "UPDATE unavez.queue_slot SET state = 'sealed', sealed = pg_catalog.clock_timestamp(), checked = 0," +
				" closed = CASE WHEN $2::pg_catalog.bool THEN pg_catalog.pg_current_snapshot() END WHERE number = $1::pg_catalog.int4 AND state = 'current'"
			if _, err := tx.Exec(ctx, seal, from.number, locked); err != nil {
				return err
			}
			const use = "UPDATE unavez.queue_slot SET state = 'current', since = pg_catalog.clock_timestamp(), sealed = NULL, closed = NULL, checked = 0" +
				" WHERE number = $1::pg_catalog.int4 AND state = 'empty'"
			_, err := tx.Exec(ctx, use, to.number)
			return err
		})
	}
	err := turn(true)
	if errors.Is(err, errInUse) && overdue {
		err = turn(false)
	}
	return err == nil, err
}

// renewQueue says that a slot without rows begins now: nothing that was done
// before has an entry there.
func renewQueue(ctx context.Context, tx pgx.Tx, current queueSlot) error {
	const text = "SELECT s.since <= pg_catalog.clock_timestamp() - interval '1 minute' AND NOT EXISTS (SELECT FROM %s) FROM unavez.queue_slot s WHERE s.number = $1::pg_catalog.int4"
	var idle bool
	for _, locked := range []bool{false, true} {
		if locked {
			if err := lockQueue(ctx, tx, current, "SHARE MODE NOWAIT"); err != nil {
				return err
			}
		}
		if err := tx.QueryRow(ctx, fmt.Sprintf(text, current.table()), current.number).Scan(&idle); err != nil || !idle {
			return err
		}
	}
	_, err := tx.Exec(ctx, "UPDATE unavez.queue_slot SET since = pg_catalog.clock_timestamp() WHERE number = $1::pg_catalog.int4", current.number)
	return err
}

// closeQueue notes what has come into a sealed slot.
func closeQueue(ctx context.Context, tx pgx.Tx, q queueSlot) error {
	if err := lockQueue(ctx, tx, q, "SHARE MODE NOWAIT"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE unavez.queue_slot SET closed = pg_catalog.pg_current_snapshot(), checked = 0 WHERE number = $1::pg_catalog.int4", q.number)
	return err
}

// How many rows a purge looks at, for each that it may change, and in one
// transaction at most.
const (
	queueLooks = 10
	queueBatch = 5000
)

// emptyQueue looks at the rows of a closed slot, carries over what is not done,
// and empties it when that is all. A slot that is emptied before its time, only to
// make room, has to be half done at least: nothing is won by carrying the rest.
func (p *purge) emptyQueue(ctx context.Context, q, current queueSlot, timely, room bool) (bool, error) {
	if !timely {
		var worth bool
		err := p.tx(ctx, func(tx pgx.Tx) error {
			text := "SELECT count(*) FILTER (WHERE (SELECT true FROM unavez.memory m WHERE m.key = w.key AND m.forgets > w.arrived LIMIT 1)) * 2 >= count(*)" +
				" FROM (SELECT q.key, q.arrived FROM " + q.table() + " q ORDER BY q.sequence LIMIT 1000) w"
			return tx.QueryRow(ctx, text).Scan(&worth)
		})
		if err != nil || !worth {
			return false, err
		}
	}
	if p.looks == 0 {
		p.looks = p.left * queueLooks
	}
	for {
		most, carries := min(p.looks, queueBatch), p.left
		if most <= 0 || carries <= 0 {
			return false, nil
		}
		if !room {
			carries = 0
		}
		var looked, carried int
		var more bool
		err := p.tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"); err != nil {
				return err
			}
			return tx.QueryRow(ctx, carryRows(q, current), q.number, most, carries).Scan(&looked, &carried, &more)
		})
		p.left, p.looks = p.left-carried, p.looks-looked
		switch {
		case err != nil:
			return false, err
		case more && carried == 0:
			return false, nil // there is no room for what waits
		case looked == 0:
			err := p.tx(ctx, func(tx pgx.Tx) error { return clearQueue(ctx, tx, q) })
			return err == nil, err
		}
	}
}

// carryRows looks at the next $2 rows of slot $1 and carries those that are not
// done, and have no copy, to the current slot: at most $3. It notes how far it
// came. A row that was finished meanwhile is carried for nothing.
func carryRows(q, current queueSlot) string {
	var others []string
	for n := range queueSlots {
		if n != q.number {
			others = append(others, fmt.Sprintf("SELECT true FROM unavez.queue_%d x WHERE x.key = w.key", n))
		}
	}
	return "WITH w AS MATERIALIZED (SELECT q.* FROM " + q.table() + " q WHERE q.sequence > (SELECT s.checked FROM unavez.queue_slot s WHERE s.number = $1::pg_catalog.int4)" +
		" ORDER BY q.sequence LIMIT $2::pg_catalog.int4)," +
		" u AS MATERIALIZED (SELECT w.*, row_number() OVER (ORDER BY w.sequence) AS place FROM w WHERE (SELECT true FROM unavez.memory m WHERE m.key = w.key AND m.forgets > w.arrived LIMIT 1) IS NULL" +
		" AND (SELECT true FROM (" + strings.Join(others, " UNION ALL ") + " LIMIT 1) o) IS NULL ORDER BY w.sequence LIMIT $3::pg_catalog.int4 + 1)," +
		" put AS (INSERT INTO " + current.table() + " SELECT u.sequence, pg_catalog.pg_current_xact_id(), u.arrived, coalesce(u.first, u.xid), u.key, u.operation, u.ordering, u.subject," +
		" u.lane, u.version, u.erased, u.source, u.fingerprint, u.note, u.payload FROM u WHERE u.place <= $3::pg_catalog.int4 ORDER BY u.key ON CONFLICT (key) DO NOTHING)," +
		" far AS (SELECT coalesce((SELECT u.sequence - 1 FROM u WHERE u.place = $3::pg_catalog.int4 + 1), (SELECT max(w.sequence) FROM w)) AS sequence)," +
		" noted AS (UPDATE unavez.queue_slot s SET checked = far.sequence FROM far WHERE s.number = $1::pg_catalog.int4 AND far.sequence > s.checked)" +
		" SELECT (SELECT count(*) FROM w), (SELECT count(*) FROM u WHERE u.place <= $3::pg_catalog.int4), EXISTS (SELECT FROM u WHERE u.place > $3::pg_catalog.int4)"
}

// clearQueue empties a slot whose rows are all done or have a copy. The lock is
// granted only when nobody reads or writes it; under it one more look tells
// whether anything has come in since the slot was closed, which nothing should,
// or has not been looked at. Then it is closed anew.
func clearQueue(ctx context.Context, tx pgx.Tx, q queueSlot) error {
	if err := lockQueue(ctx, tx, q, "ACCESS EXCLUSIVE MODE NOWAIT"); err != nil {
		return err
	}
	text := "SELECT s.state = 'sealed' AND s.closed IS NOT NULL AND NOT EXISTS (SELECT FROM " + q.table() + " q WHERE q.sequence > s.checked)" +
		" AND NOT EXISTS (SELECT FROM " + q.table() + " q WHERE q.xid = ANY (ARRAY(SELECT pg_catalog.pg_snapshot_xip(s.closed))) OR q.xid >= pg_catalog.pg_snapshot_xmax(s.closed)" +
		" AND q.xid < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()))" +
		" FROM unavez.queue_slot s WHERE s.number = $1::pg_catalog.int4"
	var whole bool
	if err := tx.QueryRow(ctx, text, q.number).Scan(&whole); err != nil {
		return err
	}
	if !whole {
		_, err := tx.Exec(ctx, "UPDATE unavez.queue_slot SET closed = NULL, checked = 0 WHERE number = $1::pg_catalog.int4 AND state = 'sealed'", q.number)
		return err
	}
	if _, err := tx.Exec(ctx, "TRUNCATE "+q.table()); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE unavez.queue_slot SET state = 'empty', since = pg_catalog.clock_timestamp(), sealed = NULL, closed = NULL, checked = 0 WHERE number = $1::pg_catalog.int4", q.number)
	return err
}

// deliveries forgets what was seen of entries that are gone.
func (p *purge) deliveries(ctx context.Context) error {
	return p.tx(ctx, func(tx pgx.Tx) error {
		return p.run(ctx, tx, "WITH over AS (SELECT d.id FROM unavez.delivery d WHERE d.at <= pg_catalog.clock_timestamp() -"+
			" (SELECT value::pg_catalog.int8 FROM unavez.setting WHERE name = 'queue_payload') * interval '1 microsecond'"+
			" AND (SELECT true FROM unavez.queue q WHERE q.key = d.key LIMIT 1) IS NULL ORDER BY d.at LIMIT $1),"+
			" gone AS (DELETE FROM unavez.delivery d USING over WHERE d.id = over.id RETURNING 1) SELECT count(*) FROM gone")
	})
}
