package unavez

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/store"
)

// Options of an engine. The zero value of every field means its default.
type Options struct {
	// SingleTenant declares that there is one tenant, so that
	// Operation.Tenant may be empty.
	SingleTenant bool
	// Retention of results; default DefaultRetention.
	Retention time.Duration
	// Tombstone is how long identities are remembered after that; default
	// DefaultTombstone, negative means not at all.
	Tombstone time.Duration
	// Limit of transactions; default DefaultLimit.
	Limit time.Duration
	// Lease length in lease mode; default DefaultLease.
	Lease time.Duration
	// CacheSize bounds the frozen-result cache, in bytes; default
	// DefaultCacheSize, negative means no cache.
	CacheSize int
	// Waiters bounds how many duplicates wait at a time; default
	// DefaultWaiters, negative means none may wait.
	Waiters int
	// Leaser is a fast lease in front of the durable claim, or in its place; see
	// Operation.ClaimByLease. nil means none.
	Leaser lease.Leaser
	// Observe, when not nil, is told what happened. It is called from many
	// goroutines and must not block.
	Observe func(Observation)
}

// Observation is one thing that happened, for metrics and logs.
type Observation struct {
	// What happened: one of the Saw constants, or a Code.
	What string
	// Operation is its identity.
	Operation store.Identity
	// Attempt number, where there is one.
	Attempt int64
	// Cached is true for a replay that came from the worker's own memory.
	Cached bool
	// Duration of the call, where it has ended.
	Duration time.Duration
	// Err is the cause, where there is one.
	Err error
}

// What an Observation can say beside a Code.
const (
	// SawCompleted: an outcome was committed by this call.
	SawCompleted = "completed"
	// SawReplayed: a duplicate got the frozen outcome.
	SawReplayed = "replayed"
	// SawRolledBack: the handler failed, its writes are gone and the key is free.
	SawRolledBack = "rolled-back"
	// SawClaimed: an attempt started in lease mode.
	SawClaimed = "claimed"
	// SawLeased: an attempt started in lease mode by the fast lease alone.
	SawLeased = "leased"
	// SawTakenOver: an attempt at rest was taken over, with fence + 1.
	SawTakenOver = "taken-over"
	// SawLeaseLost: the lease of an attempt ran out while it worked, or its end
	// was refused; what it did outside may have arrived late. Once an attempt.
	SawLeaseLost = string(CodeLeaseLost)
	// SawUnknown: an attempt ended without telling.
	SawUnknown = "unknown"
	// SawProbed: a probe answered, with its verdict in Err's place when it failed.
	SawProbed = "probed"
	// SawLeaserFailed: the fast lease failed and the database was asked instead.
	SawLeaserFailed = "leaser-failed"
)

// Engine runs operations once over one store. Its methods may be called
// concurrently. Close it when done.
type Engine[Tx any] struct {
	ledger     store.Ledger[Tx]
	attempts   store.Attempts[Tx] // nil when the store has no lease mode
	opts       Options
	flights    *flights
	cache      *cache
	refused    *refusals
	replays    expectation
	recordings recordings
}

// New makes an engine over a store; the transaction type is inferred from it.
// Faults of the options are reported all at once. The store stays the
// caller's to close, after the engine.
func New[Tx any](ledger store.Ledger[Tx], opts *Options) (*Engine[Tx], error) {
	if ledger == nil {
		return nil, errors.New("unavez: no ledger (pass a store, such as sqlite.New)")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	defaultTo(&o.Retention, DefaultRetention)
	defaultTo(&o.Tombstone, DefaultTombstone)
	defaultTo(&o.Limit, DefaultLimit)
	defaultTo(&o.Lease, DefaultLease)
	defaultTo(&o.CacheSize, DefaultCacheSize)
	defaultTo(&o.Waiters, DefaultWaiters)
	e := &Engine[Tx]{ledger: ledger, opts: o}
	e.attempts, _ = ledger.(store.Attempts[Tx])
	probe := &Operation{Effect: "options", Key: []string{"options"}}
	o.fill(probe)
	if err := probe.validate(true); err != nil {
		return nil, fmt.Errorf("unavez: options: %w", err)
	}
	e.flights = newFlights(max(o.Waiters, 0), ledger.Peek)
	e.cache = newCache(max(o.CacheSize, 0))
	e.refused = newRefusals()
	if s, ok := ledger.(store.Incarnated); ok {
		s.OnIncarnation(e.cache.clear)
	}
	return e, nil
}

// SingleTenant reports whether the engine was declared to have one tenant.
func (e *Engine[Tx]) SingleTenant() bool { return e.opts.SingleTenant }

// Close refuses new calls with CodeClosed, waits for running ones until ctx
// ends, and stops the engine's goroutines. Waiting duplicates are answered
// "in flight". It is safe to call twice.
func (e *Engine[Tx]) Close(ctx context.Context) error {
	err := e.flights.close(ctx)
	if err == nil {
		e.recordings.close()
	}
	return err
}

// defaultTo sets a zero setting to its default.
func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// fill sets what the operation leaves to the engine.
func (o *Options) fill(op *Operation) {
	defaultTo(&op.Retention, o.Retention)
	defaultTo(&op.Tombstone, o.Tombstone)
	op.Tombstone = max(op.Tombstone, 0)
	defaultTo(&op.Limit, o.Limit)
	defaultTo(&op.Lease, o.Lease)
	if op.Unknown == nil {
		op.Unknown = Hold
	}
}

// call is one call of the engine for one operation.
type call struct {
	op      Operation
	gate    store.Gate
	started time.Time
}

// begin checks the operation and counts the call; the caller ends it with
// flights.leave when err is nil. It is small so that it is inlined, and a call
// that the worker's own memory answers stays off the heap.
func (e *Engine[Tx]) begin(op Operation) (*call, error) {
	c := &call{op: op}
	return c, c.begin(&e.opts, e.flights)
}

func (c *call) begin(opts *Options, flights *flights) error {
	c.started = time.Now()
	op := &c.op
	opts.fill(op)
	id := op.Identity()
	c.gate = store.Gate{Identity: id, Key: id.Key(), Hold: op.Hold, Limit: op.Limit, Retention: op.Retention, Tombstone: op.Tombstone}
	if err := op.validate(opts.SingleTenant); err != nil {
		return c.fail(CodeInvalid, 0, err)
	}
	c.gate.Fingerprint = op.Fingerprint
	if op.Payload != nil {
		sum := sha256.Sum256(op.Payload)
		c.gate.Fingerprint = Fingerprint{Version: 0, Sum: sum[:]}
	}
	if !flights.join() {
		return c.fail(CodeClosed, time.Second, nil)
	}
	return nil
}

// fail makes the engine's error for this call.
func (c *call) fail(code Code, retryAfter time.Duration, err error) *Error {
	return &Error{Code: code, Key: c.gate.Key, Operation: c.gate.Identity.Text(), RetryAfter: retryAfter, Err: err}
}

// sees tells the observer.
func (e *Engine[Tx]) sees(c *call, what string, attempt int64, cached bool, err error) {
	if e.opts.Observe != nil {
		e.opts.Observe(Observation{What: what, Operation: c.gate.Identity, Attempt: attempt, Cached: cached, Duration: time.Since(c.started), Err: err})
	}
}

// samePayload compares a stored fingerprint by its own version's algorithm.
func (c *call) samePayload(stored Fingerprint) bool {
	if stored.Version == c.gate.Fingerprint.Version || c.op.FingerprintAt == nil {
		return stored.Equal(c.gate.Fingerprint)
	}
	mine, ok := c.op.FingerprintAt(stored.Version)
	return ok && stored.Equal(mine)
}

// sameShort compares what a tombstone keeps; it does not know the version.
func (c *call) sameShort(short []byte) bool {
	equal := func(f Fingerprint) bool { return string(f.Short()) == string(short) }
	if equal(c.gate.Fingerprint) {
		return true
	}
	for v := c.gate.Fingerprint.Version - 1; v >= 0 && c.op.FingerprintAt != nil; v-- {
		if older, ok := c.op.FingerprintAt(v); ok && equal(older) {
			return true
		}
	}
	return false
}

// judge turns what a gate found into the duplicate's answer: the frozen
// outcome or an error. Free is not judged here. It leaves the outcome as it is.
func (c *call) judge(v store.Verdict) (*Outcome, error) {
	stored := c.gate.Fingerprint
	switch {
	case v.Outcome != nil:
		stored = v.Outcome.Fingerprint
	case v.Attempt != nil:
		stored = v.Attempt.Fingerprint
	}
	if !c.samePayload(stored) || v.State == store.Expired && !c.sameShort(v.Short) {
		return nil, c.fail(CodeMismatch, 0, nil)
	}
	switch v.State {
	case store.Completed:
		if v.Outcome.Result.NotReplayable {
			return nil, c.fail(CodeNotReplayable, 0, nil)
		}
		return v.Outcome, nil
	case store.Discarded:
		return nil, c.fail(CodeDiscarded, 0, nil)
	case store.Expired:
		return nil, c.fail(CodeExpired, 0, nil)
	case store.Processing:
		wait := time.Second
		if v.Attempt != nil {
			wait = max(v.Attempt.LeaseLeft, time.Second)
		}
		return nil, c.fail(CodeInFlight, wait, nil)
	case store.Retryable:
		return nil, c.fail(CodeRetrying, max(v.Attempt.DueIn, time.Second), nil)
	case store.Parked:
		return nil, c.fail(CodeParked, 0, nil)
	case store.Unknown:
		return nil, c.fail(CodeUnknown, 0, nil)
	case store.Dead:
		return nil, c.fail(CodeDead, 0, nil)
	}
	return nil, c.fail(CodeInternal, 0, fmt.Errorf("gate found %v", v.State))
}

// storeError maps a store's error; nothing was committed when it is returned.
func (c *call) storeError(err error) error {
	switch {
	case errors.Is(err, store.ErrDamaged):
		return c.fail(CodeDamaged, 0, err)
	case errors.Is(err, store.ErrForeignCommit):
		return c.fail(CodeForeignCommit, 0, err)
	case errors.Is(err, store.ErrLimit):
		return c.fail(CodeLimit, time.Second, err)
	case errors.Is(err, store.ErrAborted):
		return c.fail(CodeAborted, time.Second, err)
	case errors.Is(err, store.ErrLaneLost):
		return c.fail(CodeLaneLost, 0, err)
	case errors.Is(err, store.ErrLeaseLost):
		return c.fail(CodeLeaseLost, time.Second, err)
	case errors.Is(err, store.ErrCommitUnknown):
		return c.fail(CodeUnresolved, time.Second, err)
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return c.fail(CodeUnavailable, time.Second, err)
	}
	return c.fail(CodeInternal, 0, err)
}

// Look returns the outcome of an operation without running anything. An
// operation that is not finished gives an Error with its code; CodeNotFound is
// certain: nothing is remembered and no transaction of it is alive, so after a
// lost COMMIT the caller's own transaction has rolled back.
func (e *Engine[Tx]) Look(ctx context.Context, op Operation) (Outcome, error) {
	c, err := e.begin(op)
	if err != nil {
		return Outcome{}, err
	}
	defer e.flights.leave()
	if found, ok := e.cache.get(c.gate.Key, c.started); ok {
		return e.replay(c, found, true)
	}
	verdict, err := e.ledger.Look(ctx, c.gate.Key)
	if err == nil && verdict.State == store.Free {
		verdict, err = e.ledger.Settle(ctx, c.gate.Key)
	}
	if err != nil {
		return Outcome{}, c.storeError(err)
	}
	if verdict.State == store.Free {
		return Outcome{}, c.fail(CodeNotFound, 0, nil)
	}
	found, err := c.judge(verdict)
	if err != nil {
		return Outcome{}, err
	}
	return *found, nil
}

// replay answers a duplicate from an outcome that this worker holds.
func (e *Engine[Tx]) replay(c *call, found *Outcome, cached bool) (Outcome, error) {
	if _, err := c.judge(store.Verdict{State: found.State, Outcome: found}); err != nil {
		e.sees(c, string(CodeOf(err)), found.Attempt, cached, err)
		return Outcome{}, err
	}
	e.sees(c, SawReplayed, found.Attempt, cached, nil)
	out := *found
	out.Replayed = true
	return out, nil
}
