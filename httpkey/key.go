package httpkey

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

// KeyHeader is the request header that carries the key.
const KeyHeader = "Idempotency-Key"

// ReplayedHeader marks a replay. It is never on a first answer, and a client
// that sends it is not believed.
const ReplayedHeader = "Idempotent-Replayed"

// MaxKey is the longest key, in bytes after decoding.
const MaxKey = 255

// What [ParseKey] finds wrong.
var (
	// ErrNoKey: there is no header line at all.
	ErrNoKey = errors.New("no " + KeyHeader + " header")
	// ErrMalformedKey: there is a line, and it names no key.
	ErrMalformedKey = errors.New("malformed " + KeyHeader)
)

// ParseKey reads the lines of the Idempotency-Key header. The quoted form of
// the IETF draft (a structured-field string) and the raw form that most clients
// send name the same key: "k-1" and k-1.
//
// A key has 1 to [MaxKey] bytes of 0x20 to 0x7E after decoding, at least one of
// them not a space. The raw form has neither a quotation mark nor a comma, and
// its outer spaces do not count. Two lines, parameters behind the quoted form
// and anything else are [ErrMalformedKey]: a key is never treated as absent.
func ParseKey(lines []string) (string, error) {
	switch len(lines) {
	case 0:
		return "", ErrNoKey
	case 1:
	default:
		return "", fmt.Errorf("%w: %d header lines, want one", ErrMalformedKey, len(lines))
	}
	line := strings.Trim(lines[0], " \t")
	if !strings.HasPrefix(line, `"`) {
		if strings.ContainsAny(line, `",`) {
			return "", fmt.Errorf("%w: a raw key has no quotation mark and no comma", ErrMalformedKey)
		}
		return line, checkKey(line)
	}
	item, err := httpsfv.UnmarshalItem([]string{line})
	if err != nil {
		return "", fmt.Errorf("%w: not a structured-field string", ErrMalformedKey)
	}
	// A parameter such as "k";a=1 has no meaning here, and a client that sends
	// one believes that it has.
	if len(item.Params.Names()) > 0 {
		return "", fmt.Errorf("%w: parameters are not accepted", ErrMalformedKey)
	}
	key, _ := item.Value.(string) // what begins with a quotation mark is a string
	return key, checkKey(key)
}

func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty", ErrMalformedKey)
	case len(key) > MaxKey:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrMalformedKey, len(key), MaxKey)
	case strings.Trim(key, " ") == "":
		return fmt.Errorf("%w: only spaces", ErrMalformedKey)
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return fmt.Errorf("%w: byte %d is not printable ASCII", ErrMalformedKey, i+1)
		}
	}
	return nil
}

// FormatKey gives the header value of a key in its quoted form, or
// [ErrMalformedKey] where [ParseKey] would refuse it.
func FormatKey(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	return strconv.Quote(key), nil // of printable ASCII, which escapes what RFC 9651 does
}

// NewKey makes a random key of 128 bits, 26 characters of base 32.
func NewKey() string { return rand.Text() }
