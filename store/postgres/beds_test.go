package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// beds are the databases of one test, which its subtests use one after another:
// a new one costs ten times what clearing one does.
type beds struct {
	t        *testing.T
	settings *postgres.Settings
	mu       sync.Mutex
	free     []*database
}

// fresh gives a subtest a database that is as good as new.
func (b *beds) fresh(t *testing.T) *database {
	t.Helper()
	b.mu.Lock()
	var d *database
	if n := len(b.free); n > 0 {
		d, b.free = b.free[n-1], b.free[:n-1]
	}
	b.mu.Unlock()
	if d == nil {
		d = fresh(b.t, b.settings)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // it may hold a connection
		}
		if strings.Contains(t.Name(), "random") { // no damage is planted there
			found := broken(d.audit(t, nil))
			delete(found, store.DerivedKey) // a list has derived keys of its own
			// A list lets time pass, and no worker does its upkeep meanwhile.
			delete(found, store.LeasesEnd)
			delete(found, store.Purged)
			if len(found) > 0 {
				t.Errorf("an audit finds %v", found)
			}
		}
		if err := d.clear(b.t); err != nil {
			t.Errorf("clear: %v", err)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.free = append(b.free, d)
	})
	return d
}

// clear makes a database as it was after its migration.
func (d *database) clear(t *testing.T) error {
	_, err := d.admin.Exec(context.WithoutCancel(t.Context()), `DELETE FROM public.business;
		DELETE FROM unavez.outcome_0;
		DELETE FROM unavez.outcome_1;
		DELETE FROM unavez.outcome_2;
		DELETE FROM unavez.outcome_3;
		DELETE FROM unavez.outcome_table;
		DELETE FROM unavez.tombstone_0;
		DELETE FROM unavez.tombstone_1;
		DELETE FROM unavez.tombstone_2;
		DELETE FROM unavez.attempt;
		DELETE FROM unavez.step;
		DELETE FROM unavez.transition;
		DELETE FROM unavez.queue_0;
		DELETE FROM unavez.queue_1;
		DELETE FROM unavez.queue_2;
		DELETE FROM unavez.queue_3;
		DELETE FROM unavez.delivery;
		DELETE FROM unavez.quarantine;
		DELETE FROM unavez.worker;
		DELETE FROM unavez.blocked;
		DELETE FROM unavez.version;
		DELETE FROM unavez.position;
		DELETE FROM unavez.action;
		UPDATE unavez.lane SET epoch = 0, expires = '-infinity', clean = true, holder = '', cursor = '';
		UPDATE unavez.queue_slot SET state = 'empty' WHERE number > 0;
		UPDATE unavez.queue_slot SET state = CASE number WHEN 0 THEN 'current' ELSE 'empty' END, since = clock_timestamp(), sealed = NULL, closed = NULL, checked = 0;
		UPDATE unavez.ledger SET doubted = '-infinity', slot = CASE WHEN slot < 0 THEN slot ELSE 0 END, live = 1, tombstone_slot = 0, tombstone_live = 1;
		UPDATE unavez.slot SET state = CASE number WHEN 0 THEN 'current' ELSE 'empty' END, since = clock_timestamp(), until = NULL, copied = NULL`)
	return err
}
