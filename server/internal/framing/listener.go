package framing

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// refusal is what net/http reads instead of what was refused. In every state of
// a head it makes a line that net/http answers with 400: the NUL spoils the
// line it falls into, and the second line has no colon.
const refusal = "\x00\r\n\x00\r\n\r\n"

// Listener watches the connections it accepts, and bounds their number.
type Listener struct {
	net.Listener
	slots   chan struct{}
	closed  chan struct{}
	once    sync.Once
	refused atomic.Int64
	stall   time.Duration
}

// piece is how much is written at a time: each piece has the time of a stall.
const piece = 32 << 10

// Listen wraps a listener. At most connections are open at a time; further ones
// wait in the kernel's queue. A client that takes nothing of its answer for the
// length of stall loses its connection: otherwise a few that never read could
// hold every place. A slow answer, or a slow client that reads, is not cut.
func Listen(l net.Listener, connections int, stall time.Duration) *Listener {
	return &Listener{Listener: l, slots: make(chan struct{}, connections), closed: make(chan struct{}), stall: stall}
}

// Refused counts the connections that were ended for their framing.
func (l *Listener) Refused() int64 { return l.refused.Load() }

// Open is the number of connections that are open now.
func (l *Listener) Open() int { return len(l.slots) }

// Accept waits for a free place and then for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{Conn: c, listener: l}, nil
}

// Close stops accepting; open connections live on.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Hijacked is for http.Server.ConnState: what follows an upgrade is no HTTP and
// is not looked at.
func (l *Listener) Hijacked(c net.Conn, state http.ConnState) {
	if watched, ok := c.(*conn); ok && state == http.StateHijacked {
		watched.opaque = true
		_ = c.SetWriteDeadline(time.Time{}) // a connection that is gone shows at its next use
	}
}

// conn is a connection whose requests are watched. net/http reads from one
// goroutine at a time.
type conn struct {
	net.Conn
	listener *Listener
	scanner  scanner
	pending  string // what is still to be read of the refusal
	refused  bool
	opaque   bool // taken over by a handler
	once     sync.Once
}

// Read gives what arrived, up to the first byte that is refused.
func (c *conn) Read(p []byte) (int, error) {
	if c.refused {
		return c.rest(p)
	}
	n, err := c.Conn.Read(p)
	if c.opaque {
		return n, err
	}
	good, bad := c.scanner.scan(p[:n])
	if !bad {
		return n, err
	}
	c.refused = true
	c.listener.refused.Add(1)
	// A body that breaks off is an error for whoever reads it; a refusal would
	// be taken for more of the body.
	if c.scanner.inHead {
		c.pending = refusal
	}
	if good > 0 {
		return good, nil
	}
	return c.rest(p)
}

func (c *conn) rest(p []byte) (int, error) {
	if c.pending == "" {
		return 0, io.EOF
	}
	n := copy(p, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

// Write gives each piece the time of a stall. What follows an upgrade has none.
func (c *conn) Write(p []byte) (written int, err error) {
	if c.opaque {
		return c.Conn.Write(p)
	}
	for len(p) > 0 && err == nil {
		var n int
		if err = c.SetWriteDeadline(time.Now().Add(c.listener.stall)); err == nil {
			n, err = c.Conn.Write(p[:min(len(p), piece)])
		}
		written, p = written+n, p[n:]
	}
	return written, err
}

// CloseWrite lets net/http end a connection so that its last answer arrives.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close frees the place.
func (c *conn) Close() error {
	c.once.Do(func() { <-c.listener.slots })
	return c.Conn.Close()
}
