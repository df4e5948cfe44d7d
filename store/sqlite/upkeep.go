package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/unavez/unavez/store"
)

// Purge asks on a reader whether anything is over, so that an idle worker does
// not write.
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	var due int64
	var entries []over
	err := s.read(ctx, func(r *raw) (err error) {
		if entries, err = s.overEntries(r, limit); err != nil || len(entries) > 0 {
			return err
		}
		const text = retentions + " SELECT EXISTS (SELECT 1 FROM retention WHERE EXISTS" +
			" (SELECT 1 FROM unavez_outcome o WHERE o.expires - o.at = retention.kept AND o.at <= " + now + " - retention.kept))" +
			" OR EXISTS (SELECT 1 FROM unavez_tombstone WHERE forgets <= " + now + ")" +
			" OR EXISTS (" + strayDeliveries + ") OR EXISTS (" + oldVersions + ")"
		due, err = r.number(text, int64(1), s.strays().Milliseconds(), s.versionDays())
		return err
	})
	if err != nil || due == 0 && len(entries) == 0 {
		return 0, err
	}
	changed := 0
	err = s.write(ctx, func(r *raw) error {
		changed = 0
		for _, part := range []func(r *raw, limit int) (int, error){
			func(r *raw, _ int) (int, error) { return len(entries), purgeEntries(r, entries) },
			purgeOutcomes, purgeTombstones, s.purgeDeliveries, s.purgeVersions,
		} {
			if changed >= limit {
				break
			}
			n, err := part(r, limit-changed)
			if err != nil {
				return err
			}
			changed += n
		}
		return nil
	})
	return changed, err
}

// retentions are the retentions that outcomes have, found by a jump in the
// index for each.
const retentions = "WITH RECURSIVE retention (kept) AS (" +
	"SELECT (SELECT expires - at FROM unavez_outcome ORDER BY expires - at LIMIT 1)" +
	" UNION ALL SELECT (SELECT o.expires - o.at FROM unavez_outcome o WHERE o.expires - o.at > retention.kept ORDER BY o.expires - o.at LIMIT 1)" +
	" FROM retention WHERE kept IS NOT NULL)"

// kept reads the retentions.
func kept(r *raw) (all []int64, err error) {
	err = r.query(retentions+" SELECT kept FROM retention WHERE kept IS NOT NULL", nil, func(v []driver.Value) error {
		all = append(all, integer(v[0]))
		return nil
	})
	return all, err
}

// over is a row that is to be purged.
type over struct {
	id         int64
	key        store.Key
	remembered bool
	forgets    int64
	short      []byte
}

// purgeOutcomes turns results into tombstones, or deletes them where the
// identity's time is over too. A gate sees the one row or the other. An entry of
// that key goes with them: without an outcome it would not be done.
func purgeOutcomes(r *raw, limit int) (int, error) {
	all, err := kept(r)
	if err != nil {
		return 0, err
	}
	var rows []over
	for _, ms := range all {
		const text = "SELECT id, key, forgets > " + now + ", forgets, fingerprint FROM unavez_outcome" +
			" WHERE expires - at = ?1 AND at <= " + now + " - ?1 ORDER BY at, key LIMIT ?2"
		err := r.query(text, []driver.Value{ms, int64(limit - len(rows))}, func(v []driver.Value) error {
			fp := store.Fingerprint{Sum: blob(v[4])}
			rows = append(rows, over{integer(v[0]), keyOf(v[1]), integer(v[2]) != 0, integer(v[3]), fp.Short()})
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	for _, o := range rows {
		if o.remembered {
			const text = "INSERT INTO unavez_tombstone (key, forgets, short) VALUES (?1, ?2, ?3)" +
				" ON CONFLICT (key) DO UPDATE SET forgets = excluded.forgets, short = excluded.short"
			if _, err := r.exec(text, o.key[:], o.forgets, bytesOf(o.short)); err != nil {
				return 0, err
			}
		}
		if _, err := r.exec("DELETE FROM unavez_outcome WHERE id = ?1", o.id); err != nil {
			return 0, err
		}
		if err := purgeHistory(r, o.key); err != nil {
			return 0, err
		}
		n, err := r.exec("DELETE FROM unavez_queue WHERE key = ?1", o.key[:])
		if err == nil && n != 0 {
			_, err = r.exec("DELETE FROM unavez_delivery WHERE key = ?1", o.key[:])
		}
		if err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

// purgeHistory deletes what is kept beside an outcome that goes. An unfinished
// operation keeps everything.
func purgeHistory(r *raw, key store.Key) error {
	for _, text := range [...]string{
		"DELETE FROM unavez_transition WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1)",
		"DELETE FROM unavez_step WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1)",
	} {
		if _, err := r.exec(text, key[:]); err != nil {
			return err
		}
	}
	return nil
}

func purgeTombstones(r *raw, limit int) (int, error) {
	const text = "DELETE FROM unavez_tombstone WHERE key IN (SELECT key FROM unavez_tombstone WHERE forgets <= " + now + " ORDER BY forgets LIMIT ?1)"
	n, err := r.exec(text, int64(limit))
	return int(n), err
}

// Expire leaves out operations whose lock is held: who holds it decides.
func (s *Store) Expire(ctx context.Context, limit int) ([]store.Attempt, error) {
	if limit <= 0 {
		return nil, nil
	}
	const text = "SELECT key, fence FROM unavez_attempt WHERE state = 1 AND expires <= " + now + " ORDER BY expires LIMIT ?1"
	var due int64
	err := s.read(ctx, func(r *raw) (err error) {
		due, err = r.number("SELECT EXISTS (SELECT 1 FROM unavez_attempt WHERE state = 1 AND expires <= " + now + ")")
		return err
	})
	if err != nil || due == 0 {
		return nil, err
	}
	var out []store.Attempt
	err = s.write(ctx, func(r *raw) error {
		out = nil
		keys, fences := []store.Key{}, []int64{}
		err := r.query(text, []driver.Value{int64(limit)}, func(v []driver.Value) error {
			keys, fences = append(keys, keyOf(v[0])), append(fences, integer(v[1]))
			return nil
		})
		if err != nil {
			return err
		}
		for i, key := range keys {
			if held, err := s.c.gate.peek(key); err != nil || held {
				if err != nil {
					return err
				}
				continue
			}
			if err := lapse(r, key, fences[i]); err != nil {
				return err
			}
			a, err := readAttempt(r, key)
			switch {
			case err == nil:
				out = append(out, *a)
			case a == nil || dooms(err):
				return err
			} // else it is damaged: its lease has run out all the same
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
