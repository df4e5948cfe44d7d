package statechart

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Layout is the version of the JSON of a snapshot.
const Layout = 1

// maxSnapshot and maxEvent bound what Restore and ParseEvent read, in bytes.
const (
	maxSnapshot = 16 << 20
	maxEvent    = 16 << 20
)

// Header says what a stored snapshot belongs to.
type Header struct {
	// Layout of the JSON; see the constant.
	Layout int
	// Profile of the semantics.
	Profile string
	// Machine, Version and Definition are id, version and hash of the definition.
	Machine, Version, Definition string
	Revision                     uint64
}

// MarshalJSON writes the snapshot in the form that Restore describes. Equal
// snapshots give equal bytes, and Restore of the bytes gives an equal snapshot. One
// of more than 16 MiB is refused with [CodeLimit], since it could not be read.
func (s *Snapshot) MarshalJSON() ([]byte, error) {
	w := &writer{exact: true}
	w.open('{')
	w.key("layout")
	w.raw(strconv.Itoa(Layout))
	for _, m := range [...][2]string{{"profile", Profile}, {"machine", s.def.id}, {"version", s.def.version}, {"definition", s.def.hash}} {
		w.key(m[0])
		w.str(m[1])
	}
	w.key("revision")
	w.raw(strconv.FormatUint(s.revision, 10))
	w.key("status")
	w.str(string(s.status))
	w.key("value")
	s.writeValue(w, s.def.nodes[0])
	w.key("context")
	w.json(s.context)
	if len(s.history) > 0 {
		w.key("history")
		w.open('{')
		for _, h := range slices.Sorted(maps.Keys(s.history)) {
			w.key(s.def.nodes[h].ID)
			w.open('[')
			for _, i := range s.history[h] {
				w.comma()
				w.str(s.def.nodes[i].ID)
			}
			w.close(']')
		}
		w.close('}')
	}
	if slices.ContainsFunc(s.generations, func(g uint64) bool { return g > 0 }) {
		w.key("generations")
		w.open('{')
		for _, n := range s.def.generations {
			if g := s.generations[n.slot]; g > 0 {
				w.key(n.ID)
				w.raw(strconv.FormatUint(g, 10))
			}
		}
		w.close('}')
	}
	if s.hasOutput {
		w.key("output")
		w.json(s.output)
	}
	w.close('}')
	if w.out.Len() > maxSnapshot {
		return nil, &Error{Code: CodeLimit, Text: "the snapshot has more than " + strconv.Itoa(maxSnapshot) + " bytes: the context grows without an end"}
	}
	return w.out.Bytes(), nil
}

func (s *Snapshot) writeValue(w *writer, n *Node) {
	if n.Kind == Compound {
		for _, c := range n.regions {
			if s.active.has(c) && len(c.regions) == 0 {
				w.str(c.Key)
				return
			}
		}
	}
	w.open('{')
	for _, c := range n.regions {
		if s.active.has(c) {
			w.key(c.Key)
			s.writeValue(w, c)
		}
	}
	w.close('}')
}

func damaged(format string, args ...any) error {
	return &Error{Code: CodeDamaged, Text: "snapshot: " + fmt.Sprintf(format, args...)}
}

func foreign(format string, args ...any) error {
	return &Error{Code: CodeForeign, Text: "snapshot: " + fmt.Sprintf(format, args...)}
}

func parseSnapshot(text []byte) (*tree, error) {
	if len(text) > maxSnapshot {
		return nil, damaged("%d bytes, more than %d", len(text), maxSnapshot)
	}
	t, err := parseStrict(text)
	if err != nil {
		return nil, &Error{Code: CodeDamaged, Text: "snapshot", Err: err}
	}
	if t.kind != '{' {
		return nil, damaged("must be an object, not %s", t.what())
	}
	return t, nil
}

// ReadHeader tells what a stored snapshot belongs to, so that its definition can
// be found. It checks nothing else of it.
func ReadHeader(text []byte) (Header, error) {
	t, err := parseSnapshot(text)
	if err != nil {
		return Header{}, err
	}
	return header(t)
}

func header(t *tree) (h Header, err error) {
	layout, err := count(t, "layout")
	if err != nil {
		return h, err
	}
	if layout != Layout {
		return h, foreign("its layout is %d, and this program reads layout %d: it was written by another version", layout, Layout)
	}
	h.Layout = Layout
	for _, field := range []struct {
		key string
		to  *string
	}{{"profile", &h.Profile}, {"machine", &h.Machine}, {"version", &h.Version}, {"definition", &h.Definition}} {
		m := t.member(field.key)
		if m == nil || m.kind != '"' {
			return h, damaged("%s must be a string", field.key)
		}
		*field.to = m.text
	}
	h.Revision, err = count(t, "revision")
	return h, err
}

// count reads a whole number from 1.
func count(t *tree, key string) (uint64, error) {
	m := t.member(key)
	if m == nil || m.kind != '0' {
		return 0, damaged("%s must be a number", key)
	}
	n, err := strconv.ParseUint(m.text, 10, 63)
	if err != nil || n == 0 {
		return 0, damaged("%s must be a whole number from 1", key)
	}
	return n, nil
}

// Restore reads a stored snapshot. It takes what Snapshot.MarshalJSON wrote, for
// this very definition, in any order of members (jsonb loses it), and nothing
// else: it adds nothing, drops nothing and runs nothing. The error has
// [CodeForeign] if the snapshot belongs to something else, else [CodeDamaged].
//
// Layout 1 is an object with
//
//	layout       1
//	profile      the semantics, "xstate-5.33"
//	machine      id of the chart
//	version      version of the chart, "" if it has none
//	definition   hash of the definition
//	revision     steps that changed something, from 1
//	status       "active" or "done"
//	value        the state value as XState writes it
//	context      the context, numbers as written
//	history      id of a history state → ids of what it recorded; absent if nothing
//	generations  id of a state with timers or invokes → entries so far; absent if none
//	output       of a process that is done; absent if none
func Restore(d *Definition, text []byte) (*Snapshot, error) {
	t, err := parseSnapshot(text)
	if err != nil {
		return nil, err
	}
	h, err := header(t)
	if err != nil {
		return nil, err
	}
	switch {
	case h.Profile != Profile:
		return nil, foreign("its profile is %s, not %s", quote(h.Profile), Profile)
	case h.Machine != d.id:
		return nil, foreign("it belongs to the chart %s, not to %s", quote(h.Machine), quote(d.id))
	case h.Version != d.version:
		return nil, foreign("it belongs to version %s of the chart, not to %s: migrate it", quote(h.Version), quote(d.version))
	case h.Definition != d.hash:
		return nil, foreign("it belongs to the definition %s, not to %s: the chart or a function's version changed; migrate it", quote(h.Definition), d.hash)
	}
	s := newSnapshot(d)
	s.revision = h.Revision
	if err := s.fill(t); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// fill reads the members after the header.
func (s *Snapshot) fill(t *tree) error {
	for _, key := range []string{"status", "value", "context"} {
		if t.member(key) == nil {
			return damaged("%s is missing", key)
		}
	}
	for i := range t.members {
		m := t.members[i].value
		var err error
		switch key := t.members[i].key; key {
		case "layout", "profile", "machine", "version", "definition", "revision":
		case "status":
			s.status = Status(m.text)
		case "value":
			err = s.fillValue(s.def.nodes[0], m)
		case "context":
			if m.kind != '{' {
				return damaged("context must be an object, not %s", m.what())
			}
			s.context = m.plain().(map[string]any)
		case "history":
			err = s.fillHistory(m)
		case "generations":
			err = s.fillGenerations(m)
		case "output":
			s.output, s.hasOutput = m.plain(), true
		default:
			err = damaged("there is no member %s", quote(key))
		}
		if err != nil {
			return err
		}
	}
	for _, n := range s.def.generations {
		if s.active.has(n) && s.generations[n.slot] == 0 {
			return damaged("generations: %s is active and has none", quote(n.ID))
		}
	}
	return nil
}

func (s *Snapshot) fillValue(n *Node, t *tree) error {
	s.active.add(n)
	child := func(key string) (*Node, error) {
		for _, c := range n.regions {
			if c.Key == key {
				return c, nil
			}
		}
		return nil, damaged("value: %s has no state %s", quote("#"+n.ID), quote(key))
	}
	if t.kind == '"' {
		c, err := child(t.text)
		if err != nil {
			return err
		}
		if n.Kind != Compound || len(c.regions) > 0 {
			return damaged("value: %s alone does not say where in %s the process stands", quote(t.text), quote("#"+n.ID))
		}
		s.active.add(c)
		return nil
	}
	if t.kind != '{' {
		return damaged("value of %s must be a string or an object, not %s", quote("#"+n.ID), t.what())
	}
	for i := range t.members {
		c, err := child(t.members[i].key)
		if err != nil {
			return err
		}
		if err := s.fillValue(c, t.members[i].value); err != nil {
			return err
		}
	}
	return nil
}

func (s *Snapshot) fillHistory(t *tree) error {
	if t.kind != '{' {
		return damaged("history must be an object, not %s", t.what())
	}
	for i := range t.members {
		m := &t.members[i]
		if m.value.kind != '[' {
			return damaged("history of %s must be a list, not %s", quote(m.key), m.value.what())
		}
		ids := make([]string, len(m.value.elements))
		for j, e := range m.value.elements {
			if e.kind != '"' {
				return damaged("history of %s must be a list of ids", quote(m.key))
			}
			ids[j] = e.text
		}
		if err := s.remember(m.key, ids); err != nil {
			return err
		}
	}
	return nil
}

func (s *Snapshot) fillGenerations(t *tree) error {
	if t.kind != '{' {
		return damaged("generations must be an object, not %s", t.what())
	}
	for i := range t.members {
		key := t.members[i].key
		n, ok := s.def.byID[key]
		if !ok || n.slot < 0 {
			return damaged("generations: %s has no timers and no invokes", quote(key))
		}
		g, err := count(t, key)
		if err != nil {
			return err
		}
		s.generations[n.slot] = g
	}
	return nil
}

// ParseEvent reads an event from outside: a JSON object with a type. Numbers are
// kept as written; a repeated member is an error.
func ParseEvent(text []byte) (Event, error) {
	refuse := func(format string, args ...any) (Event, error) {
		return Event{}, &Error{Code: CodeRefused, Text: "event: " + fmt.Sprintf(format, args...)}
	}
	if len(text) > maxEvent {
		return refuse("%d bytes, more than %d", len(text), maxEvent)
	}
	t, err := parseStrict(text)
	if err != nil {
		return refuse("%v", err)
	}
	if t.kind != '{' {
		return refuse("must be an object, not %s", t.what())
	}
	kind := t.member("type")
	if kind == nil || kind.kind != '"' || kind.text == "" {
		return refuse("needs a type, a string")
	}
	if strings.HasPrefix(kind.text, "xstate.") {
		return refuse("the type %s may not come from outside: xstate. is for timers, invokes and done states", quote(kind.text))
	}
	return Event{Type: kind.text, Data: t.plain().(map[string]any)}, nil
}

// TimerEvent is the firing of a timer as a Reaction armed it. If the node was
// left or entered again since, the event is [Stale].
func TimerEvent(t Timer) Event {
	return Event{Type: "xstate.after." + t.Delay + "." + t.State, source: fromTimer, owner: t.State, generation: t.Generation}
}

// DoneEvent is the answer to an invoke, with its output: JSON as in [Scope]. If
// the node was left or entered again since, the event is [Stale].
func DoneEvent(i Invoke, output any) Event { return invokeEvent(i, "done", "output", output) }

// ErrorEvent is the failure of an invoke, with what is known of it. Without a
// transition that takes it the step fails with [CodeInvokeFailed].
func ErrorEvent(i Invoke, problem any) Event { return invokeEvent(i, "error", "error", problem) }

func invokeEvent(i Invoke, word, member string, v any) Event {
	kind := "xstate." + word + ".actor." + i.ID
	return Event{
		Type: kind, Data: map[string]any{"type": kind, "actorId": i.ID, member: v},
		source: fromInvoke, owner: i.ID, generation: i.Generation,
	}
}
