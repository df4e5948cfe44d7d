package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// Redrive says which dead operations are run again, and how fast.
type Redrive struct {
	// Actor is who decides, and Reason why; both are kept. Required.
	Actor, Reason string
	// Tenant, when not nil, selects one tenant; Source, Effect and Owner, when not
	// empty, select the operations of one.
	Tenant                *string
	Source, Effect, Owner string
	// Contains selects those the reason of whose death contains this text.
	Contains string
	// Since and Until select those that died within a time, by the database's
	// clock; Since may be zero. Until is required: an operation that dies again
	// has died after it, and is not redriven by the same command.
	Since, Until time.Time
	// Rate bounds how many are redriven in a second; 0 means 50.
	Rate float64
	// Progress, when not nil, is told now and then how far it has come.
	Progress func(Redriven)
}

// Redriven is what a redrive came to.
type Redriven struct {
	// Redriven operations, and those that had Moved before they could be.
	Redriven, Moved int
}

const redriveRate = 50

func (r *Redrive) check() error {
	var faults []error
	if err := (store.Action{Actor: r.Actor, Reason: r.Reason}).Validate(); err != nil {
		faults = append(faults, err)
	}
	if r.Until.IsZero() {
		faults = append(faults, errors.New("until: none (the moment of the decision, by the database's clock)"))
	}
	if r.Rate < 0 {
		faults = append(faults, fmt.Errorf("rate: %v a second, want more than 0, or 0 for %d", r.Rate, redriveRate))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	return nil
}

// Redrive lets dead operations of this inbox's effects run again under their own
// identities, oldest death first. Each gets one more attempt; what ends it dead
// again counts from there. A late original of the sender is the same operation:
// it changes nothing.
//
// It may be called again with the same values after it was cut off: what was
// redriven is not dead any more, and what has died since is later than Until. An
// operation that moves meanwhile is left alone and counted.
func (in *Inbox[Tx]) Redrive(ctx context.Context, r Redrive) (Redriven, error) {
	var done Redriven
	if err := r.check(); err != nil {
		return done, err
	}
	defaultTo(&r.Rate, redriveRate)
	pace := newPace(r.Rate)
	defer pace.stop()
	filter := store.Filter{States: []store.State{store.Dead}, Tenant: r.Tenant, Effect: r.Effect, Limit: store.DefaultPage}
	for {
		page, err := in.store.List(ctx, filter)
		if err != nil {
			return done, fmt.Errorf("redrive: %w", err)
		}
		for i := range page {
			record := &page[i]
			if !in.selects(&r, record) {
				continue
			}
			if err := pace.wait(ctx); err != nil {
				return done, fmt.Errorf("redrive: %w", err)
			}
			err := in.store.Operations.Redrive(ctx, store.Action{Key: record.Key, Fence: record.Attempt, Actor: r.Actor, Reason: r.Reason})
			switch {
			case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
				done.Moved++
			case err != nil:
				return done, fmt.Errorf("redrive of %s: %w", record.Identity.Text(), err)
			default:
				done.Redriven++
			}
		}
		poke(in.look)
		if r.Progress != nil {
			r.Progress(done)
		}
		if len(page) < filter.Limit || page[len(page)-1].Changed.After(r.Until) {
			return done, nil
		}
		last := &page[len(page)-1]
		filter.After = &store.Cursor{Changed: last.Changed, Key: last.Key}
	}
}

// selects tells whether a dead operation is one of those to be redriven.
func (in *Inbox[Tx]) selects(r *Redrive, record *store.Record) bool {
	ef := in.effects[record.Identity.Effect]
	return ef != nil &&
		(r.Owner == "" || ef.Owner == r.Owner) &&
		(r.Source == "" || record.Origin == r.Source) &&
		(r.Contains == "" || strings.Contains(record.Reason, r.Contains)) &&
		!record.Changed.Before(r.Since) && !record.Changed.After(r.Until)
}

// Effects are the names of the inbox's effects, in order.
func (in *Inbox[Tx]) Effects() []string {
	names := make([]string, 0, len(in.effects))
	for name := range in.effects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// pace lets so many things happen in a second.
type pace struct{ ticker *time.Ticker }

func newPace(rate float64) *pace {
	return &pace{time.NewTicker(max(time.Duration(float64(time.Second)/rate), time.Microsecond))}
}

func (p *pace) wait(ctx context.Context) error {
	select {
	case <-p.ticker.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pace) stop() { p.ticker.Stop() }
