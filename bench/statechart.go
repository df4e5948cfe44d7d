package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/looplab/fsm"
	"github.com/qmuntal/stateless"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/cel"
)

// thirty is a chart of 30 states: an order with a payment region, a stock region
// and a delivery of several steps. CEL puts expressions where there are names.
func thirty(inCEL bool) string {
	guard, assign := `"enough"`, `{"type":"count"}`
	if inCEL {
		guard = `{"@expr":"event.amount >= 10 && context.n < 1000000"}`
		assign = `{"type":"assign","params":{"n":{"@expr":"context.n + 1"},"last":{"@expr":"event.id"}}}`
	}
	region := func(prefix string, n int, more string) string {
		var states []string
		for i := range n {
			next := (i + 1) % n
			states = append(states, fmt.Sprintf(`"%s%d":{"entry":"log","exit":"log","on":{"%s":{"guard":%s,"target":"%s%d","actions":[%s]}}}`, prefix, i, strings.ToUpper(prefix), guard, prefix, next, assign))
		}
		return fmt.Sprintf(`{"initial":"%s0"%s,"states":{%s}}`, prefix, more, strings.Join(states, ","))
	}
	return fmt.Sprintf(`{"id":"order","@exprLang":"cel","context":{"n":0,"last":null},"initial":"open","states":{
		"open":{"type":"parallel","on":{"CANCEL":"cancelled"},"states":{"pay":%s,"stock":%s,"ship":%s}},
		"cancelled":{"type":"final"}}}`,
		region("a", 8, ""), region("b", 8, `,"after":{"86400000":{"actions":"log"}}`), region("c", 8, ""))
}

func chartOptions() *statechart.Options {
	return &statechart.Options{
		Expressions: must(cel.New(nil)),
		Guards: map[string]statechart.GuardFunc{"enough": {Test: func(s statechart.Scope) (bool, error) {
			n, ok := s.Event["amount"].(json.Number)
			amount, err := n.Int64()
			return ok && amount >= 10, err
		}}},
		Actions: map[string]statechart.ActionFunc{
			"log": {Kind: statechart.Effect},
			"count": {Kind: statechart.Pure, Patch: func(s statechart.Scope) (map[string]any, error) {
				n, err := s.Context["n"].(json.Number).Int64()
				return map[string]any{"n": n + 1, "last": s.Event["id"]}, err
			}},
		},
	}
}

// measureStatechart prints what a step and a load cost, and the same small machine
// in two libraries that keep their state in memory.
func measureStatechart(settings) error {
	fmt.Println("\n## Statecharts")
	for _, inCEL := range []bool{false, true} {
		how := "guard and assign in Go"
		if inCEL {
			how = "guard and assign in CEL"
		}
		text, options := []byte(thirty(inCEL)), chartOptions()
		d := must(statechart.Load(text, options))
		snapshot := must(statechart.Start(d, nil)).Snapshot
		event := must(statechart.ParseEvent([]byte(`{"type":"A","id":"e1","amount":12}`)))
		report(fmt.Sprintf("Next, %d states, %s", len(d.Nodes()), how), func() {
			must(statechart.Next(d, snapshot, event))
		})
		report("Load of that chart", func() { must(statechart.Load(text, options)) })
		if !inCEL {
			unknown := statechart.Event{Type: "UNKNOWN"}
			report("Next with an event that nobody handles", func() { must(statechart.Next(d, snapshot, unknown)) })
			stored := must(json.Marshal(snapshot))
			report("Restore, Next, store", func() {
				r := must(statechart.Next(d, must(statechart.Restore(d, stored)), event))
				must(json.Marshal(r.Snapshot))
			})
		}
	}
	return measurePeers()
}

// measurePeers runs one machine that all three can express: two states, a guard on
// the way there, an action.
func measurePeers() error {
	done := 0
	d := must(statechart.Load([]byte(`{"id":"m","initial":"a","states":{
		"a":{"on":{"GO":{"guard":"yes","target":"b","actions":"act"}}},"b":{"on":{"GO":{"guard":"yes","target":"a","actions":"act"}}}}}`),
		&statechart.Options{
			Guards:  map[string]statechart.GuardFunc{"yes": {Test: func(statechart.Scope) (bool, error) { return true, nil }}},
			Actions: map[string]statechart.ActionFunc{"act": {Kind: statechart.Effect}},
		}))
	snapshot := must(statechart.Start(d, nil)).Snapshot
	report("two states: unavez, a new snapshot each time", func() {
		r := must(statechart.Next(d, snapshot, statechart.Event{Type: "GO"}))
		done += len(r.Effects)
		snapshot = r.Snapshot
	})
	machine := stateless.NewStateMachine("a")
	act := func(context.Context, ...any) error { done++; return nil }
	yes := func(context.Context, ...any) bool { return true }
	machine.Configure("a").Permit("GO", "b", yes).OnExit(act)
	machine.Configure("b").Permit("GO", "a", yes).OnExit(act)
	report("two states: qmuntal/stateless, state in memory", func() { must(0, machine.Fire("GO")) })
	loop := fsm.NewFSM("a", fsm.Events{{Name: "GO", Src: []string{"a"}, Dst: "b"}, {Name: "GO", Src: []string{"b"}, Dst: "a"}}, fsm.Callbacks{
		"before_GO": func(_ context.Context, e *fsm.Event) {
			if e.FSM == nil {
				e.Cancel()
			}
		},
		"after_GO": func(context.Context, *fsm.Event) { done++ },
	})
	report("two states: looplab/fsm, state in memory", func() { must(0, loop.Event(context.Background(), "GO")) })
	if done == 0 {
		return fmt.Errorf("no machine did anything")
	}
	return nil
}

// report prints the cost of one call: CPU time of the process, collector included,
// which a busy machine does not change as it does the time on the wall. The best of
// five samples counts.
func report(name string, do func()) {
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			do()
		}
	})
	best := time.Duration(1<<63 - 1)
	for range 5 {
		start, n := ownCPU(), max(r.N/10, 1)
		for range n {
			do()
		}
		best = min(best, (ownCPU()-start)/time.Duration(n))
	}
	fmt.Printf("  %-50s %10v of CPU  %9.0f/s a core  %5d allocations  %6d bytes\n", name, best, float64(time.Second)/float64(max(best, 1)), r.AllocsPerOp(), r.AllocedBytesPerOp())
}
