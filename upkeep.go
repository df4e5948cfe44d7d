package unavez

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/unavez/unavez/store"
)

const (
	// upkeepBatch is how many rows one statement of upkeep touches.
	upkeepBatch = 200
	// upkeepLimit bounds one statement of upkeep.
	upkeepLimit = 30 * time.Second
)

// UpkeepOptions of [Upkeep]. The zero value of every field means its default.
type UpkeepOptions struct {
	// Every is the pause between two rounds, give or take a half; default
	// DefaultUpkeep.
	Every time.Duration
	// Report, when not nil, is told after each batch: how many rows were
	// purged, which attempts were found without a worker, and what failed.
	Report func(purged int, expired []store.Attempt, err error)
}

// Upkeep does what a store needs done now and then, until ctx ends: it forgets
// results and identities that are over their time, in small batches, and marks
// attempts whose worker is gone as unknown. Run it in one goroutine of each
// worker; several side by side are harmless. A failure is reported and tried
// again in the next round. Correctness never waits for it: what is over its
// time is treated so whether purged or not.
func Upkeep(ctx context.Context, s store.Upkeep, opts *UpkeepOptions) {
	var o UpkeepOptions
	if opts != nil {
		o = *opts
	}
	defaultTo(&o.Every, DefaultUpkeep)
	if o.Report == nil {
		o.Report = func(int, []store.Attempt, error) {}
	}
	for {
		for again := true; again && ctx.Err() == nil; {
			again = upkeepOnce(ctx, s, o.Report)
		}
		timer := time.NewTimer(o.Every/2 + rand.N(o.Every))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// upkeepOnce is one batch of each kind; it reports whether there may be more.
func upkeepOnce(ctx context.Context, s store.Upkeep, report func(int, []store.Attempt, error)) bool {
	limited, cancel := context.WithTimeout(ctx, upkeepLimit)
	defer cancel()
	expired, err := s.Expire(limited, upkeepBatch)
	if err != nil {
		report(0, nil, err)
		return false
	}
	purged, err := s.Purge(limited, upkeepBatch)
	report(purged, expired, err)
	return err == nil && (purged >= upkeepBatch || len(expired) >= upkeepBatch)
}
