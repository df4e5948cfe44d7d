package fault

import (
	"context"
	"errors"

	"github.com/unavez/unavez/store"
)

// Queue is one worker's view of a store with a queue. What runs entries is made
// of steps; what people and programs do beside it passes through.
type Queue[Tx any] struct {
	*Store[Tx]
	*Operator
	store.Quarantine
	store.Enqueuer[Tx]
	store.Versions[Tx]

	worker  *Life
	queue   store.Queue
	lanes   store.Lanes
	batches store.Batches[Tx]
}

// Compile-time guards.
var (
	_ store.Queue        = (*Queue[int])(nil)
	_ store.Lanes        = (*Queue[int])(nil)
	_ store.Batches[int] = (*Queue[int])(nil)
)

// NewQueue wraps a store for a worker. The store has to have everything that an
// inbox can ask for.
func NewQueue[Tx any](life *Life, inner Inner[Tx]) (*Queue[Tx], error) {
	q := &Queue[Tx]{Store: NewStore(life, inner), worker: life}
	var operations store.Operations
	var ok [7]bool
	q.queue, ok[0] = inner.(store.Queue)
	q.lanes, ok[1] = inner.(store.Lanes)
	q.batches, ok[2] = inner.(store.Batches[Tx])
	q.Quarantine, ok[3] = inner.(store.Quarantine)
	q.Enqueuer, ok[4] = inner.(store.Enqueuer[Tx])
	q.Versions, ok[5] = inner.(store.Versions[Tx])
	operations, ok[6] = inner.(store.Operations)
	if ok != [7]bool{true, true, true, true, true, true, true} {
		return nil, errors.New("fault: the store has no queue")
	}
	q.Operator = NewOperator(life, operations)
	return q, nil
}

// Append is a step of that name.
func (q *Queue[Tx]) Append(ctx context.Context, arrival store.Arrival) ([]store.Appended, error) {
	var made []store.Appended
	told, err := q.worker.do(ctx, move{
		step: Append,
		apply: func(ctx context.Context, _ *Note) error {
			m, err := q.queue.Append(ctx, arrival)
			made = m
			return err
		},
		refused: says(store.ErrUnavailable), lost: says(store.ErrCommitUnknown),
	})
	if !told {
		return nil, err
	}
	return made, err
}

// Read is the step snapshot.
func (q *Queue[Tx]) Read(ctx context.Context, reading store.Reading) (page store.Page, err error) {
	err = q.worker.read(ctx, Snapshot, func(ctx context.Context) (err error) {
		page, err = q.queue.Read(ctx, reading)
		return err
	})
	return page, err
}

// Followers is a step of that name.
func (q *Queue[Tx]) Followers(ctx context.Context, order store.Key, after int64, limit int) (all []store.Entry, err error) {
	err = q.worker.read(ctx, Followers, func(ctx context.Context) (err error) {
		all, err = q.queue.Followers(ctx, order, after, limit)
		return err
	})
	return all, err
}

// Load is a step of that name.
func (q *Queue[Tx]) Load(ctx context.Context, key store.Key) (e store.Entry, err error) {
	err = q.worker.read(ctx, Load, func(ctx context.Context) (err error) {
		e, err = q.queue.Load(ctx, key)
		return err
	})
	return e, err
}

// Waiting is a step of that name.
func (q *Queue[Tx]) Waiting(ctx context.Context, lanes []int, after store.Place, limit int) (all []store.Waiting, err error) {
	err = q.worker.read(ctx, Waiting, func(ctx context.Context) (err error) {
		all, err = q.queue.Waiting(ctx, lanes, after, limit)
		return err
	})
	return all, err
}

// Block is a step of that name.
func (q *Queue[Tx]) Block(ctx context.Context, blocking store.Blocking) error {
	note := Note{Key: blocking.Entry.Operation, Hold: blocking.Hold}
	if a := blocking.Attempt; a != nil {
		note.Fence, note.To = a.Fence, a.Rest.State
	}
	_, err := q.worker.do(ctx, move{
		step: Block, note: note,
		apply:   func(ctx context.Context, _ *Note) error { return q.queue.Block(ctx, blocking) },
		refused: says(store.ErrUnavailable), lost: says(store.ErrCommitUnknown),
	})
	return err
}

// Unblock is a step of that name.
func (q *Queue[Tx]) Unblock(ctx context.Context, hold store.Hold, order store.Key, sequence int64) error {
	return q.worker.write(ctx, Unblock, Note{Hold: hold}, func(ctx context.Context) error {
		return q.queue.Unblock(ctx, hold, order, sequence)
	})
}

// Lanes is no step: their number does not change.
func (q *Queue[Tx]) Lanes() int { return q.lanes.Lanes() }

// Keep is the step take.
func (q *Queue[Tx]) Keep(ctx context.Context, keeping store.Keeping) (store.Share, error) {
	var share store.Share
	told, err := q.worker.do(ctx, move{
		step: Take,
		apply: func(ctx context.Context, note *Note) error {
			s, err := q.lanes.Keep(ctx, keeping)
			share, note.Held = s, s.Held
			return err
		},
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	if !told {
		return store.Share{}, err
	}
	return share, err
}

// HandBack is a step of that name.
func (q *Queue[Tx]) HandBack(ctx context.Context, worker string, marks []store.Mark, gone bool) error {
	return q.worker.write(ctx, HandBack, Note{}, func(ctx context.Context) error {
		return q.lanes.HandBack(ctx, worker, marks, gone)
	})
}

// BeginBatch is the step gate.
func (q *Queue[Tx]) BeginBatch(ctx context.Context, gates []store.Gate) (store.Batch[Tx], []store.Verdict, error) {
	var opened store.Batch[Tx]
	var verdicts []store.Verdict
	told, err := q.worker.do(ctx, move{
		step: Gate, note: Note{Hold: gates[0].Hold},
		apply: func(ctx context.Context, _ *Note) (err error) {
			opened, verdicts, err = q.batches.BeginBatch(ctx, gates)
			return err
		},
		abandon: func() { giveUpBatch(opened) },
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	if !told {
		return nil, nil, err
	}
	if err != nil || opened == nil {
		return nil, verdicts, err
	}
	b := &batch[Tx]{life: q.worker, inner: opened, hold: gates[0].Hold}
	b.conn = q.worker.opens(opened.Tx(), func() { giveUpBatch(opened) })
	return b, verdicts, nil
}

// giveUpBatch is what the server does with the batch of a lost connection.
func giveUpBatch[Tx any](b store.Batch[Tx]) {
	if b != nil {
		ctx, cancel := context.WithTimeout(context.Background(), serverLimit)
		defer cancel()
		_ = b.Rollback(ctx) // nobody is there to be told
	}
}

// batch is an open transaction of several operations.
type batch[Tx any] struct {
	life  *Life
	inner store.Batch[Tx]
	conn  *conn
	hold  store.Hold
	ended bool
}

func (b *batch[Tx]) Tx() Tx { return b.inner.Tx() }

// Commit is the step commit.
func (b *batch[Tx]) Commit(ctx context.Context, ends []*store.End) ([]*store.Outcome, error) {
	if b.conn.lost() {
		b.life.living()
		return nil, says(store.ErrUnavailable)
	}
	b.ended = true
	var out []*store.Outcome
	told, err := b.life.do(ctx, move{
		step: Commit, note: Note{Hold: b.hold}, conn: b.conn, ends: true,
		apply: func(ctx context.Context, _ *Note) error {
			made, err := b.inner.Commit(ctx, ends)
			out = made
			return err
		},
		refused: says(store.ErrAborted), lost: says(store.ErrCommitUnknown),
	})
	if !told {
		return nil, err
	}
	b.conn.ends()
	return out, err
}

// Rollback is the step rollback, unless the batch has ended.
func (b *batch[Tx]) Rollback(ctx context.Context) error {
	if b.ended || b.conn.lost() {
		b.life.living()
		return nil
	}
	b.ended = true
	_, err := b.life.do(ctx, move{
		step: Rollback, note: Note{Hold: b.hold}, conn: b.conn, ends: true,
		apply: func(ctx context.Context, _ *Note) error {
			b.conn.ends()
			return b.inner.Rollback(ctx)
		},
		lost: says(store.ErrUnavailable),
	})
	return err
}
