package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// diary is what handlers write down, outside of any transaction.
type diary struct {
	mu   sync.Mutex
	runs []visit
}

// visit is one call of a handler.
type visit struct {
	name    string
	attempt int64
	at      time.Time
}

func (d *diary) note(e *Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs = append(d.runs, visit{string(e.Data), e.Attempt, time.Now()})
}

// of are the calls for one entry.
func (d *diary) of(name string) []visit {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []visit
	for _, v := range d.runs {
		if v.name == name {
			found = append(found, v)
		}
	}
	return found
}

// names are all calls in their order.
func (d *diary) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, v := range d.runs {
		all = append(all, v.name)
	}
	return all
}

// inBubble runs a test on a store in memory, with a clock of its own.
func inBubble(t *testing.T, run func(b *bed[*memory.Tx])) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, database[*memory.Tx](inMemory{memory.New(&memory.Options{Lanes: lanes})}))
		b.pass = func(d time.Duration) { time.Sleep(d) }
		run(b)
	})
}

// told are the conditions that were told, as "kind" or "kind over".
func (b *bed[Tx]) told() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, c := range b.alerts {
		text := c.Kind
		if c.Over {
			text += " over"
		}
		all = append(all, text)
	}
	return all
}

// state is that of an operation at rest, or of its outcome.
func (b *bed[Tx]) state(e store.Entry) store.Verdict {
	b.Helper()
	v, err := b.queue.Look(b.Context(), e.Operation)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

func action(e store.Entry) store.Action {
	return store.Action{Key: e.Operation, Actor: "ana", Reason: "looked at it"}
}

func triedAgain[Tx any](b *bed[Tx]) {
	var d diary
	var mend sync.Map
	effect := Effect[Tx]{
		Name: "import.v1", Owner: "orders-team", Retry: Retry{First: b.unit(), Longest: 4 * b.unit(), Attempts: 5},
		Handle: func(ctx context.Context, tx Tx, e *Event) error {
			d.note(e)
			if err := b.set(ctx, tx, "run "+string(e.Data), "x"); err != nil {
				return err
			}
			if _, mended := mend.Load("all"); !mended && string(e.Data) == "poison" {
				return errors.New("cannot be done")
			}
			return nil
		},
	}
	b.start(b.worker(b.quick(), nil, nil, effect))
	poison := queued("import.v1", "poison", "key")
	began := time.Now()
	b.append(poison, queued("import.v1", "follower", "key"), queued("import.v1", "other", "another key"))
	b.eventually("the poison is dead", func() bool { return b.state(poison).State == store.Dead })
	runs := d.of("poison")
	if len(runs) != 5 {
		b.Fatalf("%d runs, want 5", len(runs))
	}
	for i, v := range runs {
		if v.attempt != int64(i+1) {
			b.Errorf("run %d has attempt %d", i+1, v.attempt)
		}
		if i > 0 {
			if gap, most := v.at.Sub(runs[i-1].at), min(b.unit()<<(i-1), 4*b.unit())+50*time.Millisecond; gap > most && !b.real {
				b.Errorf("run %d came %v after the one before, want at most %v", i+1, gap, most)
			}
		}
	}
	if got := d.of("other"); len(got) != 1 || got[0].at.Sub(began) > 100*time.Millisecond && !b.real {
		b.Errorf("the other key's entry ran at %v, want at once", got)
	}
	if got := d.of("follower"); len(got) != 0 {
		b.Errorf("the follower ran %d times behind the poison", len(got))
	}
	v := b.state(poison)
	if v.Attempt.Fence != 5 || v.Attempt.Reason != "given up after 5 runs: cannot be done" || v.Attempt.Origin != "shop" {
		b.Errorf("dead as %+v", v.Attempt)
	}
	if _, there := b.rows(b.T)["run poison"]; there {
		b.Error("the rows of a failed run are there")
	}
	b.eventually("its owner is told", func() bool { return slices.Equal(b.told(), []string{"dead"}) })
	if got := b.alerts[0]; got.Owner != "orders-team" || got.Source != "shop" || got.Effect != "import.v1" || got.Key != poison.Operation {
		b.Errorf("told %+v", got)
	}

	// A redrive gives one more attempt, under the next number.
	if err := b.queue.Redrive(b.Context(), action(poison)); err != nil {
		b.Fatal(err)
	}
	b.eventually("it is dead again", func() bool { return len(d.of("poison")) == 6 && b.state(poison).State == store.Dead })
	if got := d.of("poison")[5].attempt; got != 6 {
		b.Errorf("the redriven run has attempt %d, want 6", got)
	}
	b.eventually("its owner is told again", func() bool { return slices.Equal(b.told(), []string{"dead", "dead over", "dead"}) })
	mend.Store("all", true)
	if err := b.queue.Redrive(b.Context(), action(poison)); err != nil {
		b.Fatal(err)
	}
	b.settled()
	if got, want := d.names()[len(d.names())-2:], []string{"poison", "follower"}; !slices.Equal(got, want) {
		b.Errorf("ran %q last, want %q", got, want)
	}
	b.eventually("its owner is told that it is over", func() bool { return slices.Equal(b.told(), []string{"dead", "dead over", "dead", "dead over"}) })
}

func declared[Tx any](b *bed[Tx]) {
	var d diary
	minute := 60 * b.unit()
	if b.real {
		minute = 20 * time.Millisecond
	}
	effect := Effect[Tx]{
		Name: "import.v1", Retry: Retry{First: b.unit(), Longest: b.unit(), Attempts: 3, Age: 60 * minute}, Limit: time.Second,
		Handle: func(ctx context.Context, _ Tx, e *Event) error {
			d.note(e)
			switch string(e.Data) {
			case "permanent":
				return fmt.Errorf("row: %w", Permanent(errors.New("no such product")))
			case "later":
				if e.Attempt == 1 {
					return RetryAfter(errors.New("busy"), 20*minute)
				}
				return nil
			case "old":
				return RetryAfter(errors.New("busy"), 70*minute)
			case "panics":
				panic("no")
			case "exits":
				runtime.Goexit()
			case "slow":
				<-ctx.Done()
				return ctx.Err()
			case "discarded":
				return Discard("a test order")
			}
			return nil
		},
	}
	b.patience = 600 * minute
	b.start(b.worker(b.calm(), nil, nil, effect))
	runs := map[string]int{"permanent": 1, "later": 2, "old": 2, "panics": 3, "exits": 3, "slow": 3, "discarded": 1}
	if b.real {
		delete(runs, "slow") // three limits are longer than the age
	}
	all := map[string]store.Entry{}
	for name := range runs {
		all[name] = queued("import.v1", name, name)
		b.append(all[name])
	}
	want := map[string]store.State{
		"permanent": store.Dead, "later": store.Completed, "old": store.Dead, "panics": store.Dead,
		"exits": store.Dead, "slow": store.Dead, "discarded": store.Discarded,
	}
	for name, e := range all {
		b.eventually(name, func() bool { b.pass(minute); return b.state(e).State == want[name] })
	}
	for name, runs := range runs {
		if got := d.of(name); len(got) != runs {
			b.Errorf("%s ran %d times, want %d", name, len(got), runs)
		}
	}
	if later := d.of("later"); len(later) == 2 && later[1].at.Sub(later[0].at) < 20*minute {
		b.Errorf("ran again after %v, want %v", later[1].at.Sub(later[0].at), 20*minute)
	}
	if v := b.state(all["discarded"]); string(v.Outcome.Result.Body) != "a test order" {
		b.Errorf("discarded because of %q", v.Outcome.Result.Body)
	}
}

func TestTroubleOfTheStoreIsNoAttempt(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		var d diary
		var view *mortal[*memory.Tx]
		m := b.worker(quick(), func(inner backend[*memory.Tx]) backend[*memory.Tx] {
			view = mortalOf(inner)
			return view
		}, nil, Effect[*memory.Tx]{Name: "import.v1", Handle: func(_ context.Context, tx *memory.Tx, e *Event) error {
			d.note(e)
			return tx.Put("x", "y")
		}})
		begins, commits := 0, 0
		view.on(func(step string) error {
			switch step {
			case "begin":
				if begins++; begins <= 8 {
					return store.ErrUnavailable
				}
			case "commit":
				if commits++; commits <= 3 {
					return store.ErrAborted
				}
			}
			return nil
		})
		b.start(m)
		e := queued("import.v1", "one", "key")
		b.append(e)
		b.eventually("it is done", func() bool { return b.state(e).State == store.Completed })
		for _, v := range d.of("one") {
			if v.attempt != 1 {
				t.Errorf("a run with attempt %d, want 1", v.attempt)
			}
		}
		if n := len(d.of("one")); n != 4 {
			t.Errorf("%d runs, want 4: three were taken back by the database", n)
		}
		if got := b.state(e).Outcome.Attempt; got != 1 {
			t.Errorf("the outcome is of attempt %d, want 1", got)
		}
		if told := b.told(); len(told) != 0 {
			t.Errorf("told %q", told)
		}
	})
}

func poisoned[Tx any](b *bed[Tx]) {
	effect := b.chain("chain.v1")
	link := effect.Handle
	var poisoned sync.Map
	poisoned.Store("key poison", true)
	effect.Retry = Retry{First: time.Millisecond, Longest: 5 * time.Millisecond, Attempts: 1_000_000}
	effect.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		if _, is := poisoned.Load("key poison"); is && string(e.Data) == "poison 1" {
			return errors.New("cannot be done")
		}
		return link(ctx, tx, e)
	}
	opts := b.quick()
	opts.Window = 64
	m := b.start(b.worker(opts, nil, nil, effect))
	most := m.watchHeld(b.Context())
	followers, others := 3000, 20
	if b.real {
		followers, others = 300, 6
	}
	if _, file := any(b.database).(*inFile); file && evidence.Long() {
		followers = 1_000_000
	}
	b.append(links("chain.v1", "poison", 1, followers)...)
	ends := map[string]int{}
	for k := range others {
		key := fmt.Sprint("key", k)
		b.append(links("chain.v1", key, 1, 20)...)
		ends[key] = 20
	}
	b.linked(ends)
	if got := b.rows(b.T)["last poison"]; got != "" {
		b.Fatalf("entry %s of the poisoned key took effect", got)
	}
	poisoned.Delete("key poison")
	if followers > 10_000 {
		b.eventually("those behind it take effect", func() bool {
			n, _ := strconv.Atoi(b.rows(b.T)["last poison"])
			return n >= 10_000
		})
	} else {
		b.linked(map[string]int{"poison": followers})
		b.settled()
	}
	if held := most(); held > opts.Window+opts.Concurrency+quantum+16 {
		b.Errorf("%d entries were held at a time, of a window of %d", held, opts.Window)
	}
}

// What is done outside the database is given up by the same limits, whatever the
// last failure said of trying again.
func TestWhatFailsOutsideIsGivenUpAfterItsLimits(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		var d diary
		effect := Effect[*memory.Tx]{
			Name: "send.v1", Unknown: unavez.Retry, Retry: Retry{First: time.Second, Longest: time.Second, Attempts: 3, Age: time.Hour},
			Run: func(_ context.Context, _ *unavez.Attempt, e *Event) (unavez.Result, error) {
				d.note(e)
				switch string(e.Data) {
				case "busy":
					return unavez.Result{}, RetryAfter(errors.New("answered 503"), 0)
				case "unsent":
					return unavez.Result{}, unavez.NeverStarted(errors.New("connection refused"))
				case "old":
					return unavez.Result{}, RetryAfter(errors.New("busy"), 70*time.Minute)
				}
				return unavez.Result{Code: 204}, nil
			},
		}
		b.patience = 10 * time.Hour
		b.start(b.worker(calm(), nil, nil, effect))
		for name, runs := range map[string]int{"busy": 3, "unsent": 3, "old": 2} {
			e := queued("send.v1", name, name)
			b.append(e)
			b.eventually(name, func() bool { b.pass(time.Minute); return b.state(e).State == store.Dead })
			if got := d.of(name); len(got) != runs {
				t.Errorf("%s ran %d times, want %d", name, len(got), runs)
			}
		}
	})
}

// A handler that ends its goroutine (as a test's FailNow does) has failed like any
// other: its run counts, and the next one waits. In lease mode nobody can tell
// what it did, and Unknown decides.
func TestAHandlerThatEndsItsGoroutineIsTriedAgainAfterItsPause(t *testing.T) {
	for _, mode := range []string{"transaction", "batch", "retry", "hold"} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(b *bed[*memory.Tx]) {
				var d diary
				effect := Effect[*memory.Tx]{Name: "exits.v1", Retry: Retry{First: time.Minute, Longest: time.Minute, Attempts: 3}}
				switch mode {
				case "retry", "hold":
					effect.Lease = 30 * time.Second
					if mode == "retry" {
						effect.Unknown = unavez.Retry
					}
					effect.Run = func(_ context.Context, _ *unavez.Attempt, e *Event) (unavez.Result, error) {
						d.note(e)
						runtime.Goexit()
						return unavez.Result{}, nil
					}
				default:
					effect.Batch = mode == "batch"
					effect.Handle = func(_ context.Context, _ *memory.Tx, e *Event) error {
						d.note(e)
						runtime.Goexit()
						return nil
					}
				}
				b.patience = time.Hour
				b.start(b.worker(b.calm(), nil, nil, effect))
				e := queued("exits.v1", "one", "key")
				b.append(e)
				want, last, counted := store.Dead, store.Retryable, 3
				switch mode {
				case "retry":
					want, last = store.Unknown, store.Unknown
				case "hold":
					want, last, counted = store.Unknown, store.Unknown, 1
				}
				b.eventually("it is given up", func() bool { return b.state(e).State == want && len(d.of("one")) >= counted })
				b.pass(10 * time.Minute)
				runs := d.of("one")
				if mode == "batch" {
					runs = runs[1:] // after the batch it runs singly, at once
				}
				if len(runs) != counted {
					b.Fatalf("%d runs, want %d", len(runs), counted)
				}
				for i, v := range runs {
					if v.attempt != int64(i+1) {
						b.Errorf("run %d has attempt %d", i+1, v.attempt)
					}
					if i > 0 && v.at.Sub(runs[i-1].at) < time.Millisecond {
						b.Errorf("run %d came at once", i+1)
					}
				}
				_, history, _, err := b.queue.Show(b.Context(), e.Operation)
				if err != nil {
					b.Fatal(err)
				}
				for _, step := range history {
					if step.From == store.Processing && step.To != last && step.To != want {
						b.Errorf("history %+v", step)
					}
				}
			})
		})
	}
}

func TestAnEntryIsGivenUpAtItsLimitAndNotBeforeIt(t *testing.T) {
	t.Parallel()
	r := Retry{Attempts: 3, Age: time.Hour}
	for _, tc := range []struct {
		runs int64
		age  time.Duration
		over bool
	}{
		{0, 0, false},
		{2, time.Hour - 1, false},
		{3, 0, true},
		{4, 0, true},
		{0, time.Hour, true},
		{0, time.Hour + 1, true},
	} {
		if got := r.over(tc.runs, tc.age); got != tc.over {
			t.Errorf("after %d runs and %v: over %v, want %v", tc.runs, tc.age, got, tc.over)
		}
	}
}

// Before the database has said what time it is, nothing is old.
func TestNothingIsOldForAClockThatHasHeardNothing(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Now()} {
		var c clock
		if age := c.since(at); age != 0 {
			t.Errorf("%v is %v old", at, age)
		}
		c.hear(at.Add(time.Hour))
		if age := c.since(at); age < time.Hour {
			t.Errorf("%v is %v old, an hour later", at, age)
		}
	}
}
