package source

import (
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// stable is the content in canonical form, without what is not selected; where
// it has none, the content itself.
func stable(selection *exact.Selection) func(*Event) []byte {
	return func(e *Event) []byte {
		if text, ok := exact.Canonical(e.Data, selection); ok {
			return text
		}
		return e.Data
	}
}

// stableWithout is stable for paths that are written down in this package.
func stableWithout(paths ...string) func(*Event) []byte {
	return stable(must(exact.NewSelection(nil, paths)))
}

// fetched is the event that a hint and the content of its resource make: its
// identity is (resource, type, version), the version as the sender writes it, so
// that a list and a hint that find one content bring one event. The error is a
// *Fault.
func (c *Contract) fetched(hint *Event, contentType string, content []byte) (*Event, error) {
	fetch, err := c.Fetch(hint)
	if err != nil {
		return nil, err
	}
	if err := exact.Check(content); err != nil {
		return nil, &Fault{Reason: MalformedBody, Cause: err}
	}
	e := *hint
	e.Hint, e.Data, e.ContentType = false, content, contentType
	if e.Version, err = exact.PartAt(content, fetch.Version...); err != nil {
		return nil, &Fault{Reason: MissingField, Field: strings.Join(fetch.Version, "."), Cause: err}
	}
	if at, ok := Instant(e.Version); ok {
		e.Time = at
	}
	e.ID = append(append([]string{}, hint.Subject...), hint.Type, e.Version)
	return &e, nil
}

// Instant reads a time as senders write it: RFC 3339, also with an offset
// without its colon ("2026-01-02T03:04:05+0000").
func Instant(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999Z0700"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}
