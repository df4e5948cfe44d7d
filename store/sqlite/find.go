package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"

	"github.com/unavez/unavez/store"
)

// What a lease that ran out is called, in the attempt and in its history.
const reasonExpired = "lease expired"

// found is everything that is stored of an operation, at one instant.
type found struct {
	verdict store.Verdict // what a gate answers; Free where nothing counts
	lapsed  bool          // the attempt's lease has run out, and that is not written yet
	stale   bool          // rows of an earlier, forgotten life are still there
	attempt bool          // there is an attempt, also beside an outcome
	fence   int64         // of that attempt
}

// open reports whether the operation may run under a gate that allows taking
// over the attempt from.
func (f *found) open(from int64) bool {
	a := f.verdict.Attempt
	switch f.verdict.State {
	case store.Free:
		return true
	case store.Unknown, store.Parked:
		return from != 0 && a.Fence == from
	case store.Retryable:
		return from != 0 && a.Fence == from && a.DueIn <= 0
	}
	return false
}

// find reads what is stored of an operation. Most are new: one look at three
// indexes tells that.
func find(r *raw, key store.Key) (*found, error) {
	f := &found{}
	const text = "SELECT EXISTS (SELECT 1 FROM unavez_outcome WHERE key = ?1)" +
		" OR EXISTS (SELECT 1 FROM unavez_tombstone WHERE key = ?1)" +
		" OR EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1)"
	known, err := r.number(text, key[:])
	if err != nil || known == 0 {
		return f, err
	}
	// One statement, one instant: a purge moves rows from one table to another.
	const all = "SELECT n.now," +
		" o.state, o.code, o.unreplayable, o.header, o.body, o.version, o.fingerprint, o.attempt, o.at, o.expires, o.forgets, o.checksum," +
		" t.short, t.forgets," +
		" a.operation, a.fence, a.state, a.version, a.fingerprint, a.derived, a.expires, a.due, a.reason, a.created, a.changed, a.origin" +
		" FROM (SELECT " + now + " AS now) AS n" +
		" LEFT JOIN unavez_outcome o ON o.key = ?1" +
		" LEFT JOIN unavez_tombstone t ON t.key = ?1" +
		" LEFT JOIN unavez_attempt a ON a.key = ?1"
	_, err = r.row(all, []driver.Value{key[:]}, func(v []driver.Value) error { return f.take(key, v) })
	return f, err
}

// take reads the row of find.
func (f *found) take(key store.Key, v []driver.Value) error {
	at, o, t, a := integer(v[0]), v[1:13], v[13:15], v[15:27]
	if a[1] != nil {
		f.attempt, f.fence = true, integer(a[1])
	}
	switch {
	case o[0] != nil && integer(o[9]) > at:
		outcome, sum, err := outcomeOf(o)
		if err != nil || !bytes.Equal(outcome.Checksum(key), sum) {
			return store.ErrDamaged
		}
		outcome.Left, outcome.Replayed = milliseconds(integer(o[9])-at), true
		f.verdict = store.Verdict{State: outcome.State, Outcome: outcome}
		return nil
	case o[0] != nil && integer(o[10]) > at:
		fp := store.Fingerprint{Sum: blob(o[6])}
		f.verdict = store.Verdict{State: store.Expired, Short: fp.Short()}
		return nil
	case t[1] != nil && integer(t[1]) > at:
		f.verdict = store.Verdict{State: store.Expired, Short: blob(t[0])}
		return nil
	}
	f.stale = o[0] != nil || t[1] != nil
	if !f.attempt {
		return nil
	}
	attempt, err := attemptOf(key, a, at)
	if err != nil {
		return err
	}
	if f.lapsed = attempt.State == store.Processing && attempt.LeaseLeft <= 0; f.lapsed {
		attempt.Changed = instant(at).Add(attempt.LeaseLeft) // until then it may have worked
		attempt.State, attempt.Reason, attempt.LeaseLeft = store.Unknown, reasonExpired, 0
	}
	f.verdict = store.Verdict{State: attempt.State, Attempt: attempt}
	return nil
}

// outcomeOf reads state, code, unreplayable, header, body, version,
// fingerprint, attempt, at, expires, forgets, checksum.
func outcomeOf(v []driver.Value) (*store.Outcome, []byte, error) {
	header, err := store.ParseHeader(blob(v[3]))
	return &store.Outcome{
		State: store.State(integer(v[0])),
		Result: store.Result{
			Code: int(integer(v[1])), NotReplayable: integer(v[2]) != 0, Header: header, Body: blob(v[4]),
		},
		Fingerprint: store.Fingerprint{Version: int(integer(v[5])), Sum: blob(v[6])},
		Attempt:     integer(v[7]),
		At:          instant(integer(v[8])),
	}, blob(v[11]), err
}

// attemptOf reads operation, fence, state, version, fingerprint, derived,
// expires, due, reason, created, changed, origin. When the operation's text is
// none, the attempt lacks only its identity.
func attemptOf(key store.Key, v []driver.Value, at int64) (*store.Attempt, error) {
	id, err := store.ParseText(word(v[0]))
	a := &store.Attempt{
		Key: key, Identity: id, Fence: integer(v[1]), State: store.State(integer(v[2])),
		Fingerprint: store.Fingerprint{Version: int(integer(v[3])), Sum: blob(v[4])},
		DerivedKey:  word(v[5]), Origin: word(v[11]), Reason: word(v[8]),
		Created: instant(integer(v[9])), Changed: instant(integer(v[10])),
	}
	switch a.State {
	case store.Processing:
		a.LeaseLeft = milliseconds(integer(v[6]) - at)
	case store.Retryable:
		a.DueIn = milliseconds(integer(v[7]) - at)
	}
	return a, err
}

// find reads what is committed: what the last holder of the operation's lock
// committed is visible to it.
func (s *Store) find(ctx context.Context, key store.Key) (f *found, err error) {
	known, f, err := s.known(ctx, key)
	switch {
	case err != nil || f != nil:
		return f, err
	case !known:
		return &found{}, nil
	}
	err = s.read(ctx, func(r *raw) error {
		f, err = find(r, key)
		return err
	})
	return f, err
}

// ending is what is written at the end of an operation.
type ending struct {
	gate    store.Gate
	end     store.End
	fence   int64 // of the attempt that it ends; 0 for none
	attempt int64 // number of the outcome's attempt
	stale   bool  // rows of an earlier life were seen
}

// row is one row of unavez_outcome, in the order of insertOutcome.
type row [14]driver.Value

// insertOutcome inserts rows up to the first that is there already. What came
// before that one stays, which spares SQLite a journal of the statement: the
// caller undoes more than that.
const insertOutcome = "INSERT OR FAIL INTO unavez_outcome" +
	" (key, operation, state, attempt, at, expires, forgets, code, unreplayable, version, fingerprint, checksum, header, body) VALUES "

// insertRows writes outcomes, or fails with store.ErrDuplicate. After an error
// what it has written must be rolled back.
func (r *raw) insertRows(rows []*row) error {
	err := r.insert(insertOutcome, len(rows), func(i int) []driver.Value { return rows[i][:] })
	if codeOf(err) == codeConstraint {
		return store.ErrDuplicate
	}
	return err
}

// insert writes the outcome. It holds: an attempt ends only with the fence that
// was checked, and no second outcome is written.
func (e *ending) insert(r *raw) (*store.Outcome, error) {
	o, line, err := e.row(r)
	if err != nil {
		return nil, err
	}
	if err := r.insertRows([]*row{line}); err != nil {
		return nil, err
	}
	return o, nil
}

// row makes the outcome and its row, and deletes what that takes the place of.
func (e *ending) row(r *raw) (*store.Outcome, *row, error) {
	key := e.gate.Key
	if e.fence != 0 {
		n, err := r.exec("DELETE FROM unavez_attempt WHERE key = ?1 AND fence = ?2", key[:], e.fence)
		if err != nil {
			return nil, nil, err
		}
		if n == 0 {
			return nil, nil, store.ErrLeaseLost
		}
		if _, err := r.exec("DELETE FROM unavez_step WHERE key = ?1", key[:]); err != nil {
			return nil, nil, err
		}
	}
	if e.stale {
		if err := forget(r, key); err != nil {
			return nil, nil, err
		}
	}
	o := &store.Outcome{
		State: e.end.State, Result: e.end.Result, Fingerprint: e.gate.Fingerprint, Attempt: e.attempt, Left: e.gate.Retention,
	}
	kept := e.gate.Retention.Milliseconds()
	remembered := kept + max(e.gate.Tombstone, 0).Milliseconds()
	unreplayable := int64(0)
	if o.Result.NotReplayable {
		unreplayable = 1
	}
	at, err := r.clock()
	if err != nil {
		return nil, nil, err
	}
	o.At = instant(at)
	return o, &row{
		key[:], e.gate.Identity.Text(), int64(o.State), e.attempt, at, at + kept, at + remembered,
		int64(o.Result.Code), unreplayable, int64(o.Fingerprint.Version), bytesOf(o.Fingerprint.Sum), o.Checksum(key),
		bytesOf(store.AppendHeader(nil, o.Result.Header)), bytesOf(o.Result.Body),
	}, nil
}

// bytesOf is null for an empty blob, alike in every driver.
func bytesOf(b []byte) driver.Value {
	if len(b) == 0 {
		return nil
	}
	return b
}

// forget deletes what is left of an operation's earlier life, if that is over.
// The entry goes with its outcome: without it, it would not be done.
func forget(r *raw, key store.Key) error {
	for _, sql := range [...]string{
		"DELETE FROM unavez_queue WHERE key = ?1 AND EXISTS (SELECT 1 FROM unavez_outcome WHERE key = ?1 AND forgets <= " + now + ")",
		"DELETE FROM unavez_outcome WHERE key = ?1 AND forgets <= " + now,
		"DELETE FROM unavez_tombstone WHERE key = ?1 AND forgets <= " + now,
		"DELETE FROM unavez_transition WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1)",
	} {
		if _, err := r.exec(sql, key[:]); err != nil {
			return err
		}
	}
	return nil
}
