package cloudevents

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"
)

// attributes are those of the event in their string form.
func (e *Event) attributes() map[string]string {
	all := map[string]string{"specversion": "1.0", "id": e.ID, "source": e.Source, "type": e.Type}
	for name, value := range map[string]string{
		"subject": e.Subject, "dataschema": e.DataSchema, "datacontenttype": e.ContentType,
	} {
		if value != "" {
			all[name] = value
		}
	}
	if !e.Time.IsZero() {
		all["time"] = e.Time.Format(time.RFC3339Nano)
	}
	maps.Copy(all, e.Extensions)
	return all
}

// Validate reports everything that keeps the event from being a CloudEvent.
func (e *Event) Validate() error {
	var faults []error
	for name, value := range e.Extensions {
		if slices.Contains([]string{
			"specversion", "id", "source", "type", "subject", "time", "dataschema", "datacontenttype", "data",
		}, name) {
			faults = append(faults, fmt.Errorf("extension %s: it has a field of its own", name))
		}
		if !utf8.ValidString(value) {
			faults = append(faults, fmt.Errorf("extension %s: not UTF-8", name))
		}
	}
	var copied Event
	return errors.Join(append(faults, copied.take(e.attributes())...)...)
}

// WriteBinary adds the attributes to a header; the body is Data as it is. The
// event must be valid.
func (e *Event) WriteBinary(h http.Header) {
	for name, value := range e.attributes() {
		if name == "datacontenttype" {
			h.Set("Content-Type", value)
			continue
		}
		h.Set("Ce-"+name, encodeHeader(value))
	}
}

// encodeHeader encodes what a header cannot carry, and the three characters that
// the HTTP binding names: space, double quote, percent.
func encodeHeader(value string) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, len(value))
	for i := range len(value) {
		c := value[i]
		if c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			out = append(out, '%', digits[c>>4], digits[c&15])
			continue
		}
		out = append(out, c)
	}
	return string(out)
}

// MarshalJSON writes the JSON format. JSON data keeps its value, data of another
// content type is a string if it is text, and base64 if not.
func (e *Event) MarshalJSON() ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	all := e.attributes()
	var b bytes.Buffer
	b.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", name, quote(all[name])) // names are ASCII letters and digits
	}
	switch {
	case e.Data == nil:
	case isJSON(e.ContentType) && json.Valid(e.Data):
		b.WriteString(`,"data":`)
		b.Write(e.Data)
	case !isJSON(e.ContentType) && utf8.Valid(e.Data):
		b.WriteString(`,"data":`)
		b.Write(quote(string(e.Data)))
	default:
		b.WriteString(`,"data_base64":"`)
		b.WriteString(base64.StdEncoding.EncodeToString(e.Data))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// quote writes a JSON string without changing <, > and & as json.Marshal does.
func quote(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string and a buffer never fail
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
