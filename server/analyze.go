package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
	"github.com/unavez/unavez/statechart/cel"
)

// AnalyzeOptions say what unavez analyze does.
type AnalyzeOptions struct {
	// Chart is the file of the definition.
	Chart string
	// Format is table, mermaid, svg, json or sarif.
	Format string
	// Declare, when not empty, is a file with the classes of actions by name.
	Declare string
	// Against, when not empty, is an older definition, or a report of it in JSON.
	Against string
	// FailOn is the level from which a finding fails the run: error, warning, note
	// or never.
	FailOn string
	// Active are the states to be lit in a picture: ids, or configurations as the
	// table names them; each one alone or several with commas.
	Active []string
	// Budgets; 0 means the default.
	MaxConfigurations, MaxSteps, MaxAnswers int
	// Version of the program, for SARIF.
	Version string
}

// FindingsError tells that a chart has findings that fail the run. The report
// was written.
type FindingsError struct {
	// Chart by its file, and how many findings of each level count.
	Chart                   string
	Errors, Warnings, Notes int
}

// InputError tells that what analyze was to read is not there or says nothing: a
// file, what is named in it, or a state.
type InputError struct {
	// Err has every fault, one a line.
	Err error
}

// Error names each fault.
func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *InputError) Unwrap() error { return e.Err }

// Error counts the findings.
func (e *FindingsError) Error() string {
	return fmt.Sprintf("%s does not pass: errors %d, warnings %d, notes %d", e.Chart, e.Errors, e.Warnings, e.Notes)
}

// Check refuses options that say nothing.
func (o AnalyzeOptions) Check() error {
	var faults []error
	if !slices.Contains(AnalyzeFormats(), o.Format) {
		faults = append(faults, fmt.Errorf("--format: %q is none of %s", o.Format, strings.Join(AnalyzeFormats(), ", ")))
	}
	if _, err := failLevel(o.FailOn); err != nil {
		faults = append(faults, err)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"--max-configurations", o.MaxConfigurations}, {"--max-steps", o.MaxSteps}, {"--max-answers", o.MaxAnswers}} {
		if f.value < 0 {
			faults = append(faults, fmt.Errorf("%s: %d is negative", f.name, f.value))
		}
	}
	return errors.Join(faults...)
}

// AnalyzeFormats lists the formats of a report.
func AnalyzeFormats() []string { return []string{"table", "mermaid", "svg", "json", "sarif"} }

// ReportSchema is the JSON Schema of the format json.
func ReportSchema() []byte { return analyze.Schema() }

// Analyze reports what a duplicate of each event can do to a process of a chart.
// Guards and actions may be names without code: guards then answer both ways. The
// error is a *FindingsError if the chart was analysed and does not pass, an
// *InputError if a file cannot be read or used. A text that is no chart is a
// report of its own in the formats json and sarif.
func Analyze(ctx context.Context, out io.Writer, o AnalyzeOptions) error {
	if err := o.Check(); err != nil {
		return err
	}
	fail, err := failLevel(o.FailOn)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(o.Chart)
	declared, faults, unread := readDeclarations(o.Declare)
	var old []byte
	if o.Against != "" {
		var lost error
		old, lost = os.ReadFile(o.Against)
		unread = errors.Join(unread, lost)
	}
	if err := errors.Join(err, unread); err != nil {
		return &InputError{err}
	}
	options := &analyze.Options{
		MaxConfigurations: o.MaxConfigurations, MaxSteps: o.MaxSteps, MaxAnswers: o.MaxAnswers, File: named(o), Actions: declared,
	}
	d, err := loadChart(text)
	if err != nil {
		return broken(out, o, options.File, err, listed(o.Chart, err))
	}
	r, err := analyze.Analyze(ctx, d, options)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", o.Chart, err)
	}
	if err != nil {
		return broken(out, o, options.File, err, fmt.Errorf("%s: %w", o.Chart, err))
	}
	if faults = append(faults, unused(r, o.Declare, declared)...); len(faults) > 0 {
		return &InputError{errors.New(strings.Join(faults, "\n"))}
	}
	if o.Active, err = active(r, d, o.Active); err != nil {
		return &InputError{err}
	}
	if o.Against != "" {
		before, err := readBefore(ctx, o.Against, old, options)
		if err != nil {
			return &InputError{err}
		}
		r.Against(before)
	}
	if err := writeReport(out, r, d, o); err != nil {
		return err
	}
	tally := map[analyze.Level]int{}
	failed := false
	for _, f := range r.Findings {
		tally[f.Level]++
		failed = failed || fail != "" && f.Level.AtLeast(fail)
	}
	if failed {
		return &FindingsError{o.Chart, tally[analyze.LevelError], tally[analyze.LevelWarning], tally[analyze.LevelNote]}
	}
	return nil
}

// named is the chart's file for a report. SARIF is read by programs that know the
// repository and not this machine, so a file below the working directory is named
// from there.
func named(o AnalyzeOptions) string {
	if o.Format == "sarif" && filepath.IsAbs(o.Chart) {
		if here, err := os.Getwd(); err == nil {
			if short, err := filepath.Rel(here, o.Chart); err == nil && filepath.IsLocal(short) {
				return short
			}
		}
	}
	return o.Chart
}

// broken writes the report of what is no chart, for programs, and gives the error
// for people.
func broken(out io.Writer, o AnalyzeOptions, file string, cause, err error) error {
	switch o.Format {
	case "json":
		return errors.Join(err, analyze.Broken(file, cause).WriteJSON(out))
	case "sarif":
		return errors.Join(err, analyze.Broken(file, cause).WriteSARIF(out, o.Version))
	}
	return err
}

// active finds the states that are meant: by id, or by the label of a
// configuration.
func active(r *analyze.Report, d *statechart.Definition, words []string) ([]string, error) {
	find := func(word string) []string {
		for _, n := range d.Nodes() {
			if n.ID == word {
				return []string{word}
			}
		}
		for _, c := range r.Configurations {
			if c.Label == word {
				return c.States
			}
		}
		return nil
	}
	var ids, lost []string
	for _, word := range words {
		// A label can hold commas itself.
		if found := find(word); found != nil {
			ids = append(ids, found...)
			continue
		}
		for part := range strings.SplitSeq(word, ",") {
			part = strings.TrimSpace(part)
			found := find(part)
			if found == nil {
				lost = append(lost, fmt.Sprintf("%q", part))
			}
			ids = append(ids, found...)
		}
	}
	if len(lost) == 0 {
		return ids, nil
	}
	var known []string
	for _, n := range d.Nodes() {
		known = append(known, n.ID)
	}
	return nil, fmt.Errorf("--active: no state and no configuration is named %s; the states are %s", strings.Join(lost, ", "), strings.Join(known, ", "))
}

// unused names what is declared and not in the chart: it is most likely misspelt,
// and the action it was meant for stays unknown.
func unused(r *analyze.Report, file string, declared map[string]analyze.ActionClass) []string {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		if !slices.ContainsFunc(r.Actions, func(a analyze.Action) bool { return a.Name == name && a.Kind != "assign" }) {
			missing = append(missing, fmt.Sprintf("%s: actions.%s: the chart has no such action", file, name))
		}
	}
	return missing
}

func failLevel(word string) (analyze.Level, error) {
	switch l := analyze.Level(cmp.Or(word, "error")); l {
	case analyze.LevelError, analyze.LevelWarning, analyze.LevelNote:
		return l, nil
	case "never":
		return "", nil
	default:
		return "", fmt.Errorf("--fail-on: %q is none of error, warning, note, never", word)
	}
}

func writeReport(out io.Writer, r *analyze.Report, d *statechart.Definition, o AnalyzeOptions) error {
	switch o.Format {
	case "mermaid":
		return r.WriteMermaid(out, d)
	case "svg":
		return r.WriteSVG(out, d, o.Active)
	case "json":
		return r.WriteJSON(out)
	case "sarif":
		return r.WriteSARIF(out, o.Version)
	default:
		return r.WriteTable(out)
	}
}

// loadChart reads a definition whose functions need not be there.
func loadChart(text []byte) (*statechart.Definition, error) {
	language, err := cel.New(nil)
	if err != nil {
		return nil, err
	}
	return statechart.Load(text, &statechart.Options{Expressions: language, NamesOnly: true})
}

// listed writes the faults of a chart one a line, with its file.
func listed(file string, err error) error {
	faults, ok := errors.AsType[*statechart.Faults](err)
	if !ok {
		return err
	}
	lines := make([]string, len(faults.List))
	for i, f := range faults.List {
		lines[i] = fmt.Sprintf("%s:%d:%d: %s", file, f.At.Line, f.At.Column, f.Text)
		if f.At.Pointer != "" {
			lines[i] += " (" + f.At.Pointer + ")"
		}
	}
	return errors.New("not a chart:\n" + strings.Join(lines, "\n"))
}

// readBefore reads what a chart is compared with: a report, or an older chart.
func readBefore(ctx context.Context, file string, text []byte, o *analyze.Options) (*analyze.Report, error) {
	var report struct {
		Format *int            `json:"format"`
		Cells  json.RawMessage `json:"cells"`
	}
	if json.Unmarshal(text, &report) == nil && report.Format != nil && report.Cells != nil {
		r, err := analyze.ReadReport(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return r, nil
	}
	d, err := loadChart(text)
	if err != nil {
		return nil, listed(file, err)
	}
	old := *o
	old.File = file
	r, err := analyze.Analyze(ctx, d, &old)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// readDeclarations reads the classes of actions by name; "" names no file. Faults
// are names whose class is none.
func readDeclarations(file string) (classes map[string]analyze.ActionClass, faults []string, err error) {
	if file == "" {
		return nil, nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	var declared struct {
		Actions map[string]analyze.ActionClass `yaml:"actions"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := decoder.Decode(&declared); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%s: %s", file, yaml.FormatError(err, false, true))
	}
	for _, name := range slices.Sorted(maps.Keys(declared.Actions)) {
		if class := declared.Actions[name]; !slices.Contains(analyze.ActionClasses(), class) {
			faults = append(faults, fmt.Sprintf("%s: actions.%s: %q is no class; want constant, absorbing, overwrite, accumulating or unknown", file, name, class))
			declared.Actions[name] = analyze.Unknown
		}
	}
	return declared.Actions, faults, nil
}
