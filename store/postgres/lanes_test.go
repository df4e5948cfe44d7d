package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// holdOf takes all lanes for a worker and gives the hold of an entry's.
func (w *worker) holdOf(t *testing.T, name string, e store.Entry) store.Hold {
	t.Helper()
	share, err := w.Keep(t.Context(), store.Keeping{Worker: name, Lease: time.Minute})
	must(t, "Keep", err)
	lane := store.LaneOf(e.Order, w.Lanes())
	for _, held := range share.Held {
		if held.Lane == lane {
			return held.Hold
		}
	}
	t.Fatalf("lane %d is not among the %d that %s holds", lane, len(share.Held), name)
	return store.Hold{}
}

// laneGate is the gate of an entry in its lane.
func laneGate(e store.Entry, hold store.Hold) store.Gate {
	gate := gateOf()
	gate.Identity, gate.Key, gate.Fingerprint, gate.Hold = e.Note.Event, e.Key, e.Fingerprint, hold
	return gate
}

// X17, the lanes' half: whoever takes a lane over waits for what runs in it, and
// from then on nothing begins under the old epoch.
func TestTakeoverWaitsForWhatRunsAndLetsNothingBegin(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	ctx := t.Context()
	a, b := entryOf("a", "one"), entryOf("b", "one")
	w.append(t, a, b)
	hold := w.holdOf(t, "old", a)
	running := w.begin(t, laneGate(a, hold))
	must(t, "write", write(ctx, running.Tx(), "a"))
	d.advance(t, 2*time.Minute) // its lease has run out
	taken := make(chan error, 1)
	var epoch int64
	go func() {
		const text = "SELECT epoch FROM unavez.take_lanes('new', 60000000, ARRAY[$1::int4], '{}', 1, 60000)"
		taken <- other.pool.QueryRow(ctx, text, hold.Lane).Scan(&epoch)
	}()
	eventually(t, "the takeover waits", func() bool {
		return ask[int](t, d, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
	})
	entry, err := w.Load(ctx, b.Key)
	must(t, "Load", err)
	tx, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing is kept of it
	refused := map[string]func() error{
		"Begin": func() error { _, _, err := w.Begin(ctx, laneGate(b, hold)); return err },
		"Claim": func() error {
			_, _, err := w.Claim(ctx, store.Claim{Gate: laneGate(b, hold), Lease: time.Minute})
			return err
		},
		"Finish":     func() error { _, err := w.Finish(ctx, laneGate(b, hold), 0); return err },
		"BeginBatch": func() error { _, _, err := w.BeginBatch(ctx, []store.Gate{laneGate(b, hold)}); return err },
		"Block":      func() error { return w.Block(ctx, store.Blocking{Hold: hold, Entry: &entry}) },
		"Unblock":    func() error { return w.Unblock(ctx, hold, b.Order, entry.Sequence) },
		"Join":       func() error { _, _, err := w.Join(ctx, tx, laneGate(b, hold)); return err },
	}
	all := func(when string) {
		t.Helper()
		for what, run := range refused {
			if err := run(); !errors.Is(err, store.ErrLaneLost) {
				t.Errorf("%s %s: %v", what, when, err)
			}
			if what == "Join" {
				must(t, "Rollback", tx.Rollback(ctx))
				tx, err = w.pool.Begin(ctx)
				must(t, "Begin", err)
			}
		}
	}
	all("while it is taken over")
	select {
	case err := <-taken:
		t.Fatalf("the lane was taken while a transaction of it was open: %v", err)
	default:
	}
	_, err = running.Commit(ctx, completed("a"))
	must(t, "Commit of what ran", err)
	must(t, "take_lanes", <-taken)
	if epoch != hold.Epoch+1 {
		t.Errorf("epoch %d after %d", epoch, hold.Epoch)
	}
	all("after it was taken over")
	must(t, "Rollback", tx.Rollback(ctx))
	other.do(t, laneGate(b, store.Hold{Lane: hold.Lane, Epoch: epoch}), "b")
	rowsAre(t, d, "a", "b")
}

// A savepoint that is rolled back takes the lane's lock with it; the finish of a
// joined transaction asks again.
func TestJoinedFinishHoldsItsLaneAgain(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	e := entryOf("a", "one")
	hold := w.holdOf(t, "old", e)
	tx, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing is kept of it
	must(t, "SAVEPOINT", says(ctx, tx, "SAVEPOINT mine"))
	joined, _, err := w.Join(ctx, tx, laneGate(e, hold))
	must(t, "Join", err)
	must(t, "ROLLBACK TO", says(ctx, tx, "ROLLBACK TO mine"))
	d.advance(t, 2*time.Minute)
	w.holdOf(t, "new", e)
	_, err = joined.Finish(ctx, completed("a"))
	is(t, "Finish", err, store.ErrLaneLost)
}

// A lane that another worker's transaction keeps is left for the next round,
// which is not delayed for long, and the others are taken.
func TestRoundTakesWhatItCanGet(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	e := entryOf("a", "one")
	hold := w.holdOf(t, "old", e)
	running := w.begin(t, laneGate(e, hold))
	d.advance(t, 2*time.Minute)
	share, err := other.Keep(t.Context(), store.Keeping{Worker: "new", Lease: time.Minute})
	must(t, "Keep", err)
	if len(share.Held) != other.Lanes()-1 || slices.ContainsFunc(share.Held, func(h store.Held) bool { return h.Lane == hold.Lane || h.Clean }) {
		t.Errorf("%d lanes of %d were taken", len(share.Held), other.Lanes())
	}
	must(t, "Rollback", running.Rollback(t.Context()))
	var marks []store.Mark
	for _, h := range share.Held {
		marks = append(marks, store.Mark{Hold: h.Hold})
	}
	share, err = other.Keep(t.Context(), store.Keeping{Worker: "new", Lease: time.Minute, Marks: marks})
	must(t, "Keep", err)
	if len(share.Held) != other.Lanes() {
		t.Errorf("%d lanes of %d are held", len(share.Held), other.Lanes())
	}
}

// A lane costs no trip, and a batch of many no more than one operation.
func TestLanesAndBatchesCostNoTrip(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	hold := w.holdOf(t, "worker", entryOf("a"))
	number := 0
	next := func(hold store.Hold) store.Gate {
		number++
		return laneGate(entryOf(fmt.Sprint("operation ", number)), hold)
	}
	begin := func(hold store.Hold) func() {
		return func() {
			txn := w.begin(t, next(hold))
			must(t, "write", write(ctx, txn.Tx(), "row"))
			_, err := txn.Commit(ctx, completed("done"))
			must(t, "Commit", err)
		}
	}
	claim := func(hold store.Hold) func() {
		return func() {
			_, _, err := w.Claim(ctx, store.Claim{Gate: next(hold), Lease: time.Minute})
			must(t, "Claim", err)
		}
	}
	batch := func(n int) func() {
		return func() {
			gates, ends := make([]store.Gate, n), make([]*store.End, n)
			for i := range gates {
				end := completed("done")
				gates[i], ends[i] = next(hold), &end
			}
			b, _, err := w.BeginBatch(ctx, gates)
			must(t, "BeginBatch", err)
			must(t, "write", write(ctx, b.Tx(), "row"))
			_, err = b.Commit(ctx, ends)
			must(t, "Commit", err)
		}
	}
	for name, run := range map[string][2]func(){
		"transaction": {begin(store.Hold{}), begin(hold)}, "claim": {claim(store.Hold{}), claim(hold)}, "batch": {begin(hold), batch(50)},
	} {
		for range 2 { // statements are prepared, and the connection is the same
			run[0]()
			run[1]()
		}
		if bare, held := w.wire.count(run[0]), w.wire.count(run[1]); held != bare {
			t.Errorf("%s: %d trips, %d without", name, held, bare)
		}
	}
}

// A batch is committed as a whole or not at all, also where one of its outcomes
// was made elsewhere, its time is over, its server process is killed, or the
// handler ends the transaction.
func TestBatchIsOneCommit(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	long := dayGate("long")
	long.Retention = 30 * day // in the table, not in the ring
	begin := func(limit time.Duration) (store.Batch[pgx.Tx], []*store.End) {
		gates := []store.Gate{dayGate("short"), long, dayGate("third")}
		gates[0].Limit = limit
		ends := make([]*store.End, len(gates))
		for i := range ends {
			end := completed(fmt.Sprint(i))
			ends[i] = &end
		}
		b, verdicts, err := w.BeginBatch(ctx, gates)
		must(t, "BeginBatch", err)
		if b == nil {
			t.Fatalf("BeginBatch: %+v", verdicts)
		}
		must(t, "write", write(ctx, b.Tx(), "batch"))
		return b, ends
	}
	for name, c := range map[string]struct {
		want error
		harm func(b store.Batch[pgx.Tx])
	}{
		"foreign commit": {store.ErrForeignCommit, func(b store.Batch[pgx.Tx]) { _ = b.Tx().Commit(ctx) }},
		"below":          {store.ErrForeignCommit, func(b store.Batch[pgx.Tx]) { _, _ = b.Tx().Conn().Exec(ctx, "ROLLBACK; BEGIN") }},
		"aborted":        {store.ErrAborted, func(b store.Batch[pgx.Tx]) { _ = says(ctx, b.Tx(), "SELECT 1/0") }},
		"killed": {store.ErrUnavailable, func(b store.Batch[pgx.Tx]) {
			d.exec(t, "SELECT pg_terminate_backend($1)", b.Tx().Conn().PgConn().PID())
			eventually(t, "the process is gone", func() bool {
				return ask[int](t, d, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", b.Tx().Conn().PgConn().PID()) == 0
			})
		}},
		"made elsewhere": {store.ErrDuplicate, func(store.Batch[pgx.Tx]) { d.smuggle(t, dayGate("third").Identity, false) }},
	} {
		t.Run(name, func(t *testing.T) {
			b, ends := begin(time.Minute)
			c.harm(b)
			if _, err := b.Commit(ctx, ends); !errors.Is(err, c.want) && (c.want != store.ErrUnavailable || !errors.Is(err, store.ErrCommitUnknown)) {
				t.Errorf("Commit: %v, want %v", err, c.want)
			}
			d.exec(t, "DELETE FROM unavez.outcome_0 WHERE code = 299")
			rowsAre(t, d)
			for _, gate := range []store.Gate{dayGate("short"), long, dayGate("third")} {
				w.free(t, gate)
			}
		})
	}
	b, ends := begin(time.Second)
	is(t, "a statement over the limit", says(ctx, b.Tx(), "SELECT pg_sleep(60)"), store.ErrLimit)
	_, err := b.Commit(ctx, ends)
	is(t, "Commit", err, store.ErrLimit)
	rowsAre(t, d)
	b, ends = begin(time.Minute)
	outcomes, err := b.Commit(ctx, ends)
	must(t, "Commit", err)
	rowsAre(t, d, "batch")
	for i, gate := range []store.Gate{dayGate("short"), long, dayGate("third")} {
		w.state(t, gate, store.Completed)
		if v, err := w.Look(ctx, gate.Key); err != nil || !v.Outcome.At.Equal(outcomes[i].At) || string(v.Outcome.Result.Body) != fmt.Sprint(i) {
			t.Errorf("outcome %d: %+v, %v; said %+v", i, v.Outcome, err, outcomes[i])
		}
	}
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.outcome_table"); n != 1 {
		t.Errorf("%d outcomes in the table, want 1", n)
	}
}

// Above READ COMMITTED a lane's new holder, and an outcome in another slot, could
// be missed: lanes and batches are refused.
func TestLanesAndBatchesNeedReadCommitted(t *testing.T) {
	t.Parallel()
	d := fresh(t, &postgres.Settings{NoRing: true})
	w := d.worker(t, &postgres.Options{Isolation: pgx.RepeatableRead})
	ctx := t.Context()
	e := entryOf("a")
	hold := w.holdOf(t, "worker", e)
	if _, _, err := w.Begin(ctx, laneGate(e, hold)); err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
		t.Errorf("Begin: %v", err)
	}
	if _, _, err := w.BeginBatch(ctx, []store.Gate{laneGate(e, store.Hold{})}); err == nil || !strings.Contains(err.Error(), "read committed") {
		t.Errorf("BeginBatch: %v", err)
	}
	tx, err := w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
	must(t, "Begin", err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing is kept of it
	if _, _, err := w.Join(ctx, tx, laneGate(e, hold)); err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
		t.Errorf("Join: %v", err)
	}
	w.do(t, laneGate(e, store.Hold{}), "without a lane")
}

// A batch finds its slot where the ring has turned since it began.
func TestBatchFindsItsSlot(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := large(d, t)
	w.do(t, dayGate("first"), "first")
	b, _, err := w.BeginBatch(t.Context(), []store.Gate{dayGate("a"), dayGate("b")})
	must(t, "BeginBatch", err)
	other := large(d, t)
	other.turn(t, d)
	if got := ask[int](t, d, "SELECT slot FROM unavez.ledger"); got != 1 {
		t.Fatalf("slot %d is written to", got)
	}
	end := completed("done")
	_, err = b.Commit(t.Context(), []*store.End{&end, &end})
	must(t, "Commit", err)
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.outcome_1"); n != 2 {
		t.Errorf("%d outcomes in the next slot, want 2", n)
	}
}
