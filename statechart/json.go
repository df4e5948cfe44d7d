package statechart

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of every JSON text that this package reads.
const maxDepth = 200

// maxValue bounds the nesting of what an expression, a function or a caller gives,
// and that of a value in a chart. Both together stay under maxDepth, so that every
// snapshot that is written can be read.
const maxValue = 90

// tree is a JSON value with its place in the text. The order of members is the
// order of the text.
type tree struct {
	kind     byte   // one of { [ " 0 t f n
	text     string // of a string its value, of a number its digits as written
	members  []member
	elements []*tree
	from, to int

	parent *tree
	key    string // in the parent, if that is an object
	index  int    // in the parent, if that is a list
}

type member struct {
	key   string
	at    int // of the key
	value *tree
}

// member finds the value of a key; nil if there is none.
func (t *tree) member(key string) *tree {
	for i := range t.members {
		if t.members[i].key == key {
			return t.members[i].value
		}
	}
	return nil
}

// pointer is the JSON pointer of the value.
func (t *tree) pointer() string {
	if t.parent == nil {
		return ""
	}
	var steps []string
	for ; t.parent != nil; t = t.parent {
		if t.parent.kind == '[' {
			steps = append(steps, strconv.Itoa(t.index))
			continue
		}
		key := t.key
		if strings.ContainsAny(key, "~/") {
			key = strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
		}
		steps = append(steps, key)
	}
	slices.Reverse(steps)
	return "/" + strings.Join(steps, "/")
}

// plain gives the value as [Scope] describes it.
func (t *tree) plain() any {
	switch t.kind {
	case '{':
		m := make(map[string]any, len(t.members))
		for i := range t.members {
			m[t.members[i].key] = t.members[i].value.plain()
		}
		return m
	case '[':
		l := make([]any, len(t.elements))
		for i, e := range t.elements {
			l[i] = e.plain()
		}
		return l
	case '"':
		return t.text
	case '0':
		return json.Number(t.text)
	case 't':
		return true
	case 'f':
		return false
	}
	return nil
}

// what names the kind of value for a message.
func (t *tree) what() string {
	switch t.kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 'n':
		return "null"
	}
	return "a bool"
}

// parser reads a JSON text once.
type parser struct {
	text []byte
	at   int
	// twice is called for a member whose name stands in its object already.
	twice func(object *tree, m *member)
}

// jsonError is a fault of the text itself.
type jsonError struct {
	offset int
	text   string
}

func (e *jsonError) Error() string { return e.text }

func (p *parser) fail(at int, format string, args ...any) error {
	return &jsonError{at, fmt.Sprintf(format, args...)}
}

// parseStrict reads a text in which a repeated member is an error as well.
func parseStrict(text []byte) (*tree, error) {
	var repeated error
	p := &parser{text: text}
	p.twice = func(_ *tree, m *member) {
		if repeated == nil {
			repeated = fmt.Errorf("offset %d: member %s stands twice", m.at, quote(m.key))
		}
	}
	root, err := p.document()
	if bad, ok := errors.AsType[*jsonError](err); ok {
		return nil, fmt.Errorf("offset %d: %s", bad.offset, bad.text)
	}
	if repeated != nil {
		return nil, repeated
	}
	return root, nil
}

func (p *parser) document() (*tree, error) {
	if !utf8.Valid(p.text) {
		at := 0
		for at < len(p.text) {
			r, size := utf8.DecodeRune(p.text[at:])
			if r == utf8.RuneError && size < 2 {
				break
			}
			at += size
		}
		return nil, p.fail(at, "not valid UTF-8")
	}
	p.space()
	root, err := p.value(&tree{}, 0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.at < len(p.text) {
		return nil, p.fail(p.at, "text after the end of the value")
	}
	return root, nil
}

func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) take(b byte) bool {
	if p.at < len(p.text) && p.text[p.at] == b {
		p.at++
		return true
	}
	return false
}

// value fills a tree, which knows its parent already: the report of a repeated
// member inside needs it.
func (p *parser) value(t *tree, depth int) (*tree, error) {
	if p.at >= len(p.text) {
		return nil, p.fail(p.at, "the text ends where a value should stand")
	}
	if depth > maxDepth {
		return nil, p.fail(p.at, "nested deeper than %d levels", maxDepth)
	}
	t.from = p.at
	var err error
	switch b := p.text[p.at]; {
	case b == '{':
		t.kind = b
		err = p.object(t, depth)
	case b == '[':
		t.kind = b
		err = p.list(t, depth)
	case b == '"':
		t.kind = b
		t.text, err = p.str()
	case b == '-' || '0' <= b && b <= '9':
		t.kind = '0'
		t.text, err = p.number()
	default:
		t.kind, err = p.word()
	}
	t.to = p.at
	return t, err
}

func (p *parser) word() (byte, error) {
	rest := p.text[p.at:]
	for _, word := range [...]string{"true", "false", "null"} {
		if len(rest) >= len(word) && string(rest[:len(word)]) == word {
			p.at += len(word)
			return word[0], nil
		}
	}
	return 0, p.fail(p.at, "not JSON: %s", quote(string(rest[:min(len(rest), 12)])))
}

func (p *parser) object(t *tree, depth int) error {
	p.at++
	var seen map[string]bool
	if p.space(); p.take('}') {
		return nil
	}
	for {
		p.space()
		if p.at >= len(p.text) || p.text[p.at] != '"' {
			return p.fail(p.at, "a member's name in quotation marks should stand here")
		}
		m := member{at: p.at}
		var err error
		if m.key, err = p.str(); err != nil {
			return err
		}
		if p.space(); !p.take(':') {
			return p.fail(p.at, "a colon should stand here")
		}
		p.space()
		if m.value, err = p.value(&tree{parent: t, key: m.key}, depth+1); err != nil {
			return err
		}
		repeated := false
		if len(t.members) < 16 {
			repeated = t.member(m.key) != nil
		} else {
			if seen == nil {
				seen = make(map[string]bool, 64)
				for i := range t.members {
					seen[t.members[i].key] = true
				}
			}
			repeated = seen[m.key]
			seen[m.key] = true
		}
		if repeated {
			p.twice(t, &m)
		} else {
			t.members = append(t.members, m)
		}
		if p.space(); p.take('}') {
			return nil
		}
		if !p.take(',') {
			return p.fail(p.at, "a comma or } should stand here")
		}
	}
}

func (p *parser) list(t *tree, depth int) error {
	p.at++
	if p.space(); p.take(']') {
		return nil
	}
	for {
		p.space()
		e, err := p.value(&tree{parent: t, index: len(t.elements)}, depth+1)
		if err != nil {
			return err
		}
		t.elements = append(t.elements, e)
		if p.space(); p.take(']') {
			return nil
		}
		if !p.take(',') {
			return p.fail(p.at, "a comma or ] should stand here")
		}
	}
}

func (p *parser) str() (string, error) {
	start := p.at
	p.at++
	from := p.at
	for p.at < len(p.text) {
		switch b := p.text[p.at]; {
		case b == '"':
			p.at++
			return string(p.text[from : p.at-1]), nil
		case b == '\\':
			return p.escaped(start, from)
		case b < 0x20:
			return "", p.fail(p.at, "a control character in a string")
		default:
			p.at++
		}
	}
	return "", p.fail(start, "a string without an end")
}

func (p *parser) escaped(start, from int) (string, error) {
	s := append([]byte(nil), p.text[from:p.at]...)
	for p.at < len(p.text) {
		b := p.text[p.at]
		p.at++
		switch {
		case b == '"':
			return string(s), nil
		case b < 0x20:
			return "", p.fail(p.at-1, "a control character in a string")
		case b != '\\':
			s = append(s, b)
			continue
		}
		if p.at >= len(p.text) {
			break
		}
		b = p.text[p.at]
		p.at++
		switch b {
		case '"', '\\', '/':
			s = append(s, b)
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
			r, ok := p.hex()
			if ok && utf16.IsSurrogate(r) {
				ok = false
				if p.take('\\') && p.take('u') {
					low, hex := p.hex()
					r = utf16.DecodeRune(r, low)
					ok = hex && r != utf8.RuneError
				}
			}
			if !ok {
				return "", p.fail(p.at, "a bad \\u escape in a string")
			}
			s = utf8.AppendRune(s, r)
		default:
			return "", p.fail(p.at-1, "a bad escape in a string")
		}
	}
	return "", p.fail(start, "a string without an end")
}

func (p *parser) hex() (rune, bool) {
	if p.at+4 > len(p.text) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.text[p.at:p.at+4]), 16, 16)
	p.at += 4
	return rune(n), err == nil
}

func (p *parser) number() (string, error) {
	from := p.at
	bad := func() (string, error) { return "", p.fail(from, "a bad number") }
	p.take('-')
	if whole := p.digits(); whole == 0 || whole > 1 && p.text[p.at-whole] == '0' {
		return bad()
	}
	if p.take('.') && p.digits() == 0 {
		return bad()
	}
	if p.take('e') || p.take('E') {
		if !p.take('-') {
			p.take('+')
		}
		if p.digits() == 0 {
			return bad()
		}
	}
	return string(p.text[from:p.at]), nil
}

func (p *parser) digits() int {
	from := p.at
	for p.at < len(p.text) && '0' <= p.text[p.at] && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at - from
}

// quote gives a short text in quotation marks for a message.
func quote(s string) string {
	if len(s) > 80 {
		cut := 77
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strconv.Quote(s)
}

// decimal splits a number of JSON into sign, significant digits and exponent:
// 1.0, 1e0 and 1 are one number, 2^53 and 2^53+1 are two. Zero has no digits.
// It reports false for an exponent beyond 15 digits, which only its text tells.
func decimal(text string) (negative bool, digits string, exponent int64, ok bool) {
	negative = strings.HasPrefix(text, "-")
	text = strings.TrimPrefix(text, "-")
	mantissa, power := text, ""
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa, power = text[:i], text[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	if all == "" {
		return false, "", 0, true
	}
	if power != "" {
		var err error
		if exponent, err = strconv.ParseInt(power, 10, 64); err != nil || exponent > 1e15 || exponent < -1e15 {
			return negative, all, 0, false
		}
	}
	digits = strings.TrimRight(all, "0")
	return negative, digits, exponent + int64(len(all)-len(digits)) - int64(len(fraction)), true
}

// sameNumber compares two numbers by value.
func sameNumber(a, b json.Number) bool {
	if a == b {
		return true
	}
	n1, d1, e1, ok1 := decimal(string(a))
	n2, d2, e2, ok2 := decimal(string(b))
	return ok1 && ok2 && n1 == n2 && d1 == d2 && e1 == e2
}

// same compares two JSON values by value.
func same(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		n, ok := b.(json.Number)
		return ok && sameNumber(a, n)
	case map[string]any:
		m, ok := b.(map[string]any)
		if !ok || len(a) != len(m) {
			return false
		}
		for k, v := range a {
			w, ok := m[k]
			if !ok || !same(v, w) {
				return false
			}
		}
		return true
	case []any:
		l, ok := b.([]any)
		if !ok || len(a) != len(l) {
			return false
		}
		for i := range a {
			if !same(a[i], l[i]) {
				return false
			}
		}
		return true
	}
	return a == b
}

// clean checks what a function, an expression or a caller gave, and makes JSON
// of it. It copies nothing that is JSON already.
func clean(v any) (any, error) {
	out, _, err := cleaned(v, 0)
	return out, err
}

// cleaned also tells whether the result is another value than v.
func cleaned(v any, depth int) (out any, changed bool, err error) {
	if depth > maxValue {
		return nil, false, fmt.Errorf("nested deeper than %d levels", maxValue)
	}
	switch v := v.(type) {
	case nil, bool:
		return v, false, nil
	case string:
		if !utf8.ValidString(v) {
			return nil, false, errors.New("a string that is not valid UTF-8")
		}
		return v, false, nil
	case json.Number:
		p := &parser{text: []byte(v)}
		if _, err := p.number(); err != nil || p.at != len(v) {
			return nil, false, fmt.Errorf("%s is not a number of JSON", quote(string(v)))
		}
		return v, false, nil
	case int:
		return json.Number(strconv.Itoa(v)), true, nil
	case int64:
		return json.Number(strconv.FormatInt(v, 10)), true, nil
	case uint64:
		return json.Number(strconv.FormatUint(v, 10)), true, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, false, fmt.Errorf("%v has no form in JSON", v)
		}
		return json.Number(strconv.FormatFloat(v, 'g', -1, 64)), true, nil
	case []any:
		list := v
		for i, e := range v {
			c, changed, err := cleaned(e, depth+1)
			if err != nil {
				return nil, false, fmt.Errorf("[%d]: %w", i, err)
			}
			if changed {
				if &list[0] == &v[0] {
					list = slices.Clone(v)
				}
				list[i] = c
			}
		}
		if v == nil {
			return []any{}, true, nil
		}
		return list, len(v) > 0 && &list[0] != &v[0], nil
	case map[string]any:
		if v == nil {
			return map[string]any{}, true, nil
		}
		object, copied := v, false
		for k, e := range v {
			if !utf8.ValidString(k) {
				return nil, false, errors.New("a key that is not valid UTF-8")
			}
			c, changed, err := cleaned(e, depth+1)
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", quote(k), err)
			}
			if changed {
				if !copied {
					copied, object = true, maps.Clone(v)
				}
				object[k] = c
			}
		}
		return object, copied, nil
	}
	return nil, false, fmt.Errorf("a value of type %T is not JSON", v)
}
