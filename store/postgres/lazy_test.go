package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// lazily is a worker in the lazy form, and its engine without a cache.
func (d *database) lazily(t *testing.T, changes ...func(*pgxpool.Config)) (*worker, *unavez.Engine[pgx.Tx]) {
	t.Helper()
	w := d.worker(t, &postgres.Options{Lazy: true}, changes...)
	return w, engineOf(t, w.Store)
}

func engineOf[Tx any](t *testing.T, ledger store.Ledger[Tx]) *unavez.Engine[Tx] {
	t.Helper()
	engine, err := unavez.New(ledger, &unavez.Options{CacheSize: -1})
	must(t, "New", err)
	t.Cleanup(func() { must(t, "Close", engine.Close(context.WithoutCancel(t.Context()))) })
	return engine
}

func operationOf(parts ...string) unavez.Operation {
	return unavez.Operation{Tenant: "tenant", Effect: "order.create.v1", Key: parts, Payload: []byte("payload"), Limit: time.Minute}
}

// writing is a handler that writes one row by its first statement.
func writing(row string) func(context.Context, pgx.Tx) (unavez.Result, error) {
	return func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
		return unavez.Result{Code: 201, Body: []byte(row)}, write(ctx, tx, row)
	}
}

func codeIs(t *testing.T, what string, err error, want unavez.Code) {
	t.Helper()
	if got := unavez.CodeOf(err); got != want {
		t.Fatalf("%s: code %q (%v), want %q", what, got, err, want)
	}
}

// X16: the gate that raises costs no trip, and spares that of BEGIN.
func TestLazyTransactionTakesOneTripLessThanABareOne(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared": pgx.QueryExecModeCacheStatement, "described": pgx.QueryExecModeCacheDescribe, "exec": pgx.QueryExecModeExec,
	} {
		w, _ := d.lazily(t, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.DefaultQueryExecMode = 1, mode })
		n := 0
		bare := func(run func(context.Context, pgx.Tx) error) func() {
			return func() {
				must(t, "bare", pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error { return run(t.Context(), tx) }))
			}
		}
		once := func(run func(context.Context, pgx.Tx) error) func() {
			return func() {
				n++
				txn := w.begin(t, gateOf(name, fmt.Sprint(n)))
				must(t, "first", run(t.Context(), txn.Tx()))
				_, err := txn.Commit(t.Context(), completed("done"))
				must(t, "Commit", err)
			}
		}
		for _, f := range firsts() {
			if f.name == "Prepare" || f.name == "LargeObjects" { // their trips depend on what the connection has seen
				continue
			}
			for range 2 {
				bare(f.run)()
				once(f.run)()
			}
			want := w.wire.count(bare(f.run))
			if f.rides {
				want--
			}
			if got := w.wire.count(once(f.run)); got != want {
				t.Errorf("%s, %s: %d trips, want %d", name, f.name, got, want)
			}
		}
		nothing := func(context.Context, pgx.Tx) error { return nil }
		once(nothing)()
		if got := w.wire.count(once(nothing)); got != 1 {
			t.Errorf("%s: a handler that sends nothing takes %d trips, want 1", name, got)
		}
	}
}

func TestLazyDuplicateTakesThreeTripsAtMost(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, engine := d.lazily(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	_, err := engine.Do(t.Context(), operationOf("done"), writing("row"))
	must(t, "Do", err)
	held := d.worker(t, nil).begin(t, gateOf("held"))
	for what, want := range map[string]int{"done": 3, "held": 2} {
		ask := func() {
			out, err := engine.Do(t.Context(), operationOf(what), writing("row"))
			if what == "done" && (err != nil || !out.Replayed) {
				t.Errorf("duplicate: %+v, %v", out, err)
			}
		}
		ask()
		ask()
		if got := w.wire.count(ask); got > want {
			t.Errorf("duplicate of %s: %d trips, want %d", what, got, want)
		}
	}
	must(t, "Rollback", held.Rollback(t.Context()))
	rowsAre(t, d, "row")
}

// X5: in the other order the duplicate runs its statement without the lock, waits
// for the twin's row, and draws from the sequence, which no rollback takes back.
func TestNothingOfALazyDuplicateRuns(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, "CREATE SEQUENCE public.drawn; GRANT ALL ON SEQUENCE public.drawn TO unavez_app; INSERT INTO public.business (row) VALUES ('shared')")
	_, engine := d.lazily(t)
	const text = "UPDATE public.business SET once = nextval('public.drawn')::text WHERE row = 'shared'"
	_, err := engine.Do(t.Context(), operationOf("twin"), func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
		if err := says(ctx, tx, text); err != nil {
			return unavez.Result{}, err
		}
		_, other := d.lazily(t)
		for _, f := range firsts() {
			if f.silent {
				continue
			}
			_, err := other.Do(ctx, operationOf("twin"), func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				return unavez.Result{}, errors.Join(f.run(ctx, tx), says(ctx, tx, text))
			})
			codeIs(t, f.name, err, unavez.CodeInFlight)
		}
		_, err := other.Do(ctx, operationOf("twin"), func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			return unavez.Result{}, says(ctx, tx, text)
		})
		codeIs(t, "the same statement", err, unavez.CodeInFlight)
		return unavez.Result{Code: 201}, nil
	})
	must(t, "Do", err)
	if drawn := ask[int](t, d, "SELECT last_value FROM public.drawn"); drawn != 1 {
		t.Errorf("sequence is at %d, want 1", drawn)
	}
}

// ways are what handlers make of the error of a refused first statement.
func ways() map[string]func(context.Context, pgx.Tx) (unavez.Result, error) {
	return map[string]func(context.Context, pgx.Tx) (unavez.Result, error){
		"returns it": writing("again"),
		"wraps it": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			return unavez.Result{}, fmt.Errorf("order: %w", write(ctx, tx, "again"))
		},
		"hides it": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			_ = write(ctx, tx, "again")
			return unavez.Result{}, errors.New("order failed")
		},
		"swallows it": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			_ = write(ctx, tx, "again")
			return unavez.Result{Code: 200, Body: []byte("another answer")}, nil
		},
		"refuses": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 409}, write(ctx, tx, "again"))
		},
		"panics": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			panic(write(ctx, tx, "again"))
		},
		"goes on": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			for range 3 {
				_ = write(ctx, tx, "again")
			}
			_, err := tx.Begin(ctx)
			return unavez.Result{}, err
		},
		"goes underneath": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			_ = write(ctx, tx, "again")
			_, err := tx.Conn().Exec(ctx, "INSERT INTO public.business (row) VALUES ('again')")
			return unavez.Result{}, err
		},
		"begins underneath": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			_, _ = tx.Conn().Exec(ctx, "INSERT INTO public.business (row) VALUES ('again')")
			return unavez.Result{Code: 200}, nil
		},
		"rolls back": func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			defer tx.Rollback(ctx) //nolint:errcheck // as people write it
			return unavez.Result{}, write(ctx, tx, "again")
		},
		"sends nothing": func(context.Context, pgx.Tx) (unavez.Result, error) {
			return unavez.Result{Code: 200, Body: []byte("another answer")}, nil
		},
		"refuses at once": func(context.Context, pgx.Tx) (unavez.Result, error) {
			return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 422}, nil)
		},
	}
}

func TestVerdictOfALazyGateIsTheAnswerWhateverTheHandlerMakesOfIt(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	eager := d.worker(t, nil)
	w, engine := d.lazily(t)
	ctx := t.Context()
	op := operationOf("done")
	first, err := engine.Do(ctx, op, writing("row"))
	must(t, "Do", err)
	if first.Replayed || string(first.Result.Body) != "row" {
		t.Fatalf("first: %+v", first)
	}
	rest := func(state store.State) unavez.Operation {
		op := operationOf("resting", state.String())
		gate := store.Gate{Identity: op.Identity(), Key: op.Identity().Key(), Fingerprint: first.Fingerprint, Retention: time.Hour}
		attempt, _, err := w.Claim(ctx, store.Claim{Gate: gate, Lease: time.Minute})
		must(t, "Claim", err)
		if state != store.Processing {
			must(t, "Rest", w.Rest(ctx, op.Identity().Key(), attempt.Fence, store.Rest{State: state, DueIn: time.Hour, Reason: "test"}))
		}
		return op
	}
	forged := operationOf("done")
	forged.Payload = []byte("another payload")
	held := eager.begin(t, gateOf("held"))
	wants := map[unavez.Code]unavez.Operation{
		unavez.CodeMismatch: forged, unavez.CodeInFlight: operationOf("held"),
		unavez.CodeUnknown: rest(store.Unknown), unavez.CodeParked: rest(store.Parked), unavez.CodeDead: rest(store.Dead), unavez.CodeRetrying: rest(store.Retryable),
	}
	for way, handler := range ways() {
		out, err := engine.Do(ctx, op, handler)
		if err != nil || !out.Replayed || string(out.Result.Body) != "row" || out.Result.Code != 201 {
			t.Errorf("handler that %s: %+v, %v", way, out, err)
		}
		for code, op := range wants {
			_, err := engine.Do(ctx, op, handler)
			codeIs(t, "handler that "+way, err, code)
		}
	}
	_, err = engine.Do(ctx, rest(store.Processing), writing("again"))
	codeIs(t, "under a lease", err, unavez.CodeInFlight)
	must(t, "Rollback", held.Rollback(ctx))
	d.advance(t, 50*time.Hour)
	_, err = engine.Do(ctx, op, writing("again"))
	codeIs(t, "expired", err, unavez.CodeExpired)
	rowsAre(t, d, "row")
	d.advance(t, 31*24*time.Hour) // forgotten, and not purged yet
	out, err := engine.Do(ctx, op, writing("anew"))
	if err != nil || out.Replayed {
		t.Fatalf("forgotten: %+v, %v", out, err)
	}
	rowsAre(t, d, "row", "anew")
}

func TestLazyHandlerThatRefusesWithoutWritingIsFrozen(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	_, engine := d.lazily(t)
	ctx := t.Context()
	sorry := errors.New("sorry")
	for what, run := range map[string]func(context.Context, pgx.Tx) error{
		"nothing": func(context.Context, pgx.Tx) error { return nil },
		"a read":  func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "SELECT 1") },
		"a write": func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, "no") },
		"a row lock": func(ctx context.Context, tx pgx.Tx) error {
			return says(ctx, tx, "SELECT FROM unavez.ledger FOR UPDATE")
		},
		"a savepoint": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Begin(ctx); return err },
	} {
		wrote := what == "a write" || what == "a row lock"
		op := operationOf("refuses", what)
		out, err := engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			must(t, what, run(ctx, tx))
			return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 422}, sorry)
		})
		switch {
		case wrote && !errors.Is(err, sorry):
			t.Errorf("%s: %+v, %v", what, out, err)
		case !wrote && (err != nil || out.Result.Code != 422):
			t.Errorf("%s: %+v, %v", what, out, err)
		}
		out, err = engine.Do(ctx, op, func(context.Context, pgx.Tx) (unavez.Result, error) { return unavez.Result{Code: 200}, nil })
		if err != nil || out.Replayed == wrote {
			t.Errorf("after %s: %+v, %v", what, out, err)
		}
	}
	rowsAre(t, d)
}

func TestLazyHandlerGetsItsOwnErrors(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	for name, mode := range map[string]pgx.QueryExecMode{"prepared": pgx.QueryExecModeCacheStatement, "exec": pgx.QueryExecModeExec} {
		w, engine := d.lazily(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		ctx := t.Context()
		for what, c := range map[string]struct {
			state string
			run   func(context.Context, pgx.Tx) error
		}{
			"syntax": {"42601", func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "SELEC 1") }},
			"table": {"42P01", func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT FROM none WHERE $1::int = 1", 1)
				return err
			}},
			"division": {"22012", func(ctx context.Context, tx pgx.Tx) error { var n int; return tx.QueryRow(ctx, "SELECT 1/0").Scan(&n) }},
			"argument": {"22P02", func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT $1::text::int", "x")
				return err
			}},
			"rows": {"22012", func(ctx context.Context, tx pgx.Tx) error {
				rows, err := tx.Query(ctx, "SELECT 1 / (2 - n) FROM generate_series(1, 3) n")
				if err != nil {
					return err
				}
				_, err = pgx.CollectRows(rows, pgx.RowTo[int])
				return err
			}},
			"batch": {"22012", func(ctx context.Context, tx pgx.Tx) error {
				batch := &pgx.Batch{}
				batch.Queue("SELECT 1")
				batch.Queue("SELECT 1/0")
				return tx.SendBatch(ctx, batch).Close()
			}},
			"unique": {"23505", func(ctx context.Context, tx pgx.Tx) error {
				return says(ctx, tx, "INSERT INTO public.business (row, once) SELECT 'twice', 'x' FROM generate_series(1, 2)")
			}},
		} {
			op := operationOf(name, what)
			var own *pgconn.PgError
			_, err := engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) { return unavez.Result{}, c.run(ctx, tx) })
			if !errors.As(err, &own) || own.Code != c.state || errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrDuplicate) {
				t.Errorf("%s, %s: %v, want %s", name, what, err, c.state)
			}
			// Who goes on after it commits nothing, as in any transaction.
			_, err = engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				_ = c.run(ctx, tx)
				return unavez.Result{Code: 200}, nil
			})
			codeIs(t, name+", "+what, err, unavez.CodeAborted)
			_, err = engine.Do(ctx, op, writing(name+what))
			must(t, "Do", err)
			// To a duplicate the verdict comes first.
			out, err := engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) { return unavez.Result{}, c.run(ctx, tx) })
			if err != nil || !out.Replayed {
				t.Errorf("%s, duplicate of %s: %+v, %v", name, what, out, err)
			}
		}
		if got := w.pool.Stat().AcquiredConns(); got != 0 {
			t.Errorf("%d connections were kept", got)
		}
	}
}

func TestLazyGateLearnsOfNewSlots(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	lazy, engine := d.lazily(t)
	postgres.SetSmall(lazy.Store, 0, 1<<20)
	other := d.worker(t, nil)
	postgres.SetSmall(other.Store, 0, 1<<20)
	ctx := t.Context()
	n := 0
	for turn := range 3 { // each time the lazy store has the old layout in mind
		for _, handler := range []func(context.Context, pgx.Tx) (unavez.Result, error){
			writing(fmt.Sprint("written ", turn)),
			func(context.Context, pgx.Tx) (unavez.Result, error) { return unavez.Result{Code: 200}, nil },
			func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				_, err := tx.CopyFrom(ctx, pgx.Identifier{"public", "business"}, []string{"row"}, pgx.CopyFromRows([][]any{{fmt.Sprint("copied ", turn)}}))
				return unavez.Result{Code: 200}, err
			},
		} {
			d.advance(t, 25*time.Hour)
			_, err := other.Purge(ctx, 1000)
			must(t, "Purge", err)
			n++
			op := operationOf("turned", fmt.Sprint(n))
			out, err := engine.Do(ctx, op, handler)
			if err != nil || out.Replayed {
				t.Fatalf("Do: %+v, %v", out, err)
			}
			if out, err = engine.Do(ctx, op, handler); err != nil || !out.Replayed {
				t.Fatalf("duplicate: %+v, %v", out, err)
			}
		}
	}
	if n := ask[int](t, d, "SELECT count(DISTINCT tableoid) FROM (SELECT tableoid FROM unavez.outcome_0 UNION ALL SELECT tableoid FROM unavez.outcome_1 UNION ALL SELECT tableoid FROM unavez.outcome_2 UNION ALL SELECT tableoid FROM unavez.outcome_3) x"); n < 2 {
		t.Errorf("outcomes in %d slots: the ring did not turn", n)
	}
	rowsAre(t, d, "written 0", "copied 0", "written 1", "copied 1", "written 2", "copied 2")
}

func TestLazyGateIsEagerForWhoOwnsRetries(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, engine := d.lazily(t)
	op := operationOf("retried")
	op.OwnsRetries = true
	attempt, _, err := w.Claim(t.Context(), store.Claim{Gate: store.Gate{Identity: op.Identity(), Key: op.Identity().Key(), Retention: time.Hour}, Lease: time.Minute})
	must(t, "Claim", err)
	must(t, "Rest", w.Rest(t.Context(), op.Identity().Key(), attempt.Fence, store.Rest{State: store.Retryable, Reason: "test"}))
	op.Payload = nil
	runs := 0
	out, err := engine.Do(t.Context(), op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
		runs++
		return unavez.Result{Code: 201}, write(ctx, tx, "retried")
	})
	if err != nil || out.Attempt != 2 || runs != 1 {
		t.Fatalf("%d runs, %+v, %v", runs, out, err)
	}
	rowsAre(t, d, "retried")
}

func TestLazyAnswersAreNotLost(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	nothing := func(context.Context, pgx.Tx) (unavez.Result, error) { return unavez.Result{Code: 200}, nil }
	for what, handler := range map[string]func(context.Context, pgx.Tx) (unavez.Result, error){"written": writing("written"), "nothing": nothing} {
		for _, took := range []bool{true, false} {
			w, engine := d.lazily(t)
			op := operationOf(what, fmt.Sprint(took))
			_, err := engine.Do(t.Context(), operationOf("warm", what, fmt.Sprint(took)), nothing)
			must(t, "Do", err)
			w.wire.lose(took) // the first trip: gate and statement, or gate, outcome and COMMIT
			_, err = engine.Do(t.Context(), op, handler)
			switch {
			case what == "written":
				codeIs(t, what, err, unavez.CodeUnavailable)
			case took: // found out before Do returned
				must(t, what, err)
			default:
				codeIs(t, what, err, unavez.CodeAborted)
			}
			eventually(t, "free", func() bool {
				_, err := engine.Do(t.Context(), op, handler)
				return err == nil
			})
		}
	}
	rowsAre(t, d, "written", "written")
}

func TestLazyDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.sqlWorker(t, postgres.OpenDB, &postgres.Options{Lazy: true})
	w.db.SetMaxOpenConns(1)
	engine := engineOf(t, w.SQLStore)
	ctx := t.Context()
	handler := func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
		defer tx.Rollback() //nolint:errcheck // as people write it
		return unavez.Result{Code: 201}, sqlWrite(ctx, tx, "once")
	}
	careful := func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
		return unavez.Result{Code: 201}, sqlWrite(ctx, tx, "once")
	}
	op := operationOf("sql")
	_, err := engine.Do(ctx, op, handler)
	codeIs(t, "handler that rolls back", err, unavez.CodeForeignCommit)
	_, err = engine.Do(ctx, op, careful)
	must(t, "Do", err)
	for _, h := range []func(context.Context, *sql.Tx) (unavez.Result, error){
		handler, careful,
		func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
			_ = sqlWrite(ctx, tx, "again")
			return unavez.Result{Code: 200}, errors.Join(tx.Commit(), sqlWrite(ctx, tx, "again"))
		},
		func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
			_ = sqlWrite(ctx, tx, "again")
			return unavez.Result{Code: 200}, nil
		},
		func(context.Context, *sql.Tx) (unavez.Result, error) { return unavez.Result{Code: 200}, nil },
	} {
		if out, err := engine.Do(ctx, op, h); err != nil || !out.Replayed || out.Result.Code != 201 {
			t.Errorf("duplicate: %+v, %v", out, err)
		}
	}
	rowsAre(t, d, "once")
	bare := func() {
		tx, err := w.db.BeginTx(ctx, nil)
		must(t, "begin", err)
		must(t, "write", sqlWrite(ctx, tx, "bare"))
		must(t, "commit", tx.Commit())
	}
	n := 0
	once := func() {
		n++
		_, err := engine.Do(ctx, operationOf("sql", fmt.Sprint(n)), careful)
		must(t, "Do", err)
	}
	for range 2 {
		bare()
		once()
	}
	if got, want := w.wire.count(once), w.wire.count(bare)-1; got != want {
		t.Errorf("%d trips, want %d", got, want)
	}
}

func TestLazyFormNeedsReadCommittedAndAHandleOfOurs(t *testing.T) {
	t.Parallel()
	d := fresh(t, &postgres.Settings{NoRing: true})
	pool := d.pool(t, "unavez_app", nil)
	if _, err := postgres.New(pool, &postgres.Options{Lazy: true, Isolation: pgx.Serializable}); err == nil {
		t.Error("Lazy with SERIALIZABLE was taken")
	}
	if _, err := postgres.NewSQL(sqlOpen(t, pool), pool, &postgres.Options{Lazy: true}); err == nil {
		t.Error("Lazy with a foreign handle was taken")
	}
	// Without a ring the gate still goes with the first statement.
	_, engine := d.lazily(t)
	for range 2 {
		_, err := engine.Do(t.Context(), operationOf("no ring"), writing("no ring"))
		must(t, "Do", err)
		_, err = engine.Do(t.Context(), operationOf("no ring", "nothing"), func(context.Context, pgx.Tx) (unavez.Result, error) { return unavez.Result{Code: 200}, nil })
		must(t, "Do", err)
	}
	rowsAre(t, d, "no ring")
}

func sqlOpen(t *testing.T, pool *pgxpool.Pool) *sql.DB {
	t.Helper()
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { must(t, "Close", db.Close()) })
	return db
}
