package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
)

const alertSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// alerting tells conditions to the application.
const alerting = `alerts: {url: "APP/alerts", secrets: ["` + alertSecret + `"], headers: {X-Team: orders}}
`

// told is an alert as its receiver got it.
type told struct {
	id    string
	Type  string
	Data  struct{ Kind, Owner, Source, Effect, Key, Text string }
	valid error
}

// hook collects alerts; it fails as often as it is told to.
type hook struct {
	mu    sync.Mutex
	all   []told
	fails int
}

func (h *hook) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails > 0 {
		h.fails--
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	body, _ := io.ReadAll(r.Body) // what is cut off is not valid
	one := told{id: r.Header.Get("Webhook-Id")}
	_ = json.Unmarshal(body, &one)
	_, one.valid = source.StandardWebhooks("").Verify(r.Context(), &source.Config{Secrets: []source.Secret{source.NewSecret("s", alertSecret)}},
		&source.Request{Method: "POST", Header: r.Header, Body: body, At: time.Now()})
	h.all = append(h.all, one)
}

// of are the alerts of a type.
func (h *hook) of(kind string) (list []told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range h.all {
		if one.Type == kind {
			list = append(list, one)
		}
	}
	return list
}

func TestAConditionIsToldOnceHoweverManyWorkersNoticeIt(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		app, h := newApp(t), &hook{fails: 2}
		app.set("/alerts", h.serve)
		first := startOn(t, app, place, alerting+shop)
		second := startOn(t, app, place, alerting+shop)
		first.deliver("e-1", "order/created", `{"id":1,"version":1}`)
		for _, b := range []*bed{first, second, first} { // another content under the same identity
			if got := b.deliver("e-1", "order/created", `{"id":1,"version":1,"forged":true}`); got.status != 200 {
				t.Fatalf("%+v", got)
			}
		}
		first.eventually("the alert", func() bool { return len(h.of("unavez.conflict")) == 1 })
		one := h.of("unavez.conflict")[0]
		if one.valid != nil || !strings.HasPrefix(one.id, "uv1-") || one.Data.Source != "shop" || one.Data.Effect != "order.import.v1" || len(one.Data.Key) != 32 || one.Data.Text == "" {
			t.Errorf("%+v", one)
		}
		sent := func() int {
			n := 0
			for _, b := range []*bed{first, second} {
				var v int
				_, _ = fmt.Sscan(b.metric(`unavez_alerts_total{result="sent"}`), &v)
				n += v
			}
			return n
		}
		first.eventually("it is counted", func() bool { return sent() == 1 })

		app.set("/imports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
		first.deliver("e-2", "order/created", `{"id":2,"version":1}`)
		first.eventually("the dead letter is told", func() bool { return len(h.of("unavez.dead")) == 1 })
		if dead := h.of("unavez.dead")[0]; dead.Data.Owner != "orders-team" || dead.valid != nil || !strings.Contains(dead.Data.Text, "order.import.v1/2") {
			t.Errorf("%+v", dead)
		}
		app.set("/imports", nil)
		if got := first.sendTo(first.admin, http.MethodPost, "/api/operations/"+h.of("unavez.dead")[0].Data.Key+"/redrive", `{"by":"ana","reason":"mended"}`); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		first.eventually("its end is told", func() bool { return len(h.of("unavez.dead.over")) == 1 })
		for _, b := range []*bed{first, second} {
			b.halt() // what a worker still has to tell it tells before it ends
		}
		for kind, want := range map[string]int{"unavez.conflict": 1, "unavez.dead": 1, "unavez.dead.over": 1} {
			if got := h.of(kind); len(got) != want {
				t.Errorf("%s was told %d times", kind, len(got))
			}
		}
	})
}

func TestASilentSourceIsToldOnceAndClearedByItsNextEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		app, h := newApp(t), &hook{}
		app.set("/alerts", h.serve)
		configuration := strings.Replace(alerting+shop, "    types: [order/*]", "    types: [order/*]\n    silence: 10s", 1)
		first := startOn(t, app, place, configuration)
		second := startOn(t, app, place, configuration)
		first.deliver("e-1", "order/created", `{"id":1,"version":1}`)
		first.eventually("the silence is told", func() bool { return len(h.of("unavez.silent")) == 1 })
		if one := h.of("unavez.silent")[0]; one.Data.Source != "shop" || one.valid != nil {
			t.Errorf("%+v", one)
		}
		second.deliver("e-2", "order/created", `{"id":2,"version":1}`)
		second.eventually("it is over", func() bool { return len(h.of("unavez.silent.over")) == 1 })
		first.halt()
		second.halt()
		if n := len(h.of("unavez.silent")); n != 1 {
			t.Errorf("told %d times", n)
		}
	})
}

// A flood of conditions is told by number, so that the receiver is not flooded.
func TestManyConditionsAreToldByNumber(t *testing.T) {
	t.Parallel()
	h := &hook{}
	b := start(t, alerting+shop)
	b.app.set("/alerts", h.serve)
	b.app.set("/imports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	for i := range alertBurst + 20 {
		b.deliver(fmt.Sprint("e-", i), "order/created", fmt.Sprintf(`{"id":%d,"version":1}`, i+1))
	}
	b.eventually("all are dead", func() bool { return len(b.dead()) == alertBurst+20 })
	b.eventually("the first are told", func() bool { return len(h.of("unavez.dead")) == alertBurst })
	b.halt()
	all := h.of("unavez.dead")
	if last := all[len(all)-1]; len(all) != alertBurst+1 || !strings.Contains(last.Data.Text, "20 more like this") {
		t.Errorf("%d alerts, the last one %+v", len(all), last)
	}
}
