package inbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// minSilence is the shortest silence that is an alarm.
	minSilence = 10 * time.Second
	// silenceLease is how long a worker has the record of a source to itself. It
	// gives it back at once.
	silenceLease = 5 * time.Second
	// silenceSaved is the least step in which the instant of the last delivery is
	// stored.
	silenceStep = time.Second
)

// pulse is when a source sent something last, among all workers, and whether it
// was told that it sends nothing. Where the store has positions it is kept there,
// so that a restart forgets neither: an instant by the clock of the worker that
// saw the delivery (clocks that differ by part of Silence do no harm), and the
// word "silent" once that was told.
type pulse struct {
	*beside
	source  string
	silence time.Duration
	last    atomic.Int64 // Unix milliseconds of the last delivery here
	record  string       // where the store has no positions
}

// beat notes a delivery. A nil pulse has no alarm.
func (p *pulse) beat() {
	if p != nil {
		p.last.Store(time.Now().UnixMilli())
	}
}

// watch looks ten times in the time of a silence.
func (p *pulse) watch(ctx context.Context) {
	for p.look(ctx); pause(ctx, min(max(p.silence/10, time.Second), time.Minute)); {
		p.look(ctx)
	}
}

// look is one round.
func (p *pulse) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, silenceLease)
	defer cancel()
	record, mine, err := p.record, true, error(nil)
	if p.positions != nil {
		record, mine, err = p.positions.Position(ctx, p.position(), p.worker, silenceLease)
	}
	if err != nil || !mine {
		return // another worker looks, or the next round does
	}
	next, said := p.judge(record, time.Now())
	if said != nil {
		p.opts.Log.Warn(said.Text, "source", p.source, "over", said.Over)
		p.alert(*said)
	}
	p.record = next
	if p.positions != nil {
		// An error is made good by the next round: at worst it is told twice.
		_ = p.positions.SavePosition(ctx, p.position(), p.worker, next, time.Millisecond)
	}
}

func (p *pulse) position() string { return "silence/" + p.source }

// judge makes the next record out of the last one, and what is to be told.
func (p *pulse) judge(record string, now time.Time) (next string, said *Condition) {
	stamp, word, _ := strings.Cut(record, " ")
	last, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		last = now.UnixMilli() // never seen: its time begins
	}
	silent := word == "silent"
	here := p.last.Load()
	switch {
	case here >= last+silenceStep.Milliseconds() || here > last && silent:
		if last = here; silent {
			silent = false
			said = &Condition{Kind: "silent", Source: p.source, Text: "the source sends again", Over: true}
		}
	case !silent && now.Sub(time.UnixMilli(last)) > p.silence:
		silent = true
		said = &Condition{Kind: "silent", Source: p.source, Text: fmt.Sprintf("nothing came from the source for %v", p.silence)}
	}
	next = strconv.FormatInt(last, 10)
	if silent {
		next += " silent"
	}
	return next, said
}
