// Package cloudevents reads and writes CloudEvents 1.0 over HTTP in the three
// content modes: binary, structured and batched JSON.
//
// It is stricter than the specification leaves room for where two readers could
// see two events: an attribute twice, a member name twice, data beside
// data_base64 and text that is not UTF-8 are faults. It never changes data: what
// a structured event carries as JSON keeps its bytes, so numbers keep every
// digit. In a batch each item stands for itself: one that is faulty does not
// touch the others.
//
// Sources: CloudEvents core specification, JSON event format, HTTP protocol
// binding, all 1.0.2 (github.com/cloudevents/spec).
package cloudevents

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/unavez/unavez/internal/exact"
)

// The media types of the structured and the batched mode.
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
)

// MaxBatch is how many events a batch may hold. Event Grid sends up to 5,000.
const MaxBatch = 10_000

// Event is one CloudEvent. ID, Source and Type are never empty in an event that
// was read.
type Event struct {
	ID      string // unique within Source
	Source  string // a URI reference; with ID it is the identity
	Type    string // what happened
	Subject string // what it happened to, within Source; "" if absent

	Time       time.Time // zero if absent
	DataSchema string    // an absolute URI; "" if absent

	// ContentType is that of Data, "" if the event does not say. A structured
	// event that does not say carries JSON.
	ContentType string

	// Extensions are further attributes in their string form: true, false and
	// integers of the JSON format stand here as their text.
	Extensions map[string]string

	// Data is the payload byte for byte, nil if there is none.
	Data []byte
}

// Item is one event of a request, or what was wrong with it.
type Item struct {
	Event *Event // nil if Err is set
	Err   error  // every fault of the item
	Raw   []byte // the bytes of the item; of a binary event its data
}

// Mode is how events stand in an HTTP message.
type Mode int

// The content modes of the HTTP binding.
const (
	None Mode = iota // no CloudEvent
	Binary
	Structured
	Batched
)

// ModeOf tells the mode of a message from its headers.
func ModeOf(h http.Header) Mode {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case err == nil && media == MediaType:
		return Structured
	case err == nil && media == BatchMediaType:
		return Batched
	case len(h.Values("Ce-Specversion")) > 0:
		return Binary
	}
	return None
}

// Read takes the events out of an HTTP message. The error is for a message that
// is no CloudEvent, or a batch that is no list; what is wrong with one event
// stands in its item.
func Read(h http.Header, body []byte) ([]Item, error) {
	switch ModeOf(h) {
	case Binary:
		e, err := readBinary(h, body)
		return []Item{{Event: e, Err: err, Raw: body}}, nil
	case Structured:
		if err := charset(h); err != nil {
			return nil, err
		}
		e, err := Parse(body)
		return []Item{{Event: e, Err: err, Raw: body}}, nil
	case Batched:
		if err := charset(h); err != nil {
			return nil, err
		}
		return ParseBatch(body)
	}
	return nil, fmt.Errorf("no CloudEvent: neither the content type %s or %s nor a ce-specversion header", MediaType, BatchMediaType)
}

// charset refuses what is not UTF-8, the one encoding that the JSON format has.
func charset(h http.Header) error {
	_, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("content type: %w", err)
	}
	if set := params["charset"]; set != "" && !strings.EqualFold(set, "utf-8") {
		return fmt.Errorf("content type: charset %q, where UTF-8 is expected", set)
	}
	return nil
}

// ParseBatch reads the JSON batch format. A batch of none is a batch.
func ParseBatch(text []byte) ([]Item, error) {
	// One item with a name twice must not spoil its neighbours, so the whole is
	// only checked for being JSON, and each item for the rest.
	if !json.Valid(text) {
		return nil, errors.New("batch: not JSON")
	}
	elements, err := exact.Elements(text)
	if err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	if len(elements) > MaxBatch {
		return nil, fmt.Errorf("batch: %d events, more than %d", len(elements), MaxBatch)
	}
	items := make([]Item, len(elements))
	for i, raw := range elements {
		e, err := Parse(raw)
		items[i] = Item{Event: e, Err: err, Raw: raw}
	}
	return items, nil
}

// Parse reads one event in the JSON format.
func Parse(text []byte) (*Event, error) {
	if err := exact.Check(text); err != nil {
		return nil, err
	}
	members, err := exact.Members(text)
	if err != nil {
		return nil, err
	}
	var (
		e           Event
		attributes  = map[string]string{}
		data, coded []byte
		faults      []error
	)
	for _, m := range members {
		if string(m.Value) == "null" {
			continue // as if absent
		}
		switch m.Name {
		case "data":
			data = m.Value
		case "data_base64":
			coded = m.Value
		default:
			value, err := attribute(m.Value)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", m.Name, err))
				continue
			}
			attributes[m.Name] = value
		}
	}
	faults = append(faults, e.take(attributes)...)
	switch {
	case data != nil && coded != nil:
		faults = append(faults, errors.New("data and data_base64 together"))
	case coded != nil:
		s, ok := exact.Text(coded)
		raw, err := base64.StdEncoding.DecodeString(s)
		if !ok || err != nil {
			faults = append(faults, errors.New("data_base64: no base64"))
		}
		e.Data = raw
	case data != nil && !isJSON(e.ContentType):
		s, ok := exact.Text(data)
		if !ok {
			faults = append(faults, fmt.Errorf("data: of the content type %s it must be a string", e.ContentType))
		}
		e.Data = []byte(s)
	default:
		e.Data = data
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &e, nil
}

// attribute is the string form of a value of the JSON format.
func attribute(value []byte) (string, error) {
	switch value[0] {
	case '"':
		s, _ := exact.Text(value)
		return s, nil
	case 't', 'f':
		return string(value), nil
	case '{', '[':
		return "", errors.New("an attribute is no object and no array")
	}
	n, err := strconv.ParseInt(string(value), 10, 32)
	if err != nil {
		return "", errors.New("a number that is no integer of 32 bits")
	}
	return strconv.FormatInt(n, 10), nil
}

// readBinary reads the attributes from headers and the data from the body.
func readBinary(h http.Header, body []byte) (*Event, error) {
	var (
		e          Event
		attributes = map[string]string{}
		faults     []error
	)
	for name, lines := range h {
		attr, ok := strings.CutPrefix(strings.ToLower(name), "ce-")
		if !ok {
			continue
		}
		if len(lines) != 1 {
			faults = append(faults, fmt.Errorf("%s: sent %d times", attr, len(lines)))
			continue
		}
		if attr == "datacontenttype" || attr == "data" || attr == "data_base64" {
			faults = append(faults, fmt.Errorf("ce-%s: no header of the binary mode", attr))
			continue
		}
		value, err := headerValue(lines[0])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", attr, err))
			continue
		}
		attributes[attr] = value
	}
	if types := h.Values("Content-Type"); len(types) > 0 {
		attributes["datacontenttype"] = strings.TrimSpace(types[0])
	}
	faults = append(faults, e.take(attributes)...)
	if len(body) > 0 {
		e.Data = body
	}
	if len(faults) > 0 {
		slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(faults...)
	}
	return &e, nil
}

// headerValue decodes a header of the binary mode: percent-encoded UTF-8, and
// before that, from older senders, a quoted string.
func headerValue(line string) (string, error) {
	value := strings.TrimSpace(line)
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		var b strings.Builder
		inner := value[1 : len(value)-1]
		for i := 0; i < len(inner); i++ {
			if inner[i] == '\\' && i+1 < len(inner) {
				i++
			}
			b.WriteByte(inner[i])
		}
		value = b.String()
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] == '%' && i+2 < len(value) {
			if n, err := strconv.ParseUint(value[i+1:i+3], 16, 8); err == nil {
				out = append(out, byte(n))
				i += 2
				continue
			}
		}
		out = append(out, value[i])
	}
	if !utf8.Valid(out) {
		return "", errors.New("not UTF-8")
	}
	return string(out), nil
}

// take sorts the attributes into the event and reports every fault.
func (e *Event) take(attributes map[string]string) (faults []error) {
	fault := func(name, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		switch name {
		case "specversion":
			if value != "1.0" {
				fault(name, "%q, where 1.0 is expected", short(value))
			}
		case "id":
			e.ID = value
		case "source":
			e.Source = value
			if _, err := url.Parse(value); err != nil {
				fault(name, "no URI reference")
			}
		case "type":
			e.Type = value
		case "subject":
			if e.Subject = value; value == "" {
				fault(name, "empty; leave it out instead")
			}
		case "time":
			t, err := time.Parse(time.RFC3339Nano, value)
			if err != nil {
				fault(name, "%q is no instant of RFC 3339", short(value))
			}
			e.Time = t
		case "dataschema":
			if u, err := url.Parse(value); err != nil || !u.IsAbs() {
				fault(name, "no absolute URI")
			}
			e.DataSchema = value
		case "datacontenttype":
			if _, _, err := mime.ParseMediaType(value); err != nil {
				fault(name, "%q is no media type", short(value))
			}
			e.ContentType = value
		default:
			if !isName(name) {
				fault(strconv.Quote(short(name)), "an attribute's name is of lower-case letters and digits")
				continue
			}
			if e.Extensions == nil {
				e.Extensions = map[string]string{}
			}
			e.Extensions[name] = value
		}
	}
	if _, ok := attributes["specversion"]; !ok {
		fault("specversion", "missing")
	}
	for _, must := range []struct{ name, value string }{{"id", e.ID}, {"source", e.Source}, {"type", e.Type}} {
		if must.value == "" {
			fault(must.name, "missing or empty")
		}
	}
	return faults
}

func isName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// isJSON says whether data of this content type is JSON; none at all is.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return contentType == "" || err == nil &&
		(strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json"))
}

func short(text string) string { return text[:min(len(text), 64)] }
