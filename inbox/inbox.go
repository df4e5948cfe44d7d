package inbox

import (
	"log/slog"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// Options of an inbox. The zero value is good.
type Options struct {
	// Worker is this worker's name among those that share the database; ""
	// means one of its own (host name, process number, random letters).
	Worker string
	// Lease is how long its lanes stay its own when it stops answering; 0 means
	// 10 s. Another worker takes them over after that.
	Lease time.Duration
	// Flush bounds how long an arrival waits for others to share its commit, 0
	// means 2 ms; a lone one does not wait. FlushSize bounds the entries of one
	// commit, 0 means 500.
	Flush     time.Duration
	FlushSize int
	// Poll is how long the queue is left alone when nothing wakes the reader; 0
	// means 250 ms. It is jittered.
	Poll time.Duration
	// Concurrency bounds the entries that run at one time; 0 means 16. Window
	// bounds the entries that are read ahead, 0 means 2000.
	Concurrency, Window int
	// Retention and Tombstone of effects that set none; 0 means twice the
	// longest window of the sources and at least 7 days, and 90 days.
	Retention, Tombstone time.Duration
	// Log gets what an operator should know; never payloads. nil: none.
	Log *slog.Logger
	// Observe, when not nil, is told what happens, for metrics. It must be quick.
	Observe func(Sight)
	// Alert, when not nil, is told of conditions that need a person, once each;
	// see Condition.
	Alert func(Condition)
}

// Sight is one thing that happened.
type Sight struct {
	// What happened: "delivery", "duplicate", "conflict", "quarantined",
	// "rejected", "ignored", "completed", "discarded", "stale", "retry",
	// "dead", "parked", "unknown", "blocked", "lane-taken", "lane-lost",
	// "coalesced", "repaired".
	What string
	// Source, Type, Effect and Tenant, where they are known.
	Source, Type, Effect, Tenant string
	// Reason is a class: a source.Reason, a quarantine reason, an error class.
	Reason string
	// Secret is the name of the secret that verified a delivery.
	Secret string
	// Took is how long it took: from arrival to answer for a delivery, from
	// arrival to commit for an entry.
	Took time.Duration
	// Count of them, at least 1.
	Count int
}

// Condition needs a person.
type Condition struct {
	// Kind is "dead", "held", "silent", "full", "conflict".
	Kind string
	// Owner, Source and Effect it concerns, where known.
	Owner, Source, Effect string
	// Key of the operation, if it is about one.
	Key store.Key
	// Text for people; no payload.
	Text string
	// Over says that the condition has ended.
	Over bool
}

// Permanent marks an error of a handler as one that trying again does not mend:
// the entry is dead at once.
func Permanent(err error) error { return unavez.Dead(err) }

// RetryAfter marks an error of a handler as one to try again after a time, and
// says that its effect did not happen. 0 leaves the time to Retry.
func RetryAfter(err error, after time.Duration) error { return unavez.Again(err, after) }

// Discard is how a handler ends an entry without its effect, for good, with a
// reason of at most 200 bytes; it must have written nothing.
func Discard(reason string) error { return unavez.Discard(reason) }
