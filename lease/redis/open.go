package redis

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Open makes a lease with a client of its own; nil options mean the defaults.
// It connects at the first call, so a Redis that is down does not keep a worker
// from starting. The URL is one of go-redis':
//
//	redis://user:password@host:6379/0                        one server; rediss for TLS, unix for a socket
//	redis://host:26379?master_name=name&addr=host2:26379     behind Sentinel; the servers' own
//	                                                         username=, password=; the user part is Sentinel's
//	redis://host:6379?addr=host2:6379&addr=host3:6379        a Redis Cluster
//	redis://host:6379?cluster=true                           a Redis Cluster that is known by one address
//
// Parameters of go-redis such as pool_size may follow. Those of retries and
// time limits are ours and may not.
func Open(address string, opts *Options) (*Leaser, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	client, err := connect(address, limitOf(o))
	if err != nil {
		return nil, fmt.Errorf("lease redis: URL: %w", err)
	}
	l, err := New(client, &o)
	if err != nil {
		_ = client.Close() // it has no connection yet
		return nil, err
	}
	l.owned = true
	return l, nil
}

// limitOf is the time limit of the client's steps: no call waits for longer.
func limitOf(o Options) time.Duration {
	if o.Timeout <= 0 {
		return DefaultTimeout
	}
	return o.Timeout
}

// connect makes the client that a URL means.
func connect(address string, limit time.Duration) (goredis.UniversalClient, error) {
	u, err := url.Parse(address)
	if err != nil {
		// Its text would repeat the URL, and with it the password.
		return nil, errors.New("not a URL (want redis://host:port)")
	}
	query := u.Query()
	for _, ours := range []string{
		"max_retries", "min_retry_backoff", "max_retry_backoff", "context_timeout_enabled", "read_timeout",
		"write_timeout", "dial_timeout", "dialer_retries", "dialer_retry_timeout", "pool_timeout",
	} {
		if query.Has(ours) {
			return nil, fmt.Errorf("parameter %s: not taken (the time limit is Options.Timeout, and nothing is sent twice)", ours)
		}
	}
	cluster := query.Get("cluster")
	if cluster != "" && cluster != "true" && cluster != "false" {
		return nil, fmt.Errorf("parameter cluster: %q, want true or false", cluster)
	}
	query.Del("cluster")
	u.RawQuery = query.Encode()
	switch {
	case query.Has("master_name"):
		return sentinel(u.String(), limit)
	case cluster == "true", cluster == "" && query.Has("addr"):
		return clustered(u.String(), limit)
	}
	return single(u.String(), limit)
}

func single(address string, limit time.Duration) (goredis.UniversalClient, error) {
	o, err := goredis.ParseURL(address)
	if err != nil {
		return nil, err
	}
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = limit, limit, limit, limit
	o.DialerRetries = 1
	o.PipelinePoolSize = -1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return goredis.NewClient(o), nil
}

func sentinel(address string, limit time.Duration) (goredis.UniversalClient, error) {
	o, err := goredis.ParseFailoverURL(address)
	if err != nil {
		return nil, err
	}
	if o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly {
		return nil, errors.New("parameters replica_only, route_by_latency, route_randomly: a lease is the master's alone")
	}
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = limit, limit, limit, limit
	o.DialerRetries = 1
	o.PipelinePoolSize = -1
	return goredis.NewFailoverClient(o), nil
}

// clustered follows up to three redirections, which go-redis counts together
// with the times that it sends a command again.
func clustered(address string, limit time.Duration) (goredis.UniversalClient, error) {
	o, err := goredis.ParseClusterURL(address)
	if err != nil {
		return nil, err
	}
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = limit, limit, limit, limit
	o.DialerRetries = 1
	o.PipelinePoolSize = -1
	o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
	o.DisableRoutingPolicies = true // or each node is asked for its table of commands
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return goredis.NewClusterClient(o), nil
}
