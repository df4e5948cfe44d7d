package exact_test

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/exact"
)

func TestNumberIsOnePartHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{`1`, "1"},
		{`1.0`, "1"},
		{`1e0`, "1"},
		{`"1"`, "1"},
		{`10e-1`, "1"},
		{`0.1E1`, "1"},
		{`9007199254740993`, "9007199254740993"},
		{`-0`, "0"},
		{`0e99999999999999999999`, "0"},
		{`1e3`, "1000"},
		{`1.50`, "1.5"},
		{`-12.34e1`, "-123.4"},
		{`1e-3`, "0.001"},
		{` "a b" `, "a b"},
		{`"\u00e9"`, "é"},
		{`1e254`, "1" + strings.Repeat("0", 254)},
	} {
		got, err := exact.Part([]byte(c.text))
		if err != nil || got != c.want {
			t.Errorf("Part(%s) = %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

func TestWhatIsNoIdentityIsNoPart(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`null`, `true`, `{}`, `[]`, `""`, ``, `1e400`, `1e-400`, `1e99999999999999999999`, strings.Repeat("9", 256)} {
		if got, err := exact.Part([]byte(text)); err == nil {
			t.Errorf("Part(%s) = %q, want an error", text, got)
		}
	}
}

func TestAmbiguousTextIsRefused(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", exact.MaxDepth+1) + strings.Repeat("]", exact.MaxDepth+1)
	for _, c := range []struct{ text, want string }{
		{`{"a":1,"a":2}`, `"a" twice`},
		{`{"a":1,"\u0061":2}`, `"a" twice`},
		{`[{"x":{"b":1,"b":1}}]`, `"b" twice`},
		{`{"a":1} x`, "not JSON"},
		{"\xef\xbb\xbf{}", "not JSON"},
		{"{\"a\":\"\xff\"}", "not UTF-8"},
		{deep, "deep"},
		{``, "not JSON"},
	} {
		err := exact.Check([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check(%.40q) = %v, want %q", c.text, err, c.want)
		}
	}
	if err := exact.Check([]byte(`{"a":{"b":1},"c":{"b":1}}`)); err != nil {
		t.Errorf("one name in two objects: %v", err)
	}
}

func TestValuesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	text := []byte("{ \"id\" : 1e400 ,\"a\":[ 1 , {\"z\":\"}\\\"]\"} ,\"x\"], \"n\":null}")
	o, err := exact.ReadObject(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(o["id"]); got != "1e400" {
		t.Errorf("id is %q", got)
	}
	elements, err := exact.Elements(o["a"])
	if err != nil || len(elements) != 3 || string(elements[1]) != `{"z":"}\"]"}` || string(elements[2]) != `"x"` {
		t.Errorf("elements are %q, %v", elements, err)
	}
	got, err := exact.Lookup(text, "a", "1", "z")
	if s, _ := exact.Text(got); err != nil || s != `}"]` {
		t.Errorf("a.1.z is %q, %v", s, err)
	}
	if _, err := exact.Lookup(text, "a", "3"); !errors.Is(err, exact.ErrMissing) {
		t.Errorf("a.3: %v", err)
	}
	if _, err := o.Part("n"); err == nil {
		t.Error("null is a part")
	}
	if _, err := o.Part("none"); !errors.Is(err, exact.ErrMissing) {
		t.Errorf("none: %v", err)
	}
}

// FuzzPart compares the decimal text with big.Rat, and the members with
// encoding/json.
func FuzzPart(f *testing.F) {
	for _, s := range []string{`1.50e3`, `{"a":[1,{"b":"\\\""}],"c":-0.0}`, `[[],{}, null]`, `"x"`, `1e-7`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if exact.Check(text) != nil {
			return
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(text, &want) == nil && want != nil {
			members, err := exact.Members(text)
			if err != nil || len(members) != len(want) {
				t.Fatalf("members %q, %v; want %q", members, err, want)
			}
			for _, m := range members {
				if string(m.Value) != string(want[m.Name]) {
					t.Fatalf("member %q is %q, want %q", m.Name, m.Value, want[m.Name])
				}
			}
		}
		var number json.Number
		if json.Unmarshal(text, &number) != nil || len(number) == 0 || text[0] == '"' || len(number) > 40 {
			return
		}
		part, err := exact.Part(text)
		if err != nil {
			return
		}
		a, okA := new(big.Rat).SetString(part)
		b, okB := new(big.Rat).SetString(string(number))
		if !okA || !okB || a.Cmp(b) != 0 {
			t.Fatalf("%s became %s", number, part)
		}
		if again, err := exact.Decimal(part); err != nil || again != part {
			t.Fatalf("%s is not stable: %s, %v", part, again, err)
		}
	})
}
