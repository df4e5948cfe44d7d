package source

import (
	"fmt"
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

// Fetched is the event that a hint and the content of its resource make: its
// identity is (resource, type, version), so that two hints that find one content
// are one event. A version that is a time is written as RFC 3339 in UTC. Without
// content (nil) the resource is gone, and the version is "gone". The error is a
// *Fault.
func (c *Contract) Fetched(hint *Event, contentType string, content []byte) (*Event, error) {
	if c.Fetch == nil || !hint.Hint || len(hint.Subject) == 0 {
		return nil, refusef(WrongType, "", "no hint whose resource can be fetched")
	}
	fetch, err := c.Fetch(hint)
	if err != nil {
		return nil, err
	}
	e := *hint
	e.Hint, e.Data, e.ContentType, e.Version = false, content, contentType, "gone"
	if content != nil {
		if err := exact.Check(content); err != nil {
			return nil, &Fault{Reason: MalformedBody, Cause: err}
		}
		version, err := exact.PartAt(content, fetch.Version...)
		if err != nil {
			return nil, &Fault{Reason: MissingField, Field: fmt.Sprint(fetch.Version), Cause: err}
		}
		e.Version = version
		if at, ok := Instant(version); ok {
			e.Time, e.Version = at, at.UTC().Format(time.RFC3339Nano)
		}
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
