package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// Claim is one trip and one commit.
func (s *Store) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	text := "SELECT g.* FROM unavez.claim($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int8, $4::pg_catalog.int8," +
		" $5::pg_catalog.text, $6::pg_catalog.int4, $7::pg_catalog.bytea, $8::pg_catalog.text, $9::pg_catalog.text) g"
	args := []any{
		uuid(claim.Key), claim.Key.Hash64(), claim.From, microseconds(claim.Lease), claim.Identity.Text(),
		int32(claim.Fingerprint.Version), blob(claim.Fingerprint.Sum), claim.DerivedKey, claim.Origin,
	}
	if claim.Hold.Epoch != 0 { // the claim depends on the lane
		text = strings.Replace(text, "FROM unavez.claim($1::pg_catalog.uuid", "FROM unavez.hold($10::pg_catalog.int4, $11::pg_catalog.int8) h(held),"+
			" LATERAL unavez.claim(CASE WHEN h.held THEN $1::pg_catalog.uuid END", 1)
		args = append(args, claim.Hold.Lane, claim.Hold.Epoch)
	}
	f, saw := &found{}, s.look()
	err := s.committing(ctx, text, args, f.columns()...)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	if f.incarnation != nil {
		s.witness(ctx, f.saw(saw))
	}
	v, err := f.verdict(claim.Key)
	if err != nil || !f.granted {
		return nil, v, err
	}
	made := store.Attempt{
		Key: claim.Key, Identity: claim.Identity, Fingerprint: claim.Fingerprint,
		DerivedKey: claim.DerivedKey, Origin: claim.Origin, Created: f.at.UTC(),
	}
	if v.Attempt != nil {
		made = *v.Attempt
	}
	made.Fence, made.State, made.Reason, made.Changed = f.fence()+1, store.Processing, "", f.at.UTC()
	made.LeaseLeft, made.DueIn = claim.Lease, 0
	return &made, v, nil
}

// committing runs one statement that commits by itself, and reads its row.
func (s *Store) committing(ctx context.Context, text string, args []any, dest ...any) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return acquiring(err)
	}
	defer conn.Release()
	if err := s.greet(ctx, conn.Conn()); err != nil {
		return opening(ctx, err)
	}
	watch := watching(conn.Conn())
	err = lost(conn.QueryRow(ctx, text, args...).Scan(dest...))
	if warned := watch.stop(); err == nil {
		err = warned
	}
	return err
}

// Renew extends a lease that still lives.
func (s *Store) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	const text = "SELECT unavez.renew($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int8)"
	return s.call(ctx, text, uuid(key), fence, microseconds(lease))
}

// call runs a function that returns nothing.
func (s *Store) call(ctx context.Context, text string, args ...any) error {
	_, err := s.pool.Exec(ctx, text, args...)
	return classify(err)
}

// Rest ends the attempt without an outcome. The fence alone decides, so that an
// answer that comes after the lease has run out is still taken.
func (s *Store) Rest(ctx context.Context, key store.Key, fence int64, rest store.Rest) error {
	switch rest.State {
	case store.Free, store.Retryable, store.Parked, store.Unknown, store.Dead:
	default:
		return fmt.Errorf("rest as %v: %w", rest.State, store.ErrConflict)
	}
	const text = "SELECT unavez.rest($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int2, $4::pg_catalog.int8, $5::pg_catalog.text)"
	return s.call(ctx, text, uuid(key), fence, int16(rest.State), microseconds(rest.DueIn), cut(rest.Reason))
}

// cut shortens a reason to what is kept, at the end of a character, and leaves
// out what the server does not take as text.
func cut(reason string) string {
	reason = strings.ReplaceAll(strings.ToValidUTF8(reason, "\ufffd"), "\x00", "\ufffd")
	return store.CutReason(reason)
}

// SaveStep writes the start or the end of an outside call.
func (s *Store) SaveStep(ctx context.Context, key store.Key, fence int64, step store.Step) error {
	const text = "SELECT unavez.save_step($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.text, $4::pg_catalog.bool, $5::pg_catalog.bytea)"
	return s.call(ctx, text, uuid(key), fence, step.Name, step.Done, blob(step.Result))
}

// Steps reads the steps of an unfinished operation.
func (s *Store) Steps(ctx context.Context, key store.Key) ([]store.Step, error) {
	return readSteps(ctx, s.pool, key)
}

// source is what reads rows: a pool or a transaction.
type source interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readSteps(ctx context.Context, from source, key store.Key) ([]store.Step, error) {
	const text = "SELECT name, done, fence, result FROM unavez.step WHERE key = $1::pg_catalog.uuid ORDER BY name"
	return collect(ctx, from, text, []any{uuid(key)}, func(row pgx.CollectableRow) (step store.Step, err error) {
		err = row.Scan(&step.Name, &step.Done, &step.Fence, &step.Result)
		return step, err
	})
}

// collect reads all rows of a statement.
func collect[T any](ctx context.Context, from source, text string, args []any, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := from.Query(ctx, text, args...)
	if err != nil {
		return nil, classify(err)
	}
	all, err := pgx.CollectRows(rows, scan)
	return all, classify(err)
}
