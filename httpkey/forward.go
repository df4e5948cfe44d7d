package httpkey

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/unsent"
)

// notSent is the error of an attempt of which not one byte was written.
type notSent struct{ err error }

func (n *notSent) Error() string { return "nothing was sent: " + n.err.Error() }
func (n *notSent) Unwrap() error { return n.err }

// transport is one that knows nothing of the environment, follows nothing,
// unpacks nothing and speaks HTTP/1.1, where a request is on the wire once.
func (f *front) transport() *http.Transport {
	dial := f.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: DefaultDialTimeout}).DialContext
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.TLS != nil {
		config = f.TLS.Clone()
	}
	config.NextProtos = []string{"http/1.1"}
	return &http.Transport{
		Proxy:              nil,
		DisableCompression: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &unsent.Conn{Conn: conn}, nil
		},
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c := config.Clone()
			if c.ServerName == "" {
				c.ServerName, _, _ = net.SplitHostPort(address)
			}
			secured := tls.Client(conn, c)
			ctx, cancel := context.WithTimeout(ctx, DefaultDialTimeout)
			defer cancel()
			if err := secured.HandshakeContext(ctx); err != nil {
				_ = conn.Close() // the handshake's error says it all
				return nil, err
			}
			return &unsent.Conn{Conn: secured}, nil
		},
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		ForceAttemptHTTP2:      false,
	}
}

// once is an empty body that the transport does not take for none, so that it
// never sends a request twice: net/http re-sends a request that carries an
// Idempotency-Key on a connection that died, if the body is none or can be had
// again.
type once struct{ io.Reader }

func (once) Close() error { return nil }

// attempt sends the request to the upstream on one wire, once, and takes the
// whole answer.
func (f *front) attempt(ctx context.Context, x *exchange) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	var conn *unsent.Conn
	var before int64
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if c, ok := info.Conn.(*unsent.Conn); ok {
			conn, before = c, c.Writes()
		}
	}})
	out := f.outgoing(ctx, x)
	response, err := f.keyed.RoundTrip(out)
	if err != nil {
		if conn == nil || conn.Seal() == before {
			return nil, unavez.NeverStarted(&notSent{err})
		}
		return nil, fmt.Errorf("attempt at the application: %w", err)
	}
	defer response.Body.Close()
	body := newSpool(x.ResponseLimit, x.SpoolLimit)
	a := &answer{status: response.StatusCode, header: response.Header, body: body}
	_, err = io.Copy(body, response.Body)
	switch {
	case errors.Is(err, errSpool): // the application has ended it all the same
		body.close()
		a.body, a.lost = &spool{}, true
	case err != nil:
		body.close()
		return nil, fmt.Errorf("answer %d of the application: %w", response.StatusCode, err)
	}
	if _, set := a.header["Content-Type"]; !set {
		a.header["Content-Type"] = nil // not ours to guess
	}
	a.complete()
	delete(a.header, "Connection")
	return a, nil
}

// outgoing is the request as the upstream gets it.
func (f *front) outgoing(ctx context.Context, x *exchange) *http.Request {
	in := x.r
	out := in.Clone(ctx)
	out.RequestURI = ""
	out.Close = false
	out.Trailer = nil
	f.rewrite(out, in, x.caller)
	if f.DerivedKeyHeader != "" {
		out.Header.Set(f.DerivedKeyHeader, x.op.Identity().DerivedKey(""))
	}
	out.Body = once{bytes.NewReader(nil)}
	if len(x.body) > 0 {
		// A body of this type goes out in one write with the head: an
		// application that answers without reading it has nothing left unread
		// whose loss would reset the connection under its answer.
		out.Body = io.NopCloser(bytes.NewReader(x.body))
	}
	out.ContentLength = int64(len(x.body))
	out.TransferEncoding = nil // it may have come in chunks
	out.GetBody = nil
	return out
}

// rewrite turns a client's request into one to the upstream: nothing about the
// connection, nothing that only the proxy may say, and where it came from.
func (f *front) rewrite(out, in *http.Request, caller Scope) {
	dropConnection(out.Header)
	for name := range out.Header {
		if forwarded(name) || f.claims(name) {
			delete(out.Header, name)
		}
	}
	delete(out.Header, "Expect")
	if host, _, err := net.SplitHostPort(in.RemoteAddr); err == nil {
		out.Header.Set("X-Forwarded-For", host)
	}
	out.Header.Set("X-Forwarded-Host", in.Host)
	out.Header.Set("X-Forwarded-Proto", "http")
	if in.TLS != nil {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
	if _, set := out.Header["User-Agent"]; !set {
		out.Header.Set("User-Agent", "") // none, rather than net/http's own
	}
	if f.Identify != nil {
		f.Identify(out.Header, caller)
	}
	out.URL = f.join(in)
	out.Host = f.upstream.Host
	if f.PreserveHost {
		out.Host = in.Host
	}
}

// forwarded headers are a client's word about where it came from.
func forwarded(name string) bool {
	return name == "Forwarded" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-")
}

// claims tells the identity headers that a client may not send to the upstream;
// its credentials are another matter.
func (f *front) claims(name string) bool {
	return name != "Authorization" && name != "Cookie" && slices.Contains(f.IdentityHeaders, name)
}

// join puts the request's path behind the upstream's, as the client wrote it.
func (f *front) join(in *http.Request) *url.URL {
	path := in.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	u := *f.upstream
	u.RawPath = strings.TrimSuffix(f.upstream.EscapedPath(), "/") + path
	u.Path, _ = url.PathUnescape(u.RawPath) // both halves have been parsed before
	u.RawQuery, u.Fragment, u.RawFragment = in.URL.RawQuery, "", ""
	return &u
}

// pathProblem refuses a path that could leave the upstream's own.
func pathProblem(in *http.Request) *Error {
	refused := in.URL.Path != "" && in.URL.Path[0] != '/'
	for segment := range strings.SplitSeq(in.URL.Path, "/") {
		refused = refused || segment == "." || segment == ".."
	}
	if !refused {
		return nil
	}
	return layerProblem(http.StatusBadRequest, TypePath, "A path begins with / and has no dot segments.", nil)
}

// pass sends a request that is not keyed to the upstream, streaming.
func (f *front) pass(e *edge, w http.ResponseWriter, r *http.Request) {
	x := &exchange{}
	x.begin(e, w, strip(r))
	if p := e.connection(r); p != nil {
		x.fail(p)
		return
	}
	if p := pathProblem(r); p != nil {
		x.fail(p)
		return
	}
	if f.Identify != nil {
		if p := x.identify(); p != nil {
			x.fail(p)
			return
		}
	}
	f.plain.ServeHTTP(w, x.r.WithContext(context.WithValue(x.r.Context(), exchangeKey{}, x)))
}

// exchangeKey is the context key of the exchange of an unkeyed request.
type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// reverse is the plain proxy for requests that are not keyed.
func (f *front) reverse(e *edge) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if !safe(r.Method) && (r.Body == nil || r.Body == http.NoBody) {
				r.Body = once{bytes.NewReader(nil)} // net/http takes X-Idempotency-Key too for leave to send twice
			}
			if len(r.Header[KeyHeader]) > 0 && !safe(r.Method) {
				return f.keyed.RoundTrip(r) // a key of a method that takes none here
			}
			return f.open.RoundTrip(r)
		}),
		Rewrite: func(p *httputil.ProxyRequest) {
			upgrade := p.Out.Header.Get("Upgrade")
			x := exchangeOf(p.In.Context())
			f.rewrite(p.Out, p.In, x.caller)
			if upgrade != "" {
				p.Out.Header.Set("Connection", "Upgrade")
				p.Out.Header.Set("Upgrade", upgrade)
			}
		},
		ModifyResponse: func(response *http.Response) error {
			delete(response.Header, ReplayedHeader)
			if x := exchangeOf(response.Request.Context()); x != nil {
				f.dress(response.Header, x.r)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			x := exchangeOf(r.Context())
			x.w = w
			status, kind := http.StatusBadGateway, TypeUpstreamBroken
			var slow net.Error
			if errors.As(err, &slow) && slow.Timeout() {
				status, kind = http.StatusGatewayTimeout, TypeUpstreamSlow
			}
			x.fail(layerProblem(status, kind, "", err))
		},
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// undress takes the application's CORS headers out where the proxy has its own.
func (f *front) undress(header http.Header) {
	if f.CORS == nil {
		return
	}
	for name := range header {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(header, name)
		}
	}
}

// dress puts the proxy's CORS headers in the place of the application's.
func (f *front) dress(header http.Header, r *http.Request) {
	f.undress(header)
	f.CORS.apply(header, r)
}
