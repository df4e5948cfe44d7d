package httpkey

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/exact"
)

// FingerprintVersion is the algorithm that new records carry. A record is
// compared by the algorithm that made its fingerprint.
const FingerprintVersion = 1

// FingerprintOptions say which differences between two requests with one key
// make the second a mismatch. The zero value compares the body byte for byte.
type FingerprintOptions struct {
	// JSON compares bodies of type application/json and +json by value: order
	// of members, white space, escapes and the spelling of numbers do not count.
	JSON bool
	// Include, when not empty, lists the only values that count, as paths such
	// as $.order or $.items[*].sku. With none of them present, any two JSON
	// bodies are equal. Needs JSON.
	Include []string
	// Exclude lists values that do not count, such as $.meta.sentAt. Needs JSON.
	Exclude []string
}

// maxFormParts bounds the parts of a form that is compared part by part.
const maxFormParts = 1000

// fingerprinter computes fingerprints by one set of options.
type fingerprinter struct {
	json bool
	sel  *exact.Selection
}

func newFingerprinter(o FingerprintOptions) (*fingerprinter, error) {
	if !o.JSON && len(o.Include)+len(o.Exclude) > 0 {
		return nil, errors.New("include and exclude need JSON")
	}
	sel, err := exact.NewSelection(o.Include, o.Exclude)
	if err != nil {
		return nil, err
	}
	return &fingerprinter{json: o.JSON, sel: sel}, nil
}

// at gives the fingerprint by one version of the algorithm.
func (f *fingerprinter) at(version int, r *http.Request, body []byte) (unavez.Fingerprint, bool) {
	if version != FingerprintVersion {
		return unavez.Fingerprint{}, false
	}
	return unavez.Fingerprint{Version: FingerprintVersion, Sum: f.sum(nil, r, body)}, true
}

// maxSmall is up to which size a body is copied rather than hashed in pieces.
const maxSmall = 4 << 10

// sum appends version 1; doc.go has it to the byte.
func (f *fingerprinter) sum(out []byte, r *http.Request, body []byte) []byte {
	path, query := target(r)
	kind, content, media := f.content(r.Header, body)
	var short [768]byte // enough for most requests, without the heap
	b := appendPart(short[:0], "http")
	b = appendPart(b, r.Method)
	b = appendList(b, func(b []byte) []byte { return appendPath(b, path) })
	b = appendList(b, func(b []byte) []byte { return appendQuery(b, query) })
	b = appendList(b, func(b []byte) []byte { return appendMedia(b, media) })
	b = appendPart(b, kind)
	if len(content) <= maxSmall {
		sum := sha256.Sum256(appendPart(b, content))
		return append(out, sum[:]...)
	}
	h := sha256.New() // a hash never fails to be written to
	h.Write(slices.Clone(binary.BigEndian.AppendUint32(b, uint32(len(content)))))
	h.Write(content)
	return h.Sum(out)
}

// target is path and query as the client sent them, whatever a router or
// http.StripPrefix has made of the URL since.
func target(r *http.Request) (path, query string) {
	if strings.HasPrefix(r.RequestURI, "/") {
		path, query, _ = strings.Cut(r.RequestURI, "?")
		return path, query
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return cmp.Or(u.RawPath, u.EscapedPath()), u.RawQuery // RawPath is there where escaping anew would differ
	}
	return r.URL.EscapedPath(), r.URL.RawQuery
}

// appendPath appends the path's segments, each percent-decoded.
func appendPath(out []byte, escaped string) []byte {
	for segment := range strings.SplitSeq(escaped, "/") {
		if plain, err := url.PathUnescape(segment); err == nil {
			segment = plain
		}
		out = appendPart(out, segment)
	}
	return out
}

// appendQuery appends names and values, decoded, sorted by name; the values of
// one name stay in their order. A query that cannot be decoded is one part.
func appendQuery(out []byte, raw string) []byte {
	type pair struct{ name, value string }
	var pairs []pair
	for field := range strings.SplitSeq(raw, "&") {
		if field == "" {
			continue
		}
		name, value, _ := strings.Cut(field, "=")
		for _, s := range []*string{&name, &value} {
			plain, err := url.QueryUnescape(*s)
			if err != nil {
				return appendPart(out, raw)
			}
			*s = plain
		}
		pairs = append(pairs, pair{name, value})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(a.name, b.name) })
	for _, p := range pairs {
		out = appendPart(appendPart(out, p.name), p.value)
	}
	return out
}

// media is the type of a body.
type media struct {
	name   string
	params map[string]string
}

// content gives the kind of the body's form, the form, and the body's type.
func (f *fingerprinter) content(header http.Header, body []byte) (kind string, content []byte, is media) {
	name, params, err := mediaType(header["Content-Type"])
	if err != nil {
		return "raw", body, media{params: map[string]string{"": strings.Join(header["Content-Type"], ", ")}}
	}
	if coding := strings.Join(header["Content-Encoding"], ", "); coding == "" || strings.EqualFold(coding, "identity") {
		switch {
		case f.json && isJSON(name):
			if text, ok := exact.Canonical(body, f.sel); ok {
				return "json", text, media{name, params}
			}
		case name == "multipart/form-data":
			if form, ok := formForm(body, params["boundary"]); ok {
				delete(params, "boundary")
				return "form", form, media{name, params}
			}
		}
	}
	return "raw", body, media{name, params}
}

// mediaType reads the one line that there should be.
func mediaType(lines []string) (name string, params map[string]string, err error) {
	switch {
	case len(lines) != 1:
		return "", nil, fmt.Errorf("%d lines", len(lines))
	case lines[0] == "application/json": // what most send needs no parsing
		return lines[0], nil, nil
	}
	return mime.ParseMediaType(lines[0])
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// appendMedia appends type, then parameter names and values sorted by name. The
// charset's case does not count.
func appendMedia(out []byte, m media) []byte {
	out = appendPart(out, m.name)
	names := make([]string, 0, len(m.params))
	for p := range m.params {
		names = append(names, p)
	}
	slices.Sort(names)
	for _, p := range names {
		value := m.params[p]
		if p == "charset" {
			value = strings.ToLower(value)
		}
		out = appendPart(appendPart(out, p), value)
	}
	return out
}

// formForm is the list of the form's parts in order, each a list of its header
// lines (sorted by lower-case name; Content-Type and Content-Disposition as
// appendMedia where they can be read) and its bytes.
func formForm(body []byte, boundary string) (out []byte, ok bool) {
	// What stands before the first part or behind the last one is in no part: such
	// a body is compared by its bytes. So the last line ends the form, and of the
	// others that begin like it each begins a part, the first one with the body.
	line := "\n--" + boundary
	if !bytes.HasSuffix(bytes.TrimSuffix(body, []byte("\r\n")), []byte(line+"--")) {
		return nil, false
	}
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return out, bytes.Count(body, []byte(line)) == n
		}
		if err != nil || n == maxFormParts {
			return nil, false
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, false
		}
		out = appendPart(appendPart(out, partHeader(part.Header)), content)
	}
}

func partHeader(header textproto.MIMEHeader) (out []byte) {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	for _, name := range names {
		for _, value := range header[name] {
			form := []byte(value)
			// An extended parameter (RFC 2231) would hide its plain twin.
			if (name == "Content-Disposition" || name == "Content-Type") && !strings.Contains(value, "*") {
				if name, params, err := mime.ParseMediaType(value); err == nil {
					form = appendMedia(nil, media{name, params})
				}
			}
			out = appendPart(appendPart(out, strings.ToLower(name)), form)
		}
	}
	return out
}

// appendPart appends one part of a list: uint32 big-endian length, bytes.
func appendPart[T string | []byte](out []byte, part T) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
	return append(out, part...)
}

// appendList appends as one part what fill appends.
func appendList(out []byte, fill func([]byte) []byte) []byte {
	at := len(out)
	out = fill(append(out, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	return out
}

// validate names what is wrong with the options, for New.
func (o FingerprintOptions) validate() error {
	if _, err := newFingerprinter(o); err != nil {
		return fmt.Errorf("fingerprint: %w", err)
	}
	return nil
}
