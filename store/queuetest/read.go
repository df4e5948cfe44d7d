package queuetest

import (
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

// readTests hold: what was appended is read, whenever it became visible, in the
// order of each ordering key.
func readTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a reading goes on where the one before ended", run: readingGoesOn[Tx]},
		{name: "the pages of a reading are of one moment", run: pagesOfOneMoment[Tx]},
		{name: "a reading from the beginning leaves out what is done", run: beginningUndone[Tx]},
		{name: "a reading shows the lanes that it asks for", run: lanesOfReading[Tx]},
		{name: "a long payload is loaded and not read", run: longPayload[Tx]},
		{name: "a cursor of another incarnation is the beginning", needs: func(h *Harness[Tx]) bool { return h.NewIncarnation != nil }, run: otherIncarnation[Tx]},
		{name: "a reading that is out of bounds is refused", run: readingRefused[Tx]},
	}
}

func readingGoesOn[Tx any](b *bed[Tx]) {
	cursor := b.reads(b.worker(0), "")
	cursor = b.reads(b.worker(1), cursor)
	b.appended(b.worker(0), store.New, event("a"), event("b"))
	first := b.reads(b.worker(0), cursor, "a", "b")
	b.reads(b.worker(1), first)
	b.appended(b.worker(1), store.New, event("c"))
	b.reads(b.worker(0), first, "c")
	b.reads(b.worker(1), cursor, "a", "b", "c") // an older cursor shows what came since
	b.reads(b.worker(1), "", "a", "b", "c")
}

func pagesOfOneMoment[Tx any](b *bed[Tx]) {
	var want []string
	for i := range 7 {
		name := fmt.Sprint(i)
		b.appended(b.worker(i), store.New, event(name))
		want = append(want, name)
	}
	since := ""
	for range 2 {
		if since != "" {
			want = nil
			for i := range 7 {
				name := fmt.Sprint("later ", i)
				b.appended(b.worker(i), store.New, event(name))
				want = append(want, name)
			}
		}
		var got, between []string
		r := store.Reading{Lanes: b.all(), Since: since, Limit: 3}
		for n := 0; ; n++ {
			page, err := b.worker(n).Read(b.ctx, r)
			b.must("Read", err)
			got = append(got, names(page.Entries)...)
			// What comes between two pages belongs to the next reading.
			between = append(between, fmt.Sprint("between ", n, since))
			b.appended(b.worker(n), store.New, event(between[n]))
			if r.Until = page.Until; !page.More {
				break
			}
			if len(page.Entries) != r.Limit {
				b.Fatalf("a page of %d with more to come, want %d", len(page.Entries), r.Limit)
			}
			r.After = page.Entries[len(page.Entries)-1].Sequence
		}
		if !slices.Equal(got, want) {
			b.Fatalf("read %v, want %v", got, want)
		}
		since = b.reads(b.worker(0), r.Until, between...)
	}
}

func beginningUndone[Tx any](b *bed[Tx]) {
	a, c, d := event("a", "x"), event("c", "x"), event("d", "x")
	b.appended(b.worker(0), store.New, a, c)
	cursor := b.reads(b.worker(0), "", "a", "c")
	b.done(b.worker(0), a)
	b.appended(b.worker(0), store.New, d)
	b.reads(b.worker(1), "", "c", "d")
	b.reads(b.worker(1), cursor, "d")
	followers := func(after int64, want ...string) {
		b.Helper()
		got, err := b.worker(1).Followers(b.ctx, a.Order, after, 10)
		b.must("Followers", err)
		if !slices.Equal(names(got), want) {
			b.Fatalf("followers of %d: %v, want %v", after, names(got), want)
		}
	}
	followers(0, "c", "d")
	followers(b.load(b.worker(0), c.Key).Sequence, "d")
	b.done(b.worker(0), d)
	followers(0, "c")
	b.reads(b.worker(0), "", "c")
	discarded := b.begin(b.worker(0), gate(c))
	_, err := discarded.Commit(b.ctx, store.End{State: store.Discarded})
	b.must("Commit", err)
	b.reads(b.worker(1), "")
	followers(0)
	if e := b.load(b.worker(1), a.Key); string(e.Payload) != "payload of a" {
		b.Errorf("Load of a done entry: payload %q", e.Payload)
	}
}

func lanesOfReading[Tx any](b *bed[Tx]) {
	lanes := b.worker(0).Lanes.Lanes()
	by := make([][]string, lanes)
	var entries []store.Entry
	for i := range 60 {
		e := event(fmt.Sprint(i), fmt.Sprint(i%20))
		lane := store.LaneOf(e.Order, lanes)
		by[lane] = append(by[lane], fmt.Sprint(i))
		entries = append(entries, e)
	}
	b.appended(b.worker(0), store.New, entries...)
	total := 0
	for lane, want := range by {
		if len(want) == 0 && lane > 8 {
			continue
		}
		got, _ := b.pages(b.worker(lane), store.Reading{Lanes: []int{lane}, Limit: 7})
		if !slices.Equal(names(got), want) {
			b.Fatalf("lane %d: %v, want %v", lane, names(got), want)
		}
		total += len(got)
	}
	if total != len(entries) {
		b.Errorf("all lanes show %d entries, want %d", total, len(entries))
	}
	if got, _ := b.pages(b.worker(0), store.Reading{Limit: 7}); len(got) != 0 {
		b.Errorf("no lanes show %v", names(got))
	}
}

func longPayload[Tx any](b *bed[Tx]) {
	short, long := event("short", "x"), event("long", "x")
	short.Payload, long.Payload = make([]byte, store.MaxInline), make([]byte, store.MaxInline+1)
	for i := range long.Payload {
		long.Payload[i] = byte(i * 7)
	}
	b.appended(b.worker(0), store.New, short, long)
	check := func(call string, entries []store.Entry) {
		b.Helper()
		if len(entries) != 2 || len(entries[0].Payload) != store.MaxInline || len(entries[1].Payload) != 0 ||
			entries[0].Size != store.MaxInline || entries[1].Size != store.MaxInline+1 {
			b.Fatalf("%s: %d entries, or payloads of another length than within %d", call, len(entries), store.MaxInline)
		}
	}
	entries, _ := b.reading(b.worker(1), "")
	check("Read", entries)
	entries, err := b.worker(1).Followers(b.ctx, long.Order, 0, 10)
	b.must("Followers", err)
	check("Followers", entries)
	if got := b.load(b.worker(1), long.Key); !slices.Equal(got.Payload, long.Payload) || got.Size != len(long.Payload) {
		b.Errorf("Load: %d bytes, size %d; want the %d that were appended", len(got.Payload), got.Size, len(long.Payload))
	}
}

func otherIncarnation[Tx any](b *bed[Tx]) {
	a, c, d := event("a"), event("c"), event("d")
	b.appended(b.worker(0), store.New, a, c, d)
	old := b.reads(b.worker(0), "", "a", "c", "d")
	b.done(b.worker(0), a)
	page, err := b.worker(0).Read(b.ctx, store.Reading{Lanes: b.all(), Limit: 2})
	b.must("Read", err)
	if len(page.Entries) != 2 {
		b.Fatalf("a page of two of two: %v, more %v", names(page.Entries), page.More)
	}
	b.NewIncarnation(b.T)
	for i := range b.workers {
		w := b.worker(i)
		b.reads(w, old, "c", "d")
		// A reading that was under way begins anew, whatever it had passed.
		r := store.Reading{Lanes: b.all(), Until: page.Until, After: page.Entries[1].Sequence, Limit: 10}
		for _, since := range []string{"", old} {
			r.Since = since
			got, err := w.Read(b.ctx, r)
			b.must("Read", err)
			if !slices.Equal(names(got.Entries), []string{"c", "d"}) || got.Until == page.Until {
				b.Errorf("a reading under way: %v up to %q", names(got.Entries), got.Until)
			}
		}
	}
	fresh := b.reads(b.worker(0), "", "c", "d")
	b.appended(b.worker(0), store.New, event("e"))
	b.reads(b.worker(1), fresh, "e")
}

func readingRefused[Tx any](b *bed[Tx]) {
	w := b.worker(0)
	for _, limit := range []int{-1, 0, store.MaxReading + 1} {
		if _, err := w.Read(b.ctx, store.Reading{Lanes: b.all(), Limit: limit}); err == nil {
			b.Errorf("Read of %d: no error", limit)
		}
		if _, err := w.Followers(b.ctx, event("a").Order, 0, limit); err == nil {
			b.Errorf("Followers, %d: no error", limit)
		}
		if _, err := w.Waiting(b.ctx, nil, store.Place{}, limit); err == nil {
			b.Errorf("Waiting, %d: no error", limit)
		}
	}
}
