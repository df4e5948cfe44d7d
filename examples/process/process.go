package main

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/cel"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

//go:embed order.json
var chartText []byte

// The chart's effects by name. They are not run here: a step lists them.
func effects() map[string]statechart.ActionFunc {
	return map[string]statechart.ActionFunc{
		"send-receipt":  {Kind: statechart.Effect, Keyed: true},
		"reserve-stock": {Kind: statechart.Effect, Keyed: true},
		"pay-back":      {Kind: statechart.Effect, Keyed: true},
	}
}

func loadChart() (*statechart.Definition, error) {
	language, err := cel.New(nil)
	if err != nil {
		return nil, err
	}
	return statechart.Load(chartText, &statechart.Options{Expressions: language, Actions: effects()})
}

// orders keeps running orders in a database.
type orders struct {
	chart  *statechart.Definition
	engine *unavez.Engine[*sql.Tx]
	db     *sql.DB
	close  func() error

	// read, if not nil, is called between the reading of a snapshot and the
	// writing of the next: a test lets another event come in between.
	read func(order string)
}

// ledger is what the orders need of a store.
type ledger interface {
	store.Ledger[*sql.Tx]
	store.Upkeep
}

const schema = `
CREATE TABLE IF NOT EXISTS process (
	name     TEXT PRIMARY KEY,
	revision BIGINT NOT NULL,
	snapshot TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS command (
	key      TEXT PRIMARY KEY, -- derived: the same in every attempt
	process  TEXT NOT NULL,
	revision BIGINT NOT NULL,
	name     TEXT NOT NULL,
	params   TEXT NOT NULL
);`

// open puts the orders together, in SQLite or PostgreSQL.
func open(ctx context.Context, where string) (*orders, error) {
	chart, err := loadChart()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://") {
		return openPostgres(ctx, chart, where)
	}
	db, err := sqlite.OpenDB(&modernc.Driver{}, where, &sqlite.Options{HandlerLimit: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return newOrders(ctx, chart, ledger, db, func() error { return nil })
}

func openPostgres(ctx context.Context, chart *statechart.Definition, url string) (*orders, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	closed := func() error { pool.Close(); return nil }
	if err := postgres.Migrate(ctx, pool, nil); err != nil { // in production by a role that may
		return nil, errors.Join(err, closed())
	}
	db := postgres.OpenDB(pool)
	ledger, err := postgres.NewSQL(db, pool, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close(), closed())
	}
	return newOrders(ctx, chart, ledger, db, closed)
}

func newOrders(ctx context.Context, chart *statechart.Definition, ledger ledger, db *sql.DB, closed func() error) (*orders, error) {
	engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true})
	if err == nil {
		_, err = db.ExecContext(ctx, schema)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close(), closed())
	}
	background, cancel := context.WithCancel(context.Background())
	var upkeep sync.WaitGroup
	upkeep.Go(func() { unavez.Upkeep(background, ledger, nil) })
	return &orders{chart: chart, engine: engine, db: db, close: func() error {
		last, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		err := engine.Close(last)
		cancel()
		upkeep.Wait()
		return errors.Join(err, db.Close(), closed())
	}}, nil
}

// answer is what a client gets, and what is frozen.
type answer struct {
	Order    string `json:"order"`
	Revision uint64 `json:"revision"`
	State    any    `json:"state"`
	Became   string `json:"became"` // what became of the event
	Context  any    `json:"context"`
}

func (o *orders) answer(order string, s *statechart.Snapshot, became string) ([]byte, error) {
	return json.Marshal(answer{order, s.Revision(), s.Value(), became, s.Context()})
}

// create starts an order. Its name is its identity.
func (o *orders) create(ctx context.Context, name string, total int64, body []byte) (unavez.Outcome, error) {
	op := unavez.Operation{Effect: "order.open.v1", Key: []string{name}, Payload: body, Wait: wait}
	return o.engine.Do(ctx, op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
		first, err := statechart.Start(o.chart, map[string]any{"total": json.Number(strconv.FormatInt(total, 10))})
		if err != nil {
			return unavez.Result{}, err
		}
		snapshot := first.Snapshot
		text, err := json.Marshal(snapshot)
		if err != nil {
			return unavez.Result{}, err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO process (name, revision, snapshot) VALUES ($1, $2, $3)`,
			name, int64(snapshot.Revision()), string(text)); err != nil {
			return unavez.Result{}, err
		}
		said, err := o.answer(name, snapshot, "started")
		return unavez.Result{Code: http.StatusCreated, Body: said}, err
	})
}

// wait is how long a duplicate waits for the one that is being applied.
const wait = 5 * time.Second

// errNotNow: the order cannot take the event as it stands. Nothing is
// remembered, so that the event may come again.
type errNotNow struct{ text string }

func (e *errNotNow) Error() string { return e.text }

// refusal says in words why a reaction changed nothing.
func refusal(s *statechart.Snapshot, event string, kind statechart.Kind) error {
	if kind == statechart.GuardFalse {
		return &errNotNow{fmt.Sprintf("the order is %v, and what this %s says does not fit it", s.Value(), event)}
	}
	return &errNotNow{fmt.Sprintf("the order is %v: not the time for %s; send it again later", s.Value(), event)}
}

// knows tells whether the chart has a word for the event in any state. It has no
// wildcards.
func knows(chart *statechart.Definition, event string) bool {
	for _, n := range chart.Nodes() {
		for _, t := range n.Transitions {
			if t.Event == event {
				return true
			}
		}
	}
	return false
}

var (
	errNoOrder      = errors.New("no such order")
	errUnknownEvent = errors.New("no order knows this type of event")
	errApplied      = errors.New("this event was applied before; its answer is no longer kept")
)

// apply applies an event to an order. It runs once for each event id; every
// duplicate gets the answer that was committed with the step.
func (o *orders) apply(ctx context.Context, name, id string, event statechart.Event, body []byte) (unavez.Outcome, error) {
	if !knows(o.chart, event.Type) {
		return unavez.Outcome{}, errUnknownEvent
	}
	op := unavez.Operation{Effect: "order.event.v1", Key: []string{name, id}, Payload: body, Wait: wait}
	return o.engine.Do(ctx, op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
		for {
			before, err := o.load(ctx, tx, name)
			if err != nil {
				return unavez.Result{}, err
			}
			if o.read != nil {
				o.read(name)
			}
			reaction, err := statechart.Next(o.chart, before, event)
			if err != nil {
				return unavez.Result{}, err
			}
			said, err := o.answer(name, reaction.Snapshot, reaction.Kind.String())
			if err != nil {
				return unavez.Result{}, err
			}
			switch reaction.Kind {
			case statechart.Ended:
				// Nothing will ever change that: the answer is frozen too.
				return unavez.Result{}, unavez.Refuse(unavez.Result{Code: http.StatusGone, Body: said}, errors.New("the order has ended"))
			case statechart.NotHandled, statechart.GuardFalse, statechart.Forbidden:
				return unavez.Result{}, refusal(before, event.Type, reaction.Kind)
			case statechart.Changed:
				stored, err := o.save(ctx, tx, op, name, before, reaction)
				if err != nil {
					return unavez.Result{}, err
				}
				if !stored {
					continue // another event was faster: step again, from where it led
				}
			}
			return unavez.Result{Code: http.StatusOK, Body: said}, nil
		}
	})
}

// querier is a transaction, or the database.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (o *orders) load(ctx context.Context, from querier, name string) (*statechart.Snapshot, error) {
	var text string
	err := from.QueryRowContext(ctx, `SELECT snapshot FROM process WHERE name = $1`, name).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errNoOrder
	}
	if err != nil {
		return nil, err
	}
	return statechart.Restore(o.chart, []byte(text))
}

// save writes the snapshot where its revision is still the one that was read,
// and the step's effects as commands. It says false if another step was faster;
// then nothing is written.
func (o *orders) save(ctx context.Context, tx *sql.Tx, op unavez.Operation, name string, before *statechart.Snapshot, reaction statechart.Reaction) (bool, error) {
	text, err := json.Marshal(reaction.Snapshot)
	if err != nil {
		return false, err
	}
	revision := int64(reaction.Snapshot.Revision())
	moved, err := tx.ExecContext(ctx, `UPDATE process SET revision = $1, snapshot = $2 WHERE name = $3 AND revision = $4`,
		revision, string(text), name, int64(before.Revision()))
	if err != nil {
		return false, err
	}
	if n, err := moved.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	for _, effect := range reaction.Effects {
		params, err := json.Marshal(effect.Params)
		if err != nil {
			return false, err
		}
		key := op.Identity().DerivedKey("effect " + strconv.Itoa(effect.Place))
		// The key outlives the ledger: of an event so late that the ledger has
		// forgotten it, the effects are still there.
		added, err := tx.ExecContext(ctx, `INSERT INTO command (key, process, revision, name, params) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key) DO NOTHING`,
			key, name, revision, effect.Name, string(params))
		if err != nil {
			return false, err
		}
		if n, err := added.RowsAffected(); err != nil || n == 0 {
			return false, errors.Join(err, errApplied)
		}
	}
	return true, nil
}
