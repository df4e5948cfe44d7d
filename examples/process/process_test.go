package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unavez/unavez/internal/testenv"
)

// site is a running example.
type site struct {
	t      *testing.T
	orders *orders
	url    string
}

// everywhere runs a test on empty databases of both kinds.
func everywhere(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			where := filepath.Join(t.TempDir(), "process.db")
			if kind == "postgres" {
				where = testenv.NewDatabase(t)
			}
			test(t, start(t, where))
		})
	}
}

func start(t *testing.T, where string) *site {
	t.Helper()
	o, err := open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(o.routes())
	t.Cleanup(func() {
		h.Close()
		if err := o.close(); err != nil {
			t.Error(err)
		}
	})
	return &site{t, o, h.URL}
}

// reply is what a client sees.
type reply struct {
	code     int
	body     string
	replayed bool
	answer   answer
}

func (s *site) post(path, body string) reply {
	s.t.Helper()
	r, err := http.Post(s.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return reply{}
	}
	return s.take(r)
}

func (s *site) get(path string) reply {
	s.t.Helper()
	r, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.take(r)
}

func (s *site) take(r *http.Response) reply {
	s.t.Helper()
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	out := reply{code: r.StatusCode, body: string(text), replayed: r.Header.Get("Idempotent-Replayed") == "true"}
	if r.Header.Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(text, &out.answer); err != nil {
			s.t.Error(err)
		}
	}
	return out
}

func (s *site) open(name string, total int) {
	s.t.Helper()
	if r := s.post("/orders", fmt.Sprintf(`{"id":%q,"total":%d}`, name, total)); r.code != 201 {
		s.t.Fatalf("opening %s: %+v", name, r)
	}
}

// count asks for one number.
func (s *site) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.orders.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *site) commands() int { return s.count(`SELECT count(*) FROM command`) }

// due is what is left to pay.
func (r reply) due() any { return r.answer.Context.(map[string]any)["due"] }

func TestOneEventAHundredTimesIsOneStep(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		s.open("o-1", 3000)
		const copies = 100
		replies := make([]reply, copies)
		var all sync.WaitGroup
		for i := range replies {
			all.Go(func() { replies[i] = s.post("/orders/o-1/events", `{"id":"p-1","type":"pay","amount":1000}`) })
		}
		all.Wait()
		first := 0
		for i, r := range replies {
			if r.code != 200 || r.body != replies[0].body {
				t.Fatalf("copy %d: %+v, want %+v", i, r, replies[0])
			}
			if !r.replayed {
				first++
			}
		}
		if first != 1 {
			t.Errorf("%d answers are first ones, want 1", first)
		}
		if now := s.get("/orders/o-1"); now.answer.Revision != 2 || now.due() != 2000.0 || s.commands() != 1 {
			t.Errorf("%+v, %d commands; want one step and one receipt", now, s.commands())
		}
	})
}

func TestEventsThatMeetAreStepsInTurn(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		const events = 30
		s.open("o-1", events*100)
		var all sync.WaitGroup
		for i := range events {
			all.Go(func() {
				body := fmt.Sprintf(`{"id":"p-%d","type":"pay","amount":100}`, i)
				for range 2 { // each is sent again
					if r := s.post("/orders/o-1/events", body); r.code != 200 {
						t.Errorf("event %d: %+v", i, r)
					}
				}
			})
		}
		all.Wait()
		now := s.get("/orders/o-1")
		if now.answer.State != "paid" || now.due() != 0.0 || now.answer.Revision != 1+events {
			t.Errorf("%+v; want it paid at revision %d", now, 1+events)
		}
		// A receipt for each, and the stock once.
		if n := s.count(`SELECT count(DISTINCT revision) FROM command`); n != events || s.commands() != events+1 {
			t.Errorf("%d commands of %d revisions", s.commands(), n)
		}
	})
}

// TestLoserOfARevisionStepsAgain lets a second event in between the reading and
// the writing of the first: the first then finds an order that has moved on.
func TestLoserOfARevisionStepsAgain(t *testing.T) {
	t.Parallel()
	// SQLite has one writer, and nothing comes in between.
	s := start(t, testenv.NewDatabase(t))
	s.open("o-1", 3000)
	var reads atomic.Int32
	s.orders.read = func(string) {
		if reads.Add(1) == 1 {
			if r := s.post("/orders/o-1/events", `{"id":"p-2","type":"pay","amount":1000}`); r.code != 200 || r.due() != 2000.0 {
				t.Errorf("the one in between: %+v", r)
			}
		}
	}
	r := s.post("/orders/o-1/events", `{"id":"p-1","type":"pay","amount":2000}`)
	if r.code != 200 || r.answer.State != "paid" || r.due() != 0.0 || r.answer.Revision != 3 {
		t.Errorf("the loser: %+v; want it paid from the fresh snapshot", r)
	}
	if n := reads.Load(); n != 3 {
		t.Errorf("%d snapshots were read, want 3: the loser twice", n)
	}

	// And when the order has ended meanwhile, the loser gets that for an answer.
	s.open("o-2", 3000)
	reads.Store(0)
	s.orders.read = func(name string) {
		if reads.Add(1) == 1 {
			s.post("/orders/o-2/events", `{"id":"c-1","type":"cancel"}`)
		}
	}
	before := s.commands()
	if r := s.post("/orders/o-2/events", `{"id":"p-3","type":"pay","amount":3000}`); r.code != 410 || r.answer.State != "cancelled" || s.commands() != before {
		t.Errorf("paid after it was cancelled: %+v, %d commands more", r, s.commands()-before)
	}
}

func TestWhatTheChartRefusesChangesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		s.open("o-1", 3000)
		if r := s.post("/orders", `{"id":"o-1","total":3000}`); r.code != 201 || !r.replayed {
			t.Errorf("opened again: %+v", r)
		}
		if r := s.post("/orders", `{"id":"o-1","total":1}`); r.code != 422 {
			t.Errorf("opened with another total: %+v", r)
		}
		for body, want := range map[string]int{
			`{"id":"s-1","type":"ship","tracking":"BR1"}`:                         409, // too early
			`{"id":"p-9","type":"pay","amount":5000}`:                             409, // too much
			`{"id":"p-8","type":"pay"}`:                                           422, // no amount
			`{"id":"x-1","type":"xstate.done.state.order.paid"}`:                  422,
			`{"type":"pay","amount":1}`:                                           422,
			`{"id":"b-1","type":"bogus"}`:                                         422,
			`{"id":"p-7"}`:                                                        422,
			`not json`:                                                            400,
			`{"id":"p-6","type":"pay","amount":1e400}`:                            409,
			`{"id":"p-5","type":"pay","amount":` + "-1" + `}`:                     409,
			`{"id":"p-4","type":"pay","amount":"` + strings.Repeat("9", 9) + `"}`: 422,
		} {
			if r := s.post("/orders/o-1/events", body); r.code != want {
				t.Errorf("%s: %+v, want %d", body, r, want)
			}
		}
		if r := s.post("/orders/none/events", `{"id":"p-1","type":"pay","amount":1}`); r.code != 404 {
			t.Errorf("of no order: %+v", r)
		}
		if now := s.get("/orders/o-1"); now.answer.Revision != 1 || s.commands() != 0 {
			t.Errorf("%+v, %d commands; want nothing changed", now, s.commands())
		}

		// What came too early may come again.
		if r := s.post("/orders/o-1/events", `{"id":"p-1","type":"pay","amount":3000}`); r.code != 200 {
			t.Errorf("paid: %+v", r)
		}
		if r := s.post("/orders/o-1/events", `{"id":"s-1","type":"ship","tracking":"BR1"}`); r.code != 200 || r.answer.State != "shipped" {
			t.Errorf("shipped: %+v", r)
		}
		// After the end nothing changes, and the answer stays.
		for i := range 2 {
			if r := s.post("/orders/o-1/events", `{"id":"r-1","type":"refund"}`); r.code != 410 || r.replayed != (i == 1) {
				t.Errorf("after the end: %+v", r)
			}
		}
		if r := s.post("/orders/o-1/events", `{"id":"p-1","type":"pay","amount":1}`); r.code != 422 {
			t.Errorf("an id with other content: %+v", r)
		}
	})
}

// TestEventThatTheLedgerForgotHasItsEffectsOnce is about a duplicate that comes
// after retention and tombstone: the keys of its commands still know it.
func TestEventThatTheLedgerForgotHasItsEffectsOnce(t *testing.T) {
	t.Parallel()
	where := filepath.Join(t.TempDir(), "process.db")
	o, err := open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, orders: o}
	event := `{"id":"p-1","type":"pay","amount":1000}`
	h := httptest.NewServer(o.routes())
	s.url = h.URL
	s.open("o-1", 3000)
	if r := s.post("/orders/o-1/events", event); r.code != 200 {
		t.Fatalf("%+v", r)
	}
	if _, err := o.db.ExecContext(t.Context(), `DELETE FROM unavez_outcome`); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if err := o.close(); err != nil {
		t.Fatal(err)
	}
	again := start(t, where)
	if r := again.post("/orders/o-1/events", event); r.code != 409 || !strings.Contains(r.body, "applied before") {
		t.Errorf("%+v", r)
	}
	if now := again.get("/orders/o-1"); now.answer.Revision != 2 || again.commands() != 1 {
		t.Errorf("%+v, %d commands", now, again.commands())
	}
}
