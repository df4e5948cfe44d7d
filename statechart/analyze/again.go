package analyze

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// second is a step that can be the second delivery of an event, with the shortest
// way there from a first one.
type second struct {
	step  *step
	first *step
	way   []*step
}

// class is that of the pair: exposed at once, else until some path leads back.
func (s second) class() Class {
	if len(s.way) == 0 {
		return Exposed
	}
	return ProtectedUntilCycle
}

// from is where the search came from when it reached a state.
type from struct {
	first *step // the first delivery
	step  *step // the last step of the way; nil where the first delivery ends
	far   int
}

// seconds lists every step that can be the second delivery of a letter, whichever
// the first one was: a cell has as many first deliveries as it has candidates, and
// the worst that can follow one of them need not follow the other.
func (b *builder) seconds(letter int) []second {
	var groups []*distances
	firsts := map[*distances][]*step{}
	for _, v := range b.firsts[letter] {
		if firsts[v.over] == nil {
			groups = append(groups, v.over)
		}
		firsts[v.over] = append(firsts[v.over], v.first)
	}
	best := map[*step]second{}
	for _, d := range groups {
		reached := b.reached(letter, firsts[d])
		for _, s := range b.states {
			end, ok := reached[s]
			if !ok || s.out == nil {
				continue
			}
			for _, st := range s.out[letter] {
				if st.harmless(d.settled) {
					continue
				}
				if old, ok := best[st]; ok && len(old.way) <= end.far {
					continue
				}
				x := second{step: st, first: end.first}
				for at := end; at.step != nil; at = reached[at.step.from] {
					x.way = append(x.way, at.step)
				}
				slices.Reverse(x.way)
				best[st] = x
			}
		}
	}
	list := make([]second, 0, len(best))
	for _, s := range b.states {
		if s.out == nil {
			continue
		}
		for _, st := range s.out[letter] {
			if x, ok := best[st]; ok {
				list = append(list, x)
			}
		}
	}
	slices.SortStableFunc(list, func(x, y second) int {
		return cmp.Or(cmp.Compare(len(x.way), len(y.way)), cmp.Compare(y.step.harm(), x.step.harm()))
	})
	return list
}

// reached gives every state to which a way leads after one of the first steps,
// with the shortest. A firing for a visit that is over is dropped, so that no way
// leads on through the end of a timer's or an invoke's visit.
func (b *builder) reached(letter int, firsts []*step) map[*state]from {
	owner := b.letters[letter].owner
	reached := map[*state]from{}
	var layer []*state
	for _, f := range firsts {
		old, ok := reached[f.to]
		if !ok {
			layer = append(layer, f.to)
		}
		if !ok || better(f, old.first) {
			reached[f.to] = from{first: f}
		}
	}
	for far := 1; len(layer) > 0; far++ {
		var following []*state
		for _, s := range layer {
			for _, out := range s.out {
				for _, st := range out {
					if owner != nil && slices.Contains(st.leaves, owner) {
						continue
					}
					old, ok := reached[st.to]
					if !ok {
						following = append(following, st.to)
					}
					if !ok || old.far == far && better(st, old.step) {
						reached[st.to] = from{first: reached[s].first, step: st, far: far}
					}
				}
			}
		}
		layer = following
	}
	return reached
}

// again reports the actions that a second delivery runs, one finding an action,
// and keeps their classes for a comparison. A finding has a witness of its own if
// no other one of the event shows its second delivery.
func (b *builder) again(letter int, shown map[*step]bool) {
	name := b.letters[letter].name
	told := map[string]bool{}
	for _, x := range b.seconds(letter) {
		complete := func(f Finding, at statechart.Position, distinct ...string) {
			f.Event, f.Configuration, f.Accepted = name, x.step.from.place, b.accepted(letter, x.class())
			if f.Accepted {
				f.Level = LevelNote
			}
			f.at(at)
			if !shown[x.step] {
				shown[x.step] = true
				f.Witness = b.witness(verdict{first: x.first, way: x.way, again: x.step})
			}
			b.add(f, distinct...)
		}
		reentered := map[*statechart.Node][]effect{}
		for _, e := range x.step.effects {
			b.repeats(letter, e)
			f := Finding{State: e.node.ID}
			switch {
			case e.class == Accumulating:
				f.Rule, f.Message = "DUP003", fmt.Sprintf("a duplicate of %s runs %s again, which adds up", name, e.text)
				f.Ways = b.ways(rule(f.Rule).Ways)
			case e.class == Overwrite && e.constant != "":
				f.Rule, f.Message = "DUP005", fmt.Sprintf("a late duplicate of %s puts %s back into %s%s", name, e.constant, e.key, b.otherWriters(e, ", over what %s wrote"))
			case e.class == Overwrite || e.class == Constant && len(e.tokens) == 0:
				f.Rule, f.Message = "DUP005", fmt.Sprintf("a late duplicate of %s puts an old value back: %s%s", name, e.text, b.otherWriters(e, " ("+e.key+" is also written in %s)"))
			}
			if f.Rule == "DUP005" {
				f.Ways = byVersion(e.key)
			}
			if key := f.Rule + e.action.At.Pointer + " " + e.key; f.Rule != "" && !told[key] {
				told[key] = true
				complete(f, e.action.At, e.key, e.action.Name)
			}
			if role(e) != "transition" && x.step.from == x.step.to {
				reentered[e.node] = append(reentered[e.node], e)
			}
		}
		for _, n := range b.definition.Nodes() {
			list := reentered[n]
			if len(list) == 0 || told["DUP004"+n.ID] {
				continue
			}
			told["DUP004"+n.ID] = true
			var runs []string
			for _, e := range list {
				runs = append(runs, e.text+" ("+role(e)+")")
			}
			complete(Finding{
				Rule: "DUP004", State: n.ID,
				Message: fmt.Sprintf("a duplicate of %s leaves and enters %s again and runs %s", name, n.ID, strings.Join(runs, ", ")),
			}, list[0].action.At)
		}
	}
}

// ways names the set of ids that the chart keeps already, if it keeps one.
func (b *builder) ways(ways []string) []string {
	for _, key := range sortedKeys(b.writers.byKey) {
		if j, ok := joinOf(key, b.writers.byKey[key][0].term); ok && j.kind == "insert" && key != "seen" {
			named := make([]string, len(ways))
			for i, w := range ways {
				named[i] = strings.NewReplacer("context.seen", "context."+key, `"seen"`, `"`+key+`"`).Replace(w)
			}
			return named
		}
	}
	return ways
}

// byVersion gives the ways out of an overwrite of this member, "" for that of an
// action by name.
func byVersion(key string) []string {
	if key == "" {
		return nil
	}
	version := "version"
	if key != version {
		version = key + "_version"
	}
	guard := fmt.Sprintf(`guard with a version that goes up, {"@expr": "event.version > context.%s"}, and keep it: %q: {"@expr": "event.version"}`, version, version)
	return append([]string{guard}, guardBySet)
}

// repeats notes an action that a second delivery of the letter can run.
func (b *builder) repeats(letter int, e effect) {
	for i := range b.report.Events {
		v := &b.report.Events[i]
		if v.Type != b.letters[letter].name {
			continue
		}
		x := Repeat{
			Name: cmp.Or(e.key, e.action.Name), State: e.node.ID, Class: e.class, Text: e.text,
			Pointer: e.action.At.Pointer, Line: e.action.At.Line, Column: e.action.At.Column,
		}
		for j := range v.Again {
			old := &v.Again[j]
			if old.Name == x.Name && old.State == x.State {
				if x.Class.worse(old.Class) {
					*old = x
				}
				return
			}
		}
		v.Again = append(v.Again, x)
	}
}
