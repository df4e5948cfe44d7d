package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/unavez/unavez/httpkey"
)

// schema is ours; the ledger's tables are made by sqlite.New. Amounts are in
// minor units.
const schema = `
create table if not exists orders (
	id        integer primary key,
	placed_as text not null unique, -- the client's own name for the order: one order for ever, even when the ledger has forgotten the key
	customer  text not null,
	currency  text not null,
	total     integer not null,
	state     text not null check (state in ('pending', 'paid'))
) strict;
create table if not exists order_item (
	order_id   integer not null references orders (id),
	line       integer not null,
	sku        text not null,
	quantity   integer not null check (quantity > 0),
	unit_price integer not null check (unit_price >= 0),
	primary key (order_id, line)
) strict, without rowid;
create table if not exists payment (
	order_id integer primary key references orders (id), -- one payment for each order
	amount   integer not null,
	currency text not null
) strict;`

// basket is what the client sends.
type basket struct {
	Customer string `json:"customer"`
	Currency string `json:"currency"`
	Items    []item `json:"items"`
}

// item is one line of an order.
type item struct {
	SKU       string `json:"sku"`
	Quantity  int64  `json:"quantity"`
	UnitPrice int64  `json:"unit_price"`
}

// order is what the client gets.
type order struct {
	ID int64 `json:"id"`
	basket
	Total int64  `json:"total"`
	State string `json:"state"`
}

// money is what the client sends to pay.
type money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// payment pays a whole order.
type payment struct {
	Order int64 `json:"order"`
	money
}

// insert validates the order and writes it with its items.
func (o *order) insert(ctx context.Context, tx *sql.Tx, placedAs string) error {
	var err error
	if o.Total, err = o.validate(); err != nil {
		return err
	}
	err = tx.QueryRowContext(ctx, `
		insert into orders (placed_as, customer, currency, total, state) values (?, ?, ?, ?, ?)
		on conflict (placed_as) do nothing returning id`,
		placedAs, o.Customer, o.Currency, o.Total, o.State).Scan(&o.ID)
	if errors.Is(err, sql.ErrNoRows) {
		return httpkey.Errorf(http.StatusConflict, "an order was placed with this key before")
	}
	if err != nil {
		return err
	}
	for line, i := range o.Items {
		_, err := tx.ExecContext(ctx, `
			insert into order_item (order_id, line, sku, quantity, unit_price) values (?, ?, ?, ?, ?)`,
			o.ID, line+1, i.SKU, i.Quantity, i.UnitPrice)
		if err != nil {
			return err
		}
	}
	return nil
}

// validate checks what the client sent and adds it up. A total that does not
// fit is refused instead of wrapping round.
func (b *basket) validate() (total int64, err error) {
	refused := func(format string, args ...any) (int64, error) {
		return 0, httpkey.Errorf(http.StatusUnprocessableEntity, format, args...)
	}
	switch {
	case b.Customer == "" || len(b.Customer) > 100:
		return refused("customer: want 1 to 100 bytes")
	case !isCurrency(b.Currency):
		return refused("currency: want three capital letters, such as BRL")
	case len(b.Items) == 0 || len(b.Items) > 100:
		return refused("items: want 1 to 100")
	}
	for n, i := range b.Items {
		switch {
		case i.SKU == "" || len(i.SKU) > 100:
			return refused("items[%d].sku: want 1 to 100 bytes", n)
		case i.Quantity < 1:
			return refused("items[%d].quantity: want 1 or more", n)
		case i.UnitPrice < 0:
			return refused("items[%d].unit_price: want 0 or more, in minor units", n)
		case i.UnitPrice > (math.MaxInt64-total)/i.Quantity:
			return refused("items[%d]: the total is too large", n)
		}
		total += i.Quantity * i.UnitPrice
	}
	return total, nil
}

// insert pays an order that is pending, in full.
func (p *payment) insert(ctx context.Context, tx *sql.Tx) error {
	var total int64
	var currency string
	err := tx.QueryRowContext(ctx, `select total, currency from orders where id = ?`, p.Order).Scan(&total, &currency)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoOrder()
	}
	if err != nil {
		return err
	}
	if p.Amount != total || p.Currency != currency {
		return httpkey.Errorf(http.StatusUnprocessableEntity, "the order costs %d %s, in minor units", total, currency)
	}
	moved, err := tx.ExecContext(ctx, `update orders set state = 'paid' where id = ? and state = 'pending'`, p.Order)
	if err != nil {
		return err
	}
	rows, err := moved.RowsAffected()
	if err != nil {
		return err
	}
	if rows == 0 {
		return httpkey.Errorf(http.StatusConflict, "the order is not pending: it is paid already")
	}
	_, err = tx.ExecContext(ctx, `insert into payment (order_id, amount, currency) values (?, ?, ?)`, p.Order, p.Amount, p.Currency)
	return err
}

// find reads one order with its items.
func find(ctx context.Context, db *sql.DB, id int64) (order, error) {
	o := order{ID: id}
	err := db.QueryRowContext(ctx, `select customer, currency, total, state from orders where id = ?`, id).
		Scan(&o.Customer, &o.Currency, &o.Total, &o.State)
	if errors.Is(err, sql.ErrNoRows) {
		return o, errNoOrder()
	}
	if err != nil {
		return o, err
	}
	rows, err := db.QueryContext(ctx, `select sku, quantity, unit_price from order_item where order_id = ? order by line`, id)
	if err != nil {
		return o, err
	}
	defer rows.Close()
	for rows.Next() {
		var i item
		if err := rows.Scan(&i.SKU, &i.Quantity, &i.UnitPrice); err != nil {
			return o, err
		}
		o.Items = append(o.Items, i)
	}
	return o, rows.Err()
}

func errNoOrder() error { return httpkey.Errorf(http.StatusNotFound, "no such order") }

// isCurrency tells the form of an ISO 4217 code.
func isCurrency(s string) bool {
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return len(s) == 3
}

// pathID is the order's id in the path; 0, which no order has, when it is none.
func pathID(r *http.Request) int64 {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// decode reads the body, which must be one JSON value with known members. The
// layer has bounded it.
func decode(r *http.Request, into any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return httpkey.Errorf(http.StatusBadRequest, "body: %v", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return httpkey.Errorf(http.StatusBadRequest, "body: more than one JSON value")
	}
	return nil
}

// answer writes a JSON body.
func answer(w http.ResponseWriter, status int, body any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(body)
}
