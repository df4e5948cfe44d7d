package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/unavez/unavez/store"
)

var _ store.Positions = (*Store)(nil)

// Position asks for the writer only where nobody else has the position.
func (s *Store) Position(ctx context.Context, name, worker string, lease time.Duration) (value string, mine bool, err error) {
	const text = "SELECT value, worker = ?2 OR expires <= " + now + " FROM unavez_position WHERE name = ?1"
	read := func(r *raw) error {
		value, mine = "", true
		_, err := r.row(text, []driver.Value{name, worker}, func(v []driver.Value) error {
			value, mine = word(v[0]), integer(v[1]) != 0
			return nil
		})
		return err
	}
	if err := s.read(ctx, read); err != nil || !mine {
		return value, false, err
	}
	err = s.write(ctx, func(r *raw) error {
		if err := read(r); err != nil || !mine {
			return err
		}
		const take = "INSERT INTO unavez_position (name, worker, expires, value) VALUES (?1, ?2, " + now + " + ?3, '')" +
			" ON CONFLICT (name) DO UPDATE SET worker = excluded.worker, expires = excluded.expires"
		_, err := r.exec(take, name, worker, lease.Milliseconds())
		return err
	})
	if err != nil {
		return "", false, err
	}
	return value, mine, nil
}

// SavePosition asks for the worker, not for its lease.
func (s *Store) SavePosition(ctx context.Context, name, worker, value string, lease time.Duration) error {
	return s.write(ctx, func(r *raw) error {
		const text = "UPDATE unavez_position SET value = ?3, expires = " + now + " + ?4 WHERE name = ?1 AND worker = ?2"
		n, err := r.exec(text, name, worker, value, lease.Milliseconds())
		return errors.Join(err, unless(err != nil || n == 1, store.ErrLeaseLost))
	})
}
