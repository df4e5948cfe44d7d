package statechart

import "maps"

// run runs a list of actions in order. All see the event of the round; each sees
// the context that those before it left.
func (x *step) run(actions []*Action, n *Node) error {
	for _, a := range actions {
		if x.answer != nil {
			x.ran = append(x.ran, Ran{a, n, x.event.Type})
		}
		var err error
		switch a.Op {
		case ActionAssign:
			err = x.assign(a)
		case ActionRaise:
			err = x.raise(a)
		case ActionFunction:
			err = x.patch(a)
		case ActionEffect:
			err = x.effect(a, n)
		case ActionUnknown:
			x.assigned++
			x.touched = true
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *step) assign(a *Action) error {
	x.touched = true
	x.assigned++
	if x.answer != nil {
		return nil
	}
	scope := x.scope()
	x.values = x.values[:0]
	for i := range a.Assigns {
		v, err := a.Assigns[i].Value.eval(scope)
		if err != nil {
			return err
		}
		x.values = append(x.values, v)
	}
	for i := range a.Assigns {
		x.set(a.Assigns[i].Key, x.values[i])
	}
	return nil
}

// set writes one member of the context, in a copy that nobody has seen.
func (x *step) set(key string, v any) {
	if old, ok := x.context[key]; ok && same(old, v) {
		return
	}
	if !x.ownContext {
		x.ownContext, x.context = true, maps.Clone(x.context)
	}
	x.context[key] = v
	x.changed = true
}

func (x *step) patch(a *Action) error {
	x.touched = true
	x.assigned++
	if x.answer != nil {
		return nil
	}
	scope := x.scope()
	var err error
	if scope.Params, err = a.Params.eval(scope); err != nil {
		return err
	}
	patch, err := a.patch(scope)
	if err != nil {
		return &Error{Code: CodeExpression, At: a.At, Text: "action " + quote(a.Name), Err: err}
	}
	v, err := clean(patch)
	if err != nil {
		return &Error{Code: CodeExpression, At: a.At, Text: "action " + quote(a.Name) + " gave no JSON", Err: err}
	}
	for key, value := range v.(map[string]any) {
		x.set(key, value)
	}
	return nil
}

func (x *step) raise(a *Action) error {
	if x.answer != nil {
		x.queue = append(x.queue, Event{Type: a.Raise, source: fromInside})
		return nil
	}
	data, err := a.Data.eval(x.scope())
	if err != nil {
		return err
	}
	x.queue = append(x.queue, Event{Type: a.Raise, Data: data.(map[string]any), source: fromInside})
	return nil
}

func (x *step) effect(a *Action, n *Node) error {
	call := EffectCall{Name: a.Name, Keyed: a.Keyed, Place: len(x.effects), State: n.ID}
	if x.answer == nil {
		scope := x.scope()
		params, err := a.Params.eval(scope)
		if err != nil {
			return err
		}
		call.Params, call.Context, call.Event = params, scope.Context, scope.Event
		x.ownContext = false // the caller sees it
	}
	x.effects = append(x.effects, call)
	return nil
}
