package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strconv"

	"github.com/unavez/unavez/store"
)

// queue proves what is to be proved of entries, of blocked rows and of lanes.
func (a *auditor) queue(ctx context.Context) error {
	if err := a.snapshot(a.lanes); err != nil {
		return err
	}
	first, err := a.r.number("SELECT coalesce(min(id), 0) FROM unavez_queue")
	if err != nil {
		return err
	}
	last, err := a.r.number("SELECT coalesce(max(id), -1) FROM unavez_queue")
	if err != nil {
		return err
	}
	page := int64(a.o.Page)
	share := max(1, int64(a.o.Sample)/max(1, (last-first+page)/page))
	if a.o.All {
		share = page
	}
	var seen, read int64
	for from := first; from <= last; from += page {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := a.snapshot(func() error {
			some, all, err := a.entries([]driver.Value{from, min(from+page-1, last)}, share)
			seen, read = seen+all, read+some
			return err
		})
		if err != nil {
			return err
		}
	}
	if read < seen {
		a.Leave(store.EntryTrue, fmt.Sprintf("a sample of %d entries out of %d", read, seen))
	}
	return a.snapshot(a.blocked)
}

// lanes proves that there are as many as was agreed, and that no cursor is ahead
// of what was appended.
func (a *auditor) lanes() error {
	var agreed string
	_, err := a.r.row("SELECT value FROM unavez_setting WHERE name = 'lanes'", nil, func(v []driver.Value) error { agreed = word(v[0]); return nil })
	if err != nil {
		return err
	}
	n, err := a.r.number("SELECT count(*) FROM unavez_lane WHERE lane BETWEEN 0 AND (SELECT count(*) FROM unavez_lane) - 1")
	if err != nil {
		return err
	}
	a.Look(n+1, store.Agreed)
	if agreed != strconv.FormatInt(n, 10) {
		a.Break(store.Agreed, 1, fmt.Sprintf("setting lanes is %q, and there are %d", agreed, n))
	}
	const ahead = "SELECT lane FROM unavez_lane WHERE CAST(cursor AS INTEGER) > (" + newest + ") OR epoch < 0"
	return a.r.query(ahead, nil, func(v []driver.Value) error {
		a.Break(store.Agreed, 1, fmt.Sprintf("lane %d", integer(v[0])))
		return nil
	})
}

// entries proves what is to be proved of a part of the queue: how many of it were
// read whole, of how many.
func (a *auditor) entries(ids []driver.Value, share int64) (read, seen int64, err error) {
	const part = " WHERE id BETWEEN ?1 AND ?2"
	if seen, err = a.r.number("SELECT count(*) FROM unavez_queue"+part, ids...); err != nil {
		return 0, 0, err
	}
	a.Look(seen, store.NonePassed, store.LegalStates)
	for code, wrong := range map[string]string{
		store.LegalStates: "version < 0 OR length(fingerprint) > 64 OR length(key) <> 16 OR length(ordering) <> 16 OR length(operation) <> 16" +
			" OR erased AND length(payload) > 0",
		store.NonePassed: "id <= (SELECT CAST(cursor AS INTEGER) FROM unavez_lane l WHERE l.lane = q.lane)" +
			" AND NOT EXISTS (SELECT 1 FROM unavez_blocked b WHERE b.ordering = coalesce(q.ordering, q.key)" +
			" AND CASE b.gap WHEN 0 THEN b.sequence <= q.id ELSE b.sequence = q.id END)" + undone,
	} {
		if err := a.proves(code, "SELECT key FROM unavez_queue q"+part+" AND ("+wrong+")", ids...); err != nil {
			return 0, 0, err
		}
	}
	lanes, err := a.r.number("SELECT count(*) FROM unavez_lane")
	if err != nil {
		return 0, 0, err
	}
	const text = "SELECT key, coalesce(operation, key), coalesce(ordering, key), lane, note FROM unavez_queue" + part + " LIMIT ?3"
	err = a.r.query(text, append(ids[:len(ids):len(ids)], share), func(v []driver.Value) error {
		read++
		a.Look(1, store.EntryTrue)
		key, order := keyOf(v[0]), keyOf(v[2])
		note, err := store.DecodeNote([]byte(word(v[4])))
		if err != nil || note.Event.Key() != key || note.Identity.Key() != keyOf(v[1]) || note.Order() != order ||
			integer(v[3]) != int64(store.LaneOf(order, int(max(1, lanes)))) {
			a.Break(store.EntryTrue, 1, key.String())
		}
		return nil
	})
	return read, seen, err
}

// blocked proves what is to be proved of the rows that keep ordering keys. A row
// may outlive its entry: until a worker looks.
func (a *auditor) blocked() error {
	if err := a.looks("SELECT count(*) FROM unavez_blocked", nil, store.BlockedTrue); err != nil {
		return err
	}
	for _, text := range []string{
		"SELECT b.key FROM unavez_blocked b JOIN unavez_queue q ON q.key = b.key" +
			" WHERE q.id <> b.sequence OR coalesce(q.ordering, q.key) <> b.ordering OR coalesce(q.operation, q.key) <> b.operation OR q.lane <> b.lane",
		"SELECT max(key) FROM unavez_blocked WHERE gap = 0 GROUP BY ordering HAVING count(*) > 1",
	} {
		if err := a.proves(store.BlockedTrue, text); err != nil {
			return err
		}
	}
	return nil
}
