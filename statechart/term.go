package statechart

// Reads tells whether the term reads the context, the event or the input: op is
// TermContext, TermEvent or TermInput.
func (t Term) Reads(op TermOp) bool {
	if t.Op == op {
		return true
	}
	for i := range t.Args {
		if t.Args[i].Reads(op) {
			return true
		}
	}
	return false
}

// Term is the shape of the value; of nil it is the constant null.
func (v *Value) Term() Term {
	switch {
	case v == nil:
		return Term{}
	case v.Expression != nil:
		return v.Expression.Term()
	case v.Text != "":
		return Term{Op: TermOpaque, Args: []Term{{Op: TermContext}, {Op: TermEvent}}}
	case v.Members != nil:
		args := make([]Term, 0, 2*len(v.Members))
		for _, m := range v.Members {
			args = append(args, Term{Const: m.Key}, m.Value.Term())
		}
		return Term{Op: TermMap, Args: args}
	case v.Elements != nil:
		args := make([]Term, len(v.Elements))
		for i, e := range v.Elements {
			args[i] = e.Term()
		}
		return Term{Op: TermList, Args: args}
	}
	return Term{Const: v.Const}
}

// eval computes a template.
func (v *Value) eval(scope Scope) (any, error) {
	switch {
	case v == nil:
		return nil, nil
	case v.Expression != nil:
		x, err := v.Expression.Eval(scope)
		if err == nil {
			x, err = clean(x)
		}
		if err != nil {
			return nil, &Error{Code: CodeExpression, At: v.At, Text: quote(v.Text), Err: err}
		}
		return x, nil
	case v.Members != nil:
		m := make(map[string]any, len(v.Members))
		for _, a := range v.Members {
			x, err := a.Value.eval(scope)
			if err != nil {
				return nil, err
			}
			m[a.Key] = x
		}
		return m, nil
	case v.Elements != nil:
		l := make([]any, len(v.Elements))
		for i, e := range v.Elements {
			x, err := e.eval(scope)
			if err != nil {
				return nil, err
			}
			l[i] = x
		}
		return l, nil
	}
	return v.Const, nil
}
