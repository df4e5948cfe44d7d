package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing wrong with a configuration.
type Fault struct {
	// Line in the file, from 1; 0 when it concerns the file as a whole.
	Line int
	// Field is the path of the field, such as http[0].upstream.
	Field string
	// Text says what is wrong and what to write instead.
	Text string
}

// String is the fault without the name of its file.
func (f Fault) String() string {
	s := f.Text
	if f.Field != "" {
		s = f.Field + ": " + s
	}
	if f.Line > 0 {
		return fmt.Sprintf("line %d: %s", f.Line, s)
	}
	return s
}

// Faults are all faults of one configuration, by line. It is an error when
// there is at least one.
type Faults []Fault

// Error lists all faults, one a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// sorted puts the faults in the order of the file, without repeats.
func (f Faults) sorted() Faults {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
	return slices.Compact(f)
}
