package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
)

// Audit proves the invariants of [store.Invariants] over live data, beside
// running workers. It only reads: in short READ ONLY transactions, each on one
// state of the database and each statement within AuditOptions.Limit; a purge
// that meets one leaves the slot to the next purge. It needs the rights of
// unavez_app. nil options mean the defaults. An error says that the audit could
// not be carried out; what was found stands in the proofs.
func Audit(ctx context.Context, pool *pgxpool.Pool, opts *store.AuditOptions) ([]store.Proof, error) {
	o, err := opts.Complete()
	if err != nil {
		return nil, fmt.Errorf("postgres store: %w", err)
	}
	all, err := steps()
	if err != nil {
		return nil, err
	}
	var codes []string
	for _, i := range store.Invariants() {
		codes = append(codes, i.Code)
	}
	a := &auditor{pool: pool, o: o, Proofs: store.NewProofs(o.Offenders, codes...)}
	for _, part := range []func(context.Context) error{
		func(ctx context.Context) error { return a.schema(ctx, all) }, a.rings, a.keys, a.places, a.queue,
	} {
		if err := part(ctx); err != nil {
			return nil, fmt.Errorf("postgres store: audit: %w", classify(err))
		}
	}
	return a.All(), nil
}

// auditor is one audit.
type auditor struct {
	*store.Proofs
	pool           *pgxpool.Pool
	o              store.AuditOptions
	rowsSeen, read int64 // outcomes that were looked at by SQL, and read whole
}

// The tables of outcomes and tombstones, by the names that findings carry.
func outcomePlaces() (all []string) {
	for n := range outcomeSlots {
		all = append(all, ringOutcome+"_"+strconv.Itoa(n))
	}
	return append(all, ringOutcome+"_table")
}

func tombstonePlaces() (all []string) {
	for n := range tombstoneSlots {
		all = append(all, ringTombstone+"_"+strconv.Itoa(n))
	}
	return all
}

// layoutFound is the ledger's row beside the life of the slots.
type layoutFound struct {
	slot, live, tombstoneSlot, tombstoneLive int
	ring                                     int64 // microseconds
	states                                   map[string]string
	measured                                 map[string]bool
}

// reads tells whether gates read a place.
func (l *layoutFound) reads(place string) bool {
	for n := range outcomeSlots {
		if place == ringOutcome+"_"+strconv.Itoa(n) {
			return l.live&(1<<n) != 0
		}
		if place == ringTombstone+"_"+strconv.Itoa(n) {
			return l.tombstoneLive&(1<<n) != 0
		}
	}
	return true // the one table
}

// read leaves only the places that gates read.
func (l *layoutFound) read(places []string) (all []string) {
	for _, p := range places {
		if l.reads(p) {
			all = append(all, p)
		}
	}
	return all
}

// snapshot runs fn on one state of the database. The locks come before the
// state is taken: a slot that is emptied later would look empty in it, while
// what was deleted with its rows would still be there.
func (a *auditor) snapshot(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx, l *layoutFound) error) error {
	ms := strconv.FormatInt(a.o.Limit.Milliseconds(), 10)
	tables := append(append(outcomePlaces(), tombstonePlaces()...), "attempt", "step", "transition", "ledger", "slot", "setting", "queue_0", "queue_1", "queue_2", "queue_3", "lane", "blocked")
	begin := "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL statement_timeout = " + ms + "; SET LOCAL lock_timeout = " + ms +
		"; SET LOCAL idle_in_transaction_session_timeout = 60000; LOCK TABLE unavez." + strings.Join(tables, ", unavez.") + " IN ACCESS SHARE MODE"
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, begin); err != nil {
			return err
		}
		l, err := readLayout(ctx, tx)
		if err != nil {
			return err
		}
		return fn(ctx, tx, l)
	})
}

func readLayout(ctx context.Context, tx pgx.Tx) (*layoutFound, error) {
	l := &layoutFound{states: map[string]string{}, measured: map[string]bool{}}
	const text = "SELECT slot, live, ring, tombstone_slot, tombstone_live FROM unavez.ledger LIMIT 1"
	err := tx.QueryRow(ctx, text).Scan(&l.slot, &l.live, &l.ring, &l.tombstoneSlot, &l.tombstoneLive)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) { // that one shows as Agreed
		return nil, err
	}
	_, err = collect(ctx, tx, "SELECT ring || '_' || number, state, until IS NOT NULL FROM unavez.slot", nil, func(row pgx.CollectableRow) (struct{}, error) {
		var place, state string
		var measured bool
		err := row.Scan(&place, &state, &measured)
		l.states[place], l.measured[place] = state, measured
		return struct{}{}, err
	})
	return l, err
}

// page is what one page of an audit found; it counts only when the page was
// looked at to its end.
type page struct{ notes []func(*store.Proofs) }

func (p *page) look(n int64, codes ...string) {
	p.notes = append(p.notes, func(all *store.Proofs) { all.Look(n, codes...) })
}

func (p *page) broken(code string, n int64, names ...string) {
	if n > 0 {
		p.notes = append(p.notes, func(all *store.Proofs) { all.Break(code, n, names...) })
	}
}

// pages runs do for one part after the other of what goes from 0 to end. A part
// that takes longer than a statement may is tried again in halves; after that
// parts grow again.
func (a *auditor) pages(ctx context.Context, end, most int64, do func(ctx context.Context, tx pgx.Tx, l *layoutFound, p *page, from, to int64) error) error {
	step := most
	for from := int64(0); from < end; {
		to := min(from+step, end)
		p := &page{}
		err := a.snapshot(ctx, func(ctx context.Context, tx pgx.Tx, l *layoutFound) error { return do(ctx, tx, l, p, from, to) })
		var server *pgconn.PgError
		switch {
		case errors.As(err, &server) && server.Code == stateCanceled && ctx.Err() == nil && to-from > 1:
			step = (to - from) / 2
			continue
		case err != nil:
			return err
		}
		for _, note := range p.notes {
			note(a.Proofs)
		}
		from, step = to, min(2*step, most)
	}
	return nil
}

// stateCanceled is the SQLSTATE of a statement that was over its limit.
const stateCanceled = "57014"

// proves runs a statement that gives how many rows it looked at, how many of
// them violate an invariant, and the names of some.
func (a *auditor) proves(ctx context.Context, tx pgx.Tx, p *page, code, text string, args ...any) error {
	var looked, broken int64
	var names []string
	if err := tx.QueryRow(ctx, text, args...).Scan(&looked, &broken, &names); err != nil {
		return fmt.Errorf("%s: %w", code, err)
	}
	p.look(looked, code)
	p.broken(code, broken, names...)
	return nil
}

// verdict is the end of such a statement over rows with a name and a mark.
func (a *auditor) verdict(mark string) string {
	return fmt.Sprintf("count(*) FILTER (WHERE %s), coalesce((array_agg(%s ORDER BY key) FILTER (WHERE %s))[1:%d], '{}')", mark, hexKey("key"), mark, a.o.Offenders)
}

// hexKey is a key as people and commands write it.
func hexKey(column string) string { return "replace(" + column + "::text, '-', '')" }

// union is one query over several tables. None gives no row.
func union(columns, condition string, places []string) string {
	var parts []string
	for _, p := range places {
		parts = append(parts, "SELECT "+columns+" FROM unavez."+p+" WHERE "+condition)
	}
	if parts == nil {
		return "SELECT " + columns + " FROM unavez.outcome_table WHERE false"
	}
	return strings.Join(parts, " UNION ALL ")
}
