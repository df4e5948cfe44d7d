package queuetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// quarantineTests hold: what cannot be an operation is kept until a person decides.
func quarantineTests[Tx any]() []test[Tx] {
	wants := []string{"Quarantine"}
	return []test[Tx]{
		{name: "a quarantined item is kept as it arrived, once", wants: wants, run: quarantineKept[Tx]},
		{name: "quarantined items are listed by source and by page", wants: wants, run: quarantinePages[Tx]},
		{name: "readmitting appends the entries and removes the item together", wants: wants, run: readmitted[Tx]},
		{name: "a readmission that cannot append leaves the item", wants: wants, needs: func(h *Harness[Tx]) bool { return h.Fill != nil }, run: readmitFull[Tx]},
		{name: "a readmission whose answer was lost happened as a whole or not at all", wants: wants, needs: losesAnswers[Tx], run: readmitLost[Tx]},
		{name: "one of two people who decide at once does", wants: wants, run: readmitOnce[Tx]},
	}
}

// positionTests hold: the listing of a sender is read by one worker at a time.
func positionTests[Tx any]() []test[Tx] {
	wants := []string{"Positions"}
	return []test[Tx]{
		{name: "a position belongs to one worker while its lease lasts", wants: wants, run: positionOwned[Tx]},
		{name: "a position that was taken cannot be saved by the worker before", wants: wants, run: positionLost[Tx]},
		{name: "one of many workers gets the position", wants: wants, run: positionOnce[Tx]},
	}
}

func quarantineKept[Tx any](b *bed[Tx]) {
	q := item("q", "shop")
	q.Subject = store.SubjectKey("tenant", []string{"customer", "7"})
	q.Payload = []byte{0, 0xff, '\n'}
	q.Note = event("q").Note
	q.Note.Event, q.Note.Identity = store.Identity{}, store.Identity{}
	b.quarantines(b.worker(0), q)
	other := q
	other.Reason, other.Payload = "type", []byte("another")
	b.quarantines(b.worker(1), q, other)
	got, err := b.worker(1).quarantine.ShowQuarantined(b.ctx, q.Key)
	b.must("ShowQuarantined", err)
	note, err := got.Note.Encode()
	b.must("Encode", err)
	want, err := q.Note.Encode()
	b.must("Encode", err)
	if got.Key != q.Key || got.Tenant != q.Tenant || got.Source != q.Source || got.Type != q.Type || got.Reason != q.Reason || got.Detail != q.Detail ||
		got.Subject != q.Subject || !bytes.Equal(got.Payload, q.Payload) || got.ContentType != q.ContentType || got.Erased || got.Arrived.IsZero() ||
		!bytes.Equal(note, want) {
		b.Errorf("kept %+v, want the first %+v", got, q)
	}
	page, err := b.worker(0).quarantine.Quarantined(b.ctx, "", store.Key{}, 10)
	b.must("Quarantined", err)
	if len(page) != 1 || len(page[0].Payload) != 0 || page[0].Detail != q.Detail || page[0].Key != q.Key {
		b.Errorf("listed %+v, want one without its payload", page)
	}
	b.reads(b.worker(0), "") // it is no entry
	_, err = b.worker(0).quarantine.ShowQuarantined(b.ctx, item("none", "shop").Key)
	b.is("ShowQuarantined of nothing", err, store.ErrNotFound)
}

// quarantines appends items without entries.
func (b *bed[Tx]) quarantines(w worker[Tx], items ...store.Quarantined) {
	b.Helper()
	_, err := w.Append(b.ctx, store.Arrival{Quarantined: items})
	b.must("Append", err)
}

// kept are the keys of all quarantined items.
func (b *bed[Tx]) kept(want ...store.Quarantined) {
	b.Helper()
	page, err := b.worker(1).quarantine.Quarantined(b.ctx, "", store.Key{}, 1000)
	b.must("Quarantined", err)
	var got, wanted []string
	for _, q := range page {
		got = append(got, q.Key.String())
	}
	for _, q := range want {
		wanted = append(wanted, q.Key.String())
	}
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		b.Fatalf("quarantined: %v, want %v", got, wanted)
	}
}

func quarantinePages[Tx any](b *bed[Tx]) {
	var shop, all []store.Quarantined
	for i := range 9 {
		q := item(fmt.Sprint(i), []string{"shop", "bank"}[i%2])
		if all = append(all, q); q.Source == "shop" {
			shop = append(shop, q)
		}
	}
	b.quarantines(b.worker(0), all...)
	b.kept(all...)
	for source, want := range map[string][]store.Quarantined{"": all, "shop": shop, "nobody": nil} {
		var got []store.Key
		var after store.Key
		for {
			page, err := b.worker(1).quarantine.Quarantined(b.ctx, source, after, 2)
			b.must("Quarantined", err)
			for _, q := range page {
				got, after = append(got, q.Key), q.Key
			}
			if len(page) < 2 {
				break
			}
		}
		var wanted []store.Key
		for _, q := range want {
			wanted = append(wanted, q.Key)
		}
		slices.SortFunc(wanted, func(a, b store.Key) int { return strings.Compare(a.String(), b.String()) })
		if !slices.Equal(got, wanted) {
			b.Errorf("source %q: %v, want %v", source, got, wanted)
		}
	}
}

// decision is a person's, about a quarantined item.
func decision(q store.Quarantined) store.Action {
	return store.Action{Key: q.Key, Actor: "ana", Reason: "the schema was wrong"}
}

func readmitted[Tx any](b *bed[Tx]) {
	one, two, three := item("one", "shop"), item("two", "shop"), item("three", "shop")
	b.quarantines(b.worker(0), one, two, three)
	known := event("known", "x")
	b.appended(b.worker(0), store.New, known)
	cursor := b.reads(b.worker(0), "", "known")
	q := b.worker(1).quarantine
	said, err := q.Readmit(b.ctx, decision(one), []store.Entry{event("first", "x"), known, event("second", "x")})
	b.must("Readmit", err)
	if want := []store.Appended{store.New, store.Duplicate, store.New}; !slices.Equal(said, want) {
		b.Errorf("said %v, want %v", said, want)
	}
	b.kept(two, three)
	b.reads(b.worker(0), cursor, "first", "second")
	said, err = q.Readmit(b.ctx, decision(two), nil)
	b.must("Readmit of nothing", err)
	if len(said) != 0 {
		b.Errorf("said of nothing: %v", said)
	}
	b.kept(three)
	for _, action := range []store.Action{decision(one), decision(two), decision(item("never", "shop"))} {
		_, err := q.Readmit(b.ctx, action, []store.Entry{event("third", "x")})
		b.is("Readmit of what is not there", err, store.ErrNotFound)
	}
	for _, action := range []store.Action{{Key: three.Key, Reason: "nobody"}, {Key: three.Key, Actor: "no reason"}} {
		if _, err := q.Readmit(b.ctx, action, nil); err == nil || errors.Is(err, store.ErrNotFound) {
			b.Errorf("Readmit by %q because of %q: %v, want another error", action.Actor, action.Reason, err)
		}
	}
	b.kept(three)
	b.reads(b.worker(0), cursor, "first", "second")
	b.quarantines(b.worker(0), one) // the same item comes again
	b.kept(one, three)
}

func readmitFull[Tx any](b *bed[Tx]) {
	q := item("q", "shop")
	b.quarantines(b.worker(0), q)
	b.appended(b.worker(0), store.New, event("before"))
	drain := b.Fill(b.T)
	_, err := b.worker(0).quarantine.Readmit(b.ctx, decision(q), []store.Entry{event("a"), event("c")})
	b.is("Readmit to a full queue", err, store.ErrFull)
	drain()
	b.kept(q)
	b.reads(b.worker(1), "", "before")
	_, err = b.worker(0).quarantine.Readmit(b.ctx, decision(q), []store.Entry{event("a")})
	b.must("Readmit", err)
	b.kept()
	b.reads(b.worker(1), "", "before", "a")
}

func readmitLost[Tx any](b *bed[Tx]) {
	for _, took := range []bool{false, true} {
		q, e := item(fmt.Sprint(took), "shop"), event(fmt.Sprint(took))
		b.quarantines(b.worker(0), q)
		b.LoseAnswer(b.T, took)
		_, err := b.worker(0).quarantine.Readmit(b.ctx, decision(q), []store.Entry{e})
		b.is("Readmit", err, store.ErrCommitUnknown)
		if took {
			b.kept()
			b.reads(b.worker(1), "", "false", "true")
			continue
		}
		b.kept(q)
		b.reads(b.worker(1), "")
		_, err = b.worker(0).quarantine.Readmit(b.ctx, decision(q), []store.Entry{e})
		b.must("Readmit", err)
	}
}

func readmitOnce[Tx any](b *bed[Tx]) {
	q := item("q", "shop")
	b.quarantines(b.worker(0), q)
	const people = 6
	var did [people]bool
	b.together(people, func(i int) error {
		_, err := b.worker(i).quarantine.Readmit(b.ctx, decision(q), []store.Entry{event(fmt.Sprint("by ", i))})
		did[i] = err == nil
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	var want []string
	for i := range did {
		if did[i] {
			want = append(want, fmt.Sprint("by ", i))
		}
	}
	if len(want) != 1 {
		b.Fatalf("%d of %d people readmitted one item", len(want), people)
	}
	b.reads(b.worker(0), "", want...)
	b.kept()
}

// position takes a position for an hour.
func (b *bed[Tx]) position(w worker[Tx], name, holder, value string, mine bool) {
	b.Helper()
	got, is, err := w.positions.Position(b.ctx, name, holder, lease)
	b.must("Position", err)
	if is != mine || mine && got != value {
		b.Fatalf("position of %s for %s: %q, its own: %v; want %q, %v", name, holder, got, is, value, mine)
	}
}

func (b *bed[Tx]) save(w worker[Tx], name, holder, value string) {
	b.Helper()
	b.must("SavePosition", w.positions.SavePosition(b.ctx, name, holder, value, lease))
}

func positionOwned[Tx any](b *bed[Tx]) {
	one, two := b.worker(0), b.worker(1)
	b.position(one, "shop", "a", "", true)
	b.position(two, "shop", "b", "", false)
	b.position(two, "bank", "b", "", true) // another one
	b.save(one, "shop", "a", "17")
	b.position(two, "shop", "b", "", false)
	b.position(one, "shop", "a", "17", true)
	b.Advance(b.T, lease-margin)
	b.position(two, "shop", "b", "", false)
	b.save(one, "shop", "a", "18") // and renews
	b.Advance(b.T, lease-margin)
	b.position(two, "shop", "b", "", false)
	b.Advance(b.T, 2*margin)
	b.position(two, "shop", "b", "18", true)
	b.save(two, "shop", "b", "19")
	b.position(one, "shop", "a", "", false)
}

func positionLost[Tx any](b *bed[Tx]) {
	one, two := b.worker(0), b.worker(1)
	lost := func() {
		b.Helper()
		b.is("SavePosition by the worker before", one.positions.SavePosition(b.ctx, "shop", "a", "wrong", lease), store.ErrLeaseLost)
	}
	lost() // it never had it
	b.position(one, "shop", "a", "", true)
	b.Advance(b.T, lease+margin)
	b.save(one, "shop", "a", "17") // nobody has taken it
	b.Advance(b.T, lease+margin)
	b.position(two, "shop", "b", "17", true)
	lost()
	b.Advance(b.T, lease+margin)
	lost() // the other's lease is over too, but it may have read on
	b.position(one, "shop", "a", "17", true)
}

func positionOnce[Tx any](b *bed[Tx]) {
	const workers = 6
	var mine [workers]bool
	b.together(workers, func(i int) error {
		_, is, err := b.worker(i).positions.Position(b.ctx, "shop", fmt.Sprint("worker ", i), time.Hour)
		mine[i] = is
		return err
	})
	n := 0
	for _, is := range mine {
		if is {
			n++
		}
	}
	if n != 1 {
		b.Errorf("%d of %d workers have the position", n, workers)
	}
}
