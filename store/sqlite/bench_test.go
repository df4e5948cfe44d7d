package sqlite_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store/sqlite"
)

// BenchmarkCallers runs operations of one insert each, from one caller and from
// many; units per commit is how many of them shared a sync.
func BenchmarkCallers(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(b.TempDir(), "x.db"), patient())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			s, err := sqlite.New(db, nil)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := db.Exec("CREATE TABLE business (id INTEGER PRIMARY KEY, row TEXT)"); err != nil {
				b.Fatal(err)
			}
			body := strings.Repeat("x", 200)
			var next, left atomic.Int64
			left.Store(int64(b.N))
			caller := func() error {
				for left.Add(-1) >= 0 {
					txn, _, err := s.Begin(b.Context(), gateOf(fmt.Sprint(next.Add(1))))
					if err != nil {
						return err
					}
					if err := write(b.Context(), txn.Tx(), body); err != nil {
						return err
					}
					if _, err := txn.Commit(b.Context(), completed(body)); err != nil {
						return err
					}
				}
				return nil
			}
			b.ReportAllocs()
			b.ResetTimer()
			done := make(chan error, callers)
			for range callers {
				go func() { done <- caller() }()
			}
			for range callers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			stats := sqlite.StatsOf(db)
			b.ReportMetric(float64(stats.Units)/float64(stats.Commits), "units/commit")
		})
	}
}
