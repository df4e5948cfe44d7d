package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/server/internal/admin"
)

func decodePage(t *testing.T, body string) (page admin.Page) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return page
}

func TestANewConfigurationIsTakenOverWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	b := start(t, holding, func(o *Options) { o.Poll = 10 * time.Millisecond })
	first := b.post("/orders", "k-1")

	b.edit("POST /orders,", "POST /sales,") // noticed by its bytes
	b.log.wait(t, `"msg":"reloaded"`)
	if old, new := b.post("/orders", "k-2"), b.post("/sales", "k-3"); old.status != 405 && old.status != 404 || new.status != 201 {
		t.Errorf("old route %d, new route %d", old.status, new.status)
	}

	b.edit("unknown: hold", "unknown: perhaps, timeout: soon")
	b.log.wait(t, "configuration refused")
	b.log.wait(t, "http[0].unknown")
	b.log.wait(t, "http[0].timeout")
	if got := b.post("/sales", "k-4"); got.status != 201 {
		t.Errorf("the old one does not go on: %+v", got)
	}
	b.edit("unknown: perhaps, timeout: soon", "unknown: hold")

	b.edit("listen: 127.0.0.1:0", "listen: 127.0.0.1:1\nlimits: {idle_timeout: 7s}\nlog: {format: text}")
	b.edit("unavez.db", "other.db")
	b.reload <- struct{}{}
	for _, field := range []string{"store: cannot change", "listen: cannot change", "limits: cannot change", "log.format: cannot change"} {
		b.log.wait(t, field)
	}
	b.edit("other.db", "unavez.db")
	b.edit("listen: 127.0.0.1:1\nlimits: {idle_timeout: 7s}\nlog: {format: text}", "listen: 127.0.0.1:0\nadmin: {token: "+adminToken+"}")
	b.edit("POST /sales,", "POST /orders,")
	b.reload <- struct{}{}
	b.eventually("the admin token is asked for", func() bool { return b.sendTo(b.admin, http.MethodGet, "/", "").status == 401 })
	if again := b.post("/orders", "k-1"); again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("after the reloads: %+v", again)
	}
}

func TestARequestUnderWayEndsBeforeTheServerDoes(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	arrived, release := make(chan struct{}), make(chan struct{})
	b.app.set("/orders", func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		w.WriteHeader(http.StatusCreated)
	})
	answered := make(chan reply, 1)
	go func() { answered <- b.post("/orders", "k-1") }()
	<-arrived
	b.stop()
	b.eventually("readyz refuses", func() bool { return b.sendTo(b.admin, http.MethodGet, "/readyz", "").status == 503 })
	if got := b.sendTo(b.admin, http.MethodGet, "/healthz", ""); got.status != 200 {
		t.Errorf("healthz while stopping: %d", got.status)
	}
	b.eventually("nothing is accepted", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.requests, "http://"))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	close(release)
	if got := <-answered; got.status != 201 {
		t.Errorf("answered %+v", got)
	}
	b.halt()
	if !strings.Contains(b.log.String(), `"msg":"stopped"`) {
		t.Errorf("no graceful end:\n%s", b.log)
	}
}

func TestADrainHasAnEnd(t *testing.T) {
	t.Parallel()
	b := start(t, "limits: {drain: 200ms}\n"+holding)
	arrived, release := make(chan struct{}), make(chan struct{})
	b.app.set("/orders", func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-release
	})
	cut := make(chan error, 1)
	go func() {
		resp, err := http.Post(b.requests+"/orders?late", "application/json", strings.NewReader("{}"))
		if err == nil {
			_ = resp.Body.Close()
		}
		cut <- err
	}()
	// Without a key nothing is called; the slow one has one.
	<-cut
	slow := make(chan error, 1)
	go func() {
		req, err := http.NewRequest(http.MethodPost, b.requests+"/orders", strings.NewReader("{}"))
		if err == nil {
			req.Header.Set("Idempotency-Key", "k-1")
			var resp *http.Response
			if resp, err = b.client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}
		slow <- err
	}()
	<-arrived
	b.stop()
	if err := <-slow; err == nil {
		t.Error("the request that never ends was answered")
	}
	close(release)
	<-b.ended // with an error or without: it has ended
	close(b.ended)
}

func TestASlowRequestIsCutAndASlowAnswerIsNot(t *testing.T) {
	t.Parallel()
	b := start(t, "limits: {header_timeout: 200ms, read_timeout: 300ms}\n"+holding)
	arrived := make(chan time.Time, 1)
	b.app.set("/orders", func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		timer := time.NewTimer(700 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			w.WriteHeader(http.StatusCreated)
		case <-r.Context().Done():
		}
		arrived <- begun
	})
	if got := b.post("/orders", "k-1"); got.status != 201 {
		t.Errorf("a slow answer: %+v", got)
	}
	<-arrived
	slow := func(name, sent, want string) {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.requests, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begun := time.Now()
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(c) // a reset ends it too
		if !strings.HasPrefix(string(got), want) || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %q after %v", name, got, time.Since(begun))
		}
	}
	slow("head", "POST /orders HTTP/1.1\r\nHost: a\r\nX-", "HTTP/1.1 400 ")
	slow("body", "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-2\r\nContent-Length: 10\r\n\r\n{", "HTTP/1.1 408 ")
	slow("chunks", "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "HTTP/1.1 408 ")
	if b.app.count("POST /orders") != 1 {
		t.Error("half a request reached the application")
	}
}

func TestLimitsOfARequest(t *testing.T) {
	t.Parallel()
	b := start(t, "limits: {header_size: 2KiB}\n"+single+"http: [{route: POST /orders, upstream: APP, unknown: hold, request_limit: 100}]\n")
	if got := b.send(http.MethodPost, "/orders", strings.Repeat("x", 101), "Idempotency-Key", "k-1"); got.status != 413 || got.problem() != "request-too-large" {
		t.Errorf("body: %+v", got)
	}
	chunked := "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + strings.Repeat("x", 101) + "\r\n0\r\n\r\n"
	if got := b.raw(chunked); !strings.HasPrefix(got, "HTTP/1.1 413 ") {
		t.Errorf("chunks: %q", got)
	}
	if got := b.raw("POST /orders HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat("x", 10_000) + "\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 431 ") {
		t.Errorf("head: %.40q", got)
	}
	if b.app.count("POST /orders") != 0 {
		t.Error("the application was called")
	}
}

func TestAnUpgradeOfAnUnkeyedRouteWorks(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.app.set("/orders/live", func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('!')
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	})
	c, err := net.Dial("tcp", strings.TrimPrefix(b.requests, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "GET /orders/live HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	_, _ = io.WriteString(c, "\n\x00 no http!")
	if got, _ := r.ReadString('!'); got != "echo \n\x00 no http!" {
		t.Errorf("got %q", got)
	}
}

// Secrets are put wherever a client, an operator or the configuration can put
// one; none may come out.
func TestNoSecretIsLoggedMeasuredOrShown(t *testing.T) {
	t.Setenv("UNAVEZ_TEST_CANARY", "canary-admin-token-0123456789")
	b := start(t, `
admin: {token: "${UNAVEZ_TEST_CANARY}"}
auth: {mode: credential, tenant: shop}
outbound: {allow: [127.0.0.1/32]}
log: {level: debug}
http:
  - route: POST /orders
    upstream: APP
    unknown: probe
    probe: {url: "APP/probe?key={key}", headers: {Authorization: "Bearer canary-probe"}, done: [{status: 200}]}
`)
	b.app.set("/orders", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "sid=canary-cookie")
		w.Header().Set("X-Answer", "canary-header")
		fmt.Fprint(w, `{"secret":"canary-answer"}`)
	})
	b.app.set("/probe", dies)
	body := `{"card":"canary-body"}`
	if got := b.send(http.MethodPost, "/orders?q=canary-query", body, "Idempotency-Key", "canary-key", "Authorization", "Bearer canary-credential", "Cookie", "a=canary-cookie"); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	b.send(http.MethodPost, "/orders?q=canary-query", body, "Idempotency-Key", "canary-key", "Authorization", "Bearer canary-credential", "X-Request-Id", "bad id canary-id", "Traceparent", "canary")
	b.app.set("/orders", dies)
	b.send(http.MethodPost, "/orders?q=canary-query", body, "Idempotency-Key", "canary-key-2", "Authorization", "Bearer canary-credential")
	b.send(http.MethodPost, "/orders?q=canary-query", body, "Idempotency-Key", "canary-key-2", "Authorization", "Bearer canary-credential")
	b.send(http.MethodPost, "/orders?q=canary-query", body, "Idempotency-Key", "canary\u00e4", "Authorization", "Bearer canary-credential")
	b.sendTo(b.admin, http.MethodGet, "/api/operations", "", "Authorization", "Bearer canary-wrong")
	bearer := []string{"Authorization", "Bearer canary-admin-token-0123456789"}
	b.app.Close()
	b.send(http.MethodPost, "/orders?q=canary-query", body, "Idempotency-Key", "canary-key-3", "Authorization", "Bearer canary-credential")
	b.reload <- struct{}{}
	b.log.wait(t, "reloaded")
	metrics := b.sendTo(b.admin, http.MethodGet, "/metrics", "", bearer...).body
	listed := b.sendTo(b.admin, http.MethodGet, "/api/operations?state=unknown", "", bearer...)
	page := decodePage(t, listed.body)
	if len(page.Operations) != 1 {
		t.Fatalf("%+v", listed)
	}
	decided := b.sendTo(b.admin, http.MethodPost, "/api/operations/"+page.Operations[0].Key+"/discard",
		fmt.Sprintf(`{"by":%q,"reason":%q}`, "ana", "because"), bearer...)
	if decided.status != 200 {
		t.Fatalf("%+v", decided)
	}
	b.halt()
	for name, text := range map[string]string{"log": b.log.String(), "metrics": metrics} {
		if i := strings.Index(text, "canary"); i >= 0 {
			t.Errorf("the %s holds a secret: …%s…", name, text[max(0, i-200):min(len(text), i+100)])
		}
	}
	// The operator sees the client's key and nothing that was carried.
	for _, text := range []string{listed.body, decided.body} {
		for _, secret := range []string{"canary-body", "canary-answer", "canary-header", "canary-cookie", "canary-credential", "canary-query", "canary-admin"} {
			if strings.Contains(text, secret) {
				t.Errorf("the API shows %s: %s", secret, text)
			}
		}
	}
}

func TestEveryLogLineIsOneJSONObjectWhateverAClientSends(t *testing.T) {
	t.Parallel()
	b := start(t, "log: {level: debug}\n"+holding)
	for _, text := range []string{"\x1b[31mred", "a\tb", "{\"msg\":\"forged\"}", "ü\u202e", "\xff\xfe"} {
		b.raw("POST /orders?" + strings.NewReplacer(" ", "", "\t", "").Replace(text) + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: " + text + "\r\nIdempotency-Key: " + text + "\r\nContent-Length: 0\r\n\r\n")
		b.raw("GET /orders/%0a%1b" + strings.NewReplacer(" ", "", "\t", "").Replace(text) + " HTTP/1.1\r\nHost: " + text + "\r\nConnection: close\r\n\r\n")
	}
	b.app.set("/orders", dies)
	b.post("/orders", `k {"msg":"forged"}`)
	b.halt()
	n := 0
	for line := range strings.Lines(b.log.String()) {
		n++
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil || object["msg"] == "forged" {
			t.Errorf("%v: %s", err, line)
		}
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("control characters: %q", line)
		}
	}
	if n < 4 {
		t.Errorf("%d lines", n)
	}
}

func TestARequestKeepsTheIDItCameWith(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.post("/orders", "k-1", "X-Request-Id", "req-42.a_B")
	b.post("/orders", "k-2", "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "X-Request-Id", "other")
	b.log.wait(t, `"correlation":"req-42.a_B"`)
	b.log.wait(t, `"correlation":"4bf92f3577b34da6a3ce929d0e0e4736"`)
	b.post("/orders", "k-3", "X-Request-Id", "two words")
	b.post("/orders", "k-4", "X-Request-Id", strings.Repeat("x", 65))
	if log := b.log.String(); strings.Contains(log, "two words") || strings.Contains(log, "xxxxx") {
		t.Error("an id that is none was taken")
	}
}

func TestAServerSaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	taken := strings.TrimPrefix(b.requests, "http://")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(b.text(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	corrupt := filepath.Join(dir, "corrupt.db")
	if err := os.WriteFile(corrupt, bytes.Repeat([]byte("not a database. "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		options Options
		want    string
	}{
		"missing file":    {Options{File: filepath.Join(dir, "nope.yaml")}, "no such file"},
		"faults":          {Options{File: write("faults.yaml", "store: sqlite:x.db\n")}, "faults.yaml: 2 faults"},
		"taken address":   {Options{File: write("taken.yaml", "store: sqlite:"+filepath.Join(dir, "a.db")+"\n"+holding), Listen: taken}, "address already in use"},
		"no folder":       {Options{File: write("folder.yaml", "store: sqlite:"+filepath.Join(dir, "no/such/a.db")+"\n"+holding)}, "does not exist"},
		"corrupt":         {Options{File: write("corrupt.yaml", "store: sqlite:"+corrupt+"\n"+holding), Listen: "127.0.0.1:0"}, "corrupt.db"},
		"admin to others": {Options{File: write("admin.yaml", "store: sqlite:"+filepath.Join(dir, "b.db")+"\n"+holding), AdminListen: "0.0.0.0:0"}, "set admin.token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.options.Out, c.options.Log = io.Discard, io.Discard
			if c.options.AdminListen == "" {
				c.options.AdminListen = "127.0.0.1:0"
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := Serve(ctx, c.options)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			var faulty *ConfigError
			if (name == "faults") != errors.As(err, &faulty) {
				t.Errorf("a configuration error: %v", err)
			}
		})
	}
}

func TestWhatNoRouteTakesIsAnsweredByAProblemAndLogged(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	for _, tc := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{http.MethodPost, "/nothing-here", 404, ""},
		{http.MethodDelete, "/orders", 405, "GET, HEAD, POST"},
	} {
		got := b.send(tc.method, tc.path, "{}")
		var problem struct {
			Status int
			Title  string
			Detail string
		}
		if err := json.Unmarshal([]byte(got.body), &problem); err != nil {
			t.Errorf("%s %s: %v: %s", tc.method, tc.path, err, got.body)
		}
		if got.status != tc.status || problem.Status != tc.status || problem.Title == "" || problem.Detail == "" ||
			got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Allow") != tc.allow {
			t.Errorf("%s %s: %+v", tc.method, tc.path, got)
		}
		b.log.wait(t, fmt.Sprintf(`"path":%q,"status":%d,"state":"no-route"`, tc.path, tc.status))
	}
	if got := b.send(http.MethodGet, "/orders//17", ""); got.status == 404 {
		t.Errorf("the way to a clean path: %+v", got)
	}
}

func TestAReloadSaysWhenKeysMayBelongToOthers(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.edit("unknown: hold", "unknown: retry")
	b.reload <- struct{}{}
	b.log.wait(t, `"msg":"reloaded"`)
	if strings.Contains(b.log.String(), "auth has changed") {
		t.Error("a warning about auth, which is as it was")
	}
	b.edit("mode: single_tenant", "mode: credential, tenant: acme")
	b.reload <- struct{}{}
	b.log.wait(t, "auth has changed")
}
