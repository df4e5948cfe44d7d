package exact

import (
	"encoding/json"
	"fmt"
)

// Masked is the JSON value that stands in the place of a masked one.
const Masked = `"***"`

// Mask replaces values of JSON texts and keeps every other byte. nil masks
// nothing.
type Mask struct{ paths []Path }

// NewMask reads paths as [ParsePath] does; without any the mask is nil.
func NewMask(paths []string) (*Mask, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	if len(paths) > maxPaths {
		return nil, fmt.Errorf("more than %d paths", maxPaths)
	}
	m := &Mask{}
	for _, text := range paths {
		path, err := ParsePath(text)
		if err != nil {
			return nil, err
		}
		m.paths = append(m.paths, path)
	}
	return m, nil
}

// Apply masks what the paths lead to, wherever a name stands twice too. It
// reports false where the text is not JSON: nobody can say then what it holds.
// The answer may be text itself.
func (m *Mask) Apply(text []byte) ([]byte, bool) { return m.apply(text, false) }

// ApplyAnywhere masks what the paths lead to from any object or array of the
// text: for a text of which it is not known where in it the document stands.
func (m *Mask) ApplyAnywhere(text []byte) ([]byte, bool) { return m.apply(text, true) }

func (m *Mask) apply(text []byte, anywhere bool) ([]byte, bool) {
	if m == nil {
		return text, true
	}
	if !json.Valid(text) {
		return nil, false
	}
	w := masking{scanner: scanner{text: text}, anywhere: anywhere, roots: m.paths}
	w.space()
	w.value(m.paths)
	if w.kept == 0 {
		return text, true
	}
	return append(w.out, text[w.kept:]...), true
}

// masking walks over JSON that is known to be valid.
type masking struct {
	scanner
	anywhere bool
	roots    []Path
	out      []byte
	kept     int // of text, up to here is in out
}

// value walks one value that the rests of paths lead to, without the space
// around it.
func (w *masking) value(rests []Path) {
	for _, rest := range rests {
		if len(rest) == 0 {
			w.out = append(append(w.out, w.text[w.kept:w.at]...), Masked...)
			w.skip()
			w.kept = w.at
			return
		}
	}
	open := w.peek()
	if open != '{' && open != '[' || len(rests) == 0 && !w.anywhere {
		w.skip()
		return
	}
	w.at++
	for i := 0; ; i++ {
		w.space()
		if w.peek() == ',' {
			w.at++
			w.space()
		}
		if w.peek() == '}' || w.peek() == ']' {
			w.at++
			return
		}
		var next []Path
		if open == '{' {
			name, err := unquote(w.str())
			next = advance(rests, func(s step) bool { return err == nil && s.kind == 'm' && s.name == name })
			w.space()
			w.at++ // the colon
			w.space()
		} else {
			next = advance(rests, func(s step) bool { return s.kind == '*' || s.kind == 'e' && s.index == i })
		}
		if w.anywhere {
			next = append(next, w.roots...)
		}
		w.value(next)
	}
}
