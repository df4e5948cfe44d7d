package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/difference"
)

func TestASeedNamesOneList(t *testing.T) {
	t.Parallel()
	_, first := lists().Plan(7, 200)
	_, again := lists().Plan(7, 200)
	_, other := lists().Plan(8, 200)
	if !slices.Equal(first, again) {
		t.Error("one seed made two lists")
	}
	if slices.Equal(first, other) {
		t.Error("two seeds made one list")
	}
	if list, _ := lists().Plan(7, 200); len(lists().Permitted(list)) != len(list) {
		t.Error("a list holds lines that its own model does not permit")
	}
}

// A list that never meets a case tests nothing of it.
func TestRandomListsMeetEveryAnswer(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for seed := range uint64(10) {
		_, lines := lists().Plan(seed, randomLength)
		all.WriteString(strings.Join(lines, "\n"))
	}
	for _, answer := range []string{
		"free runs", "retryable fence=1", "parked fence", "unknown fence", "dead fence", "→ processing\n", "processing fence=2",
		"completed code", "discarded code", "expired short", "attempt=2", "attempt=3", "granted processing fence=3",
		"lease lost", "not in a state", "not found", "→ wrote", "rolled back", "done by", "begun by",
		"→ [k", "→ row", "size=",
	} {
		if !strings.Contains(all.String(), answer) {
			t.Errorf("ten lists never meet %q", answer)
		}
	}
	for _, k := range []kind{
		kindBegin, kindCommit, kindRollback, kindJoin, kindLook, kindSettle, kindPeek, kindClaim, kindRenew, kindRest, kindStep,
		kindSteps, kindFinish, kindAct, kindShow, kindList, kindCounts, kindPurge, kindExpire, kindAdvance, kindRows,
	} {
		if !strings.Contains(all.String(), fmt.Sprintf(" %s", k)) {
			t.Errorf("ten lists never ask for %s", k)
		}
	}
}

// forgetful is a model with a fault: it renews leases that have expired.
type forgetful struct{ *model }

func (f forgetful) do(a action) string {
	if t := f.ops[a.key].attempt; a.kind == kindRenew && t != nil && t.fence == a.fence {
		t.lease = f.now + randomLease
		return "ok"
	}
	return f.model.do(a)
}

func TestAFaultIsCutDownToAFewLines(t *testing.T) {
	t.Parallel()
	run := func(list []action) ([]string, []string) {
		return difference.Transcript(list, forgetful{newModel()}.do), difference.Transcript(list, newModel().do)
	}
	differs := func(list []action) bool { return difference.At(run(list)) >= 0 }
	list, _ := lists().Plan(1, randomLength)
	at := difference.At(run(list))
	if at < 0 {
		t.Fatal("the list does not meet the fault")
	}
	short := difference.Shrink(list[:at+1], lists().Permitted, differs)
	if !differs(short) {
		t.Fatal("the short list does not meet the fault")
	}
	if len(short) > 4 {
		got, _ := run(short)
		t.Errorf("%d lines left:\n%s", len(short), strings.Join(got, "\n"))
	}
}

func TestAHarnessSaysWhatItHasNot(t *testing.T) {
	t.Parallel()
	h := Harness[int]{}
	if got := h.faults(); len(got) != 1 {
		t.Errorf("faults of an empty harness: %q", got)
	}
}
