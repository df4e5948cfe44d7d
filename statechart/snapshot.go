package statechart

import (
	"slices"
	"strconv"
)

// Status tells whether a process goes on.
type Status string

// The statuses.
const (
	Active Status = "active"
	Done   Status = "done"
)

// Snapshot is where one process stands. It never changes and may be shared
// between goroutines. Its JSON form is described at [Restore].
type Snapshot struct {
	def         *Definition
	active      set
	history     map[int][]int  // history node → recorded nodes in document order
	context     map[string]any // never changed in place
	generations []uint64       // by Node.slot
	status      Status
	output      any
	hasOutput   bool
	revision    uint64
}

// Definition that the snapshot belongs to.
func (s *Snapshot) Definition() *Definition { return s.def }

// Status of the process.
func (s *Snapshot) Status() Status { return s.status }

// Revision counts the steps that changed something; 1 after Start. A writer that
// compares it loses no step of another one.
func (s *Snapshot) Revision() uint64 { return s.revision }

// Context of the process, for reading only.
func (s *Snapshot) Context() map[string]any { return s.context }

// Output of a process that is done; false if it has none.
func (s *Snapshot) Output() (any, bool) { return s.output, s.hasOutput }

// In tells whether the node with this id is active.
func (s *Snapshot) In(id string) bool {
	n, ok := s.def.byID[id]
	return ok && s.active.has(n)
}

// Active are the active nodes in document order.
func (s *Snapshot) Active() []*Node {
	var active []*Node
	for _, n := range s.def.nodes {
		if s.active.has(n) {
			active = append(active, n)
		}
	}
	return active
}

// Tags of the active nodes, sorted.
func (s *Snapshot) Tags() []string {
	var tags []string
	for _, n := range s.Active() {
		tags = append(tags, n.Tags...)
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// History gives, by the id of each history node that has recorded something, the
// ids of the nodes, in document order.
func (s *Snapshot) History() map[string][]string {
	all := make(map[string][]string, len(s.history))
	for h, nodes := range s.history {
		ids := make([]string, len(nodes))
		for i, n := range nodes {
			ids[i] = s.def.nodes[n].ID
		}
		all[s.def.nodes[h].ID] = ids
	}
	return all
}

// Generations gives, by the id of each node with timers or invokes that was ever
// entered, how often it was.
func (s *Snapshot) Generations() map[string]uint64 {
	all := map[string]uint64{}
	for _, n := range s.def.generations {
		if g := s.generations[n.slot]; g > 0 {
			all[n.ID] = g
		}
	}
	return all
}

// Timers are those that run, in document order.
func (s *Snapshot) Timers() (all []Timer) {
	s.running(func(n *Node, generation uint64) {
		for _, t := range n.Timers {
			all = append(all, Timer{n.ID, t.Delay, t.After, generation})
		}
	})
	return all
}

// Invokes are those that run, in document order, without their inputs.
func (s *Snapshot) Invokes() (all []Invoke) {
	s.running(func(n *Node, generation uint64) {
		for _, inv := range n.Invokes {
			all = append(all, Invoke{ID: inv.ID, Source: inv.Source, State: n.ID, Generation: generation})
		}
	})
	return all
}

func (s *Snapshot) running(found func(*Node, uint64)) {
	if s.status != Active {
		return
	}
	for _, n := range s.def.generations {
		if s.active.has(n) {
			found(n, s.generations[n.slot])
		}
	}
}

// Key identifies status, active states and recorded history, and nothing else:
// two snapshots with one key differ in context, output, generations and revision
// only. It means something within one definition.
func (s *Snapshot) Key() string {
	key := []byte(s.status)
	for i := s.active.next(0, len(s.def.nodes)); i >= 0; i = s.active.next(i+1, len(s.def.nodes)) {
		key = strconv.AppendInt(append(key, ' '), int64(i), 36)
	}
	for i, n := range s.def.nodes {
		if n.Kind != History {
			continue
		}
		for j, recorded := range s.history[i] {
			if j == 0 {
				key = strconv.AppendInt(append(key, '|'), int64(i), 36)
			}
			key = strconv.AppendInt(append(key, ' '), int64(recorded), 36)
		}
	}
	return string(key)
}

// Value is the state value as XState writes it: the key of a leaf as a string,
// compound and parallel states as objects, an atomic region as an empty object.
func (s *Snapshot) Value() any { return s.value(s.def.nodes[0]) }

func (s *Snapshot) value(n *Node) any {
	m := make(map[string]any, 1)
	for _, c := range n.regions {
		if !s.active.has(c) {
			continue
		}
		if n.Kind == Compound && len(c.regions) == 0 {
			return c.Key
		}
		m[c.Key] = s.value(c)
	}
	return m
}

// Parts are what a snapshot is made of, for [Assemble].
type Parts struct {
	// States are ids; active are those states and the ones above them.
	States []string
	// History by the id of the history node.
	History map[string][]string
	// Context is JSON as in [Scope]; nil is empty.
	Context map[string]any
	// Generations by the id of the node; an active node without one has 1.
	Generations map[string]uint64
	Status      Status // "" means Active
	Output      any    // of a process that is done; nil means none
	Revision    uint64 // 0 means 1
}

// Parts takes the snapshot apart.
func (s *Snapshot) Parts() Parts {
	p := Parts{
		History: s.History(), Context: s.context, Generations: s.Generations(),
		Status: s.status, Output: s.output, Revision: s.revision,
	}
	for _, n := range s.Active() {
		if len(n.regions) == 0 {
			p.States = append(p.States, n.ID)
		}
	}
	return p
}

// Assemble makes a snapshot from its parts. It adds nothing but the states above
// the given ones, and refuses a configuration or a history that is not legal
// ([CodeDamaged]).
func Assemble(d *Definition, p Parts) (*Snapshot, error) {
	s, err := assemble(d, p)
	if err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// assemble leaves the last check to its caller.
func assemble(d *Definition, p Parts) (*Snapshot, error) {
	s := newSnapshot(d)
	s.active.add(d.nodes[0])
	for _, id := range p.States {
		n, ok := d.byID[id]
		if !ok || n.Kind == History {
			return nil, damaged("the chart has no state %s", quote(id))
		}
		for ; n != nil; n = n.Parent {
			s.active.add(n)
		}
	}
	for id, recorded := range p.History {
		if err := s.remember(id, recorded); err != nil {
			return nil, err
		}
	}
	if p.Context != nil {
		context, err := clean(p.Context)
		if err != nil {
			return nil, damaged("the context is not JSON: %v", err)
		}
		s.context = context.(map[string]any)
	}
	for id, generation := range p.Generations {
		n, ok := d.byID[id]
		if !ok || n.slot < 0 {
			return nil, damaged("generations: %s has no timers and no invokes", quote(id))
		}
		s.generations[n.slot] = generation
	}
	for _, n := range d.generations {
		if s.active.has(n) && s.generations[n.slot] == 0 {
			s.generations[n.slot] = 1
		}
	}
	s.revision = max(p.Revision, 1)
	if p.Status != "" {
		s.status = p.Status
	}
	if p.Output != nil {
		output, err := clean(p.Output)
		if err != nil {
			return nil, damaged("the output is not JSON: %v", err)
		}
		s.output, s.hasOutput = output, true
	}
	return s, nil
}

func newSnapshot(d *Definition) *Snapshot {
	return &Snapshot{
		def: d, active: make(set, (len(d.nodes)+63)/64), context: map[string]any{},
		generations: make([]uint64, len(d.generations)), status: Active, revision: 1,
	}
}

// remember checks what a history node is to have recorded.
func (s *Snapshot) remember(id string, recorded []string) error {
	h, ok := s.def.byID[id]
	if !ok || h.Kind != History {
		return damaged("history: the chart has no history state %s", quote(id))
	}
	inside := make(set, len(s.active))
	for _, id := range recorded {
		n, ok := s.def.byID[id]
		if !ok || n == h.Parent || !n.In(h.Parent) || h.Deep && len(n.regions) > 0 || !h.Deep && n.Parent != h.Parent || n.Kind == History || inside.has(n) {
			return damaged("history of %s: %s is not a state that it can record", quote(h.ID), quote(id))
		}
		inside.add(n)
	}
	var nodes []int
	for i := inside.next(0, len(s.def.nodes)); i >= 0; i = inside.next(i+1, len(s.def.nodes)) {
		nodes = append(nodes, i)
	}
	for _, i := range nodes {
		for n := s.def.nodes[i].Parent; n != nil; n = n.Parent {
			inside.add(n)
		}
	}
	if !h.Deep { // as if the recorded ones stood where they lead
		on := 0
		for _, c := range h.Parent.regions {
			if inside.has(c) {
				on++
			}
		}
		if h.Parent.Kind == Compound && on != 1 || h.Parent.Kind == Parallel && on != len(h.Parent.regions) {
			return damaged("history of %s: not what it can record", quote(h.ID))
		}
	} else if !legalBelow(inside, h.Parent) {
		return damaged("history of %s: not a legal configuration", quote(h.ID))
	}
	if s.history == nil {
		s.history = map[int][]int{}
	}
	s.history[h.Order] = nodes
	return nil
}

func legalBelow(s set, n *Node) bool {
	on := 0
	for _, c := range n.regions {
		if s.has(c) {
			on++
			if !legalBelow(s, c) {
				return false
			}
		}
	}
	return n.Kind == Compound && on == 1 || n.Kind == Parallel && on == len(n.regions) || len(n.regions) == 0
}

// check is the last word on a snapshot that was not made by a step.
func (s *Snapshot) check() error {
	if !s.def.legal(s.active) {
		return damaged("the states are not a legal configuration of the chart")
	}
	x := step{d: s.def, active: s.active}
	ended := x.ended(s.def.nodes[0])
	switch {
	case s.status != Active && s.status != Done:
		return damaged("status must be active or done, not %s", quote(string(s.status)))
	case ended != (s.status == Done):
		return damaged("status is %s, and the states say otherwise", s.status)
	case s.hasOutput && s.status != Done:
		return damaged("a process that is not done has no output")
	}
	return nil
}
