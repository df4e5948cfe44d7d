package store_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/unavez/unavez/store"
)

// vectors reads golden vectors, which testdata/vectors.py makes without this code.
func vectors[T any](t *testing.T, name string) []T {
	t.Helper()
	content, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	if err := json.Unmarshal(content, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("%s: no vectors", name)
	}
	return all
}

type identityVector struct {
	Tenant  string            `json:"tenant"`
	Effect  string            `json:"effect"`
	Parts   []string          `json:"parts"`
	Text    string            `json:"text"`
	Sum     string            `json:"sum"`
	Key     string            `json:"key"`
	Hash64  string            `json:"hash64"`
	Derived map[string]string `json:"derived"`
}

func TestIdentityIsTheProtocolToTheByte(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, v := range vectors[identityVector](t, "identity.json") {
		id := store.Identity{Tenant: v.Tenant, Effect: v.Effect, Parts: v.Parts}
		sum, key := id.Sum(), id.Key()
		got := identityVector{
			Tenant: v.Tenant, Effect: v.Effect, Parts: v.Parts, Text: id.Text(),
			Sum: hex.EncodeToString(sum[:]), Key: key.String(), Hash64: strconv.FormatInt(key.Hash64(), 10),
			Derived: map[string]string{},
		}
		for step := range v.Derived {
			got.Derived[step] = id.DerivedKey(step)
		}
		if diff := cmp.Diff(v, got); diff != "" {
			t.Errorf("%.100s (-vector +got):\n%s", v.Text, diff)
		}
		if err := id.Validate(); err != nil {
			t.Errorf("%.100s: %v", v.Text, err)
		}
		if other, ok := seen[v.Key]; ok {
			t.Errorf("%.100s and %.100s have one key", v.Text, other)
		}
		seen[v.Key] = v.Text
	}
}

func TestReadableTextComesBackAsItsIdentity(t *testing.T) {
	t.Parallel()
	for _, v := range vectors[identityVector](t, "identity.json") {
		got, err := store.ParseText(v.Text)
		if err != nil {
			t.Errorf("%.100s: %v", v.Text, err)
			continue
		}
		if diff := cmp.Diff(store.Identity{Tenant: v.Tenant, Effect: v.Effect, Parts: v.Parts}, got); diff != "" {
			t.Errorf("%.100s (-vector +got):\n%s", v.Text, diff)
		}
	}
	for _, bad := range []string{"", "a", "a/b", "a/b/%zz", "a/b/%4"} {
		if id, err := store.ParseText(bad); err == nil {
			t.Errorf("ParseText(%q) = %+v, want an error", bad, id)
		}
	}
}

func TestKeyComesBackFromItsText(t *testing.T) {
	t.Parallel()
	for _, v := range vectors[identityVector](t, "identity.json") {
		key, err := store.ParseKey(v.Key)
		if err != nil || key.String() != v.Key {
			t.Errorf("ParseKey(%q) = %v, %v", v.Key, key, err)
		}
	}
	for _, bad := range []string{"", "00", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("0", 34), strings.Repeat("g", 32), " " + strings.Repeat("0", 32)} {
		if key, err := store.ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) = %v, want an error", bad, key)
		}
	}
}

func TestEveryFaultOfAnIdentityIsReported(t *testing.T) {
	t.Parallel()
	long, bad := strings.Repeat("x", store.MaxPartSize+1), "\xff"
	for _, c := range []struct {
		id   store.Identity
		want []string // one word of each fault, in order
	}{
		{store.Identity{Tenant: "t", Effect: "e", Parts: []string{"p"}}, nil},
		{store.Identity{Effect: "e", Parts: []string{"", "p"}}, nil},
		{store.Identity{Tenant: "t", Effect: "e", Parts: slices.Repeat([]string{"p"}, store.MaxParts)}, nil},
		{store.Identity{Tenant: long[1:], Effect: long[1:], Parts: []string{long[1:], ""}}, nil},
		{store.Identity{}, []string{"effect", "key"}},
		{store.Identity{Tenant: long[1:], Parts: slices.Repeat([]string{long[1:]}, store.MaxParts)}, []string{"effect: empty"}},
		{store.Identity{Tenant: "t", Parts: []string{"p", ""}}, []string{"effect: empty"}},
		// Each fault by itself.
		{store.Identity{Tenant: long, Effect: "e", Parts: []string{"p"}}, []string{"tenant"}},
		{store.Identity{Tenant: bad, Effect: "e", Parts: []string{"p"}}, []string{"tenant"}},
		{store.Identity{Tenant: "t", Effect: "", Parts: []string{"p"}}, []string{"effect: empty"}},
		{store.Identity{Tenant: "t", Effect: long, Parts: []string{"p"}}, []string{"effect"}},
		{store.Identity{Tenant: "t", Effect: "e\x00", Parts: []string{"p"}}, []string{"effect"}},
		{store.Identity{Tenant: "t", Effect: "e"}, []string{"0 parts"}},
		{store.Identity{Tenant: "t", Effect: "e", Parts: []string{bad}}, []string{"key part 1"}},
		{store.Identity{Tenant: "t", Effect: "e", Parts: []string{"p", long}}, []string{"key part 2"}},
		{store.Identity{Tenant: "t", Effect: "e", Parts: []string{"", ""}}, []string{"every part"}},
		{store.Identity{Tenant: "t", Effect: "e", Parts: slices.Repeat([]string{"p"}, store.MaxParts+1)}, []string{"17 parts"}},
		{store.Identity{Tenant: long, Effect: long, Parts: []string{long}}, []string{"tenant", "effect", "key part 1"}},
		{store.Identity{Tenant: bad, Effect: bad, Parts: []string{"p", bad}}, []string{"tenant", "effect", "key part 2"}},
	} {
		err := c.id.Validate()
		var lines []string
		if err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		if len(lines) != len(c.want) {
			t.Errorf("%.60v: faults %q, want %q", c.id, lines, c.want)
			continue
		}
		for i, word := range c.want {
			if !strings.Contains(lines[i], word) {
				t.Errorf("%.60v: fault %q does not name %q", c.id, lines[i], word)
			}
		}
	}
}

// FuzzReadableText holds: a text that is read is written back as an identity
// that reads the same, whatever a person typed.
func FuzzReadableText(f *testing.F) {
	for _, seed := range []string{"acme/order.create.v1/1001", "/http//key", "a/b/%2F", "a/b/", "//", "%/%/%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := store.ParseText(text)
		if err != nil {
			return
		}
		again, err := store.ParseText(id.Text())
		if err != nil || again.Key() != id.Key() {
			t.Errorf("%q is %+v, and comes back as %+v, %v", text, id, again, err)
		}
	})
}
