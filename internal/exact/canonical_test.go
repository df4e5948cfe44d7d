package exact_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/internal/exact"
)

func TestPathsSelectWhatCounts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		include, exclude []string
		text, want       string
	}{
		{nil, []string{"$.meta.sentAt"}, `{"meta":{"sentAt":1,"a":2},"b":3}`, `{"b":3e0,"meta":{"a":2e0}}`},
		{nil, []string{"$.meta.sentAt"}, `{"meta":{"sentAt":1}}`, `{"meta":{}}`},
		{nil, []string{"$['a.b']"}, `{"a.b":1,"a":{"b":2}}`, `{"a":{"b":2e0}}`},
		{nil, []string{"$.items[*].note", "$.items[0].x"}, `{"items":[{"note":1,"x":1},{"note":2,"x":2}]}`, `{"items":[{},{"x":2e0}]}`},
		{nil, []string{"$[1]"}, `[1,2,3]`, `[1e0,3e0]`},
		{nil, []string{"$[*]"}, `[1,2,3]`, `[]`},
		{nil, []string{"$"}, `{"a":1}`, ``},
		{[]string{"$.a"}, nil, `{"b":1,"a":{"c":[1]},"d":{"a":1}}`, `{"a":{"c":[1e0]}}`},
		{[]string{"$.a.b", "$.c[*].d"}, nil, `{"a":{"b":1,"x":2},"c":[{"d":1},{"e":1},5]}`, `{"a":{"b":1e0},"c":[{"d":1e0},{}]}`},
		{[]string{"$.a"}, []string{"$.a.t"}, `{"a":{"t":1,"u":2}}`, `{"a":{"u":2e0}}`},
		{[]string{"$.a.b"}, nil, `{"a":7}`, `{}`},
	} {
		sel, err := exact.NewSelection(tc.include, tc.exclude)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := exact.Canonical([]byte(tc.text), sel)
		if !ok || string(got) != tc.want {
			t.Errorf("%s with %q without %q = %s, %v, want %s", tc.text, tc.include, tc.exclude, got, ok, tc.want)
		}
	}
	for _, path := range []string{"", "a", "$a", "$.", "$..a", "$.a[", "$.a[x]", "$.a[-1]", "$['a", "$.*", "$[99999999999]", "$.a b"} {
		if _, err := exact.ParsePath(path); err == nil {
			t.Errorf("ParsePath(%q): no error", path)
		}
	}
}

func TestWhatHasNoCanonicalForm(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", exact.MaxCanonicalDepth+2) + strings.Repeat("]", exact.MaxCanonicalDepth+2)
	for _, text := range []string{
		"", " ", "{", "}", "[1,]", "[,1]", `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, "01", "-", "1.", ".5", "1e", "1e+", "+1", "NaN",
		"tru", "truex", `"`, `"\`, `"\"`, `"\x"`, `"\u12"`, `"\ud800"`, `"\ud800\u0041"`, `"\udc00"`, "\"\x01\"", "\"\xff\"", "1 2",
		`{"a":1,"\u0061":2}`, `{"x":{"b":1,"c":1,"b":2}}`, "1e9999999999999999", deep, strings.Repeat("[", 1<<20),
	} {
		if got, ok := exact.Canonical([]byte(text), nil); ok {
			t.Errorf("Canonical(%.40q) = %.40q, want none", text, got)
		}
	}
	fits := strings.Repeat("[", exact.MaxCanonicalDepth) + strings.Repeat("]", exact.MaxCanonicalDepth)
	if _, ok := exact.Canonical([]byte(fits), nil); !ok {
		t.Errorf("a depth of %d has no canonical form", exact.MaxCanonicalDepth)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":[1.50,-0,1e400]}`, `"\ud83d\ude00"`, `[{},[],null]`, `{"a":1,"a":2}`, "[[[", `9007199254740993`, `{"":""}`} {
		f.Add([]byte(s))
	}
	sel, err := exact.NewSelection(nil, []string{"$.a", "$[0]"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := exact.Canonical(text, nil)
		if !ok {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q is not JSON and has the canonical form %q", text, got)
		}
		again, ok := exact.Canonical(got, nil)
		if !ok || !bytes.Equal(got, again) {
			t.Fatalf("canonical form of %q is %q, and of that %q", text, got, again)
		}
		// An independent decoder that keeps the spelling of numbers must agree.
		var a, b any
		if decode(text, &a) == nil && decode(got, &b) == nil {
			if diff := cmp.Diff(a, b, cmp.Comparer(sameNumber)); diff != "" {
				t.Fatalf("canonical form of %q is %q:\n%s", text, got, diff)
			}
		}
		exact.Canonical(text, sel)
	})
}

func decode(text []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

// sameNumber compares roughly: what it may not see, the table above does.
func sameNumber(a, b json.Number) bool {
	x, errX := a.Float64()
	y, errY := b.Float64()
	return errX != nil && errY != nil || x == y
}
