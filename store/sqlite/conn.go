package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/unavez/unavez/store"
)

// conn is what database/sql takes for a connection. It owns nothing: a read
// borrows a reader, everything else is a unit of the writer.
type conn struct {
	c      *connector
	unit   *unit // of the transaction that is open, unless it only reads
	reader *raw  // of a read-only transaction
}

// Compile-time guards: what database/sql looks for.
var (
	_ driver.Conn               = (*conn)(nil)
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.StmtExecContext    = (*stmt)(nil)
	_ driver.StmtQueryContext   = (*stmt)(nil)
)

// handed is the name of an engine's unit on its way through database/sql to
// BeginTx, asked that of a Join's question through a transaction to its unit.
type (
	handed struct{}
	asked  struct{}
)

// opening is the context of the engine's BeginTx and carries its unit. It ends
// the wait for one of database/sql's connections, where the application has
// bounded them, and nothing once the transaction is open: database/sql would roll
// back, and a unit ends by its limit and by the engine's word only.
type opening struct {
	context.Context
	unit *unit
	open atomic.Bool
}

func (o *opening) Done() <-chan struct{} {
	if o.open.Load() {
		return nil
	}
	return o.Context.Done()
}

func (o *opening) Err() error {
	if o.open.Load() {
		return nil
	}
	return o.Context.Err()
}

func (o *opening) Value(key any) any {
	if key == (handed{}) {
		return o
	}
	return o.Context.Value(key)
}

// question is what Join and Finish have done by the transaction's unit, as one
// of its statements. It is answered when do was called.
type question struct{ do func(u *unit) }

// askText is what Join runs on a transaction. On one of another driver it does
// nothing, and the question stays unanswered.
const askText = "SELECT 'unavez: which unit is this?'"

// Prepare implements driver.Conn.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext compiles the statement once, so that its errors show here.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	t := c.c.texts.parse(query)
	if err := c.allowed(t); err != nil {
		return nil, err
	}
	s := &stmt{c: c, query: query, text: t}
	if t.statements != 1 {
		return s, nil
	}
	if c.unit != nil {
		return s, c.unit.try(ctx, query)
	}
	if c.reader != nil {
		return s, classify(c.reader.try(query))
	}
	return s, c.c.readers.read(ctx, func(r *raw) error { return r.try(query) })
}

// try compiles a statement and keeps it for its first use.
func (r *raw) try(sql string) error {
	p, err := r.prepare(sql)
	if err != nil {
		return err
	}
	return r.done(p)
}

func (u *unit) try(ctx context.Context, sql string) error {
	u.calls.Add(1)
	defer u.calls.Add(-1)
	if err := u.enter(ctx); err != nil {
		return err
	}
	defer u.leave()
	return u.failed(u.w.raw.try(sql))
}

// Close implements driver.Conn.
func (c *conn) Close() error {
	if c.unit != nil {
		c.unit.rollback(context.Background(), errClosed())
	}
	c.endReader()
	return nil
}

// Begin implements driver.Conn.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx opens a transaction: the engine's when ctx carries one, a snapshot
// when it only reads, else one of the application's own. It waits for nothing:
// the writer is asked for by the first statement. Every isolation level is
// accepted, because each is serializable here.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if o, ok := ctx.Value(handed{}).(*opening); ok {
		o.open.Store(true)
		c.unit = o.unit
		o.unit.expect()
		return &tx{c: c, unit: o.unit}, nil
	}
	if !opts.ReadOnly {
		c.unit = c.c.writer.unit(unitOwn)
		return &tx{c: c, unit: c.unit}, nil
	}
	r, err := c.c.readers.get(ctx)
	if err != nil {
		return nil, err
	}
	if _, err = r.exec("BEGIN"); err == nil {
		// The snapshot is the file's state now, not at the first read.
		_, err = r.number("SELECT count(*) FROM sqlite_schema WHERE 0")
	}
	c.reader = r
	if err != nil {
		r.broken = true
		c.endReader()
		return nil, classify(err)
	}
	return &tx{c: c}, nil
}

func (c *conn) endReader() {
	if c.reader == nil {
		return
	}
	if _, err := c.reader.exec("ROLLBACK"); err != nil {
		c.reader.broken = true
	}
	c.c.readers.put(c.reader)
	c.reader = nil
}

// Ping implements driver.Pinger.
func (c *conn) Ping(ctx context.Context) error {
	return c.c.readers.read(ctx, func(r *raw) error {
		_, err := r.number("SELECT 1")
		return err
	})
}

// CheckNamedValue lets the values pass that every driver takes; others go
// through database/sql's own conversion.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if driver.IsValue(v.Value) {
		return nil
	}
	return driver.ErrSkip
}

// allowed refuses texts that would end a transaction or belong to no such place.
func (c *conn) allowed(t text) error {
	switch {
	case c.unit != nil && t.ends && c.unit.kind == unitHandler:
		// The handler has tried to end the engine's transaction; that ends it.
		c.unit.disown(t.refused)
		return t.refused
	case t.ends:
		return errors.New("sqlite store: use BeginTx, Commit and Rollback for a transaction of your own: nothing was run")
	case c.unit != nil || c.reader != nil:
		return t.refused
	case t.bare && fixed(t.pragma) && t.assigns:
		return fmt.Errorf("sqlite store: pragma %s is set by OpenDB and its options: nothing was run", t.pragma)
	case t.bare:
		return nil
	}
	return t.refused
}

// disown rolls the unit back because its handler has ended it. The handler may
// still do things: the operation's lock is kept until the engine ends the unit.
// False when the engine was first.
func (u *unit) disown(cause error) bool {
	u.w.mu.Lock()
	ending := u.ending
	u.foreign = !ending
	u.w.mu.Unlock()
	if !ending && !u.quit(cause) {
		u.w.use.lock()
		u.back(cause)
	}
	return !ending
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if query == askText {
		if q, ok := ctx.Value(asked{}).(*question); ok {
			if c.unit != nil {
				c.unit.calls.Add(1)
				defer c.unit.calls.Add(-1)
			}
			q.do(c.unit)
			return driver.ResultNoRows, nil
		}
	}
	return c.exec(ctx, query, c.c.texts.parse(query), args)
}

func (c *conn) exec(ctx context.Context, query string, t text, args []driver.NamedValue) (driver.Result, error) {
	if err := c.allowed(t); err != nil {
		return nil, err
	}
	switch {
	case c.unit != nil:
		return c.unit.exec(ctx, query, t, args)
	case c.reader != nil:
		result, err := c.reader.execArgs(ctx, query, t.statements, args)
		return result, readOnly(err)
	case t.bare:
		return c.c.writer.bare(ctx, query, args)
	}
	// A unit of its own, durable when it returns.
	w := &c.c.writer
	u := w.unit(unitInternal)
	var result driver.Result
	u.finish = func(r *raw) (err error) {
		u.schema = t.schema
		result, err = r.execArgs(context.Background(), query, t.statements, args)
		return err
	}
	if err := u.commit(ctx); err != nil {
		return nil, err
	}
	return result, nil
}

// readOnly says what a write in a transaction that only reads is.
func readOnly(err error) error {
	if codeOf(err) == codeReadOnly {
		return errors.New("sqlite store: transaction was opened to read only: nothing was written")
	}
	return classify(err)
}

// bare runs a statement that SQLite refuses inside a transaction.
func (w *writer) bare(ctx context.Context, query string, args []driver.NamedValue) (result driver.Result, err error) {
	u := w.unit(unitInternal)
	if err := w.ask(ctx, u); err != nil {
		return nil, err
	}
	defer w.pass(u)
	w.flush()
	err = w.retry(ctx, u, func() error {
		if err := w.connect(); err != nil {
			return err
		}
		result, err = w.raw.execArgs(context.Background(), query, 1, args)
		return err
	})
	return result, err
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.query(ctx, query, c.c.texts.parse(query), args)
}

func (c *conn) query(ctx context.Context, query string, t text, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.allowed(t); err != nil {
		return nil, err
	}
	switch {
	case c.unit != nil:
		return c.unit.query(ctx, query, t, args)
	case c.reader != nil:
		rows, err := c.c.readers.rows(ctx, c.reader, query, args, false)
		if err != nil {
			return nil, readOnly(err)
		}
		return rows, nil
	}
	// A pragma that only looks, and a WITH, may read: a reader tells.
	if t.reads || t.bare || t.with {
		r, err := c.c.readers.get(ctx)
		if err != nil {
			return nil, err
		}
		rows, err := c.c.readers.rows(ctx, r, query, args, true)
		if err == nil && !t.reads {
			err = rows.ahead()
			if err != nil {
				rows.Close() // the error is the statement's
			}
		}
		if t.reads || codeOf(err) != codeReadOnly {
			if err != nil {
				return nil, err
			}
			return rows, nil
		}
	}
	return c.gather(ctx, query, t, args)
}

// gather runs a statement that writes and returns rows: they are read whole,
// and given out when they are durable.
func (c *conn) gather(ctx context.Context, query string, t text, args []driver.NamedValue) (driver.Rows, error) {
	u := c.c.writer.unit(unitInternal)
	out := &gathered{}
	u.finish = func(r *raw) error {
		u.schema = t.schema
		return out.read(r, query, args)
	}
	if err := u.commit(ctx); err != nil {
		return nil, err
	}
	return out, nil
}

// tx is an open transaction as database/sql sees it.
type tx struct {
	c    *conn
	unit *unit // nil for one that only reads
}

// Commit implements driver.Tx. A handler that calls it ends its transaction
// without effect.
func (t *tx) Commit() error {
	c, u := t.c, t.unit
	c.unit = nil
	switch {
	case u == nil:
		c.endReader()
		return nil
	case u.kind == unitHandler:
		if !u.disown(endedByHandler()) {
			return sql.ErrTxDone
		}
		return endedByHandler()
	}
	return u.commit(context.Background())
}

// Rollback implements driver.Tx. The engine calls it for a unit that has ended.
func (t *tx) Rollback() error {
	c, u := t.c, t.unit
	c.unit = nil
	switch {
	case u == nil:
		c.endReader()
	case u.ordered():
	case u.kind == unitHandler:
		if u.disown(endedByHandler()) {
			return endedByHandler()
		}
	default:
		u.rollback(context.Background(), &fault{kind: store.ErrAborted, text: "transaction has been rolled back"})
	}
	return nil
}

func endedByHandler() error {
	return &fault{kind: store.ErrForeignCommit, text: "transaction ended by its handler"}
}

// order allows the end of a handler's unit; false when the handler was first.
func (u *unit) order() bool {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	if !u.foreign {
		u.ending = true
	}
	return u.ending
}

// ordered reports whether the engine has ordered the unit's end.
func (u *unit) ordered() bool {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	return u.ending
}

// stmt is a prepared statement as database/sql sees it: a text that the
// connection it runs on keeps prepared.
type stmt struct {
	c     *conn
	query string
	text  text
}

// Close implements driver.Stmt.
func (s *stmt) Close() error { return nil }

// NumInput implements driver.Stmt; the connection checks.
func (s *stmt) NumInput() int { return -1 }

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.exec(ctx, s.query, s.text, args)
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.query(ctx, s.query, s.text, args)
}

// Exec implements driver.Stmt.
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query implements driver.Stmt.
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}
