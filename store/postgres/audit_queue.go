package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/unavez/unavez/store"
)

// queue proves what entries, cursors and blocked rows say together.
func (a *auditor) queue(ctx context.Context) error {
	var lanes int
	err := a.snapshot(ctx, func(ctx context.Context, tx pgx.Tx, _ *layoutFound) error {
		var rows int
		const text = "SELECT coalesce((SELECT value::int4 FROM unavez.setting WHERE name = 'lanes'), 0), (SELECT count(*) FROM unavez.lane)"
		if err := tx.QueryRow(ctx, text).Scan(&lanes, &rows); err != nil {
			return err
		}
		a.Look(1, store.Agreed)
		if lanes < 1 || rows < lanes {
			a.Break(store.Agreed, 1, fmt.Sprintf("setting lanes is %d, and there are %d", lanes, rows))
		}
		return nil
	})
	if err != nil {
		return err
	}
	perPage := int64(max(1, a.o.Page/blockRows))
	var parts int64
	blocks := map[string]int64{}
	for n := range queueSlots {
		place := fmt.Sprintf("queue_%d", n)
		if blocks[place], err = a.blocks(ctx, place); err != nil {
			return err
		}
		parts += (blocks[place] + perPage - 1) / perPage
	}
	var seen, read int64
	share := max(1, int64(a.o.Sample)/max(1, parts))
	for n := range queueSlots {
		place := fmt.Sprintf("queue_%d", n)
		err := a.pages(ctx, blocks[place], perPage, func(ctx context.Context, tx pgx.Tx, _ *layoutFound, p *page, from, to int64) error {
			if err := a.proves(ctx, tx, p, store.NonePassed, "SELECT count(*), "+a.verdict("wrong")+" FROM (SELECT q.key, "+passed+" AS wrong FROM unavez."+place+" q"+
				" WHERE "+inBlocks(from, to)+") v"); err != nil {
				return err
			}
			return a.entries(ctx, tx, p, place, lanes, share, from, to, &seen, &read)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	if read < seen {
		a.Leave(store.EntryTrue, fmt.Sprintf("a sample of %d entries out of %d", read, seen))
	}
	rows, err := a.blocks(ctx, "blocked")
	if err != nil {
		return err
	}
	return a.pages(ctx, rows, perPage, func(ctx context.Context, tx pgx.Tx, _ *layoutFound, p *page, from, to int64) error {
		// A row may outlive its entry: until a worker looks.
		return a.proves(ctx, tx, p, store.BlockedTrue, "SELECT count(*), "+a.verdict("wrong")+" FROM (SELECT b.key, EXISTS (SELECT FROM unavez.queue q WHERE q.key = b.key"+
			" AND (q.sequence <> b.sequence OR q.ordering <> b.ordering OR q.operation <> b.operation OR q.lane <> b.lane)) AS wrong FROM unavez.blocked b WHERE "+inBlocks(from, to)+") v")
	})
}

// passed tells of an entry q that the cursor of its lane has gone by it: it is
// not done, and no blocked row keeps its place. A cursor of another incarnation
// counts as none.
const passed = "EXISTS (SELECT FROM unavez.lane l, unavez.ledger h WHERE l.number = q.lane AND CASE WHEN l.cursor ~ '^[0-9]+/[0-9]+:[0-9]+:[0-9,]*$'" +
	" AND split_part(l.cursor, '/', 1) = h.incarnation::text THEN pg_visible_in_snapshot(q.xid, split_part(l.cursor, '/', 2)::pg_snapshot) ELSE false END)" +
	" AND NOT EXISTS (SELECT FROM unavez.blocked b WHERE b.ordering = q.ordering AND CASE WHEN b.gap THEN b.sequence = q.sequence ELSE b.sequence <= q.sequence END)" +
	" AND (SELECT true FROM unavez.memory m WHERE m.key = q.key AND m.forgets > q.arrived LIMIT 1) IS NULL"

// blocks is how many blocks a table has.
func (a *auditor) blocks(ctx context.Context, table string) (n int64, err error) {
	const text = "SELECT pg_catalog.pg_relation_size($1::pg_catalog.text::pg_catalog.regclass) / pg_catalog.current_setting('block_size')::pg_catalog.int8"
	err = a.pool.QueryRow(ctx, text, "unavez."+table).Scan(&n)
	return n, err
}

// entries proves that entries lie where their notes say, by this program's own
// means.
func (a *auditor) entries(ctx context.Context, tx pgx.Tx, p *page, place string, lanes int, share, from, to int64, seen, read *int64) error {
	var rows int64
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM unavez."+place+" WHERE "+inBlocks(from, to)).Scan(&rows); err != nil {
		return err
	}
	text := "SELECT key, operation, ordering, lane, note FROM unavez." + place + " WHERE " + inBlocks(from, to)
	if !a.o.All {
		text += fmt.Sprintf(" LIMIT %d", share)
	}
	found, err := tx.Query(ctx, text)
	if err != nil {
		return err
	}
	defer found.Close()
	n := int64(0)
	for found.Next() {
		var key, operation, order pgtype.UUID
		var lane int
		var note []byte
		if err := found.Scan(&key, &operation, &order, &lane, &note); err != nil {
			return err
		}
		n++
		says, err := store.DecodeNote(note)
		if err != nil || says.Event.Key() != key.Bytes || says.Identity.Key() != operation.Bytes || says.Order() != order.Bytes ||
			lane != store.LaneOf(order.Bytes, max(1, lanes)) {
			p.broken(store.EntryTrue, 1, place+" "+store.Key(key.Bytes).String())
		}
	}
	p.look(n, store.EntryTrue)
	p.notes = append(p.notes, func(*store.Proofs) { *seen, *read = *seen+rows, *read+n })
	return found.Err()
}
