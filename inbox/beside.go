package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// beside is what a receiver does beside its deliveries: it reads the lists of
// senders, and notices sources that have fallen silent.
type beside struct {
	*Receiver
	positions store.Positions // nil where the store has none
	worker    string
	pulses    []*pulse
	pollers   []*poller

	mu     sync.Mutex
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newBeside(r *Receiver) *beside {
	b := &beside{Receiver: r, worker: r.opts.Worker}
	if b.worker == "" {
		b.worker = "receiver-" + rand.Text()
	}
	b.positions, _ = r.queue.(store.Positions)
	for _, g := range r.sources {
		if g.Silence > 0 {
			g.seen = &pulse{beside: b, source: g.Name, silence: g.Silence}
			b.pulses = append(b.pulses, g.seen)
		}
		for i := range g.Polls {
			b.pollers = append(b.pollers, newPoller(b, g, g.Polls[i]))
		}
	}
	if s, ok := r.queue.(store.Incarnated); ok {
		s.OnIncarnation(func() {
			for _, p := range b.pollers {
				p.forget()
			}
		})
	}
	return b
}

// check reports the faults of what is to run.
func (b *beside) check() (faults []error) {
	names := map[string]bool{}
	for _, p := range b.pollers {
		if err := p.check(); err != nil {
			faults = append(faults, fmt.Errorf("source %q: poll %q: %w", p.gate.Name, p.Name, err))
		}
		if b.positions == nil {
			faults = append(faults, fmt.Errorf("source %q: poll %q: this store keeps no positions", p.gate.Name, p.Name))
		}
		if names[p.position()] {
			faults = append(faults, fmt.Errorf("source %q: poll %q: named twice", p.gate.Name, p.Name))
		}
		names[p.position()] = true
	}
	return faults
}

// start begins. It is safe to call twice.
func (b *beside) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	for _, p := range b.pulses {
		b.done.Go(func() { p.watch(ctx) })
	}
	for _, p := range b.pollers {
		b.done.Go(func() { p.run(ctx) })
	}
}

// stop ends it and waits, until ctx ends.
func (b *beside) stop(ctx context.Context) error {
	b.mu.Lock()
	if b.cancel == nil {
		b.cancel = func() {} // never started, and not to be
	}
	b.cancel()
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		b.done.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("listings and alarms are still at work"), context.Cause(ctx))
	}
}

// pause waits for a time, shortened at random by up to a fifth. It reports false
// when ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - mathrand.N(d/5+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
