package store

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
