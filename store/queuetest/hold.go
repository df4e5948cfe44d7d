package queuetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// holdTests hold: what runs in a lane runs for its holder only.
func holdTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "the holder of a lane may do everything in it", run: holderMay[Tx]},
		{name: "who has lost the lane may begin nothing in it", run: loserMayNot[Tx]},
		{name: "who has handed the lane back may begin nothing in it", run: formerMayNot[Tx]},
		{name: "a hold that was never given is refused", run: neverHeld[Tx]},
		{name: "a lane is not taken over from under a transaction that commits", run: takeoverOrCommit[Tx]},
		{name: "a claim that comes back after a takeover finishes nothing in the lane", wants: []string{"Attempts"}, run: lateFinish[Tx]},
		{name: "while a takeover waits, the holder before begins nothing", run: takeoverWaits[Tx]},
		{name: "a takeover that gave up leaves the lane to its holder", run: takeoverGaveUp[Tx]},
	}
}

// laneOf is the hold of an entry's lane among those that a worker holds.
func (b *bed[Tx]) laneOf(held []store.Held, e store.Entry) store.Hold {
	b.Helper()
	lane := store.LaneOf(e.Order, b.worker(0).Lanes.Lanes())
	for _, h := range held {
		if h.Lane == lane {
			return h.Hold
		}
	}
	b.Fatalf("lane %d is not among those that were taken", lane)
	return store.Hold{}
}

// way is one way to begin something in a lane.
type way[Tx any] struct {
	name string
	// try does it for an entry and gives up what it got.
	try func(w worker[Tx], e store.Entry, h store.Hold) error
}

func (b *bed[Tx]) ways() []way[Tx] {
	held := func(g store.Gate, h store.Hold) store.Gate { g.Hold = h; return g }
	ways := []way[Tx]{
		{"Begin", func(w worker[Tx], e store.Entry, h store.Hold) error {
			txn, v, err := w.ledger.Begin(b.ctx, held(gate(e), h))
			if err != nil {
				return err
			}
			if txn == nil {
				return fmt.Errorf("refused: %v", v.State)
			}
			return txn.Rollback(b.ctx)
		}},
		{"Join", func(_ worker[Tx], e store.Entry, h store.Hold) error {
			tx, _, rollback, err := b.BeginForeign(b.ctx)
			if err != nil {
				return err
			}
			joined, _, err := b.worker(0).ledger.Join(b.ctx, tx, held(gate(e), h))
			if joined != nil {
				joined.Leave()
			}
			return errors.Join(err, rollback())
		}},
		{"Block", func(w worker[Tx], e store.Entry, h store.Hold) error {
			stored := b.load(w, e.Key)
			return w.Block(b.ctx, store.Blocking{Hold: h, Entry: &stored})
		}},
		{"Unblock", func(w worker[Tx], e store.Entry, h store.Hold) error {
			return w.Unblock(b.ctx, h, e.Order, b.load(w, e.Key).Sequence)
		}},
	}
	if b.worker(0).batches != nil {
		together := func(place int) func(w worker[Tx], e store.Entry, h store.Hold) error {
			return func(w worker[Tx], e store.Entry, h store.Hold) error {
				gates := []store.Gate{gate(event("another")), gate(event("a third"))}
				gates[place] = held(gate(e), h)
				batch, _, err := w.batches.BeginBatch(b.ctx, gates)
				if err != nil {
					return err
				}
				if batch == nil {
					return errors.New("refused")
				}
				return batch.Rollback(b.ctx)
			}
		}
		ways = append(ways, way[Tx]{"BeginBatch", together(0)}, way[Tx]{"BeginBatch, not in the first place", together(1)})
	}
	if b.worker(0).attempts != nil {
		ways = append(ways, way[Tx]{"Claim", func(w worker[Tx], e store.Entry, h store.Hold) error {
			a, v, err := w.attempts.Claim(b.ctx, store.Claim{Gate: held(gate(e), h), Lease: lease, DerivedKey: "uv1-test"})
			if err != nil {
				return err
			}
			if a == nil {
				return fmt.Errorf("refused: %v", v.State)
			}
			return w.attempts.Rest(b.ctx, e.Key, a.Fence, store.Rest{State: store.Free, Reason: "never started"})
		}}, way[Tx]{"Finish", func(w worker[Tx], e store.Entry, h store.Hold) error {
			txn, err := w.attempts.Finish(b.ctx, held(gate(e), h), 0)
			if err != nil {
				return err
			}
			return txn.Rollback(b.ctx)
		}})
	}
	return ways
}

func holderMay[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.appended(b.worker(0), store.New, e)
	held := b.takes(b.worker(0), "a", true, "")
	for range 2 {
		for _, way := range b.ways() {
			b.must(way.name+" by the holder", way.try(b.worker(0), e, b.laneOf(held, e)))
		}
		b.keeps(b.worker(0), "a", held, "")
	}
	g := gate(e)
	g.Hold = b.laneOf(held, e)
	b.end(b.worker(0), g)
	b.rows("a")
	b.reads(b.worker(1), "")
}

// refusedIn tries everything in a lane, in vain, and checks that nothing came of it.
func (b *bed[Tx]) refusedIn(e store.Entry, h store.Hold) {
	b.Helper()
	for i := range b.workers {
		for _, way := range b.ways() {
			b.is(way.name+" in a lane that is another's", way.try(b.worker(i), e, h), store.ErrLaneLost)
		}
	}
	if waiting, err := b.worker(0).Waiting(b.ctx, nil, store.Place{}, 10); err != nil || len(waiting) != 0 {
		b.Fatalf("blocked rows: %+v, %v", waiting, err)
	}
	// Neither a lock nor an attempt was left behind.
	for _, g := range []store.Gate{gate(e), gate(event("another"))} {
		if v, err := b.worker(1).ledger.Settle(b.ctx, g.Key); err != nil || v.State != store.Free {
			b.Fatalf("after what was refused: %v, %v; want free", v.State, err)
		}
	}
}

func loserMayNot[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.appended(b.worker(0), store.New, e)
	first := b.laneOf(b.takes(b.worker(0), "a", true, ""), e)
	b.Advance(b.T, lease+margin)
	// Nobody has taken it yet, so it is still the old holder's.
	for _, way := range b.ways() {
		b.must(way.name+" before the takeover", way.try(b.worker(0), e, first))
	}
	second := b.laneOf(b.takes(b.worker(1), "b", false, ""), e)
	b.refusedIn(e, first)
	for _, way := range b.ways() {
		b.must(way.name+" by the new holder", way.try(b.worker(1), e, second))
	}
	txn, v, err := b.worker(0).ledger.Begin(b.ctx, gate(e))
	if err != nil || txn == nil {
		b.Fatalf("Begin without a lane: %v, %v; want it to have nothing to do with lanes", v.State, err)
	}
	b.must("Rollback", txn.Rollback(b.ctx))
}

func formerMayNot[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.appended(b.worker(0), store.New, e)
	held := b.takes(b.worker(0), "a", true, "")
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", marksOf(held, ""), false))
	b.refusedIn(e, b.laneOf(held, e))
}

func neverHeld[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.appended(b.worker(0), store.New, e)
	lane := store.LaneOf(e.Order, b.worker(0).Lanes.Lanes())
	b.refusedIn(e, store.Hold{Lane: lane, Epoch: 1})
	first := b.load(b.worker(0), e.Key)
	b.is("Block of nobody", b.worker(0).Block(b.ctx, store.Blocking{Hold: store.Hold{Lane: lane}, Entry: &first}), store.ErrLaneLost)
	b.is("Unblock of nobody", b.worker(0).Unblock(b.ctx, store.Hold{Lane: lane}, e.Order, first.Sequence), store.ErrLaneLost)
	held := b.laneOf(b.takes(b.worker(0), "a", true, ""), e)
	b.refusedIn(e, store.Hold{Lane: lane, Epoch: held.Epoch + 1})
	b.refusedIn(e, store.Hold{Lane: b.worker(0).Lanes.Lanes(), Epoch: held.Epoch})
	stored := b.load(b.worker(0), e.Key)
	b.is("Block without a hold", b.worker(0).Block(b.ctx, store.Blocking{Entry: &stored}), store.ErrLaneLost)
	b.is("Unblock without a hold", b.worker(0).Unblock(b.ctx, store.Hold{}, e.Order, stored.Sequence), store.ErrLaneLost)
}

// takeover has a worker try to take a lane until it has it, in a goroutine.
func (b *bed[Tx]) takeover(w worker[Tx], name string, lane int) (taken chan error) {
	taken = make(chan error, 1)
	go func() {
		for {
			share, err := w.Keep(b.ctx, store.Keeping{Worker: name, Lease: lease})
			if err != nil && !errors.Is(err, store.ErrUnavailable) {
				taken <- err
				return
			}
			for _, h := range share.Held {
				if h.Lane == lane {
					taken <- nil
					return
				}
			}
		}
	}()
	return taken
}

// opened is a transaction of a lane, however it was begun.
type opened[Tx any] struct {
	tx       Tx
	commit   func() error
	rollback func() error
}

// openings are the ways to open a transaction in a lane and to commit it.
func (b *bed[Tx]) openings() map[string]func(g store.Gate) opened[Tx] {
	txn := func(txn store.Txn[Tx]) opened[Tx] {
		return opened[Tx]{
			txn.Tx(),
			func() error { _, err := txn.Commit(b.ctx, completed("done")); return err },
			func() error { return txn.Rollback(b.ctx) },
		}
	}
	all := map[string]func(g store.Gate) opened[Tx]{
		"Begin": func(g store.Gate) opened[Tx] { return txn(b.begin(b.worker(0), g)) },
		"Join": func(g store.Gate) opened[Tx] {
			f := b.caller()
			joined, v, err := b.worker(0).ledger.Join(b.ctx, f.tx, g)
			b.must("Join", err)
			if joined == nil {
				b.Fatalf("Join: refused, %v", v.State)
			}
			return opened[Tx]{f.tx, func() error {
				if _, err := joined.Finish(b.ctx, completed("done")); err != nil {
					return errors.Join(err, f.rollback())
				}
				return f.commit()
			}, f.rollback}
		},
	}
	if b.worker(0).attempts != nil {
		all["Finish"] = func(g store.Gate) opened[Tx] {
			t, err := b.worker(0).attempts.Finish(b.ctx, g, 0)
			b.must("Finish", err)
			return txn(t)
		}
	}
	if b.worker(0).batches != nil {
		all["BeginBatch"] = func(g store.Gate) opened[Tx] {
			batch, _, err := b.worker(0).batches.BeginBatch(b.ctx, []store.Gate{g})
			b.must("BeginBatch", err)
			if batch == nil {
				b.Fatal("BeginBatch: refused")
			}
			end := completed("done")
			return opened[Tx]{
				batch.Tx(),
				func() error { _, err := batch.Commit(b.ctx, []*store.End{&end}); return err },
				func() error { return batch.Rollback(b.ctx) },
			}
		}
	}
	return all
}

func takeoverOrCommit[Tx any](b *bed[Tx]) {
	for name, open := range b.openings() {
		e, later := event(name, "x"), event(name+" later", "x")
		b.appended(b.worker(0), store.New, e, later)
		share := b.keep(b.worker(0), name)
		g := gate(e)
		g.Hold = b.laneOf(share.Held, e)
		o := open(g)
		b.Advance(b.T, lease+margin)
		b.must("Write", b.Write(b.ctx, o.tx, name))
		taken := b.takeover(b.worker(1), "successor of "+name, g.Hold.Lane)
		before := false // that the lane was taken before the commit
		timer := time.NewTimer(grace)
		select {
		case err := <-taken:
			b.must("Keep", err)
			before = true
		case <-timer.C:
		}
		err := o.commit()
		switch {
		case err == nil && before:
			b.Fatalf("%s: committed in a lane that another worker had taken", name)
		case err != nil:
			b.is(name+": commit", err, store.ErrLaneLost)
			b.must("rollback", o.rollback())
		}
		if !before {
			b.must("Keep", <-taken)
		}
		want := store.Completed
		if err != nil {
			want = store.Free
		}
		if v := b.look(e.Key); v.State != want {
			b.Fatalf("%s: the operation is %v after its commit said %v", name, v.State, err)
		}
		b.refusedIn(later, g.Hold)
		b.Advance(b.T, lease+margin)
	}
}

func lateFinish[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.appended(b.worker(0), store.New, e)
	g := gate(e)
	g.Hold = b.laneOf(b.takes(b.worker(0), "a", true, ""), e)
	a, _, err := b.worker(0).attempts.Claim(b.ctx, store.Claim{Gate: g, Lease: 3 * lease, DerivedKey: "uv1-test"})
	b.must("Claim", err)
	if a == nil {
		b.Fatal("Claim: refused")
	}
	b.Advance(b.T, lease+margin)
	second := b.laneOf(b.takes(b.worker(1), "b", false, ""), e)
	_, err = b.worker(0).attempts.Finish(b.ctx, g, a.Fence)
	b.is("Finish in a lane that is another's", err, store.ErrLaneLost)
	if v := b.look(e.Key); v.State != store.Processing || v.Attempt == nil || v.Attempt.Fence != a.Fence {
		b.Fatalf("after the refused finish: %+v", v)
	}
	// Under the new holder's hold the same attempt ends.
	g.Hold = second
	txn, err := b.worker(1).attempts.Finish(b.ctx, g, a.Fence)
	b.must("Finish", err)
	_, err = txn.Commit(b.ctx, completed("done"))
	b.must("Commit", err)
}

func takeoverWaits[Tx any](b *bed[Tx]) {
	e, next := event("a", "x"), event("next", "x")
	b.appended(b.worker(0), store.New, e, next)
	g := gate(e)
	g.Hold = b.laneOf(b.takes(b.worker(0), "a", true, ""), e)
	txn := b.begin(b.worker(0), g)
	b.Advance(b.T, lease+margin)
	taken := b.takeover(b.worker(1), "b", g.Hold.Lane)
	again := gate(next)
	again.Hold = g.Hold
	b.poll("the holder before is refused", func() bool {
		other, _, err := b.worker(0).ledger.Begin(b.ctx, again)
		if err != nil {
			b.is("Begin beside a takeover", err, store.ErrLaneLost)
			return true
		}
		if other != nil {
			b.must("Rollback", other.Rollback(b.ctx))
		}
		return false
	})
	b.must("Rollback", txn.Rollback(b.ctx))
	b.must("Keep", <-taken)
	b.refusedIn(next, g.Hold)
}

func takeoverGaveUp[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.appended(b.worker(0), store.New, e)
	held := b.takes(b.worker(0), "a", true, "")
	g := gate(e)
	g.Hold = b.laneOf(held, e)
	txn := b.begin(b.worker(0), g)
	b.Advance(b.T, lease+margin)
	share := b.keep(b.worker(1), "b")
	for _, h := range share.Held {
		if h.Lane == g.Hold.Lane { // then what is open can commit nothing any more
			_, err := txn.Commit(b.ctx, completed("done"))
			b.is("Commit after a takeover", err, store.ErrLaneLost)
			return
		}
	}
	// The others were taken; the lane waits for its transaction, and is its holder's
	// when that worker comes back.
	if len(share.Held) != len(held)-1 {
		b.Errorf("a takeover beside one open lane: %d lanes of %d", len(share.Held), len(held))
	}
	back := b.keep(b.worker(0), "a", marksOf(held, "")...)
	if len(back.Held) != 1 || back.Held[0].Hold != g.Hold || back.Held[0].Taken {
		b.Fatalf("the holder's next round: %+v, want %+v kept", back.Held, g.Hold)
	}
	_, err := txn.Commit(b.ctx, completed("done"))
	b.must("Commit", err)
}
