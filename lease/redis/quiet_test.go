package redis

import (
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

func TestOneCallAPauseFindsOutWhetherRedisAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet(&goredis.Client{}, time.Second)
		at := q.place("{a}")
		enter := func(want bool) {
			t.Helper()
			if got := q.enter(at); got != want {
				t.Fatalf("after %v: enter %v, want %v", time.Since(q.start), got, want)
			}
		}
		enter(true)
		enter(true)
		q.silent(at)
		enter(false)
		time.Sleep(999 * time.Millisecond)
		enter(false)
		time.Sleep(time.Millisecond)
		enter(true) // the one
		enter(false)
		q.silent(at)
		time.Sleep(time.Second)
		enter(true) // another one, of which nothing is ever heard
		enter(false)
		time.Sleep(time.Second)
		enter(true)
		enter(false)
		q.answered(at)
		enter(true)
		enter(true)
	})
}

func TestAClusterIsLeftAloneWhereItIsSilent(t *testing.T) {
	t.Parallel()
	q := newQuiet(&goredis.ClusterClient{}, time.Hour)
	one, neighbour, other := q.place("x{0}"), q.place("y{0}"), q.place("{9}")
	if one != neighbour || one == other {
		t.Fatalf("places of slots %d, %d, %d", slotOf("x{0}"), slotOf("y{0}"), slotOf("{9}"))
	}
	q.silent(one)
	if q.enter(neighbour) || !q.enter(other) {
		t.Errorf("the neighbour %v, the other %v; want false and true", q.enter(neighbour), q.enter(other))
	}
	for _, never := range []*quiet{newQuiet(&goredis.Ring{}, time.Hour), newQuiet(&goredis.Client{}, 0)} {
		at := never.place("{a}")
		never.silent(at)
		if !never.enter(at) {
			t.Error("left alone")
		}
		never.answered(at)
	}
}
