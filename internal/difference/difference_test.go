package difference

import (
	"slices"
	"testing"
)

func TestTheFirstDifferenceIsFound(t *testing.T) {
	t.Parallel()
	want := []string{"a", "b", "c"}
	for at, got := range [][]string{{"x", "b", "x"}, {"a", "x", "x"}, {"a", "b", "x", "d"}} {
		if n := At(got, want); n != at {
			t.Errorf("%v differs from %v in line %d, said %d", got, want, at, n)
		}
	}
	if n := At([]string{"a", "b", "c", "d"}, want); n != -1 {
		t.Errorf("equal lines: differ in line %d", n)
	}
}

// A list needs 3 and the 17 behind it; a 17 stands on a 3 before it.
func TestAListIsCutDownToWhatMatters(t *testing.T) {
	t.Parallel()
	var list []int
	for i := range 18 {
		list = append(list, i)
	}
	differs := func(list []int) bool {
		at := slices.Index(list, 3)
		return at >= 0 && slices.Contains(list[at:], 17)
	}
	permitted := func(list []int) []int {
		if at := slices.Index(list, 17); at >= 0 && !slices.Contains(list[:at], 3) {
			return slices.Delete(slices.Clone(list), at, at+1)
		}
		return list
	}
	if got := Shrink(list, permitted, differs); !slices.Equal(got, []int{3, 17}) {
		t.Errorf("cut down to %v, want [3 17]", got)
	}
}
