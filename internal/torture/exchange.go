package torture

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// exchange is one protocol of the product: everything that goes over the wire
// until an operation's client has its answer.
type exchange struct {
	name string
	// redis says that messages to Redis are counted, and not those to the database.
	redis bool
	// alone says that one run at a time may use the database.
	alone bool
	// rows is how many effects an operation has; of its parts together, where it has parts.
	rows int
	// calls says that it calls outside.
	calls bool
	// bare is a client without the product: what it does twice must be found.
	bare bool
	// prepare makes what an operation finds; nil for nothing.
	prepare func(ctx context.Context, b *Bed, operation string) error
	// open makes a worker, whose connections go where it is told.
	open func(ctx context.Context, b *Bed, to route) (*client, error)
	// holds looks at what an operation has left, beyond rows and calls; nil for nothing.
	holds func(ctx context.Context, b *Bed, operation string) error
}

// route is where connections go: to proxies, or straight where it is empty.
type route struct {
	postgres string // host:port
	redis    string // URL
	most     int32  // connections to the database
}

// client delivers operations to a worker of its own.
type client struct {
	// deliver sends an operation once. An error says whether to send it again.
	deliver func(ctx context.Context, operation string) (answer string, err error)
	close   func()
}

// errAgain marks what a client sends again.
var errAgain = errors.New("send it again")

// again tells whether a client sends the operation once more: what it was told
// leaves that open, and the worker finds out.
func again(err error) bool {
	for _, open := range []error{errAgain, store.ErrUnavailable, store.ErrCommitUnknown, store.ErrLimit, context.DeadlineExceeded} {
		if errors.Is(err, open) {
			return true
		}
	}
	return unavez.SafeToRetry(err) || unavez.IsNeverStarted(err) || unavez.CodeOf(err) == unavez.CodeUnknown
}

// The limits of the operations here. They are short, since a worker that was left
// waiting is waited for.
const (
	workLimit   = 400 * time.Millisecond
	leaseLength = 600 * time.Millisecond
	callLimit   = 2 * time.Second // of what has no limit of its own
)

// operationOf is the operation of a name.
func operationOf(x, name string) unavez.Operation {
	return unavez.Operation{Effect: x, Key: []string{name}, Payload: []byte(name), Limit: workLimit, Lease: leaseLength}
}

// worker is a worker of the product on pgx.
type worker struct {
	bed    *Bed
	pool   *pgxpool.Pool
	store  *postgres.Store
	engine *unavez.Engine[pgx.Tx]
	leaser *redis.Leaser // nil without Redis
}

// how a worker is made.
type how struct {
	options  *postgres.Options
	pool     func(*pgxpool.Config)
	withFast bool
}

// newWorker connects one.
func newWorker(ctx context.Context, b *Bed, to route, how how) (*worker, error) {
	w := &worker{bed: b}
	changes := []func(*pgxpool.Config){}
	if how.pool != nil {
		changes = append(changes, how.pool)
	}
	var err error
	if w.pool, err = b.pool(ctx, to.postgres, to.most, changes...); err != nil {
		return nil, err
	}
	options := &unavez.Options{SingleTenant: true, CacheSize: -1, Observe: b.sees}
	if how.withFast {
		at := b.redis
		if to.redis != "" {
			at = to.redis
		}
		if w.leaser, err = redis.Open(at, &redis.Options{Prefix: b.prefix, Pause: -1}); err != nil {
			w.pool.Close()
			return nil, err
		}
		options.Leaser = w.leaser
	}
	if w.store, err = postgres.New(w.pool, how.options); err == nil {
		w.engine, err = unavez.New(w.store, options)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *worker) close() {
	if w.engine != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = w.engine.Close(ctx) // its calls have ended
	}
	if w.leaser != nil {
		_ = w.leaser.Close() // its connections may be broken
	}
	w.pool.Close()
}

// made is a worker as its client sees it.
func made(w *worker, err error, deliver func(ctx context.Context, w *worker, operation string) (string, error)) (*client, error) {
	if err != nil {
		return nil, err
	}
	return &client{close: w.close, deliver: func(ctx context.Context, operation string) (string, error) { return deliver(ctx, w, operation) }}, nil
}

// answerOf is what a client reads of an outcome.
func answerOf(out unavez.Outcome, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return string(out.Result.Body), nil
}
