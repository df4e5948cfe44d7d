package conform

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer bounds what is read of an answer's body.
const maxAnswer = 64 << 20

// request is one HTTP request of a case.
type request struct {
	base   string // of a worker
	method string
	path   string // with its query
	keys   []string
	header http.Header
	body   []byte
	// chunked sends the body without a Content-Length.
	chunked bool
}

// String names the request in an error.
func (q request) String() string {
	s := q.method + " " + q.path
	for _, key := range q.keys {
		s += fmt.Sprintf(" key %q", key)
	}
	return s
}

// answer is what came back.
type answer struct {
	request request
	status  int
	header  http.Header
	length  int64 // Content-Length, -1 when there was none
	body    []byte
	took    time.Duration
}

// String is the answer in an error: status line, type of the problem, a piece
// of the body.
func (a *answer) String() string {
	body := string(a.body)
	if len(body) > 200 {
		body = fmt.Sprintf("%s… (%d bytes)", body[:200], len(body))
	}
	marker := ""
	if m := a.header.Get(headerReplayed); m != "" {
		marker = " replayed=" + m
	}
	return fmt.Sprintf("%d %s%s %q", a.status, a.header.Get("Content-Type"), marker, body)
}

// splitBase cuts a URL into scheme with host, and path.
func splitBase(base string) (at, path string, err error) {
	if base == "" {
		return "", "", nil
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", "", fmt.Errorf("conform: target %q: want http://host:port/path", base)
	}
	return u.Scheme + "://" + u.Host, u.EscapedPath(), nil
}

// exchange sends a request and reads its answer whole.
func (r *Runner) exchange(ctx context.Context, q request) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
		if q.chunked {
			body = struct{ io.Reader }{body}
		}
	}
	h, err := http.NewRequestWithContext(ctx, q.method, q.base+q.path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range r.target.Header {
		h.Header[http.CanonicalHeaderKey(name)] = values
	}
	for name, values := range q.header {
		h.Header[http.CanonicalHeaderKey(name)] = values
	}
	if q.keys != nil {
		h.Header[headerKey] = q.keys
	}
	started := time.Now()
	response, err := r.client.Do(h)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", q, err)
	}
	defer response.Body.Close()
	return readAnswer(q, response, started)
}

func readAnswer(q request, response *http.Response, started time.Time) (*answer, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%v: answer %d: body: %w", q, response.StatusCode, err)
	}
	return &answer{
		request: q, status: response.StatusCode, header: response.Header,
		length: response.ContentLength, body: body, took: time.Since(started),
	}, nil
}

// raw sends bytes as they are, for what no client would send, and reads the
// answer, if there is one. The connection stays open in both directions until
// the answer is there. nil means that the service closed it without a word.
func (r *Runner) raw(ctx context.Context, base, text string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	var conn net.Conn
	if u.Scheme == "https" {
		conn, err = (&tls.Dialer{}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	line, _, _ := strings.Cut(text, "\r\n")
	method, path, _ := strings.Cut(strings.TrimSuffix(line, " HTTP/1.1"), " ")
	q := request{base: base, method: method, path: path}
	started := time.Now()
	_, writeErr := io.WriteString(conn, text) // a service may answer before it has read all
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%v: no answer: %w", q, ctx.Err())
		}
		var broken *net.OpError
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broken) {
			return nil, nil
		}
		return nil, errors.Join(fmt.Errorf("%v: %w", q, err), writeErr)
	}
	defer response.Body.Close()
	return readAnswer(q, response, started)
}
