package redis

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/unavez/unavez/lease"
)

func TestTheValueIsFixedToTheByte(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		value lease.Value
		want  string
	}{
		{lease.Value{}, "uvl1L\x00\x00\x00\x00\x00"},
		{lease.Value{Token: "a", Version: 3}, "uvl1L\x01a\x00\x00\x00\x03"},
		{lease.Value{Token: "ab", Version: 1<<15 - 1, Fingerprint: []byte{0, 0xff, '"'}}, "uvl1L\x02ab\x00\x00\x7f\xff\x00\xff\""},
	} {
		got, err := encode(test.value)
		if err != nil || got != test.want {
			t.Errorf("%+v: %q, %v; want %q", test.value, got, err, test.want)
		}
		for _, mark := range []bool{false, true} {
			text, want := test.want, test.value
			if mark {
				text, want.Completed = strings.Replace(text, "uvl1L", "uvl1C", 1), true
			}
			back, err := decode(text)
			if err != nil || back.Token != want.Token || back.Version != want.Version || back.Completed != mark || !bytes.Equal(back.Fingerprint, want.Fingerprint) {
				t.Errorf("%q: %+v, %v; want %+v", text, back, err, want)
			}
			if (back.Fingerprint == nil) != (len(want.Fingerprint) == 0) {
				t.Errorf("%q: fingerprint %#v", text, back.Fingerprint)
			}
		}
	}
}

func TestTheValueIsBounded(t *testing.T) {
	t.Parallel()
	most := lease.Value{Token: strings.Repeat("t", 255), Version: math.MaxUint32, Fingerprint: make([]byte, 64)}
	got, err := encode(most)
	if err != nil || len(got) != maxValue || maxValue > 512 {
		t.Fatalf("%d bytes, %v; want %d, at most 512", len(got), err, maxValue)
	}
	if back, err := decode(got); err != nil || back.Token != most.Token || len(back.Fingerprint) != 64 || back.Version != math.MaxUint32 {
		t.Errorf("back: %+v, %v", back, err)
	}
	for _, v := range []lease.Value{
		{Token: most.Token + "t"},
		{Fingerprint: make([]byte, 65)},
		{Version: -1},
		{Version: math.MaxUint32 + 1},
	} {
		if text, err := encode(v); err == nil {
			t.Errorf("%+v: %q", v, text)
		}
	}
	for _, text := range []string{
		"", "uvl1", "uvl1L", "uvl1L\x00", "uvl1L\x00\x00\x00\x00", "uvl1L\x05abc\x00\x00", "uvl2L\x00\x00\x00\x00\x00",
		"uvl1X\x00\x00\x00\x00\x00", "OK", got + "x", "uvl1L\x00\x00\x00\x00\x00" + strings.Repeat("f", 65),
	} {
		if v, err := decode(text); err == nil {
			t.Errorf("%q is taken for %+v", text, v)
		}
	}
}

func TestNoTokenBeginsAnothersLease(t *testing.T) {
	t.Parallel()
	tokens := []string{"", "a", "ab", "a\x00", "A", "a ", "\x01a", "b"}
	for _, holder := range tokens {
		value, err := encode(lease.Value{Token: holder, Version: 'a'<<24 | 'b', Fingerprint: []byte("ab")})
		if err != nil {
			t.Fatal(err)
		}
		for _, stranger := range tokens {
			start, err := head(stranger)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(value, start) != (holder == stranger) {
				t.Errorf("the lease of %q, compared with %q", holder, stranger)
			}
		}
	}
}

func TestAKeyIsOneNameWithOneHashTag(t *testing.T) {
	t.Parallel()
	const operation = "0123456789abcdef0123456789abcdef"
	seen := map[string]string{}
	for _, key := range []string{
		operation, strings.ToUpper(operation), operation[1:], "", "}", "{}", "a}b{c", "k\x00\xff", strings.Repeat("k", 10_000),
		"sha256:" + operation + operation,
	} {
		name := keyName(key)
		if other, taken := seen[name]; taken {
			t.Errorf("%q and %q are both %s", key, other, name)
		}
		seen[name] = key
		if len(name) > 2+7+64 || strings.Count(name, "{") != 1 || strings.Count(name, "}") != 1 || name[0] != '{' || name[len(name)-1] != '}' {
			t.Errorf("%q is named %q", key, name)
		}
	}
	if got, want := keyName(operation), "{"+operation+"}"; got != want {
		t.Errorf("an operation's key is %s, want %s", got, want)
	}
	const empty = "{sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}"
	if got := keyName(""); got != empty {
		t.Errorf("the empty key is %s, want %s", got, empty)
	}
	// From Redis' specification of the Cluster: CRC-16 of 123456789 is 31C3.
	if got := slotOf("x{123456789}y"); got != 0x31c3%slots {
		t.Errorf("slot %d, want %d", got, 0x31c3%slots)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"", "uvl1L\x01a\x00\x00\x00\x03f", "uvl1C\x00\x00\x00\x00\x00", "uvl1L\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := decode(text)
		if err != nil {
			return
		}
		again, err := encode(v)
		if v.Completed {
			again = strings.Replace(again, "uvl1L", "uvl1C", 1)
		}
		if err != nil || again != text {
			t.Errorf("%q became %+v became %q, %v", text, v, again, err)
		}
	})
}
