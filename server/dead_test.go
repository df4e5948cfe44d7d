package server

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/server/internal/admin"
)

// ops works on the running server.
func (b *bed) ops(do func(*Ops, *bytes.Buffer) error) (string, error) {
	b.t.Helper()
	o, err := OpenOps(b.t.Context(), OpsOptions{Admin: b.admin})
	if err != nil {
		b.t.Fatal(err)
	}
	defer o.Close()
	var out bytes.Buffer
	err = do(o, &out)
	return out.String(), err
}

// dead lists the dead operations.
func (b *bed) dead() []admin.Operation {
	b.t.Helper()
	return page[admin.Page](b, "/api/operations?state=dead&limit=1000").Operations
}

func TestAPermanentFailureIsDeadAtOnceAndRedrivenUnderItsIdentity(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		b.app.set("/imports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) })
		if got := b.deliver("e-1", "order/created", `{"id":1,"version":1}`); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		b.eventually("it is dead", func() bool { return len(b.dead()) == 1 })
		dead := b.dead()[0]
		if b.imports() != 1 || dead.Attempt != 1 || dead.Owner != "orders-team" || dead.Origin != "shop" || !strings.Contains(dead.Reason, "answered 422") {
			t.Errorf("%d imports, %+v", b.imports(), dead)
		}
		first := b.app.last("/imports").Header.Get("Idempotency-Key")
		// Repetitions are acknowledged and change nothing.
		if got := b.deliver("e-1", "order/created", `{"id":1,"version":1}`); got.status != 200 {
			t.Errorf("%+v", got)
		}
		// The later ones of its ordering key wait, others do not.
		b.deliver("e-2", "order/paid", `{"id":1,"version":2}`)
		b.app.set("/imports", nil)
		b.deliver("e-3", "order/created", `{"id":2,"version":1}`)
		b.eventually("another key goes on", func() bool { return b.imports() == 2 })
		blocked := page[admin.BlockedPage](b, "/api/blocked")
		if len(blocked.Blocked) != 1 || blocked.Blocked[0].State != "dead" || blocked.Blocked[0].Operation != dead.Key {
			t.Errorf("%+v", blocked)
		}
		shown, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.Show(t.Context(), out, false, dead.Key, false) })
		if err != nil || !strings.Contains(shown, "answered 422") {
			t.Errorf("%v\n%s", err, shown)
		}
		if text, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.Blocked(t.Context(), out, false, 10) }); err != nil || !strings.Contains(text, dead.Key) {
			t.Errorf("%v\n%s", err, text)
		}
		if _, err := b.ops(func(o *Ops, out *bytes.Buffer) error {
			return o.Act(t.Context(), out, false, dead.Key, Decision{Action: "redrive", By: "ana", Reason: "mended"})
		}); err != nil {
			t.Fatal(err)
		}
		b.eventually("both of its key have ended", func() bool { return b.state("order.import.v1", "completed") == "3" && len(b.dead()) == 0 })
		if got := b.app.last("/imports").Header; got.Get("Idempotency-Key") != first || got.Get("Unavez-Attempt") != "2" || b.imports() != 3 {
			t.Errorf("key %s, first %s, attempt %s, %d imports", got.Get("Idempotency-Key"), first, got.Get("Unavez-Attempt"), b.imports())
		}
	})
}

func TestATransientFailureIsTriedAgainWithLimits(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		b.app.set("/imports", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		b.deliver("e-1", "order/created", `{"id":1,"version":1}`)
		b.eventually("it is dead", func() bool { return len(b.dead()) == 1 })
		if dead := b.dead()[0]; b.imports() != 5 || dead.Attempt != 5 || !strings.Contains(dead.Reason, "answered 503") {
			t.Errorf("%d imports, %+v", b.imports(), dead)
		}
		history := b.operation(b.dead()[0].Key).History
		attempts := map[int64]bool{}
		for _, h := range history {
			attempts[h.Attempt] = true
		}
		if len(attempts) != 5 {
			t.Errorf("the history has %d of 5 attempts: %+v", len(attempts), history)
		}
	})
}

func TestManyDeadAreRedrivenByAFilterAtARate(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		const many = 60
		b := startOn(t, newApp(t), place, shop)
		b.app.set("/imports", func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.Header.Get("Unavez-Subject"), "bad-") {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusUnprocessableEntity)
		})
		for i := range many {
			b.deliver(fmt.Sprint("e-", i), "order/created", fmt.Sprintf(`{"id":"o-%d","version":1}`, i))
		}
		b.deliver("e-bad", "order/created", `{"id":"bad-1","version":1}`)
		b.eventually("all are dead", func() bool { return len(b.dead()) == many+1 })
		b.app.set("/imports", nil)
		before := b.imports()
		redrive := RedriveOptions{By: "ana", Reason: "mended", Until: time.Now().Add(time.Minute), Contains: "answered 422", Effect: "order.import.v1", Source: "shop", Owner: "orders-team", Rate: 200, Resume: "the same"}
		for name, wrong := range map[string]func(*RedriveOptions){
			"until": func(r *RedriveOptions) { r.Until = time.Time{} },
			"rate":  func(r *RedriveOptions) { r.Rate = -1 },
			"by":    func(r *RedriveOptions) { r.By = "" },
		} {
			faulty := redrive
			wrong(&faulty)
			if _, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.RedriveMany(t.Context(), out, false, faulty) }); err == nil || !strings.Contains(err.Error(), name+":") {
				t.Errorf("%s: %v", name, err)
			}
		}
		other := redrive
		other.Owner = "somebody-else"
		if out, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.RedriveMany(t.Context(), out, false, other) }); err != nil || !strings.Contains(out, "done: 0 operations redriven") {
			t.Errorf("of another owner: %v %s", err, out)
		}
		begun := time.Now()
		out, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.RedriveMany(t.Context(), out, false, redrive) })
		if err != nil || !strings.Contains(out, fmt.Sprintf("done: %d operations redriven", many)) || !strings.Contains(out, "to go on after an interruption: the same") {
			t.Errorf("%v\n%s", err, out)
		}
		if took := time.Since(begun); took < (many-1)*time.Second/200 {
			t.Errorf("%d in %v, faster than 200 a second", many, took)
		}
		b.eventually("all have ended but one", func() bool { return len(b.dead()) == 1 && b.imports() == before+many })
		b.eventually("their outcomes", func() bool { return b.state("order.import.v1", "completed") == fmt.Sprint(many) })
		if again, err := b.ops(func(o *Ops, out *bytes.Buffer) error { return o.RedriveMany(t.Context(), out, false, redrive) }); err != nil || !strings.Contains(again, "done: 0 operations") {
			t.Errorf("again: %v %s", err, again)
		}
		if !contains(b.log, `"action":"redrive many"`) {
			t.Error("the log does not say who redrove")
		}
	})
}

// Without a server the same works on the store, by the configuration's sources
// and effects.
func TestDeadLettersAndQuarantineAreWorkedOnWithoutAServer(t *testing.T) {
	onBoth(t, func(t *testing.T, place string) {
		b := startOn(t, newApp(t), place, shop)
		b.app.set("/imports", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) })
		b.deliver("e-1", "order/created", `{"id":1,"version":1}`)
		b.deliver("e-2", "stock/changed", `{"id":2,"version":1}`)
		b.eventually("one is dead", func() bool { return len(b.dead()) == 1 })
		b.halt()
		b.edit("types: [order/*]", "types: [order/*, stock/*]")
		o, err := OpenOps(t.Context(), OpsOptions{Config: b.file})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := o.Quarantine(t.Context(), &out, false, "", 10); err != nil || !strings.Contains(out.String(), "stock/changed") {
			t.Fatalf("%v\n%s", err, &out)
		}
		key := ""
		for _, word := range strings.Fields(out.String()) {
			if len(word) == 32 {
				key = word
			}
		}
		if err := o.Quarantined(t.Context(), &out, false, key, true); err != nil || !strings.Contains(out.String(), `"version": 1`) {
			t.Errorf("%v\n%s", err, &out)
		}
		if err := o.Sort(t.Context(), &out, false, key, "readmit", "ana", "mended"); err != nil || !strings.Contains(out.String(), "readmitted: 1 new") {
			t.Errorf("%v\n%s", err, &out)
		}
		if err := o.RedriveMany(t.Context(), &out, false, RedriveOptions{By: "ana", Reason: "mended", Until: time.Now().Add(time.Minute)}); err != nil || !strings.Contains(out.String(), "done: 1 operation redriven") {
			t.Errorf("%v\n%s", err, &out)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		b.app.set("/imports", nil)
		b.serve()
		b.eventually("both have ended", func() bool { return b.state("order.import.v1", "completed") == "2" })
	})
}
