package httpkey

import (
	"context"
	"errors"
	"net/http"

	"github.com/unavez/unavez"
)

// Finish ends the work of a handler of [Layer.Lease]: it writes the business
// rows on tx and the answer to w. Both are committed together with the
// operation's outcome, and the answer is frozen. Use its ctx: that of the
// request has ended with the attempt. When the database takes the transaction
// back it runs again, on a new tx and an empty w. An error leaves the operation
// unknown, since the effect outside has happened.
type Finish[Tx any] = func(ctx context.Context, w http.ResponseWriter, tx Tx) error

// Lease serves a handler whose effect is outside the database, such as a call
// to a payment API, in lease mode: see [unavez.Engine.Lease]. run makes the
// outside calls, best each as an [unavez.Step], with no transaction open; r's
// context ends when the lease is lost. Then the finish it returns runs in the
// transaction that commits the outcome. policy says what the next request with
// the key does after an attempt that ended without telling.
//
// An error of run decides like this:
//
//   - an [Error] below 500, but not 408, 425 and 429: the outside said no for
//     good. It is frozen like an answer.
//   - an error of [unavez.NeverStarted]: nothing was sent, the key is free. The
//     answer is the [Error] around or in it, or 503 with Retry-After.
//   - any other error: the operation is unknown, 409.
//
// Requests that are not keyed are refused: this handler needs a key, whatever
// the method.
func (l *Layer[Tx]) Lease(policy unavez.Unknown, run func(r *http.Request, attempt *unavez.Attempt) (Finish[Tx], error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k := &leasedWork[Tx]{policy: policy}
		x := &k.x
		if problem := x.admit(l.edge, w, r); problem != nil {
			x.fail(problem)
			return
		}
		x.op.Unknown = policy
		x.op.ClaimByLease = l.edge.ClaimByLease && policy == unavez.Unknown(unavez.Retry)
		defer k.close()
		out, err := l.engine.Lease(r.Context(), x.op, func(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, error) {
			x.rewind()
			finish, err := run(x.r.WithContext(ctx), attempt)
			k.finish = finish
			return unavez.Result{Code: http.StatusOK}, k.refusal(err)
		}, k.record)
		k.answers(out, err)
	})
}

// leasedWork is one run of a handler of Lease.
type leasedWork[Tx any] struct {
	work[Tx]
	policy unavez.Unknown
	finish Finish[Tx] // nil when a probe has ended the operation
}

// refusal turns the error of run into the engine's words.
func (k *leasedWork[Tx]) refusal(err error) error {
	var p *Error
	if err == nil || !errors.As(err, &p) || p.Status >= 500 || passing(p.Status) || unavez.IsNeverStarted(err) {
		return err
	}
	k.reset()
	k.failed = &failure{problem: problemOf(err, http.StatusInternalServerError, TypeInternal), err: err}
	k.answer = k.rec.replace(k.failed.problem, k.x.Docs)
	return unavez.Refuse(k.answer.freeze(k.rec.base, k.x.ResponseLimit), k.failed)
}

// reset takes a new recorder.
func (k *leasedWork[Tx]) reset() {
	k.close()
	k.rec = newRecorder(k.x.w.Header(), k.x.ResponseLimit, k.x.SpoolLimit)
	k.answer, k.failed = nil, nil
}

// record is the finish in the engine's form: it freezes what the handler
// answers.
func (k *leasedWork[Tx]) record(ctx context.Context, tx Tx, result *unavez.Result) error {
	if k.finish == nil {
		return nil
	}
	k.reset()
	err := k.finish(ctx, k.rec, tx)
	if err != nil {
		return err
	}
	if k.answer, err = k.rec.finish(); err != nil {
		return err
	}
	*result = k.answer.freeze(k.rec.base, k.x.ResponseLimit)
	return nil
}

// answers by what became of the operation.
func (k *leasedWork[Tx]) answers(out unavez.Outcome, err error) {
	x := &k.x
	code := unavez.CodeOf(err)
	switch {
	case err == nil:
		k.end(out, nil)
	case unavez.IsNeverStarted(err) && code == unavez.CodeInternal:
		problem := problemOf(err, http.StatusServiceUnavailable, TypeNotStarted)
		if problem.Status >= 500 && problem.Header.Get("Retry-After") == "" {
			c := *problem
			c.Header = c.Header.Clone()
			if c.Header == nil {
				c.Header = http.Header{}
			}
			c.Header.Set("Retry-After", "1")
			problem = &c
		}
		x.fail(problem)
	default:
		problem := engineProblem(err)
		if code == unavez.CodeUnknown && k.policy != nil && k.policy != unavez.Unknown(unavez.Hold) {
			problem.nextDecides()
		}
		x.fail(problem)
	}
}
