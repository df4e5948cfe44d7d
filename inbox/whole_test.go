package inbox

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/source"
)

// deliver sends a request to a source of a worker and returns the status.
func (m *member[Tx]) deliver(t testing.TB, name, body string, header ...string) int {
	t.Helper()
	in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/in/"+name, bytes.NewReader([]byte(body)))
	for i := 0; i+1 < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	out := httptest.NewRecorder()
	m.Receiver().Handler(name).ServeHTTP(out, in)
	return out.Code
}

// shop is a store of Nuvemshop with one order.
type shop struct {
	mu      sync.Mutex
	version int
	fetched int
}

func (s *shop) order() []byte {
	return fmt.Appendf(nil, `{"id":5,"created_at":"2026-01-01T00:00:00+0000","updated_at":"2026-01-02T03:04:%02d+0000"}`, s.version)
}

func (s *shop) fetch(context.Context, *Event, string) (int, string, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetched++
	return 200, "application/json", s.order(), nil
}

func (s *shop) list(t testing.TB) []source.Item {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := source.NuvemshopOrders("1")
	page, err := l.Read(source.Call{}, source.Answer{Status: 200, Body: append(append([]byte("["), s.order()...), ']')})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

func (s *shop) changes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
}

func hintAndList[Tx any](b *bed[Tx]) {
	api := &shop{version: 1}
	s := nuvemshop("shop")
	s.Types, s.Fetch = []string{"order/updated"}, api.fetch
	seen := func(ctx context.Context, tx Tx, e *Event) error {
		n, err := b.get(ctx, tx, e.Version)
		if err != nil {
			return err
		}
		times, _ := strconv.Atoi(n)
		return b.set(ctx, tx, e.Version, strconv.Itoa(times+1))
	}
	m := b.start(b.worker(b.quick(), nil, []Source{s}, Effect[Tx]{Name: "order.v1", OrderBy: func(e *Event) ([]string, error) { return e.Subject, nil }, Handle: seen}))
	hint := func() {
		b.Helper()
		const body = `{"store_id":1,"event":"order/updated","id":5}`
		sum := strings.TrimPrefix(signed(gitHubSecret, "", "", []byte(body))[1], "sha256=")
		if status := m.deliver(b, "shop", body, "X-Linkedstore-Hmac-Sha256", sum); status != 200 {
			b.Fatalf("hint: %d", status)
		}
	}
	happened := func(versions ...int) {
		b.Helper()
		b.eventually("each version took effect", func() bool { return len(b.rows(b.T)) == len(versions) })
		for _, v := range versions {
			if got := b.rows(b.T)[fmt.Sprintf("2026-01-02T03:04:%02d+0000", v)]; got != "1" {
				b.Errorf("version %d took effect %q times: %v", v, got, b.rows(b.T))
			}
		}
	}
	hint()
	happened(1)
	receipt, err := m.Receiver().Admit(b.Context(), "shop", api.list(b)...)
	if err != nil || receipt.New != 0 || receipt.Duplicates != 1 {
		b.Fatalf("the list brings what the hint brought: %+v, %v", receipt, err)
	}
	// The same bytes say that it changed again.
	api.changes()
	hint()
	happened(1, 2)
	// Its webhook is lost, and the list finds it; the hint comes late.
	api.changes()
	if receipt, err = m.Receiver().Admit(b.Context(), "shop", api.list(b)...); err != nil || receipt.New != 1 || b.count("repaired") != 1 {
		b.Fatalf("the list finds what was lost: %+v, %v", receipt, err)
	}
	happened(1, 2, 3)
	before := api.fetched
	hint()
	b.eventually("the late hint was fetched", func() bool {
		api.mu.Lock()
		defer api.mu.Unlock()
		return api.fetched > before
	})
	b.settled()
	happened(1, 2, 3)
}

func delivered[Tx any](b *bed[Tx]) {
	release := make(chan struct{})
	first := true
	app := serve(b, func(w http.ResponseWriter, _ *http.Request) {
		if first {
			first = false
			<-release
			panic(http.ErrAbortHandler) // it may have happened
		}
	})
	run, err := Deliver(DeliverOptions{URL: app.URL, Client: app.Client()})
	if err != nil {
		b.Fatal(err)
	}
	m := b.start(b.worker(b.quick(), nil, []Source{gitHub("hub")}, Effect[Tx]{
		Name: "send.v1", Run: run, Unknown: unavez.Retry, OrderBy: func(*Event) ([]string, error) { return []string{"one"}, nil },
		Retry: Retry{First: 1e6, Longest: 1e6},
	}))
	send := func(id string) {
		body := `{"id":"` + id + `"}`
		if status := m.deliver(b, "hub", body, signed(gitHubSecret, id, "push", []byte(body))...); status != 200 {
			b.Errorf("%s: %d", id, status)
		}
	}
	send("1")
	b.eventually("the first is under way", func() bool { return app.count() == 1 })
	var all sync.WaitGroup
	for range 20 { // repeated while it is being worked on: success at once
		all.Go(func() { send("1") })
	}
	send("2")
	all.Wait()
	close(release)
	b.eventually("both have ended", func() bool { return b.count("completed") == 2 })
	for range 5 {
		send("1")
	}
	b.settled()
	app.mu.Lock()
	defer app.mu.Unlock()
	var got []string
	for i, r := range app.arrived {
		got = append(got, r.Header.Get("Unavez-Event")+" attempt "+r.Header.Get("Unavez-Attempt"))
		if key := r.Header.Get("Idempotency-Key"); i == 1 && key != app.arrived[0].Header.Get("Idempotency-Key") || i == 2 && key == app.arrived[0].Header.Get("Idempotency-Key") {
			b.Errorf("request %d has the key %s", i, key)
		}
	}
	if want := "[1 attempt 1 1 attempt 2 2 attempt 1]"; fmt.Sprint(got) != want {
		b.Errorf("requests %v, want %v", got, want)
	}
	if b.count("duplicate") != 25 {
		b.Errorf("%d duplicates", b.count("duplicate"))
	}
}
