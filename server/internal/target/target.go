package target

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unavez/unavez/server/internal/outbound"
)

// Bounds of a call.
const (
	handshakeLimit = 10 * time.Second
	idleLimit      = time.Second
	maxAnswer      = 64 << 10 // bytes of a body that are read, to use the connection again
)

// Options of a target. URL is required.
type Options struct {
	// URL that is called, by POST.
	URL string
	// Secrets sign each request, as whsec_ and base64.
	Secrets []string
	// Headers of each request.
	Headers map[string]string
	// Timeout of a call, from its first byte to the head of its answer. Required.
	Timeout time.Duration
	// Done and NotDone are statuses with a meaning of their own; see Read.
	Done, NotDone []int
	// Now is the clock of the signature; nil means time.Now.
	Now func() time.Time
}

// Target is one place that is called. It is safe for concurrent use.
type Target struct {
	o         Options
	url       *url.URL
	keys      [][]byte
	transport http.RoundTripper
}

// New makes a target whose calls go over a transport of [Transport].
func New(transport http.RoundTripper, o Options) (*Target, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" {
		return nil, errors.New("url: not an http:// or https:// URL")
	}
	t := &Target{o: o, url: u, transport: transport}
	if t.o.Now == nil {
		t.o.Now = time.Now
	}
	for i, secret := range o.Secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) == 0 {
			return nil, fmt.Errorf("secrets[%d]: want whsec_ and base64", i)
		}
		t.keys = append(t.keys, key)
	}
	return t, nil
}

// URL is where the target is, without a query, which may hold a secret.
func (t *Target) URL() string { return t.url.Scheme + "://" + t.url.Host + t.url.EscapedPath() }

// Message is one request.
type Message struct {
	// ID is equal at every attempt: webhook-id and Idempotency-Key. It has no dot.
	ID string
	// ContentType of Body.
	ContentType string
	// Body of the request; may be empty.
	Body []byte
	// Header is added to the configured lines.
	Header http.Header
}

// Call sends a message once and reads the answer.
func (t *Target) Call(ctx context.Context, m Message) Answer {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	var conn *wire
	var before int64
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if c, ok := info.Conn.(*wire); ok {
			conn, before = c, c.count()
		}
	}})
	response, err := t.transport.RoundTrip(t.request(ctx, m))
	if err != nil {
		unsent := conn == nil || conn.seal() == before
		return failed(plain(err), unsent)
	}
	defer response.Body.Close()
	// What follows the head decides nothing.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))
	return t.Read(response.StatusCode, response.Header)
}

// request makes the request. net/http sends one that carries an Idempotency-Key
// again on a dead connection, if its body can be had again or is none; this
// one's cannot.
func (t *Target) request(ctx context.Context, m Message) *http.Request {
	u := *t.url
	r := (&http.Request{
		Method: http.MethodPost, URL: &u, Host: u.Host, Header: http.Header{},
		Body: once{bytes.NewReader(m.Body)}, ContentLength: int64(len(m.Body)),
	}).WithContext(ctx)
	if len(m.Body) == 0 {
		r.ContentLength = -1 // known to be none would make it one that can be had again
	}
	for name, values := range m.Header {
		r.Header[name] = values
	}
	for name, value := range t.o.Headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("User-Agent", "unavez")
	if m.ContentType != "" {
		r.Header.Set("Content-Type", m.ContentType)
	}
	r.Header.Set("Idempotency-Key", m.ID)
	t.sign(r.Header, m, t.o.Now())
	return r
}

// sign adds the three lines of Standard Webhooks 1.0: HMAC-SHA256 over id,
// timestamp and body, one signature for each secret.
func (t *Target) sign(h http.Header, m Message, at time.Time) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	h.Set("Webhook-Id", m.ID)
	h.Set("Webhook-Timestamp", stamp)
	if len(t.keys) == 0 {
		return
	}
	signatures := make([]string, len(t.keys))
	for i, key := range t.keys {
		mac := hmac.New(sha256.New, key)
		_, _ = io.WriteString(mac, m.ID+"."+stamp+".") // a hash never fails
		_, _ = mac.Write(m.Body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
}

// once is a body that is read once.
type once struct{ io.Reader }

func (once) Close() error { return nil }

// plain takes the URL, whose query may hold a secret, out of an error.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// wire is a connection that knows whether anything was written on it, above TLS.
type wire struct {
	net.Conn
	mu     sync.Mutex
	writes int64
	sealed bool
}

// Write counts before it writes: a write that fails may have sent something.
func (c *wire) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *wire) count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// seal ends writing, also for a goroutine that is just about to, and tells how
// often there was any.
func (c *wire) seal() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
	_ = c.Close() // of a connection that has failed
	return c.writes
}

// Transport is for targets: under the policy, and of connections that know
// whether anything was written. Close its idle connections when done.
func Transport(p outbound.Policy) *http.Transport {
	base := outbound.Transport(p)
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &wire{Conn: conn}, nil
	}
	base.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		name, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, NextProtos: []string{"http/1.1"}}
		if own := base.TLSClientConfig; own != nil {
			config.RootCAs = own.RootCAs
		}
		secured := tls.Client(conn, config)
		ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
		defer cancel()
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // the handshake's error says it all
			return nil, err
		}
		return &wire{Conn: secured}, nil
	}
	base.IdleConnTimeout = idleLimit
	base.ForceAttemptHTTP2 = false
	return base
}
