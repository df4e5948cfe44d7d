package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"

	decimals "github.com/unavez/unavez/statechart/cel"
)

// Bounds of an expression.
const (
	// Cost is what one run of an expression may cost, in CEL's units: about one
	// for each step.
	Cost = 10_000

	maxCharacters = 10_000
	maxNesting    = 100
)

// Language compiles expressions. It may be used concurrently.
type Language struct {
	env  *cel.Env
	last sync.Pool // of *kept
}

// New makes the language ready.
func New() (*Language, error) {
	texts := cel.ListType(cel.StringType)
	env, err := cel.NewEnv(
		cel.CustomTypeAdapter(adapter{}),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxCharacters),
		cel.ParserRecursionLimit(maxNesting),
		ext.Strings(ext.StringsVersion(3)),
		decimals.Decimals(),
		cel.Variable("source", cel.StringType),
		cel.Variable("type", cel.StringType),
		cel.Variable("id", texts),
		cel.Variable("subject", texts),
		cel.Variable("version", cel.StringType),
		cel.Variable("tenant", cel.StringType),
		cel.Variable("time", cel.TimestampType),
		cel.Variable("attributes", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("data", cel.DynType),
	)
	if err != nil {
		return nil, fmt.Errorf("rule: %w", err)
	}
	return &Language{env: env}, nil
}

// expression is a compiled text.
type expression struct {
	program cel.Program
	ast     *cel.Ast
	env     *cel.Env
}

// compile reads a text. An error names its line and column within the text.
func (l *Language) compile(text string) (*expression, error) {
	ast, issues := l.env.Compile(text)
	if all := issues.Errors(); len(all) > 0 {
		at := all[0].Location
		message, _, _ := strings.Cut(all[0].Message, " expecting {") // a list of everything there is
		return nil, fmt.Errorf("line %d, column %d of the expression: %s", at.Line(), max(at.Column()+1, 1), message)
	}
	program, err := l.env.Program(ast, cel.CostLimit(Cost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return &expression{program, ast, l.env}, nil
}

// eval runs the expression.
func (e *expression) eval(s *Scope) (ref.Val, error) {
	v, _, err := e.program.Eval(s)
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded {
		return nil, fmt.Errorf("costs more than the limit of %d", Cost)
	}
	return v, err
}

// When says which events are wanted.
type When struct{ *expression }

// When compiles an expression that gives a bool.
func (l *Language) When(text string) (*When, error) {
	e, err := l.compile(text)
	if err != nil {
		return nil, err
	}
	if t := e.ast.OutputType(); t.Kind() != types.BoolKind && t.Kind() != types.DynKind {
		return nil, fmt.Errorf("gives %s, want a bool", t)
	}
	return &When{e}, nil
}

// Holds runs it.
func (w *When) Holds(s *Scope) (bool, error) {
	v, err := w.eval(s)
	if err != nil {
		return false, err
	}
	holds, ok := v.(types.Bool)
	if !ok {
		return false, fmt.Errorf("gave %s, want a bool", v.Type().TypeName())
	}
	return bool(holds), nil
}

// Possible reports whether it can hold for any event of a source, as far as the
// name of the source alone decides that.
func (w *When) Possible(source string) bool {
	program, err := w.env.Program(w.ast, cel.CostLimit(Cost), cel.EvalOptions(cel.OptPartialEval))
	if err != nil {
		return true
	}
	unknown := []*cel.AttributePatternType{}
	for _, name := range []string{"type", "id", "subject", "version", "tenant", "time", "attributes", "data"} {
		unknown = append(unknown, cel.AttributePattern(name))
	}
	known, err := cel.PartialVars(map[string]any{"source": source}, unknown...)
	if err != nil {
		return true
	}
	v, _, err := program.Eval(known)
	return err != nil || v != types.False
}

// Parts are expressions that give the parts of a key, one after the other.
type Parts []*Part

// Part is one of them. One that gives a list gives all its elements.
type Part struct{ *expression }

// Part compiles an expression that gives a part of a key: a string or a whole
// number, or a list of those.
func (l *Language) Part(text string) (*Part, error) {
	e, err := l.compile(text)
	if err != nil {
		return nil, err
	}
	t := e.ast.OutputType()
	if t.Kind() == types.ListKind {
		t = t.Parameters()[0]
	}
	if !partial(t.Kind()) {
		return nil, fmt.Errorf("gives %s, want a string or a whole number", t)
	}
	return &Part{e}, nil
}

func partial(k types.Kind) bool {
	return slices.Contains([]types.Kind{types.StringKind, types.IntKind, types.UintKind, types.DynKind, types.StructKind, types.TypeParamKind}, k)
}

// Of runs them. What is neither a string nor a number is no part, and neither is
// an empty string.
func (p Parts) Of(s *Scope) ([]string, error) {
	var all []string
	for i, one := range p {
		v, err := one.eval(s)
		if err != nil {
			return nil, fmt.Errorf("part %d: %w", i+1, err)
		}
		list, ok := v.(traits.Lister)
		if !ok {
			text, err := part(v)
			if err != nil {
				return nil, fmt.Errorf("part %d: %w", i+1, err)
			}
			all = append(all, text)
			continue
		}
		for it := list.Iterator(); it.HasNext() == types.True; {
			text, err := part(it.Next())
			if err != nil {
				return nil, fmt.Errorf("part %d: %w", i+1, err)
			}
			all = append(all, text)
		}
	}
	return all, nil
}

// part is a value as a part of a key.
func part(v ref.Val) (string, error) {
	switch v := v.(type) {
	case types.String:
		if v == "" {
			return "", errors.New("an empty string is no identity")
		}
		return string(v), nil
	case types.Int, types.Uint:
		return fmt.Sprint(v.Value()), nil
	}
	if number, ok := v.Value().(json.Number); ok {
		return decimalText(number)
	}
	return "", fmt.Errorf("gave %s, want a string or a whole number", v.Type().TypeName())
}

// Text is an expression that gives one text.
type Text struct{ *expression }

// Text compiles an expression that gives a string, a whole number, or a
// timestamp, which becomes RFC 3339.
func (l *Language) Text(text string) (*Text, error) {
	e, err := l.compile(text)
	if err != nil {
		return nil, err
	}
	if t := e.ast.OutputType(); !partial(t.Kind()) && t.Kind() != types.TimestampKind {
		return nil, fmt.Errorf("gives %s, want a string, a whole number or a timestamp", t)
	}
	return &Text{e}, nil
}

// Of runs it.
func (t *Text) Of(s *Scope) (string, error) {
	v, err := t.eval(s)
	if err != nil {
		return "", err
	}
	if at, ok := v.(types.Timestamp); ok {
		return at.Time.UTC().Format(time.RFC3339Nano), nil
	}
	return part(v)
}

// Reads reports whether the expression names a variable.
func (e *expression) Reads(variable string) bool {
	for _, reference := range e.ast.NativeRep().ReferenceMap() {
		if reference.Name == variable {
			return true
		}
	}
	return false
}
