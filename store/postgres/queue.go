package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// MaxArrival bounds the payloads of one arrival, in bytes: they go to the
// server in one message, whose own bound is a gigabyte.
const MaxArrival = 256 << 20

// The statements of an arrival; see the functions of the schema.
const (
	appendText = "SELECT unavez.append($1::pg_catalog.int4, $2::pg_catalog.bool, $3::pg_catalog.int8[], $4::pg_catalog.uuid[], $5::pg_catalog.uuid[]," +
		" $6::pg_catalog.uuid[], $7::pg_catalog.uuid[], $8::pg_catalog.int4[], $9::pg_catalog.int4[], $10::pg_catalog.bytea[], $11::pg_catalog.text[]," +
		" $12::pg_catalog.json[], $13::pg_catalog.bytea[])"
	asideText = "SELECT unavez.set_aside($1::pg_catalog.uuid[], $2::pg_catalog.uuid[], $3::pg_catalog.text[], $4::pg_catalog.text[], $5::pg_catalog.text[]," +
		" $6::pg_catalog.text[], $7::pg_catalog.text[], $8::pg_catalog.json[], $9::pg_catalog.text[], $10::pg_catalog.bytea[])"
	releaseText = "SELECT unavez.release_item($1::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text)"
)

// fixed are the statements that do not depend on the layout of the ledger.
type fixed struct {
	begin, commit, appends, asides, releases, hold, holds, finishes *statement
	enters                                                          map[bool]*statement // of a batch; by whether transaction_timeout is known
}

func newFixed() fixed {
	return fixed{
		begin: newStatement("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", false), commit: newStatement("COMMIT", false),
		appends: newStatement(appendText, true), asides: newStatement(asideText, true),
		releases: newStatement(releaseText, true), hold: newStatement(holdText, true), holds: newStatement(holdAllText, true), finishes: newStatement(finishBatchText, true),
		enters: map[bool]*statement{false: newStatement(enterAllText(false), true), true: newStatement(enterAllText(true), true)},
	}
}

// call is one statement of a trip, with its parameters.
type call struct {
	statement *statement
	params    [][]byte
}

// Append is one trip and one commit. It waits in the server for an open
// transaction that has appended one of the keys, until ctx ends.
func (s *Store) Append(ctx context.Context, arrival store.Arrival) ([]store.Appended, error) {
	var calls []call
	if len(arrival.Entries) > 0 {
		params, err := s.appending(arrival.Entries, true, nil)
		if err != nil {
			return nil, err
		}
		calls = append(calls, call{s.fixed.appends, binaries(params)})
	}
	if len(arrival.Quarantined) > 0 {
		params, err := setAside(arrival.Quarantined)
		if err != nil {
			return nil, err
		}
		calls = append(calls, call{s.fixed.asides, binaries(params)})
	}
	if len(calls) == 0 {
		return nil, ctx.Err()
	}
	return s.flush(ctx, len(arrival.Entries), calls)
}

// flush sends the calls of one commit, and reads what became of n entries.
func (s *Store) flush(ctx context.Context, n int, calls []call) ([]store.Appended, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, acquiring(err)
	}
	defer conn.Release()
	if err := s.greet(ctx, conn.Conn()); err != nil {
		return nil, opening(ctx, err)
	}
	said, err := s.flushOnce(ctx, conn.Conn(), n, calls)
	if forgotten(err) { // nothing was done; the connection prepares anew
		clean(ctx, conn.Conn())
		said, err = s.flushOnce(ctx, conn.Conn(), n, calls)
	}
	if err != nil {
		clean(ctx, conn.Conn())
		return nil, lost(err)
	}
	return said, nil
}

func (s *Store) flushOnce(ctx context.Context, conn *pgx.Conn, n int, calls []call) (said []store.Appended, err error) {
	t := newTrip(ctx, conn)
	alone := len(calls) == 1 // a statement by itself is a transaction
	if !alone {
		t.send(s.fixed.begin, nil)
	}
	for _, c := range calls {
		t.send(c.statement, c.params)
	}
	if !alone {
		t.send(s.fixed.commit, nil)
	}
	watch := watching(conn)
	if err := t.pipe.Sync(); err != nil {
		_ = watch.stop() // nothing was read
		return nil, t.end(err)
	}
	for err == nil && len(t.asked) > 0 {
		wanted := t.asked[0].statement == s.fixed.appends
		err = t.read(func(r row) (err error) {
			if wanted {
				said, err = answers(r.column(), n)
			}
			return err
		})
	}
	err, warned := t.end(err), watch.stop()
	if err == nil {
		err = warned
	}
	return said, err
}

// enqueueText is appendText for any driver: lists are text.
const enqueueText = "SELECT unavez.append($1::pg_catalog.text::pg_catalog.int4, $2::pg_catalog.text::pg_catalog.bool, $3::pg_catalog.text::pg_catalog.int8[]," +
	" $4::pg_catalog.text::pg_catalog.uuid[], $5::pg_catalog.text::pg_catalog.uuid[], $6::pg_catalog.text::pg_catalog.uuid[], $7::pg_catalog.text::pg_catalog.uuid[]," +
	" $8::pg_catalog.text::pg_catalog.int4[], $9::pg_catalog.text::pg_catalog.int4[], $10::pg_catalog.text::pg_catalog.bytea[], $11::pg_catalog.text::pg_catalog.text[]," +
	" $12::pg_catalog.text::pg_catalog.json[], $13::pg_catalog.text::pg_catalog.bytea[])::pg_catalog.text"

// Enqueue is one statement in the caller's transaction. It waits for the locks
// of ordering keys that other transactions hold, as long as the caller's limits
// let it. Call it last, and once: who enqueues twice may meet another who does so
// in the other order, and one of the two is then aborted as a deadlock.
func (s *Store) Enqueue(ctx context.Context, tx pgx.Tx, entries []store.Entry) ([]store.Appended, error) {
	return s.enqueue(ctx, asksTx(tx), entries)
}

func (s *Store) enqueue(ctx context.Context, ask asker, entries []store.Entry) ([]store.Appended, error) {
	if len(entries) == 0 {
		return nil, ctx.Err()
	}
	var locks []int64
	for i := range entries {
		if e := &entries[i]; e.Order != e.Key { // else nobody else has the ordering key
			locks = append(locks, e.Order.OrderLock())
		}
	}
	slices.Sort(locks)
	params, err := s.appending(entries, false, slices.Compact(locks))
	if err != nil {
		return nil, err
	}
	var text string
	if err := ask(ctx, enqueueText, literals(params)...).Scan(&text); err != nil {
		return nil, joining(err)
	}
	return answersOf(text, len(entries))
}

// appending checks entries, and gives the parameters of unavez.append.
func (s *Store) appending(entries []store.Entry, noted bool, locks []int64) ([]column, error) {
	if len(entries) > store.MaxAppend {
		return nil, fmt.Errorf("postgres store: append: %d entries, at most %d", len(entries), store.MaxAppend)
	}
	n, size := len(entries), 0
	keys, operations, orders, subjects := list(oidUUID, n), list(oidUUID, n), list(oidUUID, n), list(oidUUID, n)
	laneNumbers, versions := list(oidInt4, n), list(oidInt4, n)
	prints, sources, notes, payloads := list(oidBytea, n), list(oidText, n), list(oidJSON, n), list(oidBytea, n)
	for i := range entries {
		e := &entries[i]
		note, err := checked(e)
		if err != nil {
			return nil, fmt.Errorf("postgres store: append: entry %d: %w", i+1, err)
		}
		keys.add(e.Key[:])
		operations.add(e.Operation[:])
		orders.add(e.Order[:])
		subjects.add(keyOrNull(e.Subject))
		laneNumbers.add(bytesOfInt32(int32(store.LaneOf(e.Order, s.lanes))))
		versions.add(bytesOfInt32(int32(e.Fingerprint.Version)))
		prints.add(blob(e.Fingerprint.Sum))
		sources.add([]byte(clear8(e.Note.Source)))
		notes.add(note)
		payloads.add(blob(e.Payload))
		size += len(e.Payload)
	}
	if size > MaxArrival {
		return nil, fmt.Errorf("postgres store: append: payloads of %d bytes, at most %d", size, MaxArrival)
	}
	return []column{number(int32(s.lanes)), flag(noted), numbers(locks), keys, operations, orders, subjects, laneNumbers, versions, prints, sources, notes, payloads}, nil
}

// checked refuses what no entry can be, and gives the note as it is stored.
func checked(e *store.Entry) ([]byte, error) {
	var none store.Key
	var faults []error
	if e.Key == none || e.Operation == none || e.Order == none {
		faults = append(faults, errors.New("no Key, Operation or Order"))
	}
	if len(e.Fingerprint.Sum) > 64 || e.Fingerprint.Version < 0 {
		faults = append(faults, fmt.Errorf("fingerprint of %d bytes and version %d, want at most 64, and no negative version", len(e.Fingerprint.Sum), e.Fingerprint.Version))
	}
	note, err := e.Note.Encode()
	return note, errors.Join(append(faults, err)...)
}

// setAside gives the parameters of unavez.set_aside.
func setAside(items []store.Quarantined) ([]column, error) {
	n, size := len(items), 0
	keys, subjects, payloads, notes := list(oidUUID, n), list(oidUUID, n), list(oidBytea, n), list(oidJSON, n)
	var texts [6]*values // tenant, source, type, reason, detail, content type
	for i := range texts {
		texts[i] = list(oidText, n)
	}
	for i := range items {
		q := &items[i]
		note, err := q.Note.Encode()
		if err != nil || q.Key == (store.Key{}) {
			return nil, fmt.Errorf("postgres store: append: quarantined item %d: %w", i+1, first(err, errors.New("no Key")))
		}
		keys.add(q.Key[:])
		subjects.add(keyOrNull(q.Subject))
		for t, text := range []string{clear8(q.Tenant), clear8(q.Source), clear8(q.Type), cut(q.Reason), cut(q.Detail), clear8(q.ContentType)} {
			texts[t].add([]byte(text))
		}
		notes.add(note)
		payloads.add(blob(q.Payload))
		size += len(q.Payload)
	}
	if size > MaxArrival {
		return nil, fmt.Errorf("postgres store: append: quarantined payloads of %d bytes, at most %d", size, MaxArrival)
	}
	return []column{keys, subjects, texts[0], texts[1], texts[2], texts[3], texts[4], notes, texts[5], payloads}, nil
}

// keyOrNull is a key, null for the zero one.
func keyOrNull(key store.Key) []byte {
	if key == (store.Key{}) {
		return nil
	}
	return key[:]
}

// clear8 leaves out what the server does not take as text.
func clear8(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}
