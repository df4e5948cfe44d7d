package unavez

import (
	"context"
	"sync/atomic"
	"time"
)

// Bounds of the recording of what has happened: commit, rollback and finding out
// about a lost commit go on when the caller is gone, for recordLimit at most and
// for recordStep less at least.
const (
	recordLimit = 10 * time.Second
	recordStep  = time.Second
)

// recordings gives out the contexts of recordings. Those that begin within
// recordStep share one deadline: a timer for each is a tenth of what a small
// operation costs.
type recordings struct {
	open atomic.Pointer[deadline]
}

// deadline is one that recordings share.
type deadline struct {
	context.Context
	cancel context.CancelFunc
	last   time.Time // no recording joins after that
}

// begin is the context of a recording that begins now, with the values of ctx.
func (r *recordings) begin(ctx context.Context) context.Context {
	now := time.Now()
	d := r.open.Load()
	if d == nil || now.After(d.last) {
		d = &deadline{last: now.Add(recordStep)}
		d.Context, d.cancel = context.WithDeadline(context.Background(), now.Add(recordLimit))
		r.open.Store(d) // what another caller has stored meanwhile ends by itself
	}
	return recording{Context: d.Context, values: ctx}
}

// close ends what is shared, when no call is left.
func (r *recordings) close() {
	if d := r.open.Swap(nil); d != nil {
		d.cancel()
	}
}

// recording ends with its deadline, whatever becomes of the context of its values.
type recording struct {
	context.Context
	values context.Context
}

// Value asks the deadline first: by a key of its own, package context finds what
// may be cancelled, and that is not the caller's context.
func (r recording) Value(key any) any {
	if v := r.Context.Value(key); v != nil {
		return v
	}
	return r.values.Value(key)
}
