package sqlite

import "database/sql"

// SetFault makes fn decide what goes wrong, or stops, at the writer's steps:
// "begin", "statement" (of a transaction), "finish", "commit" (before it is
// sent) and "committed" (its answer is lost).
// Set it while nobody uses the database.
func SetFault(db *sql.DB, fn func(step string) error) { inside(db).fault = fn }

// Stats are the writer's counters.
type Stats struct{ Commits, Units, Taken int64 }

// StatsOf reads the counters.
func StatsOf(db *sql.DB) Stats {
	w := &inside(db).writer
	w.use.lock()
	defer w.use.unlock()
	return Stats{w.stats.commits, w.stats.units, w.stats.taken}
}

func inside(db *sql.DB) *connector { return db.Driver().(opened).connector }

// Waiting is how many units wait for the turn.
func Waiting(db *sql.DB) int {
	w := &inside(db).writer
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting)
}

// Refused is what a text is refused with in a transaction.
func Refused(text string) error { return parse(text).refused }

// Statements is how many statements a text has.
func Statements(text string) int { return parse(text).statements }

// DatabaseOf is the store's database.
func DatabaseOf(s *Store) *sql.DB { return s.db }

// SetRoom bounds the queue anew and returns what takes that back. Nobody appends
// meanwhile.
func SetRoom(s *Store, limit int64) (undo func()) {
	before := s.room.limit
	s.room.limit = limit
	return func() { s.room.limit = before }
}
