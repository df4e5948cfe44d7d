// Package schema declares the tables of the shop for ent.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Order is a row of orders.
type Order struct{ ent.Schema }

// Fields of an order.
func (Order) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("customer"),
		field.String("sku"),
		field.Int32("quantity").Positive(),
	}
}

// Stock is a row of stock.
type Stock struct{ ent.Schema }

// Annotations of the stock.
func (Stock) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Annotation{Table: "stock"}}
}

// Fields of the stock.
func (Stock) Fields() []ent.Field {
	return []ent.Field{
		field.String("id").StorageKey("sku"),
		field.Int32("quantity").NonNegative(),
	}
}
