package httpkey

import (
	"errors"
	"strings"
	"testing"
)

func TestQuotedAndRawNameTheSameKey(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ line, want string }{
		{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{`  k-123	`, "k-123"},
		{`"k-123"  `, "k-123"},
		{`" k "`, " k "},
		{`"a\"b\\c,d"`, `a"b\c,d`},
		{`"a;b"`, "a;b"},
		{"a;b", "a;b"},
		{"../../x", "../../x"},
		{"'; drop table", "'; drop table"},
		{"a b", "a b"},
		{strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{`"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255)},
	} {
		got, err := ParseKey([]string{tc.line})
		if err != nil || got != tc.want {
			t.Errorf("ParseKey(%q) = %q, %v, want %q", tc.line, got, err, tc.want)
		}
	}
}

func TestAMalformedKeyIsNeverTreatedAsAbsent(t *testing.T) {
	t.Parallel()
	for _, lines := range [][]string{
		{""},
		{"   "},
		{`""`},
		{`"   "`},
		{`"k`},
		{`k"`},
		{`"k" x`},
		{`"k";a=1`},
		{`"k";a`},
		{`"k" ;a`},
		{`"k","l"`},
		{"k,l"},
		{`"k`, `l"`},
		{"k", "k"},
		{"k", "l"},
		{`"a\b"`},
		{"a\x00b"},
		{"a\nb"},
		{"a\x7fb"},
		{"a\x80b"},
		{"\"a\xffb\""},
		{"\"a\tb\""},
		{"a\tb"},
		{`"é"`},
		{strings.Repeat("k", 256)},
		{`"` + strings.Repeat("k", 256) + `"`},
		{strings.Repeat("k", 10<<20)},
	} {
		got, err := ParseKey(lines)
		if !errors.Is(err, ErrMalformedKey) {
			t.Errorf("ParseKey(%.40q) = %.40q, %v, want ErrMalformedKey", lines, got, err)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("ParseKey(%.40q): an error of %d bytes", lines, len(err.Error()))
		}
	}
	if _, err := ParseKey(nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("ParseKey(nil): %v, want ErrNoKey", err)
	}
}

func TestAMadeKeyIsValid(t *testing.T) {
	t.Parallel()
	key := NewKey()
	line, err := FormatKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseKey([]string{line}); err != nil || got != key {
		t.Errorf("ParseKey(%q) = %q, %v, want %q", line, got, err, key)
	}
	if other := NewKey(); other == key {
		t.Errorf("two keys are equal: %q", key)
	}
	if _, err := FormatKey("a\nb"); !errors.Is(err, ErrMalformedKey) {
		t.Errorf("FormatKey of a line break: %v, want ErrMalformedKey", err)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{`"k"`, "k", `"a\"b"`, "", " ", `"k";a=1`, "k,l", "\x00", "\xff", `"`, `"\`, ":YQ==:", "?1", "@1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := ParseKey([]string{line})
		if err != nil {
			if !errors.Is(err, ErrMalformedKey) {
				t.Fatalf("ParseKey(%q): %v is not ErrMalformedKey", line, err)
			}
			return
		}
		if checkKey(key) != nil {
			t.Fatalf("ParseKey(%q) = %q, which is no key", line, key)
		}
		quoted, err := FormatKey(key)
		if err != nil {
			t.Fatalf("FormatKey(%q): %v", key, err)
		}
		if again, err := ParseKey([]string{quoted}); err != nil || again != key {
			t.Fatalf("ParseKey(%q) = %q, %v, want %q", quoted, again, err, key)
		}
	})
}
