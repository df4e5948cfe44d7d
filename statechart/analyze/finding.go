package analyze

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// Finding is one thing to look at.
type Finding struct {
	// Rule by its id, how much it matters, and what it says.
	Rule    string `json:"rule"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Event and State that it is about, "" if it is about none.
	Event string `json:"event,omitempty"`
	State string `json:"state,omitempty"`
	// Configuration in which it shows; -1 if that says nothing.
	Configuration int `json:"configuration"`
	// Pointer, Line and Column of the place to change.
	Pointer string `json:"pointer,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	// Fingerprint stays the same while chart, rule, state and event do, wherever
	// the lines move.
	Fingerprint string `json:"fingerprint"`
	// Witness of what it says, if there is one.
	Witness *Witness `json:"witness,omitempty"`
	// Accepted tells that the chart declares it.
	Accepted bool `json:"accepted,omitempty"`
	// Ways out: those of the rule, in the chart's own names where that can be.
	Ways []string `json:"ways"`
}

// Worst is the gravest level among the findings; "" if there are none.
func (r *Report) Worst() Level {
	var worst Level
	for _, f := range r.Findings {
		if worst == "" || f.Level.AtLeast(worst) {
			worst = f.Level
		}
	}
	return worst
}

// group gathers the cells in which one transition is at fault.
type group struct {
	letter int
	source string // pointer of the first transition
	class  Class
	worst  verdict
	cells  map[int]bool
}

func (b *builder) group(v verdict) {
	if v.class != Exposed && v.class != ProtectedUntilCycle {
		return
	}
	b.firsts[v.first.letter] = append(b.firsts[v.first.letter], v)
	at := ""
	if len(v.first.taken) > 0 {
		at = v.first.taken[0].At.Pointer
	}
	for _, g := range b.groups {
		if g.letter == v.first.letter && g.source == at && g.class == v.class {
			g.cells[v.first.from.place] = true
			if v.worse(g.worst) {
				g.worst = v
			}
			return
		}
	}
	b.groups = append(b.groups, &group{v.first.letter, at, v.class, v, map[int]bool{v.first.from.place: true}})
}

// add completes a finding and keeps it.
func (b *builder) add(f Finding, distinct ...string) {
	r := rule(f.Rule)
	if f.Level == "" {
		f.Level = r.Level
	}
	if f.Ways == nil {
		f.Ways = r.Ways
	}
	f.Fingerprint = fingerprint(append([]string{b.definition.ID(), f.Rule, f.State, f.Event}, distinct...)...)
	b.report.Findings = append(b.report.Findings, f)
}

func fingerprint(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func (f *Finding) at(p statechart.Position) {
	f.Pointer, f.Line, f.Column = p.Pointer, p.Line, p.Column
}

// findings fills in everything that is to be reported, in the order of the rules.
func (b *builder) findings() {
	b.duplicates()
	b.declarations()
	b.budget()
	for _, a := range b.report.Actions {
		if a.Class == Unknown && a.Kind != "assign" {
			b.add(Finding{
				Rule: "DUP009", Message: fmt.Sprintf("the class of action %s is not known (%s); it is taken for accumulating", a.Name, a.Why),
				Configuration: -1, Line: a.Line, Column: a.Column, Pointer: b.writers.names[a.Name].At.Pointer,
			}, a.Name)
		}
	}
	b.structure()
	order := map[string]int{}
	for i, r := range Rules() {
		order[r.ID] = i
	}
	slices.SortStableFunc(b.report.Findings, func(x, y Finding) int { return order[x.Rule] - order[y.Rule] })
}

// accepted tells that the chart declares this class or a worse one for an event.
func (b *builder) accepted(letter int, c Class) bool {
	declared, _ := b.declared(b.letters[letter])
	d, ok := declarable(declared)
	return ok && c.rank() <= d.rank()
}

// duplicates reports what a second delivery would do.
func (b *builder) duplicates() {
	shown := map[*step]bool{} // second deliveries that have a witness already
	for _, g := range b.groups {
		v := g.worst.witnessed()
		l := b.letters[g.letter]
		f := Finding{
			Event: l.name, Configuration: v.first.from.place, Witness: b.witness(v),
			Accepted: b.accepted(g.letter, g.class),
		}
		f.Ways = b.ways(rule(map[bool]string{true: "DUP001", false: "DUP002"}[g.class == Exposed]).Ways)
		var targets []string
		if len(v.first.taken) > 0 {
			t := v.first.taken[0]
			f.State = t.Source.ID
			f.at(t.At)
			for _, n := range t.Targets {
				targets = append(targets, n.ID)
			}
		}
		where := b.where(g)
		certainty := map[bool]string{true: "acts again", false: "can act again"}[v.must()]
		if g.class == Exposed {
			f.Rule, f.Message = "DUP001", fmt.Sprintf("%s in %s: the next delivery %s", l.name, where, certainty)
		} else {
			f.Rule, f.Message = "DUP002", fmt.Sprintf("%s in %s: a second delivery %s once %s has come back by %s",
				l.name, where, certainty, b.report.Configurations[v.again.from.place].Label, b.route(v.way))
		}
		if f.Accepted {
			f.Level = LevelNote
		}
		b.add(f, targets...)
		shown[v.again] = true
	}
	for i := range b.letters {
		b.again(i, shown)
	}
	for i, l := range b.letters {
		if l.kind == unnamed {
			b.alwaysReads(i)
		}
	}
	b.growingSets()
}

// growingSets reports the sets that protect by data: they never shrink.
func (b *builder) growingSets() {
	told := map[string]bool{}
	for _, c := range b.report.Cells {
		for _, by := range c.By {
			key, ok := strings.CutPrefix(by, "set ")
			if !ok {
				continue
			}
			key, _, _ = strings.Cut(key, " ")
			if told[c.Event+" "+key] {
				continue
			}
			told[c.Event+" "+key] = true
			f := Finding{
				Rule: "DUP011", Event: c.Event, Configuration: c.Configuration,
				Message: fmt.Sprintf("%s is protected by the set %s, which grows with every event for as long as the process lives", c.Event, key),
			}
			if list := b.writers.byKey[key]; len(list) > 0 {
				f.State = list[0].node.ID
				f.at(list[0].at)
			}
			b.add(f, key)
		}
	}
}

// where names the configurations of a group.
func (b *builder) where(g *group) string {
	text := b.report.Configurations[g.worst.first.from.place].Label
	if n := len(g.cells) - 1; n == 1 {
		text += " and 1 other configuration"
	} else if n > 1 {
		text += fmt.Sprintf(" and %d other configurations", n)
	}
	return text
}

func (b *builder) route(way []*step) string {
	var names []string
	for _, s := range way {
		names = append(names, b.letters[s.letter].name)
	}
	return strings.Join(names, ", ")
}

// otherWriters names the other states whose actions write the member.
func (b *builder) otherWriters(e effect, format string) string {
	var states []string
	for _, x := range b.writers.byKey[e.key] {
		if (e.constant == "" || shape(x.term) != e.constant) && x.action != e.action && !slices.Contains(states, x.node.ID) {
			states = append(states, x.node.ID)
		}
	}
	if len(states) == 0 {
		return ""
	}
	return fmt.Sprintf(format, strings.Join(states, ", "))
}

// alwaysReads reports eventless transitions that an event of no name can fire.
func (b *builder) alwaysReads(letter int) {
	told := map[*statechart.Transition]bool{}
	for _, s := range b.states {
		if s.out == nil {
			continue
		}
		for _, st := range s.out[letter] {
			if !st.changes || len(st.taken) == 0 {
				continue
			}
			t := st.taken[0]
			if t.Origin != statechart.FromAlways || told[t] {
				continue
			}
			told[t] = true
			f := Finding{
				Rule: "DUP006", State: t.Source.ID, Configuration: s.place,
				Message: fmt.Sprintf("the eventless transition of %s is asked after every event, and any type, named or not, can fire it", t.Source.ID),
			}
			f.at(t.At)
			b.add(f, t.At.Pointer[strings.LastIndexByte(t.At.Pointer, '/')+1:])
		}
	}
}

// declarations compares "duplicates" and "early" with what was found.
func (b *builder) declarations() {
	known := map[string]*Event{}
	for i := range b.report.Events {
		e := &b.report.Events[i]
		known[e.Type] = e
		known[strings.TrimSuffix(e.Type, unnamedType)+"*"] = e
	}
	for _, d := range b.definition.Duplicates() {
		f := Finding{Rule: "DUP008", Event: d.Event, Configuration: -1}
		f.at(d.At)
		class, ok := declarable(d.Word)
		e := known[d.Event]
		switch {
		case !ok:
			f.Message = fmt.Sprintf("duplicates: %q of %s is no class; want terminal, protected, by-data, until-cycle or exposed", d.Word, d.Event)
		case e == nil:
			f.Message = fmt.Sprintf("duplicates: the chart has no event %s", d.Event)
		case e.Class == NoEffect:
			f.Level, f.Message = LevelWarning, fmt.Sprintf("duplicates: %s never has an effect", d.Event)
		case e.Class.rank() > class.rank() && e.Class == Undecided:
			f.Configuration = e.Worst
			f.Message = fmt.Sprintf("%s is declared %s, which could not be shown within the budget", d.Event, d.Word)
		case e.Class.rank() > class.rank():
			f.Configuration = e.Worst
			f.Message = fmt.Sprintf("%s is declared %s but is %s in %s", d.Event, d.Word, word(e.Class), b.report.Configurations[e.Worst].Label)
			for _, c := range b.report.Cells {
				if c.Event == e.Type && c.Configuration == e.Worst {
					f.Witness = c.Witness
				}
			}
		case e.Class.rank() < class.rank():
			f.Level = LevelNote
			f.Message = fmt.Sprintf("%s is declared %s but is better: %s", d.Event, d.Word, word(e.Class))
		default:
			continue
		}
		b.add(f)
	}
	for _, d := range b.definition.Early() {
		f := Finding{Rule: "DUP008", Event: d.Event, Configuration: -1}
		f.at(d.At)
		switch {
		case !slices.Contains([]string{"defer", "reject", "ignore"}, d.Word):
			f.Message = fmt.Sprintf("early: %q of %s is no policy; want defer, reject or ignore", d.Word, d.Event)
		case known[d.Event] == nil:
			f.Message = fmt.Sprintf("early: the chart has no event %s", d.Event)
		default:
			continue
		}
		b.add(f, "early")
	}
}

func (b *builder) budget() {
	r := b.report
	if r.Complete {
		return
	}
	explored := 0
	for _, c := range r.Configurations {
		if c.Explored {
			explored++
		}
	}
	f := Finding{
		Rule: "DUP007", Configuration: -1,
		Message: fmt.Sprintf("the budget of %s is spent after %d configurations (%d explored) and %d steps; what is not shown to be exposed is UNKNOWN",
			r.Budget.Exceeded, r.Budget.Configurations, explored, r.Budget.Steps),
	}
	f.at(b.definition.Root().At)
	b.add(f)
}

// failures turns errors of the interpreter into findings.
func (b *builder) failing() {
	for _, name := range sortedKeys(b.failures) {
		x := b.failures[name]
		f := Finding{Rule: "SC008", Event: name, Configuration: -1}
		where := ""
		if x.state != nil {
			f.Configuration = x.state.place
			where = " in " + b.report.Configurations[x.state.place].Label
		}
		f.Message = fmt.Sprintf("%s%s: the step fails: %v", name, where, x.err)
		var e *statechart.Error
		if errors.As(x.err, &e) {
			switch e.Code {
			case statechart.CodeLimit:
				f.Rule = "SC004"
				f.Message = fmt.Sprintf("%s%s can go on for ever: %v", name, where, x.err)
			case statechart.CodeIllegal:
				f.Rule = "SC002"
			}
		}
		f.at(b.placeOf(x))
		b.add(f)
	}
}

// placeOf finds where a step that fails begins: at the innermost active
// candidate, or at the machine.
func (b *builder) placeOf(x failure) statechart.Position {
	at := b.definition.Root().At
	if x.state == nil || b.letters[x.letter].kind != external {
		return at
	}
	for _, n := range x.state.snapshot.Active() {
		for _, t := range n.Transitions {
			if t.Event == b.letters[x.letter].name {
				at = t.At
				break
			}
		}
	}
	return at
}
