package main

import (
	"context"
	"database/sql"
	"errors"
)

// sqlRows keeps orders by database/sql, in SQLite or PostgreSQL.
type sqlRows struct{ db *sql.DB }

func (s *sqlRows) insert(ctx context.Context, tx *sql.Tx, placedAs string, o order) (id int64, err error) {
	err = tx.QueryRowContext(ctx, insertOrder, placedAs, o.Customer, o.Currency, o.Total, o.State).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errPlaced()
	}
	if err != nil {
		return 0, err
	}
	for line, i := range o.Items {
		if _, err := tx.ExecContext(ctx, insertItem, id, line+1, i.SKU, i.Quantity, i.UnitPrice); err != nil {
			return 0, err
		}
	}
	return id, nil
}

func (s *sqlRows) price(ctx context.Context, tx *sql.Tx, id int64) (m money, err error) {
	err = tx.QueryRowContext(ctx, selectPrice, id).Scan(&m.Amount, &m.Currency)
	if errors.Is(err, sql.ErrNoRows) {
		return m, errNoOrder()
	}
	return m, err
}

func (s *sqlRows) pay(ctx context.Context, tx *sql.Tx, p payment) (bool, error) {
	moved, err := tx.ExecContext(ctx, moveOrder, "paid", p.Order, "pending")
	if err != nil {
		return false, err
	}
	if n, err := moved.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	_, err = tx.ExecContext(ctx, insertPayment, p.Order, p.Amount, p.Currency)
	return true, err
}

func (s *sqlRows) ship(ctx context.Context, tx *sql.Tx, done shipment) error {
	if _, err := tx.ExecContext(ctx, moveOrder, "shipped", done.Order, "paid"); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, insertParcel, done.Order, done.Tracking)
	return err
}

func (s *sqlRows) find(ctx context.Context, id int64) (order, error) {
	o := order{ID: id}
	err := s.db.QueryRowContext(ctx, selectOrder, id).Scan(&o.Customer, &o.Currency, &o.Total, &o.State)
	if errors.Is(err, sql.ErrNoRows) {
		return o, errNoOrder()
	}
	if err != nil {
		return o, err
	}
	found, err := s.db.QueryContext(ctx, selectItems, id)
	if err != nil {
		return o, err
	}
	defer found.Close()
	for found.Next() {
		var i item
		if err := found.Scan(&i.SKU, &i.Quantity, &i.UnitPrice); err != nil {
			return o, err
		}
		o.Items = append(o.Items, i)
	}
	return o, found.Err()
}
