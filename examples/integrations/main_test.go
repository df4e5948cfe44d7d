package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/examples/integrations/withgrpc"
	"github.com/unavez/unavez/examples/integrations/withgrpc/orderpb"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/internal/testenv"
)

// database is a database of the test's own, with the tables and 100 pieces of A.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := prepare(t.Context(), testenv.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// rows counts the orders and what is left of A.
func rows(t *testing.T, pool *pgxpool.Pool) (orders, left int) {
	t.Helper()
	const text = `select (select count(*) from orders), (select quantity from stock where sku = 'A')`
	if err := pool.QueryRow(context.WithoutCancel(t.Context()), text).Scan(&orders, &left); err != nil {
		t.Fatal(err)
	}
	return orders, left
}

// reply is what a client sees: the whole answer, and what kind of answer it is.
type reply struct {
	status string
	answer string // every byte: status, header lines that matter and body
	again  bool   // marked as a replay; gRPC has no such mark
}

// sender places an order under a key.
type sender func(key string, o shop.Order) reply

// httpSender sends to a handler over a connection.
func httpSender(t *testing.T, handler http.Handler) sender {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return func(key string, o shop.Order) reply {
		body, err := json.Marshal(o)
		if err != nil {
			return reply{status: err.Error()}
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders", strings.NewReader(strings.Replace(string(body), `"id":0,`, "", 1)))
		if err != nil {
			return reply{status: err.Error()}
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Prefer", "wait=30") // a duplicate waits for the one in flight
		r.Header.Set(httpkey.KeyHeader, key)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return reply{status: err.Error()}
		}
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		if err != nil {
			return reply{status: err.Error()}
		}
		all := response.Status + "\n" + response.Header.Get("Content-Type") + "\n" + string(got)
		return reply{response.Status, all, response.Header.Get(httpkey.ReplayedHeader) == "true"}
	}
}

// grpcSender sends to the gRPC server over a connection.
func grpcSender(t *testing.T, pool *pgxpool.Pool) sender {
	t.Helper()
	server, err := withgrpc.New(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	orders := orderpb.NewOrdersClient(conn)
	return func(key string, o shop.Order) reply {
		in := &orderpb.PlaceRequest{RequestId: key, Customer: o.Customer, Sku: o.SKU, Quantity: o.Quantity}
		out, err := orders.Place(t.Context(), in)
		if err != nil {
			return reply{status: status.Convert(err).Code().String() + " " + status.Convert(err).Message()}
		}
		body, err := proto.Marshal(out)
		if err != nil {
			return reply{status: err.Error()}
		}
		return reply{status: "OK", answer: string(body)}
	}
}

// words are the statuses of a way to send.
type words struct{ placed, soldOut, mismatch string }

func TestTheSameOrderIsWrittenOnceAndAnsweredOnceWithEveryLibrary(t *testing.T) {
	t.Parallel()
	for name, open := range shops() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			handler, err := open(t.Context(), pool)
			if err != nil {
				t.Fatal(err)
			}
			tryShop(t, pool, httpSender(t, handler), words{"201 Created", "409 Conflict", "422 Unprocessable Entity"})
		})
	}
	t.Run("grpc", func(t *testing.T) {
		t.Parallel()
		pool := database(t)
		tryShop(t, pool, grpcSender(t, pool), words{"OK", "FailedPrecondition sold out", "InvalidArgument key-reused"})
	})
}

// tryShop sends what a client that retries sends.
func tryShop(t *testing.T, pool *pgxpool.Pool, send sender, want words) {
	t.Helper()
	mark := want.placed != "OK" // a replay is marked
	one := shop.Order{Customer: "c-1", SKU: "A", Quantity: 2}

	first, second := send("k-1", one), send("k-1", one)
	if first.status != want.placed || first.again || first.answer == "" {
		t.Fatalf("first: %+v", first)
	}
	if second.answer != first.answer || second.again != mark {
		t.Errorf("again: got %+v, want %+v", second, first)
	}
	other := one
	other.Quantity = 3
	if got := send("k-1", other); got.status != want.mismatch {
		t.Errorf("another order under the same key: %+v", got)
	}
	if orders, left := rows(t, pool); orders != 1 || left != 98 {
		t.Errorf("%d orders, %d left, want 1 and 98", orders, left)
	}

	const many = 8
	replies := make([]reply, many)
	var senders sync.WaitGroup
	for i := range replies {
		senders.Go(func() { replies[i] = send("k-2", one) })
	}
	senders.Wait()
	replays := 0
	for _, r := range replies {
		if r.status != want.placed || r.answer != replies[0].answer {
			t.Errorf("%d at once: got %+v and %+v", many, r, replies[0])
		}
		if r.again {
			replays++
		}
	}
	if mark && replays != many-1 {
		t.Errorf("%d at once: %d replays", many, replays)
	}
	if orders, left := rows(t, pool); orders != 2 || left != 96 {
		t.Errorf("%d orders, %d left, want 2 and 96", orders, left)
	}

	// The order is written before the stock turns out to be too small.
	large := shop.Order{Customer: "c-1", SKU: "A", Quantity: 1000}
	for range 2 {
		if got := send("k-3", large); got.status != want.soldOut || got.again {
			t.Errorf("sold out: got %+v, want it rolled back and the key free", got)
		}
	}
	if orders, left := rows(t, pool); orders != 2 || left != 96 {
		t.Errorf("after an error: %d orders, %d left, want 2 and 96", orders, left)
	}
	if _, err := pool.Exec(t.Context(), `update stock set quantity = 1000`); err != nil {
		t.Fatal(err)
	}
	first, second = send("k-3", large), send("k-3", large)
	if first.status != want.placed || first.again || second.answer != first.answer || second.again != mark {
		t.Errorf("after the delivery: got %+v and %+v", first, second)
	}
	if orders, left := rows(t, pool); orders != 3 || left != 0 {
		t.Errorf("%d orders, %d left, want 3 and 0", orders, left)
	}
}
