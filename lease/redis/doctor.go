package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Facts are what a Redis tells of itself, as far as leases are concerned.
type Facts struct {
	// Servers that leases are written to: one, or each master of a Cluster.
	Servers []ServerFacts
	// ClusterState is that of a Cluster, such as ok or fail; empty for one server.
	ClusterState string
}

// ServerFacts are those of one server.
type ServerFacts struct {
	// Address it is known by, host:port.
	Address string
	// Version of the server.
	Version string
	// Role is master or slave, in the server's own words.
	Role string
	// Policy is what the server does when its memory is full.
	Policy string
	// MaxMemory and UsedMemory in bytes; a MaxMemory of 0 is no bound.
	MaxMemory, UsedMemory int64
	// MinReplicas that must be connected for a write to be taken, and Replicas
	// that are. MinReplicas is -1 where the server does not let us ask.
	MinReplicas, Replicas int
	// Ahead is how far the server's clock is before this worker's.
	Ahead time.Duration
	// Latency is the shortest of some round trips.
	Latency time.Duration
}

// pings is how many round trips are timed.
const pings = 5

// Facts asks each server, changes nothing and decides nothing. Each question
// ends within Options.Timeout. An error says which server did not answer; the
// others' facts come with it.
func (l *Leaser) Facts(ctx context.Context) (Facts, error) {
	var f Facts
	cluster, ok := l.client.(*goredis.ClusterClient)
	if !ok {
		s, err := l.serverFacts(ctx, l.client)
		if client, ok := l.client.(*goredis.Client); ok {
			s.Address = client.Options().Addr
		}
		if err != nil {
			return f, fmt.Errorf("lease redis: %w", err)
		}
		f.Servers = append(f.Servers, s)
		return f, nil
	}
	var mu sync.Mutex
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, client *goredis.Client) error {
		s, err := l.serverFacts(ctx, client)
		if err != nil {
			return fmt.Errorf("%s: %w", client.Options().Addr, err)
		}
		s.Address = client.Options().Addr
		mu.Lock()
		defer mu.Unlock()
		f.Servers = append(f.Servers, s)
		return nil
	})
	slices.SortFunc(f.Servers, func(a, b ServerFacts) int { return strings.Compare(a.Address, b.Address) })
	bounded, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	info, told := cluster.ClusterInfo(bounded).Result()
	f.ClusterState = fields(info)["cluster_state"]
	if err = errors.Join(err, told); err != nil {
		return f, fmt.Errorf("lease redis: %w", err)
	}
	return f, nil
}

// serverFacts asks one server.
func (l *Leaser) serverFacts(ctx context.Context, client goredis.Cmdable) (ServerFacts, error) {
	bounded := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, l.timeout) }
	text, err := func() (string, error) {
		ctx, cancel := bounded()
		defer cancel()
		return client.Info(ctx).Result()
	}()
	if err != nil {
		return ServerFacts{}, err
	}
	told := fields(text)
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(told[name], 10, 64) // 0 where it is not told
		return n
	}
	s := ServerFacts{
		Version: told["redis_version"], Role: told["role"], Policy: told["maxmemory_policy"],
		MaxMemory: number("maxmemory"), UsedMemory: number("used_memory"), Replicas: int(number("connected_slaves")), MinReplicas: -1,
	}
	for range pings {
		took, err := func() (time.Duration, error) {
			ctx, cancel := bounded()
			defer cancel()
			began := time.Now()
			at, err := client.Time(ctx).Result()
			took := time.Since(began)
			s.Ahead = at.Sub(began.Add(took / 2))
			return took, err
		}()
		if err != nil {
			return s, err
		}
		if s.Latency == 0 || took < s.Latency {
			s.Latency = took
		}
	}
	asked, cancel := bounded()
	defer cancel()
	// Many installations do not let CONFIG be called: then it stays unknown.
	if found, err := client.ConfigGet(asked, "min-replicas-to-write").Result(); err == nil {
		s.MinReplicas, _ = strconv.Atoi(found["min-replicas-to-write"]) // 0 where it is not known
	}
	return s, nil
}

// fields reads lines of the form name:value.
func fields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}
