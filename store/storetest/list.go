package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// listTests hold what an operator sees.
func listTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a list shows the unfinished operations", run: listUnfinished[Tx]},
		{name: "a list selects by state, tenant and effect", run: listFilter[Tx]},
		{name: "pages follow each other in order", run: listPages[Tx]},
		{name: "a list shows an outcome once, whatever its retention", run: listRetentions[Tx]},
		{name: "a record of an outcome tells its size and not its body", run: recordOfOutcome[Tx]},
		{name: "show gives one operation with history and steps", run: show[Tx]},
		{name: "an expired operation cannot be shown", run: showExpired[Tx]},
		{name: "history and steps outlive what is forgotten and purged of others", run: historyKept[Tx]},
		{name: "counts are by state, with the oldest at rest", run: counts[Tx]},
	}
}

func (b *bed[Tx]) list(f store.Filter) []store.Record {
	b.Helper()
	records, err := b.ops.List(b.ctx, f)
	b.must("List", err)
	return records
}

// listed gives the last key parts of the records, sorted.
func listed(records []store.Record) []string {
	var names []string
	for _, r := range records {
		names = append(names, r.Identity.Parts[len(r.Identity.Parts)-1])
	}
	slices.Sort(names)
	return names
}

// everyState brings one operation into each state that can be listed.
func (b *bed[Tx]) everyState() {
	b.Helper()
	for _, state := range []store.State{store.Retryable, store.Parked, store.Unknown, store.Dead} {
		b.rest(b.gate(state.String()), state)
	}
	b.claim(b.gate("processing"))
	b.do(b.gate("completed"), "completed")
	txn := b.begin(b.Ledger, b.gate("discarded"))
	b.commit(txn, store.End{State: store.Discarded})
}

func listUnfinished[Tx any](b *bed[Tx]) {
	if records := b.list(store.Filter{}); len(records) != 0 {
		b.Errorf("list of an empty store: %+v", records)
	}
	b.everyState()
	records := b.list(store.Filter{})
	if got := listed(records); !slices.Equal(got, []string{"dead", "parked", "processing", "retryable", "unknown"}) {
		b.Fatalf("unfinished operations: %q", got)
	}
	for _, r := range records {
		gate := b.gate(r.State.String())
		if r.Key != gate.Key || r.Identity.Text() != gate.Identity.Text() || r.Attempt != 1 || r.DerivedKey != gate.Identity.DerivedKey("") || r.Origin != "POST /orders" ||
			r.Created.IsZero() || r.Changed.Before(r.Created) || r.Damaged || r.Code != 0 || r.Size != 0 {
			b.Errorf("record of %v: %+v", r.State, r)
		}
		switch r.State {
		case store.Processing:
			b.around("lease left", r.LeaseLeft, lease)
		case store.Retryable:
			b.around("due in", r.DueIn, time.Hour)
			fallthrough
		default:
			if r.Reason != "why "+r.State.String() {
				b.Errorf("reason of %v: %q", r.State, r.Reason)
			}
		}
	}
	b.Advance(b.T, lease+margin)
	for _, r := range b.list(store.Filter{}) {
		if r.Key == b.gate("processing").Key && r.State == store.Processing && r.LeaseLeft > 0 {
			b.Errorf("expired lease: left %v", r.LeaseLeft)
		}
	}
}

func listFilter[Tx any](b *bed[Tx]) {
	b.everyState()
	for _, id := range []store.Identity{
		{Tenant: "", Effect: "order.create.v1", Parts: []string{"no tenant"}},
		{Tenant: "other", Effect: "order.create.v1", Parts: []string{"other tenant"}},
		{Tenant: "tenant", Effect: "order.create.v2", Parts: []string{"other effect"}},
	} {
		b.rest(gateOf(id), store.Dead)
		id.Parts = []string{"ended", id.Parts[0]}
		b.do(gateOf(id), id.Parts[1])
	}
	all := []store.State{store.Processing, store.Retryable, store.Parked, store.Unknown, store.Dead, store.Completed, store.Discarded}
	tenant := func(name string) *string { return &name }
	for name, c := range map[string]struct {
		filter store.Filter
		want   []string
	}{
		"one state":    {store.Filter{States: []store.State{store.Parked}}, []string{"parked"}},
		"two states":   {store.Filter{States: []store.State{store.Parked, store.Retryable}}, []string{"parked", "retryable"}},
		"final states": {store.Filter{States: []store.State{store.Completed, store.Discarded}, Effect: "order.create.v1", Tenant: tenant("tenant")}, []string{"completed", "discarded"}},
		"both kinds":   {store.Filter{States: []store.State{store.Dead, store.Discarded}, Tenant: tenant("tenant"), Effect: "order.create.v1"}, []string{"dead", "discarded"}},
		"no tenant":    {store.Filter{Tenant: tenant("")}, []string{"no tenant"}},
		"a tenant":     {store.Filter{Tenant: tenant("other"), States: all}, []string{"other tenant", "other tenant"}},
		"an effect":    {store.Filter{Effect: "order.create.v2"}, []string{"other effect"}},
		"nothing":      {store.Filter{Effect: "order"}, nil},
		"dead ones":    {store.Filter{States: []store.State{store.Dead}}, []string{"dead", "no tenant", "other effect", "other tenant"}},
	} {
		if got := listed(b.list(c.filter)); !slices.Equal(got, c.want) {
			b.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if n := len(b.list(store.Filter{States: all})); n != 13 {
		b.Errorf("all states: %d records, want 13", n)
	}
}

func listRetentions[Tx any](b *bed[Tx]) {
	var want []string
	for i := range 3 {
		gate := b.gate("kept", fmt.Sprint(i))
		gate.Retention += time.Duration(i) * lease
		b.do(gate, fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	if got := listed(b.list(store.Filter{States: []store.State{store.Completed}})); !slices.Equal(got, want) {
		b.Errorf("completed operations: %q, want %q", got, want)
	}
}

func listPages[Tx any](b *bed[Tx]) {
	const n = 105
	for i := range n {
		b.claim(b.gate("page", fmt.Sprintf("%03d", i)))
		if i%20 == 0 {
			b.Advance(b.T, time.Second)
		}
	}
	for i := range 5 {
		b.do(b.gate("ended", fmt.Sprint(i)), fmt.Sprint(i))
	}
	after := func(r store.Record) *store.Cursor { return &store.Cursor{Changed: r.Changed, Key: r.Key} }
	order := func(a, z store.Record) int {
		if c := a.Changed.Compare(z.Changed); c != 0 {
			return c
		}
		return bytes.Compare(a.Key[:], z.Key[:])
	}
	first := b.list(store.Filter{})
	if len(first) != 100 {
		b.Fatalf("page without a limit: %d records, want 100", len(first))
	}
	if rest := b.list(store.Filter{After: after(first[99])}); len(rest) != n-100 {
		b.Errorf("page after it: %d records, want %d", len(rest), n-100)
	}
	for _, limit := range []int{1000, 7, 105, 110} {
		seen := map[store.Key]bool{}
		filter := store.Filter{Limit: limit, States: []store.State{store.Processing, store.Completed}}
		var last *store.Record
		for {
			page := b.list(filter)
			if len(page) > limit {
				b.Fatalf("limit %d: page of %d", limit, len(page))
			}
			for i := range page {
				if last != nil && order(*last, page[i]) >= 0 {
					b.Fatalf("limit %d: %v %v stands behind %v %v", limit, page[i].Changed, page[i].Key, last.Changed, last.Key)
				}
				last = &page[i]
				seen[page[i].Key] = true
			}
			if len(page) < limit {
				break
			}
			filter.After = after(*last)
		}
		if len(seen) != n+5 {
			b.Errorf("limit %d: %d operations in all pages, want %d", limit, len(seen), n+5)
		}
	}
}

func recordOfOutcome[Tx any](b *bed[Tx]) {
	gate := b.gate("ended")
	txn := b.begin(b.Ledger, gate)
	made := b.commit(txn, completed(store.Result{Code: 201, Body: []byte("12345"), Header: []store.Field{{Name: "A", Value: "B"}}}))
	shown, _, _, err := b.ops.Show(b.ctx, gate.Key)
	b.must("Show", err)
	records := b.list(store.Filter{States: []store.State{store.Completed}})
	if len(records) != 1 {
		b.Fatalf("List: %+v", records)
	}
	for _, r := range []store.Record{records[0], shown} {
		if r.State != store.Completed || r.Code != 201 || r.Size != 5 || r.Attempt != 1 || r.Damaged ||
			!r.Created.Equal(made.At) || !r.Changed.Equal(made.At) || r.Identity.Text() != gate.Identity.Text() || r.Key != gate.Key {
			b.Errorf("record: %+v", r)
		}
	}
}

// history compares people's and holders' transitions by their ends.
func (b *bed[Tx]) history(gate store.Gate, want ...store.Transition) {
	b.Helper()
	_, got, _, err := b.ops.Show(b.ctx, gate.Key)
	b.must("Show", err)
	if len(got) != len(want) {
		b.Fatalf("history: %+v, want %+v", got, want)
	}
	for i, w := range want {
		g := got[i]
		if g.From != w.From || g.To != w.To || g.Attempt != w.Attempt || g.At.IsZero() ||
			w.Reason != "" && g.Reason != w.Reason || w.Actor != "" && g.Actor != w.Actor || g.Reason == "" || g.Actor == "" {
			b.Errorf("transition %d: %+v, want %+v", i, g, w)
		}
		if i > 0 && g.At.Before(got[i-1].At) {
			b.Errorf("transition %d: at %v, before the one at %v", i, g.At, got[i-1].At)
		}
	}
}

func historyKept[Tx any](b *bed[Tx]) {
	kept, again, over := b.gate("kept"), b.gate("runs again"), b.gate("over")
	b.rest(kept, store.Parked)
	again.Retention, again.Tombstone = time.Minute, -1
	over.Retention, over.Tombstone = time.Minute, -1
	b.do(again, "first")
	b.do(over, "over")
	b.Advance(b.T, time.Minute+margin)
	kept.From = 1
	b.claim(kept)
	b.end(kept, 2, "kept")
	_, before, _, err := b.ops.Show(b.ctx, kept.Key)
	b.must("Show", err)
	if len(before) == 0 {
		b.Fatal("an operation that was parked has no history")
	}
	running := b.gate("running")
	b.claim(running)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, running.Key, 1, store.Step{Name: "charge", Done: true}))
	again.Retention = lease
	holds := func() {
		b.Helper()
		b.history(kept, before...)
		b.stepsAre(running, store.Step{Name: "charge", Done: true, Fence: 1})
	}
	b.do(again, "second") // what is left of its first life goes
	holds()
	b.purgeAll() // what is over goes
	holds()
}

func show[Tx any](b *bed[Tx]) {
	gate := b.gate("shown")
	if _, _, _, err := b.ops.Show(b.ctx, gate.Key); err == nil {
		b.Fatal("Show of nothing: no error")
	} else {
		b.is("Show of nothing", err, store.ErrNotFound)
	}
	b.claim(gate)
	b.history(gate)
	b.must("SaveStep", b.attempts.SaveStep(b.ctx, gate.Key, 1, store.Step{Name: "charge", Done: true, Result: []byte("c-1")}))
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Retryable, Reason: "busy"}))
	b.history(gate, store.Transition{From: store.Processing, To: store.Retryable, Attempt: 1, Reason: "busy"})
	gate.From = 1
	b.claim(gate)
	b.Advance(b.T, lease+margin)
	b.claimRefused(gate, store.Unknown)
	b.must("Release", b.ops.Release(b.ctx, store.Action{Key: gate.Key, Actor: "ana", Reason: "gateway says no"}))
	gate.From = 2
	b.claim(gate)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 3, store.Rest{State: store.Dead, Reason: "refused"}))
	want := []store.Transition{
		{From: store.Processing, To: store.Retryable, Attempt: 1, Reason: "busy"},
		{From: store.Processing, To: store.Unknown, Attempt: 2},
		{From: store.Unknown, To: store.Retryable, Attempt: 2, Actor: "ana", Reason: "gateway says no"},
		{From: store.Processing, To: store.Dead, Attempt: 3, Reason: "refused"},
	}
	b.history(gate, want...)
	r, _, steps, err := b.ops.Show(b.ctx, gate.Key)
	b.must("Show", err)
	if r.State != store.Dead || r.Attempt != 3 || r.Reason != "refused" || r.Key != gate.Key {
		b.Errorf("record: %+v", r)
	}
	if len(steps) != 1 || !sameStep(steps[0], store.Step{Name: "charge", Done: true, Fence: 1, Result: []byte("c-1")}) {
		b.Errorf("steps: %+v", steps)
	}
	b.must("Complete", b.ops.Complete(b.ctx, store.Action{Key: gate.Key, Actor: "bo", Reason: "done by hand"}, answer("by hand"), retention, tombstone))
	b.history(gate, append(want, store.Transition{From: store.Dead, To: store.Completed, Attempt: 3, Actor: "bo", Reason: "done by hand"})...)
	if _, _, steps, err := b.ops.Show(b.ctx, gate.Key); err != nil || len(steps) != 0 {
		b.Errorf("steps of an ended operation: %+v, %v", steps, err)
	}
	// Nobody else's history.
	other := b.gate("other")
	b.do(other, "other")
	b.history(other)
}

func showExpired[Tx any](b *bed[Tx]) {
	gate := b.gate("expired")
	b.do(gate, "expired")
	for _, purges := range []bool{false, true} {
		b.Advance(b.T, retention+margin)
		if purges {
			b.purgeAll()
		}
		_, _, _, err := b.ops.Show(b.ctx, gate.Key)
		b.is("Show", err, store.ErrNotFound)
		if records := b.list(store.Filter{States: []store.State{store.Completed}}); len(records) != 0 {
			b.Errorf("List: %+v", records)
		}
	}
}

func counts[Tx any](b *bed[Tx]) {
	c, err := b.ops.Counts(b.ctx)
	b.must("Counts", err)
	for state, n := range c.Unfinished {
		if n != 0 {
			b.Errorf("empty store: %d %v", n, state)
		}
	}
	if c.OldestAtRest != 0 {
		b.Errorf("empty store: oldest at rest %v", c.OldestAtRest)
	}
	b.claim(b.gate("running before all"))
	b.Advance(b.T, margin)
	b.everyState()
	b.rest(b.gate("second dead"), store.Dead)
	b.Advance(b.T, margin)
	b.rest(b.gate("third dead"), store.Dead)
	c, err = b.ops.Counts(b.ctx)
	b.must("Counts", err)
	for state, want := range map[store.State]int64{
		store.Processing: 2, store.Retryable: 1, store.Parked: 1, store.Unknown: 1, store.Dead: 3, store.Completed: 0, store.Discarded: 0,
	} {
		if c.Unfinished[state] != want {
			b.Errorf("%d %v, want %d", c.Unfinished[state], state, want)
		}
	}
	if c.OldestAtRest < margin || c.OldestAtRest >= 2*margin {
		b.Errorf("oldest at rest: %v, want %v or a little more", c.OldestAtRest, margin)
	}
}
