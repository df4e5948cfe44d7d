package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/queuetest"
	"github.com/unavez/unavez/store/storetest"
)

// payloads is for how long an entry that is done may be kept, by default.
const payloads = 7 * 24 * time.Hour

// queueHarness describes a database as one that has a queue.
func queueHarness[Tx any](d *database, h storetest.Harness[Tx], first interface {
	Settle(ctx context.Context, key store.Key) (store.Verdict, error)
}, w *wire,
) queuetest.Harness[Tx] {
	h.Smuggle = func(t *testing.T, id store.Identity) { d.smuggle(t, id, true) }
	h.LoseAnswer = func(t *testing.T, took bool) {
		_, err := first.Settle(t.Context(), store.Key{}) // a new connection asks first whose history this is
		must(t, "Settle", err)
		w.lose(took)
	}
	return queuetest.Harness[Tx]{
		Harness:        h,
		Payloads:       payloads,
		NewIncarnation: func(t *testing.T) { d.exec(t, "SELECT unavez.new_incarnation(true)") },
		Fill: func(t *testing.T) func() {
			room := ask[string](t, d, "SELECT value FROM unavez.setting WHERE name = 'queue_bytes'")
			d.exec(t, "UPDATE unavez.setting SET value = '1' WHERE name = 'queue_bytes'")
			return func() { d.exec(t, "UPDATE unavez.setting SET value = $1 WHERE name = 'queue_bytes'", room) }
		},
		Break: func(t *testing.T) func() {
			d.exec(t, `CREATE FUNCTION public.breaks() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN IF (SELECT count(*) FROM unavez.queue) > 2 THEN RAISE EXCEPTION 'broken'; END IF; RETURN NEW; END $$;
				CREATE TRIGGER broken BEFORE INSERT ON unavez.queue_0 FOR EACH ROW EXECUTE FUNCTION public.breaks()`)
			return func() { d.exec(t, "DROP TRIGGER broken ON unavez.queue_0; DROP FUNCTION public.breaks") }
		},
	}
}

func TestQueueHoldsWhatEveryQueuePromises(t *testing.T) {
	all := &beds{t: t}
	queuetest.Run(t, func(t *testing.T) queuetest.Harness[pgx.Tx] {
		d := all.fresh(t)
		open := func(t *testing.T) *worker { return d.worker(t, nil) }
		first := open(t)
		return queueHarness(d, harness(t, d, first, open), first, first.wire)
	})
}

func TestDatabaseSQLQueueHoldsWhatEveryQueuePromises(t *testing.T) {
	all := &beds{t: t}
	queuetest.Run(t, func(t *testing.T) queuetest.Harness[*sql.Tx] {
		d := all.fresh(t)
		first := d.sqlWorker(t, postgres.OpenDB, nil)
		return queueHarness(d, sqlHarnessOf(t, d, first, postgres.OpenDB, nil), first, first.wire)
	})
}

// PgBouncer in transaction mode: nothing of a lane or a reading is in a session.
func TestPooledQueueHoldsWhatEveryQueuePromises(t *testing.T) {
	all := &beds{t: t}
	pooler := testenv.StartPgBouncer(t, testenv.Postgres(t), "unavez_app")
	queuetest.Run(t, func(t *testing.T) queuetest.Harness[pgx.Tx] {
		d := all.fresh(t).behind(t, pooler)
		open := func(t *testing.T) *worker { return d.worker(t, nil) }
		first := open(t)
		h := queueHarness(d, harness(t, d, first, open), first, first.wire)
		h.Ledger, h.Second = deaf{h.Ledger.(*postgres.Store)}, func(t *testing.T) store.Ledger[pgx.Tx] { return deaf{open(t).Store} }
		h.Absent = []string{"Signal"} // nothing is heard there; see TestListenerSaysThatItHearsNothing
		return h
	})
}

// deaf is a store that hears no signals.
type deaf struct{ *postgres.Store }

// Listen is not that of store.Signal.
func (deaf) Listen() {}

// Behind a pooler in transaction mode a listener would wait for ever.
func TestListenerSaysThatItHearsNothing(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.behind(t, testenv.StartPgBouncer(t, testenv.Postgres(t), "unavez_app"))
	w := d.worker(t, nil)
	postgres.SetHearing(w.Store, time.Minute, 200*time.Millisecond)
	err := w.Listen(t.Context(), func() { t.Error("woken") })
	is(t, "Listen", err, store.ErrUnavailable)
	if !strings.Contains(err.Error(), "pooler") {
		t.Errorf("Listen: %v", err)
	}
}

// A listener whose connection is lost says so, and one that is idle goes on.
func TestListenerTellsThatItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	postgres.SetHearing(w.Store, 50*time.Millisecond, time.Minute)
	woken, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- w.Listen(t.Context(), func() { woken <- struct{}{} }) }()
	const listening = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN unavez'"
	for range 3 {
		eventually(t, "the listener is woken", func() bool {
			must(t, "Notify", other.Notify(t.Context()))
			select {
			case <-woken:
				return true
			case err := <-ended:
				t.Fatalf("Listen: %v", err)
			default:
			}
			return false
		})
	}
	d.exec(t, "SELECT pg_terminate_backend(pid) FROM ("+listening+") l")
	if err := <-ended; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Listen: %v", err)
	}
}
