package conform

import (
	"context"
	"net/http"
)

// Target is the service that is tried.
type Target struct {
	// P1 is the base URL of a worker, such as http://127.0.0.1:8080. Required.
	P1 string
	// P2 is that of a second worker on the same store; empty means none.
	P2 string

	// Path, Body and ContentType make the keyed POST of a service that has no
	// control endpoints; the service must answer it with 2xx. Defaults: the
	// path of P1, {} and application/json. Further bytes of white space may be
	// added to the body.
	Path        string
	Body        []byte
	ContentType string
	// Header lines for every request, such as Authorization.
	Header http.Header

	// Control over the workers, for cases that kill or stop them; nil means none.
	Control Control
	// Outage takes the workers' database away; nil means that nobody can.
	Outage Outage
	// Logs gives everything that the workers have logged; nil means unknown.
	Logs func() ([]byte, error)
	// Slack multiplies the times that a service may take; default 1. A service
	// built for tests, or a busy machine, needs more.
	Slack float64
}

// Control starts and stops workers, 1 for P1 and 2 for P2. A call returns when
// its effect is there.
type Control interface {
	// Kill ends a worker at once, as SIGKILL does.
	Kill(ctx context.Context, worker int) error
	// Start starts a worker that has ended, however it did, at its old URL, and
	// waits until it answers. It waits for the end of one that is about to end.
	Start(ctx context.Context, worker int) error
	// Stop suspends a worker, as SIGSTOP does.
	Stop(ctx context.Context, worker int) error
	// Cont lets a suspended worker go on.
	Cont(ctx context.Context, worker int) error
}

// Outage makes the database unusable for the workers.
type Outage interface {
	// Begin takes the database away; end gives it back.
	Begin(ctx context.Context) (end func() error, err error)
}

// need is what a case asks of its target beside one worker.
type need uint

const (
	needControls need = 1 << iota // the conformance app's endpoints
	needTwo                       // two workers
	needControl                   // Target.Control
	needOutage                    // Target.Outage
)

// missing says what a target lacks, or "".
func (r *Runner) missing(c Case) string {
	t := r.target
	switch {
	case c.needs&needControls != 0 && r.about == nil:
		return "the target has no control endpoints"
	case c.needs&needTwo != 0 && t.P2 == "":
		return "the target has one worker"
	case c.needs&needControl != 0 && t.Control == nil:
		return "the workers cannot be killed and stopped"
	case c.needs&needOutage != 0 && t.Outage == nil:
		return "the database cannot be taken away"
	}
	if r.about != nil {
		for _, route := range c.routes {
			if !r.about.has(route) {
				return "the target has no route " + route
			}
		}
	}
	return ""
}

func (a *About) has(route string) bool {
	for _, name := range a.Routes {
		if name == route {
			return true
		}
	}
	return false
}
