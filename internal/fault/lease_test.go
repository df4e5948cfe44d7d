package fault_test

import (
	"context"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/fault"
	"github.com/unavez/unavez/lease"
)

// leaseFlow is lease mode under one policy: one operation, two workers.
func leaseFlow[Tx any](name string, policy unavez.Unknown, wants ...string) *flow[Tx] {
	f := &flow[Tx]{
		name: "lease, " + name,
		op:   unavez.Operation{Unknown: policy},
		actors: []actor[Tx]{
			{"A", "one", leaseMode[Tx]},
			{"B", "two", leaseMode[Tx]},
		},
		// Where the other system honours keys a second call goes unseen: only what
		// is repeatable may rely on that.
		forgetful: policy != unavez.Unknown(unavez.Retry),
		rest:      restByLease[Tx],
		audit:     auditLease[Tx],
		steps: []string{
			fault.Claim, fault.Run, fault.Call, fault.Finish, fault.Handler, fault.Commit, fault.Rest, fault.Rollback, fault.Settle,
		},
		wants: append(wants, "replay served", "answered in-flight", "saw unknown", "late arrival", "takeover"),
	}
	if policy != unavez.Unknown(unavez.Hold) {
		f.wants = append(f.wants, "answered lease-lost", "zombie refused")
	}
	return f
}

// third adds a worker.
func third[Tx any](f *flow[Tx]) *flow[Tx] {
	f.name += ", three workers"
	f.actors = append(f.actors, actor[Tx]{"C", "three", leaseMode[Tx]})
	return f
}

// longFlow works for longer than a lease, renewing it.
func longFlow[Tx any]() *flow[Tx] {
	f := leaseFlow[Tx]("long work", unavez.Retry)
	f.takes = leaseLength * 3 / 2
	f.steps = append(f.steps, fault.Renew)
	return f
}

// fastFlow lets the fast lease take the claim's place. Whatever it does, there is
// one outcome and one row.
func fastFlow[Tx any](name string, liar func(fault.FastLease) fault.FastLease, wants ...string) *flow[Tx] {
	f := leaseFlow[Tx]("by "+name, unavez.Retry)
	f.op.ClaimByLease = true
	f.options = func(s *scene[Tx], w *worker[Tx]) *unavez.Options {
		return &unavez.Options{Leaser: fault.NewLeaser(w.life, liar(s.fast), s.fast.forget)}
	}
	f.steps = append(f.steps, fault.Acquire, fault.Look, fault.GiveBack, fault.Mark)
	f.wants = append(wants, "replay served", "saw unknown")
	return f
}

// grantsAll gives every lease to everybody.
type grantsAll struct{ fault.FastLease }

func (g grantsAll) Acquire(context.Context, string, lease.Value, time.Duration) (bool, lease.Value, time.Duration, error) {
	return true, lease.Value{}, 0, nil
}

// deniesAll says that somebody else holds every lease.
type deniesAll struct{ fault.FastLease }

func (deniesAll) Acquire(_ context.Context, _ string, v lease.Value, life time.Duration) (bool, lease.Value, time.Duration, error) {
	v.Token = "another's"
	return false, v, life, nil
}

// probing is the policy of a probe; the scene knows what it asks.
func probing() unavez.Unknown { return unavez.Probe(nil) }

// auditLease holds the other system's log to the policy.
func auditLease[Tx any](s *scene[Tx]) {
	id := s.op.Identity()
	names := []string{""}
	if s.op.Unknown == unavez.Unknown(unavez.Steps) {
		names = steps()
	}
	for _, name := range names {
		s.auditCalls(name, id.DerivedKey(name), s.op.Unknown)
		if s.flow.forgetful {
			continue
		}
		if n := s.outside.effects(); n > 1 {
			s.breaks("I1", "the other system has charged %d times", n)
		}
	}
}

func TestLeaseModeUnderEveryFault(t *testing.T) {
	t.Parallel()
	exploreAll(t, []plan{
		{leaseFlow[tx]("hold", unavez.Hold, "released by a person", "ended by a person"), single(0), far(1)},
		{leaseFlow[tx]("retry", unavez.Retry), single(0), far(1)},
		{leaseFlow[tx]("probe", probing(), "probe asked", "probe said done", "probe could not tell"), single(0), far(1)},
		{leaseFlow[tx]("steps", unavez.Steps, "probe asked", "probe said done"), bounds{faults: 1}, far(1)},
		{longFlow[tx](), bounds{faults: 1}, far(0)},
		{third(leaseFlow[tx]("probe", probing(), "probe asked", "probe said done")), bounds{faults: 1}, far(0)},
		{third(leaseFlow[tx]("retry", unavez.Retry)), bounds{faults: 1}, far(0)},
	})
}

func TestFastLeaseUnderEveryFault(t *testing.T) {
	t.Parallel()
	honest := func(l fault.FastLease) fault.FastLease { return l }
	grants := func(l fault.FastLease) fault.FastLease { return grantsAll{l} }
	denies := func(l fault.FastLease) fault.FastLease { return deniesAll{l} }
	slow := fastFlow[tx]("fast lease, long work", honest, "saw leased", "saw claimed")
	slow.takes = leaseLength / 2
	slow.steps = append(slow.steps, fault.Renew, fault.Prolong)
	granted := fastFlow[tx]("one that grants all", grants, "saw leased")
	granted.steps = []string{fault.Acquire, fault.Look, fault.Call, fault.Finish, fault.Commit, fault.GiveBack, fault.Mark}
	denied := fastFlow[tx]("one that denies all", denies, "saw claimed", "answered in-flight")
	denied.patience = overLease
	denied.steps = []string{fault.Acquire, fault.Claim, fault.Call, fault.Finish, fault.Commit}
	exploreAll(t, []plan{
		{fastFlow[tx]("fast lease", honest, "saw leased", "answered in-flight"), single(0), far(1)},
		{granted, single(0), far(1)},
		{denied, single(0), far(1)},
		{slow, single(0), far(1)},
	})
}
