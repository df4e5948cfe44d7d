package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unavez/unavez/server"
)

func analyzeCommand() *cobra.Command {
	var o server.AnalyzeOptions
	var schema bool
	c := &cobra.Command{
		Use:   "analyze CHART",
		Short: "Tell what a duplicate of an event can do to a statechart",
		Long: `Analyze explores a chart with the interpreter itself and tells, for every
configuration and every event, whether a second delivery could act again:

  terminal, protected, by-data    it cannot
  until-cycle                     not before some path leads back; with the shortest
  exposed                         the very next delivery acts again
  unknown                         a budget ended the search; never read it as protected
  late, early                     no effect here: for ever, or not yet

CHART is a machine of XState 5 in JSON. Guards and actions may be names without
code: a guard then answers both ways, and the class of an action is unknown until a
file of --declare gives it:

  actions:
    notifyCustomer: absorbing      # constant, absorbing, overwrite, accumulating
    addPoints: accumulating

--against names an older chart, or its report in JSON: what is worse now is an error.

It exits with 1 if a finding is at least as grave as --fail-on, or if CHART is no
chart (json and sarif then carry its faults); with 2 if it was called wrongly, or a
file cannot be read or used. The rules are described in docs/statecharts.md.`,
		Example: "  unavez analyze order.json\n  unavez analyze order.json --format svg > order.svg\n  unavez analyze order.json --format sarif --against main.json > order.sarif",
		Args: func(c *cobra.Command, args []string) error {
			if schema {
				return takes()(c, args)
			}
			return takes("CHART")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if schema {
				_, err := os.Stdout.Write(server.ReportSchema())
				return err
			}
			o.Chart, o.Version = args[0], version()
			if err := o.Check(); err != nil {
				return errUsage{err}
			}
			err := server.Analyze(c.Context(), os.Stdout, o)
			if input, ok := errors.AsType[*server.InputError](err); ok {
				return errExit{exitUsage, input}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Format, "format", "table", strings.Join(server.AnalyzeFormats(), ", "))
	f.StringVar(&o.Declare, "declare", "", "file (YAML) with the classes of actions by name")
	f.StringVar(&o.Against, "against", "", "older chart, or its report in JSON, to compare with")
	f.StringVar(&o.FailOn, "fail-on", "error", "level from which a finding fails the run: error, warning, note, never")
	f.StringArrayVar(&o.Active, "active", nil, "states to be lit in a picture: ids with commas, or a configuration as the table names it")
	f.IntVar(&o.MaxConfigurations, "max-configurations", 0, "budget of configurations; 0 means 5000")
	f.IntVar(&o.MaxSteps, "max-steps", 0, "budget of runs of the interpreter; 0 means 500000")
	f.IntVar(&o.MaxAnswers, "max-answers", 0, "budget of guard answers for one event in one configuration; 0 means 1024")
	f.BoolVar(&schema, "schema", false, "print the JSON Schema of the format json")
	return c
}
