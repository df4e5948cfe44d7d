package exact_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/internal/exact"
)

func mask(t testing.TB, paths ...string) *exact.Mask {
	t.Helper()
	m, err := exact.NewMask(paths)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMaskReplacesValuesAndNoOtherByte(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		paths      []string
		text, want string
	}{
		{[]string{"$.customer.email"}, `{"customer" : { "email":"a@b.c", "id":9007199254740993 } , "total":1e400}`, `{"customer" : { "email":"***", "id":9007199254740993 } , "total":1e400}`},
		{[]string{"$.customer"}, `{"customer":{"email":{"deep":[1,2]}}}`, `{"customer":"***"}`},
		{[]string{"$.a"}, `{"a":1,"\u0061":"two","b":3}`, `{"a":"***","\u0061":"***","b":3}`},
		{[]string{"$.items[*].name", "$.items[0].tax"}, `{"items":[{"name":"x","tax":1},{"name":"y","tax":2},7,[]]}`, `{"items":[{"name":"***","tax":"***"},{"name":"***","tax":2},7,[]]}`},
		{[]string{"$.a.b"}, `{"b":1,"a":[{"b":2}],"c":{"a":{"b":3}}}`, `{"b":1,"a":[{"b":2}],"c":{"a":{"b":3}}}`},
		{[]string{"$"}, ` {"a":1} `, ` "***" `},
		{[]string{"$['a.b']", "$.n"}, `{"a.b":null,"n":"}]\"{"}`, `{"a.b":"***","n":"***"}`},
		{[]string{"$.a.b", "$.a"}, `[{"a":1}]`, `[{"a":1}]`},
	} {
		got, ok := mask(t, tc.paths...).Apply([]byte(tc.text))
		if !ok || string(got) != tc.want {
			t.Errorf("%q on %s\ngot  %s, %v\nwant %s", tc.paths, tc.text, got, ok, tc.want)
		}
	}
	if got, ok := mask(t, "$.email").ApplyAnywhere([]byte(`[{"data":{"email":"x","y":[{"email":[1]}]}},2]`)); !ok || string(got) != `[{"data":{"email":"***","y":[{"email":"***"}]}},2]` {
		t.Errorf("anywhere: %s, %v", got, ok)
	}
	for _, text := range []string{"", "{", "email=x", "\ufeff{}", `{"a":1}{}`} {
		if got, ok := mask(t, "$.a").Apply([]byte(text)); ok {
			t.Errorf("%q is masked as %q", text, got)
		}
	}
	if got, ok := mask(t).Apply([]byte("no JSON")); !ok || string(got) != "no JSON" {
		t.Errorf("without paths: %q, %v", got, ok)
	}
	if _, err := exact.NewMask([]string{"$.a", "b"}); err == nil {
		t.Error("a path without $ is taken")
	}
}

// FuzzMask compares with masking the decoded value.
func FuzzMask(f *testing.F) {
	for _, s := range []string{`{"a":{"b":1},"a":2}`, `[{"a":"x"},[1],{"a":{"b":"\u0061"}}]`, ` {"a" : [ {"b":1} , 2 ] } `, `"a"`, `{"":{}}`} {
		f.Add([]byte(s))
	}
	m := mask(f, "$.a.b", "$[0].a", "$.a[*].b")
	one := func(v any, path ...string) {
		for i, name := range path {
			members, ok := v.(map[string]any)
			if !ok {
				return
			}
			if _, ok := members[name]; ok && i == len(path)-1 {
				members[name] = "***"
			}
			v = members[name]
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		kept := bytes.Clone(text)
		got, ok := m.Apply(text)
		if ok != json.Valid(text) || !bytes.Equal(text, kept) {
			t.Fatalf("%q: %v", text, ok)
		}
		if !ok {
			return
		}
		if all, ok := m.ApplyAnywhere(text); !ok || !json.Valid(all) {
			t.Fatalf("%q anywhere is %q", text, all)
		}
		var want, have any
		if !utf8.Valid(text) || decode(text, &want) != nil {
			return
		}
		one(want, "a", "b")
		if list, ok := want.([]any); ok && len(list) > 0 {
			one(list[0], "a")
		}
		if members, ok := want.(map[string]any); ok {
			if list, ok := members["a"].([]any); ok {
				for _, v := range list {
					one(v, "b")
				}
			}
		}
		if err := decode(got, &have); err != nil {
			t.Fatalf("%q is masked as %q: %v", text, got, err)
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Fatalf("%q is masked as %q:\n%s", text, got, diff)
		}
	})
}
