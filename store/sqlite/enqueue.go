package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/unavez/unavez/store"
)

var (
	_ store.Enqueuer[*sql.Tx] = (*Store)(nil)
	_ store.Versions[*sql.Tx] = (*Store)(nil)
)

// Enqueue is a statement of the transaction. From then on nobody else writes, so
// there are no locks of ordering keys to take. After an error the transaction is
// rolled back already.
func (s *Store) Enqueue(ctx context.Context, tx *sql.Tx, entries []store.Entry) ([]store.Appended, error) {
	notes, err := encodeNotes(entries)
	if err != nil {
		return nil, err
	}
	var said []store.Appended
	var failed error
	err = within(ctx, tx, func(u *unit) { said, failed = s.enqueue(ctx, u, entries, notes) })
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return said, nil
}

func (s *Store) enqueue(ctx context.Context, u *unit, entries []store.Entry, notes []string) ([]store.Appended, error) {
	if u == nil || u.w != &s.c.writer {
		return nil, foreignUnit()
	}
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	err := u.note(text{}, false)
	if err == nil {
		var said []store.Appended
		if said, err = s.add(u.w.raw, entries, notes, false); err == nil {
			return said, nil
		}
	}
	if err = u.failed(err); u.state == unitRunning {
		u.undo(err)
	}
	return nil, err
}

// Version reads in the transaction.
func (s *Store) Version(ctx context.Context, tx *sql.Tx, order store.Key) (v store.Version, there bool, err error) {
	const text = "SELECT number, content FROM unavez_version WHERE ordering = ?1"
	switch err := tx.QueryRowContext(ctx, text, order[:]).Scan(&v.Number, &v.Content); {
	case errors.Is(err, sql.ErrNoRows):
		return store.Version{}, false, nil
	case err != nil:
		return store.Version{}, false, err
	}
	return v, true, nil
}

// SetVersion writes in the transaction.
func (s *Store) SetVersion(ctx context.Context, tx *sql.Tx, order store.Key, v store.Version) error {
	const text = "INSERT INTO unavez_version (ordering, number, day, content) VALUES (?1, ?2, " + today + ", ?3)" +
		" ON CONFLICT (ordering) DO UPDATE SET number = excluded.number, day = excluded.day, content = excluded.content"
	_, err := tx.ExecContext(ctx, text, order[:], v.Number, bytesOf(v.Content))
	return err
}
