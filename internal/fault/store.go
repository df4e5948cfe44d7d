package fault

import (
	"context"
	"time"

	"github.com/unavez/unavez/store"
)

// serverLimit bounds what the server does by itself.
const serverLimit = 10 * time.Second

// Inner is a store that can be wrapped.
type Inner[Tx any] interface {
	store.Ledger[Tx]
	store.Attempts[Tx]
}

// Store is one worker's view of a store in which every call is a step.
type Store[Tx any] struct {
	life  *Life
	inner Inner[Tx]
}

// Compile-time guards.
var (
	_ store.Ledger[int]   = (*Store[int])(nil)
	_ store.Attempts[int] = (*Store[int])(nil)
	_ store.Incarnated    = (*Store[int])(nil)
)

// NewStore wraps a store for a worker.
func NewStore[Tx any](life *Life, inner Inner[Tx]) *Store[Tx] {
	return &Store[Tx]{life: life, inner: inner}
}

// OnIncarnation passes on what the store notices, if it does.
func (s *Store[Tx]) OnIncarnation(changed func()) {
	if inner, ok := s.inner.(store.Incarnated); ok {
		inner.OnIncarnation(changed)
	}
}

// Begin is the step gate.
func (s *Store[Tx]) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	return s.open(ctx, Gate, gate, gate.From, func(ctx context.Context) (store.Txn[Tx], store.Verdict, error) {
		return s.inner.Begin(ctx, gate)
	})
}

// Finish is the step finish.
func (s *Store[Tx]) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[Tx], error) {
	txn, _, err := s.open(ctx, Finish, gate, fence, func(ctx context.Context) (store.Txn[Tx], store.Verdict, error) {
		txn, err := s.inner.Finish(ctx, gate, fence)
		return txn, store.Verdict{}, err
	})
	return txn, err
}

// open makes a step that opens a transaction.
func (s *Store[Tx]) open(ctx context.Context, step string, gate store.Gate, fence int64, open func(context.Context) (store.Txn[Tx], store.Verdict, error)) (store.Txn[Tx], store.Verdict, error) {
	var opened store.Txn[Tx]
	var verdict store.Verdict
	told, err := s.life.do(ctx, move{
		step: step, note: Note{Key: gate.Key, Fence: fence, Hold: gate.Hold},
		apply: func(ctx context.Context, note *Note) (err error) {
			opened, verdict, err = open(ctx)
			note.Verdict = verdict.State
			return err
		},
		abandon: func() { giveUp(opened) },
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	if !told {
		return nil, store.Verdict{}, err
	}
	if err != nil || opened == nil {
		return nil, verdict, err
	}
	t := &txn[Tx]{life: s.life, inner: opened, key: gate.Key, fence: fence, hold: gate.Hold}
	t.conn = s.life.opens(opened.Tx(), func() { giveUp(opened) })
	if late, ok := opened.(store.Late); ok {
		return &lateTxn[Tx]{txn: t, late: late}, verdict, nil
	}
	return t, verdict, nil
}

// giveUp is what the server does with the transaction of a lost connection.
func giveUp[Tx any](txn store.Txn[Tx]) {
	if txn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), serverLimit)
		defer cancel()
		_ = txn.Rollback(ctx) // nobody is there to be told
	}
}

// txn is a transaction of a wrapped store.
type txn[Tx any] struct {
	life  *Life
	inner store.Txn[Tx]
	conn  *conn
	key   store.Key
	fence int64
	hold  store.Hold
	ended bool
}

func (t *txn[Tx]) Tx() Tx { return t.inner.Tx() }

// Commit is the step commit.
func (t *txn[Tx]) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if t.conn.lost() {
		t.life.living()
		return nil, says(store.ErrUnavailable) // it was not sent
	}
	t.ended = true
	var out *store.Outcome
	told, err := t.life.do(ctx, move{
		step: Commit, note: Note{Key: t.key, Fence: t.fence, Hold: t.hold, To: end.State}, conn: t.conn, ends: true,
		apply: func(ctx context.Context, _ *Note) error {
			made, err := t.inner.Commit(ctx, end)
			out = made
			return err
		},
		refused: says(store.ErrAborted), lost: says(store.ErrCommitUnknown),
	})
	if !told {
		return nil, err
	}
	t.conn.ends()
	return out, err
}

// Rollback is the step rollback, unless the transaction has ended.
func (t *txn[Tx]) Rollback(ctx context.Context) error {
	if t.ended || t.conn.lost() {
		t.life.living()
		return nil
	}
	t.ended = true
	_, err := t.life.do(ctx, move{
		step: Rollback, note: Note{Key: t.key, Fence: t.fence}, conn: t.conn, ends: true,
		apply: func(ctx context.Context, _ *Note) error {
			t.conn.ends()
			return t.inner.Rollback(ctx)
		},
		lost: says(store.ErrUnavailable),
	})
	return err
}

// lateTxn is one whose gate may go with the handler's first statement.
type lateTxn[Tx any] struct {
	*txn[Tx]
	late store.Late
}

func (t *lateTxn[Tx]) Refused() bool { return t.late.Refused() }

// Verdict is a step of that name.
func (t *lateTxn[Tx]) Verdict(ctx context.Context) (store.Verdict, error) {
	var verdict store.Verdict
	t.ended = true
	told, err := t.life.do(ctx, move{
		step: Verdict, note: Note{Key: t.key, Fence: t.fence}, conn: t.conn, ends: true,
		apply: func(ctx context.Context, note *Note) (err error) {
			t.conn.ends()
			verdict, err = t.late.Verdict(ctx)
			note.Verdict = verdict.State
			return err
		},
		refused: says(store.ErrUnavailable),
	})
	if !told {
		return store.Verdict{}, err
	}
	return verdict, err
}

// Join is a step of that name. The caller's transaction is one of [Life.Open].
func (s *Store[Tx]) Join(ctx context.Context, tx Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	var part store.Joined
	var verdict store.Verdict
	told, err := s.life.do(ctx, move{
		step: Join, note: Note{Key: gate.Key, Fence: gate.From}, conn: s.life.connOf(tx),
		apply: func(ctx context.Context, note *Note) (err error) {
			part, verdict, err = s.inner.Join(ctx, tx, gate)
			note.Verdict = verdict.State
			return err
		},
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	if !told {
		return nil, store.Verdict{}, err
	}
	if err != nil || part == nil {
		return nil, verdict, err
	}
	return &joined{life: s.life, inner: part, conn: s.life.connOf(tx), key: gate.Key}, verdict, nil
}

// joined is the engine's part of a caller's transaction.
type joined struct {
	life  *Life
	inner store.Joined
	conn  *conn
	key   store.Key
}

// Finish is the step insert.
func (j *joined) Finish(ctx context.Context, end store.End) (*store.Outcome, error) {
	if j.conn.lost() {
		j.life.living()
		return nil, says(store.ErrUnavailable)
	}
	var out *store.Outcome
	told, err := j.life.do(ctx, move{
		step: Insert, note: Note{Key: j.key, To: end.State}, conn: j.conn,
		apply: func(ctx context.Context, _ *Note) (err error) {
			out, err = j.inner.Finish(ctx, end)
			return err
		},
		refused: says(store.ErrAborted), lost: says(store.ErrUnavailable),
	})
	if !told {
		return nil, err
	}
	return out, err
}

// Leave is no step: it sends nothing that matters.
func (j *joined) Leave() {
	j.life.living()
	if !j.conn.lost() {
		j.inner.Leave()
	}
}

// Look is a step of that name.
func (s *Store[Tx]) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	return s.read(ctx, Look, key, s.inner.Look)
}

// Settle is a step of that name.
func (s *Store[Tx]) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	return s.read(ctx, Settle, key, s.inner.Settle)
}

func (s *Store[Tx]) read(ctx context.Context, step string, key store.Key, read func(context.Context, store.Key) (store.Verdict, error)) (store.Verdict, error) {
	var verdict store.Verdict
	told, err := s.life.do(ctx, move{
		step: step, note: Note{Key: key},
		apply: func(ctx context.Context, note *Note) (err error) {
			verdict, err = read(ctx, key)
			note.Verdict = verdict.State
			return err
		},
		refused: says(store.ErrUnavailable),
	})
	if !told {
		return store.Verdict{}, err
	}
	return verdict, err
}

// Peek is a step of that name.
func (s *Store[Tx]) Peek(ctx context.Context, keys []store.Key) (states []store.State, err error) {
	told, err := s.life.do(ctx, move{
		step: Peek,
		apply: func(ctx context.Context, _ *Note) (err error) {
			states, err = s.inner.Peek(ctx, keys)
			return err
		},
		refused: says(store.ErrUnavailable),
	})
	if !told {
		return nil, err
	}
	return states, err
}

// Claim is a step of that name.
func (s *Store[Tx]) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	var row *store.Attempt
	var verdict store.Verdict
	told, err := s.life.do(ctx, move{
		step: Claim, note: Note{Key: claim.Key, Lease: claim.Lease},
		apply: func(ctx context.Context, note *Note) error {
			a, v, err := s.inner.Claim(ctx, claim)
			row, verdict = a, v
			note.Verdict = v.State
			if a != nil {
				note.Fence = a.Fence
			}
			return err
		},
		refused: says(store.ErrUnavailable), lost: says(store.ErrCommitUnknown),
	})
	if !told {
		return nil, store.Verdict{}, err
	}
	return row, verdict, err
}

// Renew is a step of that name.
func (s *Store[Tx]) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	return s.write(ctx, Renew, Note{Key: key, Fence: fence, Lease: lease}, func(ctx context.Context) error {
		return s.inner.Renew(ctx, key, fence, lease)
	})
}

// Rest is a step of that name.
func (s *Store[Tx]) Rest(ctx context.Context, key store.Key, fence int64, rest store.Rest) error {
	return s.write(ctx, Rest, Note{Key: key, Fence: fence, To: rest.State}, func(ctx context.Context) error {
		return s.inner.Rest(ctx, key, fence, rest)
	})
}

// SaveStep is the step save.
func (s *Store[Tx]) SaveStep(ctx context.Context, key store.Key, fence int64, step store.Step) error {
	return s.write(ctx, Save, Note{Key: key, Fence: fence}, func(ctx context.Context) error {
		return s.inner.SaveStep(ctx, key, fence, step)
	})
}

func (s *Store[Tx]) write(ctx context.Context, step string, note Note, write func(context.Context) error) error {
	return s.life.write(ctx, step, note, write)
}

// write makes a step that is one statement.
func (l *Life) write(ctx context.Context, step string, note Note, write func(context.Context) error) error {
	_, err := l.do(ctx, move{
		step: step, note: note,
		apply:   func(ctx context.Context, _ *Note) error { return write(ctx) },
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	return err
}

// Steps is a step of that name.
func (s *Store[Tx]) Steps(ctx context.Context, key store.Key) (steps []store.Step, err error) {
	told, err := s.life.do(ctx, move{
		step: Steps, note: Note{Key: key},
		apply: func(ctx context.Context, _ *Note) (err error) {
			steps, err = s.inner.Steps(ctx, key)
			return err
		},
		refused: says(store.ErrUnavailable),
	})
	if !told {
		return nil, err
	}
	return steps, err
}
