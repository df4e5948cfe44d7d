package store

import (
	"context"
	"time"
)

// Gate says what is to be locked and read at the start of an operation, and
// what its outcome will carry.
type Gate struct {
	// Identity of the operation; its text is stored for people.
	Identity Identity
	// Key is Identity.Key(), computed once by the engine.
	Key Key
	// Fingerprint of the payload, stored with the outcome.
	Fingerprint Fingerprint
	// From, when not 0, allows taking over an attempt at rest (unknown,
	// retryable and due, parked) that still has exactly this fence.
	From int64
	// Eager wants the verdict before Begin returns, also where the store could
	// let the gate go with the handler's first statement; see [Late].
	Eager bool
	// Hold, when its epoch is not 0, is the lane that the operation belongs to:
	// its lock is taken shared, without waiting, and the transaction fails with
	// ErrLaneLost unless the epoch is still the lane's.
	Hold Hold
	// Limit bounds the transaction, from Begin to Commit.
	Limit time.Duration
	// Alone asks for a commit that is shared with no other transaction, where
	// the store would; see ErrLost.
	Alone bool
	// Retention is how long the result is kept, from the outcome's time.
	Retention time.Duration
	// Tombstone is how long the bare identity is remembered after that.
	Tombstone time.Duration
}

// Verdict is what a gate found. Exactly one of the pointers is set for the
// states that have one.
type Verdict struct {
	// State is Free when the operation may run.
	State State
	// Outcome for Completed and Discarded.
	Outcome *Outcome
	// Attempt for Retryable, Parked, Unknown, Dead, and for Processing under a
	// lease; nil for Processing when the operation's lock was not granted.
	Attempt *Attempt
	// Short is the front of the fingerprint, for Expired.
	Short []byte
}

// Attempt is one run of an operation as the attempt table remembers it.
type Attempt struct {
	// Key of the operation.
	Key Key
	// Identity of the operation.
	Identity Identity
	// Fence is the attempt's number, from 1; it only grows.
	Fence int64
	// State is Processing or a state at rest.
	State State
	// Fingerprint of the payload.
	Fingerprint Fingerprint
	// DerivedKey is what outside calls carry.
	DerivedKey string
	// Origin says where the operation came from, such as a route; see Claim.
	Origin string
	// LeaseLeft is what remained of the lease when the row was read, for
	// Processing; zero or negative when it has expired.
	LeaseLeft time.Duration
	// DueIn is the time until a retryable attempt may run; zero or negative when due.
	DueIn time.Duration
	// Reason of the last transition, for people.
	Reason string
	// Created is when the operation's first attempt was claimed.
	Created time.Time
	// Changed is when State or Fence changed last; for an attempt whose lease
	// has run out never before the end of that lease, since it may have worked
	// until then.
	Changed time.Time
}

// End is how a transaction ends an operation.
type End struct {
	// State is Completed or Discarded.
	State State
	// Result to freeze.
	Result Result
	// Unwritten freezes the result only if the transaction has written
	// nothing (a row lock counts as a write where the database tells);
	// otherwise everything is rolled back with [ErrWrote].
	Unwritten bool
}

// Txn is an open transaction of the engine. It is used by one goroutine; Commit
// or Rollback ends it, and both are safe to call again (the second call of
// Rollback does nothing; a Commit after the end fails).
type Txn[Tx any] interface {
	// Tx is what the handler writes on. It must not be kept after the end,
	// and ending it is the engine's affair.
	Tx() Tx
	// Commit inserts the outcome and commits, in this order, together with
	// everything written on Tx. Errors: ErrDuplicate, ErrWrote, ErrAborted,
	// ErrForeignCommit, ErrLimit, ErrUnavailable, ErrLost (nothing committed);
	// ErrCommitUnknown. The returned outcome is the stored one.
	Commit(ctx context.Context, end End) (*Outcome, error)
	// Rollback gives everything up and frees the operation.
	Rollback(ctx context.Context) error
}

// Joined is the engine's part of a transaction that the caller owns.
type Joined interface {
	// Finish inserts the outcome in the caller's transaction, after taking the
	// operation's lock again where a savepoint may have lost it. It does not
	// commit. Errors: ErrDuplicate, ErrForeignCommit (this is no longer the
	// transaction of the gate), ErrAborted, ErrUnavailable. After an error the
	// caller must roll back.
	Finish(ctx context.Context, end End) (*Outcome, error)
	// Leave gives the operation up without an outcome; the caller rolls back.
	Leave()
}

// Ledger is what every store gives: transaction mode and reading. All methods
// may be called concurrently and none retries.
type Ledger[Tx any] interface {
	// Begin opens a transaction, sets its limits, tries the operation's lock
	// and reads outcome, tombstone and attempt. Txn is not nil exactly when the
	// verdict is Free, or when Gate.From took an attempt at rest over (its row
	// is deleted by the commit). Otherwise nothing stays open.
	Begin(ctx context.Context, gate Gate) (Txn[Tx], Verdict, error)
	// Join does the same inside a transaction that the caller has opened.
	Join(ctx context.Context, tx Tx, gate Gate) (Joined, Verdict, error)
	// Look reads without locking: what a gate would find, as far as can be
	// seen. A transaction in flight elsewhere looks Free.
	Look(ctx context.Context, key Key) (Verdict, error)
	// Settle finds out what became of a commit whose answer was lost: it tries
	// the operation's lock and reads. Processing: the old transaction is still
	// alive, ask again. Free: it rolled back for certain.
	Settle(ctx context.Context, key Key) (Verdict, error)
	// Peek tells for each key whether it is still in flight (Processing) or
	// worth a new gate (any other state), in one statement where the database
	// can. It is a hint for waiters and decides nothing.
	Peek(ctx context.Context, keys []Key) ([]State, error)
}

// Claim is the request for the lease of an operation that works outside a
// transaction.
type Claim struct {
	// Gate of the operation.
	Gate
	// Lease is how long the claim lasts without renewal.
	Lease time.Duration
	// DerivedKey is stored at the first claim and never changes.
	DerivedKey string
	// Origin is stored at the first claim and never changes: where the
	// operation came from, such as the pattern of a route, so that whoever
	// finds it at rest knows whose it is. At most 1 KiB; may be empty.
	Origin string
}

// Rest is how a holder ends its attempt without an outcome.
type Rest struct {
	// State is Retryable, Parked, Unknown or Dead; or Free, which deletes the
	// attempt because it never started. Free is refused with ErrConflict when
	// the operation has finished steps.
	State State
	// Reason for people, at most 1 KiB kept.
	Reason string
	// DueIn delays a Retryable attempt.
	DueIn time.Duration
}

// Step is the stored end of one outside call of an operation.
type Step struct {
	// Name of the step, unique in its operation.
	Name string
	// Done is false while the call may have been made without an answer.
	Done bool
	// Fence of the attempt that started or ended it.
	Fence int64
	// Result is what the step returned, encoded by the engine, when Done.
	Result []byte
}

// Attempts is lease mode: work outside a transaction, under a lease with a
// fence. All methods may be called concurrently and none retries.
type Attempts[Tx any] interface {
	// Claim tries the operation's lock, reads outcome and attempt, and commits
	// a row: a first attempt with fence 1, or fence + 1 for one at rest that
	// Gate.From names (a retryable one only when due). An attempt whose lease
	// has expired becomes Unknown first. The attempt is not nil exactly when
	// the claim was made. ErrCommitUnknown: the claim may exist; it ends by
	// expiring.
	Claim(ctx context.Context, claim Claim) (*Attempt, Verdict, error)
	// Renew extends the lease from now. ErrLeaseLost where the fence is no
	// longer ours or the lease has expired.
	Renew(ctx context.Context, key Key, fence int64, lease time.Duration) error
	// Finish opens a transaction, waits for the operation's lock, deletes the
	// attempt with our fence (ErrLeaseLost otherwise) and reads the ledger
	// (ErrDuplicate when an outcome is found). The transaction then takes the
	// business rows and ends by Commit.
	//
	// Fence 0 says that no claim was made: the ledger alone decides. An attempt
	// of somebody else's claim, whatever its state, ends with the outcome, whose
	// number is then one higher; where its holder moves it meanwhile the commit
	// fails with ErrLeaseLost and may be tried again.
	Finish(ctx context.Context, gate Gate, fence int64) (Txn[Tx], error)
	// Rest ends the attempt without an outcome, if the fence is ours
	// (ErrLeaseLost otherwise).
	Rest(ctx context.Context, key Key, fence int64, rest Rest) error
	// SaveStep writes the start (Done false) or the end of a step, if the
	// fence is ours (ErrLeaseLost otherwise).
	SaveStep(ctx context.Context, key Key, fence int64, step Step) error
	// Steps reads the steps of an unfinished operation, by name.
	Steps(ctx context.Context, key Key) ([]Step, error)
}
