package inbox

import (
	"context"
	"time"

	"github.com/unavez/unavez"
)

// Effect is what events bring about. Exactly one of Handle, HandleBatch and Run
// is set; functions may be called concurrently, for different ordering keys.
type Effect[Tx any] struct {
	// Name is the effect name, as "order.import.v1". Required.
	Name string
	// Sources are the names of the sources whose events it can want; nil means
	// all. Its results are kept at least as long as these may repeat.
	Sources []string
	// When says which of their events it wants; nil means every one.
	// It sees an event before it is masked, and never a hint whose resource is
	// fetched. An error puts the event into quarantine, for all effects.
	When func(e *Event) (bool, error)
	// Key returns the parts that name the operation; nil means the event's own
	// identity (source and id). Two events may name one operation.
	Key func(e *Event) ([]string, error)
	// OrderBy returns the parts of the ordering key; nil, or no parts: no order.
	OrderBy func(e *Event) ([]string, error)
	// Version returns the number of the change among those of its ordering key:
	// an integer, or an RFC 3339 time. An older one than the last that took
	// effect is discarded as stale. nil: no versions.
	Version func(e *Event) (string, error)
	// Contiguous says that versions are integers without gaps: one that comes
	// early waits for those before it, for GapWait (0 means an hour), and is
	// then left for its owner.
	Contiguous bool
	// GapWait is how long an early one waits.
	GapWait time.Duration

	// Handle writes the effect's rows on the transaction that commits its
	// outcome. nil commits; see [Permanent], [RetryAfter] and [Discard].
	Handle func(ctx context.Context, tx Tx, e *Event) error
	// Batch declares that Handle is short, writes only to the database and may
	// be run again: up to 50 entries then share one transaction. After an error
	// they run singly.
	Batch bool
	// HandleBatch does the same for all of them in one call, in their order.
	HandleBatch func(ctx context.Context, tx Tx, events []*Event) error
	// Run makes an effect outside the database, in lease mode: no transaction is
	// open, every attempt carries the same derived key. An error that is none of
	// Permanent, RetryAfter, Discard and unavez.NeverStarted leaves the
	// operation unknown.
	Run func(ctx context.Context, attempt *unavez.Attempt, e *Event) (unavez.Result, error)
	// Finish, which may be nil, writes rows in the transaction that commits the
	// outcome of Run.
	Finish func(ctx context.Context, tx Tx, e *Event, result *unavez.Result) error
	// Unknown is what happens to an attempt that ended without telling; see
	// unavez.Operation. For Run only.
	Unknown unavez.Unknown

	// Retry says how failures are tried again.
	Retry Retry
	// Owner is the team that its dead letters belong to.
	Owner string
	// Limit, Lease, Retention and Tombstone as in unavez.Operation; the
	// retentions are those of Options if 0.
	Limit, Lease, Retention, Tombstone time.Duration
}

// Retry says how an entry that failed is tried again: after First, then after
// twice as long each time up to Longest, each delay shortened at random (full
// jitter), until Attempts runs or Age after its arrival are over; then it is dead.
type Retry struct {
	First    time.Duration // 0 means 1 s
	Longest  time.Duration // 0 means 5 min
	Attempts int           // 0 means 20
	Age      time.Duration // 0 means 3 days
}
