package analyze

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/unavez/unavez/statechart"
)

// Options of [Analyze]. Nil means all defaults.
type Options struct {
	// Actions declares the class of actions by name. A declared class counts more
	// than what the definition says.
	Actions map[string]ActionClass
	// MaxConfigurations bounds the search; 0 means 5,000. Negative is refused, here
	// and below.
	MaxConfigurations int
	// MaxSteps bounds the runs of the interpreter; 0 means 500,000.
	MaxSteps int
	// MaxAnswers bounds the lists of guard answers that are tried for one event in
	// one configuration; 0 means 1,024.
	MaxAnswers int
	// File is the name for messages and positions; "" leaves it out.
	File string
}

func (o *Options) defaulted() (*Options, error) {
	c := Options{}
	if o != nil {
		c = *o
	}
	var faults []error
	for _, f := range []struct {
		name  string
		value *int
		zero  int
	}{
		{"MaxConfigurations", &c.MaxConfigurations, 5_000},
		{"MaxSteps", &c.MaxSteps, 500_000},
		{"MaxAnswers", &c.MaxAnswers, 1_024},
	} {
		switch {
		case *f.value < 0:
			faults = append(faults, fmt.Errorf("%s: %d is negative; 0 means %d", f.name, *f.value, f.zero))
		case *f.value == 0:
			*f.value = f.zero
		}
	}
	for name, class := range c.Actions {
		if !slices.Contains(ActionClasses(), class) {
			faults = append(faults, fmt.Errorf("%q of %s in Actions is no class; want one of %v", class, name, ActionClasses()))
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("analyze: %w", errors.Join(faults...))
	}
	return &c, nil
}

// Analyze explores a chart and reports. It takes as long as the chart is large,
// within the budgets, and ends early with the error of ctx. The definition may
// be one with names only.
//
// An error means that there is nothing to report: the options are faulty, or the
// chart cannot even start.
func Analyze(ctx context.Context, d *statechart.Definition, o *Options) (*Report, error) {
	options, err := o.defaulted()
	if err != nil {
		return nil, err
	}
	x, err := explore(ctx, d, options)
	if err != nil {
		return nil, err
	}
	return newReport(newGraph(x), options), nil
}
