package fleet

import (
	"time"

	"parley/subjects"
)

// Requests and replies of the webhooks worker's API, for operators.

// WebhookList asks for deliveries: webhook list.
type WebhookList struct {
	State    string          `json:"state,omitempty"`    // only these
	Endpoint string          `json:"endpoint,omitempty"` // only to this one
	TaskID   subjects.TaskID `json:"task_id,omitempty"`  // only of this task
	Limit    int             `json:"limit,omitzero"`     // absent 100, at most 1000
}

// WebhookListReply lists deliveries, newest first.
type WebhookListReply struct {
	Deliveries []DeliveryState `json:"deliveries"`
	Total      int             `json:"total"` // that match, listed or not
	Count      map[string]int  `json:"count"` // all there are, by state
}

// WebhookRef asks about one delivery: webhook get, webhook drop. The reply to
// drop is a WebhookView.
type WebhookRef struct {
	DeliveryID subjects.DeliveryID `json:"delivery_id"`
}

// WebhookView is a delivery: what became of it, and what is or was to be sent.
type WebhookView struct {
	DeliveryState
	Delivery *Delivery `json:"delivery,omitempty"` // its URL's path and query, and its headers' values, are hidden; gone once it ended well
	Note     string    `json:"note,omitempty"`     // what it waits for
}

// WebhookReplay sends dead deliveries again, under the same delivery id and
// with a day's time; one that is pending is tried now: webhook replay. Either
// one delivery, or all that are dead and match.
type WebhookReplay struct {
	DeliveryID subjects.DeliveryID `json:"delivery_id,omitempty"`
	All        bool                `json:"all,omitzero"`
	Endpoint   string              `json:"endpoint,omitempty"` // with All: only to this one
	Since      *time.Time          `json:"since,omitempty"`    // with All: only those that died since
}

// WebhookReplayReply lists what is sent again, at most 1000.
type WebhookReplayReply struct {
	Deliveries []DeliveryState `json:"deliveries"`
	Total      int             `json:"total"`
	Omitted    int             `json:"omitted,omitzero"` // dead ones left for the next call
}

// WebhookStatus asks how the endpoints are: webhook status.
type WebhookStatus struct{}

// WebhookStatusReply is what the worker that answers knows.
type WebhookStatusReply struct {
	Worker    string            `json:"worker"`
	Endpoints []WebhookEndpoint `json:"endpoints"`
	Since     time.Time         `json:"since"`     // the figures are this worker's, since then
	Attempts  uint64            `json:"attempts"`  // HTTP exchanges begun
	Succeeded uint64            `json:"succeeded"` // that ended with 2xx
	Failed    uint64            `json:"failed"`    // that did not
	Rate      float64           `json:"rate"`      // succeeded of those that ended, 0 to 1
}

// WebhookEndpoint is an endpoint as it is now.
type WebhookEndpoint struct {
	Endpoint  string     `json:"endpoint"`
	Known     bool       `json:"known"`                // the worker that answers may send to it
	Circuit   string     `json:"circuit"`              // closed | open
	Failures  int        `json:"failures,omitzero"`    // in a row
	ProbeAt   *time.Time `json:"probe_at,omitempty"`   // open: when the next delivery is tried
	HoldUntil *time.Time `json:"hold_until,omitempty"` // the receiver asked for quiet until then
	Sending   int        `json:"sending"`
	Pending   int        `json:"pending"`
	Dead      int        `json:"dead"`
	Error     *Reason    `json:"error,omitempty"`     // the last failure since the last success
	Unreached string     `json:"unreached,omitempty"` // why it could not be reached when the worker began
}

// Values of WebhookEndpoint.Circuit.
const (
	CircuitClosed = "closed"
	CircuitOpen   = "open"
)

func (r *WebhookList) check(p *problems) {
	p.oneOf("/state", r.State, DeliveryStates()...)
	p.taskID("/task_id", r.TaskID, false)
	p.between("/limit", float64(r.Limit), 0, 1000)
}

func (r *WebhookRef) check(p *problems) {
	p.token("/delivery_id", "delivery_id", string(r.DeliveryID), true)
}

func (r *WebhookReplay) check(p *problems) {
	p.token("/delivery_id", "delivery_id", string(r.DeliveryID), !r.All)
	if r.All && r.DeliveryID != "" {
		p.invalid("/all", "expected a delivery_id or all, got both")
	}
}
