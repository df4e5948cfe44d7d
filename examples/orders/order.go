package main

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/unavez/unavez/httpkey"
)

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

// shipment is the parcel of a whole order.
type shipment struct {
	Order    int64  `json:"order"`
	Tracking string `json:"tracking"`
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

func errNoOrder() error { return httpkey.Errorf(http.StatusNotFound, "no such order") }

func errPlaced() error {
	return httpkey.Errorf(http.StatusConflict, "an order was placed with this key before")
}

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
