package memory_test

import (
	"context"
	"fmt"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/memory"
)

// An order that arrives twice is written once, and answered alike.
func Example() {
	ctx := context.Background()
	orders := memory.New(nil)
	engine, err := unavez.New(orders, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(ctx)

	order := unavez.Operation{Tenant: "acme", Effect: "order.create.v1", Key: []string{"c-1", "1001"}}
	for range 2 {
		outcome, err := engine.Do(ctx, order, func(_ context.Context, tx *memory.Tx) (unavez.Result, error) {
			fmt.Println("the handler runs")
			return unavez.Result{Code: 201, Body: []byte("order 1001")}, tx.Put("orders/1001", "c-1")
		})
		fmt.Println(outcome.Result.Code, string(outcome.Result.Body), "replayed:", outcome.Replayed, err)
	}
	fmt.Println(orders.All())
	// Output:
	// the handler runs
	// 201 order 1001 replayed: false <nil>
	// 201 order 1001 replayed: true <nil>
	// map[orders/1001:c-1]
}
