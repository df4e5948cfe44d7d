// Package orders is the example behind "unavez serve" without a configuration:
// a small shop whose orders and payments are rows in the same SQLite file as
// the ledger, so that each is made once however often its request arrives.
//
// Two things hold it together. The handlers write on the transaction they are
// given and nowhere else, so the order, the payment and the frozen answer are
// committed together or not at all. And the tables have constraints of their
// own (one order per reference, one payment per order), which hold even if a
// client forgets to repeat its key.
package orders

import (
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed" // the tables are in a file of their own
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/unavez/unavez/httpkey"
)

//go:embed orders.sql
var tables string

// PauseHeader makes the example wait with its rows written and not committed, so
// that it can be killed there; meanwhile other orders wait. It is not part of what makes two requests the same.
const PauseHeader = "Example-Pause"

// maxPause stays below the limit of a transaction.
const maxPause = 8 * time.Second

// HandlerLimit is how long a handler of the example may hold the writer of its
// file: it may be asked to pause between its rows and their commit.
const HandlerLimit = 10 * time.Second

// Shop is the example.
type Shop struct {
	db *sql.DB
	// paused, when not nil, is told that a request waits.
	paused func(time.Duration)
}

// Open makes the tables where they are missing. paused, which may be nil, is
// told of every deliberate pause.
func Open(ctx context.Context, db *sql.DB, paused func(time.Duration)) (*Shop, error) {
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return nil, fmt.Errorf("orders: making the tables: %w", err)
	}
	return &Shop{db: db, paused: paused}, nil
}

// Handler serves the shop: what changes something goes through the layer.
func (s *Shop) Handler(key *httpkey.Layer[*sql.Tx]) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", key.Handle(s.create))
	mux.Handle("POST /orders/{id}/payments", key.Handle(s.pay))
	mux.HandleFunc("GET /orders/{id}", s.show)
	mux.HandleFunc("GET /orders", s.list)
	return mux
}

// Order as it is stored and shown. Amounts are whole minor units.
type Order struct {
	// ID given by the shop.
	ID string `json:"id"`
	// State is pending or paid; it only moves forward.
	State string `json:"state"`
	// Customer who ordered.
	Customer string `json:"customer"`
	// Reference of the customer's own, unique where given.
	Reference string `json:"reference,omitempty"`
	// Currency, ISO 4217.
	Currency string `json:"currency"`
	// Total of all items.
	Total int64 `json:"total"`
	// Items ordered.
	Items []Item `json:"items"`
}

// Item is one line of an order.
type Item struct {
	// SKU names the article.
	SKU string `json:"sku"`
	// Quantity ordered, at least 1.
	Quantity int64 `json:"quantity"`
	// UnitPrice in minor units.
	UnitPrice int64 `json:"unit_price"`
}

// create takes an order.
func (s *Shop) create(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	var in struct {
		Customer  string `json:"customer"`
		Reference string `json:"reference"`
		Currency  string `json:"currency"`
		Items     []Item `json:"items"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	order := Order{ID: newID("ord"), State: "pending", Customer: in.Customer, Reference: in.Reference, Currency: in.Currency, Items: in.Items}
	if err := order.validate(); err != nil {
		return err
	}
	items, err := json.Marshal(order.Items)
	if err != nil {
		return err
	}
	// The reference is unique: the same order under another key is refused here.
	result, err := tx.ExecContext(r.Context(), `
		INSERT INTO orders (id, state, customer, reference, currency, total, items)
		VALUES (?, ?, ?, nullif(?, ''), ?, ?, ?)
		ON CONFLICT (reference) DO NOTHING`,
		order.ID, order.State, order.Customer, order.Reference, order.Currency, order.Total, string(items))
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(httpkey.Errorf(http.StatusConflict, "reference: there is an order %q already", order.Reference), err)
	}
	if err := s.pause(r); err != nil { // the order is written and not committed
		return err
	}
	w.Header().Set("Location", "/orders/"+order.ID)
	return answer(w, http.StatusCreated, order)
}

// Payment of an order.
type Payment struct {
	// ID given by the shop.
	ID string `json:"id"`
	// Order it pays.
	Order string `json:"order"`
	// Amount in minor units.
	Amount int64 `json:"amount"`
	// Currency of the order.
	Currency string `json:"currency"`
}

// pay takes the payment of an order, once: the order moves from pending to paid
// and never back.
func (s *Shop) pay(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	var in struct {
		Amount   *int64 `json:"amount"`
		Currency string `json:"currency"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	var faults faults
	if in.Amount == nil || *in.Amount < 0 {
		faults.add("amount", "want whole minor units, such as 3000")
	}
	if !isCurrency(in.Currency) {
		faults.add("currency", "want three letters, such as BRL")
	}
	if err := faults.problem(); err != nil {
		return err
	}
	payment := Payment{ID: newID("pay"), Order: r.PathValue("id"), Amount: *in.Amount, Currency: in.Currency}
	// Forward only, and only for the whole sum: no row means no, for good.
	result, err := tx.ExecContext(r.Context(), `
		UPDATE orders SET state = 'paid'
		WHERE id = ? AND state = 'pending' AND total = ? AND currency = ?`,
		payment.Order, payment.Amount, payment.Currency)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return refusal(r.Context(), tx, payment)
	}
	// The order is unique among payments: what the state forbids, this does too.
	if _, err := tx.ExecContext(r.Context(), `INSERT INTO payments (id, order_id, amount, currency) VALUES (?, ?, ?, ?)`,
		payment.ID, payment.Order, payment.Amount, payment.Currency); err != nil {
		return err
	}
	if err := s.pause(r); err != nil {
		return err
	}
	return answer(w, http.StatusCreated, payment)
}

// refusal says why no order moved.
func refusal(ctx context.Context, tx *sql.Tx, p Payment) error {
	var state, currency string
	var total int64
	err := tx.QueryRowContext(ctx, `SELECT state, total, currency FROM orders WHERE id = ?`, p.Order).Scan(&state, &total, &currency)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return httpkey.Errorf(http.StatusNotFound, "There is no order %q.", p.Order)
	case err != nil:
		return err
	case state != "pending":
		return httpkey.Errorf(http.StatusConflict, "The order is %s; only a pending one can be paid.", state)
	}
	return httpkey.Errorf(http.StatusUnprocessableEntity, "amount: the order costs %d %s", total, currency)
}

// show gives one order.
func (s *Shop) show(w http.ResponseWriter, r *http.Request) {
	rows, err := s.read(r.Context(), `SELECT id, state, customer, coalesce(reference, ''), currency, total, items FROM orders WHERE id = ?`, r.PathValue("id"))
	switch {
	case err != nil:
		http.Error(w, "orders cannot be read", http.StatusInternalServerError)
	case len(rows) == 0:
		http.Error(w, "no such order", http.StatusNotFound)
	default:
		_ = answer(w, http.StatusOK, rows[0]) // the client has gone if it fails
	}
}

// list gives the last hundred orders, newest first.
func (s *Shop) list(w http.ResponseWriter, r *http.Request) {
	rows, err := s.read(r.Context(), `SELECT id, state, customer, coalesce(reference, ''), currency, total, items FROM orders ORDER BY rowid DESC LIMIT 100`)
	if err != nil {
		http.Error(w, "orders cannot be read", http.StatusInternalServerError)
		return
	}
	_ = answer(w, http.StatusOK, map[string]any{"orders": rows}) // the client has gone if it fails
}

func (s *Shop) read(ctx context.Context, query string, args ...any) ([]Order, error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []Order{}
	for rows.Next() {
		var o Order
		var items string
		if err := rows.Scan(&o.ID, &o.State, &o.Customer, &o.Reference, &o.Currency, &o.Total, &items); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(items), &o.Items); err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, rows.Err()
}

// pause waits where the request asks for it: the operation has begun, and
// nothing is written yet.
func (s *Shop) pause(r *http.Request) error {
	text := r.Header.Get(PauseHeader)
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxPause {
		return httpkey.Errorf(http.StatusBadRequest, "%s: want a duration up to %v", PauseHeader, maxPause)
	}
	if s.paused != nil {
		s.paused(d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.Context().Done():
		return context.Cause(r.Context())
	}
}

func answer(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(value)
}

func newID(kind string) string { return kind + "_" + strings.ToLower(rand.Text()) }
