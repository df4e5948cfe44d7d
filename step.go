package unavez

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// Attempt is one run of an operation in lease mode, handed to the code that
// makes its outside calls. Its methods may be called concurrently.
type Attempt struct {
	identity store.Identity
	key      store.Key
	derived  string
	created  time.Time
	changed  time.Time
	policy   Unknown
	save     func(ctx context.Context, step store.Step) error // nil for the view a probe gets
	fast     *fastLease
	began    time.Time // when it asked for the fast lease, if that stands for its claim

	claiming sync.Mutex // held while the claim is made of an attempt that has none
	mu       sync.Mutex
	fence    int64     // 0 while only the fast lease stands for it
	until    time.Time // monotonic: the lease is ours before it
	steps    map[string]store.Step
}

// newAttempt wraps a claimed row; a later attempt reads the steps of the
// earlier ones.
func (e *Engine[Tx]) newAttempt(ctx context.Context, c *call, row *store.Attempt, at time.Time) (*Attempt, error) {
	a := viewOf(c, row)
	a.until = at.Add(c.op.Lease)
	a.save = e.saves(c, a)
	what := SawClaimed
	if row.Fence > 1 {
		what = SawTakenOver
		limited, cancel := context.WithTimeout(ctx, c.op.Limit)
		steps, err := e.attempts.Steps(limited, a.key)
		cancel()
		if err != nil {
			_, err := e.rest(ctx, c, a, fmt.Errorf("steps of the earlier attempt could not be read: %w", err))
			return nil, err
		}
		for _, s := range steps {
			a.steps[s.Name] = s
		}
	}
	e.sees(c, what, row.Fence, false, nil)
	return a, nil
}

// viewOf is an attempt that may be looked at but not worked with.
func viewOf(c *call, row *store.Attempt) *Attempt {
	return &Attempt{
		identity: c.gate.Identity, key: row.Key, fence: row.Fence, derived: row.DerivedKey,
		created: row.Created, changed: row.Changed, policy: c.op.Unknown, steps: map[string]store.Step{}, fast: &fastLease{},
	}
}

// DerivedKey is the idempotency key for the operation's one outside call; an
// operation of several calls uses [Step], which gives each its own.
func (a *Attempt) DerivedKey() string { return a.derived }

// Fence is the attempt's number, from 1.
func (a *Attempt) Fence() int64 { return max(a.claimed(), 1) }

// claimed is the fence of the attempt's claim, 0 while it has none.
func (a *Attempt) claimed() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fence
}

func (a *Attempt) claims(fence int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fence = fence
}

// Key of the operation.
func (a *Attempt) Key() store.Key { return a.key }

// Identity of the operation.
func (a *Attempt) Identity() store.Identity { return a.identity }

// Created is when the operation's first attempt was claimed, by the database's
// clock; by this worker's, where the fast lease took the claim's place.
func (a *Attempt) Created() time.Time { return a.created }

// Changed is when the attempt started, or, for the attempt that a [Probe] gets,
// when it ended without telling, by the database's clock. A probe that must
// wait for the first call to settle counts from it.
func (a *Attempt) Changed() time.Time { return a.changed }

// Held reports whether the lease is still ours, by the monotonic clock of this
// worker. It is what can be known right before a call leaves the host.
func (a *Attempt) Held() bool { return time.Now().Before(a.validUntil()) }

func (a *Attempt) validUntil() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.until
}

func (a *Attempt) extend(until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = until
}

// pause waits before another try, if the lease lasts that long.
func (a *Attempt) pause(d time.Duration) bool {
	if time.Until(a.validUntil()) < d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
	return true
}

// finished returns a step's stored end.
func (a *Attempt) finished(name string) (store.Step, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.steps[name]
	return s, ok && s.Done
}

// Step makes one outside call of an attempt, and remembers its result: a later
// attempt that comes to a finished step gets the stored result and does not
// call. T goes through encoding/json.
//
// key is the step's own derived key, the same for every attempt, worker and
// version: send it as the receiver's idempotency key. A name is used for one
// step of an operation only.
//
// At a later attempt, a step without a result may have been called: it is
// probed before it is run. The probe answers with the step's result (Done), or
// NotDone, or CannotTell, which leaves the operation unknown. A nil probe
// declares the call repeatable: the receiver deduplicates by key for longer
// than the operation is retried. Under the policy Retry nothing is probed. A
// probe whose NotDone counts only when an earlier call can no longer be under way
// waits for that itself, from [Attempt.Changed], when this attempt started: one
// that answers CannotTell instead is asked by the next attempt, which starts anew.
//
// An error of run is returned as it is; wrap it in [NeverStarted] only when
// nothing was sent. A lost lease is an error that wraps [store.ErrLeaseLost].
func Step[T any](ctx context.Context, attempt *Attempt, name string, run func(ctx context.Context, key string) (T, error), probe func(ctx context.Context, key string) (T, Verdict, error)) (T, error) {
	var zero T
	if name == "" || attempt.save == nil {
		return zero, errors.New("step: needs a name and a running attempt")
	}
	if stored, ok := attempt.finished(name); ok {
		var result T
		if err := json.Unmarshal(stored.Result, &result); err != nil {
			return zero, fmt.Errorf("step %s: stored result: %w", name, err)
		}
		return result, nil
	}
	key := attempt.identity.DerivedKey(name)
	if attempt.Fence() > 1 && probe != nil && attempt.policy != Retry {
		result, verdict, err := probe(ctx, key)
		switch {
		case err != nil:
			return zero, fmt.Errorf("step %s: probe: %w", name, err)
		case verdict == Done:
			return result, record(ctx, attempt, name, result)
		case verdict != NotDone:
			return zero, fmt.Errorf("step %s: the probe cannot tell whether the call happened", name)
		}
	}
	if !attempt.Held() {
		return zero, fmt.Errorf("step %s: not called: %w", name, store.ErrLeaseLost)
	}
	result, err := run(ctx, key)
	if err != nil {
		return zero, err
	}
	return result, record(ctx, attempt, name, result)
}

// maxSaves is how often the end of a step is tried to be stored again while the
// store is unavailable and the lease lasts, a quarter of a second apart.
const maxSaves = 40

// record stores the end of a step; what has happened is recorded although the
// caller may be gone.
func record[T any](ctx context.Context, a *Attempt, name string, result T) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("step %s: result: %w", name, err)
	}
	step := store.Step{Name: name, Done: true, Fence: a.Fence(), Result: encoded}
	for try := 0; ; try++ {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
		err = a.save(limited, step)
		cancel()
		if err == nil || !takenBack(err) || try == maxSaves || !a.pause(pollLast) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("step %s: the call was made and its result could not be stored: %w", name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps[name] = step
	return nil
}
