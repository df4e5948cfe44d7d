package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// mortal is a worker's view of a store that can be cut off: killed, when its open
// transactions are rolled back as the database does for a connection that is
// gone, or paused before its next step. A hook may do either at a chosen step.
type mortal[Tx any] struct {
	backend[Tx]
	cut func() // ends its connections; nil where open is to be rolled back

	mu     sync.Mutex
	dead   bool
	paused chan struct{} // closed by resume; nil while it is not paused
	open   map[*mortalTxn[Tx]]bool
	hook   func(step string) error // may be nil
	then   func(step string)       // after some steps; may be nil
}

func mortalOf[Tx any](inner backend[Tx]) *mortal[Tx] {
	return &mortal[Tx]{backend: inner, open: map[*mortalTxn[Tx]]bool{}}
}

var errDisconnected = fmt.Errorf("%w: the worker is cut off", store.ErrUnavailable)

// on sets the hook.
func (m *mortal[Tx]) on(hook func(step string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

// after sets what is called when "followers", "unblock" and "waiting" have been done.
func (m *mortal[Tx]) after(then func(step string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.then = then
}

func (m *mortal[Tx]) passed(step string) {
	m.mu.Lock()
	then := m.then
	m.mu.Unlock()
	if then != nil {
		then(step)
	}
}

// pass is asked before each step.
func (m *mortal[Tx]) pass(ctx context.Context, step string) error {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	var said error
	if hook != nil {
		said = hook(step)
	}
	for {
		m.mu.Lock()
		dead, paused := m.dead, m.paused
		m.mu.Unlock()
		if dead {
			return errDisconnected
		}
		if paused == nil {
			return said
		}
		select {
		case <-paused:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// kill ends the worker, as far as the database can tell.
func (m *mortal[Tx]) kill() {
	m.mu.Lock()
	m.dead = true
	open := m.open
	m.open = map[*mortalTxn[Tx]]bool{}
	m.mu.Unlock()
	if m.cut != nil {
		m.cut()
		return
	}
	for txn := range open {
		_ = txn.roll(context.Background()) // the connection is gone
	}
}

func (m *mortal[Tx]) pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused == nil {
		m.paused = make(chan struct{})
	}
}

func (m *mortal[Tx]) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused != nil {
		close(m.paused)
		m.paused = nil
	}
}

// mortalTxn is an open transaction of a mortal worker.
type mortalTxn[Tx any] struct {
	m    *mortal[Tx]
	roll func(ctx context.Context) error

	commit func(ctx context.Context, end store.End) (*store.Outcome, error)
	tx     Tx
}

func (m *mortal[Tx]) opened(t *mortalTxn[Tx]) (*mortalTxn[Tx], error) {
	m.mu.Lock()
	dead := m.dead
	if !dead {
		m.open[t] = true
	}
	m.mu.Unlock()
	if dead {
		return nil, errors.Join(errDisconnected, t.roll(context.Background()))
	}
	return t, nil
}

func (t *mortalTxn[Tx]) closed() {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	delete(t.m.open, t)
}

func (t *mortalTxn[Tx]) Tx() Tx { return t.tx }

// errLost says, from a hook, that a commit's answer is to be lost: after it took
// effect, or instead.
var (
	errLostAfter  = errors.New("the answer is lost")
	errLostBefore = errors.New("the commit is lost")
)

func (t *mortalTxn[Tx]) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	switch err := t.m.pass(ctx, "commit"); {
	case errors.Is(err, errLostAfter):
		t.closed()
		if _, err := t.commit(ctx, end); err != nil {
			return nil, err
		}
		return nil, store.ErrCommitUnknown
	case errors.Is(err, errLostBefore):
		t.closed()
		return nil, errors.Join(store.ErrCommitUnknown, t.roll(ctx))
	case err != nil:
		_ = t.Rollback(context.WithoutCancel(ctx)) // which is what the error says
		return nil, err
	}
	t.closed()
	return t.commit(ctx, end)
}

func (t *mortalTxn[Tx]) Rollback(ctx context.Context) error {
	t.closed()
	return t.roll(ctx)
}

func (m *mortal[Tx]) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	if err := m.pass(ctx, "begin"); err != nil {
		return nil, store.Verdict{}, err
	}
	txn, v, err := m.backend.Begin(ctx, gate)
	if txn == nil || err != nil {
		return nil, v, err
	}
	t, err := m.opened(&mortalTxn[Tx]{m: m, tx: txn.Tx(), roll: txn.Rollback, commit: txn.Commit})
	if err != nil {
		return nil, v, err
	}
	return t, v, nil
}

func (m *mortal[Tx]) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[Tx], error) {
	if err := m.pass(ctx, "finish"); err != nil {
		return nil, err
	}
	txn, err := m.backend.Finish(ctx, gate, fence)
	if err != nil {
		return nil, err
	}
	t, err := m.opened(&mortalTxn[Tx]{m: m, tx: txn.Tx(), roll: txn.Rollback, commit: txn.Commit})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// mortalBatch is an open batch of a mortal worker.
type mortalBatch[Tx any] struct {
	store.Batch[Tx]
	t *mortalTxn[Tx]
}

func (b mortalBatch[Tx]) Commit(ctx context.Context, ends []*store.End) ([]*store.Outcome, error) {
	switch err := b.t.m.pass(ctx, "commit"); {
	case errors.Is(err, errLostAfter):
		b.t.closed()
		if _, err := b.Batch.Commit(ctx, ends); err != nil {
			return nil, err
		}
		return nil, store.ErrCommitUnknown
	case errors.Is(err, errLostBefore):
		b.t.closed()
		return nil, errors.Join(store.ErrCommitUnknown, b.t.roll(ctx))
	case err != nil:
		_ = b.t.Rollback(context.WithoutCancel(ctx)) // which is what the error says
		return nil, err
	}
	b.t.closed()
	return b.Batch.Commit(ctx, ends)
}

func (b mortalBatch[Tx]) Rollback(ctx context.Context) error { return b.t.Rollback(ctx) }

func (m *mortal[Tx]) BeginBatch(ctx context.Context, gates []store.Gate) (store.Batch[Tx], []store.Verdict, error) {
	if err := m.pass(ctx, "begin"); err != nil {
		return nil, nil, err
	}
	batch, v, err := m.backend.BeginBatch(ctx, gates)
	if batch == nil || err != nil {
		return nil, v, err
	}
	t, err := m.opened(&mortalTxn[Tx]{m: m, tx: batch.Tx(), roll: batch.Rollback})
	if err != nil {
		return nil, v, err
	}
	return mortalBatch[Tx]{batch, t}, v, nil
}

// written is a step that commits by itself.
func (m *mortal[Tx]) written(ctx context.Context, step string, do func() error) error {
	switch err := m.pass(ctx, step); {
	case errors.Is(err, errLostAfter):
		if err := do(); err != nil {
			return err
		}
		return store.ErrCommitUnknown
	case errors.Is(err, errLostBefore):
		return store.ErrCommitUnknown
	case err != nil:
		return err
	}
	return do()
}

func (m *mortal[Tx]) Claim(ctx context.Context, claim store.Claim) (row *store.Attempt, v store.Verdict, err error) {
	err = m.written(ctx, "claim", func() (err error) {
		row, v, err = m.backend.Claim(ctx, claim)
		return err
	})
	if err != nil {
		return nil, store.Verdict{}, err
	}
	return row, v, nil
}

func (m *mortal[Tx]) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	return m.written(ctx, "renew", func() error { return m.backend.Renew(ctx, key, fence, lease) })
}

func (m *mortal[Tx]) Rest(ctx context.Context, key store.Key, fence int64, rest store.Rest) error {
	return m.written(ctx, "rest", func() error { return m.backend.Rest(ctx, key, fence, rest) })
}

func (m *mortal[Tx]) Block(ctx context.Context, b store.Blocking) error {
	return m.written(ctx, "block", func() error { return m.backend.Block(ctx, b) })
}

func (m *mortal[Tx]) Unblock(ctx context.Context, hold store.Hold, order store.Key, sequence int64) error {
	defer m.passed("unblock")
	return m.written(ctx, "unblock", func() error { return m.backend.Unblock(ctx, hold, order, sequence) })
}

func (m *mortal[Tx]) Keep(ctx context.Context, k store.Keeping) (share store.Share, err error) {
	err = m.written(ctx, "keep", func() (err error) {
		share, err = m.backend.Keep(ctx, k)
		return err
	})
	return share, err
}

func (m *mortal[Tx]) HandBack(ctx context.Context, worker string, marks []store.Mark, gone bool) error {
	return m.written(ctx, "hand back", func() error { return m.backend.HandBack(ctx, worker, marks, gone) })
}

func (m *mortal[Tx]) Read(ctx context.Context, r store.Reading) (store.Page, error) {
	if err := m.pass(ctx, "read"); err != nil {
		return store.Page{}, err
	}
	return m.backend.Read(ctx, r)
}

func (m *mortal[Tx]) Followers(ctx context.Context, order store.Key, after int64, limit int) ([]store.Entry, error) {
	if err := m.pass(ctx, "followers"); err != nil {
		return nil, err
	}
	defer m.passed("followers")
	return m.backend.Followers(ctx, order, after, limit)
}

func (m *mortal[Tx]) Waiting(ctx context.Context, lanes []int, after store.Place, limit int) ([]store.Waiting, error) {
	if err := m.pass(ctx, "waiting"); err != nil {
		return nil, err
	}
	defer m.passed("waiting")
	return m.backend.Waiting(ctx, lanes, after, limit)
}

func (m *mortal[Tx]) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	if err := m.pass(ctx, "look"); err != nil {
		return store.Verdict{}, err
	}
	return m.backend.Look(ctx, key)
}

func (m *mortal[Tx]) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	if err := m.pass(ctx, "settle"); err != nil {
		return store.Verdict{}, err
	}
	return m.backend.Settle(ctx, key)
}

func (m *mortal[Tx]) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := m.pass(ctx, "load"); err != nil {
		return store.Entry{}, err
	}
	return m.backend.Load(ctx, key)
}
