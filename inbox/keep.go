package inbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// keep holds the worker's lanes until ctx ends: a round every third of the lease.
func (in *Inbox[Tx]) keep(ctx context.Context) {
	for {
		pause := in.opts.Lease / 3
		if err := in.keepOnce(ctx); err != nil && ctx.Err() == nil {
			in.log.Warn("inbox: the lanes cannot be kept", "error", err)
			pause = in.opts.Lease / 10
		}
		timer := time.NewTimer(pause)
		select {
		case <-in.round:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// keepOnce renews, takes, gives up and hands back lanes.
func (in *Inbox[Tx]) keepOnce(ctx context.Context) error {
	if err := in.handBack(ctx); err != nil {
		return err
	}
	in.mu.Lock()
	marks, sent := in.marks()
	leaving := in.phase >= stopping
	in.mu.Unlock()
	if leaving && len(marks) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, max(in.opts.Lease/2, minLease))
	defer cancel()
	share, err := in.store.Keep(limited, store.Keeping{Worker: in.opts.Worker, Lease: in.opts.Lease, Marks: marks, Leaving: leaving})
	if err != nil {
		return err
	}
	in.mu.Lock()
	in.share(share, sent)
	if !leaving {
		in.spare(share.Spare)
	}
	in.mu.Unlock()
	if err := in.loadRows(ctx); err != nil {
		return err
	}
	return in.handBack(ctx) // where nothing runs in a spare lane
}

// marks are the lanes that the worker believes to hold, with the cursors that
// are not stored yet. The mutex is held.
func (in *Inbox[Tx]) marks() ([]store.Mark, map[*lane]string) {
	var marks []store.Mark
	sent := map[*lane]string{}
	for _, ln := range in.board.lanes {
		m := store.Mark{Hold: ln.hold}
		if cursor := ln.mark(); ln.loaded && cursor != ln.stored {
			m.Cursor, sent[ln] = cursor, cursor
		}
		marks = append(marks, m)
	}
	return marks, sent
}

// share brings the lanes in line with what the store says. The mutex is held.
func (in *Inbox[Tx]) share(s store.Share, sent map[*lane]string) {
	mine := map[int]bool{}
	for _, held := range s.Held {
		mine[held.Lane] = true
		ln := in.board.lanes[held.Lane]
		switch {
		case ln != nil && ln.hold == held.Hold:
			if cursor := sent[ln]; cursor != "" {
				ln.stored = cursor
			}
		case held.Taken:
			if ln != nil {
				in.lose(ln)
			}
			in.take(held)
		}
	}
	for number, ln := range in.board.lanes {
		if !mine[number] {
			in.lose(ln)
		}
	}
}

// take begins to hold a lane. Nothing of it runs before its blocked rows are
// known. The mutex is held.
func (in *Inbox[Tx]) take(held store.Held) {
	in.board.taken++
	ln := &lane{
		hold: held.Hold, lines: map[store.Key]*line{}, position: held.Cursor, stored: held.Cursor,
		number: in.board.taken, catching: true, doubt: !held.Clean, suspects: in.opts.Window,
	}
	ln.ctx, ln.cancel = context.WithCancel(context.Background())
	in.board.lanes[held.Lane] = ln
	in.opts.Observe(Sight{What: "lane-taken", Reason: cleanly(held.Clean), Count: 1})
}

func cleanly(clean bool) string {
	if clean {
		return "free"
	}
	return "lost"
}

// lose gives a lane up that another worker holds. The mutex is held.
func (in *Inbox[Tx]) lose(ln *lane) {
	in.board.lose(ln)
	in.opts.Observe(Sight{What: "lane-lost", Count: 1})
	poke(in.round)
}

// spare marks lanes to be handed back, those first in which nothing runs. The
// mutex is held.
func (in *Inbox[Tx]) spare(n int) {
	var lanes []*lane
	for _, ln := range in.board.lanes {
		if ln.leaving {
			n--
			continue
		}
		lanes = append(lanes, ln)
	}
	slices.SortFunc(lanes, func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.busy, b.busy), cmp.Compare(len(a.lines), len(b.lines)), cmp.Compare(b.hold.Lane, a.hold.Lane))
	})
	for _, ln := range lanes[:max(min(n, len(lanes)), 0)] {
		ln.leaving = true
	}
}

// handBack frees the spare lanes in which nothing runs any more.
func (in *Inbox[Tx]) handBack(ctx context.Context) error {
	var marks []store.Mark
	in.mu.Lock()
	for _, ln := range in.board.lanes {
		if ln.leaving && ln.busy == 0 {
			marks = append(marks, store.Mark{Hold: ln.hold, Cursor: ln.mark()})
			in.board.lose(ln)
		}
	}
	in.mu.Unlock()
	if len(marks) == 0 {
		return nil
	}
	// Where this fails the lanes are nobody's until somebody takes them.
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	return in.store.HandBack(record, in.opts.Worker, marks, false)
}

// loadRows reads the blocked rows of lanes that were taken, and lets these begin.
func (in *Inbox[Tx]) loadRows(ctx context.Context) error {
	in.mu.Lock()
	var lanes []*lane
	var numbers []int
	for number, ln := range in.board.lanes {
		if !ln.loaded {
			lanes, numbers = append(lanes, ln), append(numbers, number)
		}
	}
	in.mu.Unlock()
	if len(lanes) == 0 {
		return nil
	}
	var after store.Place
	for {
		rows, err := in.waiting(ctx, numbers, after)
		if err != nil {
			return err
		}
		in.mu.Lock()
		for i := range rows {
			if ln := in.board.lanes[rows[i].Lane]; ln != nil && slices.Contains(lanes, ln) {
				in.adopt(ln, &rows[i], true)
			}
		}
		in.mu.Unlock()
		if len(rows) < store.MaxReading {
			break
		}
		after = rows[len(rows)-1].Place
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, ln := range lanes {
		ln.loaded = true
		in.board.queue(ln)
	}
	in.pump()
	poke(in.wake)
	return nil
}

// waiting reads a page of blocked rows.
func (in *Inbox[Tx]) waiting(ctx context.Context, lanes []int, after store.Place) ([]store.Waiting, error) {
	limited, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return in.store.Waiting(limited, lanes, after, store.MaxReading)
}

// otherHistory forgets everything that was read: the database's history is
// another one, and rows that were relied on may be gone. The lanes are taken anew.
func (in *Inbox[Tx]) otherHistory() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, ln := range in.board.lanes {
		in.lose(ln)
	}
}

// watch looks at what waits in the store, until ctx ends: people redrive,
// release, complete and discard operations there, other workers end them.
func (in *Inbox[Tx]) watch(ctx context.Context) {
	var after store.Place
	for {
		began := time.Now()
		rows, err := in.watchPage(ctx, after)
		if err != nil && ctx.Err() == nil {
			in.log.Warn("inbox: what waits cannot be read", "error", err)
		}
		after = store.Place{}
		if len(rows) == store.MaxReading {
			after = rows[len(rows)-1].Place
		}
		in.overdue(time.Now())
		// A tenth of the time at most goes into this.
		pause := jitter(max(4*in.opts.Poll, 10*time.Since(began)))
		timer := time.NewTimer(pause)
		select {
		case <-in.look:
			after = store.Place{}
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (in *Inbox[Tx]) watchPage(ctx context.Context, after store.Place) ([]store.Waiting, error) {
	var numbers []int
	lanes := map[int]*lane{}
	in.mu.Lock()
	for number, ln := range in.board.lanes {
		if ln.loaded && !ln.leaving {
			numbers = append(numbers, number)
			lanes[number] = ln
		}
	}
	ended := in.board.ended
	in.mu.Unlock()
	if len(numbers) == 0 {
		return nil, nil
	}
	rows, err := in.waiting(ctx, numbers, after)
	if err != nil {
		return nil, err
	}
	var over []*Condition
	in.mu.Lock()
	for i := range rows {
		ln := in.board.lanes[rows[i].Lane]
		if ln == nil || ln != lanes[rows[i].Lane] {
			continue
		}
		if l := ln.lines[rows[i].Order]; l != nil && l.ended > ended {
			continue // a task has ended that may have written its rows since they were read
		}
		if c := in.adopt(ln, &rows[i], false); c != nil {
			over = append(over, c)
		}
	}
	in.pump()
	in.mu.Unlock()
	for _, c := range over {
		in.opts.Alert(*c)
	}
	return rows, nil
}

// listen passes on what other workers say, until ctx ends.
func (in *Inbox[Tx]) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := in.store.signal.Listen(ctx, func() { poke(in.wake) })
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			in.log.Debug("inbox: no signals from other workers, polling goes on", "error", err)
		}
		timer := time.NewTimer(jitter(in.opts.Poll + time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// notifyPause bounds how often other workers are woken.
const notifyPause = 5 * time.Millisecond

// notify wakes other workers after appends, until ctx ends. It is a hint, so its
// failures do not matter.
func (in *Inbox[Tx]) notify(ctx context.Context) {
	for {
		select {
		case <-in.tell:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, time.Second)
		_ = in.store.signal.Notify(limited)
		cancel()
		timer := time.NewTimer(notifyPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
