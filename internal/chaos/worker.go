package chaos

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// The limits of the operations here. They are short, since a worker that is
// stopped is stopped for longer.
const (
	workLimit   = 2 * time.Second
	leaseLength = 1500 * time.Millisecond
	laneLease   = 1500 * time.Millisecond
	callLimit   = time.Second // of a call outside
)

// secret signs the deliveries of the sender here.
const secret = "whsec_dG9ydHVyZSB0b3J0dXJlIHRvcnR1cmUgdG9ydHVyZQ=="

// Setup is what a worker is told, as the first line of its standard input. It
// works until that ends.
type Setup struct {
	// Host is the address that it listens on.
	Host string `json:"host"`
	// Serve is the configuration of a worker that is the binary; empty for one
	// that uses the library.
	Serve string `json:"serve,omitempty"`
	// Database is a URL of PostgreSQL or a file of SQLite; Redis a URL or empty.
	Database string `json:"database"`
	Redis    string `json:"redis,omitempty"`
	// Prefix of the keys in Redis.
	Prefix string `json:"prefix,omitempty"`
	// Outside is the base URL of the other system.
	Outside string `json:"outside"`
}

// What a worker says on its standard output, a word and a value a line.
const (
	saidListening = "listening"
	saidSaw       = "saw"
)

// ServeFunc runs the binary's server with a configuration until its context
// ends, and tells its address.
type ServeFunc func(ctx context.Context, file string, started func(address string)) error

// Work is a worker process. It returns when its standard input ends.
func Work(ctx context.Context, in io.Reader, out io.Writer, serve ServeFunc) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	var s Setup
	if err := json.Unmarshal(first, &s); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, lines) // until whoever started it is gone
		stop()
	}()
	var mu sync.Mutex
	say := func(word, value string) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintln(out, word, value) // nobody may listen any more
	}
	started := func(address string) { say(saidListening, address) }
	switch {
	case s.Serve != "":
		return serve(ctx, s.Serve, started)
	case IsPostgres(s.Database):
		return workPostgres(ctx, s, started, say)
	}
	return workSQLite(ctx, s, started, say)
}

// backing is one store, as the worker needs it.
type backing[Tx any] struct {
	ledger store.Ledger[Tx]
	queue  store.Queue
	upkeep store.Upkeep
}

// application is a library worker.
type application[Tx any] struct {
	setup  Setup
	engine *unavez.Engine[Tx]
	insert func(ctx context.Context, tx Tx, operation string) (int64, error)
	bare   func(ctx context.Context, work func(Tx) error) error
	client *http.Client
}

func workPostgres(ctx context.Context, s Setup, started func(string), say func(word, value string)) error {
	config, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return err
	}
	config.ConnConfig.ConnectTimeout = workLimit
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	ledger, err := postgres.New(pool, nil)
	if err != nil {
		return err
	}
	return work(ctx, s, backing[pgx.Tx]{ledger, ledger, ledger}, started, say, &application[pgx.Tx]{
		insert: insertPostgres,
		bare:   func(ctx context.Context, f func(pgx.Tx) error) error { return pgx.BeginFunc(ctx, pool, f) },
	})
}

func workSQLite(ctx context.Context, s Setup, started func(string), say func(word, value string)) error {
	db, err := sqlite.OpenDB(&modernc.Driver{}, s.Database, sqliteOptions())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // what it wrote is durable
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		return err
	}
	return work(ctx, s, backing[*sql.Tx]{ledger, ledger, ledger}, started, say, &application[*sql.Tx]{
		insert: insertSQLite,
		bare: func(ctx context.Context, f func(*sql.Tx) error) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err = f(tx); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		},
	})
}

// work runs an application on its store.
func work[Tx any](ctx context.Context, s Setup, at backing[Tx], started func(string), say func(word, value string), a *application[Tx]) error {
	options := &unavez.Options{
		SingleTenant: true, Limit: workLimit, Lease: leaseLength,
		Observe: func(o unavez.Observation) { say(saidSaw, o.What) },
	}
	if s.Redis != "" {
		leaser, err := redis.Open(s.Redis, &redis.Options{Prefix: s.Prefix, Timeout: 200 * time.Millisecond, Pause: 100 * time.Millisecond})
		if err != nil {
			return err
		}
		defer func() { _ = leaser.Close() }() // what it held runs out
		options.Leaser = leaser
	}
	engine, err := unavez.New(at.ledger, options)
	if err != nil {
		return err
	}
	a.setup, a.engine, a.client = s, engine, &http.Client{Timeout: callLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	layer, err := httpkey.New(engine, nil, &httpkey.Options{SingleTenant: true})
	if err != nil {
		return err
	}
	in, err := inbox.New(engine, at.queue, []inbox.Source{{
		Name: "shop", Contract: source.StandardWebhooks(""), Types: []string{"*"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("shop", secret)}},
	}}, a.effects(), &inbox.Options{Lease: laneLease, Poll: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	if err := in.Start(ctx); err != nil {
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { unavez.Upkeep(ctx, at.upkeep, &unavez.UpkeepOptions{Every: time.Second}) })
	mux := http.NewServeMux()
	mux.Handle("POST /orders", layer.Handle(a.order))
	mux.Handle("POST /charges", layer.Lease(unavez.Steps, a.charge))
	mux.Handle("POST /in/shop", in.Receiver().Handler("shop"))
	mux.HandleFunc("POST /bare", a.unprotected)
	listener, err := net.Listen("tcp", s.Host+":0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux}
	running.Go(func() {
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(late) // who is cut off asks again
		_ = in.Stop(late)         // lanes that are left run out
		_ = engine.Close(late)
	})
	started(listener.Addr().String())
	err = server.Serve(listener)
	running.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// read takes the body of a request.
func read(r *http.Request) (n named, err error) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &n)
	}
	return n, err
}

// dally takes a little time, now and then some more, so that a worker is killed
// and stopped in the middle of its work.
func dally(ctx context.Context) {
	d := time.Duration(rand.IntN(5)) * time.Millisecond
	if rand.IntN(10) == 0 {
		d *= 10
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// answer is what a client gets; another effect would give another one.
func answer(w http.ResponseWriter, operation string, id int64) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, err := fmt.Fprintf(w, `{"operation":%q,"effect":%d}`, operation, id)
	return err
}

// order is an effect in the transaction of its outcome.
func (a *application[Tx]) order(w http.ResponseWriter, r *http.Request, tx Tx) error {
	n, err := read(r)
	if err != nil {
		return err
	}
	id, err := a.insert(r.Context(), tx, n.Operation)
	if err != nil {
		return err
	}
	dally(r.Context())
	return answer(w, n.Operation, id)
}

// charge is an effect outside, as a step, and a row in the transaction of its outcome.
func (a *application[Tx]) charge(r *http.Request, attempt *unavez.Attempt) (httpkey.Finish[Tx], error) {
	n, err := read(r)
	if err != nil {
		return nil, err
	}
	call := func(ctx context.Context, key string) (string, error) { return a.call(ctx, n, key) }
	probe := func(ctx context.Context, key string) (string, unavez.Verdict, error) {
		r, err := a.request(ctx, http.MethodGet, n, key)
		switch {
		case err != nil:
			return "", unavez.CannotTell, err
		case r.status == http.StatusOK:
			return r.body, unavez.Done, nil
		case r.status == http.StatusNotFound:
			return "", unavez.NotDone, nil
		}
		return "", unavez.CannotTell, nil
	}
	receipt, err := unavez.Step(r.Context(), attempt, "charge", call, probe)
	if err != nil {
		return nil, err
	}
	dally(r.Context())
	return func(ctx context.Context, w http.ResponseWriter, tx Tx) error {
		id, err := a.insert(ctx, tx, n.Operation)
		if err != nil {
			return err
		}
		return answer(w, n.Operation+" "+receipt, id)
	}, nil
}

// effects of an event: a row, in the order of its customer, and a call outside.
func (a *application[Tx]) effects() []inbox.Effect[Tx] {
	retry := inbox.Retry{First: 20 * time.Millisecond, Longest: 200 * time.Millisecond, Attempts: 10_000}
	customer := func(e *inbox.Event) ([]string, error) {
		n, err := eventOf(e)
		return []string{n.Customer}, err
	}
	return []inbox.Effect[Tx]{
		{
			Name: "event.note.v1", OrderBy: customer, Retry: retry, Limit: workLimit,
			Handle: func(ctx context.Context, tx Tx, e *inbox.Event) error {
				n, err := eventOf(e)
				if err != nil {
					return inbox.Permanent(err)
				}
				_, err = a.insert(ctx, tx, n.Operation)
				dally(ctx)
				return err
			},
		},
		{
			Name: "event.call.v1", Retry: retry, Limit: workLimit, Lease: leaseLength, Unknown: unavez.Retry,
			Run: func(ctx context.Context, attempt *unavez.Attempt, e *inbox.Event) (unavez.Result, error) {
				n, err := eventOf(e)
				if err != nil {
					return unavez.Result{}, inbox.Permanent(err)
				}
				n.Operation = "called/" + n.Operation
				receipt, err := a.call(ctx, n, attempt.DerivedKey())
				return unavez.Result{Code: http.StatusOK, Body: []byte(receipt)}, err
			},
		},
	}
}

func eventOf(e *inbox.Event) (n named, err error) {
	var envelope struct{ Data named }
	err = json.Unmarshal(e.Data, &envelope)
	return envelope.Data, err
}

// unprotected is what an application does without the product: it commits,
// whether its client waits or not, and answers a little later.
func (a *application[Tx]) unprotected(w http.ResponseWriter, r *http.Request) {
	ctx := context.WithoutCancel(r.Context())
	n, err := read(r)
	var id int64
	if err == nil {
		err = a.bare(ctx, func(tx Tx) (err error) {
			id, err = a.insert(ctx, tx, n.Operation)
			return err
		})
	}
	if err == nil {
		err = errors.Join(Wait(r.Context(), barePause), answer(w, n.Operation, id))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// barePause is longer than the first patience of the clients of that.
const barePause = 50 * time.Millisecond

// reply is an answer over HTTP.
type reply struct {
	status int
	kind   string // Content-Type
	body   string
}

// call asks the other system to do something.
func (a *application[Tx]) call(ctx context.Context, n named, key string) (string, error) {
	r, err := a.request(ctx, http.MethodPost, n, key)
	if err == nil && r.status != http.StatusCreated {
		err = fmt.Errorf("the other system: %d %s", r.status, r.body)
	}
	return r.body, err
}

func (a *application[Tx]) request(ctx context.Context, method string, n named, key string) (reply, error) {
	body, err := json.Marshal(n)
	if err != nil {
		return reply{}, err
	}
	r, err := http.NewRequestWithContext(ctx, method, a.setup.Outside+"/calls", bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set(derivedHeader, key)
	r.Header.Set(operationHeader, n.Operation)
	return send(a.client, r)
}

func send(client *http.Client, r *http.Request) (reply, error) {
	resp, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header.Get("Content-Type"), string(body)}, err
}
