package source

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// line returns the one line of a header. An absent or empty header, and one that
// was sent twice, is a fault: of two lines nobody can say which one counts.
func line(h http.Header, name string) (string, error) {
	lines := h.Values(name)
	if len(lines) == 0 || len(lines) == 1 && strings.TrimSpace(lines[0]) == "" {
		return "", refuse(MissingHeader, name)
	}
	if len(lines) > 1 {
		return "", refusef(MalformedHeader, name, "sent %d times", len(lines))
	}
	return strings.TrimSpace(lines[0]), nil
}

// optional is the first line of a header that decides nothing.
func optional(h http.Header, name string) string { return strings.TrimSpace(h.Get(name)) }

// instant reads a Unix time in decimal digits, in units of unit.
func instant(text string, unit time.Duration) (time.Time, bool) {
	n, err := strconv.ParseUint(text, 10, 64) // takes no sign, no space and no empty text
	if err != nil || len(text) > 15 {
		return time.Time{}, false
	}
	if unit == time.Millisecond {
		return time.UnixMilli(int64(n)), true
	}
	return time.Unix(int64(n), 0), true
}

// within holds a signed timestamp to the tolerance, on both sides.
func within(at, stamp time.Time, tolerance time.Duration, field string) error {
	if d := at.Sub(stamp); d > tolerance || d < -tolerance {
		return refusef(OutOfTolerance, field, "%s from the arrival, more than %s", d.Truncate(time.Second), tolerance)
	}
	return nil
}
