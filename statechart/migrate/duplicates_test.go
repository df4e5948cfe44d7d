package migrate_test

import (
	"slices"
	"testing"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
	"github.com/unavez/unavez/statechart/migrate"
)

func analysed(t *testing.T, d *statechart.Definition) *analyze.Report {
	t.Helper()
	r, err := analyze.Analyze(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAMigrationTellsWhatItMakesWorse takes processes from a chart in which a
// late PAY could be dropped for ever to one in which it acts again.
func TestAMigrationTellsWhatItMakesWorse(t *testing.T) {
	t.Parallel()
	old := load(t, `{"id":"o","initial":"open","states":{
		"open":{"on":{"PAY":"paid"}},"paid":{"on":{"SHIP":"sent"}},"sent":{"on":{"LOOK":{"actions":"mail"}}}}}`)
	now := load(t, `{"id":"o","initial":"open","states":{
		"open":{"on":{"PAY":"settled"}},"settled":{"on":{"SHIP":"sent"}},"sent":{"on":{"LOOK":{"actions":"mail"},"REOPEN":"open"}}}}`)
	plan, err := migrate.ParsePlan([]byte(`{"states":{"o.paid":"o.settled"}}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.New(old, now, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	before, after := analysed(t, old), analysed(t, now)
	var reachable []*statechart.Snapshot
	for s, err := range before.Snapshots(old) {
		if err != nil {
			t.Fatal(err)
		}
		reachable = append(reachable, s)
	}
	if report := m.Check(slices.Values(reachable)); report.Checked != 3 || len(report.Faults) != 0 {
		t.Errorf("%+v; want three configurations and no fault", report)
	}
	var found bool
	for _, c := range after.Migrated(before, old, m.Place) {
		// Under the plan paid is settled: only so it is seen that PAY acts again there.
		found = found || c.Event == "PAY" && c.Before == analyze.Late && c.Configuration == "settled"
	}
	if !found {
		t.Errorf("that a late PAY can act again is not among %+v", after.Migrated(before, old, m.Place))
	}
	for _, c := range analyze.Compare(before, after, nil) {
		if c.Configuration == "settled" {
			t.Errorf("without the plan nobody knows where paid went: %+v", c)
		}
	}
	if changes := before.Migrated(before, old, func(s *statechart.Snapshot) (statechart.Parts, error) { return s.Parts(), nil }); len(changes) != 0 {
		t.Errorf("a chart is worse than itself: %+v", changes)
	}
}
