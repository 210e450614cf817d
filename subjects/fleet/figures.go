package fleet

import "time"

// TaskFigures are what a router tells of itself in the statistics of its micro
// service. Counts are of the records that it stored since it began, so that
// those of all routers add up; Queued is the whole fleet's, as it knows it.
type TaskFigures struct {
	Since     time.Time `json:"since"`
	Received  uint64    `json:"tasks_received"`
	Completed uint64    `json:"tasks_completed"` // done or partial
	Canceled  uint64    `json:"tasks_canceled"`
	Failed    uint64    `json:"tasks_failed"` // error, blocked or expired
	Queued    int       `json:"queue_depth"`

	// States are the live tasks by state, Leases those that an agent has in
	// hand, Classes the deepest queues; the whole fleet's, as Queued is.
	States  map[State]int  `json:"tasks_by_state,omitempty"`
	Leases  int            `json:"leases"`
	Classes []ClassFigures `json:"queues,omitempty"`

	// Waiting are the tasks that wait to be offered, by why; Limits the limits of
	// accounts that hold up most tasks. The whole fleet's, too.
	Waiting []WaitingFigures `json:"waiting,omitempty"`
	Limits  []LimitFigures   `json:"account_limits,omitempty"`
}

// WaitingFigures are the tasks that wait for one kind of reason (a WaitBusy and so
// on).
type WaitingFigures struct {
	Why           string  `json:"why"`
	Tasks         int     `json:"tasks"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

// MaxLimits is how many accounts TaskFigures tells of.
const MaxLimits = 50

// LimitFigures are those of an account that is limited, one model tier or all.
type LimitFigures struct {
	Account string    `json:"account"`
	Reset   time.Time `json:"reset"`
	Guessed bool      `json:"guessed,omitzero"`    // nobody named Reset
	Tasks   int       `json:"tasks,omitzero"`      // that wait for it
	Late    int       `json:"late_tasks,omitzero"` // of them, whose deadline comes before Reset
}

// MaxClasses is how many queues TaskFigures tells of.
const MaxClasses = 50

// ClassFigures are those of the tasks with the same requirements that wait to
// be offered. Class says what they ask for; it is short, and no two are alike.
type ClassFigures struct {
	Class         string  `json:"class"`
	Depth         int     `json:"depth"`
	OldestSeconds float64 `json:"oldest_seconds"`
	Why           string  `json:"why,omitempty"` // they wait: a WaitBusy and so on
}

// AgentFigures are what a registry tells of the fleet.
type AgentFigures struct {
	Agents []AgentCount `json:"agents"`
	MCP    []MCPCount   `json:"mcp_servers"`
}

// AgentCount is how many instances of a model tier are in a state: idle, busy,
// draining, cooling or lost.
type AgentCount struct {
	State string `json:"state"`
	Tier  string `json:"tier"`
	N     int    `json:"n"`
}

// MCPCount is how many live instances find an MCP server in a state of health.
type MCPCount struct {
	Name   string `json:"name"`
	Health string `json:"health"`
	N      int    `json:"n"`
}

// States of AgentCount.
const (
	AgentIdle    = "idle"
	AgentBusy    = "busy"
	AgentCooled  = "cooling"
	AgentDrains  = "draining"
	AgentMissing = "lost"
)

// AlertFigures are what an escalation worker tells: the tasks that wait for a
// human, and the open alerts about them.
type AlertFigures struct {
	Waiting int `json:"waiting_tasks"`
	Alerts  int `json:"alerts"`
	// LogFailures counts the lines of CHANGE.log that this worker could not write.
	LogFailures uint64 `json:"log_failures,omitzero"`
}

// WebhookFigures are what a webhooks worker tells of itself there: the HTTP
// exchanges that it began, and how they ended.
type WebhookFigures struct {
	Since     time.Time `json:"since"`
	Attempts  uint64    `json:"webhook_attempts"`
	Succeeded uint64    `json:"webhook_success"`
	Failed    uint64    `json:"webhook_failed"`
}

// Figures are those of a process, or of a whole fleet.
type Figures struct {
	TaskFigures
	Webhooks WebhookFigures `json:"webhooks"`
}

// Rate is the part of the exchanges that ended which succeeded; 1 when none
// has ended.
func (w *WebhookFigures) Rate() float64 {
	if w.Succeeded+w.Failed == 0 {
		return 1
	}
	return float64(w.Succeeded) / float64(w.Succeeded+w.Failed)
}

// AddTasks adds the figures of another router.
func (f *Figures) AddTasks(t *TaskFigures) {
	if f.Since.IsZero() || !t.Since.IsZero() && t.Since.Before(f.Since) {
		f.Since = t.Since
	}
	f.Received += t.Received
	f.Completed += t.Completed
	f.Canceled += t.Canceled
	f.Failed += t.Failed
	if len(t.States) > 0 && (len(f.States) == 0 || t.Queued >= f.Queued) {
		f.States, f.Leases, f.Classes, f.Waiting, f.Limits = t.States, t.Leases, t.Classes, t.Waiting, t.Limits
	}
	f.Queued = max(f.Queued, t.Queued)
}

// AddWebhooks adds the figures of another webhooks worker.
func (f *Figures) AddWebhooks(w *WebhookFigures) {
	if f.Webhooks.Since.IsZero() || !w.Since.IsZero() && w.Since.Before(f.Webhooks.Since) {
		f.Webhooks.Since = w.Since
	}
	f.Webhooks.Attempts += w.Attempts
	f.Webhooks.Succeeded += w.Succeeded
	f.Webhooks.Failed += w.Failed
}
