package unavez

import (
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// maxRefusals bounds the memory of refusals.
const maxRefusals = 10_000

// refusals remembers since when the fast lease has refused a key. A lease that
// refuses for longer than a lease lasts is not believed any more: a renewed one
// is then confirmed by the database, and one that lies only costs time.
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
	first, known := r.since[key]
	if !known {
		if len(r.since) >= maxRefusals {
			return false
		}
		r.since[key] = now
		return true
	}
	if now.Sub(first) < lease {
		return true
	}
	delete(r.since, key)
	return false
}

// granted forgets the refusals of a key.
func (r *refusals) granted(key store.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, key)
}
