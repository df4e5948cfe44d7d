package exact

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxCanonicalDepth bounds the nesting of a text that has a canonical form.
const MaxCanonicalDepth = 100

// errNotCanonical: the text has no canonical form, so its bytes are compared.
var errNotCanonical = errors.New("no canonical form")

// Canonical gives the canonical form of a JSON text: no white space,
// members sorted by the bytes of their names, strings by value, numbers by
// exact decimal value. It reports false for a text that is not JSON, has two
// members of one name, is nested deeper than
// MaxCanonicalDepth, or has an exponent
// beyond 15 digits; such a text is compared by its bytes.
func Canonical(text []byte, sel *Selection) ([]byte, bool) {
	c := canonical{text: text, out: make([]byte, 0, len(text))}
	c.space()
	if c.value(sel.root(), 0) != nil {
		return nil, false
	}
	c.space()
	if c.at != len(c.text) {
		return nil, false
	}
	return c.out, true
}

// canonical reads a JSON text once and writes its canonical form.
type canonical struct {
	text []byte
	at   int
	out  []byte
}

func (c *canonical) space() {
	for c.at < len(c.text) {
		switch c.text[c.at] {
		case ' ', '\t', '\n', '\r':
			c.at++
		default:
			return
		}
	}
}

// take moves on if the next byte is b.
func (c *canonical) take(b byte) bool {
	if c.at < len(c.text) && c.text[c.at] == b {
		c.at++
		return true
	}
	return false
}

// value reads one value and writes it if the cursor wants it.
func (c *canonical) value(cur cursor, depth int) error {
	if c.at >= len(c.text) || depth > MaxCanonicalDepth {
		return errNotCanonical
	}
	start := len(c.out)
	var err error
	switch b := c.text[c.at]; {
	case b == '{':
		err = c.object(cur, depth)
	case b == '[':
		err = c.array(cur, depth)
	case b == '"':
		var s []byte
		if s, err = c.str(); err == nil {
			c.out = appendString(c.out, s)
		}
	case b == '-' || '0' <= b && b <= '9':
		err = c.number()
	default:
		err = c.literal()
	}
	if err == nil && cur.skips(c.out[start:]) {
		c.out = c.out[:start]
	}
	return err
}

func (c *canonical) literal() error {
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(c.text[c.at:], []byte(word)) {
			c.at += len(word)
			c.out = append(c.out, word...)
			return nil
		}
	}
	return errNotCanonical
}

// member is one member of an object whose value stands at out[from:to].
type member struct {
	name     []byte
	from, to int
}

func (c *canonical) object(cur cursor, depth int) error {
	c.at++
	start := len(c.out)
	var members []member
	c.space()
	if !c.take('}') {
		for {
			c.space()
			if c.at >= len(c.text) || c.text[c.at] != '"' {
				return errNotCanonical
			}
			name, err := c.str()
			if err != nil {
				return err
			}
			c.space()
			if !c.take(':') {
				return errNotCanonical
			}
			c.space()
			from := len(c.out)
			if err := c.value(cur.member(name), depth+1); err != nil {
				return err
			}
			members = append(members, member{name, from, len(c.out)})
			c.space()
			if c.take('}') {
				break
			}
			if !c.take(',') {
				return errNotCanonical
			}
		}
	}
	slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	for i := 1; i < len(members); i++ {
		if bytes.Equal(members[i-1].name, members[i].name) {
			return errNotCanonical
		}
	}
	values := slices.Clone(c.out[start:])
	c.out = append(c.out[:start], '{')
	for _, m := range members {
		if m.from == m.to { // left out
			continue
		}
		if len(c.out) > start+1 {
			c.out = append(c.out, ',')
		}
		c.out = appendString(c.out, m.name)
		c.out = append(c.out, ':')
		c.out = append(c.out, values[m.from-start:m.to-start]...)
	}
	c.out = append(c.out, '}')
	return nil
}

func (c *canonical) array(cur cursor, depth int) error {
	c.at++
	c.out = append(c.out, '[')
	c.space()
	if c.take(']') {
		c.out = append(c.out, ']')
		return nil
	}
	wrote := false
	for i := 0; ; i++ {
		c.space()
		before := len(c.out)
		if wrote {
			c.out = append(c.out, ',')
		}
		from := len(c.out)
		if err := c.value(cur.element(i), depth+1); err != nil {
			return err
		}
		if len(c.out) == from { // left out
			c.out = c.out[:before]
		} else {
			wrote = true
		}
		c.space()
		if c.take(']') {
			c.out = append(c.out, ']')
			return nil
		}
		if !c.take(',') {
			return errNotCanonical
		}
	}
}

// str reads a string and gives its value. Bad UTF-8 and lone surrogates have
// no value.
func (c *canonical) str() ([]byte, error) {
	c.at++
	from := c.at
	plain := true
	for c.at < len(c.text) {
		switch b := c.text[c.at]; {
		case b == '"':
			raw := c.text[from:c.at]
			c.at++
			if !utf8.Valid(raw) {
				return nil, errNotCanonical
			}
			if plain {
				return raw, nil
			}
			return unescape(raw)
		case b == '\\':
			plain = false
			c.at += 2
		case b < 0x20:
			return nil, errNotCanonical
		default:
			c.at++
		}
	}
	return nil, errNotCanonical
}

func unescape(raw []byte) ([]byte, error) {
	s := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			s = append(s, raw[i])
			continue
		}
		i++
		switch raw[i] { // there is one: the string did not end in a backslash
		case '"', '\\', '/':
			s = append(s, raw[i])
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			r, ok := hex4(raw[i+1:])
			if !ok {
				return nil, errNotCanonical
			}
			i += 4
			if utf16.IsSurrogate(r) {
				if i+2 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' {
					return nil, errNotCanonical
				}
				low, ok := hex4(raw[i+3:])
				if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
					return nil, errNotCanonical
				}
				i += 6
			}
			s = utf8.AppendRune(s, r)
		default:
			return nil, errNotCanonical
		}
	}
	return s, nil
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(n), err == nil
}

// appendString writes a string: quotation mark, backslash and what is below
// 0x20 escaped, everything else as it is.
func appendString(out, s []byte) []byte {
	const digits = "0123456789abcdef"
	out = append(out, '"')
	for _, b := range s {
		switch {
		case b == '"' || b == '\\':
			out = append(out, '\\', b)
		case b < 0x20:
			out = append(out, '\\', 'u', '0', '0', digits[b>>4], digits[b&15])
		default:
			out = append(out, b)
		}
	}
	return append(out, '"')
}

// number writes a number as digits × 10^exponent: no leading and no trailing
// zeros in the digits, "0" for zero of either sign. 1.0, 1e0 and 1 are "1e0";
// 2^53 and 2^53+1 stay two numbers, and 1e999999 needs no memory.
func (c *canonical) number() error {
	negative := c.take('-')
	whole := c.digits()
	if len(whole) == 0 || len(whole) > 1 && whole[0] == '0' {
		return errNotCanonical
	}
	var fraction, power []byte
	if c.take('.') {
		if fraction = c.digits(); len(fraction) == 0 {
			return errNotCanonical
		}
	}
	minus := false
	if c.take('e') || c.take('E') {
		if minus = c.take('-'); !minus {
			c.take('+')
		}
		if power = c.digits(); len(power) == 0 {
			return errNotCanonical
		}
	}
	digits := append(slices.Clip(whole), fraction...)
	digits = bytes.TrimLeft(digits, "0")
	if len(digits) == 0 {
		c.out = append(c.out, '0')
		return nil
	}
	power = bytes.TrimLeft(power, "0")
	if len(power) > 15 {
		return errNotCanonical
	}
	exponent := int64(0)
	for _, d := range power {
		exponent = exponent*10 + int64(d-'0')
	}
	if minus {
		exponent = -exponent
	}
	significant := bytes.TrimRight(digits, "0")
	exponent += int64(len(digits)-len(significant)) - int64(len(fraction))
	if negative {
		c.out = append(c.out, '-')
	}
	c.out = append(c.out, significant...)
	c.out = append(c.out, 'e')
	c.out = strconv.AppendInt(c.out, exponent, 10)
	return nil
}

func (c *canonical) digits() []byte {
	from := c.at
	for c.at < len(c.text) && '0' <= c.text[c.at] && c.text[c.at] <= '9' {
		c.at++
	}
	return c.text[from:c.at]
}
