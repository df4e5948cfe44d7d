package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	program "github.com/unavez/unavez/server"
)

func TestTheSameOrderTwiceIsOneOrderAndOneAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	first, second := post(t, s, "order-1"), post(t, s, "order-1")
	if first.status != 201 || first.header.Get("Idempotent-Replayed") != "" || first.header.Get("Unavez-Example") != "orders" {
		t.Errorf("first: %+v", first)
	}
	if second.status != 201 || second.body != first.body || second.header.Get("Idempotent-Replayed") != "true" || second.header.Get("Location") != first.header.Get("Location") || len(second.header["Unavez-Example"]) != 1 {
		t.Errorf("second: %+v", second)
	}
	if n := orders(t, s); n != 1 {
		t.Errorf("%d orders", n)
	}
	r, err := send(t, http.MethodGet, s.requests+first.header.Get("Location"), "")
	if got := must(t, r, err); got.body != first.body {
		t.Errorf("the order is shown as %s", got.body)
	}
	s.signal(syscall.SIGTERM)
	if code := s.end(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}

func TestAnOrderWhoseWorkerWasKilledInTheMiddleIsMadeOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir)
	post(t, s, "order-1")
	lost := make(chan error, 1)
	go func() {
		_, err := send(t, http.MethodPost, s.requests+"/orders", order, "Idempotency-Key", "order-2", "Example-Pause", "8s")
		lost <- err
	}()
	s.wait("the example pauses")
	s.signal(syscall.SIGKILL)
	s.end()
	if err := <-lost; err == nil {
		t.Error("an answer came from a killed process")
	}
	s = serve(t, dir)
	if n := orders(t, s); n != 1 {
		t.Errorf("%d orders after the kill", n)
	}
	first, second := post(t, s, "order-2"), post(t, s, "order-2")
	if first.status != 201 || second.body != first.body || orders(t, s) != 2 {
		t.Errorf("first %+v, second %+v, %d orders", first, second, orders(t, s))
	}
	if again := post(t, s, "order-1"); again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the order from before the kill: %+v", again)
	}
}

func TestThePrintedCommandsWork(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	printed, err := os.ReadFile(s.out)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(printed), "\\\n", "")
	if strings.Count(text, "EXAMPLE") != 4 || !strings.Contains(text, s.requests) || !strings.Contains(text, s.admin) {
		t.Errorf("start lines:\n%s", text)
	}
	quoted := regexp.MustCompile(`'([^']*)'|(\S+)`)
	var id string
	n := 0
	for line := range strings.Lines(text) {
		words := quoted.FindAllStringSubmatch(line, -1)
		if len(words) == 0 || words[0][0] != "curl" {
			continue
		}
		n++
		method, url, body := http.MethodGet, "", ""
		var header []string
		for i := 1; i < len(words); i++ {
			word := words[i][1] + words[i][2]
			switch word {
			case "-i":
			case "-H", "-d":
				i++
				value := words[i][1] + words[i][2]
				if word == "-d" {
					method, body = http.MethodPost, value
				} else {
					name, value, _ := strings.Cut(value, ": ")
					header = append(header, name, value)
				}
			default:
				url = strings.ReplaceAll(word, "$order", id)
			}
		}
		for i, name := range header {
			if name == "Example-Pause" {
				header[i+1] = "1ms"
			}
		}
		r, err := send(t, method, url, body, header...)
		got := must(t, r, err)
		want := map[string]int{"GET": 200, "POST": 201}[method]
		if strings.Contains(url, "/in/") {
			want = 200
		}
		if got.status != want {
			t.Errorf("%s\ngave %+v", line, got)
		}
		if id == "" {
			id = strings.TrimPrefix(got.header.Get("Location"), "/orders/")
		}
	}
	if n != 10 || orders(t, s) != 2 {
		t.Errorf("%d commands, %d orders", n, orders(t, s))
	}
	var received struct {
		Imports []struct{ Payment, ExternalID string }
		Notices []struct{ Type string }
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		r, err := send(t, http.MethodGet, s.requests+"/imports", "")
		if err := json.Unmarshal([]byte(must(t, r, err).body), &received); err != nil {
			t.Fatal(err)
		}
		if len(received.Imports) == 1 && received.Imports[0].Payment == "paid" && len(received.Notices) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("received: %+v", received)
		}
		runtime.Gosched()
	}
}

func TestTheSessionOfTheReadmeIsTheRealOne(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	// What differs from run to run.
	mask := regexp.MustCompile(`ord_[a-z0-9]{26}|(?m:^Date: .*$)`).ReplaceAllString
	shown := regexp.MustCompile("(?s)(HTTP/1\\.1 .*?)\n```").FindAllStringSubmatch(string(page), -1)
	s := serve(t, t.TempDir())
	quantities := []string{"2", "2", "9"}
	if len(shown) != len(quantities) {
		t.Fatalf("%d answers are shown, want %d", len(shown), len(quantities))
	}
	for i, quantity := range quantities {
		r, err := send(t, http.MethodPost, s.requests+"/orders",
			`{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":`+quantity+`,"unit_price":1500}]}`, "Idempotency-Key", "order-1")
		got := must(t, r, err)
		var lines []string
		for name, values := range got.header {
			for _, v := range values {
				lines = append(lines, mask(name+": "+v, "x"))
			}
		}
		head, body, _ := strings.Cut(shown[i][1], "\n\n")
		status, fields, _ := strings.Cut(head, "\n")
		if want := fmt.Sprintf("HTTP/1.1 %d %s", got.status, http.StatusText(got.status)); status != want {
			t.Errorf("answer %d begins with %q, want %q", i+1, status, want)
		}
		want := strings.Split(mask(fields, "x"), "\n")
		slices.Sort(lines)
		slices.Sort(want)
		if diff := cmp.Diff(lines, want); diff != "" {
			t.Errorf("the header of answer %d, -real +README:\n%s", i+1, diff)
		}
		if diff := cmp.Diff(strings.TrimSpace(mask(got.body, "x")), strings.TrimSpace(mask(body, "x"))); diff != "" {
			t.Errorf("the body of answer %d, -real +README:\n%s", i+1, diff)
		}
	}
}

func TestAPausedOrderEndsBeforeTheProcessDoesAndASecondSignalEndsItAtOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	answered := make(chan reply, 1)
	go func() {
		r, _ := send(t, http.MethodPost, s.requests+"/orders", order, "Idempotency-Key", "order-1", "Example-Pause", "500ms")
		answered <- r
	}()
	s.wait("the example pauses")
	s.signal(syscall.SIGINT)
	if got := <-answered; got.status != 201 {
		t.Errorf("answered %+v", got)
	}
	if code := s.end(); code != 0 {
		t.Errorf("ended with %d", code)
	}

	s = serve(t, t.TempDir())
	go func() {
		r, _ := send(t, http.MethodPost, s.requests+"/orders", order, "Idempotency-Key", "order-1", "Example-Pause", "8s")
		answered <- r
	}()
	s.wait("the example pauses")
	s.signal(syscall.SIGTERM)
	s.wait(`"msg":"stopping"`)
	begun := time.Now()
	s.signal(syscall.SIGTERM)
	s.end()
	if took := time.Since(begun); took > 6*time.Second || s.cmd.ProcessState.ExitCode() != exitSignal {
		t.Errorf("ended after %v, exit %d", took, s.cmd.ProcessState.ExitCode())
	}
	if got := <-answered; got.status != 0 {
		t.Errorf("answered %+v", got)
	}
}

// application dies in the middle of its first answers.
func application(t *testing.T, deaths int) (url string, calls func() int) {
	var mu sync.Mutex
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // it has arrived whole
		mu.Lock()
		n++
		die := n <= deaths
		mu.Unlock()
		if !die {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "made")
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_ = c.Close() // it is what the test is about
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

func configure(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "unavez.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnOperatorSettlesAnUnknownOperationWithTheServerRunningOrNot(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprint("running ", running), func(t *testing.T) {
			t.Parallel()
			app, calls := application(t, 3)
			dir := t.TempDir()
			configure(t, dir, `
store: sqlite:unavez.db
admin: {token: "${ADMIN}"}
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
http: [{route: POST /orders, upstream: "`+app+`", unknown: hold}]
`)
			const token = "an-admin-token-of-some-length"
			s := serve(t, dir, "ADMIN="+token)
			for _, key := range []string{"k-1", "k-2", "k-3"} {
				if got := post(t, s, key); got.status != 409 {
					t.Fatalf("%s: %+v", key, got)
				}
			}
			where, env := []string{"--admin", s.admin}, []string{"UNAVEZ_ADMIN_TOKEN=" + token}
			if !running {
				s.signal(syscall.SIGTERM)
				s.end()
				where, env = []string{"--config", "unavez.yaml"}, []string{"ADMIN=" + token}
			}
			ops := func(args ...string) result {
				return invoke(t, dir, env, append(append([]string{"ops"}, args...), where...)...)
			}
			if got := ops("list"); got.code != 0 || strings.Count(got.out, "unknown") != 3 || !strings.Contains(got.out, "/http//k-1") {
				t.Errorf("list: %+v", got)
			}
			var page struct{ Operations []struct{ Key, State string } }
			if got := ops("list", "--state", "unknown", "--json", "--limit", "2"); json.Unmarshal([]byte(got.out), &page) != nil || len(page.Operations) != 2 {
				t.Errorf("list as JSON: %+v", got)
			}
			if got := invoke(t, dir, nil, "ops", "list", "--store", "unavez.db"); got.code != 0 || strings.Count(got.out, "unknown") != 3 {
				t.Errorf("list from the store directly: %+v", got)
			}
			if got := ops("show", "/http//k-1"); got.code != 0 || !strings.Contains(got.out, "POST /orders") || !strings.Contains(got.out, "complete (it did)") {
				t.Errorf("show: %+v", got)
			}
			if got := ops("discard", "/http//k-1"); got.code != 2 || !strings.Contains(got.err, "--reason") {
				t.Errorf("without a reason: %+v", got)
			}
			if got := ops("redrive", "/http//k-1", "--reason", "r", "--by", "ana"); got.code != 1 || !strings.Contains(got.err, "not in a state") {
				t.Errorf("redrive of an unknown one: %+v", got)
			}
			file := filepath.Join(dir, "answer.json")
			if err := os.WriteFile(file, []byte(`{"id":17}`), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := ops("complete", "/http//k-1", "--by", "ana", "--reason", "it is there", "--status", "201", "--header", "Location: /x", "--body", "@"+file); got.code != 0 || !strings.Contains(got.out, "by ana: it is there") {
				t.Errorf("complete: %+v", got)
			}
			if got := ops("release", "/http//k-2", "--reason", "it is not there", "--json"); got.code != 0 || !strings.Contains(got.out, `"retryable"`) {
				t.Errorf("release: %+v", got)
			}
			if got := ops("discard", page.Operations[0].Key, "--reason", "once more"); got.code != 1 {
				t.Errorf("discard of a completed one: %+v", got)
			}
			if got := ops("discard", "/http//k-3", "--reason", "not wanted"); got.code != 0 {
				t.Errorf("discard: %+v", got)
			}
			if !running {
				s = serve(t, dir, "ADMIN="+token)
			}
			one, two, three := post(t, s, "k-1"), post(t, s, "k-2"), post(t, s, "k-3")
			if one.status != 201 || one.body != `{"id":17}` || one.header.Get("Location") != "/x" || one.header.Get("Content-Type") != "application/json" {
				t.Errorf("completed: %+v", one)
			}
			if two.status != 201 || two.body != "made" || three.status != 409 || calls() != 4 {
				t.Errorf("released %+v, discarded %+v, %d calls", two, three, calls())
			}
		})
	}
}

func TestCheckReportsEveryFaultAndTheExitCodesTellThemApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, err := os.ReadFile("testdata/faults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	configure(t, dir, string(data))
	got := invoke(t, dir, nil, "check", "unavez.yaml")
	if *rewrite {
		if err := os.WriteFile("testdata/faults.golden", []byte(got.err), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/faults.golden")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.err); diff != "" || got.code != 1 || got.out != "" {
		t.Errorf("exit %d, -want +got:\n%s", got.code, diff)
	}
	if served := invoke(t, dir, nil, "serve"); served.code != 1 || served.err != got.err {
		t.Errorf("serve says otherwise: %+v", served)
	}
	if _, err := os.Stat(filepath.Join(dir, "unavez.db")); err == nil {
		t.Error("a refused configuration made a store")
	}
	configure(t, dir, program.Sample())
	if got := invoke(t, dir, nil, "check", "unavez.yaml"); got.code != 0 || got.out != "unavez.yaml: ok\n" {
		t.Errorf("a good one: %+v", got)
	}
	for want, args := range map[int][][]string{
		0: {{"--help"}, {"version"}, {"ops", "--help"}, {"serve", "--help"}, {"ops"}, {}, {"migrate", "--store", "new.db"}, {"migrate"}},
		1: {{"ops", "list", "--store", "nope.db"}, {"ops", "list", "--admin", "http://127.0.0.1:1"}, {"ops", "show", "nonsense", "--store", "new.db"}},
		2: {
			{"check"},
			{"check", "nope.yaml"},
			{"serve", "nope.yaml"},
			{"migrate", "nope.yaml"},
			{"migrate", "--config", "nope.yaml"},
			{"ops", "list", "--config", "nope.yaml"},
			{"migrate", "--config", "unavez.yaml", "--store", "new.db"},
			{"migrate", "unavez.yaml", "--config", "unavez.yaml"},
			{"migrate", "a", "b"},
			{"ops", "list", "--config", "unavez.yaml", "--store", "new.db"},
			{"serve", "a", "b"},
			{"serve", "--nope"},
			{"ops", "complete", "x", "--reason", "r"},
			{"ops", "list", "--limit", "0"},
			{"nope"},
			{"ops", "nope"},
		},
	} {
		for _, a := range args {
			if got := invoke(t, dir, nil, a...); got.code != want {
				t.Errorf("unavez %s: %+v, want exit %d", strings.Join(a, " "), got, want)
			}
		}
	}
}

func TestMigrateTakesTheConfigurationOfTheFolderAndSaysWhatItDid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := invoke(t, dir, nil, "migrate"); got.code != 2 || !strings.Contains(got.err, "there is no ./unavez.yaml (give FILE or --store STORE)") {
		t.Errorf("no store at all: %+v", got)
	}
	configure(t, dir, program.Sample())
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "unavez.db was made: schema version 0 → "},
		{[]string{"unavez.yaml"}, "unavez.db: nothing to do, the schema is at version "},
		{[]string{"--config", "unavez.yaml"}, "unavez.db: nothing to do, "},
		{[]string{"--store", "sqlite:unavez.db"}, "unavez.db: nothing to do, "},
		{[]string{"--store", "other.db"}, "other.db was made: schema version 0 → "},
	} {
		if got := invoke(t, dir, nil, append([]string{"migrate"}, c.args...)...); got.code != 0 || !strings.HasPrefix(got.out, c.want) || got.err != "" {
			t.Errorf("%v: %+v, want %q", c.args, got, c.want)
		}
	}
}

func TestWrongArgumentsAreToldInOurWords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"unavez: check: FILE is missing (unavez check FILE":                           {"check"},
		"unavez: ops show: OPERATION is missing":                                      {"ops", "show"},
		"unavez: analyze: CHART is missing":                                           {"analyze"},
		`unavez: serve: "b" is one argument too many (unavez serve [FILE]`:            {"serve", "a", "b"},
		`unavez: version: "x" is one argument too many`:                               {"version", "x"},
		`unavez: there is no command "nope"`:                                          {"nope"},
		`unavez: ops: there is no command "nope"`:                                     {"ops", "nope"},
		`--format: "xml", want text or json`:                                          {"audit", "--format", "xml"},
		"--page: -1, want 1 or more":                                                  {"audit", "--page", "-1"},
		"--roles opens no store":                                                      {"migrate", "--roles", "--store", "x"},
		"FILE and --config name two configurations":                                   {"migrate", "a", "--config", "b"},
		"--store and a configuration name two stores: give one":                       {"doctor", "unavez.yaml", "--store", "x.db"},
		"--lease: name the --store that it stands in front of":                        {"doctor", "--lease", "redis://127.0.0.1:1"},
		"new-incarnation: want a PostgreSQL store":                                    {"ops", "new-incarnation", "--store", "x.db"},
		"configuration: open nope.yaml: no such file or directory\nsee unavez --help": {"audit", "nope.yaml"},
	} {
		if got := invoke(t, dir, nil, args...); got.code != exitUsage || !strings.Contains(got.err, want) || got.out != "" {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
}

func TestAHangupTakesANewConfigurationOver(t *testing.T) {
	t.Parallel()
	app, _ := application(t, 0)
	dir := t.TempDir()
	text := "store: sqlite:unavez.db\nauth: {mode: single_tenant}\noutbound: {allow: [127.0.0.1/32]}\nhttp: [{route: POST /orders, upstream: \"" + app + "\", unknown: hold}]\n"
	configure(t, dir, text)
	s := serve(t, dir)
	configure(t, dir, strings.Replace(text, "/orders", "/sales", 1))
	s.signal(syscall.SIGHUP)
	s.wait(`"msg":"reloaded"`)
	if got := post(t, s, "k-1"); got.status != 404 && got.status != 405 {
		t.Errorf("the old route: %+v", got)
	}
	configure(t, dir, strings.Replace(text, "unknown: hold", "unknow: hold", 1))
	s.signal(syscall.SIGHUP)
	if line := s.wait("configuration refused"); !strings.Contains(line, "did you mean unknown") {
		t.Errorf("refused with %s", line)
	}
	r, err := send(t, http.MethodPost, s.requests+"/sales", "{}", "Idempotency-Key", "k-2")
	if got := must(t, r, err); got.status != 201 {
		t.Errorf("the old configuration does not go on: %+v", got)
	}
}

func TestACallThatWasUnderWayWhenTheWorkerWasKilledIsHeldAndNotRepeated(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer app.Close()
	defer close(release)
	dir := t.TempDir()
	configure(t, dir, "store: sqlite:unavez.db\nauth: {mode: single_tenant}\noutbound: {allow: [127.0.0.1/32]}\nhttp: [{route: POST /orders, upstream: \""+app.URL+"\", unknown: hold, lease: 1s}]\n")
	s := serve(t, dir)
	lost := make(chan error, 1)
	go func() {
		_, err := send(t, http.MethodPost, s.requests+"/orders", order, "Idempotency-Key", "k-1")
		lost <- err
	}()
	<-arrived
	s.signal(syscall.SIGKILL)
	s.end()
	<-lost
	s = serve(t, dir)
	s.wait("lease ran out")
	if got := post(t, s, "k-1"); got.status != 409 || !strings.Contains(got.body, "outcome-unknown") {
		t.Errorf("after the kill: %+v", got)
	}
	if len(arrived) > 0 {
		t.Error("the call was repeated")
	}
}
