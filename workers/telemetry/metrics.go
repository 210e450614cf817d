package telemetry

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"parley/escalation"
	"parley/subjects/fleet"
)

// Types of Metric.
const (
	typeCounter   = "counter"
	typeGauge     = "gauge"
	typeHistogram = "histogram"
)

// Values of the labels source and result.
const (
	sourceWorkers    = "workers"
	sourceRouter     = "router"
	sourceWebhooks   = "webhooks"
	sourceRegistry   = "registry"
	sourceEscalation = "escalation"
	sourceJetStream  = "jetstream"

	spansExported     = "exported"
	spansFailed       = "failed"
	webhooksSucceeded = "success"
	webhooksFailed    = "failure"
)

// What something unsafe is about.
const (
	UnsafeSync    = "sync"       // servers acknowledge what a power cut takes
	UnsafeCopies  = "copies"     // the loss of one server takes it, or stops the fleet
	UnsafeStorage = "storage"    // it is in memory
	Unverified    = "unverified" // nobody knows
)

// Metric is one of the page, those of the Go runtime and of the process
// excepted.
type Metric struct {
	Name, Type string
	Labels     []string
	Help       string
	// Fleet says that the value is the whole fleet's, the same from every
	// worker: take the maximum over them. The others add up.
	Fleet bool
}

// Values are all that a label can have, nil where that is no closed set. Nothing that
// ships asks for another. Of an MCP server's health, agents may tell others.
func (m Metric) Values(label string) []string {
	switch label {
	case "priority":
		return texts(fleet.Critical, fleet.High, fleet.Normal, fleet.Low, other)
	case "outcome":
		return texts(fleet.StateDone, fleet.StatePartial, fleet.StateError, fleet.StateBlocked, fleet.StateCanceled, fleet.StateExpired, other)
	case "class":
		if m.Name == "parley_attempts_total" {
			return append(texts(escalation.ClassResult, escalation.ClassAgent, escalation.ClassLoss, escalation.ClassHandBack, escalation.ClassCapacity,
				escalation.ClassCondition, escalation.ClassStatement, escalation.ClassBudget), classOK, classSender)
		}
	case "why":
		return []string{fleet.WaitBusy, fleet.WaitLimited, fleet.WaitAway, fleet.WaitUnwell, fleet.WaitDrained, fleet.WaitNoAgentYet}
	case "level":
		return []string{"0", "1", "2", "3", other}
	case "result":
		if m.Name == "parley_spans_total" {
			return []string{spansExported, spansFailed}
		}
		return []string{webhooksSucceeded, webhooksFailed}
	case "state":
		if m.Name == "parley_tasks" {
			return texts(fleet.StateQueued, fleet.StateWorking, fleet.StateInputRequired)
		}
		return []string{fleet.AgentIdle, fleet.AgentBusy, fleet.AgentDrains, fleet.AgentCooled, fleet.AgentMissing}
	case "health":
		return []string{fleet.HealthOK, fleet.HealthDegraded, fleet.HealthTimeout, fleet.HealthError, fleet.HealthUnknown}
	case "worker":
		return kinds()
	case "about":
		return []string{UnsafeSync, UnsafeCopies, UnsafeStorage, Unverified}
	case "source":
		return []string{sourceWorkers, sourceRouter, sourceWebhooks, sourceRegistry, sourceEscalation, sourceJetStream}
	}
	return nil
}

func texts[T ~string](all ...T) []string {
	list := make([]string, len(all))
	for i, v := range all {
		list[i] = string(v)
	}
	return list
}

func (m Metric) desc() *prometheus.Desc { return prometheus.NewDesc(m.Name, m.Help, m.Labels, nil) }

// metric is the one of that name.
func metric(name string) Metric {
	for _, m := range Metrics() {
		if m.Name == name {
			return m
		}
	}
	panic(fmt.Sprintf("telemetry: there is no metric %s", name)) // a broken invariant: names are constants
}

// Metrics lists all metrics of the fleet.
func Metrics() []Metric {
	shared := func(name, help string, labels ...string) Metric {
		return Metric{Name: name, Type: typeGauge, Labels: labels, Help: help, Fleet: true}
	}
	counts := func(name, help string, labels ...string) Metric {
		return Metric{Name: name, Type: typeCounter, Labels: labels, Help: help}
	}
	times := func(name, help string, labels ...string) Metric {
		return Metric{Name: name, Type: typeHistogram, Labels: labels, Help: help}
	}
	return []Metric{
		counts("parley_tasks_received_total", "Tasks accepted.", "priority"),
		counts("parley_tasks_total", "Tasks that have ended, by outcome.", "priority", "outcome"),
		times("parley_task_duration_seconds", "From dispatch to outcome.", "priority", "outcome"),
		times("parley_task_wait_seconds", "From dispatch, or the end of the last attempt, until an agent accepts.", "priority"),
		counts("parley_attempts_total", "Attempts that have ended; code is ok or why not, class whose failure it was, level the rung of escalation that answered (0: none).", "code", "class", "level"),
		counts("parley_suspects_total", "Tasks that lost as many agents as they may: a human decides, or they ended."),
		counts("parley_escalations_total", "Escalations, by level: 1 the same agent, 2 another one, 3 a human.", "level"),
		counts("parley_tokens_spent_total", "Tokens that ended attempts have spent, told in time or late.", "agent"),
		{
			Name: "parley_session_tokens", Type: typeGauge, Labels: []string{"session"},
			Help: "Tokens that ended attempts have spent, told in time or late, of the sessions that spent most.",
		},
		counts("parley_records_undecoded_total", "Records heard that could not be read."),
		counts("parley_spans_total", "Spans of traces: exported, or failed to be.", "result"),
		counts("parley_traces_dropped_total", "Tasks, runs and webhook deliveries that have ended and whose trace could not be made, or found no room to wait for the collector."),
		shared("parley_tasks", "Live tasks.", "state"),
		shared("parley_leases", "Tasks that an agent has in hand."),
		shared("parley_queue_depth", "Tasks that wait to be offered, by what they require; the 50 deepest queues.", "class"),
		shared("parley_queue_oldest_seconds", "Age of the oldest task of a queue.", "class"),
		shared("parley_waiting_tasks", "Tasks that wait to be offered, by why: busy, limited, away, unwell, drained or no_agent_yet.", "why"),
		shared("parley_waiting_oldest_seconds", "Age of the oldest of them.", "why"),
		shared("parley_account_limit_reset_timestamp_seconds", "When the limit of an account ends; 0 where nobody named the time. The 50 that hold up most tasks.", "account"),
		shared("parley_account_limit_late_tasks", "Tasks that wait for an account and whose deadline comes before its limit ends.", "account"),
		shared("parley_agents", "Instances of agents: idle, busy, draining, cooling or lost.", "state", "tier"),
		shared("parley_mcp_servers", "Live instances that find an MCP server in that health.", "name", "health"),
		shared("parley_waiting_for_human", "Tasks that wait for a human."),
		shared("parley_alerts", "Open alerts about them."),
		shared("parley_change_log_failures", "Lines that could not be written to CHANGE.log since the workers began."),
		{
			Name: "parley_webhook_deliveries_total", Type: typeCounter, Labels: []string{"id", "result"}, Fleet: true,
			Help: "HTTP exchanges of webhooks that have ended, by the worker that made them.",
		},
		shared("parley_workers", "Workers that answer; 0 where none of that kind does.", "worker"),
		{
			Name: "parley_messages_skipped_total", Type: typeCounter, Labels: []string{"process", "place"}, Fleet: true,
			Help: "Messages that could not be read and were skipped, by the process that read them and the stream or kind of subject; a stored one counts again after a restart.",
		},
		shared("parley_source_up", "Whether what the gauges come from answered: jetstream, the workers together, or those of a kind.", "source"),
		shared("parley_stream_messages", "Messages that a stream holds.", "stream"),
		shared("parley_stream_bytes", "Bytes that a stream holds.", "stream"),
		shared("parley_stream_limit_bytes", "Bytes that a stream may hold; absent without a limit.", "stream"),
		shared("parley_stream_replicas", "Copies that a stream is to have.", "stream"),
		shared("parley_stream_replicas_behind", "Copies of a stream that are behind, or whose server is away.", "stream"),
		shared("parley_consumer_pending", "Messages that a durable consumer has not been given yet.", "stream", "consumer"),
		shared("parley_consumer_unacknowledged", "Messages given to a durable consumer and not acknowledged yet.", "stream", "consumer"),
		shared("parley_unsafe", "Whether something is not as safe as it should be: the sync, copies or storage of what is acknowledged; unverified: not all is known.", "about"),
		shared("parley_build_info", "The program; the value is 1.", "version", "goversion"),
	}
}
