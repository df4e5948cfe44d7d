package answer

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/unavez/unavez"
)

func TestAClientsKeyCannotChangeTheQuestion(t *testing.T) {
	t.Parallel()
	places := Places{Key: "a&b=c#d/../{tenant}", DerivedKey: "uv1-0", Tenant: "shop", Principal: "ana"}
	got, err := Fill("http://app/q?key={key}&t={tenant}&p={principal}&d={derived_key}", places, url.QueryEscape)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(got)
	if err != nil || u.Query().Get("key") != places.Key || len(u.Query()) != 4 || u.Fragment != "" {
		t.Errorf("filled to %s", got)
	}
	for _, text := range []string{"{", "{key", "{Key}", "{}", "a{b}c", "{{key}}"} {
		if got, err := Fill(text, places, nil); err == nil {
			t.Errorf("%s was filled to %s", text, got)
		}
	}
}

func TestPathsFindTheMembersOwnBytes(t *testing.T) {
	t.Parallel()
	document := []byte(`{"a":{"b":[1,{"c": 1.50 }]},"x.y":"z","n":null,"big":9007199254740993}`)
	for text, want := range map[string]string{
		"$.a.b[1].c": "1.50", "$['x.y']": `"z"`, "$.n": "null", "$.big": "9007199254740993", "$.a.b[0]": "1", "$.a.b": `[1,{"c": 1.50 }]`,
	} {
		path, err := ParsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := path.Find(document); !ok || string(got) != want {
			t.Errorf("%s: %s, %t", text, got, ok)
		}
	}
	for _, text := range []string{"$.a.c", "$.a.b[2]", "$.a[0]", "$.x.y", "$.n.m", "$.a.b.c"} {
		path, err := ParsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := path.Find(document); ok {
			t.Errorf("%s found %s", text, got)
		}
	}
	for _, text := range []string{"", "$", "a", "$a", "$.", "$..a", "$.a.", "$[", "$[]", "$[-1]", "$[01]", "$[x]", "$.*", "$.a[*]", "$['']", "$['a", "$." + strings.Repeat("a", 600)} {
		if path, err := ParsePath(text); err == nil {
			t.Errorf("%q was read as %q", text, path)
		}
	}
}

func TestAnAnswerThatMatchesBothOrNeitherCannotTell(t *testing.T) {
	t.Parallel()
	state, err := ParsePath("$.state")
	if err != nil {
		t.Fatal(err)
	}
	rules := Rules{
		Done:    []Condition{{Status: []int{200}, Member: state, Is: []string{"paid", "1", "true"}}, {Status: []int{201}}},
		NotDone: []Condition{{Status: []int{404}}, {Member: state, Is: []string{"none", "null"}}, {Status: []int{201}, Member: state, Is: []string{"both"}}},
	}
	for body, c := range map[string]struct {
		status int
		want   unavez.Verdict
	}{
		`{"state":"paid"}`:         {200, unavez.Done},
		`{"state":1}`:              {200, unavez.Done},
		`{"state":true}`:           {200, unavez.Done},
		`{"state":"paid" }`:        {202, unavez.CannotTell},
		`{"state":"pending"}`:      {200, unavez.CannotTell},
		`{"state":"none"}`:         {200, unavez.NotDone},
		`{"state":null}`:           {200, unavez.NotDone},
		`{"state":"both"}`:         {201, unavez.CannotTell},
		`not json`:                 {404, unavez.NotDone},
		`still not json`:           {200, unavez.CannotTell},
		``:                         {500, unavez.CannotTell},
		`{"state":["paid"]}`:       {200, unavez.CannotTell},
		`{"state":{"paid":"paid"}`: {200, unavez.CannotTell},
	} {
		if got := rules.Verdict(c.status, []byte(body)); got != c.want {
			t.Errorf("%d %s: %v, want %v", c.status, body, got, c.want)
		}
	}
}

func TestTheResultKeepsOnlyTheHeadersThatAreNamed(t *testing.T) {
	t.Parallel()
	header := http.Header{"Content-Type": {"application/json"}, "Location": {"/a", "/b"}, "Set-Cookie": {"a=b"}, "X-Other": {"c"}}
	result, err := Rules{Status: 201, Headers: []string{"location"}}.Result(200, header, []byte(`{}`))
	if err != nil || result.Code != 201 || len(result.Header) != 3 {
		t.Errorf("%+v, %v", result, err)
	}
	if _, err := (Rules{Body: Path{"a"}}).Result(200, header, []byte(`{}`)); err == nil {
		t.Error("a result was made of nothing")
	}
	if _, err := ReadBody(strings.NewReader("12345"), 4); err == nil {
		t.Error("an answer over its limit was read")
	}
}

func FuzzPath(f *testing.F) {
	f.Add("$.a['b'][0]", `{"a":{"b":[1]}}`)
	f.Fuzz(func(_ *testing.T, text, document string) {
		if path, err := ParsePath(text); err == nil {
			path.Find([]byte(document))
		}
	})
}
