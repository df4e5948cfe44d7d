package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// OpenDB returns a database whose connections are this package's: what is
// written goes over one writer in groups, what is read over a pool of readers.
// The file is made if it does not exist; its folder must. Hand the result to
// [New]; close it when done with both. What is made here can be read by its
// owner only; the log and the gate file take the mode of the file, and the mode
// of a file that exists is left alone.
//
// The application uses it like any other *sql.DB. A transaction of its own is
// a group of one and has Options.TransactionLimit; a script in one Exec is run
// whole or not at all; a write in Query returns when it is durable.
//
// modernc.org/sqlite syncs with fsync(2) unless its Fdatasync(true) is called,
// once in a program; on Linux a commit takes about half the time with it and is
// as durable.
//
// A database in memory is refused: its connections would not share it, and
// nothing in it survives the worker. Use store/memory.
func OpenDB(drv driver.Driver, path string, opts *Options) (*sql.DB, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sqlite store: options: %w", err)
	}
	if drv == nil {
		return nil, errors.New("sqlite store: no driver (pass &sqlite.Driver{} of modernc.org/sqlite, or &driver.SQLite{} of ncruces)")
	}
	if path == "" || strings.Contains(path, ":memory:") || strings.HasPrefix(path, "file:") {
		return nil, fmt.Errorf("sqlite store: path %q: want the path of a file (for a store in memory use store/memory)", path)
	}
	full, err := resolve(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite store: path %q: %w", path, err)
	}
	c := &connector{path: full, opts: o, drv: drv}
	c.writer.init(c)
	c.gates.init(c, gateReaders)
	c.readers.init(c, o.MaxReaders)
	if c.gate, err = openGate(full+"-gate", modeOf(full)); err != nil {
		return nil, err
	}
	if err := makeFile(full); err != nil {
		return nil, errors.Join(unavailable("file cannot be made", err), c.Close())
	}
	// The first connection makes the log, or says why it cannot.
	if err := c.writer.check(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(idleConns)
	return db, nil
}

const (
	// gateReaders are the connections for the store's own reads.
	gateReaders = 8
	// idleConns is how many of database/sql's connections, which here are
	// only small structs, it keeps.
	idleConns = 256
)

// connector makes the connections that database/sql sees and owns the real ones.
type connector struct {
	path    string
	opts    Options
	drv     driver.Driver
	gate    *gate
	writer  writer
	gates   pool
	readers pool
	crowd   crowd
	schema  atomic.Int64 // changes with the schema, as far as this worker changes it
	texts   texts
	closed  atomic.Bool
	fault   func(step string) error // set by tests only
}

// Connect implements driver.Connector.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	if c.closed.Load() {
		return nil, errClosed()
	}
	return &conn{c: c}, nil
}

// Driver implements driver.Connector. [New] finds the connector by it.
func (c *connector) Driver() driver.Driver { return opened{c} }

// Close closes the real connections. A group that is open is rolled back.
func (c *connector) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	// The writer last: it empties the log into the file.
	return errors.Join(c.gates.close(), c.readers.close(), c.writer.close(), c.gate.close())
}

// opened is the driver of a database that OpenDB has opened.
type opened struct{ *connector }

// Open refuses: a database is opened by OpenDB only.
func (opened) Open(string) (driver.Conn, error) {
	return nil, errors.New("sqlite store: open a database with sqlite.OpenDB")
}

func errClosed() error { return unavailable("database is closed", nil) }

// failing returns what a test wants to go wrong at a step.
func (c *connector) failing(step string) error {
	if c.fault == nil {
		return nil
	}
	return c.fault(step)
}

// uri names the file so that no sign in its path is taken for a parameter.
func (c *connector) uri() string {
	p := filepath.ToSlash(c.path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // a drive letter
	}
	u := "file:" + (&url.URL{Path: p}).EscapedPath()
	if c.opts.Parameters != "" {
		u += "?" + c.opts.Parameters
	}
	return u
}

// open makes a real connection and sets what the package's promises rest on.
func (c *connector) open(write bool) (*raw, error) {
	var conn driver.Conn
	var err error
	if d, ok := c.drv.(driver.DriverContext); ok {
		var inner driver.Connector
		if inner, err = d.OpenConnector(c.uri()); err == nil {
			conn, err = inner.Connect(context.Background())
		}
	} else {
		conn, err = c.drv.Open(c.uri())
	}
	if err != nil {
		return nil, classify(err)
	}
	r := &raw{conn: conn, stmts: map[string]*prepared{}, schema: c.schema.Load()}
	if err := c.configure(r, write); err != nil {
		return nil, errors.Join(classify(err), r.close())
	}
	return r, nil
}

func (c *connector) configure(r *raw, write bool) error {
	wait := fmt.Sprintf("PRAGMA busy_timeout = %d", c.opts.BusyTimeout.Milliseconds())
	pragmas := []string{wait}
	if !c.opts.NoForeignKeys {
		pragmas = append(pragmas, "PRAGMA foreign_keys = ON")
	}
	if write {
		pragmas = append(pragmas, "PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 4000")
		if c.opts.Synchronous == Normal {
			pragmas = append(pragmas, "PRAGMA synchronous = NORMAL")
		} else {
			pragmas = append(pragmas, "PRAGMA synchronous = FULL")
		}
		// What was moved or deleted is overwritten where that costs no page: see Erase.
		pragmas = append(pragmas, "PRAGMA secure_delete = FAST")
		// The writer waits in Go, in order, where it can be cancelled.
		pragmas = append(pragmas, "PRAGMA busy_timeout = 0")
	} else {
		pragmas = append(pragmas, "PRAGMA query_only = ON")
	}
	for _, p := range pragmas {
		if err := r.pragma(p); err != nil {
			return err
		}
	}
	if !write {
		return nil
	}
	mode := ""
	if _, err := r.row("PRAGMA journal_mode", nil, func(v []driver.Value) error { mode = word(v[0]); return nil }); err != nil {
		return err
	}
	if mode != "wal" {
		return unavailable(fmt.Sprintf("file has journal mode %s, and WAL was refused: give it a file system with shared memory, and close what else uses it", mode), nil)
	}
	// The first look inside makes the log, which is empty then.
	if err := r.pragma("PRAGMA schema_version"); err != nil {
		return err
	}
	if err := shareMode(c.path); err != nil {
		return unavailable("the log cannot take the mode of the file", err)
	}
	return nil
}

// pragma sets something once; its statement is not kept.
func (r *raw) pragma(sql string) error {
	err := r.query(sql, nil, func([]driver.Value) error { return nil })
	if p := r.stmts[sql]; p != nil {
		delete(r.stmts, sql)
		p.stmt.Close() // it has run; an error of it was returned by query
	}
	return err
}

// texts remembers what parse found in the texts used most.
type texts struct {
	mu    sync.RWMutex
	known map[string]text
}

const maxTexts = 1024

func (t *texts) parse(sql string) text {
	if len(sql) > 4<<10 {
		return parse(sql)
	}
	t.mu.RLock()
	found, ok := t.known[sql]
	t.mu.RUnlock()
	if ok {
		return found
	}
	found = parse(sql)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxTexts {
		t.known = map[string]text{}
	}
	t.known[sql] = found
	return found
}

// pool is the connections for reading: made when first wanted, never more than
// its size, lent to one user at a time.
type pool struct {
	c    *connector
	free chan struct{} // one for each connection that may be lent

	mu   sync.Mutex
	idle []*raw
}

func (p *pool) init(c *connector, size int) {
	p.c = c
	p.free = make(chan struct{}, size)
}

// get lends a connection; give it back by put.
func (p *pool) get(ctx context.Context) (*raw, error) {
	select {
	case p.free <- struct{}{}:
	default:
		select {
		case p.free <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if p.c.closed.Load() {
		<-p.free
		return nil, errClosed()
	}
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		r := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		r.forget(p.c.schema.Load())
		return r, nil
	}
	p.mu.Unlock()
	r, err := p.c.open(false)
	if err != nil {
		<-p.free
		return nil, err
	}
	return r, nil
}

// put takes a connection back. One that met an error of the database is closed.
func (p *pool) put(r *raw) {
	keep := !r.broken
	if keep {
		p.mu.Lock()
		if keep = !p.c.closed.Load(); keep {
			p.idle = append(p.idle, r)
		}
		p.mu.Unlock()
	}
	if !keep {
		r.close() // it only read; the error that broke it was returned
	}
	<-p.free
}

// read lends a connection for one function of the store.
func (p *pool) read(ctx context.Context, fn func(r *raw) error) error {
	r, err := p.get(ctx)
	if err != nil {
		return err
	}
	err = fn(r)
	r.broken = r.broken || dooms(err)
	p.put(r)
	return classify(err)
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var faults []error
	for _, r := range p.idle {
		faults = append(faults, r.close())
	}
	p.idle = nil
	return errors.Join(faults...)
}
