package statechart

import (
	"strconv"
	"strings"
)

func itoa(n int) string { return strconv.Itoa(n) }

// choose selects transitions for the event below an active node: the innermost
// candidates win, and a parallel node is asked only if no region has any.
func (x *step) choose(n *Node) error {
	mark := len(x.selected)
	for _, c := range n.regions {
		if x.active.has(c) {
			if err := x.choose(c); err != nil {
				return err
			}
		}
	}
	if len(x.selected) > mark {
		return nil
	}
	if all, ok := n.handlers[x.event.Type]; ok {
		if found, err := x.first(all); found || err != nil {
			return err
		}
	}
	for i := range n.wild {
		if n.wild[i].matches(x.event.Type) {
			if found, err := x.first(n.wild[i].transitions); found || err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *wildcard) matches(event string) bool {
	rest, ok := strings.CutPrefix(event, w.prefix)
	return ok && (w.prefix == "" || rest == "" || rest[0] == '.')
}

// first selects the first candidate whose guard passes.
func (x *step) first(all []*Transition) (bool, error) {
	for _, t := range all {
		pass, err := x.pass(t.Guard, t)
		if err != nil {
			return false, err
		}
		if pass {
			x.selected = append(x.selected, t)
			return true, nil
		}
		x.tried = true
	}
	return false, nil
}

// chooseEventless selects, for each active leaf in document order, the first
// eventless transition of the leaf or of the nearest node above.
func (x *step) chooseEventless() error {
	end := len(x.d.nodes)
leaf:
	for i := x.active.next(0, end); i >= 0; i = x.active.next(i+1, end) {
		if x.d.nodes[i].Kind > Final || len(x.d.nodes[i].regions) > 0 {
			continue
		}
		for n := x.d.nodes[i]; n != nil; n = n.Parent {
			for _, t := range n.Always {
				pass, err := x.pass(t.Guard, t)
				if err != nil {
					return err
				}
				if pass {
					x.selectOnce(t)
					continue leaf
				}
			}
		}
	}
	return nil
}

func (x *step) selectOnce(t *Transition) {
	for _, other := range x.selected {
		if other == t {
			return
		}
	}
	x.selected = append(x.selected, t)
}

// pass answers a guard.
func (x *step) pass(g *Guard, t *Transition) (bool, error) {
	if g == nil {
		return true, nil
	}
	switch g.Op {
	case GuardAnd, GuardOr:
		for _, a := range g.Args {
			pass, err := x.pass(a, t)
			if err != nil || pass == (g.Op == GuardOr) {
				return pass, err
			}
		}
		return g.Op == GuardAnd, nil
	case GuardNot:
		pass, err := x.pass(g.Args[0], t)
		return !pass, err
	case GuardStateIn:
		for _, n := range g.States {
			if !x.active.has(n) {
				return false, nil
			}
		}
		return true, nil
	}
	if x.answer != nil {
		return x.ask(g, t), nil
	}
	fail := func(err error) (bool, error) {
		return false, &Error{Code: CodeExpression, At: g.At, Text: "guard " + quote(g.Name), Err: err}
	}
	scope := x.scope()
	if g.Op == GuardFunction {
		params, err := g.Params.eval(scope)
		if err != nil {
			return false, err
		}
		scope.Params = params
		pass, err := g.test(scope)
		if err != nil {
			return fail(err)
		}
		return pass, nil
	}
	v, err := g.Expression.Eval(scope)
	if err != nil {
		return fail(err)
	}
	pass, ok := v.(bool)
	if !ok {
		return fail(errNotBool())
	}
	return pass, nil
}

// ask lets the explorer answer, once for each guard, context and event.
func (x *step) ask(g *Guard, t *Transition) bool {
	if g.Op == GuardExpression {
		if c, ok := g.Expression.Term().Const.(bool); ok && g.Expression.Term().Op == TermConst {
			return c
		}
	}
	question := asked{g.key, x.moment, x.assigned}
	if g.ContextOnly {
		question.moment = -1
	}
	pass, ok := x.answers[question]
	if !ok {
		pass = x.answer(Question{Guard: g, Transition: t, Event: x.event.Type, Moment: x.moment, Context: x.assigned})
		x.answers[question] = pass
	}
	return pass
}
