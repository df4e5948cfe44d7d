package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// Defaults of sources.
const (
	// DefaultBodyLimit bounds the body of a delivery, in bytes.
	DefaultBodyLimit = 1 << 20
	// DefaultRetention is the least that effects of an inbox remember their
	// results; see [Options].
	DefaultRetention = 7 * 24 * time.Hour
	// DefaultTombstone is how long identities are remembered after that.
	DefaultTombstone = 90 * 24 * time.Hour
	// plainTimes is PlainLimit in units of BodyLimit.
	plainTimes = 4
)

// gate is one source made ready.
type gate struct {
	Source
	types   patterns
	schemas *schemas
	mask    *exact.Mask
	seen    *pulse // when it sent something last; nil without an alarm
}

// patterns are names, and fronts of names that end in '*'.
type patterns []string

// match returns the longest pattern that fits, "" if none does.
func (p patterns) match(name string) (found string, ok bool) {
	for _, pattern := range p {
		front, open := strings.CutSuffix(pattern, "*")
		if (pattern == name || open && strings.HasPrefix(name, front)) && (!ok || len(pattern) > len(found)) {
			found, ok = pattern, true
		}
	}
	return found, ok
}

// checkPattern refuses a pattern whose '*' is not its last character.
func checkPattern(pattern string) error {
	if front, _ := strings.CutSuffix(pattern, "*"); strings.Contains(front, "*") || pattern == "" {
		return fmt.Errorf("%q is no type: write a name, or a front of names and '*'", pattern)
	}
	return nil
}

// newGate checks a source and makes it ready. It reports every fault at once.
func newGate(s Source) (*gate, error) {
	g := &gate{Source: s}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !isName(s.Name) {
		fault("name: %q; want 1 to 64 letters, digits, '-' and '_'", s.Name)
	}
	faults = append(faults, g.checkContract()...)
	if len(s.Types) == 0 {
		fault(`types: none (list those to accept; "*" is all)`)
	}
	for _, pattern := range s.Types {
		if err := checkPattern(pattern); err != nil {
			fault("types: %w", err)
		}
	}
	g.types = slices.Clone(s.Types)
	var err error
	if g.schemas, err = newSchemas(s.Schemas); err != nil {
		fault("schemas: %w", err)
	}
	if g.mask, err = exact.NewMask(s.Mask); err != nil {
		fault("mask: %w", err)
	}
	if g.BodyLimit == 0 {
		g.BodyLimit = DefaultBodyLimit
	}
	if g.PlainLimit == 0 {
		g.PlainLimit = plainTimes * g.BodyLimit
	}
	if g.BodyLimit < 0 || g.PlainLimit < 0 {
		fault("body limit %d, plain limit %d: negative", g.BodyLimit, g.PlainLimit)
	}
	if s.Silence < 0 || s.Silence > 0 && s.Silence < minSilence {
		fault("silence: %v, want at least %v or 0 for no alarm", s.Silence, minSilence)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("source %q: %w", s.Name, err)
	}
	return g, nil
}

func (g *gate) checkContract() (faults []error) {
	c := g.Contract
	if c == nil || c.Verify == nil || c.Read == nil {
		return []error{errors.New("contract: none (take one of package source)")}
	}
	for _, status := range []int{c.Success, c.Refused, c.TooLarge} {
		if status < 200 || status > 599 {
			faults = append(faults, fmt.Errorf("contract %s: %d is no status to answer with", c.Name, status))
		}
	}
	if c.Class == source.Hint && c.Fetch != nil && g.Fetch == nil {
		faults = append(faults, fmt.Errorf("fetch: none; %s sends hints, whose resources have to be read", c.Name))
	}
	if g.ConfigFunc == nil {
		for _, secret := range g.Config.Secrets {
			if secret.Reveal() == "" {
				faults = append(faults, fmt.Errorf("config: %v is empty", secret))
			} else if c.Secret != nil {
				if err := c.Secret(secret.Reveal()); err != nil {
					faults = append(faults, fmt.Errorf("config: %v: %w", secret, err))
				}
			}
		}
	}
	return faults
}

// config is that of this moment.
func (g *gate) config() source.Config {
	if g.ConfigFunc != nil {
		return g.ConfigFunc()
	}
	return g.Config
}

// fetches says that an event is a hint whose resource is to be fetched.
func (g *gate) fetches(e *Event) bool { return e.Hint && g.Fetch != nil && g.Contract.Fetch != nil }

// isName says whether a text can be the name of a source: it is part of the
// identity of its events, and of paths.
func isName(name string) bool {
	for _, c := range []byte(name) {
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}

// checkWants holds the effects to what the sources can give.
func (r *Receiver) checkWants() (faults []error) {
	names := map[string]bool{}
	for _, w := range r.wants {
		id := store.Identity{Effect: w.name, Parts: []string{"x"}}
		switch {
		case w.name == fetchEffect || id.Validate() != nil:
			faults = append(faults, fmt.Errorf("effect %q: no name for an effect", w.name))
		case names[w.name]:
			faults = append(faults, fmt.Errorf("effect %q: named twice", w.name))
		}
		names[w.name] = true
		for _, name := range w.sources {
			if r.sources[name] == nil {
				faults = append(faults, fmt.Errorf("effect %q: sources: there is no source %q", w.name, name))
			}
		}
	}
	for _, g := range r.sources {
		wanted := slices.ContainsFunc(r.wants, func(w want) bool { return w.takes(g.Name) })
		keyed := slices.ContainsFunc(r.wants, func(w want) bool { return w.takes(g.Name) && w.key != nil })
		if g.Contract.Class == 0 && wanted && !keyed {
			faults = append(faults, fmt.Errorf("source %q: its events have no identity, so an effect must take its key from them (set Effect.Key)", g.Name))
		}
	}
	return faults
}

// Window is the longest time in which one of the named sources may repeat a
// delivery; nil names all. Results of effects that take from them have to be
// remembered at least that long.
func (r *Receiver) Window(sources []string) time.Duration {
	var longest time.Duration
	for name, g := range r.sources {
		if sources == nil || slices.Contains(sources, name) {
			longest = max(longest, g.Contract.Window)
		}
	}
	return longest
}

// Retention is how long results of an effect are kept that asks for this much and
// takes from the named sources, nil for all: 0 is twice their window and at least
// a week. Less than the window is an error: the sender's last repetition would be
// a new operation. Less than one and a half times is a warning, "" for none.
func (r *Receiver) Retention(asked time.Duration, sources []string) (retention time.Duration, warning string, err error) {
	window := r.Window(sources)
	switch {
	case asked == 0:
		return max(2*window, DefaultRetention), "", nil
	case asked < window:
		return 0, "", fmt.Errorf("retention: %v is less than the %v in which a sender may repeat", asked, window)
	case asked < window+window/2:
		return asked, fmt.Sprintf("retention %v is less than one and a half times the %v in which a sender may repeat", asked, window), nil
	}
	return asked, "", nil
}
