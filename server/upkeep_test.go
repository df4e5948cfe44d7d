package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/store"
)

// chores is a store that has some work to do and fails now and then.
type chores struct {
	store.Operations
	mu              sync.Mutex
	purges, expires []int // what each call finds
	calls           []string
	fail            bool
}

func (c *chores) Purge(context.Context, int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "purge")
	return c.next(&c.purges)
}

func (c *chores) next(list *[]int) (int, error) {
	if c.fail {
		return 0, errors.New("out of order")
	}
	if len(*list) == 0 {
		return 0, nil
	}
	n := (*list)[0]
	*list = (*list)[1:]
	return n, nil
}

func (c *chores) Expire(_ context.Context, _ int) ([]store.Attempt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "expire")
	n, err := c.next(&c.expires)
	return make([]store.Attempt, n), err
}

func (c *chores) List(context.Context, store.Filter) ([]store.Record, error) { return nil, nil }

func (c *chores) Counts(context.Context) (store.Counts, error) { return store.Counts{}, nil }

func (c *chores) count(what string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if call == what {
			n++
		}
	}
	return n
}

func TestUpkeepWorksInSmallBatchesGoesOnAfterFailuresAndStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := &chores{purges: []int{purgeBatch, purgeBatch, 7}, expires: []int{expireBatch, 3}}
		log := &lines{grew: make(chan struct{})}
		metrics := observe.NewMetrics(observe.Gauges{Counts: work.Counts, Refused: func() float64 { return 0 }, Open: func() float64 { return 0 }})
		up := &upkeep{
			parts: &parts{operations: work, metrics: metrics, log: observe.Logger(log, "json", slog.LevelDebug), suspects: newSuspects()},
			store: work, pause: upkeepPause, probes: func(string) (routeProbe, bool) { return routeProbe{}, false },
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { up.run(ctx); close(ended) }()

		synctest.Wait()
		if work.count("expire") != 2 || work.count("purge") != 1 { // the next batch comes after a pause
			t.Errorf("at once: %v", work.calls)
		}
		time.Sleep(3 * purgePause)
		synctest.Wait()
		if n := work.count("purge"); n != 3 {
			t.Errorf("%d purges while there is more to do", n)
		}
		work.mu.Lock()
		work.calls, work.fail = nil, true
		work.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if expires, purges := work.count("expire"), work.count("purge"); expires < 20 || expires > 60 || purges < 1 {
			t.Errorf("in a minute of failures: %d expires, %d purges", expires, purges)
		}
		if !strings.Contains(log.String(), "out of order") {
			t.Error("the failure is not logged")
		}
		stop()
		<-ended
	})
}

func TestAProbeThatCannotTellIsAskedEverMoreRarely(t *testing.T) {
	t.Parallel()
	s := newSuspects()
	var key store.Key
	s.add(key, "POST /orders")
	at := time.Unix(0, 0)
	var waits []time.Duration
	for range 12 {
		due := s.due(at)
		if len(due) != 1 {
			t.Fatalf("%d due at %v", len(due), at)
		}
		s.later(due[0], at)
		s.add(key, "POST /orders") // seen once more: no reason to hurry
		next := s.list[key].due
		if len(s.due(next.Add(-1))) != 0 {
			t.Error("due too early")
		}
		waits = append(waits, next.Sub(at))
		at = next
	}
	if waits[0] != time.Second || waits[1] != 2*time.Second || waits[11] != maxProbeWait {
		t.Errorf("waits %v", waits)
	}
	s.remove(key)
	if len(s.due(at.Add(time.Hour))) != 0 {
		t.Error("removed and still due")
	}
	for i := range maxSuspects + 5 {
		s.add(store.Key{byte(i), byte(i >> 8), byte(i >> 16)}, "x")
	}
	if len(s.list) != maxSuspects {
		t.Errorf("%d are remembered, at most %d", len(s.list), maxSuspects)
	}
}
