package server

import (
	"context"
	_ "embed" // the sample is a file of its own
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/observe"
)

// DefaultFile is read when no configuration is named.
const DefaultFile = "unavez.yaml"

//go:embed sample.yaml
var sample string

// Sample is a small configuration to start from.
func Sample() string { return sample }

// loaded is a configuration with the bytes it was made of.
type loaded struct {
	config  *config.Config
	name    string
	data    string
	example bool
}

// ConfigError is a configuration with faults, ready to be shown.
type ConfigError struct {
	// File that was read.
	File string
	// Faults of it, by line.
	Faults config.Faults
}

// Error lists every fault in the form FILE:LINE: FIELD: TEXT.
func (e *ConfigError) Error() string {
	text := ""
	for _, f := range e.Faults {
		at := e.File
		if f.Line > 0 {
			at = fmt.Sprintf("%s:%d", e.File, f.Line)
		}
		field := ""
		if f.Field != "" {
			field = f.Field + ": "
		}
		text += fmt.Sprintf("%s: %s%s\n", at, field, f.Text)
	}
	plural := "s"
	if len(e.Faults) == 1 {
		plural = ""
	}
	return fmt.Sprintf("%s%s: %d fault%s", text, e.File, len(e.Faults), plural)
}

// UsageError says that a command was given wrongly: it names a configuration
// that cannot be read, no store or two. Nothing was looked at.
type UsageError struct{ error }

// Unwrap gives the cause.
func (e UsageError) Unwrap() error { return e.error }

// load finds the configuration that Serve is to start with.
func load(o *Options) (*loaded, error) {
	name := o.File
	if name == "" {
		name = DefaultFile
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return exampleConfig(o)
		}
	}
	return read(name, o)
}

// read reads and checks one file. The addresses of the options win.
func read(name string, o *Options) (*loaded, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, UsageError{fmt.Errorf("configuration: %w", err)}
	}
	c, err := config.Parse(data, config.Environment{})
	var faults config.Faults
	if errors.As(err, &faults) {
		return nil, &ConfigError{File: name, Faults: faults}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if o.Listen != "" {
		c.Listen = o.Listen
	}
	if o.AdminListen != "" {
		if !config.Loopback(o.AdminListen) && c.Admin.Token.Empty() {
			return nil, fmt.Errorf("admin listener: %s is reachable from other hosts (set admin.token, or listen on 127.0.0.1)", o.AdminListen)
		}
		c.Admin.Listen = o.AdminListen
	}
	return &loaded{config: c, name: name, data: string(data)}, nil
}

// Check reads a configuration and reports every fault of it as a *ConfigError,
// without opening anything; else what it is accepted with, a line each.
func Check(file string) (warnings []string, err error) {
	l, err := read(file, &Options{})
	if err != nil {
		return nil, err
	}
	for _, w := range l.config.Warnings {
		warnings = append(warnings, fmt.Sprintf("%s:%d: warning: %s: %s", file, w.Line, w.Field, w.Text))
	}
	return warnings, nil
}

// watch takes new configurations over until the context ends: when asked to,
// and when the file's bytes have changed.
func (p *process) watch(ctx context.Context, first *loaded) {
	seen := first.data
	tick := time.NewTicker(p.opts.Poll)
	defer tick.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-p.opts.Reload:
			asked = true
		case <-tick.C:
		}
		data, err := os.ReadFile(first.name)
		if err != nil {
			if asked {
				p.refuse(err)
			}
			continue // an editor may be replacing it
		}
		if !asked && string(data) == seen {
			continue
		}
		seen = string(data)
		p.reload(ctx, first.name)
	}
}

// reload puts a new site in the old one's place, or leaves everything as it is.
func (p *process) reload(ctx context.Context, name string) {
	next, err := read(name, &p.opts)
	if err == nil {
		err = p.unchangeable(next)
	}
	var s *site
	if err == nil {
		s, err = p.build(ctx, next)
	}
	if err != nil {
		p.refuse(err)
		return
	}
	p.level.Set(observe.Level(next.config.Log.Level))
	p.warn(next)
	if s.intake != nil && s.intake == p.intake() {
		s.intake.rotate(next.config)
	} else if s.intake != nil {
		if err := s.intake.Start(ctx); err != nil { // the process stops
			s.close()
			p.refuse(errors.Join(err, s.intake.end(ctx)))
			return
		}
	}
	old := p.site.Swap(s)
	old.close()
	if old.intake != s.intake {
		p.retire(ctx, old.intake)
	}
	p.metrics.Reloaded(true)
	if !sameScopes(old.config.Auth, next.config.Auth) {
		p.log.Warn("auth has changed: where it names callers differently, a key used before is a new operation now",
			"configuration", name)
	}
	p.log.Info("reloaded", "configuration", name, "routes", len(next.config.HTTP), "sources", len(next.config.Sources), "effects", len(next.config.Effects))
}

// retire ends an intake whose place another one has taken, beside everything else.
func (p *process) retire(ctx context.Context, old *intake) {
	limit := p.site.Load().config.Limits.Drain
	p.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if err := old.end(ctx); err != nil {
			p.log.Warn("the inbox of the configuration before has not ended well", "error", err)
		}
	})
}

// warn tells what a configuration is accepted with.
func (p *process) warn(l *loaded) {
	for _, w := range l.config.Warnings {
		p.log.Warn("configuration", "file", l.name, "line", w.Line, "field", w.Field, "warning", w.Text)
	}
}

// sameScopes reports whether two configurations name callers alike, as far as
// they tell: a key belongs to its caller's tenant and principal.
func sameScopes(a, b config.Auth) bool {
	for _, auth := range []*config.Auth{&a, &b} {
		auth.Timeout, auth.Identify = 0, config.Identify{}
	}
	return reflect.DeepEqual(a, b)
}

func (p *process) refuse(err error) {
	p.metrics.Reloaded(false)
	var faulty *ConfigError
	if !errors.As(err, &faulty) {
		p.log.Error("configuration refused, the old one goes on", "error", err)
		return
	}
	lines := make([]string, len(faulty.Faults))
	for i, f := range faulty.Faults {
		lines[i] = f.String()
	}
	p.log.Error("configuration refused, the old one goes on", "file", faulty.File, "faults", lines)
}

// unchangeable names what a running process cannot change.
func (p *process) unchangeable(next *loaded) error {
	old, c := p.started, next.config
	var faults config.Faults
	fault := func(field string, same bool) {
		if !same {
			faults = append(faults, config.Fault{Field: field, Text: "cannot change while running: restart to take it over"})
		}
	}
	fault("store", old.Store == c.Store)
	fault("lease", old.Lease == c.Lease)
	fault("listen", old.Listen == c.Listen)
	fault("admin.listen", old.Admin.Listen == c.Admin.Listen)
	fault("unsafe", slices.Equal(old.Unsafe, c.Unsafe))
	fault("log.format", old.Log.Format == c.Log.Format)
	before, after := old.Limits, c.Limits
	before.Drain, after.Drain = 0, 0
	fault("limits", before == after)
	if len(faults) > 0 {
		return &ConfigError{File: next.name, Faults: faults}
	}
	return nil
}
