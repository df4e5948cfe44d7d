package fault

import (
	"sync"
	"time"
)

// Clock is a database's clock that can jump. Its methods may be called
// concurrently.
type Clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

// Now is the time by this clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// Jump moves the clock ahead, or back where d is negative.
func (c *Clock) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}
