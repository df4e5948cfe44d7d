package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
)

// engineOn is the engine over a worker, without a cache.
func engineOn(t *testing.T, w *worker) *unavez.Engine[pgx.Tx] {
	t.Helper()
	engine, err := unavez.New(w.Store, &unavez.Options{SingleTenant: true, CacheSize: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		must(t, "Close", engine.Close(ctx))
	})
	return engine
}

// modes run an operation that writes one row after what happens in it.
var modes = map[string]func(ctx context.Context, e *unavez.Engine[pgx.Tx], op unavez.Operation, during func()) (unavez.Outcome, error){
	"transaction mode": func(ctx context.Context, e *unavez.Engine[pgx.Tx], op unavez.Operation, during func()) (unavez.Outcome, error) {
		return e.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			during()
			return unavez.Result{Body: []byte(op.Key[0])}, write(ctx, tx, op.Key[0])
		})
	},
	"lease mode": func(ctx context.Context, e *unavez.Engine[pgx.Tx], op unavez.Operation, during func()) (unavez.Outcome, error) {
		return e.Lease(ctx, op, func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			during()
			return unavez.Result{Body: []byte(op.Key[0])}, nil
		}, func(ctx context.Context, tx pgx.Tx, _ *unavez.Result) error { return write(ctx, tx, op.Key[0]) })
	},
}

// Two workers have two connections each. One operation is slow, and 31
// duplicates of it come in at both: none may hold a connection, and everybody
// else goes on.
func TestDuplicatesOfASlowOperationHoldNoConnection(t *testing.T) {
	t.Parallel()
	for name, run := range modes {
		for _, wait := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprintf("%s, waiting %v", name, wait), func(t *testing.T) {
				t.Parallel()
				d := fresh(t, nil)
				var workers [2]*worker
				var engines [2]*unavez.Engine[pgx.Tx]
				for i := range workers {
					workers[i] = d.worker(t, nil, func(c *pgxpool.Config) { c.MaxConns = 2 })
					engines[i] = engineOn(t, workers[i])
				}
				slow := unavez.Operation{Effect: "order.v1", Key: []string{"slow"}, Limit: time.Minute, Lease: time.Minute}
				running, release := make(chan struct{}), make(chan struct{})
				first := make(chan error, 1)
				go func() {
					_, err := run(t.Context(), engines[0], slow, func() { close(running); <-release })
					first <- err
				}()
				<-running
				acquired := workers[0].pool.Stat().AcquireCount()
				const duplicates = 31
				ended := make(chan error, duplicates)
				trips := workers[1].wire.count(func() {
					for i := range duplicates {
						go func() {
							op := slow
							op.Wait = wait
							out, err := run(t.Context(), engines[i%2], op, func() { t.Error("a duplicate ran") })
							if err == nil && (!out.Replayed || string(out.Result.Body) != "slow") {
								err = fmt.Errorf("answered %+v", out)
							}
							ended <- err
						}()
					}
					for range duplicates {
						if wait > 0 {
							break
						}
						if err := <-ended; unavez.CodeOf(err) != unavez.CodeInFlight {
							t.Errorf("a duplicate in flight: %v", err)
						}
					}
				})
				if got := workers[0].pool.Stat().AcquireCount() - acquired; wait == 0 && got != 0 {
					t.Errorf("duplicates at the slow one's worker took %d connections", got)
				}
				if at := duplicates / 2; wait == 0 && trips > 2*at+2 { // and one connection's first look
					t.Errorf("%d duplicates at the other worker took %d trips", at, trips)
				}
				var others sync.WaitGroup
				for i := range 40 {
					others.Go(func() {
						op := unavez.Operation{Effect: "order.v1", Key: []string{fmt.Sprint(i)}}
						if _, err := run(t.Context(), engines[i%2], op, func() {}); err != nil {
							t.Errorf("another operation: %v", err)
						}
					})
				}
				others.Wait()
				for i, w := range workers {
					want := int32(0)
					if i == 0 && name == "transaction mode" {
						want = 1 // the slow one's own
					}
					eventually(t, "connections are given back", func() bool { return w.pool.Stat().AcquiredConns() == want })
				}
				select {
				case err := <-ended:
					t.Errorf("a duplicate did not wait: %v", err)
				default:
				}
				close(release)
				must(t, "the slow one", <-first)
				for range duplicates {
					if wait == 0 {
						break
					}
					must(t, "a duplicate that waited", <-ended)
				}
				if n := ask[int](t, d, "SELECT count(*) FROM public.business"); n != 41 {
					t.Errorf("%d rows, want 41", n)
				}
			})
		}
	}
}

func TestReplaysInARowTakeOneTripEach(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil, func(c *pgxpool.Config) { c.MaxConns = 1 })
	engine := engineOn(t, w)
	do := func(mode string, n int) func() {
		return func() {
			if _, err := modes[mode](t.Context(), engine, unavez.Operation{Effect: mode, Key: []string{fmt.Sprint(n)}}, func() {}); err != nil {
				t.Error(err)
			}
		}
	}
	for mode := range modes {
		for n := range 20 {
			do(mode, n)()
		}
		for n := range 10 { // statements are prepared, and it is known what comes
			do(mode, n)()
		}
		for n := 10; n < 20; n++ {
			if got := w.wire.count(do(mode, n)); got != 1 {
				t.Errorf("%s: a replay takes %d trips, want 1", mode, got)
			}
		}
	}
}
