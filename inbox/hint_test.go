package inbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// shopAPI is a sender's API with one product.
type shopAPI struct {
	mu      sync.Mutex
	status  int
	version string
	stock   int
	fetches int
	fail    error
}

func (s *shopAPI) change(version string, stock int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.stock = version, stock
}

func (s *shopAPI) fetch(_ context.Context, _ *Event, path string) (int, string, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetches++
	if s.fail != nil {
		return 0, "", nil, s.fail
	}
	if path != "/v1/7/products/42" {
		return 0, "", nil, fmt.Errorf("path %q", path)
	}
	return s.status, "application/json", fmt.Appendf(nil, `{"id":42,"updated_at":%q,"stock":%d}`, s.version, s.stock), nil
}

func (s *shopAPI) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches
}

// hinting is a worker with a source that sends hints, and the effect of what is fetched.
func hinting(b *bed[*memory.Tx], api *shopAPI) (*member[*memory.Tx], *diary) {
	d := &diary{}
	contract := source.Nuvemshop()
	s := Source{
		Name: "shop", Contract: contract, Types: []string{"*"}, Fetch: api.fetch,
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("one", "secret")}},
	}
	effect := Effect[*memory.Tx]{
		Name: "stock.v1", OrderBy: func(e *Event) ([]string, error) { return e.Subject, nil },
		Version: func(e *Event) (string, error) { return e.Version, nil },
		Handle: func(_ context.Context, tx *memory.Tx, e *Event) error {
			d.note(e)
			if gone := e.Attributes["gone"]; gone != "" {
				return tx.Put("product", "gone "+gone)
			}
			return tx.Put("product", string(e.Data))
		},
	}
	return b.start(b.worker(quick(), nil, []Source{s}, effect)), d
}

// hint is one delivery of a hint; its bytes never differ.
func (m *member[Tx]) hint(b *bed[Tx]) {
	b.Helper()
	body := []byte(`{"store_id":7,"event":"product/updated","id":42}`)
	items, err := source.Nuvemshop().Read(&source.Request{Method: http.MethodPost, Body: body})
	if err != nil {
		b.Fatal(err)
	}
	if got, err := m.Receiver().Admit(b.Context(), "shop", items...); err != nil || got.New != 1 {
		b.Fatalf("%+v, %v", got, err)
	}
}

func TestHintsOfOneResourceShareAFetch(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		api := &shopAPI{status: 200, version: "2026-01-01T00:00:00+0000", stock: 1}
		m, d := hinting(b, api)
		for n := range 50 {
			m.hint(b)
			api.change(fmt.Sprintf("2026-01-01T00:00:%02d+0000", n+1), n+2)
			b.pass(18 * time.Millisecond)
		}
		b.pass(2 * time.Second)
		synctest.Wait()
		b.settled()
		if n := api.count(); n != 2 {
			t.Errorf("50 hints within a second caused %d fetches, want 2", n)
		}
		if got, want := b.rows(b.T)["product"], `{"id":42,"updated_at":"2026-01-01T00:00:50+0000","stock":51}`; got != want {
			t.Errorf("the product is %s, want %s", got, want)
		}
		if n := len(d.runs); n != 2 {
			t.Errorf("the effect ran %d times, want once for each fetch", n)
		}
		if n := b.count("coalesced"); n != 48 {
			t.Errorf("%d hints were coalesced, want 48", n)
		}

		// A minute later the same bytes are another change.
		b.pass(20 * time.Second)
		api.change("2026-01-01T00:02:00+0000", 99)
		m.hint(b)
		b.pass(time.Second)
		if n := api.count(); n != 3 {
			t.Errorf("%d fetches, want a third", n)
		}
		// Another content under the same version is applied as well, and the same
		// content is not.
		b.pass(20 * time.Second)
		api.change("2026-01-01T00:02:00+0000", 98)
		m.hint(b)
		b.pass(20 * time.Second)
		m.hint(b)
		b.pass(time.Second)
		if got, want := b.rows(b.T)["product"], `{"id":42,"updated_at":"2026-01-01T00:02:00+0000","stock":98}`; got != want {
			t.Errorf("the product is %s, want %s", got, want)
		}
		if n := len(d.runs); n != 4 {
			t.Errorf("the effect ran %d times, want 4", n)
		}
	})
}

func TestHintOfAResourceThatIsGoneTellsSo(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		api := &shopAPI{status: 404}
		m, _ := hinting(b, api)
		m.hint(b)
		b.eventually("it is gone", func() bool { return b.rows(b.T)["product"] == "gone 404" })
	})
}

func TestFetchIsTriedAgainAndGivenUp(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		b.patience = 10 * time.Hour
		api := &shopAPI{fail: errors.New("connection reset")}
		m, d := hinting(b, api)
		m.hint(b)
		tried := 0
		b.eventually("it was tried again", func() bool {
			api.mu.Lock()
			defer api.mu.Unlock()
			if tried = api.fetches; tried >= 3 {
				api.fail, api.status = nil, 422
			}
			return tried >= 3
		})
		b.eventually("it is dead", func() bool { return slices.Contains(b.told(), "dead") })
		if n := api.count(); n != tried+1 {
			t.Errorf("%d fetches behind %d that failed, want one: a 422 is for good", n-tried, tried)
		}
		if len(d.runs) != 0 {
			t.Error("an effect ran")
		}
	})
}

// A fetch that was overtaken by another worker's brings nothing: what it has seen
// may be older.
func TestOvertakenFetchAppendsNothing(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		b.patience = 10 * time.Minute
		slow := &shopAPI{status: 200, version: "2026-01-01T00:00:01+0000", stock: 1}
		fast := &shopAPI{status: 200, version: "2026-01-01T00:00:02+0000", stock: 2}
		inside, release := make(chan struct{}), make(chan struct{})
		var view *mortal[*memory.Tx]
		source := Source{
			Name: "shop", Contract: source.Nuvemshop(), Types: []string{"*"},
			Config: source.Config{Secrets: []source.Secret{source.NewSecret("one", "secret")}},
			Fetch: func(ctx context.Context, e *Event, path string) (int, string, []byte, error) {
				status, kind, body, err := slow.fetch(ctx, e, path)
				close(inside)
				<-release
				return status, kind, body, err
			},
		}
		a := b.worker(quick(), func(inner backend[*memory.Tx]) backend[*memory.Tx] {
			view = mortalOf(inner)
			return view
		}, []Source{source}, Effect[*memory.Tx]{Name: "stock.v1", Handle: func(_ context.Context, tx *memory.Tx, e *Event) error {
			return tx.Put("product", string(e.Data))
		}})
		b.doomed(cast[*memory.Tx]{a, view})
		a.hint(b)
		<-inside
		view.pause()
		hinting(b, fast)
		b.eventually("the other worker has fetched", func() bool {
			return b.rows(b.T)["product"] == `{"id":42,"updated_at":"2026-01-01T00:00:02+0000","stock":2}`
		})
		close(release)
		view.resume()
		b.pass(20 * time.Second)
		rows, err := b.queue.Waiting(b.Context(), nil, store.Place{}, 10)
		if got := b.rows(b.T)["product"]; got != `{"id":42,"updated_at":"2026-01-01T00:00:02+0000","stock":2}` || err != nil || len(rows) != 0 {
			t.Errorf("the product is %s, %d rows, %v", got, len(rows), err)
		}
	})
}
