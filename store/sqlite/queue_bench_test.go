package sqlite_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// bench opens a store whose commits press the disk as hard as they must, and no
// harder.
func bench(b *testing.B) *worker {
	if _, err := modernc.Fdatasync(true); err != nil {
		b.Fatal(err)
	}
	db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(b.TempDir(), "x.db"), patient())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	s, err := sqlite.New(db, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE business (id INTEGER PRIMARY KEY, row TEXT)"); err != nil {
		b.Fatal(err)
	}
	return &worker{db: db, store: s}
}

// share runs b.N rounds of one, in so many goroutines.
func share(b *testing.B, callers int, one func(i int) error) {
	var next atomic.Int64
	done := make(chan error, callers)
	for range callers {
		go func() {
			for {
				i := int(next.Add(1))
				if i > b.N {
					done <- nil
					return
				}
				if err := one(i); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

// entries are events of 300 bytes on a tenth as many ordering keys.
func entriesFrom(first, n int) []store.Entry {
	payload := []byte(strings.Repeat("x", 300))
	out := make([]store.Entry, n)
	for i := range out {
		id := store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{fmt.Sprint(first + i)}}
		note := store.Note{Event: id, Identity: id, Ordering: []string{fmt.Sprint((first + i) / 10)}, Source: "shop", Type: "order/paid", ID: id.Parts, ContentType: "application/json"}
		out[i] = store.Entry{Key: id.Key(), Operation: id.Key(), Order: note.Order(), Fingerprint: store.Fingerprint{Version: 1, Sum: make([]byte, 32)}, Note: note, Payload: payload}
	}
	return out
}

// BenchmarkAppend appends entries one by one.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			w := bench(b)
			entries := entriesFrom(0, b.N+1)
			b.ReportAllocs()
			b.ResetTimer()
			share(b, callers, func(i int) error {
				_, err := w.store.Append(b.Context(), store.Arrival{Entries: entries[i : i+1]})
				return err
			})
			b.StopTimer()
			stats := sqlite.StatsOf(w.db)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			b.ReportMetric(float64(stats.Units)/float64(stats.Commits), "units/commit")
		})
	}
}

// BenchmarkEffects appends, reads and does entries: each is one insert and its
// outcome. A size of 1 is a transaction for each.
func BenchmarkEffects(b *testing.B) {
	for _, size := range []int{1, 50} {
		for _, callers := range []int{8, 64} {
			b.Run(fmt.Sprintf("batches of %d by %d", size, callers), func(b *testing.B) { effects(b, size, callers) })
		}
	}
}

func effects(b *testing.B, size, callers int) {
	w := bench(b)
	ctx := b.Context()
	entries := entriesFrom(0, b.N+1)
	b.ReportAllocs()
	b.ResetTimer()
	appended := make(chan error, 1)
	go func() {
		const flush = 200
		for at := 0; at < b.N; at += flush {
			if _, err := w.store.Append(ctx, store.Arrival{Entries: entries[at:min(at+flush, b.N)]}); err != nil {
				appended <- err
				return
			}
		}
		appended <- nil
	}()
	parts := make(chan []store.Entry, callers)
	done := make(chan error, callers)
	for range callers {
		go func() {
			for part := range parts {
				if err := w.effect(b, part); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	lanes := make([]int, w.store.Lanes())
	for i := range lanes {
		lanes[i] = i
	}
	cursor, tick := "0", time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for read := 0; read < b.N; {
		page, err := w.store.Read(ctx, store.Reading{Lanes: lanes, Since: cursor, Limit: 1000})
		if err != nil {
			b.Fatal(err)
		}
		for at := 0; at < len(page.Entries); at += size {
			parts <- page.Entries[at:min(at+size, len(page.Entries))]
		}
		if read += len(page.Entries); len(page.Entries) > 0 {
			cursor = fmt.Sprint(page.Entries[len(page.Entries)-1].Sequence)
		} else {
			<-tick.C
		}
	}
	close(parts)
	for range callers {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	if err := <-appended; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	stats := sqlite.StatsOf(w.db)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "effects/s")
	b.ReportMetric(float64(b.N)/float64(stats.Commits), "effects/commit")
}

// effect does entries in one transaction.
func (w *worker) effect(b *testing.B, entries []store.Entry) error {
	ctx := b.Context()
	gates := make([]store.Gate, len(entries))
	ends := make([]*store.End, len(entries))
	end := completed("done")
	for i, e := range entries {
		gates[i] = store.Gate{Identity: e.Note.Identity, Key: e.Key, Fingerprint: e.Fingerprint, Limit: time.Minute, Retention: 24 * time.Hour, Tombstone: time.Hour}
		ends[i] = &end
	}
	if len(entries) == 1 {
		txn, v, err := w.store.Begin(ctx, gates[0])
		if err != nil || txn == nil {
			return fmt.Errorf("begin: %v, %w", v.State, err)
		}
		if err := write(ctx, txn.Tx(), "row"); err != nil {
			return err
		}
		_, err = txn.Commit(ctx, end)
		return err
	}
	batch, _, err := w.store.BeginBatch(ctx, gates)
	if err != nil || batch == nil {
		return fmt.Errorf("begin batch: %w", err)
	}
	for range entries {
		if err := write(ctx, batch.Tx(), "row"); err != nil {
			return err
		}
	}
	_, err = batch.Commit(ctx, ends)
	return err
}
