package inbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// versioned is an entry of a version of one resource.
func versioned(name, version string) store.Entry {
	e := queued("version.v1", name, "resource")
	e.Note.Version = version
	return e
}

// ofVersions is an effect that compares versions.
func (b *bed[Tx]) ofVersions(d *diary, contiguous bool) Effect[Tx] {
	part := func(e *Event) ([]string, error) { return e.Subject, nil }
	return Effect[Tx]{
		Name: "version.v1", Owner: "stock-team", OrderBy: part, Version: func(e *Event) (string, error) { return e.Version, nil }, Contiguous: contiguous,
		Handle: func(ctx context.Context, tx Tx, e *Event) error {
			d.note(e)
			return b.set(ctx, tx, "version", e.Version)
		},
	}
}

func staleVersion[Tx any](b *bed[Tx]) {
	var d diary
	b.start(b.worker(b.quick(), nil, nil, b.ofVersions(&d, false)))
	one, two := versioned("one", "1"), versioned("two", "2")
	again := versioned("another content", "3")
	same := versioned("same content", "3")
	same.Fingerprint = again.Fingerprint
	b.append(versioned("three", "3"), one, two, again, same)
	b.eventually("all have ended", func() bool { return b.state(same).Outcome != nil })
	if got, want := d.names(), []string{"three", "another content"}; !slices.Equal(got, want) {
		b.Errorf("%q took effect, want %q", got, want)
	}
	for _, e := range []store.Entry{one, two, same} {
		if v := b.state(e); v.State != store.Discarded || string(v.Outcome.Result.Body) != staleReason {
			b.Errorf("%s ended as %v", e.Payload, v.State)
		}
	}
	if got := b.rows(b.T)["version"]; got != "3" {
		b.Errorf("the last version is %q", got)
	}
	if n := b.count("stale"); n != 3 {
		b.Errorf("%d stale ones were seen, want 3", n)
	}
}

func earlyVersion[Tx any](b *bed[Tx]) {
	var d diary
	a := b.worker(b.quick(), nil, nil, b.ofVersions(&d, true))
	if err := a.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	three, four := versioned("3", "3"), versioned("4", "4")
	b.append(four, three, versioned("1", "1"))
	b.eventually("one took effect", func() bool { return len(d.of("1")) == 1 })
	b.eventually("the early ones are parked", func() bool {
		return b.state(three).State == store.Parked && b.state(four).State == store.Parked
	})
	if err := a.Stop(b.Context()); err != nil { // what waits is not forgotten with its worker
		b.Fatal(err)
	}
	if err := a.engine.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.start(b.worker(b.quick(), nil, nil, b.ofVersions(&d, true)))
	b.append(versioned("2", "2"))
	b.settled()
	if got, want := d.names(), []string{"1", "2", "3", "4"}; !slices.Equal(got, want) {
		b.Errorf("%q took effect, want %q", got, want)
	}
}

// An entry that is charged with the loss of its worker, and comes early then, has one
// row: the one in which it waits. It is not removed as that of its key.
func TestAnEarlyVersionThatIsSuspectedKeepsItsRow(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		var d diary
		a := b.doomed(b.mortal(b.quick(), b.ofVersions(&d, true)))
		a.view.on(func(step string) error {
			if step == "block" {
				a.view.kill()
			}
			return nil
		})
		two := versioned("2", "2")
		b.append(two)
		next := func() *member[*memory.Tx] {
			m := b.worker(b.quick(), nil, nil, b.ofVersions(&d, true))
			if err := m.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.eventually("it waits", func() bool { return b.state(two).State == store.Parked })
			b.pass(time.Minute)
			synctest.Wait()
			rows, err := b.queue.Waiting(b.Context(), nil, store.Place{}, 10)
			if err != nil || len(rows) != 1 || !rows[0].Gap || rows[0].State != store.Parked {
				b.Errorf("what waits: %+v, %v", rows, err)
			}
			return m
		}
		c := next()
		if err := c.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := c.engine.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		e := next()
		b.append(versioned("1", "1"))
		b.settled()
		if got, want := d.names(), []string{"1", "2"}; !slices.Equal(got, want) {
			b.Errorf("%q took effect, want %q", got, want)
		}
		if err := errors.Join(e.Stop(b.Context()), e.engine.Close(b.Context())); err != nil {
			b.Error(err)
		}
	})
}

// An early version that fails when its turn has come does not pass what committed
// late before it, and waits behind its key's row.
func TestAnEarlyVersionThatFailsPassesNothingBeforeIt(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		var d diary
		effect := b.ofVersions(&d, true)
		effect.Retry = Retry{First: time.Second, Longest: time.Second}
		took := effect.Handle
		effect.Handle = func(ctx context.Context, tx *memory.Tx, e *Event) error {
			if e.Attempt == 1 && e.Version != "3" || e.Attempt == 2 && e.Version == "2" { // 2 was parked at first
				return errors.New("not yet")
			}
			return took(ctx, tx, e)
		}
		b.start(b.worker(b.quick(), nil, nil, effect))
		tx, err := b.database.(inMemory).BeginTx(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := b.queue.Enqueue(b.Context(), tx, []store.Entry{versioned("1", "1"), versioned("3", "3")}); err != nil {
			b.Fatal(err)
		}
		two := versioned("2", "2")
		b.append(two)
		b.eventually("it is early", func() bool { return b.state(two).State == store.Parked })
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
		b.eventually("all took effect", func() bool { return len(d.names()) == 3 })
		b.settled()
		if got, want := d.names(), []string{"1", "2", "3"}; !slices.Equal(got, want) {
			b.Errorf("%q took effect, want %q", got, want)
		}
	})
}

func TestGapThatDoesNotCloseIsLeftForItsOwner(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		b.patience = 10 * time.Hour
		var d diary
		effect := b.ofVersions(&d, true)
		effect.GapWait = 2 * time.Hour
		b.start(b.worker(calm(), nil, nil, effect))
		early := versioned("5", "5")
		b.append(versioned("1", "1"), early)
		b.pass(time.Hour)
		synctest.Wait()
		if told := b.told(); len(told) != 0 {
			t.Fatalf("told %q within the time", told)
		}
		b.eventually("its owner is told", func() bool { return slices.Equal(b.told(), []string{"held"}) })
		if got := b.alerts[0]; got.Owner != "stock-team" || got.Key != early.Operation {
			t.Errorf("told %+v", got)
		}
		if err := b.queue.Release(b.Context(), action(early)); err != nil {
			t.Fatal(err)
		}
		b.settled()
		if got, want := d.names(), []string{"1", "5"}; !slices.Equal(got, want) {
			t.Errorf("%q took effect, want %q", got, want)
		}
	})
}

func TestPlaceOfVersions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number, last     string
		same, contiguous bool
		want             order
		missing          string
	}{
		{"7", "", false, false, fresh, ""},
		{"7", "6", false, false, fresh, ""},
		{"10", "9", false, false, fresh, ""},
		{"7", "7", false, false, fresh, ""},
		{"7", "7", true, false, stale, ""},
		{"6", "7", false, false, stale, ""},
		{"2026-01-02T03:04:05Z", "2026-01-02T04:04:04+01:00", false, false, fresh, ""},
		{"2026-01-02T03:04:05+0000", "2026-01-02T03:04:06Z", false, false, stale, ""},
		{"0", "", false, true, fresh, ""},
		{"1", "", false, true, fresh, ""},
		{"2", "", false, true, early, "1"},
		{"1", "0", false, true, fresh, ""},
		{"3", "1", false, true, early, "2"},
		{"2", "1", false, true, fresh, ""},
		{"1", "1", false, true, fresh, ""},
		{"1", "1", true, true, stale, ""},
		{"0", "1", false, true, stale, ""},
	} {
		got, err := place(c.number, c.last, c.same, c.contiguous)
		if err != nil || got.is != c.want || got.missing != c.missing {
			t.Errorf("%s after %q (same %v, contiguous %v): %+v, %v", c.number, c.last, c.same, c.contiguous, got, err)
		}
	}
	for _, c := range [][2]string{{"7", "2026-01-02T03:04:05Z"}, {"x", "1"}} {
		if _, err := place(c[0], c[1], false, false); err == nil {
			t.Errorf("%s after %s can be compared", c[0], c[1])
		}
	}
}

// An event and the operation that it names end together, and two events that name
// one operation bring its effect about once.
func oneOperation[Tx any](b *bed[Tx], kind string) {
	var d diary
	effect := Effect[Tx]{Name: "import.v1", Retry: Retry{First: b.unit(), Attempts: 3}}
	handle := func(ctx context.Context, tx Tx, e *Event) error {
		d.note(e)
		if strings.HasPrefix(string(e.Data), "discarded") {
			return Discard("a test order")
		}
		if e.Attempt == 1 && e.Operation.Parts[0] == "order 0" && kind != "lease" {
			return errors.New("not yet")
		}
		return b.set(ctx, tx, e.Operation.Parts[0], "imported")
	}
	switch kind {
	case "lease":
		effect.Unknown = unavez.Retry
		effect.Run = func(_ context.Context, _ *unavez.Attempt, e *Event) (unavez.Result, error) {
			if strings.HasPrefix(string(e.Data), "discarded") {
				d.note(e)
				return unavez.Result{}, Discard("a test order")
			}
			return unavez.Result{Code: 204}, nil
		}
		effect.Finish = func(ctx context.Context, tx Tx, e *Event, _ *unavez.Result) error { return handle(ctx, tx, e) }
	default:
		effect.Handle, effect.Batch = handle, kind == "batch"
	}
	b.start(b.worker(b.quick(), nil, nil, effect))
	var all []store.Entry
	pair := func(name, first, second string) {
		operation := store.Identity{Effect: "import.v1", Parts: []string{name}}
		for _, event := range []string{first, second} {
			all = append(all, named(store.Identity{Effect: "import.v1", Parts: []string{"shop", event}}, operation))
		}
	}
	for _, n := range []string{"0", "1", "2", "3"} {
		pair("order "+n, "created "+n, "paid "+n)
	}
	pair("order discarded", "discarded 1", "discarded 2")
	b.append(all...)
	b.settledAll(all)
	runs := map[string]int{}
	for _, v := range d.names() {
		runs[v]++
	}
	for i, e := range all {
		own, err := b.queue.Look(b.Context(), e.Key)
		if err != nil || own.Outcome == nil {
			b.Fatalf("%s has no outcome of its own: %v, %v", e.Payload, own.State, err)
		}
		want := store.Completed
		if i >= 8 {
			want = store.Discarded
		}
		if own.State != want || b.state(e).State != want {
			b.Errorf("%s is %v, its operation %v, want %v", e.Payload, own.State, b.state(e).State, want)
		}
	}
	for _, n := range []string{"1", "2", "3"} {
		if got := runs["created "+n] + runs["paid "+n]; got != 1 {
			b.Errorf("order %s was imported %d times", n, got)
		}
	}
	if rows := b.rows(b.T); len(rows) != 4 {
		b.Errorf("rows: %v", rows)
	}
}

// settledAll waits until entries have outcomes of their own and nothing waits.
func (b *bed[Tx]) settledAll(entries []store.Entry) {
	b.Helper()
	b.eventually("all entries have ended", func() bool {
		for _, e := range entries {
			if v, err := b.queue.Look(b.Context(), e.Key); err != nil || v.Outcome == nil {
				return false
			}
		}
		return true
	})
	b.settled()
}
