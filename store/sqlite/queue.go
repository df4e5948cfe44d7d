package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/unavez/unavez/store"
)

var _ store.Queue = (*Store)(nil)

// Append makes an arrival one unit: with others of its group it shares a commit,
// and its place among them is its place in the order of the sequence.
func (s *Store) Append(ctx context.Context, arrival store.Arrival) ([]store.Appended, error) {
	notes, err := encodeNotes(arrival.Entries)
	if err != nil {
		return nil, err
	}
	items, err := encodeItems(arrival.Quarantined)
	if err != nil {
		return nil, err
	}
	if len(notes)+len(items) == 0 {
		return nil, ctx.Err()
	}
	if err := s.room.look(ctx, s, len(notes)); err != nil {
		return nil, err
	}
	var said []store.Appended
	err = s.write(ctx, func(r *raw) (err error) {
		if said, err = s.add(r, arrival.Entries, notes, true); err != nil {
			return err
		}
		return keepItems(r, arrival.Quarantined, items)
	})
	if err != nil {
		return nil, err
	}
	return said, nil
}

// encodeNotes refuses what no arrival can be, and encodes the notes of one.
func encodeNotes(entries []store.Entry) ([]string, error) {
	if len(entries) > store.MaxAppend {
		return nil, fmt.Errorf("sqlite store: append: %d entries, at most %d", len(entries), store.MaxAppend)
	}
	var none store.Key
	notes := make([]string, len(entries))
	for i := range entries {
		e := &entries[i]
		text, err := e.Note.Encode()
		switch {
		case err != nil:
		case e.Key == none || e.Operation == none || e.Order == none:
			err = errors.New("key, operation or order is zero")
		case len(e.Fingerprint.Sum) > 64 || e.Fingerprint.Version < 0:
			err = fmt.Errorf("fingerprint: version %d, %d bytes; want 0 or more, and at most 64", e.Fingerprint.Version, len(e.Fingerprint.Sum))
		case len(e.Payload) > maxPayload:
			err = fmt.Errorf("payload: %d bytes, at most %d", len(e.Payload), maxPayload)
		}
		if err != nil {
			return nil, fmt.Errorf("sqlite store: append: entry %d: %w", i+1, err)
		}
		notes[i] = string(text)
	}
	return notes, nil
}

// maxPayload keeps a row within what SQLite takes by default, one billion bytes.
const maxPayload = 900_000_000

// add appends what is new of the entries and says of the others what they are.
// Seen writes down that those have arrived. After an error the caller undoes it.
func (s *Store) add(r *raw, entries []store.Entry, notes []string, seen bool) ([]store.Appended, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	known, err := knownKeys(r, entries)
	if err != nil {
		return nil, err
	}
	said, fresh := make([]store.Appended, len(entries)), make([]int, 0, len(entries))
	first := make(map[store.Key]int, len(entries))
	for i := range entries {
		e := &entries[i]
		if k, again := first[e.Key]; again {
			said[i] = same(entries[k].Fingerprint.Equal(e.Fingerprint))
			continue
		}
		said[i] = store.New
		if known[e.Key] {
			if said[i], err = remembered(r, e); err != nil {
				return nil, err
			}
		}
		if said[i] == store.New {
			first[e.Key] = i
			fresh = append(fresh, i)
		}
	}
	if err := s.room.take(r, len(fresh)); err != nil {
		return nil, err
	}
	at, err := r.clock()
	if err != nil {
		return nil, err
	}
	if err := r.insertEntries(entries, notes, fresh, at, s.lanes); err != nil {
		return nil, err
	}
	if !seen || len(fresh) == len(entries) {
		return said, nil
	}
	for i := range entries {
		if said[i] != store.New {
			if err := deliver(r, &entries[i], said[i], at); err != nil {
				return nil, err
			}
		}
	}
	return said, nil
}

func same(is bool) store.Appended {
	if is {
		return store.Duplicate
	}
	return store.Conflict
}

// insertEntry is filled by insertEntries.
const insertEntry = "INSERT OR FAIL INTO unavez_queue" +
	" (key, lane, operation, ordering, subject, version, fingerprint, arrived, erased, note, payload) VALUES "

// insertEntries writes those of the entries that fresh names.
func (r *raw) insertEntries(entries []store.Entry, notes []string, fresh []int, at int64, lanes int) error {
	lines := make([][11]driver.Value, len(fresh))
	for k, i := range fresh {
		e := &entries[i]
		lines[k] = [...]driver.Value{
			e.Key[:], int64(store.LaneOf(e.Order, lanes)), unlike(&e.Operation, e.Key), unlike(&e.Order, e.Key), unlike(&e.Subject, store.Key{}),
			int64(e.Fingerprint.Version), bytesOf(e.Fingerprint.Sum), at, int64(0), notes[i], bytesOf(e.Payload),
		}
	}
	return r.insert(insertEntry, len(lines), func(i int) []driver.Value { return lines[i][:] })
}

// unlike is null where a key says no more than another.
func unlike(key *store.Key, other store.Key) driver.Value {
	if *key == other {
		return nil
	}
	return key[:]
}

// knownKeys tells of which keys anything is stored.
func knownKeys(r *raw, entries []store.Entry) (map[store.Key]bool, error) {
	if len(entries) == 1 {
		key := entries[0].Key
		const one = "SELECT EXISTS (SELECT 1 FROM unavez_queue WHERE key = ?1)" +
			" OR EXISTS (SELECT 1 FROM unavez_outcome WHERE key = ?1)" +
			" OR EXISTS (SELECT 1 FROM unavez_tombstone WHERE key = ?1)" +
			" OR EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1)"
		n, err := r.number(one, key[:])
		if n == 0 || err != nil {
			return nil, err
		}
		return map[store.Key]bool{key: true}, nil
	}
	const all = "WITH k (key) AS MATERIALIZED (SELECT unhex(value) FROM json_each(?1)) SELECT key FROM k WHERE" +
		" EXISTS (SELECT 1 FROM unavez_queue WHERE key = k.key)" +
		" OR EXISTS (SELECT 1 FROM unavez_outcome WHERE key = k.key)" +
		" OR EXISTS (SELECT 1 FROM unavez_tombstone WHERE key = k.key)" +
		" OR EXISTS (SELECT 1 FROM unavez_attempt WHERE key = k.key)"
	known := map[store.Key]bool{}
	err := r.query(all, []driver.Value{keyList(len(entries), func(i int) store.Key { return entries[i].Key })}, func(v []driver.Value) error {
		known[keyOf(v[0])] = true
		return nil
	})
	return known, err
}

// keyList is a list of keys as JSON, for unhex of json_each.
func keyList(n int, key func(i int) store.Key) string {
	list := make([]byte, 0, n*35+2)
	list = append(list, '[')
	for i := range n {
		if i > 0 {
			list = append(list, ',')
		}
		k := key(i)
		list = append(hex.AppendEncode(append(list, '"'), k[:]), '"')
	}
	return string(append(list, ']'))
}

// remembered says what an entry is whose key something is stored of: by the
// queue, the ledger, the attempt. Where all of that is of an earlier, forgotten
// life, it is deleted, and the entry is new.
func remembered(r *raw, e *store.Entry) (said store.Appended, err error) {
	const text = "SELECT n.now, q.version, q.fingerprint, o.version, o.fingerprint, o.expires, o.forgets, t.short, t.forgets, a.version, a.fingerprint" +
		" FROM (SELECT " + now + " AS now) AS n" +
		" LEFT JOIN unavez_queue q ON q.key = ?1" +
		" LEFT JOIN unavez_outcome o ON o.key = ?1" +
		" LEFT JOIN unavez_tombstone t ON t.key = ?1" +
		" LEFT JOIN unavez_attempt a ON a.key = ?1"
	whole := func(v []driver.Value) store.Appended {
		return same(store.Fingerprint{Version: int(integer(v[0])), Sum: blob(v[1])}.Equal(e.Fingerprint))
	}
	front := func(short []byte) store.Appended { return same(bytes.Equal(short, e.Fingerprint.Short())) }
	said = store.New
	_, err = r.row(text, []driver.Value{e.Key[:]}, func(v []driver.Value) error {
		at, q, o, t, a := integer(v[0]), v[1:3], v[3:7], v[7:9], v[9:11]
		switch {
		case q[0] != nil:
			said = whole(q)
		case o[0] != nil && integer(o[2]) > at:
			said = whole(o)
		case o[0] != nil && integer(o[3]) > at:
			fp := store.Fingerprint{Sum: blob(o[1])}
			said = front(fp.Short())
		case t[1] != nil && integer(t[1]) > at:
			said = front(blob(t[0]))
		case a[0] != nil:
			said = whole(a)
		}
		return nil
	})
	if err != nil || said != store.New {
		return said, err
	}
	return said, forget(r, e.Key)
}

// deliver writes down an arrival that added nothing.
func deliver(r *raw, e *store.Entry, said store.Appended, at int64) error {
	const text = "INSERT INTO unavez_delivery (key, at, what, sum) SELECT ?1, ?2, ?3, ?4" +
		" WHERE (SELECT count(*) FROM (SELECT 1 FROM unavez_delivery WHERE key = ?1 LIMIT ?5)) < ?5"
	_, err := r.exec(text, e.Key[:], at, int64(said), bytesOf(e.Fingerprint.Short()), int64(maxDeliveries))
	return err
}

// maxDeliveries is how many repetitions of one entry are written down: a sender
// that repeats without end fills no disk.
const maxDeliveries = 1000
