// Package draw makes pictures of statecharts: an SVG with nested and parallel
// states, the active ones lit, and a word at each transition.
//
// The picture of a chart is always the same, byte for byte. Every transition is
// a row of text in the box of its state; its line leaves at the right and enters
// the target from above. Lines run between boxes only, so that none crosses a
// word. It uses nothing from outside: no font, no style sheet, no script, and no
// style attribute that a strict content security policy would refuse. What a
// colour says, a shape and a word say too.
package draw

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/statechart"
)

// Shape is the symbol in front of a mark's word.
type Shape uint8

// The shapes.
const (
	Ring     Shape = iota // an empty circle
	Disc                  // a full circle
	Half                  // a half-full circle
	Square                // a full square
	Diamond               // an empty diamond
	Question              // a question mark
)

// Mark is what is said about a transition.
type Mark struct {
	// Shape of the symbol.
	Shape Shape
	// Word beside the shape, short.
	Word string
	// Help explains the word in the legend; "" leaves it out there.
	Help string
	// Strong draws it in a colour that warns.
	Strong bool
}

// Options of [SVG]. Nil means a plain picture.
type Options struct {
	// ID begins the ids inside the picture, so that several fit into one page;
	// "" means "chart". Letters, digits and "-" only, others are left out.
	ID string
	// Active are the ids of the active states. Their ancestors are lit too.
	Active []string
	// MarkFunc gives the mark of a transition; nil means none.
	MarkFunc func(*statechart.Transition) (Mark, bool)
	// HighlightFunc tells whose lines are drawn thick; nil means none.
	HighlightFunc func(*statechart.Transition) bool
	// Caption is a line below the picture; "" leaves it out.
	Caption string
}

// SVG draws a chart. Sizes are CSS pixels; the picture scales, since it has a
// view box. Unknown ids in Active are ignored: a stored process may stand in a
// state that the drawn version no longer has.
func SVG(d *statechart.Definition, o *Options) []byte {
	if o == nil {
		o = &Options{}
	}
	boxes := map[*statechart.Node]*box{}
	for _, n := range d.Nodes() {
		boxes[n] = newBox(n, boxes, d, o)
	}
	for _, n := range d.Nodes() {
		fill(boxes[n], n, boxes, o)
	}
	root := boxes[d.Root()]
	layOut(root)
	return render(root, d, o)
}

// newBox makes the box of a node, whose parent has one already.
func newBox(n *statechart.Node, boxes map[*statechart.Node]*box, d *statechart.Definition, o *Options) *box {
	b := &box{name: n.ID, title: cut(n.Key, widest)}
	if n.Parent != nil {
		b.parent = boxes[n.Parent]
		b.parent.children = append(b.parent.children, b)
		if t := n.Parent.Initial; t != nil {
			b.initial = slices.ContainsFunc(t.Targets, func(m *statechart.Node) bool { return m.In(n) })
		}
	} else if d.Version() != "" {
		b.title = cut(n.Key+" "+d.Version(), widest)
	}
	switch n.Kind {
	case statechart.Compound:
		b.kind = compound
	case statechart.Parallel:
		b.kind = parallel
	case statechart.Final:
		b.kind = final
		b.title += " (final)"
	case statechart.History:
		b.kind = history
		b.title = "H " + b.title
		if n.Deep {
			b.kind = deepHistory
			b.title = "H* " + cut(n.Key, widest)
		}
	}
	for _, id := range o.Active {
		if a, ok := d.Node(id); ok && a.In(n) {
			b.active = true
		}
	}
	return b
}

// newLine keeps the whole text beside what the box is made wide for.
func newLine(text string, faint bool) line {
	return line{text: cut(text, widest), whole: text, faint: faint}
}

// fill writes the text of a box.
func fill(b *box, n *statechart.Node, boxes map[*statechart.Node]*box, o *Options) {
	note := func(name string, actions []*statechart.Action) {
		if len(actions) > 0 {
			b.head = append(b.head, newLine(name+" / "+actionTexts(actions), true))
		}
	}
	if len(n.Tags) > 0 {
		b.head = append(b.head, newLine("tags: "+strings.Join(n.Tags, ", "), true))
	}
	for _, i := range n.Invokes {
		b.head = append(b.head, newLine("invoke / "+i.Source, true))
	}
	note("entry", n.Entry)
	note("exit", n.Exit)
	if n.Initial != nil {
		note("initial", n.Initial.Actions)
	}
	list := append(slices.Clone(n.Transitions), n.Always...)
	if n.Default != nil {
		list = append(list, n.Default)
	}
	for _, t := range list {
		r := &row{}
		first := event(t)
		if len(t.Targets) > 0 {
			var names []string
			for _, x := range t.Targets {
				names = append(names, pathFrom(n, x))
				r.targets = append(r.targets, boxes[x])
			}
			first += " → " + strings.Join(names, " + ")
		} else if t.Forbidden {
			first += " (nothing happens)"
		}
		r.tip = first
		r.lines = []line{newLine(first, false)}
		if t.Reenter {
			r.lines = append(r.lines, line{text: "  enters again", faint: true})
			r.tip += ", enters again"
		}
		if t.Guard != nil {
			r.lines = append(r.lines, newLine("  if "+guard(t.Guard), true))
			r.tip += ", if " + guard(t.Guard)
		}
		if len(t.Actions) > 0 {
			r.lines = append(r.lines, newLine("  do "+actionTexts(t.Actions), true))
			r.tip += ", do " + actionTexts(t.Actions)
		}
		if o.MarkFunc != nil {
			if m, ok := o.MarkFunc(t); ok {
				m.Word = cut(m.Word, 16)
				r.mark = &m
				r.tip += ": " + m.Word
			}
		}
		r.lit = o.HighlightFunc != nil && o.HighlightFunc(t)
		b.rows = append(b.rows, r)
	}
}

// pathFrom names a target as seen from a state: by its key, from the nearest
// state that holds both.
func pathFrom(n, to *statechart.Node) string {
	if to.Parent == nil {
		return to.Key
	}
	top := to.Parent
	for top.Parent != nil && !n.In(top) {
		top = top.Parent
	}
	path := to.Key
	for p := to.Parent; p != top; p = p.Parent {
		path = p.Key + "." + path
	}
	return path
}

func event(t *statechart.Transition) string {
	switch t.Origin {
	case statechart.FromAlways:
		return "always"
	case statechart.FromOnDone:
		return "onDone"
	case statechart.FromHistory:
		return "at first"
	case statechart.FromAfter:
		for _, x := range t.Source.Timers {
			if x.Event == t.Event {
				if x.After > 0 {
					return "after " + short(x.After)
				}
				return "after " + x.Delay
			}
		}
	case statechart.FromInvokeDone, statechart.FromInvokeError:
		word := "done "
		if t.Origin == statechart.FromInvokeError {
			word = "error "
		}
		for _, x := range t.Source.Invokes {
			if strings.HasSuffix(t.Event, "."+x.ID) {
				return word + x.Source
			}
		}
	}
	return t.Event
}

// short writes a duration without units that are zero.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func guard(g *statechart.Guard) string {
	var parts []string
	for _, a := range g.Args {
		text := guard(a)
		if len(a.Args) > 1 {
			text = "(" + text + ")"
		}
		parts = append(parts, text)
	}
	switch g.Op {
	case statechart.GuardAnd:
		return strings.Join(parts, " and ")
	case statechart.GuardOr:
		return strings.Join(parts, " or ")
	case statechart.GuardNot:
		return "not " + strings.Join(parts, "")
	case statechart.GuardStateIn:
		for _, n := range g.States {
			parts = append(parts, n.ID)
		}
		return "in " + strings.Join(parts, ", ")
	default:
		return strings.Join(strings.Fields(g.Name), " ")
	}
}

func actionTexts(list []*statechart.Action) string {
	var parts []string
	for _, a := range list {
		switch a.Op {
		case statechart.ActionAssign:
			for _, s := range a.Assigns {
				parts = append(parts, s.Key+" := "+value(s.Value))
			}
		case statechart.ActionRaise:
			parts = append(parts, "raise "+a.Raise)
		default:
			parts = append(parts, a.Name)
		}
	}
	return strings.Join(parts, ", ")
}

func value(v *statechart.Value) string {
	switch {
	case v == nil:
		return "null"
	case v.Expression != nil:
		return strings.Join(strings.Fields(v.Text), " ")
	case v.Members != nil:
		return "{…}"
	case v.Elements != nil:
		return "[…]"
	}
	switch c := v.Const.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(c)
	case bool:
		return strconv.FormatBool(c)
	case []any:
		if len(c) == 0 {
			return "[]"
		}
		return "[…]"
	case map[string]any:
		if len(c) == 0 {
			return "{}"
		}
		return "{…}"
	case interface{ String() string }:
		return c.String()
	default:
		return "…"
	}
}

// cells counts the columns of a text in a monospaced font.
func cells(s string) int {
	n := 0
	for _, r := range s {
		n += width(r)
	}
	return n
}

func width(r rune) int {
	wide := r >= 0x1100 && (r <= 0x115f || r >= 0x2e80 && r <= 0xa4cf || r >= 0xac00 && r <= 0xd7a3 ||
		r >= 0xf900 && r <= 0xfaff || r >= 0xfe30 && r <= 0xfe6f || r >= 0xff00 && r <= 0xff60 ||
		r >= 0xffe0 && r <= 0xffe6 || r >= 0x1f000 && r <= 0x1ffff || r >= 0x20000 && r <= 0x3ffff)
	if wide {
		return 2
	}
	return 1
}

// cut shortens a text to a number of columns.
func cut(s string, limit int) string {
	if cells(s) <= limit {
		return s
	}
	n := 0
	for i, r := range s {
		if n+width(r) > limit-1 {
			return s[:i] + "…"
		}
		n += width(r)
	}
	return s
}
