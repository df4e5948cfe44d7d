package inbox

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"

	"github.com/unavez/unavez/internal/unsent"
)

// transport is that of the caller's client, made to send each request once. Of a
// transport of another kind only the traces are known.
func (d *deliverer) transport() http.RoundTripper {
	from := d.Client.Transport
	if from == nil {
		from = http.DefaultTransport
	}
	t, ok := from.(*http.Transport)
	if !ok {
		return from
	}
	t = t.Clone()
	d.traced = true
	t.DisableKeepAlives = !d.Reuse
	t.DisableCompression = true
	t.ForceAttemptHTTP2 = false
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.Protocols = nil
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = nil
	}
	if dial := t.DialTLSContext; dial != nil {
		t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return wired(dial(ctx, network, address))
		}
	}
	dial := t.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return wired(dial(ctx, network, address))
	}
	return t
}

func wired(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &unsent.Conn{Conn: conn}, nil
}

// watched is what a trace saw of one attempt.
type watched struct {
	mu     sync.Mutex
	asked  bool // for a connection, so that the trace is known to work
	got    bool
	conn   *unsent.Conn // nil if it is of another kind
	before int64        // writes on it before this attempt: of TLS, or of earlier ones
}

func (w *watched) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = true
		},
		GotConn: func(info httptrace.GotConnInfo) {
			conn := info.Conn
			if secured, ok := conn.(*tls.Conn); ok {
				conn = secured.NetConn()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.got = true
			if w.conn, _ = conn.(*unsent.Conn); w.conn != nil {
				w.before = w.conn.Writes()
			}
		},
	}
}

// unsent says, of an attempt that failed, that nothing of it was or will be sent.
func (w *watched) unsent(counted bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.got:
		return w.asked || counted
	case w.conn == nil:
		return false
	}
	return w.conn.Seal() == w.before
}
