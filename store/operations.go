package store

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Filter selects operations to list.
type Filter struct {
	// States wanted; none means the unfinished ones.
	States []State
	// Tenant, when not nil, selects one tenant.
	Tenant *string
	// Effect, when not empty, selects one effect name.
	Effect string
	// After continues behind the last record of the page before.
	After *Cursor
	// Limit is the size of a page, 1 to 1000; 0 means 100.
	Limit int
}

// Bounds of a page of a list, in records.
const (
	DefaultPage = 100  // where Filter.Limit is 0
	MaxPage     = 1000 // what it may be at most
)

// Page is the size of a page, or an error for one that is out of bounds.
func (f Filter) Page() (int, error) {
	switch {
	case f.Limit == 0:
		return DefaultPage, nil
	case f.Limit < 0, f.Limit > MaxPage:
		return 0, fmt.Errorf("list: limit %d, want 1 to %d", f.Limit, MaxPage)
	}
	return f.Limit, nil
}

// Cursor is the place of a record in a list, which is ordered by the time of
// the last change and then by key, both ascending.
type Cursor struct {
	// Changed of the record.
	Changed time.Time
	// Key of the record.
	Key Key
}

// Record is one operation as the operator sees it.
type Record struct {
	// Key of the operation.
	Key Key
	// Identity of the operation.
	Identity Identity
	// State it is in; Processing with LeaseLeft ≤ 0 is about to become Unknown.
	State State
	// Attempt is the number of its last attempt.
	Attempt int64
	// DerivedKey that its outside calls carry, and Origin, where it came from,
	// for unfinished operations.
	DerivedKey, Origin string
	// LeaseLeft for Processing, DueIn for Retryable, as in Attempt.
	LeaseLeft, DueIn time.Duration
	// Reason of the last transition.
	Reason string
	// Created and Changed by the database's clock; for an outcome both are its time.
	Created, Changed time.Time
	// Code and Size describe the frozen result of an outcome: its code and the
	// bytes of its body. The body itself is not part of a record.
	Code, Size int
	// Damaged says that the stored result does not match its checksum, or that
	// the readable identity cannot be read.
	Damaged bool
}

// Transition is one step of an operation's history. Only what cannot be
// derived from the other tables is written: unhappy ends and people's actions.
type Transition struct {
	// At by the database's clock.
	At time.Time
	// From and To are the states before and after.
	From, To State
	// Attempt it concerns.
	Attempt int64
	// Actor is the person or the part of the system that acted.
	Actor string
	// Reason given.
	Reason string
}

// Action is a person's decision about an operation at rest.
type Action struct {
	// Key of the operation.
	Key Key
	// Fence, when not 0, is the attempt the person looked at, for a damaged
	// result the one that made it; the action is
	// refused with ErrConflict when the operation has moved on.
	Fence int64
	// Actor is the name of who decides, at most 200 bytes, not empty.
	Actor string
	// Reason, at most 1 KiB, not empty.
	Reason string
}

// Bounds of what is kept of a decision and of a reason, in bytes.
const (
	// MaxActor bounds the name of who acts.
	MaxActor = 200
	// MaxReason bounds a reason; a longer one of an attempt is cut.
	MaxReason = 1024
)

// Validate reports whether the action names who acts, and why.
func (a Action) Validate() error {
	if n := len(a.Actor); n == 0 || n > MaxActor {
		return fmt.Errorf("action: actor of %d bytes, want 1 to %d", n, MaxActor)
	}
	if n := len(a.Reason); n == 0 || n > MaxReason {
		return fmt.Errorf("action: reason of %d bytes, want 1 to %d", n, MaxReason)
	}
	return nil
}

// CutReason shortens a reason to what is kept, at the end of a character.
func CutReason(reason string) string {
	if len(reason) <= MaxReason {
		return reason
	}
	return strings.ToValidUTF8(reason[:MaxReason], "")
}

// Counts are what a store knows about itself, for metrics.
type Counts struct {
	// Unfinished operations by state.
	Unfinished map[State]int64
	// OldestAtRest is the age of the longest-resting operation, zero if none.
	OldestAtRest time.Duration
}

// Operations is what an operator needs. It is not generic: nothing here runs a
// handler. All methods may be called concurrently.
type Operations interface {
	// List returns one page.
	List(ctx context.Context, filter Filter) ([]Record, error)
	// Show returns one operation with its history and steps, or ErrNotFound.
	Show(ctx context.Context, key Key) (Record, []Transition, []Step, error)
	// Release lets an operation that is unknown or parked go on: it becomes
	// retryable, due at once. ErrConflict in any other state.
	Release(ctx context.Context, action Action) error
	// Redrive does the same for one that is dead.
	Redrive(ctx context.Context, action Action) error
	// Complete ends one at rest, or whose lease has expired, as completed with
	// the given result, kept for retention and tombstone. It also replaces an
	// outcome whose stored result is damaged, and no other: the operation keeps
	// identity, fingerprint and attempt, and its history says who replaced it.
	Complete(ctx context.Context, action Action, result Result, retention, tombstone time.Duration) error
	// Discard ends one at rest, or whose lease has expired, without its effect;
	// or one whose stored result is damaged, as Complete does.
	Discard(ctx context.Context, action Action, retention, tombstone time.Duration) error
	// Counts for metrics.
	Counts(ctx context.Context) (Counts, error)
}

// Upkeep is what a store needs done now and then, by any worker. All methods
// may be called concurrently; each call is one small batch.
type Upkeep interface {
	// Purge forgets what is over its retention: results become tombstones,
	// tombstones over their time are deleted, at most limit rows in all. It
	// never touches unfinished operations. It returns how many rows it changed;
	// fewer than limit means that nothing is left for now.
	Purge(ctx context.Context, limit int) (int, error)
	// Expire turns attempts whose lease has run out into Unknown, at most limit
	// of them, and returns those.
	Expire(ctx context.Context, limit int) ([]Attempt, error)
}
