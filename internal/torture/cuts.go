package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unavez/unavez/internal/wire"
	"github.com/unavez/unavez/store/postgres"
)

// CutOptions say which connections are cut. The zero value cuts at every message.
type CutOptions struct {
	// Most bounds the cuts that are over at once, drawn by Seed; 0 means all.
	// Lost answers of commits are always among them.
	Most int
	// Slow bounds those that are waited for: a process that is stopped, a host
	// that is gone. 0 means all.
	Slow int
	// Seed of what is drawn.
	Seed uint64
	// Workers is how many cuts are tried at once; default 8.
	Workers int
	// Only names exchanges, by the start of their names; none means all.
	Only []string
	// Log is told what goes on; nil for nobody.
	Log func(format string, arguments ...any)
}

// Cuts is what came of cutting.
type Cuts struct {
	// Messages of all exchanges, as many as there are without a fault.
	Messages int
	// Cuts that were made, by the name of their exchange.
	Cuts map[string]int
	// LostCommits are cuts that lost the answer of a COMMIT.
	LostCommits int
	// InDoubt are cuts after which the operation had taken effect and its client
	// had no answer.
	InDoubt int
	// Missed are cuts whose message did not come this time.
	Missed int
	// Bare are second effects of the client without the product.
	Bare int
	// Violations of a promise, in words.
	Violations []string
}

// Total is the number of cuts.
func (c *Cuts) Total() (n int) {
	for _, cuts := range c.Cuts {
		n += cuts
	}
	return n
}

// place is a message of an exchange.
type place struct {
	from   wire.End
	number int    // of the messages of this end, from 1
	text   string // for people
	commit bool   // it answers a COMMIT
	inside bool   // it is a client's, behind another one of the same trip
}

// fates are those that a connection can have at a place. A process is not
// stopped in the middle of a trip, which it sends at once, and no limit of the
// server runs there before version 17.
func (p place) fates() (quick, slow []wire.Fate) {
	quick, slow = []wire.Fate{wire.Cut, wire.Tear, wire.Reset}, []wire.Fate{wire.Vanish}
	if !p.inside {
		slow = append(slow, wire.Stall)
	}
	return quick, slow
}

// cutting is one call of Cut.
type cutting struct {
	bed *Bed
	o   CutOptions

	mu     sync.Mutex
	serial int
	found  Cuts
	alone  sync.Mutex // held by who must be alone
}

// runLimit of one operation, from its first delivery to its last answer.
const runLimit = 90 * time.Second

// Cut runs every exchange once, counting its messages, and then once for each
// message and each fate that a connection can have there. Each time the client
// sends its operation again until it has an answer, and so does another one, by a
// worker of its own. It returns what was found, with an error only when it could
// not go on.
func (b *Bed) Cut(ctx context.Context, o CutOptions) (*Cuts, error) {
	if o.Workers <= 0 {
		o.Workers = 8
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	c := &cutting{bed: b, o: o, found: Cuts{Cuts: map[string]int{}}}
	var quick, slow, chosen []trial
	all := append(append(append(transactions(), leases(b.redis != "")...), decisions()...), bare())
	random := rand.New(rand.NewPCG(o.Seed, 0))
	for i := range all {
		x := &all[i]
		if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(start string) bool { return strings.HasPrefix(x.name, start) }) {
			continue
		}
		places, err := c.count(ctx, x)
		if err != nil {
			return nil, fmt.Errorf("%s, without a fault: %w", x.name, err)
		}
		o.Log("%s: %d messages", x.name, len(places))
		c.found.Messages += len(places)
		var own, waited []trial
		for _, at := range places {
			atOnce, later := at.fates()
			for _, fate := range atOnce {
				if at.commit && fate == wire.Cut {
					chosen = append(chosen, trial{x, at, fate})
					continue
				}
				own = append(own, trial{x, at, fate})
			}
			for _, fate := range later {
				waited = append(waited, trial{x, at, fate})
			}
		}
		own = drawn(random, own, len(own))
		chosen, quick = append(chosen, own[:fair]...), append(quick, own[fair:]...)
		if x.alone {
			waited = drawn(random, waited, 8) // they would be waited for one after the other
		}
		slow = append(slow, waited...)
	}
	if o.Most > 0 {
		quick = drawn(random, quick, o.Most-len(chosen))
	}
	if o.Slow > 0 {
		slow = drawn(random, slow, o.Slow)
	}
	// Those that are waited for begin first, and do not keep the others.
	chosen = append(append(slow, chosen...), quick...)
	busy, waiting := make(chan struct{}, o.Workers), make(chan struct{}, 4*o.Workers)
	failed := make(chan error, len(chosen))
	var running sync.WaitGroup
	for n, t := range chosen {
		lane := busy
		if n < len(slow) {
			lane = waiting
		}
		running.Go(func() {
			select {
			case lane <- struct{}{}:
				defer func() { <-lane }()
			case <-ctx.Done():
				return
			}
			if err := c.try(ctx, t.x, t.at, t.fate); err != nil {
				failed <- fmt.Errorf("%s, %v at %s: %w", t.x.name, t.fate, t.at.text, err)
			}
		})
	}
	running.Wait()
	close(failed)
	if err := errors.Join(ctx.Err(), <-failed); err != nil {
		return nil, err
	}
	if err := b.audit(ctx, &c.found); err != nil {
		return nil, err
	}
	return &c.found, nil
}

// trial is one cut.
type trial struct {
	x    *exchange
	at   place
	fate wire.Fate
}

// fair is how many cuts each exchange has at least.
const fair = 4

// drawn are some of the trials, at random.
func drawn(random *rand.Rand, all []trial, most int) []trial {
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), max(most, 0))]
}

// audit proves the invariants over what the bed holds.
func (b *Bed) audit(ctx context.Context, found *Cuts) error {
	proofs, err := postgres.Audit(ctx, b.beside, nil)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	for _, p := range proofs {
		if p.Broken > 0 {
			found.Violations = append(found.Violations, fmt.Sprintf("audit: %s, %d violate it: %q", p.Code, p.Broken, p.First))
		}
	}
	return nil
}

// count is a run without a fault: its messages in their order.
func (c *cutting) count(ctx context.Context, x *exchange) (places []place, err error) {
	numbers := map[wire.End]int{}
	ended := true // the client's last trip
	_, findings, err := c.run(ctx, x, func(m *wire.Message) wire.Fate {
		numbers[m.From]++
		places = append(places, place{
			from: m.From, number: numbers[m.From], text: fmt.Sprintf("%v %d (%s)", m.From, numbers[m.From], short(m.String())),
			commit: m.From == wire.Server && m.Kind == "CommandComplete" && strings.EqualFold(m.Text(), "commit"),
			inside: m.From == wire.Client && !ended,
		})
		if m.From == wire.Client {
			ended = !slices.Contains([]string{"Parse", "Bind", "Describe", "Execute", "Close"}, m.Kind)
		}
		return wire.Pass
	})
	if len(findings) > 0 {
		err = errors.Join(err, errors.New(strings.Join(findings, "; ")))
	}
	return places, err
}

// short is the front of a text.
func short(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// try is a run with a fault.
func (c *cutting) try(ctx context.Context, x *exchange, at place, fate wire.Fate) error {
	n, struck := 0, false
	inDoubt, findings, err := c.run(ctx, x, func(m *wire.Message) wire.Fate {
		if m.From == at.from {
			n++
		}
		if struck || m.From != at.from || n != at.number {
			return wire.Pass
		}
		struck = true
		return fate
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !struck:
		c.found.Missed++
	default:
		c.found.Cuts[x.name]++
		if at.commit {
			c.found.LostCommits++
		}
		if inDoubt {
			c.found.InDoubt++
		}
	}
	switch {
	case len(findings) == 0:
	case x.bare:
		c.found.Bare++
	default:
		c.found.Violations = append(c.found.Violations, fmt.Sprintf("%s, %v at %s: %s", x.name, fate, at.text, strings.Join(findings, "; ")))
	}
	return nil
}

// run is one operation under a watcher, from what it finds to what it leaves. An
// error says that it could not be tried. inDoubt says that it had taken effect
// when its client was first told nothing.
func (c *cutting) run(ctx context.Context, x *exchange, watch func(*wire.Message) wire.Fate) (inDoubt bool, findings []string, err error) {
	if x.alone {
		c.alone.Lock()
		defer c.alone.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	c.mu.Lock()
	c.serial++
	operation := fmt.Sprintf("%s-%d", x.name, c.serial)
	c.mu.Unlock()

	proxy, to, err := c.bed.front(x.redis)
	if err != nil {
		return false, nil, err
	}
	first, err := opened(ctx, x, c.bed, to)
	if err != nil { // nothing is cut yet
		return false, nil, errors.Join(fmt.Errorf("open the client: %w", err), proxy.Close())
	}
	defer func() { // in this order: connections that were left waiting would be waited for
		_ = proxy.Close()
		first.close()
	}()
	second, err := opened(ctx, x, c.bed, route{most: 2})
	if err != nil {
		return false, nil, fmt.Errorf("open the other client: %w", err)
	}
	defer second.close()
	for _, name := range []string{operation + "-warm", operation} { // what comes now has its connection and its statements
		if x.prepare != nil {
			if err := x.prepare(ctx, c.bed, name); err != nil {
				return false, nil, fmt.Errorf("prepare: %w", err)
			}
		}
		if name != operation {
			if _, err := insist(ctx, first, name, nil); err != nil {
				return false, nil, fmt.Errorf("first operation: %w", err)
			}
		}
	}
	proxy.Watch(watch)
	var others sync.WaitGroup
	var other string
	var otherErr error
	answer, err := insist(ctx, first, operation, func() {
		n, _ := c.bed.effects(ctx, operation) // a count that cannot be had is none
		inDoubt = n > 0
		if x.bare { // it has no second worker: that is another client
			return
		}
		others.Go(func() { other, otherErr = insist(ctx, second, operation, nil) })
	})
	others.Wait()
	proxy.Watch(nil)
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), runLimit) // its time may be over
	defer end()
	note := func(format string, arguments ...any) {
		findings = append(findings, fmt.Sprintf(format, arguments...))
	}
	if err != nil {
		note("the client got no answer: %v", err)
	}
	if otherErr != nil {
		note("the other client got no answer: %v", otherErr)
	}
	if !x.bare {
		last, err := insist(ctx, second, operation, nil)
		if err != nil {
			note("a duplicate got no answer: %v", err)
		}
		for _, got := range []string{answer, other} {
			if got != "" && got != last {
				note("answers %q and %q", got, last)
			}
		}
	}
	n, err := c.bed.effects(ctx, operation)
	if err != nil {
		return inDoubt, nil, fmt.Errorf("count the effects: %w (found before: %q)", err, findings)
	}
	if n != x.rows {
		note("%d effects, want %d", n, x.rows)
	}
	if keys, calls := c.bed.outside.seen(operation); x.calls && (keys != 1 || calls < 1) {
		note("%d keys in %d calls outside, want one key", keys, calls)
	}
	if x.holds != nil {
		if err := x.holds(ctx, c.bed, operation); err != nil {
			note("%v", err)
		}
	}
	return inDoubt, findings, nil
}

// opened makes a worker, also where a busy machine needs more than one try.
func opened(ctx context.Context, x *exchange, b *Bed, to route) (*client, error) {
	for {
		c, err := x.open(ctx, b, to)
		if err == nil || !again(err) || ctx.Err() != nil {
			return c, err
		}
	}
}

// front puts a proxy before the database or Redis.
func (b *Bed) front(redis bool) (*wire.Proxy, route, error) {
	if !redis {
		proxy, err := b.proxy()
		if err != nil {
			return nil, route{}, err
		}
		return proxy, route{postgres: proxy.Addr(), most: 2}, nil
	}
	at, err := url.Parse(b.redis)
	if err != nil {
		return nil, route{}, err
	}
	proxy, err := wire.Listen(wire.Redis, wire.To(at.Host))
	if err != nil {
		return nil, route{}, err
	}
	at.Host = proxy.Addr()
	return proxy, route{redis: at.String(), most: 2}, nil
}

// effects counts the rows of an operation and of its parts, and holds that each
// has its detail.
func (b *Bed) effects(ctx context.Context, operation string) (int, error) {
	const of = " FROM unavez_torture.%s WHERE operation = $1 OR operation LIKE $1 || '/%%'"
	n, err := b.number(ctx, fmt.Sprintf("SELECT count(*)"+of, "effect"), operation)
	if err != nil {
		return 0, err
	}
	details, err := b.number(ctx, fmt.Sprintf("SELECT count(*)"+of, "detail"), operation)
	if err == nil && details != n {
		return 0, fmt.Errorf("%d effects of %s with %d details", n, operation, details)
	}
	return n, err
}

// insist sends an operation until it has an answer, as a client does. failed is
// called once, when the first delivery has none.
func insist(ctx context.Context, c *client, operation string, failed func()) (answer string, err error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		answer, err = c.deliver(ctx, operation)
		if err == nil || !again(err) || ctx.Err() != nil {
			return answer, err
		}
		if failed != nil {
			failed()
			failed = nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return "", err
		}
	}
}
