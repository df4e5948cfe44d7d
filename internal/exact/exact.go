// Package exact reads JSON without changing it: numbers keep every digit,
// duplicate members are faults, and nothing is re-encoded.
//
// encoding/json takes the last of two members with one name and turns numbers
// into float64, so two programs can read two events out of one signed text.
// Whatever decides about identity, tenant or version reads through this package.
package exact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDepth is how deeply objects and arrays may be nested.
const MaxDepth = 128

// maxDigits bounds the decimal text of a number that becomes a key part.
const maxDigits = 255

// ErrMissing says that a path leads to nothing in the text.
var ErrMissing = errors.New("missing")

// Check says whether text is one JSON value that every reader understands
// alike: valid UTF-8 without a byte order mark, no member name twice in one
// object, nested at most MaxDepth deep.
func Check(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("not UTF-8")
	}
	if !json.Valid(text) {
		var value any
		err := json.Unmarshal(text, &value)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return fmt.Errorf("not JSON at byte %d: %w", syntax.Offset, err)
		}
		return errors.New("not JSON")
	}
	s := scanner{text: text}
	return s.check(0)
}

// Member is one name and its value in the bytes of the text.
type Member struct {
	Name  string // decoded
	Value []byte // in the bytes of the text, without space around it
}

// Members returns the members of an object in their order. The text must have
// passed Check. A text that is no object is a fault.
func Members(text []byte) ([]Member, error) {
	s := scanner{text: text}
	s.space()
	if s.peek() != '{' {
		return nil, fmt.Errorf("%s where an object is expected", kind(s.peek()))
	}
	s.at++
	var members []Member
	for s.space(); s.peek() != '}'; s.space() {
		if s.peek() == ',' {
			s.at++
			s.space()
		}
		name, err := unquote(s.skip())
		if err != nil {
			return nil, err
		}
		s.space()
		s.at++ // the colon
		s.space()
		members = append(members, Member{Name: name, Value: s.skip()})
	}
	return members, nil
}

// Elements returns the elements of an array in the bytes of the text. The text
// must have passed Check. A text that is no array is a fault.
func Elements(text []byte) ([][]byte, error) {
	s := scanner{text: text}
	s.space()
	if s.peek() != '[' {
		return nil, fmt.Errorf("%s where an array is expected", kind(s.peek()))
	}
	s.at++
	var elements [][]byte
	for s.space(); s.peek() != ']'; s.space() {
		if s.peek() == ',' {
			s.at++
			s.space()
		}
		elements = append(elements, s.skip())
	}
	return elements, nil
}

// Object is an object by name, each value in the bytes of the text.
type Object map[string][]byte

// ReadObject checks the text and returns its members by name.
func ReadObject(text []byte) (Object, error) {
	if err := Check(text); err != nil {
		return nil, err
	}
	members, err := Members(text)
	if err != nil {
		return nil, err
	}
	o := make(Object, len(members))
	for _, m := range members {
		o[m.Name] = m.Value
	}
	return o, nil
}

// Text returns a member that is a string, and "" where it is absent, null or
// something else.
func (o Object) Text(name string) string {
	s, _ := Text(o[name])
	return s
}

// Part returns a member as a key part; see the function of this name.
func (o Object) Part(name string) (string, error) {
	part, err := Part(o[name]) // of nothing: ErrMissing
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return part, nil
}

// Text returns the value of a JSON string.
func Text(value []byte) (string, bool) {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || value[0] != '"' {
		return "", false
	}
	s, err := unquote(value)
	return s, err == nil
}

// Part returns a value as a part of a key: a string as it is, a number as its
// exact decimal value without exponent, plus or superfluous zeros, so that 1.0,
// 1e0 and "1" are one part. Anything else is no identity.
func Part(value []byte) (string, error) {
	value = bytes.TrimSpace(value)
	switch {
	case len(value) == 0:
		return "", ErrMissing
	case value[0] == '"':
		s, err := unquote(value)
		if err == nil && s == "" {
			err = errors.New("empty")
		}
		return s, err
	case value[0] == '-' || '0' <= value[0] && value[0] <= '9':
		return Decimal(string(value))
	}
	return "", fmt.Errorf("%s is neither a string nor a number", kind(value[0]))
}

// Lookup walks a path of member names and, in arrays, of indexes. The text must
// have passed Check. It returns ErrMissing where the path leads to nothing.
func Lookup(text []byte, path ...string) ([]byte, error) {
	for i, name := range path {
		var next []byte
		s := scanner{text: text}
		s.space()
		switch s.peek() {
		case '{':
			members, err := Members(text)
			if err != nil {
				return nil, err
			}
			for _, m := range members {
				if m.Name == name {
					next = m.Value
				}
			}
		case '[':
			elements, err := Elements(text)
			if err != nil {
				return nil, err
			}
			if n, err := strconv.Atoi(name); err == nil && 0 <= n && n < len(elements) {
				next = elements[n]
			}
		}
		if next == nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(path[:i+1], "."), ErrMissing)
		}
		text = next
	}
	return bytes.TrimSpace(text), nil
}

// PartAt returns the value at a path as a key part. The text must have passed
// Check.
func PartAt(text []byte, path ...string) (string, error) {
	value, err := Lookup(text, path...)
	if err != nil {
		return "", err
	}
	return Part(value)
}

// Decimal returns the value of a JSON number written without exponent, plus or
// superfluous zeros. A value of more than 255 digits is refused: it is no
// identity that a person or a column could hold.
func Decimal(number string) (string, error) {
	mantissa, power, _ := strings.Cut(strings.ReplaceAll(number, "E", "e"), "e")
	digits, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	exponent := 0
	if power != "" {
		n, err := strconv.Atoi(power)
		if err != nil && strings.Trim(whole+fraction, "0") != "" {
			return "", fmt.Errorf("a number of more than %d digits", maxDigits)
		}
		exponent = n
	}
	point := len(whole)
	all := whole + fraction
	trimmed := strings.TrimLeft(all, "0")
	point -= len(all) - len(trimmed)
	all = strings.TrimRight(trimmed, "0")
	if all == "" {
		return "0", nil
	}
	if exponent > 2*maxDigits+len(number) || exponent < -2*maxDigits-len(number) {
		return "", fmt.Errorf("a number of more than %d digits", maxDigits)
	}
	point += exponent
	if len(all) > maxDigits || point > maxDigits || point < -maxDigits {
		return "", fmt.Errorf("a number of more than %d digits", maxDigits)
	}
	var b strings.Builder
	if negative {
		b.WriteByte('-')
	}
	switch {
	case point <= 0:
		b.WriteString("0.")
		b.WriteString(strings.Repeat("0", -point))
		b.WriteString(all)
	case point >= len(all):
		b.WriteString(all)
		b.WriteString(strings.Repeat("0", point-len(all)))
	default:
		b.WriteString(all[:point])
		b.WriteByte('.')
		b.WriteString(all[point:])
	}
	return b.String(), nil
}

// scanner steps over JSON that is known to be valid.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// str steps over a string and returns it with its quotes.
func (s *scanner) str() []byte {
	from := s.at
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	return s.text[from:s.at]
}

// skip steps over one value and returns its bytes.
func (s *scanner) skip() []byte {
	from, depth := s.at, 0
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case '"':
			s.str()
			if depth == 0 {
				return s.text[from:s.at]
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return s.text[from:s.at]
			}
			if depth--; depth == 0 {
				s.at++
				return s.text[from:s.at]
			}
		case ',', ' ', '\t', '\n', '\r', ':':
			if depth == 0 {
				return s.text[from:s.at]
			}
		}
		s.at++
	}
	return s.text[from:s.at]
}

// check walks one value and refuses duplicate names and deep nesting.
func (s *scanner) check(depth int) error {
	s.space()
	open := s.peek()
	if open != '{' && open != '[' {
		s.skip()
		return nil
	}
	if depth == MaxDepth {
		return fmt.Errorf("nested more than %d deep", MaxDepth)
	}
	s.at++
	var seen map[string]bool
	for s.space(); s.peek() != '}' && s.peek() != ']'; s.space() {
		if s.peek() == ',' {
			s.at++
			s.space()
		}
		if open == '{' {
			name, err := unquote(s.str())
			if err != nil {
				return err
			}
			if seen[name] {
				return fmt.Errorf("member %q twice", name)
			}
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[name] = true
			s.space()
			s.at++ // the colon
		}
		if err := s.check(depth + 1); err != nil {
			return err
		}
	}
	s.at++
	return nil
}

// unquote decodes a JSON string.
func unquote(text []byte) (string, error) {
	if len(text) >= 2 && bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1]), nil
	}
	var s string
	err := json.Unmarshal(text, &s)
	return s, err
}

func kind(b byte) string {
	switch b {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a truth value"
	case 'n':
		return "null"
	case 0:
		return "nothing"
	}
	return "a number"
}
