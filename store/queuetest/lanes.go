package queuetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

// laneTests hold: a lane has one holder at a time, and what a holder leaves
// behind is told to the next.
func laneTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a lone worker holds all lanes", run: loneWorker[Tx]},
		{name: "lanes are shared out among the workers that live", run: shared[Tx]},
		{name: "a lane that was handed back is clean and has its cursor", run: handedBack[Tx]},
		{name: "the lanes of a silent worker are taken over, and not as clean", run: silentWorker[Tx]},
		{name: "a worker that was only slow keeps its lanes", run: slowWorker[Tx]},
		{name: "a lane that its worker does not know of is taken anew", run: unknownLanes[Tx]},
		{name: "a round whose answer was lost leaves no lane behind", needs: losesAnswers[Tx], run: roundLost[Tx]},
		{name: "marks of lanes that are not the worker's own change nothing", run: foreignMarks[Tx]},
		{name: "a round takes no more lanes than it may", run: mostLanes[Tx]},
		{name: "a worker that is gone counts no more", run: goneWorker[Tx]},
		{name: "a worker that is leaving keeps its lanes and takes none", run: leavingWorker[Tx]},
		{name: "no lane has two holders, whatever rounds run at once", run: oneHolder[Tx]},
		{name: "a round that is out of bounds is refused", run: roundRefused[Tx]},
	}
}

func losesAnswers[Tx any](h *Harness[Tx]) bool { return h.LoseAnswer != nil }

// keep is one round of a named worker.
func (b *bed[Tx]) keep(w worker[Tx], name string, marks ...store.Mark) store.Share {
	b.Helper()
	share, err := w.Keep(b.ctx, store.Keeping{Worker: name, Lease: lease, Marks: marks})
	b.must("Keep", err)
	if !slices.IsSortedFunc(share.Held, func(x, y store.Held) int { return x.Lane - y.Lane }) {
		b.Fatalf("Keep: lanes are not in their order: %+v", share.Held)
	}
	for _, h := range share.Held {
		if h.Epoch < 1 || h.Lane < 0 || h.Lane >= w.Lanes.Lanes() || !h.Taken && (h.Clean || h.Cursor != "") {
			b.Fatalf("Keep: %+v", h)
		}
	}
	return share
}

// marksOf names all lanes of a share, with a cursor for each.
func marksOf(held []store.Held, cursor string) []store.Mark {
	var marks []store.Mark
	for _, h := range held {
		marks = append(marks, store.Mark{Hold: h.Hold, Cursor: cursor})
	}
	return marks
}

// takes is a round in which the worker must come to hold all lanes, taking each.
func (b *bed[Tx]) takes(w worker[Tx], name string, clean bool, cursor string) []store.Held {
	b.Helper()
	share := b.keep(w, name)
	if len(share.Held) != w.Lanes.Lanes() || share.Spare != 0 || share.Workers != 1 {
		b.Fatalf("Keep: %d lanes, %d spare, %d workers; want all lanes of one", len(share.Held), share.Spare, share.Workers)
	}
	for _, h := range share.Held {
		if !h.Taken || h.Clean != clean || h.Cursor != cursor {
			b.Fatalf("Keep: %+v, want it taken, clean %v, cursor %q", h, clean, cursor)
		}
	}
	return share.Held
}

// keeps is a round in which the worker must go on holding what it names.
func (b *bed[Tx]) keeps(w worker[Tx], name string, held []store.Held, cursor string) store.Share {
	b.Helper()
	share := b.keep(w, name, marksOf(held, cursor)...)
	if len(share.Held) != len(held) {
		b.Fatalf("Keep: %d lanes, want the %d that were named", len(share.Held), len(held))
	}
	for i, h := range share.Held {
		if h.Taken || h.Hold != held[i].Hold {
			b.Fatalf("Keep: %+v, want %+v kept", h, held[i].Hold)
		}
	}
	return share
}

func loneWorker[Tx any](b *bed[Tx]) {
	w := b.worker(0)
	if n := b.worker(1).Lanes.Lanes(); n != w.Lanes.Lanes() || n < 2 {
		b.Fatalf("one worker has %d lanes, the other %d; want the same, at least 2", w.Lanes.Lanes(), n)
	}
	held := b.takes(w, "a", true, "")
	for range 2 {
		b.keeps(w, "a", held, "")
	}
	b.Advance(b.T, lease-margin)
	b.keeps(w, "a", held, "")
	b.Advance(b.T, lease-margin) // more than a lease since it was taken
	if share := b.keep(b.worker(1), "b"); len(share.Held) != 0 || share.Workers != 2 || share.Spare != 0 {
		b.Errorf("another worker's round: %+v, want nothing of two", share)
	}
}

func shared[Tx any](b *bed[Tx]) {
	lanes := b.worker(0).Lanes.Lanes()
	held := map[string][]store.Held{"a": b.takes(b.worker(0), "a", true, "")}
	workers := []string{"a", "b", "c"}
	for n := 2; n <= len(workers); n++ {
		share := (lanes + n - 1) / n
		newcomer := workers[n-1]
		b.keep(b.worker(n), newcomer) // so that it is known to live
		for i, name := range workers[:n-1] {
			s := b.keeps(b.worker(i), name, held[name], "")
			if s.Workers != n || s.Spare != max(len(held[name])-share, 0) {
				b.Fatalf("%s of %d workers has %d lanes, spare %d; want a share of %d", name, n, len(s.Held), s.Spare, share)
			}
			b.must("HandBack", b.worker(i).HandBack(b.ctx, name, marksOf(held[name][:s.Spare], ""), false))
			held[name] = held[name][s.Spare:]
		}
		for i, name := range workers[:n] {
			s := b.keep(b.worker(i), name, marksOf(held[name], "")...)
			held[name] = s.Held
		}
		holders := map[int]string{}
		for _, name := range workers[:n] {
			if len(held[name]) > share {
				b.Errorf("%s of %d workers has %d lanes, its share is %d", name, n, len(held[name]), share)
			}
			for _, h := range held[name] {
				if holders[h.Lane] != "" {
					b.Errorf("lane %d is held by %s and %s", h.Lane, holders[h.Lane], name)
				}
				holders[h.Lane] = name
			}
		}
		if len(holders) != lanes {
			b.Errorf("%d workers hold %d lanes of %d", n, len(holders), lanes)
		}
	}
}

func handedBack[Tx any](b *bed[Tx]) {
	b.appended(b.worker(0), store.New, event("a"))
	early := b.reads(b.worker(0), "", "a")
	b.appended(b.worker(0), store.New, event("c"))
	late := b.reads(b.worker(0), early, "c")
	first := b.takes(b.worker(0), "a", true, "")
	b.keeps(b.worker(0), "a", first, early)
	b.keeps(b.worker(0), "a", first, "") // leaves the cursor as it is
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", marksOf(first, ""), true))
	nobodys := marksOf(first, late) // as they are now: of nobody, who hands nothing back
	for i := range nobodys {
		nobodys[i].Epoch++
	}
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "", nobodys, false))
	second := b.takes(b.worker(1), "b", true, early)
	raised(b, first, second)
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "b", marksOf(second, late), true))
	third := b.takes(b.worker(0), "a", true, late)
	raised(b, second, third)
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", nil, true)) // of nothing, and is forgotten
	if share := b.keep(b.worker(1), "b"); len(share.Held) != 0 || share.Workers != 1 {
		b.Errorf("beside lanes that were not handed back: %+v", share)
	}
}

// raised checks that every lane has a larger epoch than before.
func raised[Tx any](b *bed[Tx], before, after []store.Held) {
	b.Helper()
	for i := range after {
		if after[i].Lane != before[i].Lane || after[i].Epoch <= before[i].Epoch {
			b.Fatalf("lane %+v after %+v, want a larger epoch", after[i].Hold, before[i].Hold)
		}
	}
}

func silentWorker[Tx any](b *bed[Tx]) {
	b.appended(b.worker(0), store.New, event("a"))
	cursor := b.reads(b.worker(0), "", "a")
	first := b.takes(b.worker(0), "a", true, "")
	b.keeps(b.worker(0), "a", first, cursor)
	b.Advance(b.T, lease-margin)
	if share := b.keep(b.worker(1), "b"); len(share.Held) != 0 {
		b.Fatalf("lanes taken before the lease was over: %+v", share.Held)
	}
	b.Advance(b.T, 2*margin)
	second := b.takes(b.worker(1), "b", false, cursor)
	raised(b, first, second)
	// The one that was silent has nothing left, and may have its share.
	share := b.keep(b.worker(0), "a", marksOf(first, "")...)
	if len(share.Held) != 0 || share.Workers != 2 {
		b.Errorf("the silent worker's next round: %+v", share)
	}
	b.keeps(b.worker(1), "b", second, "")
}

func slowWorker[Tx any](b *bed[Tx]) {
	held := b.takes(b.worker(0), "a", true, "")
	b.Advance(b.T, 3*lease)
	b.keeps(b.worker(0), "a", held, "")
	if share := b.keep(b.worker(1), "b"); len(share.Held) != 0 {
		b.Errorf("lanes taken from a worker that lives: %+v", share.Held)
	}
}

func unknownLanes[Tx any](b *bed[Tx]) {
	b.appended(b.worker(0), store.New, event("a"))
	cursor := b.reads(b.worker(0), "", "a")
	first := b.takes(b.worker(0), "a", true, "")
	b.keeps(b.worker(0), "a", first, cursor)
	// The worker starts again under its name.
	second := b.takes(b.worker(1), "a", false, cursor)
	raised(b, first, second)
	// It names some, and an older epoch of others.
	share := b.keep(b.worker(0), "a", append(marksOf(second[:1], ""), marksOf(first[1:], "wrong")...)...)
	if len(share.Held) != len(second) || share.Held[0].Taken || share.Held[0].Hold != second[0].Hold {
		b.Fatalf("Keep: %d lanes, the first %+v; want all, and %+v kept", len(share.Held), share.Held[0], second[0].Hold)
	}
	for _, h := range share.Held[1:] {
		if !h.Taken || h.Clean || h.Cursor != cursor {
			b.Fatalf("Keep: %+v, want it taken anew with the cursor %q", h, cursor)
		}
	}
	raised(b, second[1:], share.Held[1:])
}

func roundLost[Tx any](b *bed[Tx]) {
	for _, took := range []bool{false, true} {
		b.LoseAnswer(b.T, took)
		_, err := b.worker(0).Keep(b.ctx, store.Keeping{Worker: "a", Lease: lease})
		b.is("Keep", err, store.ErrCommitUnknown)
	}
	held := b.keep(b.worker(0), "a").Held
	if len(held) != b.worker(0).Lanes.Lanes() {
		b.Fatalf("after a round without an answer: %d lanes", len(held))
	}
	for _, took := range []bool{false, true} {
		b.LoseAnswer(b.T, took)
		b.is("HandBack", b.worker(0).HandBack(b.ctx, "a", marksOf(held, ""), true), store.ErrCommitUnknown)
	}
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", marksOf(held, ""), true))
	b.takes(b.worker(1), "b", true, "")
}

func foreignMarks[Tx any](b *bed[Tx]) {
	b.appended(b.worker(0), store.New, event("a"))
	cursor := b.reads(b.worker(0), "", "a")
	b.appended(b.worker(0), store.New, event("c"))
	other := b.reads(b.worker(0), cursor, "c")
	held := b.takes(b.worker(0), "a", true, "")
	b.keeps(b.worker(0), "a", held, cursor)
	old := marksOf(held, other)
	for i := range old {
		old[i].Epoch--
	}
	b.Advance(b.T, lease/2)
	for _, marks := range [][]store.Mark{marksOf(held, other), old} {
		if share := b.keep(b.worker(1), "b", marks...); len(share.Held) != 0 {
			b.Fatalf("a round that names another worker's lanes: %+v", share.Held)
		}
		b.must("HandBack", b.worker(1).HandBack(b.ctx, "b", marks, false))
	}
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", old, false))
	b.must("HandBack", b.worker(1).HandBack(b.ctx, "b", nil, true))
	b.Advance(b.T, lease/2+margin) // a's own round is a lease ago, in spite of b's marks
	b.takes(b.worker(1), "b", false, cursor)
}

func mostLanes[Tx any](b *bed[Tx]) {
	lanes := b.worker(0).Lanes.Lanes()
	round := func(marks []store.Mark) store.Share {
		b.Helper()
		share, err := b.worker(0).Keep(b.ctx, store.Keeping{Worker: "a", Lease: lease, Marks: marks, Most: 1})
		b.must("Keep", err)
		return share
	}
	one := round(nil)
	two := round(marksOf(one.Held, ""))
	if len(one.Held) != 1 || len(two.Held) != 2 {
		b.Fatalf("rounds of at most one lane: %d lanes, then %d", len(one.Held), len(two.Held))
	}
	if share := b.keep(b.worker(0), "a", marksOf(two.Held, "")...); len(share.Held) != lanes {
		b.Errorf("then a round without a bound: %d lanes of %d", len(share.Held), lanes)
	}
}

func goneWorker[Tx any](b *bed[Tx]) {
	held := b.takes(b.worker(0), "a", true, "")
	b.keep(b.worker(1), "b")
	if share := b.keeps(b.worker(0), "a", held, ""); share.Workers != 2 {
		b.Fatalf("%d workers, want 2", share.Workers)
	}
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", marksOf(held[:1], ""), false))
	if share := b.keep(b.worker(1), "b"); share.Workers != 2 || len(share.Held) != 1 {
		b.Fatalf("after one lane was handed back: %+v", share)
	}
	b.must("HandBack", b.worker(0).HandBack(b.ctx, "a", marksOf(held[1:], ""), true))
	if share := b.keep(b.worker(1), "b"); share.Workers != 1 || len(share.Held) != len(held) {
		b.Fatalf("after the other was gone: %d lanes of %d workers", len(share.Held), share.Workers)
	}
}

func leavingWorker[Tx any](b *bed[Tx]) {
	leave := func(held []store.Held) store.Share {
		b.Helper()
		share, err := b.worker(0).Keep(b.ctx, store.Keeping{Worker: "a", Lease: lease, Marks: marksOf(held, ""), Leaving: true})
		b.must("Keep", err)
		return share
	}
	if share := leave(nil); len(share.Held) != 0 || share.Workers != 0 {
		b.Fatalf("a round of a leaving worker without lanes: %+v", share)
	}
	held := b.takes(b.worker(0), "a", true, "")
	b.Advance(b.T, lease-margin)
	if share := leave(held[:1]); len(share.Held) != 1 || share.Held[0].Hold != held[0].Hold || share.Held[0].Taken || share.Spare != 1 {
		b.Fatalf("a round of a leaving worker with a lane: %+v", share)
	}
	b.Advance(b.T, 2*margin) // the leases of the others are over
	if share := b.keep(b.worker(1), "b"); len(share.Held) != len(held)-1 || share.Workers != 1 {
		b.Fatalf("beside a leaving worker with a lane of %d: %d lanes of %d workers", len(held), len(share.Held), share.Workers)
	}
}

// party is a worker of oneHolder.
type party struct {
	name string
	held []store.Held
}

func oneHolder[Tx any](b *bed[Tx]) {
	const n, rounds = 4, 8
	parties := make([]party, n)
	for i := range parties {
		parties[i].name = fmt.Sprint("worker ", i)
	}
	round := func(i int) error {
		p, w := &parties[i], b.worker(i)
		share, err := w.Keep(b.ctx, store.Keeping{Worker: p.name, Lease: lease, Marks: marksOf(p.held, "")})
		if errors.Is(err, store.ErrUnavailable) {
			return nil // busy; what was held is held
		}
		if err != nil {
			return err
		}
		p.held = share.Held
		back := p.held[:share.Spare]
		if err := w.HandBack(b.ctx, p.name, marksOf(back, ""), false); err != nil {
			return err
		}
		p.held = p.held[share.Spare:]
		return nil
	}
	b.together(n, func(i int) error {
		for range rounds {
			if err := round(i); err != nil {
				return err
			}
		}
		return nil
	})
	b.poll("every lane has a holder", func() bool {
		holders := map[int]string{}
		for i := range parties {
			b.must("round", round(i))
			for _, h := range parties[i].held {
				if holders[h.Lane] != "" {
					b.Fatalf("lane %d is held by %s and %s", h.Lane, holders[h.Lane], parties[i].name)
				}
				holders[h.Lane] = parties[i].name
			}
		}
		return len(holders) == b.worker(0).Lanes.Lanes()
	})
}

func roundRefused[Tx any](b *bed[Tx]) {
	for _, k := range []store.Keeping{
		{Lease: lease},
		{Worker: string(make([]byte, 201)), Lease: lease},
		{Worker: "a"},
		{Worker: "a", Lease: -lease},
		{Worker: "a", Lease: lease, Most: -1},
	} {
		if share, err := b.worker(0).Keep(b.ctx, k); err == nil {
			b.Errorf("Keep of worker %q for %v, at most %d: %+v, want an error", k.Worker, k.Lease, k.Most, share)
		}
	}
	b.takes(b.worker(1), "b", true, "")
}
