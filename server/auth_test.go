package server

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
)

func TestForwardAsksAboutEveryClaimAndEveryReplayAndFailsClosed(t *testing.T) {
	t.Parallel()
	b := start(t, `
auth: {mode: forward, url: APP/whoami, timeout: 300ms, tenant_header: X-Account, principal_header: X-User}
outbound: {allow: [127.0.0.1/32]}
http: [{route: POST /orders, upstream: APP, unknown: hold}]
`)
	who := func(tenant, user string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Account", tenant)
			w.Header().Set("X-User", user)
		}
	}
	b.app.set("/whoami", who("shop", "ana"))
	first := b.post("/orders", "k-1", "Authorization", "Bearer a", "Cookie", "sid=1", "X-Account", "forged", "X-Other", "x")
	if first.status != 201 {
		t.Fatalf("first: %+v", first)
	}
	asked := b.app.last("/whoami")
	if asked.Header.Get("Authorization") != "Bearer a" || asked.Header.Get("Cookie") != "sid=1" || asked.Header.Get("X-Other") != "" || asked.Header.Get("X-Account") != "" ||
		asked.Header.Get("X-Forwarded-Method") != "POST" || asked.Header.Get("X-Forwarded-Uri") != "/orders" || asked.Method != http.MethodGet {
		t.Errorf("asked with %v", asked.Header)
	}
	if again := b.post("/orders", "k-1"); again.body != first.body || b.app.count("GET /whoami") != 2 {
		t.Errorf("a replay asks too: %+v after %d questions", again, b.app.count("GET /whoami"))
	}
	// Another principal, another tenant: operations of their own.
	b.app.set("/whoami", who("shop", "bea"))
	other := b.post("/orders", "k-1")
	b.app.set("/whoami", who("store", "ana"))
	third := b.post("/orders", "k-1")
	if other.body == first.body || third.body == first.body || third.body == other.body {
		t.Errorf("callers share an answer: %q %q %q", first.body, other.body, third.body)
	}

	deny := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Www-Authenticate", `Bearer realm="shop"`)
			w.Header().Set("X-Account", "shop")
			w.Header().Set("X-User", "ana")
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
		}
	}
	release := make(chan struct{})
	defer close(release)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		status int
	}{
		"401": {deny(401), 401}, "403": {deny(403), 403}, "404": {deny(404), 503}, "500": {deny(500), 503}, "redirect": {deny(302), 503},
		"dies": {dies, 503}, "no tenant": {who("", "ana"), 503}, "no principal": {who("shop", ""), 503},
		"two tenants": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("X-Account", "x")
			who("shop", "ana")(w, r)
		}, 201},
		"slow": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 503},
	} {
		if name == "two tenants" {
			c.answer = func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["X-Account"] = []string{"shop", "store"}
				w.Header().Set("X-User", "ana")
			}
			c.status = 503
		}
		calls := b.app.count("POST /orders")
		b.app.set("/whoami", c.answer)
		for _, key := range []string{"k-1", "new-" + name} {
			got := b.post("/orders", key)
			if got.status != c.status || strings.Contains(got.body, `"run"`) || got.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%s: %+v", name, got)
			}
			if c.status == 401 && got.header.Get("Www-Authenticate") == "" {
				t.Error("401 without its challenge")
			}
		}
		if b.app.count("POST /orders") != calls {
			t.Errorf("%s: the application was called", name)
		}
	}
	if b.app.count("GET /elsewhere") > 0 {
		t.Error("a redirect was followed")
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestATokenNamesItsTenantAndPrincipal(t *testing.T) {
	t.Parallel()
	b := start(t, `
auth:
  mode: token
  tokens:
    - {sha256: `+hash("one")+`, tenant: shop, principal: ana}
    - {sha256: `+hash("two")+`, tenant: store, principal: bea}
outbound: {allow: [127.0.0.1/32]}
http: [{route: POST /orders, upstream: APP, unknown: hold}]
`)
	for name, header := range map[string][]string{
		"none": nil, "unknown": {"Authorization", "Bearer three"}, "empty": {"Authorization", "Bearer "}, "basic": {"Authorization", "Basic one"},
		"its hash": {"Authorization", "Bearer " + hash("one")}, "two": {"Authorization", "Bearer one", "Authorization", "Bearer one"},
	} {
		if got := b.post("/orders", "k-1", header...); got.status != 401 || !strings.HasPrefix(got.header.Get("Www-Authenticate"), "Bearer") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	one, two, again := b.post("/orders", "k-1", "Authorization", "Bearer one"), b.post("/orders", "k-1", "Authorization", "bearer two"), b.post("/orders", "k-1", "Authorization", "Bearer one")
	if one.status != 201 || two.status != 201 || one.body == two.body || again.body != one.body {
		t.Errorf("one %+v, two %+v, again %+v", one, two, again)
	}
	if op := b.operation("shop/http/ana/k-1"); op == nil || op.State != "completed" {
		t.Errorf("the operation is not that of its caller: %+v", op)
	}
}

func TestTwoCredentialsNeverShareAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		auth       string
		header     string
		one, other string
		refused    [][]string
	}{
		"header": {"{mode: credential, tenant: shop}", "Authorization", "Basic secret-one", "Basic secret-two", [][]string{nil, {"Authorization", ""}, {"Authorization", "a", "Authorization", "b"}}},
		"cookie": {"{mode: credential, tenant: shop, cookie: sid}", "Cookie", "a=b; sid=secret-one", "sid=secret-two; a=b", [][]string{nil, {"Authorization", "x"}, {"Cookie", "sid="}, {"Cookie", "sid=a; sid=b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, "auth: "+c.auth+"\noutbound: {allow: [127.0.0.1/32]}\nhttp: [{route: POST /orders, upstream: APP, unknown: hold}]\n")
			for _, header := range c.refused {
				if got := b.post("/orders", "k-1", header...); got.status != 401 {
					t.Errorf("%v: %+v", header, got)
				}
			}
			one, other, again := b.post("/orders", "k-1", c.header, c.one), b.post("/orders", "k-1", c.header, c.other), b.post("/orders", "k-1", c.header, c.one)
			if one.status != 201 || other.status != 201 || one.body == other.body || again.body != one.body {
				t.Errorf("one %+v, other %+v, again %+v", one, other, again)
			}
			list := b.sendTo(b.admin, http.MethodGet, "/api/operations?state=completed", "").body
			if strings.Contains(list, "secret") || strings.Contains(b.log.String(), "secret") || !strings.Contains(list, "sha256-") {
				t.Errorf("the credential is shown: %s", list)
			}
		})
	}
}

func TestTheApplicationIsToldWhoIsCallingAndNotByTheClient(t *testing.T) {
	t.Parallel()
	b := start(t, `
auth:
  mode: token
  tokens: [{sha256: `+hash("t-ana")+`, tenant: shop, principal: ana}]
  identify: {tenant: X-Account, principal: X-User}
outbound: {allow: [127.0.0.1/32]}
http: [{route: /, upstream: APP, unknown: hold, key: optional}]
`)
	for _, method := range []string{"POST", "GET"} {
		got := b.send(method, "/orders", "", "Idempotency-Key", "k-1", "Authorization", "Bearer t-ana", "X-Account", "forged", "X-User", "root")
		seen := b.app.last("/orders")
		if got.status != 201 || seen.Method != method || seen.Header.Get("X-Account") != "shop" || seen.Header.Get("X-User") != "ana" || len(seen.Header["X-User"]) != 1 {
			t.Errorf("%s: %d, application saw %s %v", method, got.status, seen.Method, seen.Header)
		}
	}
	if got := b.post("/orders", "k-2", "Authorization", "Bearer t-ana", "Connection", "X-Account"); got.status != 400 {
		t.Errorf("Connection names an identity header: %+v", got)
	}
}

func TestAWaitCanBeForbidden(t *testing.T) {
	t.Parallel()
	b := start(t, `
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
http: [{route: POST /orders, upstream: APP, unknown: hold, wait: 0s}]
`)
	started, end := make(chan struct{}), make(chan struct{})
	b.app.set("/orders", func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-end
		w.WriteHeader(http.StatusCreated)
	})
	first := make(chan int)
	go func() { first <- b.post("/orders", "k-1").status }()
	<-started
	if got := b.post("/orders", "k-1", "Prefer", "wait=30"); got.status != http.StatusConflict {
		t.Errorf("waited: %+v", got)
	}
	close(end)
	if got := <-first; got != http.StatusCreated {
		t.Errorf("first: %d", got)
	}
}
