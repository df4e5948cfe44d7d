package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// Block is one trip.
func (s *Store) Block(ctx context.Context, b store.Blocking) error {
	if err := checkBlocking(&b); err != nil {
		return err
	}
	const text = "SELECT unavez.block($1::pg_catalog.int4, $2::pg_catalog.int8, $3::pg_catalog.uuid, $4::pg_catalog.uuid, $5::pg_catalog.int8, $6::pg_catalog.bool," +
		" $7::pg_catalog.uuid, $8::pg_catalog.int8, $9::pg_catalog.int8, $10::pg_catalog.int8, $11::pg_catalog.int2, $12::pg_catalog.int8, $13::pg_catalog.text," +
		" $14::pg_catalog.text, $15::pg_catalog.int4, $16::pg_catalog.bytea, $17::pg_catalog.text, $18::pg_catalog.text)"
	if b.Hold.Epoch == 0 { // that of a lane which nobody has held yet
		return store.ErrLaneLost
	}
	e := b.Entry
	args := []any{b.Hold.Lane, b.Hold.Epoch, uuid(e.Key), uuid(e.Order), e.Sequence, b.Gap, uuid(e.Operation), e.Operation.Hash64()}
	if r := b.Attempt; r != nil {
		args = append(args, r.Found, r.Fence, int16(r.Rest.State), microseconds(r.Rest.DueIn), cut(r.Rest.Reason),
			e.Note.Identity.Text(), int32(e.Fingerprint.Version), blob(e.Fingerprint.Sum), r.DerivedKey, r.Origin)
	} else {
		args = append(args, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil)
	}
	return s.done(ctx, text, args...)
}

func checkBlocking(b *store.Blocking) error {
	if b.Entry == nil {
		return errors.New("postgres store: block: Entry is nil")
	}
	r := b.Attempt
	if r == nil {
		return nil
	}
	if r.Found < 0 || r.Fence < 1 || r.Fence != r.Found && r.Fence != r.Found+1 {
		return fmt.Errorf("postgres store: block: Fence %d beside Found %d, want that or one more, from 1", r.Fence, r.Found)
	}
	switch r.Rest.State {
	case store.Retryable, store.Parked, store.Dead:
		return nil
	}
	return fmt.Errorf("postgres store: block: Rest.State %v, want retryable, parked or dead", r.Rest.State)
}

// Unblock is one trip.
func (s *Store) Unblock(ctx context.Context, hold store.Hold, order store.Key, sequence int64) error {
	if hold.Epoch == 0 {
		return store.ErrLaneLost
	}
	const text = "SELECT unavez.unblock($1::pg_catalog.int4, $2::pg_catalog.int8, $3::pg_catalog.uuid, $4::pg_catalog.int8)"
	return s.done(ctx, text, hold.Lane, hold.Epoch, uuid(order), sequence)
}

// Waiting is one statement.
func (s *Store) Waiting(ctx context.Context, lanes []int, after store.Place, limit int) ([]store.Waiting, error) {
	if err := pageLimit("waiting", limit); err != nil {
		return nil, err
	}
	var mask any
	if lanes != nil {
		bits, err := s.mask(lanes)
		if err != nil {
			return nil, err
		}
		mask = bits
	}
	const text = "SELECT ordering, sequence, lane, key, operation, gap, done, state, fence, expires, due" +
		" FROM unavez.waiting($1::pg_catalog.bytea, $2::pg_catalog.uuid, $3::pg_catalog.int8, $4::pg_catalog.int4)"
	return collect(ctx, s.pool, text, []any{mask, uuid(after.Order), after.Sequence, limit}, func(row pgx.CollectableRow) (w store.Waiting, err error) {
		var order, key, operation [16]byte
		var state int16
		var fence, expires, due *int64
		err = row.Scan(&order, &w.Sequence, &w.Lane, &key, &operation, &w.Gap, &w.Done, &state, &fence, &expires, &due)
		w.Order, w.Key, w.Operation, w.State, w.Fence = order, key, operation, store.State(state), value(fence)
		w.LeaseLeft, w.DueIn = time.Duration(value(expires))*time.Microsecond, time.Duration(value(due))*time.Microsecond
		return w, err
	})
}
