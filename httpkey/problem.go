package httpkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez"
)

// DefaultDocs is the page that the types of problems point into.
const DefaultDocs = "https://github.com/unavez/unavez/blob/main/docs/http-api.md"

// The types of problems that are this package's own; the others are the codes
// of [unavez.Error]. As a URI a type is Options.Docs + "#" + type.
const (
	TypeKeyMissing        = "key-missing"          // 400: the method needs a key
	TypeKeyMalformed      = "key-malformed"        // 400: there is a header that names no key
	TypeConnectionHeader  = "connection-header"    // 400: Connection names the key or an identity header
	TypeBodyUnreadable    = "body-unreadable"      // 400: the request body ended early
	TypeBodyTimeout       = "body-timeout"         // 408: the request body came too slowly
	TypeRequestTooLarge   = "request-too-large"    // 413: the request body is over the limit
	TypeScope             = "scope-missing"        // 500: the scope function named no tenant or principal
	TypeForbidden         = "replay-forbidden"     // 403: the replay hook refused
	TypeAnswerTooLarge    = "answer-too-large"     // 500, 502: the answer is over the spool limit
	TypePath              = "path-refused"         // 400: the path has dot segments (proxy)
	TypeUpstreamDown      = "upstream-unreachable" // 503: nothing was sent to the application
	TypeUpstreamSlow      = "upstream-timeout"     // 504: an unkeyed request had no answer in time
	TypeUpstreamBroken    = "upstream-broken"      // 502: an unkeyed request had no whole answer
	TypeNotStarted        = "not-started"          // 503: nothing was sent to the other system
	TypeInternal          = "internal"             // 500: the log has the cause
	typeOfUncodedProblems = "about:blank"
)

// Error is an answer of type application/problem+json (RFC 9457) that a
// handler of [Layer.Handle] or a scope function returns as its error. Every
// field but Err is shown to the client; Err goes to the log only.
type Error struct {
	// Status of the answer, 400 to 599; anything else becomes 500.
	Status int
	// Type is a URI; default "about:blank", which means the status says it all.
	Type string
	// Title is a short summary of the type; default the status's own text.
	Title string
	// Detail is about this one occurrence.
	Detail string
	// Members are further members of the problem object.
	Members map[string]any
	// Header lines to send along, such as WWW-Authenticate or Retry-After.
	Header http.Header
	// Err is the cause.
	Err error
}

// Errorf makes an [Error] whose detail is shown to the client. The operand of a
// %w verb becomes its cause, whose own text goes to the log and is left out of
// the detail.
func Errorf(status int, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	var causes []error
	switch wrapped := err.(type) {
	case interface{ Unwrap() error }:
		causes = []error{wrapped.Unwrap()}
	case interface{ Unwrap() []error }:
		causes = wrapped.Unwrap()
	}
	detail := err.Error()
	for _, cause := range causes {
		if text := cause.Error(); text != "" {
			detail = strings.ReplaceAll(detail, text, "")
		}
	}
	return &Error{Status: status, Detail: strings.TrimRight(detail, ": "), Err: errors.Join(causes...)}
}

// Error is status, title, detail and cause.
func (e *Error) Error() string {
	parts := []string{strconv.Itoa(e.Status)}
	for _, s := range []string{e.title(), e.Detail} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// kind is the type for the observer, SawProblem for one of the application's.
func (e *Error) kind() string {
	if kind, ok := strings.CutPrefix(e.Type, "#"); ok {
		return kind
	}
	return SawProblem
}

func (e *Error) title() string {
	if e.Title != "" {
		return e.Title
	}
	return http.StatusText(e.Status)
}

// problemOf makes the answer to an error: the first [Error] of its chain, or
// fallback without any text of the error.
func problemOf(err error, fallback int, kind string) *Error {
	var p *Error
	if !errors.As(err, &p) {
		return layerProblem(fallback, kind, "", err)
	}
	if p.Status < 400 || p.Status > 599 {
		c := *p
		c.Status = http.StatusInternalServerError
		p = &c
	}
	return p
}

// layerProblem is a problem of a type of the layer's own; the page with the
// types is added when it is written.
func layerProblem(status int, kind, detail string, err error) *Error {
	return &Error{Status: status, Type: "#" + kind, Title: titles(kind), Detail: detail, Err: err}
}

// titles has one sentence for each type.
func titles(kind string) string {
	switch kind {
	case TypeKeyMissing:
		return "An idempotency key is required"
	case TypeKeyMalformed:
		return "The idempotency key is malformed"
	case TypeConnectionHeader:
		return "The Connection header names a header that must arrive"
	case TypeBodyUnreadable:
		return "The request body could not be read"
	case TypeBodyTimeout:
		return "The request body came too slowly"
	case TypeRequestTooLarge:
		return "The request body is too large"
	case TypeScope:
		return "The caller could not be named"
	case TypeForbidden:
		return "The caller may not see this answer any more"
	case TypeAnswerTooLarge:
		return "The answer is too large for a keyed request"
	case TypePath:
		return "The path is not accepted"
	case TypeUpstreamDown:
		return "The application cannot be reached"
	case TypeUpstreamSlow:
		return "The application did not answer in time"
	case TypeNotStarted:
		return "The work was not started"
	case TypeUpstreamBroken:
		return "The application did not answer properly"
	}
	switch unavez.Code(kind) {
	case unavez.CodeInFlight:
		return "A request with this key is being worked on"
	case unavez.CodeMismatch:
		return "This key was used with another request"
	case unavez.CodeExpired:
		return "The answer to this key is no longer kept"
	case unavez.CodeNotReplayable:
		return "The answer to this key was too large to keep"
	case unavez.CodeDamaged:
		return "The stored answer to this key is damaged"
	case unavez.CodeDiscarded:
		return "The operation was ended without its effect"
	case unavez.CodeUnknown:
		return "It is not known whether the operation took effect"
	case unavez.CodeParked:
		return "The operation waits for its owner"
	case unavez.CodeRetrying:
		return "The operation failed and will run again"
	case unavez.CodeDead:
		return "The operation failed and needs a person"
	case unavez.CodeUnresolved:
		return "Whether the operation was committed is being found out"
	case unavez.CodeUnavailable:
		return "The store is unavailable"
	case unavez.CodeClosed:
		return "The server is shutting down"
	case unavez.CodeLimit:
		return "The operation took too long and was rolled back"
	case unavez.CodeLeaseLost:
		return "The attempt was taken over by another"
	case unavez.CodeForeignCommit:
		return "The handler ended the transaction itself"
	case unavez.CodeAborted:
		return "The database gave the transaction up"
	}
	return "Internal error"
}

// engineProblem is the answer to an error of the engine. Its text never leaves
// the server.
func engineProblem(err error) *Error {
	code := unavez.CodeOf(err)
	var e *unavez.Error
	errors.As(err, &e)
	status, detail, retry := http.StatusInternalServerError, "", false
	switch code {
	case unavez.CodeInFlight:
		status, retry = http.StatusConflict, true
		detail = "Repeat the request with the same key after the time in Retry-After."
	case unavez.CodeRetrying:
		status, retry = http.StatusConflict, true
	case unavez.CodeMismatch:
		status = http.StatusUnprocessableEntity
		detail = "A key names one request: method, path, query, content type and body. Use a new key for a new request."
	case unavez.CodeExpired, unavez.CodeNotReplayable:
		status = http.StatusUnprocessableEntity
		detail = "The operation has ended and does not run again."
	case unavez.CodeDiscarded:
		status = http.StatusConflict
		detail = "Its owner has ended the operation; it does not run again."
	case unavez.CodeParked, unavez.CodeDead:
		status = http.StatusConflict
		detail = "The operation waits for its owner. Do not send it with a new key."
	case unavez.CodeUnknown:
		status = http.StatusConflict
		detail = "Its owner decides. Do not send it with a new key: it may have taken effect."
		retry = e != nil && e.RetryAfter > 0
	case unavez.CodeUnresolved, unavez.CodeUnavailable, unavez.CodeClosed, unavez.CodeLimit, unavez.CodeLeaseLost, unavez.CodeAborted:
		status, retry = http.StatusServiceUnavailable, true
		detail = "Repeat the request with the same key."
	case unavez.CodeDamaged, unavez.CodeForeignCommit:
	default:
		code = TypeInternal
	}
	p := layerProblem(status, string(code), detail, err)
	if retry {
		wait := time.Second
		if e != nil && e.RetryAfter > 0 {
			wait = e.RetryAfter
		}
		p.Header = http.Header{"Retry-After": {retryAfter(wait)}}
	}
	switch code {
	case unavez.CodeUnknown, unavez.CodeParked, unavez.CodeDead, unavez.CodeRetrying, unavez.CodeDiscarded, unavez.CodeDamaged:
		p.Members = map[string]any{"operation": e.Key.String()}
	}
	return p
}

// nextDecides tells the client to ask again, since the next request finds out;
// a probe may have said when.
func (e *Error) nextDecides() {
	if e.Header.Get("Retry-After") == "" {
		e.Header = http.Header{"Retry-After": {"1"}}
	}
	e.Detail = "Repeat the request with the same key after the time in Retry-After: it finds out what happened."
}

// retryAfter is a whole number of seconds, at least one.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(max(1, int64(math.Ceil(d.Seconds()))), 10)
}

// answer makes the problem's header and body; docs is the page of the types.
func (e *Error) answer(docs string) (http.Header, []byte) {
	kind := e.Type
	header := http.Header{}
	for name, values := range e.Header {
		header[http.CanonicalHeaderKey(name)] = append([]string(nil), values...)
	}
	switch {
	case kind == "":
		kind = typeOfUncodedProblems
	case strings.HasPrefix(kind, "#"):
		kind = docs + kind
		header.Add("Link", "<"+kind+`>; rel="describedby"`)
	}
	header.Set("Content-Type", "application/problem+json")
	members := map[string]any{}
	for name, value := range e.Members {
		members[name] = value
	}
	members["type"], members["title"], members["status"] = kind, e.title(), e.Status
	if e.Detail != "" {
		members["detail"] = e.Detail
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(members) != nil { // a member that JSON cannot hold
		b.Reset()
		_ = encoder.Encode(map[string]any{"type": kind, "title": e.title(), "status": e.Status}) // strings and a number
	}
	return header, b.Bytes()
}
