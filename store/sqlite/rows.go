package sqlite

import (
	"context"
	"database/sql/driver"
	"io"
	"reflect"
	"slices"

	"github.com/unavez/unavez/store"
)

// rows are the rows of a statement, on the writer inside a unit or on a reader.
type rows struct {
	inner   driver.Rows
	columns []string
	p       *prepared
	raw     *raw
	unit    *unit // on the writer
	pool    *pool // on a reader that is given back at the end
	first   []driver.Value
	peeked  bool
	end     error // what Next says after first
	closed  bool  // guarded by writer.use in a unit
}

// Compile-time guards: what ORMs ask of rows.
var (
	_ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)
	_ driver.RowsColumnTypeNullable         = (*rows)(nil)
	_ driver.RowsColumnTypeScanType         = (*rows)(nil)
	_ driver.RowsColumnTypeScanType         = (*gathered)(nil)
)

// rows runs a query on a reader. With lent the reader goes back to the pool
// when the rows are closed, or at once on an error.
func (p *pool) rows(ctx context.Context, r *raw, query string, args []driver.NamedValue, lent bool) (*rows, error) {
	inner, prepared, err := r.queryArgs(ctx, query, args)
	if err != nil {
		r.broken = r.broken || dooms(err)
		if lent {
			p.put(r)
		}
		return nil, classify(err)
	}
	out := &rows{inner: inner, p: prepared, raw: r, columns: inner.Columns()}
	if lent {
		out.pool = p
	}
	return out, nil
}

// ahead reads the first row: some drivers run a statement only then.
func (r *rows) ahead() error {
	first := make([]driver.Value, len(r.columns))
	err := r.inner.Next(first)
	if err != nil && err != io.EOF { //nolint:errorlint // as database/sql does
		return classify(err)
	}
	for i, v := range first {
		if b, ok := v.([]byte); ok {
			first[i] = slices.Clone(b)
		}
	}
	r.first, r.peeked, r.end = first, true, err
	return nil
}

// Columns implements driver.Rows.
func (r *rows) Columns() []string { return r.columns }

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	if r.unit != nil {
		return r.unit.next(r, dest)
	}
	if r.peeked {
		r.peeked = false
		copy(dest, r.first)
		return r.end
	}
	err := r.inner.Next(dest)
	if err != nil && err != io.EOF { //nolint:errorlint // as database/sql does
		r.raw.broken = r.raw.broken || dooms(err)
		return classify(err)
	}
	return err
}

// next reads one row in the unit.
func (u *unit) next(r *rows, dest []driver.Value) error {
	if err := u.enter(context.Background()); err != nil {
		return err
	}
	defer u.leave()
	if r.closed {
		return &fault{kind: store.ErrAborted, text: "rows were closed with their transaction"}
	}
	err := r.inner.Next(dest)
	if err == nil || err == io.EOF { //nolint:errorlint // as database/sql does
		return err
	}
	return u.failed(err)
}

// Close implements driver.Rows.
func (r *rows) Close() error {
	if r.unit == nil {
		err := r.shut()
		if r.pool != nil {
			r.pool.put(r.raw)
			r.pool = nil
		}
		return classify(err)
	}
	w := r.unit.w
	defer r.unit.calls.Add(-1)
	if r.unit.ended() {
		return nil // closed with it
	}
	w.use.lock()
	defer w.use.unlock()
	r.unit.open = slices.DeleteFunc(r.unit.open, func(other *rows) bool { return other == r })
	return classify(r.shut())
}

// shut gives the statement back, once.
func (r *rows) shut() error {
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.inner.Close()
	if e := r.raw.done(r.p); err == nil {
		err = e
	}
	return err
}

// lock keeps the connection while a column's type is asked for; ok is false
// when the rows are closed.
func (r *rows) lock() (unlock func(), ok bool) {
	switch {
	case r.unit == nil:
		return func() {}, !r.closed
	case r.unit.ended():
		return func() {}, false
	}
	use := r.unit.w.use
	use.lock()
	return use.unlock, !r.closed
}

// ColumnTypeDatabaseTypeName passes on what the driver says.
func (r *rows) ColumnTypeDatabaseTypeName(index int) string {
	unlock, ok := r.lock()
	defer unlock()
	if t, is := r.inner.(driver.RowsColumnTypeDatabaseTypeName); ok && is {
		return t.ColumnTypeDatabaseTypeName(index)
	}
	return ""
}

// ColumnTypeNullable passes on what the driver says.
func (r *rows) ColumnTypeNullable(index int) (nullable, ok bool) {
	unlock, ok := r.lock()
	defer unlock()
	if t, is := r.inner.(driver.RowsColumnTypeNullable); ok && is {
		return t.ColumnTypeNullable(index)
	}
	return false, false
}

// ColumnTypeScanType passes on what the driver says.
func (r *rows) ColumnTypeScanType(index int) reflect.Type {
	unlock, ok := r.lock()
	defer unlock()
	if t, is := r.inner.(driver.RowsColumnTypeScanType); ok && is {
		return t.ColumnTypeScanType(index)
	}
	return reflect.TypeFor[any]()
}

// gathered are rows that were read whole before they are given out.
type gathered struct {
	columns []string
	values  [][]driver.Value
}

func (g *gathered) read(r *raw, query string, args []driver.NamedValue) error {
	inner, p, err := r.queryArgs(context.Background(), query, args)
	if err != nil {
		return err
	}
	g.columns = inner.Columns()
	for {
		row := make([]driver.Value, len(g.columns))
		if err = inner.Next(row); err != nil {
			break
		}
		for i, v := range row {
			if b, ok := v.([]byte); ok {
				row[i] = slices.Clone(b)
			}
		}
		g.values = append(g.values, row)
	}
	if err == io.EOF { //nolint:errorlint // as database/sql does
		err = nil
	}
	if e := inner.Close(); err == nil {
		err = e
	}
	if e := r.done(p); err == nil {
		err = e
	}
	return err
}

// Columns implements driver.Rows.
func (g *gathered) Columns() []string { return g.columns }

// Next implements driver.Rows.
func (g *gathered) Next(dest []driver.Value) error {
	if len(g.values) == 0 {
		return io.EOF
	}
	copy(dest, g.values[0])
	g.values = g.values[1:]
	return nil
}

// Close implements driver.Rows.
func (g *gathered) Close() error { return nil }

// ColumnTypeScanType knows the type of the first row's value.
func (g *gathered) ColumnTypeScanType(index int) reflect.Type {
	if len(g.values) > 0 && g.values[0][index] != nil {
		return reflect.TypeOf(g.values[0][index])
	}
	return reflect.TypeFor[any]()
}
