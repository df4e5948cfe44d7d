package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/sqlite"
	modernc "modernc.org/sqlite"
)

// schema is ours; the ledger's tables are made by sqlite.New. Amounts are in
// minor units. The unique charge backs the ledger: one charge, one order.
const schema = `
create table if not exists orders (
	id       integer primary key,
	customer text not null,
	amount   integer not null check (amount > 0),
	currency text not null,
	charge   text not null unique
) strict`

// purchase is what the client sends.
type purchase struct {
	Customer string `json:"customer"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// order is what the client gets.
type order struct {
	ID int64 `json:"id"`
	purchase
	Charge string `json:"charge"`
}

// shop holds what the handler needs.
type shop struct {
	db      *sql.DB
	engine  *unavez.Engine[*sql.Tx]
	layer   *httpkey.Layer[*sql.Tx]
	gateway *gateway
	unknown unavez.Policy
	probes  bool
}

// open wires the shop.
func open(c config) (*shop, error) {
	s := &shop{
		gateway: &gateway{url: c.gateway, settle: c.settle, client: http.Client{
			Transport: c.transport, Timeout: c.timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // one call is one call
		}},
	}
	switch c.unknown {
	case "repeat":
		s.unknown = unavez.Steps // and the step has no probe
	case "probe":
		s.unknown, s.probes = unavez.Steps, true
	case "hold":
		s.unknown = unavez.Hold
	default:
		return nil, fmt.Errorf("-unknown %q: want repeat, probe or hold", c.unknown)
	}
	// A finish may hold the writer this long; the default of 100 ms is for a
	// machine that is not busy with other things.
	limits := &sqlite.Options{HandlerLimit: 2 * time.Second}
	var err error
	if s.db, err = sqlite.OpenDB(&modernc.Driver{}, c.path, limits); err != nil {
		return nil, err
	}
	if _, err = s.db.Exec(schema); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	ledger, err := sqlite.New(s.db, nil)
	if err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	// A real shop passes httpkey.New a function that names tenant and principal.
	if s.engine, err = unavez.New(ledger, &unavez.Options{SingleTenant: true, Lease: c.lease}); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	if s.layer, err = httpkey.New(s.engine, nil, &httpkey.Options{SingleTenant: true}); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// close ends the engine, then the database: running requests come first.
func (s *shop) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(s.engine.Close(ctx), s.db.Close())
}

// routes is the HTTP API.
func (s *shop) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", s.layer.Lease(s.unknown, s.create))
	return mux
}

// create charges under the lease, with no transaction open, and returns what is
// to be recorded: order and answer commit together with the outcome.
func (s *shop) create(r *http.Request, attempt *unavez.Attempt) (httpkey.Finish[*sql.Tx], error) {
	o := order{}
	if err := read(r.Body, &o.purchase); err != nil {
		return nil, err
	}
	// The reference names the payment at the gateway: the same for every
	// attempt, and known before the call, so that it can be asked for.
	want := payment{Amount: o.Amount, Currency: o.Currency, Reference: attempt.Key().String()}
	var probe func(context.Context, string) (string, unavez.Verdict, error)
	if s.probes {
		probe = func(ctx context.Context, _ string) (string, unavez.Verdict, error) { return s.gateway.find(ctx, want) }
	}
	id, err := unavez.Step(r.Context(), attempt, "charge", func(ctx context.Context, key string) (string, error) {
		return s.gateway.charge(ctx, key, want)
	}, probe)
	if err != nil {
		return nil, err
	}
	o.Charge = id
	return func(ctx context.Context, w http.ResponseWriter, tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, `
			insert into orders (customer, amount, currency, charge) values (?, ?, ?, ?) returning id`,
			o.Customer, o.Amount, o.Currency, o.Charge).Scan(&o.ID)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/"+strconv.FormatInt(o.ID, 10))
		w.WriteHeader(http.StatusCreated)
		return json.NewEncoder(w).Encode(o)
	}, nil
}

// read takes the order of a request.
func read(body io.Reader, want *purchase) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(want); err != nil {
		return httpkey.Errorf(http.StatusBadRequest, "body: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return httpkey.Errorf(http.StatusBadRequest, "body: more than one JSON value")
	}
	if want.Customer == "" || len(want.Customer) > 100 || want.Amount <= 0 || len(want.Currency) != 3 {
		return httpkey.Errorf(http.StatusUnprocessableEntity, "want a customer, an amount over 0 in minor units, a currency of three letters")
	}
	return nil
}
