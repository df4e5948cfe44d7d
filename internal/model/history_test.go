package model_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/internal/model"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/internal/wire"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// What a run that failed is repeated with, and how it is made longer.
var (
	seed   = flag.Uint64("seed", 0, "seed of what is drawn; 0 means a new one")
	rounds = flag.Int("rounds", 0, "how many histories on each store; 0 means as many as the form of the run has")
)

const (
	workers    = 3
	clients    = 8
	identities = 6
	deliveries = 200 // of one history
)

var (
	errRefused = errors.New("refused")        // what a handler fails with
	errSilent  = errors.New("no answer came") // what an attempt of lease mode fails with that does not tell
)

// site is a store with several workers.
type site[Tx any] struct {
	engines []*unavez.Engine[Tx]
	insert  func(ctx context.Context, tx Tx, operation, answer string) error
	// rows are the answers of the effects of an operation.
	rows func(t *testing.T, operation string) []string
	// cut says that connections are cut.
	cut bool
}

func engineOn[Tx any](t *testing.T, ledger store.Ledger[Tx]) *unavez.Engine[Tx] {
	t.Helper()
	engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true, Limit: 2 * time.Second, Lease: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.WithoutCancel(t.Context())) }) // its calls have ended
	return engine
}

// seeded is the seed of a run, which it prints.
func seeded(t *testing.T) uint64 {
	t.Helper()
	n := *seed
	if n == 0 {
		n = rand.Uint64()
	}
	t.Logf("-seed %d", n)
	return n
}

// history has clients deliver at random, and writes down what they get. Every
// other operation is one of lease mode, whose attempts may end without telling.
func history[Tx any](t *testing.T, s site[Tx], random *rand.Rand, front string) (all []model.Delivery) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var running sync.WaitGroup
	deliver := func(worker, n, identity, payload, behaviour int) {
		name := fmt.Sprintf("%s-%d", front, identity)
		d := model.Delivery{Operation: name, Payload: payload, Worker: worker, Call: time.Since(began)}
		var runs []string
		// work makes an answer, and then fails with one of two errors, or takes a while.
		work := func(write func(answer string) error, first, second error) (unavez.Result, error) {
			answer := fmt.Sprintf("%d.%d", n, len(runs))
			if err := write(answer); err != nil {
				return unavez.Result{}, err
			}
			runs = append(runs, answer)
			switch behaviour {
			case 0:
				return unavez.Result{}, first
			case 4:
				return unavez.Result{}, second
			case 1, 2:
				timer := time.NewTimer(time.Duration(n%5) * time.Millisecond)
				defer timer.Stop()
				<-timer.C
			}
			return unavez.Result{Code: 201, Body: []byte(answer)}, nil
		}
		handler := func(ctx context.Context, tx Tx) (unavez.Result, error) {
			return work(func(answer string) error { return s.insert(ctx, tx, name, answer) }, errRefused, errRefused)
		}
		outside := func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			return work(func(string) error { return nil }, unavez.NeverStarted(errRefused), errSilent)
		}
		finish := func(ctx context.Context, tx Tx, result *unavez.Result) error {
			return s.insert(ctx, tx, name, string(result.Body))
		}
		op := unavez.Operation{Effect: "register", Key: []string{name}, Payload: []byte{byte(payload)}}
		if behaviour == 3 {
			op.Wait = 20 * time.Millisecond
		}
		var out unavez.Outcome
		var err error
		if d.Leased = identity%2 == 1; d.Leased {
			op.Unknown = unavez.Retry
			out, err = s.engines[worker].Lease(t.Context(), op, outside, finish)
		} else {
			out, err = s.engines[worker].Do(t.Context(), op, handler)
		}
		d.Return, d.Runs = time.Since(began), runs
		switch code := unavez.CodeOf(err); {
		case err == nil && out.Replayed:
			d.End, d.Answer = model.Replayed, string(out.Result.Body)
		case err == nil:
			d.End, d.Answer = model.Ran, string(out.Result.Body)
		case d.Leased && s.cut && code != unavez.CodeInFlight && code != unavez.CodeMismatch:
			d.End = model.Lost // what the attempt has left may be written late
		case errors.Is(err, errRefused):
			d.End = model.Failed
		case errors.Is(err, errSilent):
			d.End = model.Silent
		case code == unavez.CodeInFlight:
			d.End = model.InFlight
		case code == unavez.CodeMismatch:
			d.End = model.Mismatch
		default:
			d.End = model.Lost
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, d)
	}
	for client := range clients {
		own := rand.New(rand.NewPCG(random.Uint64(), uint64(client)))
		running.Go(func() {
			for n := range deliveries / clients {
				payload := 0
				if own.IntN(8) == 0 {
					payload = 1
				}
				deliver(own.IntN(workers), client*deliveries+n, own.IntN(identities), payload, own.IntN(6))
			}
		})
	}
	running.Wait()
	return all
}

// check holds histories of a store to the specification, and its effects to the
// answers.
func check[Tx any](t *testing.T, name string, from uint64, short, long int, s site[Tx]) {
	t.Helper()
	n := short
	if evidence.Long() {
		n = long
	}
	if *rounds > 0 {
		n = *rounds
	}
	run := evidence.Run{Name: "histories-" + name, Long: evidence.Long(), Seed: from}
	ends := map[string]int{}
	for round := range n {
		random := rand.New(rand.NewPCG(from, uint64(round)))
		front := fmt.Sprintf("%d-%d", from, round)
		all := history(t, s, random, front)
		violations, err := model.Check(all, time.Minute)
		if err != nil {
			t.Error(err)
		}
		answers := map[string]map[string]bool{}
		for _, d := range all {
			ends[d.End]++
			if d.Answer != "" {
				if answers[d.Operation] == nil {
					answers[d.Operation] = map[string]bool{}
				}
				answers[d.Operation][d.Answer] = true
			}
		}
		for operation, given := range answers {
			if rows := s.rows(t, operation); len(rows) != 1 || len(given) != 1 || !given[rows[0]] {
				violations = append(violations, fmt.Sprintf("%s: effects %q, answers %v", operation, rows, given))
			}
		}
		for _, violation := range violations {
			t.Errorf("-seed %d, round %d: %s", from, round, violation)
		}
		run.Violations += len(violations)
		run.Operations += identities
		run.Deliveries += len(all)
		run.Schedules++
	}
	for _, end := range []string{model.Ran, model.Replayed, model.Mismatch, model.InFlight, model.Failed} {
		run.Sees(end, ends[end])
	}
	last := model.Silent
	if s.cut {
		last = model.Lost
	}
	run.Sees(last, ends[last])
	t.Logf("%d histories, %d deliveries, %v", run.Schedules, run.Deliveries, ends)
	for _, never := range run.Never() {
		t.Errorf("never: %s", never)
	}
	if err := run.Write(); err != nil {
		t.Error(err)
	}
}

func TestWorkersInMemoryMakeARegisterThatIsWrittenOnce(t *testing.T) {
	t.Parallel()
	from := seeded(t)
	shared := memory.New(nil)
	s := site[*memory.Tx]{
		insert: func(_ context.Context, tx *memory.Tx, operation, answer string) error {
			tx.Put(operation+"/"+answer, answer)
			return nil
		},
	}
	var mu sync.Mutex
	s.rows = func(t *testing.T, operation string) (rows []string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		tx, err := shared.BeginTx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }() // it only reads
		for client := range clients {
			for n := range deliveries {
				for again := range 2 {
					answer := fmt.Sprintf("%d.%d", client*deliveries+n, again)
					if _, ok, err := tx.Get(operation + "/" + answer); err != nil {
						t.Fatal(err)
					} else if ok {
						rows = append(rows, answer)
					}
				}
			}
		}
		return rows
	}
	for range workers {
		s.engines = append(s.engines, engineOn(t, shared))
	}
	check(t, "memory", from, 20, 2000, s)
}

func TestWorkersOnSQLiteMakeARegisterThatIsWrittenOnce(t *testing.T) {
	t.Parallel()
	from := seeded(t)
	file := filepath.Join(t.TempDir(), "model.db")
	s := site[*sql.Tx]{insert: func(ctx context.Context, tx *sql.Tx, operation, answer string) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (operation, answer) VALUES (?, ?)", operation, answer)
		return err
	}}
	var first *sql.DB
	for range workers {
		db, err := sqlite.OpenDB(&modernc.Driver{}, file, &sqlite.Options{HandlerLimit: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() }) // what it wrote is durable
		ledger, err := sqlite.New(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = db
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE effect (operation TEXT NOT NULL, answer TEXT NOT NULL)"); err != nil {
				t.Fatal(err)
			}
		}
		s.engines = append(s.engines, engineOn(t, ledger))
	}
	s.rows = func(t *testing.T, operation string) (rows []string) {
		t.Helper()
		var joined sql.NullString
		if err := first.QueryRowContext(t.Context(), "SELECT group_concat(answer) FROM effect WHERE operation = ?", operation).Scan(&joined); err != nil {
			t.Fatal(err)
		}
		return strings.FieldsFunc(joined.String, func(r rune) bool { return r == ',' })
	}
	check(t, "sqlite", from, 4, 400, s)
}

func TestWorkersOnPostgreSQLMakeARegisterThatIsWrittenOnce(t *testing.T) {
	t.Parallel()
	from := seeded(t)
	url := testenv.NewDatabase(t)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := pgxpool.NewWithConfig(t.Context(), config.Copy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.Close)
	if err := postgres.Migrate(t.Context(), beside, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := beside.Exec(t.Context(), "CREATE TABLE effect (operation text NOT NULL, answer text NOT NULL); CREATE INDEX ON effect (operation)"); err != nil {
		t.Fatal(err)
	}
	proxy, err := wire.Listen(wire.PostgreSQL, wire.To(net.JoinHostPort(config.ConnConfig.Host, fmt.Sprint(config.ConnConfig.Port))))
	if err != nil {
		t.Fatal(err)
	}
	s := site[pgx.Tx]{
		cut: true,
		insert: func(ctx context.Context, tx pgx.Tx, operation, answer string) error {
			_, err := tx.Exec(ctx, "INSERT INTO effect (operation, answer) VALUES ($1, $2)", operation, answer)
			return err
		},
		rows: func(t *testing.T, operation string) (rows []string) {
			t.Helper()
			if err := beside.QueryRow(t.Context(), "SELECT array_agg(answer) FROM effect WHERE operation = $1", operation).Scan(&rows); err != nil {
				t.Fatal(err)
			}
			return rows
		},
	}
	for range workers {
		through := config.Copy()
		through.MaxConns = 4
		through.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", proxy.Addr())
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), through)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		ledger, err := postgres.New(pool, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.engines = append(s.engines, engineOn(t, ledger))
	}
	t.Cleanup(func() { _ = proxy.Close() }) // before the pools, whose connections may be waiting
	random := rand.New(rand.NewPCG(from, 1<<63))
	proxy.Watch(func(m *wire.Message) wire.Fate { // one message at a time
		commit := m.From == wire.Server && m.Kind == "CommandComplete" && m.Text() == "COMMIT"
		switch {
		case commit && random.IntN(5) == 0, random.IntN(500) == 0:
			return []wire.Fate{wire.Cut, wire.Reset, wire.Tear}[random.IntN(3)]
		}
		return wire.Pass
	})
	check(t, "postgres", from, 4, 400, s)
}
