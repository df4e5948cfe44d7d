package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// QueueCounts looks at the newest entries, which is where those are that wait,
// and at the blocked ones. Full is the larger of what the slot that is written to
// has of its room, and what all slots have of theirs.
func (s *Store) QueueCounts(ctx context.Context) (store.QueueCounts, error) {
	c := store.QueueCounts{Quarantined: map[string]int64{}, Depth: map[string]int64{}, Oldest: map[string]time.Duration{}}
	err := s.snapshot(ctx, func(tx pgx.Tx) error {
		const one = "SELECT (SELECT count(*) FROM unavez.blocked)," +
			" (SELECT count(*) FROM unavez.lane WHERE number < (SELECT value::pg_catalog.int4 FROM unavez.setting WHERE name = 'lanes') AND (holder = '' OR expires <= pg_catalog.clock_timestamp()))," +
			" least(1, greatest(max(b.bytes) FILTER (WHERE b.state = 'current') * 2, sum(b.bytes))::pg_catalog.float8 / (SELECT value::pg_catalog.float8 FROM unavez.setting WHERE name = 'queue_bytes'))" +
			" FROM (SELECT s.state, (SELECT pg_catalog.pg_relation_size(k.oid) + pg_catalog.pg_relation_size(k.reltoastrelid) FROM pg_catalog.pg_class k" +
			" WHERE k.oid = pg_catalog.format('unavez.queue_%s', s.number)::pg_catalog.regclass) AS bytes FROM unavez.queue_slot s) b"
		if err := tx.QueryRow(ctx, one).Scan(&c.Blocked, &c.Orphans, &c.Full); err != nil {
			return err
		}
		_, err := collect(ctx, tx, "SELECT source, count(*) FROM unavez.quarantine GROUP BY source", nil, func(row pgx.CollectableRow) (struct{}, error) {
			var source string
			var n int64
			err := row.Scan(&source, &n)
			c.Quarantined[source] = n
			return struct{}{}, err
		})
		if err != nil {
			return err
		}
		const depth = "SELECT source, waits, (extract(epoch FROM pg_catalog.clock_timestamp() - oldest) * 1000000)::pg_catalog.int8 FROM unavez.depth($1::pg_catalog.int4)"
		_, err = collect(ctx, tx, depth, []any{store.DepthLimit}, func(row pgx.CollectableRow) (struct{}, error) {
			var source string
			var n, age int64
			err := row.Scan(&source, &n, &age)
			c.Depth[source], c.Oldest[source] = n, max(time.Duration(age)*time.Microsecond, 0)
			return struct{}{}, err
		})
		return err
	})
	return c, err
}
