package analyze

import (
	"slices"
	"strconv"
	"strings"
)

// Class says what a second delivery of an event can do once the first one had
// its effect, or what an event means that has none.
type Class string

// The classes of a cell, and of an event type: that of its worst cell.
const (
	// Terminal: the process ends; nothing can follow.
	Terminal Class = "TERMINAL"
	// Protected: no way leads to where the event could act again.
	Protected Class = "PROTECTED"
	// ProtectedByData: the structure would let it act again, the data do not.
	ProtectedByData Class = "PROTECTED_BY_DATA"
	// ProtectedUntilCycle: harmless until some path leads back.
	ProtectedUntilCycle Class = "PROTECTED_UNTIL_CYCLE"
	// Undecided: a budget ended the search before there was an answer.
	Undecided Class = "UNKNOWN"
	// Exposed: the very next delivery acts again.
	Exposed Class = "EXPOSED"
	// Late: without effect here, and for ever: it can be dropped.
	Late Class = "LATE"
	// Early: without effect here, but some path leads to where it has one: dropping
	// it may lose it.
	Early Class = "EARLY"
	// NoEffect: of an event type that never has an effect.
	NoEffect Class = "NO_EFFECT"
)

// ranks orders the classes of cells with an effect, from safe to unsafe.
func ranks() []Class {
	return []Class{Terminal, Protected, ProtectedByData, ProtectedUntilCycle, Undecided, Exposed}
}

func (c Class) rank() int { return slices.Index(ranks(), c) }

// distances tell how far each state is from one where a letter can act again.
type distances struct {
	far   []int   // by state; -1: no way
	next  []*step // the step of the shortest way
	acts  []*step // the step that acts again, at the end of that way
	dark  []bool  // an unexplored state can be reached
	blank []bool  // what the letter does here itself is not fully known
	// settled are the tokens that the first delivery left.
	settled []string
}

// graph answers questions about an exploration.
type graph struct {
	*exploration
	moves [][]*step // into a state: steps from another state
	dark  []bool
	cache map[string]*distances
	needs map[int]map[string]bool // by letter: tokens that can make a difference
}

func newGraph(x *exploration) *graph {
	g := &graph{exploration: x, moves: make([][]*step, len(x.states)), cache: map[string]*distances{}, needs: map[int]map[string]bool{}}
	var queue []*state
	g.dark = make([]bool, len(x.states))
	for _, s := range x.states {
		dark := !s.expanded
		for l := range s.out {
			dark = dark || s.open[l]
			for _, st := range s.out[l] {
				if st.to != s {
					g.moves[st.to.place] = append(g.moves[st.to.place], st)
				}
			}
		}
		if dark {
			g.dark[s.place] = true
			queue = append(queue, s)
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		for _, st := range g.moves[s.place] {
			if !g.dark[st.from.place] {
				g.dark[st.from.place] = true
				queue = append(queue, st.from)
			}
		}
	}
	return g
}

// needed lists what tokens of a first step can make a second one harmless.
func (g *graph) needed(letter int) map[string]bool {
	if found, ok := g.needs[letter]; ok {
		return found
	}
	all := map[string]bool{}
	for _, s := range g.states {
		if s.out == nil {
			continue
		}
		for _, st := range s.out[letter] {
			for _, t := range st.bars {
				all[t] = true
			}
			if st.complete && !st.restarts {
				for _, t := range st.absorbed {
					all[t] = true
				}
			}
		}
	}
	g.needs[letter] = all
	return all
}

// harmless tells that a step does nothing more, or is impossible, once the
// tokens are settled.
func (s *step) harmless(settled []string) bool {
	if !s.changes {
		return true
	}
	for _, t := range s.bars {
		if slices.Contains(settled, t) {
			return true
		}
	}
	if s.restarts || !s.complete || len(s.absorbed) == 0 {
		return false
	}
	for _, t := range s.absorbed {
		if !slices.Contains(settled, t) {
			return false
		}
	}
	return true
}

// after gives the distances for a second delivery of the letter, once the first
// one has settled these tokens.
func (g *graph) after(letter int, settles []string) *distances {
	var settled []string
	need := g.needed(letter)
	for _, t := range settles {
		if need[t] && !slices.Contains(settled, t) {
			settled = append(settled, t)
		}
	}
	key := strconv.Itoa(letter) + "\x00" + strings.Join(settled, "\x00")
	if found, ok := g.cache[key]; ok {
		return found
	}
	n := len(g.states)
	d := &distances{far: make([]int, n), next: make([]*step, n), acts: make([]*step, n), dark: g.dark, blank: make([]bool, n), settled: settled}
	l := g.letters[letter]
	var layer []*state
	for i, s := range g.states {
		d.far[i] = -1
		if s.done {
			continue
		}
		if !s.expanded || s.out == nil {
			d.blank[i] = true
			if s.out == nil {
				continue
			}
		}
		d.blank[i] = d.blank[i] || s.open[letter]
		for _, st := range s.out[letter] {
			if st.harmless(settled) {
				continue
			}
			if d.acts[i] == nil || clearer(st, d.acts[i]) {
				d.acts[i] = st
			}
		}
		if d.acts[i] != nil {
			d.far[i] = 0
			layer = append(layer, s)
		}
	}
	for len(layer) > 0 {
		var following []*state
		for _, s := range layer {
			for _, st := range g.moves[s.place] {
				// A firing for a visit that is over is dropped, so that no way through
				// its end leads back.
				if l.owner != nil && slices.Contains(st.leaves, l.owner) {
					continue
				}
				from := st.from.place
				switch {
				case d.far[from] < 0:
					d.far[from] = d.far[s.place] + 1
					d.next[from], d.acts[from] = st, d.acts[s.place]
					following = append(following, st.from)
				case d.far[from] == d.far[s.place]+1 && ends(st, d.acts[s.place], d.next[from], d.acts[from]):
					d.next[from], d.acts[from] = st, d.acts[s.place]
				}
			}
		}
		layer = following
	}
	g.cache[key] = d
	return d
}

// better prefers the step that needs no answer, or fewer, as the clearer witness.
func better(a, b *step) bool {
	if a.sure != b.sure {
		return a.sure
	}
	return len(a.answers) < len(b.answers)
}

// clearer prefers, of two steps that act again, the more harmful.
func clearer(a, b *step) bool {
	if x, y := a.harm(), b.harm(); x != y {
		return x > y
	}
	return better(a, b)
}

// ends compares two first steps of ways that are equally long, by where they end.
func ends(a, last *step, b, other *step) bool {
	if x, y := last.harm(), other.harm(); x != y {
		return x > y
	}
	return better(a, b)
}

// harm weighs what the actions of a step do when they run again: adding up before
// what is unknown, before putting back an old value, before a constant.
func (s *step) harm() int {
	worst := 0
	for _, e := range s.effects {
		switch e.class {
		case Accumulating:
			worst |= 8
		case Unknown:
			worst |= 4
		case Overwrite:
			worst |= 2
		case Constant:
			worst |= 1
		}
	}
	return worst
}

// verdict is the class of one step, with the way to a second effect.
type verdict struct {
	class Class
	first *step
	far   int // steps between the first and the second effect
	over  *distances
	way   []*step // after the first
	again *step   // the second effect; nil if there is none
}

func (g *graph) verdict(first *step) verdict {
	if first.to.done {
		return verdict{class: Terminal, first: first}
	}
	v := g.reach(first, g.after(first.letter, first.settles))
	if v.class == Protected && len(first.settles) > 0 {
		if bare := g.reach(first, g.after(first.letter, nil)); bare.class != Protected {
			bare.class = ProtectedByData
			return bare
		}
	}
	return v
}

func (g *graph) reach(first *step, d *distances) verdict {
	v := verdict{first: first, over: d, class: Protected}
	at := first.to.place
	if l := g.letters[first.letter]; l.owner != nil && slices.Contains(first.leaves, l.owner) {
		return v // a second firing is for a visit that is over
	}
	v.far = max(d.far[at], 0)
	switch {
	case d.far[at] == 0:
		v.class = Exposed
	case d.blank[at]:
		v.class = Undecided
	case d.far[at] > 0:
		v.class = ProtectedUntilCycle
	case d.dark[at]:
		v.class = Undecided
	}
	return v
}

// witnessed fills in the shortest way.
func (v verdict) witnessed() verdict {
	if v.over == nil || v.over.far[v.first.to.place] < 0 || v.class == Protected || v.class == Terminal {
		return v
	}
	at := v.first.to
	for v.over.far[at.place] > 0 {
		s := v.over.next[at.place]
		v.way = append(v.way, s)
		at = s.to
	}
	v.again = v.over.acts[v.first.to.place]
	return v
}

// must tells that nothing on the way depends on a guard.
func (v verdict) must() bool {
	if !v.first.sure || v.again != nil && !v.again.sure {
		return false
	}
	return !slices.ContainsFunc(v.way, func(s *step) bool { return !s.sure })
}

// worse orders verdicts: by class, then by the shorter witness, then by what the
// second delivery runs. No two steps of one cell differ in being sure.
func (v verdict) worse(w verdict) bool {
	if a, b := v.class.rank(), w.class.rank(); a != b {
		return a > b
	}
	if v.far != w.far {
		return v.far < w.far
	}
	if v.first.sure != w.first.sure {
		return v.first.sure
	}
	if x, y := v.second(), w.second(); x != nil && y != nil && x.harm() != y.harm() {
		return x.harm() > y.harm()
	}
	return false
}

// second is the step that acts again; nil if there is none.
func (v verdict) second() *step {
	if v.over == nil {
		return nil
	}
	return v.over.acts[v.first.to.place]
}

// quiet gives the class of a cell without an effect.
func (g *graph) quiet(s *state, letter int) Class {
	d := g.after(letter, nil)
	switch {
	case d.blank[s.place]:
		return Undecided
	case d.far[s.place] > 0:
		return Early
	case d.dark[s.place]:
		return Undecided
	default:
		return Late
	}
}
