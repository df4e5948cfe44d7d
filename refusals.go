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
// sparing the database, and one that lies only costs time. Another holder's
// refusals count anew, which a lease that makes holders up can do only so often.
type refusals struct {
	mu    sync.Mutex
	since map[store.Key]refusedBy
}

// refusedBy is a run of refusals of one key.
type refusedBy struct {
	first   time.Time
	token   string // of the holder
	holders int    // before that one
}

// maxHolders is how many holders in a row are believed without the database.
const maxHolders = 3

func newRefusals() *refusals { return &refusals{since: map[store.Key]refusedBy{}} }

// believe reports whether a refusal of the key by the holder of the token may be
// answered without asking the database.
func (r *refusals) believe(key store.Key, token string, lease time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	run, known := r.since[key]
	switch {
	case known && (run.token == token || run.holders == maxHolders-1):
		return now.Sub(run.first) < lease
	case known:
		r.since[key] = refusedBy{first: now, token: token, holders: run.holders + 1}
		return true
	}
	if len(r.since) >= maxRefusals {
		maps.DeleteFunc(r.since, func(_ store.Key, run refusedBy) bool { return now.Sub(run.first) >= lease })
	}
	if len(r.since) >= maxRefusals {
		return false
	}
	r.since[key] = refusedBy{first: now, token: token}
	return true
}

// confirmed believes the refusals of a key anew: the database says that the
// operation is in flight.
func (r *refusals) confirmed(key store.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run, known := r.since[key]; known {
		r.since[key] = refusedBy{first: time.Now(), token: run.token}
	}
}

// granted forgets the refusals of a key.
func (r *refusals) granted(key store.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, key)
}
