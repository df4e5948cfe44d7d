package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/lease/redis"
)

// Place is where operations are kept: one of its fields is set.
type Place struct {
	// Path of a SQLite file.
	Path string
	// URL of a PostgreSQL database; see [Pool].
	URL Secret
}

// Connections to PostgreSQL, where the URL does not say otherwise.
const (
	DefaultConnections    = 16 // pool_max_conns
	maxConnections        = 1000
	defaultConnectTimeout = 5 * time.Second // connect_timeout
	defaultConnectionIdle = 5 * time.Minute // pool_max_conn_idle_time
	defaultConnectionLife = 1 * time.Hour   // pool_max_conn_lifetime
	defaultLifeJitter     = 6 * time.Minute // pool_max_conn_lifetime_jitter
	defaultConnectionName = "unavez"        // application_name
	writePostgres         = "write postgres://user:password@host:5432/database"
	writeRedis            = "write redis://:password@host:6379"
	encode                = "percent-encode what is special in user and password: @ is %40, / is %2F, : is %3A, ? is %3F, # is %23"
)

// ParsePlace reads sqlite:PATH or a PostgreSQL URL. Its error shows nothing of
// the text, which may hold a password.
func ParsePlace(text string) (Place, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch {
	case text == "":
		return Place{}, errors.New("missing (write store: sqlite:unavez.db, or postgres://user:password@host:5432/database)")
	case scheme == "postgres" || scheme == "postgresql":
		_, err := Pool(NewSecret(text))
		return Place{URL: NewSecret(text)}, err
	case scheme != "sqlite":
		return Place{}, errors.New("not a store of this version (write sqlite:unavez.db, or postgres://user:password@host:5432/database)")
	case rest == "" || rest == ":memory:" || strings.Contains(rest, "?"):
		return Place{}, errors.New("sqlite: needs the path of a file (write sqlite:unavez.db)")
	}
	return Place{Path: rest}, nil
}

// Pool reads the URL of a PostgreSQL database, with limits where it names none.
// Its error shows no part of the URL that may hold a password.
func Pool(from Secret) (*pgxpool.Config, error) {
	text := from.Reveal()
	_, rest, slashes := strings.Cut(text, "://")
	if !slashes {
		return nil, errors.New("not a PostgreSQL URL (" + writePostgres + ")")
	}
	before, query, _ := strings.Cut(rest, "?")
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("parameters behind the ? cannot be read (" + encode + ")")
	}
	// A second @, or one behind the first /, stands behind what was meant as password.
	server, path, _ := strings.Cut(before, "/")
	if strings.Count(server, "@") > 1 || strings.ContainsAny(path, "@/") || strings.Contains(text, "#") || strings.Contains(nameOf(query), "@") {
		return nil, errors.New("special characters where host or database should be (" + encode + ")")
	}
	c, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, postgresFault(text, err)
	}
	conn := c.ConnConfig
	switch {
	case path == "" && !parameters.Has("dbname") && !parameters.Has("database") && !parameters.Has("service"):
		return nil, errors.New("no database (" + writePostgres + ")")
	case server == "" && !parameters.Has("host") && !parameters.Has("service"):
		return nil, errors.New("no host (" + writePostgres + ")")
	case c.MaxConns > maxConnections:
		return nil, fmt.Errorf("parameter pool_max_conns: %d, want 1 to %d", c.MaxConns, maxConnections)
	}
	for name := range conn.RuntimeParams { // what pgx does not know is the server's
		if near := nearest(name, postgresParameters()); near != "" && near != name { // application_name is known to both
			return nil, fmt.Errorf("parameter %s: unknown (did you mean %s?)", name, near)
		}
	}
	if !parameters.Has("pool_max_conns") {
		c.MaxConns = DefaultConnections
	}
	if !parameters.Has("pool_max_conn_idle_time") {
		c.MaxConnIdleTime = defaultConnectionIdle
	}
	if !parameters.Has("pool_max_conn_lifetime") {
		c.MaxConnLifetime = defaultConnectionLife
	}
	if !parameters.Has("pool_max_conn_lifetime_jitter") {
		c.MaxConnLifetimeJitter = defaultLifeJitter
	}
	set(&conn.ConnectTimeout, defaultConnectTimeout)
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = defaultConnectionName
	}
	return c, nil
}

// nameOf gives the name of a query's first parameter.
func nameOf(query string) string {
	name, _, _ := strings.Cut(query, "=")
	return name
}

// postgresFault is what pgx found, without the URL that it repeats.
func postgresFault(text string, err error) error {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return errors.New("cannot be read (" + writePostgres + ")")
	}
	repeated := strings.TrimSuffix(pgconn.NewParseConfigError(text, "", nil).Error(), " ")
	what := strings.TrimSpace(strings.TrimPrefix(parse.Error(), repeated))
	if what == "invalid port" || strings.HasPrefix(what, "failed to parse as URL") || strings.HasPrefix(what, "cannot parse `") {
		return errors.New("not a PostgreSQL URL (" + writePostgres + "; " + encode + ")")
	}
	return errors.New(what)
}

// postgresParameters are the parameters that the client knows.
func postgresParameters() []string {
	return []string{
		"connect_timeout", "sslmode", "sslkey", "sslcert", "sslrootcert", "sslpassword", "sslsni", "sslcertmode", "sslnegotiation",
		"passfile", "service", "servicefile", "target_session_attrs", "channel_binding", "require_auth", "application_name",
		"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter",
		"pool_max_conn_idle_time", "pool_health_check_period", "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
	}
}

// checkLease tells whether a URL names a Redis, without connecting. Its error
// shows no part of the URL that may hold a password.
func checkLease(from Secret) error {
	u, err := url.Parse(from.Reveal())
	switch {
	case err != nil:
		return errors.New("not a URL (" + writeRedis + "; " + encode + ")")
	case !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme):
		return errors.New("not a Redis (" + writeRedis + ", or rediss:// for TLS)")
	case u.Scheme != "unix" && u.Hostname() == "":
		return errors.New("no host (" + writeRedis + ")")
	case u.Scheme != "unix" && strings.ContainsAny(u.Path, "@:"), u.Fragment != "", strings.Contains(nameOf(u.RawQuery), "@"):
		return errors.New("special characters behind the host (" + encode + ")")
	}
	l, err := redis.Open(from.Reveal(), nil)
	if err != nil {
		return errors.New(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "lease redis: URL: "), "redis: "))
	}
	return l.Close()
}
