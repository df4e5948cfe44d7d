package conform

import (
	"bytes"
	"net/http"
)

// changedBody is case 25.
func changedBody(s *session) {
	o, k := s.op(RoutePlain, ok()), key()
	first := s.do(s.post(1, o, k))
	s.wantFirst(first, http.StatusCreated)
	for worker := 1; worker <= 2; worker++ {
		q := s.post(worker, o, k)
		q.body = append(bytes.Clone(q.body), ' ')
		s.wantProblem(s.do(q), countMismatch, http.StatusUnprocessableEntity)
	}
	s.wantReplay(s.do(s.post(1, o, k)), first)
	s.wantReplay(s.do(s.post(2, o, k)), first)
	s.wantCount(o, 1, 1)
}

// bodies posts the first body, and then wants each of same to be a replay and
// each of other a mismatch.
func (s *session) bodies(route, body string, same, other []string) {
	o, k := s.op(route, ok()), key()
	q := s.post(1, o, k).with("Content-Type", "application/json")
	q.body = []byte(body)
	first := s.do(q)
	s.wantFirst(first, http.StatusCreated)
	for _, text := range other {
		q.body = []byte(text)
		a := s.do(q)
		if a.status != http.StatusUnprocessableEntity {
			s.fail("%v: body %s after %s: got %v, want 422", q, text, body, a)
		}
		s.wantProblem(a, countMismatch, http.StatusUnprocessableEntity)
	}
	for i, text := range same {
		q.base, q.body = s.base(1+i%2), []byte(text)
		a := s.do(q)
		if a.header.Get(headerReplayed) == "" {
			s.fail("%v: body %s after %s: got %v, want a replay", q, text, body, a)
		}
		s.wantReplay(a, first)
	}
	s.wantCount(o, 1, 1)
}

// canonicalJSON is case 26.
func canonicalJSON(s *session) {
	const body = `{"amount":1500,"to":"c-1","tags":["a","b"]}`
	other := []string{`{ "to": "c-1", "tags": ["a", "b"], "amount": 1500 }`}
	s.bodies(RouteJSON, body,
		append(other, body, "{\"to\":\"c-\\u0031\",\n\t\"amount\":1.5e3,\"tags\":[\"a\",\"b\"]}"),
		[]string{`{"amount":1501,"to":"c-1","tags":["a","b"]}`, `{"amount":1500,"to":"c-1","tags":["b","a"]}`, `{"amount":"1500","to":"c-1","tags":["a","b"]}`})
	s.bodies(RouteJSON, `{"n":9007199254740993}`, nil, []string{`{"n":9007199254740992}`})
	s.bodies(RoutePlain, body, []string{body}, other)
}

// excludedMember is case 28.
func excludedMember(s *session) {
	s.bodies(RouteExclude, `{"amount":1500,"meta":{"sentAt":"10:00","by":"web"}}`,
		[]string{`{"amount":1500,"meta":{"sentAt":"10:01","by":"web"}}`, `{"meta":{"by":"web"},"amount":1500}`},
		[]string{
			`{"amount":1501,"meta":{"sentAt":"10:00","by":"web"}}`, `{"amount":1500,"meta":{"sentAt":"10:00","by":"app"}}`,
			`{"amount":1500,"sentAt":"10:00","meta":{"by":"web"}}`,
		})
}

// otherQuery is case 29.
func otherQuery(s *session) {
	o, k := s.op(RoutePlain, ok()), key()
	first := s.do(s.post(1, o.at("?to=alice"), k))
	s.wantFirst(first, http.StatusCreated)
	for _, query := range []string{"?to=mallory", "?to=alice&to=mallory", "", "?to=Alice"} {
		s.wantProblem(s.do(s.post(1, o.at(query), k)), countMismatch, http.StatusUnprocessableEntity)
	}
	s.wantReplay(s.do(s.post(2, o.at("?to=alice"), k)), first)

	k = key()
	first = s.do(s.post(1, o.at("?a=1&b=2"), k))
	s.wantFirst(first, http.StatusCreated)
	s.wantReplay(s.do(s.post(2, o.at("?b=2&a=1"), k)), first)
	s.wantProblem(s.do(s.post(1, o.at("?a=2&b=1"), k)), countMismatch, http.StatusUnprocessableEntity)
	s.wantCount(o, 2, 2)
}

// otherPath is case 30.
func otherPath(s *session) {
	base, k := s.op(RoutePlain, ok()), key()
	one, two := base.at("/a/1/refund"), base.at("/a/2/refund")
	s.plan(one, ok())
	s.plan(two, ok())
	first := s.do(s.post(1, one, k))
	s.wantFirst(first, http.StatusCreated)
	s.wantProblem(s.do(s.post(1, two, k)), countMismatch, http.StatusUnprocessableEntity)
	s.wantProblem(s.do(s.post(2, two, k)), countMismatch, http.StatusUnprocessableEntity)
	s.wantRuns(two, 0)
	s.wantReplay(s.do(s.post(2, one, k)), first)
	s.wantCount(one, 1, 1)
}

// twoTenants is case 32, and two principals of one tenant.
func twoTenants(s *session) {
	o, k := s.op(RoutePlain, runs(created("for a"), created("for b"), created("for c"))), key()
	callers := []string{"Bearer " + s.principal("") + "@acme", "Bearer " + s.principal("") + "@globex", "Bearer " + s.principal("-2") + "@acme"}
	firsts := make([]*answer, len(callers))
	for i, caller := range callers {
		firsts[i] = s.do(s.post(1, o, k).with("Authorization", caller))
		s.wantFirst(firsts[i], http.StatusCreated)
	}
	for i, caller := range callers {
		s.wantReplay(s.do(s.post(2, o, k).with("Authorization", caller)), firsts[i])
	}
	if got, want := string(firsts[1].body), "for b"; got != want {
		s.fail("%v: the second tenant's own answer: got %q, want %q", firsts[1].request, got, want)
	}
	s.wantCount(o, 3, 3)
}

// noScope is case 33.
func noScope(s *session) {
	s.allow(http.StatusInternalServerError)
	for _, route := range modes() {
		o, k := s.op(route, ok()), key()
		for _, caller := range []string{"", "Bearer ", "Bearer @acme", "Bearer " + s.principal("") + "@", "Bearer @"} {
			q := s.post(1, o, k).with("Authorization", caller)
			if caller == "" {
				q.header.Del("Authorization")
			}
			s.wantStatus(s.do(q), http.StatusUnauthorized, http.StatusInternalServerError)
		}
		s.wantRuns(o, 0)
	}
}

// revokedCaller is case 35.
func revokedCaller(s *session) {
	o, k := s.op(RouteHook, ok()), key()
	first := s.do(s.post(1, o, k))
	s.wantFirst(first, http.StatusCreated)
	who := PathRevoke + s.principal("")
	s.control(http.MethodPut, who, nil, nil)
	for worker := 1; worker <= 2; worker++ {
		s.wantProblem(s.do(s.post(worker, o, k)), kindForbidden, http.StatusForbidden)
	}
	s.control(http.MethodDelete, who, nil, nil)
	s.wantReplay(s.do(s.post(1, o, k)), first)
	s.wantReplay(s.do(s.post(2, o, k)), first)
	s.wantCount(o, 1, 1)
	s.mu.Lock()
	s.lost = true // the engine had counted a replay before the hook refused it
	s.mu.Unlock()
}

// otherMethodOrType is the rest of D5.
func otherMethodOrType(s *session) {
	o, k := s.op(RoutePlain, ok()), key()
	first := s.do(s.post(1, o, k))
	s.wantFirst(first, http.StatusCreated)
	q := s.post(1, o, k)
	q.method = http.MethodPatch
	s.wantProblem(s.do(q), countMismatch, http.StatusUnprocessableEntity)
	s.wantProblem(s.do(s.post(1, o, k).with("Content-Type", "text/plain")), countMismatch, http.StatusUnprocessableEntity)
	s.wantReplay(s.do(s.post(2, o, k)), first)
	s.wantCount(o, 1, 1)
}
