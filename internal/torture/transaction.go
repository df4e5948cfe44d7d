package torture

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/postgres"
)

// transactions are the protocols whose effect commits with its outcome.
func transactions() []exchange {
	all := []exchange{
		{name: "transaction", open: doing(how{})},
		{name: "transaction-lazy", open: doing(how{options: &postgres.Options{Lazy: true}})},
		{name: "transaction-unprepared", open: doing(how{pool: unprepared})},
		{name: "transaction-lazy-unprepared", open: doing(how{options: &postgres.Options{Lazy: true}, pool: unprepared})},
		{name: "transaction-sql", open: doingSQL(postgres.OpenDB)},
		{name: "transaction-sql-foreign", open: doingSQL(func(pool *pgxpool.Pool) *sql.DB { return stdlib.OpenDBFromPool(pool) })},
		{name: "connect", open: connecting},
		{name: "join", open: joining},
		{name: "functions", open: calling},
	}
	for i := range all {
		all[i].rows = 1
	}
	return all
}

// unprepared keeps no statements, as behind a pooler.
func unprepared(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }

// do is transaction mode.
func do(ctx context.Context, w *worker, operation string) (string, error) {
	return answerOf(w.engine.Do(ctx, operationOf("do", operation), func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
		answer, err := effect(ctx, pgxWriter{tx}, operation)
		return unavez.Result{Code: 201, Body: []byte(answer)}, err
	}))
}

func doing(how how) func(context.Context, *Bed, route) (*client, error) {
	return func(ctx context.Context, b *Bed, to route) (*client, error) {
		w, err := newWorker(ctx, b, to, how)
		return made(w, err, do)
	}
}

// connecting makes a worker for each delivery, its first connection included.
func connecting(_ context.Context, b *Bed, to route) (*client, error) {
	deliver := func(ctx context.Context, operation string) (string, error) {
		opening, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		w, err := newWorker(opening, b, to, how{})
		if err != nil {
			return "", errors.Join(errAgain, err)
		}
		defer w.close()
		return do(ctx, w, operation)
	}
	return &client{deliver: deliver, close: func() {}}, nil
}

// sqlWriter writes on a transaction of database/sql.
type sqlWriter struct{ tx *sql.Tx }

func (w sqlWriter) insert(ctx context.Context, text string, arguments ...any) (id int64, err error) {
	err = w.tx.QueryRowContext(ctx, text, arguments...).Scan(&id)
	return id, err
}

// doingSQL is transaction mode on database/sql.
func doingSQL(handle func(*pgxpool.Pool) *sql.DB) func(context.Context, *Bed, route) (*client, error) {
	return func(ctx context.Context, b *Bed, to route) (*client, error) {
		w, err := newWorker(ctx, b, to, how{})
		if err != nil {
			return nil, err
		}
		db := handle(w.pool)
		ledger, err := postgres.NewSQL(db, w.pool, nil)
		if err != nil {
			w.close()
			return nil, errors.Join(err, db.Close())
		}
		engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true, CacheSize: -1, Observe: b.sees})
		if err != nil {
			w.close()
			return nil, errors.Join(err, db.Close())
		}
		deliver := func(ctx context.Context, operation string) (string, error) {
			return answerOf(engine.Do(ctx, operationOf("do", operation), func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
				answer, err := effect(ctx, sqlWriter{tx}, operation)
				if err != nil { // of a handle of others it is the driver's own
					err = errors.Join(errAgain, err)
				}
				return unavez.Result{Code: 201, Body: []byte(answer)}, err
			}))
		}
		return &client{deliver: deliver, close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = engine.Close(ctx) // its calls have ended
			_ = db.Close()        // its connections are the pool's
			w.close()
		}}, nil
	}
}

// joining is a client that opens its transactions itself, as docs/integrations.md
// shows: a COMMIT whose answer was lost is looked up.
func joining(ctx context.Context, b *Bed, to route) (*client, error) {
	w, err := newWorker(ctx, b, to, how{})
	return made(w, err, func(ctx context.Context, w *worker, operation string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		op := operationOf("join", operation)
		tx, err := w.pool.Begin(ctx)
		if err != nil {
			return "", errors.Join(errAgain, err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing behind a commit
		if _, err := tx.Exec(ctx, limits); err != nil {
			return "", errors.Join(errAgain, err)
		}
		out, err := w.engine.Join(ctx, tx, op, func(ctx context.Context) (unavez.Result, error) {
			answer, err := effect(ctx, pgxWriter{tx}, operation)
			if err != nil {
				err = errors.Join(errAgain, err)
			}
			return unavez.Result{Code: 201, Body: []byte(answer)}, err
		})
		if err != nil || out.Replayed {
			return answerOf(out, err)
		}
		if err := tx.Commit(ctx); err != nil {
			looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
			defer cancel()
			if out, err = w.engine.Look(looking, op); unavez.CodeOf(err) == unavez.CodeNotFound {
				return "", errors.Join(errAgain, err) // rolled back
			}
		}
		return answerOf(out, err)
	})
}

// limits of a transaction that a client opens itself.
const limits = "SELECT set_config('idle_in_transaction_session_timeout', '400ms', true), set_config('statement_timeout', '400ms', true)," +
	" set_config('lock_timeout', '400ms', true)"

// calling is a program in any language, which calls the SQL functions as
// docs/sql.md says.
func calling(ctx context.Context, b *Bed, to route) (*client, error) {
	pool, err := b.pool(ctx, to.postgres, to.most)
	if err != nil {
		return nil, err
	}
	deliver := func(ctx context.Context, operation string) (answer string, err error) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		tx, err := pool.Begin(ctx)
		if err != nil {
			return "", errors.Join(errAgain, err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing behind a commit
		if _, err := tx.Exec(ctx, limits); err != nil {
			return "", errors.Join(errAgain, err)
		}
		var word string
		var token json.RawMessage
		var body []byte
		const begin = "SELECT answer, token, (stored).body FROM unavez.begin_operation('', 'functions', ARRAY[$1], sha256(convert_to($1, 'UTF8')))"
		if err := tx.QueryRow(ctx, begin, operation).Scan(&word, &token, &body); err != nil {
			return "", errors.Join(errAgain, err)
		}
		switch word {
		case "completed":
			return string(body), nil
		case "in flight":
			return "", errAgain
		case "go on":
		default:
			return "", fmt.Errorf("begin_operation: %s", word)
		}
		if answer, err = effect(ctx, pgxWriter{tx}, operation); err == nil {
			_, err = tx.Exec(ctx, "SELECT unavez.finish_operation($1, 201, $2)", token, []byte(answer))
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil { // also at the COMMIT: begin_operation tells what became of it
			return "", errors.Join(errAgain, err)
		}
		return answer, nil
	}
	return &client{deliver: deliver, close: pool.Close}, nil
}

// bare is a client without the product: it repeats its transaction when it has
// no answer, under no key. What it does twice is what a run would find.
func bare() exchange {
	return exchange{name: "bare", rows: 1, bare: true, open: func(ctx context.Context, b *Bed, to route) (*client, error) {
		pool, err := b.pool(ctx, to.postgres, to.most)
		if err != nil {
			return nil, err
		}
		deliver := func(ctx context.Context, operation string) (answer string, err error) {
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			defer cancel()
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				answer, err = effect(ctx, pgxWriter{tx}, operation)
				return err
			})
			if err != nil {
				err = errors.Join(errAgain, err)
			}
			return answer, err
		}
		return &client{deliver: deliver, close: pool.Close}, nil
	}}
}
