package postgres

// SetSmall says from how many bytes a slot of outcomes, and one of tombstones,
// is purged as a whole.
func SetSmall(s *Store, outcome, tombstone int64) {
	s.small = map[string]int64{ringOutcome: outcome, ringTombstone: tombstone}
}
