package httpkey_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/memory"
)

// post sends one keyed request and shows the answer.
func post(h http.Handler, key, body string) {
	r := httptest.NewRequest("POST", "/orders", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()), "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
}

func ExampleLayer_Handle() {
	engine, err := unavez.New(memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())
	caller := func(*http.Request) (httpkey.Scope, error) { // from your authentication
		return httpkey.Scope{Tenant: "acme", Principal: "alice"}, nil
	}
	layer, err := httpkey.New(engine, caller, nil)
	if err != nil {
		log.Fatal(err)
	}
	orders := 0
	create := layer.Handle(func(w http.ResponseWriter, r *http.Request, tx *memory.Tx) error {
		if r.ContentLength == 0 {
			return httpkey.Errorf(http.StatusBadRequest, "an order needs items")
		}
		orders++
		tx.Put(fmt.Sprintf("order/%d", orders), "c-1")
		w.WriteHeader(http.StatusCreated)
		_, err := fmt.Fprintf(w, `{"id":%d}`, orders)
		return err
	})
	post(create, "key-1", "2 of A")
	post(create, "key-1", "2 of A")
	post(create, "key-2", "1 of B")
	// Output:
	// 201 {"id":1} replayed: false
	// 201 {"id":1} replayed: true
	// 201 {"id":2} replayed: false
}

func ExampleLayer_Wrap() {
	engine, err := unavez.New(memory.New(nil), &unavez.Options{SingleTenant: true})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())
	layer, err := httpkey.New(engine, nil, &httpkey.Options{SingleTenant: true})
	if err != nil {
		log.Fatal(err)
	}
	runs := 0
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		if tx, ok := httpkey.Tx[*memory.Tx](r.Context()); ok {
			tx.Put("run", fmt.Sprint(runs))
		}
		if runs == 1 {
			http.Error(w, "try again", http.StatusServiceUnavailable) // rolls back, the key is free
			return
		}
		io.WriteString(w, "done")
	})
	h := layer.Wrap(plain)
	post(h, "key-1", "")
	post(h, "key-1", "")
	post(h, "key-1", "")
	// Output:
	// 503 try again replayed: false
	// 200 done replayed: false
	// 200 done replayed: true
}

func ExampleTransport() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Idempotency-Key"))
	}))
	defer srv.Close()
	client := &http.Client{Transport: &httpkey.Transport{}}
	ctx := httpkey.WithKey(context.Background(), "order-4711") // or none, for a random one
	r, err := http.NewRequestWithContext(ctx, "POST", srv.URL, strings.NewReader("{}"))
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(body))
	// Output: "order-4711"
}
