// Command orders is a small shop whose requests take effect once. Orders,
// payments and the ledger live in one SQLite file, so an order and the answer
// that its client gets are committed together:
//
//	go run .            # prints requests to try
//
// Send one of them twice, or kill the program in the middle of it, start it
// again and repeat: there is one order, and the answer is the same to the byte.
//
// Start with create, below. The handler writes on the transaction it is given
// and returns; it never commits, and it has no code for duplicates.
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"flag"
	"log"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/sqlite"
	modernc "modernc.org/sqlite"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	path := flag.String("db", "orders.db", "SQLite `file` for orders and ledger")
	flag.Parse()
	shop, err := open(&modernc.Driver{}, *path)
	if err == nil {
		err = serve(*addr, shop.routes())
		err = errors.Join(err, shop.close())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// shop holds what the handlers need.
type shop struct {
	db     *sql.DB
	engine *unavez.Engine[*sql.Tx]
	keyed  *httpkey.Layer[*sql.Tx]
	stop   func() // ends the upkeep and waits for it
}

// open wires the shop: the database with our tables, the ledger in the same
// file, the engine over it, the layer that reads Idempotency-Key, and the upkeep
// that forgets what is over its retention.
func open(driver driver.Driver, path string) (s *shop, err error) {
	s = &shop{}
	// A handler may hold the writer this long; the default of 100 ms is for a
	// machine that is not busy with other things.
	limits := &sqlite.Options{HandlerLimit: 2 * time.Second}
	if s.db, err = sqlite.OpenDB(driver, path, limits); err != nil {
		return nil, err
	}
	if _, err = s.db.Exec(schema); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	ledger, err := sqlite.New(s.db, nil)
	if err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	if s.engine, err = unavez.New(ledger, &unavez.Options{SingleTenant: true}); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	s.keyed, err = httpkey.New(s.engine, nil, &httpkey.Options{
		SingleTenant: true, // anyone may call; a real shop names tenant and principal here
		Fingerprint:  httpkey.FingerprintOptions{JSON: true},
	})
	if err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	var upkeep sync.WaitGroup
	upkeep.Go(func() { unavez.Upkeep(ctx, ledger, nil) })
	s.stop = func() {
		cancel()
		upkeep.Wait()
	}
	return s, nil
}

// routes is the HTTP API. POST needs a key, GET passes through.
func (s *shop) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", s.keyed.Handle(s.create))
	mux.Handle("POST /orders/{id}/payments", s.keyed.Handle(s.pay))
	mux.HandleFunc("GET /orders/{id}", s.show)
	return mux
}

// create places an order. It runs once for each key; every duplicate gets the
// answer that was committed with the rows. An error rolls back.
func (s *shop) create(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	o := order{State: "pending"}
	if err := decode(r, &o.basket); err != nil {
		return err
	}
	key, err := httpkey.ParseKey(r.Header[httpkey.KeyHeader])
	if err != nil {
		return err
	}
	if err := o.insert(r.Context(), tx, key); err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+strconv.FormatInt(o.ID, 10))
	return answer(w, http.StatusCreated, o)
}

// pay writes a payment and moves the order forward, never back: an order that
// is not pending any more is not changed, and that is a permanent error.
func (s *shop) pay(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	p := payment{Order: pathID(r)}
	if err := decode(r, &p.money); err != nil {
		return err
	}
	if err := p.insert(r.Context(), tx); err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+strconv.FormatInt(p.Order, 10))
	return answer(w, http.StatusCreated, p)
}

// show reads one order.
func (s *shop) show(w http.ResponseWriter, r *http.Request) {
	o, err := find(r.Context(), s.db, pathID(r))
	var no *httpkey.Error
	switch {
	case errors.As(err, &no):
		http.Error(w, no.Detail, no.Status)
	case err != nil:
		log.Print(err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	default:
		_ = answer(w, http.StatusOK, o) // a client that has gone asks again
	}
}

// close ends the engine, then the database: running requests come first.
func (s *shop) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.engine.Close(ctx)
	s.stop()
	return errors.Join(err, s.db.Close())
}
