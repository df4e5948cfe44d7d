package fault_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/internal/fault"
	leasememory "github.com/unavez/unavez/lease/memory"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

var (
	long   = flag.Bool("long", false, "search further: more preemptions, more actors, more pairs of faults")
	seed   = flag.Uint64("seed", 0, "seed of the random pairs of faults; 0 draws one")
	replay = flag.String("replay", "", "run one schedule only, by the line that a violation gives: flow:bounds:choices")
)

// tx is the transaction of the store in memory.
type tx = *memory.Tx

// evidence is what a run of a flow came to; one file each in UNAVEZ_EVIDENCE.
type evidence struct {
	Name       string         `json:"name"`
	Long       bool           `json:"long,omitempty"`
	Steps      int            `json:"steps"`
	Faults     int            `json:"faults"`
	Schedules  int            `json:"schedules"`
	Pairs      int            `json:"pairs"`
	Violations int            `json:"violations"`
	Sometimes  map[string]int `json:"sometimes"`

	steps map[string]bool
}

func newEvidence(name string) *evidence {
	return &evidence{Name: name, Long: *long, Sometimes: map[string]int{}, steps: map[string]bool{}}
}

// faultAt is the counter of a fault at a step.
func faultAt(step string, kind fault.Kind) string { return step + ": " + kind.String() }

// count adds what one schedule has shown.
func (e *evidence) count(trace []moved, seen map[string]int) {
	for _, f := range trace {
		if f.Step == start || f.forced {
			continue
		}
		e.steps[f.Step] = true
		if f.Kind != fault.None {
			e.Sometimes[faultAt(f.Step, f.Kind)]++
		}
	}
	for what, n := range seen {
		e.Sometimes[what] += n
	}
}

// report prints the summary, writes the file, and holds the run to what must
// have happened at least once: every fault of every step of the flow, and what
// the flow wants beside.
func (e *evidence) report(t *testing.T, by bounds, steps, wants []string) {
	t.Helper()
	if *replay != "" {
		return
	}
	wants = slices.Clone(wants)
	for step := range e.steps {
		e.Steps++
		for _, kind := range fault.Kinds(step) {
			e.Faults += boolean(e.Sometimes[faultAt(step, kind)] > 0)
		}
	}
	for _, step := range steps {
		for _, kind := range fault.Kinds(step) {
			if by.aftermath > 0 || !aftermath(step) {
				wants = append(wants, faultAt(step, kind))
			}
		}
	}
	t.Logf("%s: %d steps, %d faults, %d schedules, %d pairs, %d violations", e.Name, e.Steps, e.Faults, e.Schedules, e.Pairs, e.Violations)
	wants = slices.DeleteFunc(wants, func(what string) bool { return e.Sometimes[what] > 0 })
	if len(wants) > 0 {
		t.Errorf("%s: never happened: %s", e.Name, strings.Join(wants, "; "))
	}
	dir := os.Getenv("UNAVEZ_EVIDENCE")
	if dir == "" {
		return
	}
	out, err := json.MarshalIndent(e, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "fault-"+strings.NewReplacer(", ", "-", " ", "-").Replace(e.Name)+".json"), append(out, '\n'), 0o644)
	}
	if err != nil {
		t.Errorf("evidence: %v", err)
	}
}

// path is one way through a tree of choices, and knows the next one.
type path struct {
	choices, widths []int
	at              int
	diverged        bool
}

func (p *path) pick(options []option) int {
	if p.at == len(p.choices) {
		p.choices, p.widths = append(p.choices, 0), append(p.widths, 0)
	}
	if p.widths[p.at] != 0 && p.widths[p.at] != len(options) && p.at < len(p.choices)-1 {
		p.diverged = true
	}
	choice := min(p.choices[p.at], len(options)-1)
	p.widths[p.at] = len(options)
	p.at++
	return choice
}

// next moves on to the path that follows, and reports whether there is one.
func (p *path) next() bool {
	n := p.at
	for n > 0 && p.choices[n-1]+1 >= p.widths[n-1] {
		n--
	}
	if n == 0 {
		return false
	}
	p.choices, p.widths = p.choices[:n], p.widths[:n]
	p.choices[n-1]++
	p.at = 0
	return true
}

func (p *path) String() string {
	var b strings.Builder
	for i, c := range p.choices[:p.at] {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strconv.Itoa(c))
	}
	return b.String()
}

func parsePath(t *testing.T, s string) *path {
	t.Helper()
	p := &path{}
	for _, part := range strings.Split(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			t.Fatalf("replay %q: %v", s, err)
		}
		p.choices, p.widths = append(p.choices, n), append(p.widths, 0)
	}
	return p
}

// plan is a flow and how far it is searched: in the short run, and in the long one.
type plan struct {
	flow  *flow[tx]
	short bounds
	far   []bounds
}

// single is one fault anywhere, with another one in its aftermath, and so many
// preemptions.
func single(preemptions int) bounds { return bounds{preemptions: preemptions, faults: 1, aftermath: 1} }

// far is that, and beside it any two faults without a preemption.
func far(preemptions int) []bounds { return []bounds{single(preemptions), {faults: 2}} }

// exploreAll searches flows, each in a test of its own.
func exploreAll(t *testing.T, plans []plan) {
	t.Helper()
	for _, p := range plans {
		t.Run(p.flow.name, func(t *testing.T) {
			t.Parallel()
			e, by := newEvidence(p.flow.name), search{bounds: []bounds{p.short}, pairs: 50}
			if *long {
				by = search{bounds: p.far, pairs: 1_000}
			}
			explore(t, p.flow, by, e)
			e.report(t, by.bounds[0], p.flow.steps, p.flow.wants)
		})
	}
}

// search is how far a flow is tried.
type search struct {
	bounds []bounds
	pairs  int // of faults, at random
	// flaw, when not nil, breaks the store; the search ends when it has found
	// that the invariant until is broken.
	flaw  func(backing[tx]) backing[tx]
	until string
}

// explore tries every schedule of a flow within the bounds, on the store in
// memory, and then some at random.
func explore(t *testing.T, f *flow[tx], by search, e *evidence) {
	t.Helper()
	if name, line, ok := strings.Cut(*replay, ":"); ok {
		if name == f.name {
			w, broken := schedule(t, f, parseBounds(t, &line), by.flaw, parsePath(t, line).pick, e)
			t.Logf("%s\n%v", w.story(), broken)
		}
		return
	}
	for _, b := range by.bounds {
		if !exhaust(t, f, by, b, e) {
			return
		}
	}
	random(t, f, by, e)
}

// exhaust tries every schedule within one bound, and reports whether to go on.
func exhaust(t *testing.T, f *flow[tx], by search, b bounds, e *evidence) bool {
	t.Helper()
	diverged, tried := 0, 0
	for p := (&path{}); ; {
		w, broken := schedule(t, f, b, by.flaw, p.pick, e)
		e.Schedules++
		tried++
		if p.diverged {
			diverged++
			p.diverged = false
		}
		if !judge(t, e, by, w, broken, fmt.Sprintf("-replay '%s:%d.%d.%d:%v'", f.name, b.preemptions, b.faults, b.aftermath, p)) {
			return false
		}
		if !p.next() {
			break
		}
	}
	// Timers that fire at one instant, and random pauses, make some schedules take
	// another way when they are run again: those are audited like any other, and
	// what they stood for is left out.
	most := tried / 50
	if f.jitter {
		most = tried / 4
	}
	if diverged > 0 {
		t.Logf("%s: %d of %d schedules took another way than before", f.name, diverged, tried)
	}
	if diverged > most {
		t.Errorf("%s: too many for a search that is to be exhaustive", f.name)
	}
	return true
}

// parseBounds reads the bounds at the front of a replay.
func parseBounds(t *testing.T, line *string) (b bounds) {
	t.Helper()
	front, rest, _ := strings.Cut(*line, ":")
	if _, err := fmt.Sscanf(front, "%d.%d.%d", &b.preemptions, &b.faults, &b.aftermath); err != nil {
		t.Fatalf("replay %q: %v", *line, err)
	}
	*line = rest
	return b
}

// judge reports violations, unless they are wanted, and whether to go on.
func judge(t *testing.T, e *evidence, by search, w *world, broken []violation, how string) bool {
	t.Helper()
	if len(broken) == 0 {
		return true
	}
	e.Violations++
	if by.flaw != nil {
		for _, v := range broken {
			e.Sometimes["broken "+v.code]++
		}
		return e.Sometimes["broken "+by.until] == 0
	}
	t.Errorf("%s: %v\n%s\nagain: go test ./internal/fault -run '%s' %s", e.Name, broken, w.story(), t.Name(), how)
	return e.Violations < 5
}

// random tries schedules with two faults and any number of preemptions.
func random(t *testing.T, f *flow[tx], by search, e *evidence) {
	t.Helper()
	start := *seed
	if start == 0 {
		start = rand.Uint64()
	}
	for i := range by.pairs {
		r := rand.New(rand.NewPCG(start, uint64(i)))
		w, broken := schedule(t, f, bounds{preemptions: 1 << 20, faults: 2}, by.flaw, func(all []option) int { return drawn(r, all) }, e)
		e.Pairs++
		if !judge(t, e, by, w, broken, fmt.Sprintf("-seed %d (pair %d)", start, i)) {
			return
		}
	}
}

// drawn chooses a step, and now and then a fault for it.
func drawn(r *rand.Rand, all []option) int {
	var plain []int
	for i, o := range all {
		if o.kind == fault.None {
			plain = append(plain, i)
		}
	}
	at := plain[r.IntN(len(plain))]
	end := at + 1
	for end < len(all) && all[end].kind != fault.None {
		end++
	}
	if end > at+1 && r.IntN(5) == 0 {
		return at + 1 + r.IntN(end-at-1)
	}
	return at
}

// schedule is one run of a flow in a bubble of its own.
func schedule(t *testing.T, f *flow[tx], by bounds, flaw func(backing[tx]) backing[tx], pick func([]option) int, e *evidence) (*world, []violation) {
	var w *world
	var r *record
	defer func() { // a bubble in which something stands still for ever panics
		if p := recover(); p != nil {
			panic(fmt.Sprintf("%v\n%s: %s", p, f.name, w.story()))
		}
	}()
	synctest.Test(t, func(*testing.T) {
		b := inMemory()
		if flaw != nil {
			b.store = flaw(b.store)
		}
		r = newRecord(b.now)
		w = newWorld(by, pick)
		s := newScene(f, b, r, w, "4711")
		w.depart = r.note
		w.jump = func(d time.Duration) { b.jump(s.key, d) }
		s.play(func() {
			walk := &walk{record: r, look: func() (store.Verdict, error) { return b.store.Look(t.Context(), s.key) }}
			walk.begin()
			w.after = walk.step
			if s.watch != nil {
				w.after = s.watch
			}
		})
	})
	e.count(w.trace, r.seen)
	return w, r.violations()
}

// inMemory is a bed in memory, with a clock that can jump.
func inMemory() *bed[tx] {
	clock := &fault.Clock{}
	s := memory.New(&memory.Options{Now: clock.Now, Lanes: 2})
	return &bed[tx]{
		store: s, now: clock.Now,
		write: func(_ context.Context, tx tx, op store.Key, run, payload string) error {
			return tx.Put(op.String()+"/"+run, payload)
		},
		rows: func(op store.Key) map[string]string {
			rows := map[string]string{}
			for name, payload := range s.All() {
				if run, ok := strings.CutPrefix(name, op.String()+"/"); ok {
					rows[run] = payload
				}
			}
			return rows
		},
		begin: func(ctx context.Context, _ string) (tx, func() error, func() error, error) {
			own, err := s.BeginTx(ctx)
			if err != nil {
				return nil, nil, nil, err
			}
			return own, own.Commit, own.Rollback, nil
		},
		jump: func(_ store.Key, d time.Duration) { clock.Jump(d) },
	}
}

// walk watches the state of an operation from outside: it goes forward only, and
// its fence never back.
type walk struct {
	*record
	look  func() (store.Verdict, error)
	state store.State
	fence int64
}

// begin takes what is there for the start.
func (w *walk) begin() {
	v, err := w.look()
	if err != nil {
		w.breaks("I5", "look: %v", err)
	}
	w.state, w.fence = v.State, fenceOf(v, 0)
}

// step compares what is there with what was there one step ago.
func (w *walk) step() {
	v, err := w.look()
	if err != nil {
		w.breaks("I5", "look: %v", err)
		return
	}
	fence := fenceOf(v, w.fence)
	if !forward(w.state, v.State) || fence < w.fence && v.State != store.Free {
		w.breaks("I5", "%v (attempt %d) became %v (attempt %d)", w.state, w.fence, v.State, fence)
	}
	w.state, w.fence = v.State, fence
}

// fenceOf is the number of the last attempt; last where that is not to be seen.
func fenceOf(v store.Verdict, last int64) int64 {
	switch {
	case v.Outcome != nil:
		return v.Outcome.Attempt
	case v.Attempt != nil:
		return v.Attempt.Fence
	case v.State == store.Free:
		return 0
	}
	return last
}

// forward are the ways that an operation may go in one step.
func forward(from, to store.State) bool {
	ways := map[store.State][]store.State{
		store.Free:       {store.Processing, store.Completed},
		store.Processing: {store.Free, store.Retryable, store.Parked, store.Unknown, store.Dead, store.Completed},
		store.Unknown:    {store.Free, store.Processing, store.Retryable, store.Dead, store.Completed, store.Discarded},
		store.Retryable:  {store.Processing, store.Completed, store.Discarded},
		store.Parked:     {store.Retryable, store.Completed, store.Discarded},
		store.Dead:       {store.Retryable, store.Completed, store.Discarded},
		store.Completed:  {store.Expired},
		store.Discarded:  {store.Expired},
		store.Expired:    {store.Free},
	}
	return from == to || slices.Contains(ways[from], to)
}

func newFastLease(now func() time.Time) *fastLease {
	fresh := func() fault.FastLease {
		l, err := leasememory.New(&leasememory.Options{Now: now})
		if err != nil {
			panic(err)
		}
		return l
	}
	return &fastLease{fresh: fresh, FastLease: fresh()}
}
