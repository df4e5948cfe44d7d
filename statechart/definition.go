package statechart

import (
	"strconv"
	"sync"
	"time"
)

// Profile names the semantics. Definitions and snapshots carry it.
const Profile = "xstate-5.33"

// Position is a place in the text of a definition.
type Position struct {
	// Line and Column count from 1, Column in characters (code points).
	Line, Column int
	// Offset in bytes from 0, and Length in bytes of the value there.
	Offset, Length int
	// Pointer is the JSON pointer (RFC 6901) of the value; "" is the root.
	Pointer string
}

// String gives line, column and pointer.
func (p Position) String() string {
	s := "line " + strconv.Itoa(p.Line) + ", column " + strconv.Itoa(p.Column)
	if p.Pointer != "" {
		s += " (" + p.Pointer + ")"
	}
	return s
}

// NodeKind is the kind of a state node.
type NodeKind uint8

// The kinds of a state node.
const (
	Atomic NodeKind = iota
	Compound
	Parallel
	Final
	History
)

// String gives the word that the definition uses.
func (k NodeKind) String() string {
	return [...]string{"atomic", "compound", "parallel", "final", "history"}[k]
}

// Node is one state. Its fields are for reading only.
type Node struct {
	// ID is the node's own id, else the path of keys from the machine's id.
	ID string
	// Key in the parent's states; the machine's id at the root.
	Key  string
	Kind NodeKind
	// Parent is nil at the root.
	Parent *Node
	// Children in document order, history nodes included.
	Children []*Node
	// Order is the index in [Definition.Nodes]: document order.
	Order int
	// Initial is the initial transition of a compound node, else nil.
	Initial *Transition
	// Deep tells a deep history node from a shallow one.
	Deep bool
	// Default is where a history node leads that has recorded nothing; nil
	// means its parent's initial state, for a parallel parent all its regions.
	Default *Transition
	// Entry and Exit actions, in order.
	Entry, Exit []*Action
	// Transitions on events, those of on, onDone, after and invoke, in the order
	// in which they are candidates for one event type.
	Transitions []*Transition
	// Always are the eventless transitions, in order.
	Always []*Transition
	// Timers that run while the node is active.
	Timers []*TimerDefinition
	// Invokes that run while the node is active.
	Invokes []*InvokeDefinition
	// Output of a final node, and of the root; nil if there is none.
	Output *Value
	Tags   []string
	// Description and Meta have no effect. Meta is JSON as [Value.Const].
	Description string
	Meta        any
	At          Position

	last     int                      // the subtree is the orders [Order, last)
	handlers map[string][]*Transition // exact descriptors
	wild     []wildcard               // by descending length
	history  []*Node                  // history children
	regions  []*Node                  // children without history nodes
	slot     int                      // index of the generation, -1 if none is kept
	done     string                   // type of its done event
}

type wildcard struct {
	descriptor  string
	prefix      string // "a.b" of a.b.*; "" of *
	transitions []*Transition
}

// In tells whether the node is other or lies inside it.
func (n *Node) In(other *Node) bool {
	return n.Order >= other.Order && n.Order < other.last
}

// Origin is the member of the definition that a transition comes from.
type Origin uint8

// The origins of a transition.
const (
	FromOn Origin = iota
	FromAlways
	FromAfter
	FromOnDone
	FromInvokeDone
	FromInvokeError
	FromInitial
	FromHistory
)

// Transition is one candidate. Its fields are for reading only.
type Transition struct {
	// Source is the node that it belongs to, Origin the member of the text.
	Source *Node
	Origin Origin
	// Event is the descriptor: "PAY", "order.*", "*", "xstate.done.state.m.p",
	// "xstate.after.1000.m.a". Empty for always, initial and history.
	Event string
	// Targets is empty for a transition without a target.
	Targets []*Node
	Guard   *Guard // nil: always taken
	Actions []*Action
	Reenter bool
	// Forbidden tells that it has neither target nor actions: it is selected, does
	// nothing, and stops the search further up.
	Forbidden   bool
	Description string
	At          Position
}

// GuardOp is the form of a guard.
type GuardOp uint8

// The forms of a guard.
const (
	GuardFunction   GuardOp = iota // a function of Options.Guards
	GuardExpression                // {"@expr": …}
	GuardAnd
	GuardOr
	GuardNot
	GuardStateIn
	GuardUnknown // a name without code: only with Options.NamesOnly
)

// Guard is a condition. Its fields are for reading only.
type Guard struct {
	// Op is the form.
	Op GuardOp
	// Name of the function, or text of the expression.
	Name string
	// Params for the function, nil if there are none.
	Params *Value
	// Args of and, or (any number) and not (one).
	Args []*Guard
	// States that must all be active for stateIn.
	States []*Node
	// Expression of GuardExpression.
	Expression Expression
	// ContextOnly tells that the function was declared, or the expression was
	// found, not to read the event.
	ContextOnly bool
	At          Position

	test func(Scope) (bool, error)
	key  string // two guards with one key have one answer
}

// ActionOp is the form of an action.
type ActionOp uint8

// The forms of an action.
const (
	ActionAssign   ActionOp = iota // the built-in assign
	ActionRaise                    // the built-in raise
	ActionFunction                 // a function of Options.Actions that gives a patch: pure or join
	ActionEffect                   // a name of Options.Actions declared an effect
	ActionUnknown                  // a name without code: only with Options.NamesOnly
)

// Action is one action of a list. Its fields are for reading only.
type Action struct {
	// Op is the form; Name is "assign" or "raise" for the built-in ones.
	Op   ActionOp
	Name string
	// Params of a function or an effect, nil if there are none.
	Params *Value
	// Assigns of ActionAssign, in the order of the text. All read the context as
	// it was before the action.
	Assigns []Assign
	// Raise is the type, and Data the other members (or nil), of ActionRaise.
	Raise string
	Data  *Value
	// Join tells that the function was declared absorbing: applied twice it
	// gives what it gives once.
	Join bool
	// Keyed tells that the effect was declared to be idempotent by its key: the
	// event's identity and the effect's place.
	Keyed bool
	At    Position

	patch func(Scope) (map[string]any, error)
}

// Assign is one member of an assign action.
type Assign struct {
	// Key is set to Value.
	Key   string
	Value *Value
	At    Position
}

// Value is JSON in which expressions may stand anywhere. Its fields are for
// reading only.
type Value struct {
	// Expression is set if the whole value is {"@expr": …}; Text is its text.
	Expression Expression
	Text       string
	// Const is the value if no expression stands in it: nil, bool, string,
	// json.Number, []any or map[string]any.
	Const any
	// Members or Elements are set if an expression stands inside.
	Members  []Assign
	Elements []*Value
	At       Position
}

// TimerDefinition is one delay of an after.
type TimerDefinition struct {
	// Delay as written: milliseconds in digits, or a name.
	Delay string
	// After is the delay; 0 for a name without a delay (Options.NamesOnly).
	After time.Duration
	// Event is the type that the timer sends: xstate.after.<delay>.<node id>.
	Event string
	At    Position
}

// InvokeDefinition is one invoke of a node.
type InvokeDefinition struct {
	// ID is its own id, else <index>.<node id>.
	ID string
	// Source names what is invoked (src).
	Source string
	Input  *Value // nil if there is none
	At     Position
}

// Declared is one member of a declaration that the chart carries for other
// packages, such as duplicates and early.
type Declared struct {
	// Event is the descriptor and Word what is declared for it.
	Event, Word string
	At          Position
}

// Definition is a checked chart. It never changes and may be shared between
// goroutines.
type Definition struct {
	id, version string
	hash        string
	canonical   []byte
	nodes       []*Node
	byID        map[string]*Node
	context     *Value
	duplicates  []Declared
	early       []Declared
	limit       int
	stated      bool    // the chart says its limit itself
	generations []*Node // nodes whose entries are counted
	unnamed     []string
	always      bool // some node has eventless transitions
	scratch     sync.Pool
}

// ID is the machine's id.
func (d *Definition) ID() string { return d.id }

// Version is the chart's version, "" if it has none.
func (d *Definition) Version() string { return d.version }

// Hash identifies what the chart does: "sha256:" and the digest, in hex, of
// [Definition.Canonical].
func (d *Definition) Hash() string { return d.hash }

// Canonical is the form that the hash covers: the chart without description,
// meta and declarations, members sorted but for the order of states, numbers by
// value, with the profile and the declarations of the functions in use.
func (d *Definition) Canonical() []byte { return append([]byte(nil), d.canonical...) }

// Root is the machine's own node.
func (d *Definition) Root() *Node { return d.nodes[0] }

// Nodes are all nodes in document order: a parent before its children, children
// in the order of the text. The slice is for reading only.
func (d *Definition) Nodes() []*Node { return d.nodes }

// Node finds a node by its id.
func (d *Definition) Node(id string) (*Node, bool) {
	n, ok := d.byID[id]
	return n, ok
}

// Context is the initial context, nil if the chart has none.
func (d *Definition) Context() *Value { return d.context }

// Limit is how many rounds a step may take.
func (d *Definition) Limit() int { return d.limit }

// Duplicates is the chart's declaration of what a duplicate of each event may
// do ("duplicates": {"PAY": "until-cycle"}). Package analyze holds it.
func (d *Definition) Duplicates() []Declared { return d.duplicates }

// Early is the chart's declaration of what is to become of an event that is not
// handled yet ("early": {"SHIP": "defer"}): defer, reject or ignore.
func (d *Definition) Early() []Declared { return d.early }

// Unnamed lists the names without code that Options.NamesOnly let pass. If there
// are any, the definition can be explored but not run.
func (d *Definition) Unnamed() []string { return d.unnamed }
