package cel

import (
	"encoding/json"
	"strconv"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/unavez/unavez/statechart"
)

// term gives the shape of an expression. What it does not name is opaque, with
// everything that is read inside.
func term(e ast.Expr) statechart.Term {
	switch e.Kind() {
	case ast.LiteralKind:
		return literal(e)
	case ast.IdentKind:
		return variable(e.AsIdent())
	case ast.SelectKind:
		s := e.AsSelect()
		path := selected(term(s.Operand()), s.FieldName())
		if s.IsTestOnly() {
			return statechart.Term{Op: statechart.TermCall, Name: "has", Args: []statechart.Term{path}}
		}
		return path
	case ast.CallKind:
		return call(e.AsCall())
	case ast.ListKind:
		return statechart.Term{Op: statechart.TermList, Args: terms(e.AsList().Elements())}
	case ast.MapKind:
		t := statechart.Term{Op: statechart.TermMap}
		for _, entry := range e.AsMap().Entries() {
			m := entry.AsMapEntry()
			t.Args = append(t.Args, term(m.Key()), term(m.Value()))
		}
		return t
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		return opaque(c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result())
	case ast.StructKind:
		t := statechart.Term{Op: statechart.TermOpaque}
		for _, field := range e.AsStruct().Fields() {
			t.Args = append(t.Args, term(field.AsStructField().Value()))
		}
		return t
	}
	return statechart.Term{Op: statechart.TermOpaque}
}

func terms(all []ast.Expr) []statechart.Term {
	out := make([]statechart.Term, len(all))
	for i, e := range all {
		out[i] = term(e)
	}
	return out
}

func opaque(parts ...ast.Expr) statechart.Term {
	return statechart.Term{Op: statechart.TermOpaque, Args: terms(parts)}
}

func literal(e ast.Expr) statechart.Term {
	t := statechart.Term{Op: statechart.TermConst}
	switch v := e.AsLiteral().(type) {
	case types.Null:
	case types.Bool:
		t.Const = bool(v)
	case types.String:
		t.Const = string(v)
	case types.Int:
		t.Const = json.Number(strconv.FormatInt(int64(v), 10))
	case types.Uint:
		t.Const = json.Number(strconv.FormatUint(uint64(v), 10))
	case types.Double:
		t.Const = json.Number(strconv.FormatFloat(float64(v), 'g', -1, 64))
	default:
		return statechart.Term{Op: statechart.TermOpaque}
	}
	return t
}

func variable(name string) statechart.Term {
	switch name {
	case "context":
		return statechart.Term{Op: statechart.TermContext}
	case "event":
		return statechart.Term{Op: statechart.TermEvent}
	case "input":
		return statechart.Term{Op: statechart.TermInput}
	}
	return statechart.Term{Op: statechart.TermOpaque} // of a macro; what it ranges over is named there
}

// selected goes one step down a path.
func selected(of statechart.Term, field string) statechart.Term {
	switch of.Op {
	case statechart.TermContext, statechart.TermEvent, statechart.TermInput:
		of.Path = append(of.Path[:len(of.Path):len(of.Path)], field)
		return of
	}
	return statechart.Term{
		Op: statechart.TermCall, Name: operators.Index,
		Args: []statechart.Term{of, {Const: field}},
	}
}

func call(c ast.CallExpr) statechart.Term {
	args := terms(c.Args())
	if c.IsMemberFunction() {
		args = append([]statechart.Term{term(c.Target())}, args...)
	}
	name := c.FunctionName()
	switch name {
	case operators.In:
		name = operators.OldIn
	case operators.Index:
		if key, ok := args[1].Const.(string); ok && args[1].Op == statechart.TermConst {
			return selected(args[0], key)
		}
	}
	return statechart.Term{Op: statechart.TermCall, Name: name, Args: args}
}
