package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// room bounds the entries that are not done. Counting them is dear, so it is done
// only where there could be too many: since a count there are at most as many more
// as sequences were given.
type room struct {
	limit int64
	one   sync.Mutex // who counts before the writer is asked for

	mu      sync.Mutex
	last    int64     // sequence at the last look
	counted int64     // sequence at the last count
	undone  int64     // at the last count
	until   time.Time // how long that stands, although more is done meanwhile
}

// upper is how many entries may not be done, with so many more.
func (m *room) upper(last int64, more int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, last)
	return m.last - m.counted + m.undone + int64(more)
}

// stale reports whether it is worth counting again.
func (m *room) stale() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !time.Now().Before(m.until)
}

// count counts. That takes a tenth of the time at most.
func (m *room) count(r *raw) error {
	began := time.Now()
	n, last, err := countUndone(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.undone, m.counted, m.last = n, last, last
	m.until = time.Now().Add(10 * time.Since(began))
	return nil
}

// look counts, if need be, before the writer is asked for.
func (m *room) look(ctx context.Context, s *Store, more int) error {
	if m.upper(0, more) <= m.limit {
		return nil
	}
	m.one.Lock()
	defer m.one.Unlock()
	if m.upper(0, more) <= m.limit || !m.stale() {
		return nil // somebody has just counted; the writer decides
	}
	return s.read(ctx, m.count)
}

// take lets so many more entries in, on the writer.
func (m *room) take(r *raw, more int) error {
	if more == 0 {
		return nil
	}
	last, err := r.number(newest)
	if err != nil {
		return err
	}
	if m.upper(last, more) > m.limit && m.stale() {
		if err := m.count(r); err != nil {
			return err
		}
	}
	if n := m.upper(last, more); n > m.limit {
		return &fault{kind: store.ErrFull, text: fmt.Sprintf("%d entries wait to be done, %d more would be over Room, which is %d", n-int64(more), more, m.limit)}
	}
	return nil
}

// countUndone counts the entries that are not done, and says what the sequence
// was then. Up to the cursor that every lane has passed, what is not done stands
// behind a blocked row.
func countUndone(r *raw) (n, last int64, err error) {
	const text = "WITH passed (id) AS (" + passed + ")" +
		" SELECT (" + newest + ")," +
		" (SELECT count(*) FROM unavez_queue q WHERE q.id > (SELECT id FROM passed)" + undone + ")" +
		" + (SELECT count(*) FROM (" + behind + ") w JOIN unavez_queue q ON q.id = w.id WHERE q.id <= (SELECT id FROM passed)" + undone + ")"
	_, err = r.row(text, nil, func(v []driver.Value) error {
		last, n = integer(v[0]), integer(v[1])
		return nil
	})
	return n, last, err
}

const (
	// passed is the sequence that the cursors of all lanes have passed.
	passed = "SELECT coalesce(min(CAST(cursor AS INTEGER)), 0) FROM unavez_lane"
	// behind are the sequences of what waits: entries with a blocked row, and what
	// follows them.
	behind = "SELECT sequence AS id FROM unavez_blocked" +
		" UNION SELECT f.id FROM unavez_blocked b CROSS JOIN unavez_queue f ON f.ordering = b.ordering AND f.id > b.sequence WHERE b.gap = 0"
)

// used is how much of the room is taken, 0 to 1.
func (m *room) used(r *raw) (float64, error) {
	if m.stale() {
		if err := m.count(r); err != nil {
			return 0, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(1, float64(m.undone)/float64(max(1, m.limit))), nil
}
