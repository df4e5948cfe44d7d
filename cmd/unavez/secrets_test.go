package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// canaryFile puts a secret or a masked value wherever one can stand.
const canaryFile = `
store: ${STORE}
unsafe: ["${UNSAFE}"]
log: {level: debug}
admin: {token: "${ADMIN}"}
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {poll: 20ms}
alerts: {url: APP/alerts, secrets: ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], headers: {X-Team: header-canary}}
sources:
  - name: hub
    contract: github
    path: /in/hub
    secrets: [{name: old, value: old-secret-canary}]
    types: [push, issues]
    mask: [$.customer.email]
    subject: ["has(data.customer) ? [data.customer.id] : []"]
effects:
  - name: order.import.v1
    when: type == "push"
    send: {url: "APP/imports", headers: {Authorization: "Bearer header-canary"}, secrets: ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}
    unknown: retry
    retry: {first: 20ms, longest: 100ms, attempts: 3}
`

// hub sends a delivery of GitHub.
func (s *child) hub(secret, id, kind, body string) reply {
	s.t.Helper()
	r, err := send(s.t, http.MethodPost, s.requests+"/in/hub", body, "X-Hub-Signature-256", "sha256="+signed(secret, body),
		"X-GitHub-Delivery", id, "X-GitHub-Event", kind, "Authorization", "Bearer header-canary", "Cookie", "c=header-canary")
	return must(s.t, r, err)
}

// A secret is rotated by a hangup, a delivery is delivered again by hand, an
// operation dies and is redriven; and nothing that the process says on the way
// shows a secret or a masked value.
func TestNothingThatIsSaidShowsASecretOrAMaskedValue(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		app := newImports(t)
		text := strings.ReplaceAll(canaryFile, "APP", app.URL)
		configure(t, dir, text)
		const admin = "an-admin-token-canary"
		env = append(env, "ADMIN="+admin, "UNAVEZ_ADMIN_TOKEN="+admin)
		s := serve(t, dir, env...)
		said := map[string]string{}
		ops := func(args ...string) result {
			t.Helper()
			got := invoke(t, dir, env, append(append([]string{"ops"}, args...), "--admin", s.admin)...)
			said[fmt.Sprint(len(said), args)] = got.out + got.err
			return got
		}
		metric := func(name string) string {
			r, err := send(t, http.MethodGet, s.admin+"/metrics", "", "Authorization", "Bearer "+admin)
			said["metrics"] = must(t, r, err).body
			for line := range strings.Lines(said["metrics"]) {
				if value, ok := strings.CutPrefix(line, name+" "); ok {
					return strings.TrimSpace(value)
				}
			}
			return ""
		}
		reload := func(old, new string) {
			t.Helper()
			if !strings.Contains(text, old) {
				t.Fatalf("%q is not in the configuration", old)
			}
			text = strings.Replace(text, old, new, 1)
			configure(t, dir, text)
			s.signal(syscall.SIGHUP)
			s.wait(`"msg":"reloaded"`)
		}
		const body = `{"id":1,"customer":{"id":"c-7","email":"canary@example.com"}}`
		if got := s.hub("forged-canary", "g-1", "push", body); got.status != 401 || got.body != "" {
			t.Errorf("forged: %+v", got)
		}
		if got := s.hub("old-secret-canary", "g-1", "push", body); got.status != 200 {
			t.Errorf("%+v", got)
		}
		// Both secrets, then the new one alone.
		reload("secrets: [{name: old, value: old-secret-canary}]", "secrets: [{name: new, value: new-secret-canary}, {name: old, value: old-secret-canary}]")
		if a, b := s.hub("old-secret-canary", "g-1", "push", body), s.hub("new-secret-canary", "g-1", "push", body); a.status != 200 || b.status != 200 {
			t.Errorf("while both hold: %+v %+v", a, b)
		}
		if old, fresh := metric(`unavez_verified_total{source="hub",verified_with="old"}`), metric(`unavez_verified_total{source="hub",verified_with="new"}`); old != "2" || fresh != "1" {
			t.Errorf("verified with the old one %s times, with the new one %s times", old, fresh)
		}
		reload(", {name: old, value: old-secret-canary}]", "]")
		if a, b := s.hub("old-secret-canary", "g-2", "push", body), s.hub("new-secret-canary", "g-2", "push", body); a.status != 401 || b.status != 200 {
			t.Errorf("after the rotation: %+v %+v", a, b)
		}
		completed := func(n int) func() bool {
			return func() bool {
				return strings.Count(ops("list", "--state", "completed", "--effect", "order.import.v1", "--json").out, `"state"`) == n
			}
		}
		eventually(t, "both events", completed(2))
		// A delivery that GitHub is told to send again, and one of another content.
		s.hub("new-secret-canary", "g-1", "push", body)
		s.hub("new-secret-canary", "g-1", "push", strings.Replace(body, "canary@", "second-canary@", 1))
		if calls, n := app.count(); calls < 2 || n != 2 {
			t.Errorf("%d calls, %d effects", calls, n)
		}
		if got := ops("redrive", "/order.import.v1/hub/g-1", "--by", "ana", "--reason", "once more"); got.code != 1 || !strings.Contains(got.err, "it is completed, attempt 1, since") || !strings.Contains(got.err, "answer 204") {
			t.Errorf("redrive of a completed one: %+v", got)
		}
		// One that dies, quotes what it got, and is redriven.
		app.then(func(w http.ResponseWriter, r *http.Request, _ func() bool) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "canary "+r.Header.Get("Authorization")) // as applications do
		})
		s.hub("new-secret-canary", "g-3", "push", body)
		eventually(t, "it is dead", func() bool { return strings.Contains(ops("list", "--state", "dead").out, "/order.import.v1/hub/g-3") })
		s.hub("new-secret-canary", "g-4", "star", body)
		eventually(t, "one is in quarantine", func() bool { return strings.Contains(ops("quarantine", "list").out, "star") })
		if got := ops("show", "/order.import.v1/hub/g-3", "--payload"); got.code != 0 || !strings.Contains(got.out, `"email": "***"`) {
			t.Errorf("show: %+v", got)
		}
		key := ""
		for _, word := range strings.Fields(ops("quarantine", "list").out) {
			if len(word) == 32 && strings.Trim(word, "0123456789abcdef") == "" {
				key = word
			}
		}
		if got := ops("quarantine", "show", key, "--payload", "--json"); got.code != 0 {
			t.Errorf("%+v", got)
		}
		app.then(nil)
		if got := ops("redrive", "/order.import.v1/hub/g-3", "--by", "ana", "--reason", "mended"); got.code != 0 {
			t.Errorf("redrive: %+v", got)
		}
		eventually(t, "it has ended", completed(3))
		if _, n := app.count(); n != 3 {
			t.Errorf("%d effects", n)
		}
		for _, path := range []string{"/", "/api/operations", "/api/blocked", "/api/quarantine", "/readyz"} {
			r, err := send(t, http.MethodGet, s.admin+path, "", "Authorization", "Bearer "+admin)
			said[path] = must(t, r, err).body
		}
		if got := ops("erase", "--subject", "c-7", "--by", "ana", "--reason", "by letter"); got.code != 0 || !strings.HasPrefix(got.out, "4 payloads erased") {
			t.Errorf("erase: %+v", got)
		}
		if got := ops("show", "/order.import.v1/hub/g-1", "--payload"); !strings.Contains(got.out, "erased on a person's demand") {
			t.Errorf("after the erasure: %+v", got)
		}
		s.hub("new-secret-canary", "g-1", "push", body)
		reload("types: [push, issues]", "types: [push]")
		configure(t, dir, strings.Replace(text, "unknown: retry", "unknown: canry", 1))
		s.signal(syscall.SIGHUP)
		s.wait("configuration refused")
		for _, args := range [][]string{{"check", "unavez.yaml"}, {"doctor"}, {"audit"}} {
			got := invoke(t, dir, env, args...)
			said[args[0]] = got.out + got.err
		}
		s.signal(syscall.SIGTERM)
		if code := s.end(); code != 0 {
			t.Errorf("ended with %d", code)
		}
		out, err := os.ReadFile(s.out)
		if err != nil {
			t.Fatal(err)
		}
		said["log"], said["start lines"] = s.log.String(), string(out)
		if _, n := app.count(); n != 3 {
			t.Errorf("%d effects at the end", n)
		}
		if !strings.Contains(said["log"], `"reason":"type","detail":"the source does not accept this type","key":"`+key+`"`) {
			t.Error("the log does not name the item in quarantine")
		}
		for what, text := range said {
			for _, secret := range []string{"canary", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
				if i := strings.Index(text, secret); i >= 0 {
					t.Errorf("%s shows a secret: …%s…", what, text[max(0, i-200):min(len(text), i+60)])
				}
			}
		}
		if strings.HasPrefix(env[0], "STORE=sqlite:") { // nor is one in the file, erased or not
			for _, suffix := range []string{"", "-wal"} {
				data, err := os.ReadFile(strings.TrimPrefix(env[0], "STORE=sqlite:") + suffix)
				if err == nil && bytes.Contains(data, []byte("canary")) {
					t.Errorf("unavez.db%s has a secret", suffix)
				}
			}
		}
	})
}

// A body over its limit is refused however it comes, and what unpacks to a thousand
// times its size is stopped, without the memory for it.
func TestABodyThatIsTooLargeIsRefusedWithoutItsMemory(t *testing.T) {
	t.Parallel()
	app, dir := newImports(t), t.TempDir()
	configure(t, dir, strings.NewReplacer("APP", app.URL, "${UNSAFE}", "sqlite.file_system", "${STORE}", "sqlite:unavez.db").Replace(strings.Replace(canaryFile, "effects:", "  - {name: grid, contract: event-grid, path: /in/grid, secrets: [grid-canary], token: {query: code}, types: [\"*\"]}\neffects:", 1)))
	s := serve(t, dir, "ADMIN=an-admin-token-canary")
	var part bytes.Buffer
	packer := gzip.NewWriter(&part)
	if _, err := packer.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := packer.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := strings.Repeat(part.String(), (1<<20)/part.Len()) // under the limit, and about 1 GiB
	before := peak(t, s)
	for name, c := range map[string]struct {
		body    string
		chunked bool
		header  []string
	}{
		"over the limit":            {body: strings.Repeat("x", 2<<20)},
		"over the limit, in chunks": {body: strings.Repeat("x", 2<<20), chunked: true},
		"unpacks to much more":      {body: bomb, header: []string{"Content-Encoding", "gzip"}},
		"the same, in chunks":       {body: bomb, chunked: true, header: []string{"Content-Encoding", "gzip"}},
	} {
		for path, want := range map[string]int{"/in/hub": 413, "/in/grid?code=grid-canary": 503} {
			header := append([]string{"X-Hub-Signature-256", "sha256=" + signed("old-secret-canary", c.body), "X-GitHub-Delivery", "g-1", "X-GitHub-Event", "push", "Aeg-Event-Type", "Notification"}, c.header...)
			if got := s.raw(path, c.body, c.chunked, header); !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", want)) {
				t.Errorf("%s at %s: %.200q", name, path, got)
			}
		}
	}
	if grown := peak(t, s) - before; grown > 96<<20 {
		t.Errorf("%d MiB more memory", grown>>20)
	}
	if calls, _ := app.count(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
}

// peak is the most memory that a process has had, 0 where the system does not tell.
func peak(t *testing.T, s *child) (bytes int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscan(value, &bytes) // in KiB
		}
	}
	return bytes << 10
}

// raw sends a request as it is and reads the front of the answer.
func (s *child) raw(path, body string, chunked bool, header []string) string {
	s.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.requests, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	var head strings.Builder
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n", path)
	for i := 0; i < len(header); i += 2 {
		fmt.Fprintf(&head, "%s: %s\r\n", header[i], header[i+1])
	}
	if chunked {
		fmt.Fprintf(&head, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	} else {
		fmt.Fprintf(&head, "Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	go func() { _, _ = io.WriteString(c, head.String()) }() // the server may answer and close before it has read all
	answer := make([]byte, 200)
	n, err := io.ReadAtLeast(c, answer, 20)
	if err != nil {
		s.t.Errorf("%s: %v", path, err)
	}
	return string(answer[:n])
}
