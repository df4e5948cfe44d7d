package postgres_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
)

// wire watches the connections of a worker. It knows the protocol as far as it
// needs: each trip of the client is one flush that ends with a Sync or a Query.
type wire struct {
	mu    sync.Mutex
	fault int // what to do with the next execution
	trips int
}

// What can become of the next execution.
const (
	faultNone   = iota
	faultBefore // never sent, and the connection breaks
	faultAfter  // sent and answered, and the answer is lost
)

// lose makes the next execution lose its answer, after it took effect or instead.
func (w *wire) lose(took bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = faultBefore
	if took {
		w.fault = faultAfter
	}
}

// count runs fn and tells how many trips it took.
func (w *wire) count(fn func()) int {
	w.mu.Lock()
	before := w.trips
	w.mu.Unlock()
	fn()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trips - before
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wired{Conn: conn, w: w}, nil
}

// errLost is what a broken connection says.
var errLost = errors.New("the connection is lost")

// wired is one connection.
type wired struct {
	net.Conn
	w       *wire
	mu      sync.Mutex
	swallow bool
	broken  bool
}

// holds reports whether a flush has a message of one of the types. The client
// writes its buffer at once, so it begins with a message and ends with one.
func holds(b []byte, types string) bool {
	for len(b) >= 5 && strings.IndexByte("BCDEFHPQSX", b[0]) >= 0 {
		if strings.IndexByte(types, b[0]) >= 0 {
			return true
		}
		n := int(binary.BigEndian.Uint32(b[1:])) + 1
		if n < 5 || n > len(b) {
			return false
		}
		b = b[n:]
	}
	return false
}

// Write sees whole flushes, since the client writes its buffer at once.
func (c *wired) Write(b []byte) (int, error) {
	if holds(b, "SQ") {
		c.w.mu.Lock()
		c.w.trips++
		fault := faultNone
		if holds(b, "EQ") {
			fault, c.w.fault = c.w.fault, faultNone
		}
		c.w.mu.Unlock()
		switch fault {
		case faultBefore:
			c.set(&c.broken)
			return len(b), nil
		case faultAfter:
			c.set(&c.swallow)
		}
	}
	return c.Conn.Write(b)
}

func (c *wired) set(flag *bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*flag = true
}

func (c *wired) state() (swallow, broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.swallow, c.broken
}

// Read loses the answer that is to be lost, once all of it is there.
func (c *wired) Read(b []byte) (int, error) {
	swallow, broken := c.state()
	if broken {
		return 0, errLost
	}
	if !swallow {
		return c.Conn.Read(b)
	}
	var all []byte
	for {
		n, err := c.Conn.Read(b)
		all = append(all, b[:n]...)
		if err != nil {
			return 0, err
		}
		// ReadyForQuery is the last message: 'Z', its length, the status.
		if k := len(all); k >= 6 && all[k-6] == 'Z' && all[k-2] == 5 {
			c.set(&c.broken)
			return 0, errLost
		}
	}
}
