package statechart

import "errors"

var errUnfinished = errors.New("statechart: not ready")

// Load checks the text of a chart. The error is a *[Faults] with every fault.
func Load(text []byte, o *Options) (*Definition, error) { return nil, errUnfinished }

// Start makes the first snapshot of a process. Input is JSON as in [Scope].
func Start(d *Definition, input any) (Reaction, error) { return Reaction{}, errUnfinished }

// Next takes an event.
func Next(d *Definition, s *Snapshot, e Event) (Reaction, error) { return Reaction{}, errUnfinished }

// Explore takes a step as Next does (as Start, if s is nil), but lets answer
// decide the guards and evaluates no expression and no function: assigns leave
// the context as it is. It works with definitions loaded with
// Options.NamesOnly. A question is asked once for each guard, context and event.
func Explore(d *Definition, s *Snapshot, e Event, answer func(Question) bool) (Reaction, error) {
	return Reaction{}, errUnfinished
}

// Restore reads a stored snapshot.
func Restore(d *Definition, text []byte) (*Snapshot, error) { return nil, errUnfinished }

// ParseEvent reads an event from outside: an object with a type.
func ParseEvent(text []byte) (Event, error) { return Event{}, errUnfinished }

// TimerEvent is the firing of a timer as a Reaction armed it.
func TimerEvent(t Timer) Event { return Event{} }

// DoneEvent is the answer to an invoke, with its output.
func DoneEvent(i Invoke, output any) Event { return Event{} }

// ErrorEvent is the failure of an invoke, with what is known of it.
func ErrorEvent(i Invoke, problem any) Event { return Event{} }

// Key identifies status, active states and recorded history, and nothing else:
// two snapshots with one key differ in context, generations and revision only.
func (s *Snapshot) Key() string { return "" }

// Timers that run, in document order.
func (s *Snapshot) Timers() []Timer { return nil }

// Invokes that run, in document order.
func (s *Snapshot) Invokes() []Invoke { return nil }

// History gives, by the id of each history node that has recorded something, the
// ids of the nodes, in document order.
func (s *Snapshot) History() map[string][]string { return nil }

// Parts are what a snapshot is made of, for [Assemble].
type Parts struct {
	// States are ids; the active states are those and their ancestors.
	States []string
	// History by the id of the history node.
	History map[string][]string
	Context map[string]any
	// Generations by the id of the node; missing ones are 1 for active nodes.
	Generations map[string]uint64
	Status      Status // "" means Active
	Output      any
	Revision    uint64
}

// Assemble makes a snapshot from its parts and refuses an illegal one.
func Assemble(d *Definition, p Parts) (*Snapshot, error) { return nil, errUnfinished }

// Fault is one thing wrong with a chart.
type Fault struct {
	At   Position
	Text string
}

// Faults are all that is wrong with a chart, in the order of the text.
type Faults struct{ List []Fault }

// Error gives one fault a line.
func (f *Faults) Error() string { return "" }
