package conform

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// The kinds of problems, by the last part of their type.
const (
	kindMissing       = "key-missing"
	kindMalformed     = "key-malformed"
	kindExpired       = "key-expired"
	kindNotReplayable = "not-replayable"
	kindTooLarge      = "request-too-large"
	kindConnection    = "connection-header"
	kindForbidden     = "replay-forbidden"
	kindUnavailable   = "store-unavailable"
	kindUnknown       = "outcome-unknown"
	kindLimit         = "limit-exceeded"
	kindForeign       = "foreign-commit"
	kindLeaseLost     = "lease-lost"
)

// keyMissing is case 1.
func keyMissing(s *session) {
	o := s.op(RoutePlain, ok())
	s.wantProblem(s.do(s.post(1, o, "")), kindMissing, http.StatusBadRequest)
	s.wantRuns(o, 0)
}

// keyOptional is case 2.
func keyOptional(s *session) {
	o := s.op(RouteOptional, ok())
	for range 2 {
		s.wantFirst(s.do(s.post(1, o, "")), http.StatusCreated)
	}
	s.wantRuns(o, 2)
}

// quotedKey is case 3.
func quotedKey(s *session) {
	o, k := s.op(RoutePlain, ok()), key()
	first := s.do(s.post(1, o, k))
	s.wantFirst(first, http.StatusCreated)
	s.wantReplay(s.do(s.post(1, o, k)), first)
	s.wantReplay(s.do(s.post(2, o, k)), first)
	s.wantCount(o, 1, 1)
}

// rawAndQuoted is case 4.
func rawAndQuoted(s *session) {
	o, k := s.op(RoutePlain, ok()), strings.Trim(key(), `"`)
	first := s.do(s.post(1, o, k))
	s.wantFirst(first, http.StatusCreated)
	s.wantReplay(s.do(s.post(1, o, `"`+k+`"`)), first)
	s.wantReplay(s.do(s.post(2, o, "  "+k+"  ")), first)
	s.wantCount(o, 1, 1)
}

// emptyKey is case 5.
func emptyKey(s *session) {
	o := s.op(RoutePlain, ok())
	for _, k := range []string{"", "   ", `""`, `"  "`} {
		q := s.post(1, o, "")
		q.keys = []string{k}
		s.wantProblem(s.do(q), kindMalformed, http.StatusBadRequest)
	}
	s.wantRuns(o, 0)
}

// twoKeyLines is case 7.
func twoKeyLines(s *session) {
	o, k := s.op(RoutePlain, ok()), key()
	for _, second := range []string{k, key()} {
		q := s.post(1, o, k)
		q.keys = append(q.keys, second)
		s.wantProblem(s.do(q), kindMalformed, http.StatusBadRequest)
	}
	s.wantRuns(o, 0)
}

// oddKeys is case 9.
func oddKeys(s *session) {
	o := s.op(RoutePlain, ok())
	const mark = "odd-key-"
	for _, odd := range []string{"\x00", "\x0a", "\x07", "\x7f", "\x80", "\xc3\xa9", "\xff"} {
		q := s.post(1, o, "")
		a, err := s.r.raw(s.ctx, q.base, s.text(q, headerKey+": "+mark+odd+"z\r\n", len(q.body))+string(q.body))
		if err != nil {
			s.fail("%w", err)
		}
		if a != nil && a.status != http.StatusBadRequest {
			s.fail("key %q: got %v, want 400", mark+odd+"z", a)
		}
	}
	s.wantRuns(o, 0)
	for i, text := range []string{"../../" + strings.Trim(key(), `"`), "'; drop table orders; -- " + strings.Trim(key(), `"`)} {
		first := s.do(s.post(1, o, text))
		s.wantFirst(first, http.StatusCreated)
		s.wantReplay(s.do(s.post(2, o, text)), first)
		s.wantCount(o, i+1, i+1)
	}
	if s.r.target.Logs == nil {
		return
	}
	logs, err := s.r.target.Logs()
	if err != nil {
		s.fail("logs: %w", err)
	}
	for line := range bytes.Lines(logs) {
		if i := bytes.Index(line, []byte(mark)); i >= 0 && bytes.ContainsFunc(line[:len(line)-1], func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffd }) {
			s.fail("a log line holds raw control bytes: %q", line)
		}
	}
}

// text is a request as it goes over the wire, without its body; line is put
// between its header lines. A negative length leaves Content-Length out.
func (s *session) text(q request, line string, length int) string {
	var b strings.Builder
	_, host, _ := strings.Cut(q.base, "://")
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", q.method, q.path, host, line)
	for name, values := range q.header {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	for name, values := range s.r.target.Header {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	if length >= 0 {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", length)
	}
	return b.String() + "Connection: close\r\n\r\n"
}

// safeMethods is case 11.
func safeMethods(s *session) {
	for _, route := range []string{RoutePlain, RouteHandle} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			o, k := s.op(route, runs(Behaviour{Status: http.StatusOK, Body: []byte("seen")})), key()
			for range 2 {
				q := s.post(1, o, k)
				q.method, q.body = method, nil
				s.wantFirst(s.do(q), http.StatusOK)
			}
			s.wantRuns(o, 2)
			// There is no record: the key is still free for a POST.
			q := s.post(1, o, k)
			s.wantFirst(s.do(q), http.StatusOK)
			s.wantRuns(o, 3)
		}
	}
}

// otherMethods is case 12.
func otherMethods(s *session) {
	for _, method := range []string{http.MethodDelete, http.MethodPut} {
		gone := Behaviour{Status: http.StatusNotFound, Header: []Line{{"Content-Type", "text/plain"}}, Body: []byte("gone")}
		o, k := s.op(RouteMethods, runs(Behaviour{Status: http.StatusNoContent, Rows: 1}, gone)), key()
		q := s.post(1, o, k)
		q.method = method
		first := s.do(q)
		s.wantFirst(first, http.StatusNoContent)
		s.wantReplay(s.do(q), first)
		q.base = s.base(2)
		s.wantReplay(s.do(q), first)
		s.wantCount(o, 1, 1)
	}
}

// keyForms is the rest of D1 and D2.
func keyForms(s *session) {
	o := s.op(RoutePlain, ok())
	long := strings.Trim(key(), `"`)
	long += strings.Repeat("k", 255-len(long))
	for _, bad := range []string{long + "k", `"` + long + `k"`, `a,b`, `a"b`, `"abc`, `"abc";v=1`, `"a", "b"`, `"a\b"`} {
		s.wantProblem(s.do(s.post(1, o, bad)), kindMalformed, http.StatusBadRequest)
	}
	s.wantRuns(o, 0)
	first := s.do(s.post(1, o, long))
	s.wantFirst(first, http.StatusCreated)
	s.wantReplay(s.do(s.post(1, o, `"`+long+`"`)), first)
	comma := strings.Trim(key(), `"`) + ", with"
	s.wantFirst(s.do(s.post(1, o, `"`+comma+`"`)), http.StatusCreated)
	s.wantCount(o, 2, 2)
}

// forgedMarker is D7: the marker in a request means nothing.
func forgedMarker(s *session) {
	for _, route := range []string{RoutePlain, RouteRetry} {
		o, k := s.op(route, runs(Behaviour{Status: http.StatusCreated, Echo: true, Rows: 1})), key()
		q := s.post(1, o, k).with(headerReplayed, "true")
		first := s.do(q)
		s.wantFirst(first, http.StatusCreated)
		if e := s.echo(first); e.Replayed != "" {
			s.fail("%v: the handler saw %s: %q, want it stripped", q, headerReplayed, e.Replayed)
		}
		s.wantReplay(s.do(q), first)
		s.wantCount(o, 1, 1)
	}
}
