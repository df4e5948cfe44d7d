package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// channel is what workers listen on. Its payload is empty for a hint, and else
// the name of a listener who asks itself whether it still hears.
const channel = "unavez"

// hearing is how often a listener asks itself, and how long it waits for that.
type hearing struct{ every, limit time.Duration }

// Notify is a statement of its own, on a connection of the pool.
func (s *Store) Notify(ctx context.Context) error { return s.notify(ctx, "") }

func (s *Store) notify(ctx context.Context, payload string) error {
	return s.call(ctx, "SELECT pg_catalog.pg_notify('"+channel+"', $1::pg_catalog.text)", payload)
}

// Listen takes a connection out of the pool for as long as it listens. Every 30 s
// it sends itself a word, which it has to hear within 10 s: behind a pooler that
// gives each transaction another connection nothing is ever heard, and the error
// says so. It is ErrUnavailable where the connection is lost.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return acquiring(err)
	}
	conn := pooled.Hijack()
	defer func() {
		ctx, cancel := detached(ctx)
		defer cancel()
		_ = conn.Close(ctx) // it goes either way
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return classify(err)
	}
	me := "listener " + strings.ToLower(rand.Text())
	for beats := 0; ; beats++ {
		if err := s.notify(ctx, me); err != nil {
			return err
		}
		heard, err := hears(ctx, conn, s.hearing.limit, wake, me)
		if err != nil {
			return err
		}
		if !heard && beats == 0 {
			return &fault{store.ErrUnavailable, "LISTEN hears nothing: does a pooler in transaction mode stand between? Workers poll instead", nil}
		}
		if !heard {
			return &fault{store.ErrUnavailable, "LISTEN hears nothing any more", nil}
		}
		if _, err := hears(ctx, conn, s.hearing.every, wake, ""); err != nil {
			return err
		}
	}
}

// hears waits for as long as it says, or until it hears its own word, and calls
// wake for each hint.
func hears(ctx context.Context, conn *pgx.Conn, wait time.Duration, wake func(), word string) (bool, error) {
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		got, err := conn.WaitForNotification(within)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil && within.Err() != nil && !conn.IsClosed():
			return false, nil
		case err != nil:
			return false, classify(errors.Join(&fault{store.ErrUnavailable, "connection failed", nil}, err))
		case got.Channel == channel && got.Payload == "":
			wake()
		case word != "" && got.Payload == word:
			return true, nil
		}
	}
}
