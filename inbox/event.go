package inbox

import (
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// Event is the fact that a sender names, as effects see it. It is not changed
// after it was made, and may be read by several goroutines.
type Event struct {
	// Tenant the event belongs to; empty in a single-tenant installation.
	Tenant string
	// Source is the name of the source that it came from.
	Source string
	// Type is the sender's word for what happened.
	Type string
	// ID are the parts of its identity within the source; none where the sender
	// gave none.
	ID []string
	// Subject are the parts that name its resource.
	Subject []string
	// Account is the account or store that the sender's message names; empty if it
	// names none.
	Account string
	// Version is the sender's own order of the changes of one resource.
	Version string
	// Time is when it happened, by the sender's clock; zero if it does not say.
	Time time.Time
	// Data is its content in ContentType, byte for byte, but for what is masked.
	Data        []byte
	ContentType string
	// Attributes are further facts of the envelope, by name.
	Attributes map[string]string
	// Delivery identifies the arrival, Correlation the request; both for people.
	Delivery, Correlation string
	// Unsigned says that the sender's proof did not cover Data: whoever knows
	// the secret could have written it.
	Unsigned bool
	// Hint says that it only says that its resource may have changed.
	Hint bool
	// Erasure is what the sender asks on behalf of a person, if it does.
	Erasure source.Erasure

	// What follows is set when it runs.

	// Effect is the name of the effect that runs, and Operation the identity.
	Effect    string
	Operation store.Identity
	// Attempt is the number of this run, from 1. Runs whose worker was killed
	// count as soon as that was noticed.
	Attempt int64
	// Sequence is its place in the queue.
	Sequence int64
	// Arrived is when it was appended, by the database's clock.
	Arrived time.Time
	// Erased says that Data was erased on a person's demand.
	Erased bool
}
