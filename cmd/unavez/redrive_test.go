package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// gridFile is a sender of batches.
const gridFile = `
store: ${STORE}
unsafe: ["${UNSAFE}"]
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {lease: 2s, poll: 20ms, concurrency: 64}
sources:
  - {name: grid, contract: event-grid, path: /in/grid, secrets: [grid-secret-canary], token: {query: code}, types: [Shop.*]}
effects:
  - {name: order.import.v1, send: {url: "APP/imports", timeout: 5s}, unknown: retry, lease: 5s, retry: {first: 20ms, longest: 100ms}}
`

// Many dead operations (ten thousand with UNAVEZ_LONG) are redriven by a filter. The
// server is killed in the middle, and so is the command; the same command goes on,
// and nothing happens twice.
func TestManyDeadAreRedrivenOnceThoughServerAndCommandAreKilled(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		many, rate := 1_500, 500
		if os.Getenv("UNAVEZ_LONG") != "" {
			many, rate = 10_000, 2_500
		}
		app := newImports(t)
		app.then(func(w http.ResponseWriter, r *http.Request, _ func() bool) {
			if strings.HasSuffix(r.Header.Get("Unavez-Subject"), "other") {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusUnprocessableEntity)
		})
		configure(t, dir, strings.ReplaceAll(gridFile, "APP", app.URL))
		s := serve(t, dir, env...)
		const batch = 250
		for b := range many / batch {
			var events []string
			for i := range batch {
				events = append(events, fmt.Sprintf(`{"topic":"/t","subject":"o","id":"%d-%d","eventType":"Shop.Paid","eventTime":"2026-11-30T12:00:00Z","data":{},"dataVersion":"1"}`, b, i))
			}
			if b == 0 {
				events = append(events, `{"topic":"/t","subject":"other","id":"other","eventType":"Shop.Paid","eventTime":"2026-11-30T12:00:00Z","data":{},"dataVersion":"1"}`)
			}
			r, err := send(t, http.MethodPost, s.requests+"/in/grid?code=grid-secret-canary", "["+strings.Join(events, ",")+"]", "Aeg-Event-Type", "Notification")
			if got := must(t, r, err); got.status != 200 {
				t.Fatalf("%+v", got)
			}
		}
		died := `unavez_entries_total{effect="order.import.v1",state="dead"}`
		eventually(t, "all are dead", func() bool { return s.metric(died) == fmt.Sprint(many+1) })
		app.then(nil)
		before, _ := app.count()
		until := time.Now().UTC().Format(time.RFC3339Nano)
		args := []string{"ops", "redrive", "--until", until, "--source", "grid", "--contains", "answered 422", "--rate", fmt.Sprint(rate), "--by", "ana", "--reason", "mended"}
		effects := func() int { _, n := app.count(); return n }

		// Over the server, which is killed.
		over := make(chan result, 1)
		begun := time.Now()
		go func() { over <- invoke(t, dir, env, append(args, "--admin", s.admin)...) }()
		eventually(t, "some are redriven", func() bool { return effects() > many/10 })
		s.signal(syscall.SIGKILL)
		s.end()
		if got := <-over; got.code != 1 || !strings.Contains(got.out, "to go on after an interruption: unavez ops redrive --until "+until) {
			t.Errorf("cut off: %+v", got)
		}
		some := effects()
		if took := time.Since(begun); some >= many || float64(some) > float64(rate)*(took.Seconds()+1) {
			t.Errorf("%d in %v", some, took)
		}
		s = serve(t, dir, env...)

		// On the store beside it, by a process that is killed too.
		command := exec.Command(binary, append(args, "--config", "unavez.yaml")...)
		command.Dir, command.Env = dir, append(command.Environ(), env...)
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "some more", func() bool { return effects() > some+many/10 })
		if err := command.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = command.Wait() // it was killed
		if got := effects(); got >= many {
			t.Errorf("%d effects: the command was too fast to be killed", got)
		}
		if got := invoke(t, dir, env, append(args, "--admin", s.admin)...); got.code != 0 || !strings.Contains(got.out, "done: ") {
			t.Fatalf("to the end: code %d, %s", got.code, got.err)
		}
		eventually(t, "each has taken effect", func() bool { return effects() == many })
		eventually(t, "nothing is unfinished but the other one", func() bool {
			got := invoke(t, dir, nil, "ops", "list", "--admin", s.admin, "--json")
			return strings.Count(got.out, `"state"`) == 1 && strings.Contains(got.out, `"dead"`)
		})
		if got := invoke(t, dir, env, append(args, "--admin", s.admin)...); !strings.Contains(got.out, "done: 0 operations redriven") {
			t.Errorf("once more: %+v", got)
		}
		app.mu.Lock()
		twice := 0
		for _, n := range app.effects {
			if n > 1 {
				twice++
			}
		}
		app.mu.Unlock()
		calls, _ := app.count()
		// A call whose worker was killed under it is made once more, with its key.
		if calls-before-many > 2*64 || twice > 2*64 {
			t.Errorf("%d calls for %d operations, %d of them twice", calls-before, many, twice)
		}
		audited(t, dir, env)
	})
}
