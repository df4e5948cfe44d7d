package main

import (
	"bytes"
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
	"github.com/unavez/unavez/store"
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
	gateway *gateway
	lease   time.Duration
	unknown unavez.Policy
	probes  bool
}

// open wires the shop.
func open(c config) (*shop, error) {
	s := &shop{
		lease: c.lease,
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
	// A real shop names the tenant in each operation instead.
	if s.engine, err = unavez.New(ledger, &unavez.Options{SingleTenant: true}); err != nil {
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
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		out, err := s.create(r)
		if err != nil {
			s.refuse(w, err)
			return
		}
		for _, f := range out.Result.Header {
			w.Header().Add(f.Name, f.Value)
		}
		if out.Replayed {
			w.Header().Set(httpkey.ReplayedHeader, "true")
		}
		w.WriteHeader(out.Result.Code)
		_, _ = w.Write(out.Result.Body) // a client that has gone asks again
	})
	return mux
}

// create charges and then writes the order, once for each key.
func (s *shop) create(r *http.Request) (unavez.Outcome, error) {
	o := order{}
	key, body, err := read(r, &o.purchase)
	if err != nil {
		return unavez.Outcome{}, err
	}
	operation := unavez.Operation{
		Effect: "order.create.v1", Key: []string{key}, Payload: body,
		Lease: s.lease, Unknown: s.unknown,
	}

	// charge runs under the lease, with no transaction open.
	charge := func(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, error) {
		// The reference names the payment at the gateway: the same for every
		// attempt, and known before the call, so that it can be asked for.
		want := payment{Amount: o.Amount, Currency: o.Currency, Reference: attempt.Key().String()}
		var probe func(context.Context, string) (string, unavez.Verdict, error)
		if s.probes {
			probe = func(ctx context.Context, _ string) (string, unavez.Verdict, error) { return s.gateway.find(ctx, want) }
		}
		id, err := unavez.Step(ctx, attempt, "charge", func(ctx context.Context, key string) (string, error) {
			return s.gateway.charge(ctx, key, want)
		}, probe)
		if errors.Is(err, errDeclined) { // a "no" for good: frozen, without an order
			return unavez.Result{}, unavez.Refuse(result(http.StatusPaymentRequired, map[string]string{"error": "declined"}), err)
		}
		o.Charge = id
		return unavez.Result{}, err
	}

	// record runs in the transaction that commits the outcome. What it puts into
	// the result is frozen: every duplicate gets it.
	record := func(ctx context.Context, tx *sql.Tx, answer *unavez.Result) error {
		err := tx.QueryRowContext(ctx, `
			insert into orders (customer, amount, currency, charge) values (?, ?, ?, ?) returning id`,
			o.Customer, o.Amount, o.Currency, o.Charge).Scan(&o.ID)
		*answer = result(http.StatusCreated, o)
		answer.Header = append(answer.Header, store.Field{Name: "Location", Value: "/orders/" + strconv.FormatInt(o.ID, 10)})
		return err
	}

	// The client's hanging up must not cut the charge off half-way.
	return s.engine.Lease(context.WithoutCancel(r.Context()), operation, charge, record)
}

// read takes key and body of a request.
func read(r *http.Request, want *purchase) (key string, body []byte, err error) {
	key, err = httpkey.ParseKey(r.Header[httpkey.KeyHeader])
	if err != nil {
		return "", nil, httpkey.Errorf(http.StatusBadRequest, "%w", err)
	}
	body, err = io.ReadAll(io.LimitReader(r.Body, unavez.DefaultRequestLimit+1))
	switch {
	case err != nil:
		return "", nil, httpkey.Errorf(http.StatusBadRequest, "body: %w", err)
	case len(body) > unavez.DefaultRequestLimit:
		return "", nil, httpkey.Errorf(http.StatusRequestEntityTooLarge, "body: at most %d bytes", unavez.DefaultRequestLimit)
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(want); err != nil {
		return "", nil, httpkey.Errorf(http.StatusBadRequest, "body: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return "", nil, httpkey.Errorf(http.StatusBadRequest, "body: more than one JSON value")
	}
	if want.Customer == "" || len(want.Customer) > 100 || want.Amount <= 0 || len(want.Currency) != 3 {
		return "", nil, httpkey.Errorf(http.StatusUnprocessableEntity, "want a customer, an amount over 0 in minor units, a currency of three letters")
	}
	return key, body, nil
}

// result is an answer with a JSON body.
func result(status int, body any) unavez.Result {
	encoded, err := json.Marshal(body)
	if err != nil {
		panic(err) // our own types always encode
	}
	return unavez.Result{
		Code:   status,
		Header: []store.Field{{Name: "Content-Type", Value: "application/json"}},
		Body:   append(encoded, '\n'),
	}
}
