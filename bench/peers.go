package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// errKnown ends a transaction whose key was used. The measurement never repeats a
// key, so it does not occur; without looking the designs would not be what they are.
var errKnown = errors.New("key is known")

// claimFirst inserts the key at the start and updates it with the answer at the
// end: the unique key makes a duplicate wait for its twin.
func claimFirst(pool *pgxpool.Pool) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return claimed(ctx, tx, key) })
	}
}

func claimed(ctx context.Context, tx pgx.Tx, key string) error {
	tag, err := tx.Exec(ctx, "insert into naive (key) values ($1) on conflict do nothing", key)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return errKnown
	}
	if err := place(ctx, tx, key); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "update naive set code = 201, body = $2 where key = $1", key, frozen().Body)
	return err
}

// twoLayers is the design of many articles: a lock in Redis, then the unique key
// in the database, then the lock is given back, one after the other.
func twoLayers(address string) func(pool *pgxpool.Pool) func(context.Context, string) error {
	return func(pool *pgxpool.Pool) func(context.Context, string) error {
		options := must(redis.ParseURL(address))
		options.MaxRetries = -1
		fast := redis.NewClient(options)
		giveBack := redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0`)
		return func(ctx context.Context, key string) error {
			name := "bench:" + key
			if err := fast.SetArgs(ctx, name, key, redis.SetArgs{Mode: "NX", TTL: 30 * time.Second}).Err(); err != nil {
				return err
			}
			if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return claimed(ctx, tx, key) }); err != nil {
				return err
			}
			return giveBack.Run(ctx, fast, []string{name}, key).Err()
		}
	}
}
