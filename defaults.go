package unavez

import "time"

// Defaults, all of them in this file; docs/defaults.md shows the same table and
// a test compares the two.
const (
	// DefaultRetention is how long the result of an operation is kept.
	DefaultRetention = 48 * time.Hour
	// DefaultTombstone is how long its bare identity is remembered after that.
	DefaultTombstone = 30 * 24 * time.Hour
	// DefaultLease is the length of a lease; it is renewed at a third.
	DefaultLease = 30 * time.Second
	// DefaultLimit bounds a transaction from its gate to its commit.
	DefaultLimit = 10 * time.Second
	// DefaultRequestLimit bounds the body of a keyed request, in bytes.
	DefaultRequestLimit = 1 << 20
	// DefaultResponseLimit bounds the stored answer, in bytes of body and header.
	DefaultResponseLimit = 256 << 10
	// DefaultCacheSize bounds the memory of the frozen-result cache, in bytes.
	DefaultCacheSize = 32 << 20
	// DefaultWaiters bounds how many duplicates wait in one worker at a time;
	// further ones are answered "in flight" at once.
	DefaultWaiters = 20_000
	// DefaultUpkeep is the pause between two rounds of Upkeep.
	DefaultUpkeep = time.Minute
	// DefaultHandlerLimit is how long one handler may hold the writer of SQLite.
	DefaultHandlerLimit = 100 * time.Millisecond
)

// Bounds of settings.
const (
	// MinRetention is the shortest retention that is accepted.
	MinRetention = time.Second
	// MaxRetention is the longest retention and tombstone that is accepted.
	MaxRetention = 10 * 365 * 24 * time.Hour
	// MaxLimit is the longest transaction limit that is accepted.
	MaxLimit = 10 * time.Minute
	// MaxLease is the longest lease that is accepted.
	MaxLease = time.Hour
	// MaxWait is the longest time a duplicate may wait for the one in flight.
	MaxWait = 5 * time.Minute
)
