package fault_test

import (
	"context"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/fault"
)

// doFlow is transaction mode: one operation, two workers.
func doFlow[Tx any]() *flow[Tx] {
	return &flow[Tx]{
		name: "do",
		actors: []actor[Tx]{
			{"A", "one", do[Tx]},
			{"B", "two", do[Tx]},
		},
		steps: doSteps(),
		wants: []string{
			"replay served", "answered in-flight", "answered limit-exceeded", "answered transaction-aborted", "answer lost",
			"saw rolled-back", "settled as committed", "settled as rolled back",
		},
	}
}

func doSteps() []string {
	return []string{fault.Gate, fault.Handler, fault.Commit, fault.Rollback, fault.Settle}
}

// crowdFlow is the same with a second client at one of the workers, which has the
// same key for something else.
func crowdFlow[Tx any]() *flow[Tx] {
	return &flow[Tx]{
		name: "do, three clients",
		actors: []actor[Tx]{
			{"A", "one", do[Tx]},
			{"B", "two", do[Tx]},
			{"C", "one", forger[Tx]},
		},
		rest:  restByWinner[Tx],
		steps: doSteps(),
		wants: []string{"replay served", "answered in-flight", "answered key-reused", "answer lost"},
	}
}

// waitFlow has a duplicate that waits for the one in flight at the other worker.
func waitFlow[Tx any]() *flow[Tx] {
	return &flow[Tx]{
		name:   "do, waiting",
		op:     unavez.Operation{Wait: time.Minute},
		jitter: true,
		actors: []actor[Tx]{{"A", "one", do[Tx]}, {"B", "two", do[Tx]}},
		steps:  append(doSteps(), fault.Peek),
		wants:  []string{"replay served", "answer lost"},
	}
}

// forger is a client that uses the key with another payload.
func forger[Tx any](s *scene[Tx], w *worker[Tx], client string) {
	op := s.op
	op.Payload = []byte("99 EUR")
	s.do(w, client, op)
}

// restByWinner comes to rest with the payload that was first.
func restByWinner[Tx any](s *scene[Tx]) {
	for _, payload := range s.bed.rows(s.key) {
		s.op.Payload = []byte(payload)
	}
	s.restByDo()
}

// refuseFlow is a handler that says no for good.
func refuseFlow[Tx any]() *flow[Tx] {
	refuse := func(s *scene[Tx], w *worker[Tx], client string) {
		s.asks(w, client, s.op, func(ctx context.Context) (unavez.Outcome, error) {
			return w.engine.Do(ctx, s.op, s.refuses(w, client))
		})
	}
	return &flow[Tx]{
		name:   "refuse",
		actors: []actor[Tx]{{"A", "one", refuse}, {"B", "two", refuse}},
		rest: func(s *scene[Tx]) {
			w := s.start("rest")
			s.untilFinal(func(ctx context.Context) (unavez.Outcome, error) { return w.engine.Do(ctx, s.op, s.refuses(w, "rest")) }, w)
			s.rowless = true // a refusal has no business row
			if rows := s.bed.rows(s.key); len(rows) > 0 {
				s.breaks("I8", "refused, and committed: %v", rows)
			}
		},
		steps: doSteps(),
		wants: []string{"replay served", "answered in-flight"},
	}
}

// refuses writes nothing and answers no.
func (s *scene[Tx]) refuses(w *worker[Tx], client string) func(context.Context, Tx) (unavez.Result, error) {
	return func(ctx context.Context, tx Tx) (unavez.Result, error) {
		s.ran(client, string(s.op.Payload))
		if err := w.life.At(ctx, fault.Handler, tx); err != nil {
			return unavez.Result{}, err
		}
		return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 422, Body: []byte("sold out")}, nil)
	}
}

func TestTransactionModeUnderEveryFault(t *testing.T) {
	t.Parallel()
	exploreAll(t, []plan{
		{doFlow[tx](), single(1), far(3)},
		{crowdFlow[tx](), single(0), far(1)},
		{waitFlow[tx](), single(1), far(2)},
		{refuseFlow[tx](), single(1), far(3)},
	})
}
