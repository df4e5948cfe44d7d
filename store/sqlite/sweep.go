package sqlite

import (
	"database/sql/driver"
	"sync"
	"time"
)

// sweep remembers how far the queue was looked through for entries to purge, so
// that those that cannot go are not looked at each time.
type sweep struct {
	mu    sync.Mutex
	from  int64
	began time.Time
}

// sweepTime is how long a sweep goes on before the next begins at the front.
const sweepTime = 10 * time.Minute

// overEntries finds entries that were done longer ago than they are kept.
func (s *Store) overEntries(r *raw, limit int) (entries []over, err error) {
	if s.payloads < 0 {
		return nil, nil
	}
	m := &s.sweep
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.began) >= sweepTime {
		m.from, m.began = 0, time.Now()
	}
	// Nothing behind the first that arrived too late was done long enough ago.
	const young = "SELECT id FROM unavez_queue WHERE id > ?1 AND arrived > " + now + " - ?2 ORDER BY id LIMIT 1"
	kept := s.payloads.Milliseconds()
	end, err := r.number("SELECT coalesce(("+young+"), (SELECT max(id) + 1 FROM unavez_queue), 0)", m.from, kept)
	if err != nil || end <= m.from {
		return nil, err
	}
	const text = "SELECT q.id, q.key FROM unavez_queue q CROSS JOIN unavez_outcome o ON o.key = q.key" +
		" WHERE q.id > ?1 AND q.id < ?2 AND o.at <= " + now + " - ?3 ORDER BY q.id LIMIT ?4"
	err = r.query(text, []driver.Value{m.from, end, kept, int64(limit)}, func(v []driver.Value) error {
		entries = append(entries, over{id: integer(v[0]), key: keyOf(v[1])})
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(entries) == limit:
		m.from = entries[limit-1].id
	default:
		m.from = end - 1
	}
	return entries, nil
}

// purgeEntries deletes entries that are done, and what was seen of them. No id
// comes again, so whatever became of one meanwhile, it is that entry or none.
func purgeEntries(r *raw, entries []over) error {
	for _, e := range entries {
		if _, err := r.exec("DELETE FROM unavez_queue WHERE id = ?1", e.id); err != nil {
			return err
		}
		if _, err := r.exec("DELETE FROM unavez_delivery WHERE key = ?1", e.key[:]); err != nil {
			return err
		}
	}
	return nil
}

// strays is how long deliveries are remembered whose entry is not in the queue.
func (s *Store) strays() time.Duration {
	if s.payloads < 0 {
		return defaultPayloads
	}
	return s.payloads
}

// strayDeliveries are those deliveries, at most ?1 of them, older than ?2.
const strayDeliveries = "SELECT d.id FROM unavez_delivery d WHERE d.id < coalesce(" +
	"(SELECT id FROM unavez_delivery WHERE at > " + now + " - ?2 ORDER BY id LIMIT 1), (SELECT max(id) + 1 FROM unavez_delivery))" +
	" AND NOT EXISTS (SELECT 1 FROM unavez_queue q WHERE q.key = d.key) ORDER BY d.id LIMIT ?1"

func (s *Store) purgeDeliveries(r *raw, limit int) (int, error) {
	n, err := r.exec("DELETE FROM unavez_delivery WHERE id IN ("+strayDeliveries+")", int64(limit), s.strays().Milliseconds())
	return int(n), err
}

// today is the day of the database's clock.
const today = "CAST(unixepoch() / 86400 AS INTEGER)"

// oldVersions are versions that were written ?3 days ago or earlier, at most ?1.
const oldVersions = "SELECT ordering FROM unavez_version WHERE day <= " + today + " - ?3 ORDER BY day LIMIT ?1"

// versionDays is how many days a version is remembered.
func (s *Store) versionDays() int64 { return int64(s.versions / (24 * time.Hour)) }

func (s *Store) purgeVersions(r *raw, limit int) (int, error) {
	const text = "DELETE FROM unavez_version WHERE ordering IN (" + oldVersions + ")"
	n, err := r.exec(text, int64(limit), nil, s.versionDays())
	return int(n), err
}
