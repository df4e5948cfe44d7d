// Command keys compares ways to make a POST /orders take effect once, beside
// the same handler without any: each server does one order in PostgreSQL per new
// key, and answers a repeated key with the first answer. The servers take turns.
//
//	go run ./keys -postgres URL -redis URL
//
// Both servers may be filled, and should be on this machine, so that their CPU
// is counted. gofiber's middleware keeps answers in memory or in Redis, behind a
// lock in the process's memory and outside any transaction: what it promises is
// less, and what it costs is to be seen beside that.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/idempotency"
	fiberredis "github.com/gofiber/storage/redis/v3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/bench/peers/machine"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

func main() {
	url := flag.String("postgres", "", "URL of a PostgreSQL that may be filled")
	redis := flag.String("redis", "", "URL of a Redis that may be filled, as redis://127.0.0.1:6379")
	rounds := flag.Int("rounds", 9, "samples of each server")
	sample := flag.Duration("sample", 500*time.Millisecond, "length of a sample")
	callers := flag.Int("callers", 8, "callers at one time")
	flag.Parse()
	if err := measure(*url, *redis, *rounds, *sample, *callers); err != nil {
		fmt.Fprintln(os.Stderr, "keys:", err)
		os.Exit(1)
	}
}

// server is one way.
type server struct {
	name  string
	base  string // the server that it is compared with
	url   string
	keyed bool
	sums  map[bool]*sums // by whether keys repeat
}

// sums of one server, one a round.
type sums struct{ rate, cpu []float64 }

func measure(url, redis string, rounds int, sample time.Duration, callers int) error {
	if url == "" || redis == "" {
		return errors.New("say -postgres URL and -redis URL")
	}
	ctx := context.Background()
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := postgres.Migrate(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.Exec(ctx, `create table if not exists keys_orders (id bigserial primary key, customer text not null, note text not null)`); err != nil {
		return err
	}
	var backend int
	var version, fsync string
	if err := db.QueryRow(ctx, `select version(), current_setting('fsync'), pg_backend_pid()`).Scan(&version, &fsync, &backend); err != nil {
		return err
	}
	fmt.Printf("%s, fsync %s\n%d callers, %d samples of %v\n\n", version, fsync, callers, rounds, sample)
	servers, stop, err := start(ctx, db, redis)
	if err != nil {
		return err
	}
	defer stop()
	pids := append([]int{machine.ParentOf(backend)}, machine.Named("redis-server")...)
	cpu := func() (sum time.Duration) {
		sum = machine.OwnCPU()
		for _, pid := range pids {
			sum += machine.TreeCPU(pid)
		}
		return sum
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	for round := range rounds + 1 { // the first warms up
		for _, repeat := range []bool{false, true} {
			for _, s := range servers {
				if repeat && !s.keyed {
					continue
				}
				rate, used, err := load(client, s, repeat, sample, callers, cpu)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				if round > 0 {
					s.sums[repeat].rate = append(s.sums[repeat].rate, rate)
					s.sums[repeat].cpu = append(s.sums[repeat].cpu, used)
				}
			}
		}
	}
	report(servers)
	return nil
}

// start makes the servers, each on a port of its own.
func start(ctx context.Context, db *pgxpool.Pool, redis string) (servers []*server, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range slices.Backward(stops) {
			s()
		}
	}
	add := func(name, base string, keyed bool, l net.Listener) {
		servers = append(servers, &server{name: name, base: base, url: "http://" + l.Addr().String() + "/orders", keyed: keyed, sums: map[bool]*sums{false: {}, true: {}}})
	}
	listen := func() net.Listener {
		l, listenErr := net.Listen("tcp", "127.0.0.1:0")
		err = errors.Join(err, listenErr)
		return l
	}
	serve := func(name, base string, keyed bool, h http.Handler) {
		l := listen()
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go func() { _ = s.Serve(l) }()
		stops = append(stops, func() { _ = s.Close() })
		add(name, base, keyed, l)
	}
	serve("net/http, bare transaction", "", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := pgx.BeginFunc(r.Context(), db, func(tx pgx.Tx) error { return order(r.Context(), tx, w) }); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
		}
	}))
	for _, lazy := range []bool{false, true} {
		ledger, storeErr := postgres.New(db, &postgres.Options{Lazy: lazy})
		if storeErr != nil {
			return nil, stop, storeErr
		}
		engine, engineErr := unavez.New(ledger, &unavez.Options{SingleTenant: true})
		if engineErr != nil {
			return nil, stop, engineErr
		}
		layer, layerErr := httpkey.New(engine, nil, &httpkey.Options{SingleTenant: true})
		if layerErr != nil {
			return nil, stop, layerErr
		}
		stops = append(stops, func() { _ = engine.Close(ctx) })
		name := map[bool]string{false: "unavez on PostgreSQL, eager", true: "unavez on PostgreSQL, lazy"}[lazy]
		serve(name, "net/http, bare transaction", true, layer.Handle(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return order(r.Context(), tx, w)
		}))
	}
	app := func(name, base string, keyed bool, use fiber.Handler) {
		a := fiber.New(fiber.Config{DisableStartupMessage: true})
		if use != nil {
			a.Use(use)
		}
		a.Post("/orders", func(c *fiber.Ctx) error {
			var answer bytes.Buffer
			err := pgx.BeginFunc(c.Context(), db, func(tx pgx.Tx) error { return order(c.Context(), tx, &answer) })
			if err != nil {
				return err
			}
			return c.Status(http.StatusCreated).Type("json").Send(answer.Bytes())
		})
		l := listen()
		go func() { _ = a.Listener(l) }()
		stops = append(stops, func() { _ = a.Shutdown() })
		add(name, base, keyed, l)
	}
	app("fiber, bare transaction", "", false, nil)
	// Its keys must be 36 characters long by default.
	app("fiber, idempotency in memory", "fiber, bare transaction", true, idempotency.New(idempotency.Config{Lifetime: time.Hour}))
	storage := fiberredis.New(fiberredis.Config{URL: redis})
	stops = append(stops, func() { _ = storage.Close() })
	app("fiber, idempotency in Redis", "fiber, bare transaction", true, idempotency.New(idempotency.Config{Lifetime: time.Hour, Storage: storage}))
	return servers, stop, err
}

// order is what every server does for a new key.
func order(ctx context.Context, tx pgx.Tx, w io.Writer) error {
	var id int64
	if err := tx.QueryRow(ctx, `insert into keys_orders (customer, note) values ($1, $2) returning id`, "c-1", "a note of some length").Scan(&id); err != nil {
		return err
	}
	if hw, ok := w.(http.ResponseWriter); ok {
		hw.Header().Set("Content-Type", "application/json")
		hw.WriteHeader(http.StatusCreated)
	}
	_, err := fmt.Fprintf(w, `{"id":%d,"customer":"c-1","status":"created","total":"19.90","currency":"BRL"}`, id)
	return err
}

// key has the length that fiber wants.
func key() string { return fmt.Sprintf("%036x", rand.Uint64()) }

// load asks one server for so long.
func load(client *http.Client, s *server, repeat bool, length time.Duration, callers int, cpu func() time.Duration) (rate, used float64, err error) {
	var count atomic.Int64
	var all sync.WaitGroup
	var once sync.Once
	known := key()
	if repeat {
		if err := post(client, s.url, known); err != nil {
			return 0, 0, err
		}
	}
	begun, before := time.Now(), cpu()
	for range callers {
		all.Go(func() {
			for time.Since(begun) < length {
				k := known
				if !repeat {
					k = key()
				}
				if failed := post(client, s.url, k); failed != nil {
					once.Do(func() { err = failed })
					return
				}
				count.Add(1)
			}
		})
	}
	all.Wait()
	n := float64(max(count.Load(), 1))
	return n / time.Since(begun).Seconds(), float64((cpu() - before).Microseconds()) / n, err
}

func post(client *http.Client, url, key string) error {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader([]byte(`{"customer":"c-1","items":[{"sku":"book","quantity":1}]}`)))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)   // unavez
	r.Header.Set("X-Idempotency-Key", key) // fiber
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusCreated {
		return errors.New("answered " + strconv.Itoa(answer.StatusCode))
	}
	return nil
}

func report(servers []*server) {
	median := func(v []float64) float64 {
		if len(v) == 0 {
			return 0
		}
		return slices.Sorted(slices.Values(v))[len(v)/2]
	}
	ratio := func(a, b []float64) float64 {
		all := make([]float64, len(a))
		for i := range a {
			all[i] = a[i] / b[i]
		}
		return median(all)
	}
	fmt.Println("| | new keys/s | time, to its bare server | CPU, to its bare server | repeats/s | CPU µs of a repeat |")
	fmt.Println("|---|--:|--:|--:|--:|--:|")
	for _, s := range servers {
		base := s
		for _, other := range servers {
			if other.name == s.base {
				base = other
			}
		}
		fresh, of := s.sums[false], base.sums[false]
		fmt.Printf("| %s | %.0f | %.2f | %.2f | %.0f | %.0f |\n", s.name, median(fresh.rate), ratio(of.rate, fresh.rate), ratio(fresh.cpu, of.cpu), median(s.sums[true].rate), median(s.sums[true].cpu))
	}
}
