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
	ring            int64 // the longest retention that goes into a slot, in microseconds
}

// The bits of live beside those of the slots.
const (
	liveTable   = 1 << 4 // outcome_table has been written to
	liveAttempt = 1 << 5 // so has attempt
)

// covers reports whether a read of this layout has read everything that counts in another.
func (l layout) covers(other layout) bool {
	return other.live&^l.live == 0 && other.tombstone&^l.tombstone == 0
}

// texts are the statements for a layout.
type texts struct {
	layout            layout
	read              string
	probe, ride       *statement // ride is a probe that raises
	probeAll          *statement // a probe of several operations
	insert            *statement
	begin, commit     *statement
	enter, enterRide  *statement
	enter17, ride17   *statement
	unbound, finished *statement
}

// statements gives the statements for a layout, those of the last one without work.
func (s *Store) statements(l layout) *texts {
	t := s.seen.Load()
	if t != nil && t.layout == l {
		return t
	}
	t = &texts{
		layout: l, read: readText(l),
		probe: newStatement(probeText(l, false), true), ride: newStatement(probeText(l, true), true),
		probeAll: newStatement(probeAllText(l), true),
		begin:    newStatement("BEGIN ISOLATION LEVEL "+string(s.opts.Isolation)+" READ WRITE", false), commit: newStatement("COMMIT", false),
		enter: newStatement(enterText(false, false), true), enterRide: newStatement(enterText(true, false), true),
		enter17: newStatement(enterText(false, true), true), ride17: newStatement(enterText(true, true), true),
		unbound: newStatement("SELECT pg_catalog.set_config('statement_timeout', '0', true) IS NULL", true), finished: newStatement(finishText, true),
	}
	if l.slot >= 0 {
		t.insert = newStatement(insertText(l.slot), true)
	}
	s.seen.Store(t)
	return t
}

// entering is the statement that a session enters a transaction with.
func (t *texts) entering(rides, transacts bool) *statement {
	switch {
	case rides && transacts:
		return t.ride17
	case rides:
		return t.enterRide
	case transacts:
		return t.enter17
	}
	return t.enter
}

// enterText sets a transaction's limits and tries the operation's lock. It is a
// statement of its own: what reads must come after it. Where it rides ahead of a
// handler's statement it raises unless the lock is granted.
func enterText(rides, transacts bool) string {
	lock := "pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8)"
	if rides {
		lock = "CASE WHEN " + lock + " THEN true ELSE unavez.refuse('" + stateInFlight + "', 'operation runs elsewhere') END"
	}
	return "SELECT " + lock + ", " + limitsText(transacts)
}

// enterAllText is enterText for several operations: it gives the numbers, from 1,
// of those whose locks were granted.
func enterAllText(transacts bool) string {
	return "SELECT ARRAY(SELECT k.n FROM pg_catalog.unnest($1::pg_catalog.int8[]) WITH ORDINALITY AS k(lock, n) WHERE pg_catalog.pg_try_advisory_xact_lock(k.lock)), " +
		limitsText(transacts)
}

// limitsText sets the limits of a transaction, and gives what it is known by.
func limitsText(transacts bool) string {
	limits := []string{"idle_in_transaction_session_timeout", "statement_timeout", "tcp_user_timeout"}
	if transacts {
		limits = append(limits, "transaction_timeout")
	}
	for i, name := range limits {
		limits[i] = "pg_catalog.set_config('" + name + "', $2::pg_catalog.text, true)"
	}
	return "pg_catalog.transaction_timestamp(), pg_catalog.current_setting('synchronous_commit')," +
		" pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) '', pg_catalog.num_nulls(" + strings.Join(limits, ", ") + ")"
}

// incarnationText compares the history that the ledger knows with the server's:
// the number of the incarnation, or -1.
const incarnationText = "CASE WHEN pg_catalog.starts_with(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), l.timeline)" +
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
	b.WriteString("SELECT l.slot, l.live, l.tombstone_live, l.ring, pg_catalog.clock_timestamp()," +
		" " + incarnationText + ", pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text, x.*" +
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

// written are the tables that have been written to.
func (l layout) written() (tables []string) {
	for n := range outcomeSlots {
		if l.live&(1<<n) != 0 {
			tables = append(tables, fmt.Sprintf("outcome_%d", n))
		}
	}
	if l.live&liveTable != 0 {
		tables = append(tables, "outcome_table")
	}
	if l.live&liveAttempt != 0 {
		tables = append(tables, "attempt")
	}
	for n := range tombstoneSlots {
		if l.tombstone&(1<<n) != 0 {
			tables = append(tables, fmt.Sprintf("tombstone_%d", n))
		}
	}
	return tables
}

// probeAllText is probeText for several operations: it gives the numbers, from 1,
// of those of which something is stored. Each is looked for by index.
func probeAllText(l layout) string {
	known := "false"
	for _, table := range l.written() {
		known += " OR (SELECT true FROM unavez." + table + " x WHERE x.key OPERATOR(pg_catalog.=) k.key)"
	}
	return "SELECT l.slot, l.live, l.tombstone_live, l.ring, " + incarnationText + ", pg_catalog.pg_current_wal_insert_lsn()," +
		" ARRAY(SELECT k.n FROM pg_catalog.unnest($1::pg_catalog.uuid[]) WITH ORDINALITY AS k(key, n) WHERE " + known + ") FROM unavez.ledger l"
}

// probeText tells only whether anything is stored of an operation, which costs
// half of a read. Most operations are new. It looks only into what has been
// written to; whether that is still all, its own snapshot tells. Where it rides
// ahead of a handler's statement it raises unless nothing is stored.
func probeText(l layout, rides bool) string {
	tables := l.written()
	known := "$1::pg_catalog.uuid IS NULL"
	for i, table := range tables {
		tables[i] = "EXISTS (SELECT FROM unavez." + table + " x WHERE x.key OPERATOR(pg_catalog.=) $1::pg_catalog.uuid)"
	}
	if len(tables) > 0 {
		known = strings.Join(tables, " OR ")
	}
	if rides {
		known = fmt.Sprintf("CASE WHEN l.live OPERATOR(pg_catalog.|) %d OPERATOR(pg_catalog.<>) %[1]d OR l.tombstone_live OPERATOR(pg_catalog.|) %d OPERATOR(pg_catalog.<>) %[2]d"+
			" THEN unavez.refuse('%s', 'the slots have changed') WHEN %s THEN unavez.refuse('%s', 'operation is known') ELSE false END",
			l.live, l.tombstone, stateSlots, known, stateKnown)
	}
	return "SELECT l.slot, l.live, l.tombstone_live, l.ring, " + incarnationText + ", pg_catalog.pg_current_wal_insert_lsn(), " + known + " FROM unavez.ledger l"
}

// piece is one row of a read.
type piece struct {
	layout
	at                              time.Time
	incarnation                     int64
	position                        string
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
		if err := rows.Scan(&p.slot, &p.live, &p.tombstone, &p.ring, &p.at, &p.incarnation, &p.position, &p.kind, &p.state, &p.number, &p.version, &p.operation, &p.fingerprint,
			&p.expires, &p.second, &p.first, &p.changed, &p.code, &p.unreplayable, &p.checksum, &p.header, &p.body,
			&p.derived, &p.origin, &p.because); err != nil {
			return nil, l, err
		}
		l, f.at, f.incarnation, f.position = p.layout, &p.at, &p.incarnation, &p.position
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
	}
}

// reasonExpired is what a lease that ran out is called.
const reasonExpired = "lease expired"
