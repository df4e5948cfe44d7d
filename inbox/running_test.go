package inbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

func everyEntry[Tx any](b *bed[Tx]) {
	for range 3 {
		b.start(b.worker(b.quick(), nil, nil, b.chain("chain.v1")))
	}
	ends := map[string]int{}
	var all []store.Entry
	keys, length := 50, 20
	if b.real {
		keys, length = 25, 8
	}
	for k := range keys {
		key := fmt.Sprint("key", k)
		all = append(all, links("chain.v1", key, 1, length)...)
		ends[key] = length
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
