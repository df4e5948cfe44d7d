package orders

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/sqlite"
)

// shop is the example behind a layer, without a network.
type shop struct {
	t       *testing.T
	db      *sql.DB
	handler http.Handler
}

func open(t *testing.T) *shop {
	t.Helper()
	db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(t.TempDir(), "shop.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(t.Context()); err != nil {
			t.Log(err) // the test's context has ended
		}
	})
	layer, err := httpkey.New(engine, nil, &httpkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), db, nil); err != nil {
		t.Fatalf("a second start: %v", err)
	}
	return &shop{t: t, db: db, handler: s.Handler(layer)}
}

func (s *shop) post(path, key, body string) (int, map[string]any, http.Header) {
	s.t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	return s.do(r)
}

func (s *shop) do(r *http.Request) (int, map[string]any, http.Header) {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	if err != nil {
		s.t.Error(err)
	}
	var value map[string]any
	_ = json.Unmarshal(body, &value) // a plain error has none
	return w.Code, value, w.Header()
}

func (s *shop) count(table string) (n int) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

const good = `{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500},{"sku":"B","quantity":1,"unit_price":1}]}`

func TestAnOrderIsCountedInMinorUnits(t *testing.T) {
	t.Parallel()
	s := open(t)
	status, order, header := s.post("/orders", "k-1", good)
	if status != 201 || order["total"] != 3001.0 || order["state"] != "pending" || header.Get("Location") != "/orders/"+order["id"].(string) {
		t.Errorf("%d %v %v", status, order, header)
	}
	if status, shown, _ := s.do(httptest.NewRequest(http.MethodGet, header.Get("Location"), nil)); status != 200 || shown["total"] != 3001.0 {
		t.Errorf("shown: %d %v", status, shown)
	}
	if status, _, _ := s.do(httptest.NewRequest(http.MethodGet, "/orders/none", nil)); status != 404 {
		t.Errorf("none: %d", status)
	}
}

func TestAFaultyOrderIsRefusedByFieldAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	item := func(text string) string { return `{"customer":"c","currency":"BRL","items":[` + text + `]}` }
	for i, c := range []struct {
		body   string
		status int
		field  string
	}{
		{``, 400, ""},
		{`{`, 400, ""},
		{good + good, 400, ""},
		{`[]`, 422, ""},
		{`{"currency":"BRL","items":[{"sku":"A","quantity":1,"unit_price":1}]}`, 422, "customer"},
		{`{"customer":"c","items":[{"sku":"A","quantity":1,"unit_price":1}]}`, 422, "currency"},
		{`{"customer":"c","currency":"brl","items":[{"sku":"A","quantity":1,"unit_price":1}]}`, 422, "currency"},
		{item(``), 422, "items"},
		{item(strings.TrimSuffix(strings.Repeat(`{"sku":"A","quantity":1,"unit_price":1},`, 101), ",")), 422, "items"},
		{item(`{"quantity":1,"unit_price":1}`), 422, "items[0].sku"},
		{item(`{"sku":"A","quantity":0,"unit_price":1}`), 422, "items[0].quantity"},
		{item(`{"sku":"A","quantity":-1,"unit_price":1}`), 422, "items[0].quantity"},
		{item(`{"sku":"A","quantity":1,"unit_price":-1}`), 422, "items[0].unit_price"},
		{item(`{"sku":"A","quantity":1,"unit_price":15.5}`), 422, "unit_price"},
		{item(`{"sku":"A","quantity":"1","unit_price":1}`), 422, "quantity"},
		{item(`{"sku":"A","quantity":1,"unit_price":1,"colour":"red"}`), 422, "colour"},
		{item(fmt.Sprintf(`{"sku":"A","quantity":2,"unit_price":%d}`, math.MaxInt64/2+1)), 422, "items[0].unit_price"},
		{item(fmt.Sprintf(`{"sku":"A","quantity":1,"unit_price":%d},{"sku":"B","quantity":1,"unit_price":1}`, math.MaxInt64)), 422, "items[1].unit_price"},
		{item(`{"sku":"A","quantity":1,"unit_price":9223372036854775808}`), 422, "unit_price"},
		{`{"customer":"a\u0000b","currency":"BRL","items":[{"sku":"A","quantity":1,"unit_price":1}]}`, 422, "customer"},
		{strings.Replace(good, "c-1", strings.Repeat("x", 101), 1), 422, "customer"},
	} {
		status, problem, header := s.post("/orders", fmt.Sprint("k-", i), c.body)
		if status != c.status || header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%.100s: %d %v", c.body, status, problem)
		}
		if c.field == "" {
			continue
		}
		list, _ := problem["errors"].([]any)
		if len(list) == 0 || !strings.Contains(list[0].(map[string]any)["field"].(string), c.field) {
			t.Errorf("%.100s: %v, want %s", c.body, problem, c.field)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(good))
	r.Header.Set("Idempotency-Key", "form")
	if status, _, _ := s.do(r); status != 415 {
		t.Errorf("without its type: %d", status)
	}
	if n := s.count("orders"); n != 0 {
		t.Errorf("%d orders", n)
	}
}

func TestAReferenceIsOrderedOnceUnderAnyKey(t *testing.T) {
	t.Parallel()
	s := open(t)
	body := strings.Replace(good, `"customer"`, `"reference":"r-1","customer"`, 1)
	if status, order, _ := s.post("/orders", "k-1", body); status != 201 || order["reference"] != "r-1" {
		t.Fatalf("%d %v", status, order)
	}
	if status, problem, _ := s.post("/orders", "k-2", body); status != 409 || !strings.Contains(fmt.Sprint(problem["detail"]), "r-1") {
		t.Errorf("another key: %d %v", status, problem)
	}
	if status, _, header := s.post("/orders", "k-2", body); status != 409 || header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the refusal is not frozen: %d %v", status, header)
	}
	if n := s.count("orders"); n != 1 {
		t.Errorf("%d orders", n)
	}
}

func TestAnOrderIsPaidOnceAndOnlyForward(t *testing.T) {
	t.Parallel()
	s := open(t)
	_, order, _ := s.post("/orders", "k-1", good)
	path := "/orders/" + order["id"].(string) + "/payments"
	for name, c := range map[string]struct {
		path, body string
		status     int
	}{
		"too little":     {path, `{"amount":3000,"currency":"BRL"}`, 422},
		"other currency": {path, `{"amount":3001,"currency":"USD"}`, 422},
		"no amount":      {path, `{"currency":"BRL"}`, 422},
		"negative":       {path, `{"amount":-1,"currency":"BRL"}`, 422},
		"no order":       {"/orders/none/payments", `{"amount":3001,"currency":"BRL"}`, 404},
	} {
		if status, problem, _ := s.post(c.path, name, c.body); status != c.status {
			t.Errorf("%s: %d %v", name, status, problem)
		}
	}
	// Many keys at once: one payment, and a permanent no for the others.
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for i := range 20 {
		wg.Go(func() {
			status, _, _ := s.post(path, fmt.Sprint("pay-", i), `{"amount":3001,"currency":"BRL"}`)
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	wg.Wait()
	if statuses[201] != 1 || statuses[409] != 19 || s.count("payments") != 1 {
		t.Errorf("statuses %v, %d payments", statuses, s.count("payments"))
	}
	if _, shown, _ := s.do(httptest.NewRequest(http.MethodGet, "/orders/"+order["id"].(string), nil)); shown["state"] != "paid" {
		t.Errorf("it is %v", shown["state"])
	}
}

func TestAPauseIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t)
	for text, want := range map[string]int{"1ms": 201, "1h": 400, "-1s": 400, "soon": 400} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(good))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k-"+text)
		r.Header.Set(PauseHeader, text)
		if status, problem, _ := s.do(r); status != want {
			t.Errorf("%s: %d %v", text, status, problem)
		}
	}
}
