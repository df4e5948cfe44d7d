package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/unavez/unavez/server"
)

// exitBroken says that doctor, audit or torture could not be carried out: nothing was
// found out, neither good nor bad.
const exitBroken = 3

// errExit ends the program with a code of its own, without a word where there is none.
type errExit struct {
	code int
	err  error
}

func (e errExit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e errExit) Unwrap() error { return e.err }

// found gives the end of a command that looks: broken off, or with a finding.
func found(err error, bad bool) error {
	switch {
	case err != nil:
		return errExit{exitBroken, err}
	case bad:
		return errExit{exitFault, nil} // the report has said what
	}
	return nil
}

// formatFlag is text or json.
func formatFlag(c *cobra.Command) func() (json bool, err error) {
	format := c.Flags().String("format", "text", "text or json")
	return func() (bool, error) {
		if *format != "text" && *format != "json" {
			return false, errUsage{fmt.Errorf("--format: %q, want text or json", *format)}
		}
		return *format == "json", nil
	}
}

func doctorCommand() *cobra.Command {
	var o server.DoctorOptions
	var strict bool
	c := &cobra.Command{
		Use:   "doctor [FILE]",
		Short: "Look at the live settings that the promises rest on",
		Long: `Doctor looks at the database and the Redis that FILE names, or ./unavez.yaml, or
the store of the example: durability, standbys, grants, clocks, locks, poolers,
the disk. For each check it says what it saw; where something is wrong, why it
matters and the way out. It changes nothing.

Serve refuses to start on what doctor refuses, unless the configuration names it;
then doctor calls it accepted:

  unsafe: [postgres.fsync]

It exits with 0 when nothing is refused, 1 when something is (with --strict: or
warned of, or accepted), 2 when it was asked wrongly or FILE cannot be read, 3 when
it could not look: FILE has faults, or PostgreSQL cannot be reached.`,
		Example: "  unavez doctor unavez.yaml\n  unavez doctor --store unavez.db --format json\n  unavez doctor --strict --store postgres://shop@db/shop --lease redis://cache:6379",
		Args:    takes("[FILE]"),
	}
	format := formatFlag(c)
	c.Flags().StringVar(&o.Store, "store", "", "file of SQLite or URL of PostgreSQL, in the place of a configuration")
	c.Flags().StringVar(&o.Lease, "lease", "", "URL of the Redis in front of --store")
	c.Flags().BoolVar(&strict, "strict", false, "what is warned of or accepted counts as a fault, too")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if len(args) == 1 {
			o.File = args[0]
		}
		if o.JSON, err = format(); err != nil {
			return err
		}
		o.Out = os.Stdout
		d, err := server.Doctor(c.Context(), o)
		if err == nil && d.Unreachable {
			return errExit{exitBroken, nil} // the report has said why
		}
		return found(err, d.Refused > 0 || strict && d.Warnings+d.Accepted > 0)
	}
	return c
}

func auditCommand() *cobra.Command {
	var o server.AuditOptions
	c := &cobra.Command{
		Use:   "audit [FILE]",
		Short: "Prove the invariants over what is stored",
		Long: `Audit proves over live data what unavez promises: at most one outcome of an
operation, results that match their checksums, keys that are those of their
identities, histories that go forward, a schema that nobody changed, and more.
It reads only, in short transactions, beside running workers, and names at most
keys and tables, never what a request carried.

Results and identities are read as a sample unless --all is given; everything
else is looked at row by row. Each invariant has a code that never changes its
meaning: docs/operations.md.

It exits with 0 when all hold, 1 when one is violated, 2 when it was asked
wrongly, 3 when it could not be carried out.`,
		Example: "  unavez audit\n  unavez audit unavez.yaml --all\n  unavez audit --store postgres://shop@db/shop --format json",
		Args:    takes("[FILE]"),
	}
	format := formatFlag(c)
	c.Flags().StringVar(&o.Store, "store", "", "file of SQLite or URL of PostgreSQL, in the place of a configuration")
	c.Flags().BoolVar(&o.All, "all", false, "read every stored result, not a sample")
	c.Flags().IntVar(&o.Sample, "sample", 10_000, "about how many stored results are read without --all")
	c.Flags().IntVar(&o.Page, "page", 50_000, "about how many rows one statement looks at")
	c.Flags().DurationVar(&o.Limit, "statement-limit", 5*time.Second, "how long one statement may take; one that takes longer is sent again for less")
	c.Flags().DurationVar(&o.Grace, "grace", time.Hour, "how far the workers' upkeep may be behind")
	c.Flags().IntVar(&o.Offenders, "offenders", 5, "how many violations of an invariant are named")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if len(args) == 1 {
			o.File = args[0]
		}
		if o.JSON, err = format(); err != nil {
			return err
		}
		o.Out = os.Stdout
		for name, n := range map[string]int{"--sample": o.Sample, "--page": o.Page, "--offenders": o.Offenders} {
			if n < 1 {
				return errUsage{fmt.Errorf("%s: %d, want 1 or more", name, n)}
			}
		}
		violated, err := server.Audit(c.Context(), o)
		return found(err, violated > 0)
	}
	return c
}
