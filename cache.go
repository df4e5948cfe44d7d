package unavez

import (
	"container/list"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// entryOverhead is what an entry of the cache costs beside its bytes.
const entryOverhead = 400

// cache holds frozen outcomes by key, bounded in bytes, least recently used
// out first. An outcome is immutable and final, so an entry may answer by
// itself for as long as the outcome's retention lasts.
type cache struct {
	limit int

	mu    sync.Mutex
	era   int // counts the incarnations of the database
	size  int
	order *list.List // of *entry, most recently used first
	byKey map[store.Key]*list.Element
}

// entry is one cached outcome.
type entry struct {
	key     store.Key
	outcome *Outcome
	size    int
	until   time.Time // monotonic
}

func newCache(limit int) *cache {
	return &cache{limit: limit, order: list.New(), byKey: map[store.Key]*list.Element{}}
}

// get finds an outcome that is still within its retention at the given moment.
func (c *cache) get(key store.Key, now time.Time) (*Outcome, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byKey[key]
	if !ok {
		return nil, false
	}
	e := el.Value.(*entry)
	if now.After(e.until) {
		c.remove(el)
		return nil, false
	}
	c.order.MoveToFront(el)
	return e.outcome, true
}

// put remembers an outcome read or committed at the given moment, in the given
// era. One that would take more than a sixteenth of the cache is left out.
func (c *cache) put(key store.Key, outcome *Outcome, at time.Time, era int) {
	size := entryOverhead + len(outcome.Result.Body) + len(outcome.Fingerprint.Sum)
	for _, f := range outcome.Result.Header {
		size += len(f.Name) + len(f.Value) + 32
	}
	until := at.Add(outcome.Left)
	if size > c.limit/16 || !time.Now().Before(until) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if era != c.era {
		return
	}
	if el, ok := c.byKey[key]; ok {
		c.remove(el)
	}
	c.byKey[key] = c.order.PushFront(&entry{key: key, outcome: outcome, size: size, until: until})
	c.size += size
	for c.size > c.limit {
		c.remove(c.order.Back())
	}
}

// clear forgets everything: the database's history is another one now.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order.Init()
	clear(c.byKey)
	c.size = 0
	c.era++
}

// current is the era to give to put for what is read from now on.
func (c *cache) current() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.era
}

// remove drops an entry; the mutex is held.
func (c *cache) remove(el *list.Element) {
	e := c.order.Remove(el).(*entry)
	delete(c.byKey, e.key)
	c.size -= e.size
}
