package postgres

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// history is what a store knows of its database's history.
type history struct {
	number  atomic.Int64 // the incarnation seen last
	writing sync.Mutex   // held while a change is written down
	mu      sync.Mutex
	tell    []func()
}

// OnIncarnation implements store.Incarnated. A change is noticed by the next
// gate, claim or read, each of which compares the timeline of the server's log
// with the one that the ledger knows, and by each new connection, which compares
// the cluster's identifier too.
func (s *Store) OnIncarnation(changed func()) {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	s.tell = append(s.tell, changed)
}

// NewIncarnation says that the database's history is another one although
// nothing in it shows that, as after restoring a volume.
func (s *Store) NewIncarnation(ctx context.Context) error {
	var number int64
	if err := s.row(ctx, "SELECT unavez.new_incarnation(true)", nil, &number); err != nil {
		return err
	}
	s.witness(ctx, number)
	return nil
}

// witness compares the incarnation that a statement found; -1 says that nobody
// has written the change down yet. Who calls it may hold a connection, all of
// which may be held by others who are here: one of them writes, and not for long.
func (s *Store) witness(ctx context.Context, number int64) {
	if number == s.number.Load() {
		return
	}
	if number >= 0 {
		s.number.Store(number)
		s.changed()
		return
	}
	if !s.writing.TryLock() {
		return // whoever has it tells
	}
	defer s.writing.Unlock()
	s.changed()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	if err := s.row(ctx, "SELECT unavez.new_incarnation(false)", nil, &number); err == nil {
		s.number.Store(number) // else the next statement finds it again
	}
}

// writeLimit bounds the wait for a connection to write a change down.
const writeLimit = time.Second

// changed tells that the history is another one.
func (s *Store) changed() {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	for _, changed := range s.tell {
		changed()
	}
}

// greeted marks a connection that has been compared.
const greeted = "github.com/unavez/unavez/store/postgres"

// greet compares the history on a connection that is new.
func (s *Store) greet(ctx context.Context, conn *pgx.Conn) error {
	data := conn.PgConn().CustomData()
	if data[greeted] == true {
		return nil
	}
	var number int64
	if err := conn.QueryRow(ctx, "SELECT unavez.new_incarnation(false)").Scan(&number); err != nil {
		return err
	}
	data[greeted] = true
	s.witness(ctx, number)
	return nil
}
