package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/unavez/unavez/store"
)

// newest is the sequence that was given last.
const newest = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'unavez_queue'), 0)"

// undone is the condition of an entry q that is not done.
const undone = " AND NOT EXISTS (SELECT 1 FROM unavez_outcome o WHERE o.key = q.key)"

// entryColumns are what readEntry reads; where stands what comes after WHERE.
func selectEntries(from, where string) string {
	return fmt.Sprintf("SELECT id, key, operation, ordering, subject, version, fingerprint, arrived, erased, note, length(payload),"+
		" CASE WHEN length(payload) <= %d THEN payload END FROM %s q%s", store.MaxInline, from, where)
}

// readEntry reads a row of selectEntries. One whose note cannot be read comes
// without it: it is the gate of its operation that decides, and the entries
// behind it are sound.
func readEntry(v []driver.Value) store.Entry {
	e := store.Entry{
		Sequence: integer(v[0]), Key: keyOf(v[1]), Subject: keyOf(v[4]),
		Fingerprint: store.Fingerprint{Version: int(integer(v[5])), Sum: blob(v[6])},
		Arrived:     instant(integer(v[7])), Erased: integer(v[8]) != 0,
		Size: int(integer(v[10])), Payload: blob(v[11]),
	}
	e.Operation, e.Order = e.Key, e.Key
	if v[2] != nil {
		e.Operation = keyOf(v[2])
	}
	if v[3] != nil {
		e.Order = keyOf(v[3])
	}
	if note, err := store.DecodeNote([]byte(word(v[9]))); err == nil {
		e.Note = note
	}
	return e
}

func readEntries(r *raw, text string, args ...driver.Value) (entries []store.Entry, err error) {
	err = r.query(text, args, func(v []driver.Value) error {
		entries = append(entries, readEntry(v))
		return nil
	})
	return entries, err
}

// Read shows what lies between two sequences: with one writer the order of the
// sequence is that of the commits, so a cursor is a sequence.
func (s *Store) Read(ctx context.Context, reading store.Reading) (page store.Page, err error) {
	if err := checkLimit("reading", reading.Limit); err != nil {
		return page, err
	}
	err = s.read(ctx, func(r *raw) error {
		page, err = s.page(r, reading)
		return err
	})
	return page, err
}

func (s *Store) page(r *raw, reading store.Reading) (page store.Page, err error) {
	last, err := r.number(newest)
	if err != nil {
		return page, err
	}
	since, goesOn := position(reading.Since, last)
	until, after := last, reading.After
	if reading.Until != "" {
		if n, ours := position(reading.Until, last); ours {
			until = n
		} else {
			since, goesOn, after = 0, false, 0
		}
	}
	page.Until = strconv.FormatInt(until, 10)
	lanes := s.distinct(reading.Lanes)
	from := max(since, after)
	if len(lanes) == 0 || from >= until {
		return page, nil
	}
	table, where, args := "unavez_queue", " WHERE id > ?1 AND id <= ?2", []driver.Value{from, until, int64(reading.Limit) + 1}
	if len(lanes) < s.lanes {
		list, err := json.Marshal(lanes)
		if err != nil {
			return page, err
		}
		where += " AND lane IN (SELECT value FROM json_each(?4))"
		args = append(args, string(list))
	}
	if !goesOn {
		where += undone
	}
	if len(lanes) <= s.lanes/2 {
		where = " INDEXED BY unavez_queue_lane" + where // it is narrow, and most rows are passed by
	}
	page.Entries, err = readEntries(r, selectEntries(table, where)+" ORDER BY id LIMIT ?3", args...)
	if page.More = len(page.Entries) > reading.Limit; page.More {
		page.Entries = page.Entries[:reading.Limit]
	}
	return page, err
}

// position is the sequence of a cursor. One that is no cursor of this file's
// history counts as none.
func position(cursor string, last int64) (sequence int64, ours bool) {
	n, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil || n < 0 || n > last {
		return 0, false
	}
	return n, true
}

// distinct are the lanes that there are, once each.
func (s *Store) distinct(lanes []int) []int {
	var out []int
	seen := make([]bool, s.lanes)
	for _, lane := range lanes {
		if lane >= 0 && lane < s.lanes && !seen[lane] {
			seen[lane] = true
			out = append(out, lane)
		}
	}
	return out
}

// checkLimit refuses a page that is out of bounds.
func checkLimit(what string, limit int) error {
	if limit < 1 || limit > store.MaxReading {
		return fmt.Errorf("sqlite store: %s: limit %d, want 1 to %d", what, limit, store.MaxReading)
	}
	return nil
}

// Followers finds an entry without ordering parts by its key: it is alone.
func (s *Store) Followers(ctx context.Context, order store.Key, after int64, limit int) (entries []store.Entry, err error) {
	if err := checkLimit("followers", limit); err != nil {
		return nil, err
	}
	text := selectEntries("unavez_queue", " WHERE ordering = ?1 AND id > ?2"+undone) +
		" UNION ALL " + selectEntries("unavez_queue", " WHERE key = ?1 AND ordering IS NULL AND id > ?2"+undone) + " ORDER BY id LIMIT ?3"
	err = s.read(ctx, func(r *raw) error {
		entries, err = readEntries(r, text, order[:], after, int64(limit))
		return err
	})
	return entries, err
}

// Load reads one entry, done or not.
func (s *Store) Load(ctx context.Context, key store.Key) (entry store.Entry, err error) {
	err = s.read(ctx, func(r *raw) error {
		entries, err := readEntries(r, selectEntries("unavez_queue", " WHERE key = ?1"), key[:])
		switch {
		case err != nil:
			return err
		case len(entries) == 0:
			return store.ErrNotFound
		}
		entry = entries[0]
		if entry.Size <= store.MaxInline {
			return nil
		}
		found, err := r.row("SELECT payload FROM unavez_queue WHERE id = ?1", []driver.Value{entry.Sequence}, func(v []driver.Value) error {
			entry.Payload, entry.Size = blob(v[0]), len(blob(v[0]))
			return nil
		})
		return errors.Join(err, unless(found, store.ErrNotFound))
	})
	if err != nil {
		return store.Entry{}, err
	}
	return entry, nil
}
