package torture

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/wire"
	"github.com/unavez/unavez/store/postgres"
)

// Bed is a database in which everything may happen, and what stands outside it.
// Its methods may be called concurrently.
type Bed struct {
	config  *pgxpool.Config
	beside  *pgxpool.Pool // of nobody's proxy
	redis   string        // URL, empty for none
	prefix  string        // of keys there
	outside *outside

	mu  sync.Mutex
	saw map[string]int
}

// tables are the business: rows without any key of their own, so that a second
// effect shows.
const tables = `CREATE SCHEMA IF NOT EXISTS unavez_torture;
CREATE TABLE unavez_torture.effect (id bigint GENERATED ALWAYS AS IDENTITY, operation text NOT NULL);
CREATE TABLE unavez_torture.detail (effect bigint NOT NULL, operation text NOT NULL);
CREATE INDEX ON unavez_torture.effect (operation text_pattern_ops);
CREATE INDEX ON unavez_torture.detail (operation text_pattern_ops)`

// NewBed makes the tables of the product and of the business in an empty
// database, which a URL of PostgreSQL names. redis names a Redis, in which only
// keys under prefix are used, or is empty.
func NewBed(ctx context.Context, database, redis, prefix string) (*Bed, error) {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	b := &Bed{config: config, redis: redis, prefix: prefix, outside: &outside{calls: map[string]map[string]int{}}, saw: map[string]int{}}
	if b.beside, err = b.pool(ctx, "", 8); err != nil {
		return nil, err
	}
	if err = postgres.Migrate(ctx, b.beside, nil); err == nil {
		_, err = b.beside.Exec(ctx, tables)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close ends its connections.
func (b *Bed) Close() { b.beside.Close() }

// pool connects to the database, by a proxy's address where that is not empty.
func (b *Bed) pool(ctx context.Context, at string, most int32, changes ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	c := b.config.Copy()
	c.MaxConns, c.MinConns, c.MinIdleConns = most, 0, 0
	c.ConnConfig.ConnectTimeout = connectLimit
	// A connection that was idle for a second would be asked first: a message more.
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// A host that is gone is found out in seconds.
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET tcp_keepalives_idle = 1; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 2")
		return err
	}
	if at != "" {
		c.ConnConfig.TLSConfig, c.ConnConfig.Fallbacks = nil, nil
		c.ConnConfig.LookupFunc = func(_ context.Context, name string) ([]string, error) { return []string{name}, nil }
		c.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", at)
		}
	}
	for _, change := range changes {
		change(c)
	}
	return pgxpool.NewWithConfig(ctx, c)
}

// connectLimit of a connection to the database.
const connectLimit = 10 * time.Second

// proxy stands before the database. Its connections to that are as the URL wants
// them, with TLS or without.
func (b *Bed) proxy() (*wire.Proxy, error) {
	return wire.Listen(wire.PostgreSQL, func(ctx context.Context) (net.Conn, error) {
		return Dial(ctx, b.config.ConnConfig)
	})
}

// Dial connects to the server of a URL of PostgreSQL, with TLS or without as that
// wants it, and says nothing yet.
func Dial(ctx context.Context, c *pgx.ConnConfig) (net.Conn, error) {
	conn, err := dial(ctx, c.Host, c.Port, c.TLSConfig)
	for _, next := range c.Fallbacks {
		if err == nil {
			break
		}
		conn, err = dial(ctx, next.Host, next.Port, next.TLSConfig)
	}
	return conn, err
}

// dial connects to a PostgreSQL, and has the connection encrypted where that is
// wanted.
func dial(ctx context.Context, host string, port uint16, encrypted *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	network, address := pgconn.NetworkAddress(host, port)
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || encrypted == nil {
		return conn, err
	}
	const requestSSL = 80877103
	answer := make([]byte, 1)
	_, err = conn.Write(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, requestSSL))
	if err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	if err == nil && answer[0] != 'S' {
		err = errors.New("server has no TLS")
	}
	if err == nil {
		secure := tls.Client(conn, encrypted)
		if err = secure.HandshakeContext(ctx); err == nil {
			return secure, nil
		}
	}
	_ = conn.Close() // the error says more
	return nil, err
}

// sees counts what an engine tells.
func (b *Bed) sees(o unavez.Observation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saw[o.What]++
}

// Saw tells how often the engines of the bed have said something: one of the
// Saw constants of package unavez, or a code.
func (b *Bed) Saw(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.saw[what]
}

// number reads a count from the database.
func (b *Bed) number(ctx context.Context, text string, arguments ...any) (n int, err error) {
	err = b.beside.QueryRow(ctx, text, arguments...).Scan(&n)
	return n, err
}

// writer is what a handler writes on, of either library.
type writer interface {
	insert(ctx context.Context, text string, arguments ...any) (int64, error)
}

// pgxWriter writes on a transaction of pgx.
type pgxWriter struct{ tx pgx.Tx }

func (w pgxWriter) insert(ctx context.Context, text string, arguments ...any) (id int64, err error) {
	err = w.tx.QueryRow(ctx, text, arguments...).Scan(&id)
	return id, err
}

// effect is the business change of an operation: two rows, and an answer that
// tells which. A second one has another.
func effect(ctx context.Context, w writer, operation string) (answer string, err error) {
	id, err := w.insert(ctx, "INSERT INTO unavez_torture.effect (operation) VALUES ($1) RETURNING id", operation)
	if err == nil {
		_, err = w.insert(ctx, "INSERT INTO unavez_torture.detail (effect, operation) VALUES ($1, $2) RETURNING effect", id, operation)
	}
	return fmt.Sprintf("%s made effect %d", operation, id), err
}

// outside is the other system. It knows its callers' keys, remembers every call,
// and is never told what the product thinks of it.
type outside struct {
	mu    sync.Mutex
	calls map[string]map[string]int // by operation and derived key
}

// call makes what the operation wants outside, once for each key.
func (o *outside) call(operation, key string) (receipt string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls[operation] == nil {
		o.calls[operation] = map[string]int{}
	}
	o.calls[operation][key]++
	return "receipt of " + key
}

// made tells whether it has made that.
func (o *outside) made(operation, key string) (receipt string, made bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return "receipt of " + key, o.calls[operation][key] > 0
}

// seen tells how many different keys an operation has come with, and how often.
func (o *outside) seen(operation string) (keys, calls int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.calls[operation] {
		keys++
		calls += n
	}
	return keys, calls
}
