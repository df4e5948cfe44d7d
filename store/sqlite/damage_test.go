package sqlite_test

import (
	"database/sql/driver"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

// One row that cannot be read keeps the others neither from a page nor from
// what upkeep does.
func TestUnreadableOperationIsShownAsDamaged(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		names := []string{"a", "b", "c"}
		for _, name := range names {
			if a, _, err := w.store.Claim(t.Context(), store.Claim{Gate: gateOf(name), Lease: time.Minute}); a == nil || err != nil {
				t.Fatalf("claim: %v", err)
			}
		}
		txn := w.begin(t, "ended")
		if e := soon(t, "commit", commit(t, txn, "x")); e.err != nil {
			t.Fatal(e.err)
		}
		bad := gateOf("b").Key
		w.exec(t, "UPDATE unavez_attempt SET operation = '%zz' WHERE key = ?", bad[:])
		w.exec(t, "UPDATE unavez_outcome SET operation = ''")
		w.advance(t, 2*time.Minute)
		expired, err := w.store.Expire(t.Context(), 10)
		if err != nil || len(expired) != 2 {
			t.Errorf("expire: %d attempts, %v", len(expired), err)
		}
		page, err := w.store.List(t.Context(), store.Filter{})
		if err != nil || len(page) != len(names) {
			t.Fatalf("list: %d records, %v", len(page), err)
		}
		for _, r := range page {
			if r.Damaged != (r.Key == bad) || r.State != store.Unknown {
				t.Errorf("%v: damaged %v, %v", r.Identity, r.Damaged, r.State)
			}
		}
		page, err = w.store.List(t.Context(), store.Filter{States: []store.State{store.Completed}})
		if err != nil || len(page) != 1 || !page[0].Damaged {
			t.Errorf("list of outcomes: %+v, %v", page, err)
		}
	})
}
