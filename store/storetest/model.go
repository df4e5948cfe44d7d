package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// model is the plainest thing that answers as a store must: one goroutine, no
// database, a clock that moves by advance only.
type model struct {
	now  time.Duration
	ops  [randomKeys]modelOp
	rows []string
}

// modelOp is one operation.
type modelOp struct {
	outcome *modelOutcome
	attempt *modelAttempt
	open    *modelOpen // the transaction in flight
}

type modelOutcome struct {
	state            store.State
	code             int
	body             string
	payload          string
	attempt          int64
	kept, remembered time.Duration
}

type modelAttempt struct {
	fence      int64
	state      store.State // as stored
	payload    string
	derived    string
	lease, due time.Duration
	steps      map[string]string
	finished   bool // has a finished step
}

type modelOpen struct {
	fence   int64
	payload string
}

func newModel() *model { return &model{} }

// permits says whether a line may be asked: it neither waits for ever in one
// goroutine nor asks what package store leaves open.
func (m *model) permits(a action) bool {
	op := &m.ops[a.key]
	holder := op.attempt != nil && op.attempt.fence == a.fence
	switch a.kind {
	case kindBegin:
		// The transaction stays open, and an expiry may come between.
		return !holder || op.attempt.state != store.Processing
	case kindCommit, kindRollback:
		return op.open != nil
	case kindFinish:
		return op.open == nil && (!holder || op.attempt.state == store.Processing || op.attempt.state == store.Unknown)
	case kindRest, kindStep:
		return op.open == nil && (!holder || op.attempt.state == store.Processing)
	case kindRenew:
		return op.open == nil
	case kindAct:
		return op.open == nil && m.found(a.key).state != store.Expired
	}
	return true
}

// finding is what a gate finds.
type finding struct {
	state store.State
	text  string
}

// found reads an operation without its lock.
func (m *model) found(key int) finding {
	op := &m.ops[key]
	if o := op.outcome; o != nil && m.now < o.remembered {
		if m.now >= o.kept {
			return finding{store.Expired, fmt.Sprintf("expired short=%s", o.payload[:8])}
		}
		return finding{o.state, textOutcome(o.state, o.code, o.body, o.payload, o.attempt, o.kept-m.now)}
	}
	if a := op.attempt; a != nil {
		state := a.state
		if state == store.Processing && m.now >= a.lease {
			state = store.Unknown
		}
		return finding{state, textAttempt(state, a.fence, a.payload, a.derived, a.lease-m.now, a.due-m.now)}
	}
	return finding{store.Free, "free"}
}

// gate tries the lock and reads; fence is -1 when the operation may not run.
func (m *model) gate(key int, from int64) (finding, int64) {
	op := &m.ops[key]
	if op.open != nil {
		return finding{store.Processing, "processing"}, -1
	}
	f := m.found(key)
	switch {
	case f.state == store.Free:
		return f, 0
	case op.attempt == nil || f.state.Final() || f.state == store.Expired || from == 0 || op.attempt.fence != from:
		return f, -1
	case f.state == store.Unknown, f.state == store.Parked, f.state == store.Retryable && m.now >= op.attempt.due:
		return f, from
	}
	return f, -1
}

// end writes an outcome.
func (m *model) end(a action, attempt int64, payload string) string {
	code, body := 200+a.n%300, fmt.Sprintf("body %d", a.n)
	m.ops[a.key].attempt = nil
	m.ops[a.key].outcome = &modelOutcome{
		state: a.state, code: code, body: body, payload: payload, attempt: attempt,
		kept: m.now + randomRetention, remembered: m.now + randomRetention + randomTombstone,
	}
	return textOutcome(a.state, code, body, payload, attempt, randomRetention)
}

// work is what is done on an open transaction.
func (m *model) work(a action, attempt int64, payload string) string {
	switch {
	case a.strict && a.write:
		return "wrote"
	case !a.ends:
		return "rolled back"
	}
	if a.write {
		m.rows = append(m.rows, rowOf(a))
	}
	return m.end(a, attempt, payload)
}

func (m *model) do(a action) string {
	op := &m.ops[a.key]
	switch a.kind {
	case kindBegin:
		f, fence := m.gate(a.key, a.fence)
		if fence < 0 {
			return f.text
		}
		op.open = &modelOpen{fence, payloadOf(a.key, a.payload)}
		return f.text + " runs"
	case kindCommit:
		open := op.open
		op.open = nil
		return m.work(a, open.fence+1, open.payload)
	case kindRollback:
		op.open = nil
		return "ok"
	case kindJoin:
		f, fence := m.gate(a.key, a.fence)
		if fence < 0 {
			return f.text
		}
		return f.text + " runs: " + m.work(a, fence+1, payloadOf(a.key, a.payload))
	case kindLook:
		return m.found(a.key).text
	case kindSettle:
		f, _ := m.gate(a.key, 0)
		return f.text
	case kindPeek:
		var flags []string
		for key := range m.ops {
			f, _ := m.gate(key, 0)
			flags = append(flags, fmt.Sprint(f.state == store.Processing))
		}
		return strings.Join(flags, " ")
	case kindClaim:
		return m.claim(a)
	case kindRenew, kindRest, kindStep, kindFinish:
		return m.fenced(a)
	case kindSteps:
		return m.steps(a.key)
	case kindAct:
		return m.act(a)
	case kindShow:
		f := m.found(a.key)
		if f.state == store.Free || f.state == store.Expired {
			return textError(store.ErrNotFound)
		}
		return m.record(a.key) + " " + m.steps(a.key)
	case kindList:
		return m.list(a.states)
	case kindCounts:
		var n [store.Expired + 1]int64
		for _, op := range m.ops {
			if op.attempt != nil {
				n[op.attempt.state]++
			}
		}
		return textCounts(n[store.Processing]+n[store.Unknown], n[store.Retryable], n[store.Parked], n[store.Dead])
	case kindExpire:
		return m.expire()
	case kindAdvance:
		m.now += a.d
	case kindRows:
		slices.Sort(m.rows)
		return strings.Join(m.rows, " ")
	}
	return "ok"
}

func (m *model) claim(a action) string {
	op := &m.ops[a.key]
	if op.open == nil {
		m.sweep(a.key)
	}
	f, fence := m.gate(a.key, a.fence)
	if fence < 0 {
		return f.text
	}
	if fence == 0 {
		op.outcome = nil
		op.attempt = &modelAttempt{
			payload: payloadOf(a.key, a.payload), derived: derivedOf(a), steps: map[string]string{},
		}
	}
	t := op.attempt
	t.fence, t.state, t.lease = fence+1, store.Processing, m.now+randomLease
	return "granted " + textAttempt(t.state, t.fence, t.payload, t.derived, randomLease, 0)
}

// sweep turns an attempt whose lease has expired into an unknown one.
func (m *model) sweep(key int) bool {
	t := m.ops[key].attempt
	if t == nil || t.state != store.Processing || m.now < t.lease {
		return false
	}
	t.state = store.Unknown
	return true
}

// fenced is a write of a holder.
func (m *model) fenced(a action) string {
	op := &m.ops[a.key]
	t := op.attempt
	if a.kind == kindFinish && a.fence == 0 {
		return m.unclaimed(a)
	}
	if t == nil || t.fence != a.fence {
		return textError(store.ErrLeaseLost)
	}
	switch a.kind {
	case kindRenew:
		if t.state != store.Processing || m.now >= t.lease {
			return textError(store.ErrLeaseLost)
		}
		t.lease = m.now + randomLease
	case kindRest:
		if a.state == store.Free {
			if t.finished {
				return textError(store.ErrConflict)
			}
			op.attempt = nil
			return "ok"
		}
		t.state, t.due = a.state, m.now+a.d
	case kindStep:
		t.steps[a.name] = textStep(a.name, a.strict, a.fence, resultOf(a))
		t.finished = false
		for _, step := range t.steps {
			t.finished = t.finished || strings.Contains(step, "done")
		}
	case kindFinish:
		return m.work(a, a.fence, payloadOf(a.key, a.payload))
	}
	return "ok"
}

// unclaimed is a finish of work that was never claimed.
func (m *model) unclaimed(a action) string {
	if f := m.found(a.key); f.state.Final() || f.state == store.Expired {
		return textError(store.ErrDuplicate)
	}
	last := int64(0)
	if t := m.ops[a.key].attempt; t != nil {
		last = t.fence
	}
	return m.work(a, last+1, payloadOf(a.key, a.payload))
}

func (m *model) steps(key int) string {
	t := m.ops[key].attempt
	if t == nil {
		return "[]"
	}
	var steps []string
	for _, step := range t.steps {
		steps = append(steps, step)
	}
	slices.Sort(steps)
	return fmt.Sprint(steps)
}

func (m *model) act(a action) string {
	op, state := &m.ops[a.key], m.found(a.key).state
	t := op.attempt
	switch {
	case state.Final():
		return textError(store.ErrConflict)
	case t == nil:
		return textError(store.ErrNotFound)
	case a.fence != 0 && a.fence != t.fence:
		return textError(store.ErrConflict)
	}
	allowed := state != store.Processing
	switch a.name {
	case actRelease:
		allowed = state == store.Unknown || state == store.Parked
	case actRedrive:
		allowed = state == store.Dead
	}
	if !allowed {
		return textError(store.ErrConflict)
	}
	switch a.name {
	case actRelease, actRedrive:
		t.state, t.due = store.Retryable, m.now
	case actComplete:
		a.state = store.Completed
		m.end(a, t.fence, t.payload)
	case actDiscard:
		a.state = store.Discarded
		m.end(a, t.fence, t.payload)
		op.outcome.code, op.outcome.body = 0, ""
	}
	return "ok"
}

// record is an operation as an operator sees it.
func (m *model) record(key int) string {
	op := &m.ops[key]
	f := m.found(key)
	if f.state.Final() {
		return textRecord(key, f.state, op.outcome.attempt, op.outcome.code, len(op.outcome.body))
	}
	return textRecord(key, f.state, op.attempt.fence, 0, 0)
}

func (m *model) list(states []store.State) string {
	var lines []string
	for key := range m.ops {
		f := m.found(key)
		switch {
		case f.state == store.Free, f.state == store.Expired:
		case states == nil && f.state.Final():
		case states == nil || slices.Contains(states, f.state):
			lines = append(lines, m.record(key))
		}
	}
	return strings.Join(lines, ", ")
}

func (m *model) expire() string {
	var keys []string
	for key := range m.ops {
		if m.sweep(key) {
			keys = append(keys, fmt.Sprintf("k%d", key))
		}
	}
	return fmt.Sprint(keys)
}
