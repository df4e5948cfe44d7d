package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/server/internal/config"
)

// fastLease is the Redis in front of the store. It says when Redis stops
// answering and when it answers again; requests go on either way.
type fastLease struct {
	*redis.Leaser
	log    *slog.Logger
	silent atomic.Bool
}

var _ lease.Marker = (*fastLease)(nil)

// openLease makes the lease that a configuration names and sends it one call.
// No answer is no reason not to start: the error says so, and the lease comes
// with it.
//
// Installations may share a Redis: the same operation has the same key in all of
// them, so each database has a prefix of its own.
func openLease(ctx context.Context, from config.Secret, database string, log *slog.Logger) (*fastLease, error) {
	// The client's only way to log is one for the whole process.
	goredis.SetLogger(clientLog{log})
	l, err := redis.Open(from.Reveal(), &redis.Options{Prefix: leasePrefix(database)})
	if err != nil {
		return nil, err
	}
	f := &fastLease{Leaser: l, log: log}
	err = l.Release(ctx, "start", rand.Text()) // gives back what nobody holds
	f.heard(ctx, err)
	return f, err
}

// leasePrefix is that of a database's leases.
func leasePrefix(database string) string {
	sum := sha256.Sum256([]byte(database))
	return redis.DefaultPrefix + hex.EncodeToString(sum[:8]) + ":"
}

// Acquire takes the lease of a key, as lease.Leaser has it.
func (f *fastLease) Acquire(ctx context.Context, key string, value lease.Value, life time.Duration) (bool, lease.Value, time.Duration, error) {
	held, other, left, err := f.Leaser.Acquire(ctx, key, value, life)
	f.heard(ctx, err)
	return held, other, left, err
}

// heard notes whether Redis answered; what the caller broke off tells nothing.
func (f *fastLease) heard(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !f.silent.Swap(true):
		f.log.WarnContext(ctx, "Redis does not answer: the store decides alone until it does", "error", err)
	case err == nil && f.silent.Load() && f.silent.Swap(false):
		f.log.InfoContext(ctx, "Redis answers again")
	}
}

// clientLog is what the client of Redis says by itself: reconnections, and what
// Sentinel and Cluster report. It is for finding out why; that something is
// wrong, heard says.
type clientLog struct{ log *slog.Logger }

func (c clientLog) Printf(ctx context.Context, format string, arguments ...any) {
	if c.log.Enabled(ctx, slog.LevelDebug) {
		c.log.DebugContext(ctx, "Redis client", "text", fmt.Sprintf(format, arguments...))
	}
}
