package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// redacted stands wherever a secret would be shown.
const redacted = "[redacted]"

// Secret is a string that is never printed: every way of formatting it gives a
// fixed text. Reveal is the one way to its value.
type Secret struct{ value string }

// NewSecret wraps a value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal gives the value, for use and never for showing.
func (s Secret) Reveal() string { return s.value }

// Empty reports whether there is no value.
func (s Secret) Empty() bool { return s.value == "" }

// String hides the value.
func (s Secret) String() string { return redacted }

// GoString hides the value from %#v.
func (s Secret) GoString() string { return redacted }

// Format hides the value from every verb.
func (s Secret) Format(f fmt.State, _ rune) {
	// fmt reports errors of its own writer to its caller.
	_, _ = io.WriteString(f, redacted)
}

// MarshalJSON hides the value.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText hides the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue hides the value from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// parseDuration reads a Go duration, and whole days such as 30d.
func parseDuration(s string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration (write 500ms, 30s, 5m, 48h or 30d)", s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/int64(24*time.Hour) {
			return 0, wrong
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, wrong
	}
	return d, nil
}

// parseSize reads a number of bytes, plain or with a unit.
func parseSize(s string) (int64, error) {
	units := []struct {
		suffix string
		factor int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}
	for _, unit := range units {
		digits, ok := strings.CutSuffix(s, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.factor {
			break
		}
		return n * unit.factor, nil
	}
	return 0, fmt.Errorf("%q is not a size (write 4096, 256KiB or 1MiB)", s)
}

// Environment is where ${…} in strings comes from.
type Environment struct {
	// Getenv looks a variable up; nil means os.LookupEnv.
	Getenv func(name string) (string, bool)
	// ReadFile reads a file of ${file:…}; nil means a bounded read of the
	// file system.
	ReadFile func(path string) ([]byte, error)
}

func (s Environment) orDefault() Environment {
	if s.Getenv == nil {
		s.Getenv = os.LookupEnv
	}
	if s.ReadFile == nil {
		s.ReadFile = readSmall
	}
	return s
}

// maxSecretFile bounds what ${file:…} reads: it is for secrets, not for data.
const maxSecretFile = 64 << 10

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err == nil && len(b) > maxSecretFile {
		err = fmt.Errorf("over %d bytes", maxSecretFile)
	}
	return b, err
}

// expand fills ${NAME} and ${file:path} in. What is filled in is not looked at
// again, so a value cannot name another one.
func (s Environment) expand(text string) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var b strings.Builder
	var faults []error
	for {
		before, after, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String(), errors.Join(faults...)
		}
		if literal, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(literal + "${")
			text = after
			continue
		}
		b.WriteString(before)
		name, rest, closed := strings.Cut(after, "}")
		if !closed {
			return "", errors.New("${ is never closed (a literal ${ is written $${)")
		}
		text = rest
		value, err := s.lookup(name)
		if err != nil {
			faults = append(faults, err)
		}
		b.WriteString(value)
	}
}

func (s Environment) lookup(name string) (string, error) {
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		content, err := s.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("${file:%s} cannot be read: %w", path, err)
		}
		return strings.TrimRight(string(content), "\r\n"), nil
	}
	if name == "" || strings.ContainsAny(name, " :-") {
		return "", fmt.Errorf("${%s} is not a variable (write ${NAME} or ${file:path}; there are no defaults)", name)
	}
	value, ok := s.Getenv(name)
	if !ok {
		return "", fmt.Errorf("${%s} is not set in the environment", name)
	}
	return value, nil
}
