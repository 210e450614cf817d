package telemetry

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// How many values the labels have at most that somebody else chooses.
const (
	maxAgents   = 500
	maxCodes    = 64
	maxSessions = 1000 // remembered
	topSessions = 20   // shown
	other       = "other"
)

// heard is what this worker has counted.
type heard struct {
	received, tasks, attempts, escalations, tokens *prometheus.CounterVec
	suspects                                       prometheus.Counter
	duration, wait                                 *prometheus.HistogramVec
	spans                                          *prometheus.CounterVec
	undecoded, dropped                             prometheus.Counter
	session                                        *prometheus.Desc

	agents, codes bounded

	mu       sync.Mutex // guards sessions
	sessions map[subjects.SessionID]int64
}

func newHeard() *heard {
	counter := func(name string) *prometheus.CounterVec {
		m := metric(name)
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
	}
	histogram := func(name string, buckets []float64) *prometheus.HistogramVec {
		m := metric(name)
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: buckets}, m.Labels)
	}
	plain := func(name string) prometheus.Counter {
		m := metric(name)
		return prometheus.NewCounter(prometheus.CounterOpts{Name: m.Name, Help: m.Help})
	}
	return &heard{
		received: counter("parley_tasks_received_total"), tasks: counter("parley_tasks_total"),
		attempts: counter("parley_attempts_total"), escalations: counter("parley_escalations_total"),
		tokens:    counter("parley_tokens_spent_total"),
		duration:  histogram("parley_task_duration_seconds", []float64{.01, .05, .25, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 72 * 3600}),
		wait:      histogram("parley_task_wait_seconds", []float64{.001, .005, .01, .05, .25, 1, 5, 15, 60, 300, 900, 3600, 24 * 3600}),
		spans:     counter("parley_spans_total"),
		suspects:  plain("parley_suspects_total"),
		undecoded: plain("parley_records_undecoded_total"), dropped: plain("parley_traces_dropped_total"),
		session: metric("parley_session_tokens").desc(),
		agents:  bounded{most: maxAgents}, codes: bounded{most: maxCodes},
		sessions: make(map[subjects.SessionID]int64),
	}
}

// collectors are what a page shows of it, sessions excepted.
func (h *heard) collectors() []prometheus.Collector {
	return []prometheus.Collector{h.received, h.tasks, h.attempts, h.escalations, h.suspects, h.tokens, h.duration, h.wait, h.undecoded, h.spans, h.dropped}
}

// Describe implements prometheus.Collector.
func (h *heard) Describe(to chan<- *prometheus.Desc) {
	for _, c := range h.collectors() {
		c.Describe(to)
	}
	to <- h.session
}

// Collect implements prometheus.Collector.
func (h *heard) Collect(to chan<- prometheus.Metric) {
	for _, c := range h.collectors() {
		c.Collect(to)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range h.most()[:min(len(h.sessions), topSessions)] {
		to <- prometheus.MustNewConstMetric(h.session, prometheus.GaugeValue, float64(h.sessions[id]), clean(string(id)))
	}
}

// most lists the sessions, those that spent most first.
func (h *heard) most() []subjects.SessionID {
	return slices.SortedFunc(maps.Keys(h.sessions), func(a, b subjects.SessionID) int {
		return cmp.Or(cmp.Compare(h.sessions[b], h.sessions[a]), cmp.Compare(a, b))
	})
}

// count takes a record in. level is what its header says of escalation.
func (h *heard) count(r *record, level string) {
	priority := priorityOf(r.Facts.Priority)
	switch r.Kind {
	case fleet.KindQueued:
		h.received.WithLabelValues(priority).Inc()
	case fleet.KindWorking:
		h.wait.WithLabelValues(priority).Observe(r.waited().Seconds())
	case fleet.KindOutcome:
		outcome := other
		if r.State.Terminal() {
			outcome = string(r.State)
		}
		h.tasks.WithLabelValues(priority, outcome).Inc()
		h.duration.WithLabelValues(priority, outcome).Observe(max(0, r.Time.Sub(r.Facts.Created).Seconds()))
	}
	if a, ok := r.ended(); ok {
		class := classOf(a.code)
		h.attempts.WithLabelValues(h.codes.label(string(a.code)), class, levelOf(strconv.Itoa(a.level))).Inc()
		if class == string(escalation.ClassLoss) && a.level == 3 {
			h.suspects.Inc()
		}
		h.spend(a.agent, r.Facts.SessionID, a.tokens)
	}
	if s := r.Data.Spent; s != nil {
		h.spend(s.AgentID, r.Facts.SessionID, s.Tokens)
	}
	if level != "" && level != "0" {
		h.escalations.WithLabelValues(levelOf(level)).Inc()
	}
}

// spend charges an agent and a session. Where too many sessions are known, the
// half that spent least is forgotten.
func (h *heard) spend(agent subjects.AgentID, id subjects.SessionID, tokens int64) {
	if tokens <= 0 {
		return
	}
	h.tokens.WithLabelValues(h.agents.label(string(agent))).Add(float64(tokens))
	if id == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.sessions[id]; !known && len(h.sessions) >= maxSessions {
		for _, least := range h.most()[maxSessions/2:] {
			delete(h.sessions, least)
		}
	}
	h.sessions[id] += tokens
}

// Classes of attempts beside those of failures.
const (
	classOK     = "ok"
	classSender = "sender" // who dispatched the task ended it, or its deadline did
)

// classOf says whose failure the end of an attempt is.
func classOf(code subjects.Code) string {
	switch code {
	case codeOK:
		return classOK
	case subjects.CodeCanceled, subjects.CodeDeadlineExceeded:
		return classSender
	}
	return string(escalation.ClassOf(code))
}

func priorityOf(p fleet.Priority) string {
	switch p {
	case fleet.Critical, fleet.High, fleet.Normal, fleet.Low:
		return string(p)
	}
	return other
}

func levelOf(level string) string {
	switch level {
	case "0", "1", "2", "3":
		return level
	}
	return other
}

// bounded gives a label at most so many values; the first come are kept.
type bounded struct {
	most int
	mu   sync.Mutex // guards seen
	seen map[string]bool
}

func (b *bounded) label(v string) string {
	v = clean(v)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[v] {
		return v
	}
	if len(b.seen) >= b.most {
		return other
	}
	if b.seen == nil {
		b.seen = make(map[string]bool)
	}
	b.seen[v] = true
	return v
}

// clean makes a label's value valid.
func clean(v string) string {
	const longest = 200
	return strings.ToValidUTF8(v[:min(len(v), longest)], "?")
}
