package sqlite

import (
	"context"
	"database/sql/driver"
	"runtime"
	"strings"
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
		err = s.glance(ctx, func(r *raw) error {
			alone, err = find(r, key)
			return err
		})
		return false, alone, err
	}
	defer close(a.done)
	a.err = s.glance(context.WithoutCancel(ctx), a.read)
	return a.known[key], nil, a.err
}

// glance calls look with the writer's connection where that is idle, and with a
// reader where it is not, or where whatever goes wrong there.
func (s *Store) glance(ctx context.Context, look func(r *raw) error) error {
	done := false
	s.c.writer.idle(func(r *raw) { done = look(r) == nil })
	if done {
		return nil
	}
	return s.read(ctx, look)
}

// askingSizes are for how many keys there is a statement. What is left of its
// parameters is null, which equals nothing.
func askingSizes() [3]int { return [...]int{4, 16, 64} }

// askingText is the statement for n keys.
func askingText(n int) string {
	return "WITH asked(key) AS (VALUES (?)" + strings.Repeat(", (?)", n-1) + ") SELECT key FROM asked WHERE" +
		" EXISTS (SELECT 1 FROM unavez_outcome o WHERE o.key = asked.key)" +
		" OR EXISTS (SELECT 1 FROM unavez_tombstone t WHERE t.key = asked.key)" +
		" OR EXISTS (SELECT 1 FROM unavez_attempt a WHERE a.key = asked.key)"
}

// read asks for all keys. Those of two statements may be read at two instants:
// each operation is looked for in one.
func (a *asking) read(r *raw) error {
	a.known = map[store.Key]bool{}
	sizes := askingSizes()
	for keys := a.keys; len(keys) > 0; {
		i := 0
		for i < len(sizes)-1 && sizes[i] < len(keys) {
			i++
		}
		args := make([]driver.Value, sizes[i])
		n := min(len(keys), len(args))
		for k := range n {
			args[k] = keys[k][:]
		}
		err := r.query(askingText(sizes[i]), args, func(v []driver.Value) error {
			a.known[keyOf(v[0])] = true
			return nil
		})
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}
