package orders

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/unavez/unavez/httpkey"
)

// Bounds of an order.
const (
	maxItems    = 100
	maxQuantity = 1_000_000
	maxText     = 100
)

// faults are all faults of one request, by field.
type faults []map[string]string

func (f *faults) add(field, detail string) {
	*f = append(*f, map[string]string{"field": field, "detail": detail})
}

// problem is a 422 that names every field, or nil.
func (f faults) problem() error {
	if len(f) == 0 {
		return nil
	}
	e := httpkey.Errorf(http.StatusUnprocessableEntity, "%s: %s", f[0]["field"], f[0]["detail"])
	e.Members = map[string]any{"errors": f}
	return e
}

// decode reads the one JSON object of a request.
func decode(r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return httpkey.Errorf(http.StatusUnsupportedMediaType, "Send Content-Type: application/json.")
	}
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return httpkey.Errorf(http.StatusBadRequest, "The body holds more than one JSON object.")
		}
		return nil
	case errors.As(err, &kind):
		var f faults
		f.add(kind.Field, fmt.Sprintf("a %s, want %s", kind.Value, wanted(kind)))
		return f.problem()
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		var f faults
		f.add(strings.Trim(strings.TrimPrefix(err.Error(), "json: unknown field "), `"`), "not a field of this request")
		return f.problem()
	}
	return httpkey.Errorf(http.StatusBadRequest, "The body is not JSON.")
}

func wanted(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "int64":
		return "a whole number (amounts are minor units: 1500 is 15.00)"
	case "string":
		return "a string"
	case "slice":
		return "a list"
	}
	return "an object"
}

// validate reports every fault of the order and computes its total.
func (o *Order) validate() error {
	var f faults
	text := func(field, value string, required bool) {
		switch {
		case value == "" && required:
			f.add(field, "missing")
		case len(value) > maxText:
			f.add(field, fmt.Sprintf("at most %d bytes", maxText))
		case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
			f.add(field, "holds control characters")
		}
	}
	text("customer", o.Customer, true)
	text("reference", o.Reference, false)
	if !isCurrency(o.Currency) {
		f.add("currency", "want three letters, such as BRL")
	}
	if len(o.Items) == 0 || len(o.Items) > maxItems {
		f.add("items", fmt.Sprintf("want 1 to %d", maxItems))
	}
	for i, item := range o.Items[:min(len(o.Items), maxItems)] {
		at := fmt.Sprintf("items[%d].", i)
		text(at+"sku", item.SKU, true)
		if item.Quantity < 1 || item.Quantity > maxQuantity {
			f.add(at+"quantity", fmt.Sprintf("want 1 to %d", maxQuantity))
			continue
		}
		if item.UnitPrice < 0 {
			f.add(at+"unit_price", "want whole minor units, such as 1500")
			continue
		}
		if item.UnitPrice > (math.MaxInt64-o.Total)/item.Quantity {
			f.add(at+"unit_price", "the total is too large")
			break
		}
		o.Total += item.UnitPrice * item.Quantity
	}
	return f.problem()
}

func isCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
