package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/unavez/unavez/store"
)

// quarantined reads items that a condition selects, with their payloads or without.
func (s *Store) quarantined(ctx context.Context, payload, where string, args ...any) ([]store.Quarantined, error) {
	text := "SELECT key, subject, arrived, erased, tenant, source, type, reason, detail, note, contenttype, " + payload + " FROM unavez.quarantine WHERE " + where
	return collect(ctx, s.pool, text, args, func(row pgx.CollectableRow) (q store.Quarantined, err error) {
		var key [16]byte
		var subject pgtype.UUID
		var note []byte
		if err := row.Scan(&key, &subject, &q.Arrived, &q.Erased, &q.Tenant, &q.Source, &q.Type, &q.Reason, &q.Detail, &note, &q.ContentType, &q.Payload); err != nil {
			return q, err
		}
		q.Key, q.Subject, q.Arrived = key, subject.Bytes, q.Arrived.UTC()
		if q.Note, err = store.DecodeNote(note); err != nil {
			return q, fmt.Errorf("postgres store: note of item %s: %w", q.Key, err)
		}
		return q, nil
	})
}

// Quarantined lists by the primary key, or by source and key.
func (s *Store) Quarantined(ctx context.Context, source string, after store.Key, limit int) ([]store.Quarantined, error) {
	if err := pageLimit("quarantined", limit); err != nil {
		return nil, err
	}
	where, args := "key OPERATOR(pg_catalog.>) $1::pg_catalog.uuid", []any{uuid(after), limit}
	if source != "" {
		where, args = where+" AND source OPERATOR(pg_catalog.=) $3::pg_catalog.text", append(args, source)
	}
	return s.quarantined(ctx, "NULL::pg_catalog.bytea", where+" ORDER BY key LIMIT $2::pg_catalog.int4", args...)
}

// ShowQuarantined reads one item.
func (s *Store) ShowQuarantined(ctx context.Context, key store.Key) (store.Quarantined, error) {
	all, err := s.quarantined(ctx, "payload", "key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid", uuid(key))
	switch {
	case err != nil:
		return store.Quarantined{}, err
	case len(all) == 0:
		return store.Quarantined{}, store.ErrNotFound
	}
	return all[0], nil
}

// Readmit is one trip and one commit.
func (s *Store) Readmit(ctx context.Context, action store.Action, entries []store.Entry) ([]store.Appended, error) {
	if err := action.Validate(); err != nil {
		return nil, fmt.Errorf("postgres store: %w", err)
	}
	what := "readmit"
	if len(entries) == 0 {
		what = "discard"
	}
	calls := []call{{s.fixed.releases, [][]byte{
		bytesOfKey(action.Key), []byte(what), []byte(strings.ToValidUTF8(action.Actor, "\ufffd")), []byte(cut(action.Reason)),
	}}}
	if len(entries) > 0 {
		params, err := s.appending(entries, true, nil)
		if err != nil {
			return nil, err
		}
		calls = append(calls, call{s.fixed.appends, binaries(params)})
	}
	return s.flush(ctx, len(entries), calls)
}

// Deliveries are in the order in which they were noted.
func (s *Store) Deliveries(ctx context.Context, key store.Key, limit int) ([]store.Delivery, error) {
	if err := pageLimit("deliveries", limit); err != nil {
		return nil, err
	}
	const text = "SELECT at, what, sum FROM unavez.delivery WHERE key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid ORDER BY id LIMIT $2::pg_catalog.int4"
	return collect(ctx, s.pool, text, []any{uuid(key), limit}, func(row pgx.CollectableRow) (d store.Delivery, err error) {
		var what int16
		err = row.Scan(&d.At, &what, &d.Sum)
		d.At, d.What = d.At.UTC(), store.Appended(what)
		return d, err
	})
}

// Position is one trip.
func (s *Store) Position(ctx context.Context, name, worker string, lease time.Duration) (value string, mine bool, err error) {
	const text = "SELECT value, mine FROM unavez.take_position($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.int8)"
	err = s.committing(ctx, text, []any{name, worker, microseconds(lease)}, &value, &mine)
	return value, mine, err
}

// SavePosition is one trip.
func (s *Store) SavePosition(ctx context.Context, name, worker, value string, lease time.Duration) error {
	const text = "SELECT unavez.save_position($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int8)"
	return s.done(ctx, text, name, worker, value, microseconds(lease))
}

// Erase is one commit. It waits for a step of a purge.
func (s *Store) Erase(ctx context.Context, action store.Action) (n int, err error) {
	if err := action.Validate(); err != nil {
		return 0, fmt.Errorf("postgres store: %w", err)
	}
	if action.Key == (store.Key{}) {
		return 0, errors.New("postgres store: erase: Key is zero, want a subject's")
	}
	const text = "SELECT unavez.erase($1::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text)"
	err = s.committing(ctx, text, []any{uuid(action.Key), strings.ToValidUTF8(action.Actor, "\ufffd"), cut(action.Reason)}, &n)
	return n, err
}

// eraseStep is how many entries one step of EraseAccount looks through.
const eraseStep = 10_000

// EraseAccount records the decision, and then looks through the quarantine and the
// queue: an index of accounts would cost every append what this saves a few times a
// year. Each part that holds some of them is a commit of its own, which waits for a
// step of a purge. An entry that a purge carries on meanwhile keeps its key.
func (s *Store) EraseAccount(ctx context.Context, action store.Action, of store.Account) (int, error) {
	n, err := s.Erase(ctx, action) // nobody's subject has that key
	if err != nil {
		return 0, err
	}
	items, err := s.quarantined(ctx, "NULL::pg_catalog.bytea", "NOT erased AND tenant OPERATOR(pg_catalog.=) $1::pg_catalog.text", of.Tenant)
	if err != nil {
		return n, err
	}
	var keys []pgtype.UUID
	for i := range items {
		if of.HoldsItem(&items[i]) {
			keys = append(keys, uuid(items[i].Key))
		}
	}
	const last = "SELECT coalesce(pg_catalog.max(sequence), 0) FROM unavez.queue"
	var until int64
	if err := s.pool.QueryRow(ctx, last).Scan(&until); err != nil {
		return n, classify(err)
	}
	for after, more := int64(0), true; more; {
		if len(keys) > 0 {
			erased := 0
			if err := s.committing(ctx, "SELECT unavez.erase_keys($1::pg_catalog.uuid[])", []any{keys}, &erased); err != nil {
				return n, err
			}
			n += erased
		}
		if after, keys, more, err = s.ofAccount(ctx, of, after, until); err != nil {
			return n, err
		}
	}
	return n, nil
}

// ofAccount finds the entries of an account among the next ones behind a sequence;
// more says that there were any to look at.
func (s *Store) ofAccount(ctx context.Context, of store.Account, after, until int64) (at int64, keys []pgtype.UUID, more bool, err error) {
	const text = "SELECT sequence, key, CASE WHEN NOT erased AND ($4::pg_catalog.text OPERATOR(pg_catalog.=) '' OR source OPERATOR(pg_catalog.=) $4::pg_catalog.text) THEN note END" +
		" FROM unavez.queue WHERE sequence OPERATOR(pg_catalog.>) $1::pg_catalog.int8 AND sequence OPERATOR(pg_catalog.<=) $2::pg_catalog.int8" +
		" ORDER BY sequence LIMIT $3::pg_catalog.int4"
	type found struct {
		sequence int64
		key      [16]byte
		note     []byte
	}
	rows, err := collect(ctx, s.pool, text, []any{after, until, eraseStep, of.Source}, func(row pgx.CollectableRow) (f found, err error) {
		return f, row.Scan(&f.sequence, &f.key, &f.note)
	})
	if err != nil {
		return after, nil, false, err
	}
	for _, f := range rows {
		after = f.sequence
		if f.note == nil {
			continue
		}
		note, err := store.DecodeNote(f.note)
		if err != nil {
			return after, nil, false, fmt.Errorf("postgres store: note of entry %s: %w", store.Key(f.key), err)
		}
		if of.HoldsEntry(&note) {
			keys = append(keys, uuid(f.key))
		}
	}
	return after, keys, len(rows) > 0, nil
}

// versioned reads and writes versions in a transaction of either library.
func readVersion(ctx context.Context, ask asker, order store.Key) (v store.Version, there bool, err error) {
	const text = "SELECT number, content FROM unavez.version WHERE ordering OPERATOR(pg_catalog.=) $1::pg_catalog.uuid"
	err = ask(ctx, text, uuid(order)).Scan(&v.Number, &v.Content)
	if noRow(err) {
		return store.Version{}, false, nil
	}
	return v, err == nil, joining(err)
}

func writeVersion(ctx context.Context, ask asker, order store.Key, v store.Version) error {
	const text = "INSERT INTO unavez.version AS x (ordering, number, content) VALUES ($1::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.bytea)" +
		" ON CONFLICT (ordering) DO UPDATE SET number = excluded.number, content = excluded.content RETURNING number"
	var number string
	return joining(ask(ctx, text, uuid(order), v.Number, blob(v.Content)).Scan(&number))
}

// Version reads in the caller's transaction.
func (s *Store) Version(ctx context.Context, tx pgx.Tx, order store.Key) (store.Version, bool, error) {
	return readVersion(ctx, asksTx(tx), order)
}

// SetVersion writes in the caller's transaction. Of two that write one version
// at the same time the second waits for the first.
func (s *Store) SetVersion(ctx context.Context, tx pgx.Tx, order store.Key, v store.Version) error {
	return writeVersion(ctx, asksTx(tx), order, v)
}
