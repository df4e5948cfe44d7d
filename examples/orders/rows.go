package main

import (
	"context"
	_ "embed"
)

// rows is where orders are kept. What is given a transaction works in it and
// never ends it. There is one for each way to talk to the database, and the
// business does not know which.
type rows[Tx any] interface {
	// insert writes an order with its items and gives its id. An order that was
	// placed under the same name before is errPlaced.
	insert(ctx context.Context, tx Tx, placedAs string, o order) (id int64, err error)
	// price is what an order costs, or errNoOrder.
	price(ctx context.Context, tx Tx, id int64) (money, error)
	// pay writes a payment; false, and nothing, if the order is not pending.
	pay(ctx context.Context, tx Tx, p payment) (bool, error)
	// ship writes the parcel of an order, once.
	ship(ctx context.Context, tx Tx, s shipment) error
	// find reads an order outside of any transaction, or errNoOrder.
	find(ctx context.Context, id int64) (order, error)
}

// Our tables. Amounts are in minor units. orders.placed_as is the client's own
// name for the order: one order for ever, even when the ledger has forgotten the key.
var (
	//go:embed schema_sqlite.sql
	schemaSQLite string
	//go:embed schema_postgres.sql
	schemaPostgres string
)

// The statements that database/sql and pgx share, on SQLite and PostgreSQL.
const (
	insertOrder = `
		insert into orders (placed_as, customer, currency, total, state) values ($1, $2, $3, $4, $5)
		on conflict (placed_as) do nothing returning id`
	insertItem    = `insert into order_item (order_id, line, sku, quantity, unit_price) values ($1, $2, $3, $4, $5)`
	selectPrice   = `select total, currency from orders where id = $1`
	moveOrder     = `update orders set state = $1 where id = $2 and state = $3`
	insertPayment = `insert into payment (order_id, amount, currency) values ($1, $2, $3)`
	insertParcel  = `insert into shipment (order_id, tracking) values ($1, $2) on conflict (order_id) do nothing`
	selectOrder   = `select customer, currency, total, state from orders where id = $1`
	selectItems   = `select sku, quantity, unit_price from order_item where order_id = $1 order by line`
)
