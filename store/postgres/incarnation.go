package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// history is what a store knows of its database's history.
type history struct {
	writing sync.Mutex    // held while a change is written down
	number  atomic.Int64  // the incarnation seen last
	highest atomic.Uint64 // the highest position of the server's log seen in it
	mu      sync.Mutex
	tell    []func()
}

// OnIncarnation implements store.Incarnated. A change is noticed by the next
// gate, claim or read: each compares the timeline of the server's log with the
// one that the ledger knows, and the position of that log with the highest that
// this worker has seen, which a restored copy of the volume has not reached yet.
// A new connection compares the cluster's identifier too.
func (s *Store) OnIncarnation(changed func()) {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	s.tell = append(s.tell, changed)
}

// NewIncarnation implements store.Incarnations.
func (s *Store) NewIncarnation(ctx context.Context) (store.Incarnation, error) {
	var number int64
	if err := s.row(ctx, "SELECT unavez.new_incarnation(true)", nil, &number); err != nil {
		return store.Incarnation{}, err
	}
	s.changed(number, 0)
	return s.Incarnation(ctx)
}

// Incarnation implements store.Incarnations. The time of doubt is Settings.Doubt.
func (s *Store) Incarnation(ctx context.Context) (store.Incarnation, error) {
	now := store.Incarnation{}
	var doubt int64
	const text = "SELECT incarnation, greatest((extract(epoch FROM CASE WHEN doubted = '-infinity' THEN 'epoch' ELSE doubted END - pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8, 0) FROM unavez.ledger"
	err := s.row(ctx, text, nil, &now.Number, &doubt)
	now.DoubtLeft = time.Duration(doubt) * time.Microsecond
	return now, err
}

// sight is what a statement saw of the history, and what was known of it when the
// statement was sent.
type sight struct {
	number   int64  // -1: nobody has written the change down yet
	position uint64 // of the server's log
	known    int64
	highest  uint64
}

// look is called before a statement is sent whose sight is compared.
func (h *history) look() sight {
	known := h.number.Load() // first, see changed
	return sight{known: known, highest: h.highest.Load()}
}

// witness compares what a statement saw. Who calls it may hold a connection, all
// of which may be held by others who are here: one of them writes a change down,
// and not for long.
func (s *Store) witness(ctx context.Context, saw sight) {
	back := saw.number == saw.known && saw.position < saw.highest
	switch {
	case saw.number >= 0 && !back && saw.number == s.number.Load():
		s.reached(saw.position)
		return
	case saw.number >= 0 && !back:
		s.changed(saw.number, saw.position)
		return
	case !s.writing.TryLock():
		return // whoever has it tells
	}
	defer s.writing.Unlock()
	s.say()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	number := saw.number
	const text = "SELECT unavez.new_incarnation($1::pg_catalog.bool, $2::pg_catalog.int8)"
	if err := s.row(ctx, text, []any{back, saw.number}, &number); err == nil { // else the next statement finds it again
		s.highest.Store(saw.position)
		s.number.Store(number)
	}
}

// writeLimit bounds the wait for a connection to write a change down.
const writeLimit = time.Second

// reached remembers how far the server's log has come.
func (h *history) reached(position uint64) {
	for highest := h.highest.Load(); position > highest; highest = h.highest.Load() {
		if h.highest.CompareAndSwap(highest, position) {
			return
		}
	}
}

// changed takes up a new incarnation. Who reads the new number finds the new
// position.
func (h *history) changed(number int64, position uint64) {
	if number == h.number.Load() {
		return
	}
	h.highest.Store(position)
	h.number.Store(number)
	h.say()
}

// say tells that the history is another one.
func (h *history) say() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, changed := range h.tell {
		changed()
	}
}

// greet compares the history on a connection that is new, and has the server ask
// whether this host is still there when nothing comes. Between the messages of
// one trip no time limit of the server's runs before version 17, so that a host
// that is gone there would keep its locks for as long as TCP believes in it,
// which is hours by default.
func (s *Store) greet(ctx context.Context, conn *pgx.Conn) error {
	session := sessionOf(conn)
	if session.greeted {
		return nil
	}
	saw := s.look()
	var position string
	const text = "SELECT unavez.new_incarnation(false), pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text, pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''," +
		" (SELECT pg_catalog.count(pg_catalog.set_config(name, least(pg_catalog.current_setting(name)::pg_catalog.int4, most)::pg_catalog.text, false))" +
		" FROM (VALUES ('tcp_keepalives_idle', 10), ('tcp_keepalives_interval', 2), ('tcp_keepalives_count', 5)) AS keepalive(name, most))"
	var asked int
	if err := conn.QueryRow(ctx, text).Scan(&saw.number, &position, &session.replicated, &asked); err != nil {
		return err
	}
	saw.position = place(position)
	session.greeted = true
	s.witness(ctx, saw)
	return nil
}

// place is a position of the server's log from its text, 0 for none.
func place(text string) uint64 {
	var high, low uint32
	if _, err := fmt.Sscanf(text, "%X/%X", &high, &low); err != nil {
		return 0
	}
	return uint64(high)<<32 | uint64(low)
}
