package torture_test

import (
	crand "crypto/rand"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/internal/torture"
)

// What a run that failed is repeated with.
var (
	seed = flag.Uint64("seed", 0, "seed of what is drawn; 0 means a new one")
	most = flag.Int("most", 0, "how many cuts at most, a tenth of them such that are waited for; 0 means as many as the form of the run has")
	only = flag.String("only", "", "names of exchanges, by their starts, with spaces between; empty means all")
)

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// seeded is the seed of a run, which it prints.
func seeded(t *testing.T) uint64 {
	t.Helper()
	n := *seed
	if n == 0 {
		n = rand.Uint64()
	}
	t.Logf("-seed %d", n)
	return n
}

// bed is a database of the test's own, with the shared Redis.
func bed(t *testing.T) *torture.Bed {
	t.Helper()
	server := testenv.StartPostgres(t, "fsync=off", "max_connections=500")
	b, err := torture.NewBed(t.Context(), server.URL(), testenv.Redis(t), "unavez:torture:"+strings.ToLower(crand.Text()[:8])+":")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestConnectionCutAtAnyMessageLeavesOneEffectAndOneAnswer(t *testing.T) {
	t.Parallel()
	b := bed(t)
	o := torture.CutOptions{Most: 20, Slow: 2, Seed: seeded(t), Log: t.Logf, Only: strings.Fields(*only)}
	if evidence.Long() {
		o.Most, o.Slow = 0, 0
	}
	if *most > 0 {
		o.Most, o.Slow = *most, *most/10
	}
	found, err := b.Cut(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found.Violations {
		t.Error(violation)
	}
	run := evidence.Run{
		Name: "wire-cuts", Long: evidence.Long(), Seed: o.Seed, Steps: found.Messages, Faults: found.Total(), Cuts: found.Total(),
		Violations: len(found.Violations),
	}
	run.Sees("the answer of a COMMIT was lost", found.LostCommits)
	run.Sees("an operation had taken effect and its client had no answer", found.InDoubt)
	run.Sees("a client without unavez made two effects", found.Bare)
	for what, code := range map[string]string{
		"an attempt was taken over": unavez.SawTakenOver, "a duplicate was answered from the ledger": unavez.SawReplayed,
		"the fast lease failed": unavez.SawLeaserFailed, "an outside system was asked": unavez.SawProbed,
		"a duplicate was told to wait": string(unavez.CodeInFlight),
	} {
		run.Sees(what, b.Saw(code))
	}
	t.Logf("%d cuts at %d messages: %v", found.Total(), found.Messages, found.Cuts)
	t.Logf("sometimes %v, missed %d", run.Sometimes, found.Missed)
	for _, what := range run.Never() {
		if *only == "" && evidence.Long() { // a few cuts need not meet everything
			t.Errorf("never: %s", what)
		}
	}
	if err := run.Write(); err != nil {
		t.Error(err)
	}
}
