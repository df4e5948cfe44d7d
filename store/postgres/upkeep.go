package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// The rings: how many slots each has.
const (
	ringOutcome    = "outcome"
	outcomeSlots   = 4
	ringTombstone  = "tombstone"
	tombstoneSlots = 3
)

// Purge turns the ring of the queue first: what is remembered of an entry's end
// stays as long as the entry. Then it works on small slots row by row, as on a table, and on large ones as a
// whole: identities are copied to the tombstones, the slot is retired, and
// emptied once no gate that read it is open. One worker purges at a time; the
// others find nothing to do. Rows that go with a whole slot of tombstones are
// not counted.
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	p := purge{s: s, left: limit}
	for _, step := range []func(context.Context) error{p.queue, p.deliveries, p.outcomes, p.table, p.tombstones} {
		if err := step(ctx); err != nil {
			return limit - p.left, err
		}
	}
	return limit - p.left, nil
}

// purge is one call of Purge.
type purge struct {
	s     *Store
	left  int // rows that may still be changed
	looks int // rows of the queue that may still be looked at, once that has begun
}

// tx runs one step of a purge in a transaction, if no other worker purges.
func (p *purge) tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return classify(p.s.working(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var mine bool
		const text = "SELECT pg_catalog.pg_try_advisory_xact_lock($1) FROM (SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true)," +
			" pg_catalog.set_config('tcp_user_timeout', $2, true)) limits"
		if err := tx.QueryRow(ctx, text, purgeLock, milliseconds(workLimit)).Scan(&mine); err != nil || !mine {
			return err
		}
		return fn(tx)
	}))
}

// run runs a statement that changes rows, and counts them.
func (p *purge) run(ctx context.Context, tx pgx.Tx, text string, args ...any) error {
	if p.left <= 0 {
		return nil
	}
	var n int
	if err := tx.QueryRow(ctx, text, append([]any{p.left}, args...)...).Scan(&n); err != nil {
		return err
	}
	p.left -= n
	return nil
}

// slot is what a purge knows of a slot.
type slot struct {
	ring   string
	number int
	state  string
	small  bool
	old    bool // written to for its whole time
	over   bool // measured, and everything in it is over
	known  bool // measured
}

func (sl slot) table() string { return fmt.Sprintf("unavez.%s_%d", sl.ring, sl.number) }

// slots reads a ring, from the slot after the current one on: the oldest first.
// A slot of outcomes is written to for half of the ring's retention, one of
// tombstones for 15 times that, which is 30 days by default.
func (p *purge) slots(ctx context.Context, tx pgx.Tx, ring string, n int) ([]slot, error) {
	const text = "SELECT s.number, s.state, pg_catalog.pg_relation_size(pg_catalog.format('unavez.%s_%s', s.ring, s.number)::pg_catalog.regclass) < $2," +
		" s.since <= pg_catalog.clock_timestamp() - (SELECT CASE s.ring WHEN 'outcome' THEN l.ring / 2 ELSE l.ring * 15 END FROM unavez.ledger l) * interval '1 microsecond'," +
		" coalesce(s.until <= CASE s.ring WHEN 'outcome' THEN pg_catalog.clock_timestamp() ELSE (SELECT unavez.forgetting()) END, false), s.until IS NOT NULL" +
		" FROM unavez.slot s WHERE s.ring = $1 ORDER BY (s.number - (SELECT c.number FROM unavez.slot c WHERE c.ring = $1 AND c.state = 'current') - 1 + $3) % $3"
	return collect(ctx, tx, text, []any{ring, p.s.small[ring], n}, func(row pgx.CollectableRow) (slot, error) {
		sl := slot{ring: ring}
		err := row.Scan(&sl.number, &sl.state, &sl.small, &sl.old, &sl.over, &sl.known)
		return sl, err
	})
}

// outcomes purges the ring of outcomes.
func (p *purge) outcomes(ctx context.Context) error {
	return p.ring(ctx, ringOutcome, outcomeSlots, func(ctx context.Context, tx pgx.Tx, sl slot) error {
		return p.run(ctx, tx, moveRows(sl.table()))
	})
}

// tombstones purges the ring of tombstones.
func (p *purge) tombstones(ctx context.Context) error {
	return p.ring(ctx, ringTombstone, tombstoneSlots, func(ctx context.Context, tx pgx.Tx, sl slot) error {
		return p.run(ctx, tx, "WITH over AS (SELECT key FROM "+sl.table()+" WHERE forgets <= (SELECT unavez.forgetting()) ORDER BY key LIMIT $1),"+
			" gone AS (DELETE FROM "+sl.table()+" t USING over WHERE t.key = over.key RETURNING 1) SELECT count(*) FROM gone")
	})
}

// table purges the class that is kept in one table.
func (p *purge) table(ctx context.Context) error {
	return p.tx(ctx, func(tx pgx.Tx) error { return p.run(ctx, tx, moveRows("unavez.outcome_table")) })
}

// moveRows turns results that are over into tombstones, or deletes them where
// the identity's time is over too: a gate, which reads outcomes before
// tombstones, sees the one row or the other.
func moveRows(table string) string {
	text := "WITH over AS (SELECT key FROM " + table + " WHERE expires <= pg_catalog.clock_timestamp() ORDER BY expires, key LIMIT $1)," +
		" gone AS (DELETE FROM " + table + " o USING over WHERE o.key = over.key AND o.expires <= pg_catalog.clock_timestamp()" +
		" RETURNING o.key, o.forgets, pg_catalog.substring(o.fingerprint, 1, 8) AS short)," + dropHistory
	for n := range tombstoneSlots {
		text += fmt.Sprintf(", kept_%d AS (INSERT INTO unavez.tombstone_%d SELECT key, forgets, short FROM gone"+
			" WHERE forgets > (SELECT unavez.forgetting()) AND %d = (SELECT tombstone_slot FROM unavez.ledger) ORDER BY key"+
			" ON CONFLICT (key) DO UPDATE SET forgets = excluded.forgets, short = excluded.short)", n, n, n)
	}
	return text + " SELECT count(*) FROM gone"
}

// dropHistory deletes what is kept beside an outcome that goes. An unfinished
// operation keeps everything.
const dropHistory = " history AS (DELETE FROM unavez.transition t USING gone WHERE t.key = gone.key" +
	" AND NOT EXISTS (SELECT FROM unavez.attempt a WHERE a.key = t.key))"

// ring takes each slot of a ring as far as it goes. A slot that is in use is
// left to the next purge.
func (p *purge) ring(ctx context.Context, ring string, n int, rows func(context.Context, pgx.Tx, slot) error) error {
	for {
		var all []slot
		err := p.tx(ctx, func(tx pgx.Tx) (err error) {
			all, err = p.slots(ctx, tx, ring, n)
			return err
		})
		further := false
		for _, sl := range all {
			if err == nil {
				var step bool
				step, err = p.step(ctx, sl, all[0], rows)
				further = further || step
			}
		}
		if err != nil || !further {
			return err
		}
	}
}

// step does what is next for a slot; further says that something comes after it.
func (p *purge) step(ctx context.Context, sl, next slot, rows func(context.Context, pgx.Tx, slot) error) (further bool, err error) {
	do := func(what func(context.Context, pgx.Tx, slot) error) {
		if err == nil {
			err = p.tx(ctx, func(tx pgx.Tx) error { return what(ctx, tx, sl) })
		}
	}
	switch {
	case sl.state == "current" && !sl.small && sl.old && next.state == "empty":
		do(func(ctx context.Context, tx pgx.Tx, sl slot) error { return turn(ctx, tx, sl, next) })
		further = true
	case sl.state == "retired":
		do(empty)
	case sl.state == "empty":
	case sl.small && sl.state == "sealed":
		do(rows)
		do(drained)
	case sl.small:
		do(rows)
	case sl.state == "sealed" && !sl.known:
		do(measure)
		further = true
	case sl.state == "sealed" && sl.over:
		err = p.copyAll(ctx, sl)
		if p.left > 0 {
			do(retire)
			do(empty)
		}
	}
	if errors.Is(err, errInUse) {
		return false, nil
	}
	return further && err == nil, err
}

// turn makes the next slot the current one.
func turn(ctx context.Context, tx pgx.Tx, from, to slot) error {
	const text = "UPDATE unavez.slot SET state = CASE number WHEN $2 THEN 'sealed' ELSE 'current' END, since = pg_catalog.clock_timestamp(), until = NULL, copied = NULL" +
		" WHERE ring = $1 AND number IN ($2, $3)" +
		" AND EXISTS (SELECT FROM unavez.slot x WHERE x.ring = $1 AND x.number = $2 AND x.state = 'current')" +
		" AND EXISTS (SELECT FROM unavez.slot x WHERE x.ring = $1 AND x.number = $3 AND x.state = 'empty')"
	if tag, err := tx.Exec(ctx, text, from.ring, from.number, to.number); err != nil || tag.RowsAffected() == 0 {
		return err // another purge was faster
	}
	column := map[string]string{
		ringOutcome:   "slot = CASE WHEN slot < 0 THEN slot ELSE $1::pg_catalog.int4 END, live = live | (1 << $1::pg_catalog.int4)",
		ringTombstone: "tombstone_slot = $1::pg_catalog.int4, tombstone_live = tombstone_live | (1 << $1::pg_catalog.int4)",
	}[from.ring]
	_, err := tx.Exec(ctx, "UPDATE unavez.ledger SET "+column, to.number)
	return err
}

// errInUse: the slot is in use; the next purge tries again.
var errInUse = errors.New("slot is in use")

// lock takes a slot at once or not at all: a queued lock would stall every gate.
func lock(ctx context.Context, tx pgx.Tx, sl slot, mode string) error {
	err := classify(errOf(tx.Exec(ctx, "LOCK TABLE "+sl.table()+" IN "+mode+" MODE NOWAIT")))
	if errors.Is(err, store.ErrUnavailable) {
		return errors.Join(errInUse, err)
	}
	return err
}

func errOf(_ any, err error) error { return err }

// measure finds out until when a sealed slot has something to say. The lock is
// granted only when no insert is under way, and what comes later finds the slot
// sealed.
func measure(ctx context.Context, tx pgx.Tx, sl slot) error {
	if err := lock(ctx, tx, sl, "SHARE"); err != nil {
		return err
	}
	last := map[string]string{ringOutcome: "expires", ringTombstone: "forgets"}[sl.ring]
	_, err := tx.Exec(ctx, "UPDATE unavez.slot SET until = coalesce((SELECT max("+last+") FROM "+sl.table()+"), '-infinity')"+
		" WHERE ring = $1 AND number = $2 AND state = 'sealed'", sl.ring, sl.number)
	return err
}

// copyAll copies the identities of a large slot whose rows are all over, in the
// order of their keys, each batch committed, as many as may still be changed.
func (p *purge) copyAll(ctx context.Context, sl slot) error {
	for before := p.left + 1; sl.ring == ringOutcome && p.left > 0 && p.left < before; {
		before = p.left
		if err := p.tx(ctx, func(tx pgx.Tx) error { return p.run(ctx, tx, copyRows(sl), sl.number) }); err != nil {
			return err
		}
	}
	return nil
}

// copyRows copies the next identities to the tombstones and remembers how far it came.
func copyRows(sl slot) string {
	text := "WITH gone AS (SELECT key, forgets, pg_catalog.substring(fingerprint, 1, 8) AS short FROM " + sl.table() +
		" WHERE key > coalesce((SELECT copied FROM unavez.slot WHERE ring = 'outcome' AND number = $2), '00000000-0000-0000-0000-000000000000')" +
		" ORDER BY key LIMIT $1)," + dropHistory
	for n := range tombstoneSlots {
		text += fmt.Sprintf(", kept_%d AS (INSERT INTO unavez.tombstone_%d SELECT key, forgets, short FROM gone"+
			" WHERE forgets > (SELECT unavez.forgetting()) AND %d = (SELECT tombstone_slot FROM unavez.ledger) ORDER BY key"+
			" ON CONFLICT (key) DO UPDATE SET forgets = excluded.forgets, short = excluded.short)", n, n, n)
	}
	return text + ", far AS (UPDATE unavez.slot SET copied = (SELECT key FROM gone ORDER BY key DESC LIMIT 1)" +
		" WHERE ring = 'outcome' AND number = $2 AND EXISTS (SELECT FROM gone)) SELECT count(*) FROM gone"
}

// retire lets gates leave a slot out whose rows are all over.
func retire(ctx context.Context, tx pgx.Tx, sl slot) error {
	if err := lock(ctx, tx, sl, "SHARE"); err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, "UPDATE unavez.slot SET state = 'retired', since = pg_catalog.clock_timestamp()"+
		" WHERE ring = $1 AND number = $2 AND state = 'sealed' AND until <= CASE ring WHEN 'outcome' THEN pg_catalog.clock_timestamp() ELSE (SELECT unavez.forgetting()) END", sl.ring, sl.number)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return leaveOut(ctx, tx, sl)
}

// empty truncates a retired slot. The lock is granted only when no transaction
// that read or wrote it is open; then it is looked at once more.
func empty(ctx context.Context, tx pgx.Tx, sl slot) error {
	last := map[string]string{ringOutcome: "expires", ringTombstone: "forgets"}[sl.ring]
	var sound bool
	const text = "SELECT state = 'retired' FROM unavez.slot WHERE ring = $1 AND number = $2"
	if err := tx.QueryRow(ctx, text, sl.ring, sl.number).Scan(&sound); err != nil || !sound {
		return err
	}
	if err := lock(ctx, tx, sl, "ACCESS EXCLUSIVE"); err != nil {
		return err
	}
	until := map[string]string{ringOutcome: "pg_catalog.clock_timestamp()", ringTombstone: "(SELECT unavez.forgetting())"}[sl.ring]
	if err := tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM "+sl.table()+" WHERE "+last+" > "+until+")").Scan(&sound); err != nil || !sound {
		return err
	}
	if _, err := tx.Exec(ctx, "TRUNCATE "+sl.table()); err != nil {
		return err
	}
	return emptied(ctx, tx, sl)
}

// drained marks a small sealed slot empty when its last row is gone and no
// insert is under way.
func drained(ctx context.Context, tx pgx.Tx, sl slot) error {
	if err := lock(ctx, tx, sl, "SHARE"); err != nil {
		return err
	}
	var none bool
	if err := tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM "+sl.table()+")").Scan(&none); err != nil || !none {
		return err
	}
	if err := leaveOut(ctx, tx, sl); err != nil {
		return err
	}
	return emptied(ctx, tx, sl)
}

// leaveOut tells gates not to read a slot any more.
func leaveOut(ctx context.Context, tx pgx.Tx, sl slot) error {
	column := map[string]string{ringOutcome: "live", ringTombstone: "tombstone_live"}[sl.ring]
	_, err := tx.Exec(ctx, "UPDATE unavez.ledger SET "+column+" = "+column+" & ~(1 << $1::pg_catalog.int4)", sl.number)
	return err
}

func emptied(ctx context.Context, tx pgx.Tx, sl slot) error {
	_, err := tx.Exec(ctx, "UPDATE unavez.slot SET state = 'empty', since = pg_catalog.clock_timestamp(), until = NULL, copied = NULL WHERE ring = $1 AND number = $2", sl.ring, sl.number)
	return err
}

// Expire leaves out operations whose lock is held: who holds it decides.
func (s *Store) Expire(ctx context.Context, limit int) ([]store.Attempt, error) {
	if limit <= 0 {
		return nil, nil
	}
	text := "SELECT " + attemptColumns + " FROM unavez.expire($1::pg_catalog.int4)"
	return collect(ctx, s.pool, text, []any{limit}, func(row pgx.CollectableRow) (store.Attempt, error) {
		a, err := scanAttempt(row)
		if err != nil {
			return store.Attempt{}, err
		}
		return *a, nil
	})
}
