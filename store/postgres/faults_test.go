package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// is checks an error that must be the wanted one.
func is(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error %v, want %v", what, err, want)
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// begin opens a transaction of an operation that must be free.
func (w *worker) begin(t *testing.T, gate store.Gate) store.Txn[pgx.Tx] {
	t.Helper()
	txn, v, err := w.Begin(t.Context(), gate)
	must(t, "Begin", err)
	if txn == nil {
		t.Fatalf("Begin: %v", v.State)
	}
	return txn
}

// do runs an operation once, with one business row.
func (w *worker) do(t *testing.T, gate store.Gate, row string) *store.Outcome {
	t.Helper()
	txn := w.begin(t, gate)
	must(t, "write", write(t.Context(), txn.Tx(), row))
	o, err := txn.Commit(t.Context(), completed(row))
	must(t, "Commit", err)
	return o
}

// state is what a plain read finds.
func (w *worker) state(t *testing.T, gate store.Gate, want store.State) store.Verdict {
	t.Helper()
	v, err := w.Look(t.Context(), gate.Key)
	must(t, "Look", err)
	if v.State != want {
		t.Fatalf("state %v, want %v", v.State, want)
	}
	return v
}

func rowsAre(t *testing.T, d *database, want ...string) {
	t.Helper()
	got := d.rows(t)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("rows %q, want %q", got, want)
	}
}

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		}
	}
}

// free waits until the operation can be run, and gives it up again.
func (w *worker) free(t *testing.T, gate store.Gate) {
	t.Helper()
	eventually(t, "free", func() bool {
		txn, _, err := w.Begin(t.Context(), gate)
		must(t, "Begin", err)
		return txn != nil && txn.Rollback(t.Context()) == nil
	})
}

func TestTransactionTakesNoMoreTripsThanABareOne(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared": pgx.QueryExecModeCacheStatement, "described": pgx.QueryExecModeCacheDescribe, "exec": pgx.QueryExecModeExec,
	} {
		w := d.worker(t, nil, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 1, mode })
		bare := func() {
			must(t, "bare", pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error { return write(t.Context(), tx, "bare") }))
		}
		n := 0
		once := func() {
			n++
			w.do(t, gateOf(name, fmt.Sprint(n)), "once")
		}
		again := func() { w.Begin(t.Context(), gateOf(name, fmt.Sprint(n))) } //nolint:errcheck // counted only
		bare()
		once()
		again() // every statement has been prepared
		if got, want := w.wire.count(once), w.wire.count(bare); got != want {
			t.Errorf("%s: %d trips, a bare transaction takes %d", name, got, want)
		}
		if got := w.wire.count(again); got > 3 {
			t.Errorf("%s: a duplicate takes %d trips", name, got)
		}
		other := d.worker(t, nil, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		held := other.begin(t, gateOf(name, "held"))
		inFlight := func() {
			if _, v, err := w.Begin(t.Context(), gateOf(name, "held")); err != nil || v.State != store.Processing {
				t.Errorf("%s: %v, %v", name, v.State, err)
			}
		}
		if got := w.wire.count(inFlight); got > 2 {
			t.Errorf("%s: a duplicate in flight takes %d trips", name, got)
		}
		must(t, "Rollback", held.Rollback(t.Context()))
		claim := store.Claim{Gate: gateOf(name, "claimed"), Lease: time.Minute}
		_, _, err := w.Claim(t.Context(), claim)
		must(t, "Claim", err)
		claim.Gate = gateOf(name, "claimed again")
		if got := w.wire.count(func() { _, _, err = w.Claim(t.Context(), claim) }); got != 1 || err != nil {
			t.Errorf("%s: a claim takes %d trips: %v", name, got, err)
		}
	}
}

// X9: a client that is silent, and one whose process is stopped, keep a key for
// as long as the limit at most.
func TestKeyOfASilentClientIsFreeWithinItsLimit(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	gate := gateOf("silent")
	gate.Limit = 300 * time.Millisecond
	txn := w.begin(t, gate)
	must(t, "write", write(t.Context(), txn.Tx(), "silent"))
	d.worker(t, nil).free(t, gate)
	_, err := txn.Commit(t.Context(), completed("late"))
	is(t, "Commit", err, store.ErrLimit)
	rowsAre(t, d)
}

// The same of a finish, which holds the lock of its operation.
func TestKeyOfASilentFinishIsFreeWithinItsLimit(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	gate := gateOf("silent finish")
	a, _, err := w.Claim(t.Context(), store.Claim{Gate: gate, Lease: time.Minute})
	must(t, "Claim", err)
	short := gate
	short.Limit = 300 * time.Millisecond
	silent, err := w.Finish(t.Context(), short, a.Fence)
	must(t, "Finish", err)
	must(t, "write", write(t.Context(), silent.Tx(), "silent"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	txn, err := other.Finish(ctx, gate, a.Fence)
	must(t, "Finish by another", err)
	_, err = txn.Commit(t.Context(), completed("other"))
	must(t, "Commit by another", err)
	_, err = silent.Commit(t.Context(), completed("late"))
	is(t, "Commit", err, store.ErrLimit)
	rowsAre(t, d)
}

func TestKeyOfAStoppedWorkerIsFreeWithinItsLimit(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	c := start(t, "stopped", d.url, "stopped", "stopped")
	defer c.kill()
	c.wait("wrote")
	c.signal(syscall.SIGSTOP)
	w := d.worker(t, nil)
	gate := gateOf("stopped")
	w.free(t, gate)
	w.do(t, gate, "another")
	c.signal(syscall.SIGCONT)
	c.goOn()
	c.wait("refused") // its late commit
	rowsAre(t, d, "another")
}

func TestWorkerKilledAtAnyStepLeavesOneEffect(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"gate", "hold", "committed", "claim", "finish"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			d := fresh(t, nil)
			c := start(t, step, d.url, "killed", "killed")
			c.wait("wrote")
			c.kill()
			w := d.worker(t, nil)
			gate := gateOf("killed")
			switch step {
			case "committed":
				w.state(t, gate, store.Completed)
			case "claim", "finish":
				w.state(t, gate, store.Processing)
				rowsAre(t, d)
				d.advance(t, time.Hour)
				w.state(t, gate, store.Unknown)
				var txn store.Txn[pgx.Tx]
				eventually(t, "Finish", func() bool { // until the server has seen the death
					var err error
					txn, err = w.Finish(t.Context(), gate, 1)
					must(t, "Finish", err)
					return true
				})
				must(t, "write", write(t.Context(), txn.Tx(), "killed"))
				_, err := txn.Commit(t.Context(), completed("killed"))
				must(t, "Commit", err)
			default:
				w.free(t, gate)
				w.do(t, gate, "killed")
			}
			rowsAre(t, d, "killed")
		})
	}
}

func TestExhaustedPoolIsUnavailable(t *testing.T) {
	t.Parallel()
	w := fresh(t, nil).worker(t, nil, func(c *pgxpool.Config) { c.MaxConns = 1 })
	txn := w.begin(t, gateOf("first"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := w.Begin(ctx, gateOf("second"))
	is(t, "Begin", err, store.ErrUnavailable)
	must(t, "Rollback", txn.Rollback(t.Context()))
	w.do(t, gateOf("second"), "second")
}

func TestGateThatWaitsTooLongIsUnavailable(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	w.do(t, gateOf("warm"), "warm")
	tx, err := d.admin.Begin(t.Context())
	must(t, "begin", err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // it has ended by then
	_, err = tx.Exec(t.Context(), "LOCK TABLE unavez.ledger IN ACCESS EXCLUSIVE MODE")
	must(t, "lock", err)
	gate := gateOf("waits")
	gate.Limit = 200 * time.Millisecond
	_, _, err = w.Begin(t.Context(), gate)
	is(t, "Begin", err, store.ErrUnavailable)
	must(t, "rollback", tx.Rollback(t.Context()))
	w.do(t, gate, "waits")
	rowsAre(t, d, "warm", "waits")
}

func TestHandlerMayFailInASavepointAndGoOn(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	txn := w.begin(t, gateOf("recovers"))
	tx := txn.Tx()
	must(t, "write", write(ctx, tx, "outer"))
	point, err := tx.Begin(ctx)
	must(t, "savepoint", err)
	must(t, "write", write(ctx, point, "undone"))
	var division *pgconn.PgError
	if err := says(ctx, point, "SELECT 1/0"); !errors.As(err, &division) || division.Code != "22012" {
		t.Fatalf("the handler got %v", err)
	}
	must(t, "rollback to", point.Rollback(ctx))
	inner, err := tx.Begin(ctx)
	must(t, "savepoint", err)
	must(t, "write", write(ctx, inner, "kept"))
	must(t, "release", inner.Commit(ctx))
	// What a handler lowers is raised again for the commit.
	must(t, "lower", says(ctx, tx, "SET LOCAL synchronous_commit = off"))
	_, err = txn.Commit(ctx, completed("recovers"))
	must(t, "Commit", err)
	rowsAre(t, d, "outer", "kept")
	w.state(t, gateOf("recovers"), store.Completed)
}

func TestHandlerHasAWholeTransaction(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	txn := w.begin(t, gateOf("whole"))
	tx := txn.Tx()
	n, err := tx.CopyFrom(ctx, pgx.Identifier{"public", "business"}, []string{"row"}, pgx.CopyFromRows([][]any{{"a"}, {"b"}}))
	if err != nil || n != 2 {
		t.Fatalf("CopyFrom: %d, %v", n, err)
	}
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO public.business (row) VALUES ($1)", "c")
	batch.Queue("SELECT count(*) FROM public.business").QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
	must(t, "SendBatch", tx.SendBatch(ctx, batch).Close())
	if n != 3 {
		t.Errorf("%d rows in the batch", n)
	}
	_, err = tx.Prepare(ctx, "mine", "SELECT count(*) FROM public.business WHERE row = $1")
	must(t, "Prepare", err)
	must(t, "QueryRow", tx.QueryRow(ctx, "mine", "a").Scan(&n))
	objects := tx.LargeObjects()
	oid, err := objects.Create(ctx, 0)
	must(t, "LargeObjects", err)
	object, err := objects.Open(ctx, oid, pgx.LargeObjectModeWrite)
	must(t, "Open", err)
	_, err = object.Write([]byte("large"))
	must(t, "Write", err)
	must(t, "Close", object.Close())
	if tx.Conn() == nil {
		t.Error("no connection")
	}
	_, err = txn.Commit(ctx, completed("whole"))
	must(t, "Commit", err)
	rowsAre(t, d, "a", "b", "c")
	for what, err := range map[string]error{
		"Exec": says(ctx, tx, "SELECT 1"), "QueryRow": tx.QueryRow(ctx, "SELECT 1").Scan(&n), "SendBatch": tx.SendBatch(ctx, &pgx.Batch{}).Close(),
		"Commit": tx.Commit(ctx), "Rollback": tx.Rollback(ctx),
	} {
		is(t, what+" after the end", err, pgx.ErrTxClosed)
	}
}

func TestLargeAnswerComesBack(t *testing.T) {
	t.Parallel()
	w := fresh(t, nil).worker(t, nil)
	body := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	gate := gateOf("large")
	_, err := w.begin(t, gate).Commit(t.Context(), store.End{State: store.Completed, Result: store.Result{Code: 200, Body: body}})
	must(t, "Commit", err)
	if got := w.state(t, gate, store.Completed).Outcome.Result.Body; !bytes.Equal(got, body) {
		t.Errorf("%d bytes came back", len(got))
	}
}

func TestCommitUnderneathIsFoundOut(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	gate := gateOf("underneath")
	for _, then := range []string{"", "BEGIN"} {
		txn := w.begin(t, gate)
		conn := txn.Tx().Conn()
		for _, text := range []string{"COMMIT", then} {
			if _, err := conn.Exec(ctx, text); err != nil {
				t.Fatal(err)
			}
		}
		_, err := txn.Commit(ctx, completed("no"))
		is(t, "Commit", err, store.ErrForeignCommit)
		w.state(t, gate, store.Free)
	}
	w.do(t, gate, "yes")
}

func TestErrorsOfTheApplicationAreItsOwn(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, "CREATE TABLE public.parent (id int PRIMARY KEY); CREATE TABLE public.late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); GRANT ALL ON public.late TO unavez_app")
	w := d.worker(t, nil)
	ctx := t.Context()
	txn := w.begin(t, gateOf("own"))
	must(t, "insert", says(ctx, txn.Tx(), "INSERT INTO public.business (row, once) VALUES ('a', 'x')"))
	err := says(ctx, txn.Tx(), "INSERT INTO public.business (row, once) VALUES ('b', 'x')")
	var unique *pgconn.PgError
	if !errors.As(err, &unique) || unique.Code != "23505" || errors.Is(err, store.ErrDuplicate) {
		t.Errorf("the handler got %v", err)
	}
	_, err = txn.Commit(ctx, completed("no"))
	is(t, "Commit", err, store.ErrAborted)

	txn = w.begin(t, gateOf("own"))
	must(t, "insert", says(ctx, txn.Tx(), "INSERT INTO public.late VALUES (1), (1)"))
	_, err = txn.Commit(ctx, completed("no"))
	if !errors.As(err, &unique) || unique.Code != "23505" || errors.Is(err, store.ErrDuplicate) || errors.Is(err, store.ErrCommitUnknown) {
		t.Errorf("Commit of a deferred violation: %v", err)
	}
	w.do(t, gateOf("own"), "own")
}

func TestDeadlockIsAborted(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, "INSERT INTO public.business (row) VALUES ('a'), ('b')")
	w := d.worker(t, nil)
	ctx := t.Context()
	lock := func(tx pgx.Tx, row string) error {
		_, err := tx.Exec(ctx, "UPDATE public.business SET once = NULL WHERE row = $1", row)
		return err
	}
	first, second := w.begin(t, gateOf("first")), w.begin(t, gateOf("second"))
	must(t, "lock", lock(first.Tx(), "a"))
	must(t, "lock", lock(second.Tx(), "b"))
	waits := make(chan error, 1)
	go func() { waits <- lock(second.Tx(), "a") }()
	mine := lock(first.Tx(), "b")
	other := <-waits
	if (mine == nil) == (other == nil) {
		t.Fatalf("errors %v and %v, want one deadlock", mine, other)
	}
	is(t, "deadlock", errors.Join(mine, other), store.ErrAborted)
	loser := map[bool]store.Txn[pgx.Tx]{true: first, false: second}[mine != nil]
	_, err := loser.Commit(ctx, completed("no"))
	is(t, "Commit", err, store.ErrAborted)
	must(t, "Rollback", first.Rollback(ctx))
	must(t, "Rollback", second.Rollback(ctx))
}

func TestServerThatGoesAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	txn := w.begin(t, gateOf("terminated"))
	must(t, "write", write(t.Context(), txn.Tx(), "terminated"))
	d.exec(t, "SELECT pg_terminate_backend($1)", int32(txn.Tx().Conn().PgConn().PID()))
	err := says(t.Context(), txn.Tx(), "SELECT 1")
	is(t, "statement", err, store.ErrUnavailable)
	_, err = txn.Commit(t.Context(), completed("no"))
	if err == nil {
		t.Fatal("Commit on a terminated connection: no error")
	}
	eventually(t, "Settle", func() bool {
		v, err := w.Settle(t.Context(), gateOf("terminated").Key)
		must(t, "Settle", err)
		return v.State == store.Free
	})
	rowsAre(t, d)
}

func TestPoolWithoutRightsSaysWhichAreMissing(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'unavez_nobody') THEN CREATE ROLE unavez_nobody; END IF; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
	_, err := postgres.New(d.pool(t, "unavez_nobody", nil), nil)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("GRANT unavez_app")) {
		t.Errorf("New: %v", err)
	}
}
