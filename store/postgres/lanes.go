package postgres

// Lanes is the database's number of lanes.
func (s *Store) Lanes() int { return s.lanes }
