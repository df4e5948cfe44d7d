package unavez_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

func TestUpkeepForgetsInBatchesAndFindsAttemptsWithoutAWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		const operations = 1000
		for i := range operations {
			op := operation(fmt.Sprint(i))
			op.Retention, op.Tombstone = time.Second, 5*time.Minute
			if _, err := engine.Do(t.Context(), op, writes("order", &counter{})); err != nil {
				t.Fatal(err)
			}
		}
		id := operation("of the dead").Identity()
		claim := store.Claim{Gate: store.Gate{Identity: id, Key: id.Key(), Retention: time.Hour}, Lease: time.Second}
		if _, _, err := s.Store.Claim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		purged, expired, batches := 0, 0, 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			unavez.Upkeep(ctx, s, &unavez.UpkeepOptions{Report: func(n int, attempts []store.Attempt, err error) {
				if err != nil {
					t.Error(err)
				}
				purged, expired, batches = purged+n, expired+len(attempts), batches+1
			}})
		}()
		time.Sleep(10 * time.Minute)
		cancel()
		<-ended
		if purged != 2*operations || expired != 1 || batches < 10 { // results to tombstones, tombstones to nothing
			t.Errorf("%d purged, %d expired, %d batches", purged, expired, batches)
		}
		out, err := engine.Do(t.Context(), operation("7"), writes("order", &counter{}))
		if err != nil || out.Replayed {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestUpkeepGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		rounds := 0
		go func() {
			time.Sleep(10 * time.Minute)
			cancel()
		}()
		unavez.Upkeep(ctx, brokenUpkeep{}, &unavez.UpkeepOptions{Report: func(_ int, _ []store.Attempt, err error) {
			if err == nil {
				t.Error("no error")
			}
			rounds++
		}})
		if rounds < 5 || rounds > 25 {
			t.Errorf("%d rounds in ten minutes", rounds)
		}
	})
}

// brokenUpkeep is a store that cannot be reached.
type brokenUpkeep struct{}

func (brokenUpkeep) Purge(context.Context, int) (int, error) { return 0, store.ErrUnavailable }
func (brokenUpkeep) Expire(context.Context, int) ([]store.Attempt, error) {
	return nil, store.ErrUnavailable
}
