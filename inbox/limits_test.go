package inbox

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// packed is a body in gzip.
func packed(t testing.TB, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestABodyOverTheLimitIsRefusedHoweverItIsSent(t *testing.T) {
	t.Parallel()
	hub, eg := gitHub("hub"), grid(t, "grid")
	hub.BodyLimit, eg.BodyLimit = 1000, 1000
	b := between(t, nil, []Source{hub, eg})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.Handler(strings.TrimPrefix(r.URL.Path, "/")).ServeHTTP(w, r)
	}))
	defer srv.Close()
	send := func(path string, body []byte, chunked bool, header ...string) *http.Response {
		t.Helper()
		var from io.Reader = bytes.NewReader(body)
		if chunked {
			from = io.MultiReader(from) // of a length that the client does not know
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, from)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		response, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response
	}
	for _, chunked := range []bool{false, true} {
		over := bytes.Repeat([]byte("x"), 1001)
		for n := range 2 {
			id := fmt.Sprint(chunked, n)
			if got := send("/hub", over[n:], chunked, signed(gitHubSecret, id, "push", over[n:])...); got.StatusCode != []int{413, 200}[n] {
				t.Errorf("%d bytes, chunked %v: %d", len(over)-n, chunked, got.StatusCode)
			}
		}
		got := send("/grid?code=canary-code", over, chunked)
		if got.StatusCode != 503 || got.Header.Get("Retry-After") == "" {
			t.Errorf("event grid, chunked %v: %d", chunked, got.StatusCode)
		}
	}
	if n := len(b.entries()); n != 2 || b.count("rejected", "too_large") != 4 {
		t.Errorf("%d entries, %d refusals", n, b.count("rejected", "too_large"))
	}
}

func TestAPackedBodyIsVerifiedAsItCameAndKeptUnpacked(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	plain := []byte(`{"a":9007199254740993,"text":"` + strings.Repeat("long ", 1000) + `"}`)
	wire := packed(t, plain)
	b.answers(b.post("hub", wire, append(signed(gitHubSecret, "1", "push", wire), "Content-Encoding", "gzip")...), 200)
	b.answers(b.post("hub", wire, append(signed(gitHubSecret, "2", "push", plain), "Content-Encoding", "gzip")...), 401)
	if got := b.entries(); len(got) != 1 || !bytes.Equal(got[0].Payload, plain) {
		t.Fatalf("%d entries", len(got))
	}
	// What cannot be unpacked is kept: it would come in the same way again.
	for i, coding := range []string{"br", "gzip, gzip", "gzip"} {
		body := []byte("not packed at all")
		b.answers(b.post("hub", body, append(signed(gitHubSecret, fmt.Sprint("3", i), "push", body), "Content-Encoding", coding)...), 200)
	}
	if got := b.quarantined(); len(got) != 2 || len(b.entries()) != 1 {
		t.Errorf("quarantine %+v", got) // two reasons, one body
	}
	b.answers(b.post("hub", plain, append(signed(gitHubSecret, "4", "push", plain), "Content-Encoding", "identity")...), 200)
}

// TestABombIsStopped posts one megabyte that unpacks to one gigabyte.
// bomb is 1 GiB of zeros in gzip (RFC 1952): what they are packed to repeats itself.
func bomb(t testing.TB) []byte {
	t.Helper()
	zeros := make([]byte, 8<<20)
	var part bytes.Buffer
	z, err := flate.NewWriter(&part, flate.BestCompression)
	if err == nil {
		_, err = z.Write(zeros)
	}
	if err == nil {
		err = z.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	const parts = 128
	var sum uint32
	for range parts {
		sum = crc32.Update(sum, crc32.IEEETable, zeros)
	}
	body := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	body = append(body, bytes.Repeat(part.Bytes(), parts)...)
	body = append(body, 1, 0, 0, 0xff, 0xff) // the last block, an empty one
	body = binary.LittleEndian.AppendUint32(body, sum)
	return binary.LittleEndian.AppendUint32(body, parts*uint32(len(zeros)))
}

func TestABombIsStopped(t *testing.T) {
	eg := grid(t, "grid")
	hub := gitHub("hub")
	hub.BodyLimit, hub.PlainLimit = 4<<20, 16<<20
	eg.BodyLimit, eg.PlainLimit = 4<<20, 16<<20
	b := between(t, nil, []Source{hub, eg})
	body := bomb(t)
	sums := signed(gitHubSecret, "1", "push", body)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.answers(b.post("hub", body, append(sums, "Content-Encoding", "gzip")...), 413)
	runtime.ReadMemStats(&after)
	// What was allocated, live or not, is more than the memory ever grew by.
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 2*uint64(hub.PlainLimit)+8<<20 {
		t.Errorf("%d MiB were allocated for a limit of %d MiB", grew>>20, hub.PlainLimit>>20)
	}
	b.answers(b.grid("grid", body, "Content-Encoding", "gzip"), 503)
	if len(b.entries())+len(b.quarantined()) != 0 || b.count("rejected", "too_large") != 2 {
		t.Error("something of it was kept")
	}
	// Small, and packed more tightly than a text can be.
	tight := packed(t, make([]byte, 2<<20))
	b.answers(b.post("hub", tight, append(signed(gitHubSecret, "2", "push", tight), "Content-Encoding", "gzip")...), 413)
	// Unauthentic ones are not unpacked at all.
	b.answers(b.post("hub", body, append(signed("another", "1", "push", body), "Content-Encoding", "gzip")...), 401)
}

func TestABodyThatIsCutOffIsNoDelivery(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.MultiReader(strings.NewReader(`{"a":`), broken{}))
	out := httptest.NewRecorder()
	b.Handler("hub").ServeHTTP(out, in)
	if out.Code != 503 || b.count("rejected", "cut_off") != 1 || len(b.quarantined()) != 0 {
		t.Errorf("%d, %+v", out.Code, b.sights)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestOnlyPOSTIsADelivery(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub"), grid(t, "grid")})
	for _, name := range []string{"hub", "grid"} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			got := b.send(name, method, "/?code=canary-code", nil)
			b.answers(got, 405)
			if got.Header.Get("Allow") != "POST" {
				t.Errorf("%s %s: allow %q", method, name, got.Header.Get("Allow"))
			}
		}
	}
	b.answers(b.send("nobody", "POST", "/", nil), 404)
}

// vectorSource is a source for the scheme of a vector.
func vectorSource(t testing.TB, scheme string) *source.Contract {
	t.Helper()
	described := func(s source.Signing) *source.Contract {
		c, err := source.Described{Signing: &s, Type: "'any'"}.Contract()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	switch scheme {
	case "github-hmac-sha256":
		return source.GitHub()
	case "stripe":
		return source.Stripe()
	case "shopify":
		return source.Shopify()
	case "nuvemshop":
		return source.Nuvemshop()
	case "standard-webhooks":
		return source.StandardWebhooks("")
	case "svix":
		return source.StandardWebhooks("svix")
	case "slack":
		return described(source.Signing{Header: "X-Slack-Signature", Prefix: "v0=", Timestamp: "X-Slack-Request-Timestamp", Signed: "v0:{timestamp}:{body}"})
	case "woocommerce":
		return described(source.Signing{Header: "X-WC-Webhook-Signature", Encoding: "base64"})
	}
	return nil
}

func TestEveryVectorIsTakenOrRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../source/testdata/signatures.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		ID, Scheme, Body, Expect string
		Secret                   json.RawMessage
		Now                      int64
		Headers                  map[string]string
		Valid                    bool
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	tried := map[bool]int{}
	for _, v := range vectors {
		c := vectorSource(t, v.Scheme)
		if c == nil {
			continue
		}
		tried[v.Valid]++
		t.Run(v.ID, func(t *testing.T) {
			t.Parallel()
			s := Source{Name: "v", Contract: c, Types: []string{"*"}, Fetch: func(context.Context, *Event, string) (int, string, []byte, error) { return 0, "", nil, nil }}
			var several []string
			if json.Unmarshal(v.Secret, &several) != nil {
				var one *string
				if err := json.Unmarshal(v.Secret, &one); err != nil {
					t.Fatal(err)
				}
				if one != nil {
					several = []string{*one}
				}
			}
			// As a reload hands them over: what they are worth shows at the delivery.
			s.ConfigFunc = func() (config source.Config) {
				for i, secret := range several {
					config.Secrets = append(config.Secrets, source.NewSecret(fmt.Sprint("secret", i), secret))
				}
				return config
			}
			b := between(t, nil, []Source{s}, want{name: "e", key: func(*Event) ([]string, error) { return []string{"k"}, nil }})
			in := &source.Request{Method: "POST", URL: &url.URL{Path: "/"}, Header: http.Header{}, Body: []byte(v.Body), At: time.Unix(1_700_000_000, 0)}
			if v.Now != 0 {
				in.At = time.Unix(v.Now, 0)
			}
			for name, value := range v.Headers {
				in.Header.Set(name, value)
			}
			receipt, err := b.Receive(t.Context(), "v", in)
			kept := len(b.entries()) + len(b.quarantined())
			if v.Valid {
				if err != nil || kept == 0 || receipt.New+receipt.Quarantined != kept {
					t.Errorf("%+v, %v, %d kept", receipt, err, kept)
				}
				return
			}
			if err == nil || kept != 0 || b.count("rejected", v.Expect) != 1 {
				t.Errorf("%v, %d kept, want %s", err, kept, v.Expect)
			}
		})
	}
	if tried[true] < 10 || tried[false] < 30 {
		t.Errorf("tried only %v", tried)
	}
}

// TestTheClockIsHeldToOnBothSides: a worker whose clock is ten minutes off
// refuses what it cannot judge, and the sender comes again.
func TestTheClockIsHeldToOnBothSides(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{{
		Name: "pay", Contract: source.Stripe(), Types: []string{"*"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("s", "whsec_x")}},
	}})
	sent := time.Unix(1_800_000_000, 0)
	for i, tc := range []struct {
		off  time.Duration
		want bool
	}{{-301 * time.Second, false}, {-299 * time.Second, true}, {299 * time.Second, true}, {301 * time.Second, false}, {-10 * time.Minute, false}, {10 * time.Minute, false}} {
		body := fmt.Sprintf(`{"id":"evt_%d","type":"charge.succeeded"}`, i)
		mac := hmac.New(sha256.New, []byte("whsec_x"))
		fmt.Fprintf(mac, "%d.%s", sent.Unix(), body)
		in := &source.Request{
			Method: "POST", URL: &url.URL{Path: "/"}, Body: []byte(body), At: sent.Add(tc.off),
			Header: http.Header{"Stripe-Signature": {fmt.Sprintf("t=%d,v1=%s", sent.Unix(), hex.EncodeToString(mac.Sum(nil)))}},
		}
		_, err := b.Receive(t.Context(), "pay", in)
		if (err == nil) != tc.want || err != nil && reasonOf(err) != "timestamp_out_of_tolerance" {
			t.Errorf("%v: %v", tc.off, err)
		}
	}
	if n := len(b.entries()); n != 2 {
		t.Errorf("%d entries", n)
	}
}

// TestWhatIsAcceptedDoesNotExpireWhileItWaits: a signed time is held to at the
// arrival, and not when the event's turn comes.
func TestWhatIsAcceptedDoesNotExpireWhileItWaits(t *testing.T) {
	t.Parallel()
	b := newBed(t, database[*memory.Tx](inMemory{memory.New(nil)}))
	ran := make(chan string, 1)
	m := b.worker(quick(), nil, []Source{{
		Name: "pay", Contract: source.Stripe(), Types: []string{"*"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("s", "whsec_x")}},
	}}, Effect[*memory.Tx]{Name: "charge.v1", Handle: func(_ context.Context, _ *memory.Tx, e *Event) error {
		ran <- e.ID[0]
		return nil
	}})
	sent := time.Now().Add(-time.Hour)
	const body = `{"id":"evt_1","type":"charge.succeeded"}`
	mac := hmac.New(sha256.New, []byte("whsec_x"))
	fmt.Fprintf(mac, "%d.%s", sent.Unix(), body)
	in := &source.Request{
		Method: "POST", URL: &url.URL{Path: "/"}, Body: []byte(body), At: sent,
		Header: http.Header{"Stripe-Signature": {fmt.Sprintf("t=%d,v1=%s", sent.Unix(), hex.EncodeToString(mac.Sum(nil)))}},
	}
	if _, err := m.Receiver().Receive(t.Context(), "pay", in); err != nil {
		t.Fatal(err)
	}
	b.start(m)
	select {
	case id := <-ran:
		if id != "evt_1" {
			t.Errorf("event %q", id)
		}
	case <-time.After(patience):
		t.Fatalf("it has not run: %+v", b.sights)
	}
	in.At = time.Now() // the same delivery, an hour late
	if _, err := m.Receiver().Receive(t.Context(), "pay", in); reasonOf(err) != "timestamp_out_of_tolerance" {
		t.Errorf("an arrival an hour late: %v", err)
	}
}

func TestAStoreThatIsDownIsAnsweredWithin2Seconds(t *testing.T) {
	t.Parallel()
	for _, err := range []error{store.ErrUnavailable, store.ErrFull, store.ErrCommitUnknown, errors.New("disk on fire: canary-dsn")} {
		var down failing
		b := between(t, down.over, []Source{gitHub("hub"), grid(t, "grid")})
		down.with(err)
		for _, got := range []*http.Response{b.push("hub", "g1", `{}`), b.grid("grid", gridEvents(1))} {
			if body := b.answers(got, 503); body != "" || got.Header.Get("Retry-After") == "" {
				t.Errorf("%v: body %q, headers %v", err, body, got.Header)
			}
		}
		down.with(nil)
		b.answers(b.push("hub", "g1", `{}`), 200)
		if len(b.entries()) != 1 {
			t.Errorf("%v: %d entries", err, len(b.entries()))
		}
		full := errors.Is(err, store.ErrFull)
		if full != (len(b.alerts) == 2) || full && (b.alerts[0].Kind != "full" || b.alerts[0].Over || !b.alerts[1].Over) {
			t.Errorf("%v: alerts %+v", err, b.alerts)
		}
	}
	// One that does not answer at all.
	hung := failing{gate: make(chan struct{})}
	b := between(t, hung.over, []Source{gitHub("hub")})
	began := time.Now()
	b.answers(b.push("hub", "g1", `{}`), 503)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("answered after %v", took)
	}
	close(hung.gate)
	b.answers(b.push("hub", "g1", `{}`), 200)
	if len(b.entries()) != 1 {
		t.Errorf("%d entries", len(b.entries()))
	}
}
