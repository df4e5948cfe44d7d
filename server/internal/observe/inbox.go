package observe

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/store"
)

// inboxMetrics are those of what is received and run. Labels are names of the
// configuration and classes, never what a sender wrote.
type inboxMetrics struct {
	deliveries, rejected, verified, quarantined *prometheus.CounterVec
	duplicates, conflicts, ignored, repaired    *prometheus.CounterVec
	entries, coalesced                          *prometheus.CounterVec
	lanes, alerts                               *prometheus.CounterVec
	silent                                      *prometheus.GaugeVec
	delivery, entry                             *prometheus.HistogramVec
}

func newInboxMetrics(r *prometheus.Registry) *inboxMetrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	m := &inboxMetrics{
		deliveries:  vector("unavez_deliveries_total", "Deliveries that are durable, repetitions among them, by source.", "source"),
		rejected:    vector("unavez_rejected_total", "Deliveries that were not taken, by source and class of reason.", "source", "reason"),
		verified:    vector("unavez_verified_total", "Authentic deliveries, by the name of the secret that fits.", "source", "verified_with"),
		quarantined: vector("unavez_quarantined_total", "Items that were put into quarantine, by source and class of reason.", "source", "reason"),
		duplicates:  vector("unavez_event_duplicates_total", "Entries that were there already, with the same content, by source.", "source"),
		conflicts:   vector("unavez_event_conflicts_total", "Entries that were there already, with another content, by source.", "source"),
		ignored:     vector("unavez_ignored_total", "Events that no effect wants, and handshakes, by source.", "source"),
		repaired:    vector("unavez_repaired_total", "Entries that a list of the sender showed and no delivery had brought, by source.", "source"),
		coalesced:   vector("unavez_coalesced_total", "Hints that shared the fetch of another one, by source.", "source"),
		entries:     vector("unavez_entries_total", "What became of entries, by effect: completed, discarded, stale, or at rest.", "effect", "state"),
		lanes:       vector("unavez_lanes_total", "Lanes that this worker took, or lost without handing them back.", "event"),
		alerts:      vector("unavez_alerts_total", "Alerts that this worker sent, or gave up.", "result"),
		silent:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "unavez_silent", Help: "1 for a source that was told to be silent."}, []string{"source"}),
		delivery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "unavez_delivery_duration_seconds", Help: "Time from the arrival of a delivery to its answer, by source.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"source"}),
		entry: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "unavez_entry_duration_seconds", Help: "Time from the arrival of an entry to its outcome, by effect.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600, 3600, 86400},
		}, []string{"effect"}),
	}
	for _, event := range []string{"taken", "lost"} {
		m.lanes.WithLabelValues(event) // shown from the start, as zero
	}
	for _, result := range []string{"sent", "failed"} {
		m.alerts.WithLabelValues(result)
	}
	r.MustRegister(m.silent, m.delivery, m.entry)
	return m
}

// Sight counts what the inbox saw.
func (m *Metrics) Sight(s inbox.Sight) {
	n := float64(max(s.Count, 1))
	in := m.inbox
	switch s.What {
	case "delivery":
		in.deliveries.WithLabelValues(s.Source).Add(n)
		if s.Secret != "" {
			in.verified.WithLabelValues(s.Source, s.Secret).Add(n)
		}
		in.delivery.WithLabelValues(s.Source).Observe(s.Took.Seconds())
	case "rejected":
		in.rejected.WithLabelValues(s.Source, s.Reason).Add(n)
	case "quarantined":
		in.quarantined.WithLabelValues(s.Source, s.Reason).Add(n)
	case "duplicate":
		in.duplicates.WithLabelValues(s.Source).Add(n)
	case "conflict":
		in.conflicts.WithLabelValues(s.Source).Add(n)
	case "ignored":
		in.ignored.WithLabelValues(s.Source).Add(n)
	case "repaired":
		in.repaired.WithLabelValues(s.Source).Add(n)
	case "coalesced":
		in.coalesced.WithLabelValues(s.Source).Add(n)
	case "lane-taken", "lane-lost":
		in.lanes.WithLabelValues(strings.TrimPrefix(s.What, "lane-")).Add(n)
	default:
		in.entries.WithLabelValues(s.Effect, s.What).Add(n)
		if s.What == "completed" {
			in.entry.WithLabelValues(s.Effect).Observe(s.Took.Seconds())
		}
	}
}

// Condition notes a condition that began or ended here.
func (m *Metrics) Condition(c inbox.Condition) {
	if c.Kind != "silent" || c.Source == "" {
		return
	}
	value := 1.0
	if c.Over {
		value = 0
	}
	m.inbox.silent.WithLabelValues(c.Source).Set(value)
}

// Alerted counts an alert.
func (m *Metrics) Alerted(sent bool) {
	if sent {
		m.inbox.alerts.WithLabelValues("sent").Inc()
	} else {
		m.inbox.alerts.WithLabelValues("failed").Inc()
	}
}

// queueFresh is how long the counts of a queue are shown without asking again:
// they are dear.
const queueFresh = 15 * time.Second

// queueCounts asks the queue when the metrics are read.
type queueCounts struct {
	read func(context.Context) (store.QueueCounts, bool, error)

	depth, oldest, quarantine, blocked, orphans, full *prometheus.Desc

	mu    sync.Mutex
	at    time.Time
	found store.QueueCounts
	any   bool
	err   error
}

func newQueueCounts(read func(context.Context) (store.QueueCounts, bool, error)) *queueCounts {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &queueCounts{
		read:       read,
		depth:      desc("unavez_queue_depth", "Entries that are not done, by source.", "source"),
		oldest:     desc("unavez_queue_oldest_seconds", "Age of the oldest entry that is not done, by source.", "source"),
		quarantine: desc("unavez_quarantine", "Items in quarantine, by source.", "source"),
		blocked:    desc("unavez_queue_blocked", "Ordering keys that wait."),
		orphans:    desc("unavez_lanes_orphaned", "Lanes without a living worker."),
		full:       desc("unavez_queue_full_ratio", "How much of the room of the queue is used, 0 to 1."),
	}
}

// Describe implements prometheus.Collector.
func (c *queueCounts) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.depth, c.oldest, c.quarantine, c.blocked, c.orphans, c.full} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *queueCounts) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) >= queueFresh {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c.found, c.any, c.err = c.read(ctx)
		c.at = time.Now()
	}
	switch {
	case c.err != nil:
		out <- prometheus.NewInvalidMetric(c.depth, c.err)
		return
	case !c.any:
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for source, n := range c.found.Depth {
		gauge(c.depth, float64(n), source)
	}
	for source, age := range c.found.Oldest {
		gauge(c.oldest, age.Seconds(), source)
	}
	for source, n := range c.found.Quarantined {
		gauge(c.quarantine, float64(n), source)
	}
	gauge(c.blocked, float64(c.found.Blocked))
	gauge(c.orphans, float64(c.found.Orphans))
	gauge(c.full, c.found.Full)
}
