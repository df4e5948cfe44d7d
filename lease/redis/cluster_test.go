//go:build unix

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/redis"
)

// masters is a private Cluster, and a client for each of its servers.
type masters struct {
	servers []*testenv.RedisServer
	clients []*goredis.Client
	ids     []string
}

func newMasters(t *testing.T) *masters {
	t.Helper()
	m := &masters{servers: testenv.StartRedisCluster(t)}
	for _, s := range m.servers {
		client := plain(t, s.Addr()).(*goredis.Client)
		id, err := client.ClusterMyID(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		m.clients, m.ids = append(m.clients, client), append(m.ids, id)
	}
	return m
}

// url knows the Cluster by the last of its servers.
func (m *masters) url() string { return "redis://" + m.servers[2].Addr() + "?cluster=true" }

// keyOn finds a lease's key whose slot the i-th master holds.
func (m *masters) keyOn(t *testing.T, i int, prefix string) (key, at string, slot int) {
	t.Helper()
	for n := range 1000 {
		key := fmt.Sprintf("%032x", n)
		at := prefix + "{" + key + "}"
		slot, err := m.clients[0].ClusterKeySlot(t.Context(), at).Result()
		if err != nil {
			t.Fatal(err)
		}
		if int(slot)*3/16384 == i {
			return key, at, int(slot)
		}
	}
	t.Fatal("no key")
	return "", "", 0
}

// set sets the state of a slot on one server.
func (m *masters) set(t *testing.T, server, slot int, state ...any) {
	t.Helper()
	if err := m.clients[server].Do(t.Context(), append([]any{"cluster", "setslot", slot}, state...)...).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestLeasesFollowASlotThatMoves(t *testing.T) {
	t.Parallel()
	m := newMasters(t)
	opts := steady()
	l := open(t, m.url(), opts)
	key, at, slot := m.keyOn(t, 0, opts.Prefix)
	granted(t, l, key, "a")

	// Half-way: the key is asked for at its new place, where no script is known.
	m.set(t, 1, slot, "importing", m.ids[0])
	m.set(t, 0, slot, "migrating", m.ids[1])
	refused(t, l, key, "b", "a")
	if err := m.clients[0].Migrate(t.Context(), "127.0.0.1", strconv.Itoa(m.servers[1].Port()), at, 0, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	refused(t, l, key, "b", "a")
	granted(t, l, key, "a")
	if held, err := l.Renew(t.Context(), key, "a", time.Hour); !held || err != nil {
		t.Fatal(held, err)
	}

	// Moved: the client learns the new place by being told.
	for _, i := range []int{1, 0, 2} {
		m.set(t, i, slot, "node", m.ids[1])
	}
	refused(t, l, key, "b", "a")
	granted(t, l, key, "a")
	if err := l.Release(t.Context(), key, "a"); err != nil {
		t.Fatal(err)
	}
	granted(t, l, key, "b")
	if n, err := m.clients[1].Exists(t.Context(), at).Result(); n != 1 || err != nil {
		t.Errorf("at the new place: %d, %v", n, err)
	}
}

func TestADeadMasterLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	m := newMasters(t)
	opts := &redis.Options{Prefix: prefix(), Timeout: patient, Pause: time.Minute}
	l := open(t, m.url(), opts)
	lost, _, _ := m.keyOn(t, 0, opts.Prefix)
	well, _, _ := m.keyOn(t, 1, opts.Prefix)
	granted(t, l, lost, "a")
	granted(t, l, well, "a")
	m.servers[0].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	if _, _, _, err := l.Acquire(ctx, lost, lease.Value{Token: "b"}, time.Hour); err == nil || errors.Is(err, redis.ErrPaused) {
		t.Errorf("at the dead master: %v", err)
	}
	if _, _, _, err := l.Acquire(ctx, lost, lease.Value{Token: "b"}, time.Hour); !errors.Is(err, redis.ErrPaused) {
		t.Errorf("at the dead master again: %v, want ErrPaused", err)
	}
	refused(t, l, well, "b", "a")
	if err := l.Release(t.Context(), well, "a"); err != nil {
		t.Error(err)
	}
}
