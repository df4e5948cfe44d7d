package sqlite

import (
	"context"
	"database/sql/driver"
	"runtime"
	"sync"

	"github.com/unavez/unavez/store"
)

// crowd lets gates that come together read in one statement: after a commit its
// callers come back at once, and a reader's memory is empty then.
type crowd struct {
	mu   sync.Mutex
	open *asking // may still be joined
}

// asking is one statement for several gates.
type asking struct {
	keys  []store.Key
	known map[store.Key]bool // operations that something is stored of; set when done is closed
	err   error
	done  chan struct{} // made by the first who joins; closed at the end
}

// known reports whether anything is stored of an operation. Who calls it holds
// the operation's lock where that is to hold on: the statement begins later.
//
// The first to come lets run whoever is ready to, and then reads for all who have
// joined meanwhile. For one alone it reads what there is.
func (s *Store) known(ctx context.Context, key store.Key) (known bool, alone *found, err error) {
	c := &s.c.crowd
	c.mu.Lock()
	a := c.open
	if a != nil {
		if a.done == nil {
			a.done = make(chan struct{})
		}
		a.keys = append(a.keys, key)
		c.mu.Unlock()
		select {
		case <-a.done:
			return a.known[key], nil, a.err
		case <-ctx.Done():
			return false, nil, ctx.Err()
		}
	}
	a = &asking{keys: []store.Key{key}}
	c.open = a
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
	c.open = nil
	c.mu.Unlock()
	if a.done == nil {
		err = s.read(ctx, func(r *raw) error {
			alone, err = find(r, key)
			return err
		})
		return false, alone, err
	}
	defer close(a.done)
	a.err = s.read(context.WithoutCancel(ctx), a.read)
	return a.known[key], nil, a.err
}

// read asks for all keys.
func (a *asking) read(r *raw) error {
	a.known = map[store.Key]bool{}
	const text = "SELECT unhex(value) FROM json_each(?1) WHERE" +
		" EXISTS (SELECT 1 FROM unavez_outcome WHERE key = unhex(value))" +
		" OR EXISTS (SELECT 1 FROM unavez_tombstone WHERE key = unhex(value))" +
		" OR EXISTS (SELECT 1 FROM unavez_attempt WHERE key = unhex(value))"
	list := keyList(len(a.keys), func(i int) store.Key { return a.keys[i] })
	return r.query(text, []driver.Value{list}, func(v []driver.Value) error {
		a.known[keyOf(v[0])] = true
		return nil
	})
}
