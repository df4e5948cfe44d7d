//go:build unix

package redis_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
	"github.com/unavez/unavez/store/postgres"
)

// repeatable is an operation whose claim may be the lease alone.
func repeatable(name string) unavez.Operation {
	op := operation(name)
	op.Unknown, op.ClaimByLease = unavez.Retry, true
	return op
}

// shop is two workers over one database, each with its lease in one Redis, for
// operations that are claimed by the lease. What they do outside may happen
// twice; what they write and answer may not.
type shop[Tx any] struct {
	t       *testing.T
	workers [2]*unavez.Engine[Tx]
	write   func(ctx context.Context, tx Tx, row string) error
	rows    func() []string

	mu      sync.Mutex
	calls   map[string]int            // outside, by derived key
	answers map[string]map[string]int // by operation and body
	saw     map[string]int
}

func newShop[Tx any](t *testing.T, ledgers [2]store.Ledger[Tx], url string, opts *redis.Options) *shop[Tx] {
	t.Helper()
	s := &shop[Tx]{t: t, calls: map[string]int{}, answers: map[string]map[string]int{}, saw: map[string]int{}}
	for i := range s.workers {
		engine, err := unavez.New(ledgers[i], &unavez.Options{
			SingleTenant: true, Leaser: open(t, url, opts), CacheSize: -1,
			Observe: func(o unavez.Observation) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.saw[o.What]++
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer cancel()
			if err := engine.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		s.workers[i] = engine
	}
	return s
}

// inMemory is a shop over the model of a database.
func inMemory(t *testing.T, url string, opts *redis.Options) *shop[*memory.Tx] {
	t.Helper()
	ledger := memory.New(nil)
	s := newShop(t, [2]store.Ledger[*memory.Tx]{ledger, ledger}, url, opts)
	s.write = func(_ context.Context, tx *memory.Tx, row string) error { return tx.Put(rand.Text(), row) } // two show
	s.rows = func() []string { return slices.Collect(maps.Values(ledger.All())) }
	return s
}

// inPostgres is a shop over PostgreSQL, each worker with a pool of its own, and
// where the database is.
func inPostgres(t *testing.T, url string, opts *redis.Options) (_ *shop[pgx.Tx], at string) {
	t.Helper()
	at = testenv.NewDatabase(t)
	pool := func() *pgxpool.Pool {
		p, err := pgxpool.New(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	admin := pool()
	if err := postgres.Migrate(t.Context(), admin, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), "CREATE TABLE payment (row text)"); err != nil { // without a key, so that two show
		t.Fatal(err)
	}
	var ledgers [2]store.Ledger[pgx.Tx]
	for i := range ledgers {
		ledger, err := postgres.New(pool(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ledgers[i] = ledger
	}
	s := newShop(t, ledgers, url, opts)
	s.write = func(ctx context.Context, tx pgx.Tx, row string) error {
		_, err := tx.Exec(ctx, "INSERT INTO payment VALUES ($1)", row)
		return err
	}
	s.rows = func() []string {
		rows, err := admin.Query(context.WithoutCancel(t.Context()), "SELECT row FROM payment")
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	return s, at
}

// charge asks a worker for the operation; its answer tells which call it was.
func (s *shop[Tx]) charge(worker int, op unavez.Operation, during func()) error {
	out, err := s.workers[worker].Lease(s.t.Context(), op, func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
		s.mu.Lock()
		s.calls[a.DerivedKey()]++
		n := s.calls[a.DerivedKey()]
		s.mu.Unlock()
		if during != nil {
			during()
		}
		return unavez.Result{Body: fmt.Appendf(nil, "call %d of %s", n, op.Key[0])}, nil
	}, func(ctx context.Context, tx Tx, _ *unavez.Result) error { return s.write(ctx, tx, op.Key[0]) })
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answers[op.Key[0]] == nil {
			s.answers[op.Key[0]] = map[string]int{}
		}
		s.answers[op.Key[0]][string(out.Result.Body)]++
	}
	return err
}

// settled asks both workers until they have an answer, and holds that everybody
// has had the same one.
func (s *shop[Tx]) settled(op unavez.Operation) {
	s.t.Helper()
	for worker := range s.workers {
		until(s.t, func() bool {
			err := s.charge(worker, op, nil)
			if err != nil && unavez.CodeOf(err) != unavez.CodeInFlight {
				s.t.Fatalf("%s, worker %d: %v", op.Key[0], worker, err)
			}
			return err == nil
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers[op.Key[0]]) != 1 {
		s.t.Errorf("%s: answers %v, want one", op.Key[0], s.answers[op.Key[0]])
	}
}

// holds that each operation has one outcome and one business row.
func (s *shop[Tx]) holds(operations int) {
	s.t.Helper()
	written := map[string]int{}
	for _, row := range s.rows() {
		written[row]++
	}
	for row, n := range written {
		if n != 1 {
			s.t.Errorf("%s: %d rows", row, n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(written) != operations || s.saw[unavez.SawCompleted] != operations || len(s.calls) != operations {
		s.t.Errorf("%d operations: rows of %d, %d derived keys, saw %v", operations, len(written), len(s.calls), s.saw)
	}
	calls := 0
	for _, n := range s.calls {
		calls += n
	}
	if lost := s.saw[unavez.SawLeaseLost]; calls-operations != lost {
		s.t.Errorf("%d calls too many, and %d were seen", calls-operations, lost)
	}
}

// through runs one operation, with duplicates before and after what happens to
// Redis in the middle.
func (s *shop[Tx]) through(op unavez.Operation, happens, ends func()) {
	s.t.Helper()
	calling, goOn := make(chan struct{}), make(chan struct{})
	var runner sync.WaitGroup
	runner.Go(func() {
		var once sync.Once
		if err := s.charge(0, op, func() { once.Do(func() { close(calling); <-goOn }) }); err != nil {
			s.t.Errorf("%s, the first caller: %v", op.Key[0], err)
		}
	})
	select {
	case <-calling:
	case <-time.After(time.Minute):
		s.t.Fatalf("%s is not run", op.Key[0])
	}
	duplicates := func() {
		for worker := range s.workers {
			if err := s.charge(worker, op, nil); err != nil && unavez.CodeOf(err) != unavez.CodeInFlight {
				s.t.Errorf("%s, a duplicate at worker %d: %v", op.Key[0], worker, err)
			}
		}
	}
	duplicates()
	happens()
	duplicates()
	close(goOn)
	runner.Wait()
	s.settled(op)
	ends()
	s.settled(op)
}

func TestWhateverHappensToRedisWhatIsRepeatableHasOneOutcomeAndOneAnswer(t *testing.T) {
	t.Parallel()
	for name, scene := range scenes() {
		for _, pause := range []time.Duration{-1, time.Minute} {
			t.Run(fmt.Sprintf("%s/pause %v", name, pause), func(t *testing.T) {
				t.Parallel()
				url, happens, ends := scene(t)
				s := inMemory(t, url, &redis.Options{Prefix: mine, Timeout: 100 * time.Millisecond, Pause: pause})
				s.through(repeatable("4711"), happens, ends)
				s.through(repeatable("4712"), none, none)
				s.holds(2)
			})
		}
	}
}

func TestOnPostgreSQLWhateverHappensToRedisThereIsOneOutcomeAndOneAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nothing", "it is killed and comes back empty", "it is flushed", "it evicts", "it fails over and loses what it was told", "it stops and goes on", "it grants everything"} {
		scene := scenes()[name]
		if scene == nil {
			t.Fatalf("no scene %q", name)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, happens, ends := scene(t)
			s, _ := inPostgres(t, url, &redis.Options{Prefix: mine, Timeout: 100 * time.Millisecond, Pause: -1})
			s.through(repeatable("4711"), happens, ends)
			s.through(repeatable("4712"), none, none)
			s.holds(2)
			s.mu.Lock()
			defer s.mu.Unlock()
			if byLease := s.saw[unavez.SawLeased]; byLease == 0 {
				t.Errorf("nothing began by the lease alone: %v", s.saw)
			}
		})
	}
}

func TestInAClusterTheLeaseTakesTheClaimsPlaceToo(t *testing.T) {
	t.Parallel()
	opts := steady()
	url := clusterURL(t)
	client := plain(t, testenv.RedisCluster(t)...)
	swept(t, client, opts.Prefix)
	s, _ := inPostgres(t, url, opts)
	lost := func() {
		eachKey(t, client, opts.Prefix, func(ctx context.Context, node goredis.Cmdable, key string) error { return node.Del(ctx, key).Err() })
	}
	const operations = 12 // over all slots
	for i := range operations {
		happens := none
		if i%2 == 1 {
			happens = lost
		}
		s.through(repeatable(fmt.Sprint(i)), happens, none)
	}
	s.holds(operations)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saw[unavez.SawLeased] < operations || s.saw[unavez.SawClaimed] != 0 || s.saw[unavez.SawLeaserFailed] != 0 {
		t.Errorf("saw %v", s.saw)
	}
}

func TestAClusterThatLosesAMasterLeavesOneOutcome(t *testing.T) {
	t.Parallel()
	m := newMasters(t)
	s, _ := inPostgres(t, m.url(), &redis.Options{Prefix: mine, Timeout: 100 * time.Millisecond, Pause: time.Second})
	var killed sync.Once
	for i := range 12 {
		s.through(repeatable(fmt.Sprint(i)), func() {
			if i == 4 {
				killed.Do(m.servers[0].Kill)
			}
		}, none)
	}
	s.holds(12)
}

func TestRedisDyingUnderLoadLeavesOneOutcomeEach(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	s, _ := inPostgres(t, "redis://"+server.Addr(), &redis.Options{Timeout: 100 * time.Millisecond, Pause: 5 * time.Millisecond})
	const rounds, operations, duplicates = 4, 20, 6
	for round := range rounds {
		var callers sync.WaitGroup
		for i := range operations {
			op := repeatable(fmt.Sprintf("%d/%d", round, i))
			for n := range duplicates {
				callers.Go(func() {
					if err := s.charge(n%2, op, nil); err != nil && unavez.CodeOf(err) != unavez.CodeInFlight {
						s.t.Errorf("%s: %v", op.Key[0], err)
					}
				})
			}
			if i == operations/2 {
				server.Kill()
				server.Start()
			}
		}
		callers.Wait()
	}
	for round := range rounds {
		for i := range operations {
			s.settled(repeatable(fmt.Sprintf("%d/%d", round, i)))
		}
	}
	s.holds(rounds * operations)
}
