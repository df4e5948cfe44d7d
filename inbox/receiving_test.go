package inbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// receiving is a receiver over a store in memory, and what it said.
type receiving struct {
	*Receiver
	store *memory.Store
	t     testing.TB

	mu     sync.Mutex
	sights []Sight
	alerts []Condition
	log    bytes.Buffer
}

// between makes a receiver for one test. queue may be nil for the store itself.
func between(t testing.TB, wrap func(store.Queue) store.Queue, sources []Source, wants ...want) *receiving {
	t.Helper()
	b := &receiving{t: t, store: memory.New(nil)}
	var queue store.Queue = b.store
	if wrap != nil {
		queue = wrap(queue)
	}
	if wants == nil {
		wants = []want{{name: "test.v1"}}
	}
	var err error
	b.Receiver, err = newReceiver(queue, sources, wants, &Options{
		Observe: b.observe, Alert: b.alerted, Log: slog.New(slog.NewJSONHandler(b, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return b
}

func (b *receiving) observe(s Sight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sights = append(b.sights, s)
}

func (b *receiving) alerted(c Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alerts = append(b.alerts, c)
}

// Write takes the log.
func (b *receiving) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(line)
}

// count is how often something was seen, with a reason where that is not "".
func (b *receiving) count(what, reason string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sights {
		if s.What == what && (reason == "" || s.Reason == reason) {
			n += s.Count
		}
	}
	return n
}

// last is the last thing seen of a kind.
func (b *receiving) last(what string) (found Sight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sights {
		if s.What == what {
			found = s
		}
	}
	return found
}

// entries are those in the queue, by their place in it, with their payloads.
func (b *receiving) entries() []store.Entry {
	b.t.Helper()
	var lanes []int
	for lane := range b.store.Lanes() {
		lanes = append(lanes, lane)
	}
	var all []store.Entry
	reading := store.Reading{Lanes: lanes, Limit: store.MaxReading}
	for {
		page, err := b.store.Read(context.Background(), reading)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, e := range page.Entries {
			whole, err := b.store.Load(context.Background(), e.Key)
			if err != nil {
				b.t.Fatal(err)
			}
			all = append(all, whole)
		}
		if !page.More {
			return all
		}
		reading.Until, reading.After = page.Until, page.Entries[len(page.Entries)-1].Sequence
	}
}

func (b *receiving) quarantined() []store.Quarantined {
	b.t.Helper()
	page, err := b.store.Quarantined(context.Background(), "", store.Key{}, 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range page {
		if page[i], err = b.store.ShowQuarantined(context.Background(), page[i].Key); err != nil {
			b.t.Fatal(err)
		}
	}
	return page
}

// post sends a request to a source and returns the answer.
func (b *receiving) post(name string, body []byte, header ...string) *http.Response {
	b.t.Helper()
	return b.send(name, http.MethodPost, "/in/"+name, body, header...)
}

func (b *receiving) send(name, method, target string, body []byte, header ...string) *http.Response {
	b.t.Helper()
	in := httptest.NewRequestWithContext(b.t.Context(), method, target, bytes.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		in.Header.Add(header[i], header[i+1])
	}
	out := httptest.NewRecorder()
	b.Handler(name).ServeHTTP(out, in)
	return out.Result()
}

// wants fails the test unless the answer has the status.
func (b *receiving) answers(got *http.Response, want int) string {
	b.t.Helper()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if got.StatusCode != want {
		b.t.Fatalf("status %d, want %d (body %q)", got.StatusCode, want, body)
	}
	return string(body)
}

const gitHubSecret = "It's a Secret to Everybody"

func gitHub(name string) Source {
	return Source{
		Name: name, Contract: source.GitHub(), Types: []string{"*"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("now", gitHubSecret)}},
	}
}

// signed are the headers of a delivery of GitHub.
func signed(secret, id, kind string, body []byte) []string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return []string{
		"X-Hub-Signature-256", "sha256=" + hex.EncodeToString(mac.Sum(nil)),
		"X-GitHub-Delivery", id, "X-GitHub-Event", kind, "Content-Type", "application/json",
	}
}

// push is one signed delivery of GitHub.
func (b *receiving) push(name, id, body string) *http.Response {
	b.t.Helper()
	return b.post(name, []byte(body), signed(gitHubSecret, id, "push", []byte(body))...)
}

// grid is Event Grid with a secret in the query.
func grid(t testing.TB, name string) Source {
	t.Helper()
	c, err := source.EventGrid(source.EventGridOptions{Secret: &source.Token{Query: "code"}})
	if err != nil {
		t.Fatal(err)
	}
	return Source{
		Name: name, Contract: c, Types: []string{"*"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("code", "canary-code")}},
	}
}

func gridEvents(n int, bad ...int) []byte {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(`{"topic":"/t","id":"%d","eventType":"Shop.Order","subject":"s%d","eventTime":"2026-01-02T03:04:05Z","data":{"total":%d},"dataVersion":"1"}`, i, i, i)
	}
	for _, i := range bad {
		items[i] = strings.Replace(items[i], `"total":`, `"sum":`, 1)
	}
	return []byte("[" + strings.Join(items, ",") + "]")
}

func (b *receiving) grid(name string, body []byte, header ...string) *http.Response {
	b.t.Helper()
	return b.send(name, http.MethodPost, "/in/"+name+"?code=canary-code", body, append([]string{"Aeg-Event-Type", "Notification", "Content-Type", "application/json"}, header...)...)
}

func TestADeliveryIsKeptByteForByteAndOnce(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	body := "\xef\xbb\xbf{\"a\":\"\xe9\",\"n\":[9007199254740993,1e400]} "
	for range 3 {
		b.answers(b.push("hub", "g1", body), 200)
	}
	got := b.entries()
	if len(got) != 1 || string(got[0].Payload) != body {
		t.Fatalf("%d entries: %+v", len(got), got)
	}
	if n := got[0].Note; n.Type != "push" || n.Source != "hub" || n.Event.Parts[1] != "g1" || n.Delivery != "g1" || n.Correlation == "" {
		t.Errorf("note %+v", n)
	}
	if b.count("delivery", "") != 3 || b.count("duplicate", "") != 2 {
		t.Errorf("%d deliveries, %d duplicates", b.count("delivery", ""), b.count("duplicate", ""))
	}
	if s := b.last("delivery"); s.Secret != "now" || s.Source != "hub" || s.Type != "push" {
		t.Errorf("sight %+v", s)
	}
}

func TestAnotherContentUnderOneIdentityIsAConflictAndNoSecondEntry(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	b.answers(b.push("hub", "g1", `{"a":1}`), 200)
	b.answers(b.push("hub", "g1", `{"a" : 1.0}`), 200) // written otherwise
	b.answers(b.push("hub", "g1", `{"a":2}`), 200)
	b.answers(b.push("hub", "g1", `{"a":2}`), 200)
	if got := b.entries(); len(got) != 1 || string(got[0].Payload) != `{"a":1}` {
		t.Errorf("entries %+v", got)
	}
	if b.count("conflict", "") != 2 || b.count("duplicate", "") != 1 || len(b.alerts) != 1 || b.alerts[0].Kind != "conflict" {
		t.Errorf("%d conflicts, %d duplicates, alerts %+v", b.count("conflict", ""), b.count("duplicate", ""), b.alerts)
	}
}

func TestAForgedRequestLeavesNoTrace(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	genuine := []byte(`{"a":1}`)
	forged := signed("another secret", "g1", "push", genuine)
	for range 3 {
		if body := b.answers(b.post("hub", genuine, forged...), 401); body != "" {
			t.Errorf("answer %q", body)
		}
	}
	b.answers(b.post("hub", genuine), 401) // no signature at all
	if len(b.entries()) != 0 || len(b.quarantined()) != 0 {
		t.Fatal("a forged request was kept")
	}
	b.answers(b.push("hub", "g1", string(genuine)), 200)
	if len(b.entries()) != 1 || b.count("duplicate", "") != 0 {
		t.Error("the genuine one was taken for a duplicate")
	}
	if b.count("rejected", "bad_signature") != 3 || b.count("rejected", "missing_header") != 1 {
		t.Errorf("sights %+v", b.sights)
	}
}

// TestTamperedVectorsAreRefused posts the published request of WI-01 and the
// three that were made of it.
func TestTamperedVectorsAreRefused(t *testing.T) {
	t.Parallel()
	b := between(t, nil, []Source{gitHub("hub")})
	body := []byte("\xef\xbb\xbf{\"name\":\"caf\xe9\"}")
	header := signed(gitHubSecret, "g1", "push", body)
	for _, tampered := range [][]byte{body[3:], []byte("\xef\xbb\xbf{\"name\":\"café\"}"), append(bytes.Clone(body), '\n')} {
		b.answers(b.post("hub", tampered, header...), 401)
	}
	b.answers(b.post("hub", body, header...), 200)
	if got := b.entries(); len(got) != 1 || !bytes.Equal(got[0].Payload, body) {
		t.Errorf("entries %+v", got)
	}
}

func TestManyCopiesAtOnceAreOneEntry(t *testing.T) {
	t.Parallel()
	first := between(t, nil, []Source{gitHub("hub")})
	second := between(t, func(store.Queue) store.Queue { return first.store }, []Source{gitHub("hub")})
	const copies = 100
	var all sync.WaitGroup
	statuses := make([]int, copies)
	for i := range copies {
		all.Go(func() {
			statuses[i] = []*receiving{first, second}[i%2].push("hub", "g1", `{"a":1}`).StatusCode
		})
	}
	all.Wait()
	for i, status := range statuses {
		if status != 200 {
			t.Errorf("copy %d: %d", i, status)
		}
	}
	if len(first.entries()) != 1 || first.count("duplicate", "")+second.count("duplicate", "") != copies-1 {
		t.Errorf("%d entries, %d and %d duplicates", len(first.entries()), first.count("duplicate", ""), second.count("duplicate", ""))
	}
}

func TestSecretsAreReplacedWhileDeliveriesArrive(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	secrets := []source.Secret{source.NewSecret("old", "old secret")}
	s := gitHub("hub")
	s.ConfigFunc = func() source.Config {
		mu.Lock()
		defer mu.Unlock()
		return source.Config{Secrets: secrets}
	}
	set := func(to ...source.Secret) {
		mu.Lock()
		defer mu.Unlock()
		secrets = to
	}
	b := between(t, nil, []Source{s})
	send := func(id, secret string) int {
		body := []byte(`{"id":"` + id + `"}`)
		return b.post("hub", body, signed(secret, id, "push", body)...).StatusCode
	}
	var senders sync.WaitGroup
	for w := range 4 {
		senders.Go(func() {
			for i := range 100 {
				if status := send(fmt.Sprintf("%d-%d", w, i), "old secret"); status != 200 {
					t.Errorf("sender %d, delivery %d: %d", w, i, status)
				}
				if i == 50 && w == 0 {
					set(source.NewSecret("new", "new secret"), source.NewSecret("old", "old secret"))
				}
			}
		})
	}
	senders.Wait()
	if s := b.last("delivery"); s.Secret != "old" {
		t.Errorf("verified with %q", s.Secret)
	}
	if status := send("n", "new secret"); status != 200 || b.last("delivery").Secret != "new" {
		t.Errorf("new secret: %d, %+v", status, b.last("delivery"))
	}
	set(source.NewSecret("new", "new secret"))
	if status := send("o", "old secret"); status != 401 {
		t.Errorf("old secret after its end: %d", status)
	}
	set() // our own fault, not the sender's
	if status := send("x", "new secret"); status != 503 || b.count("rejected", "empty_secret") != 1 {
		t.Errorf("without a secret: %d", status)
	}
}

func TestTypesThatAreNotAcceptedAreKept(t *testing.T) {
	t.Parallel()
	s := gitHub("hub")
	s.Types = []string{"issues.*", "push"}
	b := between(t, nil, []Source{s})
	body := []byte(`{"action":"opened"}`)
	b.answers(b.post("hub", body, signed(gitHubSecret, "1", "issues", body)...), 200)
	b.answers(b.post("hub", body, signed(gitHubSecret, "2", "fork", body)...), 200)
	b.answers(b.post("hub", body, signed(gitHubSecret, "2", "fork", body)...), 200)
	kept := b.quarantined()
	if len(b.entries()) != 1 || len(kept) != 1 || kept[0].Reason != "type" || kept[0].Type != "fork.opened" || string(kept[0].Payload) != string(body) {
		t.Fatalf("%d entries, quarantine %+v", len(b.entries()), kept)
	}
	if kept[0].Note.ID[0] != "2" || b.count("quarantined", "type") != 2 {
		t.Errorf("note %+v", kept[0].Note)
	}
}

func TestABatchKeepsGoodItemsAndBadOnesApart(t *testing.T) {
	t.Parallel()
	s := grid(t, "grid")
	s.Schemas = map[string][]byte{"Shop.*": []byte(`{"type":"object","properties":{"data":{"required":["total"]}}}`)}
	b := between(t, nil, []Source{s})
	for range 2 {
		b.answers(b.grid("grid", gridEvents(100, 57)), 200)
	}
	kept := b.quarantined()
	if n := len(b.entries()); n != 99 || len(kept) != 1 || kept[0].Reason != "schema" || kept[0].Note.ID[1] != "57" {
		t.Fatalf("%d entries, quarantine %+v", n, kept)
	}
	if want := "does not fit #/properties/data/required"; kept[0].Detail != want {
		t.Errorf("detail %q, want %q", kept[0].Detail, want)
	}
	if b.count("duplicate", "") != 99 {
		t.Errorf("%d duplicates", b.count("duplicate", ""))
	}
	for _, body := range []string{"", "nothing", "{", `"x"`, `[1,{"id":1}]`} {
		b.answers(b.grid("grid", []byte(body)), 200)
	}
	if n := len(b.quarantined()); n != 7 {
		t.Errorf("%d items in quarantine, want 7: what cannot be read is kept", n)
	}
}

func TestABatchIsKeptWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	var down failing
	b := between(t, down.over, []Source{grid(t, "grid")})
	down.with(store.ErrUnavailable)
	got := b.grid("grid", gridEvents(100))
	b.answers(got, 503)
	if got.Header.Get("Retry-After") == "" || len(b.entries()) != 0 {
		t.Errorf("headers %v, %d entries", got.Header, len(b.entries()))
	}
	down.with(nil)
	b.answers(b.grid("grid", gridEvents(2500)), 200)
	if len(b.entries()) != 2500 {
		t.Errorf("%d entries", len(b.entries()))
	}
}

// failing is a queue whose appends fail.
type failing struct {
	store.Queue
	mu    sync.Mutex
	err   error
	after bool          // fail after the work
	times int           // how often; 0 is always
	gate  chan struct{} // when not nil, appends wait for it
	calls int
}

func (f *failing) over(q store.Queue) store.Queue {
	f.Queue = q
	return f
}

func (f *failing) with(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Append(ctx context.Context, in store.Arrival) ([]store.Appended, error) {
	f.mu.Lock()
	f.calls++
	err, gate := f.err, f.gate
	if err != nil && f.times > 0 {
		if f.times--; f.times == 0 {
			f.err = nil
		}
	}
	after := f.after
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil && !after {
		return nil, err
	}
	said, failed := f.Queue.Append(ctx, in)
	if err != nil && failed == nil {
		return nil, err
	}
	return said, failed
}
