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
	// Active are the ids of states to be lit in a picture.
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
// error is a *FindingsError if the chart was analysed and does not pass.
func Analyze(ctx context.Context, out io.Writer, o AnalyzeOptions) error {
	if err := o.Check(); err != nil {
		return err
	}
	fail, err := failLevel(o.FailOn)
	if err != nil {
		return err
	}
	d, err := readChart(o.Chart)
	if err != nil {
		return err
	}
	options := &analyze.Options{
		MaxConfigurations: o.MaxConfigurations, MaxSteps: o.MaxSteps, MaxAnswers: o.MaxAnswers, File: o.Chart,
	}
	if o.Declare != "" {
		if options.Actions, err = readDeclarations(o.Declare); err != nil {
			return err
		}
	}
	r, err := analyze.Analyze(ctx, d, options)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Chart, err)
	}
	if err := allUsed(r, o.Declare, options.Actions); err != nil {
		return err
	}
	if o.Against != "" {
		before, err := readBefore(ctx, o.Against, options)
		if err != nil {
			return err
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

// allUsed refuses a declared name that the chart does not use: it is most likely
// misspelt, and the action it was meant for stays unknown.
func allUsed(r *analyze.Report, file string, declared map[string]analyze.ActionClass) error {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		if !slices.ContainsFunc(r.Actions, func(a analyze.Action) bool { return a.Name == name && a.Kind != "assign" }) {
			missing = append(missing, fmt.Sprintf("%s: actions.%s: the chart has no such action", file, name))
		}
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "\n"))
	}
	return nil
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

// readChart reads a definition whose functions need not be there.
func readChart(file string) (*statechart.Definition, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseChart(file, text)
}

func parseChart(file string, text []byte) (*statechart.Definition, error) {
	language, err := cel.New(nil)
	if err != nil {
		return nil, err
	}
	d, err := statechart.Load(text, &statechart.Options{Expressions: language, NamesOnly: true})
	var faults *statechart.Faults
	if errors.As(err, &faults) {
		lines := make([]string, len(faults.List))
		for i, f := range faults.List {
			lines[i] = fmt.Sprintf("%s:%d:%d: %s", file, f.At.Line, f.At.Column, f.Text)
			if f.At.Pointer != "" {
				lines[i] += " (" + f.At.Pointer + ")"
			}
		}
		return nil, errors.New("not a chart:\n" + strings.Join(lines, "\n"))
	}
	return d, err
}

// readBefore reads what a chart is compared with: a report, or an older chart.
func readBefore(ctx context.Context, file string, o *analyze.Options) (*analyze.Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
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
	d, err := parseChart(file, text)
	if err != nil {
		return nil, err
	}
	old := *o
	old.File = file
	r, err := analyze.Analyze(ctx, d, &old)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// readDeclarations reads the classes of actions by name.
func readDeclarations(file string) (map[string]analyze.ActionClass, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var declared struct {
		Actions map[string]analyze.ActionClass `yaml:"actions"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := decoder.Decode(&declared); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", file, yaml.FormatError(err, false, true))
	}
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(declared.Actions)) {
		if class := declared.Actions[name]; !slices.Contains(analyze.ActionClasses(), class) {
			faults = append(faults, fmt.Sprintf("%s: actions.%s: %q is no class; want constant, absorbing, overwrite, accumulating or unknown", file, name, class))
		}
	}
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, "\n"))
	}
	return declared.Actions, nil
}
