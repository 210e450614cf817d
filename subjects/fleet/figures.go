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
