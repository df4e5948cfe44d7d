package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
)

// The names of the checks of the Redis in front of a store.
const (
	checkRedis        = "redis.reachable"
	checkRedisVersion = "redis.version"
	checkRedisRole    = "redis.role"
	checkRedisPolicy  = "redis.maxmemory_policy"
	checkRedisMemory  = "redis.memory"
	checkRedisWrites  = "redis.min_replicas"
	checkRedisClock   = "redis.clock"
	checkRedisLatency = "redis.latency"
	checkRedisCluster = "redis.cluster"
)

// redisChecks are all that is looked at. None is refused: Redis is disposable,
// and the store decides the same without it.
func redisChecks() []store.Check {
	const warning = store.Warning
	return []store.Check{
		{Name: checkRedis, Level: warning, Why: "Redis spares the store the duplicates in flight; without it the store decides alone, at more cost", Way: "start it, or take lease: out of the configuration"},
		{Name: checkRedisVersion, Level: warning, Why: "the lease is tried on Redis 7", Way: "upgrade the server"},
		{Name: checkRedisRole, Level: warning, Why: "a replica takes no writes: every lease fails", Way: "name the master, or a Sentinel or Cluster that finds it"},
		{Name: checkRedisPolicy, Level: warning, Why: "when its memory is full, Redis throws leases away to make room for others' keys: each costs a claim in the store, and a route with claim: lease may call twice", Way: "a Redis of its own with maxmemory-policy noeviction"},
		{Name: checkRedisMemory, Level: warning, Why: "when its memory is full Redis takes no lease, or throws some away", Way: "raise maxmemory, or give the leases a Redis of their own"},
		{Name: checkRedisWrites, Level: warning, Why: "a master with fewer replicas than it wants takes no writes: every lease fails", Way: "connect the replicas, or set min-replicas-to-write 0: a lease needs none"},
		{Name: checkRedisClock, Level: warning, Why: "leases end by lengths, so nothing breaks; but logs that people compare do not fit", Way: "let NTP set the clocks of both hosts"},
		{Name: checkRedisLatency, Level: warning, Why: "each operation waits for Redis once; a slow one costs more than it spares", Way: "put it near the workers, or take lease: out of the configuration"},
		{Name: checkRedisCluster, Level: warning, Why: "a Cluster that is not whole refuses the keys of the slots that are missing", Way: "redis-cli --cluster fix, or bring the missing masters back"},
	}
}

// slowRedis is from where on Redis costs more than it spares.
const slowRedis = 20 * time.Millisecond

// fullMemory is from where on a Redis's memory is as good as full, in percent.
const fullMemory = 90

// lookAtRedis looks at the Redis in front of a store.
func lookAtRedis(ctx context.Context, from config.Secret) ([]store.Check, error) {
	l, err := redis.Open(from.Reveal(), &redis.Options{Timeout: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	facts, err := l.Facts(ctx)
	look := store.NewCheckup(redisChecks())
	if err != nil {
		look.See(checkRedis, store.Warning, true, "%s", strings.Join(strings.Fields(err.Error()), " "))
	} else {
		look.See(checkRedis, store.Warning, false, "yes")
	}
	if facts.ClusterState != "" {
		look.See(checkRedisCluster, store.Warning, facts.ClusterState != "ok", "%s, %s", facts.ClusterState, counted(len(facts.Servers), "master"))
	}
	for _, s := range facts.Servers {
		judgeRedis(look, s, len(facts.Servers) > 1)
	}
	return look.All(), l.Close()
}

// judgeRedis says what one server's facts mean.
func judgeRedis(look *store.Checkup, s redis.ServerFacts, several bool) {
	see := func(name string, wrong bool, format string, args ...any) {
		if several {
			format, args = "%s: "+format, append([]any{s.Address}, args...)
		}
		look.See(name, store.Warning, wrong, format, args...)
	}
	var major int
	_, err := fmt.Sscanf(s.Version, "%d.", &major)
	see(checkRedisVersion, err != nil || major < 7, "%s", s.Version)
	see(checkRedisRole, s.Role != "master", "%s", s.Role)
	// Every lease has an end, so that volatile-… evicts them too.
	see(checkRedisPolicy, s.Policy != "noeviction", "%s", s.Policy)
	if s.MaxMemory == 0 {
		see(checkRedisMemory, false, "no bound")
	} else {
		see(checkRedisMemory, s.UsedMemory*100 >= s.MaxMemory*fullMemory, "%d of %d MiB", s.UsedMemory>>20, s.MaxMemory>>20)
	}
	if s.MinReplicas < 0 {
		see(checkRedisWrites, false, "not told: CONFIG is not allowed")
	} else {
		see(checkRedisWrites, s.Replicas < s.MinReplicas, "%s connected, %d wanted", counted(s.Replicas, "replica"), s.MinReplicas)
	}
	see(checkRedisClock, s.Ahead.Abs() > time.Second+s.Latency, "%v apart", s.Ahead.Round(time.Millisecond))
	see(checkRedisLatency, s.Latency > slowRedis, "%v", s.Latency.Round(10*time.Microsecond))
}
