package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// troubleFile orders by resource and version.
const troubleFile = `
store: ${STORE}
unsafe: ["${UNSAFE}"]
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
inbox: {poll: 20ms}
sources:
  - {name: shop, contract: hmac, path: /in/shop, secrets: [` + hush + `], types: [order/*], signing: {header: X-Signature},
     event: {id: [header.X-Event-Id], type: header.X-Event-Type, subject: [body.id], version: body.version}, window: 1h}
effects:
  - {name: order.sync.v1, order_by: [data.id], version: version, send: {url: APP/sync, timeout: 5s}, unknown: hold, retry: {first: 50ms, longest: 200ms, attempts: 1000}}
`

// The trouble of one resource is its own: others go on, whatever it answers. An old
// version is stale, an equal one with other content is not, and a target that asks
// for time gets it.
func TestTheTroubleOfOneResourceIsItsOwn(t *testing.T) {
	onStores(t, func(t *testing.T, dir string, env []string) {
		var mu sync.Mutex
		done, calls, first, again := map[string][]string{}, map[string]int{}, time.Time{}, time.Time{}
		poisoned := true
		app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // what is cut off is not what is compared
			id := r.Header.Get("Unavez-Subject")
			mu.Lock()
			defer mu.Unlock()
			calls[id]++
			switch {
			case id == "poison" && poisoned:
				w.WriteHeader(http.StatusTooManyRequests)
				return
			case id == "busy" && first.IsZero():
				first = time.Now()
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			case id == "busy":
				again = time.Now()
			}
			done[id] = append(done[id], string(body))
			w.WriteHeader(http.StatusNoContent)
		}))
		defer app.Close()
		configure(t, dir, strings.ReplaceAll(troubleFile, "APP", app.URL))
		s := serve(t, dir, env...)
		// state is that of the effects, by metric; counts start with the process.
		state := func(name string) string {
			return s.metric(`unavez_entries_total{effect="order.sync.v1",state="` + name + `"}`)
		}
		s.taken("p-1", `{"id":"poison","version":1}`)
		s.taken("b-1", `{"id":"busy","version":1}`)
		eventually(t, "the poison was tried", func() bool { mu.Lock(); defer mu.Unlock(); return calls["poison"] > 2 })
		s.taken("p-2", `{"id":"poison","version":2}`) // waits behind it
		const others = 50
		for i := range others {
			s.taken(fmt.Sprint("o-", i), fmt.Sprintf(`{"id":"o%d","version":1}`, i))
		}
		eventually(t, "the others have ended", func() bool { mu.Lock(); defer mu.Unlock(); return len(done) >= others })
		mu.Lock()
		if len(done["poison"]) != 0 {
			t.Errorf("poison: %q", done["poison"])
		}
		mu.Unlock()
		// Versions 3, 1, 2 of one resource; then another content of version 3.
		for i, version := range []int{3, 1, 2, 3} {
			s.taken(fmt.Sprint("v-", i), fmt.Sprintf(`{"id":"v","version":%d,"n":%d}`, version, i))
		}
		eventually(t, "two are stale", func() bool { return state("stale") == "2" })
		eventually(t, "the equal version is applied", func() bool { mu.Lock(); defer mu.Unlock(); return len(done["v"]) == 2 })
		mu.Lock()
		if got := done["v"]; !strings.Contains(got[0], `"n":0`) || !strings.Contains(got[1], `"n":3`) {
			t.Errorf("%q", got)
		}
		poisoned = false
		mu.Unlock()
		eventually(t, "all have ended", func() bool { mu.Lock(); defer mu.Unlock(); return len(done["poison"]) == 2 && len(done["busy"]) == 1 })
		mu.Lock()
		if got := done["poison"]; !strings.Contains(got[0], `"version":1`) || !strings.Contains(got[1], `"version":2`) {
			t.Errorf("out of order: %q", got)
		}
		if wait := again.Sub(first); wait < 2*time.Second || calls["busy"] != 2 {
			t.Errorf("called again after %v, %d calls", wait, calls["busy"])
		}
		mu.Unlock()
		audited(t, dir, env)
	})
}
