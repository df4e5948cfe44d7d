package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/unavez/unavez/store"
)

// SetFault makes fn decide what goes wrong, or stops, at the writer's steps:
// "begin", "statement" (of a transaction), "finish", "commit" (before it is
// sent) and "committed" (its answer is lost).
// Set it while nobody uses the database.
func SetFault(db *sql.DB, fn func(step string) error) { inside(db).fault = fn }

// KeepGroupsOpen has groups take in further units for as long as any come. Set it
// while nobody uses the database.
func KeepGroupsOpen(db *sql.DB) { inside(db).opts.GroupTime = time.Hour }

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

// Known is of which operations anything is stored, as a crowd of gates asks.
func Known(s *Store, keys []store.Key) (map[store.Key]bool, error) {
	a := &asking{keys: keys}
	err := s.glance(context.Background(), a.read)
	return a.known, err
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

// ForgetSweep makes the next purge of the queue begin at its front.
func ForgetSweep(s *Store) { s.sweep.from = 0 }

// MigrateTo makes the schema of an earlier version.
func MigrateTo(db *sql.DB, version int) error {
	all, err := steps()
	if err != nil {
		return err
	}
	for _, m := range all[:version] {
		err := inside(db).writer.apart(context.Background(), func(r *raw) error {
			if _, err := r.execArgs(context.Background(), m.sql, 2, nil); err != nil {
				return err
			}
			_, err := r.exec("INSERT INTO unavez_migration (version, name, at) VALUES (?1, ?2, 0)", m.version, m.name)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Resweep has the next purge look through the queue from its front, as it does
// when the time for that has passed.
func Resweep(s *Store) {
	s.sweep.mu.Lock()
	defer s.sweep.mu.Unlock()
	s.sweep.began = time.Time{}
}
