package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store"
)

// shop holds what the handlers need. Tx is the transaction they write on.
type shop[Tx any] struct {
	rows   rows[Tx]
	parcel carrier
	keyed  *httpkey.Layer[Tx]
}

// carrier books a parcel for an order outside the database, and says its
// tracking number. The same key is the same parcel.
type carrier func(ctx context.Context, key string, o order) (tracking string, err error)

// ledger is what a shop needs of a store.
type ledger[Tx any] interface {
	store.Ledger[Tx]
	store.Upkeep
}

// newShop puts together the engine over the ledger, the layer that reads
// Idempotency-Key, the routes, and the upkeep that forgets what is over its
// retention.
func newShop[Tx any](ledger ledger[Tx], rows rows[Tx], parcel carrier, options *unavez.Options, closed func() error) (*program, error) {
	engine, err := unavez.New(ledger, options)
	if err != nil {
		return nil, err
	}
	keyed, err := httpkey.New(engine, nil, &httpkey.Options{
		SingleTenant: true, // anyone may call; a real shop names tenant and principal here
		Fingerprint:  httpkey.FingerprintOptions{JSON: true},
	})
	if err != nil {
		return nil, err
	}
	s := &shop[Tx]{rows: rows, parcel: parcel, keyed: keyed}
	ctx, cancel := context.WithCancel(context.Background())
	var upkeep sync.WaitGroup
	upkeep.Go(func() { unavez.Upkeep(ctx, ledger, nil) })
	return &program{handler: s.routes(), close: func() error {
		last, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		err := engine.Close(last)
		cancel()
		upkeep.Wait()
		return errors.Join(err, closed())
	}}, nil
}

// routes is the HTTP API. POST needs a key, GET passes through.
func (s *shop[Tx]) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", s.keyed.Handle(s.create))
	mux.Handle("POST /orders/{id}/payments", s.keyed.Handle(s.pay))
	mux.Handle("POST /orders/{id}/shipment", s.keyed.Lease(unavez.Steps, s.ship))
	mux.HandleFunc("GET /orders/{id}", s.show)
	return mux
}

// create places an order. It runs once for each key; every duplicate gets the
// answer that was committed with the rows. An error rolls back.
func (s *shop[Tx]) create(w http.ResponseWriter, r *http.Request, tx Tx) error {
	o := order{State: "pending"}
	err := decode(r, &o.basket)
	if err != nil {
		return err
	}
	key, err := httpkey.ParseKey(r.Header[httpkey.KeyHeader])
	if err != nil {
		return err
	}
	if o.Total, err = o.validate(); err != nil {
		return err
	}
	if o.ID, err = s.rows.insert(r.Context(), tx, key, o); err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+strconv.FormatInt(o.ID, 10))
	return answer(w, http.StatusCreated, o)
}

// pay writes a payment and moves the order forward, never back: an order that
// is not pending any more is not changed, and that is a permanent error.
func (s *shop[Tx]) pay(w http.ResponseWriter, r *http.Request, tx Tx) error {
	p := payment{Order: pathID(r)}
	if err := decode(r, &p.money); err != nil {
		return err
	}
	price, err := s.rows.price(r.Context(), tx, p.Order)
	if err != nil {
		return err
	}
	if p.money != price {
		return httpkey.Errorf(http.StatusUnprocessableEntity, "the order costs %d %s, in minor units", price.Amount, price.Currency)
	}
	paid, err := s.rows.pay(r.Context(), tx, p)
	if err != nil {
		return err
	}
	if !paid {
		return httpkey.Errorf(http.StatusConflict, "the order is not pending: it is paid already")
	}
	w.Header().Set("Location", "/orders/"+strconv.FormatInt(p.Order, 10))
	return answer(w, http.StatusCreated, p)
}

// ship has a parcel booked, which may take long and is not ours to roll back:
// no transaction is open meanwhile. A worker that dies in it leaves the
// operation to the next request with its key, once the lease has run out.
func (s *shop[Tx]) ship(r *http.Request, attempt *unavez.Attempt) (httpkey.Finish[Tx], error) {
	o, err := s.rows.find(r.Context(), pathID(r))
	switch {
	case err != nil:
		return nil, unavez.NeverStarted(err)
	case o.State != "paid":
		return nil, unavez.NeverStarted(httpkey.Errorf(http.StatusConflict, "the order is %s: only one that is paid is shipped", o.State))
	}
	done := shipment{Order: o.ID}
	// An order has one parcel, whichever key asks for it: so the carrier gets the
	// order's own name as its key, and not the one that is derived from the request's.
	done.Tracking, err = unavez.Step(r.Context(), attempt, "parcel", func(ctx context.Context, _ string) (string, error) {
		return s.parcel(ctx, "orders/"+strconv.FormatInt(o.ID, 10), o)
	}, nil) // nil: the carrier honours its key, so asking again is safe
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, w http.ResponseWriter, tx Tx) error { // commits with the outcome
		if err := s.rows.ship(ctx, tx, done); err != nil {
			return err
		}
		return answer(w, http.StatusCreated, done)
	}, nil
}

// show reads one order.
func (s *shop[Tx]) show(w http.ResponseWriter, r *http.Request) {
	o, err := s.rows.find(r.Context(), pathID(r))
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

// parcel stands for the API of a carrier that honours keys.
func parcel(_ context.Context, key string, _ order) (string, error) {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("BR%X", sum[:6]), nil
}
