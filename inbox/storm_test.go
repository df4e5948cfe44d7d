package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// seedOf is the seed of a random run, printed so that it can be run again.
func seedOf(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// weather is what goes wrong at random.
type weather struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (w *weather) chance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n) == 0
}

func (w *weather) pick(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

func (w *weather) float() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rnd.IntN(1000)) * time.Millisecond
}

// step is the hook of a worker in a storm.
func (w *weather) step(step string) error {
	switch {
	case w.chance(200):
		return store.ErrUnavailable
	case step != "read" && step != "followers" && step != "waiting" && step != "look" && step != "settle" && step != "begin" && step != "load" && step != "finish" && w.chance(40):
		if w.chance(2) {
			return errLostAfter
		}
		return errLostBefore
	}
	return nil
}

func TestOrderAndOnceHoldInAStorm(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"transaction", "batch"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := &weather{rnd: seedOf(t)}
			b := newBed(t, database[*memory.Tx](inMemory{memory.New(nil)}))
			storm(b, w, kind == "batch", sky{keys: 30, length: 40, lease: 300 * time.Millisecond})
		})
	}
}

// sky is how large a storm is.
type sky struct {
	keys, length int
	lease        time.Duration
}

// stormy is a storm on a store outside of this process' memory.
func stormy[Tx any](b *bed[Tx], batch bool) {
	storm(b, &weather{rnd: seedOf(b.T)}, batch, sky{keys: 8, length: 20, lease: time.Second})
}

func storm[Tx any](b *bed[Tx], w *weather, batch bool, of sky) {
	const workers = 3
	keys, length := of.keys, of.length
	effect := b.chain("chain.v1")
	effect.Retry = Retry{First: 2 * time.Millisecond, Longest: 20 * time.Millisecond, Attempts: 1000}
	effect.Limit = 5 * time.Second
	effect.Batch = batch
	link := effect.Handle
	effect.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		if err := link(ctx, tx, e); err != nil {
			return err
		}
		switch {
		case w.chance(30):
			return errors.New("the handler fails")
		case w.chance(60):
			panic("the handler panics")
		}
		return nil
	}
	type life struct {
		*member[Tx]
		*mortal[Tx]
	}
	var lives []life
	begin := func() life {
		var view *mortal[Tx]
		m := b.worker(&Options{Lease: of.lease, Poll: 5 * time.Millisecond, Window: 100, Concurrency: 4}, func(inner backend[Tx]) backend[Tx] {
			view = mortalOf(inner)
			return view
		}, nil, effect)
		view.on(w.step)
		if err := m.Start(context.Background()); err != nil {
			b.Error(err)
		}
		return life{m, view}
	}
	end := func(l life) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = l.Stop(ctx) // a dead worker cannot hand its lanes back
		if err := l.engine.Close(ctx); err != nil {
			b.Errorf("close: %v", err)
		}
	}
	for range workers {
		lives = append(lives, begin())
	}
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	settle := sync.OnceFunc(func() {
		close(stop)
		chaos.Wait()
		if b.Failed() {
			for _, l := range lives {
				b.dump(l.Inbox)
			}
		}
		for _, l := range lives {
			end(l)
		}
	})
	defer settle()
	chaos.Go(func() {
		for {
			timer := time.NewTimer(w.float() / 3)
			select {
			case <-stop:
				timer.Stop()
				return
			case <-timer.C:
			}
			i := w.pick(len(lives))
			switch l := lives[i]; w.pick(3) {
			case 0: // killed, and another one comes
				l.kill()
				lives[i] = begin()
				end(l)
			case 1: // paused for longer than its lease
				l.pause()
				timer := time.NewTimer(of.lease * 5 / 3)
				select {
				case <-timer.C:
				case <-stop:
				}
				timer.Stop()
				l.resume()
			case 2: // restarted
				end(l)
				lives[i] = begin()
			}
		}
	})
	ends := map[string]int{}
	for from := 1; from <= length; from += 10 {
		var all []store.Entry
		for k := range keys {
			key := fmt.Sprint("key", k)
			all = append(all, links("chain.v1", key, from, from+9)...)
			ends[key] = from + 9
		}
		b.append(all...)
		if w.chance(2) {
			b.linked(ends)
		}
	}
	b.linked(ends)
	b.settled()
	settle()
}
