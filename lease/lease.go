// Package lease is the seam of the fast lease: a key with a holder's token and
// a life, in something quicker than the database.
//
// A fast lease stands in front of the durable claim and spares the database
// the duplicates of what is in flight. It decides nothing: killed, flushed,
// paused or lying, it changes latency and nothing else. Every error from it is
// answered by asking the database.
//
// An operation that is declared repeatable may let it take the claim's place.
// What two of its holders do outside may then happen twice; the database still
// has one outcome.
//
// A lease is given back and renewed only by the token that holds it, so a
// holder that outlived its lease cannot remove its successor's. The suite in
// leasetest holds that; an implementation is finished when it passes.
package lease

import (
	"context"
	"time"
)

// Value is what a lease holds for others to see.
type Value struct {
	// Token of the holder, unique per claim.
	Token string
	// Version and Fingerprint of the payload that is being worked on.
	Version int
	// Fingerprint bytes, nil when there is none.
	Fingerprint []byte
	// Completed is true for the mark that [Marker.Complete] leaves: nobody
	// holds the lease, and the ledger is worth a single read.
	Completed bool
}

// Leaser is a fast lease. All methods may be called concurrently, and each is
// safe to send twice.
type Leaser interface {
	// Acquire takes the lease of key for life, unless somebody holds it. When
	// value's token holds it already the call succeeds and leaves its life
	// alone. Otherwise held is false and other is what the holder put there,
	// left its remaining life.
	Acquire(ctx context.Context, key string, value Value, life time.Duration) (held bool, other Value, left time.Duration, err error)
	// Renew sets the life of the lease anew if token still holds it.
	Renew(ctx context.Context, key, token string, life time.Duration) (held bool, err error)
	// Release gives the lease back if token still holds it.
	Release(ctx context.Context, key, token string) error
}

// Marker is the optional ability to leave a mark behind a commit, which turns
// the next gate into a single read of the ledger.
type Marker interface {
	// Complete replaces the lease of key, if token still holds it, by a mark
	// that lives for life.
	Complete(ctx context.Context, key, token string, life time.Duration) error
}
