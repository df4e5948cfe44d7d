package httpkey_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// canned is a connection on which one request arrives again and again, and
// what is answered is thrown away: net/http's server without the kernel.
type canned struct {
	request []byte
	rest    []byte
	left    int
	done    chan struct{}
}

func (c *canned) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.left == 0 {
			return 0, io.EOF
		}
		c.left--
		c.rest = c.request
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *canned) Write(p []byte) (int, error) { return len(p), nil }

func (c *canned) Close() error {
	close(c.done)
	return nil
}

func (c *canned) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *canned) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

// once hands one connection to a server.
type once struct {
	conn net.Conn
	done chan struct{}
}

func (l *once) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.done
	return nil, io.EOF
}

func (l *once) Close() error   { return nil }
func (l *once) Addr() net.Addr { return &net.TCPAddr{} }

func serveCanned(b *testing.B, h http.Handler, key string) {
	b.Helper()
	const body = `{"customer":"c-1","amount":42}`
	request := "POST /orders HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 30\r\n" +
		"Content-Type: application/json\r\nIdempotency-Key: " + key + "\r\nAccept-Encoding: gzip\r\n\r\n" + body
	c := &canned{request: []byte(request), left: b.N, done: make(chan struct{})}
	b.ReportAllocs()
	b.ResetTimer()
	if err := http.Serve(&once{conn: c, done: c.done}, h); err != io.EOF {
		b.Fatal(err)
	}
}

// BenchmarkServer is a whole request in net/http's server: a handler that reads
// the request and writes a constant, and a replay of the same answer.
func BenchmarkServer(b *testing.B) {
	b.Run("no-op", func(b *testing.B) {
		serveCanned(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				b.Error(err)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			if _, err := io.WriteString(w, `{"id":1}`); err != nil {
				b.Error(err)
			}
		}), "k-same")
	})
	b.Run("replay", func(b *testing.B) { serveCanned(b, benchLayer(b), "k-same") })
}

// quietWriter takes an answer and keeps its header's map.
type quietWriter struct{ header http.Header }

func (w *quietWriter) Header() http.Header         { return w.header }
func (w *quietWriter) WriteHeader(int)             {}
func (w *quietWriter) Write(p []byte) (int, error) { return len(p), nil }

// TestAReplayFromMemoryHardlyAllocates counts what the layer itself takes from
// the heap: the exchange, the body, the length's text and a function.
func TestAReplayFromMemoryHardlyAllocates(t *testing.T) {
	h := benchLayer(t) // alone: what others allocate would count
	body := strings.NewReader("")
	r := httptest.NewRequest("POST", "/orders", io.NopCloser(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "the same")
	w := &quietWriter{header: http.Header{}}
	serve := func() {
		clear(w.header)
		body.Reset(`{"customer":"c-1"}`)
		h.ServeHTTP(w, r)
	}
	serve()
	allocs := testing.AllocsPerRun(100, serve)
	if w.header.Get("Idempotent-Replayed") != "true" {
		t.Fatal("no replay")
	}
	if allocs > 5 {
		t.Errorf("%v allocations, want at most 5", allocs)
	}
}
