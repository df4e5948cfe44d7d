package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/unavez/unavez/store"
)

// errEnded is what a transaction answers after its end.
var errEnded = errors.New("memory: transaction has ended")

// Tx is a transaction over the business rows. A handler gets one from the
// engine and leaves its end to the engine; a caller of Join opens one by
// [Store.BeginTx] and ends it. It may be used by several goroutines, one call
// at a time.
type Tx struct {
	s        *Store
	engine   bool // the engine ends it, not who holds the Tx
	snapshot uint64
	writes   map[string]*string
	pending  []*ending
	appended []*entry
	versions map[store.Key]store.Version
	held     []store.Key
	inside   []int // lanes that it holds
	timer    *time.Timer
	deadline time.Time // by the machine's clock; zero means none
	ended    bool
	err      error // why it ended, where somebody must be told
}

// BeginTx opens a transaction of the caller's own, for Join. It has no limit;
// Commit or Rollback ends it.
func (s *Store) BeginTx(ctx context.Context) (*Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open(false), nil
}

func (s *Store) open(engine bool) *Tx {
	return &Tx{
		s: s, engine: engine, snapshot: s.rows.see(),
		writes: map[string]*string{}, versions: map[store.Key]store.Version{},
	}
}

// Put writes a row. The error is [store.ErrLimit] or that of an ended transaction.
func (tx *Tx) Put(key, value string) error { return tx.write(key, &value) }

// Delete removes a row; one that is not there is removed as well.
func (tx *Tx) Delete(key string) error { return tx.write(key, nil) }

func (tx *Tx) write(key string, value *string) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return err
	}
	tx.writes[key] = value
	return nil
}

// Get reads a row as the transaction sees it.
func (tx *Tx) Get(key string) (value string, ok bool, err error) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return "", false, err
	}
	if own, written := tx.writes[key]; written {
		if own == nil {
			return "", false, nil
		}
		return *own, true, nil
	}
	value, ok = tx.s.rows.get(key, tx.snapshot)
	return value, ok, nil
}

// All returns a copy of the rows as the transaction sees them.
func (tx *Tx) All() (map[string]string, error) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return nil, err
	}
	seen := tx.s.rows.all(tx.snapshot)
	for key, value := range tx.writes {
		if value == nil {
			delete(seen, key)
		} else {
			seen[key] = *value
		}
	}
	return seen, nil
}

// Commit ends a transaction of the caller's own. It fails with
// [store.ErrAborted] when another transaction has written one of its rows, and
// with [store.ErrDuplicate] or [store.ErrLeaseLost] when a joined operation was
// ended elsewhere; then nothing of it is committed. On the engine's
// transaction it is refused with [store.ErrForeignCommit], which ends it.
func (tx *Tx) Commit() error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.foreign(); err != nil {
		return err
	}
	return tx.commit()
}

// Rollback gives everything up. On the engine's transaction it is refused like
// Commit.
func (tx *Tx) Rollback() error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.foreign(); err != nil {
		return err
	}
	tx.end(errEnded)
	return nil
}

// foreign refuses an end that is not the holder's to order.
func (tx *Tx) foreign() error {
	if tx.ended {
		return tx.err
	}
	if tx.engine {
		tx.end(store.ErrForeignCommit)
		return tx.err
	}
	return nil
}

// wrote tells whether the transaction has written anything.
func (tx *Tx) wrote() bool { return len(tx.writes)+len(tx.appended)+len(tx.versions) > 0 }

// Savepoint remembers what the transaction has written so far. The returned
// function rolls back to it, as often as wanted; outcomes of joined operations
// that were finished in between, entries and versions are given up too.
func (tx *Tx) Savepoint() (rollbackTo func() error, err error) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return nil, err
	}
	writes, versions := maps.Clone(tx.writes), maps.Clone(tx.versions)
	pending, appended := len(tx.pending), len(tx.appended)
	return func() error {
		tx.s.mu.Lock()
		defer tx.s.mu.Unlock()
		if err := tx.usable(); err != nil {
			return err
		}
		tx.writes, tx.versions = maps.Clone(writes), maps.Clone(versions)
		tx.pending = tx.pending[:min(pending, len(tx.pending))]
		tx.appended = tx.appended[:min(appended, len(tx.appended))]
		return nil
	}, nil
}

// bound ends the transaction when the limit is over.
func (tx *Tx) bound(limit time.Duration) {
	tx.deadline = time.Now().Add(limit)
	tx.timer = time.AfterFunc(limit, func() {
		tx.s.mu.Lock()
		defer tx.s.mu.Unlock()
		_ = tx.usable() // ends it; whoever uses it next gets the error
	})
}

// usable tells whether the transaction is open, ending one that is over its limit.
func (tx *Tx) usable() error {
	if !tx.ended && !tx.deadline.IsZero() && !time.Now().Before(tx.deadline) {
		tx.end(store.ErrLimit)
	}
	if tx.ended {
		return tx.err
	}
	return nil
}

// take locks an operation until the transaction ends.
func (tx *Tx) take(key store.Key) {
	tx.s.locks[key] = &lock{owner: tx, free: make(chan struct{})}
	tx.held = append(tx.held, key)
}

// free gives one operation's lock back, if it is still this transaction's.
func (tx *Tx) free(key store.Key) {
	if l := tx.s.locks[key]; l != nil && l.owner == tx {
		delete(tx.s.locks, key)
		close(l.free)
	}
}

// end closes the transaction, whatever it came to, and frees its operations.
func (tx *Tx) end(err error) {
	if tx.ended {
		return
	}
	tx.ended, tx.err = true, err
	if tx.timer != nil {
		tx.timer.Stop()
	}
	tx.s.rows.leave(tx.snapshot)
	for _, key := range tx.held {
		tx.free(key)
	}
	for _, i := range tx.inside {
		tx.s.queue.lanes[i].inside--
	}
	forget := func(_ store.Key, holder *Tx) bool { return holder == tx }
	maps.DeleteFunc(tx.s.queue.reserved, forget)
	maps.DeleteFunc(tx.s.queue.ordering, forget)
	tx.writes, tx.pending, tx.appended, tx.versions, tx.held, tx.inside = nil, nil, nil, nil, nil, nil
	close(tx.s.freed)
	tx.s.freed = make(chan struct{})
}

// commit checks everything first and then writes everything. Either way the
// transaction has ended.
func (tx *Tx) commit() error {
	if err := tx.usable(); err != nil {
		return err
	}
	s, writes, pending, versions, own := tx.s, tx.writes, tx.pending, tx.versions, tx.own()
	defer tx.end(errEnded)
	now := s.clock()
	for _, e := range pending {
		if err := s.stands(e, now); err != nil {
			return err
		}
	}
	for key := range writes {
		if s.rows.changed(key, tx.snapshot) {
			return fmt.Errorf("%w: row %q was written by another transaction meanwhile", store.ErrAborted, key)
		}
	}
	happens, answer := s.lost()
	tx.end(errEnded) // its snapshot holds no versions any more
	if happens {
		for _, e := range pending {
			s.put(e)
		}
		if len(writes) > 0 {
			s.rows.commit(writes)
		}
		maps.Copy(s.queue.versions, versions)
		s.show(own)
	}
	return answer
}
