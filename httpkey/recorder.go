package httpkey

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// errUpgrade: the handler tried to switch protocols on a keyed route.
var errUpgrade = errors.New("a keyed route cannot switch protocols: serve it without a key")

// recorder is the http.ResponseWriter of a keyed request: it holds the answer
// until the commit. Flush does nothing, since nothing may be sent before the
// commit. There is no Hijack and no full duplex: http.ResponseController gives
// http.ErrNotSupported for both, and for the deadlines of the connection.
type recorder struct {
	base   http.Header // what the layers around have set
	header http.Header
	answer *answer // nil until WriteHeader
	body   *spool
	err    error // first failure to hold the answer
}

func newRecorder(around http.Header, stored, limit int64) *recorder {
	base := cloneHeader(around)
	return &recorder{base: base, header: cloneHeader(base), body: newSpool(stored, limit)}
}

// cloneHeader copies a header; unlike Clone it gives an empty one for nil.
func cloneHeader(h http.Header) http.Header {
	c := make(http.Header, len(h)+4)
	for name, values := range h {
		c[name] = slices.Clone(values)
	}
	return c
}

// Header is the header that WriteHeader takes.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader fixes status and header. 1xx answers are not sent on a keyed
// route, and later calls do nothing.
func (r *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	if r.answer != nil {
		return
	}
	if status == http.StatusSwitchingProtocols {
		r.err = errUpgrade
		return
	}
	if status < 200 {
		return
	}
	r.answer = &answer{status: status, header: cloneHeader(r.header), body: r.body}
}

func (r *recorder) start() error {
	if r.answer == nil {
		r.WriteHeader(http.StatusOK)
	}
	if bodyless(r.answer.status) {
		return http.ErrBodyNotAllowed
	}
	return r.err
}

// Write holds a piece of the body.
func (r *recorder) Write(p []byte) (int, error) {
	if err := r.start(); err != nil {
		return 0, err
	}
	n, err := r.body.Write(p)
	if err != nil && r.err == nil {
		r.err = err
	}
	return n, err
}

// WriteString holds a piece of the body.
func (r *recorder) WriteString(s string) (int, error) { return r.Write([]byte(s)) }

// ReadFrom holds everything that src gives.
func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	return io.Copy(writerOnly{r}, src)
}

// writerOnly hides ReadFrom from io.Copy.
type writerOnly struct{ io.Writer }

// Flush does nothing: the answer is sent after the commit.
func (r *recorder) Flush() {}

// finish is the handler's whole answer.
func (r *recorder) finish() (*answer, error) {
	if r.answer == nil && r.err == nil {
		r.WriteHeader(http.StatusOK)
	}
	if r.err != nil {
		return nil, r.err
	}
	r.answer.complete()
	return r.answer, nil
}

// status is what the handler has answered so far.
func (r *recorder) status() int {
	if r.answer == nil {
		return http.StatusOK
	}
	return r.answer.status
}

// replace puts a problem in the place of whatever the handler has written.
func (r *recorder) replace(p *Error, docs string) *answer {
	header, body := p.answer(docs)
	full := cloneHeader(r.base)
	merge(full, header)
	r.body.close()
	r.body = &spool{memory: body, size: int64(len(body)), keep: int64(len(body)), limit: int64(len(body))}
	r.answer = &answer{status: p.Status, header: full, body: r.body}
	r.answer.complete()
	return r.answer
}

var (
	_ http.Flusher    = (*recorder)(nil)
	_ io.ReaderFrom   = (*recorder)(nil)
	_ io.StringWriter = (*recorder)(nil)
)
