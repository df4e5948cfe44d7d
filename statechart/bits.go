package statechart

import "math/bits"

// set is a set of nodes by their order.
type set []uint64

func (s set) has(n *Node) bool { return s[n.Order>>6]&(1<<(n.Order&63)) != 0 }

func (s set) add(n *Node) { s[n.Order>>6] |= 1 << (n.Order & 63) }

func (s set) remove(n *Node) { s[n.Order>>6] &^= 1 << (n.Order & 63) }

func (s set) clear() {
	for i := range s {
		s[i] = 0
	}
}

// next is the least order at or after from that is in the set, below end; -1 if
// there is none.
func (s set) next(from, end int) int {
	for i := from >> 6; from < end && i < len(s); i++ {
		word := s[i]
		if i == from>>6 {
			word &= ^uint64(0) << (from & 63)
		}
		if word != 0 {
			if at := i<<6 + bits.TrailingZeros64(word); at < end {
				return at
			}
			return -1
		}
	}
	return -1
}

// last is the greatest order below end that is in the set; -1 if there is none.
func (s set) last(end int) int {
	for i := (end - 1) >> 6; end > 0 && i >= 0; i-- {
		word := s[i]
		if i == (end-1)>>6 {
			word &= ^uint64(0) >> (63 - (end-1)&63)
		}
		if word != 0 {
			return i<<6 + 63 - bits.LeadingZeros64(word)
		}
	}
	return -1
}

// inside tells whether a proper descendant of the node is in the set.
func (s set) inside(n *Node) bool { return s.next(n.Order+1, n.last) >= 0 }

func (s set) meets(other set) bool {
	for i := range s {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

// legal tells whether the set is a legal configuration: the root, one child of
// every compound node in it, all regions of every parallel one, no node without
// its parent, no history node.
func (d *Definition) legal(s set) bool {
	if !s.has(d.nodes[0]) {
		return false
	}
	for i := s.next(0, len(d.nodes)); i >= 0; i = s.next(i+1, len(d.nodes)) {
		n := d.nodes[i]
		if n.Kind == History || n.Parent != nil && !s.has(n.Parent) {
			return false
		}
		on := 0
		for _, c := range n.regions {
			if s.has(c) {
				on++
			}
		}
		if n.Kind == Compound && on != 1 || n.Kind == Parallel && on != len(n.regions) {
			return false
		}
	}
	return true
}
