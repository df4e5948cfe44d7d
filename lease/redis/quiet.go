package redis

import (
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// slots of a Redis Cluster. A master holds ranges of them.
	slots = 16384
	// neighbourhood is how many slots are left alone together.
	neighbourhood = 256
)

// quiet remembers where a call had no answer, and lets one call at a time find
// out, after a pause, whether there are answers again.
type quiet struct {
	pause  time.Duration
	start  time.Time
	places []place
}

// place is a server, or the neighbourhood of some slots of a Cluster.
type place struct {
	until atomic.Int64 // when to ask again, since start; 0 while there are answers
}

// newQuiet knows a single server by one place and a Cluster by its slots. A
// Ring has several servers and looks after their health itself, and of a
// wrapper nothing is known: those are never left alone.
func newQuiet(client goredis.UniversalClient, pause time.Duration) *quiet {
	q := &quiet{pause: pause, start: time.Now()}
	if pause == 0 {
		return q
	}
	switch client.(type) {
	case *goredis.Client:
		q.places = make([]place, 1)
	case *goredis.ClusterClient:
		q.places = make([]place, slots/neighbourhood)
	}
	return q
}

// place gives where a key lives, nil where nothing is left alone.
func (q *quiet) place(name string) *place {
	switch len(q.places) {
	case 0:
		return nil
	case 1:
		return &q.places[0]
	}
	return &q.places[slotOf(name)/neighbourhood]
}

// enter tells whether a call may be made. When a pause is over it is yes to one
// call, and no to the others for one more pause or until that one is answered.
func (q *quiet) enter(p *place) bool {
	if p == nil {
		return true
	}
	until := p.until.Load()
	if until == 0 {
		return true
	}
	now := q.now()
	return now >= until && p.until.CompareAndSwap(until, now+int64(q.pause))
}

func (q *quiet) answered(p *place) {
	if p != nil && p.until.Load() != 0 {
		p.until.Store(0)
	}
}

func (q *quiet) silent(p *place) {
	if p != nil {
		p.until.Store(q.now() + int64(q.pause))
	}
}

// now is monotonic and never 0.
func (q *quiet) now() int64 { return int64(time.Since(q.start)) + 1 }

// slotOf is Redis Cluster's slot of a key: CRC-16 (XMODEM) of what stands
// between its braces.
func slotOf(name string) int {
	_, tag, _ := strings.Cut(name, "{")
	tag, _, _ = strings.Cut(tag, "}")
	var crc uint16
	for _, c := range []byte(tag) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}
