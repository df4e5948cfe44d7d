package httpkey

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/unavez/unavez"
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
	sel  *selection
}

func newFingerprinter(o FingerprintOptions) (*fingerprinter, error) {
	if !o.JSON && len(o.Include)+len(o.Exclude) > 0 {
		return nil, errors.New("include and exclude need JSON")
	}
	sel, err := newSelection(o.Include, o.Exclude)
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
	return unavez.Fingerprint{Version: FingerprintVersion, Sum: f.sum(r, body)}, true
}

// sum is version 1; doc.go has it to the byte.
func (f *fingerprinter) sum(r *http.Request, body []byte) []byte {
	path, query := target(r)
	kind, content, media := f.content(r.Header, body)
	h := sha256.New()
	writePart(h, []byte("http"))
	writePart(h, []byte(r.Method))
	writePart(h, pathForm(path))
	writePart(h, queryForm(query))
	writePart(h, media)
	writePart(h, []byte(kind))
	writePart(h, content)
	return h.Sum(nil)
}

// target is path and query as the client sent them, whatever a router or
// http.StripPrefix has made of the URL since.
func target(r *http.Request) (path, query string) {
	if r.RequestURI != "" {
		if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
			return u.EscapedPath(), u.RawQuery
		}
	}
	return r.URL.EscapedPath(), r.URL.RawQuery
}

// pathForm is the list of the path's segments, each percent-decoded.
func pathForm(escaped string) (out []byte) {
	for segment := range strings.SplitSeq(escaped, "/") {
		if plain, err := url.PathUnescape(segment); err == nil {
			segment = plain
		}
		out = appendPart(out, []byte(segment))
	}
	return out
}

// queryForm is the list of names and values, decoded, sorted by name; the
// values of one name stay in their order.
func queryForm(raw string) (out []byte) {
	type pair struct{ name, value string }
	var pairs []pair
	for field := range strings.SplitSeq(raw, "&") {
		if field == "" {
			continue
		}
		name, value, _ := strings.Cut(field, "=")
		for _, s := range []*string{&name, &value} {
			if plain, err := url.QueryUnescape(*s); err == nil {
				*s = plain
			}
		}
		pairs = append(pairs, pair{name, value})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(a.name, b.name) })
	for _, p := range pairs {
		out = appendPart(appendPart(out, []byte(p.name)), []byte(p.value))
	}
	return out
}

// content gives the kind of the body's form, the form, and that of its type.
func (f *fingerprinter) content(header http.Header, body []byte) (kind string, content, media []byte) {
	lines := header.Values("Content-Type")
	raw := strings.Join(lines, ", ")
	name, params, err := mime.ParseMediaType(raw)
	if err != nil || len(lines) != 1 {
		return "raw", body, mediaForm("", map[string]string{"": raw})
	}
	coded := header.Get("Content-Encoding")
	if coded == "" || strings.EqualFold(coded, "identity") {
		switch {
		case f.json && isJSON(name):
			if text, ok := canonicalJSON(body, f.sel); ok {
				return "json", text, mediaForm(name, params)
			}
		case name == "multipart/form-data" && params["boundary"] != "":
			if form, ok := formForm(body, params["boundary"]); ok {
				delete(params, "boundary")
				return "form", form, mediaForm(name, params)
			}
		}
	}
	return "raw", body, mediaForm(name, params)
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// mediaForm is the list of type, then parameter names and values sorted by
// name. The charset's case does not count.
func mediaForm(name string, params map[string]string) []byte {
	out := appendPart(nil, []byte(name))
	names := make([]string, 0, len(params))
	for p := range params {
		names = append(names, p)
	}
	slices.Sort(names)
	for _, p := range names {
		value := params[p]
		if p == "charset" {
			value = strings.ToLower(value)
		}
		out = appendPart(appendPart(out, []byte(p)), []byte(value))
	}
	return out
}

// formForm is the list of the form's parts in order, each a list of its header
// lines (sorted by lower-case name; Content-Type and Content-Disposition as
// mediaForm where they can be read) and its bytes.
func formForm(body []byte, boundary string) (out []byte, ok bool) {
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return out, true
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
	slices.Sort(names)
	for _, name := range names {
		for _, value := range header[name] {
			form := []byte(value)
			if name == "Content-Disposition" || name == "Content-Type" {
				if media, params, err := mime.ParseMediaType(value); err == nil {
					form = mediaForm(media, params)
				}
			}
			out = appendPart(appendPart(out, []byte(strings.ToLower(name))), form)
		}
	}
	return out
}

// appendPart appends one part of a list: uint32 big-endian length, bytes.
func appendPart(out, part []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
	return append(out, part...)
}

// writePart writes one part of a hashed list. A hash never fails to be written to.
func writePart(h hash.Hash, part []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(part)))
	h.Write(n[:])
	h.Write(part)
}

// validate names what is wrong with the options, for New.
func (o FingerprintOptions) validate() error {
	if _, err := newFingerprinter(o); err != nil {
		return fmt.Errorf("fingerprint: %w", err)
	}
	return nil
}
