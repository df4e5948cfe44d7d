package analyze

// Level says how much a finding matters. Its words are those of SARIF.
type Level string

// The levels.
const (
	LevelError   Level = "error"
	LevelWarning Level = "warning"
	LevelNote    Level = "note"
)

// AtLeast tells whether a level is as grave as another.
func (l Level) AtLeast(m Level) bool {
	grave := map[Level]int{LevelNote: 1, LevelWarning: 2, LevelError: 3}
	return grave[l] >= grave[m]
}

// Rule is one thing that is reported.
type Rule struct {
	// ID is stable: DUP for duplicates, SC for the structure of the chart.
	ID string
	// Name in a few words with hyphens.
	Name string
	// Level unless the chart declares that it accepts the finding.
	Level Level
	// Short says in a sentence what it reports.
	Short string
	// Ways out, the best first.
	Ways []string
}

// guardBySet is a way out in a form that can be put into a chart whose context has
// "seen": [].
const guardBySet = `keep the ids of handled events, "seen": {"@expr": "event.id in context.seen ? context.seen : context.seen + [event.id]"}, and guard with them, {"@expr": "!(event.id in context.seen)"}`

// Rules lists every rule in order. docs/statecharts.md has a section for each.
func Rules() []Rule {
	return []Rule{
		{
			"DUP001", "exposed", LevelError, "The very next delivery of the event acts again.",
			[]string{
				"lead to another state, in which the event has no transition",
				guardBySet,
				"keep the applied-mark of the event for as long as a duplicate can come, and declare \"exposed\"",
			},
		},
		{
			"DUP002", "until-cycle", LevelWarning, "A path leads back to where the event acts again.",
			[]string{
				"give the way back a state of its own",
				guardBySet,
				"keep the applied-mark over the cycle, and declare \"until-cycle\"",
			},
		},
		{
			"DUP003", "accumulating-action", LevelWarning, "An action that a duplicate would run again adds up.",
			[]string{
				guardBySet,
				"give the effect the event's identity as its key, and declare it keyed",
			},
		},
		{
			"DUP004", "re-entry", LevelWarning, "A duplicate enters the state again and runs its entry or exit actions.",
			[]string{
				"leave out \"reenter\", so that the transition stays inside",
				"do what belongs to the event in the transition, not in entry",
			},
		},
		{
			"DUP005", "stale-overwrite", LevelWarning, "A late duplicate puts back an old value.",
			[]string{
				`keep the greatest version only: "version": {"@expr": "event.version > context.version ? event.version : context.version"}`,
				`guard with the version: {"@expr": "event.version > context.version"}`,
			},
		},
		{
			"DUP006", "always-reads-event", LevelWarning, "An eventless transition reads the event: any event can fire it.",
			[]string{
				"write what the guard needs into the context first",
				"make it a transition on the events that it is about",
			},
		},
		{
			"DUP007", "budget-exceeded", LevelError, "The search was ended by its budget: some answers are UNKNOWN.",
			[]string{
				"raise --max-configurations, --max-steps or --max-answers",
				"split parallel regions that do not depend on each other into charts of their own",
			},
		},
		{
			"DUP008", "declaration", LevelError, "The chart declares what does not hold.",
			[]string{"change the chart back, or declare what holds now"},
		},
		{
			"DUP009", "unknown-action", LevelNote, "Nobody said what a second run of this action does.",
			[]string{"declare its class: in the function's declaration, or in a file for --declare"},
		},
		{
			"DUP010", "worse-than-before", LevelError, "The change makes a duplicate more harmful than it was.",
			[]string{
				"change the chart so that the old class holds",
				"keep the marks that the old chart did not need, before the new one runs",
			},
		},
		{
			"DUP011", "growing-set", LevelNote, "A set that protects by data only ever grows.",
			[]string{"keep it if a process has few such events; else lead to another state, or keep marks"},
		},
		{
			"SC000", "no-chart", LevelError, "The text is no chart, or one that cannot start: nothing was analysed.",
			[]string{"mend what the message names"},
		},
		{
			"SC001", "unreachable-state", LevelWarning, "No event leads to this state.",
			[]string{"give it a transition, or remove it"},
		},
		{
			"SC002", "history-of-active-parent", LevelWarning, "A transition leads to the history of a state that is active.",
			[]string{"aim at the state itself, or move the transition out of the history's parent"},
		},
		{
			"SC003", "parallel-domain", LevelWarning, "A transition inside a parallel state enters all its regions again.",
			[]string{
				"put the states into one region, so that the transition stays inside it",
				"aim at the parallel state itself, if starting over is meant",
			},
		},
		{
			"SC004", "endless-step", LevelError, "Eventless transitions or raised events can go on for ever.",
			[]string{"guard one transition of the circle by something that changes"},
		},
		{
			"SC005", "early-event", LevelNote, "The event can come before it is handled, and nothing says what is to become of it.",
			[]string{"declare what is to become of it: \"early\": {\"EVENT\": \"defer\"}, or \"reject\", or \"ignore\""},
		},
		{
			"SC006", "dead-end", LevelWarning, "From here no event leads on, and the process has not ended.",
			[]string{"make the state final, or give it a way out"},
		},
		{
			"SC007", "unused-transition", LevelWarning, "This transition is never taken.",
			[]string{"remove it, or move it before the one that hides it"},
		},
		{
			"SC008", "failing-step", LevelWarning, "A step fails whatever its event carries: the process stays as it was.",
			[]string{"see the message"},
		},
		{
			"SC009", "forbidden-transition", LevelWarning, "A transition does nothing: it is meant to forbid, or an export lost its code.",
			[]string{
				"name the code in setup() and export again: scripts/print-machine.mjs lists every function that has no name",
				"if it is meant to forbid the event, say so in its \"description\"",
			},
		},
	}
}

func rule(id string) Rule {
	for _, r := range Rules() {
		if r.ID == id {
			return r
		}
	}
	return Rule{ID: id}
}

// words of a declaration, by class.
func word(c Class) string {
	switch c {
	case Terminal:
		return "terminal"
	case Protected:
		return "protected"
	case ProtectedByData:
		return "by-data"
	case ProtectedUntilCycle:
		return "until-cycle"
	case Exposed:
		return "exposed"
	case Undecided:
		return "unknown"
	case Late:
		return "late"
	case Early:
		return "early"
	default:
		return "no effect"
	}
}

// declarable gives the class of a declared word.
func declarable(w string) (Class, bool) {
	for _, c := range []Class{Terminal, Protected, ProtectedByData, ProtectedUntilCycle, Exposed} {
		if word(c) == w {
			return c, true
		}
	}
	return "", false
}
