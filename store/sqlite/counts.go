package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

var _ store.QueueCounter = (*Store)(nil)

// QueueCounts reads each figure by a statement of its own: they need not be of one
// moment, and no state of the file is kept for long.
func (s *Store) QueueCounts(ctx context.Context) (store.QueueCounts, error) {
	c := store.QueueCounts{Quarantined: map[string]int64{}, Depth: map[string]int64{}, Oldest: map[string]time.Duration{}}
	err := s.read(ctx, func(r *raw) (err error) {
		if c.Blocked, err = r.number("SELECT count(*) FROM unavez_blocked"); err != nil {
			return err
		}
		err = r.query("SELECT source, count(*) FROM unavez_quarantine GROUP BY source", nil, func(v []driver.Value) error {
			c.Quarantined[word(v[0])] = integer(v[1])
			return nil
		})
		if err != nil {
			return err
		}
		orphans, err := r.number("SELECT count(*) FROM unavez_lane WHERE worker = '' OR expires <= " + now)
		if err != nil {
			return err
		}
		c.Orphans = int(orphans)
		if c.Full, err = s.room.used(r); err != nil {
			return err
		}
		return r.query(depth(), nil, func(v []driver.Value) error {
			source := word(v[0])
			c.Depth[source], c.Oldest[source] = integer(v[1]), max(0, milliseconds(integer(v[2])))
			return nil
		})
	})
	if err != nil {
		return store.QueueCounts{}, err
	}
	return c, nil
}

// depth counts what is not done: behind the cursor that all lanes have passed, and
// before it behind the blocked rows.
func depth() string {
	return fmt.Sprintf("WITH passed (id) AS (%s), looked (id) AS ("+
		"SELECT id FROM (SELECT id FROM unavez_queue WHERE id > (SELECT id FROM passed) ORDER BY id LIMIT %d)"+
		" UNION SELECT id FROM (SELECT id FROM (%s) WHERE id <= (SELECT id FROM passed) LIMIT %d))"+
		" SELECT CASE WHEN json_valid(note) THEN coalesce(note ->> 'source', '') ELSE '' END, count(*), %s - min(arrived)"+
		" FROM looked JOIN unavez_queue q ON q.id = looked.id WHERE true%s GROUP BY 1",
		passed, store.DepthLimit, behind, store.DepthLimit, now, undone)
}
