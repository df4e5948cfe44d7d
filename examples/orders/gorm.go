package main

import (
	"context"
	"database/sql"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// The rows of our tables, for GORM.
type (
	orderRow struct {
		ID                                  int64
		PlacedAs, Customer, Currency, State string
		Total                               int64
	}
	itemRow struct {
		OrderID, Line       int64
		SKU                 string `gorm:"column:sku"`
		Quantity, UnitPrice int64
	}
	paymentRow struct {
		OrderID, Amount int64
		Currency        string
	}
	shipmentRow struct {
		OrderID  int64
		Tracking string
	}
)

// TableName of each row.
func (orderRow) TableName() string    { return "orders" }
func (itemRow) TableName() string     { return "order_item" }
func (paymentRow) TableName() string  { return "payment" }
func (shipmentRow) TableName() string { return "shipment" }

// gormRows keeps orders by GORM, in PostgreSQL.
type gormRows struct{ db *gorm.DB }

func newGormRows(db *sql.DB) (*gormRows, error) {
	handle, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	return &gormRows{handle}, err
}

// in gives a session whose statements go over the transaction. The context is
// not optional: without one GORM changes the handle that all others use.
func (s *gormRows) in(ctx context.Context, tx *sql.Tx) *gorm.DB {
	session := s.db.Session(&gorm.Session{NewDB: true, Context: ctx})
	session.Statement.ConnPool = tx
	return session
}

func (s *gormRows) insert(ctx context.Context, tx *sql.Tx, placedAs string, o order) (int64, error) {
	db := s.in(ctx, tx)
	row := &orderRow{PlacedAs: placedAs, Customer: o.Customer, Currency: o.Currency, State: o.State, Total: o.Total}
	added := db.Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "placed_as"}}, DoNothing: true}).Create(row)
	if added.Error != nil {
		return 0, added.Error
	}
	if added.RowsAffected == 0 {
		return 0, errPlaced()
	}
	items := make([]itemRow, len(o.Items))
	for n, i := range o.Items {
		items[n] = itemRow{OrderID: row.ID, Line: int64(n + 1), SKU: i.SKU, Quantity: i.Quantity, UnitPrice: i.UnitPrice}
	}
	return row.ID, db.Create(items).Error
}

func (s *gormRows) price(ctx context.Context, tx *sql.Tx, id int64) (money, error) {
	row, err := one(s.in(ctx, tx), id)
	return money{Amount: row.Total, Currency: row.Currency}, err
}

func (s *gormRows) pay(ctx context.Context, tx *sql.Tx, p payment) (bool, error) {
	db := s.in(ctx, tx)
	moved := db.Model(&orderRow{}).Where("id = ? and state = ?", p.Order, "pending").Update("state", "paid")
	if moved.Error != nil || moved.RowsAffected == 0 {
		return false, moved.Error
	}
	return true, db.Create(&paymentRow{OrderID: p.Order, Amount: p.Amount, Currency: p.Currency}).Error
}

func (s *gormRows) ship(ctx context.Context, tx *sql.Tx, done shipment) error {
	db := s.in(ctx, tx)
	if err := db.Model(&orderRow{}).Where("id = ? and state = ?", done.Order, "paid").Update("state", "shipped").Error; err != nil {
		return err
	}
	return db.Clauses(clause.OnConflict{DoNothing: true}).Create(&shipmentRow{OrderID: done.Order, Tracking: done.Tracking}).Error
}

func (s *gormRows) find(ctx context.Context, id int64) (order, error) {
	db := s.db.WithContext(ctx)
	row, err := one(db, id)
	o := order{ID: id, Total: row.Total, State: row.State}
	o.Customer, o.Currency = row.Customer, row.Currency
	if err != nil {
		return o, err
	}
	var items []itemRow
	if err := db.Where("order_id = ?", id).Order("line").Find(&items).Error; err != nil {
		return o, err
	}
	for _, i := range items {
		o.Items = append(o.Items, item{SKU: i.SKU, Quantity: i.Quantity, UnitPrice: i.UnitPrice})
	}
	return o, nil
}

// one reads the row of an order.
func one(db *gorm.DB, id int64) (row orderRow, err error) {
	found := db.Where("id = ?", id).Limit(1).Find(&row)
	if found.Error == nil && found.RowsAffected == 0 {
		return row, errNoOrder()
	}
	return row, found.Error
}
