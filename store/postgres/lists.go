package postgres

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/unavez/unavez/store"
)

// The numbers of the server's types.
const (
	oidBytea = 17
	oidInt8  = 20
	oidInt4  = 23
	oidText  = 25
	oidJSON  = 114
	oidUUID  = 2950
)

// column is a parameter: in the server's binary form, or as a text that every
// driver passes on.
type column interface {
	binary() []byte
	literal() string
}

// values is a list of one type, in its binary form; nil is null.
type values struct {
	oid uint32
	all [][]byte
}

func list(oid uint32, n int) *values { return &values{oid, make([][]byte, 0, n)} }

func (v *values) add(b []byte) { v.all = append(v.all, b) }

// numbers is a list of bigint.
func numbers(all []int64) *values {
	v := list(oidInt8, len(all))
	for _, n := range all {
		v.add(bytesOfInt64(n))
	}
	return v
}

// binary: dimensions, whether there are nulls, the type, length and first index,
// then each value behind its length.
func (v *values) binary() []byte {
	size, nulls := 20, uint32(0)
	for _, b := range v.all {
		size += 4 + len(b)
		if b == nil {
			nulls = 1
		}
	}
	out := make([]byte, 0, size)
	word := func(n uint32) { out = binary.BigEndian.AppendUint32(out, n) }
	if len(v.all) == 0 {
		word(0)
		word(0)
		word(v.oid)
		return out
	}
	word(1)
	word(nulls)
	word(v.oid)
	word(uint32(len(v.all)))
	word(1)
	for _, b := range v.all {
		if b == nil {
			word(^uint32(0))
			continue
		}
		word(uint32(len(b)))
		out = append(out, b...)
	}
	return out
}

// literal is the list in braces.
func (v *values) literal() string {
	var b strings.Builder
	b.WriteByte('{')
	for i, value := range v.all {
		if i > 0 {
			b.WriteByte(',')
		}
		switch {
		case value == nil:
			b.WriteString("NULL")
		case v.oid == oidInt8:
			b.WriteString(strconv.FormatInt(int64(binary.BigEndian.Uint64(value)), 10))
		case v.oid == oidInt4:
			b.WriteString(strconv.FormatInt(int64(int32(binary.BigEndian.Uint32(value))), 10))
		case v.oid == oidUUID:
			b.WriteString(hex.EncodeToString(value))
		case v.oid == oidBytea:
			b.WriteString(`"\\x` + hex.EncodeToString(value) + `"`)
		default:
			b.WriteByte('"')
			for _, c := range value {
				if c == '"' || c == '\\' {
					b.WriteByte('\\')
				}
				b.WriteByte(c)
			}
			b.WriteByte('"')
		}
	}
	b.WriteByte('}')
	return b.String()
}

// number is an int4, flag a bool.
type (
	number int32
	flag   bool
)

func (n number) binary() []byte  { return bytesOfInt32(int32(n)) }
func (n number) literal() string { return strconv.Itoa(int(n)) }

func (f flag) binary() []byte {
	if f {
		return []byte{1}
	}
	return []byte{0}
}
func (f flag) literal() string { return strconv.FormatBool(bool(f)) }

func binaries(all []column) [][]byte {
	out := make([][]byte, len(all))
	for i, c := range all {
		out[i] = c.binary()
	}
	return out
}

func literals(all []column) []any {
	out := make([]any, len(all))
	for i, c := range all {
		out[i] = c.literal()
	}
	return out
}

// elements reads a list without nulls from its binary form.
func elements(b []byte) ([][]byte, error) {
	word := func() (n uint32) {
		if len(b) >= 4 {
			n, b = binary.BigEndian.Uint32(b), b[4:]
		}
		return n
	}
	dimensions := word()
	_, _ = word(), word()
	if dimensions == 0 {
		return nil, nil
	}
	all := make([][]byte, 0, min(int(word()), len(b)))
	_ = word()
	for len(b) > 0 {
		n := word()
		if n > uint32(len(b)) {
			return nil, fmt.Errorf("postgres store: a list is cut off: %d bytes of %d", len(b), n)
		}
		all, b = append(all, b[:n]), b[n:]
	}
	return all, nil
}

// answers reads what became of n entries.
func answers(b []byte, n int) ([]store.Appended, error) {
	all, err := elements(b)
	if err != nil {
		return nil, err
	}
	said := make([]store.Appended, len(all))
	for i, value := range all {
		if len(value) == 2 {
			said[i] = store.Appended(value[1])
		}
	}
	return whole(said, n)
}

// answersOf reads the same from its text.
func answersOf(text string, n int) ([]store.Appended, error) {
	var said []store.Appended
	for one := range strings.SplitSeq(strings.Trim(text, "{}"), ",") {
		v, err := strconv.ParseUint(one, 10, 8)
		if err != nil {
			return nil, fmt.Errorf("postgres store: answer of an append: %w", err)
		}
		said = append(said, store.Appended(v))
	}
	return whole(said, n)
}

func whole(said []store.Appended, n int) ([]store.Appended, error) {
	if len(said) != n {
		return nil, fmt.Errorf("postgres store: answers for %d entries, want %d", len(said), n)
	}
	return said, nil
}
