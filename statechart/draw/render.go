package draw

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// Colours with a contrast of at least 4.5 to what they stand on.
const (
	ink       = "#1b1f24"
	faintInk  = "#57606a"
	frame     = "#57606a"
	activeInk = "#0b4f9e"
	activeLit = "#e3eefc"
	warning   = "#a40e26"
)

// hues of lines, in turn: an aid to the eye, each line also ends in an arrow.
func hues() []string {
	return []string{"#3b5b8c", "#7a4f01", "#28663a", "#7b3f8c", "#8c3b3b", "#2b6a73"}
}

type pen struct {
	b      strings.Builder
	prefix string
}

func (p *pen) add(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// number writes a length without superfluous digits.
func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// escape makes a text safe in XML and drops what XML cannot hold.
func escape(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r < 0x20 || r >= 0x7f && r <= 0x9f || r == 0xfffe || r == 0xffff || r >= 0xd800 && r <= 0xdfff:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\"", "&quot;", "'", "&#39;").Replace(s)
}

func (p *pen) text(x, y float64, s, colour, more string, advance float64) {
	if s == "" {
		return
	}
	lead := len(s) - len(strings.TrimLeft(s, " "))
	x += float64(lead) * advance
	s = strings.TrimSpace(s)
	p.add(`<text x="%s" y="%s" fill="%s" textLength="%s" lengthAdjust="spacingAndGlyphs"%s>%s</text>`+"\n",
		number(x), number(y), colour, number(float64(cells(s))*advance), more, escape(s))
}

func render(root *box, d *statechart.Definition, o *Options) []byte {
	const border = 12.0
	marks := legend(root)
	w, h := root.w+2*border, root.h+2*border
	foot := 0.0
	for _, m := range marks {
		if m.Help != "" {
			foot += lineHeight
			w = max(w, float64(cells(m.Word+": "+m.Help)+4)*letter+2*border)
		}
	}
	anyActive := root.active
	if anyActive {
		foot += lineHeight
	}
	hued := root.targeted()
	if hued {
		foot += lineHeight
		w = max(w, float64(cells(lineHelp))*letter+2*border)
	}
	if o.Caption != "" {
		foot += lineHeight
		w = max(w, float64(cells(o.Caption))*letter+2*border)
	}
	if foot > 0 {
		foot += 6
	}
	p := &pen{prefix: identifier(o.ID)}
	p.add(`<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="%s-title %s-desc" viewBox="%s %s %s %s" width="%s" height="%s" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace" font-size="12">`+"\n",
		p.prefix, p.prefix, number(-border), number(-border), number(w), number(h+foot), number(w), number(h+foot))
	p.add("<title id=\"%s-title\">%s</title>\n", p.prefix, escape("Statechart "+root.title))
	p.add("<desc id=\"%s-desc\">%s</desc>\n", p.prefix, escape(describe(root)))
	p.add(`<rect x="%s" y="%s" width="%s" height="%s" fill="#ffffff"/>`+"\n", number(-border), number(-border), number(w), number(h+foot))
	p.boxes(root, 0)
	p.lines(root)
	p.texts(root)
	y := h - border + 12
	if anyActive {
		p.triangle(4, y, activeInk)
		p.text(2*letter+4, y+4, "active: where the process stands", ink, "", letter)
		y += lineHeight
	}
	for _, m := range marks {
		if m.Help != "" {
			p.shape(m, 6, y)
			p.text(2*letter+4, y+4, m.Word+": "+m.Help, ink, "", letter)
			y += lineHeight
		}
	}
	if hued {
		p.text(0, y+4, lineHelp, faintInk, "", letter)
		y += lineHeight
	}
	if o.Caption != "" {
		p.text(0, y+4, o.Caption, faintInk, "", letter)
	}
	p.add("</svg>\n")
	return []byte(p.b.String())
}

// lineHelp says what the colours of lines mean.
const lineHelp = "Lines that lead to one state have one colour; it means nothing else."

// targeted tells that some line is drawn.
func (b *box) targeted() bool {
	found := false
	b.walk(func(x *box) {
		for _, r := range x.rows {
			found = found || len(r.targets) > 0
		}
	})
	return found
}

func identifier(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, s)
	if s == "" {
		return "chart"
	}
	return s
}

// legend lists the marks in use, each once, in the order of their first use.
func legend(root *box) []Mark {
	var all []Mark
	root.walk(func(b *box) {
		for _, r := range b.rows {
			if r.mark != nil && !slices.ContainsFunc(all, func(m Mark) bool { return m.Word == r.mark.Word && m.Shape == r.mark.Shape }) {
				all = append(all, *r.mark)
			}
		}
	})
	slices.SortFunc(all, func(a, b Mark) int { return strings.Compare(a.Word, b.Word) })
	return all
}

// describe says in words what the picture shows.
func describe(root *box) string {
	var b strings.Builder
	var active []string
	root.walk(func(x *box) {
		if x.active && !slices.ContainsFunc(x.children, func(c *box) bool { return c.active }) {
			active = append(active, x.name)
		}
	})
	if len(active) > 0 {
		fmt.Fprintf(&b, "Active: %s. ", strings.Join(active, ", "))
	}
	root.walk(func(x *box) {
		kind := [...]string{"state", "state", "parallel state", "final state", "history state", "deep history state"}[x.kind]
		fmt.Fprintf(&b, "%s: %s", x.name, kind)
		if x.initial {
			b.WriteString(", initial")
		}
		for _, r := range x.rows {
			b.WriteString("; " + r.tip)
		}
		b.WriteString(". ")
	})
	return strings.TrimSpace(b.String())
}

// boxes draws the frames, outer ones first.
func (p *pen) boxes(b *box, depth int) {
	fill, stroke, width, dash := "#ffffff", frame, "1", ""
	if depth%2 == 1 && len(b.children) > 0 {
		fill = "#f3f5f7"
	}
	if b.active {
		stroke, width = activeInk, "3"
		if len(b.children) == 0 {
			fill = activeLit
		}
	}
	if b.parent != nil && b.parent.kind == parallel {
		dash = ` stroke-dasharray="7 4"`
	}
	p.add(`<rect x="%s" y="%s" width="%s" height="%s" rx="8" fill="%s" stroke="%s" stroke-width="%s"%s/>`+"\n",
		number(b.x), number(b.y), number(b.w), number(b.h), fill, stroke, width, dash)
	if b.kind == final {
		p.add(`<rect x="%s" y="%s" width="%s" height="%s" rx="6" fill="none" stroke="%s"/>`+"\n",
			number(b.x+3.5), number(b.y+3.5), number(b.w-7), number(b.h-7), stroke)
	}
	if b.initial {
		x := b.x + b.marginWidth() + 8
		p.add(`<circle cx="%s" cy="%s" r="4" fill="%s"/>`+"\n", number(x), number(b.y-11), ink)
		p.arrow(x, b.y, ink, "1.2", b.y-7)
	}
	for _, c := range b.children {
		p.boxes(c, depth+1)
	}
}

// arrow draws a line down to a box's top, with a head.
func (p *pen) arrow(x, y float64, colour, width string, from float64) {
	p.add(`<path d="M%s %sV%s" fill="none" stroke="%s" stroke-width="%s"/>`+"\n", number(x), number(from), number(y-5), colour, width)
	p.add(`<path d="M%s %sl-4 -7h8z" fill="%s"/>`+"\n", number(x), number(y), colour)
}

// lines draws the nets: what leads to one state has one colour and one arrow.
func (p *pen) lines(root *box) {
	var nets []*box
	thin, thick := map[*box][]segment{}, map[*box][]segment{}
	for _, w := range wires(root) {
		if !slices.Contains(nets, w.to) {
			nets = append(nets, w.to)
		}
		into := thin
		if w.row.lit {
			into = thick
		}
		for _, s := range w.pieces {
			if !slices.Contains(into[w.to], s) {
				into[w.to] = append(into[w.to], s)
			}
		}
	}
	for i, net := range nets {
		colour := hues()[i%len(hues())]
		all := append(slices.Clone(thin[net]), thick[net]...)
		p.path(thin[net], colour, "1.3")
		p.path(thick[net], colour, "3.2")
		for _, dot := range junctions(all) {
			p.add(`<circle cx="%s" cy="%s" r="2.2" fill="%s"/>`+"\n", number(dot[0]), number(dot[1]), colour)
		}
		p.add(`<path d="M%s %sl-4 -8h8z" fill="%s"/>`+"\n", number(net.port()), number(net.y), colour)
	}
}

func (p *pen) path(list []segment, colour, width string) {
	if len(list) == 0 {
		return
	}
	p.add(`<path fill="none" stroke="%s" stroke-width="%s" stroke-linecap="round" d="`, colour, width)
	for _, s := range list {
		y2 := s.y2
		if s.x1 == s.x2 && s.y2 == s.net.y {
			y2 -= 5 // the head covers the rest
		}
		p.add("M%s %sL%s %s", number(s.x1), number(s.y1), number(s.x2), number(y2))
	}
	p.add("\"/>\n")
}

// junctions gives the points where a piece ends inside another of its net.
func junctions(list []segment) [][2]float64 {
	var dots [][2]float64
	for _, s := range list {
		for _, end := range [][2]float64{{s.x1, s.y1}, {s.x2, s.y2}} {
			if slices.Contains(dots, end) {
				continue
			}
			for _, o := range list {
				level := o.y1 == o.y2 && end[1] == o.y1 && end[0] > min(o.x1, o.x2) && end[0] < max(o.x1, o.x2) && s.x1 == s.x2
				upright := o.x1 == o.x2 && end[0] == o.x1 && end[1] > min(o.y1, o.y2) && end[1] < max(o.y1, o.y2) && s.y1 == s.y2
				if level || upright {
					dots = append(dots, end)
					break
				}
			}
		}
	}
	return dots
}

// label is a piece of text with its place, for drawing and for the tests.
type label struct {
	x, y, w float64
	text    string
	colour  string
	weight  string
	advance float64
	mark    *Mark
	active  bool
	tip     string
}

// labels lists the text of a box.
func labels(b *box) []label {
	var all []label
	x, y := b.x+b.marginWidth(), b.y+5+lineHeight-4
	title := b.title
	colour := ink
	if b.active {
		colour = activeInk
	}
	all = append(all, label{x: x, y: y, w: float64(cells(title)) * bigLetter, text: title, colour: colour, weight: "700", advance: bigLetter})
	if b.active {
		w := 8 * letter
		all = append(all, label{x: b.x + b.busLeft - 4 - w, y: y, w: w, text: "active", colour: activeInk, weight: "700", advance: letter, active: true})
	}
	y += 2 + lineHeight
	for _, l := range b.head {
		text := l.within(b.x + b.busLeft - 4 - x)
		all = append(all, label{x: x, y: y, w: float64(cells(text)) * letter, text: text, colour: faintInk, advance: letter})
		y += lineHeight
	}
	for _, r := range b.rows {
		y := b.y + r.y + 4
		for i, l := range r.lines {
			c, weight := faintInk, ""
			if i == 0 {
				c, weight = ink, "600"
			}
			room := b.x + b.busLeft - 4 - x
			if i == 0 && r.mark != nil {
				room -= float64(cells(r.mark.Word)+3) * letter
			}
			text := l.within(room)
			all = append(all, label{x: x, y: y + float64(i)*lineHeight, w: float64(cells(text)) * letter, text: text, colour: c, weight: weight, advance: letter, tip: r.tip})
		}
		if r.mark != nil {
			w := float64(cells(r.mark.Word)+2) * letter
			all = append(all, label{x: b.x + b.busLeft - 4 - w, y: y, w: w, text: r.mark.Word, colour: markColour(r.mark), advance: letter, mark: r.mark, tip: r.tip})
		}
	}
	return all
}

// within is as much of the line as a room holds, and never less than the box was
// made for.
func (l line) within(room float64) string {
	if cells(l.whole) <= cells(l.text) {
		return l.text
	}
	return cut(l.whole, max(cells(l.text), int(room/letter)))
}

func markColour(m *Mark) string {
	if m.Strong {
		return warning
	}
	return ink
}

func (p *pen) texts(root *box) {
	root.walk(func(b *box) {
		if len(b.children) > 0 && (len(b.rows) > 0 || len(b.head) > 0) {
			y := number(b.y + b.headHeight - 1)
			p.add(`<path d="M%s %sH%s" stroke="#c4cad1" stroke-dasharray="2 3"/>`+"\n", number(b.x+b.marginWidth()), y, number(b.x+b.busLeft))
		}
		for _, r := range b.rows {
			if r.lit {
				p.add(`<rect x="%s" y="%s" width="%s" height="%s" rx="3" fill="#fff1b8"/>`+"\n",
					number(b.x+b.marginWidth()-3), number(b.y+r.y-lineHeight/2), number(b.busLeft-b.marginWidth()+6), number(float64(len(r.lines))*lineHeight))
			}
		}
		for _, l := range labels(b) {
			x, weight := l.x, ""
			if l.weight != "" {
				weight = ` font-weight="` + l.weight + `"`
			}
			if l.advance == bigLetter {
				weight += ` font-size="13"`
			}
			if l.tip != "" {
				p.add("<g><title>%s</title>", escape(l.tip))
			}
			switch {
			case l.mark != nil:
				p.shape(*l.mark, x+5, l.y-4)
				x += 2 * letter
			case l.active:
				p.triangle(x+2, l.y-4, activeInk)
				x += 2 * letter
			}
			p.text(x, l.y, l.text, l.colour, weight, l.advance)
			if l.tip != "" {
				p.add("</g>\n")
			}
		}
	})
}

func (p *pen) triangle(x, y float64, colour string) {
	p.add(`<path d="M%s %sl9 5l-9 5z" fill="%s"/>`, number(x), number(y-5), colour)
}

// shape draws the symbol of a mark around a point.
func (p *pen) shape(m Mark, x, y float64) {
	c := markColour(&m)
	switch m.Shape {
	case Ring:
		p.add(`<circle cx="%s" cy="%s" r="4.5" fill="#ffffff" stroke="%s" stroke-width="1.5"/>`, number(x), number(y), c)
	case Disc:
		p.add(`<circle cx="%s" cy="%s" r="5" fill="%s"/>`, number(x), number(y), c)
	case Half:
		p.add(`<circle cx="%s" cy="%s" r="4.5" fill="#ffffff" stroke="%s" stroke-width="1.5"/>`, number(x), number(y), c)
		p.add(`<path d="M%s %sa4.5 4.5 0 0 0 0 9z" fill="%s"/>`, number(x), number(y-4.5), c)
	case Square:
		p.add(`<rect x="%s" y="%s" width="9" height="9" fill="%s"/>`, number(x-4.5), number(y-4.5), c)
	case Diamond:
		p.add(`<path d="M%s %sl5 5l-5 5l-5 -5z" fill="#ffffff" stroke="%s" stroke-width="1.5"/>`, number(x), number(y-5), c)
	default:
		p.add(`<text x="%s" y="%s" fill="%s" font-weight="700" text-anchor="middle">?</text>`, number(x), number(y+4), c)
	}
}
