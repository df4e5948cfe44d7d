package statechart

import "time"

// Scope is what an expression or a function may read. Values are JSON: nil,
// bool, string, json.Number, []any and map[string]any, and must not be changed.
type Scope struct {
	// Context as it is at this place in the order of actions.
	Context map[string]any
	// Event with all its members, "type" among them.
	Event map[string]any
	// Params of a function, nil if there are none.
	Params any
	// Input of the process; only for the initial context.
	Input any
}

// GuardFunc is a guard written in Go. It must be pure: it reads its scope and
// nothing else.
type GuardFunc struct {
	// Test decides. An error fails the step.
	Test func(Scope) (bool, error)
	// ContextOnly declares that Test does not read the event.
	ContextOnly bool
	// Version is part of the definition's hash; change it when Test changes.
	Version string
}

// FunctionKind is what an action function declares of itself.
type FunctionKind uint8

// The kinds of an action function.
const (
	// Pure: it gives a patch of the context that depends on its scope only.
	Pure FunctionKind = iota + 1
	// Join: pure, and applied twice with one event it gives what it gives once,
	// whatever joins of the same kind came between (set insert, max, or …).
	Join
	// Effect: it acts outside the context. It has no code here: the step lists it
	// in Reaction.Effects.
	Effect
)

// ActionFunc is a named action.
type ActionFunc struct {
	// Kind is required.
	Kind FunctionKind
	// Patch gives the members of the context that change; nil for an Effect. It
	// must be pure. Its values are JSON; Go integers, and floats that are numbers,
	// are taken as well.
	Patch func(Scope) (map[string]any, error)
	// Keyed declares of an Effect that it is idempotent by the key of its event and
	// its place.
	Keyed bool
	// Version is part of the definition's hash.
	Version string
}

// Expressions is a language for {"@expr": …}. Its methods may be called
// concurrently.
type Expressions interface {
	// Language is the word for "@exprLang", such as "cel".
	Language() string
	// Compile checks a text. The error says what is wrong with it.
	Compile(text string, use Use) (Expression, error)
}

// Use is what an expression is for.
type Use uint8

// The uses of an expression.
const (
	// UseGuard: must give a bool.
	UseGuard Use = iota
	// UseValue: must give JSON; it may read context and event.
	UseValue
	// UseInput: must give JSON; it may read input only.
	UseInput
	// UseMigration: must give JSON; it may read context only, of the old snapshot.
	UseMigration
)

// Expression is a compiled text. It may be used concurrently.
type Expression interface {
	// Eval computes the value from the scope: JSON as in [Scope]. An error fails
	// the step.
	Eval(Scope) (any, error)
	// Term is the expression's shape, for analysis.
	Term() Term
}

// TermOp is the form of a term.
type TermOp uint8

// The forms of a term.
const (
	// TermConst: a constant; Const is its value.
	TermConst TermOp = iota
	// TermContext: the context at Path; the whole context if Path is empty.
	TermContext
	// TermEvent: the event at Path; the whole event if Path is empty.
	TermEvent
	// TermInput: the input at Path.
	TermInput
	// TermCall: a call of Name with Args. Operators have CEL's names, such as
	// "_+_", "_in_", "_?_:_", "_&&_", "!_", "_==_", "_[_]"; has() is "has" with
	// the selection as its argument.
	TermCall
	// TermList: a list of Args.
	TermList
	// TermMap: a map; Args are key, value, key, value …
	TermMap
	// TermOpaque: anything else; Args are the parts that it reads.
	TermOpaque
)

// Term is the shape of an expression in no particular language.
type Term struct {
	// Op is the form, Name that of a call's function, Path the way below context,
	// event or input.
	Op   TermOp
	Name string
	Path []string
	// Const is JSON as in [Scope].
	Const any
	Args  []Term
}

// Options of [Load]. Nil means none of them.
type Options struct {
	// Guards and Actions by the names that the chart uses.
	Guards  map[string]GuardFunc
	Actions map[string]ActionFunc
	// Delays by the names that the chart uses.
	Delays map[string]time.Duration
	// Invokes are the sources (src) that may be invoked.
	Invokes []string
	// Expressions is the language of {"@expr": …}; without one a chart with
	// expressions is refused.
	Expressions Expressions
	// NamesOnly takes guards, actions, delays and invokes as bare names where
	// there is no code for them. Such a definition can be explored, not run.
	NamesOnly bool
	// MaxBytes of the text; 0 means 1 MiB.
	MaxBytes int
	// MaxStates of the chart; 0 means 1,000.
	MaxStates int
	// MaxRounds is how many rounds (microsteps) a step may take, unless the chart
	// says less in options.maxIterations; 0 means 100.
	MaxRounds int
}
