package analyze_test

import (
	"strconv"
	"testing"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
)

// How long an analysis takes: 5 regions of three states are 243 configurations,
// the size of a large order; 12 regions end at the budget.
func BenchmarkAnalyze(b *testing.B) {
	for _, n := range []int{5, 12} {
		b.Run(strconv.Itoa(n)+" regions", func(b *testing.B) {
			d, err := statechart.Load(regions(n), &statechart.Options{NamesOnly: true})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r, err := analyze.Analyze(b.Context(), d, nil)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(r.Configurations)), "configurations")
			}
		})
	}
}
