//go:build unix

package sqlite_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

func TestKilledWorkersLeaveNothingHalf(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for round := range 4 {
			// Both workers run the same operations, in the same order.
			workers := []*process{start(t, "count", drv, w.path, "counted"), start(t, "count", drv, w.path, "counted")}
			for _, p := range workers {
				p.wait(fmt.Sprintf("done %d", 20*(round+1)))
			}
			for _, p := range workers {
				p.kill()
			}
		}
		// Rows and outcomes tell the same, and each operation has one of both.
		seen := map[string]bool{}
		rows := w.rows(t)
		for _, row := range rows {
			if seen[row] {
				t.Errorf("%s took effect twice", row)
			}
			seen[row] = true
		}
		if len(rows) < 80 {
			t.Errorf("%d rows after four rounds", len(rows))
		}
		for i := range len(rows) {
			// No lock is left, and what has a row has an outcome.
			w.state(t, store.Completed, "counted", fmt.Sprint(i))
		}
		w.state(t, store.Free, "counted", fmt.Sprint(len(rows)))
		var n int
		if err := w.db.QueryRowContext(t.Context(), "SELECT count(*) FROM unavez_outcome").Scan(&n); err != nil || n != len(rows) {
			t.Errorf("%d outcomes for %d rows: %v", n, len(rows), err)
		}
	})
}

func TestStoppedWorkerKeepsItsKeysAndStopsWritersOnly(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.BusyTimeout = 200 * time.Millisecond
		w := fresh(t, drv, opts)
		p := start(t, "hold", drv, w.path, "held")
		defer p.kill()
		p.wait("wrote held")
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 20 { // they wait side by side, not one after the other
			txn := w.begin(t, fmt.Sprint(i))
			wg.Go(func() {
				err := write(t.Context(), txn.Tx(), "blocked")
				if !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "locked") {
					t.Errorf("statement beside a stopped worker: %v", err)
				}
				if _, err := txn.Commit(t.Context(), completed("x")); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("commit beside a stopped worker: %v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 20*opts.BusyTimeout {
			t.Errorf("writers were refused after %v, want about %v", took, opts.BusyTimeout)
		}
		if _, err := w.db.ExecContext(t.Context(), "INSERT INTO business (row) VALUES ('plain')"); !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "locked") {
			t.Errorf("plain statement beside a stopped worker: %v", err)
		}
		// Reading goes on; the stopped worker's key is in flight.
		w.rowsAre(t)
		held := gateOf("held")
		w.state(t, store.Processing, "held")
		if txn, v, err := w.store.Begin(t.Context(), held); txn != nil || v.State != store.Processing || err != nil {
			t.Errorf("begin: %v, %v", v.State, err)
		}
		states, err := w.store.Peek(t.Context(), []store.Key{held.Key, gateOf("0").Key})
		if err != nil || states[0] != store.Processing || states[1] == store.Processing {
			t.Errorf("peek: %v, %v", states, err)
		}
		waiting, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if txn, err := w.store.Finish(waiting, held, 1); txn != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("finish: %v", err)
		}
		p.kill()
		txn := w.begin(t, "held")
		w.write(t, txn, "held")
		if e := <-commit(t, txn, "x"); e.err != nil {
			t.Fatal(e.err)
		}
		w.rowsAre(t, "held")
	})
}

func TestTwoBusyWorkersBothGetOn(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.BusyTimeout = 0 // the default
		a := fresh(t, drv, opts)
		b := open(t, drv, a.path, opts)
		const callers, each = 8, 40
		done := make(chan int, 2*callers*each)
		var wg sync.WaitGroup
		for n, w := range []*worker{a, b} {
			for c := range callers {
				wg.Go(func() {
					for i := range each {
						txn, v, err := w.store.Begin(t.Context(), gateOf(fmt.Sprint(n, c, i)))
						if err != nil || txn == nil {
							t.Errorf("begin: %v, %v", v.State, err)
							return
						}
						if err := write(t.Context(), txn.Tx(), fmt.Sprint(n, c, i)); err != nil {
							t.Errorf("write: %v", err)
						}
						if _, err := txn.Commit(t.Context(), completed("x")); err != nil {
							t.Errorf("commit: %v", err)
						}
						done <- n
					}
				})
			}
		}
		wg.Wait()
		close(done)
		// When the first worker is half-way, the other must not be at its start.
		var count [2]int
		for n := range done {
			if count[n]++; count[n] == callers*each/2 {
				t.Logf("half-way: %v", count)
				if count[1-n] < callers*each/20 {
					t.Errorf("one worker did %d while the other did %d", count[n], count[1-n])
				}
				break
			}
		}
		if got := len(a.rows(t)); got != 2*callers*each {
			t.Errorf("%d rows, want %d", got, 2*callers*each)
		}
	})
}
