package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// finishBatchText inserts the outcomes of a batch; see unavez.finish_batch.
const finishBatchText = "SELECT unavez.finish_batch($1::pg_catalog.timestamptz, $2::pg_catalog.bool, $3::pg_catalog.text, $4::pg_catalog.int8, $5::pg_catalog.uuid[]," +
	" $6::pg_catalog.uuid[], $7::pg_catalog.int8[], $8::pg_catalog.int8[], $9::pg_catalog.text[], $10::pg_catalog.int4[], $11::pg_catalog.int8[], $12::pg_catalog.int4[]," +
	" $13::pg_catalog.int4[], $14::pg_catalog.bytea[], $15::pg_catalog.bytea[], $16::pg_catalog.bytea[], $17::pg_catalog.bytea[])"

// MaxBatch is how many operations a batch may have: each holds a lock to its end.
const MaxBatch = 500

// several are the engine's part of a transaction of several operations.
type several struct {
	unit  *unit
	gates []store.Gate
	mine  []bool // by gate: it was free when the batch began
	stale []bool // rows of an earlier life are to be deleted
}

// batch is an open transaction of several operations.
type batch struct {
	*txn
	*several
}

var _ store.Batch[pgx.Tx] = (*batch)(nil)

// BeginBatch is one trip for operations that are new: BEGIN, limits, the lane,
// the locks, and a look whether anything is stored of them. What is stored takes
// one more. It needs READ COMMITTED.
func (s *Store) BeginBatch(ctx context.Context, gates []store.Gate) (store.Batch[pgx.Tx], []store.Verdict, error) {
	if err := s.checkGates(gates); err != nil {
		return nil, nil, err
	}
	t, err := s.acquire(ctx, gates[0])
	if err != nil {
		return nil, nil, err
	}
	b := &batch{txn: t, several: newSeveral(t.unit, gates)}
	verdicts, err := b.enter(ctx)
	if err != nil || !slices.Contains(b.mine, true) {
		t.leave(ctx)
		return nil, verdicts, err
	}
	return b, verdicts, nil
}

func newSeveral(u *unit, gates []store.Gate) *several {
	return &several{unit: u, gates: gates, mine: make([]bool, len(gates)), stale: make([]bool, len(gates))}
}

// checkGates refuses what cannot be a batch.
func (s *Store) checkGates(gates []store.Gate) error {
	switch {
	case len(gates) == 0 || len(gates) > MaxBatch:
		return fmt.Errorf("postgres store: batch: %d gates, want 1 to %d", len(gates), MaxBatch)
	case s.above():
		return fmt.Errorf("postgres store: batch: needs Isolation read committed, not %s", s.opts.Isolation)
	}
	return nil
}

// enter opens the transaction and tells of each operation what was found.
func (b *several) enter(ctx context.Context) ([]store.Verdict, error) {
	u := b.unit
	granted, known, err := b.open(ctx)
	if forgotten(err) { // nothing was done; the connection prepares anew
		clean(ctx, u.conn)
		granted, known, err = b.open(ctx)
	}
	if err != nil {
		return nil, opening(ctx, err)
	}
	verdicts := make([]store.Verdict, len(b.gates))
	for i := range b.gates {
		switch {
		case !granted[i]:
			verdicts[i].State = store.Processing
		case !known[i]:
			b.mine[i] = true
		}
	}
	founds, err := b.read(ctx, granted, known)
	if err != nil {
		return nil, opening(ctx, err)
	}
	for i, f := range founds {
		if f == nil {
			continue
		}
		if verdicts[i], err = f.verdict(b.gates[i].Key); err != nil {
			return nil, err
		}
		b.mine[i], b.stale[i] = f.open(0), f.stale
	}
	return verdicts, nil
}

// open sends the first trip.
func (b *several) open(ctx context.Context) (granted, known []bool, err error) {
	u := b.unit
	now := u.s.seen.Load()
	keys, locks := list(oidUUID, len(b.gates)), make([]int64, len(b.gates))
	for i := range b.gates {
		keys.add(b.gates[i].Key[:])
		locks[i] = b.gates[i].Key.Hash64()
	}
	t := newTrip(ctx, u.conn)
	t.send(now.begin, nil)
	lanes := holdingAll(b.gates)
	if lanes != nil {
		t.send(u.s.fixed.holds, lanes)
	}
	t.send(u.s.fixed.enters[t.session.transacts], [][]byte{numbers(locks).binary(), []byte(u.limit)})
	saw := u.s.look()
	t.send(now.probeAll, [][]byte{keys.binary()})
	if err := t.pipe.Sync(); err != nil {
		return nil, nil, t.end(err)
	}
	err = t.read(nil)
	if err == nil && lanes != nil {
		err = t.read(nil)
	}
	granted, known = make([]bool, len(b.gates)), make([]bool, len(b.gates))
	if err == nil {
		err = t.read(func(r row) (err error) {
			list := r.column()
			u.started, u.durability, t.session.replicated = r.time(), r.text(), r.bool()
			return places(list, granted)
		})
	}
	if err == nil {
		err = t.read(func(r row) error {
			u.layout = layout{slot: r.int32(), live: r.int32(), tombstone: r.int32(), ring: r.int64()}
			saw.number, saw.position = r.int64(), uint64(r.int64())
			return places(r.column(), known)
		})
	}
	if err := t.end(err); err != nil {
		return nil, nil, err
	}
	u.started = u.started.UTC()
	u.s.witness(ctx, saw)
	if u.layout != now.layout {
		u.s.statements(u.layout)
	}
	if !now.layout.covers(u.layout) {
		// A slot may have been taken into use since this store looked last.
		for i := range known {
			known[i] = true
		}
	}
	return granted, known, nil
}

// places sets those of a list of numbers, which count from 1.
func places(list []byte, all []bool) error {
	found, err := elements(list)
	for _, b := range found {
		r := row{values: [][]byte{b}}
		if n := r.int64(); n >= 1 && n <= int64(len(all)) {
			all[n-1] = true
		}
	}
	return err
}

// read reads what is stored of the operations that are known, in one trip.
func (b *several) read(ctx context.Context, granted, known []bool) ([]*found, error) {
	u := b.unit
	founds := make([]*found, len(b.gates))
	queued := &pgx.Batch{}
	now := u.layout
	for i := range b.gates {
		if granted[i] && known[i] {
			queued.Queue(u.s.statements(now).read, uuid(b.gates[i].Key)).Query(func(rows pgx.Rows) (err error) {
				founds[i], u.layout, err = gather(rows)
				return err
			})
		}
	}
	if queued.Len() == 0 {
		return founds, nil
	}
	if err := u.conn.SendBatch(ctx, queued).Close(); err != nil {
		return nil, err
	}
	for i, f := range founds {
		if f != nil && !now.covers(u.layout) { // read again with all the slots
			again, layout, err := u.s.again(ctx, u.conn, b.gates[i].Key, u.layout)
			if err != nil {
				return nil, err
			}
			founds[i], u.layout = again, layout
		}
	}
	return founds, nil
}

// Commit is one trip: the outcomes and COMMIT.
func (b *batch) Commit(ctx context.Context, ends []*store.End) ([]*store.Outcome, error) {
	switch {
	case b.guard.done.Load():
		return nil, pgx.ErrTxClosed
	case b.guard.foreign.Load():
		b.leave(ctx)
		return nil, &fault{store.ErrForeignCommit, "refused and rolled back", nil}
	}
	outcomes, err := b.several.commit(ctx, ends)
	b.leave(ctx)
	return outcomes, err
}

func (b *several) commit(ctx context.Context, ends []*store.End) ([]*store.Outcome, error) {
	u := b.unit
	if len(ends) != len(b.gates) {
		return nil, fmt.Errorf("postgres store: batch: %d ends for %d gates", len(ends), len(b.gates))
	}
	for i, end := range ends {
		if end != nil && !b.mine[i] {
			return nil, fmt.Errorf("postgres store: batch: an end for gate %d, which was not free", i+1)
		}
	}
	if err := u.ready(ctx); err != nil {
		return nil, err
	}
	outcomes, params := b.ending(ends)
	t := newTrip(ctx, u.conn)
	t.send(u.s.fixed.finishes, params)
	one := &store.Outcome{}
	if _, err := u.end(ctx, t, one); err != nil {
		return nil, err
	}
	for _, o := range outcomes {
		if o != nil {
			o.At = one.At
		}
	}
	return outcomes, nil
}

// ending are the outcomes, and the parameters that insert them.
func (b *several) ending(ends []*store.End) ([]*store.Outcome, [][]byte) {
	n, u := len(ends), b.unit
	stales, keys := list(oidUUID, 0), list(oidUUID, n)
	kept, remembered, operations, states, codes := list(oidInt8, n), list(oidInt8, n), list(oidText, n), list(oidInt4, n), list(oidInt8, n)
	unreplayables, versions := list(oidInt4, n), list(oidInt4, n)
	prints, checksums, headers, bodies := list(oidBytea, n), list(oidBytea, n), list(oidBytea, n), list(oidBytea, n)
	outcomes, unwritten := make([]*store.Outcome, n), false
	for i, end := range ends {
		if end == nil {
			continue
		}
		gate := &b.gates[i]
		o := &store.Outcome{State: end.State, Result: end.Result, Fingerprint: gate.Fingerprint, Attempt: 1, Left: gate.Retention}
		outcomes[i], unwritten = o, unwritten || end.Unwritten
		if b.stale[i] {
			stales.add(gate.Key[:])
		}
		keys.add(gate.Key[:])
		kept.add(bytesOfInt64(microseconds(gate.Retention)))
		remembered.add(bytesOfInt64(microseconds(gate.Tombstone)))
		operations.add([]byte(gate.Identity.Text()))
		states.add(bytesOfInt32(int32(o.State)))
		codes.add(bytesOfInt64(int64(o.Result.Code)))
		unreplayable := int32(0)
		if o.Result.NotReplayable {
			unreplayable = 1
		}
		unreplayables.add(bytesOfInt32(unreplayable))
		versions.add(bytesOfInt32(int32(o.Fingerprint.Version)))
		prints.add(blob(o.Fingerprint.Sum))
		checksums.add(o.Checksum(gate.Key))
		headers.add(blob(store.AppendHeader(nil, o.Result.Header)))
		bodies.add(blob(o.Result.Body))
	}
	var limit []byte
	if u.gate.Limit > 0 {
		limit = bytesOfInt64(microseconds(u.gate.Limit))
	}
	return outcomes, append([][]byte{bytesOfTime(u.started), flag(unwritten).binary(), bytesOfText(u.durability), limit},
		binaries([]column{stales, keys, kept, remembered, operations, states, codes, unreplayables, versions, prints, checksums, headers, bodies})...)
}
