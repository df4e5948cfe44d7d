package fault_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/fault"
	"github.com/unavez/unavez/store"
)

// record is what the outside knows of one schedule: the client's own log of what
// it was told, the other system's own log of what arrived, and what was answered
// at the seam. It never reads the tables of the product. Its methods may be
// called concurrently.
type record struct {
	now func() time.Time // the database's clock, as far as anybody outside can tell

	mu       sync.Mutex
	at       int // counts everything that is written here
	answers  []answer
	runs     []run
	arrivals []arrival
	probes   []probed
	lives    map[store.Key]*tenure
	broken   []violation
	seen     map[string]int
	person   bool // who has ended the operation
	epochs   map[int]int64
}

// violation of an invariant.
type violation struct {
	code string // I1 and so on
	text string
}

func (v violation) String() string { return v.code + ": " + v.text }

// answer is what a client was told.
type answer struct {
	client, payload string
	outcome         *unavez.Outcome
	err             error
	lost            bool // nothing came back
	runs            []string
}

// run is one run of the caller's code.
type run struct {
	name, client, payload string
	at                    time.Time
}

// arrival is a call that the other system got.
type arrival struct {
	at      int
	key     string
	step    string
	fence   int64
	overdue bool // its lease was over, or another attempt had begun
}

// probed is an answer of the other system about a key.
type probed struct {
	at   int
	key  string
	done bool
}

// tenure is what was granted of one operation.
type tenure struct {
	fence int64
	given map[int64]bool
	until map[int64]time.Time
}

func newRecord(now func() time.Time) *record {
	return &record{now: now, lives: map[store.Key]*tenure{}, seen: map[string]int{}, epochs: map[int]int64{}}
}

// saw counts something that is to happen sometimes.
func (r *record) saw(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[what]++
}

// breaks writes down a violation.
func (r *record) breaks(code, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, violation{code, fmt.Sprintf(format, args...)})
}

func (r *record) violations() []violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.broken)
}

// ran writes down a run of the caller's code, and names it.
func (r *record) ran(client, payload string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := "run " + strconv.Itoa(len(r.runs)+1) + " for " + client
	r.runs = append(r.runs, run{name, client, payload, r.now()})
	return name
}

// ranSince are the runs for a client after the first n of all.
func (r *record) ranSince(n int, client string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.runs[n:] {
		if run.client == client {
			names = append(names, run.name)
		}
	}
	return names
}

func (r *record) ranSoFar() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runs)
}

// told writes down what a client was told.
func (r *record) told(a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at++
	r.answers = append(r.answers, a)
	switch {
	case a.lost:
		r.seen["answer lost"]++
	case a.err != nil:
		r.seen["answered "+string(unavez.CodeOf(a.err))]++
	case a.outcome.Replayed:
		r.seen["replay served"]++
	default:
		r.seen["answered"]++
	}
}

// of is what was granted of an operation; the mutex is held.
func (r *record) of(key store.Key) *tenure {
	t := r.lives[key]
	if t == nil {
		t = &tenure{given: map[int64]bool{}, until: map[int64]time.Time{}}
		r.lives[key] = t
	}
	return t
}

// note takes down what a step came to, and holds the fences to it: each is given
// once, they grow, and nothing is written under any but the last.
func (r *record) note(n fault.Note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at++
	t := r.of(n.Key)
	refused := errors.Is(n.Err, store.ErrLeaseLost)
	if n.Step == fault.Settle && n.Err == nil {
		switch {
		case n.Verdict == store.Free:
			r.seen["settled as rolled back"]++
		case n.Verdict.Final():
			r.seen["settled as committed"]++
		}
	}
	for _, held := range n.Held {
		if held.Taken && n.Err == nil {
			if r.epochs[held.Lane] != 0 && !held.Clean {
				r.seen["lane taken over"]++
			}
			r.epochs[held.Lane] = held.Epoch
		}
	}
	switch ours := r.epochs[n.Hold.Lane]; {
	case n.Hold.Epoch == 0 || n.Hold.Epoch == ours:
	case errors.Is(n.Err, store.ErrLaneLost):
		r.seen["former holder refused"]++
	case n.Err == nil && (n.Step == fault.Commit || n.Step == fault.Block):
		r.broken = append(r.broken, violation{"I6", fmt.Sprintf("%v was let through under epoch %d of the lane, it has %d", n.Fault, n.Hold.Epoch, ours)})
	}
	r.person = r.person || n.Step == fault.Complete && n.Err == nil
	switch {
	case n.Step == fault.Claim && n.Err == nil && n.Fence != 0:
		if t.given[n.Fence] || n.Fence <= t.fence {
			r.broken = append(r.broken, violation{"I5", fmt.Sprintf("%v gave fence %d again, after %d", n.Fault, n.Fence, t.fence)})
		}
		if n.Fence > 1 {
			r.seen["takeover"]++
		}
		t.fence, t.given[n.Fence], t.until[n.Fence] = n.Fence, true, r.now().Add(n.Lease)
	case n.Fence == 0:
	case n.Step == fault.Block && n.Err == nil:
		if n.Fence < t.fence {
			r.broken = append(r.broken, violation{"I5", fmt.Sprintf("%v wrote fence %d, after %d", n.Fault, n.Fence, t.fence)})
		}
		t.fence, t.given[n.Fence] = n.Fence, true
	case refused && (n.Step == fault.Finish || n.Step == fault.Commit || n.Step == fault.Rest || n.Step == fault.Save || n.Step == fault.Renew):
		r.seen["zombie refused"]++
	case n.Err != nil:
	case n.Step == fault.Renew:
		t.until[n.Fence] = r.now().Add(n.Lease)
		fallthrough
	case n.Step == fault.Finish, n.Step == fault.Commit, n.Step == fault.Rest, n.Step == fault.Save:
		if n.Fence != t.fence {
			r.broken = append(r.broken, violation{"I6", fmt.Sprintf("%v was let through under fence %d, the last is %d", n.Fault, n.Fence, t.fence)})
		}
		if n.Step == fault.Rest && n.To == store.Free { // nothing of it is remembered
			*t = tenure{given: map[int64]bool{}, until: map[int64]time.Time{}}
		}
	}
}

// byPerson reports whether a person has ended the operation.
func (r *record) byPerson() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.person
}

// outside is the other system. It honours keys or not, and shows a charge as soon
// as it is made.
type outside struct {
	record *record
	op     store.Key
	honour bool

	mu      sync.Mutex
	charges map[string]string // by key, the first
	made    int
}

func newOutside(r *record, op store.Key, honour bool) *outside {
	return &outside{record: r, op: op, honour: honour, charges: map[string]string{}}
}

// Headers of a call to the outside beside Idempotency-Key.
const (
	attemptHeader = "Attempt"
	stepHeader    = "Step"
)

func (o *outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if r.Method == http.MethodGet {
		o.mu.Lock()
		charge, done := o.charges[key]
		o.mu.Unlock()
		o.record.probe(key, done)
		if !done {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, charge) //nolint:errcheck // a recorder
		return
	}
	fence, _ := strconv.ParseInt(r.Header.Get(attemptHeader), 10, 64) // 0 when it is none
	o.record.arrive(o.op, key, r.Header.Get(stepHeader), fence)
	o.mu.Lock()
	defer o.mu.Unlock()
	charge, done := o.charges[key]
	if !done || !o.honour {
		o.made++
		charge = "charge " + strconv.Itoa(o.made)
	}
	if !done {
		o.charges[key] = charge
	}
	fmt.Fprint(w, charge) //nolint:errcheck // a recorder
}

// effects is how often the other system has charged.
func (o *outside) effects() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.made
}

func (r *record) arrive(op store.Key, key, step string, fence int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at++
	t := r.of(op)
	until, leased := t.until[fence]
	overdue := fence < t.fence || leased && !r.now().Before(until)
	if overdue {
		r.seen["late arrival"]++
	}
	r.arrivals = append(r.arrivals, arrival{r.at, key, step, fence, overdue})
}

func (r *record) probe(key string, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at++
	r.probes = append(r.probes, probed{r.at, key, done})
	r.seen["probe asked"]++
	if done {
		r.seen["probe said done"]++
	}
}

// arrivalsOf are the calls of one step.
func (r *record) arrivalsOf(step string) (all []arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.arrivals {
		if a.step == step {
			all = append(all, a)
		}
	}
	return all
}

// auditAnswers holds what clients were told to each other and to the committed
// rows, which are runs with their payload.
func (r *record) auditAnswers(rows map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	breaks := func(code, format string, args ...any) {
		r.broken = append(r.broken, violation{code, fmt.Sprintf(format, args...)})
	}
	if len(rows) > 1 {
		breaks("I1", "%d committed effects: %v", len(rows), slices.Sorted(maps.Keys(rows)))
	}
	var first *answer
	for i := range r.answers {
		a := &r.answers[i]
		if a.lost {
			continue
		}
		if a.err != nil {
			for _, run := range a.runs {
				if _, there := rows[run]; there && unavez.CodeOf(a.err) != unavez.CodeUnresolved {
					breaks("I1", "%s was told %v, and %s is committed", a.client, a.err, run)
				}
			}
			continue
		}
		if first == nil {
			first = a
		}
		if x, y := first.outcome.Result, a.outcome.Result; x.Code != y.Code || !bytes.Equal(x.Body, y.Body) || !slices.Equal(x.Header, y.Header) {
			breaks("I2", "%s was answered %q and %s %q", first.client, x.Body, a.client, y.Body)
		}
		if first.payload != a.payload {
			breaks("I3", "%s with payload %q got the answer to %q", a.client, a.payload, first.payload)
		}
		for _, payload := range rows {
			if payload != a.payload {
				breaks("I3", "%s with payload %q got the answer to %q", a.client, a.payload, payload)
			}
		}
	}
}

// auditCalls holds the other system's log to the policy: no blind retry, one key.
func (r *record) auditCalls(step, key string, policy unavez.Unknown) {
	calls := r.arrivalsOf(step)
	for i, c := range calls {
		if c.key != key {
			r.breaks("I10", "the call of attempt %d carried %s, want %s", c.fence, c.key, key)
		}
		if i == 0 || policy == unavez.Unknown(unavez.Retry) {
			continue
		}
		before := calls[i-1]
		if c.overdue || before.overdue {
			continue // from a worker that stood still: nobody can recall it
		}
		if !r.probedBetween(key, before.at, c.at) || policy == unavez.Unknown(unavez.Hold) {
			r.breaks("I9", "attempt %d called after attempt %d had, and nothing said that it had not", c.fence, before.fence)
		}
	}
}

// probedBetween reports whether the other system said "not done" in between.
func (r *record) probedBetween(key string, from, to int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.probes, func(p probed) bool { return p.key == key && from < p.at && p.at < to && !p.done })
}
