package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// cast is a worker whose connection to the store can be cut.
type cast[Tx any] struct {
	*member[Tx]
	view *mortal[Tx]
}

// mortal makes a worker that can be killed or paused.
func (b *bed[Tx]) mortal(opts *Options, effects ...Effect[Tx]) cast[Tx] {
	b.Helper()
	var view *mortal[Tx]
	m := b.worker(opts, func(inner backend[Tx]) backend[Tx] {
		view = mortalOf(inner)
		return view
	}, nil, effects...)
	return cast[Tx]{m, view}
}

// doomed starts a worker that is to be killed.
func (b *bed[Tx]) doomed(c cast[Tx]) cast[Tx] {
	b.Helper()
	if err := c.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.view.resume()
		c.view.kill()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		now, done := context.WithCancel(ctx)
		done()
		_ = c.Stop(now) // it cannot hand its lanes back
		if err := c.engine.Close(ctx); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return c
}

// oneLane is a bed whose entries are all of one lane.
func oneLane(t *testing.T) *bed[*memory.Tx] {
	return newBed(t, database[*memory.Tx](inMemory{memory.New(&memory.Options{Lanes: 1})}))
}

// firstOnly runs something the first time it is asked.
func firstOnly(do func()) func() {
	var o sync.Once
	return func() { o.Do(do) }
}

func pausedBefore[Tx any](b *bed[Tx]) {
	ran := map[string]*diary{"a": {}, "b": {}}
	effect := func(worker string) Effect[Tx] {
		e := b.chain("chain.v1")
		link := e.Handle
		e.Handle = func(ctx context.Context, tx Tx, e *Event) error {
			ran[worker].note(e)
			return link(ctx, tx, e)
		}
		return e
	}
	a := b.mortal(b.quick(), effect("a"))
	begins := 0
	paused := make(chan struct{})
	a.view.on(func(step string) error {
		if step == "begin" {
			if begins++; begins == 3 {
				a.view.pause()
				close(paused)
			}
		}
		return nil
	})
	b.doomed(a)
	b.append(links("chain.v1", "key", 1, 6)...)
	<-paused
	b.start(b.worker(b.quick(), nil, nil, effect("b")))
	b.linked(map[string]int{"key": 6})
	a.view.resume()
	b.eventually("it has noticed", func() bool { return b.count("lane-lost") > 0 })
	b.append(links("chain.v1", "key", 7, 8)...)
	b.linked(map[string]int{"key": 8})
	if got := ran["a"].names(); !slices.Equal(got, []string{"key 1", "key 2"}) {
		b.Errorf("the paused worker ran %q", got)
	}
}

func pausedInHandler[Tx any](b *bed[Tx]) {
	chain := b.chain("chain.v1")
	chain.Limit = 2 * time.Second
	slow := chain
	link := chain.Handle
	inside, release := make(chan struct{}), make(chan struct{})
	stuck := firstOnly(func() { close(inside); <-release })
	slow.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		if err := link(ctx, tx, e); err != nil {
			return err
		}
		if string(e.Data) == "key 2" {
			stuck()
		}
		return nil
	}
	a := b.doomed(b.mortal(b.quick(), slow))
	b.append(links("chain.v1", "key", 1, 5)...)
	<-inside
	a.view.pause()
	b.start(b.worker(b.quick(), nil, nil, chain))
	if _, is := any(b.database).(*inFile); !is {
		b.linked(map[string]int{"key": 5}) // on SQLite a worker that stands still keeps its operation
	}
	b.eventually("its lanes were taken", func() bool { return b.count("lane-taken") >= 2*b.queue.Lanes() })
	close(release)
	a.view.resume()
	b.linked(map[string]int{"key": 5})
	b.eventually("it has noticed", func() bool { return b.count("lane-lost") > 0 })
	b.comesToRest()
	b.append(links("chain.v1", "key", 6, 6)...)
	b.linked(map[string]int{"key": 6})
}

func killedInHandler[Tx any](b *bed[Tx]) {
	chain := b.chain("chain.v1")
	chain.Limit = time.Second
	var d diary
	link := chain.Handle
	chain.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		d.note(e)
		return link(ctx, tx, e)
	}
	fatal := chain
	inside := make(chan struct{})
	fatal.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		if err := chain.Handle(ctx, tx, e); err != nil || string(e.Data) != "key 2" {
			return err
		}
		close(inside)
		<-ctx.Done()
		return ctx.Err()
	}
	a := b.doomed(b.mortal(b.quick(), fatal))
	b.append(links("chain.v1", "key", 1, 3)...)
	b.append(links("chain.v1", "later", 1, 1)...)
	<-inside
	a.view.kill()
	b.start(b.worker(b.quick(), nil, nil, chain))
	b.linked(map[string]int{"key": 3, "later": 1})
	b.settled()
	for name, want := range map[string][]int64{"key 1": {1}, "key 2": {1, 2}, "key 3": {1}} {
		var got []int64
		for _, v := range d.of(name) {
			got = append(got, v.attempt)
		}
		if !slices.Equal(got, want) {
			b.Errorf("%s ran as attempts %v, want %v", name, got, want)
		}
	}
}

func TestPoisonThatKillsItsWorkerIsDeadAfterItsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := oneLane(t)
		b.patience = time.Hour
		var d diary
		var current atomic.Pointer[mortal[*memory.Tx]]
		died := make(chan struct{}, 1)
		chain := b.chain("chain.v1")
		chain.Retry = Retry{First: 2 * time.Second, Longest: 10 * time.Second, Attempts: 4}
		link := chain.Handle
		chain.Handle = func(ctx context.Context, tx *memory.Tx, e *Event) error {
			d.note(e)
			if string(e.Data) == "poison 1" {
				current.Load().kill()
				died <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return link(ctx, tx, e)
		}
		begin := func() {
			c := b.mortal(quick(), chain)
			current.Store(c.view)
			b.doomed(c)
		}
		begin()
		poison := links("chain.v1", "poison", 1, 1)[0]
		b.append(links("chain.v1", "before", 1, 3)...)
		b.append(poison)
		b.append(links("chain.v1", "after", 1, 3)...)
		kills := 0
		for b.state(poison).State != store.Dead {
			select {
			case <-died:
				kills++
				begin()
			case <-time.After(time.Second):
			}
			if kills > 10 {
				t.Fatal("it goes on killing")
			}
		}
		if kills != 4 {
			t.Errorf("%d workers were killed, want 4", kills)
		}
		var got []int64
		for _, v := range d.of("poison 1") {
			got = append(got, v.attempt)
		}
		if want := []int64{1, 2, 3, 4}; !slices.Equal(got, want) {
			t.Errorf("it ran as attempts %v, want %v", got, want)
		}
		b.linked(map[string]int{"before": 3, "after": 3})
		if first := d.of("after 3"); len(first) == 0 || !first[0].at.Before(d.of("poison 1")[3].at) {
			t.Error("the other keys waited for the poison's end")
		}
		if v := b.state(poison); v.Attempt.Fence != 4 {
			t.Errorf("dead as %+v", v.Attempt)
		}
		if got := b.told(); !slices.Equal(got, []string{"dead"}) {
			t.Errorf("told %q", got)
		}
	})
}

func handsOver[Tx any](b *bed[Tx]) {
	var d diary
	chain := b.chain("chain.v1")
	chain.Limit = 5 * time.Minute
	link := chain.Handle
	inside, release := make(chan struct{}), make(chan struct{})
	chain.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		d.note(e)
		if string(e.Data) == "slow 1" {
			close(inside)
			<-release
		}
		return link(ctx, tx, e)
	}
	opts := &Options{Lease: 30 * time.Second, Poll: 10 * time.Millisecond}
	a := b.worker(opts, nil, nil, chain)
	if err := a.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.append(links("chain.v1", "slow", 1, 1)...)
	<-inside
	b.append(links("chain.v1", "slow", 2, 2)...)
	second := b.worker(&Options{Lease: 3 * time.Second, Poll: 10 * time.Millisecond}, nil, nil, chain)
	b.start(second)
	began := time.Now()
	stopped := make(chan error)
	go func() { stopped <- a.Stop(context.Background()) }()
	ends := map[string]int{}
	of := func(key string) int { return store.LaneOf(links("chain.v1", key, 1, 1)[0].Order, b.queue.Lanes()) }
	for k := range 30 {
		key := fmt.Sprint("key", k)
		if of(key) == of("slow") {
			continue // in its lane something runs
		}
		b.append(links("chain.v1", key, 1, 2)...)
		ends[key] = 2
	}
	b.linked(ends)
	if took := time.Since(began); took > 4*time.Second && !b.real || took > opts.Lease {
		b.Errorf("the lanes in which nothing ran were with the other worker after %v", took)
	}
	select {
	case err := <-stopped:
		b.Fatalf("stopped while a handler ran: %v", err)
	default:
	}
	close(release)
	if err := <-stopped; err != nil {
		b.Fatal(err)
	}
	b.linked(map[string]int{"slow": 2})
	for _, v := range d.runs {
		if v.attempt != 1 {
			b.Errorf("%s ran as attempt %d: nobody was lost", v.name, v.attempt)
		}
	}
	if err := a.Stop(context.Background()); err != nil {
		b.Errorf("stopping twice: %v", err)
	}
	if err := a.Start(b.Context()); err == nil {
		b.Error("it started again")
	}
	if err := a.engine.Close(context.Background()); err != nil {
		b.Error(err)
	}
}

func TestStopCancelsHandlersWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := oneLane(t)
		inside := make(chan struct{})
		effect := Effect[*memory.Tx]{Name: "import.v1", Limit: time.Minute, Handle: func(ctx context.Context, _ *memory.Tx, e *Event) error {
			close(inside)
			<-ctx.Done()
			return ctx.Err()
		}}
		a := b.worker(quick(), nil, nil, effect)
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		e := queued("import.v1", "one")
		b.append(e)
		<-inside
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if v := b.state(e); v.State != store.Free {
			t.Errorf("the cancelled entry is %v, want no attempt counted", v.State)
		}
		if err := a.engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestUnstartedInboxStops(t *testing.T) {
	t.Parallel()
	b := oneLane(t)
	a := b.worker(quick(), nil, nil, b.chain("chain.v1"))
	for range 2 {
		if err := a.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := a.Start(t.Context()); err == nil {
		t.Error("it started after it was stopped")
	}
}

func sharedOut[Tx any](b *bed[Tx]) {
	var members []*member[Tx]
	counts := func() (counts []int) {
		for _, m := range members {
			m.mu.Lock()
			counts = append(counts, len(m.board.lanes))
			m.mu.Unlock()
		}
		slices.Sort(counts)
		return counts
	}
	from := 1
	ends := map[string]int{}
	for _, want := range [][]int{{16}, {8, 8}, {4, 6, 6}} {
		members = append(members, b.start(b.worker(b.quick(), nil, nil, b.chain("chain.v1"))))
		for k := range 40 {
			key := fmt.Sprint("key", k)
			b.append(links("chain.v1", key, from, from+9)...)
			ends[key] = from + 9
		}
		from += 10
		b.eventually(fmt.Sprint("lanes are ", want), func() bool { return slices.Equal(counts(), want) })
	}
	b.linked(ends)
	b.mu.Lock()
	for _, s := range b.sights {
		if s.What == "lane-taken" && s.Reason != "free" && !b.real { // there, a machine may be too busy to renew
			b.Errorf("a lane was taken as %q while workers only came", s.Reason)
		}
	}
	b.mu.Unlock()
	if err := members[0].Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
	members = members[1:]
	b.eventually("two share all lanes", func() bool { return slices.Equal(counts(), []int{8, 8}) })
}

func behindHeld[Tx any](b *bed[Tx]) {
	opts := b.quick()
	opts.Window = 40 // of one key 8 are held
	chain := b.chain("chain.v1")
	fatal := chain
	fatal.Limit = time.Second
	link := chain.Handle
	inside := make(chan struct{})
	fatal.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		if string(e.Data) == "key 3" {
			close(inside)
			<-ctx.Done()
			return ctx.Err()
		}
		return link(ctx, tx, e)
	}
	a := b.doomed(b.mortal(opts, fatal))
	b.append(links("chain.v1", "key", 1, 30)...)
	<-inside
	b.eventually("the key has its row", func() bool {
		rows, err := b.queue.Waiting(b.Context(), nil, store.Place{}, 10)
		return err == nil && len(rows) == 1 && rows[0].State == store.Free
	})
	a.view.kill()
	b.start(b.worker(opts, nil, nil, chain))
	b.linked(map[string]int{"key": 30})
	b.settled()
}

// TestALookThatIsOlderThanAnAttemptDoesNotBringItBack has the periodic look at
// blocked rows take as long as two attempts: what it saw is no news.
func TestALookThatIsOlderThanAnAttemptDoesNotBringItBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := oneLane(t)
		chain := b.chain("chain.v1")
		var mu sync.Mutex
		var runs []int64
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(runs)
		}
		chain.Retry = Retry{First: 100 * time.Millisecond, Longest: 100 * time.Millisecond, Attempts: 1000}
		chain.Handle = func(_ context.Context, _ *memory.Tx, e *Event) error {
			mu.Lock()
			defer mu.Unlock()
			runs = append(runs, e.Attempt)
			return errors.New("not yet")
		}
		a := b.mortal(&Options{Lease: time.Minute, Poll: 10 * time.Millisecond}, chain)
		b.start(a.member)
		const looks = 3
		var late atomic.Int64
		a.view.after(func(step string) {
			n := count()
			if step != "waiting" || n == 0 || late.Load() == looks {
				return
			}
			for count() < n+2 {
				<-time.After(10 * time.Millisecond)
			}
			late.Add(1)
		})
		b.append(links("chain.v1", "key", 1, 1)...)
		b.eventually("late looks", func() bool { return late.Load() == looks })
		n := count()
		b.eventually("attempts behind them", func() bool { return count() >= n+3 })
		mu.Lock()
		defer mu.Unlock()
		for i, n := range runs {
			if n != int64(i+1) {
				t.Fatalf("run %d was told to be attempt %d: %v", i+1, n, runs)
			}
		}
	})
}

// onlyLine is the line of a worker that has but one key, nil if it knows of none. The
// mutex is held.
func onlyLine[Tx any](in *Inbox[Tx]) *line {
	for _, ln := range in.board.lanes {
		for _, l := range ln.lines {
			return l
		}
	}
	return nil
}

// What a task of the line has written since the rows were read is not undone by them.
func TestALookThatIsOlderThanATaskIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := oneLane(t)
		chain := b.chain("chain.v1")
		chain.Retry = Retry{First: time.Hour, Longest: time.Hour}
		chain.Handle = func(context.Context, *memory.Tx, *Event) error { return errors.New("not yet") }
		a := b.mortal(&Options{Lease: time.Minute, Poll: time.Minute}, chain)
		b.start(a.member)
		var l *line
		b.append(links("chain.v1", "key", 1, 1)...)
		poke(a.wake)
		b.eventually("the key waits", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			l = onlyLine(a.Inbox)
			return l != nil && l.rest != nil && !l.running
		})
		look := func() store.State {
			if _, err := a.watchPage(b.Context(), store.Place{}); err != nil {
				b.Fatal(err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			return l.rest.state
		}
		a.view.after(func(string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.board.ended++
			l.ended, l.rest = a.board.ended, &rest{key: l.rest.key, state: store.Dead}
		})
		if state := look(); state != store.Dead {
			b.Errorf("an older look says %v", state)
		}
		a.view.after(nil)
		if state := look(); state != store.Retryable {
			b.Errorf("a look says %v", state)
		}
	})
}

// A suspect's row takes the place of one for a later entry, between which and the
// suspect not all has been read: what follows is read behind the suspect.
func TestARowBeforeAnotherBringsTheReadingOfItsKeyBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := oneLane(t)
		m := b.worker(quick(), nil, nil, b.chain("chain.v1"))
		b.Cleanup(func() {
			if err := m.engine.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
		b.append(links("chain.v1", "key", 1, 5)...)
		if err := m.keepOnce(b.Context()); err != nil {
			b.Fatal(err)
		}
		page, err := m.store.Read(b.Context(), store.Reading{Lanes: []int{0}, Limit: 3})
		if err != nil {
			b.Fatal(err)
		}
		ln := m.board.lanes[0]
		rd := newReading([]*lane{ln}, "")
		m.board.arrive(ln, rd, page.Entries[0], m.trait(&page.Entries[0]), false, 8)
		m.board.arrive(ln, rd, page.Entries[1], m.trait(&page.Entries[1]), false, 8)
		l := ln.lines[page.Entries[0].Order]
		l.row, l.paging, l.after, l.rest, l.suspect = 5, true, 4, &rest{unread: true}, true
		if !m.charge(b.Context(), l, l.items[0]) {
			b.Error("a first offence is not tried again at once")
		}
		if len(l.items) != 1 || m.board.held != 1 || l.row != 1 || l.after != 1 || !l.paging || l.rest != nil || l.suspect {
			b.Errorf("the line: %s, rest %+v", l.text(), l.rest)
		}
		m.board.lose(ln)
	})
}

func TestEntryThatArrivesWhileItsKeyIsUnblockedIsNotForgotten(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"followers", "unblock"} {
		for _, killed := range []bool{false, true} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/before %v/killed %v", at, before, killed), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { arrivesAt(oneLane(t), at, before, killed) })
				})
			}
		}
	}
}

// arrivesAt lets an entry arrive around a step of unblocking its key, and kills
// the worker there.
func arrivesAt(b *bed[*memory.Tx], at string, before, killed bool) {
	chain := b.chain("chain.v1")
	link := chain.Handle
	var mended atomic.Bool
	chain.Retry = Retry{First: time.Second, Longest: time.Second, Attempts: 100}
	chain.Handle = func(ctx context.Context, tx *memory.Tx, e *Event) error {
		if string(e.Data) == "key 1" && !mended.Load() {
			return errors.New("not yet")
		}
		return link(ctx, tx, e)
	}
	a := b.mortal(quick(), chain)
	b.doomed(a)
	b.append(links("chain.v1", "key", 1, 3)...)
	b.eventually("the key is blocked", func() bool {
		rows, err := b.queue.Waiting(b.Context(), nil, store.Place{}, 10)
		return err == nil && len(rows) == 1
	})
	arrived := make(chan struct{})
	arrive := firstOnly(func() {
		b.append(links("chain.v1", "key", 4, 4)...)
		poke(a.wake)
		if killed {
			a.view.kill()
		}
		close(arrived)
	})
	a.view.on(func(step string) error {
		last := b.rows(b.T)["last key"] == "3"
		if step == at && last && before {
			arrive()
		}
		return nil
	})
	a.view.after(func(step string) {
		if step == at && b.rows(b.T)["last key"] == "3" && !before {
			arrive()
		}
	})
	mended.Store(true)
	<-arrived
	if killed {
		b.start(b.worker(quick(), nil, nil, chain))
	}
	b.linked(map[string]int{"key": 4})
	b.settled()
}

// Of two transactions that append to one key side by side, the one that has drawn
// its numbers first may commit last: what it appended is behind the key's blocked
// row, and before what has been read behind it, or is read in this moment. It is
// more of it than is held of a key otherwise.
func TestWhatCommitsLateWhileItsKeyIsPagedIsNotForgotten(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"first", "second"} {
		t.Run("behind the "+last, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { lateWhilePaged(oneLane(t), last) })
		})
	}
}

// lateWhilePaged lets entries commit late while the store is asked for what follows
// when the given one has run.
func lateWhilePaged(b *bed[*memory.Tx], last string) {
	var d diary
	var mended atomic.Bool
	a := b.mortal(&Options{Lease: 600 * time.Millisecond, Poll: 10 * time.Millisecond, Window: 100}, Effect[*memory.Tx]{
		Name: "import.v1", Retry: Retry{First: time.Second, Longest: time.Second, Attempts: 100},
		Handle: func(_ context.Context, _ *memory.Tx, e *Event) error {
			if string(e.Data) == "first" && !mended.Load() {
				return errors.New("not yet")
			}
			d.note(e)
			return nil
		},
	})
	b.doomed(a)
	one := func(name string) store.Entry { return queued("import.v1", name, "key") }
	b.append(one("first"))
	b.eventually("the key is blocked", func() bool {
		rows, err := b.queue.Waiting(b.Context(), nil, store.Place{}, 10)
		return err == nil && len(rows) == 1
	})
	names := []string{"first", "second", "third"}
	tx, err := b.database.(inMemory).BeginTx(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var late []store.Entry
	for n := range 3 * a.most() {
		names = append(names, fmt.Sprint("late ", n))
		late = append(late, one(names[len(names)-1]))
	}
	if _, err := b.queue.Enqueue(b.Context(), tx, late); err != nil {
		b.Fatal(err)
	}
	b.append(one("second"))
	looked, look := make(chan struct{}), make(chan struct{})
	behind := func(step string) bool { return step == "followers" && len(d.of(last)) > 0 }
	append3 := firstOnly(func() { b.append(one("third")) })
	a.view.on(func(step string) error {
		if behind(step) {
			append3()
		}
		return nil
	})
	wait := firstOnly(func() {
		close(looked)
		<-look
	})
	a.view.after(func(step string) {
		if behind(step) {
			wait()
		}
	})
	mended.Store(true)
	<-looked
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
	poke(a.wake)
	b.eventually("what committed late was read", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		l := onlyLine(a.Inbox)
		return l.passed == 2 || len(l.items) >= a.most()
	})
	close(look)
	b.eventually("everything took effect", func() bool { return len(d.names()) >= len(names) })
	b.settled()
	for _, name := range names {
		if n := len(d.of(name)); n != 1 {
			b.Errorf("%s took effect %d times", name, n)
		}
	}
}
