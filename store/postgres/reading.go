package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/unavez/unavez/store"
)

// The reads of the queue; see the functions of the schema.
const (
	sinceText = "SELECT * FROM unavez.read_since($1::pg_catalog.text::pg_catalog.pg_snapshot, $2::pg_catalog.text::pg_catalog.pg_snapshot, $3::pg_catalog.bytea," +
		" $4::pg_catalog.int8, $5::pg_catalog.int4)"
	fromText = "SELECT * FROM unavez.read_from($1::pg_catalog.text::pg_catalog.pg_snapshot, $2::pg_catalog.bytea, $3::pg_catalog.int8, $4::pg_catalog.int4, $5::pg_catalog.int4)"
	// A row that was carried to another slot is there twice for a while, with
	// everything of an entry the same.
	loadText = "SELECT NULL::pg_catalog.int8, NULL::pg_catalog.text, NULL::pg_catalog.text, NULL::pg_catalog.int8, NULL::pg_catalog.int8, q.sequence, q.key, q.operation, q.ordering," +
		" q.subject, q.version, q.fingerprint, q.note, q.payload, pg_catalog.octet_length(q.payload), q.erased, q.arrived" +
		" FROM unavez.queue q WHERE q.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid LIMIT 1"
	followersText = "SELECT * FROM unavez.followers($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int4)"
)

// looks is how many rows a reading from the beginning looks at in one statement,
// for each entry that it is to return: most rows there are done.
const looks = 4

// cursor is a point of reading: a snapshot, of one incarnation.
type cursor struct {
	incarnation int64
	snapshot    string
}

func (c cursor) String() string { return strconv.FormatInt(c.incarnation, 10) + "/" + c.snapshot }

// parseCursor reads what String writes; ok is false for "".
func parseCursor(text string) (c cursor, ok bool, err error) {
	if text == "" {
		return cursor{}, false, nil
	}
	number, snapshot, cut := strings.Cut(text, "/")
	if c.incarnation, err = strconv.ParseInt(number, 10, 64); err != nil || !cut {
		return cursor{}, false, fmt.Errorf("postgres store: cursor %q: want the Until of a page", text)
	}
	c.snapshot = snapshot
	return c, true, nil
}

// Read is one statement where little is new, on one snapshot. It is told by
// transactions what became visible since, so that nothing is missed that
// commits late, and entries are never in the wrong order of one ordering key: of
// two, the one that was durable first is seen by every snapshot that sees the other.
func (s *Store) Read(ctx context.Context, reading store.Reading) (store.Page, error) {
	if err := pageLimit("read", reading.Limit); err != nil {
		return store.Page{}, err
	}
	mask, err := s.mask(reading.Lanes)
	if err != nil {
		return store.Page{}, err
	}
	since, goesOn, err := parseCursor(reading.Since)
	if err != nil {
		return store.Page{}, err
	}
	until, fixed, err := parseCursor(reading.Until)
	if err != nil {
		return store.Page{}, err
	}
	after := reading.After
	for {
		// The number seen last may be old: what the statement saw decides.
		number := s.number.Load()
		if fixed && until.incarnation != number {
			goesOn, fixed, after = false, false, 0
		}
		goesOn = goesOn && since.incarnation == number
		var limit any
		if fixed {
			limit = until.snapshot
		}
		var page store.Page
		var saw *readSight
		if goesOn {
			page, saw, err = s.readSince(ctx, since.snapshot, limit, mask, after, reading.Limit)
		} else {
			page, saw, err = s.readFrom(ctx, limit, mask, after, reading.Limit)
		}
		if err != nil {
			return store.Page{}, err
		}
		if saw.incarnation == number && s.number.Load() == number {
			page.Until = cursor{number, saw.upto}.String()
			return page, nil
		}
		if err := ctx.Err(); err != nil {
			return store.Page{}, err
		}
	}
}

// readSight is what a reading saw beside entries.
type readSight struct {
	incarnation  int64
	upto         string
	looked, last int64
}

func (s *Store) readSince(ctx context.Context, since string, until any, mask []byte, after int64, limit int) (store.Page, *readSight, error) {
	entries, saw, err := s.entries(ctx, sinceText, since, until, mask, after, limit+1)
	return pageOf(entries, limit), saw, err
}

// readFrom goes on until it has something to return.
func (s *Store) readFrom(ctx context.Context, until any, mask []byte, after int64, limit int) (store.Page, *readSight, error) {
	most := max(looks*limit, 1000)
	for {
		entries, saw, err := s.entries(ctx, fromText, until, mask, after, limit+1, most)
		if err != nil {
			return store.Page{}, nil, err
		}
		page := pageOf(entries, limit)
		switch {
		case saw.looked < int64(most):
			return page, saw, nil
		case len(entries) > 0:
			page.More = true
			return page, saw, nil
		}
		until, after = saw.upto, saw.last // the same reading
		if saw.incarnation != s.number.Load() {
			return page, saw, nil
		}
	}
}

// pageOf cuts what was read at the limit.
func pageOf(entries []store.Entry, limit int) store.Page {
	return store.Page{Entries: entries[:min(len(entries), limit)], More: len(entries) > limit}
}

// entries runs a read.
func (s *Store) entries(ctx context.Context, text string, args ...any) ([]store.Entry, *readSight, error) {
	known := s.look()
	rows, err := s.pool.Query(ctx, text, args...)
	if err != nil {
		return nil, nil, classify(err)
	}
	var all []store.Entry
	var saw *readSight
	var position string
	for rows.Next() {
		var r readRow
		if err := rows.Scan(&r.incarnation, &r.position, &r.upto, &r.looked, &r.last, &r.sequence, &r.key, &r.operation, &r.ordering, &r.subject,
			&r.version, &r.fingerprint, &r.note, &r.payload, &r.size, &r.erased, &r.arrived); err != nil {
			rows.Close()
			return nil, nil, classify(err)
		}
		if saw == nil {
			saw = &readSight{value(r.incarnation), value(r.upto), value(r.looked), value(r.last)}
			position = value(r.position)
		}
		if r.sequence == nil {
			continue
		}
		e, err := r.entry()
		if err != nil {
			rows.Close()
			return nil, nil, err
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, classify(err)
	}
	if saw != nil && position != "" {
		known.number, known.position = saw.incarnation, place(position)
		s.witness(ctx, known)
	}
	return all, saw, nil
}

// readRow is one row of unavez.reading.
type readRow struct {
	incarnation                *int64
	position, upto             *string
	looked, last, sequence     *int64
	key, operation, ordering   pgtype.UUID
	subject                    pgtype.UUID
	version                    *int32
	fingerprint, note, payload []byte
	size                       *int32
	erased                     *bool
	arrived                    *time.Time
}

func (r *readRow) entry() (store.Entry, error) {
	note, err := store.DecodeNote(r.note)
	if err != nil {
		return store.Entry{}, fmt.Errorf("postgres store: note of entry %s: %w", store.Key(r.key.Bytes), err)
	}
	return store.Entry{
		Sequence: value(r.sequence), Key: r.key.Bytes, Operation: r.operation.Bytes, Order: r.ordering.Bytes, Subject: r.subject.Bytes,
		Fingerprint: store.Fingerprint{Version: int(value(r.version)), Sum: r.fingerprint},
		Note:        note, Payload: r.payload, Size: int(value(r.size)), Erased: value(r.erased), Arrived: r.arrived.UTC(),
	}, nil
}

// Followers looks for the entries of one ordering key by index.
func (s *Store) Followers(ctx context.Context, order store.Key, after int64, limit int) ([]store.Entry, error) {
	if err := pageLimit("followers", limit); err != nil {
		return nil, err
	}
	entries, _, err := s.entries(ctx, followersText, uuid(order), after, limit)
	return entries, err
}

// Load reads one entry, done or not.
func (s *Store) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	entries, _, err := s.entries(ctx, loadText, uuid(key))
	switch {
	case err != nil:
		return store.Entry{}, err
	case len(entries) == 0:
		return store.Entry{}, store.ErrNotFound
	}
	return entries[0], nil
}

// mask has a bit for each of the lanes.
func (s *Store) mask(lanes []int) ([]byte, error) {
	bits := make([]byte, (s.lanes+7)/8)
	for _, lane := range lanes {
		if lane < 0 || lane >= s.lanes {
			return nil, fmt.Errorf("postgres store: lane %d, want 0 to %d", lane, s.lanes-1)
		}
		bits[lane/8] |= 1 << (lane % 8)
	}
	return bits, nil
}

// pageLimit refuses a page that is out of bounds.
func pageLimit(what string, limit int) error {
	if limit < 1 || limit > store.MaxReading {
		return fmt.Errorf("postgres store: %s: limit %d, want 1 to %d", what, limit, store.MaxReading)
	}
	return nil
}
