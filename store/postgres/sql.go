package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/unavez/unavez/store"
)

// OpenDB opens a database/sql handle over a pool. Its transactions are those of
// pgx's own driver, except where a [SQLStore] opens them: then the gate goes
// with BEGIN and the outcome with COMMIT, at no extra trip, and a Commit,
// Rollback or COMMIT by the handler is refused with [store.ErrForeignCommit].
// The pool stays the caller's to close, after the handle.
func OpenDB(pool *pgxpool.Pool) *sql.DB {
	db := sql.OpenDB(&connector{Connector: stdlib.GetPoolConnector(pool), pool: pool})
	db.SetMaxIdleConns(0) // the pool keeps them
	return db
}

// connector makes connections whose transactions a store can open.
type connector struct {
	driver.Connector
	pool *pgxpool.Pool
}

// opened is the driver of a handle that this package opened.
type opened struct {
	driver.Driver
	pool *pgxpool.Pool
}

// Driver tells a store that the handle is ours.
func (c *connector) Driver() driver.Driver { return opened{c.Connector.Driver(), c.pool} }

// Connect takes a connection from the pool.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, ok := inner.(*stdlib.Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("postgres store: connection of type %T", inner), inner.Close())
	}
	return &sqlConn{Conn: conn}, nil
}

// sqlConn is a connection. database/sql uses it from one goroutine at a time.
type sqlConn struct {
	*stdlib.Conn
	tx *sqlTx // of the engine, while it is open
}

// What database/sql asks of a connection, beside what stdlib.Conn has.
var (
	_ driver.ConnBeginTx        = (*sqlConn)(nil)
	_ driver.ConnPrepareContext = (*sqlConn)(nil)
	_ driver.ExecerContext      = (*sqlConn)(nil)
	_ driver.QueryerContext     = (*sqlConn)(nil)
	_ driver.SessionResetter    = (*sqlConn)(nil)
	_ driver.NamedValueChecker  = (*sqlConn)(nil)
)

// opener is the key under which BeginTx finds how to open an engine's transaction.
type opener struct{}

// opens is what a store wants opened, and what came of it.
type opens struct {
	ctx   context.Context                                          // of the opening alone
	begin func(ctx context.Context, conn *pgx.Conn) (*unit, error) // nil where it does not run
	tx    *sqlTx
	err   error
}

// errNotRun ends a BeginTx whose operation does not run here.
var errNotRun = errors.New("operation does not run here")

// BeginTx opens the engine's transaction where the context holds one.
func (c *sqlConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	o, ok := ctx.Value(opener{}).(*opens)
	if !ok {
		return c.Conn.BeginTx(ctx, opts)
	}
	conn := c.Conn.Conn()
	u, err := o.begin(o.ctx, conn)
	if u == nil {
		clean(o.ctx, conn)
		o.err = err
		return nil, errNotRun
	}
	o.tx = &sqlTx{unit: u, conn: c}
	c.tx = o.tx
	return o.tx, nil
}

// refuses looks at a statement before it is sent in an engine's transaction.
func (c *sqlConn) refuses(text string) error {
	switch {
	case c.tx == nil:
		return nil
	case c.tx.unit.ride.refused.Load():
		return c.tx.unit.ride.refusal()
	case !c.tx.foreign && !endsTransaction(text):
		return nil
	}
	c.tx.foreign = true
	return store.ErrForeignCommit
}

// ahead sends a waiting gate ahead of a statement. There are no results where
// the statement is to be sent by itself.
func (c *sqlConn) ahead(ctx context.Context, query string, named []driver.NamedValue) (pgx.BatchResults, error) {
	if err := c.refuses(query); err != nil || c.tx == nil || !c.tx.unit.ride.waits {
		return nil, err
	}
	args := make([]any, len(named))
	for i, arg := range named {
		args[i] = arg.Value
	}
	if !rides(query, args) {
		return nil, c.tx.unit.first(ctx)
	}
	return c.tx.unit.lead(ctx, &pgx.QueuedQuery{SQL: query, Arguments: args})
}

// alone sends a waiting gate before something that it does not ride on.
func (c *sqlConn) alone(ctx context.Context, query string) error {
	if err := c.refuses(query); err != nil || c.tx == nil || !c.tx.unit.ride.waits {
		return err
	}
	return c.tx.unit.first(ctx)
}

// ExecContext runs statements.
func (c *sqlConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	results, err := c.ahead(ctx, query, args)
	switch {
	case err != nil:
		return nil, err
	case results != nil:
		tag, err := results.Exec()
		return driver.RowsAffected(tag.RowsAffected()), c.classified(first(err, results.Close()))
	}
	result, err := c.Conn.ExecContext(ctx, query, args)
	return result, c.classified(err)
}

// QueryContext runs a statement and returns its rows, which are the driver's own:
// a waiting gate is sent before it.
func (c *sqlConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.alone(ctx, query); err != nil {
		return nil, err
	}
	rows, err := c.Conn.QueryContext(ctx, query, args)
	return rows, c.classified(err)
}

// PrepareContext prepares a statement.
func (c *sqlConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.alone(ctx, query); err != nil {
		return nil, err
	}
	return c.Conn.PrepareContext(ctx, query)
}

// classified leaves alone what database/sql itself acts on, and everything
// outside an engine's transaction.
func (c *sqlConn) classified(err error) error {
	if c.tx == nil || errors.Is(err, driver.ErrBadConn) || errors.Is(err, driver.ErrSkip) {
		return err
	}
	return classify(err)
}

// sqlTx is the driver's part of an engine's transaction.
type sqlTx struct {
	unit    *unit
	conn    *sqlConn
	ours    bool                            // the engine ends it
	foreign bool                            // the handler tried to
	closed  bool                            // it has ended
	ending  func(ctx context.Context) error // what the engine has ordered
	ctx     context.Context                 // of the end
	err     error
	verdict store.Verdict // of a gate that refused, read before the connection goes back
	lookErr error
}

// Commit commits what the engine has ordered, and nothing else.
func (t *sqlTx) Commit() error {
	defer t.close()
	if t.ending == nil || t.foreign {
		t.foreign = true
		return store.ErrForeignCommit
	}
	t.err = t.ending(t.ctx)
	return t.err
}

// Rollback is the engine's, or a handler's attempt.
func (t *sqlTx) Rollback() error {
	defer t.close()
	if !t.ours {
		t.foreign = true
	}
	return nil
}

// close leaves the connection clean for whoever is next.
func (t *sqlTx) close() {
	t.conn.tx, t.closed = nil, true
	if t.unit.ride.refused.Load() {
		t.verdict, t.lookErr = t.unit.verdict(t.context())
	}
	clean(t.context(), t.conn.Conn.Conn())
}

func (t *sqlTx) context() context.Context {
	if t.ctx != nil {
		return t.ctx
	}
	return context.Background()
}

// SQLStore is a [Store] whose handlers get a *sql.Tx.
type SQLStore struct {
	*Store
	db   *sql.DB
	ours bool // the handle was opened by OpenDB
}

// Compile-time guards.
var (
	_ store.Late              = (*sqlTxn)(nil)
	_ store.Ledger[*sql.Tx]   = (*SQLStore)(nil)
	_ store.Attempts[*sql.Tx] = (*SQLStore)(nil)
	_ store.Operations        = (*SQLStore)(nil)
	_ store.Upkeep            = (*SQLStore)(nil)
	_ store.Queue             = (*SQLStore)(nil)
	_ store.Enqueuer[*sql.Tx] = (*SQLStore)(nil)
	_ store.Versions[*sql.Tx] = (*SQLStore)(nil)
	_ store.Batches[*sql.Tx]  = (*SQLStore)(nil)
)

// NewSQL makes a store for database/sql. The pool is for what the store does by
// itself. A handle that [OpenDB] opened takes no trip more than a bare
// transaction; any other handle on the same database takes two, and there a
// Commit by a handler commits what was written so far: the engine finds out,
// and commits no outcome.
func NewSQL(db *sql.DB, pool *pgxpool.Pool, opts *Options) (*SQLStore, error) {
	if db == nil {
		return nil, errors.New("postgres store: no database handle (open one with postgres.OpenDB)")
	}
	s, err := New(pool, opts)
	if err != nil {
		return nil, err
	}
	_, ours := db.Driver().(opened)
	if !ours && s.above() {
		return nil, fmt.Errorf("postgres store: Isolation: %s needs a handle of postgres.OpenDB", s.opts.Isolation)
	}
	if !ours && s.opts.Lazy {
		return nil, errors.New("postgres store: Lazy: needs a handle of postgres.OpenDB")
	}
	return &SQLStore{Store: s, db: db, ours: ours}, nil
}

// Begin is that of [Store].
func (s *SQLStore) Begin(ctx context.Context, gate store.Gate) (store.Txn[*sql.Tx], store.Verdict, error) {
	if !s.ours {
		return s.beginForeign(ctx, gate)
	}
	before, v, err := s.before(ctx, gate)
	if err != nil || before != nil && !before.open(gate.From) {
		return nil, v, err
	}
	t, err := s.open(ctx, func(ctx context.Context, conn *pgx.Conn) (*unit, error) {
		if err := s.greet(ctx, conn); err != nil {
			return nil, opening(ctx, err)
		}
		u := s.unit(conn, gate)
		if s.lazy(gate) {
			u.ride.waits, v = true, store.Verdict{State: store.Free}
			return u, nil
		}
		open, found, err := u.enter(ctx, before)
		v = found
		if !open {
			return nil, err
		}
		return u, nil
	})
	if t == nil {
		return nil, v, err
	}
	return t, v, nil
}

// Finish is that of [Store].
func (s *SQLStore) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[*sql.Tx], error) {
	if !s.ours {
		return s.finishForeign(ctx, gate, fence)
	}
	t, err := s.open(ctx, func(ctx context.Context, conn *pgx.Conn) (*unit, error) {
		if err := s.greet(ctx, conn); err != nil {
			return nil, opening(ctx, err)
		}
		u := s.unit(conn, gate)
		if err := u.resume(ctx, fence); err != nil {
			return nil, err
		}
		return u, nil
	})
	if t == nil {
		return nil, err
	}
	return t, nil
}

// open has database/sql open a transaction. Its context would end it when it
// is cancelled, which is the engine's to decide.
func (s *SQLStore) open(ctx context.Context, begin func(context.Context, *pgx.Conn) (*unit, error)) (*sqlTxn, error) {
	o := &opens{ctx: ctx, begin: begin}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tx, err := s.db.BeginTx(context.WithValue(context.WithoutCancel(ctx), opener{}, o), nil)
	switch {
	case errors.Is(err, errNotRun):
		return nil, o.err
	case err != nil:
		return nil, acquiring(err)
	}
	return &sqlTxn{tx: tx, inner: o.tx}, nil
}

// Join is that of [Store].
func (s *SQLStore) Join(ctx context.Context, tx *sql.Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	return join(ctx, asks(tx), gate)
}

func asks(tx *sql.Tx) asker {
	return func(ctx context.Context, text string, args ...any) scanner {
		return tx.QueryRowContext(ctx, text, args...)
	}
}

// sqlTxn is an open transaction of the engine on a handle of OpenDB.
type sqlTxn struct {
	tx    *sql.Tx
	inner *sqlTx
	done  bool
}

// Tx is the handler's.
func (t *sqlTxn) Tx() *sql.Tx { return t.tx }

// Refused implements store.Late.
func (t *sqlTxn) Refused() bool { return t.inner.unit.ride.refused.Load() }

// Verdict implements store.Late.
func (t *sqlTxn) Verdict(ctx context.Context) (store.Verdict, error) {
	if err := t.Rollback(ctx); err != nil {
		return store.Verdict{}, err
	}
	return t.inner.verdict, t.inner.lookErr
}

// Commit is one trip.
func (t *sqlTxn) Commit(ctx context.Context, end store.End) (o *store.Outcome, _ error) {
	err := t.commit(ctx, func(ctx context.Context) (err error) {
		o, err = t.inner.unit.commit(ctx, end)
		return err
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

// commit has database/sql commit by what the engine has ordered.
func (t *sqlTxn) commit(ctx context.Context, ending func(ctx context.Context) error) error {
	if t.done {
		return sql.ErrTxDone
	}
	t.done = true
	t.inner.ctx = ctx
	if err := t.inner.unit.ready(ctx); err != nil || t.inner.foreign {
		t.rollback()
		if t.inner.foreign {
			err = &fault{store.ErrForeignCommit, "refused and rolled back", nil}
		}
		return err
	}
	t.inner.ending = ending
	err := t.tx.Commit()
	switch {
	case t.inner.foreign:
		return &fault{store.ErrForeignCommit, "refused and rolled back", err}
	case t.inner.err != nil:
		return t.inner.unit.collided(ctx, t.inner.err)
	}
	return err
}

// Rollback gives everything up.
func (t *sqlTxn) Rollback(ctx context.Context) error {
	if !t.done {
		t.done, t.inner.ctx = true, ctx
		t.rollback()
	}
	return nil
}

func (t *sqlTxn) rollback() {
	t.inner.ours = true
	_ = t.tx.Rollback() // it has ended where the handler ended it
}
