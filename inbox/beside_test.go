package inbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// told are the alerts of a kind, as "said" and "over".
func (b *receiving) told(kind string) (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.alerts {
		if c.Kind == kind {
			all = append(all, map[bool]string{false: "said", true: "over"}[c.Over])
		}
	}
	return all
}

func (b *receiving) expect(kind string, want ...string) {
	b.t.Helper()
	if got := b.told(kind); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("after %v: %v, want %v", time.Now().Format(time.TimeOnly), got, want)
	}
}

func TestASilentSourceIsToldOnceAndClearedByItsNextEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := gitHub("hub")
		s.Silence = 30 * time.Minute
		b := between(t, nil, []Source{s})
		b.start()
		time.Sleep(29 * time.Minute)
		b.expect("silent")
		b.answers(b.push("hub", "1", `{}`), 200)
		time.Sleep(29 * time.Minute)
		b.expect("silent")
		time.Sleep(3 * time.Minute)
		b.expect("silent", "said")
		// A forged request is no sign of life.
		b.answers(b.post("hub", []byte(`{}`), signed("another", "2", "push", []byte(`{}`))...), 401)
		time.Sleep(5 * time.Hour)
		b.expect("silent", "said")
		b.answers(b.push("hub", "3", `{}`), 200)
		time.Sleep(2 * time.Minute)
		b.expect("silent", "said", "over")
		time.Sleep(31 * time.Minute)
		b.expect("silent", "said", "over", "said")
	})
}

func TestASilenceSurvivesARestartAndIsToldByOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := gitHub("hub")
		s.Silence = time.Hour
		db := memory.New(nil)
		shared := func(store.Queue) store.Queue { return db }
		first := between(t, shared, []Source{s})
		first.start()
		second := between(t, shared, []Source{s})
		second.start()
		first.answers(first.push("hub", "1", `{}`), 200)
		time.Sleep(40 * time.Minute)
		for _, b := range []*receiving{first, second} {
			if err := b.stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.expect("silent")
		}
		third, fourth := between(t, shared, []Source{s}), between(t, shared, []Source{s})
		third.start()
		fourth.start()
		time.Sleep(23 * time.Minute)
		if got := len(third.told("silent")) + len(fourth.told("silent")); got != 1 {
			t.Errorf("told %d times 63 minutes after the last event", got)
		}
		if err := errors.Join(third.stop(t.Context()), fourth.stop(t.Context())); err != nil {
			t.Fatal(err)
		}
		fifth := between(t, shared, []Source{s})
		fifth.start()
		time.Sleep(5 * time.Hour)
		fifth.expect("silent")
		fifth.answers(fifth.push("hub", "2", `{}`), 200)
		time.Sleep(2 * time.Minute)
		fifth.expect("silent", "over")
	})
}

// sender is an API that lists events, newest last.
type sender struct {
	t  testing.TB
	mu sync.Mutex
	// events are those it has, by their time.
	events []listedEvent
	skew   time.Duration // of its clock
	size   int           // of a page; 2 if 0
	fail   func(call int) (int, http.Header)
	calls  []string
	auth   []string
}

type listedEvent struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
}

func (s *sender) happens(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, listedEvent{id, time.Now().Add(s.skew).UTC()})
}

// called are the addresses that were called.
func (s *sender) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.calls...)
}

// RoundTrip answers as the API would.
func (s *sender) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.auth = append(s.calls, r.URL.String()), append(s.auth, r.Header.Get("Authorization"))
	out := httptest.NewRecorder()
	if s.fail != nil {
		if status, header := s.fail(len(s.calls)); status != 0 {
			if status < 0 {
				return nil, errors.New("connection reset")
			}
			for name := range header {
				out.Header().Set(name, header.Get(name))
			}
			out.WriteHeader(status)
			return out.Result(), nil
		}
	}
	from, err := time.Parse(time.RFC3339, r.URL.Query().Get("from"))
	if err != nil {
		s.t.Errorf("%s: %v", r.URL, err)
	}
	page := 1
	if _, err := fmt.Sscan(r.URL.Query().Get("page"), &page); err != nil {
		s.t.Errorf("%s: %v", r.URL, err)
	}
	var found []listedEvent
	for _, e := range s.events {
		if !e.At.Before(from) {
			found = append(found, e)
		}
	}
	size := max(s.size, 2)
	found = found[min(size*(page-1), len(found)):min(size*page, len(found))]
	out.Header().Set("Date", time.Now().Add(s.skew).UTC().Format(http.TimeFormat))
	body, err := json.Marshal(map[string]any{"events": append([]listedEvent{}, found...)})
	if err != nil {
		s.t.Error(err)
	}
	_, _ = out.Write(body)
	return out.Result(), nil
}

// polled is a source whose events are listed, and never delivered unless the test does.
func polled(t testing.TB, api http.RoundTripper, ascending bool) Source {
	t.Helper()
	c, err := source.Described{Token: &source.Token{Header: "X-Token"}, ID: []string{"body.id"}, Type: "'happened'"}.Contract()
	if err != nil {
		t.Fatal(err)
	}
	l, err := source.DescribedListing{
		Path: "/v1/events?from={since}", Items: "events", ID: []string{"body.id"}, Type: "'happened'", Time: "body.at",
		Next: "number", Parameter: "page", Pause: 100 * time.Millisecond, Ascending: ascending,
	}.Listing()
	if err != nil {
		t.Fatal(err)
	}
	return Source{
		Name: "api", Contract: c, Types: []string{"*"}, Config: source.Config{Secrets: []source.Secret{source.NewSecret("s", "t0ken")}},
		Polls: []Poll{{
			Listing: l, Base: "https://api.example/base", Client: &http.Client{Transport: api}, Interval: 5 * time.Minute, Overlap: 10 * time.Minute,
			Authorize: func(r *http.Request) error {
				r.Header.Set("Authorization", "Bearer canary")
				return nil
			},
		}},
	}
}

func TestWhatWasNeverDeliveredIsFoundInTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sender{t: t}
		b := between(t, nil, []Source{polled(t, api, false)})
		b.start()
		for i := range 60 {
			api.happens(fmt.Sprint(i))
			if i%3 == 0 { // the others get lost
				api.mu.Lock()
				at, err := json.Marshal(api.events[i])
				api.mu.Unlock()
				if err != nil {
					t.Fatal(err)
				}
				b.answers(b.post("api", at, "X-Token", "t0ken"), 200)
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(10 * time.Minute)
		if n := len(b.entries()); n != 60 {
			t.Errorf("%d entries, want 60", n)
		}
		repaired, duplicates := b.count("repaired", ""), b.count("duplicate", "")
		if repaired != 40 || duplicates > 20 {
			t.Errorf("%d repaired, %d duplicates", repaired, duplicates)
		}
		if api.auth[0] != "Bearer canary" || !strings.HasPrefix(api.called()[0], "https://api.example/base/v1/events?") {
			t.Errorf("call %s with %q", api.called()[0], api.auth[0])
		}
		if shown := b.log.String() + fmt.Sprint(b.sights); strings.Contains(shown, "canary") {
			t.Error("the credentials show")
		}
	})
}

// TestTheCursorMovesAfterTheCommit lets commits, calls and saved positions fail
// at every step, restarts the worker there, and expects every event in the end.
func TestTheCursorMovesAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sender{t: t, size: 10}
		db := &unsteady{Store: memory.New(nil)}
		api.fail = func(call int) (int, http.Header) {
			switch {
			case call%41 == 3:
				return -1, nil
			case call%61 == 5:
				return 500, nil
			}
			return 0, nil
		}
		listed := polled(t, api, true)
		listed.Polls[0].Overlap = time.Second // or it would make good what the cursor does wrong
		b := between(t, func(store.Queue) store.Queue { return db }, []Source{listed})
		b.start()
		n := 0
		for round := range 300 {
			for range 1 + round%4 {
				api.happens(fmt.Sprint(n))
				n++
			}
			time.Sleep(2 * time.Minute)
			if round%17 == 16 {
				if err := b.stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				b = between(t, func(store.Queue) store.Queue { return db }, []Source{listed})
				b.start()
			}
		}
		db.steady()
		api.mu.Lock()
		api.fail = nil
		api.mu.Unlock()
		time.Sleep(3 * time.Hour)
		b.store = db.Store
		if got := len(b.entries()); got != n {
			t.Errorf("%d entries, want %d", got, n)
		}
		if db.failures < 20 {
			t.Errorf("only %d failures: the test proves little", db.failures)
		}
	})
}

// unsteady is a store of which many a call fails, before or after its work.
type unsteady struct {
	*memory.Store
	mu       sync.Mutex
	calls    int
	failures int
	over     bool
}

func (u *unsteady) steady() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
}

// fails says whether this call fails, and whether its work is done all the same.
func (u *unsteady) fails() (fails, done bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
	if u.over || u.calls%5 != 0 && u.calls%8 != 0 {
		return false, true
	}
	u.failures++
	return true, u.failures%3 == 0
}

func (u *unsteady) Append(ctx context.Context, in store.Arrival) (said []store.Appended, err error) {
	fails, done := u.fails()
	if done {
		said, err = u.Store.Append(ctx, in)
	}
	if fails {
		return nil, store.ErrUnavailable
	}
	return said, err
}

func (u *unsteady) SavePosition(ctx context.Context, name, worker, value string, lease time.Duration) error {
	fails, done := u.fails()
	if done {
		if err := u.Store.SavePosition(ctx, name, worker, value, lease); err != nil {
			return err
		}
	}
	if fails {
		return store.ErrUnavailable
	}
	return nil
}

func TestAReadingThatWasBrokenOffGoesOnWhereItStood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sender{t: t}
		for i := range 20 {
			api.happens(fmt.Sprint(i))
		}
		api.fail = func(call int) (int, http.Header) {
			if call == 6 {
				return 503, http.Header{"Retry-After": {"240"}}
			}
			return 0, nil
		}
		b := between(t, nil, []Source{polled(t, api, false)})
		b.start()
		time.Sleep(time.Minute)
		if n := len(b.entries()); n != 10 {
			t.Errorf("%d entries after 5 pages", n)
		}
		time.Sleep(11 * time.Minute) // the interval doubles after an error
		if n := len(b.entries()); n != 20 {
			t.Errorf("%d entries in the end", n)
		}
		if !strings.Contains(api.called()[6], "page=6") {
			t.Errorf("it went on with %s", api.called()[6])
		}
	})
}

func TestOneWorkerReadsAListAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sender{t: t}
		db := memory.New(nil)
		var all []*receiving
		for range 3 {
			b := between(t, func(store.Queue) store.Queue { return db }, []Source{polled(t, api, false)})
			b.start()
			all = append(all, b)
		}
		time.Sleep(time.Hour)
		if n := len(api.called()); n < 11 || n > 16 {
			t.Errorf("%d calls in an hour, want one in about 5 minutes", n)
		}
		// The one that reads stops; another goes on.
		calls := len(api.called())
		for _, b := range all[:2] {
			if err := b.stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		api.happens("late")
		time.Sleep(30 * time.Minute)
		if len(api.called()) == calls {
			t.Error("nobody reads any longer")
		}
		all[2].store = db
		if n := len(all[2].entries()); n != 1 {
			t.Errorf("%d entries", n)
		}
	})
}

func TestAClockThatIsOffLosesNothing(t *testing.T) {
	for _, skew := range []time.Duration{-9 * time.Minute, 9 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			api := &sender{t: t, skew: skew}
			b := between(t, nil, []Source{polled(t, api, false)})
			b.start()
			for i := range 30 {
				api.happens(fmt.Sprint(i))
				time.Sleep(time.Minute)
			}
			time.Sleep(20 * time.Minute)
			if n := len(b.entries()); n != 30 {
				t.Errorf("clock off by %v: %d entries", skew, n)
			}
		})
	}
}

func TestAListThatCannotBeReadIsToldAndLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sender{t: t}
		api.fail = func(int) (int, http.Header) { return 401, nil }
		b := between(t, nil, []Source{polled(t, api, false)})
		b.start()
		time.Sleep(50 * time.Minute)
		b.expect("silent")
		calls := len(api.called())
		time.Sleep(6 * time.Hour)
		b.expect("silent", "said")
		if n := len(api.called()) - calls; n > 9 {
			t.Errorf("%d calls in six hours of failing", n)
		}
		api.mu.Lock()
		api.fail = nil
		api.mu.Unlock()
		time.Sleep(2 * time.Hour)
		b.expect("silent", "said", "over")
	})
}

func TestAListCannotSendItsReaderElsewhere(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{polled(t, &sender{t: t}, false)})
	p := b.beside.pollers[0]
	for address, want := range map[string]string{
		"/v1/x?y=1": "https://api.example/base/v1/x?y=1", "https://api.example/base/2": "https://api.example/base/2",
		"//evil.example/x": "", "https://evil.example/x": "", "http://api.example/x": "", "https://api.example@evil.example/": "",
		"https://user@api.example/": "", "https://api.example:444/": "", "x": "", "": "",
	} {
		if got, err := p.address(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", address, got, err)
		}
	}
}

func TestAnAnswerOverTheLimitIsNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := polled(t, roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(make([]byte, 2000)))}, nil
		}), false)
		s.Polls[0].AnswerLimit = 1000
		b := between(t, nil, []Source{s})
		if err := b.beside.pollers[0].round(t.Context()); !errors.Is(err, ErrTooLarge) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFaultsOfPollsAreReportedAllAtOnce(t *testing.T) {
	t.Parallel()
	s := gitHub("hub")
	s.Polls = []Poll{{Name: "a b", Base: "ftp://x", Interval: -1}, {}, {}}
	_, err := newReceiver(&failing{}, []Source{s}, []want{{name: "e"}}, nil)
	for _, want := range []string{"name:", "listing:", "client:", "base:", "interval:", "keeps no positions", "named twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("says nothing of %q: %v", want, err)
		}
	}
}

func TestAnUnacceptedTypeOfAListIsNoCaseForAPerson(t *testing.T) {
	t.Parallel()
	s := nuvemshop("shop")
	s.Types = []string{"order/paid"}
	b := between(t, nil, []Source{s})
	page, err := source.NuvemshopOrders("1").Read(source.Call{}, source.Answer{Status: 200, Body: []byte(`[{"id":5,"created_at":"2026-01-02T03:04:05Z","paid_at":"2026-01-02T03:05:00Z","updated_at":"2026-01-02T03:05:00Z"}]`)})
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := b.Admit(t.Context(), "shop", page.Items...)
	if err != nil || receipt != (Receipt{New: 1, Ignored: 2}) || len(b.quarantined()) != 0 {
		t.Errorf("%+v, %v", receipt, err)
	}
	if _, err := b.Admit(t.Context(), "nobody"); err == nil {
		t.Error("an unknown source is taken")
	}
}
