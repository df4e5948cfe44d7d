package conform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// problem is an error body of RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
}

// kind is the last part of the problem's type: what tells problems apart.
func (p problem) kind() string {
	return p.Type[strings.LastIndexAny(p.Type, "#/:")+1:]
}

// parseProblem reads an answer as a problem and checks its form.
func (a *answer) parseProblem() (problem, error) {
	media, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil || media != "application/problem+json" {
		return problem{}, fmt.Errorf("%v: got %v, want application/problem+json", a.request, a)
	}
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		return problem{}, fmt.Errorf("%v: problem is no JSON: %w: %q", a.request, err, a.body)
	}
	if p.Status != a.status {
		return p, fmt.Errorf("%v: member status of the problem: got %d, and the answer's is %d", a.request, p.Status, a.status)
	}
	if p.Title == "" {
		return p, fmt.Errorf("%v: the problem has no title: %q", a.request, a.body)
	}
	return p, nil
}

// hold checks an answer against the rules that hold in every case, and counts it.
func (s *session) hold(a *answer) {
	err := s.rules(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.broken == nil {
		s.broken = err
	}
	if p, err := a.parseProblem(); err == nil && (p.kind() == countMismatch || p.kind() == countInFlight) {
		s.seen[p.kind()]++
	}
	if a.header.Get(headerReplayed) != "" {
		s.seen[countReplayed]++
	}
}

func (s *session) rules(a *answer) error {
	s.mu.Lock()
	planned, allowed := s.planned[a.status], s.allowed[a.status]
	s.mu.Unlock()
	if a.status >= 500 && !planned && !allowed {
		return fmt.Errorf("%v: got %v, want no 5xx", a.request, a)
	}
	for _, text := range []string{"database is locked", "SQLITE_", "SQLSTATE", "goroutine "} {
		if bytes.Contains(a.body, []byte(text)) {
			return fmt.Errorf("%v: got %v, want no %q in a body", a.request, a, text)
		}
	}
	if strings.Contains(a.header.Get("Content-Type"), "problem+json") || a.status >= 400 && !planned && s.r.about != nil {
		if _, err := a.parseProblem(); err != nil && a.request.method != http.MethodHead {
			return err
		}
	}
	if a.length >= 0 && a.length != int64(len(a.body)) && a.request.method != http.MethodHead {
		return fmt.Errorf("%v: Content-Length is %d, and the body has %d bytes", a.request, a.length, len(a.body))
	}
	if marker := a.header.Values(headerReplayed); len(marker) > 1 || len(marker) == 1 && marker[0] != "true" {
		return fmt.Errorf("%v: %s: got %q, want true or none", a.request, headerReplayed, marker)
	}
	if s.r.about != nil && s.r.about.CORS && a.request.header.Get("Origin") != "" {
		return a.exposes(headerReplayed, headerRetry)
	}
	return nil
}

// exposes wants header names in Access-Control-Expose-Headers.
func (a *answer) exposes(names ...string) error {
	lines := a.header.Values("Access-Control-Expose-Headers")
	for _, name := range names {
		if !hasToken(lines, name) {
			return fmt.Errorf("%v: Access-Control-Expose-Headers: got %q, want %s in it", a.request, lines, name)
		}
	}
	return nil
}

// hasToken looks for a token in header lines that are comma-separated lists.
func hasToken(lines []string, token string) bool {
	for item := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		if strings.EqualFold(strings.TrimSpace(item), token) {
			return true
		}
	}
	return false
}

// wantStatus wants one of the statuses.
func (s *session) wantStatus(a *answer, statuses ...int) {
	if !slices.Contains(statuses, a.status) {
		s.fail("%v: got %v, want status %v", a.request, a, statuses)
	}
}

// wantFirst wants the first answer of an operation: the planned status, without
// the marker. A service without plans answers with any 2xx.
func (s *session) wantFirst(a *answer, status int) {
	if s.r.about == nil {
		if a.status/100 != 2 {
			s.fail("%v: got %v, want 2xx", a.request, a)
		}
	} else if a.status != status {
		s.fail("%v: got %v, want %d", a.request, a, status)
	}
	if marker, has := a.header[headerReplayed]; has {
		s.fail("%v: first answer: %s is %q, want none", a.request, headerReplayed, marker)
	}
}

// wantReplay wants an answer to be the replay of another.
func (s *session) wantReplay(a, first *answer) {
	if a.header.Get(headerReplayed) != "true" {
		s.fail("%v: got %v, want a replay with %s: true", a.request, a, headerReplayed)
	}
	s.wantSame(a, first)
	if first.header.Get("Cache-Control") == "" && a.header.Get("Cache-Control") != "no-store" {
		s.fail("%v: replay: Cache-Control: got %q, want no-store where the handler set none", a.request, a.header.Get("Cache-Control"))
	}
}

// wantSame wants the same answer: status, replayable header lines in their
// order, body.
func (s *session) wantSame(a, first *answer) {
	if a.status != first.status {
		s.fail("%v: replay: status: got %d, want %d", a.request, a.status, first.status)
	}
	got, want := a.replayable(), first.replayable()
	for name := range want {
		if !slices.Equal(got[name], want[name]) {
			s.fail("%v: replay: header %s: got %q, want %q", a.request, name, got[name], want[name])
		}
	}
	for name := range got {
		if _, known := want[name]; !known {
			s.fail("%v: replay: header %s: got %q, and the first answer had none", a.request, name, got[name])
		}
	}
	if !bytes.Equal(a.body, first.body) {
		s.fail("%v: replay: body: got %s", a.request, difference(a.body, first.body))
	}
}

// difference tells where two bodies part.
func difference(got, want []byte) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("%d bytes, want %d; they part at byte %d: %q, want %q", len(got), len(want), i,
		got[i:min(i+40, len(got))], want[i:min(i+40, len(want))])
}

// replayable are the header lines that a replay must repeat.
func (a *answer) replayable() http.Header {
	h := a.header.Clone()
	for _, name := range []string{
		"Date", "Set-Cookie", "Www-Authenticate", "Proxy-Authenticate", "Preference-Applied", headerReplayed,
		"Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Cache-Control", "Age",
		"Vary", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Access-Control-Allow-Credentials",
	} {
		delete(h, name)
	}
	return h
}

// wantProblem wants a problem of one of the statuses and of a kind; a service
// without control endpoints may call the kind as it likes.
func (s *session) wantProblem(a *answer, kind string, statuses ...int) {
	s.wantStatus(a, statuses...)
	p, err := a.parseProblem()
	if err != nil {
		s.fail("%w", err)
	}
	if s.r.about == nil {
		return
	}
	if p.kind() != kind {
		s.fail("%v: type of the problem: got %q, want %q", a.request, p.Type, kind)
	}
	for _, link := range a.header.Values("Link") {
		if strings.Contains(link, `rel="describedby"`) && strings.HasPrefix(link, "<"+p.Type+">") {
			return
		}
	}
	s.fail("%v: Link: got %q, want <%s>; rel=\"describedby\"", a.request, a.header.Values("Link"), p.Type)
}

// wantInFlight wants the answer of a duplicate while the operation runs, with a
// Retry-After from one second to most.
func (s *session) wantInFlight(a *answer, most time.Duration) {
	s.wantProblem(a, countInFlight, http.StatusConflict)
	s.wantRetryAfter(a, most)
}

// wantRetryAfter wants a Retry-After from one second to most.
func (s *session) wantRetryAfter(a *answer, most time.Duration) {
	text := a.header.Get(headerRetry)
	seconds, err := strconv.Atoi(text)
	if limit := int((most + time.Second - 1) / time.Second); err != nil || seconds < 1 || seconds > limit {
		s.fail("%v: %s: got %q, want 1 to %d", a.request, headerRetry, text, limit)
	}
}

// is reports whether the answer is a problem of a kind.
func (a *answer) is(kind string) bool {
	p, err := a.parseProblem()
	return err == nil && p.kind() == kind
}
