package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/unavez/unavez/store"
)

var _ store.Quarantine = (*Store)(nil)

// encodeItems encodes the notes of quarantined items.
func encodeItems(items []store.Quarantined) ([]string, error) {
	notes := make([]string, len(items))
	for i := range items {
		item := &items[i]
		text, err := item.Note.Encode()
		switch {
		case err != nil:
		case item.Key == store.Key{}:
			err = errors.New("key is zero")
		case len(item.Payload) > maxPayload:
			err = fmt.Errorf("payload: %d bytes, at most %d", len(item.Payload), maxPayload)
		}
		if err != nil {
			return nil, fmt.Errorf("sqlite store: append: quarantined item %d: %w", i+1, err)
		}
		notes[i] = string(text)
	}
	return notes, nil
}

// keepItems writes items whose keys are not there.
func keepItems(r *raw, items []store.Quarantined, notes []string) error {
	if len(items) == 0 {
		return nil
	}
	at, err := r.clock()
	if err != nil {
		return err
	}
	const text = "INSERT INTO unavez_quarantine (key, tenant, source, type, reason, detail, subject, arrived, erased, contenttype, note, payload)" +
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9, ?10, ?11) ON CONFLICT (key) DO NOTHING"
	for i := range items {
		item := &items[i]
		_, err := r.exec(text, item.Key[:], item.Tenant, item.Source, item.Type, store.CutReason(item.Reason), store.CutReason(item.Detail),
			unlike(&item.Subject, store.Key{}), at, item.ContentType, notes[i], bytesOf(item.Payload))
		if err != nil {
			return err
		}
	}
	return nil
}

const itemColumns = "key, tenant, source, type, reason, detail, subject, arrived, erased, contenttype, note"

// readItem reads itemColumns. A note that cannot be read is left out.
func readItem(v []driver.Value) store.Quarantined {
	item := store.Quarantined{
		Key: keyOf(v[0]), Tenant: word(v[1]), Source: word(v[2]), Type: word(v[3]), Reason: word(v[4]), Detail: word(v[5]),
		Subject: keyOf(v[6]), Arrived: instant(integer(v[7])), Erased: integer(v[8]) != 0, ContentType: word(v[9]),
	}
	if note, err := store.DecodeNote([]byte(word(v[10]))); err == nil {
		item.Note = note
	}
	return item
}

// Quarantined reads a page in the order of the keys.
func (s *Store) Quarantined(ctx context.Context, source string, after store.Key, limit int) (page []store.Quarantined, err error) {
	if err := checkLimit("quarantined", limit); err != nil {
		return nil, err
	}
	const text = "SELECT " + itemColumns + " FROM unavez_quarantine WHERE key > ?1 AND (?2 = '' OR source = ?2) ORDER BY key LIMIT ?3"
	err = s.read(ctx, func(r *raw) error {
		page = nil
		return r.query(text, []driver.Value{after[:], source, int64(limit)}, func(v []driver.Value) error {
			page = append(page, readItem(v))
			return nil
		})
	})
	return page, err
}

// ShowQuarantined reads one item whole.
func (s *Store) ShowQuarantined(ctx context.Context, key store.Key) (item store.Quarantined, err error) {
	const text = "SELECT " + itemColumns + ", payload FROM unavez_quarantine WHERE key = ?1"
	err = s.read(ctx, func(r *raw) error {
		found, err := r.row(text, []driver.Value{key[:]}, func(v []driver.Value) error {
			item = readItem(v)
			item.Payload = blob(v[11])
			return nil
		})
		if err == nil && !found {
			err = store.ErrNotFound
		}
		return err
	})
	return item, err
}

// Readmit appends entries and removes the item in one unit, and writes down who
// decided it.
func (s *Store) Readmit(ctx context.Context, action store.Action, entries []store.Entry) ([]store.Appended, error) {
	if err := action.Validate(); err != nil {
		return nil, fmt.Errorf("sqlite store: %w", err)
	}
	notes, err := encodeNotes(entries)
	if err != nil {
		return nil, err
	}
	if err := s.room.look(ctx, s, len(notes)); err != nil {
		return nil, err
	}
	what := "readmit"
	if len(entries) == 0 {
		what = "discard"
	}
	var said []store.Appended
	err = s.write(ctx, func(r *raw) error {
		n, err := r.exec("DELETE FROM unavez_quarantine WHERE key = ?1", action.Key[:])
		switch {
		case err != nil:
			return err
		case n == 0:
			return store.ErrNotFound
		}
		if said, err = s.add(r, entries, notes, true); err != nil {
			return err
		}
		return decided(r, what, action)
	})
	if err != nil {
		return nil, err
	}
	return said, nil
}

// decided writes down what a person decided about what is no operation.
func decided(r *raw, what string, action store.Action) error {
	const text = "INSERT INTO unavez_decision (at, what, key, actor, reason) VALUES (" + now + ", ?1, ?2, ?3, ?4)"
	_, err := r.exec(text, what, action.Key[:], action.Actor, action.Reason)
	return err
}

// Deliveries reads what was written down of a key, oldest first: at most the
// first thousand, however often it was repeated.
func (s *Store) Deliveries(ctx context.Context, key store.Key, limit int) (page []store.Delivery, err error) {
	if err := checkLimit("deliveries", limit); err != nil {
		return nil, err
	}
	const text = "SELECT at, what, sum FROM unavez_delivery WHERE key = ?1 ORDER BY id LIMIT ?2"
	err = s.read(ctx, func(r *raw) error {
		page = nil
		return r.query(text, []driver.Value{key[:], int64(limit)}, func(v []driver.Value) error {
			page = append(page, store.Delivery{At: instant(integer(v[0])), What: store.Appended(integer(v[1])), Sum: blob(v[2])})
			return nil
		})
	})
	return page, err
}
