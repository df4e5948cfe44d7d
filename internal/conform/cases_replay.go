package conform

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// modes are the routes that most cases are tried on: each way to have a handler.
func modes() []string { return []string{RoutePlain, RouteHandle, RouteLease, RouteRetry} }

// leases are the routes in lease mode.
func leases() []string { return []string{RouteLease, RouteHold, RouteRetry, RouteProbe} }

// leased reports whether a route is in lease mode.
func leased(route string) bool { return slices.Contains(leases(), route) }

// again posts a planned behaviour and wants its first answer, and replays of it
// from both workers and one run. It returns first answer and last replay.
func (s *session) again(route string, b Behaviour) (first, replay *answer) {
	o, k := s.op(route, runs(b)), key()
	first = s.do(s.post(1, o, k))
	status := b.Status
	if status == 0 {
		status = http.StatusOK
	}
	s.wantFirst(first, status)
	if !bytes.Equal(first.body, b.Body) {
		s.fail("%v: first answer: body: got %s", first.request, difference(first.body, b.Body))
	}
	for _, line := range b.Header {
		if !hasLine(first.header[http.CanonicalHeaderKey(line.Name)], line.Value) {
			s.fail("%v: first answer: header %s: got %q, want %q in it", first.request, line.Name, first.header.Values(line.Name), line.Value)
		}
	}
	s.wantReplay(s.do(s.post(1, o, k)), first)
	replay = s.do(s.post(2, o, k))
	s.wantReplay(replay, first)
	s.wantCount(o, 1, b.Rows)
	return first, replay
}

func hasLine(lines []string, value string) bool {
	for _, l := range lines {
		if l == value {
			return true
		}
	}
	return false
}

// headerFidelity is case 13.
func headerFidelity(s *session) {
	for _, route := range modes() {
		first, replay := s.again(route, Behaviour{
			Status: http.StatusCreated, Rows: 1, Body: []byte(`{"id": 7}` + "\n"),
			Header: []Line{
				{"Content-Type", "application/json"},
				{"Location", "/orders/7"},
				{"ETag", `"v1"`},
				{"Link", `</orders/7>; rel="self"`},
				{"Link", `</orders>; rel="collection"`},
				{"Content-Disposition", `attachment; filename="a,b.txt"`},
				{"X-Two", "b"},
				{"X-Two", "a"},
			},
		})
		for _, a := range []*answer{first, replay} {
			if got := a.header.Values("X-Two"); len(got) != 2 || got[0] != "b" || got[1] != "a" {
				s.fail("%v: header X-Two: got %q, want the two lines in their order", a.request, got)
			}
		}
	}
}

// binaryBody is case 15.
func binaryBody(s *session) {
	body := make([]byte, 64<<10)
	_, _ = rand.Read(body) // it never fails
	for _, route := range modes() {
		first, replay := s.again(route, Behaviour{
			Status: http.StatusOK, Rows: 1, Body: body, Header: []Line{{"Content-Type", "application/octet-stream"}},
		})
		for _, a := range []*answer{first, replay} {
			if a.length != int64(len(body)) {
				s.fail("%v: Content-Length: got %d, want %d", a.request, a.length, len(body))
			}
		}
	}
}

// emptyBodies is case 17.
func emptyBodies(s *session) {
	for _, route := range modes() {
		for _, status := range []int{http.StatusNoContent, http.StatusCreated, 0} {
			first, replay := s.again(route, Behaviour{Status: status, Rows: 1})
			for _, a := range []*answer{first, replay} {
				if _, has := a.header["Content-Length"]; has && status == http.StatusNoContent {
					s.fail("%v: 204 has Content-Length %q, want none", a.request, a.header.Get("Content-Length"))
				}
			}
		}
	}
}

// contentTypes is case 18.
func contentTypes(s *session) {
	typed := func(status int, contentType, body string, more ...Line) Behaviour {
		return Behaviour{Status: status, Rows: 1, Body: []byte(body), Header: append([]Line{{"Content-Type", contentType}}, more...)}
	}
	for _, route := range modes() {
		s.again(route, typed(http.StatusOK, "text/html; charset=utf-8", "<!doctype html><p>once</p>"))
		s.again(route, typed(http.StatusAccepted, "text/plain", "una vez\n"))
		s.again(route, Behaviour{Status: http.StatusSeeOther, Rows: 1, Header: []Line{{"Location", "/orders/7"}}})
		s.again(route, typed(http.StatusNotFound, "application/problem+json",
			`{"type":"https://shop.example/problems/no-such-cart","title":"No such cart","status":404}`))
		s.again(route, typed(http.StatusOK, "application/json", "\x1f\x8b\x08\x00not really", Line{"Content-Encoding", "gzip"}))
	}
}

// manyWrites is case 19.
func manyWrites(s *session) {
	var body bytes.Buffer
	for i := range 100 {
		fmt.Fprintf(&body, "line %3d\n", i)
	}
	for _, route := range modes() {
		s.again(route, Behaviour{
			Status: http.StatusOK, Rows: 1, Body: body.Bytes(), Chunks: 100, ChunkDelay: time.Millisecond,
			Header: []Line{{"Content-Type", "text/plain; charset=utf-8"}},
		})
	}
}

// answerOverLimit is case 21.
func answerOverLimit(s *session) {
	body := bytes.Repeat([]byte("0123456789abcdef"), (1<<20+s.r.about.ResponseLimit)/16)
	for _, route := range modes() {
		o, k := s.op(route, runs(Behaviour{
			Status: http.StatusOK, Rows: 1, Body: body, Header: []Line{{"Content-Type", "application/octet-stream"}},
		})), key()
		first := s.do(s.post(1, o, k))
		s.wantFirst(first, http.StatusOK)
		if !bytes.Equal(first.body, body) {
			s.fail("%v: first answer: body: got %s", first.request, difference(first.body, body))
		}
		for worker := 1; worker <= 2; worker++ {
			s.wantProblem(s.do(s.post(worker, o, k)), kindNotReplayable, http.StatusUnprocessableEntity)
		}
		s.wantCount(o, 1, 1)
	}
}

// requestOverLimit is case 22. The request never ends: a service that answers
// has read no more than what was sent, one byte over the limit.
func requestOverLimit(s *session) {
	limit := s.r.about.RequestLimit
	for _, route := range modes() {
		o, k := s.op(route, ok()), key()
		q := s.post(1, o, k)
		text := s.text(q, headerKey+": "+k+"\r\nTransfer-Encoding: chunked\r\n", -1) +
			strconv.FormatInt(int64(limit+1), 16) + "\r\n" + string(bytes.Repeat([]byte("x"), limit+1)) + "\r\n"
		a, err := s.r.raw(s.ctx, q.base, text)
		if err != nil {
			s.fail("%w", err)
		}
		if a == nil {
			s.fail("%v: a body of %d bytes without an end: the connection was closed, want 413", q, limit+1)
		}
		s.hold(a)
		s.wantProblem(a, kindTooLarge, http.StatusRequestEntityTooLarge)
		s.wantRuns(o, 0)

		q.body = bytes.Repeat([]byte("x"), limit+1)
		s.wantProblem(s.insist(q), kindTooLarge, http.StatusRequestEntityTooLarge)
		s.wantRuns(o, 0)
		q.body = q.body[:limit] // there is no record: the key is free
		q.chunked = true
		s.wantFirst(s.do(q), http.StatusCreated)
		s.wantCount(o, 1, 1)
	}
}

// insist sends a request that is answered before its body has been read: the
// connection may be closed under the client's hands before it sees the answer.
func (s *session) insist(q request) *answer {
	for try := 1; ; try++ {
		a, err := s.send(q)
		if err == nil {
			s.check()
			return a
		}
		if try == 5 {
			s.fail("%w", err)
		}
		s.pause(100 * time.Millisecond)
	}
}

// exactBody is case 23.
func exactBody(s *session) {
	body := make([]byte, 40<<10)
	_, _ = rand.Read(body) // it never fails
	sum := sha256.Sum256(body)
	for _, route := range modes() {
		for _, chunked := range []bool{false, true} {
			o, k := s.op(route, runs(Behaviour{Status: http.StatusCreated, Rows: 1, Echo: true})), key()
			q := s.post(1, o, k).with("Content-Type", "application/octet-stream")
			q.body, q.chunked = body, chunked
			first := s.do(q)
			s.wantFirst(first, http.StatusCreated)
			got := s.echo(first)
			want := Echo{SHA256: hex.EncodeToString(sum[:]), Length: len(body), ContentLength: int64(len(body))}
			if got != want {
				s.fail("%v: chunked %v: the handler saw %+v, want %+v", q, chunked, got, want)
			}
			s.wantReplay(s.do(q), first)
			s.wantCount(o, 1, 1)
		}
	}
}

// echo reads what a handler has seen.
func (s *session) echo(a *answer) Echo {
	var e Echo
	if err := json.Unmarshal(a.body, &e); err != nil {
		s.fail("%v: echo: %w: %q", a.request, err, a.body)
	}
	return e
}

// neverFrozen is D8.
func neverFrozen(s *session) {
	for _, route := range modes() {
		b := created("done")
		b.Header = append(b.Header, Line{"Set-Cookie", "session=1"}, Line{"Cache-Control", "private, max-age=5"}, Line{"WWW-Authenticate", "Bearer"}, Line{"Vary", "Accept"})
		o, k := s.op(route, runs(b)), key()
		first := s.do(s.post(1, o, k))
		s.wantFirst(first, http.StatusCreated)
		if first.header.Get("Set-Cookie") == "" {
			s.fail("%v: first answer: Set-Cookie is lost", first.request)
		}
		for worker := 1; worker <= 2; worker++ {
			replay := s.do(s.post(worker, o, k))
			s.wantReplay(replay, first)
			for _, name := range []string{"Set-Cookie", "Www-Authenticate"} {
				if replay.header.Get(name) != "" {
					s.fail("%v: replay: %s: got %q, want none", replay.request, name, replay.header.Get(name))
				}
			}
			if got := replay.header.Get("Cache-Control"); got != "private, max-age=5" {
				s.fail("%v: replay: Cache-Control: got %q, want the handler's own", replay.request, got)
			}
		}
	}
}
