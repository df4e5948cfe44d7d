package sqlite_test

import (
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/unavez/unavez/store/queuetest"
	"github.com/unavez/unavez/store/sqlite"
)

// payloads is how long entries are kept that are done, by default.
const payloads = 7 * 24 * time.Hour

func queueHarness(t *testing.T, drv driver.Driver) queuetest.Harness[*sql.Tx] {
	h := harness(t, drv)
	w := &worker{db: sqlite.DatabaseOf(h.Ledger.(*sqlite.Store)), store: h.Ledger.(*sqlite.Store)}
	// A foreign transaction keeps other writers out once it has written.
	h.Exclusive = true
	advance := h.Advance
	h.Advance = func(t *testing.T, d time.Duration) {
		advance(t, d)
		sqlite.Resweep(w.store)
	}
	return queuetest.Harness[*sql.Tx]{
		Harness:  h,
		Absent:   []string{"Signal"}, // one worker's commits are seen by its own callers; others poll
		Payloads: payloads,
		Fill: func(*testing.T) func() {
			return sqlite.SetRoom(w.store, 0)
		},
		Break: func(t *testing.T) func() {
			w.exec(t, "CREATE TRIGGER broken BEFORE INSERT ON unavez_queue WHEN (SELECT count(*) FROM unavez_queue) > 2 BEGIN SELECT RAISE(FAIL, 'broken'); END")
			return func() { w.exec(t, "DROP TRIGGER broken") }
		},
	}
}

func TestQueueHoldsWhatEveryQueuePromises(t *testing.T) {
	for name, drv := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queuetest.Run(t, func(t *testing.T) queuetest.Harness[*sql.Tx] { return queueHarness(t, drv) })
		})
	}
}
