package httpkey

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// vector is one request with its fingerprint; see testdata/fingerprint.json.
type vector struct {
	Name    string
	Method  string
	Target  string
	Header  map[string]string `json:",omitempty"`
	Body    string            `json:",omitempty"`
	JSON    bool              `json:",omitempty"`
	Include []string          `json:",omitempty"`
	Exclude []string          `json:",omitempty"`
	Version int
	Sum     string
}

func (v vector) sum(tb testing.TB) string {
	tb.Helper()
	f, err := newFingerprinter(FingerprintOptions{JSON: v.JSON, Include: v.Include, Exclude: v.Exclude})
	if err != nil {
		tb.Fatal(err)
	}
	r := httptest.NewRequest(v.Method, v.Target, nil)
	for name, value := range v.Header {
		r.Header.Set(name, value)
	}
	fp, ok := f.at(v.Version, r, []byte(v.Body))
	if !ok {
		tb.Fatalf("no version %d", v.Version)
	}
	return hex.EncodeToString(fp.Sum)
}

func TestFingerprintsAreFixedToTheByte(t *testing.T) {
	t.Parallel()
	const file = "testdata/fingerprint.json"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want []vector
	if err := json.Unmarshal(content, &want); err != nil {
		t.Fatal(err)
	}
	got := make([]vector, len(want))
	for i, v := range want {
		v.Sum = v.sum(t)
		got[i] = v
	}
	if *rewrite {
		text, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fingerprints changed, so every replay of a stored record would be a mismatch (-want +got):\n%s", diff)
	}
}

func TestWhatMakesTwoRequestsDifferent(t *testing.T) {
	t.Parallel()
	jsonType := map[string]string{"Content-Type": "application/json"}
	form := func(boundary, body string) vector {
		return vector{
			Method: "POST", Target: "/f", Header: map[string]string{"Content-Type": `multipart/form-data; boundary="` + boundary + `"`},
			Body: strings.ReplaceAll(strings.ReplaceAll(body, "B", boundary), "\n", "\r\n"),
		}
	}
	const part = "--B\nContent-Disposition: form-data; name=\"a\"\n\none\n--B\nContent-Disposition: form-data; name=\"b\"; filename=\"x\"\nContent-Type: text/plain\n\ntwo\n--B--\n"
	text := func(body string) vector {
		return vector{Method: "POST", Target: "/", Header: jsonType, Body: body, JSON: true}
	}
	for _, tc := range []struct {
		name string
		a, b vector
		same bool
	}{
		{"query order", vector{Method: "POST", Target: "/t?a=1&b=2"}, vector{Method: "POST", Target: "/t?b=2&a=1"}, true},
		{"query escapes", vector{Method: "POST", Target: "/t?a=%41+b"}, vector{Method: "POST", Target: "/t?%61=A%20b"}, true},
		{"query that cannot be decoded", vector{Method: "POST", Target: "/t?a=%zz"}, vector{Method: "POST", Target: "/t?a=%25zz"}, false},
		{"query values", vector{Method: "POST", Target: "/t?to=alice"}, vector{Method: "POST", Target: "/t?to=mallory"}, false},
		{"order among values of one name", vector{Method: "POST", Target: "/t?a=1&a=2"}, vector{Method: "POST", Target: "/t?a=2&a=1"}, false},
		{"name and value", vector{Method: "POST", Target: "/t?a=b&c=d"}, vector{Method: "POST", Target: "/t?a=b%26c%3Dd"}, false},
		{"path", vector{Method: "POST", Target: "/t/a/1/refund"}, vector{Method: "POST", Target: "/t/a/2/refund"}, false},
		{"path escapes", vector{Method: "POST", Target: "/t/%61"}, vector{Method: "POST", Target: "/t/a"}, true},
		{"escaped slash", vector{Method: "POST", Target: "/t/a%2Fb"}, vector{Method: "POST", Target: "/t/a/b"}, false},
		{"path and query", vector{Method: "POST", Target: "/t%3Fa=1"}, vector{Method: "POST", Target: "/t?a=1"}, false},
		{"method", vector{Method: "POST", Target: "/t"}, vector{Method: "PATCH", Target: "/t"}, false},
		{"body", vector{Method: "POST", Target: "/t", Body: "x"}, vector{Method: "POST", Target: "/t", Body: "y"}, false},
		{"type", vector{Method: "POST", Target: "/t", Header: jsonType}, vector{Method: "POST", Target: "/t"}, false},
		{
			"spelling of the type",
			vector{Method: "POST", Target: "/", Header: map[string]string{"Content-Type": "Text/Plain;Charset=UTF-8"}},
			vector{Method: "POST", Target: "/", Header: map[string]string{"Content-Type": `text/plain; charset="utf-8"`}},
			true,
		},
		{"boundary", form("b1", part), form("b2", part), true},
		{"order of parts", form("b1", part), form("b1", "--B\nContent-Disposition: form-data; name=\"b\"; filename=\"x\"\nContent-Type: text/plain\n\ntwo\n--B\nContent-Disposition: form-data; name=\"a\"\n\none\n--B--\n"), false},
		{"content of a part", form("b1", part), form("b2", strings.ReplaceAll(part, "two", "tow")), false},
		{"header of a part", form("b1", part), form("b2", strings.ReplaceAll(part, "\"x\"", "\"y\"")), false},
		{"a form cut off", form("b1", part), form("b1", strings.TrimSuffix(part, "--B--\n")), false},
		{"members", text(`{"a":1,"b":[true,null]}`), text(" {\"b\" : [true ,null],\n\t\"a\":1 } "), true},
		{"members of members", text(`{"x":{"a":1,"b":2},"c":3}`), text(`{"c":3,"x":{"b":2,"a":1}}`), true},
		{"order of elements", text(`[1,2]`), text(`[2,1]`), false},
		{"spelling of a number", text(`[1,100,0.5,0]`), text(`[1.0,1e2,5E-1,-0.0e9]`), true},
		{"sign", text(`1`), text(`-1`), false},
		{"2^53 and 2^53+1", text(`9007199254740992`), text(`9007199254740993`), false},
		{"0.1 and its neighbour", text(`0.1`), text(`0.1000000000000000055511151231257827`), false},
		{"huge exponents", text(`1e999999999`), text(`1e999999998`), false},
		{"the same huge exponent", text(`10e999999998`), text(`1e999999999`), true},
		{"number and string", text(`1`), text(`"1"`), false},
		{"escapes", text(`"a\u00e9\n\/\ud83d\ude00"`), text(`"aé\u000a/😀"`), true},
		{"a member twice", text(`{"a":1,"a":1}`), text(`{"a":1}`), false},
		{"null and absent", text(`{"a":null}`), text(`{}`), false},
		{"JSON and its bytes", text(`{"a":1}`), vector{Method: "POST", Target: "/", Header: jsonType, Body: `{"a":1}`}, false},
		{"bytes that look canonical", text(`{"a":1e0}`), vector{Method: "POST", Target: "/", Header: jsonType, Body: `{"a":1e0}`}, false},
		{"white space when it is not canonical", vector{Method: "POST", Target: "/", Header: jsonType, Body: `{"a":1}`}, vector{Method: "POST", Target: "/", Header: jsonType, Body: `{"a": 1}`}, false},
		{"no JSON", text(`{"a":1`), text(`{"a":1 `), false},
	} {
		tc.a.Version, tc.b.Version = 1, 1
		if same := tc.a.sum(t) == tc.b.sum(t); same != tc.same {
			t.Errorf("%s: same %v, want %v", tc.name, same, tc.same)
		}
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add("/a?b=c", "application/json", []byte(`{"a":1}`))
	f.Add("/%2f/?&&=&a", "multipart/form-data; boundary=x", []byte("--x\r\n\r\n\r\n--x--"))
	f.Add("/", "text/plain;;", []byte(nil))
	prints, err := newFingerprinter(FingerprintOptions{JSON: true, Exclude: []string{"$.x[*].y"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, target, media string, body []byte) {
		r := &http.Request{Method: "POST", RequestURI: target, URL: &url.URL{Path: target}, Header: http.Header{"Content-Type": {media}}}
		kept := bytes.Clone(body)
		one := prints.sum(nil, r, body)
		if two := prints.sum(nil, r, body); !bytes.Equal(one, two) || !bytes.Equal(kept, body) {
			t.Fatalf("%q %q %q: the fingerprint is not a function of the request", target, media, body)
		}
	})
}

func BenchmarkFingerprintOfJSON(b *testing.B) {
	prints, err := newFingerprinter(FingerprintOptions{JSON: true})
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/orders", nil)
	r.Header.Set("Content-Type", "application/json")
	body := []byte(`{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500}]}`)
	b.ReportAllocs()
	for b.Loop() {
		prints.sum(nil, r, body)
	}
}
