package redis_test

import (
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease/redis"
)

func TestFactsAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	master := testenv.StartRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru", "--min-replicas-to-write", "1")
	facts := func(at string) redis.ServerFacts {
		t.Helper()
		f, err := open(t, "redis://"+at, steady()).Facts(t.Context())
		if err != nil || len(f.Servers) != 1 || f.ClusterState != "" {
			t.Fatalf("%+v, %v", f, err)
		}
		s := f.Servers[0]
		if s.Address != at || s.Version == "" || s.UsedMemory == 0 || s.Latency <= 0 || s.Ahead.Abs() > patient {
			t.Errorf("%+v", s)
		}
		return s
	}
	s := facts(master.Addr())
	if s.Role != "master" || s.Policy != "allkeys-lru" || s.MaxMemory != 3<<20 || s.MinReplicas != 1 || s.Replicas != 0 {
		t.Errorf("%+v", s)
	}
	replica := master.Replica()
	if s := facts(master.Addr()); s.Replicas != 1 {
		t.Errorf("%+v", s)
	}
	if s := facts(replica.Addr()); s.Role != "slave" || s.Policy != "noeviction" || s.MaxMemory != 0 {
		t.Errorf("%+v", s)
	}
	closed := testenv.StartRedis(t, "--rename-command", "CONFIG", "")
	if s := facts(closed.Addr()); s.MinReplicas != -1 {
		t.Errorf("without CONFIG: %+v", s)
	}
	closed.Kill()
	if f, err := open(t, "redis://"+closed.Addr(), steady()).Facts(t.Context()); err == nil || len(f.Servers) != 0 {
		t.Errorf("a server that is gone: %+v, %v", f, err)
	}
}

func TestFactsOfAClusterAreThoseOfEachMaster(t *testing.T) {
	t.Parallel()
	f, err := open(t, clusterURL(t), steady()).Facts(t.Context())
	if err != nil || f.ClusterState != "ok" || len(f.Servers) != len(testenv.RedisCluster(t)) {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, s := range f.Servers {
		if s.Role != "master" || !strings.Contains(s.Address, ":") {
			t.Errorf("%+v", s)
		}
	}
}
