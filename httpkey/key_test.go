package httpkey

import (
	"errors"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
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
		{`"\"a;b"`, `"a;b`},
		{`"\\"`, `\`},
		{`"~"`, "~"},
		{"~", "~"},
		{"!", "!"},
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

// What is said of a malformed key is what its client has to change.
func TestAMalformedKeyIsToldItsFault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ line, fault string }{
		{"", "empty"},
		{`""`, "empty"},
		{`" "`, "only spaces"},
		{`"k`, "not a structured-field string"},
		{`"k";a=1`, "parameters are not accepted"},
		{`"";a`, "parameters are not accepted"},
		{`"k" x`, "not a structured-field string"},
		{`k"`, "no quotation mark"},
		{"a\x7fb", "byte 2 is not printable"},
		{"\x1f", "byte 1 is not printable"},
		{strings.Repeat("k", 256), "256 bytes, at most 255"},
	} {
		if _, err := ParseKey([]string{tc.line}); err == nil || !strings.Contains(err.Error(), tc.fault) {
			t.Errorf("ParseKey(%q): %v, want %q", tc.line, err, tc.fault)
		}
	}
	if _, err := ParseKey([]string{"k", "l"}); err == nil || !strings.Contains(err.Error(), "2 header lines") {
		t.Errorf("two lines: %v", err)
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
	for _, key := range []string{"", "  ", "a\nb", "a\x7f", "é", strings.Repeat("k", 256)} {
		if line, err := FormatKey(key); line != "" || !errors.Is(err, ErrMalformedKey) {
			t.Errorf("FormatKey(%q) = %q, %v, want ErrMalformedKey", key, line, err)
		}
	}
}

// Every byte that a key may have is quoted as RFC 9651 has it.
func TestAKeyIsQuotedAsAStructuredField(t *testing.T) {
	t.Parallel()
	for b := byte(0x20); b <= 0x7e; b++ {
		key := "k" + string(b)
		want, err := httpsfv.Marshal(httpsfv.NewItem(key))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := FormatKey(key); err != nil || got != want {
			t.Errorf("FormatKey(%q) = %s, %v, want %s", key, got, err, want)
		}
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
