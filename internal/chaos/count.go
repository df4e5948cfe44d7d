package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// count asks for every operation once more, waits until the events have had
// their effects, and counts.
func (p *program) count(ctx context.Context) (*Found, error) {
	p.net.calm()
	p.o.Log("the faults are over after %d operations: every one is asked for once more", len(p.clients.all))
	p.again(ctx)
	want, events := map[string]int{}, map[string]bool{}
	calls := map[string]bool{} // operations of the other system
	for _, o := range p.clients.all {
		switch o.kind {
		case kindOrder:
			want[o.name] = 1
		case kindCharge:
			want[o.name], calls[o.name] = 1, true
		case kindPayment:
			calls[o.name] = true
		case kindEvent:
			events[o.name], calls["called/"+o.name] = true, true
			if p.o.Serve == "" {
				want[o.name] = 1
			}
		}
	}
	p.o.Log("waiting until every event has had its effects")
	if err := p.rest(ctx, events, calls); err != nil {
		return nil, err
	}
	p.o.Log("counting")
	rows, err := p.place.rows(ctx)
	if err != nil {
		return nil, err
	}
	found := &Found{
		Operations: len(p.clients.all), Deliveries: int(p.clients.deliveries.Load()),
		Unanswered: int(p.clients.unanswered.Load()), Waited: int(p.clients.waited.Load()),
		Faults: maps.Clone(p.hits),
	}
	bare := p.rows(found, rows, want)
	for name := range calls {
		keys, n := p.outside.seen(name)
		found.Calls += n
		found.Effects += keys
		if keys != 1 {
			p.clients.violate("%s: %d keys at the other system, want one", name, keys)
		}
	}
	// An event of an earlier run on the same store, whose answer was lost at its
	// end, is sent once more in this one.
	const event = "called/" + kindEvent + "/"
	for _, name := range p.outside.first("") {
		keys, n := p.outside.seen(name)
		earlier := keys == 1 && strings.HasPrefix(name, event) && !strings.HasPrefix(name, event+p.clients.front)
		if !calls[name] && !earlier {
			p.clients.violate("%q: %d calls with %d keys at the other system, of what nobody asked for", name, n, keys)
		}
	}
	p.sometimes(found, len(calls), bare)
	if p.o.Serve != "" {
		p.ordered(p.outside.first("called/event/"), "called/")
	}
	proofs, err := p.place.audit(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	for _, proof := range proofs {
		if proof.Broken > 0 {
			p.clients.violate("audit: %s, %d violate it: %q", proof.Code, proof.Broken, proof.First)
		}
	}
	found.Violations = p.clients.violations
	return found, nil
}

// rows counts the effects in the database, and those of clients without the
// product.
func (p *program) rows(found *Found, rows []row, want map[string]int) (bare int) {
	got, order := map[string]int{}, []string{}
	for _, r := range rows {
		got[r.operation]++
		if strings.HasPrefix(r.operation, kindEvent+"/") {
			order = append(order, r.operation)
		}
	}
	for name, n := range got {
		switch {
		case strings.HasPrefix(name, kindBare+"/"):
			if n > 1 {
				bare++
			}
			continue
		case want[name] == 0:
			p.clients.violate("%s: %d effects of what nobody asked for", name, n)
		}
		found.Effects += n
	}
	for name, n := range want {
		if got[name] != n {
			p.clients.violate("%s: %d effects, want %d", name, got[name], n)
		}
	}
	p.ordered(order, "")
	return bare
}

// ordered holds that each customer's events took effect in their order.
func (p *program) ordered(names []string, front string) {
	last := map[string]int{}
	for _, name := range names {
		customer, text, _ := strings.Cut(strings.TrimPrefix(name, front+kindEvent+"/"), "/")
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			p.clients.violate("%s: %v", name, err)
		}
		if n <= last[customer] {
			p.clients.violate("%s took effect after event %d of its customer", name, last[customer])
		}
		last[customer] = n
	}
}

// again sends every operation once more, to a worker of its own, with patience.
func (p *program) again(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit+time.Duration(len(p.clients.all))*20*time.Millisecond)
	defer cancel()
	work := make(chan *operation)
	var running sync.WaitGroup
	for range p.o.Clients {
		running.Go(func() {
			for o := range work {
				p.clients.settle(o, p.clients.insist(ctx, o, 10*time.Second))
			}
		})
	}
	for _, o := range slices.Clone(p.clients.all) {
		work <- o
	}
	close(work)
	running.Wait()
}

// rest waits until every event that was acknowledged has had its effects. One
// that has not is counted afterwards.
func (p *program) rest(ctx context.Context, events, calls map[string]bool) error {
	late := time.Now().Add(settleLimit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		left := 0
		for name := range calls {
			if keys, _ := p.outside.seen(name); keys == 0 {
				left++
			}
		}
		if p.o.Serve == "" && left == 0 {
			rows, err := p.place.rows(ctx)
			if err != nil {
				return err
			}
			left = len(events)
			for _, r := range rows {
				if events[r.operation] {
					left--
				}
			}
		}
		if left <= 0 || time.Now().After(late) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
