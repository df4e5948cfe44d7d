package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unavez/unavez"
)

// Options of a run. The zero value of a field means its default.
type Options struct {
	// Database is a URL of PostgreSQL, in which the schemas unavez and
	// unavez_torture are made, or a file of SQLite. Required.
	Database string
	// Redis is the URL of one Redis, redis://…; empty for none. Only keys under
	// Prefix are touched.
	Redis, Prefix string
	// Command makes the command of a worker, which calls [Work]. Required.
	Command func() *exec.Cmd
	// Serve has workers that are the binary, in the place of ones that use the
	// library. It is a folder for their configuration; empty for the library.
	Serve string
	// Workers is how many; default 3.
	Workers int
	// Clients is how many clients send at once; default 6.
	Clients int
	// Operations is how many there are at least; default 200.
	Operations int
	// Duration is how long there are faults, at least; by default each happens once.
	Duration time.Duration
	// Seed of what is drawn.
	Seed uint64
	// Faults are further ones that the caller can make, such as a server that is killed.
	Faults []Fault
	// Only names the faults, by the starts of their names; none means all.
	Only []string
	// Target gives the address of the database that the workers reach, where it is not
	// Database's own: it may change, as at a failover. nil for Database's own.
	Target func() (network, address string)
	// Log is told what goes on; nil for nobody.
	Log func(format string, arguments ...any)
}

// Hits is how often a fault happened, and how often somebody met it.
type Hits struct {
	// Times that it happened, and those of them in which somebody met it.
	Times int `json:"times"`
	Met   int `json:"met"`
}

// Found is what came of a run.
type Found struct {
	// Operations, deliveries of them, and deliveries that had no answer or were
	// told to come again.
	Operations, Deliveries, Unanswered, Waited int
	// Effects that were counted: rows, and operations of the other system.
	Effects int
	// Calls of the other system, for as many operations as there are.
	Calls int
	// Faults by their names.
	Faults map[string]Hits
	// Sometimes counts what must happen for the run to mean anything.
	Sometimes map[string]int
	// Violations of a promise, in words.
	Violations []string
}

// Happened is how many faults there were.
func (f *Found) Happened() (n int) {
	for _, hits := range f.Faults {
		n += hits.Times
	}
	return n
}

// Never lists what was to happen and has not: a fault that nobody met, or
// something that a run must see to mean anything.
func (f *Found) Never() (all []string) {
	for name, hits := range f.Faults {
		if hits.Met == 0 {
			all = append(all, "nobody met: "+name)
		}
	}
	for what, n := range f.Sometimes {
		if n == 0 {
			all = append(all, "never: "+what)
		}
	}
	slices.Sort(all)
	return all
}

// program is one call of Run.
type program struct {
	o       Options
	place   *place
	outside *outside
	net     *network
	workers []*worker
	clients *clients
	random  *rand.Rand

	mu   sync.Mutex
	saw  map[string]int
	hits map[string]Hits
}

// loopback is an address of this program's own, where the system has many: the
// port of a worker that was killed must not go to a worker of another program
// that runs beside, which would take its clients' requests.
func loopback() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// settleLimit is how long everything may take to come to rest when the faults
// are over.
const settleLimit = 2 * time.Minute

// Run sends the operations, makes the faults and counts. An error means that
// it could not go on; what was found is in Found.
func Run(ctx context.Context, o Options) (*Found, error) {
	o.defaults()
	p := &program{o: o, random: rand.New(rand.NewPCG(o.Seed, 0)), saw: map[string]int{}, hits: map[string]Hits{}}
	defer p.close()
	var err error
	if p.place, err = openPlace(ctx, o.Database, o.Target); err != nil {
		return nil, err
	}
	if p.outside, err = openOutside(o.Seed); err != nil {
		return nil, err
	}
	if p.net, err = openNetwork(&o); err != nil {
		return nil, err
	}
	if err := p.startWorkers(ctx); err != nil {
		return nil, err
	}
	kinds, front := []string{kindOrder, kindOrder, kindCharge, kindEvent, kindEvent}, "l"
	if o.Serve != "" { // both may be run on one database
		kinds, front = []string{kindPayment, kindEvent}, "s"
	}
	p.clients = newClients(o.Seed, p.workers, kinds, front)
	if err := p.storm(ctx); err != nil {
		return nil, err
	}
	return p.count(ctx)
}

func (o *Options) defaults() {
	if o.Workers <= 0 {
		o.Workers = 3
	}
	if o.Clients <= 0 {
		o.Clients = 6
	}
	if o.Operations <= 0 {
		o.Operations = 200
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
}

func (p *program) close() {
	for _, w := range p.workers {
		_ = w.resume() // one that is stopped hears nothing
	}
	var ending sync.WaitGroup
	for _, w := range p.workers {
		ending.Go(w.end)
	}
	ending.Wait()
	if p.net != nil {
		p.net.close()
	}
	if p.outside != nil {
		p.outside.close()
	}
	if p.place != nil {
		p.place.close()
	}
}

// saws counts what workers say.
func (p *program) saws(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saw[what]++
}

func (p *program) sawn(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saw[what]
}

func (p *program) startWorkers(ctx context.Context) error {
	setup := Setup{Host: loopback(), Database: p.net.database, Redis: p.net.redis, Prefix: p.o.Prefix, Outside: p.outside.url()}
	if p.o.Serve != "" {
		file, err := configure(p.o.Serve, setup)
		if err != nil {
			return err
		}
		setup.Serve = file
	}
	for range p.o.Workers {
		p.workers = append(p.workers, &worker{command: p.o.Command, setup: setup, saw: p.saws})
	}
	var starting sync.WaitGroup
	failed := make(chan error, len(p.workers))
	for _, w := range p.workers {
		starting.Go(func() {
			if err := w.start(ctx); err != nil {
				failed <- err
			}
		})
	}
	starting.Wait()
	close(failed)
	return <-failed
}

// storm has the clients send while the faults happen, and waits for the last
// answer.
func (p *program) storm(ctx context.Context) error {
	began := time.Now()
	over := make(chan struct{})
	enough := func() bool {
		select {
		case <-over:
			return int(p.clients.answered.Load()) >= p.o.Operations
		default:
			return false
		}
	}
	sending, end := context.WithCancel(ctx)
	defer end()
	var running sync.WaitGroup
	for customer := range p.o.Clients {
		running.Go(func() { p.clients.run(sending, customer, enough) })
	}
	err := p.rage(ctx, began)
	close(over)
	if err == nil {
		// All that is left is to be answered, once they have sent enough.
		late := time.AfterFunc(settleLimit+time.Duration(p.o.Operations)*50*time.Millisecond, end)
		defer late.Stop()
	} else {
		end()
	}
	running.Wait()
	return errors.Join(ctx.Err(), err)
}

// rage makes one fault after another: all of them, in an order of its own each
// time, until the time is over and everyone was met.
func (p *program) rage(ctx context.Context, began time.Time) error {
	faults := p.faults()
	if len(p.o.Only) > 0 {
		faults = slices.DeleteFunc(faults, func(f Fault) bool {
			return !slices.ContainsFunc(p.o.Only, func(start string) bool { return strings.HasPrefix(f.Name, start) })
		})
	}
	for _, f := range faults {
		p.hits[f.Name] = Hits{}
	}
	if err := p.progress(ctx); err != nil { // somebody is at work
		return err
	}
	const rounds = 8 // until everyone was met, where the time is not over
	for round := 0; ; round++ {
		p.random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		var left int
		for _, f := range faults {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if round > 0 && time.Since(began) >= p.o.Duration && p.hits[f.Name].Met > 0 {
				continue
			}
			if f.Once && p.hits[f.Name].Times > 0 {
				continue
			}
			met, err := p.happen(ctx, f)
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			if !met && !f.Once {
				left++
			}
		}
		if time.Since(began) < p.o.Duration {
			continue
		}
		if left == 0 || round >= rounds {
			return nil
		}
	}
}

// happen makes one fault, and waits until the work goes on.
func (p *program) happen(ctx context.Context, f Fault) (met bool, err error) {
	counts := f.Met
	switch {
	case counts != nil:
	case f.Cache && p.o.Serve == "":
		counts = func() int { return p.sawn(unavez.SawLeaserFailed) }
	case f.Cache: // the binary tells of it in its metrics only
		counts = func() int { return p.net.count(gone)() + p.net.count(asked)() }
	default:
		counts = func() int { return int(p.clients.hurt.Load()) }
	}
	before, operations, began := counts(), p.clients.answered.Load(), time.Now()
	if err := f.Do(ctx); err != nil {
		return false, err
	}
	took := time.Since(began).Round(10 * time.Millisecond)
	for i, w := range p.workers {
		if said, died := w.died(); died {
			return false, fmt.Errorf("worker %d has ended by itself:\n%s", i, said)
		}
	}
	err = p.progress(ctx) // and what it did shows
	met = counts() > before
	hits := p.hits[f.Name]
	hits.Times++
	if met {
		hits.Met++
	}
	p.hits[f.Name] = hits
	p.o.Log("%s for %v: %d operations until all goes on, met %v", f.Name, took, p.clients.answered.Load()-operations, met)
	return met, err
}

// progress waits until a few more operations are answered: a run in which
// nothing succeeds shows nothing.
func (p *program) progress(ctx context.Context) error {
	from, late := p.clients.answered.Load(), time.NewTimer(settleLimit)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.clients.answered.Load() < from+int64(p.o.Clients) {
		select {
		case <-tick.C:
		case <-late.C:
			return fmt.Errorf("nothing goes on %v after a fault: %d operations are answered", settleLimit, p.clients.answered.Load())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// sometimes are counts of what workers, clients and the other system have seen.
func (p *program) sometimes(f *Found, made, bare int) {
	lost, asked := p.outside.totals()
	f.Sometimes = map[string]int{
		"a delivery had no answer":           f.Unanswered,
		"a delivery was told to wait":        f.Waited,
		"a call outside was repeated":        f.Calls - made,
		"the other system's answer was lost": lost,
	}
	if p.o.Serve != "" {
		return
	}
	f.Sometimes["an attempt was taken over"] = p.sawn(unavez.SawTakenOver)
	f.Sometimes["a duplicate was answered from the ledger"] = p.sawn(unavez.SawReplayed)
	f.Sometimes["the other system was asked what it had made"] = asked
	f.Sometimes["a client without unavez made two effects"] = bare
}
