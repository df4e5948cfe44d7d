package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// Lanes is the database's number of lanes.
func (s *Store) Lanes() int { return s.lanes }

// How long a round waits for what still runs in a lane that it takes: for one
// lane, and in all.
const (
	laneWait  = 100 * time.Millisecond
	lanesWait = time.Second
)

// Keep is one trip, and one more where lanes are to be taken; a lane in which
// something still runs takes one by itself, which waits up to 100 ms.
func (s *Store) Keep(ctx context.Context, k store.Keeping) (store.Share, error) {
	if err := checkKeeping(&k); err != nil {
		return store.Share{}, err
	}
	numbers, epochs, cursors := marks(k.Marks)
	var workers int
	var held, free []int32
	const text = "SELECT workers, held, free FROM unavez.keep($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.int4[], $4::pg_catalog.int8[], $5::pg_catalog.text[], $6::pg_catalog.bool)"
	if err := lost(s.row(ctx, text, []any{k.Worker, microseconds(k.Lease), numbers, epochs, cursors, k.Leaving}, &workers, &held, &free)); err != nil {
		return store.Share{}, err
	}
	share := 0
	if !k.Leaving {
		workers = max(workers, 1) // this one, although a round may take longer than a lease
		share = (s.lanes + workers - 1) / workers
	}
	most := share - len(held)
	if k.Most > 0 {
		most = min(most, k.Most)
	}
	taken, err := s.take(ctx, &k, turned(free, k.Worker), held, most)
	if err != nil {
		return store.Share{}, err
	}
	for _, m := range k.Marks {
		if slices.Contains(held, int32(m.Lane)) {
			taken = append(taken, store.Held{Hold: m.Hold})
		}
	}
	slices.SortFunc(taken, func(a, b store.Held) int { return a.Lane - b.Lane })
	return store.Share{Held: taken, Workers: workers, Spare: max(len(held)-share, 0)}, nil
}

func checkKeeping(k *store.Keeping) error {
	var faults []error
	if n := len(k.Worker); n < 1 || n > 200 {
		faults = append(faults, fmt.Errorf("postgres store: keep: Worker of %d bytes, want 1 to 200", n))
	}
	if k.Lease <= 0 {
		faults = append(faults, fmt.Errorf("postgres store: keep: Lease %v, want more than 0", k.Lease))
	}
	if k.Most < 0 {
		faults = append(faults, fmt.Errorf("postgres store: keep: Most %d, want 0 or more", k.Most))
	}
	return errors.Join(faults...)
}

// marks are lists of their parts.
func marks(all []store.Mark) (numbers []int32, epochs []int64, cursors []string) {
	numbers, epochs, cursors = make([]int32, len(all)), make([]int64, len(all)), make([]string, len(all))
	for i, m := range all {
		numbers[i], epochs[i], cursors[i] = int32(m.Lane), m.Epoch, m.Cursor
	}
	return numbers, epochs, cursors
}

// turned begins a list of lanes at a place of the worker's own, so that workers
// that start together do not all ask for the same ones.
func turned(all []int32, worker string) []int32 {
	if len(all) == 0 {
		return nil
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(worker)) // it never fails
	at := int(sum.Sum32() % uint32(len(all)))
	return slices.Concat(all[at:], all[:at])
}

// take takes free lanes: first all at once in which nothing runs, then the others
// one by one, as far as there is time.
func (s *Store) take(ctx context.Context, k *store.Keeping, free, known []int32, most int) ([]store.Held, error) {
	if most <= 0 || len(free) == 0 {
		return nil, nil
	}
	taken, err := s.takeSome(ctx, k, free, known, most, 0)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); len(taken) < most && time.Since(began) < lanesWait; {
		next := slices.IndexFunc(free, func(lane int32) bool {
			return !slices.ContainsFunc(taken, func(h store.Held) bool { return h.Lane == int(lane) })
		})
		if next < 0 {
			break
		}
		one, err := s.takeSome(ctx, k, free[next:next+1], known, 1, laneWait)
		var known *fault
		switch {
		case errors.As(err, &known) && known.text == lockTimeout: // it is left for the next round
		case err != nil:
			return nil, err
		}
		taken, free = append(taken, one...), slices.Delete(free, next, next+1)
	}
	return taken, nil
}

func (s *Store) takeSome(ctx context.Context, k *store.Keeping, free, known []int32, most int, wait time.Duration) ([]store.Held, error) {
	const text = "SELECT number, epoch, cursor, clean FROM unavez.take_lanes($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.int4[], $4::pg_catalog.int4[], $5::pg_catalog.int4, $6::pg_catalog.int4)"
	rows, err := s.pool.Query(ctx, text, k.Worker, microseconds(k.Lease), free, known, most, wait.Milliseconds())
	if err != nil {
		return nil, lost(err)
	}
	defer rows.Close()
	var taken []store.Held
	for rows.Next() {
		held := store.Held{Taken: true}
		if err := rows.Scan(&held.Lane, &held.Epoch, &held.Cursor, &held.Clean); err != nil {
			return nil, lost(err)
		}
		taken = append(taken, held)
	}
	return taken, lost(rows.Err())
}

// HandBack is one trip.
func (s *Store) HandBack(ctx context.Context, worker string, all []store.Mark, gone bool) error {
	numbers, epochs, cursors := marks(all)
	const text = "SELECT unavez.hand_back($1::pg_catalog.text, $2::pg_catalog.int4[], $3::pg_catalog.int8[], $4::pg_catalog.text[], $5::pg_catalog.bool)"
	return s.done(ctx, text, worker, numbers, epochs, cursors, gone)
}

// done runs a function that commits by itself and returns nothing.
func (s *Store) done(ctx context.Context, text string, args ...any) error {
	return s.committing(ctx, text, args, nil)
}

// holdText holds a lane until the end of its transaction, or raises.
const holdText = "SELECT unavez.hold($1::pg_catalog.int4, $2::pg_catalog.int8)"

// holding are its parameters.
// holdAllText is the same for several lanes.
const holdAllText = "SELECT unavez.hold_all($1::pg_catalog.int4[], $2::pg_catalog.int8[])"

// holdingAll are its parameters for the lanes of gates, each once; nil for none.
func holdingAll(gates []store.Gate) [][]byte {
	var seen []store.Hold
	lanes, epochs := list(oidInt4, 0), list(oidInt8, 0)
	for i := range gates {
		if h := gates[i].Hold; h.Epoch != 0 && !slices.Contains(seen, h) {
			seen = append(seen, h)
			lanes.add(bytesOfInt32(int32(h.Lane)))
			epochs.add(bytesOfInt64(h.Epoch))
		}
	}
	if seen == nil {
		return nil
	}
	return [][]byte{lanes.binary(), epochs.binary()}
}

func holding(h store.Hold) [][]byte {
	return [][]byte{bytesOfInt32(int32(h.Lane)), bytesOfInt64(h.Epoch)}
}
