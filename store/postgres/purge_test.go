package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
)

// fill puts operations that are over and forgotten into a slot, at once.
func fill(t *testing.T, d *database, slot, rows int) {
	t.Helper()
	d.exec(t, fmt.Sprintf(`INSERT INTO unavez.outcome_%d SELECT lpad(to_hex(i), 32, '0')::uuid, now() - interval '9 days', now() - interval '7 days', now() - interval '1 day',
		201, 1, 0, 6, false, 'tenant/effect/' || i, sha256('fingerprint'), substring(sha256('checksum'), 1, 16), '', convert_to('{"order":' || i || '}', 'UTF8') FROM generate_series(1, $1) i`, slot), rows)
}

// wal tells how many bytes of log a server writes meanwhile.
func wal(t *testing.T, d *database, meanwhile func()) int64 {
	t.Helper()
	const text = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
	before := ask[int64](t, d, text)
	meanwhile()
	return ask[int64](t, d, text) - before
}

// A million operations that are over go as a whole: beside gates, beside a
// transaction that stays open, and with a hundredth of the log that a DELETE
// writes.
func TestMillionIsPurgedBesideGates(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t, "fsync=off", "autovacuum=off", "checkpoint_timeout=1h", "max_wal_size=8GB", "wal_level=replica", "max_wal_senders=0")
	d := prepare(t, server.URL())
	d.migrate(t, nil)
	w, gates := d.worker(t, nil), d.worker(t, nil)
	const n, some, batch = 1_000_000, 50_000, 50_000
	fill(t, d, 0, n)
	d.exec(t, "UPDATE unavez.slot SET since = since - interval '9 days'")

	open := w.begin(t, dayGate("open")) // has read the slot
	stop, stopped := make(chan struct{}), make(chan error, 1)
	begun := 0
	go func() {
		for {
			gate := dayGate("beside", fmt.Sprint(begun))
			gate.Limit = 10 * time.Second // one that is stalled ends with an error
			txn, _, err := gates.Begin(context.Background(), gate)
			if err == nil {
				err = txn.Rollback(context.Background())
			}
			select {
			case <-stop:
				stopped <- err
				return
			default:
			}
			if err != nil {
				stopped <- err
				return
			}
			begun++
		}
	}()
	purge := func() (total int) {
		for {
			changed, err := w.Purge(t.Context(), batch)
			must(t, "Purge", err)
			if total += changed; changed < batch {
				return total
			}
		}
	}
	written := wal(t, d, func() {
		if got := purge(); got != n {
			t.Errorf("%d rows were purged", got)
		}
		slotIs(t, d, 0, "retired")
		if waiting := ask[int](t, d, "SELECT count(*) FROM pg_locks WHERE NOT granted"); waiting != 0 {
			t.Errorf("%d locks are waited for", waiting)
		}
		must(t, "Rollback", open.Rollback(t.Context()))
		eventually(t, "the slot is emptied", func() bool { // a gate may be in the way
			purge()
			return ask[int64](t, d, "SELECT pg_relation_size('unavez.outcome_0')") == 0
		})
	})
	close(stop)
	must(t, "beside", <-stopped)
	if begun == 0 {
		t.Error("no gate ran beside the purge")
	}
	slotIs(t, d, 0, "empty")

	fill(t, d, 3, some)
	deleted := wal(t, d, func() { d.exec(t, "DELETE FROM unavez.outcome_3") }) * (n / some)
	t.Logf("%d gates; %d kB of log; a DELETE writes %d kB", begun, written>>10, deleted>>10)
	if written*100 > deleted {
		t.Errorf("%d bytes of log, a DELETE writes %d", written, deleted)
	}
	gate := dayGate("after")
	w.do(t, gate, "after")
	w.state(t, gate, store.Completed)
}
