package inbox

import (
	"math/rand/v2"
	"sync"
	"time"
)

// The limits of retries that an effect leaves open; see [Retry].
const (
	retryFirst    = time.Second
	retryLongest  = 5 * time.Minute
	retryAttempts = 20
	retryAge      = 3 * 24 * time.Hour
)

// filled is the retry with its defaults.
func (r Retry) filled() Retry {
	defaultTo(&r.First, retryFirst)
	defaultTo(&r.Longest, max(retryLongest, r.First))
	defaultTo(&r.Attempts, retryAttempts)
	defaultTo(&r.Age, retryAge)
	return r
}

// defaultTo sets a zero setting to its default.
func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// longest is what the delay after so many runs is bounded by.
func (r Retry) longest(runs int64) time.Duration {
	d := r.First
	for ; runs > 1 && d < r.Longest; runs-- {
		d *= 2
	}
	return min(d, r.Longest)
}

// delay is how long to wait after so many runs, shortened at random.
func (r Retry) delay(runs int64) time.Duration { return rand.N(r.longest(runs)) + 1 }

// over reports whether an entry that has run so often, and arrived so long ago,
// is not tried again.
func (r Retry) over(runs int64, age time.Duration) bool {
	return runs >= int64(r.Attempts) || age >= r.Age
}

// clock estimates the database's clock, by which entries arrive, from the
// instants that the database has said. It is never ahead of it, so that an entry
// is not taken for older than it is.
type clock struct {
	mu    sync.Mutex
	said  time.Time // the latest instant of the database's clock
	heard time.Time // when that was heard here, monotonic
}

// hear notes an instant that the database has said just now.
func (c *clock) hear(said time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); said.After(c.now(now)) {
		c.said, c.heard = said, now
	}
}

func (c *clock) now(now time.Time) time.Time {
	if c.heard.IsZero() {
		return time.Time{}
	}
	return c.said.Add(now.Sub(c.heard))
}

// since is how long ago an instant of the database was, at least.
func (c *clock) since(at time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.now(time.Now()).Sub(at), 0)
}
