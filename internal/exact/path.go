package exact

import (
	"fmt"
	"strconv"
	"strings"
)

// maxPaths bounds the paths of one option; each costs time at every member.
const maxPaths = 64

// step is one step of a path: a member by name, an element by index, or every
// element.
type step struct {
	name  string // of a member
	index int    // of an element
	kind  byte   // 'm', 'e', '*'
}

// Path leads to values in a JSON text; see [ParsePath].
type Path []step

// ParsePath reads a path such as $.meta.sentAt, $.items[*].note, $.a[0] or
// $['a.b'].
func ParsePath(text string) (Path, error) {
	rest, ok := strings.CutPrefix(text, "$")
	if !ok {
		return nil, fmt.Errorf("path %q: does not begin with $", text)
	}
	var steps Path
	for rest != "" {
		var s step
		switch {
		case rest[0] == '.':
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			s, rest = step{kind: 'm', name: rest[1:end]}, rest[end:]
			if s.name == "" || strings.ContainsAny(s.name, "*]'\" ") {
				return nil, fmt.Errorf("path %q: %q is no member name (write ['…'] for an unusual one)", text, s.name)
			}
		case strings.HasPrefix(rest, "['"):
			name, behind, closed := strings.Cut(rest[2:], "']")
			if !closed {
				return nil, fmt.Errorf("path %q: no '] for ['", text)
			}
			s, rest = step{kind: 'm', name: name}, behind
		case strings.HasPrefix(rest, "[*]"):
			s, rest = step{kind: '*'}, rest[3:]
		case rest[0] == '[':
			number, behind, closed := strings.Cut(rest[1:], "]")
			if !closed {
				return nil, fmt.Errorf("path %q: no ] for [", text)
			}
			n, err := strconv.ParseUint(number, 10, 31)
			if err != nil {
				return nil, fmt.Errorf("path %q: %q is no index", text, number)
			}
			s, rest = step{kind: 'e', index: int(n)}, behind
		default:
			return nil, fmt.Errorf("path %q: want . or [ at %q", text, rest)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Selection says which values of a JSON text count. nil: all of them.
type Selection struct {
	include, exclude []Path
}

// NewSelection reads both lists; nil when they are empty.
func NewSelection(include, exclude []string) (*Selection, error) {
	if len(include) == 0 && len(exclude) == 0 {
		return nil, nil
	}
	if len(include) > maxPaths || len(exclude) > maxPaths {
		return nil, fmt.Errorf("more than %d paths", maxPaths)
	}
	sel := &Selection{}
	for _, list := range []struct {
		from []string
		to   *[]Path
	}{{include, &sel.include}, {exclude, &sel.exclude}} {
		for _, text := range list.from {
			steps, err := ParsePath(text)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, steps)
		}
	}
	return sel, nil
}

// cursor is a place in a JSON text, as far as the selection cares: the rests of
// the paths that lead through it.
type cursor struct {
	only             bool // there are include paths and none has been walked to its end
	include, exclude []Path
	excluded         bool
}

func (sel *Selection) root() cursor {
	if sel == nil {
		return cursor{}
	}
	return cursor{only: len(sel.include) > 0}.settle(sel.include, sel.exclude)
}

// settle makes the cursor of a place from the rests of the paths that lead to it.
func (c cursor) settle(include, exclude []Path) cursor {
	next := cursor{only: c.only}
	for _, rest := range exclude {
		if len(rest) == 0 {
			next.excluded = true
		}
	}
	next.exclude = exclude
	for _, rest := range include {
		if len(rest) == 0 {
			next.only = false
		}
	}
	if next.only {
		next.include = include
	}
	return next
}

func (c cursor) plain() bool { return !c.only && len(c.exclude) == 0 }

func (c cursor) member(name []byte) cursor {
	if c.plain() {
		return cursor{}
	}
	match := func(s step) bool { return s.kind == 'm' && s.name == string(name) }
	return c.settle(advance(c.include, match), advance(c.exclude, match))
}

func (c cursor) element(i int) cursor {
	if c.plain() {
		return cursor{}
	}
	match := func(s step) bool { return s.kind == '*' || s.kind == 'e' && s.index == i }
	return c.settle(advance(c.include, match), advance(c.exclude, match))
}

func advance(paths []Path, match func(step) bool) (rests []Path) {
	for _, p := range paths {
		if len(p) > 0 && match(p[0]) {
			rests = append(rests, p[1:])
		}
	}
	return rests
}

// skips tells whether the value here, written as text, is left out: it is
// excluded, or nothing included lies in it. A container on the way to an
// included value stays.
func (c cursor) skips(text []byte) bool {
	if c.excluded {
		return true
	}
	if !c.only {
		return false
	}
	return len(c.include) == 0 || text[0] != '{' && text[0] != '['
}
