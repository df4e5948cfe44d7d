package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/unavez/unavez/store"
)

var _ store.Privacy = (*Store)(nil)

// eraseStep is how many sequences one statement looks through.
const eraseStep = 20_000

// Erase looks through the whole queue, a part at a time: an index of subjects would
// cost every append what this saves a few times a year. Each part that holds some of
// them is a commit of its own; erasing again goes on where an error has ended it.
//
// The bytes are overwritten in the file at the next checkpoint. Those that SQLite
// has left behind where it moved rows are too, but for what another program wrote,
// or an earlier version of this one: that goes with VACUUM. Backups keep what they
// have.
func (s *Store) Erase(ctx context.Context, action store.Action) (int, error) {
	if err := action.Validate(); err != nil {
		return 0, fmt.Errorf("sqlite store: %w", err)
	}
	if action.Key == (store.Key{}) {
		return 0, errors.New("sqlite store: erase: key is zero, want that of a subject (store.SubjectKey)")
	}
	n, err := s.erase(ctx, func(r *raw) (int64, error) {
		const text = "UPDATE unavez_quarantine SET payload = NULL, erased = 1 WHERE subject = ?1 AND erased = 0"
		n, err := r.exec(text, action.Key[:])
		if err != nil {
			return 0, err
		}
		return n, decided(r, "erase", action)
	})
	if err != nil {
		return 0, err
	}
	more, err := s.eraseEntries(ctx, func(from int64) ([]int64, error) { return s.ofSubject(ctx, action.Key, from) })
	return n + more, err
}

// eraseEntries erases the entries that find gives of each part of the queue.
func (s *Store) eraseEntries(ctx context.Context, find func(from int64) ([]int64, error)) (n int, err error) {
	var last int64
	if err := s.read(ctx, func(r *raw) (err error) { last, err = r.number(newest); return err }); err != nil {
		return 0, err
	}
	for from := int64(0); from < last; from += eraseStep {
		ids, err := find(from)
		if err != nil {
			return n, err
		}
		if len(ids) == 0 {
			continue
		}
		list, err := json.Marshal(ids)
		if err != nil {
			return n, err
		}
		more, err := s.erase(ctx, func(r *raw) (int64, error) {
			const text = "UPDATE unavez_queue SET payload = NULL, erased = 1 WHERE id IN (SELECT value FROM json_each(?1)) AND erased = 0"
			return r.exec(text, string(list))
		})
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// EraseAccount looks through the quarantine and the whole queue, as Erase does.
func (s *Store) EraseAccount(ctx context.Context, action store.Action, of store.Account) (int, error) {
	n, err := s.Erase(ctx, action) // nobody's subject has that key; it is recorded
	if err != nil {
		return 0, err
	}
	var items [][]byte
	const all = "SELECT " + itemColumns + " FROM unavez_quarantine WHERE tenant = ?1 AND erased = 0"
	err = s.read(ctx, func(r *raw) error {
		items = nil
		return r.query(all, []driver.Value{of.Tenant}, func(v []driver.Value) error {
			if item := readItem(v); of.HoldsItem(&item) {
				items = append(items, item.Key[:])
			}
			return nil
		})
	})
	if err != nil {
		return n, err
	}
	for _, key := range items { // few
		more, err := s.erase(ctx, func(r *raw) (int64, error) {
			return r.exec("UPDATE unavez_quarantine SET payload = NULL, erased = 1 WHERE key = ?1 AND erased = 0", key)
		})
		if n += more; err != nil {
			return n, err
		}
	}
	more, err := s.eraseEntries(ctx, func(from int64) ([]int64, error) { return s.ofAccount(ctx, of, from) })
	return n + more, err
}

// ofAccount finds the entries of an account in one part of the queue.
func (s *Store) ofAccount(ctx context.Context, of store.Account, from int64) (ids []int64, err error) {
	const text = "SELECT id, note FROM unavez_queue WHERE id > ?1 AND id <= ?2 AND erased = 0"
	err = s.read(ctx, func(r *raw) error {
		ids = nil
		return r.query(text, []driver.Value{from, from + eraseStep}, func(v []driver.Value) error {
			// One whose note is damaged is nobody's.
			if note, err := store.DecodeNote([]byte(word(v[1]))); err == nil && of.HoldsEntry(&note) {
				ids = append(ids, integer(v[0]))
			}
			return nil
		})
	})
	return ids, err
}

// ofSubject finds the entries of a subject in one part of the queue.
func (s *Store) ofSubject(ctx context.Context, subject store.Key, from int64) (ids []int64, err error) {
	const text = "SELECT id FROM unavez_queue WHERE id > ?1 AND id <= ?2 AND subject = ?3 AND erased = 0"
	err = s.read(ctx, func(r *raw) error {
		ids = nil
		return r.query(text, []driver.Value{from, from + eraseStep, subject[:]}, func(v []driver.Value) error {
			ids = append(ids, integer(v[0]))
			return nil
		})
	})
	return ids, err
}

// erase runs part as a unit in which SQLite overwrites what it deletes.
func (s *Store) erase(ctx context.Context, part func(r *raw) (int64, error)) (int, error) {
	var n int64
	err := s.write(ctx, func(r *raw) (err error) {
		if err := r.pragma("PRAGMA secure_delete = ON"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.pragma("PRAGMA secure_delete = FAST")) }()
		n, err = part(r)
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}
