package observe

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store"
)

// Metrics of one process. Labels have few values: no key, tenant or address is
// ever one.
type Metrics struct {
	registry *prometheus.Registry

	completed, claims, replays, mismatches, inFlight prometheus.Counter
	leaseLost, unknown, conflicts, rolledBack        prometheus.Counter
	purged, expired, dead, reloads, reloadFaults     prometheus.Counter
	leaserFailed, leased                             prometheus.Counter
	duplicates, probed, problems, actions            *prometheus.CounterVec
	duration                                         *prometheus.HistogramVec

	inbox *inboxMetrics
}

// Gauges are read when somebody asks for the metrics.
type Gauges struct {
	// Counts of the store.
	Counts func(context.Context) (store.Counts, error)
	// Queue counts of the store; nil, or false, where nothing is received.
	Queue func(context.Context) (store.QueueCounts, bool, error)
	// Refused and Open connections of the request listener.
	Refused, Open func() float64
	// Version of the binary.
	Version string
}

// NewMetrics makes the metrics with a registry of their own.
func NewMetrics(g Gauges) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	vector := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, value := range values {
			c.WithLabelValues(value) // shown from the start, as zero
		}
		m.registry.MustRegister(c)
		return c
	}
	m.completed = counter("unavez_completed_total", "Operations that ended with an outcome here.")
	m.claims = counter("unavez_claims_total", "Leases that were claimed for an attempt.")
	m.leased = counter("unavez_leased_total", "Attempts that began by the lease in Redis alone.")
	m.replays = counter("unavez_replays_total", "Duplicates that got the frozen answer.")
	m.mismatches = counter("unavez_mismatches_total", "Keys that came again with another request.")
	m.inFlight = counter("unavez_in_flight_total", "Duplicates that were told that the first is still running.")
	m.leaseLost = counter("unavez_lease_lost_total", "Attempts whose finish was refused because another had taken over.")
	m.unknown = counter("unavez_unknown_total", "Attempts that ended without telling whether they took effect.")
	m.conflicts = counter("unavez_conflicts_total", "Actions of people that were refused because the operation had moved on.")
	m.rolledBack = counter("unavez_rolled_back_total", "Attempts that were rolled back or never started; the key is free.")
	m.purged = counter("unavez_purged_total", "Rows forgotten after their retention.")
	m.expired = counter("unavez_expired_total", "Attempts whose worker was gone when their lease ended.")
	m.leaserFailed = counter("unavez_leaser_failed_total", "Times that the lease in front of the store failed and the store decided alone.")
	m.dead = counter("unavez_dead_total", "Requests for operations that need a person.")
	m.reloads = counter("unavez_reloads_total", "Configurations that were taken over while running.")
	m.reloadFaults = counter("unavez_reload_faults_total", "Configurations that were refused while running.")
	m.duplicates = vector("unavez_duplicates_total", "Duplicates, by whether the first was still running.", "duplicate", "in_flight", "after")
	m.probed = vector("unavez_probed_total", "Probes, by their verdict.", "verdict", "done", "not_done", "cannot_tell", "error")
	m.problems = vector("unavez_problems_total", "Answers of the layer that are problems, by type.", "type")
	m.actions = vector("unavez_actions_total", "Decisions of people and probes.", "action", "release", "redrive", "complete", "discard")
	m.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "unavez_request_duration_seconds", Help: "Time of keyed requests until the answer was ready, by how they ended.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"ended"})
	m.registry.MustRegister(m.duration, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "unavez_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": g.Version}}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "unavez_connections", Help: "Open connections of the request listener."}, g.Open),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "unavez_refused_connections_total", Help: "Connections ended because a request's framing was ambiguous."}, g.Refused),
		&counts{
			read:       g.Counts,
			unfinished: prometheus.NewDesc("unavez_unfinished", "Unfinished operations, by state.", []string{"state"}, nil),
			oldest:     prometheus.NewDesc("unavez_oldest_at_rest_seconds", "Age of the operation that has been at rest longest.", nil, nil),
		},
	)
	m.inbox = newInboxMetrics(m.registry)
	if g.Queue != nil {
		m.registry.MustRegister(newQueueCounts(g.Queue))
	}
	return m
}

// counts asks the store when the metrics are read.
type counts struct {
	read               func(context.Context) (store.Counts, error)
	unfinished, oldest *prometheus.Desc
}

func (c *counts) Describe(out chan<- *prometheus.Desc) { out <- c.unfinished; out <- c.oldest }

func (c *counts) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := c.read(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.unfinished, err)
		return
	}
	for _, state := range []store.State{store.Processing, store.Retryable, store.Parked, store.Unknown, store.Dead} {
		out <- prometheus.MustNewConstMetric(c.unfinished, prometheus.GaugeValue, float64(found.Unfinished[state]), state.String())
	}
	out <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, found.OldestAtRest.Seconds())
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
}

// Engine counts what the engine saw.
func (m *Metrics) Engine(o unavez.Observation) {
	switch o.What {
	case unavez.SawCompleted:
		m.completed.Inc()
	case unavez.SawClaimed, unavez.SawTakenOver:
		m.claims.Inc()
	case unavez.SawLeased:
		m.leased.Inc()
	case unavez.SawRolledBack:
		m.rolledBack.Inc()
	case unavez.SawLeaseLost:
		m.leaseLost.Inc()
	case unavez.SawUnknown:
		m.unknown.Inc()
	case unavez.SawLeaserFailed:
		m.leaserFailed.Inc()
	}
}

// Request counts what became of a keyed request.
func (m *Metrics) Request(o httpkey.Observation) {
	ended := "problem"
	switch o.Type {
	case httpkey.SawCompleted, httpkey.SawRolledBack:
		ended = o.Type
	case httpkey.SawReplayed:
		ended = o.Type
		m.replays.Inc()
	default:
		m.problems.WithLabelValues(o.Type).Inc()
	}
	m.duration.WithLabelValues(ended).Observe(o.Duration.Seconds())
	if d := Duplicate(o); d != "" {
		m.duplicates.WithLabelValues(d).Inc()
	}
	switch unavez.Code(o.Type) {
	case unavez.CodeInFlight:
		m.inFlight.Inc()
	case unavez.CodeMismatch:
		m.mismatches.Inc()
	case unavez.CodeDead:
		m.dead.Inc()
	}
}

// Duplicate says of a request's end whether it was a duplicate, and of what:
// "in_flight", "after", or "" when it was none or that is not known.
func Duplicate(o httpkey.Observation) string {
	if LostAnswer(o) {
		return "" // its own attempt ended so
	}
	switch unavez.Code(o.Type) {
	case unavez.CodeInFlight:
		return "in_flight"
	case httpkey.SawReplayed, unavez.CodeExpired, unavez.CodeNotReplayable, unavez.CodeDamaged, unavez.CodeDiscarded,
		unavez.CodeUnknown, unavez.CodeParked, unavez.CodeRetrying, unavez.CodeDead:
		return "after"
	}
	return ""
}

// LostAnswer tells the request whose own attempt has just ended without telling
// from one that found the operation so: only the first has a cause and nothing
// to wait for.
func LostAnswer(o httpkey.Observation) bool {
	var e *unavez.Error
	return o.Type == string(unavez.CodeUnknown) && errors.As(o.Err, &e) && e.Err != nil && e.RetryAfter == 0
}

// Probed counts a probe.
func (m *Metrics) Probed(v unavez.Verdict, err error) {
	label := "cannot_tell"
	switch {
	case err != nil:
		label = "error"
	case v == unavez.Done:
		label = "done"
	case v == unavez.NotDone:
		label = "not_done"
	}
	m.probed.WithLabelValues(label).Inc()
}

// Purged counts rows that were forgotten.
func (m *Metrics) Purged(n int) { m.purged.Add(float64(n)) }

// Expired counts attempts whose worker was gone.
func (m *Metrics) Expired(n int) { m.expired.Add(float64(n)) }

// LeaserFailed counts a failure of the lease that no engine saw.
func (m *Metrics) LeaserFailed() { m.leaserFailed.Inc() }

// Acted counts a decision about an operation, or that it came too late.
func (m *Metrics) Acted(action string, conflict bool) {
	if conflict {
		m.conflicts.Inc()
		return
	}
	m.actions.WithLabelValues(action).Inc()
}

// Reloaded counts a new configuration.
func (m *Metrics) Reloaded(taken bool) {
	if taken {
		m.reloads.Inc()
	} else {
		m.reloadFaults.Inc()
	}
}
