package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const order1 = `{"amount":3000,"currency":"BRL","reference":"order-1"}`

// sandbox is a gateway behind a real server.
type sandbox struct {
	*Gateway
	t      *testing.T
	url    string
	client *http.Client
}

func setup(t *testing.T, opts *Options) *sandbox {
	t.Helper()
	g := New(opts)
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		g.Close()
		server.Close()
	})
	// One call is one call on the wire: on a reused connection that dies,
	// net/http sends a request with an Idempotency-Key again by itself.
	transport := &http.Transport{DisableKeepAlives: true}
	return &sandbox{Gateway: g, t: t, url: server.URL, client: &http.Client{Transport: transport}}
}

// request makes a call to the API; headers are name, value, name, value.
func request(t *testing.T, method, url, body string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	return r
}

// call gives status, body and header, or status 0 when there was no answer.
func (s *sandbox) call(method, path, body string, headers ...string) (int, string, http.Header) {
	s.t.Helper()
	response, err := s.client.Do(request(s.t, method, s.url+path, body, headers...))
	if err != nil {
		return 0, "", nil
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(answer), response.Header
}

// events of the log, without arrivals.
func (s *sandbox) events() []Event {
	var events []Event
	for _, e := range s.Log() {
		if e.Event != Arrived {
			events = append(events, e.Event)
		}
	}
	return events
}

func TestAKeyChargesOnceAndGetsItsFirstAnswer(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	status, first, header := s.call("POST", "/charges", order1, "Idempotency-Key", "k1")
	if want := `{"id":"ch_1","amount":3000,"currency":"BRL","reference":"order-1"}` + "\n"; status != 201 || first != want {
		t.Fatalf("first: got %d %s, want 201 %s", status, first, want)
	}
	if header.Get("Idempotent-Replayed") != "" {
		t.Error("the first answer says that it is a replay")
	}
	status, second, header := s.call("POST", "/charges", order1, "Idempotency-Key", "k1")
	if status != 201 || second != first || header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("second: got %d %s replayed=%q, want the first answer, marked", status, second, header.Get("Idempotent-Replayed"))
	}
	if status, _, _ := s.call("POST", "/charges", strings.Replace(order1, "3000", "3001", 1), "Idempotency-Key", "k1"); status != 422 {
		t.Errorf("same key, other payload: got %d, want 422", status)
	}
	if got, want := s.events(), []Event{Charged, Duplicate, Mismatched}; !slices.Equal(got, want) {
		t.Errorf("log: got %v, want %v", got, want)
	}
	if status, body, _ := s.call("GET", "/charges/k1", ""); status != 200 || body != first {
		t.Errorf("probe by key: got %d %s, want the charge", status, body)
	}
	if status, _, _ := s.call("GET", "/charges/k2", ""); status != 404 {
		t.Errorf("probe of an unused key: got %d, want 404", status)
	}
}

func TestWithoutKeysEachCallCharges(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*Options{"no key sent": nil, "keys ignored": {IgnoreKeys: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, opts)
			var header []string
			if opts != nil {
				header = []string{"Idempotency-Key", "k1"}
			}
			for range 2 {
				if status, _, _ := s.call("POST", "/charges", order1, header...); status != 201 {
					t.Fatalf("got %d, want 201", status)
				}
			}
			if got, want := s.events(), []Event{Charged, Charged}; !slices.Equal(got, want) {
				t.Errorf("log: got %v, want %v", got, want)
			}
			_, body, _ := s.call("GET", "/charges?reference=order-1", "")
			var found struct{ Charges []Charge }
			if err := json.Unmarshal([]byte(body), &found); err != nil || len(found.Charges) != 2 || found.Charges[0].ID == found.Charges[1].ID {
				t.Errorf("probe by reference: got %s (%v), want two charges", body, err)
			}
			if status, _, _ := s.call("GET", "/charges/k1", ""); status != 404 {
				t.Errorf("probe by key: got %d, want 404", status)
			}
		})
	}
}

func TestOverlappingCallsWithOneKeyChargeOnce(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if status, _, _ := s.call("POST", "/charges", order1, "Idempotency-Key", "k1"); status != 201 {
				t.Errorf("got %d, want 201", status)
			}
		})
	}
	wg.Wait()
	events := s.events()
	slices.Sort(events)
	if len(events) != 30 || events[0] != Charged || events[1] != Duplicate {
		t.Errorf("log: got %v, want one charge and 29 duplicates", events)
	}
}

func TestEachBehaviourDoesWhatItSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind          Kind
		status, again int     // of the call, and of the next one with the same key
		events        []Event // of both
	}{
		{Normal, 201, 201, []Event{Charged, Duplicate}},
		{LostAnswer, 0, 201, []Event{Charged, Duplicate}},
		{Slow, 201, 201, []Event{Charged, Duplicate}},
		{Refuse, 402, 402, []Event{Refused, Duplicate}},
		{FailAfter, 500, 201, []Event{Charged, Duplicate}},
		{FailBefore, 503, 201, []Event{Failed, Charged}},
	} {
		both := func(t *testing.T, s *sandbox, headers ...string) {
			t.Helper()
			headers = append(headers, "Idempotency-Key", "k1")
			first, _, _ := s.call("POST", "/charges", order1, headers...)
			second, _, _ := s.call("POST", "/charges", order1, "Idempotency-Key", "k1")
			if first != c.status || second != c.again || !slices.Equal(s.events(), c.events) {
				t.Errorf("got %d, %d, %v; want %d, %d, %v", first, second, s.events(), c.status, c.again, c.events)
			}
		}
		t.Run(string(c.kind), func(t *testing.T) {
			t.Parallel()
			s := setup(t, nil)
			both(t, s, BehaviourHeader, string(c.kind))
		})
		t.Run(string(c.kind)+" by plan", func(t *testing.T) {
			t.Parallel()
			s := setup(t, nil)
			if status, body, _ := s.call("PUT", "/plan", fmt.Sprintf(`[{"kind":%q},{}]`, c.kind)); status != 204 {
				t.Fatalf("plan: got %d %s, want 204", status, body)
			}
			both(t, s)
		})
	}
}

func TestASlowCallChargesAlthoughItsCallerHasGone(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	release := make(chan struct{})
	if err := s.Plan(Behaviour{Kind: Slow, Until: release}); err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	r := request(t, "POST", s.url+"/charges", order1).WithContext(ctx)
	go func() {
		response, err := s.client.Do(r)
		if err == nil {
			response.Body.Close()
		}
		gone <- err
	}()
	holds := func(events ...Event) {
		t.Helper()
		limited, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := s.Await(limited, func(log []Entry) bool { return len(log) == len(events) }); err != nil {
			t.Fatal(err)
		}
		for i, e := range s.Log() {
			if e.Event != events[i] || e.Call != 1 {
				t.Errorf("entry %d: got %s of call %d, want %s of call 1", i, e.Event, e.Call, events[i])
			}
		}
	}
	holds(Arrived)
	hangUp()
	if err := <-gone; err == nil {
		t.Fatal("the caller got an answer")
	}
	close(release)
	holds(Arrived, Charged)
}

func TestClosingGivesSlowCallsUp(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	go func() {
		_ = s.Await(t.Context(), func(log []Entry) bool { return len(log) == 1 }) // the test's end ends it too
		s.Close()
	}()
	status, _, _ := s.call("POST", "/charges", order1, BehaviourHeader, "slow", DelayHeader, "1h")
	if want := []Event{Failed}; status != 503 || !slices.Equal(s.events(), want) {
		t.Errorf("got %d, %v; want 503, %v", status, s.events(), want)
	}
}

func TestReadsLagBehindByTheReadDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(&Options{ReadDelay: time.Minute})
		serve := func(method, target, body string, headers ...string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, request(t, method, target, body, headers...))
			return w
		}
		began := time.Now()
		serve("POST", "/charges", order1, "Idempotency-Key", "k1", BehaviourHeader, "slow", DelayHeader, "3s")
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the slow call took %v, want 3s", took)
		}
		shown := func() (byKey int, byReference bool) {
			return serve("GET", "/charges/k1", "").Code, strings.Contains(serve("GET", "/charges?reference=order-1", "").Body.String(), "ch_1")
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if byKey, byReference := shown(); byKey != 404 || byReference {
			t.Errorf("before the delay has passed: got %d, %v; want 404, false", byKey, byReference)
		}
		time.Sleep(time.Nanosecond)
		if byKey, byReference := shown(); byKey != 200 || !byReference {
			t.Errorf("after it: got %d, %v; want 200, true", byKey, byReference)
		}
	})
}

func TestTheLogSaysWhenAndWhat(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	before := time.Now()
	s.call("POST", "/charges", order1, "Idempotency-Key", "k1")
	s.call("GET", "/charges?reference=order-1", "")
	_, body, _ := s.call("GET", "/log", "")
	var log []Entry
	if err := json.Unmarshal([]byte(body), &log); err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Call: 1, Event: Arrived, Key: "k1", Reference: "order-1", Amount: 3000, Currency: "BRL"},
		{Call: 1, Event: Charged, Key: "k1", Reference: "order-1", Amount: 3000, Currency: "BRL", Charge: "ch_1"},
		{Call: 2, Event: Probed, Reference: "order-1", Charge: "ch_1"},
	}
	for i := range log {
		if log[i].Time.Before(before.Round(0)) || log[i].Time.After(time.Now()) {
			t.Errorf("entry %d: time %v is not within the test", i, log[i].Time)
		}
		log[i].Time = time.Time{}
	}
	if !slices.Equal(log, want) {
		t.Errorf("got %+v, want %+v", log, want)
	}
}

func TestWhatIsNoChargeIsRefusedAndChargesNothing(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	for _, body := range []string{
		``, `[]`, `{`, order1 + order1, `{"amount":3000,"currency":"BRL","reference":"order-1","tip":1}`,
		strings.Replace(order1, "3000", "0", 1), strings.Replace(order1, "3000", "-1", 1), strings.Replace(order1, "3000", "1.5", 1),
		strings.Replace(order1, "BRL", "BR", 1), strings.Replace(order1, "order-1", "", 1),
		strings.Replace(order1, "order-1", strings.Repeat("x", maxBody), 1),
	} {
		if status, _, _ := s.call("POST", "/charges", body, "Idempotency-Key", "k1"); status != 400 {
			t.Errorf("%.80s: got %d, want 400", body, status)
		}
	}
	for _, headers := range [][]string{{BehaviourHeader, "odd"}, {DelayHeader, "soon"}, {BehaviourHeader, "slow", DelayHeader, "2h"}, {DelayHeader, "-1s"}} {
		if status, _, _ := s.call("POST", "/charges", order1, headers...); status != 400 {
			t.Errorf("%v: got %d, want 400", headers, status)
		}
	}
	for _, plan := range []string{``, `{}`, `[{"kind":"odd"}]`, `[{"delay":"soon"}]`, `[{"kind":1}]`} {
		if status, _, _ := s.call("PUT", "/plan", plan); status != 400 {
			t.Errorf("plan %s: got %d, want 400", plan, status)
		}
	}
	if status, _, _ := s.call("GET", "/charges", ""); status != 400 {
		t.Errorf("probe without reference: got %d, want 400", status)
	}
	if i := slices.IndexFunc(s.Log(), func(e Entry) bool { return e.Event != Arrived && e.Event != Invalid }); i >= 0 {
		t.Errorf("log: got %+v, want only arrivals and refusals", s.Log()[i])
	}
}
