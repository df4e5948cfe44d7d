package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	sdk "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	sdkhttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/source/cloudevents"
)

// pair is one event as each side has it.
type pair struct {
	ours   *cloudevents.Event
	theirs sdk.Event
}

// The letters of random texts. The SDK neither writes nor reads the percent
// encoding that the HTTP binding demands of headers since 1.0: in binary mode
// only what needs no encoding is compared, and cloudevents' own tests hold the
// rest.
const (
	plain = `abcXYZ019-_/.\+`
	every = plain + ` "%é漢`
)

func random(t *testing.T, r *rand.Rand, alphabet string) pair {
	t.Helper()
	letters := []rune(alphabet)
	text := func() string {
		out := make([]rune, 1+r.IntN(12))
		for i := range out {
			out[i] = letters[r.IntN(len(letters))]
		}
		// Outer spaces do not survive a header in either codec.
		out[0], out[len(out)-1] = 'a', 'z'
		return string(out)
	}
	e := &cloudevents.Event{ID: text(), Source: fmt.Sprintf("/shop/%d", r.IntN(1000)), Type: text()}
	s := sdk.NewEvent()
	s.SetID(e.ID)
	s.SetSource(e.Source)
	s.SetType(e.Type)
	if r.IntN(2) == 0 {
		e.Subject = text()
		s.SetSubject(e.Subject)
	}
	if r.IntN(2) == 0 {
		e.Time = time.Unix(r.Int64N(2e9), r.Int64N(1e9)).UTC()
		s.SetTime(e.Time)
	}
	if r.IntN(3) == 0 {
		e.DataSchema = "https://shop.example/schema"
		s.SetDataSchema(e.DataSchema)
	}
	if r.IntN(2) == 0 {
		e.Extensions = map[string]string{"sequence": text()}
		s.SetExtension("sequence", e.Extensions["sequence"])
	}
	var data []byte
	switch r.IntN(4) {
	case 0:
		e.ContentType = "application/json"
		data = []byte(fmt.Sprintf(`{"n":%d,"s":"x"}`, r.Uint64()))
	case 1:
		e.ContentType = "text/plain"
		data = []byte(text())
	case 2:
		e.ContentType = "application/octet-stream"
		data = []byte{0, 0xff, byte(r.IntN(256))}
	}
	if data != nil {
		e.Data = data
		if err := s.SetData(e.ContentType, data); err != nil {
			t.Fatal(err)
		}
	}
	return pair{e, s}
}

// fromTheirs is an event of the SDK in our form.
func fromTheirs(e *sdk.Event) *cloudevents.Event {
	out := &cloudevents.Event{
		ID: e.ID(), Source: e.Source(), Type: e.Type(), Subject: e.Subject(), DataSchema: e.DataSchema(),
		ContentType: e.DataContentType(), Time: e.Time(),
	}
	for name, value := range e.Extensions() {
		if out.Extensions == nil {
			out.Extensions = map[string]string{}
		}
		out.Extensions[name] = fmt.Sprint(value)
	}
	if len(e.Data()) > 0 {
		out.Data = e.Data()
	}
	return out
}

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func alphabet(mode string) string {
	if mode == "binary" {
		return plain
	}
	return every
}

func TestWhatTheSDKWritesIsRead(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 2000 {
		for _, mode := range []string{"binary", "structured"} {
			p := random(t, r, alphabet(mode))
			request := httptest.NewRequest(http.MethodPost, "/in", nil)
			ctx := t.Context()
			if mode == "structured" {
				ctx = binding.WithForceStructured(ctx)
			} else {
				ctx = binding.WithForceBinary(ctx)
			}
			if err := sdkhttp.WriteRequest(ctx, binding.ToMessage(&p.theirs), request); err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(request.Body)
			if err != nil {
				t.Fatal(err)
			}
			items, err := cloudevents.Read(request.Header, body)
			if err != nil || len(items) != 1 || items[0].Err != nil {
				t.Fatalf("%s: %+v, %v", mode, items, err)
			}
			if diff := cmp.Diff(p.ours, items[0].Event); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", mode, diff)
			}
		}
	}
}

func TestWhatIsWrittenTheSDKReads(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 2000 {
		for _, mode := range []string{"binary", "structured"} {
			p := random(t, r, alphabet(mode))
			request := &http.Request{Header: http.Header{}}
			if mode == "binary" {
				p.ours.WriteBinary(request.Header)
				request.Body = io.NopCloser(bytes.NewReader(p.ours.Data))
			} else {
				text, err := json.Marshal(p.ours)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Content-Type", cloudevents.MediaType)
				request.Body = io.NopCloser(bytes.NewReader(text))
			}
			got, err := sdk.NewEventFromHTTPRequest(request)
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			if diff := cmp.Diff(p.ours, fromTheirs(got)); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", mode, diff)
			}
		}
	}
}

func TestBatchesAreReadAlike(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 200 {
		var theirs []sdk.Event
		var ours []*cloudevents.Event
		for range 1 + r.IntN(20) { // of none the SDK writes null
			p := random(t, r, every)
			theirs, ours = append(theirs, p.theirs), append(ours, p.ours)
		}
		request, err := sdk.NewHTTPRequestFromEvents(t.Context(), "http://shop.example/in", theirs)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			t.Fatal(err)
		}
		items, err := cloudevents.Read(request.Header, body)
		if err != nil || len(items) != len(ours) {
			t.Fatalf("%d items of %d, %v", len(items), len(ours), err)
		}
		for i, item := range items {
			if diff := cmp.Diff(ours[i], item.Event); diff != "" || item.Err != nil {
				t.Fatalf("item %d: %v (-want +got):\n%s", i, item.Err, diff)
			}
		}
	}
}
