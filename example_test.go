package unavez_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/memory"
)

// The same order twice is one order, and the same answer.
func ExampleEngine_Do() {
	store := memory.New(nil)
	engine, err := unavez.New(store, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	op := unavez.Operation{Tenant: "acme", Effect: "order.create.v1", Key: []string{"4711"}, Payload: []byte("2 x A")}
	for range 2 {
		outcome, err := engine.Do(ctx, op, func(_ context.Context, tx *memory.Tx) (unavez.Result, error) {
			tx.Put("order/4711", "2 x A")
			return unavez.Result{Code: 201, Body: []byte(`{"order":4711}`)}, nil
		})
		fmt.Println(outcome.Result.Code, string(outcome.Result.Body), "replayed:", outcome.Replayed, err)
	}
	op.Payload = []byte("9 x A")
	_, err = engine.Do(ctx, op, nil)
	fmt.Println(unavez.CodeOf(err))
	// Output:
	// 201 {"order":4711} replayed: false <nil>
	// 201 {"order":4711} replayed: true <nil>
	// key-reused
}

// The answer of the charge is lost: the next call asks the gateway before it
// does anything, and records what it finds.
func ExampleEngine_Lease() {
	store := memory.New(nil)
	engine, err := unavez.New(store, nil)
	if err != nil {
		panic(err)
	}
	charged := map[string]string{} // the gateway, by the key it was sent
	op := unavez.Operation{Tenant: "acme", Effect: "order.charge.v1", Key: []string{"4711"}, Unknown: unavez.Steps}
	run := func(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, error) {
		receipt, err := unavez.Step(ctx, attempt, "charge",
			func(_ context.Context, key string) (string, error) {
				charged[key] = "receipt-1"
				return "", errors.New("connection reset by peer")
			},
			func(_ context.Context, key string) (string, unavez.Verdict, error) {
				if receipt, ok := charged[key]; ok {
					return receipt, unavez.Done, nil
				}
				return "", unavez.NotDone, nil
			})
		return unavez.Result{Code: 201, Body: []byte(receipt)}, err
	}
	finish := func(_ context.Context, tx *memory.Tx, result *unavez.Result) error {
		tx.Put("payment/4711", string(result.Body))
		return nil
	}
	for range 2 {
		outcome, err := engine.Lease(context.Background(), op, run, finish)
		fmt.Println(outcome.Attempt, string(outcome.Result.Body), err)
	}
	payment, _ := store.Get("payment/4711")
	fmt.Println(len(charged), "charge,", payment)
	// Output:
	// 0  operation acme/order.charge.v1/4711: outcome-unknown: connection reset by peer
	// 2 receipt-1 <nil>
	// 1 charge, receipt-1
}

// A handler that says no before it has written anything: the answer is frozen.
func ExampleRefuse() {
	engine, err := unavez.New(memory.New(nil), nil)
	if err != nil {
		panic(err)
	}
	op := unavez.Operation{Tenant: "acme", Effect: "order.create.v1", Key: []string{"4711"}}
	for range 2 {
		outcome, err := engine.Do(context.Background(), op, func(context.Context, *memory.Tx) (unavez.Result, error) {
			return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 404}, errors.New("no such customer"))
		})
		fmt.Println(outcome.Result.Code, outcome.Replayed, err)
	}
	// Output:
	// 404 false <nil>
	// 404 true <nil>
}
