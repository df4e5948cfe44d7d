package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// large makes every slot of outcomes and tombstones one that is purged as a whole.
func large(d *database, t *testing.T) *worker {
	t.Helper()
	w := d.worker(t, nil)
	postgres.SetSmall(w.Store, 0, 0)
	return w
}

func (w *worker) purge(t *testing.T) {
	t.Helper()
	_, err := w.Purge(t.Context(), 1000)
	must(t, "Purge", err)
}

// slots tells the states of a ring's slots.
func slots(t *testing.T, d *database, ring string) string {
	t.Helper()
	return ask[string](t, d, "SELECT string_agg(state, ' ' ORDER BY number) FROM unavez.slot WHERE ring = $1", ring)
}

// slotIs checks one slot of outcomes.
func slotIs(t *testing.T, d *database, number int, want string) {
	t.Helper()
	if got := strings.Fields(slots(t, d, "outcome")); got[number] != want {
		t.Fatalf("slots: %s; want slot %d %s", got, number, want)
	}
}

// turn makes a purge turn the ring, with no row growing older.
func (w *worker) turn(t *testing.T, d *database) {
	t.Helper()
	d.exec(t, "UPDATE unavez.slot SET since = since - interval '2 days'")
	w.purge(t)
}

// day is the time a slot is written to: half of the default ring.
const day = 24 * time.Hour

func dayGate(parts ...string) store.Gate {
	gate := gateOf(parts...)
	gate.Retention, gate.Tombstone = 2*day, 30*day
	return gate
}

func TestRingTurnsAndEmptiesWhatIsOver(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := large(d, t), d.worker(t, nil)
	var want []string
	for round := range 9 {
		gate := dayGate("round", fmt.Sprint(round))
		want = append(want, fmt.Sprint(round))
		w.do(t, gate, fmt.Sprint(round))
		w.purge(t)
		d.advance(t, day+time.Minute)
		w.purge(t)
		for earlier := range round + 1 {
			gate := dayGate("round", fmt.Sprint(earlier))
			age := time.Duration(round-earlier+1) * (day + time.Minute)
			state := store.Completed
			if age >= gate.Retention {
				state = store.Expired
			}
			w.state(t, gate, state)
			if txn, v, err := other.Begin(t.Context(), gate); err != nil || txn != nil || v.State != state {
				t.Fatalf("round %d, operation %d: %v, %v; want %v", round, earlier, v.State, err, state)
			}
		}
		if n := ask[int](t, d, "SELECT count(*) FROM unavez.outcome"); n > 3 {
			t.Errorf("round %d: %d outcomes are kept", round, n)
		}
	}
	rowsAre(t, d, want...)
	d.advance(t, 31*day)
	w.purge(t)
	w.purge(t)
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.outcome"); n != 0 {
		t.Errorf("%d outcomes are left", n)
	}
	d.advance(t, 31*day)
	w.do(t, dayGate("round", "0"), "again")
}

// overAndRead makes a slot whose rows are all over, which an open transaction has
// read and keeps from being emptied.
func overAndRead(t *testing.T) (d *database, w *worker, open store.Txn[pgx.Tx]) {
	t.Helper()
	d = fresh(t, nil)
	w = large(d, t)
	w.do(t, dayGate("old"), "old")
	d.advance(t, day+time.Minute)
	w.purge(t)
	open = w.begin(t, dayGate("open"))
	d.advance(t, 2*day)
	return d, w, open
}

// X6: emptying a slot neither waits nor makes others wait.
func TestEmptyingNeverQueues(t *testing.T) {
	t.Parallel()
	d, w, open := overAndRead(t)
	started := time.Now()
	w.purge(t)
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("purge took %v", took)
	}
	slotIs(t, d, 0, "retired")
	if n := ask[int](t, d, "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); n != 0 {
		t.Errorf("%d locks are waited for", n)
	}
	w.do(t, dayGate("beside"), "beside")
	// Who begins now does not read the retired slot, and so does not keep it.
	later := w.begin(t, dayGate("later"))
	must(t, "Rollback", open.Rollback(t.Context()))
	w.purge(t)
	slotIs(t, d, 0, "empty")
	must(t, "Rollback", later.Rollback(t.Context()))
	w.state(t, dayGate("old"), store.Expired)
}

// Whatever has put a row into a slot that is taken for over: the slot is looked at
// once more, with all others shut out, before it is emptied.
func TestRetiredSlotIsNotEmptiedWithWhatIsNotOver(t *testing.T) {
	t.Parallel()
	d, w, open := overAndRead(t)
	w.purge(t)
	slotIs(t, d, 0, "retired")
	must(t, "Rollback", open.Rollback(t.Context()))
	d.exec(t, "UPDATE unavez.outcome_0 SET expires = clock_timestamp() + interval '1 hour'")
	w.purge(t)
	slotIs(t, d, 0, "retired")
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.outcome_0"); n == 0 {
		t.Error("a result that was not over is gone")
	}
	d.advance(t, 2*time.Hour)
	w.purge(t)
	slotIs(t, d, 0, "empty")
}

// X17, the gate's half of it, and X4 for outcomes: a slot with an insert under
// way is not measured, and what was committed there is found.
func TestLateInsertIsNotLostWithItsSlot(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := large(d, t)
	ctx := t.Context()
	tx, err := w.pool.Begin(ctx)
	must(t, "begin", err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // it has ended by then
	gate := dayGate("late")
	joined, _, err := w.Join(ctx, tx, gate)
	must(t, "Join", err)
	_, err = joined.Finish(ctx, completed("late"))
	must(t, "Finish", err)
	d.advance(t, day+time.Minute)
	w.purge(t)
	slotIs(t, d, 0, "sealed")
	d.advance(t, 5*day) // of the rows' times only those that are committed move
	w.purge(t)
	slotIs(t, d, 0, "sealed")
	must(t, "commit", tx.Commit(ctx))
	w.purge(t)
	slotIs(t, d, 0, "sealed")
	w.state(t, gate, store.Completed)
	if txn, v, err := w.Begin(ctx, gate); err != nil || txn != nil {
		t.Fatalf("Begin: %v, %v", v.State, err)
	}
}

// A transaction that was open while the slot turned writes into the new one.
func TestTransactionOverTheTurnOfASlot(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := large(d, t)
	gate := dayGate("over the turn")
	w.do(t, dayGate("before"), "before")
	txn := w.begin(t, gate)
	w.turn(t, d)
	slotIs(t, d, 1, "current")
	must(t, "write", write(t.Context(), txn.Tx(), "once"))
	_, err := txn.Commit(t.Context(), completed("once"))
	must(t, "Commit", err)
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.outcome_1"); n != 1 {
		t.Errorf("%d rows in the current slot", n)
	}
	w.state(t, gate, store.Completed)
	// A store that looked last before the turn reads the new slot all the same.
	behind := d.worker(t, nil)
	w.turn(t, d)
	w.do(t, dayGate("after the turn"), "second")
	for _, gate := range []store.Gate{gate, dayGate("after the turn")} {
		if txn, v, err := behind.Begin(t.Context(), gate); err != nil || txn != nil || v.State != store.Completed {
			t.Fatalf("Begin: %v, %v", v.State, err)
		}
	}
}

// X7: the gate of a ring with all its slots in use stays on the fast path.
func TestGateHoldsFewLocks(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil, func(c *pgxpool.Config) { c.MaxConns = 1 })
	postgres.SetSmall(w.Store, 0, smallTombstones)
	for range 2 {
		w.do(t, dayGate(time.Now().String()), "row")
		w.turn(t, d)
	}
	for range 8 { // until the server keeps its plans
		must(t, "Rollback", w.begin(t, dayGate("warm")).Rollback(t.Context()))
	}
	if got := slots(t, d, "outcome"); got != "sealed sealed current empty" {
		t.Fatalf("slots: %s", got)
	}
	const text = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = 'relation'"
	// A strong lock that somebody takes elsewhere on the server may push one off
	// the fast path, by a collision of hashes and as long as it is held.
	eventually(t, "a gate with all its locks on the fast path", func() bool {
		txn := w.begin(t, dayGate("locks"))
		pid := int32(txn.Tx().Conn().PgConn().PID())
		all, slow := ask[int](t, d, text, pid), ask[int](t, d, text+" AND NOT fastpath", pid)
		must(t, "Rollback", txn.Rollback(t.Context()))
		if all == 0 || all > 15 {
			t.Fatalf("%d relation locks", all)
		}
		return slow == 0
	})
}

// X13: a gate inside a savepoint that is rolled back to has lost its lock.
func TestFinishWithoutItsLockIsRefused(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	gate := gateOf("lost lock")
	for _, ends := range []bool{false, true} {
		tx, err := w.pool.Begin(ctx)
		must(t, "begin", err)
		must(t, "savepoint", says(ctx, tx, "SAVEPOINT mine"))
		joined, _, err := w.Join(ctx, tx, gate)
		must(t, "Join", err)
		must(t, "rollback to", says(ctx, tx, "ROLLBACK TO mine"))
		other := w.begin(t, gate) // the lock is free
		if ends {
			must(t, "write", write(ctx, other.Tx(), "other"))
			_, err := other.Commit(ctx, completed("other"))
			must(t, "Commit", err)
		}
		_, err = joined.Finish(ctx, completed("first"))
		is(t, "Finish", err, store.ErrDuplicate)
		must(t, "rollback", tx.Rollback(ctx))
		must(t, "Rollback", other.Rollback(ctx))
	}
	rowsAre(t, d, "other")
}

// X2 and X3: a claim beside a finish, and a finish whose fence is gone.
func TestLeaseIsGuardedByLockAndFence(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	ctx := t.Context()
	gate := gateOf("leased")
	claim := store.Claim{Gate: gate, Lease: time.Minute}
	attempt, _, err := w.Claim(ctx, claim)
	must(t, "Claim", err)
	d.advance(t, time.Hour)
	claim.From = attempt.Fence
	txn, err := w.Finish(ctx, gate, attempt.Fence)
	must(t, "Finish", err)
	if made, v, err := other.Claim(ctx, claim); err != nil || made != nil || v.State != store.Processing {
		t.Fatalf("Claim beside a finish: %+v, %v, %v", made, v.State, err)
	}
	must(t, "write", write(ctx, txn.Tx(), "first"))
	_, err = txn.Commit(ctx, completed("first"))
	must(t, "Commit", err)
	if made, v, err := other.Claim(ctx, claim); err != nil || made != nil || v.State != store.Completed {
		t.Fatalf("Claim after a finish: %+v, %v, %v", made, v.State, err)
	}

	gate = gateOf("fenced")
	_, _, err = w.Claim(ctx, store.Claim{Gate: gate, Lease: time.Minute})
	must(t, "Claim", err)
	txn, err = w.Finish(ctx, gate, 1)
	must(t, "Finish", err)
	must(t, "write", write(ctx, txn.Tx(), "zombie"))
	d.exec(t, "UPDATE unavez.attempt SET fence = 2 WHERE key = $1", [16]byte(gate.Key)) // past the lock
	_, err = txn.Commit(ctx, completed("zombie"))
	is(t, "Commit", err, store.ErrLeaseLost)
	rowsAre(t, d, "first")
	w.state(t, gate, store.Processing)
}

// X3 with the takeover still under way: the fence is no look, it waits for the row.
func TestFenceWaitsForATakeoverThatHasNotCommitted(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	gate := gateOf("overtaken")
	_, _, err := w.Claim(ctx, store.Claim{Gate: gate, Lease: time.Minute})
	must(t, "Claim", err)
	txn, err := w.Finish(ctx, gate, 1)
	must(t, "Finish", err)
	must(t, "write", write(ctx, txn.Tx(), "zombie"))
	takeover, err := d.admin.Begin(ctx)
	must(t, "begin", err)
	must(t, "take over", says(ctx, takeover, "UPDATE unavez.attempt SET fence = 2 WHERE operation = '"+gate.Identity.Text()+"'")) // past the lock
	ended := make(chan error, 1)
	go func() {
		_, err := txn.Commit(ctx, completed("zombie"))
		ended <- err
	}()
	eventually(t, "the finish waits", func() bool { return d.waits(t) == 1 })
	must(t, "commit", takeover.Commit(ctx))
	is(t, "Commit", <-ended, store.ErrLeaseLost)
	rowsAre(t, d)
	w.state(t, gate, store.Processing)
}

// The read of a gate comes after its lock, with a snapshot of its own: it sees
// what the last holder committed while it waited.
func TestGateThatWaitedSeesWhatTheHolderCommitted(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	ctx := t.Context()
	gate := gateOf("waited for")
	txn := w.begin(t, gate)
	must(t, "write", write(ctx, txn.Tx(), "first"))
	ended := make(chan error, 1)
	go func() {
		_, err := other.Finish(ctx, gate, 0)
		ended <- err
	}()
	eventually(t, "the gate waits", func() bool { return d.waits(t) == 1 })
	_, err := txn.Commit(ctx, completed("first"))
	must(t, "Commit", err)
	is(t, "Finish", <-ended, store.ErrDuplicate)
}

// waits counts the transactions of the database that wait for another.
func (d *database) waits(t *testing.T) int {
	t.Helper()
	return ask[int](t, d, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
}

// X1 and X12: above READ COMMITTED a ring is refused, and one table decides.
func TestIsolationAboveReadCommitted(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			d := fresh(t, nil)
			opts := &postgres.Options{Isolation: level}
			pool := d.pool(t, "unavez_app", nil)
			if _, err := postgres.New(pool, opts); err == nil {
				t.Fatal("New: a ring above READ COMMITTED")
			}
			ctx := t.Context()
			plain := d.worker(t, nil)
			tx, err := plain.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			must(t, "begin", err)
			if joined, _, err := plain.Join(ctx, tx, gateOf("joined")); err == nil || joined != nil {
				t.Fatal("Join: a ring above READ COMMITTED")
			}
			must(t, "rollback", tx.Rollback(ctx))
			old := gateOf("from the ring")
			plain.do(t, old, "old")

			d.migrate(t, &postgres.Settings{NoRing: true})
			w := d.worker(t, opts)
			if txn, v, err := w.Begin(ctx, old); err != nil || txn != nil || v.State != store.Completed {
				t.Fatalf("Begin of what is in the ring: %v, %v", v.State, err)
			}
			// The twin has read before the first commits, and writes after it.
			gate := gateOf("twin")
			twin, err := w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			must(t, "begin", err)
			must(t, "snapshot", says(ctx, twin, "SELECT count(*) FROM public.business"))
			w.do(t, gate, "first")
			joined, v, err := w.Join(ctx, twin, gate)
			must(t, "Join", err)
			if joined != nil {
				must(t, "write", write(ctx, twin, "second"))
				_, err = joined.Finish(ctx, completed("second"))
				if err == nil {
					t.Error("Finish: a second outcome")
				}
			} else if v.State != store.Completed {
				t.Errorf("Join: %v", v.State)
			}
			must(t, "rollback", twin.Rollback(ctx))
			// A claim that came between the read and the lock.
			txn := w.begin(t, gateOf("claimed"))
			d.exec(t, "INSERT INTO unavez.attempt (key, fence, state, version, expires, due, created, changed, operation, fingerprint, derived, origin, reason) VALUES ($1, 1, 1, 0, now() + interval '1 hour', now(), now(), now(), 't/e/claimed', '', '', '', '')",
				[16]byte(gateOf("claimed").Key))
			if o, err := txn.Commit(ctx, completed("no")); err == nil {
				t.Errorf("Commit over a claim: %+v", o)
			}
			w.state(t, gateOf("claimed"), store.Processing)
			rowsAre(t, d, "old", "first")

			// Unrelated operations do not fail.
			errs := make(chan error)
			for client := range 16 {
				go func() {
					for i := range 10 {
						txn, _, err := w.Begin(ctx, gateOf("unrelated", fmt.Sprint(client, i)))
						if err == nil {
							_, err = txn.Commit(ctx, completed("x"))
						}
						if err != nil {
							errs <- err
							return
						}
					}
					errs <- nil
				}()
			}
			for range 16 {
				must(t, "unrelated", <-errs)
			}
		})
	}
}

// With the sizes as they are: a large slot is emptied as a whole, beside gates.
func TestLargeSlotIsEmptiedBesideGates(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	const n = 20_000
	d.exec(t, `INSERT INTO unavez.outcome_0 SELECT md5(i::text)::uuid, now(), now() + interval '1 day', now() + interval '30 days',
		200, 1, 0, 6, false, 't/e/' || i, '\x0102', '', '', decode(repeat('00', 200), 'hex') FROM generate_series(1, $1) i`, n)
	old := dayGate("old")
	w.do(t, old, "old")
	d.advance(t, 3*day)
	total, err := w.Purge(t.Context(), 1) // turns the ring: what is done beside goes into the next slot
	must(t, "Purge", err)
	over := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			txn, _, err := w.Begin(context.Background(), dayGate("beside", fmt.Sprint(i)))
			if err == nil {
				_, err = txn.Commit(context.Background(), completed("beside"))
			}
			if err != nil || i == 500 {
				over <- err
				return
			}
		}
	}()
	eventually(t, "the slot is purged", func() bool { // a gate may be in the way
		got, err := w.Purge(t.Context(), 3000)
		must(t, "Purge", err)
		if got > 3000 {
			t.Fatalf("Purge(3000) changed %d rows", got)
		}
		total += got
		return total > n
	})
	must(t, "beside", <-over)
	w.purge(t)
	if total != n+1 {
		t.Errorf("%d rows were changed, want %d", total, n+1)
	}
	if size := ask[int64](t, d, "SELECT pg_relation_size('unavez.outcome_0')"); size != 0 {
		t.Errorf("the slot has %d bytes", size)
	}
	if got := ask[int](t, d, "SELECT count(*) FROM unavez.tombstone_0"); got != n+1 {
		t.Errorf("%d identities are remembered, want %d", got, n+1)
	}
	w.state(t, old, store.Expired)
}
