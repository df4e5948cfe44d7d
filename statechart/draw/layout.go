package draw

import (
	"math"
	"slices"
)

// The plan of a picture. Every transition is a row of text inside the box of the
// state that has it; lines leave at the row's right end and enter their target
// from above. Text stands in boxes, lines run beside them, so that no line can
// cross a word however the chart is built:
//
//	gap 0     rails of layer 0: one track for each target
//	layer 0   box, channel, box, channel
//	gap 1     rails of layer 1
//	layer 1   box, channel
//	gap 2     ways out
//
// beside them, on the left, a margin for lines to states further inside, and on
// the right the bus, for lines between layers that are not neighbours. All
// transitions to one state are one net: they share its tracks and its arrow.
// Each net has a track of its own in each gap, channel, bus and margin it uses.

// Sizes in pixels, at 100 %. Boxes stand on a grid of one track. Lines beside a
// box lie on it, or a third of a track beside it in every other layer, and lines
// into a box from above two thirds: so in the gap where they meet no two of them
// run along each other.
const (
	letter     = 7.3 // advance of the row font (12 px, monospace), rounded up
	bigLetter  = 8.0 // of the title font (13 px, bold)
	lineHeight = 16.0
	track      = 9.0
	pad        = 18.0 // inside a box, on the left
	dotZone    = 18.0 // above a layer, for initial markers and arrowheads
	widest     = 46   // letters of a line, more is cut
	maxBeside  = 3    // boxes of a layer
)

// box is a state in the picture.
type box struct {
	name     string // full, for what is read aloud
	title    string
	kind     kind
	head     []line // below the title
	rows     []*row
	children []*box
	parent   *box
	initial  bool
	active   bool

	layers [][]*box // of the children
	layer  int      // of the parent's
	place  int      // in its layer

	x, y, w, h float64
	headHeight float64
	margin     tracks   // left
	gaps       []tracks // one more than layers
	bus        tracks
	channel    tracks // right of this box, in the parent's layer
	gapTop     []float64
	busLeft    float64
}

type kind int

const (
	atomic kind = iota
	compound
	parallel
	final
	history
	deepHistory
)

// line is one line of text of a box.
type line struct {
	text  string // for which the box has room
	whole string // shown where the box came out wide enough; "" is text
	faint bool
}

// row is one transition.
type row struct {
	lines   []line
	mark    *Mark
	tip     string // the whole of it
	targets []*box
	lit     bool

	y float64 // where its lines leave, below the top of the box
}

// tracks gives each net a number, in the order in which nets come.
type tracks struct{ nets []*box }

func (t *tracks) use(net *box) {
	if !slices.Contains(t.nets, net) {
		t.nets = append(t.nets, net)
	}
}

func (t *tracks) of(net *box) float64 { return float64(slices.Index(t.nets, net)) }

func (t *tracks) width() float64 { return float64(len(t.nets)) * track }

// walk visits a box and all inside it, parents first.
func (b *box) walk(visit func(*box)) {
	visit(b)
	for _, c := range b.children {
		c.walk(visit)
	}
}

func (b *box) contains(x *box) bool {
	for ; x != nil; x = x.parent {
		if x == b {
			return true
		}
	}
	return false
}

// childWith gives the child of b that is x or holds it.
func (b *box) childWith(x *box) *box {
	for x.parent != b {
		x = x.parent
	}
	return x
}

func (b *box) last() bool {
	layer := b.parent.layers[b.layer]
	return b.place == len(layer)-1
}

// layOut places every box: order first, then the tracks that lines need, then sizes.
func layOut(root *box) {
	root.walk(func(b *box) { b.arrange() })
	root.walk(func(b *box) { b.gaps = make([]tracks, len(b.layers)+1) })
	root.walk(func(b *box) {
		for _, r := range b.rows {
			for _, t := range r.targets {
				route(b, t)
			}
		}
	})
	root.measure()
	root.put(0, 0)
}

// arrange sorts the children into layers: a state stands below those from which
// it is reached, ways back not counted.
func (b *box) arrange() {
	if len(b.children) == 0 {
		return
	}
	var depth map[*box]int
	if b.kind == parallel {
		depth = map[*box]int{}
	} else {
		depth = b.depths()
	}
	deepest := 0
	for _, c := range b.children {
		deepest = max(deepest, depth[c])
	}
	for d := 0; d <= deepest; d++ {
		var layer []*box
		for _, c := range b.children {
			if depth[c] == d {
				layer = append(layer, c)
			}
		}
		for part := range slices.Chunk(layer, maxBeside) {
			b.layers = append(b.layers, part)
		}
	}
	for i, layer := range b.layers {
		for j, c := range layer {
			c.layer, c.place = i, j
		}
	}
}

// depths gives the length of the longest way from the initial child, without
// the transitions that close a circle.
func (b *box) depths() map[*box]int {
	next := map[*box][]*box{}
	b.walk(func(s *box) {
		if s == b {
			return
		}
		from := b.childWith(s)
		for _, r := range s.rows {
			for _, t := range r.targets {
				if t != b && b.contains(t) {
					if to := b.childWith(t); to != from && !slices.Contains(next[from], to) {
						next[from] = append(next[from], to)
					}
				}
			}
		}
	})
	const (
		open = iota + 1
		done
	)
	state := map[*box]int{}
	var order []*box // reverse topological
	forward := map[*box][]*box{}
	var visit func(*box)
	visit = func(s *box) {
		state[s] = open
		for _, t := range next[s] {
			if state[t] == open {
				continue // closes a circle
			}
			forward[s] = append(forward[s], t)
			if state[t] == 0 {
				visit(t)
			}
		}
		state[s] = done
		order = append(order, s)
	}
	for _, c := range b.children {
		if c.initial {
			visit(c)
		}
	}
	for _, c := range b.children {
		if state[c] == 0 {
			visit(c)
		}
	}
	depth := map[*box]int{}
	for _, s := range slices.Backward(order) {
		for _, t := range forward[s] {
			depth[t] = max(depth[t], depth[s]+1)
		}
	}
	return depth
}

// meeting gives the box in whose layers the way from s to t turns, and the
// children that it leaves and enters. There is none for the root as a target.
func meeting(s, t *box) (in, from, to *box) {
	if s != t && s.contains(t) {
		return s, nil, s.childWith(t)
	}
	in = t.parent
	for in != nil && !in.contains(s) {
		in = in.parent
	}
	if in == nil {
		return nil, nil, nil
	}
	return in, in.childWith(s), in.childWith(t)
}

// route claims the tracks from a row of s to t.
func route(s, t *box) {
	in, from, to := meeting(s, t)
	if in == nil {
		return
	}
	for p := s; from != nil && p != from; p = p.parent {
		if !p.last() {
			p.channel.use(t)
			p.parent.gaps[p.layer+1].use(t)
		}
	}
	in.gaps[to.layer].use(t)
	switch {
	case from == nil:
		in.bus.use(t)
	case from.layer == to.layer || from.layer == to.layer-1:
		from.channel.use(t)
	case from.last():
		in.bus.use(t)
	default:
		from.channel.use(t)
		in.gaps[from.layer+1].use(t)
		in.bus.use(t)
	}
	for p := to; p != t; {
		p.margin.use(t)
		p = p.childWith(t)
		p.parent.gaps[p.layer].use(t)
	}
}

func (b *box) marginWidth() float64 { return pad + b.margin.width() }

func onGrid(x float64) float64 { return math.Ceil(x/track) * track }

func (b *box) channelWidth() float64 { return 2*track + b.channel.width() }

func gapHeight(g *tracks, atEnd bool) float64 {
	h := track + g.width()
	if !atEnd {
		h += dotZone
	}
	return h
}

// measure gives sizes, from the inside out.
func (b *box) measure() {
	for _, c := range b.children {
		c.measure()
	}
	text := float64(cells(b.title))*bigLetter + 2*letter
	if b.active {
		text += 9 * letter
	}
	y := 5 + lineHeight + 2
	for _, l := range b.head {
		text = max(text, float64(cells(l.text))*letter)
		y += lineHeight
	}
	if len(b.rows) > 0 {
		y += 4
	}
	for _, r := range b.rows {
		for i, l := range r.lines {
			w := float64(cells(l.text)) * letter
			if i == 0 && r.mark != nil {
				w += float64(cells(r.mark.Word)+5) * letter
			}
			text = max(text, w)
		}
		r.y = y + lineHeight/2
		y += float64(len(r.lines))*lineHeight + 3
	}
	b.headHeight = y + 5
	b.w, b.h = onGrid(text+4), b.headHeight
	if len(b.layers) > 0 {
		inner := 0.0
		b.gapTop = make([]float64, len(b.layers)+1)
		y := b.headHeight
		for i, layer := range b.layers {
			b.gapTop[i] = y
			y += gapHeight(&b.gaps[i], false)
			w, h := 0.0, 0.0
			for _, c := range layer {
				w += c.w + c.channelWidth()
				h = max(h, c.h)
			}
			inner = max(inner, w)
			y += h
		}
		b.gapTop[len(b.layers)] = y
		b.h = y + gapHeight(&b.gaps[len(b.layers)], true) + 5
		b.w = max(b.w, inner)
	}
	b.busLeft = b.marginWidth() + b.w
	b.w += b.marginWidth() + b.bus.width() + track
}

// put gives places, from the outside in.
func (b *box) put(x, y float64) {
	b.x, b.y = x, y
	for i, layer := range b.layers {
		left, top := x+b.marginWidth(), y+b.gapTop[i]+gapHeight(&b.gaps[i], false)
		for _, c := range layer {
			c.put(left, top)
			left += c.w + c.channelWidth()
		}
	}
}

// gapY is the height of a net's track in a gap.
func (b *box) gapY(gap int, net *box) float64 {
	return b.y + b.gapTop[gap] + track + b.gaps[gap].of(net)*track
}

func (b *box) busX(net *box) float64 {
	return b.x + b.busLeft + track/3 + b.bus.of(net)*track
}

func (b *box) channelX(net *box) float64 {
	return b.x + b.w + track + float64(b.layer%2)*track/3 + b.channel.of(net)*track
}

func (b *box) marginX(net *box) float64 {
	return b.x + track + track*2/3 + b.margin.of(net)*track
}

// port is where the arrow of a box enters it from above.
func (b *box) port() float64 { return b.x + b.marginWidth() + 3*track + track*2/3 }

// segment is a straight piece of a net, upright or level.
type segment struct {
	net            *box
	x1, y1, x2, y2 float64
}

// wire is the way of one row to one of its targets.
type wire struct {
	from, to *box
	row      *row
	pieces   []segment
}

// wires draws every way.
func wires(root *box) (all []wire) {
	root.walk(func(b *box) {
		for _, r := range b.rows {
			for _, t := range r.targets {
				if w, ok := trace(b, r, t); ok {
					all = append(all, w)
				}
			}
		}
	})
	return all
}

func trace(s *box, r *row, t *box) (wire, bool) {
	in, from, to := meeting(s, t)
	if in == nil {
		return wire{}, false
	}
	w := wire{from: s, to: t, row: r}
	x, y := s.x+s.w, s.y+r.y
	if from == nil {
		x = s.x + s.busLeft
	}
	go2 := func(nx, ny float64) {
		if nx != x || ny != y {
			w.pieces = append(w.pieces, segment{t, x, y, nx, ny})
		}
		x, y = nx, ny
	}
	for p := s; from != nil && p != from; p = p.parent {
		if !p.last() {
			go2(p.channelX(t), y)
			go2(x, p.parent.gapY(p.layer+1, t))
		}
		go2(p.parent.x+p.parent.w, y)
	}
	rail := in.gapY(to.layer, t)
	switch {
	case from == nil:
		go2(in.busX(t), y)
	case from.layer == to.layer || from.layer == to.layer-1:
		go2(from.channelX(t), y)
	case from.last():
		go2(in.busX(t), y)
	default:
		go2(from.channelX(t), y)
		go2(x, in.gapY(from.layer+1, t))
		go2(in.busX(t), y)
	}
	go2(x, rail)
	for p := to; p != t; {
		go2(p.marginX(t), y)
		p = p.childWith(t)
		go2(x, p.parent.gapY(p.layer, t))
	}
	go2(t.port(), y)
	go2(x, t.y)
	return w, true
}
