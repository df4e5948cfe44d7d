package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// providersFile has a sender of hints, one whose token is from an issuer, one with
// versions and a list; PROVIDER is theirs, APP the application.
const providersFile = `
store: ${STORE}
unsafe: ["${UNSAFE}"]
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {lease: 2s, poll: 20ms}
sources:
  - {name: hints, contract: nuvemshop, path: /in/hints, secrets: [` + hush + `], types: [product/*],
     fetch: {url: PROVIDER/api, headers: {Authentication: "bearer ${TOKEN}"}}}
  - {name: grid, contract: event-grid, path: /in/grid, types: [Shop.*],
     entra: {audience: api://shop, issuers: ["https://issuer.example/"], principals: [sender-app], keys: PROVIDER/keys}}
  - {name: shop, contract: hmac, path: /in/shop, secrets: [` + hush + `], types: [order/*], signing: {header: X-Signature},
     event: {id: [body.event], type: body.type, subject: [body.id], version: body.version}, window: 1h,
     reconcile: [{url: PROVIDER, interval: 10s, headers: {Authorization: "Bearer ${TOKEN}"},
       list: {path: "/events?since={since}", items: events, id: [body.event], type: body.type, subject: [body.id], version: body.version, time: body.at}}]}
effects:
  - {name: product.sync.v1, when: source == "hints", order_by: [subject], version: version, send: {url: APP/products, timeout: 2s}, unknown: retry, lease: 2s}
  - {name: grid.take.v1, when: source == "grid", send: {url: APP/grid, timeout: 2s}, unknown: hold, lease: 2s}
  - {name: order.step.v1, when: source == "shop" && type == "order/step", order_by: [subject], version: version, contiguous: true, gap_wait: 2s,
     send: {url: APP/steps, timeout: 2s}, unknown: retry, lease: 2s}
  - {name: order.pay.v1, when: source == "shop" && type == "order/pay", send: {url: APP/pay, timeout: 2s}, unknown: probe, lease: 2s,
     probe: {url: "APP/paid?key={derived_key}", settle: 0s, done: [{status: 200}], not_done: [{status: 404}]}, retry: {first: 20ms, longest: 100ms}}
`

// provider plays the other side of three senders.
type provider struct {
	*httptest.Server
	key     *rsa.PrivateKey
	mu      sync.Mutex
	version int
	fetches int
	asked   int // the issuer's keys
	hold    chan struct{}
	list    string
}

func newProvider(t *testing.T) *provider {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key, version: 1, list: `{"events":[]}`}
	mux := http.NewServeMux()
	authorized := func(header string, then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !strings.EqualFold(r.Header.Get(header), "bearer "+token) {
				t.Errorf("%s came with %q", r.URL, r.Header.Get(header))
			}
			then(w, r)
		}
	}
	mux.HandleFunc("GET /api/v1/7/products/42", authorized("Authentication", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		p.fetches++
		version, hold := p.version, p.hold
		p.mu.Unlock()
		if hold != nil {
			<-hold
		}
		_, _ = fmt.Fprintf(w, `{"id":42,"updated_at":"2026-01-01T00:00:%02dZ","stock":%d}`, version, version)
	}))
	mux.HandleFunc("GET /events", authorized("Authorization", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, _ = io.WriteString(w, p.list)
	}))
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		p.asked++
		p.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"keys":[{"kty":"RSA","use":"sig","kid":"k1","alg":"RS256","n":%q,"e":%q}]}`,
			base64.RawURLEncoding.EncodeToString(key.N.Bytes()), base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes()))
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// token is what the provider's API wants.
const token = "api-token-canary"

// bearer is an access token of the issuer.
func (p *provider) bearer(t *testing.T, claims map[string]any) string {
	t.Helper()
	full := map[string]any{"iss": "https://issuer.example/", "aud": "api://shop", "azp": "sender-app", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		full[name] = value
	}
	body, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	signed := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"k1"}`)) + "." + base64.RawURLEncoding.EncodeToString(body)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, p.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// receiver is the application: what it was sent, by path.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	got  map[string][]string
	paid map[string]int // by key
	die  int            // answers of /pay that are lost
}

func newReceiver(t *testing.T) *receiver {
	a := &receiver{got: map[string][]string{}, paid: map[string]int{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is cut off is not what is compared
		a.mu.Lock()
		defer a.mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		switch r.URL.Path {
		case "/paid":
			if a.paid[r.URL.Query().Get("key")] == 0 {
				w.WriteHeader(http.StatusNotFound)
			}
			return
		case "/pay":
			if a.die > 0 {
				if a.die--; a.die == 0 {
					a.paid[key]++ // the last lost one has happened
				}
				panic(http.ErrAbortHandler)
			}
			a.paid[key]++
		}
		a.got[r.URL.Path] = append(a.got[r.URL.Path], string(body))
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *receiver) of(path string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.got[path]...)
}

func TestHintsListsTokensGapsAndProbesWorkOverTwoWorkersOfOneConfiguration(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		p, app := newProvider(t), newReceiver(t)
		env = append(env, "TOKEN="+token)
		configure(t, dir, strings.NewReplacer("PROVIDER", p.URL, "APP", app.URL).Replace(providersFile))
		if got := invoke(t, dir, env, "check", "unavez.yaml"); got.code != 0 {
			t.Fatalf("check: %+v", got)
		}
		workers := []*child{serve(t, dir, env...), serve(t, dir, env...)}
		hint := func(n int) {
			t.Helper()
			const body = `{"store_id":7,"event":"product/updated","id":42}`
			r, err := send(t, http.MethodPost, workers[n%2].requests+"/in/hints", body, "X-Linkedstore-Hmac-Sha256", digest(body))
			if got := must(t, r, err); got.status != 200 {
				t.Fatalf("%+v", got)
			}
		}
		last := func(path, text string) func() bool {
			return func() bool { got := app.of(path); return len(got) > 0 && strings.Contains(got[len(got)-1], text) }
		}
		// Equal bytes twice, with a change in between.
		hint(0)
		eventually(t, "the first state", last("/products", `"stock":1`))
		p.mu.Lock()
		p.version = 2
		p.mu.Unlock()
		hint(1)
		eventually(t, "the second state", last("/products", `"stock":2`))
		p.mu.Lock()
		if p.fetches != 2 {
			t.Errorf("%d fetches for two hints", p.fetches)
		}
		// Fifty that arrive while one is fetched share the next fetch.
		p.version, p.fetches, p.hold = 3, 0, make(chan struct{})
		p.mu.Unlock()
		for n := range 50 {
			hint(n)
		}
		close(p.hold)
		eventually(t, "the third state", last("/products", `"stock":3`))
		eventually(t, "every hint has ended", func() bool {
			got := invoke(t, dir, nil, "ops", "list", "--admin", workers[0].admin, "--state", "completed", "--effect", "unavez.fetch.v1", "--json", "--limit", "1000")
			return strings.Count(got.out, `"state"`) == 52
		})
		p.mu.Lock()
		if p.fetches > 2 {
			t.Errorf("%d fetches for fifty hints", p.fetches)
		}
		p.mu.Unlock()
		if got := app.of("/products"); len(got) != 3 {
			t.Errorf("the application got %q", got)
		}

		// Access tokens.
		event := `[{"topic":"/t","subject":"s","id":"1","eventType":"Shop.Paid","eventTime":"2026-11-30T12:00:00Z","data":{},"dataVersion":"1"}]`
		for name, c := range map[string]struct {
			claims map[string]any
			want   int
		}{
			"good":       {nil, 200},
			"audience":   {map[string]any{"aud": "api://other"}, 401},
			"issuer":     {map[string]any{"iss": "https://evil.example/"}, 401},
			"principal":  {map[string]any{"azp": "other"}, 401},
			"expired":    {map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}, 401},
			"not expiry": {map[string]any{"exp": nil}, 401},
		} {
			r, err := send(t, http.MethodPost, workers[0].requests+"/in/grid", event, "Aeg-Event-Type", "Notification", "Authorization", p.bearer(t, c.claims))
			if got := must(t, r, err); got.status != c.want {
				t.Errorf("%s: %+v", name, got)
			}
		}
		eventually(t, "the event of the good token", func() bool { return len(app.of("/grid")) == 1 })

		// Versions without gaps: 2 waits for 1; 4 waits for 3, and then for its owner.
		step := func(event string, id, version int) string {
			return fmt.Sprintf(`{"event":%q,"type":"order/step","id":%d,"version":%d,"at":%q}`, event, id, version, time.Now().UTC().Format(time.RFC3339))
		}
		shop := func(body string) {
			t.Helper()
			r, err := send(t, http.MethodPost, workers[0].requests+"/in/shop", body, "X-Signature", digest(body))
			if got := must(t, r, err); got.status != 200 {
				t.Fatalf("%s: %+v", body, got)
			}
		}
		shop(step("e2", 1, 2))
		eventually(t, "it is early", func() bool {
			return strings.Contains(invoke(t, dir, nil, "ops", "blocked", "--admin", workers[0].admin).out, "(gap)")
		})
		shop(step("e1", 1, 1))
		eventually(t, "both, in order", func() bool {
			got := app.of("/steps")
			return len(got) == 2 && strings.Contains(got[0], `"version":1`) && strings.Contains(got[1], `"version":2`)
		})
		shop(step("e4", 1, 4))
		eventually(t, "its owner is asked", func() bool { return workers[0].listed("parked") == 1 })

		// What was never delivered is in the list: 3 closes the gap.
		p.mu.Lock()
		p.list = `{"events":[` + step("e3", 1, 3) + `,` + step("e1", 1, 1) + `]}`
		p.mu.Unlock()
		eventually(t, "the gap is closed", func() bool { got := app.of("/steps"); return len(got) == 4 && strings.Contains(got[3], `"version":4`) })
		repaired := func() bool {
			return workers[0].metric(`unavez_repaired_total{source="shop"}`) == "1" || workers[1].metric(`unavez_repaired_total{source="shop"}`) == "1"
		}
		eventually(t, "it is counted", repaired)

		// Two answers are lost. The application did nothing the first time, and the
		// probe says so; the second time it did.
		app.mu.Lock()
		app.die = 2
		app.mu.Unlock()
		shop(`{"event":"p1","type":"order/pay","id":9,"version":1}`)
		eventually(t, "the probe decides", func() bool {
			return strings.Contains(invoke(t, dir, nil, "ops", "list", "--admin", workers[0].admin, "--state", "completed", "--effect", "order.pay.v1").out, "order.pay.v1")
		})
		app.mu.Lock()
		for key, n := range app.paid {
			if n != 1 || len(app.paid) != 1 {
				t.Errorf("paid %d times under %s", n, key)
			}
		}
		app.mu.Unlock()
		audited(t, dir, env)
		for _, s := range workers {
			for _, secret := range []string{token, hush} {
				if strings.Contains(s.log.String(), secret) {
					t.Errorf("the log has %q", secret)
				}
			}
		}
	})
}
