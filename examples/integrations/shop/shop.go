// Package shop is what the examples have in common: two tables, an order as the
// client sends and gets it, and who is calling.
package shop

import (
	_ "embed"
	"encoding/json"
	"net/http"

	"github.com/unavez/unavez/httpkey"
)

// Schema makes the tables; postgres.Migrate makes the ledger's, in the same database.
//
//go:embed schema.sql
var Schema string

// Order is one order; the client sends it without the id.
type Order struct {
	ID       int64  `json:"id"`
	Customer string `json:"customer"`
	SKU      string `json:"sku"`
	Quantity int32  `json:"quantity"`
}

// Read reads an order from a request.
func Read(r *http.Request) (o Order, err error) {
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		return o, httpkey.Errorf(http.StatusBadRequest, "body: %v", err)
	}
	if o.ID != 0 || o.Customer == "" || o.SKU == "" || o.Quantity < 1 {
		return o, httpkey.Errorf(http.StatusUnprocessableEntity, "want customer, sku, and a quantity of 1 or more")
	}
	return o, nil
}

// Answer answers with the order that was placed.
func Answer(w http.ResponseWriter, o Order) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(o)
}

// SoldOut is the error of a handler that finds too little in stock.
func SoldOut() error { return httpkey.Errorf(http.StatusConflict, "sold out") }

// Caller says who is calling: the place of your authentication.
func Caller(*http.Request) (httpkey.Scope, error) {
	return httpkey.Scope{Tenant: "acme", Principal: "till-1"}, nil
}
