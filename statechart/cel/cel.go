package cel

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"

	"github.com/unavez/unavez/statechart"
)

// Options of [New]. Nil means the defaults.
type Options struct {
	// CostLimit bounds each run of an expression, in CEL's units; 0 means 10,000.
	CostLimit uint64
}

const (
	defaultCost   = 10_000
	maxCharacters = 10_000
	maxNesting    = 100
)

// Language compiles CEL. It may be used concurrently.
type Language struct {
	cost         uint64
	environments [4]*cel.Env // by statechart.Use
}

var _ statechart.Expressions = (*Language)(nil)

// New makes the language ready.
func New(o *Options) (*Language, error) {
	l := &Language{cost: defaultCost}
	if o != nil && o.CostLimit > 0 {
		l.cost = o.CostLimit
	}
	base, err := cel.NewEnv(
		cel.CustomTypeAdapter(adapter{}),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxCharacters),
		cel.ParserRecursionLimit(maxNesting),
		ext.Math(),
		Decimals(),
	)
	if err != nil {
		return nil, fmt.Errorf("cel: %w", err)
	}
	members := cel.MapType(cel.StringType, cel.DynType)
	variables := map[statechart.Use][]cel.EnvOption{
		statechart.UseGuard:     {cel.Variable("context", members), cel.Variable("event", members)},
		statechart.UseInput:     {cel.Variable("input", cel.DynType)},
		statechart.UseMigration: {cel.Variable("context", members)},
	}
	variables[statechart.UseValue] = variables[statechart.UseGuard]
	for use, options := range variables {
		if l.environments[use], err = base.Extend(options...); err != nil {
			return nil, fmt.Errorf("cel: %w", err)
		}
	}
	return l, nil
}

// Decimals is the exact numbers of this package for an environment of one's own:
// the function decimal, which takes a text, an int or a decimal, and string, int
// and double of its result. Such a result is a ref.Val whose Value is a json.Number.
func Decimals() cel.EnvOption {
	options := []cel.EnvOption{
		cel.Function("decimal",
			cel.Overload("decimal_of", []*cel.Type{cel.DynType}, cel.DynType, cel.UnaryBinding(toDecimal))),
		conversion("string", cel.StringType),
		conversion("double", cel.DoubleType),
		conversion("int", cel.IntType),
	}
	return func(e *cel.Env) (*cel.Env, error) {
		var err error
		for _, option := range options {
			if e, err = option(e); err != nil {
				return nil, err
			}
		}
		return e, nil
	}
}

// conversion lets one of CEL's conversions take a decimal.
func conversion(name string, to *cel.Type) cel.EnvOption {
	return cel.Function(name, cel.Overload("decimal_to_"+name, []*cel.Type{decimalType()}, to,
		cel.UnaryBinding(func(v ref.Val) ref.Val { return v.ConvertToType(to) })))
}

// Language is "cel".
func (l *Language) Language() string { return "cel" }

// Compile checks a text for its use: names, types, and whether the result can be
// what it has to be.
func (l *Language) Compile(text string, use statechart.Use) (statechart.Expression, error) {
	if int(use) >= len(l.environments) {
		return nil, fmt.Errorf("cel: unknown use %d", use)
	}
	ast, issues := l.environments[use].Compile(text)
	if all := issues.Errors(); len(all) > 0 {
		err := all[0]
		return nil, fmt.Errorf("expression, line %d, column %d: %s", err.Location.Line(), err.Location.Column()+1, err.Message)
	}
	if err := fits(ast.OutputType(), use); err != nil {
		return nil, err
	}
	program, err := l.environments[use].Program(ast, cel.CostLimit(l.cost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("expression: %w", err)
	}
	return &expression{program: program, term: term(ast.NativeRep().Expr()), guard: use == statechart.UseGuard, limit: l.cost}, nil
}

// fits refuses a type that can never be right.
func fits(t *cel.Type, use statechart.Use) error {
	if use == statechart.UseGuard {
		if t.Kind() != types.BoolKind && t.Kind() != types.DynKind {
			return fmt.Errorf("a guard must give a bool, and this gives %s", t)
		}
		return nil
	}
	switch t.Kind() {
	case types.TimestampKind, types.DurationKind, types.BytesKind:
		return fmt.Errorf("the result must be JSON, and this gives %s: write string(…)", t)
	case types.TypeKind:
		return errors.New("the result must be JSON, and this gives a type")
	}
	return nil
}

type expression struct {
	program cel.Program
	term    statechart.Term
	guard   bool
	limit   uint64
}

var _ statechart.Expression = (*expression)(nil)

// Term is the expression's shape.
func (e *expression) Term() statechart.Term { return e.term }

// Eval runs the expression.
func (e *expression) Eval(scope statechart.Scope) (any, error) {
	if e.term.Op == statechart.TermConst {
		return e.term.Const, nil
	}
	if v, ok := e.lookup(&scope); ok {
		return v, nil
	}
	v, _, err := e.program.Eval(activation{&scope})
	if err != nil {
		if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && cancelled.Cause == interpreter.CostLimitExceeded {
			return nil, fmt.Errorf("costs more than the limit of %d", e.limit)
		}
		if strings.HasPrefix(err.Error(), "no such overload") {
			err = fmt.Errorf("%w: the operator does not take these types; left of a decimal write decimal(…) around an int", err)
		}
		return nil, err
	}
	if e.guard {
		b, ok := v.(types.Bool)
		if !ok {
			return nil, fmt.Errorf("a guard must give a bool, and this gave %s", v.Type())
		}
		return bool(b), nil
	}
	return plain(v, 0)
}

// lookup answers an expression that only names a member, such as event.id,
// without running it: the value is given back as it was.
func (e *expression) lookup(scope *statechart.Scope) (v any, ok bool) {
	if e.guard {
		return nil, false
	}
	switch e.term.Op {
	case statechart.TermContext:
		v = scope.Context
	case statechart.TermEvent:
		v = scope.Event
	case statechart.TermInput:
		v = scope.Input
	default:
		return nil, false
	}
	for _, key := range e.term.Path {
		m, isMap := v.(map[string]any)
		if !isMap {
			return nil, false // CEL says what is wrong
		}
		if v, ok = m[key]; !ok {
			return nil, false
		}
	}
	return v, true
}

// activation gives CEL the scope without a copy.
type activation struct{ *statechart.Scope }

// ResolveName finds a variable.
func (a activation) ResolveName(name string) (any, bool) {
	switch name {
	case "context":
		return a.Context, true
	case "event":
		return a.Event, true
	case "input":
		return a.Input, true
	}
	return nil, false
}

// Parent is nil: there is one level.
func (a activation) Parent() interpreter.Activation { return nil }

// adapter turns JSON into values of CEL.
type adapter struct{}

var _ types.Adapter = adapter{}

// NativeToValue implements types.Adapter.
func (adapter) NativeToValue(v any) ref.Val {
	return toValue(v)
}
