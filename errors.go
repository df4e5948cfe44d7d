package unavez

import (
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// Code says what a caller can do about an [Error].
type Code string

// The codes. The first group is about the operation, the second about the
// worker or the store, the third about the handler.
const (
	// CodeInFlight: another attempt runs now. Ask again after RetryAfter.
	CodeInFlight Code = "in-flight"
	// CodeMismatch: the key was used with another payload.
	CodeMismatch Code = "key-reused"
	// CodeExpired: it ended long ago and its result is no longer kept.
	CodeExpired Code = "key-expired"
	// CodeNotReplayable: it ended, and its answer was over the stored limit.
	CodeNotReplayable Code = "not-replayable"
	// CodeDamaged: it ended, and its stored result does not match its checksum.
	CodeDamaged Code = "result-damaged"
	// CodeDiscarded: it was ended without its effect.
	CodeDiscarded Code = "operation-discarded"
	// CodeUnknown: whether it took effect is not known; a probe or a person decides.
	CodeUnknown Code = "outcome-unknown"
	// CodeParked: it waits for an earlier one or for its owner.
	CodeParked Code = "operation-parked"
	// CodeRetrying: it failed and runs again at a set time.
	CodeRetrying Code = "operation-retrying"
	// CodeDead: it failed for good and needs a person.
	CodeDead Code = "operation-dead"
	// CodeNotFound: nothing is known of it (Look only).
	CodeNotFound Code = "not-found"

	// CodeUnresolved: the commit's answer was lost and could not be found out
	// yet. Ask again with the same key.
	CodeUnresolved Code = "commit-unresolved"
	// CodeUnavailable: the store cannot be reached, is full or read-only.
	// Nothing happened; ask again with the same key.
	CodeUnavailable Code = "store-unavailable"
	// CodeClosed: the engine is shutting down. Nothing happened.
	CodeClosed Code = "shutting-down"

	// CodeInvalid: the operation as given is not acceptable.
	CodeInvalid Code = "invalid"
	// CodeLimit: the handler was slower than its limit; rolled back, key free.
	CodeLimit Code = "limit-exceeded"
	// CodeLeaseLost: the attempt was taken over while it ran; its finish was refused.
	CodeLeaseLost Code = "lease-lost"
	// CodeLaneLost: the lane of the operation has another holder now; nothing of
	// it was committed.
	CodeLaneLost Code = "lane-lost"
	// CodeForeignCommit: the handler ended the engine's transaction itself.
	CodeForeignCommit Code = "foreign-commit"
	// CodeAborted: the database gave the transaction up; rolled back, key free.
	CodeAborted Code = "transaction-aborted"
	// CodeInternal: anything else; the cause has the details.
	CodeInternal Code = "internal"
)

// Error is the one error type of the engine. Errors of the caller's own
// handler are returned as they are.
type Error struct {
	// Code to decide by.
	Code Code
	// Key of the operation.
	Key store.Key
	// Operation in readable form.
	Operation string
	// RetryAfter is how long to wait before asking again; 0 when asking again
	// does not help or the time is not known.
	RetryAfter time.Duration
	// Err is the cause, nil when the code says it all.
	Err error
}

// Error names the operation, the code and the cause.
func (e *Error) Error() string {
	s := "operation " + e.Operation + ": " + string(e.Code)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first [Error] in err's chain, "" for nil and
// CodeInternal for anything else.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// SafeToRetry reports whether the same call may be made again, with the same
// key, without deciding anything first: nothing happened, it runs elsewhere,
// or the engine will find out what happened.
func SafeToRetry(err error) bool {
	switch CodeOf(err) {
	case CodeInFlight, CodeUnresolved, CodeUnavailable, CodeClosed, CodeLimit, CodeAborted, CodeRetrying, CodeLeaseLost:
		return true
	}
	return false
}

// refusal is what Refuse returns.
type refusal struct {
	result Result
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refuse is how a handler answers "no" for good: the transaction is rolled
// back, and if the handler had written nothing the result is frozen, so that
// duplicates get the same answer. Do then returns the outcome and no error. If
// it had written, nothing is frozen, the key is free, and Do returns err.
func Refuse(result Result, err error) error {
	if err == nil {
		err = fmt.Errorf("refused with code %d", result.Code)
	}
	return &refusal{result: result, err: err}
}

// neverStarted is what NeverStarted returns.
type neverStarted struct{ err error }

func (n *neverStarted) Error() string { return n.err.Error() }
func (n *neverStarted) Unwrap() error { return n.err }

// NeverStarted marks the error of a run in lease mode as coming from before its
// outside effect: nothing was sent, so the key is free again. Any other error
// makes the operation unknown.
func NeverStarted(err error) error {
	if err == nil {
		return nil
	}
	return &neverStarted{err: err}
}

// IsNeverStarted reports whether the error of a call of Lease says that nothing
// was sent: [NeverStarted] marked it.
func IsNeverStarted(err error) bool {
	var never *neverStarted
	return errors.As(err, &never)
}

// discard is what Discard returns.
type discard struct{ reason string }

func (d *discard) Error() string { return "discarded: " + d.reason }

// Discard is how a handler of Do, Join or Lease ends an operation without its
// effect, for good: the outcome is Discarded, with the reason (cut to 1 KiB) as
// the body of its result. Under Do it must have written nothing; else everything
// is rolled back and Do returns this error.
func Discard(reason string) error { return &discard{reason: store.CutReason(reason)} }

// IsDiscard reports whether an error is one of [Discard], and with which reason.
func IsDiscard(err error) (reason string, ok bool) {
	var d *discard
	if !errors.As(err, &d) {
		return "", false
	}
	return d.reason, true
}

// end is the outcome of a discarded operation.
func (d *discard) end() store.End {
	return store.End{State: store.Discarded, Result: Result{Body: []byte(d.reason)}}
}

// again is what Again returns.
type again struct {
	err   error
	after time.Duration
}

func (a *again) Error() string { return a.err.Error() }
func (a *again) Unwrap() error { return a.err }

// Again marks the error of a run in lease mode as one whose effect certainly did
// not happen and that should be tried again after a time: the operation is
// retryable, and the next call of Lease that comes after that runs it. Lease
// returns CodeRetrying with the error as its cause.
func Again(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &again{err: err, after: max(after, 0)}
}

// IsAgain reports whether Again marked an error, and with which time.
func IsAgain(err error) (after time.Duration, ok bool) {
	var a *again
	if !errors.As(err, &a) {
		return 0, false
	}
	return a.after, true
}

// dead is what Dead returns.
type dead struct{ err error }

func (d *dead) Error() string { return d.err.Error() }
func (d *dead) Unwrap() error { return d.err }

// Dead marks the error of a run in lease mode as one whose effect certainly did
// not happen and that trying again does not mend: the operation needs a person.
// Lease returns CodeDead with the error as its cause.
func Dead(err error) error {
	if err == nil {
		return nil
	}
	return &dead{err: err}
}

// IsDead reports whether Dead marked an error.
func IsDead(err error) bool {
	var d *dead
	return errors.As(err, &d)
}
