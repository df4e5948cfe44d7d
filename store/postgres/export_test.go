package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
)

// SetSmall says from how many bytes a slot of outcomes, and one of tombstones,
// is purged as a whole.
func SetSmall(s *Store, outcome, tombstone int64) {
	s.small = map[string]int64{ringOutcome: outcome, ringTombstone: tombstone}
}

// SetHearing says how often a listener asks itself whether it hears, and how long
// it waits for that.
func SetHearing(s *Store, every, limit time.Duration) { s.hearing = hearing{every, limit} }

// Classify is what the package does with an error.
func Classify(err error) error { return classify(err) }

// FoundColumns are the destinations of a row of unavez.found, and what reads
// them as a verdict.
func FoundColumns(key store.Key) ([]any, func() (store.Verdict, error)) {
	f := &found{}
	return f.columns(), func() (store.Verdict, error) { return f.verdict(key) }
}

// Catalog lists what the schema of a database is made of, as audits compare it.
func Catalog(ctx context.Context, pool *pgxpool.Pool) (all []string, err error) {
	err = (&auditor{pool: pool, o: store.AuditOptions{Limit: time.Minute}}).snapshot(ctx, func(ctx context.Context, tx pgx.Tx, _ *layoutFound) error {
		all, err = lines(ctx, tx)
		return err
	})
	return all, err
}
