package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/store"
)

// runner runs the lines of a random list over a store, over its workers in turn.
type runner[Tx any] struct {
	b        *bed[Tx]
	holders  int
	held     []store.Held
	stale    []store.Held
	entries  [randomKeys]store.Entry // as they were stored
	followed [2]follower[Tx]
	read     [2]map[store.Key]bool
}

func newRunner[Tx any](b *bed[Tx]) *runner[Tx] {
	r := &runner[Tx]{b: b, read: [2]map[store.Key]bool{{}, {}}}
	r.held = b.takes(b.worker(0), "holder 0", true, "")
	r.takeover(b.worker(1)) // so that there is a hold that was lost
	return r
}

// hold is the right to run entries of an event's lane, or a right that was lost.
func (r *runner[Tx]) hold(a action) store.Hold {
	held := r.held
	if a.stale {
		held = r.stale
	}
	return r.b.laneOf(held, eventOf(a.key, 0))
}

func (r *runner[Tx]) gate(a action, operation int) store.Gate {
	id := identityOf(operation)
	return store.Gate{
		Identity: id, Key: id.Key(), Fingerprint: fingerprint(payloadOf(a.key, a.payload)), From: a.fence, Hold: r.hold(a),
		Limit: patience, Retention: retention, Tombstone: tombstone,
	}
}

// stored remembers new entries as they are stored.
func (r *runner[Tx]) stored(keys []int, said []store.Appended) string {
	var words []string
	for i, s := range said {
		words = append(words, s.String())
		if s == store.New {
			r.entries[keys[i]] = r.b.load(r.b.worker(i), identityOf(keys[i]).Key())
		}
	}
	return strings.Join(words, " ")
}

func (r *runner[Tx]) arrival(a action) []store.Entry {
	var entries []store.Entry
	for _, key := range a.events() {
		entries = append(entries, eventOf(key, a.payload))
	}
	return entries
}

func (r *runner[Tx]) do(a action) string {
	b, w := r.b, r.b.worker(a.n)
	switch a.kind {
	case kindAppend:
		said, err := w.Append(b.ctx, store.Arrival{Entries: r.arrival(a)})
		if err != nil {
			return textError(err)
		}
		return r.stored(a.events(), said)
	case kindEnqueue:
		return r.enqueue(a)
	case kindDone:
		return r.finish(a, w)
	case kindBatch:
		return r.batch(a, w)
	case kindClaim:
		g := r.gate(a, a.operation())
		g.From = 0
		attempt, v, err := w.attempts.Claim(b.ctx, store.Claim{Gate: g, Lease: randomLease, DerivedKey: "uv1-random"})
		switch {
		case err != nil:
			return textError(err)
		case attempt == nil:
			return v.State.String()
		}
		return "granted"
	case kindAct:
		return r.act(a, w)
	case kindTakeover:
		return r.takeover(w)
	case kindBlock:
		blocking := store.Blocking{Hold: r.hold(a), Entry: &r.entries[a.key], Gap: a.gap}
		if a.rest {
			fence := a.fence
			if a.next || fence == 0 {
				fence++
			}
			blocking.Attempt = &store.Resting{
				Found: a.fence, Fence: fence, Rest: store.Rest{State: a.state, Reason: "random", DueIn: a.d}, DerivedKey: "uv1-random",
			}
		}
		return textError(w.Block(b.ctx, blocking))
	case kindUnblock:
		return textError(w.Unblock(b.ctx, r.hold(a), r.entries[a.key].Order, r.entries[a.key].Sequence))
	}
	return r.look(a, w)
}

func (r *runner[Tx]) enqueue(a action) string {
	b := r.b
	f := b.caller()
	said, err := b.worker(0).enqueuer.Enqueue(b.ctx, f.tx, r.arrival(a))
	if err != nil {
		return errors.Join(err, f.rollback()).Error()
	}
	if !a.ends {
		b.must("rollback", f.rollback())
		var words []string
		for _, s := range said {
			words = append(words, s.String())
		}
		return strings.Join(words, " ") + " rolled back"
	}
	b.must("commit", f.commit())
	return r.stored(a.events(), said)
}

func (r *runner[Tx]) finish(a action, w worker[Tx]) string {
	b := r.b
	txn, v, err := w.ledger.Begin(b.ctx, r.gate(a, a.operation()))
	switch {
	case err != nil:
		return textError(err)
	case txn == nil:
		return v.State.String()
	case !a.ends:
		b.must("Rollback", txn.Rollback(b.ctx))
		return "rolled back"
	}
	o, err := txn.Commit(b.ctx, store.End{State: a.state})
	if err != nil {
		return textError(err)
	}
	return fmt.Sprintf("%v attempt=%d", o.State, o.Attempt)
}

func (r *runner[Tx]) batch(a action, w worker[Tx]) string {
	b := r.b
	var all []store.Gate
	for _, key := range a.events() {
		g := r.gate(a, key)
		g.Fingerprint = fingerprint(payloadOf(key, a.payload))
		all = append(all, g)
	}
	batch, verdicts, err := w.batches.BeginBatch(b.ctx, all)
	if err != nil {
		return textError(err)
	}
	var said []string
	given := make([]*store.End, len(all))
	for i, v := range verdicts {
		said = append(said, v.State.String())
		if v.State == store.Free {
			given[i] = &store.End{State: store.Completed}
		}
	}
	if batch == nil {
		return strings.Join(said, " ") + " none"
	}
	if a.ends {
		if _, err := batch.Commit(b.ctx, given); err != nil {
			return textError(err)
		}
	} else {
		b.must("Rollback", batch.Rollback(b.ctx))
	}
	return strings.Join(said, " ")
}

func (r *runner[Tx]) act(a action, w worker[Tx]) string {
	b := r.b
	action := store.Action{Key: identityOf(a.operation()).Key(), Actor: "ana", Reason: "random"}
	switch a.name {
	case actRelease:
		return textError(w.ops.Release(b.ctx, action))
	case actRedrive:
		return textError(w.ops.Redrive(b.ctx, action))
	case actComplete:
		return textError(w.ops.Complete(b.ctx, action, store.Result{Code: 200}, retention, tombstone))
	}
	return textError(w.ops.Discard(b.ctx, action, retention, tombstone))
}

// takeover lets the holder's lease run out and has another one take all lanes.
func (r *runner[Tx]) takeover(w worker[Tx]) string {
	b := r.b
	b.Advance(b.T, randomTakeover)
	r.holders++
	share, err := w.Keep(b.ctx, store.Keeping{Worker: fmt.Sprint("holder ", r.holders), Lease: lease})
	if err != nil {
		return textError(err)
	}
	r.stale, r.held = r.held, share.Held
	if len(share.Held) != b.worker(0).Lanes.Lanes() {
		return fmt.Sprintf("%d lanes", len(share.Held))
	}
	return "all lanes"
}

// look runs the lines that read, and those of people.
func (r *runner[Tx]) look(a action, w worker[Tx]) string {
	b := r.b
	switch a.kind {
	case kindWaiting:
		return r.waiting(w)
	case kindRead:
		f := &r.followed[a.key]
		f.seen = nil
		if err := f.read(b, w, 1+a.n%4); err != nil {
			return textError(err)
		}
		fresh := slices.DeleteFunc(f.seen, func(e store.Entry) bool {
			again := r.read[a.key][e.Key] // a store may have carried it
			r.read[a.key][e.Key] = true
			return again || b.look(e.Key).State.Final()
		})
		return r.keys(fresh)
	case kindBeginning:
		entries, _ := b.pages(w, store.Reading{Lanes: b.all(), Limit: 1 + a.n%4})
		return r.keys(entries)
	case kindFollowers:
		entries, err := w.Followers(b.ctx, orderOf(a.key), 0, 100)
		if err != nil {
			return textError(err)
		}
		return r.keys(entries)
	case kindLoad:
		e := b.load(w, identityOf(a.key).Key())
		if e.Erased {
			return "erased" + string(e.Payload)
		}
		return string(e.Payload)
	case kindSeen:
		seen, err := w.quarantine.Deliveries(b.ctx, identityOf(a.key).Key(), 1000)
		if err != nil {
			return textError(err)
		}
		var words []string
		for _, d := range seen {
			words = append(words, d.What.String())
		}
		return strings.Join(words, " ")
	case kindItem:
		_, err := w.Append(b.ctx, store.Arrival{Quarantined: []store.Quarantined{itemOf(a.key)}})
		return textError(err)
	case kindReadmit:
		said, err := w.quarantine.Readmit(b.ctx, decision(itemOf(int(a.fence))), r.arrival(a))
		if err != nil {
			return textError(err)
		}
		return r.stored(a.events(), said)
	case kindItems:
		return r.items(w)
	case kindErase:
		_, err := w.privacy.Erase(b.ctx, store.Action{Key: subjectOf(a.key), Actor: "ana", Reason: "random"})
		return textError(err)
	case kindVersion:
		return r.version(a)
	case kindPosition:
		value, mine, err := w.positions.Position(b.ctx, "shop", fmt.Sprint("worker ", a.key+1), randomLease)
		if err == nil && !mine {
			return "another's"
		}
		if err != nil {
			return textError(err)
		}
		return "at " + value
	case kindSave:
		return textError(w.positions.SavePosition(b.ctx, "shop", fmt.Sprint("worker ", a.key+1), fmt.Sprint(a.n), randomLease))
	case kindCounts:
		c, err := w.counter.QueueCounts(b.ctx)
		if err != nil {
			return textError(err)
		}
		return fmt.Sprintf("blocked %d, quarantined %d, waiting %d", c.Blocked, c.Quarantined["shop"], c.Depth["shop"])
	case kindPurge:
		b.purge()
	case kindAdvance:
		b.Advance(b.T, a.d)
	}
	return "ok"
}

// keys are the events of entries.
func (r *runner[Tx]) keys(entries []store.Entry) string {
	var keys []int
	for _, e := range entries {
		keys = append(keys, slices.IndexFunc(r.entries[:], func(s store.Entry) bool { return s.Key == e.Key && s.Sequence == e.Sequence }))
	}
	return textKeys(keys)
}

func (r *runner[Tx]) waiting(w worker[Tx]) string {
	rows, err := w.Waiting(r.b.ctx, nil, store.Place{}, 100)
	if err != nil {
		return textError(err)
	}
	var lines []string
	for _, row := range rows {
		key := slices.IndexFunc(r.entries[:], func(e store.Entry) bool { return e.Key == row.Key && e.Sequence == row.Sequence })
		order := slices.IndexFunc(places(), func(order int) bool { return orderOf(order) == row.Order })
		if order >= 0 {
			order = places()[order]
		}
		lines = append(lines, textWaiting(order, key, row.Gap, row.State, row.Done, row.Fence, row.LeaseLeft, row.DueIn))
	}
	return strings.Join(lines, ", ")
}

func (r *runner[Tx]) items(w worker[Tx]) string {
	rows, err := w.quarantine.Quarantined(r.b.ctx, "", store.Key{}, 100)
	if err != nil {
		return textError(err)
	}
	var numbers []int
	for _, row := range rows {
		for i := range 3 {
			if itemOf(i).Key == row.Key {
				numbers = append(numbers, i)
			}
		}
	}
	slices.Sort(numbers)
	return textKeys(numbers)
}

func (r *runner[Tx]) version(a action) string {
	b, versions := r.b, r.b.worker(0).versions
	f := b.caller()
	v, _, err := versions.Version(b.ctx, f.tx, orderOf(a.key))
	if err == nil {
		err = versions.SetVersion(b.ctx, f.tx, orderOf(a.key), store.Version{Number: fmt.Sprint(a.n), Content: []byte{1}})
	}
	if err != nil {
		return errors.Join(err, f.rollback()).Error()
	}
	if a.ends {
		b.must("commit", f.commit())
	} else {
		b.must("rollback", f.rollback())
	}
	return "was " + v.Number
}

// textError names the error by which a caller decides.
func textError(err error) string {
	if err == nil {
		return "ok"
	}
	for _, known := range []error{
		store.ErrDuplicate, store.ErrLeaseLost, store.ErrLaneLost, store.ErrFull, store.ErrAborted, store.ErrLimit,
		store.ErrCommitUnknown, store.ErrUnavailable, store.ErrDamaged, store.ErrNotFound, store.ErrConflict,
	} {
		if errors.Is(err, known) {
			return "error: " + known.Error()
		}
	}
	return "error: " + err.Error()
}
