package exact_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/exact"
)

// Texts of one line mean the same and have one form; those of two lines do not.
func TestOneMeaningHasOneForm(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, line := range []struct {
		form  string
		texts []string
	}{
		{"true", []string{"true", " true", "true ", "\ttrue\r\n"}},
		{"false", []string{"false"}},
		{"null", []string{"null", "\n null"}},
		{"[]", []string{"[]", "[ ]", " [\t] "}},
		{"{}", []string{"{}", "{ }", "{\r\n}"}},
		{"[true,false]", []string{"[true,false]", "[ true , false ]", "[true,\nfalse]"}},
		{`{"a":true,"b":[null]}`, []string{`{"a":true,"b":[null]}`, `{"b":[null],"a":true}`, "{ \"b\" : [ null ] ,\t\"a\" : true } "}},
		{`{"B":null,"a":null,"é":null}`, []string{`{"é":null,"a":null,"B":null}`, `{"\u00e9":null,"a":null,"\u0042":null}`}},
		{"0", []string{"0", "-0", "0.0", "0e5", "-0.000e-7", "0e9999999999999999"}},
		{"1e0", []string{"1", "1.0", "1e0", "1E0", "1e+0", "1e-0", "10e-1", "0.1e1", "0.01E2", "1.000", "1e00"}},
		{"-1e0", []string{"-1", "-1.0", "-10e-1"}},
		{"1e1", []string{"10", "1e1", "1e+1", "1E+01", "100e-1", "1e0001"}},
		{"19e0", []string{"19", "1.9e1", "190e-1"}},
		{"15e-1", []string{"1.5", "1.50", "15e-1", "0.15e1"}},
		{"5e-1", []string{"0.5", "5e-1", "5E-01"}},
		{"9007199254740993e0", []string{"9007199254740993"}},
		{"9007199254740992e0", []string{"9007199254740992"}},
		{"1e999999999999999", []string{"1e999999999999999", "1e0999999999999999"}},
		{"1e-999999999999999", []string{"1e-999999999999999"}},
		{`"a"`, []string{`"a"`, `"\u0061"`}},
		{`""`, []string{`""`}},
		{`" "`, []string{`" "`, `"\u0020"`}},
		{`"/"`, []string{`"/"`, `"\/"`, `"\u002f"`, `"\u002F"`}},
		{`"\""`, []string{`"\""`, `"\u0022"`}},
		{`"\\"`, []string{`"\\"`, `"\u005c"`}},
		{`"\u0000"`, []string{`"\u0000"`}},
		{`"\u0008"`, []string{`"\b"`, `"\u0008"`}},
		{`"\u000c"`, []string{`"\f"`, `"\u000c"`, `"\u000C"`}},
		{`"\u000a"`, []string{`"\n"`, `"\u000a"`}},
		{`"\u000d"`, []string{`"\r"`, `"\u000d"`}},
		{`"\u0009"`, []string{`"\t"`, `"\u0009"`}},
		{`"\u001f"`, []string{`"\u001f"`}},
		{"\"\x7f\"", []string{"\"\x7f\"", `"\u007f"`}},
		{`"é"`, []string{`"é"`, `"\u00e9"`, `"\u00E9"`}},
		{`"x😀y"`, []string{`"x😀y"`, `"x\ud83d\ude00y"`, `"x\uD83D\uDE00y"`}},
		{`"😀"`, []string{`"😀"`, `"\ud83d\ude00"`}},
		{`"a\"b\\c"`, []string{`"a\"b\\c"`}},
	} {
		for _, text := range line.texts {
			got, ok := exact.Canonical([]byte(text), nil)
			if !ok || string(got) != line.form {
				t.Errorf("Canonical(%q) = %q, %v, want %q", text, got, ok, line.form)
			}
		}
		if other, there := seen[line.form]; there {
			t.Errorf("%q and %q have one form", other, line.texts[0])
		}
		seen[line.form] = line.texts[0]
	}
	depth := func(open, shut string, n int) bool {
		_, ok := exact.Canonical([]byte(strings.Repeat(open, n)+"0"+strings.Repeat(shut, n)), nil)
		return ok
	}
	for _, kind := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
		if !depth(kind[0], kind[1], exact.MaxCanonicalDepth) || depth(kind[0], kind[1], exact.MaxCanonicalDepth+1) {
			t.Errorf("%s: the bound of the depth is not %d", kind[0], exact.MaxCanonicalDepth)
		}
	}
	for _, text := range []string{
		`[1 2]`, `[1}`, `{"a" 1}`, `{"a":1 "b":2}`, `{"a":1]`, `{"a":}`, `{:1}`, `{"a":1,}`, `{1:1}`, `{ab":1}`, `[tru]`, `{"a":x}`, `nul`, `x`, `/`, `:`, `-a`, `1e1000000000000000`,
		`1.e1`, `00`, `-01`, `1e`, `1e-`, `"a`, `"\u123"`, `"\u12g4"`, `"\ud83d"`, `"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\u0061"`, `"\ud83d\u12"`, `"\ud83dxude00"`, `"\ud83d\xde00"`, "\"\x1f\"", "\"\t\"",
		`{"\x":1}`, `{"a`, `[1`, `[`, `{`, `{"a":1`, `"\`, `truefalse`, `[] []`,
	} {
		if got, ok := exact.Canonical([]byte(text), nil); ok {
			t.Errorf("Canonical(%q) = %q, want none", text, got)
		}
	}
}

func TestDecimalsHaveOneTextEach(t *testing.T) {
	t.Parallel()
	nines, zeros := strings.Repeat("9", 255), strings.Repeat("0", 254)
	for _, line := range []struct {
		want  string
		texts []string
	}{
		{"0", []string{"0", "-0", "0.00", "0e5", "-0.0E-5", "0e-99999999999999999999"}},
		{"1", []string{"1", "1.0", "1e0", "1E+0", "0.01e2", "100e-2"}},
		{"10", []string{"10", "1e1", "1.0e+1", "0.1e2"}},
		{"-10", []string{"-10", "-1e1"}},
		{"1.5", []string{"1.5", "1.50", "15e-1", "0.15e1"}},
		{"-0.05", []string{"-0.05", "-5e-2", "-0.50e-1"}},
		{"0.5", []string{"0.5", "5e-1", "0.05e1"}},
		{"12.34", []string{"12.34", "1234e-2", "1.234e1"}},
		{nines, []string{nines, nines + ".0", nines + "0e-1"}},
		{"1" + zeros, []string{"1e254", "10e253", "1" + zeros}},
		{"0." + strings.Repeat("0", 255) + "1", []string{"1e-256", "0.1e-255"}},
		// Digits and exponent are each longer than the value.
		{"1" + strings.Repeat("0", 99), []string{"0." + strings.Repeat("0", 300) + "1e400"}},
		{"0." + strings.Repeat("0", 99) + "1", []string{"1" + strings.Repeat("0", 300) + "e-400"}},
	} {
		for _, text := range line.texts {
			if got, err := exact.Decimal(text); err != nil || got != line.want {
				t.Errorf("Decimal(%.40s) = %.40q, %v, want %.40q", text, got, err, line.want)
			}
		}
	}
	for _, text := range []string{nines + "9", "0." + nines + "9", "1." + nines, "1e255", "0." + strings.Repeat("0", 256) + "1", "1e-257", "1e9999", "-1e-9999", "1e99999999999999999999", "0.1e99999999999999999999"} {
		if got, err := exact.Decimal(text); err == nil || !strings.Contains(err.Error(), "255 digits") {
			t.Errorf("Decimal(%.40s) = %.40q, %v, want an error that says how many digits", text, got, err)
		}
	}
}

func TestFaultsSayWhatStandsThere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}": "an object", " []": "an array", `"x"`: "a string", "true": "a truth value", "false": "a truth value", "null": "null", "": "nothing", "7": "a number", "-7": "a number",
	} {
		if _, err := exact.Members([]byte(text)); want != "an object" && (err == nil || err.Error() != want+" where an object is expected") {
			t.Errorf("Members(%s): %v", text, err)
		}
		if _, err := exact.Elements([]byte(text)); want != "an array" && (err == nil || err.Error() != want+" where an array is expected") {
			t.Errorf("Elements(%s): %v", text, err)
		}
		switch _, err := exact.Part([]byte(text)); want {
		case "a string", "a number":
			if err != nil {
				t.Errorf("Part(%s): %v", text, err)
			}
		case "nothing":
			if !errors.Is(err, exact.ErrMissing) {
				t.Errorf("Part(%s): %v", text, err)
			}
		default:
			if err == nil || err.Error() != want+" is neither a string nor a number" {
				t.Errorf("Part(%s): %v", text, err)
			}
		}
	}
	err := exact.Check([]byte(`{"a":x}`))
	if err == nil || !strings.Contains(err.Error(), "not JSON at byte 6") {
		t.Errorf("the place of a fault: %v", err)
	}
	fits := strings.Repeat("[", exact.MaxDepth) + strings.Repeat("]", exact.MaxDepth)
	if err := exact.Check([]byte(fits)); err != nil {
		t.Errorf("a depth of %d: %v", exact.MaxDepth, err)
	}
	if err := exact.Check([]byte("[" + fits + "]")); err == nil {
		t.Errorf("a depth of %d is taken", exact.MaxDepth+1)
	}
	for _, text := range []string{` { "a" : 1 , "a" : 2 } `, `{"a":[{"b":1},{"b":1,"c":{},"b":2}]}`, `[1,{"x":1,"x":1}]`} {
		if err := exact.Check([]byte(text)); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("Check(%s): %v", text, err)
		}
	}
	for _, text := range []string{` [ { "a" : 1 } , { "a" : 1 } ] `, `{"a":"a","b":["a","a"],"c":{"a":{"a":1}}}`, "\r\n\t7"} {
		if err := exact.Check([]byte(text)); err != nil {
			t.Errorf("Check(%s): %v", text, err)
		}
	}
}

func TestMembersAndElementsAreFoundAmongSpace(t *testing.T) {
	t.Parallel()
	const text = "\r\n\t { \"a\" :\t{ \"x\" : [ ] } , \"b\\u0063\"\n:\r\"v\\\\\" ,\"d\":[ 1 ,\n[2 , 3]\t, { } , \"]\" , true ] , \"e\" : -1.5e3 } "
	members, err := exact.Members([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := [][2]string{{"a", `{ "x" : [ ] }`}, {"bc", `"v\\"`}, {"d", "[ 1 ,\n[2 , 3]\t, { } , \"]\" , true ]"}, {"e", "-1.5e3"}}
	if len(members) != len(want) {
		t.Fatalf("%q", members)
	}
	for i, m := range members {
		if m.Name != want[i][0] || string(m.Value) != want[i][1] {
			t.Errorf("member %d is %q %q, want %q", i, m.Name, m.Value, want[i])
		}
	}
	elements, err := exact.Elements([]byte(" " + want[2][1]))
	if err != nil || len(elements) != 5 {
		t.Fatalf("%q, %v", elements, err)
	}
	for i, want := range []string{"1", "[2 , 3]", "{ }", `"]"`, "true"} {
		if string(elements[i]) != want {
			t.Errorf("element %d is %q, want %q", i, elements[i], want)
		}
	}
	for path, want := range map[string]string{"d.1.0": "2", "d.0": "1", "a.x": "[ ]", "bc": `"v\\"`, "d.4": "true"} {
		if got, err := exact.Lookup([]byte(text), strings.Split(path, ".")...); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"d.5", "d.-1", "d.x", "a.y", "e.0", "bc.0", "z"} {
		if got, err := exact.Lookup([]byte(text), strings.Split(path, ".")...); !errors.Is(err, exact.ErrMissing) || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
	if got, err := exact.PartAt([]byte(text), "e"); err != nil || got != "-1500" {
		t.Errorf("e is %q, %v", got, err)
	}
	if got, err := exact.PartAt([]byte(text), "none"); !errors.Is(err, exact.ErrMissing) {
		t.Errorf("none is %q, %v", got, err)
	}
	for value, want := range map[string]string{` "a\n" `: "a\n", `""`: "", "7": "", "": "", `"`: "", `"\x"`: ""} {
		if got, ok := exact.Text([]byte(value)); got != want || ok != (want != "" || value == `""`) {
			t.Errorf("Text(%q) = %q, %v", value, got, ok)
		}
	}
	o, err := exact.ReadObject([]byte(text))
	if err != nil || o.Text("bc") != `v\` || o.Text("e") != "" || o.Text("none") != "" || len(o) != 4 {
		t.Errorf("%q, %v", o, err)
	}
	if _, err := o.Part("none"); !errors.Is(err, exact.ErrMissing) || !strings.HasPrefix(err.Error(), "none: ") {
		t.Errorf("the part none: %v", err)
	}
	for _, bad := range []string{"[]", `{"a":1,"a":1}`} {
		if o, err := exact.ReadObject([]byte(bad)); err == nil {
			t.Errorf("ReadObject(%s) = %q", bad, o)
		}
	}
}

func TestPathsAreReadToTheirBounds(t *testing.T) {
	t.Parallel()
	canonical := func(text string, include, exclude []string) string {
		t.Helper()
		sel, err := exact.NewSelection(include, exclude)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := exact.Canonical([]byte(text), sel)
		if !ok {
			t.Fatalf("%s has no canonical form", text)
		}
		return string(got)
	}
	const elements = `[0,1,2,3,4,5,6,7,8,9,10,11,12]`
	for path, want := range map[string]string{
		"$[12]": "[12e0]", "$[0]": "[0]", "$[10]": "[1e1]", "$[2147483647]": "[]",
	} {
		if got := canonical(elements, []string{path}, nil); got != want {
			t.Errorf("%s of %s is %s, want %s", path, elements, got, want)
		}
	}
	if got := canonical(`{"":1,"a":2}`, []string{"$['']"}, nil); got != `{"":1e0}` {
		t.Errorf("the member without a name: %s", got)
	}
	if sel, err := exact.NewSelection(nil, nil); sel != nil || err != nil {
		t.Errorf("no paths: %v, %v", sel, err)
	}
	many := slices.Repeat([]string{"$.a"}, 64)
	for _, lists := range [][2][]string{{many, nil}, {nil, many}, {many, many}} {
		if _, err := exact.NewSelection(lists[0], lists[1]); err != nil {
			t.Errorf("%d and %d paths: %v", len(lists[0]), len(lists[1]), err)
		}
	}
	more := append(many, "$.a")
	for _, lists := range [][2][]string{{more, nil}, {nil, more}, {{"$.a", "b"}, nil}, {nil, {"b"}}} {
		if _, err := exact.NewSelection(lists[0], lists[1]); err == nil {
			t.Errorf("%d and %d paths are taken", len(lists[0]), len(lists[1]))
		}
	}
}

func TestPathsThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"$", "$[2147483647]", "$['']", "$['a']['b'][0][*].c"} {
		if _, err := exact.ParsePath(good); err != nil {
			t.Errorf("ParsePath(%q): %v", good, err)
		}
	}
	for _, bad := range []string{"$[]", "$[", "$[2147483648]", "$[']", "$['", "$['a", "$[1", "$x", "$.a b", "$.", ""} {
		if p, err := exact.ParsePath(bad); err == nil {
			t.Errorf("ParsePath(%q) = %v", bad, p)
		}
	}
}

// A text of a configuration is a path or an error.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"$.meta.sentAt", "$.items[*].note", "$.a[0]", "$['a.b']", "$[']"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := exact.ParsePath(text); err == nil && !strings.HasPrefix(text, "$") {
			t.Errorf("%q is a path", text)
		}
	})
}
