package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// runner runs the lines of a random list over a store, over its workers in turn.
type runner[Tx any] struct {
	b    *bed[Tx]
	open [randomKeys]store.Txn[Tx]
}

func newRunner[Tx any](b *bed[Tx]) *runner[Tx] {
	r := &runner[Tx]{b: b}
	b.Cleanup(func() {
		for _, txn := range r.open {
			if txn != nil {
				if err := txn.Rollback(b.Context()); err != nil {
					b.Logf("rollback: %v", err)
				}
			}
		}
	})
	return r
}

func identityOf(key int) store.Identity {
	return store.Identity{Tenant: "random", Effect: "order.create.v1", Parts: []string{"k", fmt.Sprint(key)}}
}

// payloadOf is the fingerprint of a payload, different within its first 8 bytes.
func payloadOf(key, variant int) string { return fmt.Sprintf("k%d-v%d-payload", key, variant) }
func rowOf(a action) string             { return fmt.Sprintf("row%d", a.n) }
func derivedOf(a action) string         { return fmt.Sprintf("derived-%d", a.n) }
func resultOf(a action) string          { return fmt.Sprintf("result %d", a.n) }

func (r *runner[Tx]) gate(a action) store.Gate {
	id := identityOf(a.key)
	return store.Gate{
		Identity: id, Key: id.Key(), Fingerprint: store.Fingerprint{Version: 1, Sum: []byte(payloadOf(a.key, a.payload))},
		From: a.fence, Limit: patience, Retention: randomRetention, Tombstone: randomTombstone,
	}
}

// endOf is the end of a transaction; it differs from line to line.
func endOf(a action) store.End {
	return store.End{State: a.state, Unwritten: a.strict, Result: store.Result{
		Code: 200 + a.n%300, Body: fmt.Appendf(nil, "body %d", a.n),
	}}
}

func (r *runner[Tx]) do(a action) string {
	b, key := r.b, identityOf(a.key).Key()
	worker := b.worker(a.n)
	attempts := b.claimer(a.n)
	switch a.kind {
	case kindBegin:
		txn, v, err := worker.Begin(b.ctx, r.gate(a))
		if txn == nil {
			return textVerdict(v, err)
		}
		r.open[a.key] = txn
		return textVerdict(v, err) + " runs"
	case kindCommit:
		txn := r.open[a.key]
		r.open[a.key] = nil
		return r.work(a, txn)
	case kindRollback:
		txn := r.open[a.key]
		r.open[a.key] = nil
		if a.write {
			if err := b.Write(b.ctx, txn.Tx(), rowOf(a)); err != nil {
				return textError(err)
			}
		}
		return textError(txn.Rollback(b.ctx))
	case kindJoin:
		return r.join(a, worker)
	case kindLook:
		return textVerdict(worker.Look(b.ctx, key))
	case kindSettle:
		return textVerdict(worker.Settle(b.ctx, key))
	case kindPeek:
		return r.peek(worker)
	case kindClaim:
		claim := store.Claim{Gate: r.gate(a), Lease: randomLease, DerivedKey: derivedOf(a)}
		attempt, v, err := attempts.Claim(b.ctx, claim)
		if attempt == nil {
			return textVerdict(v, err)
		}
		return "granted " + textVerdict(store.Verdict{State: attempt.State, Attempt: attempt}, err)
	case kindRenew:
		return textError(attempts.Renew(b.ctx, key, a.fence, randomLease))
	case kindRest:
		return textError(attempts.Rest(b.ctx, key, a.fence, store.Rest{State: a.state, Reason: "random", DueIn: a.d}))
	case kindStep:
		step := store.Step{Name: a.name, Done: a.strict}
		if a.strict {
			step.Result = []byte(resultOf(a))
		}
		return textError(attempts.SaveStep(b.ctx, key, a.fence, step))
	case kindSteps:
		return textSteps(attempts.Steps(b.ctx, key))
	case kindFinish:
		txn, err := attempts.Finish(b.ctx, r.gate(a), a.fence)
		if err != nil {
			return textError(err)
		}
		return r.work(a, txn)
	}
	return r.operate(a, key)
}

// work writes on an open transaction and ends it.
func (r *runner[Tx]) work(a action, txn store.Txn[Tx]) string {
	b := r.b
	if a.write {
		if err := b.Write(b.ctx, txn.Tx(), rowOf(a)); err != nil {
			return errors.Join(err, txn.Rollback(b.ctx)).Error()
		}
	}
	if !a.ends {
		if err := txn.Rollback(b.ctx); err != nil {
			return textError(err)
		}
		return "rolled back"
	}
	o, err := txn.Commit(b.ctx, endOf(a))
	if errors.Is(err, store.ErrWrote) {
		return "wrote"
	}
	if err != nil {
		return textError(err)
	}
	return textVerdict(store.Verdict{State: o.State, Outcome: o}, nil)
}

func (r *runner[Tx]) join(a action, worker store.Ledger[Tx]) string {
	b := r.b
	f := b.caller()
	// A transaction belongs to the worker that opened it, the first one.
	joined, v, err := b.Ledger.Join(b.ctx, f.tx, r.gate(a))
	if joined == nil {
		b.must("rollback", f.rollback())
		return textVerdict(v, err)
	}
	if a.write {
		b.must("Write", b.Write(b.ctx, f.tx, rowOf(a)))
	}
	found := textVerdict(v, err) + " runs: "
	if !a.ends {
		joined.Leave()
		b.must("rollback", f.rollback())
		return found + "rolled back"
	}
	o, err := joined.Finish(b.ctx, endOf(a))
	if err != nil {
		b.must("rollback", f.rollback())
		return found + textError(err)
	}
	b.must("commit", f.commit())
	return found + textVerdict(store.Verdict{State: o.State, Outcome: o}, nil)
}

func (r *runner[Tx]) peek(worker store.Ledger[Tx]) string {
	var keys []store.Key
	for key := range randomKeys {
		keys = append(keys, identityOf(key).Key())
	}
	states, err := worker.Peek(r.b.ctx, keys)
	if err != nil {
		return textError(err)
	}
	var flags []string
	for _, state := range states {
		flags = append(flags, fmt.Sprint(state == store.Processing))
	}
	return strings.Join(flags, " ")
}

// operate runs the lines that are no worker's.
func (r *runner[Tx]) operate(a action, key store.Key) string {
	b := r.b
	switch a.kind {
	case kindAct:
		act := store.Action{Key: key, Fence: a.fence, Actor: "ana", Reason: "random"}
		if a.name == actComplete {
			return textError(b.ops.Complete(b.ctx, act, endOf(a).Result, randomRetention, randomTombstone))
		}
		if a.name == actDiscard {
			return textError(b.ops.Discard(b.ctx, act, randomRetention, randomTombstone))
		}
		return textError(b.act(a.name, act))
	case kindShow:
		record, _, steps, err := b.ops.Show(b.ctx, key)
		if err != nil {
			return textError(err)
		}
		return r.record(record) + " " + textSteps(steps, nil)
	case kindList:
		return r.list(a)
	case kindCounts:
		c, err := b.ops.Counts(b.ctx)
		if err != nil {
			return textError(err)
		}
		return textCounts(c.Unfinished[store.Processing]+c.Unfinished[store.Unknown],
			c.Unfinished[store.Retryable], c.Unfinished[store.Parked], c.Unfinished[store.Dead])
	case kindPurge:
		b.purgeAll()
	case kindExpire:
		return r.expire()
	case kindAdvance:
		b.Advance(b.T, a.d)
	case kindRows:
		rows := slices.Clone(b.Rows(b.T))
		slices.Sort(rows)
		return strings.Join(rows, " ")
	}
	return "ok"
}

func (r *runner[Tx]) list(a action) string {
	records, err := r.b.ops.List(r.b.ctx, store.Filter{States: a.states})
	if err != nil {
		return textError(err)
	}
	var lines []string
	for _, record := range records {
		lines = append(lines, r.record(record))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func (r *runner[Tx]) record(record store.Record) string {
	state := record.State
	if state == store.Processing && record.LeaseLeft <= 0 {
		state = store.Unknown
	}
	for key := range randomKeys {
		if identityOf(key).Key() == record.Key && identityOf(key).Text() == record.Identity.Text() {
			return textRecord(key, state, record.Attempt, record.Code, record.Size)
		}
	}
	return "a record of no operation: " + record.Identity.Text()
}

func (r *runner[Tx]) expire() string {
	var keys []string
	for {
		expired, err := r.b.upkeep.Expire(r.b.ctx, 2)
		if err != nil {
			return textError(err)
		}
		for _, attempt := range expired {
			keys = append(keys, attempt.Identity.Parts[0]+attempt.Identity.Parts[1])
		}
		if len(expired) < 2 {
			slices.Sort(keys)
			return fmt.Sprint(keys)
		}
	}
}

// The texts of a transcript. Times are rounded, since a clock may run while the
// list does; reasons that package store does not fix are left out.

func textTime(d time.Duration) string { return max(d.Round(5*time.Minute), 0).String() }

func textOutcome(state store.State, code int, body, payload string, attempt int64, left time.Duration) string {
	return fmt.Sprintf("%v code=%d body=%q payload=%s attempt=%d left=%s", state, code, body, payload, attempt, textTime(left))
}

func textAttempt(state store.State, fence int64, payload, derived string, lease, due time.Duration) string {
	s := fmt.Sprintf("%v fence=%d payload=%s %s", state, fence, payload, derived)
	switch state {
	case store.Processing:
		s += " left=" + textTime(lease)
	case store.Retryable:
		s += " due=" + textTime(due)
	}
	return s
}

func textVerdict(v store.Verdict, err error) string {
	switch {
	case err != nil:
		return textError(err)
	case v.Outcome != nil:
		o := v.Outcome
		return textOutcome(o.State, o.Result.Code, string(o.Result.Body), string(o.Fingerprint.Sum), o.Attempt, o.Left)
	case v.Attempt != nil:
		a := v.Attempt
		return textAttempt(v.State, a.Fence, string(a.Fingerprint.Sum), a.DerivedKey, a.LeaseLeft, a.DueIn)
	case v.State == store.Expired:
		return "expired short=" + string(v.Short)
	}
	return v.State.String()
}

func textRecord(key int, state store.State, attempt int64, code, size int) string {
	return fmt.Sprintf("k%d %v attempt=%d code=%d size=%d", key, state, attempt, code, size)
}

func textCounts(running, retryable, parked, dead int64) string {
	return fmt.Sprintf("running or unknown %d, retryable %d, parked %d, dead %d", running, retryable, parked, dead)
}

func textStep(name string, done bool, fence int64, result string) string {
	if done {
		return fmt.Sprintf("%s done by %d: %s", name, fence, result)
	}
	return fmt.Sprintf("%s begun by %d", name, fence)
}

func textSteps(steps []store.Step, err error) string {
	if err != nil {
		return textError(err)
	}
	var texts []string
	for _, s := range steps {
		texts = append(texts, textStep(s.Name, s.Done, s.Fence, string(s.Result)))
	}
	return fmt.Sprint(texts)
}

// textError names the error by which a caller decides.
func textError(err error) string {
	if err == nil {
		return "ok"
	}
	for _, known := range []error{
		store.ErrDuplicate, store.ErrLeaseLost, store.ErrWrote, store.ErrAborted, store.ErrForeignCommit, store.ErrLimit,
		store.ErrCommitUnknown, store.ErrUnavailable, store.ErrDamaged, store.ErrNotFound, store.ErrConflict,
	} {
		if errors.Is(err, known) {
			return "error: " + known.Error()
		}
	}
	return "error: " + err.Error()
}
