package migrate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// Result is a migrated process.
type Result struct {
	// Snapshot under the new definition.
	Snapshot *statechart.Snapshot
	// Effects of the entry of added states, in order.
	Effects []statechart.EffectCall
	// Timers that go on, Drop those that end, Arm those that begin now.
	Timers []TimerResult
	Drop   []statechart.Timer
	Arm    []statechart.Timer
	// Invokes that go on, Stop those whose answer is no longer wanted, Invoke those
	// to start.
	Invokes []InvokeResult
	Stop    []statechart.Invoke
	Invoke  []statechart.Invoke
}

// TimerResult is a timer that goes on under another name.
type TimerResult struct {
	// From is the old timer and To what it is now.
	From, To statechart.Timer
	// Restart tells that it is due To.After from now; else its due time stays.
	Restart bool
}

// InvokeResult is an invoke that goes on under another name.
type InvokeResult struct {
	// From is the old invoke and To what it is now.
	From, To statechart.Invoke
}

// Apply takes one snapshot over. An error means that the plan does not cover it
// or that the context could not be computed; then nothing is to be written.
func (m *Migration) Apply(s *statechart.Snapshot) (Result, error) {
	if s.Definition().Hash() != m.old.Hash() {
		return Result{}, fmt.Errorf("migrate: the snapshot belongs to %s, and the plan is from %s", s.Definition().Hash(), m.old.Hash())
	}
	parts, err := m.structure(s)
	if err == nil {
		parts.Context, err = m.context(s.Context())
	}
	var r statechart.Reaction
	if err == nil {
		parts.Revision = s.Revision() + 1
		r, err = statechart.Complete(m.new, parts, m.added)
	}
	if err != nil {
		return Result{}, fmt.Errorf("migrate: %w", err)
	}
	result := Result{Snapshot: r.Snapshot, Effects: r.Effects}
	if err := errors.Join(m.moveTimers(s, r.Snapshot, &result), m.moveInvokes(s, r.Snapshot, r.Invoke, &result)); err != nil {
		return Result{}, fmt.Errorf("migrate: %w", err)
	}
	return result, nil
}

// structure moves states, history and generations.
func (m *Migration) structure(s *statechart.Snapshot) (statechart.Parts, error) {
	old := s.Parts()
	parts := statechart.Parts{
		History: map[string][]string{}, Generations: map[string]uint64{},
		Status: old.Status, Output: old.Output, Revision: old.Revision,
	}
	var faults []error
	for _, id := range old.States {
		home := m.home(id)
		if _, named := m.plan.States[id]; home == "" && !named {
			faults = append(faults, fmt.Errorf("the state %q has no home in the new chart (states)", id))
		}
		if home != "" && !slices.Contains(parts.States, home) {
			parts.States = append(parts.States, home)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(old.History)) {
		to, named := m.plan.History[id]
		if !named {
			if n, ok := m.new.Node(id); ok && n.Kind == statechart.History {
				to = id
			} else {
				faults = append(faults, fmt.Errorf("what the history state %q recorded has no home in the new chart (history)", id))
			}
		}
		if to == "" {
			continue
		}
		var recorded []string
		for _, state := range old.History[id] {
			if home := m.home(state); home != "" && !slices.Contains(recorded, home) {
				recorded = append(recorded, home)
			}
		}
		parts.History[to] = recorded
	}
	for id, generation := range old.Generations {
		home, ok := m.new.Node(m.home(id))
		if ok && len(home.Timers)+len(home.Invokes) > 0 {
			parts.Generations[home.ID] = max(parts.Generations[home.ID], generation)
		}
	}
	return parts, errors.Join(faults...)
}

// context computes the new context and holds it against the new chart's initial
// one: what every process of the new chart has, a migrated one has as well.
func (m *Migration) context(old map[string]any) (map[string]any, error) {
	context := maps.Clone(old)
	if context == nil {
		context = map[string]any{}
	}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(m.patch)) {
		v := m.patch[key]
		x, err := v.eval(statechart.Scope{Context: old})
		if err != nil {
			faults = append(faults, fmt.Errorf("context: %q: %w", key, err))
		}
		context[key] = x
	}
	for _, key := range m.plan.Remove {
		delete(context, key)
	}
	for _, key := range initialKeys(m.new) {
		if _, ok := context[key]; !ok {
			faults = append(faults, fmt.Errorf("context: the new chart has %q in its initial context, and the process has not (context)", key))
		}
	}
	return context, errors.Join(faults...)
}

func initialKeys(d *statechart.Definition) (keys []string) {
	v := d.Context()
	if v == nil {
		return nil
	}
	if constant, ok := v.Const.(map[string]any); ok {
		return slices.Sorted(maps.Keys(constant))
	}
	for _, m := range v.Members {
		keys = append(keys, m.Key)
	}
	return keys
}

// moveTimers finds, for each timer that runs now, the one that ran before.
func (m *Migration) moveTimers(old, now *statechart.Snapshot, r *Result) error {
	before := old.Timers()
	taken := map[string]bool{}
	key := func(t statechart.Timer) string { return t.State + "\x00" + t.Delay }
	running := map[string]statechart.Timer{}
	for _, t := range now.Timers() {
		running[key(t)] = t
	}
	var faults []error
	for _, from := range before {
		delay, due := from.Delay, m.plan.Due
		move, named := m.timers[[2]string{from.State, from.Delay}]
		if named {
			delay = move.ToDelay
			if move.Due != "" {
				due = move.Due
			}
		}
		to, ok := running[key(statechart.Timer{State: m.home(from.State), Delay: delay})]
		switch {
		case named && delay == "", m.dropped(from.State), now.Status() == statechart.Done:
			r.Drop = append(r.Drop, from)
		case !ok || taken[key(to)]:
			faults = append(faults, fmt.Errorf("the timer %q of the state %q has no home in the new chart (timers)", from.Delay, from.State))
		default:
			taken[key(to)] = true
			r.Timers = append(r.Timers, TimerResult{From: from, To: to, Restart: due == "restart"})
		}
	}
	for _, t := range now.Timers() {
		if !taken[key(t)] {
			r.Arm = append(r.Arm, t)
		}
	}
	return errors.Join(faults...)
}

// dropped tells that the plan drops a state in so many words.
func (m *Migration) dropped(state string) bool {
	to, named := m.plan.States[state]
	return named && to == ""
}

func (m *Migration) moveInvokes(old, now *statechart.Snapshot, started []statechart.Invoke, r *Result) error {
	running := map[string]statechart.Invoke{}
	for _, i := range now.Invokes() {
		running[i.ID] = i
	}
	for _, i := range started { // these have their inputs
		running[i.ID] = i
	}
	var faults []error
	taken := map[string]bool{}
	for _, from := range old.Invokes() {
		id, named := m.plan.Invokes[from.ID]
		if !named {
			id = from.ID
			if _, ok := running[id]; !ok { // a default id follows its state
				id = strings.Replace(from.ID, from.State, m.home(from.State), 1)
			}
		}
		to, ok := running[id]
		switch {
		case named && id == "", m.dropped(from.State), now.Status() == statechart.Done:
			r.Stop = append(r.Stop, from)
		case !ok || taken[id] || to.Source != from.Source:
			faults = append(faults, fmt.Errorf("the invoke %q of the state %q has no home in the new chart (invokes)", from.ID, from.State))
		default:
			taken[id] = true
			r.Invokes = append(r.Invokes, InvokeResult{From: from, To: to})
		}
	}
	for _, i := range now.Invokes() {
		if taken[i.ID] {
			continue
		}
		if full := running[i.ID]; slices.ContainsFunc(started, func(s statechart.Invoke) bool { return s.ID == i.ID }) {
			r.Invoke = append(r.Invoke, full)
			continue
		}
		faults = append(faults, fmt.Errorf("the invoke %q is new in the state %q, where processes are already: its input cannot be computed; add a state for it", i.ID, i.State))
	}
	return errors.Join(faults...)
}
