package fault_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/fault"
	"github.com/unavez/unavez/store"
)

// before is a worker that has claimed the operation and is gone.
func before[Tx any](s *scene[Tx]) *worker[Tx] {
	w := s.start("before")
	if a, v, err := w.store.Claim(context.Background(), s.claim(0)); a == nil {
		s.breaks("I16", "prepare: %v, %v", v.State, err)
	}
	return w
}

// claim is what the engine would ask for.
func (s *scene[Tx]) claim(from int64) store.Claim {
	id := s.op.Identity()
	return store.Claim{Gate: s.gate(from), Lease: leaseLength, DerivedKey: id.DerivedKey("")}
}

// gate is the one that the engine would use.
func (s *scene[Tx]) gate(from int64) store.Gate {
	sum := sha256.Sum256(s.op.Payload)
	return store.Gate{
		Identity: s.op.Identity(), Key: s.key, Fingerprint: store.Fingerprint{Sum: sum[:]}, From: from,
		Limit: unavez.DefaultLimit, Retention: retention, Tombstone: tombstone,
	}
}

// rests puts the attempt that before has claimed to rest.
func rests[Tx any](s *scene[Tx], state store.State) {
	if err := before(s).store.Rest(context.Background(), s.key, 1, store.Rest{State: state, Reason: "prepared"}); err != nil {
		s.breaks("I16", "prepare: %v", err)
	}
}

// expired leaves the claim of before to run out.
func expired[Tx any](s *scene[Tx]) {
	before(s)
	s.bed.jump(s.key, overLease)
}

// zombie is the worker of the first attempt, which wakes up and goes on where it
// stood: before its call.
func zombie[Tx any](s *scene[Tx], w *worker[Tx], name string) {
	ctx := context.Background()
	const fence = 1
	charge, err := s.call(ctx, w, fence, "", s.op.Identity().DerivedKey(""))
	if err != nil {
		return
	}
	s.ask(w, name, s.op, func(ctx context.Context) (unavez.Outcome, error) {
		txn, err := w.store.Finish(ctx, s.gate(0), fence)
		if err != nil {
			return unavez.Outcome{}, err
		}
		defer func() { _ = txn.Rollback(ctx) }() // as the engine does
		answer := result(charge)
		if err := s.finishes(w, name, s.op)(ctx, txn.Tx(), &answer); err != nil {
			return unavez.Outcome{}, err
		}
		out, err := txn.Commit(ctx, store.End{State: store.Completed, Result: answer})
		if errors.Is(err, store.ErrCommitUnknown) {
			return unavez.Outcome{}, &unavez.Error{Code: unavez.CodeUnresolved, Err: err}
		}
		if err != nil {
			return unavez.Outcome{}, err
		}
		return *out, nil
	})
}

// decides is a person who looks and decides, so many times.
func decides[Tx any](times int, decision func(ctx context.Context, people store.Operations, action store.Action) error) func(*scene[Tx], *worker[Tx], string) {
	return func(s *scene[Tx], w *worker[Tx], name string) {
		action := store.Action{Key: s.key, Actor: name, Reason: "looked at the gateway's log"}
		for range times {
			record, _, _, err := w.people.Show(context.Background(), s.key)
			if err != nil || record.State.Final() {
				return
			}
			action.Fence = record.Attempt
			if err := decision(context.Background(), w.people, action); err == nil {
				s.saw("decided by " + name)
			}
		}
	}
}

// retryFlow is a retryable attempt that is due: lease mode and transaction mode
// want to take it over.
func retryFlow[Tx any]() *flow[Tx] {
	f := leaseFlow[Tx]("retryable", unavez.Retry)
	f.prepare = func(s *scene[Tx]) { rests(s, store.Retryable) }
	f.actors = []actor[Tx]{
		{"A", "one", leaseMode[Tx]},
		{"B", "two", func(s *scene[Tx], w *worker[Tx], client string) {
			op := s.op
			op.OwnsRetries = true
			s.do(w, client, op)
		}},
		{"C", "two", do[Tx]},
	}
	f.steps = append(f.steps, fault.Gate)
	f.wants = []string{"replay served", "answered operation-retrying", "takeover"}
	return f
}

// takeoverFlow is an expired claim that two workers and the upkeep come upon.
func takeoverFlow[Tx any]() *flow[Tx] {
	f := leaseFlow[Tx]("expired", unavez.Retry)
	f.prepare = expired[Tx]
	f.actors = []actor[Tx]{
		{"A", "one", leaseMode[Tx]},
		{"B", "two", leaseMode[Tx]},
		{"K", "three", func(s *scene[Tx], w *worker[Tx], _ string) {
			if found, err := w.keeper.Expire(context.Background(), 100); err == nil && len(found) > 0 {
				s.saw("found expired")
			}
		}},
	}
	f.steps = append(f.steps, fault.Expire)
	f.wants = append(f.wants, "found expired")
	return f
}

// redriveFlow is a dead operation that a person lets run again, twice by mistake,
// while the worker of its first attempt wakes up and its sender sends again.
func redriveFlow[Tx any]() *flow[Tx] {
	f := leaseFlow[Tx]("redrive", unavez.Retry)
	f.prepare = expired[Tx]
	f.actors = []actor[Tx]{
		{"A", "one", zombie[Tx]},
		{"B", "two", func(s *scene[Tx], w *worker[Tx], client string) { // fails for good, then sends again
			if a, _, err := w.store.Claim(context.Background(), s.claim(1)); err == nil && a != nil {
				if w.store.Rest(context.Background(), s.key, a.Fence, store.Rest{State: store.Dead, Reason: "declined"}) == nil {
					s.saw("dead")
				}
			}
			leaseMode(s, w, client)
		}},
		{"anna", "three", decides[Tx](2, func(ctx context.Context, people store.Operations, action store.Action) error {
			return people.Redrive(ctx, action)
		})},
	}
	f.rest = func(s *scene[Tx]) { // who is dead goes on when a person says so
		v, err := s.bed.store.Look(context.Background(), s.key)
		if err == nil && v.State == store.Dead {
			action := store.Action{Key: s.key, Actor: "bruno", Reason: "the last one"}
			if err := s.bed.store.Redrive(context.Background(), action); err != nil {
				s.breaks("I16", "redrive: %v", err)
			}
		}
		restByLease(s)
	}
	f.steps = []string{fault.Claim, fault.Call, fault.Finish, fault.Handler, fault.Commit, fault.Rest, fault.Show, fault.Redrive}
	f.wants = []string{"replay served", "answered operation-dead", "takeover", "zombie refused", "dead", "decided by anna"}
	return f
}

// personFlow is an operation that is held, which one person ends and another lets
// go on, while its worker wakes up.
func personFlow[Tx any]() *flow[Tx] {
	f := leaseFlow[Tx]("person", unavez.Hold)
	f.forgetful = false // the worker may call although a person has let it go on
	f.prepare = expired[Tx]
	f.actors = []actor[Tx]{
		{"A", "one", zombie[Tx]},
		{"anna", "two", decides[Tx](1, func(ctx context.Context, people store.Operations, action store.Action) error {
			return people.Complete(ctx, action, result("charge 1"), retention, tombstone)
		})},
		{"bruno", "three", decides[Tx](1, func(ctx context.Context, people store.Operations, action store.Action) error {
			return people.Release(ctx, action)
		})},
		{"B", "two", leaseMode[Tx]},
	}
	f.steps = []string{fault.Call, fault.Finish, fault.Handler, fault.Commit, fault.Show, fault.Complete, fault.Release, fault.Claim}
	f.wants = []string{"replay served", "answered outcome-unknown", "decided by anna", "decided by bruno", "zombie refused", "takeover"}
	return f
}

func TestAttemptsAtRestUnderEveryFault(t *testing.T) {
	t.Parallel()
	exploreAll(t, []plan{
		{retryFlow[tx](), bounds{faults: 1}, far(0)},
		{takeoverFlow[tx](), bounds{faults: 1}, far(0)},
		{redriveFlow[tx](), bounds{faults: 1}, far(0)},
		{personFlow[tx](), bounds{faults: 1}, []bounds{single(0)}},
	})
}

// purgeFlow is a result whose time is nearly over: duplicates, the purge and the
// end of the retention come in any order.
func purgeFlow[Tx any](name string, over []time.Duration, wants ...string) *flow[Tx] {
	return &flow[Tx]{
		name: "purge, " + name,
		prepare: func(s *scene[Tx]) {
			do(s, s.start("before"), "before")
			s.kept = s.bed.now()
			s.bed.jump(s.key, retention-time.Second)
		},
		actors: []actor[Tx]{
			{"A", "one", do[Tx]},
			{"K", "two", func(s *scene[Tx], w *worker[Tx], _ string) {
				for range 2 {
					if n, err := w.keeper.Purge(context.Background(), 100); err == nil && n > 0 {
						s.saw("purged")
					}
				}
			}},
			{"clock", "three", func(s *scene[Tx], w *worker[Tx], _ string) {
				for _, d := range over {
					if w.life.At(context.Background(), "tick", nil) == nil {
						s.bed.jump(s.key, d)
					}
				}
			}},
			{"B", "three", do[Tx]},
		},
		rest: func(s *scene[Tx]) {
			s.restByDo()
			s.auditRetention()
		},
		steps: []string{fault.Gate, fault.Purge},
		wants: append(wants, "replay served", "purged"),
	}
}

// auditRetention wants every run after the first to have begun when nothing of it
// had to be remembered any more. What such a run has made is another operation's:
// the first one's row and answers are left out of the further audit.
func (s *scene[Tx]) auditRetention() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, run := range s.runs[1:] {
		if age := run.at.Sub(s.kept); age < retention+tombstone {
			s.broken = append(s.broken, violation{"I12", run.name + " began " + age.String() + " after the outcome"})
			continue
		}
		s.seen["ran anew"]++
		s.forgotten = s.runs[0].name
	}
	s.answers = slices.DeleteFunc(s.answers, func(a answer) bool {
		return s.forgotten != "" && a.outcome != nil && string(a.outcome.Result.Body) == s.forgotten
	})
}

func TestRetentionUnderEveryFault(t *testing.T) {
	t.Parallel()
	exploreAll(t, []plan{
		{purgeFlow[tx]("result", []time.Duration{2 * time.Second}, "answered key-expired"), bounds{faults: 1}, far(0)},
		{purgeFlow[tx]("identity", []time.Duration{2 * time.Second, tombstone}, "ran anew"), bounds{faults: 1}, far(0)},
	})
}
