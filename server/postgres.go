package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store/postgres"
)

// Roles is the SQL that makes the roles of PostgreSQL which unavez migrate and
// unavez serve may run as.
func Roles() string { return postgres.Roles() }

// openPostgres opens a database whose schema has the schema of this version.
func openPostgres(ctx context.Context, from config.Secret) (*storage, error) {
	pool, name, err := connect(ctx, from, nil)
	if err != nil {
		return nil, err
	}
	s, err := postgres.New(pool, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", name, explained(err)), disconnect(pool))
	}
	var id string
	if err := pool.QueryRow(ctx, identity).Scan(&id); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", name, explained(err)), disconnect(pool))
	}
	return &storage{store: s, engine: engineFor(s), name: id, close: func() error { return disconnect(pool) }}, nil
}

// identity tells one database from all others, by whatever address it is
// reached and whichever of its standbys was promoted.
const identity = `SELECT c.system_identifier || '/' || d.oid FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
WHERE d.datname = pg_catalog.current_database()`

// connect opens connections to a database and tries one. The name is what may
// be shown of the URL.
func connect(ctx context.Context, from config.Secret, change func(*pgxpool.Config)) (pool *pgxpool.Pool, name string, err error) {
	c, err := config.Pool(from)
	if err != nil {
		return nil, "", fmt.Errorf("store: %w", err)
	}
	if change != nil {
		change(c)
	}
	host := net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port)))
	if strings.HasPrefix(c.ConnConfig.Host, "/") { // a socket
		host = c.ConnConfig.Host
	}
	name = "postgres://" + host + "/" + c.ConnConfig.Database
	pool, err = pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, name, fmt.Errorf("store %s: %w", name, explained(err))
	}
	if err := pool.Ping(ctx); err != nil {
		return nil, name, errors.Join(fmt.Errorf("store %s: %w", name, explained(err)), disconnect(pool))
	}
	return pool, name, nil
}

// disconnectLimit bounds how long connections in use are waited for: they are
// those of requests that were cut at the drain limit.
const disconnectLimit = 5 * time.Second

// disconnect closes a pool.
func disconnect(pool *pgxpool.Pool) error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	limit := time.NewTimer(disconnectLimit)
	defer limit.Stop()
	select {
	case <-closed:
		return nil
	case <-limit.C:
		return fmt.Errorf("store: %d connections were still in use and are left to the end of the process", pool.Stat().AcquiredConns())
	}
}

// SQLSTATEs that a person can do something about:
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	stateNoAccess   = "28000"
	statePassword   = "28P01"
	stateNoDatabase = "3D000"
	statePrivilege  = "42501"
	stateNoSlots    = "53300"
	stateStarting   = "57P03"
)

// explained says in one line what to do about an error of the database, as far
// as the store does not.
func explained(err error) error {
	hint := ""
	var server *pgconn.PgError
	var dial net.Error
	switch {
	case errors.As(err, &server):
		hint = map[string]string{
			stateNoAccess:   "the server lets this user, host or encryption not in: see its pg_hba.conf, and sslmode in the URL",
			statePassword:   "the user or its password is wrong: see the URL, which may take it from ${ENVIRONMENT} or ${file:…}; without one, PGPASSWORD and ~/.pgpass are read",
			stateNoDatabase: "there is no such database: make it with createdb, or name another one",
			statePrivilege:  "unavez migrate --roles prints the roles and the grants",
			stateNoSlots:    "the server has no connection left: lower pool_max_conns in the URL, or raise max_connections there",
			stateStarting:   "the server is starting or stopping: try again",
		}[server.Code]
	case errors.As(err, &dial) && dial.Timeout():
		hint = "the server does not answer: is this its address, and does a firewall let this host through?"
	case errors.As(err, &dial):
		hint = "cannot connect: is PostgreSQL running there, and is this its address?"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		hint = "the server has no TLS: sslmode=disable in the URL, on a network you trust only"
	}
	if hint == "" {
		return &line{err, ""}
	}
	return &line{err, " (" + hint + ")"}
}

// line is an error in one line: those of pgx have one for each address, and for
// each way of encryption that was tried; what is said twice stands there once.
type line struct {
	error
	hint string
}

func (l *line) Error() string {
	var said []string
	for text := range strings.Lines(l.error.Error()) {
		if text = strings.Join(strings.Fields(text), " "); text != "" && !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	return strings.Join(said, " ") + l.hint
}
func (l *line) Unwrap() error { return l.error }

// owner makes the schema belong to unavez_migrate where that role exists and
// the user is a member of it, so that every other member can migrate it later.
// A superuser, and who owns the schema already, stay themselves.
const owner = `SELECT pg_catalog.set_config('role', 'unavez_migrate', false)
FROM pg_catalog.pg_roles r, pg_catalog.pg_roles me
WHERE r.rolname = 'unavez_migrate' AND me.rolname = session_user AND NOT me.rolsuper AND current_user = session_user
  AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')
  AND coalesce((SELECT n.nspowner = r.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = 'unavez'), true)`

// migratePostgres brings a database's schema to this version.
func migratePostgres(ctx context.Context, from config.Secret) (Migration, error) {
	pool, name, err := connect(ctx, from, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, owner)
			return err
		}
	})
	if err != nil {
		return Migration{}, err
	}
	m := Migration{Store: name}
	if m.From, err = migratedTo(ctx, pool); err == nil {
		if err = postgres.Migrate(ctx, pool, nil); err == nil {
			m.To, err = migratedTo(ctx, pool)
		}
	}
	if err != nil {
		return Migration{}, errors.Join(fmt.Errorf("store %s: %w", name, explained(err)), disconnect(pool))
	}
	return m, disconnect(pool)
}

// migratedTo is the version of a database's schema, 0 for none.
func migratedTo(ctx context.Context, pool *pgxpool.Pool) (at int, err error) {
	var exists bool
	if err := pool.QueryRow(ctx, "SELECT pg_catalog.to_regclass('unavez.migration') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = pool.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM unavez.migration").Scan(&at)
	return at, err
}
