package analyze

import (
	"errors"

	"github.com/unavez/unavez/statechart"
)

// Format is the version of the JSON form of a [Report].
const Format = 1

// Certainty tells whether a witness needs a guard's answer.
type Certainty string

// The certainties.
const (
	May  Certainty = "may"  // some guard has to answer so
	Must Certainty = "must" // whatever the guards answer
)

// Report is all that was found. Its JSON form is described by [Schema].
type Report struct {
	// Format is the version of the form and Profile the semantics of the chart.
	Format  int    `json:"format"`
	Profile string `json:"profile"`
	// Chart that was analysed.
	Chart Chart `json:"chart"`
	// Complete tells that no budget ended the search.
	Complete bool `json:"complete"`
	// Budget is what the search cost.
	Budget Budget `json:"budget"`
	// What was found: each list in the order of discovery, findings in that of
	// [Rules].
	Configurations []Configuration `json:"configurations"`
	Events         []Event         `json:"events"`
	Cells          []Cell          `json:"cells"`
	Transitions    []Transition    `json:"transitions"`
	Actions        []Action        `json:"actions"`
	Findings       []Finding       `json:"findings"`
}

// Broken is the report on a text that is no chart, or on a chart that cannot start:
// one finding for each fault, of rule SC000, and nothing else. [ReadReport] refuses
// it, so that nothing is ever compared with it.
func Broken(file string, err error) *Report {
	r := &Report{
		Format: Format, Profile: statechart.Profile, Chart: Chart{File: file},
		Configurations: []Configuration{}, Events: []Event{}, Cells: []Cell{}, Transitions: []Transition{}, Actions: []Action{}, Findings: []Finding{},
	}
	fault := func(at statechart.Position, text string) {
		f := Finding{
			Rule: "SC000", Level: LevelError, Message: text, Configuration: -1, Ways: rule("SC000").Ways,
			Fingerprint: fingerprint("SC000", at.Pointer, text),
		}
		f.at(at)
		r.Findings = append(r.Findings, f)
	}
	if faults, ok := errors.AsType[*statechart.Faults](err); ok {
		for _, f := range faults.List {
			fault(f.At, f.Text)
		}
		return r
	}
	at := statechart.Position{Line: 1, Column: 1}
	if e, ok := errors.AsType[*statechart.Error](err); ok && e.At.Line > 0 {
		at = e.At
	}
	fault(at, err.Error())
	return r
}

// Chart names the definition.
type Chart struct {
	// ID, Version and Hash of the definition, and the File it came from.
	ID      string `json:"id"`
	Version string `json:"version,omitempty"`
	Hash    string `json:"hash"`
	File    string `json:"file,omitempty"`
	// Final are the ids of the final states in which the process ends; they are one
	// configuration, "done".
	Final []string `json:"final,omitempty"`
	// NamesOnly tells that guards or actions were names without code.
	NamesOnly bool `json:"names_only"`
}

// Budget is what the search cost, and what ended it.
type Budget struct {
	// Configurations that were found.
	Configurations int `json:"configurations"`
	// Steps are runs of the interpreter.
	Steps int `json:"steps"`
	// Exceeded is configurations, steps or answers; "" if the search ended by itself.
	Exceeded string `json:"exceeded,omitempty"`
}

// Configuration is a set of active states with the recorded history.
type Configuration struct {
	// Index in the order of discovery: 0 is where a process starts.
	Index int `json:"index"`
	// Label names it for people: paid.capturing, or paid{pay: due, ship: new}.
	Label string `json:"label"`
	// States are the ids of the innermost active states, in document order. All
	// ways to have ended are one configuration; it has the states of the first.
	States []string `json:"states"`
	// History by history state.
	History map[string][]string `json:"history,omitempty"`
	// Done tells that the process has ended.
	Done bool `json:"done"`
	// Explored is false for one that a budget left unexplored.
	Explored bool `json:"explored"`
}

// Event is an event type with its class: that of its worst cell.
type Event struct {
	// Type as the chart names it; "§" is any type that the chart does not name, and
	// "a.§" any other type below "a.".
	Type string `json:"type"`
	// Kind is external, wildcard, unnamed, timer, invoke-done or invoke-error.
	Kind string `json:"kind"`
	// Class and Certainty of the worst cell.
	Class     Class     `json:"class"`
	Certainty Certainty `json:"certainty,omitempty"`
	// Declared is what the chart says in "duplicates", and Early in "early".
	Declared string `json:"declared,omitempty"`
	Early    string `json:"early,omitempty"`
	// Worst is the configuration of the worst cell; -1 if there is none.
	Worst int `json:"worst"`
	// Again are the actions that some second delivery can run, each with its worst
	// class. Empty where a second delivery cannot act.
	Again []Repeat `json:"again"`
	// Pointer, Line and Column of the first transition that takes the event; "" and
	// 0 if there is none.
	Pointer string `json:"pointer,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
}

// Repeat is an action that a second delivery can run.
type Repeat struct {
	// Name of the action, or the member of the context that is assigned; State that
	// it belongs to.
	Name  string `json:"name"`
	State string `json:"state"`
	// Class of it, and Text as its author wrote it.
	Class ActionClass `json:"class"`
	Text  string      `json:"text"`
	// Pointer, Line and Column of its place.
	Pointer string `json:"pointer"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
}

// Cell is one event type in one configuration.
type Cell struct {
	// Configuration by its index, and Event by its type.
	Configuration int    `json:"configuration"`
	Event         string `json:"event"`
	// Class of the cell; Certainty only where the event has an effect.
	Class     Class     `json:"class"`
	Certainty Certainty `json:"certainty,omitempty"`
	// To are the configurations that the event can lead to.
	To []int `json:"to,omitempty"`
	// By says, for PROTECTED_BY_DATA, what the first delivery settles: "set seen has
	// event.id", for one.
	By []string `json:"by,omitempty"`
	// Witness of a second effect, the shortest; for PROTECTED_BY_DATA the one that
	// the data forbid.
	Witness *Witness `json:"witness,omitempty"`
}

// Transition is the class of one transition: that of the worst cell in which it
// is the first that is taken.
type Transition struct {
	// Pointer, Line and Column of its place in the text.
	Pointer string `json:"pointer"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	// Class of the worst cell.
	Class Class `json:"class"`
}

// Witness is a way on which the event acts twice: its first delivery, what
// happens between, its second delivery.
type Witness struct {
	// Steps, the first and the last of which are the two deliveries.
	Steps []Step `json:"steps"`
	// Again are the actions that the second delivery runs.
	Again []Again `json:"again"`
}

// Step is one event of a witness.
type Step struct {
	// Event that comes, and the configurations before and after it.
	Event string `json:"event"`
	From  int    `json:"from"`
	To    int    `json:"to"`
	// Answers that guards have to give.
	Answers []Answer `json:"answers,omitempty"`
	// Pointer, Line and Column of the first transition taken.
	Pointer string `json:"pointer,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
}

// Answer is what a guard has to say for a step.
type Answer struct {
	// Guard by its name or text, and its answer.
	Guard string `json:"guard"`
	Is    bool   `json:"is"`
}

// Again is an action that would run a second time.
type Again struct {
	// Action as text, its class, and the state that it belongs to.
	Action string      `json:"action"`
	Class  ActionClass `json:"class"`
	State  string      `json:"state"`
	// Role is entry, exit or transition.
	Role string `json:"role"`
}

// Action is the class of one assignment, or of one action by name.
type Action struct {
	// Name of the action, or the member of the context that is assigned.
	Name string `json:"name"`
	// Kind is assign, function, effect or name.
	Kind string `json:"kind"`
	// Text, class, and the reason for the class.
	Text  string      `json:"text"`
	Class ActionClass `json:"class"`
	Why   string      `json:"why"`
	// State of an assignment; Line and Column of the first use.
	State  string `json:"state"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// Uses counts the places of an action by name; 1 for an assignment.
	Uses int `json:"uses"`
}
