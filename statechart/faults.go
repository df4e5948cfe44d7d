package statechart

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Fault is one thing wrong with a chart.
type Fault struct {
	// At is the place, Text what is wrong there and how to mend it.
	At   Position
	Text string
}

// String gives place and text.
func (f Fault) String() string { return f.At.String() + ": " + f.Text }

// Faults are all that is wrong with a chart, in the order of the text.
type Faults struct {
	// List is never empty.
	List []Fault
}

// maxFaults bounds the list; a text with more is not a chart.
const maxFaults = 200

// Error gives one fault a line.
func (f *Faults) Error() string {
	lines := make([]string, len(f.List))
	for i, fault := range f.List {
		lines[i] = fault.String()
	}
	return "statechart: " + strings.Join(lines, "\n")
}

// Code says what a caller can do about an [Error].
type Code string

// The codes of an error of a step or a restore. After each of them the process
// is as it was.
const (
	// CodeRefused: the event may not come from outside. It never will.
	CodeRefused Code = "event-refused"
	// CodeExpression: a guard, an assign or a parameter could not be computed.
	// With the same event it fails again.
	CodeExpression Code = "expression-failed"
	// CodeLimit: the step took more rounds than the limit, or the snapshot is too
	// large to be stored.
	CodeLimit Code = "round-limit"
	// CodeIllegal: the step would leave the legal configurations, which a
	// transition to a history state can do.
	CodeIllegal Code = "illegal-configuration"
	// CodeInvokeFailed: an invoke failed and no transition takes it.
	CodeInvokeFailed Code = "invoke-failed"
	// CodeForeign: the snapshot belongs to another chart, version, definition,
	// profile or layout.
	CodeForeign Code = "foreign-snapshot"
	// CodeDamaged: the text is not a snapshot of this chart.
	CodeDamaged Code = "damaged-snapshot"
	// CodeNoCode: the definition was loaded with names only.
	CodeNoCode Code = "no-code"
)

// Error is what Start, Next, Explore and Restore return.
type Error struct {
	// Code to decide by.
	Code Code
	// At is the place in the definition, if there is one (Line > 0).
	At Position
	// Text says what was wrong.
	Text string
	// Err is the cause; nil if Text says it all.
	Err error
}

// Error names what was wrong and where.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("statechart: ")
	b.WriteString(e.Text)
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	if e.At.Line > 0 {
		b.WriteString(" [")
		b.WriteString(e.At.String())
		b.WriteString("]")
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf gives the code of an error of this package, "" for any other.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// places turns offsets into lines and columns. It counts the text once, and from
// the nearest mark afterwards.
type places struct {
	text  []byte
	marks []mark
}

type mark struct{ line, column int }

const stride = 512

func newPlaces(text []byte) *places {
	p := &places{text: text, marks: make([]mark, 0, len(text)/stride+1)}
	m := mark{1, 1}
	for i := range text {
		if i%stride == 0 {
			p.marks = append(p.marks, m)
		}
		m.step(text[i])
	}
	return p
}

func (m *mark) step(b byte) {
	switch {
	case b == '\n':
		m.line, m.column = m.line+1, 1
	case utf8.RuneStart(b):
		m.column++
	}
}

func (p *places) at(offset int) (line, column int) {
	if len(p.marks) == 0 {
		return 1, 1
	}
	i := min(offset/stride, len(p.marks)-1)
	m := p.marks[i]
	for _, b := range p.text[i*stride : min(offset, len(p.text))] {
		m.step(b)
	}
	return m.line, m.column
}

func (l *loader) position(t *tree) Position {
	line, column := l.places.at(t.from)
	return Position{Line: line, Column: column, Offset: t.from, Length: t.to - t.from, Pointer: t.pointer()}
}

// fault notes what is wrong with a value.
func (l *loader) fault(t *tree, format string, args ...any) {
	if len(l.faults) <= maxFaults {
		l.faults = append(l.faults, Fault{l.position(t), fmt.Sprintf(format, args...)})
	}
}

// memberFault notes what is wrong with a member's name.
func (l *loader) memberFault(m *member, format string, args ...any) {
	if len(l.faults) <= maxFaults {
		line, column := l.places.at(m.at)
		l.faults = append(l.faults, Fault{Position{Line: line, Column: column, Offset: m.at, Length: len(m.key) + 2, Pointer: m.value.pointer()}, fmt.Sprintf(format, args...)})
	}
}

// err gives the faults as an error, nil if there are none.
func (l *loader) err() error {
	if len(l.faults) == 0 {
		return nil
	}
	if len(l.faults) > maxFaults {
		l.faults = l.faults[:maxFaults]
		l.faults[maxFaults-1].Text += " (there are more faults, which are not listed)"
	}
	slices.SortStableFunc(l.faults, func(a, b Fault) int { return cmp.Compare(a.At.Offset, b.At.Offset) })
	return &Faults{List: l.faults}
}
