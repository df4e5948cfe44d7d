package torture

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez"
)

// leases are the protocols whose effect is outside. Those with a Redis are cut
// there or at the database.
func leases(withRedis bool) []exchange {
	charged := func(how how, by func(*unavez.Operation)) func(context.Context, *Bed, route) (*client, error) {
		return func(ctx context.Context, b *Bed, to route) (*client, error) {
			w, err := newWorker(ctx, b, to, how)
			return made(w, err, func(ctx context.Context, w *worker, operation string) (string, error) {
				op := operationOf("charge", operation)
				by(&op)
				return charge(ctx, w, op)
			})
		}
	}
	steps := func(op *unavez.Operation) { op.Unknown = unavez.Steps }
	byLease := func(op *unavez.Operation) { op.Unknown, op.ClaimByLease = unavez.Retry, true }
	all := []exchange{
		{name: "lease", open: charged(how{}, steps)},
		{name: "lease-at-rest", open: restless},
	}
	if withRedis {
		fast := how{withFast: true}
		all = append(all,
			exchange{name: "lease-redis", redis: true, open: charged(fast, steps)},
			exchange{name: "claim-by-redis", redis: true, open: charged(fast, byLease)},
			exchange{name: "claim-by-redis-database", open: charged(fast, byLease)},
		)
	}
	for i := range all {
		all[i].rows, all[i].calls = 1, true
	}
	return all
}

// charge is an operation in lease mode: one outside call as a step, for longer
// than a third of its lease, so that this is renewed; then its rows.
func charge(ctx context.Context, w *worker, op unavez.Operation) (string, error) {
	name := op.Key[0]
	return answerOf(w.engine.Lease(ctx, op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
		call := func(_ context.Context, key string) (string, error) { return w.bed.outside.call(name, key), nil }
		probe := func(_ context.Context, key string) (string, unavez.Verdict, error) {
			if receipt, made := w.bed.outside.made(name, key); made {
				return receipt, unavez.Done, nil
			}
			return "", unavez.NotDone, nil
		}
		receipt, err := unavez.Step(ctx, a, "charge", call, probe)
		if err != nil {
			return unavez.Result{}, err
		}
		longer := time.NewTimer(leaseLength/3 + 50*time.Millisecond)
		defer longer.Stop()
		select {
		case <-longer.C:
		case <-ctx.Done():
			return unavez.Result{}, context.Cause(ctx)
		}
		return unavez.Result{Code: 201, Body: []byte(receipt)}, nil
	}, finish(name)))
}

// finish writes the rows of an operation, and puts them into its answer.
func finish(name string) func(context.Context, pgx.Tx, *unavez.Result) error {
	return func(ctx context.Context, tx pgx.Tx, result *unavez.Result) error {
		answer, err := effect(ctx, pgxWriter{tx}, name)
		result.Body = append(append(result.Body, ", "...), answer...)
		return err
	}
}

// restless is lease mode by way of rest: an operation whose first attempt sends
// nothing, whose second ends without telling, and whose third is made because
// the outside says that nothing was.
func restless(ctx context.Context, b *Bed, to route) (*client, error) {
	var mu sync.Mutex
	attempts := map[string]int{}
	next := func(operation string) int {
		mu.Lock()
		defer mu.Unlock()
		attempts[operation]++
		return attempts[operation]
	}
	w, err := newWorker(ctx, b, to, how{})
	return made(w, err, func(ctx context.Context, w *worker, operation string) (string, error) {
		op := operationOf("restless", operation)
		op.Unknown = unavez.Probe(func(_ context.Context, a *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
			if receipt, made := b.outside.made(operation, a.DerivedKey()); made {
				return unavez.Result{Code: 201, Body: []byte(receipt)}, unavez.Done, nil
			}
			return unavez.Result{}, unavez.NotDone, nil
		})
		return answerOf(w.engine.Lease(ctx, op, func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
			switch next(operation) {
			case 1:
				return unavez.Result{}, unavez.NeverStarted(errors.New("nothing was sent"))
			case 2:
				return unavez.Result{}, errors.New("no answer")
			}
			return unavez.Result{Code: 201, Body: []byte(b.outside.call(operation, a.DerivedKey()))}, nil
		}, finish(operation)))
	})
}
