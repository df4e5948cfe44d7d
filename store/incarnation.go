package store

import (
	"context"
	"time"
)

// Incarnated is a store that notices when its database's history is not the one
// it was: after a failover to a standby that had not received everything, a
// restore, or an operator's word. What a worker remembers of the old history,
// such as cached outcomes, counts no more.
type Incarnated interface {
	// OnIncarnation has changed called at each change, from any goroutine,
	// before what was read under the new incarnation is returned. changed must
	// not block and must not call the store.
	OnIncarnation(changed func())
}

// Incarnation is one history of a database.
type Incarnation struct {
	// Number counts the changes of history that were noticed or declared.
	Number int64
	// DoubtLeft is for how long from now a first claim becomes Unknown instead
	// of being granted, since the claim before it may have been lost with the
	// old history, and its outside effect made; 0 when the time is over.
	DoubtLeft time.Duration
}

// Incarnations is a store whose incarnation a person can look at and change. Its
// methods may be called concurrently and do not retry.
type Incarnations interface {
	// Incarnation tells which history this is.
	Incarnation(ctx context.Context) (Incarnation, error)
	// NewIncarnation says that the database's history is another one although
	// nothing in it shows that, as after restoring a volume while no worker ran.
	// Every worker on the database acts on it with its next statement.
	NewIncarnation(ctx context.Context) (Incarnation, error)
}
