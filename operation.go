package unavez

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/unavez/unavez/store"
)

// Outcome is how an operation ended for good; see [store.Outcome].
type Outcome = store.Outcome

// Result is the frozen answer of an operation; see [store.Result].
type Result = store.Result

// Field is one header line of a result; see [store.Field].
type Field = store.Field

// Fingerprint tells whether a duplicate carries the same payload; see
// [store.Fingerprint].
type Fingerprint = store.Fingerprint

// Operation is one piece of work with an identity that must take effect once.
// It is a value: it may be copied, and used by several goroutines.
type Operation struct {
	// Tenant the operation belongs to. Required, unless the engine was made
	// with Options.SingleTenant.
	Tenant string
	// Effect is the effect name, such as "order.create.v1". Required.
	Effect string
	// Key parts that name the operation within tenant and effect, 1 to 16 of
	// them, at most 1 KiB each. Required; never concatenate parts.
	Key []string
	// Payload, when not nil, is fingerprinted by the caller's own choice of
	// bytes (version 0: its SHA-256). A duplicate with another payload gets
	// CodeMismatch. Set either Payload or Fingerprint.
	Payload []byte
	// Fingerprint is a ready fingerprint, for callers with an algorithm of
	// their own.
	Fingerprint Fingerprint
	// FingerprintAt, when not nil, gives the payload's fingerprint by an older
	// version of the algorithm, for comparing with a stored one.
	FingerprintAt func(version int) (Fingerprint, bool)

	// Retention is how long the result is kept; 0 means the engine's.
	Retention time.Duration
	// Tombstone is how long the identity is remembered after that; 0 means the
	// engine's, negative means not at all.
	Tombstone time.Duration
	// Limit bounds the transaction; 0 means the engine's.
	Limit time.Duration
	// Lease is the length of the lease in lease mode; 0 means the engine's.
	Lease time.Duration
	// Wait is how long a duplicate waits for the one in flight before it gets
	// CodeInFlight; 0 answers at once. A waiter holds no connection.
	Wait time.Duration
	// Detached says that cancelling the caller's context ends the wait for the
	// operation's turn, but no longer its work once that has begun: the work
	// then ends with its limit, or its lease.
	Detached bool
	// Unknown is what happens, in lease mode, to an operation whose last
	// attempt ended without telling: Hold (also when nil), Retry, Steps or a
	// Probe.
	Unknown Unknown
	// ClaimByLease lets the fast lease (Options.Leaser) take the place of the
	// durable claim in lease mode, which saves a commit. It is for what is
	// declared repeatable, so Unknown must be Retry: nothing durable precedes the
	// work, so that a killed worker leaves no trace and the next call runs again,
	// and a fast lease that was lost lets two run at once. There is still one
	// outcome, one answer and one finish. The claim is made after all when a
	// third of the lease is over, when a Step ends, when the work fails without
	// telling, and wherever the fast lease is not granted.
	ClaimByLease bool
	// Origin says where the operation came from, such as a route's pattern; it
	// is kept with the unfinished operation for whoever finds it at rest. Only
	// lease mode stores it; at most 1 KiB.
	Origin string
	// Rerunnable declares that running fn of Do twice is harmless as long as only
	// one run's transaction commits: it writes nowhere else. Do then runs it once
	// more, by itself, where the database has rolled it back for the sake of
	// others that shared its commit; else that is CodeUnavailable with the key free.
	Rerunnable bool
	// Hold, when its epoch is not 0, is the lane that the operation belongs to.
	// Every transaction of the operation then fails with CodeLaneLost once the
	// lane has another holder.
	Hold store.Hold
	// OwnsRetries says that the caller is the one who runs this operation
	// again when it is retryable and due. Lease always does.
	OwnsRetries bool
}

// Identity of the operation.
func (op Operation) Identity() store.Identity {
	return store.Identity{Tenant: op.Tenant, Effect: op.Effect, Parts: op.Key}
}

// Unknown is a policy for operations whose last attempt ended without telling
// whether its effect happened. Its values are [Hold], [Retry], [Steps] and any
// [Probe].
type Unknown interface{ unknown() }

// Policy is an [Unknown] that needs no function.
type Policy int

// The policies.
const (
	// Hold leaves the operation for its owner: duplicates get CodeUnknown
	// until a person releases, completes or discards it.
	Hold Policy = iota
	// Retry runs it again: the receiver deduplicates by the derived key, or
	// running twice is declared harmless.
	Retry
	// Steps runs it again where every outside call is a [Step]: finished steps
	// are skipped and the interrupted one is probed first.
	Steps
)

func (Policy) unknown() {}

// String is the policy's word in configuration.
func (p Policy) String() string {
	switch p {
	case Hold:
		return "hold"
	case Retry:
		return "retry"
	case Steps:
		return "steps"
	}
	return fmt.Sprintf("policy(%d)", int(p))
}

// Probe asks the outside system what became of the attempt, by its derived key
// or by anything else it knows it by. It runs outside any transaction and may
// be called by several workers at once, so it must only look. With Done, the
// result is what the attempt would have answered. An error counts as
// CannotTell; one with a method RetryAfter() time.Duration also says when
// asking again makes sense.
type Probe func(ctx context.Context, attempt *Attempt) (Result, Verdict, error)

func (Probe) unknown() {}

// Verdict is what a probe found out.
type Verdict int

// The verdicts of a probe. An error counts as CannotTell.
const (
	// CannotTell leaves the operation unknown.
	CannotTell Verdict = iota
	// Done says that the effect happened.
	Done
	// NotDone says that it did not and will not: it is conclusive only when
	// the first call can no longer be under way.
	NotDone
)

// String is the verdict's word in configuration and logs.
func (v Verdict) String() string {
	switch v {
	case Done:
		return "done"
	case NotDone:
		return "not done"
	}
	return "cannot tell"
}

// validate reports every fault of the operation at once, with defaults applied.
func (op *Operation) validate(singleTenant bool) error {
	var faults []error
	if op.Tenant == "" && !singleTenant {
		faults = append(faults, errors.New("tenant: empty (set Operation.Tenant, or declare Options.SingleTenant)"))
	}
	if err := op.Identity().Validate(); err != nil {
		faults = append(faults, err)
	}
	if op.Payload != nil && op.Fingerprint.Sum != nil {
		faults = append(faults, errors.New("payload: set either Payload or Fingerprint, not both"))
	}
	if op.ClaimByLease && op.Unknown != Unknown(Retry) {
		faults = append(faults, errors.New("claim by lease: only for what is declared repeatable (set Operation.Unknown to Retry)"))
	}
	if n := len(op.Origin); n > store.MaxPartSize {
		faults = append(faults, fmt.Errorf("origin: %d bytes, at most %d", n, store.MaxPartSize))
	}
	if len(op.Fingerprint.Sum) > 64 || op.Fingerprint.Version < 0 || op.Fingerprint.Version > math.MaxInt16 {
		faults = append(faults, errors.New("fingerprint: at most 64 bytes, version 0 to 32767"))
	}
	faults = within(faults, "retention", op.Retention, MinRetention, MaxRetention)
	faults = within(faults, "tombstone", op.Tombstone, 0, MaxRetention)
	faults = within(faults, "limit", op.Limit, time.Millisecond, MaxLimit)
	faults = within(faults, "lease", op.Lease, 10*time.Millisecond, MaxLease)
	faults = within(faults, "wait", op.Wait, 0, MaxWait)
	return errors.Join(faults...)
}

// within adds the fault of a duration that is out of its bounds.
func within(faults []error, name string, d, low, high time.Duration) []error {
	if low <= d && d <= high {
		return faults
	}
	return append(faults, fmt.Errorf("%s: %v, want %v to %v", name, d, low, high))
}
