package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez"
)

// Alerts tells people of what needs them, by a webhook.
type Alerts struct {
	// URL that is called.
	URL string `yaml:"url"`
	// Secrets sign the call by Standard Webhooks; all of them, while one is
	// rotated.
	Secrets []Secret `yaml:"secrets"`
	// Headers of the call.
	Headers map[string]Secret `yaml:"headers"`
	// Timeout of the answer.
	Timeout time.Duration `yaml:"timeout"`
	// Silence is that of sources which set none; 0 means never.
	Silence time.Duration `yaml:"silence"`
	// Kinds of conditions that are told; none means all.
	Kinds []string `yaml:"kinds"`
}

// Inbox is how entries are received and run.
type Inbox struct {
	// Worker is this worker's name among those on one database; empty means one
	// of its own.
	Worker string `yaml:"worker"`
	// Lease is how long its lanes stay its own when it stops answering.
	Lease time.Duration `yaml:"lease"`
	// Flush bounds how long an arrival waits for others to share its commit.
	Flush time.Duration `yaml:"flush"`
	// FlushSize bounds the entries of one commit.
	FlushSize int `yaml:"flush_size"`
	// Poll is how long the queue is left alone when nothing wakes the reader.
	Poll time.Duration `yaml:"poll"`
	// Concurrency bounds the entries that run at one time.
	Concurrency int `yaml:"concurrency"`
	// Window bounds the entries that are read ahead.
	Window int `yaml:"window"`
	// Retention of effects that set none.
	Retention time.Duration `yaml:"retention"`
	// Tombstone of effects that set none.
	Tombstone time.Duration `yaml:"tombstone"`
}

// Kinds of conditions that an alert tells.
func Kinds() []string { return []string{"dead", "held", "silent", "full", "conflict"} }

// inbox checks what is received and what becomes of it.
func (c *checker) inbox() {
	if a := c.config.Alerts; a != nil {
		c.alerts(a)
	}
	c.inboxOptions(&c.config.Inbox)
	for i := range c.config.Sources {
		c.source(fmt.Sprintf("sources[%d]", i), &c.config.Sources[i])
	}
	if len(c.config.Sources) > 0 && len(c.config.Effects) == 0 {
		c.fault("effects", "missing: nothing would become of what the sources receive (write effects: [{name: order.import.v1, send: {url: http://…}, unknown: hold}])")
	}
	if len(c.config.Effects) > 0 && len(c.config.Sources) == 0 {
		c.fault("effects", "given, but there are no sources for their events")
	}
	first := map[string]int{}
	wanted := map[string]bool{}
	for i := range c.config.Effects {
		e := &c.config.Effects[i]
		path := fmt.Sprintf("effects[%d]", i)
		c.effect(path, e)
		if other, ok := first[e.Name]; ok && e.Name != "" {
			c.fault(path+".name", "%q is effects[%d] already", e.Name, other)
		}
		first[e.Name] = i
		for _, name := range e.Wants {
			wanted[name] = true
		}
	}
	for i, s := range c.config.Sources {
		if len(c.config.Effects) > 0 && !wanted[s.Name] && s.Name != "" {
			c.warn(fmt.Sprintf("sources[%d]", i), "no effect can want an event of %s: all it sends is acknowledged and ignored", s.Name)
		}
	}
}

func (c *checker) alerts(a *Alerts) {
	if a.URL == "" {
		c.fault("alerts.url", "missing (write url: https://hooks.example/unavez)")
	} else {
		c.target("alerts.url", a.URL)
	}
	c.signingSecrets("alerts.secrets", a.Secrets)
	if len(a.Secrets) == 0 {
		c.fault("alerts.secrets", "missing: who gets an alert must be able to tell that it is one (write secrets: [\"${ALERT_SECRET}\"], a whsec_ of Standard Webhooks)")
	}
	c.headers("alerts.headers", a.Headers)
	set(&a.Timeout, DefaultAlertTimeout)
	within(c, "alerts.timeout", a.Timeout, 100*time.Millisecond, time.Minute)
	if a.Silence != 0 {
		within(c, "alerts.silence", a.Silence, minSilence, maxSilence)
	}
	for i, kind := range a.Kinds {
		c.word(fmt.Sprintf("alerts.kinds[%d]", i), kind, Kinds()...)
	}
	if len(a.Kinds) == 0 {
		a.Kinds = Kinds()
	}
}

func (c *checker) inboxOptions(o *Inbox) {
	if len(o.Worker) > 200 || strings.ContainsFunc(o.Worker, func(r rune) bool { return r <= ' ' || r > '~' }) {
		c.fault("inbox.worker", "want 1 to 200 printable characters without spaces, and another name for each worker (${HOSTNAME})")
	}
	set(&o.Lease, DefaultLaneLease)
	set(&o.Flush, DefaultFlush)
	set(&o.FlushSize, DefaultFlushSize)
	set(&o.Poll, DefaultPoll)
	set(&o.Concurrency, DefaultConcurrency)
	set(&o.Window, DefaultWindow)
	if !c.given("inbox.tombstone") {
		o.Tombstone = DefaultInboxTombstone
	}
	within(c, "inbox.lease", o.Lease, time.Second, 10*time.Minute)
	within(c, "inbox.flush", o.Flush, 100*time.Microsecond, time.Second)
	within(c, "inbox.flush_size", o.FlushSize, 1, 1000)
	within(c, "inbox.poll", o.Poll, time.Millisecond, time.Minute)
	within(c, "inbox.concurrency", o.Concurrency, 1, 1000)
	within(c, "inbox.window", o.Window, 1, 100_000)
	within(c, "inbox.tombstone", o.Tombstone, time.Second, unavez.MaxRetention)
	if o.Retention != 0 {
		within(c, "inbox.retention", o.Retention, unavez.MinRetention, unavez.MaxRetention)
	}
	if len(c.config.Sources) == 0 && (c.given("inbox") || c.given("alerts")) {
		field := "inbox"
		if !c.given(field) {
			field = "alerts"
		}
		c.fault(field, "given, but there are no sources")
	}
}

// Defaults of the inbox.
const (
	DefaultBodyLimit      = 1 << 20
	DefaultLaneLease      = 10 * time.Second
	DefaultFlush          = 2 * time.Millisecond
	DefaultFlushSize      = 500
	DefaultPoll           = 250 * time.Millisecond
	DefaultConcurrency    = 16
	DefaultWindow         = 2000
	DefaultInboxRetention = 7 * 24 * time.Hour // or twice the longest window of its senders
	DefaultInboxTombstone = 90 * 24 * time.Hour
	DefaultGapWait        = time.Hour
	DefaultRetryFirst     = time.Second
	DefaultRetryLongest   = 5 * time.Minute
	DefaultRetryAttempts  = 20
	DefaultRetryAge       = 3 * 24 * time.Hour
	DefaultFetchTimeout   = 10 * time.Second
	DefaultReconcile      = 5 * time.Minute
	DefaultOverlap        = 10 * time.Minute
	DefaultListTimeout    = 30 * time.Second
	DefaultAlertTimeout   = 10 * time.Second
)

// Effect finds an effect by its name, nil if there is none.
func (c *Config) Effect(name string) *Effect {
	i := slices.IndexFunc(c.Effects, func(e Effect) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Effects[i]
}
