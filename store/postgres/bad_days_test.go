package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// own is a server of the test's own, with the schema.
func own(t *testing.T, settings ...string) (*testenv.PostgresServer, *database) {
	t.Helper()
	server := testenv.StartPostgres(t, append([]string{"fsync=off"}, settings...)...)
	d := prepare(t, server.URL())
	d.migrate(t, nil)
	return server, d
}

// The extra log of an operation is the price of everything that is kept of it:
// identity in words, fingerprint, checksum, times and the index. Nothing is
// updated or deleted on the usual way.
func TestOperationWritesItsOutcomeAndNothingElse(t *testing.T) {
	t.Parallel()
	_, d := own(t, "autovacuum=off", "full_page_writes=off", "checkpoint_timeout=1h")
	for _, opts := range []*postgres.Options{nil, {Lazy: true}} {
		w := d.worker(t, opts, func(c *pgxpool.Config) { c.MaxConns = 1 })
		const n, answer = 200, 200
		body := strings.Repeat("x", answer)
		run := 0
		bare := func() {
			must(t, "bare", pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error { return write(t.Context(), tx, "row") }))
		}
		once := func() {
			run++
			txn := w.begin(t, gateOf(fmt.Sprintf("%v %06d", opts != nil, run)))
			must(t, "write", write(t.Context(), txn.Tx(), "row"))
			_, err := txn.Commit(t.Context(), completed(body))
			must(t, "Commit", err)
		}
		position := func() int64 { return ask[int64](t, d, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint") }
		per := func(op func()) int64 {
			op()
			// What the server writes by itself comes between; the least of some
			// runs is the operations' own.
			least := int64(1 << 40)
			for range 3 {
				before := position()
				for range n {
					op()
				}
				least = min(least, (position()-before)/n)
			}
			return least
		}
		if extra := per(once) - per(bare); extra > answer+300 {
			t.Errorf("lazy %v: an operation writes %d B of log more than a bare transaction, of which %d are the answer", opts != nil, extra, answer)
		} else {
			t.Logf("lazy %v: %d B of log beside the answer", opts != nil, extra-answer)
		}
		w.pool.Close() // its session tells what it has counted when it ends
	}
	eventually(t, "the statistics", func() bool {
		return ask[int](t, d, "SELECT coalesce(sum(n_tup_ins), 0)::int FROM pg_stat_user_tables WHERE schemaname = 'unavez' AND relname LIKE 'outcome%'") >= 400
	})
	if dead := ask[int](t, d, "SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::int FROM pg_stat_user_tables WHERE schemaname = 'unavez' AND relname <> 'ledger'"); dead != 0 {
		t.Errorf("%d rows were updated or deleted", dead)
	}
}

// A commit that no standby has is not one: the server answers it all the same
// when the wait is cancelled, and only warns.
func TestCancelledWaitForAStandbyIsAnUnknownCommit(t *testing.T) {
	t.Parallel()
	_, d := own(t)
	w := d.worker(t, nil)
	ctx := t.Context()
	w.do(t, gateOf("before"), "before")
	standbys := func(names string) {
		d.exec(t, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
		d.exec(t, "SELECT pg_reload_conf()")
		eventually(t, "reload", func() bool {
			var now string
			must(t, "show", w.pool.QueryRow(ctx, "SHOW synchronous_standby_names").Scan(&now))
			return now == names
		})
	}
	standbys("nobody")
	// Whether a commit waits is not for its session to say: the checkpointer tells all, when it has read the setting.
	eventually(t, "commits wait", func() bool {
		short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
		defer stop()
		_, err := w.pool.Exec(short, "SELECT pg_logical_emit_message(true, 'probe', '')")
		return err != nil
	})
	// cancel ends the wait of whoever waits, once that is older than the limit.
	const cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND clock_timestamp() - query_start > interval '1 second'"
	done := make(chan error, 1)
	for what, run := range map[string]func() error{
		"Commit": func() error {
			gate := gateOf("commit")
			gate.Limit = 500 * time.Millisecond // which must not end the wait by itself
			txn := w.begin(t, gate)
			must(t, "write", write(ctx, txn.Tx(), "commit"))
			_, err := txn.Commit(ctx, completed("commit"))
			return err
		},
		"Claim": func() error {
			_, _, err := w.Claim(ctx, store.Claim{Gate: gateOf("claim"), Lease: time.Minute})
			return err
		},
	} {
		go func() { done <- run() }()
		var err error
		eventually(t, "the wait is cancelled", func() bool {
			ask[int](t, d, cancel)
			select {
			case err = <-done:
				return true
			default:
				return false
			}
		})
		is(t, what, err, store.ErrCommitUnknown)
	}
	// What is there is not answered while a failover could take it back.
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if v, err := w.Settle(short, gateOf("commit").Key); err == nil {
		t.Errorf("Settle without a standby: %v", v.State)
	}
	standbys("")
	eventually(t, "Settle", func() bool {
		v, err := w.Settle(ctx, gateOf("commit").Key)
		must(t, "Settle", err)
		return v.State == store.Completed
	})
	rowsAre(t, d, "before", "commit")
}

func TestStoppedServerHoldsNobodyForLongerThanTheLimit(t *testing.T) {
	t.Parallel()
	server, d := own(t)
	for name, opts := range map[string]*postgres.Options{"eager": nil, "lazy": {Lazy: true}} {
		w := d.worker(t, opts)
		engine := engineOf(t, w.Store)
		op := operationOf(name)
		op.Limit = time.Second
		warm := operationOf(name, "warm")
		_, err := engine.Do(t.Context(), warm, writing(name+" warm"))
		must(t, "Do", err)
		server.Pause()
		begin := time.Now()
		_, err = engine.Do(t.Context(), op, writing(name))
		took := time.Since(begin)
		server.Resume()
		if !unavez.SafeToRetry(err) || took > 20*time.Second {
			t.Errorf("%s: %v, after %v", name, err, took)
		}
		eventually(t, "it goes on", func() bool {
			_, err := engine.Do(t.Context(), op, writing(name))
			return err == nil
		})
	}
	rowsAre(t, d, "eager warm", "eager", "lazy warm", "lazy")
}

// A restored copy of the volume has the identifier and the timeline of the
// server that went on; its log has not come as far.
func TestRestoredVolumeIsNoticed(t *testing.T) {
	t.Parallel()
	server, d := own(t)
	w := d.worker(t, nil)
	var changes atomic.Int64
	w.OnIncarnation(func() { changes.Add(1) })
	ctx := t.Context()
	w.do(t, gateOf("kept"), "kept")
	dir := ask[string](t, d, "SHOW data_directory")
	backup := filepath.Join(filepath.Dir(dir), "backup")
	copied := func(from, to string) {
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	back := func(what string) {
		eventually(t, what, func() bool {
			_, err := w.Look(ctx, gateOf("kept").Key)
			return err == nil
		})
	}
	server.Stop()
	copied(dir, backup)
	server.Start()
	back("restart")
	if n := changes.Load(); n != 0 {
		t.Fatalf("%d changes were told of a restart", n)
	}
	for i := range 50 {
		w.do(t, gateOf("lost", fmt.Sprint(i)), "lost")
	}
	server.Kill()
	if out, err := exec.Command("rm", "-rf", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copied(backup, dir)
	server.Start()
	back("restore")
	if n := changes.Load(); n != 1 {
		t.Fatalf("%d changes were told, want 1", n)
	}
	w.do(t, gateOf("lost", "0"), "again") // effect and outcome were lost together
	if attempt, v, err := w.Claim(ctx, store.Claim{Gate: gateOf("outside"), Lease: time.Minute}); err != nil || attempt != nil || v.State != store.Unknown {
		t.Errorf("first claim after a restore: %+v, %v, %v", attempt, v.State, err)
	}
	now, err := w.Incarnation(ctx)
	if err != nil || now.Number != 2 || now.DoubtLeft <= 0 || now.DoubtLeft > 5*time.Minute {
		t.Errorf("Incarnation: %+v, %v", now, err)
	}
	d.admin.Reset() // its connections are those of the server that was
	rowsAre(t, d, "kept", "again")
	if n := changes.Load(); n != 1 {
		t.Errorf("%d changes were told, want 1", n)
	}
}

func TestWorkerKilledInsideTheTripOfItsCommitLeavesOneEffect(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"commit sent", "commit held"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			d := fresh(t, nil)
			c := start(t, role, d.url, "killed", "killed")
			c.wait("wrote")
			c.kill()
			w := d.worker(t, nil)
			gate := gateOf("killed")
			if role == "commit sent" {
				eventually(t, "the commit", func() bool {
					v, err := w.Settle(t.Context(), gate.Key)
					must(t, "Settle", err)
					return v.State == store.Completed
				})
			} else {
				w.free(t, gate)
				w.do(t, gate, "killed")
			}
			rowsAre(t, d, "killed")
		})
	}
}

// holding dials connections that hold their process when they are told to: with
// the next trip, before or after it is sent.
type holding struct {
	armed atomic.Bool
	sends bool
}

func (h *holding) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &held{conn, h}, err
}

type held struct {
	net.Conn
	h *holding
}

func (c *held) Write(b []byte) (int, error) {
	if !c.h.armed.Load() {
		return c.Conn.Write(b)
	}
	if c.h.sends {
		if n, err := c.Conn.Write(b); err != nil {
			return n, err
		}
	}
	fmt.Println("wrote")
	select {}
}

func TestEachStateOfTheServerIsToldForWhatItIs(t *testing.T) {
	t.Parallel()
	server := func(code, message string) error {
		return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: message}
	}
	ours := &pgconn.PgError{Code: "23505", SchemaName: "unavez", TableName: "outcome_0"}
	theirs := &pgconn.PgError{Code: "23505", SchemaName: "public", TableName: "orders"}
	for _, c := range []struct {
		err  error
		want error // nil: as it is
	}{
		{server("55P03", "canceling statement due to lock timeout"), store.ErrUnavailable},
		{server("40001", "could not serialize access"), store.ErrAborted},
		{server("40P01", "deadlock detected"), store.ErrAborted},
		{server("25P02", "current transaction is aborted"), store.ErrAborted},
		{server("57014", "canceling statement due to statement timeout"), store.ErrLimit},
		{server("57014", "canceling statement due to user request"), store.ErrUnavailable},
		{server("57P01", "terminating connection due to administrator command"), store.ErrUnavailable},
		{server("57P03", "the database system is starting up"), store.ErrUnavailable},
		{server("53300", "sorry, too many clients already"), store.ErrUnavailable},
		{server("53100", "could not extend file"), store.ErrUnavailable},
		{server("25006", "cannot execute INSERT in a read-only transaction"), store.ErrUnavailable},
		{server("25P03", "terminating connection due to idle-in-transaction timeout"), store.ErrLimit},
		{server("08006", "connection failure"), store.ErrUnavailable},
		{server("UV001", "the outcome exists"), store.ErrDuplicate},
		{server("UV002", "not the transaction of the gate"), store.ErrForeignCommit},
		{server("UV003", "transaction has written"), store.ErrWrote},
		{server("UV004", "fence"), store.ErrLeaseLost},
		{server("UV006", "over its limit"), store.ErrLimit},
		{ours, store.ErrDuplicate},
		{theirs, nil},
		{server("22P02", "invalid input syntax"), nil}, // the application's own, whatever it says
		{server("23503", "violates foreign key"), nil},
		{io.ErrUnexpectedEOF, store.ErrUnavailable},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, store.ErrUnavailable},
	} {
		got := postgres.Classify(c.err)
		switch {
		case c.want == nil && got != c.err: //nolint:errorlint // the same one
			t.Errorf("%v: %v, want it as it is", c.err, got)
		case c.want != nil && (!errors.Is(got, c.want) || !errors.Is(got, c.err)):
			t.Errorf("%v: %v, want %v around it", c.err, got, c.want)
		}
	}
}

// A handler may lower its own durability; the outcome's commit is at the level
// that was configured.
func TestLoweredDurabilityIsRestoredForTheCommit(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, `CREATE TABLE public.level (level text); GRANT ALL ON public.level TO unavez_app;
		CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.level VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER note AFTER INSERT ON public.business DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note()`)
	for name, opts := range map[string]*postgres.Options{"eager": nil, "lazy": {Lazy: true}} {
		w := d.worker(t, opts)
		txn := w.begin(t, gateOf(name))
		must(t, "lower", says(t.Context(), txn.Tx(), "SET LOCAL synchronous_commit = off"))
		must(t, "write", write(t.Context(), txn.Tx(), name))
		_, err := txn.Commit(t.Context(), completed(name))
		must(t, "Commit", err)
	}
	if levels := ask[string](t, d, "SELECT string_agg(DISTINCT level, ' ') FROM public.level"); levels != "on" { // as COMMIT found it
		t.Errorf("commits at %s, want on", levels)
	}
}
