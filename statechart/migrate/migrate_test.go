package migrate_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/cel"
	"github.com/unavez/unavez/statechart/migrate"
)

const before = `{"id":"order","version":"1","context":{"n":1,"gone":true},"initial":"open","states":{
	"open":{"type":"parallel","states":{
		"pay":{"initial":"waiting","states":{
			"waiting":{"after":{"1000":"late","2000":"late"},"on":{"PAY":"paid"}},
			"late":{"on":{"PAY":"paid"}},"paid":{"invoke":{"id":"charge","src":"charge"}},
			"h":{"type":"history"}}},
		"stock":{"initial":"free","states":{"free":{"on":{"TAKE":"taken"}},"taken":{}}}},
		"on":{"HOLD":"held"}},
	"held":{"on":{"BACK":"open.pay.h","END":"ended"}},"ended":{"type":"final"}}}`

// In after, late is gone, waiting is called due, the 1000 became 1500, and a region
// and an eventless transition are new.
const after = `{"id":"order","version":"2","context":{"n":"","shop":"x"},"initial":"open","states":{
	"open":{"type":"parallel","states":{
		"pay":{"initial":"due","states":{
			"due":{"after":{"1500":"paid","2000":"paid"},"on":{"PAY":"paid"}},"paid":{"invoke":{"id":"capture","src":"charge"}},
			"h":{"type":"history"}}},
		"stock":{"initial":"free","states":{"free":{"on":{"TAKE":"taken"}},"taken":{"always":{"guard":"open","target":"free"}}}},
		"audit":{"initial":"new","after":{"10":{"actions":"mail"}},"states":{"new":{"entry":"mail"}}}},
		"on":{"HOLD":"held"}},
	"held":{"on":{"BACK":"open.pay.h","END":"ended"}},"ended":{"type":"final"}}}`

const plan = `{
	"states": {"order.open.pay.waiting": "order.open.pay.due", "order.open.pay.late": "order.open.pay.due"},
	"added": {"order.open.audit": "with-entry"},
	"context": {"n": {"@expr": "string(context.n)"}, "shop": {"name": [{"@expr": "context.n + 1"}, "fixed"]}},
	"remove": ["gone"],
	"timers": [{"state": "order.open.pay.waiting", "delay": "1000", "to_delay": "1500", "due": "restart"}],
	"invokes": {"charge": "capture"}
}`

func load(t *testing.T, text string) *statechart.Definition {
	t.Helper()
	d, err := statechart.Load([]byte(text), &statechart.Options{
		Guards:  map[string]statechart.GuardFunc{"open": {Test: func(statechart.Scope) (bool, error) { return true, nil }}},
		Actions: map[string]statechart.ActionFunc{"mail": {Kind: statechart.Effect}},
		Invokes: []string{"charge"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func make1(t *testing.T, plan string) (*migrate.Migration, *statechart.Definition, error) {
	t.Helper()
	p, err := migrate.ParsePlan([]byte(plan))
	if err != nil {
		return nil, nil, err
	}
	l, err := cel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	old := load(t, before)
	m, err := migrate.New(old, load(t, after), p, l)
	return m, old, err
}

func run(t *testing.T, d *statechart.Definition, events ...string) *statechart.Snapshot {
	t.Helper()
	r, err := statechart.Start(d, nil)
	for _, e := range events {
		if err != nil {
			t.Fatal(err)
		}
		r, err = statechart.Next(d, r.Snapshot, statechart.Event{Type: e})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.Snapshot
}

// reachable walks every configuration by every event, as an explorer does.
func reachable(t *testing.T, d *statechart.Definition) iter.Seq[*statechart.Snapshot] {
	return func(yield func(*statechart.Snapshot) bool) {
		seen := map[string]bool{}
		queue := []*statechart.Snapshot{run(t, d)}
		for len(queue) > 0 {
			s := queue[0]
			if queue = queue[1:]; seen[s.Key()] {
				continue
			}
			seen[s.Key()] = true
			if !yield(s) {
				return
			}
			var events []statechart.Event
			for _, e := range []string{"PAY", "TAKE", "HOLD", "BACK", "END"} {
				events = append(events, statechart.Event{Type: e})
			}
			for _, timer := range s.Timers() {
				events = append(events, statechart.TimerEvent(timer))
			}
			for _, e := range events {
				r, err := statechart.Explore(d, s, e, func(statechart.Question) bool { return true })
				if err != nil {
					t.Error(err)
					return
				}
				queue = append(queue, r.Snapshot)
			}
		}
	}
}

func TestAPlanTakesAProcessOver(t *testing.T) {
	t.Parallel()
	m, old, err := make1(t, plan)
	if err != nil {
		t.Fatal(err)
	}
	s := run(t, old, "TAKE")
	r, err := m.Apply(s)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	// The eventless transition of taken is open, and entry of an added state lets it run.
	want := fmt.Sprintf(`{"layout":1,"profile":"xstate-5.33","machine":"order","version":"2","definition":%q,"revision":3,"status":"active","value":{"open":{"pay":"due","stock":"free","audit":"new"}},"context":{"n":"1","shop":{"name":[2,"fixed"]}},"generations":{"order.open.pay.due":1,"order.open.audit":1}}`, r.Snapshot.Definition().Hash())
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
	due := func(delay string, after time.Duration) statechart.Timer {
		return statechart.Timer{State: "order.open.pay.due", Delay: delay, After: after, Generation: 1}
	}
	was := func(delay string, after time.Duration) statechart.Timer {
		return statechart.Timer{State: "order.open.pay.waiting", Delay: delay, After: after, Generation: 1}
	}
	if diff := cmp.Diff([]migrate.TimerResult{
		{From: was("1000", time.Second), To: due("1500", 1500*time.Millisecond), Restart: true},
		{From: was("2000", 2*time.Second), To: due("2000", 2*time.Second)},
	}, r.Timers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]statechart.Timer{{State: "order.open.audit", Delay: "10", After: 10 * time.Millisecond, Generation: 1}}, r.Arm); diff != "" || len(r.Drop) > 0 {
		t.Error(diff, r.Drop)
	}
	if len(r.Effects) != 1 || r.Effects[0].State != "order.open.audit.new" {
		t.Errorf("effects: %+v", r.Effects)
	}

	paid, err := m.Apply(run(t, old, "PAY"))
	if err != nil || len(paid.Invokes) != 1 || paid.Invokes[0].To.ID != "capture" || len(paid.Stop)+len(paid.Invoke) > 0 {
		t.Errorf("%+v, %v", paid, err)
	}
	held, err := m.Apply(run(t, old, "HOLD"))
	if err != nil || !cmp.Equal(held.Snapshot.History(), map[string][]string{"order.open.pay.h": {"order.open.pay.due"}}) {
		t.Errorf("%+v, %v", held, err)
	}
	ended, err := m.Apply(run(t, old, "HOLD", "END"))
	if err != nil || ended.Snapshot.Status() != statechart.Done {
		t.Errorf("%+v, %v", ended, err)
	}
	if _, err := m.Apply(r.Snapshot); err == nil || !strings.Contains(err.Error(), "the plan is from") {
		t.Errorf("migrated twice: %v", err)
	}
}

func TestAnAddedStateCanBeEnteredSilently(t *testing.T) {
	t.Parallel()
	m, old, err := make1(t, strings.Replace(plan, "with-entry", "silently", 1))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Apply(run(t, old, "TAKE"))
	if err != nil || len(r.Effects) > 0 || len(r.Arm) != 1 || !r.Snapshot.In("order.open.stock.taken") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestACheckCoversEveryReachableConfiguration(t *testing.T) {
	t.Parallel()
	m, old, err := make1(t, plan)
	if err != nil {
		t.Fatal(err)
	}
	report := m.Check(reachable(t, old))
	if len(report.Faults) > 0 || report.Checked < 15 {
		t.Errorf("checked %d: %v", report.Checked, report.Faults)
	}
	notes := fmt.Sprint(report.Notes)
	for _, want := range []string{
		`the state "order.open.pay.late" is gone and processes can be in it; they go to "order.open.pay.due"`,
		`the timer "1500" of "order.open.pay.due" begins at the migration`,
		`the timer "10" of "order.open.audit" begins`,
		`the eventless transition of "order.open.stock.taken"`,
		`context: "shop" would be an object, and is a string`,
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note %s in %s", want, notes)
		}
	}
	for _, c := range []struct{ from, to, want string }{
		{`"order.open.pay.late": "order.open.pay.due"`, `"order.ended": "order.ended"`, `in order.open.pay.late, order.open.stock.free: the state "order.open.pay.late" has no home`},
		{`"order.open.pay.late": "order.open.pay.due"`, `"order.open.pay.late": "order.held"`, `nothing leads to the state "#order.open.pay"`},
		{`"order.open.audit": "with-entry"`, ``, `does not say how it is added`},
		{`"invokes": {"charge": "capture"}`, `"invokes": {}`, `the invoke "charge" of the state "order.open.pay.paid" has no home`},
		{`"to_delay": "1500"`, `"to_delay": "2000"`, `has no home in the new chart (timers)`},
		{`"context": {`, `"context": {"shops": 1, `, ``},
		{`, "shop": {"name": [{"@expr": "context.n + 1"}, "fixed"]}`, ``, `the new chart has "shop" in its initial context`},
		{`context.n + 1`, `context.nn + 1`, `no such key: nn`},
	} {
		changed := strings.Replace(plan, c.from, c.to, 1)
		m, old, err := make1(t, changed)
		if changed == plan || err != nil {
			t.Errorf("%s: %v", c.to, err)
			continue
		}
		report := m.Check(reachable(t, old))
		if got := fmt.Sprint(report.Faults); !strings.Contains(got, c.want) || (len(report.Faults) == 0) != (c.want == "") {
			t.Errorf("%s: got %s, want %q", c.to, got, c.want)
		}
	}
}

func TestAPlanThatNamesWhatIsNotThereIsRefusedWithEveryFault(t *testing.T) {
	t.Parallel()
	_, _, err := make1(t, `{"from":"sha256:1","to":"sha256:2","states":{"order.x":"order.y"},"history":{"order.held":"order.held"},
		"added":{"order.z":"silently","order.held":"loudly"},"context":{"a":{"@expr":"event.x"},"b":{"@expr":1}},"remove":["a"],"due":"later",
		"timers":[{"state":"order.held","delay":"5"},{"state":"order.open.pay.waiting","delay":"1000","to_delay":"7"}],"invokes":{"charge":"nothing","none":""}}`)
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		"from: the plan is for", "to: the plan is for", `states: the old chart has no such state "order.x"`, `states: the new chart has no such state "order.y"`,
		"history: the old chart has no such", `added: the new chart has no state "order.z"`, `is "loudly"`, "undeclared reference to 'event'", "and nothing else",
		`remove: "a"`, `due: "later"`, `has no timer "5"`, `has no timer "7"`, `no invoke "nothing"`, `no invoke "none"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	for _, bad := range []string{`{"statse":{}}`, `{} {}`, `[]`} {
		if _, err := migrate.ParsePlan([]byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
