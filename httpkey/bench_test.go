package httpkey_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/memory"
)

func benchLayer(b testing.TB) http.Handler {
	b.Helper()
	engine, err := unavez.New(memory.New(nil), &unavez.Options{SingleTenant: true})
	if err != nil {
		b.Fatal(err)
	}
	layer, err := httpkey.New(engine, nil, quiet())
	if err != nil {
		b.Fatal(err)
	}
	return layer.Handle(func(w http.ResponseWriter, _ *http.Request, tx *memory.Tx) error {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, `{"id":1}`)
		return err
	})
}

func bench(b *testing.B, h http.Handler, key func(i int) string) {
	b.Helper()
	const body = `{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500}]}`
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key(i))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			b.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}

func BenchmarkReplayFromMemory(b *testing.B) {
	bench(b, benchLayer(b), func(int) string { return "the same" })
}

func BenchmarkNewKey(b *testing.B) {
	bench(b, benchLayer(b), func(i int) string { return fmt.Sprintf("key-%d", i) })
}

// BenchmarkNoLayer is what the harness of the others costs by itself.
func BenchmarkNoLayer(b *testing.B) {
	bench(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }), func(int) string { return "k" })
}
