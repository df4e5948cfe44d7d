package inbox

import (
	"slices"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// What stands behind an entry of its key that cannot run now is left alone with it;
// other keys go on.
func TestNothingOfABatchPassesAnEntryThatWaits(t *testing.T) {
	t.Parallel()
	event := func(n byte, names byte) *item {
		return &item{entry: store.Entry{Key: store.Key{n}, Operation: store.Key{names}}}
	}
	waits := unavez.Found{Err: &unavez.Error{Code: unavez.CodeInFlight}}
	done := unavez.Found{Outcome: &unavez.Outcome{Replayed: true}}
	a, b := &line{}, &line{}
	for name, c := range map[string]struct {
		items []*item
		lines []*line
		found []unavez.Found // of the operations, by the number of their key
		want  []class
		todo  []int
	}{
		"its own event is in flight elsewhere": {
			[]*item{event(0, 0), event(1, 1), event(2, 2)},
			[]*line{a, a, b},
			[]unavez.Found{waits, {}, {}},
			[]class{later, later, ended},
			[]int{2},
		},
		"the operation that it names is in flight elsewhere": {
			[]*item{event(0, 3), event(1, 1), event(2, 2)},
			[]*line{a, a, b},
			[]unavez.Found{{}, {}, {}, waits},
			[]class{later, later, ended},
			[]int{2},
		},
		"an entry before it names the same operation": {
			[]*item{event(0, 3), event(1, 3), event(2, 2)},
			[]*line{a, b, b},
			[]unavez.Found{{}, {}, {}, {}},
			[]class{ended, later, later},
			[]int{0},
		},
		"what is done holds nothing up": {
			[]*item{event(0, 0), event(1, 1)},
			[]*line{a, a},
			[]unavez.Found{done, {}},
			[]class{ended, ended},
			[]int{1},
		},
	} {
		all := &together[*memory.Tx]{items: c.items, lines: c.lines, ops: make([]unavez.Operation, len(c.found))}
		for _, it := range c.items {
			all.own, all.named = append(all.own, int(it.entry.Key[0])), append(all.named, int(it.entry.Operation[0]))
		}
		runs, todo, _ := all.plan(c.found)
		var got []class
		for _, r := range runs {
			got = append(got, r.class)
		}
		if !slices.Equal(got, c.want) || !slices.Equal(todo, c.todo) {
			t.Errorf("%s: %v, to run %v; want %v, %v", name, got, todo, c.want, c.todo)
		}
	}
}
