package queuetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// blockTests hold: what cannot be done now waits with its ordering key, and
// nobody forgets for what.
func blockTests[Tx any]() []test[Tx] {
	attempts := []string{"Attempts"}
	return []test[Tx]{
		{name: "a blocked row tells the state of what it waits for", wants: attempts, run: blockedStates[Tx]},
		{name: "a blocked row and its attempt are written together", run: blockedTogether[Tx]},
		{name: "an attempt at rest goes on with its next number", run: blockedAgain[Tx]},
		{name: "an attempt at rest may be moved without another number", run: blockedMoved[Tx]},
		{name: "an attempt that has moved is not written over", wants: attempts, run: blockedConflict[Tx]},
		{name: "of an attempt at rest and a claim that come at once one is written", wants: attempts, run: blockedOrClaimed[Tx]},
		{name: "an operation that has ended or runs gets no attempt at rest", run: blockedEnded[Tx]},
		{name: "an ordering key has one row, of its smallest waiting sequence", run: smallestWaits[Tx]},
		{name: "a blocked row gives way once its entry is done", wants: []string{"Operations"}, run: rowGivesWay[Tx]},
		{name: "every entry that waits for an earlier version has its row", run: gaps[Tx]},
		{name: "blocking again after a lost answer leaves one row and one attempt", needs: losesAnswers[Tx], run: blockedLost[Tx]},
		{name: "blocked rows outlive their holder, and only the new one changes them", run: blockedSurvive[Tx]},
		{name: "blocked rows are listed by lane and by page", run: waitingPages[Tx]},
		{name: "followers are read by page, without what is done", run: followerPages[Tx]},
		{name: "a person's decision is seen by who waits", wants: []string{"Operations"}, run: decided[Tx]},
		{name: "a blocking that makes no sense is refused", run: blockRefused[Tx]},
	}
}

// lined are appended entries, as they are stored, and the holds of their lanes.
type lined[Tx any] struct {
	*bed[Tx]
	entries []store.Entry
	held    []store.Held
}

// line appends entries and takes all lanes.
func (b *bed[Tx]) line(entries ...store.Entry) *lined[Tx] {
	b.Helper()
	b.appended(b.worker(0), store.New, entries...)
	l := &lined[Tx]{bed: b, held: b.takes(b.worker(0), "holder", true, "")}
	for _, e := range entries {
		l.entries = append(l.entries, b.load(b.worker(0), e.Key))
	}
	return l
}

// blocking is a call of Block for one of the entries; rest may be nil.
func (l *lined[Tx]) blocking(i int, gap bool, rest *store.Resting) store.Blocking {
	return store.Blocking{Hold: l.laneOf(l.held, l.entries[i]), Entry: &l.entries[i], Gap: gap, Attempt: rest}
}

func (l *lined[Tx]) block(i int, gap bool, rest *store.Resting) {
	l.Helper()
	l.must("Block", l.worker(0).Block(l.ctx, l.blocking(i, gap, rest)))
}

func (l *lined[Tx]) unblock(i int) {
	l.Helper()
	e := l.entries[i]
	l.must("Unblock", l.worker(0).Unblock(l.ctx, l.laneOf(l.held, e), e.Order, e.Sequence))
}

// resting is an attempt at rest with the given numbers.
func (l *lined[Tx]) resting(i int, found, fence int64, state store.State, due time.Duration) *store.Resting {
	return &store.Resting{
		Found: found, Fence: fence, Rest: store.Rest{State: state, Reason: "why " + state.String(), DueIn: due},
		DerivedKey: l.entries[i].Note.Identity.DerivedKey(""), Origin: "inbox shop",
	}
}

// waits checks the blocked rows, by the numbers of their entries, in the order of
// their places, and returns them by number.
func (l *lined[Tx]) waits(want ...int) map[int]store.Waiting {
	l.Helper()
	waiting, err := l.worker(1).Waiting(l.ctx, nil, store.Place{}, 100)
	l.must("Waiting", err)
	found := map[int]store.Waiting{}
	for _, w := range waiting {
		i := slices.IndexFunc(l.entries, func(e store.Entry) bool { return e.Order == w.Order && e.Sequence == w.Sequence })
		if i < 0 {
			l.Fatalf("Waiting: a row of no entry, %+v", w)
		}
		e := l.entries[i]
		if w.Key != e.Key || w.Operation != e.Operation || w.Lane != store.LaneOf(e.Order, l.worker(0).Lanes.Lanes()) {
			l.Errorf("Waiting: %+v is not of entry %d", w, i)
		}
		found[i] = w
	}
	var got []int
	for i := range found {
		got = append(got, i)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || len(waiting) != len(want) {
		l.Fatalf("blocked are entries %v in %d rows, want %v", got, len(waiting), want)
	}
	return found
}

func blockedStates[Tx any](b *bed[Tx]) {
	operation := func(name string) store.Identity {
		return store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{"order", name}}
	}
	named := func(name string) store.Entry {
		return entryOf(store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{"event", name}}, operation(name), name, name)
	}
	states := []string{
		"free", "processing", "expired lease", "retryable", "due", "parked", "dead", "unknown", "completed", "discarded", "forgotten", "done",
	}
	var entries []store.Entry
	for _, s := range states {
		entries = append(entries, named(s))
	}
	l := b.line(entries...)
	w := b.worker(0)
	claim := func(i int, d time.Duration) {
		b.Helper()
		a, _, err := w.attempts.Claim(b.ctx, store.Claim{Gate: gateOfOperation(l.entries[i]), Lease: d, DerivedKey: "uv1-test"})
		b.must("Claim", err)
		if a == nil {
			b.Fatal("Claim: refused")
		}
	}
	for i := range states {
		var rest *store.Resting
		switch states[i] {
		case "processing":
			claim(i, 4*lease)
		case "expired lease":
			claim(i, lease/2)
		case "retryable":
			rest = l.resting(i, 0, 1, store.Retryable, 4*lease)
		case "due":
			rest = l.resting(i, 0, 1, store.Retryable, 0)
		case "parked":
			rest = l.resting(i, 0, 1, store.Parked, 0)
		case "dead":
			rest = l.resting(i, 0, 1, store.Dead, 0)
		case "unknown":
			claim(i, lease)
			b.must("Rest", w.attempts.Rest(b.ctx, l.entries[i].Operation, 1, store.Rest{State: store.Unknown, Reason: "no answer"}))
		}
		l.block(i, false, rest)
		switch states[i] {
		case "completed":
			b.end(w, gateOfOperation(l.entries[i]))
		case "discarded":
			txn := b.begin(w, gateOfOperation(l.entries[i]))
			_, err := txn.Commit(b.ctx, store.End{State: store.Discarded})
			b.must("Commit", err)
		case "forgotten":
			g := gateOfOperation(l.entries[i])
			g.Retention = lease / 2
			b.end(w, g)
		case "done":
			b.end(w, gateOfOperation(l.entries[i]))
			b.done(w, l.entries[i])
		}
	}
	b.Advance(b.T, lease-margin)
	var all []int
	for i := range states {
		all = append(all, i)
	}
	want := map[string]store.State{
		"free": store.Free, "processing": store.Processing, "expired lease": store.Unknown, "retryable": store.Retryable,
		"due": store.Retryable, "parked": store.Parked, "dead": store.Dead, "unknown": store.Unknown,
		"completed": store.Completed, "discarded": store.Discarded, "forgotten": store.Expired, "done": store.Completed,
	}
	for i, row := range l.waits(all...) {
		name := states[i]
		if row.State != want[name] || row.Done != (name == "done") || row.Gap {
			b.Errorf("%s: %+v", name, row)
		}
		fence := int64(1)
		if row.State == store.Free || row.State.Final() || row.State == store.Expired {
			fence = 0
		}
		if row.Fence != fence {
			b.Errorf("%s: fence %d, want %d", name, row.Fence, fence)
		}
		around := func(what string, got, want time.Duration) {
			b.Helper()
			if got > want || got < want-margin {
				b.Errorf("%s: %s %v, want %v or a little less", name, what, got, want)
			}
		}
		switch name {
		case "processing":
			around("lease left", row.LeaseLeft, 4*lease-lease+margin)
		case "retryable":
			around("due in", row.DueIn, 4*lease-lease+margin)
		case "due":
			if row.DueIn > 0 {
				b.Errorf("due in %v, want no time", row.DueIn)
			}
		}
	}
}

func blockedTogether[Tx any](b *bed[Tx]) {
	l := b.line(event("a", "x"))
	e := l.entries[0]
	l.block(0, false, l.resting(0, 0, 1, store.Retryable, time.Hour))
	l.waits(0)
	v := b.look(e.Operation)
	if v.State != store.Retryable || v.Attempt == nil {
		b.Fatalf("the operation is %+v, want it retryable", v)
	}
	a := v.Attempt
	if a.Fence != 1 || a.Key != e.Operation || a.Identity.Text() != e.Note.Identity.Text() || !a.Fingerprint.Equal(e.Fingerprint) ||
		a.Reason != "why retryable" || a.DerivedKey != e.Note.Identity.DerivedKey("") || a.Origin != "inbox shop" || a.Created.IsZero() {
		b.Errorf("the attempt: %+v", a)
	}
	if a.DueIn > time.Hour || a.DueIn < time.Hour-margin {
		b.Errorf("due in %v, want an hour", a.DueIn)
	}
	if b.worker(0).ops != nil {
		_, history, _, err := b.worker(0).ops.Show(b.ctx, e.Operation)
		b.must("Show", err)
		if len(history) != 1 || history[0].To != store.Retryable || history[0].Attempt != 1 || history[0].Reason != "why retryable" {
			b.Errorf("history: %+v", history)
		}
	}
	l.unblock(0)
	l.waits()
	if v := b.look(e.Operation); v.State != store.Retryable {
		b.Errorf("after unblocking: %v, want the attempt untouched", v.State)
	}
	b.reads(b.worker(1), "", "a") // it is not done
}

func blockedAgain[Tx any](b *bed[Tx]) {
	l := b.line(event("a", "x"))
	e := l.entries[0]
	l.block(0, false, l.resting(0, 0, 1, store.Retryable, 0))
	for fence := int64(1); fence < 4; fence++ {
		g := gate(e)
		g.From, g.Hold = fence, l.laneOf(l.held, e)
		txn := b.begin(b.worker(0), g)
		b.must("Rollback", txn.Rollback(b.ctx))
		rest := l.resting(0, fence, fence+1, store.Retryable, 0)
		rest.DerivedKey, rest.Origin = "uv1-another", "elsewhere"
		l.block(0, false, rest)
		if row := l.waits(0)[0]; row.Fence != fence+1 || row.State != store.Retryable {
			b.Fatalf("after attempt %d: %+v", fence+1, row)
		}
	}
	a := b.look(e.Operation).Attempt
	if a == nil || a.DerivedKey != e.Note.Identity.DerivedKey("") || a.Origin != "inbox shop" {
		b.Fatalf("after four attempts: %+v, want the first derived key and origin", a)
	}
	g := gate(e)
	g.From, g.Hold = 4, l.laneOf(l.held, e)
	txn := b.begin(b.worker(0), g)
	o, err := txn.Commit(b.ctx, completed("done"))
	b.must("Commit", err)
	if o.Attempt != 5 {
		b.Errorf("attempt of the outcome: %d, want 5", o.Attempt)
	}
	if row := l.waits(0)[0]; !row.Done || row.State != store.Completed {
		b.Errorf("after the end: %+v", row)
	}
	l.unblock(0)
	l.unblock(0) // of nothing is no error
	l.waits()
}

func blockedMoved[Tx any](b *bed[Tx]) {
	l := b.line(event("a", "x"))
	l.block(0, false, l.resting(0, 0, 1, store.Parked, 0))
	for _, state := range []store.State{store.Retryable, store.Parked, store.Retryable, store.Dead} {
		l.block(0, state == store.Parked, l.resting(0, 1, 1, state, time.Hour))
		row := l.waits(0)[0]
		if row.Fence != 1 || row.State != state || row.Gap != (state == store.Parked) {
			b.Fatalf("moved to %v: %+v", state, row)
		}
		if a := b.look(l.entries[0].Operation).Attempt; a == nil || a.Reason != "why "+state.String() {
			b.Fatalf("moved to %v: %+v", state, a)
		}
	}
}

// refuses is a Block that must fail and leave everything as it was.
func (l *lined[Tx]) refuses(i int, rest *store.Resting, want error) {
	l.Helper()
	before := l.look(l.entries[i].Operation)
	l.is("Block", l.worker(0).Block(l.ctx, l.blocking(i, false, rest)), want)
	after := l.look(l.entries[i].Operation)
	if before.State != after.State || (before.Attempt == nil) != (after.Attempt == nil) ||
		before.Attempt != nil && (before.Attempt.Fence != after.Attempt.Fence || before.Attempt.Reason != after.Attempt.Reason) {
		l.Fatalf("a refused Block has changed %+v into %+v", before, after)
	}
	l.waits()
}

func blockedConflict[Tx any](b *bed[Tx]) {
	l := b.line(event("live", "x"), event("expired", "y"), event("dead", "z"), event("none", "w"))
	w := b.worker(0)
	retry := func(i int, found, fence int64) *store.Resting { return l.resting(i, found, fence, store.Retryable, 0) }
	for i, d := range []time.Duration{4 * lease, lease / 2, 4 * lease} {
		a, _, err := w.attempts.Claim(b.ctx, store.Claim{Gate: gate(l.entries[i]), Lease: d, DerivedKey: "uv1-test"})
		b.must("Claim", err)
		if a == nil {
			b.Fatal("Claim: refused")
		}
	}
	b.must("Rest", w.attempts.Rest(b.ctx, l.entries[2].Operation, 1, store.Rest{State: store.Dead, Reason: "given up"}))
	b.Advance(b.T, lease-margin)
	for i := range 3 {
		for _, r := range []*store.Resting{retry(i, 0, 1), retry(i, 2, 2), retry(i, 2, 3)} {
			l.refuses(i, r, store.ErrConflict)
		}
	}
	l.refuses(0, retry(0, 1, 2), store.ErrConflict) // its holder works on it
	l.refuses(0, retry(0, 1, 1), store.ErrConflict)
	l.refuses(2, retry(2, 1, 2), store.ErrConflict) // only a person goes on with it
	l.refuses(3, retry(3, 1, 2), store.ErrConflict)
	// One whose lease has run out is unknown, and may be tried and rest.
	l.block(1, false, retry(1, 1, 2))
	if row := l.waits(1)[1]; row.State != store.Retryable || row.Fence != 2 {
		b.Errorf("after an expired lease: %+v", row)
	}
	b.is("Renew of the attempt before", w.attempts.Renew(b.ctx, l.entries[1].Operation, 1, lease), store.ErrLeaseLost)
}

func blockedOrClaimed[Tx any](b *bed[Tx]) {
	var entries []store.Entry
	for i := range 20 {
		entries = append(entries, event(fmt.Sprint(i), fmt.Sprint(i)))
	}
	l := b.line(entries...)
	for i, e := range l.entries {
		var claimed, rests bool
		b.together(2, func(who int) error {
			if who == 0 {
				a, _, err := b.worker(1).attempts.Claim(b.ctx, store.Claim{Gate: gate(e), Lease: lease, DerivedKey: "uv1-test"})
				claimed = a != nil
				return err
			}
			err := b.worker(0).Block(b.ctx, l.blocking(i, false, l.resting(i, 0, 1, store.Parked, 0)))
			if rests = err == nil; errors.Is(err, store.ErrConflict) {
				return nil
			}
			return err
		})
		want := map[bool]store.State{true: store.Processing, false: store.Parked}[claimed]
		// Both may have been refused, each by the other's lock.
		if v := b.look(e.Operation); claimed && rests || (claimed || rests) && (v.State != want || v.Attempt.Fence != 1) {
			b.Fatalf("claimed %v, at rest %v: %+v", claimed, rests, v)
		}
	}
}

func blockedEnded[Tx any](b *bed[Tx]) {
	l := b.line(event("ended", "x"), event("running", "y"))
	b.end(b.worker(0), gate(l.entries[0]))
	l.refuses(0, l.resting(0, 0, 1, store.Retryable, 0), store.ErrDuplicate)
	txn := b.begin(b.worker(1), gate(l.entries[1]))
	l.refuses(1, l.resting(1, 0, 1, store.Retryable, 0), store.ErrConflict)
	// The row alone says nothing of the operation, which may run elsewhere.
	l.block(1, false, nil)
	if row := l.waits(1)[1]; row.State != store.Free || row.Fence != 0 {
		b.Errorf("an entry whose operation runs in a transaction: %+v", row)
	}
	b.must("Rollback", txn.Rollback(b.ctx))
	l.block(1, false, l.resting(1, 0, 1, store.Retryable, 0))
	l.waits(1)
}

func smallestWaits[Tx any](b *bed[Tx]) {
	l := b.line(event("0", "x"), event("1", "x"), event("2", "x"), event("other", "y"))
	l.block(1, false, l.resting(1, 0, 1, store.Retryable, time.Hour))
	l.block(3, false, nil)
	l.waits(1, 3)
	l.block(2, false, l.resting(2, 0, 1, store.Retryable, time.Hour)) // behind the one that waits
	l.waits(1, 3)
	if v := b.look(l.entries[2].Operation); v.State != store.Retryable {
		b.Errorf("the attempt of a follower: %v, want it written", v.State)
	}
	l.block(0, false, nil) // ahead of it
	l.waits(0, 3)
	l.unblock(1) // has no row any more
	l.waits(0, 3)
	b.done(b.worker(0), l.entries[0])
	l.waits(0, 3)          // until somebody looks
	l.block(2, false, nil) // what is done gives way to what waits now
	l.waits(2, 3)
	l.unblock(0)
	l.waits(2, 3)
	l.unblock(2)
	l.waits(3)
}

func rowGivesWay[Tx any](b *bed[Tx]) {
	l := b.line(event("0", "x"), event("1", "x"), event("2", "x"))
	l.block(0, false, l.resting(0, 0, 1, store.Dead, 0))
	l.block(1, false, nil) // stays: the first one still waits
	l.waits(0)
	b.must("Discard", b.worker(1).ops.Discard(b.ctx, store.Action{Key: l.entries[0].Operation, Actor: "ana", Reason: "r"}, retention, tombstone))
	if row := l.waits(0)[0]; !row.Done {
		b.Errorf("the row of a discarded entry: %+v", row)
	}
	l.block(2, false, l.resting(2, 0, 1, store.Retryable, time.Hour))
	if row := l.waits(2)[2]; row.State != store.Retryable {
		b.Errorf("the row that has moved on: %+v", row)
	}
	l.unblock(0) // has no row any more
	l.waits(2)
}

func gaps[Tx any](b *bed[Tx]) {
	l := b.line(event("0", "x"), event("1", "x"), event("2", "x"), event("3", "x"))
	park := func(i int) *store.Resting { return l.resting(i, 0, 1, store.Parked, 0) }
	for _, i := range []int{2, 0, 3} {
		l.block(i, true, park(i))
	}
	for i, row := range l.waits(0, 2, 3) {
		if !row.Gap || row.State != store.Parked {
			b.Errorf("entry %d: %+v, want a parked gap", i, row)
		}
	}
	l.block(1, false, nil) // gaps on both sides of it stay
	for i, row := range l.waits(0, 1, 2, 3) {
		if row.Gap != (i != 1) {
			b.Errorf("entry %d: gap %v", i, row.Gap)
		}
	}
	l.unblock(1)
	l.block(0, false, l.resting(0, 1, 2, store.Retryable, 0)) // its gap has closed, and then it failed
	if row := l.waits(0, 2, 3)[0]; row.Gap || row.State != store.Retryable {
		b.Errorf("a gap that has closed: %+v", row)
	}
	l.block(0, true, l.resting(0, 2, 2, store.Parked, 0)) // and waits again
	if row := l.waits(0, 2, 3)[0]; !row.Gap || row.State != store.Parked {
		b.Errorf("a gap that has opened again: %+v", row)
	}
	l.unblock(2)
	l.waits(0, 3)
}

func blockedLost[Tx any](b *bed[Tx]) {
	l := b.line(event("0", "x"), event("1", "y"))
	for i, took := range []bool{true, false} {
		rest := l.resting(i, 0, 1, store.Retryable, 0)
		b.LoseAnswer(b.T, took)
		b.is("Block", b.worker(0).Block(b.ctx, l.blocking(i, false, rest)), store.ErrCommitUnknown)
		err := b.worker(0).Block(b.ctx, l.blocking(i, false, rest))
		if took && errors.Is(err, store.ErrConflict) {
			err = nil // the first one has written the attempt
		}
		b.must("Block again", err)
	}
	for i, row := range l.waits(0, 1) {
		if row.Fence != 1 || row.State != store.Retryable {
			b.Errorf("entry %d: %+v, want the first attempt", i, row)
		}
	}
	for i, took := range []bool{true, false} {
		e := l.entries[i]
		b.LoseAnswer(b.T, took)
		b.is("Unblock", b.worker(0).Unblock(b.ctx, l.laneOf(l.held, e), e.Order, e.Sequence), store.ErrCommitUnknown)
		l.unblock(i)
	}
	l.waits()
}

func blockedSurvive[Tx any](b *bed[Tx]) {
	l := b.line(event("0", "x"), event("1", "x"))
	l.block(0, false, l.resting(0, 0, 1, store.Retryable, 0))
	l.block(1, true, l.resting(1, 0, 1, store.Parked, 0))
	b.Advance(b.T, lease+margin)
	second := b.takes(b.worker(1), "b", false, "")
	l.waits(0, 1)
	for i, e := range l.entries {
		b.is("Unblock by who lost the lane", b.worker(0).Unblock(b.ctx, l.laneOf(l.held, e), e.Order, e.Sequence), store.ErrLaneLost)
		err := b.worker(0).Block(b.ctx, l.blocking(i, false, l.resting(i, 1, 2, store.Dead, 0)))
		b.is("Block by who lost the lane", err, store.ErrLaneLost)
		if v := b.look(e.Operation); v.Attempt == nil || v.Attempt.Fence != 1 || v.State == store.Dead {
			b.Errorf("the attempt was changed by who lost the lane: %+v", v)
		}
	}
	l.waits(0, 1)
	l.held = second
	l.unblock(0)
	l.unblock(1)
	l.waits()
}

func waitingPages[Tx any](b *bed[Tx]) {
	var entries []store.Entry
	for i := range 24 {
		entries = append(entries, event(fmt.Sprint(i), fmt.Sprint(i%12)))
	}
	l := b.line(entries...)
	var all []int
	for i := range entries {
		l.block(i, true, nil)
		all = append(all, i)
	}
	l.waits(all...)
	places := func(lanes []int, limit int) (got []store.Place) {
		b.Helper()
		var after store.Place
		for {
			page, err := b.worker(1).Waiting(b.ctx, lanes, after, limit)
			b.must("Waiting", err)
			if len(page) > limit {
				b.Fatalf("Waiting: %d rows, at most %d", len(page), limit)
			}
			for _, w := range page {
				got, after = append(got, w.Place), w.Place
			}
			if len(page) < limit {
				return got
			}
		}
	}
	order := func(a, b store.Place) int {
		if c := bytes.Compare(a.Order[:], b.Order[:]); c != 0 {
			return c
		}
		return int(a.Sequence - b.Sequence)
	}
	lanes := b.worker(0).Lanes.Lanes()
	var want []store.Place
	for _, e := range l.entries {
		want = append(want, store.Place{Order: e.Order, Sequence: e.Sequence})
	}
	slices.SortFunc(want, order)
	for _, limit := range []int{1, 5, 24, 100} {
		if got := places(nil, limit); !slices.Equal(got, want) {
			b.Fatalf("pages of %d: %v, want %v", limit, got, want)
		}
	}
	one := store.LaneOf(l.entries[0].Order, lanes)
	wanted := slices.DeleteFunc(slices.Clone(want), func(p store.Place) bool { return store.LaneOf(p.Order, lanes) != one })
	if got := places([]int{one}, 3); !slices.Equal(got, wanted) {
		b.Errorf("lane %d: %v, want %v", one, got, wanted)
	}
	if got := places([]int{}, 3); len(got) != 0 {
		b.Errorf("no lanes: %v", got)
	}
}

func followerPages[Tx any](b *bed[Tx]) {
	var entries []store.Entry
	var want []string
	for i := range 10 {
		entries = append(entries, event(fmt.Sprint(i), "x"), event(fmt.Sprint("other ", i), "y"))
		want = append(want, fmt.Sprint(i))
	}
	b.appended(b.worker(0), store.New, entries...)
	b.done(b.worker(0), entries[4], entries[10])
	want = slices.DeleteFunc(want, func(s string) bool { return s == "2" || s == "5" })
	var got []string
	after := int64(0)
	for {
		page, err := b.worker(1).Followers(b.ctx, entries[0].Order, after, 3)
		b.must("Followers", err)
		got = append(got, names(page)...)
		if len(page) < 3 {
			break
		}
		after = page[2].Sequence
	}
	if !slices.Equal(got, want) {
		b.Errorf("followers %v, want %v", got, want)
	}
	if page, err := b.worker(1).Followers(b.ctx, event("none", "z").Order, 0, 3); err != nil || len(page) != 0 {
		b.Errorf("followers of an unknown key: %v, %v", names(page), err)
	}
}

func decided[Tx any](b *bed[Tx]) {
	l := b.line(event("redriven", "x"), event("completed", "y"), event("discarded", "z"))
	ops := b.worker(1).ops
	for i := range l.entries {
		l.block(i, false, l.resting(i, 0, 1, store.Dead, 0))
	}
	act := func(i int) store.Action {
		return store.Action{Key: l.entries[i].Operation, Actor: "ana", Reason: "looked at it"}
	}
	b.must("Redrive", ops.Redrive(b.ctx, act(0)))
	b.must("Complete", ops.Complete(b.ctx, act(1), store.Result{Code: 200}, retention, tombstone))
	b.must("Discard", ops.Discard(b.ctx, act(2), retention, tombstone))
	rows := l.waits(0, 1, 2)
	if row := rows[0]; row.State != store.Retryable || row.DueIn > 0 || row.Done || row.Fence != 1 {
		b.Errorf("redriven: %+v", row)
	}
	if row := rows[1]; row.State != store.Completed || !row.Done {
		b.Errorf("completed: %+v", row)
	}
	if row := rows[2]; row.State != store.Discarded || !row.Done {
		b.Errorf("discarded: %+v", row)
	}
	b.reads(b.worker(1), "", "redriven")
}

func blockRefused[Tx any](b *bed[Tx]) {
	l := b.line(event("a", "x"))
	for _, rest := range []*store.Resting{
		l.resting(0, 0, 0, store.Retryable, 0),
		l.resting(0, 0, 2, store.Retryable, 0),
		l.resting(0, 1, 0, store.Retryable, 0),
		l.resting(0, -1, 0, store.Retryable, 0),
		l.resting(0, 0, 1, store.Free, 0),
		l.resting(0, 0, 1, store.Processing, 0),
		l.resting(0, 0, 1, store.Unknown, 0),
		l.resting(0, 0, 1, store.Completed, 0),
	} {
		if err := b.worker(0).Block(b.ctx, l.blocking(0, false, rest)); err == nil {
			b.Errorf("Block with an attempt %+v: no error", rest)
		}
	}
	if err := b.worker(0).Block(b.ctx, store.Blocking{Hold: l.laneOf(l.held, l.entries[0])}); err == nil {
		b.Error("Block of no entry: no error")
	}
	l.waits()
	if v := b.look(l.entries[0].Operation); v.State != store.Free {
		b.Errorf("the operation is %v", v.State)
	}
}
