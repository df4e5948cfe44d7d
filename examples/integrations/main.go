// Command integrations runs the same small shop with one of the libraries that
// it has a folder for:
//
//	go run . -store postgres://localhost/shop -with gorm
//
// A request places an order and takes it from the stock, in one transaction. Sent
// twice with one Idempotency-Key it is one order, and the answers are the same.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/examples/integrations/withbun"
	"github.com/unavez/unavez/examples/integrations/withchi"
	"github.com/unavez/unavez/examples/integrations/withent"
	"github.com/unavez/unavez/examples/integrations/withgin"
	"github.com/unavez/unavez/examples/integrations/withgorm"
	"github.com/unavez/unavez/examples/integrations/withgrpc"
	"github.com/unavez/unavez/examples/integrations/withpgx"
	"github.com/unavez/unavez/examples/integrations/withsql"
	"github.com/unavez/unavez/examples/integrations/withsqlc"
	"github.com/unavez/unavez/examples/integrations/withsqlx"
	"github.com/unavez/unavez/store/postgres"
)

// shops are the folders that serve HTTP; withgrpc is the one that does not.
func shops() map[string]func(context.Context, *pgxpool.Pool) (http.Handler, error) {
	return map[string]func(context.Context, *pgxpool.Pool) (http.Handler, error){
		"pgx": withpgx.New, "sql": withsql.New, "sqlc": withsqlc.New, "sqlx": withsqlx.New, "gorm": withgorm.New,
		"bun": withbun.New, "ent": withent.New, "chi": withchi.New, "gin": withgin.New,
	}
}

func main() {
	names := strings.Join(append(slices.Sorted(maps.Keys(shops())), "grpc"), ", ")
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	store := flag.String("store", "", "`URL` of a PostgreSQL database, 15 or newer")
	with := flag.String("with", "pgx", "`library`: "+names)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *store, *with); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr, store, with string) error {
	if store == "" {
		return errors.New("-store: empty, want postgres://…")
	}
	pool, err := prepare(ctx, store)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf(welcome, with, listener.Addr())
	if with == "grpc" {
		server, err := withgrpc.New(ctx, pool)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, server.GracefulStop)
		return server.Serve(listener)
	}
	open, known := shops()[with]
	if !known {
		return fmt.Errorf("-with: %q is none of the libraries", with)
	}
	handler, err := open(ctx, pool)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // what is cut off is rolled back, or repeated
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// prepare opens a database that has the ledger's tables and the shop's.
func prepare(ctx context.Context, store string) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, store)
	if err != nil {
		return nil, err
	}
	if err := postgres.Migrate(ctx, pool, nil); err != nil {
		pool.Close()
		return nil, err
	}
	if _, err := pool.Exec(ctx, shop.Schema+`insert into stock (sku, quantity) values ('A', 100) on conflict do nothing`); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

const welcome = `the shop with %s listens on %[2]s

  curl -i http://%[2]s/orders -H 'Content-Type: application/json' -H 'Idempotency-Key: order-1' \
    -d '{"customer":"c-1","sku":"A","quantity":2}'

`
