package queuetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/difference"
)

func TestASeedNamesOneList(t *testing.T) {
	t.Parallel()
	list, first := lists().Plan(7, 200)
	_, again := lists().Plan(7, 200)
	_, other := lists().Plan(8, 200)
	if !slices.Equal(first, again) {
		t.Error("one seed made two lists")
	}
	if slices.Equal(first, other) {
		t.Error("two seeds made one list")
	}
	if len(lists().Permitted(list)) != len(list) {
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
		"→ new", "duplicate", "conflict", "rolled back", "completed attempt=1", "attempt=2", "discarded attempt", "free free",
		"completed free", " none", "granted", "→ processing", "→ unknown", "→ dead", "→ retryable", "→ parked",
		"lane lost", "lease lost", "not in a state", "not found", "has an outcome already", "all lanes",
		" gap", " done", "processing fence=1 left=", "retryable fence=2 due=", "dead fence", "parked gap fence", "completed done", "unknown fence",
		"→ [k", "→ []", "erased", "another's", "→ at ", "→ was ", "blocked 3",
	} {
		if !strings.Contains(all.String(), answer) {
			t.Errorf("ten lists never meet %q", answer)
		}
	}
	for _, k := range []kind{
		kindAppend, kindEnqueue, kindDone, kindBatch, kindClaim, kindAct, kindTakeover, kindBlock, kindUnblock, kindWaiting, kindRead,
		kindBeginning, kindFollowers, kindLoad, kindSeen, kindItem, kindReadmit, kindItems, kindErase, kindVersion, kindPosition, kindSave,
		kindCounts, kindPurge, kindAdvance,
	} {
		if !strings.Contains(all.String(), fmt.Sprintf(" %s k", k)) {
			t.Errorf("ten lists never ask for %s", k)
		}
	}
}

// hasty is a model with a fault: a row that blocks gives way to any other of its
// ordering key, not to an earlier one only.
type hasty struct{ *model }

func (h hasty) do(a action) string {
	if a.kind == kindBlock && !a.stale && !a.rest && !a.gap {
		h.blocked = slices.DeleteFunc(h.blocked, func(b *modelBlocked) bool {
			return !b.gap && b.entry.key%randomOrders == a.key%randomOrders
		})
	}
	return h.model.do(a)
}

func TestAFaultIsCutDownToAFewLines(t *testing.T) {
	t.Parallel()
	run := func(list []action) ([]string, []string) {
		return difference.Transcript(list, hasty{newModel()}.do), difference.Transcript(list, newModel().do)
	}
	differs := func(list []action) bool { return difference.At(run(list)) >= 0 }
	for seed := uint64(1); ; seed++ {
		list, _ := lists().Plan(seed, randomLength)
		at := difference.At(run(list))
		if at < 0 {
			continue // not every list meets the fault
		}
		short := difference.Shrink(list[:at+1], lists().Permitted, differs)
		if !differs(short) {
			t.Fatal("the short list does not meet the fault")
		}
		// Two appends, two blocks, and a look or two at what waits.
		if len(short) > 6 {
			got, _ := run(short)
			t.Errorf("%d lines left:\n%s", len(short), strings.Join(got, "\n"))
		}
		return
	}
}

func TestAHarnessSaysWhatItHasNot(t *testing.T) {
	t.Parallel()
	h := Harness[int]{}
	if got := h.faults(); len(got) != 1 {
		t.Errorf("faults of an empty harness: %q", got)
	}
}
