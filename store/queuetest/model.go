package queuetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// model is the plainest thing that answers as a queue must: one goroutine, no
// database, a clock that moves by advance only.
type model struct {
	now        time.Duration
	operations [randomKeys + 1]modelOperation
	entries    []*modelEntry // in the order of their sequence
	blocked    []*modelBlocked
	readers    [2]map[int]bool // what each has read
	deliveries [randomKeys][]string
	items      [3]bool
	versions   [randomOrders]string
	position   modelPosition
}

type modelOperation struct {
	outcome *modelOutcome
	attempt *modelAttempt
}

type modelOutcome struct {
	state   store.State
	payload string
}

type modelAttempt struct {
	fence      int64
	state      store.State
	payload    string
	lease, due time.Duration
}

type modelEntry struct {
	key     int
	payload string
	variant int
	erased  bool
}

type modelBlocked struct {
	entry *modelEntry
	gap   bool
}

type modelPosition struct {
	holder int // 0 is nobody
	value  string
	lease  time.Duration
}

func newModel() *model { return &model{readers: [2]map[int]bool{{}, {}}} }

// fence is what Found has to be for the line to be about the attempt that is
// there, three times out of four.
func (m *model) fence(a action, drawn int64) int64 {
	if at := m.operations[operationOf(a.key)].attempt; at != nil && a.n%4 > 0 {
		return at.fence
	}
	return drawn
}

// entry is the one of an event, or nil.
func (m *model) entry(key int) *modelEntry {
	for _, e := range m.entries {
		if e.key == key {
			return e
		}
	}
	return nil
}

// place is where an entry stands in the order of the sequence.
func (m *model) place(e *modelEntry) int { return slices.Index(m.entries, e) }

func (m *model) done(key int) bool { return m.operations[key].outcome != nil }

// fit makes the payload of what ends an operation that of its entry, where there
// is one: otherwise queue and ledger would remember different things.
func (m *model) fit(a *action) {
	switch a.kind {
	case kindDone, kindClaim, kindBatch:
		if e := m.entry(a.key); e != nil {
			a.payload = e.variant
		}
	}
}

// permits says whether a line may be asked: it asks nothing that package store
// leaves open.
func (m *model) permits(a action) bool {
	switch a.kind {
	case kindDone, kindClaim, kindBatch:
		for _, key := range a.events() {
			// One of the entries that share an operation stands for both.
			if e := m.entry(key); e != nil && e.variant != a.payload {
				return false
			}
		}
		return true
	case kindBlock, kindUnblock:
		return m.entry(a.key) != nil
	case kindLoad, kindSeen:
		return m.entry(a.key) != nil && !m.done(a.key) // else it may have been purged
	}
	return true
}

// known says what an append says of an entry.
func (m *model) known(key int, payload string) store.Appended {
	remembered := ""
	op := m.operations[key]
	switch e := m.entry(key); {
	case e != nil:
		remembered = e.payload
	case op.outcome != nil:
		remembered = op.outcome.payload
	case op.attempt != nil:
		remembered = op.attempt.payload
	default:
		return store.New
	}
	if remembered == payload {
		return store.Duplicate
	}
	return store.Conflict
}

// append adds entries and says what became of each; seen says that a delivery is
// left of those that were known.
func (m *model) append(keys []int, variant int, seen bool) string {
	said := []string{}
	for _, key := range keys {
		what := m.known(key, payloadOf(key, variant))
		if what == store.New {
			m.entries = append(m.entries, &modelEntry{key: key, payload: payloadOf(key, variant), variant: variant})
		} else if seen {
			m.deliveries[key] = append(m.deliveries[key], what.String())
		}
		said = append(said, what.String())
	}
	return strings.Join(said, " ")
}

// state is what a gate finds of an operation.
func (m *model) state(op int) store.State {
	o := m.operations[op]
	switch {
	case o.outcome != nil:
		return o.outcome.state
	case o.attempt == nil:
		return store.Free
	case o.attempt.state == store.Processing && m.now >= o.attempt.lease:
		return store.Unknown
	}
	return o.attempt.state
}

// admits tells whether a gate lets an operation run, and as which attempt.
func (m *model) admits(op int, from int64) (attempt int64, ok bool) {
	at := m.operations[op].attempt
	switch m.state(op) {
	case store.Free:
		return 1, true
	case store.Unknown, store.Parked:
	case store.Retryable:
		if m.now < at.due {
			return 0, false
		}
	default:
		return 0, false
	}
	return from + 1, from != 0 && from == at.fence
}

// end writes an outcome.
func (m *model) end(op int, state store.State, payload string) {
	m.operations[op] = modelOperation{outcome: &modelOutcome{state, payload}}
}

func (m *model) do(a action) string {
	switch a.kind {
	case kindAppend:
		return m.append(a.events(), a.payload, true)
	case kindEnqueue:
		if a.ends {
			return m.append(a.events(), a.payload, false)
		}
		before := slices.Clone(m.entries)
		said := m.append(a.events(), a.payload, false)
		m.entries = before
		return said + " rolled back"
	case kindDone:
		return m.finish(a)
	case kindBatch:
		return m.batch(a)
	case kindClaim:
		op := a.operation()
		if m.state(op) != store.Free {
			return m.state(op).String()
		}
		m.operations[op].attempt = &modelAttempt{
			fence: 1, state: store.Processing, payload: payloadOf(a.key, a.payload), lease: m.now + randomLease,
		}
		return "granted"
	case kindAct:
		return m.act(a)
	case kindTakeover:
		m.now += randomTakeover
		return "all lanes"
	case kindBlock:
		return m.block(a)
	case kindUnblock:
		if a.stale {
			return textError(store.ErrLaneLost)
		}
		e := m.entry(a.key)
		m.blocked = slices.DeleteFunc(m.blocked, func(b *modelBlocked) bool { return b.entry == e })
		return "ok"
	}
	return m.look(a)
}

// look runs the lines that read, and those of people.
func (m *model) look(a action) string {
	var keys []int
	switch a.kind {
	case kindWaiting:
		return m.waiting()
	case kindRead:
		for _, e := range m.entries {
			if !m.readers[a.key][e.key] && !m.done(e.key) {
				keys = append(keys, e.key)
			}
			m.readers[a.key][e.key] = true
		}
		return textKeys(keys)
	case kindBeginning, kindFollowers:
		for _, e := range m.entries {
			if !m.done(e.key) && (a.kind == kindBeginning || e.key%randomOrders == a.key) {
				keys = append(keys, e.key)
			}
		}
		return textKeys(keys)
	case kindLoad:
		e := m.entry(a.key)
		if e.erased {
			return "erased"
		}
		return e.payload
	case kindSeen:
		return strings.Join(m.deliveries[a.key], " ")
	case kindItem:
		m.items[a.key] = true
	case kindReadmit:
		if !m.items[a.fence] {
			return textError(store.ErrNotFound)
		}
		m.items[a.fence] = false
		return m.append(a.events(), a.payload, true)
	case kindItems:
		for i, there := range m.items {
			if there {
				keys = append(keys, i)
			}
		}
		return textKeys(keys)
	case kindErase:
		for _, e := range m.entries {
			e.erased = e.erased || e.key%2 == a.key
		}
	case kindVersion:
		before := m.versions[a.key]
		if a.ends {
			m.versions[a.key] = fmt.Sprint(a.n)
		}
		return "was " + before
	case kindPosition, kindSave:
		return m.listing(a)
	case kindCounts:
		n := 0
		for _, e := range m.entries {
			if !m.done(e.key) {
				n++
			}
		}
		items := 0
		for _, there := range m.items {
			if there {
				items++
			}
		}
		return fmt.Sprintf("blocked %d, quarantined %d, waiting %d", len(m.blocked), items, n)
	case kindAdvance:
		m.now += a.d
	}
	return "ok"
}

// finish ends one operation.
func (m *model) finish(a action) string {
	if a.stale {
		return textError(store.ErrLaneLost)
	}
	op := a.operation()
	attempt, ok := m.admits(op, a.fence)
	if !ok {
		return m.state(op).String()
	}
	if !a.ends {
		return "rolled back"
	}
	m.end(op, a.state, payloadOf(a.key, a.payload))
	return fmt.Sprintf("%v attempt=%d", a.state, attempt)
}

// batch ends those that are free.
func (m *model) batch(a action) string {
	if a.stale {
		return textError(store.ErrLaneLost)
	}
	var said []string
	var free []int
	for _, key := range a.events() {
		said = append(said, m.state(key).String())
		if m.state(key) == store.Free {
			free = append(free, key)
		}
	}
	if len(free) == 0 {
		return strings.Join(said, " ") + " none"
	}
	if a.ends {
		for _, key := range free {
			m.end(key, store.Completed, payloadOf(key, a.payload))
		}
	}
	return strings.Join(said, " ")
}

func (m *model) act(a action) string {
	op := a.operation()
	state, at := m.state(op), m.operations[op].attempt
	switch {
	case m.operations[op].outcome != nil:
		return textError(store.ErrConflict)
	case at == nil:
		return textError(store.ErrNotFound)
	}
	switch a.name {
	case actRelease, actRedrive:
		if a.name == actRedrive && state != store.Dead || a.name == actRelease && state != store.Unknown && state != store.Parked {
			return textError(store.ErrConflict)
		}
		at.state, at.due = store.Retryable, m.now
	default:
		if state == store.Processing {
			return textError(store.ErrConflict)
		}
		ended := map[string]store.State{actComplete: store.Completed, actDiscard: store.Discarded}[a.name]
		m.end(op, ended, at.payload)
	}
	return "ok"
}

func (m *model) block(a action) string {
	if a.stale {
		return textError(store.ErrLaneLost)
	}
	e, op := m.entry(a.key), operationOf(a.key)
	if a.rest {
		fence := a.fence
		if a.next || fence == 0 {
			fence++
		}
		at := m.operations[op].attempt
		switch state := m.state(op); {
		case m.operations[op].outcome != nil:
			return textError(store.ErrDuplicate)
		case at == nil && a.fence == 0:
			at = &modelAttempt{payload: e.payload}
			m.operations[op].attempt = at
		case at == nil || at.fence != a.fence || state == store.Processing || state == store.Dead:
			return textError(store.ErrConflict)
		}
		at.fence, at.state, at.due = fence, a.state, m.now+a.d
	}
	if !a.gap {
		for _, other := range m.blocked {
			if !other.gap && other.entry.key%randomOrders == e.key%randomOrders && m.place(other.entry) < m.place(e) && !m.done(other.entry.key) {
				return "ok"
			}
		}
		m.blocked = slices.DeleteFunc(m.blocked, func(b *modelBlocked) bool {
			return !b.gap && b.entry.key%randomOrders == e.key%randomOrders
		})
	}
	m.blocked = slices.DeleteFunc(m.blocked, func(b *modelBlocked) bool { return b.entry == e })
	m.blocked = append(m.blocked, &modelBlocked{e, a.gap})
	return "ok"
}

func (m *model) waiting() string {
	slices.SortFunc(m.blocked, func(a, b *modelBlocked) int { return m.place(a.entry) - m.place(b.entry) })
	var lines []string
	for _, order := range places() {
		for _, b := range m.blocked {
			key := b.entry.key
			if key%randomOrders != order {
				continue
			}
			op, fence, lease, due := operationOf(key), int64(0), time.Duration(0), time.Duration(0)
			if m.done(key) {
				op = key
			} else if at := m.operations[op].attempt; at != nil {
				fence, lease, due = at.fence, at.lease-m.now, at.due-m.now
			}
			lines = append(lines, textWaiting(order, key, b.gap, m.state(op), m.done(key), fence, lease, due))
		}
	}
	return strings.Join(lines, ", ")
}

// listing is what the worker of a line, 1 or 2, does with the one position.
func (m *model) listing(a action) string {
	worker, p := a.key+1, &m.position
	if a.kind == kindSave {
		if p.holder != worker {
			return textError(store.ErrLeaseLost)
		}
		p.value, p.lease = fmt.Sprint(a.n), m.now+randomLease
		return "ok"
	}
	if p.holder != worker && m.now < p.lease {
		return "another's"
	}
	p.holder, p.lease = worker, m.now+randomLease
	return "at " + p.value
}
