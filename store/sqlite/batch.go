package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

var _ store.Batches[*sql.Tx] = (*Store)(nil)

// batch is one unit with one savepoint for the handlers of several operations.
type batch struct {
	unit    *unit
	tx      *sql.Tx
	holds   []store.Hold // each lane of the gates once
	endings []*ending    // by gate; nil for those that were not free
	ended   bool
}

// BeginBatch takes the locks of all operations and reads, without the writer, as
// Begin does for one.
func (s *Store) BeginBatch(ctx context.Context, gates []store.Gate) (store.Batch[*sql.Tx], []store.Verdict, error) {
	if len(gates) == 0 {
		return nil, nil, errors.New("sqlite store: batch: no gates")
	}
	first := &gates[0]
	u := s.c.writer.unit(unitHandler)
	u.alone = first.Alone
	u.bound(first.Limit)
	verdicts := make([]store.Verdict, len(gates))
	locks := make([]*lock, len(gates))
	defer func() {
		for _, l := range locks {
			l.release() // what the batch does not keep
		}
	}()
	var keys []store.Key
	seen := make(map[store.Key]bool, len(gates))
	for i := range gates {
		key := gates[i].Key
		if seen[key] {
			return nil, nil, fmt.Errorf("sqlite store: batch: gate %d has the key of one before it", i+1)
		}
		seen[key] = true
		l, err := s.c.gate.try(key, u)
		if err != nil {
			return nil, nil, err
		}
		if locks[i] = l; l == nil {
			verdicts[i].State = store.Processing
			continue
		}
		keys = append(keys, key)
	}
	u.expect()
	found := make(map[store.Key]*found, len(keys))
	holds := holdsOf(gates)
	err := s.belongs(ctx, holds...)
	if err == nil && len(keys) > 0 {
		err = s.findAll(ctx, keys, found)
	}
	b := &batch{unit: u, holds: holds, endings: make([]*ending, len(gates))}
	for i := range gates {
		if err != nil || locks[i] == nil {
			continue
		}
		f := found[gates[i].Key]
		if f == nil {
			b.add(i, gates[i], false, locks)
			continue
		}
		if verdicts[i] = f.verdict; f.verdict.State == store.Free {
			b.add(i, gates[i], f.stale, locks)
		}
	}
	if err != nil || len(u.locks) == 0 {
		u.unexpect()
		if err != nil {
			return nil, nil, err
		}
		return nil, verdicts, nil
	}
	if b.tx, err = s.db.BeginTx(&opening{Context: ctx, unit: u}, nil); err != nil {
		u.unexpect()
		u.unlock()
		return nil, nil, err
	}
	return b, verdicts, nil
}

// holdsOf are the lanes of gates, each once.
func holdsOf(gates []store.Gate) (holds []store.Hold) {
	for i := range gates {
		if h := gates[i].Hold; h.Epoch != 0 && !slices.Contains(holds, h) {
			holds = append(holds, h)
		}
	}
	return holds
}

// add takes a free operation into the batch, with its lock.
func (b *batch) add(i int, gate store.Gate, stale bool, locks []*lock) {
	b.endings[i] = &ending{gate: gate, attempt: 1, stale: stale}
	b.unit.locks = append(b.unit.locks, locks[i])
	locks[i] = nil
}

// findAll reads what is stored of operations, for those of which anything is.
func (s *Store) findAll(ctx context.Context, keys []store.Key, all map[store.Key]*found) error {
	return s.glance(ctx, func(r *raw) error {
		clear(all)
		a := &asking{keys: keys}
		if err := a.read(r); err != nil {
			return err
		}
		for key := range a.known {
			f, err := find(r, key)
			if err != nil {
				return err
			}
			all[key] = f
		}
		return nil
	})
}

func (b *batch) Tx() *sql.Tx { return b.tx }

// Commit writes the outcomes of all ends with the unit, and waits for its group.
func (b *batch) Commit(ctx context.Context, ends []*store.End) ([]*store.Outcome, error) {
	if b.ended {
		return nil, &fault{kind: store.ErrAborted, text: "transaction has ended already"}
	}
	if err := b.check(ends); err != nil {
		return nil, errors.Join(err, b.Rollback(ctx))
	}
	b.ended = true
	u := b.unit
	defer u.tell(b.tx)
	if !u.order() {
		u.unlock()
		return nil, endedByHandler()
	}
	made := make([]*store.Outcome, len(ends))
	u.finish = func(r *raw) error {
		unwritten := false
		for _, end := range ends {
			unwritten = unwritten || end != nil && end.Unwritten
		}
		if err := u.closes(r, b.holds, unwritten); err != nil {
			return err
		}
		for i, end := range ends {
			if end == nil {
				continue
			}
			b.endings[i].end = *end
			o, line, err := b.endings[i].row(r)
			if err != nil {
				return err
			}
			made[i], u.outcomes = o, append(u.outcomes, line)
		}
		return nil
	}
	if err := u.commit(ctx); err != nil {
		return nil, err
	}
	return made, nil
}

// check refuses ends that do not fit the batch.
func (b *batch) check(ends []*store.End) error {
	if len(ends) != len(b.endings) {
		return fmt.Errorf("sqlite store: batch: %d ends for %d gates", len(ends), len(b.endings))
	}
	for i, end := range ends {
		if end != nil && b.endings[i] == nil {
			return fmt.Errorf("sqlite store: batch: an end for gate %d, which was not free", i+1)
		}
	}
	return nil
}

// Rollback gives the unit up, as that of a transaction of one operation.
func (b *batch) Rollback(ctx context.Context) error {
	if b.ended {
		return nil
	}
	b.ended = true
	defer b.unit.tell(b.tx)
	b.unit.order()
	b.unit.rollback(ctx, &fault{kind: store.ErrAborted, text: "transaction has been rolled back"})
	return nil
}
