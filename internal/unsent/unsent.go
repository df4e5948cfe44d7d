// Package unsent tells an attempt over a connection that never started from one
// that may have arrived: whether anything was written.
package unsent

import (
	"net"
	"sync"
)

// Conn is a connection that counts its writes. It is safe for use by several
// goroutines.
type Conn struct {
	net.Conn
	mu     sync.Mutex
	writes int64
	sealed bool
}

// Write counts before it writes: a write that fails may have sent something.
// On a connection that was sealed it fails with [net.ErrClosed].
func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// Writes tells how often something was written.
func (c *Conn) Writes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// Seal closes the connection for good, also for a goroutine that is just about
// to write, and tells how often something was written.
func (c *Conn) Seal() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
	_ = c.Close() // of a connection that has failed
	return c.writes
}
