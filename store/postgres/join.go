package postgres

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// Join takes the operation's lock for the caller's transaction, until that
// ends. It sets no limits there: those are the caller's.
func (s *Store) Join(ctx context.Context, tx pgx.Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	return join(ctx, asksTx(tx), gate)
}

// The gate of a transaction that the caller owns. A lane is held before, in the
// same statement: the gate depends on it.
const (
	joinText = "SELECT pg_catalog.transaction_timestamp(), pg_catalog.pg_backend_pid(), g.*" +
		" FROM unavez.gate($1::pg_catalog.uuid, $2::pg_catalog.int8, false, NULL) g"
	joinHeldText = "SELECT pg_catalog.transaction_timestamp(), pg_catalog.pg_backend_pid(), g.* FROM unavez.hold($3::pg_catalog.int4, $4::pg_catalog.int8) h(held)," +
		" LATERAL unavez.gate(CASE WHEN h.held THEN $1::pg_catalog.uuid END, $2::pg_catalog.int8, false, NULL) g"
)

// scanner is a row of either library.
type scanner interface{ Scan(dest ...any) error }

// asker runs a statement of one row in a transaction of either library.
type asker func(ctx context.Context, text string, args ...any) scanner

func asksTx(tx pgx.Tx) asker {
	return func(ctx context.Context, text string, args ...any) scanner { return tx.QueryRow(ctx, text, args...) }
}

// noRow reports that a statement of either library has no row.
func noRow(err error) bool { return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows) }

func join(ctx context.Context, ask asker, gate store.Gate) (store.Joined, store.Verdict, error) {
	text, args := joinText, []any{uuid(gate.Key), gate.Key.Hash64()}
	if gate.Hold.Epoch != 0 {
		text, args = joinHeldText, append(args, gate.Hold.Lane, gate.Hold.Epoch)
	}
	j := &joined{ask: ask, gate: gate}
	f := &found{}
	dest := append([]any{&j.started, &j.backend}, f.columns()...)
	if err := ask(ctx, text, args...).Scan(dest...); err != nil {
		return nil, store.Verdict{}, joining(err)
	}
	v, err := f.verdict(gate.Key)
	if err != nil || !f.open(gate.From) {
		return nil, v, err
	}
	j.stale, j.fence = f.stale, f.fence()
	return j, v, nil
}

// joining is classify for a transaction that may have ended.
func joining(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		return &fault{store.ErrForeignCommit, "transaction has ended", err}
	}
	return classify(err)
}

// joined is the engine's part of a caller's transaction. The transaction is
// known by its start and its backend: a marker in it would not survive a
// savepoint that is rolled back.
type joined struct {
	ask     asker
	gate    store.Gate
	started time.Time
	backend int32
	stale   bool
	fence   int64
	left    bool
}

var _ store.Joined = (*joined)(nil)

// Finish writes the outcome into the caller's transaction.
func (j *joined) Finish(ctx context.Context, end store.End) (*store.Outcome, error) {
	if j.left {
		return nil, &fault{store.ErrForeignCommit, "operation was left", nil}
	}
	text := "unavez.finish_joined($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.timestamptz, $4::pg_catalog.int4, $5::pg_catalog.bool," +
		" $6::pg_catalog.int8, $7::pg_catalog.bool, $8::pg_catalog.int8, $9::pg_catalog.int8, $10::pg_catalog.text, $11::pg_catalog.int2, $12::pg_catalog.int8," +
		" $13::pg_catalog.int8, $14::pg_catalog.bool, $15::pg_catalog.int4, $16::pg_catalog.bytea, $17::pg_catalog.bytea, $18::pg_catalog.bytea, $19::pg_catalog.bytea)"
	o, args := outcome(j.gate, j.fence+1, end)
	args = append([]any{uuid(j.gate.Key), j.gate.Key.Hash64(), j.started, j.backend, end.Unwritten, j.fence, j.stale}, args...)
	if j.gate.Hold.Epoch != 0 { // a savepoint that was rolled back may have lost the lane too
		text = "CASE WHEN unavez.hold($20::pg_catalog.int4, $21::pg_catalog.int8) THEN " + text + " END"
		args = append(args, j.gate.Hold.Lane, j.gate.Hold.Epoch)
	}
	if err := j.ask(ctx, "SELECT "+text, args...).Scan(&o.At); err != nil {
		return nil, joining(err)
	}
	o.At = o.At.UTC()
	return o, nil
}

// Leave gives the operation up. Its lock goes with the caller's transaction.
func (j *joined) Leave() { j.left = true }
