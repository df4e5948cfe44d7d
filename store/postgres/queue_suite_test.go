package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/queuetest"
)

// payloads is for how long an entry that is done may be kept, by default.
const payloads = 7 * 24 * time.Hour

// queueHarness describes a database as one that has a queue.
func queueHarness(t *testing.T, d *database, first *worker, second func(t *testing.T) *worker) queuetest.Harness[pgx.Tx] {
	h := harness(t, d, first, second)
	h.Smuggle = func(t *testing.T, id store.Identity) { d.smuggle(t, id, true) }
	h.LoseAnswer = func(t *testing.T, took bool) {
		_, err := first.Settle(t.Context(), store.Key{}) // a new connection asks first whose history this is
		must(t, "Settle", err)
		first.wire.lose(took)
	}
	return queuetest.Harness[pgx.Tx]{
		Harness:        h,
		Absent:         []string{"QueueCounter", "Signal"},
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
		return queueHarness(t, d, open(t), open)
	})
}

// PgBouncer in transaction mode: nothing of a lane or a reading is in a session.
func TestPooledQueueHoldsWhatEveryQueuePromises(t *testing.T) {
	all := &beds{t: t}
	pooler := testenv.StartPgBouncer(t, testenv.Postgres(t), "unavez_app")
	queuetest.Run(t, func(t *testing.T) queuetest.Harness[pgx.Tx] {
		d := all.fresh(t).behind(t, pooler)
		open := func(t *testing.T) *worker { return d.worker(t, nil) }
		return queueHarness(t, d, open(t), open)
	})
}
