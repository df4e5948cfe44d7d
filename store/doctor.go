package store

import (
	"fmt"
	"slices"
)

// Level is how a look at one live setting came out.
type Level uint8

// The levels, from good to bad.
const (
	// Sound: as it should be.
	Sound Level = iota
	// Warning: the promises hold, but something is worth a person's look.
	Warning
	// Accepted: a promise does not hold, and the server's configuration names
	// the check as unsafe: whoever runs it knows.
	Accepted
	// Refused: a promise does not hold. A server does not start on it, unless
	// its configuration names the check as unsafe.
	Refused
)

// String is the word that people and programs read.
func (l Level) String() string {
	switch l {
	case Sound:
		return "ok"
	case Warning:
		return "warning"
	case Accepted:
		return "accepted"
	case Refused:
		return "refused"
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// MarshalText gives the word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Check is one look at a live setting of a database.
type Check struct {
	// Name of the check, such as postgres.fsync; it never changes its meaning.
	Name string `json:"name"`
	// Level is how it came out.
	Level Level `json:"level"`
	// Value is what was seen; empty in a list of what is looked at.
	Value string `json:"value"`
	// Why it matters.
	Why string `json:"why"`
	// Way out.
	Way string `json:"way"`
}

// Checkup collects checks as they come out. Its methods are for one goroutine.
type Checkup struct {
	known []Check
	all   []Check
}

// NewCheckup begins one, with all that it may look at.
func NewCheckup(known []Check) *Checkup { return &Checkup{known: known} }

// See notes what was seen of a check, in the words of fmt.Sprintf. Its level is
// bad where something is wrong.
func (c *Checkup) See(name string, bad Level, wrong bool, format string, args ...any) {
	i := slices.IndexFunc(c.known, func(k Check) bool { return k.Name == name })
	if i < 0 {
		panic("doctor: no check " + name)
	}
	check := c.known[i]
	check.Level, check.Value = Sound, fmt.Sprintf(format, args...)
	if wrong {
		check.Level = bad
	}
	c.all = append(c.all, check)
}

// All are the checks, in the order in which they were looked at.
func (c *Checkup) All() []Check { return c.all }
