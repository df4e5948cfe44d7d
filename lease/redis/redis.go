package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez/lease"
)

// The defaults of Options.
const (
	DefaultPrefix  = "unavez:lease:"
	DefaultTimeout = 250 * time.Millisecond
	DefaultPause   = time.Second
)

// ErrPaused says that Redis is left alone since a call had no answer; see
// Options.Pause.
var ErrPaused = errors.New("left alone after a call without an answer")

// Options of a lease. The zero value of every field means its default.
type Options struct {
	// Prefix of all keys, 1 to 64 printable ASCII characters without braces and
	// spaces; default DefaultPrefix. Each database needs one of its own.
	Prefix string
	// Timeout bounds each call, 1 ms to 1 min; default DefaultTimeout. It is
	// what an operation may lose to a Redis that hangs.
	Timeout time.Duration
	// Pause is how long Redis is left alone after a call without an answer, at
	// most 1 min; default DefaultPause, negative means not at all.
	Pause time.Duration
}

// Leaser keeps leases in Redis. Its methods may be called concurrently. Close
// it if it came from [Open].
type Leaser struct {
	client  goredis.UniversalClient
	owned   bool
	prefix  string
	timeout time.Duration
	scripts scripts
	quiet   *quiet
}

var (
	_ lease.Leaser = (*Leaser)(nil)
	_ lease.Marker = (*Leaser)(nil)
)

// New makes a lease over a client, which stays the caller's to close; nil
// options mean the defaults. The client must have MaxRetries -1 and
// ContextTimeoutEnabled, which are not go-redis' defaults: with those a call to
// a Redis that hangs goes on for many seconds after its context has ended. Faults
// are reported all at once. [Open] makes a client as it should be.
func New(client goredis.UniversalClient, opts *Options) (*Leaser, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Pause == 0 {
		o.Pause = DefaultPause
	}
	faults := clientFaults(client)
	fault := func(format string, arguments ...any) { faults = append(faults, fmt.Errorf(format, arguments...)) }
	strange := func(c rune) bool { return c <= ' ' || c > '~' || c == '{' || c == '}' }
	if len(o.Prefix) > 64 || strings.ContainsFunc(o.Prefix, strange) {
		fault("Prefix: %q, want at most 64 printable ASCII characters without braces and spaces", o.Prefix)
	}
	if o.Timeout < time.Millisecond || o.Timeout > time.Minute {
		fault("Timeout: %v, want 1ms to 1m", o.Timeout)
	}
	if o.Pause > time.Minute {
		fault("Pause: %v, want at most 1m", o.Pause)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("lease redis: %w", errors.Join(faults...))
	}
	return &Leaser{
		client: client, prefix: o.Prefix, timeout: o.Timeout,
		scripts: newScripts(), quiet: newQuiet(client, max(o.Pause, 0)),
	}, nil
}

// clientFaults finds what a client of go-redis' own kinds must not do.
func clientFaults(client goredis.UniversalClient) (faults []error) {
	var retries int
	var timed bool
	switch c := client.(type) {
	case nil:
		return []error{errors.New("no client (pass one, or use Open)")}
	case *goredis.Client: // it reads -1 as 0 retries
		retries, timed = c.Options().MaxRetries, c.Options().ContextTimeoutEnabled
	case *goredis.Ring:
		retries, timed = c.Options().MaxRetries, c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		retries, timed = max(c.Options().MaxRetries, 0), c.Options().ContextTimeoutEnabled
	default: // a wrapper: its maker knows
		return nil
	}
	if retries != 0 {
		faults = append(faults, fmt.Errorf("client: MaxRetries is %d (set it to -1)", retries))
	}
	if !timed {
		faults = append(faults, errors.New("client: it ignores contexts (set ContextTimeoutEnabled)"))
	}
	return faults
}

// Close closes the client if [Open] made it. It is safe to call twice.
func (l *Leaser) Close() error {
	if !l.owned {
		return nil
	}
	if err := l.client.Close(); err != nil && !errors.Is(err, goredis.ErrClosed) {
		return fmt.Errorf("lease redis: close: %w", err)
	}
	return nil
}

// Acquire takes a lease that is free or the token's own. A token may have up to
// 255 bytes, a fingerprint up to 64.
func (l *Leaser) Acquire(ctx context.Context, key string, value lease.Value, life time.Duration) (bool, lease.Value, time.Duration, error) {
	encoded, err := encode(value)
	if err != nil {
		return false, lease.Value{}, 0, fmt.Errorf("lease redis: acquire: %w", err)
	}
	own := encoded[:len(form)+2+len(value.Token)]
	answer, err := l.run(ctx, "acquire", l.scripts.acquire, key, own, encoded, milliseconds(life))
	if err != nil {
		return false, lease.Value{}, 0, err
	}
	if answer == int64(1) {
		return true, lease.Value{}, 0, nil
	}
	other, left, err := refusal(answer)
	if err != nil {
		return false, lease.Value{}, 0, fmt.Errorf("lease redis: acquire %s: %w", l.prefix+keyName(key), err)
	}
	return false, other, left, nil
}

// refusal reads what the acquiring script found at the key.
func refusal(answer any) (lease.Value, time.Duration, error) {
	found, _ := answer.([]any)
	if len(found) != 2 {
		return lease.Value{}, 0, fmt.Errorf("answer %v", answer)
	}
	text, isText := found[0].(string)
	left, isNumber := found[1].(int64)
	if !isText || !isNumber {
		return lease.Value{}, 0, fmt.Errorf("answer %v", answer)
	}
	if left < 0 { // nobody's lease: it would be refused for ever
		return lease.Value{}, 0, fmt.Errorf("a value without an end: %w", errForeign)
	}
	value, err := decode(text)
	return value, time.Duration(min(left, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond, err
}

// Renew sets the life anew, counted from now by Redis' clock.
func (l *Leaser) Renew(ctx context.Context, key, token string, life time.Duration) (bool, error) {
	answer, err := l.own(ctx, "renew", l.scripts.renew, key, token, milliseconds(life))
	return answer == int64(1), err
}

// Release deletes the key.
func (l *Leaser) Release(ctx context.Context, key, token string) error {
	_, err := l.own(ctx, "release", l.scripts.release, key, token)
	return err
}

// Complete turns the lease into the mark. Where Redis has no memory for that it
// fails and the lease is free.
func (l *Leaser) Complete(ctx context.Context, key, token string, life time.Duration) error {
	_, err := l.own(ctx, "complete", l.scripts.complete, key, token, milliseconds(life))
	return err
}

// own runs a script that acts on the token's own lease alone.
func (l *Leaser) own(ctx context.Context, call string, script *goredis.Script, key, token string, arguments ...any) (any, error) {
	start, err := head(token)
	if err != nil {
		return nil, fmt.Errorf("lease redis: %s: %w", call, err)
	}
	return l.run(ctx, call, script, key, append([]any{start}, arguments...)...)
}

// run sends one script, unless Redis is left alone.
func (l *Leaser) run(ctx context.Context, call string, script *goredis.Script, key string, arguments ...any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("lease redis: %s: %w", call, err)
	}
	name := keyName(key)
	at := l.quiet.place(name)
	if !l.quiet.enter(at) {
		return nil, fmt.Errorf("lease redis: %s: %w", call, ErrPaused)
	}
	bounded, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	answer, err := script.Run(bounded, l.client, []string{l.prefix + name}, arguments...).Result()
	cause := ctx.Err()
	switch {
	case err == nil || isReply(err):
		l.quiet.answered(at)
	case cause == nil: // else the caller was in a greater hurry than we are
		l.quiet.silent(at)
	}
	if err != nil {
		return nil, fmt.Errorf("lease redis: %s: %w", call, errors.Join(cause, err))
	}
	return answer, nil
}

// isReply tells an error that Redis answered with.
func isReply(err error) bool {
	var reply goredis.Error
	return errors.As(err, &reply)
}

// milliseconds rounds up, to 1 at least: Redis takes no less for a life.
func milliseconds(d time.Duration) int64 {
	whole := d / time.Millisecond
	if d%time.Millisecond > 0 {
		whole++
	}
	return max(int64(whole), 1)
}
