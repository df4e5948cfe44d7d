package testenv

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Relay stands between a program and a server, for tests that take the server
// away and give it back.
type Relay struct {
	listener net.Listener
	server   string
	running  sync.WaitGroup

	mu   sync.Mutex
	down bool
	open map[net.Conn]bool
}

// StartRelay relays connections to the server at an address until the test ends.
func StartRelay(tb testing.TB, server string) *Relay {
	tb.Helper()
	l, err := net.Listen("tcp", address(0))
	if err != nil {
		tb.Fatal(err)
	}
	r := &Relay{listener: l, server: server, open: map[net.Conn]bool{}}
	r.running.Go(r.accept)
	tb.Cleanup(func() {
		_ = l.Close() // ends the loop
		r.Cut()
		r.running.Wait()
	})
	return r
}

// Addr is where the relay listens.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Cut ends every connection and refuses further ones.
func (r *Relay) Cut() { r.turn(true) }

// Mend ends every connection that is left and relays further ones.
func (r *Relay) Mend() { r.turn(false) }

func (r *Relay) turn(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	for c := range r.open {
		_ = c.Close() // that is the point
	}
	clear(r.open)
}

func (r *Relay) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.server)
		if err != nil {
			_ = in.Close() // as if the server had refused it
			continue
		}
		if !r.keep(in, out) {
			continue
		}
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			r.running.Go(func() {
				_, _ = io.Copy(pair[0], pair[1]) // until one of them is closed
				_ = pair[0].Close()
			})
		}
	}
}

// keep says whether the two are relayed.
func (r *Relay) keep(list ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range list {
		if r.down {
			_ = c.Close() // refused
			continue
		}
		r.open[c] = true
	}
	return !r.down
}
