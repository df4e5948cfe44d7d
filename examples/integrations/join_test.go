package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/examples/integrations/withent"
	"github.com/unavez/unavez/examples/integrations/withgorm"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// importer places an order in a unit of work of its own.
type importer func(context.Context, unavez.Operation, shop.Order) (unavez.Outcome, error)

// importers are the units of work, each over connections of the pool.
func importers(t *testing.T, pool *pgxpool.Pool) map[string]importer {
	t.Helper()
	db := postgres.OpenDB(pool)
	ledger, err := postgres.NewSQL(db, pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := unavez.New(ledger, nil)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := withgorm.Open(db)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]importer{
		"GORM": func(ctx context.Context, op unavez.Operation, o shop.Order) (unavez.Outcome, error) {
			return withgorm.Import(ctx, handle, engine, op, o)
		},
		"ent": func(ctx context.Context, op unavez.Operation, o shop.Order) (unavez.Outcome, error) {
			return withent.Import(ctx, db, engine, op, o)
		},
	}
}

func TestAnImportInAUnitOfWorkIsOneOrder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"GORM", "ent"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			place := importers(t, pool)[name]
			ctx, one, large := t.Context(), shop.Order{Customer: "c-1", SKU: "A", Quantity: 2}, shop.Order{Customer: "c-1", SKU: "A", Quantity: 1000}
			if _, err := place(ctx, operation(), large); err == nil || err.Error() != httpkey.Errorf(http.StatusConflict, "sold out").Error() {
				t.Errorf("got %v, want the handler's own error", err)
			}
			if orders, left := rows(t, pool); orders != 0 || left != 100 {
				t.Errorf("after an error: %d orders, %d left", orders, left)
			}
			var all [8]unavez.Outcome
			var errs [8]error
			var callers sync.WaitGroup
			for i := range all {
				callers.Go(func() {
					// Join does not wait for a duplicate in flight; who calls does.
					for all[i], errs[i] = place(ctx, operation(), one); unavez.CodeOf(errs[i]) == unavez.CodeInFlight; {
						select {
						case <-time.After(10 * time.Millisecond):
						case <-ctx.Done():
						}
						all[i], errs[i] = place(ctx, operation(), one)
					}
				})
			}
			callers.Wait()
			for i := range all {
				if errs[i] != nil || !bytes.Equal(all[i].Result.Body, all[0].Result.Body) {
					t.Errorf("got %s (%v), want %s", all[i].Result.Body, errs[i], all[0].Result.Body)
				}
			}
			if orders, left := rows(t, pool); orders != 1 || left != 98 {
				t.Errorf("%d orders, %d left, want 1 and 98", orders, left)
			}
		})
	}
}

func TestALostCommitAnswerIsSettledByLook(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"GORM", "ent"} {
		for _, c := range []struct {
			title   string
			arrives bool // the COMMIT, at the server
		}{{"the answer is lost", true}, {"the COMMIT itself is lost", false}} {
			t.Run(name+": "+c.title, func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				config := pool.Config()
				line := &line{server: net.JoinHostPort(config.ConnConfig.Host, portOf(config)), arrives: c.arrives}
				config.ConnConfig.DialFunc = line.dial
				cut, err := pgxpool.NewWithConfig(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(cut.Close)
				place := importers(t, cut)[name]
				one := shop.Order{Customer: "c-1", SKU: "A", Quantity: 2}
				line.cut.Store(true)
				outcome, err := place(t.Context(), operation(), one)
				if line.cut.Load() {
					t.Fatal("no COMMIT was cut off")
				}
				orders, _ := rows(t, pool)
				if !c.arrives {
					if unavez.CodeOf(err) != unavez.CodeNotFound || orders != 0 {
						t.Fatalf("got %v with %d orders, want %s", err, orders, unavez.CodeNotFound)
					}
					if outcome, err = place(t.Context(), operation(), one); err != nil {
						t.Fatal(err)
					}
					orders, _ = rows(t, pool)
				}
				var placed shop.Order
				if err != nil || orders != 1 || json.Unmarshal(outcome.Result.Body, &placed) != nil || placed.ID == 0 {
					t.Errorf("got %s (%v) with %d orders, want one and its answer", outcome.Result.Body, err, orders)
				}
				again, err := place(t.Context(), operation(), one)
				if err != nil || !again.Replayed || !bytes.Equal(again.Result.Body, outcome.Result.Body) {
					t.Errorf("again: got %s (%v), want %s", again.Result.Body, err, outcome.Result.Body)
				}
			})
		}
	}
}

func portOf(config *pgxpool.Config) string { return strconv.Itoa(int(config.ConnConfig.Port)) }

// line is the way to a server. Once cut is set, the next COMMIT ends its
// connection: before it arrives, or with its answer.
type line struct {
	server  string
	arrives bool
	cut     atomic.Bool
}

func (l *line) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.server)
	if err != nil {
		return nil, err
	}
	return &cuttable{Conn: conn, line: l}, nil
}

// cuttable is one connection, written and read by one goroutine at a time.
type cuttable struct {
	net.Conn
	line *line
	lost atomic.Bool
}

// Write looks for a COMMIT on its way out.
func (c *cuttable) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("commit\x00")) && c.line.cut.CompareAndSwap(true, false) {
		if !c.line.arrives {
			return 0, errors.Join(io.ErrClosedPipe, c.Close())
		}
		c.lost.Store(true)
	}
	return c.Conn.Write(p)
}

// Read swallows the answer, once there is one.
func (c *cuttable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.lost.Load() {
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Close())
	}
	return n, err
}
