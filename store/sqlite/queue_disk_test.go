//go:build unix

package sqlite_test

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/unavez/unavez/store"
)

func TestFullDiskAppendsNothingAndSaysSo(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		t.Run("by SQLite's own limit", func(t *testing.T) {
			w := fresh(t, drv, patient())
			w.exec(t, "PRAGMA max_page_count = 100")
			fillQueue(t, w, func() { w.exec(t, "PRAGMA max_page_count = 100000") })
		})
		t.Run("by the file system", func(t *testing.T) {
			dir, grow := smallDisk(t)
			if dir == "" {
				return // the first way has shown it
			}
			w := open(t, drv, filepath.Join(dir, "x.db"), patient())
			fillQueue(t, w, grow)
		})
	})
}

// fillQueue appends until the disk is full. Arrivals are there whole or not at all.
func fillQueue(t *testing.T, w *worker, makeRoom func()) {
	large := bytes.Repeat([]byte("x"), 7000)
	arrival := func(n int) []store.Entry {
		all := []store.Entry{numbered("a", 3*n), numbered("a", 3*n+1), numbered("a", 3*n+2)}
		for i := range all {
			all[i].Payload = append([]byte(strconv.Itoa(3*n+i)+" "), large...)
		}
		return all
	}
	n, unknown := 0, false
	for {
		_, err := w.store.Append(t.Context(), store.Arrival{Entries: arrival(n)})
		if err != nil {
			tells(t, err)
			if errors.Is(err, store.ErrFull) {
				t.Errorf("a full disk: %v, which is for a queue over its room", err)
			}
			unknown = errors.Is(err, store.ErrCommitUnknown)
			break
		}
		n++
	}
	names, _, _ := w.read(t, "")
	kept := len(names)
	if kept != 3*n && (!unknown || kept != 3*n+3) {
		t.Fatalf("%d entries of %d arrivals that were acknowledged", kept, n)
	}
	makeRoom()
	want := store.New
	if kept > 3*n {
		want = store.Duplicate
	}
	w.append(t, want, arrival(n)...)
	w.append(t, store.New, arrival(n+1)...)
	if names, _, _ = w.read(t, ""); len(names) != 3*(n+2) {
		t.Errorf("%d entries of %d arrivals", len(names), n+2)
	}
}
