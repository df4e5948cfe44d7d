package cloudevents_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/source/cloudevents"
)

func header(lines ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(lines); i += 2 {
		h.Add(lines[i], lines[i+1])
	}
	return h
}

// one reads a message that holds one sound event.
func one(t *testing.T, h http.Header, body string) *cloudevents.Event {
	t.Helper()
	items, err := cloudevents.Read(h, []byte(body))
	if err != nil || len(items) != 1 || items[0].Err != nil {
		t.Fatalf("%+v, %v", items, err)
	}
	return items[0].Event
}

func TestOneEventInEveryMode(t *testing.T) {
	t.Parallel()
	data := `{"n": 9007199254740993, "x":1e400}`
	want := &cloudevents.Event{
		ID: "a b", Source: "/shop", Type: "order.created", Subject: "o/é", ContentType: "application/json",
		Time:       time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC),
		Extensions: map[string]string{"sequence": "7", "urgent": "true"}, Data: []byte(data),
	}
	binary := one(t, header("Ce-Specversion", "1.0", "ce-id", "a%20b", "ce-source", "/shop", "ce-type", `"order.created"`,
		"ce-subject", "o/%C3%A9", "ce-time", "2026-01-02T03:04:05.0000006Z", "ce-sequence", "7", "ce-urgent", "true",
		"Content-Type", "application/json"), data)
	structured := `{"specversion":"1.0","id":"a b","source":"/shop","type":"order.created","subject":"o/\u00e9","datacontenttype":"application/json",` +
		`"time":"2026-01-02T03:04:05.0000006Z","sequence":7,"urgent":true,"dataschema":null,"data":` + data + `}`
	for what, got := range map[string]*cloudevents.Event{
		"binary":     binary,
		"structured": one(t, header("Content-Type", "application/cloudevents+json; charset=UTF-8"), structured),
		"batched":    one(t, header("Content-Type", "application/cloudevents-batch+json"), "["+structured+"]"),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}

	h := header()
	want.WriteBinary(h)
	if diff := cmp.Diff(want, one(t, h, data)); diff != "" {
		t.Errorf("written and read in binary mode (-want +got):\n%s", diff)
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	again, err := cloudevents.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	again.Data = compact(t, again.Data)
	want.Data = compact(t, want.Data)
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("written and read in structured mode (-want +got):\n%s", diff)
	}
}

func compact(t *testing.T, data []byte) []byte {
	t.Helper()
	out, err := json.Marshal(json.RawMessage(data))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDataOfEveryKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ members, want string }{
		{`"data":{"a":1}`, `{"a":1}`},
		{`"data":"text"`, `"text"`},
		{`"datacontenttype":"application/vnd.x+json","data":"text"`, `"text"`},
		{`"datacontenttype":"text/plain","data":"a\nb"`, "a\nb"},
		{`"datacontenttype":"application/octet-stream","data_base64":"AP8="`, "\x00\xff"},
		{`"data_base64":"e30="`, `{}`},
		{`"data":null`, ``},
		{`"subject":"s"`, ``},
	} {
		e, err := cloudevents.Parse([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t",` + c.members + `}`))
		if err != nil || string(e.Data) != c.want {
			t.Errorf("%s: %q, %v; want %q", c.members, e.Data, err, c.want)
			continue
		}
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := cloudevents.Parse(text)
		if err != nil || string(again.Data) != c.want {
			t.Errorf("%s written and read: %q, %v", c.members, again.Data, err)
		}
	}
}

func TestEveryFaultOfAnEventIsNamed(t *testing.T) {
	t.Parallel()
	const sound = `"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for _, c := range []struct{ text, want string }{
		{`{}`, "specversion: missing"},
		{`{}`, "id: missing"},
		{`{}`, "source: missing"},
		{`{}`, "type: missing"},
		{`{"specversion":"0.3","id":"1","source":"/s","type":"t"}`, `specversion: "0.3"`},
		{`{"specversion":"1.0","id":"","source":"/s","type":"t"}`, "id: missing or empty"},
		{`{"specversion":"1.0","id":7,"source":"%zz","type":"t"}`, "source: no URI reference"},
		{`{` + sound + `,"id":"2"}`, `"id" twice`},
		{`{` + sound + `,"data":1,"data_base64":""}`, "together"},
		{`{` + sound + `,"data_base64":"?"}`, "data_base64"},
		{`{` + sound + `,"datacontenttype":"text/plain","data":{}}`, "must be a string"},
		{`{` + sound + `,"Extension":"x"}`, "lower-case"},
		{`{` + sound + `,"my_ext":"x"}`, "lower-case"},
		{`{` + sound + `,"ext":{}}`, "ext: an attribute is no object"},
		{`{` + sound + `,"ext":1.5}`, "no integer"},
		{`{` + sound + `,"ext":3000000000}`, "no integer"},
		{`{` + sound + `,"subject":""}`, "subject: empty"},
		{`{` + sound + `,"time":"yesterday"}`, "RFC 3339"},
		{`{` + sound + `,"dataschema":"relative"}`, "absolute"},
		{`{` + sound + `,"datacontenttype":"//"}`, "no media type"},
		{`[]`, "where an object is expected"},
		{"{\"id\":\"\xff\"}", "not UTF-8"},
	} {
		_, err := cloudevents.Parse([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
	}
}

func TestBinaryHeadersAreNotGuessed(t *testing.T) {
	t.Parallel()
	sound := []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}
	for _, c := range []struct {
		more []string
		want string
	}{
		{[]string{"ce-id", "2"}, "id: sent 2 times"},
		{[]string{"ce-datacontenttype", "text/plain"}, "no header of the binary mode"},
		{[]string{"ce-subject", "%ff"}, "not UTF-8"},
		{[]string{"ce-bad_name", "x"}, "lower-case"},
	} {
		items, err := cloudevents.Read(header(append(append([]string{}, sound...), c.more...)...), nil)
		if err != nil || len(items) != 1 || items[0].Err == nil || !strings.Contains(items[0].Err.Error(), c.want) {
			t.Errorf("%q: %+v, %v; want %q", c.more, items, err, c.want)
		}
	}
	if e := one(t, header(append(sound, "ce-note", `"a \"b\" 100%25"`)...), ""); e.Extensions["note"] != `a "b" 100%` || e.Data != nil {
		t.Errorf("got %+v", e)
	}
	if _, err := cloudevents.Read(header("Content-Type", "application/json"), nil); err == nil {
		t.Error("no CloudEvent is read as one")
	}
	if _, err := cloudevents.Read(header("Content-Type", "application/cloudevents+json; charset=latin1"), nil); err == nil {
		t.Error("another charset is read")
	}
}

func TestBatchKeepsTheGoodItems(t *testing.T) {
	t.Parallel()
	sound := `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`
	items, err := cloudevents.ParseBatch([]byte(`[` + sound + `,{"id":"1","id":"2"}, 7 ,` + sound + `]`))
	if err != nil || len(items) != 4 {
		t.Fatalf("%+v, %v", items, err)
	}
	for i, want := range []bool{true, false, false, true} {
		if (items[i].Event != nil) != want || (items[i].Err == nil) != want {
			t.Errorf("item %d: %+v", i, items[i])
		}
	}
	if items, err := cloudevents.ParseBatch([]byte(`[]`)); err != nil || len(items) != 0 {
		t.Errorf("an empty batch: %+v, %v", items, err)
	}
	many := "[" + strings.Repeat(`{},`, cloudevents.MaxBatch) + "{}]"
	for _, text := range []string{``, `{}`, `[`, many} {
		if _, err := cloudevents.ParseBatch([]byte(text)); err == nil {
			t.Errorf("%.20q is read as a batch", text)
		}
	}
}

func TestUnsoundEventsAreNotWritten(t *testing.T) {
	t.Parallel()
	for _, e := range []*cloudevents.Event{
		{},
		{ID: "1", Source: "/s", Type: "t", Extensions: map[string]string{"id": "2"}},
		{ID: "1", Source: "/s", Type: "t", Extensions: map[string]string{"Bad": "x"}},
		{ID: "1", Source: "/s", Type: "t", Extensions: map[string]string{"x": "\xff"}},
	} {
		if _, err := e.MarshalJSON(); err == nil {
			t.Errorf("%+v is written", e)
		}
	}
}

// FuzzParse holds that what is read can be written, and is then read alike.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"n":1e400},"x":true}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/plain","data":"\u0000"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := cloudevents.Parse(text)
		if err != nil {
			return
		}
		if e.ID == "" || e.Source == "" || e.Type == "" {
			t.Fatalf("%q gave %+v", text, e)
		}
		written, err := e.MarshalJSON()
		if err != nil {
			t.Fatalf("%q cannot be written: %v", text, err)
		}
		again, err := cloudevents.Parse(written)
		if err != nil {
			t.Fatalf("%q became %q: %v", text, written, err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatalf("%q became %q (-want +got):\n%s", text, written, diff)
		}
		h := http.Header{}
		e.WriteBinary(h)
		items, err := cloudevents.Read(h, e.Data)
		if err != nil || len(items) != 1 {
			t.Fatalf("%q in binary mode: %v", text, err)
		}
	})
}
