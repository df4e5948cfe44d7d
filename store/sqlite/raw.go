package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// raw is one real connection of the caller's driver with its prepared
// statements. It is used by one goroutine at a time.
type raw struct {
	conn   driver.Conn
	stmts  map[string]*prepared
	schema int64 // of the connector, when stmts were last known to be good
	tick   int64
	broken bool

	inserts map[string][4]string // texts of insert
	args    []driver.NamedValue  // for insert, empty between its calls

	now  int64 // what the database's clock said
	read time.Time
}

// prepared is one statement of a raw connection.
type prepared struct {
	stmt   driver.Stmt
	inputs int
	used   int64
	busy   bool // rows are open on it
	cached bool
}

// maxStmts is how many prepared statements a connection keeps.
const maxStmts = 128

// maxCachedText keeps one long text from displacing much.
const maxCachedText = 16 << 10

// prepare returns the prepared statement of a text, for one use: give it back
// by done.
func (r *raw) prepare(sql string) (*prepared, error) {
	r.tick++
	if p := r.stmts[sql]; p != nil && !p.busy {
		p.used, p.busy = r.tick, true
		return p, nil
	}
	var stmt driver.Stmt
	var err error
	if c, ok := r.conn.(driver.ConnPrepareContext); ok {
		stmt, err = c.PrepareContext(context.Background(), sql)
	} else {
		stmt, err = r.conn.Prepare(sql)
	}
	if err != nil {
		return nil, err
	}
	p := &prepared{stmt: stmt, inputs: stmt.NumInput(), used: r.tick, busy: true}
	if r.stmts[sql] == nil && len(sql) <= maxCachedText {
		r.evict()
		p.cached = true
		r.stmts[sql] = p
	}
	return p, nil
}

// done gives a prepared statement back.
func (r *raw) done(p *prepared) error {
	p.busy = false
	if p.cached {
		return nil
	}
	return p.stmt.Close()
}

// evict makes room for one more statement: it drops the one unused for longest.
func (r *raw) evict() {
	if len(r.stmts) < maxStmts {
		return
	}
	var oldest string
	var found *prepared
	for sql, p := range r.stmts {
		if !p.busy && (found == nil || p.used < found.used) {
			oldest, found = sql, p
		}
	}
	if found != nil {
		delete(r.stmts, oldest)
		found.stmt.Close() // it holds no changes; nothing can be done about an error
	}
}

// forget drops every prepared statement: the schema has changed.
func (r *raw) forget(schema int64) {
	if r.schema == schema {
		return
	}
	r.schema = schema
	for sql, p := range r.stmts {
		delete(r.stmts, sql)
		p.cached = false
		if !p.busy {
			p.stmt.Close() // as in evict
		}
	}
}

// execArgs runs one statement, or a script where the driver can.
func (r *raw) execArgs(ctx context.Context, sql string, statements int, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := r.conn.(driver.ExecerContext); ok && statements != 1 {
		result, err := e.ExecContext(ctx, sql, args)
		if !errors.Is(err, driver.ErrSkip) {
			return result, err
		}
	}
	p, err := r.prepare(sql)
	if err != nil {
		return nil, err
	}
	if err := p.check(args); err != nil {
		return nil, errors.Join(err, r.done(p))
	}
	result, err := p.exec(ctx, args)
	if e := r.done(p); err == nil {
		err = e
	}
	return result, err
}

// queryArgs runs one statement that returns rows; p goes back by done when the
// rows are closed.
func (r *raw) queryArgs(ctx context.Context, sql string, args []driver.NamedValue) (driver.Rows, *prepared, error) {
	p, err := r.prepare(sql)
	if err != nil {
		return nil, nil, err
	}
	if err := p.check(args); err != nil {
		return nil, nil, errors.Join(err, r.done(p))
	}
	rows, err := p.query(ctx, args)
	if err != nil {
		r.done(p) // the statement's own error says more
		return nil, nil, err
	}
	return rows, p, nil
}

func (p *prepared) check(args []driver.NamedValue) error {
	if p.inputs >= 0 && p.inputs != len(args) {
		return fmt.Errorf("sqlite store: statement wants %d arguments, got %d", p.inputs, len(args))
	}
	return nil
}

func (p *prepared) exec(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if s, ok := p.stmt.(driver.StmtExecContext); ok {
		return s.ExecContext(ctx, args)
	}
	return nil, errors.New("sqlite store: driver's statements have no ExecContext")
}

func (p *prepared) query(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s, ok := p.stmt.(driver.StmtQueryContext); ok {
		return s.QueryContext(ctx, args)
	}
	return nil, errors.New("sqlite store: driver's statements have no QueryContext")
}

// exec runs a statement of the store and returns how many rows it changed.
func (r *raw) exec(sql string, args ...driver.Value) (int64, error) {
	result, err := r.execArgs(context.Background(), sql, 1, named(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query runs a statement of the store and calls each for its rows. The values
// are valid until each returns. It reads to the end, so that what the statement
// changes is changed.
func (r *raw) query(sql string, args []driver.Value, each func(v []driver.Value) error) error {
	rows, p, err := r.queryArgs(context.Background(), sql, named(args))
	if err != nil {
		return err
	}
	values := make([]driver.Value, len(rows.Columns()))
	var failed error
	for {
		if err = rows.Next(values); err != nil {
			break
		}
		if failed == nil {
			failed = each(values)
		}
	}
	if errors.Is(err, io.EOF) {
		err = failed
	}
	if e := rows.Close(); err == nil {
		err = e
	}
	if e := r.done(p); err == nil {
		err = e
	}
	return err
}

// row is query for at most one row; found is false when there is none.
func (r *raw) row(sql string, args []driver.Value, take func(v []driver.Value) error) (found bool, err error) {
	err = r.query(sql, args, func(v []driver.Value) error {
		found = true
		return take(v)
	})
	return found, err
}

// number runs a statement that returns one number.
func (r *raw) number(sql string, args ...driver.Value) (n int64, err error) {
	_, err = r.row(sql, args, func(v []driver.Value) error {
		n, _ = v[0].(int64)
		return nil
	})
	return n, err
}

// clock is the database's clock. Units that follow each other closely get one
// reading, a few milliseconds old at most.
func (r *raw) clock() (int64, error) {
	if r.now != 0 && time.Since(r.read) < 5*time.Millisecond {
		return r.now, nil
	}
	read := time.Now()
	n, err := r.number("SELECT " + now)
	if err != nil {
		return 0, err
	}
	r.now, r.read = n, read
	return n, nil
}

// insertSizes are how many rows one statement of insert has, largest first.
func insertSizes() [4]int { return [...]int{64, 16, 4, 1} }

// insert writes n rows in as few statements as can be. head is the statement up
// to its first row; what may be large in a row stands in its last two places.
func (r *raw) insert(head string, n int, row func(i int) []driver.Value) error {
	sizes := insertSizes()
	for next := 0; next < n; {
		i := 0
		for sizes[i] > 1 && (sizes[i] > n-next || heavy(next, sizes[i], row)) {
			i++
		}
		args, columns := r.args[:0], 0
		for k := range sizes[i] {
			values := row(next + k)
			columns = len(values)
			for _, v := range values {
				args = append(args, driver.NamedValue{Ordinal: len(args) + 1, Value: v})
			}
		}
		_, err := r.execArgs(context.Background(), r.insertText(head, columns, i), 1, args)
		clear(args) // the values are the callers'
		r.args = args
		if err != nil {
			return err
		}
		next += sizes[i]
	}
	return nil
}

// insertText is the statement of the i-th of insertSizes.
func (r *raw) insertText(head string, columns, i int) string {
	texts, ok := r.inserts[head]
	if !ok {
		values := "(?" + strings.Repeat(", ?", columns-1) + ")"
		for i, n := range insertSizes() {
			texts[i] = head + values + strings.Repeat(", "+values, n-1)
		}
		if r.inserts == nil {
			r.inserts = map[string][4]string{}
		}
		r.inserts[head] = texts
	}
	return texts[i]
}

// heavy reports whether rows hold more than one statement should copy.
func heavy(from, n int, row func(i int) []driver.Value) bool {
	size := 0
	for i := range n {
		values := row(from + i)
		for _, v := range values[len(values)-2:] {
			switch v := v.(type) {
			case []byte:
				size += len(v)
			case string:
				size += len(v)
			}
		}
	}
	return size > 1<<20
}

func (r *raw) close() error {
	for _, p := range r.stmts {
		p.stmt.Close() // the connection's own error is the one that tells
	}
	r.stmts = nil
	return r.conn.Close()
}

func named(args []driver.Value) []driver.NamedValue {
	if len(args) == 0 {
		return nil
	}
	out := make([]driver.NamedValue, len(args))
	for i, v := range args {
		out[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return out
}

// blob and word read a value of a row that was stored as bytes or text.
func blob(v driver.Value) []byte {
	switch b := v.(type) {
	case []byte:
		if len(b) > 0 {
			return append([]byte(nil), b...)
		}
	case string:
		if b != "" {
			return []byte(b)
		}
	}
	return nil
}

func word(v driver.Value) string {
	switch s := v.(type) {
	case string:
		return s
	case []byte:
		return string(s)
	}
	return ""
}

func integer(v driver.Value) int64 {
	n, _ := v.(int64)
	return n
}
