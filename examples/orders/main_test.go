package main

import (
	"database/sql"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/internal/testenv"
)

const (
	order1 = `{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500},{"sku":"B","quantity":1,"unit_price":250}]}`
	paid1  = `{"amount":3250,"currency":"BRL"}`
)

// server is a shop that serves, in this process or in another.
type server struct {
	t   *testing.T
	url string
}

// ways are the databases and the libraries.
var ways = []string{"sqlite", "pgx", "sql", "gorm"}

// everywhere runs a test on a shop with an empty database, in each of the ways.
func everywhere(t *testing.T, test func(t *testing.T, s server, db *sql.DB)) {
	t.Helper()
	t.Parallel()
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			c := config{store: filepath.Join(t.TempDir(), "orders.db"), with: way, sqlite: &modernc.Driver{}, parcel: parcel}
			if way != "sqlite" {
				c.store = testenv.NewDatabase(t)
			}
			p, err := open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			h := httptest.NewServer(p.handler)
			t.Cleanup(func() {
				h.Close()
				if err := p.close(); err != nil {
					t.Error(err)
				}
			})
			test(t, server{t, h.URL}, look(t, c.store))
		})
	}
}

// look opens a database beside the shop.
func look(t *testing.T, store string) *sql.DB {
	t.Helper()
	name := "sqlite"
	if strings.HasPrefix(store, "postgres") {
		name = "pgx"
	} else {
		store = "file:" + store + "?_pragma=busy_timeout(10000)"
	}
	db, err := sql.Open(name, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // it only looked
	return db
}

// reply is what a client sees.
type reply struct {
	status   int
	body     string
	location string
	replayed bool
}

func (r reply) String() string {
	return fmt.Sprintf("%d %s (location %q, replayed %v)", r.status, strings.TrimSpace(r.body), r.location, r.replayed)
}

// send makes one request, without a key when key is empty. A lost answer has
// status 0.
func (s server) send(method, path, key, body string) reply {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err) // not Fatal: senders run in goroutines of their own
		return reply{}
	}
	r.GetBody = nil // one request is one on the wire, also when a reused connection dies
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Prefer", "wait=30")
	if key != "" {
		r.Header.Set(httpkey.KeyHeader, key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}
	}
	return reply{response.StatusCode, string(got), response.Header.Get("Location"), response.Header.Get(httpkey.ReplayedHeader) == "true"}
}

// count counts rows.
func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTheSameOrderTwiceIsOneOrderAndOneAnswer(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		first := server.send("POST", "/orders", "k1", order1)
		want := reply{
			status:   201,
			body:     `{"id":1,` + strings.TrimPrefix(strings.TrimSuffix(order1, "}"), "{") + `,"total":3250,"state":"pending"}` + "\n",
			location: "/orders/1",
		}
		if first != want {
			t.Fatalf("first: got %v, want %v", first, want)
		}
		want.replayed = true
		if second := server.send("POST", "/orders", "k1", order1); second != want {
			t.Errorf("second: got %v, want %v", second, want)
		}
		// Another way to write the same order is the same order; another order is not.
		if third := server.send("POST", "/orders", "k1", " "+strings.Replace(order1, "1500", "1.5e3", 1)); third != want {
			t.Errorf("same order written differently: got %v, want %v", third, want)
		}
		if other := server.send("POST", "/orders", "k1", strings.Replace(order1, "c-1", "c-2", 1)); other.status != 422 {
			t.Errorf("other order with the same key: got %v, want 422", other)
		}
		if n, m := count(t, db, "orders"), count(t, db, "order_item"); n != 1 || m != 2 {
			t.Errorf("got %d orders with %d items, want 1 with 2", n, m)
		}
		if shown := server.send("GET", first.location, "", ""); shown.status != 200 || shown.body != first.body {
			t.Errorf("shown: got %v, want what was answered", shown)
		}
		if other := server.send("POST", "/orders", "k2", order1); other.status != 201 || other.location != "/orders/2" {
			t.Errorf("other key: got %v, want a second order", other)
		}
	})
}

func TestFiftyAtOnceAreOneOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		replies := make([]reply, 50)
		var wg sync.WaitGroup
		for i := range replies {
			wg.Go(func() { replies[i] = server.send("POST", "/orders", "k1", order1) })
		}
		wg.Wait()
		firsts := 0
		for _, r := range replies {
			if r.status != 201 || r.body != replies[0].body || r.location != "/orders/1" {
				t.Errorf("got %v, want 201 and %s", r, replies[0].body)
			}
			if !r.replayed {
				firsts++
			}
		}
		if n := count(t, db, "orders"); firsts != 1 || n != 1 {
			t.Errorf("got %d first answers and %d orders, want one of each", firsts, n)
		}
	})
}

func TestTheDatabaseRefusesASecondOrderWhenTheLedgerHasForgotten(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		// As if the key had been used longer ago than results and tombstones are kept.
		if _, err := db.ExecContext(t.Context(), `
		insert into orders (placed_as, customer, currency, total, state) values ('k1', 'c-1', 'BRL', 3250, 'paid')`); err != nil {
			t.Fatal(err)
		}
		if got := server.send("POST", "/orders", "k1", order1); got.status != 409 {
			t.Errorf("got %v, want 409", got)
		}
		if n, m := count(t, db, "orders"), count(t, db, "order_item"); n != 1 || m != 0 {
			t.Errorf("got %d orders with %d items, want the old one only", n, m)
		}
	})
}

func TestWhatIsNoOrderIsRefusedAndLeavesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		item := `{"sku":"A","quantity":2,"unit_price":1500}`
		with := func(items ...string) string {
			return `{"customer":"c-1","currency":"BRL","items":[` + strings.Join(items, ",") + `]}`
		}
		most := fmt.Sprint(int64(math.MaxInt64))
		for i, c := range []struct {
			body   string
			status int
		}{
			{``, 400},
			{`{`, 400},
			{`[]`, 400},
			{with(item) + with(item), 400},
			{strings.Replace(with(item), "{", `{"total":1,`, 1), 400},
			{strings.Replace(with(item), "1500", "15.5", 1), 400},
			{strings.Replace(with(item), "1500", most+"0", 1), 400},
			{strings.Replace(with(item), "c-1", "", 1), 422},
			{strings.Replace(with(item), "BRL", "brl", 1), 422},
			{strings.Replace(with(item), "BRL", "R$", 1), 422},
			{with(), 422},
			{with(strings.Split(strings.Repeat(item+";", 100)+item, ";")...), 422},
			{with(strings.Replace(item, `"A"`, `""`, 1)), 422},
			{with(strings.Replace(item, "2", "0", 1)), 422},
			{with(strings.Replace(item, "2", "-2", 1)), 422},
			{with(strings.Replace(item, "1500", "-1", 1)), 422},
			{with(strings.Replace(item, "1500", most, 1)), 422},                                                      // 2 × the largest
			{with(`{"sku":"A","quantity":1,"unit_price":`+most+`}`, `{"sku":"B","quantity":1,"unit_price":1}`), 422}, // the largest + 1
		} {
			key := fmt.Sprintf("k%d", i)
			first := server.send("POST", "/orders", key, c.body)
			if first.status != c.status || first.location != "" {
				t.Errorf("%.100s: got %v, want %d", c.body, first, c.status)
			}
			// The "no" is an outcome too: it is kept.
			if second := server.send("POST", "/orders", key, c.body); second.status != first.status || second.body != first.body || !second.replayed {
				t.Errorf("%.100s: again: got %v, want %v replayed", c.body, second, first)
			}
		}
		if got := server.send("POST", "/orders", "", with(item)); got.status != 400 {
			t.Errorf("without a key: got %v, want 400", got)
		}
		if n, m := count(t, db, "orders"), count(t, db, "order_item"); n != 0 || m != 0 {
			t.Errorf("got %d orders with %d items, want none", n, m)
		}
		if got := server.send("POST", "/orders", "largest", with(`{"sku":"A","quantity":1,"unit_price":`+most+`}`)); got.status != 201 || !strings.Contains(got.body, `"total":`+most) {
			t.Errorf("the largest total: got %v, want 201 and the exact total", got)
		}
	})
}

func TestAnOrderIsPaidOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		placed := server.send("POST", "/orders", "k1", order1)
		for _, c := range []struct {
			key, path, body string
			status          int
		}{
			{"wrong-amount", "/orders/1/payments", `{"amount":3000,"currency":"BRL"}`, 422},
			{"wrong-currency", "/orders/1/payments", `{"amount":3250,"currency":"USD"}`, 422},
			{"other-order", "/orders/1/payments", `{"amount":3250,"currency":"BRL","order":2}`, 400},
			{"no-order", "/orders/2/payments", paid1, 404},
			{"no-id", "/orders/one/payments", paid1, 404},
			{"", "/orders/1/payments", paid1, 400},
		} {
			if got := server.send("POST", c.path, c.key, c.body); got.status != c.status {
				t.Errorf("%s: got %v, want %d", c.key, got, c.status)
			}
		}
		if shown := server.send("GET", "/orders/1", "", ""); shown.body != placed.body {
			t.Errorf("after refused payments: got %v, want %v", shown, placed)
		}

		first := server.send("POST", "/orders/1/payments", "p1", paid1)
		if want := `{"order":1,"amount":3250,"currency":"BRL"}` + "\n"; first.status != 201 || first.body != want || first.location != "/orders/1" {
			t.Fatalf("payment: got %v, want 201 %s", first, want)
		}
		first.replayed = true
		if second := server.send("POST", "/orders/1/payments", "p1", paid1); second != first {
			t.Errorf("same payment again: got %v, want %v", second, first)
		}
		refused := server.send("POST", "/orders/1/payments", "p2", paid1)
		if refused.status != 409 {
			t.Errorf("paying a paid order: got %v, want 409", refused)
		}
		if again := server.send("POST", "/orders/1/payments", "p2", paid1); again.status != 409 || !again.replayed {
			t.Errorf("paying a paid order, again: got %v, want the 409 replayed", again)
		}
		if shown := server.send("GET", "/orders/1", "", ""); shown.body != strings.Replace(placed.body, "pending", "paid", 1) {
			t.Errorf("shown: got %v, want the order, paid", shown)
		}
		if n := count(t, db, "payment"); n != 1 {
			t.Errorf("got %d payments, want 1", n)
		}
		if got := server.send("GET", "/orders/2", "", ""); got.status != 404 {
			t.Errorf("an order that is none: got %v, want 404", got)
		}
	})
}

func TestPaymentsThatRaceAreOnePayment(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		server.send("POST", "/orders", "k1", order1)
		statuses := make([]int, 20)
		var wg sync.WaitGroup
		for i := range statuses {
			wg.Go(func() { statuses[i] = server.send("POST", "/orders/1/payments", fmt.Sprintf("p%d", i), paid1).status })
		}
		wg.Wait()
		paid := 0
		for _, status := range statuses {
			switch status {
			case 201:
				paid++
			case 409:
			default:
				t.Errorf("got %d, want 201 or 409", status)
			}
		}
		if n := count(t, db, "payment"); paid != 1 || n != 1 {
			t.Errorf("got %d payments answered and %d written, want one", paid, n)
		}
	})
}

func TestAnOrderHasOneParcel(t *testing.T) {
	everywhere(t, func(t *testing.T, server server, db *sql.DB) {
		placed := server.send("POST", "/orders", "k1", order1)
		early := server.send("POST", "/orders/1/shipment", "s1", "")
		if early.status != 409 {
			t.Errorf("before it is paid: got %v, want 409", early)
		}
		server.send("POST", "/orders/1/payments", "p1", paid1)
		first := server.send("POST", "/orders/1/shipment", "s1", "") // the key is free: nothing was sent
		if first.status != 201 || first.replayed || !strings.Contains(first.body, `"tracking":"BR`) {
			t.Fatalf("got %v, want 201", first)
		}
		first.replayed = true
		if again := server.send("POST", "/orders/1/shipment", "s1", ""); again != first {
			t.Errorf("again: got %v, want %v", again, first)
		}
		if got := server.send("POST", "/orders/1/shipment", "s2", ""); got.status != 409 {
			t.Errorf("another key, once it is shipped: got %v, want 409", got)
		}
		if got := server.send("POST", "/orders/2/shipment", "s3", ""); got.status != 404 {
			t.Errorf("an order that is none: got %v, want 404", got)
		}
		if shown := server.send("GET", "/orders/1", "", ""); shown.body != strings.Replace(placed.body, "pending", "shipped", 1) {
			t.Errorf("shown: got %v, want the order, shipped", shown)
		}
		if n := count(t, db, "shipment"); n != 1 {
			t.Errorf("got %d parcels, want 1", n)
		}
	})
}
