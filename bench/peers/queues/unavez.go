package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	inboxes "github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// way is how the inbox runs the effect.
type way int

const (
	wholeBatch way = iota // one call for all events of a batch
	oneByOne              // a call each, a transaction for all
	single                // a transaction each
)

func read(e *inboxes.Event) (v event, err error) { return v, json.Unmarshal(e.Data, &v) }

// handle is the effect of one event.
func handle(ctx context.Context, tx pgx.Tx, e *inboxes.Event) error {
	v, err := read(e)
	if err != nil {
		return inboxes.Permanent(err)
	}
	_, err = tx.Exec(ctx, effect, v.args()...)
	return err
}

// handleAll is that of several, in one statement.
func handleAll(ctx context.Context, tx pgx.Tx, all []*inboxes.Event) error {
	var columns [3][]string
	for _, e := range all {
		v, err := read(e)
		if err != nil {
			return inboxes.Permanent(err)
		}
		columns[0], columns[1], columns[2] = append(columns[0], v.ID), append(columns[1], v.Aggregate), append(columns[2], v.Note)
	}
	_, err := tx.Exec(ctx, `insert into orders (event, aggregate, note) select * from unnest($1::text[], $2::text[], $3::text[])`, columns[0], columns[1], columns[2])
	return err
}

const effectName = "order.place.v1"

// entry is the event as the receiver appends it: ordered by its aggregate.
func entry(e event) (store.Entry, error) {
	payload, err := json.Marshal(e)
	if err != nil {
		return store.Entry{}, err
	}
	identity := store.Identity{Effect: effectName, Parts: []string{"shop", e.ID}}
	note := store.Note{
		Event: identity, Identity: identity, Ordering: []string{e.Aggregate},
		Source: "shop", Type: "order/placed", ID: []string{e.ID}, ContentType: "application/json",
	}
	key, sum := identity.Key(), sha256.Sum256(payload)
	return store.Entry{Key: key, Operation: key, Order: note.Order(), Fingerprint: store.Fingerprint{Sum: sum[:]}, Note: note, Payload: payload}, nil
}

// inbox is the product itself, with everything as it comes.
func inbox(w way) func(context.Context, *pgxpool.Pool, *watch) (running, error) {
	return func(ctx context.Context, db *pgxpool.Pool, seen *watch) (running, error) {
		if _, err := db.Exec(ctx, "drop schema if exists unavez cascade"); err != nil {
			return running{}, err
		}
		db.Reset() // statements that were prepared for the schema before
		if err := postgres.Migrate(ctx, db, nil); err != nil {
			return running{}, err
		}
		ledger, err := postgres.New(db, nil)
		if err != nil {
			return running{}, err
		}
		engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true})
		if err != nil {
			return running{}, err
		}
		e := inboxes.Effect[pgx.Tx]{Name: effectName, OrderBy: func(e *inboxes.Event) ([]string, error) {
			v, err := read(e)
			return []string{v.Aggregate}, err
		}}
		switch w {
		case wholeBatch:
			e.HandleBatch = handleAll
		case oneByOne:
			e.Handle, e.Batch = handle, true
		case single:
			e.Handle = handle
		}
		sender := inboxes.Source{Name: "shop", Contract: source.StandardWebhooks("webhook"), Config: source.Config{Secrets: []source.Secret{source.NewSecret("current", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")}}, Types: []string{"*"}}
		in, err := inboxes.New(engine, ledger, []inboxes.Source{sender}, []inboxes.Effect[pgx.Tx]{e}, &inboxes.Options{
			Observe: func(s inboxes.Sight) {
				if s.What == "completed" {
					seen.done(max(s.Count, 1))
				}
			},
		})
		if err != nil {
			return running{}, err
		}
		if err := in.Start(ctx); err != nil {
			return running{}, err
		}
		return running{
			feed: func(ctx context.Context, events []event) error {
				entries := make([]store.Entry, len(events))
				for i, e := range events {
					var err error
					if entries[i], err = entry(e); err != nil {
						return err
					}
				}
				_, err := ledger.Append(ctx, store.Arrival{Entries: entries})
				in.Wake()
				return err
			},
			rest: func(context.Context) (bool, error) { return true, nil }, // effect and outcome are one commit
			stop: func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_ = in.Stop(ctx)
				_ = engine.Close(ctx)
			},
		}, nil
	}
}
