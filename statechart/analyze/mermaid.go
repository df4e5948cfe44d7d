package analyze

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// WriteMermaid writes the chart as a Mermaid stateDiagram-v2: each edge says the
// event and, by symbol and word, what a duplicate of it does in the worst
// configuration; states with an exposed event have a thick border, and the edges
// of the first witness are listed in a note.
func (r *Report) WriteMermaid(w io.Writer, d *statechart.Definition) error {
	m := &mermaid{report: r, names: map[*statechart.Node]string{}}
	for i, n := range d.Nodes() {
		m.names[n] = fmt.Sprintf("s%d", i)
	}
	m.line(0, "stateDiagram-v2")
	m.line(1, "%%%% %s: what a duplicate of each event does", oneLine(d.ID()))
	m.children(d.Root(), 1)
	for _, n := range d.Nodes() {
		m.edges(n)
	}
	m.witness()
	m.line(1, "classDef exposed stroke-width:4px")
	m.line(1, "classDef cycle stroke-dasharray:6 3")
	for _, class := range []string{"exposed", "cycle"} {
		var names []string
		for _, n := range d.Nodes() {
			if m.class[n] == class {
				names = append(names, m.names[n])
			}
		}
		if len(names) > 0 {
			m.line(1, "class %s %s", strings.Join(names, ","), class)
		}
	}
	_, err := io.WriteString(w, m.text.String())
	return err
}

type mermaid struct {
	report *Report
	names  map[*statechart.Node]string
	class  map[*statechart.Node]string
	text   strings.Builder
}

func (m *mermaid) line(depth int, format string, args ...any) {
	m.text.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(&m.text, format, args...)
	m.text.WriteByte('\n')
}

// children declares the states inside a node.
func (m *mermaid) children(n *statechart.Node, depth int) {
	if n.Initial != nil {
		for _, t := range n.Initial.Targets {
			m.line(depth, "[*] --> %s", m.names[t])
		}
	}
	first := true
	for _, c := range n.Children {
		if n.Kind == statechart.Parallel && c.Kind != statechart.History {
			if !first {
				m.line(depth, "--")
			}
			first = false
		}
		title := c.Key
		switch {
		case c.Kind == statechart.History && c.Deep:
			title = "H* " + title
		case c.Kind == statechart.History:
			title = "H " + title
		}
		if len(c.Children) == 0 {
			m.line(depth, "state \"%s\" as %s", mermaidText(title), m.names[c])
		} else {
			m.line(depth, "state \"%s\" as %s {", mermaidText(title), m.names[c])
			m.children(c, depth+1)
			m.line(depth, "}")
		}
		if c.Kind == statechart.Final {
			m.line(depth, "%s --> [*]", m.names[c])
		}
	}
}

func (m *mermaid) edges(n *statechart.Node) {
	if m.class == nil {
		m.class = map[*statechart.Node]string{}
	}
	for _, t := range append(slices.Clone(n.Transitions), n.Always...) {
		text := TransitionText(t)
		if mark, ok := m.report.Mark(t); ok {
			text += " " + mark.Symbol() + " " + mark.Word()
			switch {
			case mark == Exposed:
				m.class[n] = "exposed"
			case mark == ProtectedUntilCycle && m.class[n] == "":
				m.class[n] = "cycle"
			}
		}
		if n.Parent == nil {
			continue // the machine's own transitions have no box to start from
		}
		targets := t.Targets
		if len(targets) == 0 {
			if t.Forbidden {
				continue
			}
			targets = []*statechart.Node{n}
			text += " (stays)"
		}
		for _, target := range targets {
			if target.Parent == nil {
				continue
			}
			m.line(1, "%s --> %s: %s", m.names[n], m.names[target], mermaidText(text))
		}
	}
}

// witness puts the way of the gravest finding into a note.
func (m *mermaid) witness() {
	for _, f := range m.report.Findings {
		if f.Witness == nil || f.Accepted {
			continue
		}
		for n, name := range m.names {
			if n.ID == f.State && n.Parent != nil {
				m.line(1, "note right of %s", name)
				m.line(2, "%s", mermaidText(f.Rule+" "+f.Message))
				m.line(2, "%s", mermaidText(m.report.path(f.Witness)))
				m.line(1, "end note")
				return
			}
		}
	}
}

// mermaidText keeps a text from being read as syntax.
func mermaidText(s string) string {
	return strings.NewReplacer(
		"\"", "#quot;", "#", "#35;", ";", "#59;", ":", "#58;", "<", "#lt;", ">", "#gt;", "{", "#123;", "}", "#125;",
		"[", "#91;", "]", "#93;", "\n", " ", "\r", " ", "%%", "#37;#37;",
	).Replace(s)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// TransitionText writes the event and the guard of a transition.
func TransitionText(t *statechart.Transition) string {
	text := eventText(t)
	if t.Guard != nil {
		text += " [" + GuardText(t.Guard) + "]"
	}
	return text
}

func eventText(t *statechart.Transition) string {
	switch t.Origin {
	case statechart.FromAlways:
		return "always"
	case statechart.FromOnDone:
		return "onDone"
	case statechart.FromAfter:
		for _, x := range t.Source.Timers {
			if x.Event == t.Event {
				if x.After > 0 {
					return "after " + x.After.String()
				}
				return "after " + x.Delay
			}
		}
		return t.Event
	case statechart.FromInvokeDone, statechart.FromInvokeError:
		for _, x := range t.Source.Invokes {
			if strings.HasSuffix(t.Event, "."+x.ID) {
				return map[bool]string{true: "done ", false: "error "}[t.Origin == statechart.FromInvokeDone] + x.ID
			}
		}
		return t.Event
	default:
		return t.Event
	}
}

// GuardText writes a guard in one line.
func GuardText(g *statechart.Guard) string {
	list := func(between string) string {
		var parts []string
		for _, a := range g.Args {
			text := GuardText(a)
			if len(a.Args) > 1 {
				text = "(" + text + ")"
			}
			parts = append(parts, text)
		}
		return strings.Join(parts, between)
	}
	switch g.Op {
	case statechart.GuardAnd:
		return list(" and ")
	case statechart.GuardOr:
		return list(" or ")
	case statechart.GuardNot:
		return "not " + list("")
	case statechart.GuardStateIn:
		var ids []string
		for _, n := range g.States {
			ids = append(ids, n.ID)
		}
		return "in " + strings.Join(ids, ", ")
	default:
		return guardText(g)
	}
}

// Mark gives the class of the worst cell in which a transition is the first that
// is taken; false if it never has an effect.
func (r *Report) Mark(t *statechart.Transition) (Class, bool) {
	for _, x := range r.Transitions {
		if x.Pointer == t.At.Pointer {
			return x.Class, true
		}
	}
	return "", false
}
