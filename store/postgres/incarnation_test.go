package postgres_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
)

// X11: a failover that loses commits is noticed by the next statement.
func TestFailoverIsNoticed(t *testing.T) {
	t.Parallel()
	primary := testenv.StartPostgres(t, "fsync=off")
	d := prepare(t, primary.URL())
	d.migrate(t, nil)
	standby := primary.Standby()
	var address atomic.Value
	address.Store(primary.Addr())
	w := d.worker(t, nil, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address.Load().(string))
		}
	})
	var changes atomic.Int64
	w.OnIncarnation(func() { changes.Add(1) })
	ctx := t.Context()
	kept, lost := gateOf("kept"), gateOf("lost")
	w.do(t, kept, "kept")
	after := ask[string](t, d, "SELECT pg_current_wal_lsn()::text")
	eventually(t, "the standby follows", func() bool {
		return ask[bool](t, d, "SELECT coalesce(bool_or(replay_lsn >= $1::text::pg_lsn), false) FROM pg_stat_replication", after)
	})
	standby.Stop() // what comes now is acknowledged and lost
	w.do(t, lost, "lost")
	w.state(t, lost, store.Completed)
	if changes.Load() != 0 {
		t.Fatal("a change was told that was none")
	}
	primary.Kill()
	standby.Start()
	standby.Promote()
	address.Store(standby.Addr())
	eventually(t, "the failover", func() bool {
		_, err := w.Look(ctx, kept.Key)
		return err == nil
	})
	if changes.Load() != 1 {
		t.Fatalf("%d changes were told, want 1", changes.Load())
	}
	w.state(t, kept, store.Completed)
	w.do(t, lost, "again") // effect and outcome were lost together
	claim := store.Claim{Gate: gateOf("outside"), Lease: time.Minute, DerivedKey: "derived"}
	attempt, v, err := w.Claim(ctx, claim)
	must(t, "Claim", err)
	if attempt != nil || v.State != store.Unknown || v.Attempt == nil || v.Attempt.Fence != 1 || v.Attempt.DerivedKey != "derived" {
		t.Fatalf("first claim after a failover: %+v, %+v", attempt, v)
	}
	claim.From = 1
	if attempt, _, err = w.Claim(ctx, claim); err != nil || attempt == nil || attempt.Fence != 2 {
		t.Fatalf("takeover of a doubted claim: %+v, %v", attempt, err)
	}
	if changes.Load() != 1 {
		t.Errorf("%d changes were told, want 1", changes.Load())
	}
}

func TestOperatorSaysThatHistoryIsAnother(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, other := d.worker(t, nil), d.worker(t, nil)
	var changes, others atomic.Int64
	w.OnIncarnation(func() { changes.Add(1) })
	other.OnIncarnation(func() { others.Add(1) })
	w.do(t, gateOf("before"), "before")
	_, err := w.NewIncarnation(t.Context())
	must(t, "NewIncarnation", err)
	w.do(t, gateOf("after"), "after")
	other.state(t, gateOf("after"), store.Completed)
	if changes.Load() != 1 || others.Load() != 1 {
		t.Errorf("told %d and %d times, want once each", changes.Load(), others.Load())
	}
	claim := store.Claim{Gate: gateOf("outside"), Lease: time.Minute}
	if attempt, v, err := other.Claim(t.Context(), claim); err != nil || attempt != nil || v.State != store.Unknown {
		t.Errorf("Claim: %+v, %v, %v", attempt, v.State, err)
	}
	d.exec(t, "UPDATE unavez.ledger SET doubted = clock_timestamp()") // the time is over
	claim.Gate = gateOf("outside later")
	if attempt, v, err := other.Claim(t.Context(), claim); err != nil || attempt == nil {
		t.Errorf("Claim: %v, %v", v.State, err)
	}
}

// A change is noticed by gates that hold every connection of the pool: writing
// it down must not make them wait for one.
func TestChangeOfHistoryDoesNotStallAFullPool(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	const all = 3
	w := d.worker(t, nil, func(c *pgxpool.Config) { c.MaxConns = all })
	var changes atomic.Int64
	w.OnIncarnation(func() { changes.Add(1) })
	d.exec(t, "UPDATE unavez.ledger SET timeline = 'FFFFFFFF'")
	started := time.Now()
	errs := make(chan error)
	for i := range all {
		go func() {
			txn, _, err := w.Begin(context.Background(), gateOf("full", fmt.Sprint(i)))
			if err == nil {
				defer txn.Rollback(context.Background()) //nolint:errcheck // it gives the connection back
			}
			errs <- err
		}()
	}
	for range all {
		must(t, "Begin", <-errs)
	}
	if took := time.Since(started); took > 8*time.Second {
		t.Errorf("gates took %v", took)
	}
	eventually(t, "the change is written down", func() bool {
		w.state(t, gateOf("full", "0"), store.Free)
		return ask[string](t, d, "SELECT timeline FROM unavez.ledger") != "FFFFFFFF"
	})
	if changes.Load() < 1 {
		t.Error("the change was not told")
	}
}
