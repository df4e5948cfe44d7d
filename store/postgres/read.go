package postgres

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// layout is what the ledger's row says of the slots: which are read, and which
// is written to, -1 for none. A store remembers the last one it saw only to
// choose its statements; each of them compares.
type layout struct {
	slot            int32
	live, tombstone int32
}

// covers reports whether a read of this layout has read everything that counts in another.
func (l layout) covers(other layout) bool {
	return other.live&^l.live == 0 && other.tombstone&^l.tombstone == 0
}

// texts are the statements for a layout.
type texts struct {
	layout              layout
	probe, read, insert string
}

// statements gives the statements for a layout, those of the last one without work.
func (s *Store) statements(l layout) *texts {
	t := s.seen.Load()
	if t != nil && t.layout == l {
		return t
	}
	t = &texts{layout: l, probe: probeText(l), read: readText(l)}
	if l.slot >= 0 {
		t.insert = insertText(l.slot)
	}
	s.seen.Store(t)
	return t
}

// enterText sets a transaction's limits and marker and tries the operation's
// lock. It is a statement of its own: what reads must come after it.
const enterText = "SELECT pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8), pg_catalog.current_setting('synchronous_commit')," +
	" pg_catalog.set_config('idle_in_transaction_session_timeout', $2::pg_catalog.text, true)," +
	" pg_catalog.set_config('statement_timeout', $2::pg_catalog.text, true)," +
	" pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true)," +
	" pg_catalog.set_config('tcp_user_timeout', $2::pg_catalog.text, true)," +
	" pg_catalog.set_config('unavez.tx', $3::pg_catalog.text, true)"

// incarnationText compares the history that the ledger knows with the server's:
// the number of the incarnation, or -1.
const incarnationText = "CASE WHEN l.timeline OPERATOR(pg_catalog.=) pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8)" +
	" THEN l.incarnation ELSE -1 END"

// The kinds of rows that a read finds.
const (
	kindOutcome   = 1
	kindTombstone = 2
	kindAttempt   = 3
)

// readText reads everything that is stored of an operation in one statement, at
// one instant: one row for each of outcome, tombstone and attempt, or one row
// with none. A retired slot is not named, so that it can be emptied.
func readText(l layout) string {
	var b strings.Builder
	b.WriteString("SELECT l.slot, l.live, l.tombstone_live, pg_catalog.clock_timestamp()," +
		" " + incarnationText + ", x.*" +
		" FROM unavez.ledger l LEFT JOIN (SELECT 3 AS kind, a.state, a.fence AS number, a.version, a.operation, a.fingerprint, a.expires, a.due AS second, a.created AS first, a.changed," +
		" NULL::pg_catalog.int8 AS code, NULL::pg_catalog.bool AS unreplayable, NULL::pg_catalog.bytea AS checksum, NULL::pg_catalog.bytea AS header, NULL::pg_catalog.bytea AS body," +
		" a.derived, a.origin, a.reason FROM unavez.attempt a WHERE a.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid")
	outcome := func(table string) {
		b.WriteString(" UNION ALL SELECT 1, o.state, o.attempt, o.version, o.operation, o.fingerprint, o.expires, o.forgets, o.ended, NULL," +
			" o.code, o.unreplayable, o.checksum, o.header, o.body, NULL, NULL, NULL FROM unavez." + table + " o WHERE o.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid")
	}
	for n := range outcomeSlots {
		if l.live&(1<<n) != 0 {
			outcome(fmt.Sprintf("outcome_%d", n))
		}
	}
	outcome("outcome_table")
	for n := range tombstoneSlots {
		if l.tombstone&(1<<n) != 0 {
			fmt.Fprintf(&b, " UNION ALL SELECT 2, NULL, NULL, NULL, NULL, t.short, NULL, t.forgets, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"+
				" FROM unavez.tombstone_%d t WHERE t.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid", n)
		}
	}
	b.WriteString(") x ON true")
	return b.String()
}

// probeText tells only whether anything is stored of an operation, which costs
// half of a read. Most operations are new.
func probeText(l layout) string {
	var b strings.Builder
	b.WriteString("SELECT l.slot, l.live, l.tombstone_live," +
		" " + incarnationText + "," +
		" EXISTS (SELECT FROM unavez.attempt a WHERE a.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid) OR EXISTS (SELECT FROM unavez.outcome_table o WHERE o.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid)")
	for n := range outcomeSlots {
		if l.live&(1<<n) != 0 {
			fmt.Fprintf(&b, " OR EXISTS (SELECT FROM unavez.outcome_%d o WHERE o.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid)", n)
		}
	}
	for n := range tombstoneSlots {
		if l.tombstone&(1<<n) != 0 {
			fmt.Fprintf(&b, " OR EXISTS (SELECT FROM unavez.tombstone_%d t WHERE t.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid)", n)
		}
	}
	b.WriteString(" FROM unavez.ledger l")
	return b.String()
}

// piece is one row of a read.
type piece struct {
	layout
	at                              time.Time
	incarnation                     int64
	kind                            *int32
	state                           *int16
	number                          *int64
	version                         *int32
	operation                       *string
	fingerprint                     []byte
	expires, second, first, changed *time.Time
	code                            *int64
	unreplayable                    *bool
	checksum, header, body          []byte
	derived, origin, because        *string
}

// gather reads the rows of a read into what was found. It follows the same
// rules as unavez.gate.
func gather(rows pgx.Rows) (*found, layout, error) {
	var l layout
	f := &found{}
	var attempt *piece
	ended := false
	for rows.Next() {
		p := &piece{}
		if err := rows.Scan(&p.slot, &p.live, &p.tombstone, &p.at, &p.incarnation, &p.kind, &p.state, &p.number, &p.version, &p.operation, &p.fingerprint,
			&p.expires, &p.second, &p.first, &p.changed, &p.code, &p.unreplayable, &p.checksum, &p.header, &p.body,
			&p.derived, &p.origin, &p.because); err != nil {
			return nil, l, err
		}
		l, f.at, f.incarnation = p.layout, &p.at, &p.incarnation
		switch kind := value(p.kind); {
		case kind == kindAttempt:
			attempt, f.attempt = p, p.number
		case kind == 0 || ended:
		case !p.second.After(p.at):
			f.stale = true
		default:
			ended = true
			f.take(p)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, l, err
	}
	if f.at == nil {
		return nil, l, &fault{nil, "ledger has no row: run unavez migrate", nil}
	}
	if attempt != nil && !ended {
		f.resume(attempt)
	}
	return f, l, nil
}

// take is an outcome or a tombstone that counts.
func (f *found) take(p *piece) {
	if value(p.kind) == kindTombstone || !p.expires.After(p.at) {
		f.state = int16(store.Expired)
		f.fingerprint = store.Fingerprint{Sum: p.fingerprint}.Short()
		return
	}
	f.state, f.number, f.version, f.operation, f.fingerprint = value(p.state), p.number, p.version, p.operation, p.fingerprint
	f.expires, f.ended, f.code, f.unreplayable = p.expires, p.first, p.code, p.unreplayable
	f.checksum, f.header, f.body = p.checksum, p.header, p.body
}

// resume is an attempt that counts.
func (f *found) resume(p *piece) {
	f.state, f.number, f.version, f.operation, f.fingerprint = value(p.state), p.number, p.version, p.operation, p.fingerprint
	f.expires, f.due, f.created, f.changed = p.expires, p.second, p.first, p.changed
	f.derived, f.origin, f.because = p.derived, p.origin, p.because
	if store.State(f.state) == store.Processing && !p.expires.After(p.at) {
		reason := reasonExpired
		f.state, f.because, f.lapsed = int16(store.Unknown), &reason, true
		f.changed = p.expires // until then it may have worked
		f.changed = p.expires // until then it may have worked
	}
}

// reasonExpired is what a lease that ran out is called.
const reasonExpired = "lease expired"
