package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// Kind is what River knows the event by.
func (event) Kind() string { return "order" }

// worker is River's.
type worker struct {
	riverqueue.WorkerDefaults[event]
	db     *pgxpool.Pool
	w      *watch
	within bool // completes the job in the transaction of the effect
}

func (r *worker) Work(ctx context.Context, job *riverqueue.Job[event]) error {
	if !r.within {
		if _, err := r.db.Exec(ctx, effect, job.Args.args()...); err != nil {
			return err
		}
		r.w.done(1)
		return nil
	}
	err := pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, effect, job.Args.args()...); err != nil {
			return err
		}
		_, err := riverqueue.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		r.w.done(1)
	}
	return err
}

// river has many workers and fetches as soon as it may: its defaults wait for
// 100 ms between two fetches.
func river(within bool) func(context.Context, *pgxpool.Pool, *watch) (running, error) {
	return func(ctx context.Context, db *pgxpool.Pool, w *watch) (running, error) {
		driver := riverpgxv5.New(db)
		migrator, err := rivermigrate.New(driver, nil)
		if err != nil {
			return running{}, err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return running{}, err
		}
		if _, err := db.Exec(ctx, "truncate river_job"); err != nil {
			return running{}, err
		}
		workers := riverqueue.NewWorkers()
		riverqueue.AddWorker(workers, &worker{db: db, w: w, within: within})
		client, err := riverqueue.NewClient(driver, &riverqueue.Config{
			Queues:        map[string]riverqueue.QueueConfig{riverqueue.QueueDefault: {MaxWorkers: 200}},
			FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
			Workers: workers, Logger: quiet,
		})
		if err != nil {
			return running{}, err
		}
		if err := client.Start(ctx); err != nil {
			return running{}, err
		}
		return running{
			feed: func(ctx context.Context, events []event) error {
				jobs := make([]riverqueue.InsertManyParams, len(events))
				for i, e := range events {
					jobs[i] = riverqueue.InsertManyParams{Args: e, InsertOpts: &riverqueue.InsertOpts{UniqueOpts: riverqueue.UniqueOpts{ByArgs: true}}}
				}
				_, err := client.InsertMany(ctx, jobs)
				return err
			},
			rest: func(ctx context.Context) (done bool, err error) {
				err = db.QueryRow(ctx, `select not exists (select from river_job where finalized_at is null)`).Scan(&done)
				return done, err
			},
			stop: func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_ = client.StopAndCancel(ctx)
			},
		}, nil
	}
}

// watermill deletes what is acknowledged and deduplicates in memory.
func watermill(ctx context.Context, db *pgxpool.Pool, w *watch) (running, error) {
	if _, err := db.Exec(ctx, "drop table if exists watermill_orders"); err != nil {
		return running{}, err
	}
	schema := wsql.PostgreSQLQueueSchema{}
	from := wsql.BeginnerFromPgx(db)
	publisher, err := wsql.NewPublisher(from, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	if err != nil {
		return running{}, err
	}
	seen, err := middleware.NewMapExpiringKeyRepository(10 * time.Minute)
	if err != nil {
		return running{}, err
	}
	known := middleware.Deduplicator{KeyFactory: middleware.NewMessageHasherFromMetadataField("id"), Timeout: 10 * time.Minute, Repository: seen}
	ctx, cancel := context.WithCancel(ctx)
	var handlers sync.WaitGroup
	for range 8 {
		subscriber, err := wsql.NewSubscriber(from, wsql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
			PollInterval: 20 * time.Millisecond, InitializeSchema: true,
		}, nil)
		if err != nil {
			cancel()
			return running{}, err
		}
		messages, err := subscriber.Subscribe(ctx, "orders")
		if err != nil {
			cancel()
			return running{}, err
		}
		handlers.Go(func() {
			defer func() { _ = subscriber.Close() }()
			for m := range messages {
				if again, _ := known.IsDuplicate(m); again {
					m.Ack()
					continue
				}
				var e event
				err := json.Unmarshal(m.Payload, &e)
				if err == nil {
					_, err = db.Exec(ctx, effect, e.args()...)
				}
				if err != nil {
					m.Nack()
					continue
				}
				w.done(1)
				m.Ack()
			}
		})
	}
	return running{
		feed: func(_ context.Context, events []event) error {
			messages := make([]*message.Message, len(events))
			for i, e := range events {
				payload, err := json.Marshal(e)
				if err != nil {
					return err
				}
				messages[i] = message.NewMessage(e.ID, payload)
				messages[i].Metadata.Set("id", e.ID)
			}
			return publisher.Publish("orders", messages...)
		},
		rest: func(ctx context.Context) (done bool, err error) {
			err = db.QueryRow(ctx, `select not exists (select from watermill_orders where not acked)`).Scan(&done)
			return done, err
		},
		stop: func() { cancel(); handlers.Wait() },
	}, nil
}

// dbosWorkflow runs a workflow per event, whose id deduplicates, from 64 callers.
func dbosWorkflow(ctx context.Context, db *pgxpool.Pool, w *watch) (running, error) {
	root, err := dbos.NewContext(context.WithoutCancel(ctx), dbos.Config{DatabaseURL: db.Config().ConnString(), SystemDBPool: db, AppName: "peers", Logger: quiet})
	if err != nil {
		return running{}, err
	}
	source, err := dbos.NewDataSource(root, db, dbos.WithDataSourceName("app"), dbos.WithDataSourceSchema("dbosapp"))
	if err != nil {
		return running{}, err
	}
	workflow := func(c dbos.Context, e event) (string, error) {
		return dbos.RunAsTransaction(c, source, func(ctx context.Context, tx dbos.Tx) (string, error) {
			_, err := tx.Exec(ctx, effect, e.args()...)
			return e.ID, err
		})
	}
	dbos.RegisterWorkflow(root, workflow, dbos.WithWorkflowName("order"))
	if err := dbos.Launch(root); err != nil {
		return running{}, err
	}
	slots := make(chan struct{}, 64)
	var seen sync.Map
	return running{
		feed: func(_ context.Context, events []event) error {
			var all sync.WaitGroup
			failed := make(chan error, len(events))
			for _, e := range events {
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					handle, err := dbos.RunWorkflow(root, workflow, e, dbos.WithWorkflowID(e.ID))
					if err == nil {
						_, err = handle.GetResult()
					}
					if err != nil {
						failed <- err
						return
					}
					if _, again := seen.LoadOrStore(e.ID, true); !again {
						w.done(1)
					}
				})
			}
			all.Wait()
			select {
			case err := <-failed:
				return err
			default:
				return nil
			}
		},
		rest: func(context.Context) (bool, error) { return true, nil },
		stop: func() { dbos.Shutdown(root, 5*time.Second) },
	}, nil
}
