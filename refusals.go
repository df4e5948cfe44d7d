package unavez

import (
	"maps"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// maxRefusals bounds the memory of refusals.
const maxRefusals = 10_000

// refusals remembers since when the fast lease has refused a key. A lease that
// refuses for longer than a lease lasts is not believed any more until the
// database confirms that the operation is in flight: so a renewed lease goes on
// sparing the database, and one that lies only costs time.
type refusals struct {
	mu    sync.Mutex
	since map[store.Key]time.Time
}

func newRefusals() *refusals { return &refusals{since: map[store.Key]time.Time{}} }

// believe reports whether a refusal of the key may be answered without asking
// the database.
func (r *refusals) believe(key store.Key, lease time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if first, known := r.since[key]; known {
		return now.Sub(first) < lease
	}
	if len(r.since) >= maxRefusals {
		maps.DeleteFunc(r.since, func(_ store.Key, first time.Time) bool { return now.Sub(first) >= lease })
	}
	if len(r.since) >= maxRefusals {
		return false
	}
	r.since[key] = now
	return true
}

// confirmed believes the refusals of a key anew: the database says that the
// operation is in flight.
func (r *refusals) confirmed(key store.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.since[key]; known {
		r.since[key] = time.Now()
	}
}

// granted forgets the refusals of a key.
func (r *refusals) granted(key store.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, key)
}
