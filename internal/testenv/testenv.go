// Package testenv finds the servers that tests need: the shared ones that
// scripts/services starts, and throw-away ones of a single test's own, which it
// may kill, stop, fill and promote.
//
// A test whose server is missing is skipped at a desk, with the command that
// starts it, and fails where CI is set: a run there cannot pass by skipping.
package testenv

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The variables that name the shared servers. scripts/services prints them.
const (
	PostgresVariable     = "UNAVEZ_TEST_POSTGRES"      // URL of a superuser's database
	RedisVariable        = "UNAVEZ_TEST_REDIS"         // URL
	RedisClusterVariable = "UNAVEZ_TEST_REDIS_CLUSTER" // host:port of each master, with commas between
)

// limit of anything that a helper waits for.
const limit = time.Minute

// Postgres gives the URL of the shared PostgreSQL, as a superuser. Work in a
// database of your own: see [NewDatabase].
func Postgres(tb testing.TB) string {
	tb.Helper()
	return variable(tb, PostgresVariable, "postgres")
}

// Redis gives the URL of the shared Redis. Work under a prefix of your own,
// and leave the others' keys alone: no FLUSHALL, no configuration.
func Redis(tb testing.TB) string {
	tb.Helper()
	return variable(tb, RedisVariable, "redis")
}

// RedisCluster gives the addresses of the shared Redis Cluster's masters, as
// host:port. What is said of [Redis] holds here too.
func RedisCluster(tb testing.TB) []string {
	tb.Helper()
	return strings.Split(variable(tb, RedisClusterVariable, "cluster"), ",")
}

func variable(tb testing.TB, name, service string) string {
	tb.Helper()
	value := os.Getenv(name)
	if value == "" {
		missing(tb, name+` is not set; run: eval "$(scripts/services up `+service+`)"`)
	}
	return value
}

// missing ends a test that lacks something.
func missing(tb testing.TB, text string) {
	tb.Helper()
	if os.Getenv("CI") != "" {
		tb.Fatal(text)
	}
	tb.Skip(text)
}

// NewDatabase makes an empty database on the shared PostgreSQL and gives its
// URL. It is dropped when the test ends, with whoever is still connected.
func NewDatabase(tb testing.TB) string {
	tb.Helper()
	return newDatabase(tb, Postgres(tb))
}

// newDatabase makes an empty database on the server that a URL names.
func newDatabase(tb testing.TB, server string) string {
	tb.Helper()
	at, err := url.Parse(server)
	if err != nil {
		tb.Fatalf("%s: want a URL: %v", PostgresVariable, err)
	}
	name := "test_" + strings.ToLower(rand.Text())
	if err := administer(tb.Context(), server, "create database "+name+" template template0"); err != nil {
		tb.Fatalf("test database: %v", err)
	}
	tb.Cleanup(func() {
		if err := administer(context.WithoutCancel(tb.Context()), server, "drop database "+name+" with (force)"); err != nil {
			tb.Errorf("test database: %v", err)
		}
	})
	at.Path = "/" + name
	return at.String()
}

// administer sends one statement on a connection of its own.
func administer(ctx context.Context, server, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	_ = conn.Close(ctx) // the statement has its answer
	return err
}
