package postgres

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// Enqueue is that of [Store].
func (s *SQLStore) Enqueue(ctx context.Context, tx *sql.Tx, entries []store.Entry) ([]store.Appended, error) {
	return s.enqueue(ctx, asks(tx), entries)
}

// Version is that of [Store].
func (s *SQLStore) Version(ctx context.Context, tx *sql.Tx, order store.Key) (store.Version, bool, error) {
	return readVersion(ctx, asks(tx), order)
}

// SetVersion is that of [Store].
func (s *SQLStore) SetVersion(ctx context.Context, tx *sql.Tx, order store.Key, v store.Version) error {
	return writeVersion(ctx, asks(tx), order, v)
}

// sqlBatch is an open transaction of several operations on a handle of OpenDB.
type sqlBatch struct {
	*sqlTxn
	*several
}

var _ store.Batch[*sql.Tx] = (*sqlBatch)(nil)

// BeginBatch is that of [Store]. It needs a handle of [OpenDB].
func (s *SQLStore) BeginBatch(ctx context.Context, gates []store.Gate) (store.Batch[*sql.Tx], []store.Verdict, error) {
	if err := s.checkGates(gates); err != nil {
		return nil, nil, err
	}
	if !s.ours {
		return nil, nil, errors.New("postgres store: batch: needs a handle of postgres.OpenDB")
	}
	var all *several
	var verdicts []store.Verdict
	t, err := s.open(ctx, func(ctx context.Context, conn *pgx.Conn) (*unit, error) {
		if err := s.greet(ctx, conn); err != nil {
			return nil, opening(ctx, err)
		}
		all = newSeveral(s.unit(conn, gates[0]), gates)
		found, err := all.enter(ctx)
		verdicts = found
		if err != nil || !slices.Contains(all.mine, true) {
			return nil, err
		}
		return all.unit, nil
	})
	if t == nil {
		return nil, verdicts, err
	}
	return &sqlBatch{t, all}, verdicts, nil
}

// Commit is one trip.
func (b *sqlBatch) Commit(ctx context.Context, ends []*store.End) (outcomes []*store.Outcome, _ error) {
	err := b.sqlTxn.commit(ctx, func(ctx context.Context) (err error) {
		outcomes, err = b.several.commit(ctx, ends)
		return err
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}
