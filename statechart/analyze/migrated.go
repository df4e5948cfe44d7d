package analyze

import (
	"fmt"
	"iter"

	"github.com/unavez/unavez/statechart"
)

// Snapshots are the configurations of the report as snapshots of its chart, with
// an empty context: what a check of a migration goes through. It is complete only
// where no budget ran out.
func (r *Report) Snapshots(d *statechart.Definition) iter.Seq2[*statechart.Snapshot, error] {
	return func(yield func(*statechart.Snapshot, error) bool) {
		for _, c := range r.Configurations {
			s, err := statechart.Assemble(d, c.Parts())
			if err != nil {
				err = fmt.Errorf("configuration %s: %w", c.Label, err)
			}
			if !yield(s, err) {
				return
			}
		}
	}
}

// Migrated tells what a migration makes worse for the processes that it takes
// over: the duplicate tables of both charts, each old configuration beside the
// one that the plan takes it to. Place says where that is, as
// migrate.Migration.Place does; a configuration that it refuses is left out here
// and is a fault of the migration's own check.
func (r *Report) Migrated(before *Report, old *statechart.Definition, place func(*statechart.Snapshot) (statechart.Parts, error)) []Change {
	return Compare(before, r, func(c Configuration) (Configuration, bool) {
		s, err := statechart.Assemble(old, c.Parts())
		if err != nil {
			return Configuration{}, false
		}
		parts, err := place(s)
		if err != nil {
			return Configuration{}, false
		}
		return Configuration{States: parts.States, History: parts.History, Done: parts.Status == statechart.Done}, true
	})
}
