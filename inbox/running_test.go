package inbox

import (
	"fmt"
	"testing"

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
