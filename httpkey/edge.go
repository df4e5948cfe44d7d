package httpkey

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez"
)

// effect is the effect name of every keyed request (design: tenant, "http",
// principal, key).
const effect = "http"

// edge is what middleware and proxy have in common: from a request to an
// operation, and from an end to an answer.
type edge struct {
	Options
	scope  ScopeFunc
	prints *fingerprinter
}

func newEdge(scope ScopeFunc, o Options) (*edge, error) {
	resolved, err := o.resolve(scope)
	if err != nil {
		return nil, err
	}
	prints, err := newFingerprinter(resolved.Fingerprint)
	if err != nil {
		return nil, err
	}
	return &edge{Options: resolved, scope: scope, prints: prints}, nil
}

// exchange is one request on its way through the layer.
type exchange struct {
	*edge
	w       http.ResponseWriter
	r       *http.Request // with the body put back, and without a forged marker
	body    []byte
	op      unavez.Operation
	caller  Scope
	prefers time.Duration // what "Prefer: wait" was granted
	started time.Time     // zero where nobody observes

	// What a replay would otherwise need the heap for, piece by piece.
	key   [2]string // op.Key
	sum   [32]byte  // op.Fingerprint.Sum
	lines [8]string // lines of the answer
}

// begin makes x the exchange of one request.
func (x *exchange) begin(e *edge, w http.ResponseWriter, r *http.Request) {
	x.edge, x.w, x.r = e, w, r
	if e.Observe != nil {
		x.started = time.Now()
	}
}

// keyed tells whether the request is to be admitted, or passed through.
func (e *edge) keyed(r *http.Request) bool {
	if slices.Contains(e.Required, r.Method) {
		return true
	}
	return slices.Contains(e.Optional, r.Method) && len(r.Header[KeyHeader]) > 0
}

// strip takes a forged marker out of the request: only answers carry it.
func strip(r *http.Request) *http.Request {
	if _, forged := r.Header[ReplayedHeader]; !forged {
		return r
	}
	c := *r
	c.Header = r.Header.Clone()
	delete(c.Header, ReplayedHeader)
	return &c
}

// admit turns a keyed request into an operation. Who is calling comes first,
// the body last; the order is part of the contract.
func (x *exchange) admit(e *edge, w http.ResponseWriter, r *http.Request) *Error {
	x.begin(e, w, strip(r))
	if p := e.connection(r); p != nil {
		return p
	}
	if p := x.identify(); p != nil {
		return p
	}
	key, err := ParseKey(r.Header[KeyHeader])
	switch {
	case errors.Is(err, ErrNoKey):
		return layerProblem(http.StatusBadRequest, TypeKeyMissing, "Send an Idempotency-Key header with a value that is new for each operation.", err)
	case err != nil:
		return layerProblem(http.StatusBadRequest, TypeKeyMalformed, err.Error(), err)
	}
	x.key = [...]string{x.caller.Principal, key}
	x.op = unavez.Operation{
		Tenant: x.caller.Tenant, Effect: effect, Key: x.key[:],
		Retention: e.Retention, Tombstone: e.Tombstone, Limit: e.Limit, OwnsRetries: true, Rerunnable: e.Rerunnable,
		Detached: !e.CancelOnDisconnect, Origin: e.origin(r),
	}
	if p := x.readBody(); p != nil {
		return p
	}
	x.prefers = min(preferredWait(r.Header["Prefer"]), e.Wait)
	x.op.Wait = x.prefers
	x.op.Fingerprint = unavez.Fingerprint{Version: FingerprintVersion, Sum: e.prints.sum(x.sum[:0], x.r, x.body)}
	x.op.FingerprintAt = x.fingerprintAt
	return nil
}

// fingerprintAt is for records of another version of the algorithm.
func (x *exchange) fingerprintAt(version int) (unavez.Fingerprint, bool) {
	return x.prints.at(version, x.r, x.body)
}

// origin is where the operator sees that the request came in.
func (e *edge) origin(r *http.Request) string {
	if e.Origin != "" || len(r.Pattern) > maxOrigin {
		return e.Origin
	}
	return r.Pattern
}

// connection refuses a Connection header that would make a proxy on the way
// strip the key or who is calling.
func (e *edge) connection(r *http.Request) *Error {
	for token := range tokens(r.Header["Connection"]) {
		name := http.CanonicalHeaderKey(token)
		if name == KeyHeader || slices.Contains(e.IdentityHeaders, name) {
			return layerProblem(http.StatusBadRequest, TypeConnectionHeader, "Connection may not name "+name+".", nil)
		}
	}
	return nil
}

// identify asks who is calling.
func (x *exchange) identify() *Error {
	if x.scope == nil {
		return nil
	}
	caller, err := x.scope(x.r)
	if err != nil {
		return problemOf(err, http.StatusInternalServerError, TypeInternal)
	}
	if !x.SingleTenant && (caller.Tenant == "" || caller.Principal == "") {
		return layerProblem(http.StatusInternalServerError, TypeScope, "", errors.New("the scope function named no tenant or no principal"))
	}
	x.caller = caller
	return nil
}

// readBody reads the body whole, at most one byte over the limit, and puts it
// back for the handler.
func (x *exchange) readBody() *Error {
	tooLarge := func() *Error {
		return layerProblem(http.StatusRequestEntityTooLarge, TypeRequestTooLarge, "At most "+strconv.FormatInt(x.RequestLimit, 10)+" bytes are accepted.", nil)
	}
	if x.r.ContentLength > x.RequestLimit {
		if x.r.Header.Get("Expect") == "" {
			// A client that is still sending would lose the answer with its
			// connection: take what the limit allows, and net/http takes a little more.
			_, _ = io.CopyN(io.Discard, x.r.Body, x.RequestLimit+1) // refused whatever it was
		}
		return tooLarge()
	}
	body, err := readUpTo(x.r.Body, x.r.ContentLength, x.RequestLimit)
	switch {
	case int64(len(body)) > x.RequestLimit:
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return layerProblem(http.StatusRequestTimeout, TypeBodyTimeout, "", err)
	case err != nil:
		return layerProblem(http.StatusBadRequest, TypeBodyUnreadable, "", err)
	}
	x.body = body
	if x.AuthorizeReplay != nil { // it may look at the body
		x.rewind()
	}
	return nil
}

// readUpTo reads a body to its end, or to one byte over the limit. The length
// that was announced, negative when none was, is a hint.
func readUpTo(body io.Reader, announced, limit int64) ([]byte, error) {
	if body == nil || body == http.NoBody {
		return nil, nil
	}
	if announced < 0 {
		announced = 511
	}
	b := make([]byte, 0, min(announced, 64<<10, limit)+1)
	for {
		n, err := body.Read(b[len(b):min(cap(b), int(limit)+1)])
		b = b[:len(b)+n]
		switch {
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil || int64(len(b)) > limit:
			return b, err
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, 1)
		}
	}
}

// rewind puts the body back, as it is at the start of a run.
func (x *exchange) rewind() {
	c := *x.r // the caller's own stays as it came
	x.r = &c
	x.r.Body = http.NoBody
	if len(x.body) > 0 {
		x.r.Body = io.NopCloser(bytes.NewReader(x.body))
	}
	x.r.ContentLength = int64(len(x.body))
	x.r.TransferEncoding = nil
	x.r.GetBody = nil
}

// preferredWait reads "wait=n" of a Prefer header (RFC 7240); the first counts.
func preferredWait(lines []string) time.Duration {
	for preference := range tokens(lines) {
		preference, _, _ = strings.Cut(preference, ";")
		name, value, _ := strings.Cut(preference, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "wait") {
			continue
		}
		n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 63)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return unavez.MaxWait
		case err != nil:
			return 0
		}
		return time.Duration(min(n, uint64(unavez.MaxWait/time.Second))) * time.Second
	}
	return 0
}

// applied tells the client that its wait was honoured.
func (x *exchange) applied() {
	if x.prefers > 0 {
		x.w.Header().Set("Preference-Applied", "wait="+strconv.FormatInt(int64(x.prefers/time.Second), 10))
	}
}

// fail answers with a problem of the layer.
func (x *exchange) fail(p *Error) {
	if p.kind() == string(unavez.CodeInFlight) {
		x.applied()
	}
	x.CORS.apply(x.w.Header(), x.r)
	header, body := p.answer(x.Docs)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Cache-Control", "no-store")
	merge(x.w.Header(), header)
	x.see(p.kind(), p.Status, p.Err)
	x.w.WriteHeader(p.Status)
	x.sent(write(x.w, body))
}

func write(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// replays answers a duplicate with the frozen result.
func (x *exchange) replays(result unavez.Result) {
	if x.AuthorizeReplay != nil {
		if err := x.AuthorizeReplay(x.r); err != nil {
			x.fail(problemOf(err, http.StatusForbidden, TypeForbidden))
			return
		}
	}
	if result.Code == 0 { // ended by a person, without a status
		result.Code = http.StatusOK
	}
	if !sendable(result) {
		x.fail(layerProblem(http.StatusInternalServerError, string(unavez.CodeDamaged), "", errors.New("the stored result has no HTTP status")))
		return
	}
	x.applied()
	x.see(SawReplayed, result.Code, nil)
	x.sent(x.replay(result))
}

// sends is the first answer.
func (x *exchange) sends(a *answer, what string, err error) {
	x.see(what, a.status, err)
	x.sent(a.send(x.w))
}

// sent takes the error of writing an answer: the client is gone, and asks again.
func (x *exchange) sent(err error) {
	if err != nil {
		x.logger().Debug("answer not delivered", "error", err)
	}
}

// see tells observer and log what became of the request.
func (x *exchange) see(what string, status int, err error) {
	failed := status >= 500 && what != SawRolledBack && what != SawReplayed && what != SawCompleted
	if failed || what == string(unavez.CodeUnknown) && hasCause(err) {
		x.logs(what, status, err)
	}
	if x.Observe == nil {
		return
	}
	o := Observation{
		Request: x.r, Tenant: x.caller.Tenant, Principal: x.caller.Principal,
		Type: what, Status: status, Duration: time.Since(x.started), Err: err,
	}
	if len(x.op.Key) > 0 {
		o.ID = x.op.Identity().Key().String()
	}
	x.Observe(o)
}

// hasCause tells an attempt that has just ended without telling from one that
// was found so: the engine's error then has the reason.
func hasCause(err error) bool {
	var e *unavez.Error
	return errors.As(err, &e) && e.Err != nil
}

// logs writes the cause of an answer of the layer's own. Everything that a
// client can choose is quoted by the handler of the log.
func (x *exchange) logs(what string, status int, err error) {
	x.logger().Error("request failed", "type", what, "status", status, "method", x.r.Method, "path", x.r.URL.Path, "error", err)
}

func (e *edge) logger() *slog.Logger {
	if e.Logger != nil {
		return e.Logger
	}
	return slog.Default()
}
