package inbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

func TestEveryEntryTakesEffectOnceInTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	b := newBed(t, database[*memory.Tx](inMemory{memory.New(nil)}))
	for range 3 {
		b.start(b.worker(quick(), nil, nil, b.chain("chain.v1")))
	}
	ends := map[string]int{}
	var all []store.Entry
	for k := range 50 {
		key := fmt.Sprint("key", k)
		all = append(all, links("chain.v1", key, 1, 20)...)
		ends[key] = 20
	}
	b.append(all...)
	b.linked(ends)
	b.settled()
}

// Else it would ask for its turn again and again until the pause is over.
func TestAKeyThatIsDueWaitsWhenTheStoreHasTrouble(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct{ due, until, want time.Time }{
		"due, in trouble":     {now.Add(-time.Second), now.Add(time.Second), now.Add(time.Second)},
		"due later":           {now.Add(time.Minute), now.Add(time.Second), now.Add(time.Minute)},
		"due":                 {now.Add(-time.Second), time.Time{}, now.Add(-time.Second)},
		"for a person, never": {time.Time{}, now.Add(time.Second), time.Time{}},
	} {
		b := newBoard()
		l := &line{lane: &lane{lines: map[store.Key]*line{}}, row: 1, paging: true, until: c.until, rest: &rest{due: c.due}}
		at, never := l.next()
		if !at.Equal(c.want) || never != c.want.IsZero() {
			t.Errorf("%s: next at %v (never: %v), want %v", name, at, never, c.want)
		}
		if b.schedule(l); l.queued != (!never && !at.After(now)) {
			t.Errorf("%s: queued: %v", name, l.queued)
		}
	}
}
