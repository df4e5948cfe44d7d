// Package withgin places an order behind a gin engine. The layer stands around
// the engine, and the handler finds its *sql.Tx in the request's context.
package withgin

import (
	"context"
	"database/sql"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	db := postgres.OpenDB(pool)
	ledger, err := postgres.NewSQL(db, pool, nil)
	if err != nil {
		return nil, err
	}
	engine, err := unavez.New(ledger, nil) // *unavez.Engine[*sql.Tx], inferred
	if err != nil {
		return nil, err
	}
	layer, err := httpkey.New(engine, shop.Caller, &httpkey.Options{
		// What a plain handler wrote before it answers 409 would be committed with
		// that answer; here every answer from 400 up rolls back.
		Commit: func(status int) bool { return status < http.StatusBadRequest },
	})
	if err != nil {
		return nil, err
	}
	go unavez.Upkeep(ctx, ledger, nil) // forgets what is over its retention
	router := gin.New()
	router.Use(gin.Recovery()) // inside: a panic becomes a 500, which rolls back
	router.POST("/orders", place)
	return layer.Wrap(router), nil
}

// place is one's own handler, with gin's signature. The transaction is in the
// context of the request; c itself is another context.
func place(c *gin.Context) {
	ctx := c.Request.Context()
	tx, keyed := httpkey.Tx[*sql.Tx](ctx)
	if !keyed {
		c.JSON(http.StatusInternalServerError, gin.H{"error": "this route needs the layer"})
		return
	}
	var o shop.Order
	if err := c.ShouldBindJSON(&o); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	const insert = `insert into orders (customer, sku, quantity) values ($1, $2, $3) returning id`
	if err := tx.QueryRowContext(ctx, insert, o.Customer, o.SKU, o.Quantity).Scan(&o.ID); err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": "not stored"}) // rolled back, key free
		return
	}
	const take = `update stock set quantity = quantity - $2 where sku = $1 and quantity >= $2 returning quantity`
	var left int32
	switch err := tx.QueryRowContext(ctx, take, o.SKU, o.Quantity).Scan(&left); {
	case err == nil:
		c.JSON(http.StatusCreated, o)
	case errors.Is(err, sql.ErrNoRows):
		c.JSON(http.StatusConflict, gin.H{"error": "sold out"})
	default:
		c.JSON(http.StatusInternalServerError, gin.H{"error": "not stored"})
	}
}
