package httpkey

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"

	"github.com/unavez/unavez"
)

// Layer makes the requests of an HTTP application take effect once. It is safe
// for concurrent use, and one Layer serves many routes.
type Layer[Tx any] struct {
	engine *unavez.Engine[Tx]
	edge   *edge
}

// New makes a layer over an engine. The scope function names the caller of each
// request; it may be nil only with Options.SingleTenant. Faults of the options
// are reported all at once.
func New[Tx any](engine *unavez.Engine[Tx], scope ScopeFunc, opts *Options) (*Layer[Tx], error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	e, err := newEdge(scope, o)
	if engine == nil {
		err = errors.Join(errors.New("engine: none (make one with unavez.New)"), err)
	} else {
		err = errors.Join(err, oneTenant(o, engine.SingleTenant()))
	}
	if err != nil {
		return nil, fmt.Errorf("httpkey: %w", err)
	}
	return &Layer[Tx]{engine: engine, edge: e}, nil
}

// oneTenant refuses a layer with one tenant over an engine that has several.
func oneTenant(o Options, engine bool) error {
	if o.SingleTenant && !engine {
		return errors.New("single tenant: the engine is not (declare it in unavez.Options too)")
	}
	return nil
}

// Handle serves a handler that writes on the transaction it is given. With nil
// the transaction commits, whatever status was written, and the answer is
// frozen and sent. With an error everything is rolled back, what was written to
// w is discarded, and the answer is the [Error], or a 500 without the error's
// text. A 4xx but 408, 425 and 429 of a handler that wrote nothing to the
// database is frozen like an answer; in all other cases the key is free.
//
// A request without a key, where none is required, runs in a transaction of
// its own that commits under an identity nobody can name again; under GET,
// HEAD, OPTIONS and TRACE it is always rolled back.
func (l *Layer[Tx]) Handle(handler func(w http.ResponseWriter, r *http.Request, tx Tx) error) http.Handler {
	run := func(rec *recorder, r *http.Request, tx Tx) error {
		if err := handler(rec, r, tx); err != nil {
			return &failure{problem: problemOf(err, http.StatusInternalServerError, TypeInternal), err: err}
		}
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.edge.keyed(r) {
			l.unkeyed(w, strip(r), run)
			return
		}
		l.serve(w, r, run)
	})
}

// Wrap serves a plain handler, which finds its transaction with [Tx]. The
// status decides: 5xx, 408, 425 and 429 roll back and leave the key free,
// everything else commits and is frozen; Options.Commit changes the rule. A
// request without a key, where none is required, passes through untouched and
// without a transaction.
func (l *Layer[Tx]) Wrap(handler http.Handler) http.Handler {
	run := func(rec *recorder, r *http.Request, _ Tx) error {
		handler.ServeHTTP(rec, r)
		if !l.edge.Commit(rec.status()) {
			return &failure{keep: true, err: fmt.Errorf("handler answered %d", rec.status())}
		}
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.edge.keyed(r) {
			handler.ServeHTTP(w, strip(r))
			return
		}
		l.serve(w, r, run)
	})
}

// txKey is the context key of the transaction.
type txKey struct{}

// Tx is the transaction of the keyed request that ctx belongs to, for plain
// handlers under [Layer.Wrap]. T is the engine's transaction type. It reports
// false outside a keyed request.
func Tx[T any](ctx context.Context) (T, bool) {
	tx, ok := ctx.Value(txKey{}).(T)
	return tx, ok
}

// failure is a handler's "no": what it wrote is rolled back.
type failure struct {
	problem *Error // the answer; nil when the handler's own stands
	keep    bool   // the handler's own answer is sent
	err     error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// final tells whether the failure is frozen where nothing was written.
func (f *failure) final() bool {
	return f.problem != nil && f.problem.Status < 500 && !passing(f.problem.Status)
}

// work is one run of a handler, from the gate to its answer.
type work[Tx any] struct {
	x      exchange
	run    func(*recorder, *http.Request, Tx) error
	rec    *recorder
	answer *answer
	failed *failure
}

// do runs the handler on the transaction and gives what is to be frozen.
func (k *work[Tx]) do(ctx context.Context, tx Tx) (unavez.Result, error) {
	k.close()
	x := &k.x
	k.rec = newRecorder(x.w.Header(), x.ResponseLimit, x.SpoolLimit)
	k.answer, k.failed = nil, nil
	err := k.run(k.rec, x.r.WithContext(context.WithValue(ctx, txKey{}, tx)), tx)
	if err != nil {
		errors.As(err, &k.failed)
	}
	if k.failed == nil || k.failed.keep {
		if k.answer, err = k.rec.finish(); err != nil {
			kind := TypeInternal
			if errors.Is(err, errAnswerTooLarge) {
				kind = TypeAnswerTooLarge
			}
			k.failed = &failure{problem: layerProblem(http.StatusInternalServerError, kind, "", err), err: err}
		}
	}
	if k.failed == nil {
		return k.answer.freeze(k.rec.base, x.ResponseLimit), nil
	}
	if k.failed.problem != nil {
		k.answer = k.rec.replace(k.failed.problem, x.Docs)
	}
	if k.failed.final() {
		return unavez.Result{}, unavez.Refuse(k.answer.freeze(k.rec.base, x.ResponseLimit), k.failed)
	}
	return unavez.Result{}, k.failed
}

func (k *work[Tx]) close() {
	if k.rec != nil {
		k.rec.body.close()
	}
}

// serve is a keyed request.
func (l *Layer[Tx]) serve(w http.ResponseWriter, r *http.Request, run func(*recorder, *http.Request, Tx) error) {
	k := &work[Tx]{run: run}
	if problem := k.x.admit(l.edge, w, r); problem != nil {
		k.x.fail(problem)
		return
	}
	defer k.close()
	out, err := l.engine.Do(r.Context(), k.x.op, func(ctx context.Context, tx Tx) (unavez.Result, error) {
		k.x.rewind()
		return k.do(ctx, tx)
	})
	k.end(out, err)
}

// end answers by what became of the operation.
func (k *work[Tx]) end(out unavez.Outcome, err error) {
	x := &k.x
	if err == nil && (out.Replayed || k.answer == nil) {
		x.replays(out.Result)
		return
	}
	var no *failure
	mine := errors.As(err, &no) && no == k.failed && !isEngine(err, no)
	switch {
	case err == nil && k.failed != nil: // a refusal, frozen
		k.problem(SawCompleted)
	case err == nil:
		x.sends(k.answer, SawCompleted, nil)
	case mine && no.problem != nil:
		k.problem(SawRolledBack)
	case mine:
		x.sends(k.answer, SawRolledBack, no)
	case unavez.CodeOf(err) == unavez.CodeAborted && k.answer != nil && k.answer.status >= 400:
		x.sends(k.answer, SawRolledBack, err)
	default:
		x.fail(engineProblem(err))
	}
}

// problem sends the answer that stands in the place of the handler's.
func (k *work[Tx]) problem(what string) {
	x, p := &k.x, k.failed.problem
	if p.Status >= 500 {
		x.logs(what, p.Status, k.failed.err)
	}
	x.CORS.apply(k.answer.header, x.r)
	x.sends(k.answer, what, k.failed.err)
}

// isEngine tells whether the engine has put its own verdict around the
// handler's error, such as "over the limit".
func isEngine(err error, no *failure) bool {
	for err != nil && err != error(no) {
		if _, ok := err.(*unavez.Error); ok {
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}

// errReadOnly rolls a safe request's transaction back.
var errReadOnly = errors.New("a safe method changes nothing")

// unkeyed runs a handler of Handle for a request that is not keyed: in a
// transaction, under an identity that is used once, kept as briefly as can be.
func (l *Layer[Tx]) unkeyed(w http.ResponseWriter, r *http.Request, run func(*recorder, *http.Request, Tx) error) {
	e := l.edge
	k := &work[Tx]{run: run}
	x := &k.x
	x.begin(e, w, r)
	x.op = unavez.Operation{
		Tenant: "-", Effect: effect, Key: []string{"", "unkeyed", rand.Text()},
		Retention: unavez.MinRetention, Tombstone: -1, Limit: e.Limit, Detached: !e.CancelOnDisconnect,
	}
	defer k.close()
	out, err := l.engine.Do(r.Context(), x.op, func(ctx context.Context, tx Tx) (unavez.Result, error) {
		_, err := k.do(ctx, tx)
		switch {
		case k.failed != nil:
			return unavez.Result{}, k.failed
		case err == nil && safe(r.Method):
			return unavez.Result{}, errReadOnly
		}
		return unavez.Result{Code: k.answer.status}, err
	})
	if errors.Is(err, errReadOnly) && k.failed == nil {
		x.sends(k.answer, SawRolledBack, nil)
		return
	}
	k.end(out, err)
}

// safe methods change nothing by their definition.
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}
