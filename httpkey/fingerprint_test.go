package httpkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
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
	const last = "--B--\n" // the line that ends a form
	typed := func(media, coding, body string) vector {
		return vector{Method: "POST", Target: "/", Header: map[string]string{"Content-Type": media, "Content-Encoding": coding}, Body: body, JSON: true}
	}
	note := func(lines string) vector {
		return form("b1", "--B\nContent-Disposition: form-data; name=\"a\"\n"+lines+"\n\none\n"+last)
	}
	for _, tc := range []struct {
		name string
		a, b vector
		same bool
	}{
		{"escapes that cannot be decoded", vector{Method: "POST", Target: "/t?a=%zz"}, vector{Method: "POST", Target: "/t?a=%yy"}, false},
		{"empty fields of a query", vector{Method: "POST", Target: "/t?&a=1&&b=2&"}, vector{Method: "POST", Target: "/t?a=1&b=2"}, true},
		{"a query that is empty", vector{Method: "POST", Target: "/t?"}, vector{Method: "POST", Target: "/t"}, true},
		{"a query of an empty name", vector{Method: "POST", Target: "/t?="}, vector{Method: "POST", Target: "/t"}, false},
		{"escaped slash beside what should be escaped", vector{Method: "POST", Target: `/t/a%2Fb"c`}, vector{Method: "POST", Target: `/t/a/b"c`}, false},
		{"the same in a whole URL", vector{Method: "POST", Target: `http://h/t/a%2Fb"c`}, vector{Method: "POST", Target: `http://h/t/a/b"c`}, false},
		{"a whole URL", vector{Method: "POST", Target: `http://h/t/a%2Fb"c?b=%41&a`}, vector{Method: "POST", Target: `/t/a%2Fb"c?b=%41&a`}, true},
		{"JSON under another type", typed("text/plain", "", `{"a":1}`), typed("text/plain", "", `{"a": 1}`), false},
		{"a form where JSON is compared", vector{Method: "POST", Target: "/f", JSON: true, Header: form("b1", part).Header, Body: form("b1", part).Body}, form("b2", part), true},
		{"no coding", typed("application/json", "", `{"a":1}`), text(`{"a": 1}`), true},
		{"the coding that is none", typed("application/json", "Identity", `{"a":1}`), text(`{"a": 1}`), true},
		{"a coding", typed("application/json", "gzip", `{"a":1}`), typed("application/json", "gzip", `{"a": 1}`), false},
		{"a coding behind the one that is none", typed("application/json", "identity, gzip", `{"a":1}`), typed("application/json", "identity, gzip", `{"a": 1}`), false},
		{"before the first part", form("b1", "x\n"+part), form("b1", "y\n"+part), false},
		{"behind the last part", form("b1", part+"x\n"), form("b1", part+"y\n"), false},
		{"behind the last part, which seems to end twice", form("b1", part+"x\n"+last), form("b1", part+"y\n"+last), false},
		{"before the first part, behind what begins as a boundary", form("b1", "--Bx\nx\n"+part), form("b1", "--Bx\ny\n"+part), false},
		{"before an end without parts", form("b1", "--Bx\nx\n"+last), form("b1", "--Bx\ny\n"+last), false},
		{"between two ends", form("b1", last+"x\n"+last), form("b1", last+"y\n"+last), false},
		{"a header that ends in a boundary like a line of it", form("b:1", "--B\nX: 1\n"+last), form("b:1", "--B\nX: 2\n"+last), false},
		{"the same behind a part", form("b:1", "--B\n\none\n--B\nX: 1\n"+last), form("b:1", "--B\n\none\n--B\nX: 2\n"+last), false},
		{"a colon in a boundary", form("b:1", part), form("b2", part), true},
		{"a form that does not end with a line break", form("b1", strings.TrimSuffix(part, "\n")), form("b2", part), true},
		{"type of a part", note("Content-Type: Text/Plain;Charset=UTF-8"), note(`Content-Type: text/plain; charset="utf-8"`), true},
		{"order of a part's lines", note("X-B: 1\nX-A: 2"), note("X-A: 2\nX-B: 1"), true},
		{"case of another line of a part", note("X-Note: Text/Plain"), note("X-Note: text/plain"), false},
		{"a name of a part with an extended twin", note(`Content-Type: a/b; x="1"; x*=UTF-8''y`), note(`Content-Type: a/b; x="2"; x*=UTF-8''y`), false},
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

// list is a list of parts as docs/protocol.md has it.
func list(parts ...string) string {
	var out []byte
	for _, p := range parts {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(p))), p...)
	}
	return string(out)
}

// sumOf is the fingerprint of a request as docs/protocol.md has it.
func sumOf(method, path, query, media, kind, content string) string {
	sum := sha256.Sum256([]byte(list("http", method, path, query, media, kind, content)))
	return hex.EncodeToString(sum[:])
}

func TestFingerprintsFollowFromTheProtocol(t *testing.T) {
	t.Parallel()
	const ofForm = "multipart/form-data; boundary=B"
	untyped := list("", "", "") // one empty parameter, of no type
	lines := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	parts := func(n int) (body, form string) {
		for i := range n {
			body += fmt.Sprintf("--B\nX-N: %d\n\none\n", i)
			form += list(list("x-n", fmt.Sprint(i)), "one")
		}
		return lines(body + "--B--\n"), form
	}
	most, mostForm := parts(1000)
	over, _ := parts(1001)
	long := strings.Repeat("0123456789abcdef", 1000)
	unread := lines("--B\nno line of a header\n\none\n--B--\n")
	cut := "--B\r\nX-A: 1\r\n\r\none\n--B--\r\n" // no delimiter, where lines end in CR LF
	for _, tc := range []struct {
		name, target string
		header       http.Header
		body         string
		want         string
	}{
		{"nothing", "/", nil, "", sumOf("POST", list("", ""), "", untyped, "raw", "")},
		{"path and query", "/a%2Fb//c%20d?b=%31&a=x+y&b=0&c", nil, "", sumOf("POST", list("", "a/b", "", "c d"), list("a", "x y", "b", "1", "b", "0", "c", ""), untyped, "raw", "")},
		{"a query that cannot be decoded", "/?b=1&a=%zz", nil, "", sumOf("POST", list("", ""), list("b=1&a=%zz"), untyped, "raw", "")},
		{"a whole URL", "http://h/a%2Fb?c=d", nil, "", sumOf("POST", list("", "a/b"), list("c", "d"), untyped, "raw", "")},
		{"4 KiB", "/", nil, long[:4096], sumOf("POST", list("", ""), "", untyped, "raw", long[:4096])},
		{"a byte more", "/", nil, long[:4097], sumOf("POST", list("", ""), "", untyped, "raw", long[:4097])},
		{"a long path and a long body", "/" + long, nil, long, sumOf("POST", list("", long), "", untyped, "raw", long)},
		{
			"a type with parameters", "/",
			http.Header{"Content-Type": {`Text/Plain; K=1; c=2; h=3; A=4; charset=UTF-8; j=5; d="6"; g=7; b=8; f=9; e=Ten`}},
			"x",
			sumOf("POST", list("", ""), "", list("text/plain", "a", "4", "b", "8", "c", "2", "charset", "utf-8", "d", "6", "e", "Ten", "f", "9", "g", "7", "h", "3", "j", "5", "k", "1"), "raw", "x"),
		},
		{"a type twice", "/", http.Header{"Content-Type": {"text/plain", "text/html"}}, "x", sumOf("POST", list("", ""), "", list("", "", "text/plain, text/html"), "raw", "x")},
		{"JSON", "/", http.Header{"Content-Type": {"application/json"}}, ` {"b": 1.50, "a": 0}`, sumOf("POST", list("", ""), "", list("application/json"), "json", `{"a":0,"b":15e-1}`)},
		{"JSON with a parameter", "/", http.Header{"Content-Type": {"application/x+JSON; v=1"}}, `[ ]`, sumOf("POST", list("", ""), "", list("application/x+json", "v", "1"), "json", `[]`)},
		{"JSON of a coding", "/", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"br"}}, `[ ]`, sumOf("POST", list("", ""), "", list("application/json"), "raw", `[ ]`)},
		{"JSON of a coding in a second line", "/", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity", "br"}}, `[ ]`, sumOf("POST", list("", ""), "", list("application/json"), "raw", `[ ]`)},
		{
			"a form", "/",
			http.Header{"Content-Type": {ofForm + "; charset=UTF-8"}},
			lines("--B\nX-J: 1\nx-c: 2\nX-H: 3\nX-C: 4\nContent-Type: Text/HTML; Charset=UTF-8\nX-A: A/B\nX-G: 5\nX-B: 6\nX-F: 7\nX-D: 8\nX-_: 0\ncontent-disposition: Form-Data; name=\"n\"\n\none\n--B\n\n\n--B--\n"),
			sumOf("POST", list("", ""), "", list("multipart/form-data", "charset", "utf-8"), "form", list(
				list("content-disposition", list("form-data", "name", "n"), "content-type", list("text/html", "charset", "utf-8"),
					"x-_", "0", "x-a", "A/B", "x-b", "6", "x-c", "2", "x-c", "4", "x-d", "8", "x-f", "7", "x-g", "5", "x-h", "3", "x-j", "1"), "one",
				"", "",
			)),
		},
		{"a form of most parts", "/", http.Header{"Content-Type": {ofForm}}, most, sumOf("POST", list("", ""), "", list("multipart/form-data"), "form", mostForm)},
		{"a form of too many parts", "/", http.Header{"Content-Type": {ofForm}}, over, sumOf("POST", list("", ""), "", list("multipart/form-data", "boundary", "B"), "raw", over)},
		{"a form that cannot be read", "/", http.Header{"Content-Type": {ofForm}}, unread, sumOf("POST", list("", ""), "", list("multipart/form-data", "boundary", "B"), "raw", unread)},
		{"a form whose part does not end", "/", http.Header{"Content-Type": {ofForm}}, cut, sumOf("POST", list("", ""), "", list("multipart/form-data", "boundary", "B"), "raw", cut)},
		{"a form of a coding", "/", http.Header{"Content-Type": {ofForm}, "Content-Encoding": {"br"}}, most, sumOf("POST", list("", ""), "", list("multipart/form-data", "boundary", "B"), "raw", most)},
		{"a form without a boundary", "/", http.Header{"Content-Type": {"multipart/form-data"}}, "--\r\n\r\n\r\n----", sumOf("POST", list("", ""), "", list("multipart/form-data"), "raw", "--\r\n\r\n\r\n----")},
		{"parts that are no form", "/", http.Header{"Content-Type": {"multipart/mixed; boundary=B"}}, most, sumOf("POST", list("", ""), "", list("multipart/mixed", "boundary", "B"), "raw", most)},
	} {
		f, err := newFingerprinter(FingerprintOptions{JSON: true})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("POST", tc.target, nil)
		r.Header = tc.header
		fp, ok := f.at(1, r, []byte(tc.body))
		if got := hex.EncodeToString(fp.Sum); !ok || fp.Version != 1 || got != tc.want {
			t.Errorf("%s: %s of version %d, want %s of version 1", tc.name, got, fp.Version, tc.want)
		}
	}
}

// What a router makes of the URL does not count.
func TestTheFingerprintIsOfTheTargetThatWasSent(t *testing.T) {
	t.Parallel()
	f, err := newFingerprinter(FingerprintOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := sumOf("POST", list("", "api", "a/b"), list("c", "d"), list("", "", ""), "raw", "")
	var got string
	printed := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = hex.EncodeToString(f.sum(nil, r, nil)) })
	for _, target := range []string{"/api/a%2Fb?c=d", "http://example.com/api/a%2Fb?c=d"} {
		r := httptest.NewRequest("POST", target, nil)
		http.StripPrefix("/api", printed).ServeHTTP(nil, r)
		if got != want {
			t.Errorf("%s behind a router: %s, want %s", target, got, want)
		}
	}
	// A request that was made in this process was not sent: its URL is all there is.
	made, err := http.NewRequest("POST", "http://example.com/api/a%2Fb?c=d", nil)
	if err != nil {
		t.Fatal(err)
	}
	if printed(nil, made); got != want {
		t.Errorf("made here: %s, want %s", got, want)
	}
	// What cannot be decoded counts as it was sent.
	odd := httptest.NewRequest("POST", "/", nil)
	odd.RequestURI = "/%zz?c=d"
	if printed(nil, odd); got != sumOf("POST", list("", "%zz"), list("c", "d"), list("", "", ""), "raw", "") {
		t.Errorf("an escape that is none: %s", got)
	}
}

func TestFaultsOfFingerprintOptionsAreRefused(t *testing.T) {
	t.Parallel()
	a, b := []string{"$.a"}, []string{"$.b"}
	for _, tc := range []struct {
		options FingerprintOptions
		fault   string
	}{
		{FingerprintOptions{}, ""},
		{FingerprintOptions{JSON: true, Include: a, Exclude: b}, ""},
		{FingerprintOptions{Include: a}, "need JSON"},
		{FingerprintOptions{Exclude: a}, "need JSON"},
		{FingerprintOptions{Include: a, Exclude: b}, "need JSON"},
		{FingerprintOptions{JSON: true, Include: []string{"a"}}, `path "a"`},
		{FingerprintOptions{JSON: true, Exclude: []string{"$.a["}}, `path "$.a["`},
	} {
		switch err := tc.options.validate(); {
		case tc.fault == "" && err != nil:
			t.Errorf("%+v: %v", tc.options, err)
		case tc.fault != "" && (err == nil || !strings.HasPrefix(err.Error(), "fingerprint: ") || !strings.Contains(err.Error(), tc.fault)):
			t.Errorf("%+v: %v, want a fault with %q", tc.options, err, tc.fault)
		}
	}
}

// A record of a version that is not known here is never taken for a repeat.
func TestAnUnknownVersionHasNoFingerprint(t *testing.T) {
	t.Parallel()
	f, err := newFingerprinter(FingerprintOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []int{-1, 0, 2} {
		if fp, ok := f.at(version, httptest.NewRequest("POST", "/", nil), nil); ok || len(fp.Sum) != 0 {
			t.Errorf("version %d: %v %x", version, ok, fp.Sum)
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
