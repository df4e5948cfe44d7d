package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// createTables makes our tables in PostgreSQL, one worker after the other.
func createTables(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('orders: tables'));`+schemaPostgres)
		return err
	})
}

// pgxRows keeps orders by pgx.
type pgxRows struct{ pool *pgxpool.Pool }

func (s *pgxRows) insert(ctx context.Context, tx pgx.Tx, placedAs string, o order) (id int64, err error) {
	err = tx.QueryRow(ctx, insertOrder, placedAs, o.Customer, o.Currency, o.Total, o.State).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errPlaced()
	}
	if err != nil {
		return 0, err
	}
	batch := &pgx.Batch{} // all items in one round trip
	for line, i := range o.Items {
		batch.Queue(insertItem, id, line+1, i.SKU, i.Quantity, i.UnitPrice)
	}
	return id, tx.SendBatch(ctx, batch).Close()
}

func (s *pgxRows) price(ctx context.Context, tx pgx.Tx, id int64) (m money, err error) {
	err = tx.QueryRow(ctx, selectPrice, id).Scan(&m.Amount, &m.Currency)
	if errors.Is(err, pgx.ErrNoRows) {
		return m, errNoOrder()
	}
	return m, err
}

func (s *pgxRows) pay(ctx context.Context, tx pgx.Tx, p payment) (bool, error) {
	moved, err := tx.Exec(ctx, moveOrder, "paid", p.Order, "pending")
	if err != nil || moved.RowsAffected() == 0 {
		return false, err
	}
	_, err = tx.Exec(ctx, insertPayment, p.Order, p.Amount, p.Currency)
	return true, err
}

func (s *pgxRows) ship(ctx context.Context, tx pgx.Tx, done shipment) error {
	if _, err := tx.Exec(ctx, moveOrder, "shipped", done.Order, "paid"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, insertParcel, done.Order, done.Tracking)
	return err
}

func (s *pgxRows) find(ctx context.Context, id int64) (order, error) {
	o := order{ID: id}
	err := s.pool.QueryRow(ctx, selectOrder, id).Scan(&o.Customer, &o.Currency, &o.Total, &o.State)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, errNoOrder()
	}
	if err != nil {
		return o, err
	}
	found, err := s.pool.Query(ctx, selectItems, id)
	if err != nil {
		return o, err
	}
	o.Items, err = pgx.CollectRows(found, pgx.RowToStructByPos[item])
	return o, err
}
