package fault_test

import (
	"context"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/fault"
)

// joinFlow is an operation inside the caller's own transaction.
func joinFlow[Tx any]() *flow[Tx] {
	return &flow[Tx]{
		name:   "join",
		actors: []actor[Tx]{{"A", "one", join[Tx]}, {"B", "two", join[Tx]}},
		steps:  []string{fault.OwnBegin, fault.Join, fault.Handler, fault.Insert, fault.OwnCommit, fault.Rollback, fault.Look, fault.Settle},
		wants: []string{
			"replay served", "answered in-flight", "answered not-found", "answer lost", "settled as committed", "settled as rolled back",
		},
	}
}

// join is a client whose worker opens and commits a transaction itself.
func join[Tx any](s *scene[Tx], w *worker[Tx], client string) {
	s.asks(w, client, s.op, func(ctx context.Context) (unavez.Outcome, error) {
		own, err := fault.Begin(ctx, w.life, func(ctx context.Context) (Tx, func() error, func() error, error) {
			return s.bed.begin(ctx, w.life.Name())
		})
		if err != nil {
			return unavez.Outcome{}, err
		}
		defer own.Rollback(ctx)
		out, err := w.engine.Join(ctx, own.Tx, s.op, func(ctx context.Context) (unavez.Result, error) {
			return s.handles(w, client, s.op)(ctx, own.Tx)
		})
		if err != nil || out.Replayed {
			return out, err
		}
		if own.Commit(ctx) == nil {
			return out, nil
		}
		for range 3 { // whether it committed only the ledger can tell
			if out, err = w.engine.Look(ctx, s.op); err == nil || unavez.CodeOf(err) == unavez.CodeNotFound {
				return out, err
			}
		}
		return unavez.Outcome{}, &unavez.Error{Code: unavez.CodeUnresolved, Err: err}
	})
}

func TestJoinUnderEveryFault(t *testing.T) {
	t.Parallel()
	exploreAll(t, []plan{{joinFlow[tx](), single(0), far(1)}})
}
