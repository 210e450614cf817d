package fleet

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
)

// States of an alert.
const (
	AlertTriggered    = "triggered"    // humans are called
	AlertAcknowledged = "acknowledged" // somebody sees to it
	AlertResolved     = "resolved"     // nothing of it waits any more
)

// Alert is what humans are told of: tasks that wait for one cause.
type Alert struct {
	AlertID string            `json:"alert_id"`
	Number  uint64            `json:"number"` // from 1, of the alerts of this group
	Group   map[string]string `json:"group"`  // what its tasks have in common
	State   string            `json:"state"`
	Since   time.Time         `json:"since"`
	Round   time.Time         `json:"round"`             // when the chain of contacts was begun last
	Next    int               `json:"next"`              // the contact to be called next
	NextAt  *time.Time        `json:"next_at,omitempty"` // when
	Calls   int               `json:"calls"`             // that were due
	Sent    map[string]int    `json:"sent,omitempty"`    // the last call of each contact that was made
	LastAt  *time.Time        `json:"last_at,omitempty"`
	Told    int               `json:"told"`             // how many tasks the last call named
	ToldTo  uint64            `json:"told_to,omitzero"` // the newest task that the last call could name
	Held    string            `json:"held,omitempty"`   // why nobody is called now

	AckBy    string       `json:"ack_by,omitempty"`
	AckUntil *time.Time   `json:"ack_until,omitempty"`
	Answer   *AlertAnswer `json:"answer,omitempty"`
	Resolved *time.Time   `json:"resolved,omitempty"`

	// In replies only.
	Count   int         `json:"count,omitzero"`
	Tasks   []AlertTask `json:"tasks,omitempty"`  // oldest first
	Omitted int         `json:"omitted,omitzero"` // how many more there are
	// Waiting is why tasks wait that ask no human anything, instead of Tasks.
	Waiting *WaitingCause `json:"waiting,omitempty"`
	Unknown Unknown       `json:",unknown"`
}

// AlertAnswer is what a human decided about all tasks of an alert.
type AlertAnswer struct {
	HumanAnswer
	Result    json.RawMessage `json:"result,omitzero"`
	RequestID string          `json:"request_id,omitempty"` // of the call that brought it
}

// AlertTask is a task that waits for a human.
type AlertTask struct {
	TaskID      subjects.TaskID    `json:"task_id"`
	Seq         uint64             `json:"seq"` // of the record that waits
	From        subjects.AgentID   `json:"from"`
	Since       time.Time          `json:"since"`
	Code        subjects.Code      `json:"code"`
	Message     string             `json:"message,omitempty"`
	AgentID     subjects.AgentID   `json:"agent_id,omitempty"` // the last one tried
	SessionID   subjects.SessionID `json:"session_id,omitempty"`
	RunID       subjects.RunID     `json:"run_id,omitempty"`
	Brief       string             `json:"brief,omitempty"` // its beginning
	Tried       []Tried            `json:"tried,omitempty"`
	TokensSpent int64              `json:"tokens_spent,omitzero"`
	TokenBudget int64              `json:"token_budget,omitzero"`
	AlertRepeat float64            `json:"alert_repeat"` // seconds
	GiveUpAt    time.Time          `json:"give_up_at"`
	Traceparent string             `json:"traceparent,omitempty"` // of the escalation, in the task's trace
	Unknown     Unknown            `json:",unknown"`
}

// Silence keeps quiet about alerts whose group matches.
type Silence struct {
	SilenceID string            `json:"silence_id,omitempty"` // given by the fleet; with Until in the past it ends that one
	Match     map[string]string `json:"match"`                // all must be equal
	By        subjects.AgentID  `json:"by,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Until     time.Time         `json:"until"`
	Unknown   Unknown           `json:",unknown"`
}

// EscalationList asks for alerts.
type EscalationList struct {
	All   bool   `json:"all,omitzero"`    // resolved ones as well
	After string `json:"after,omitempty"` // the next of the page before
}

// EscalationListReply lists alerts, oldest first, a page of them, and on the
// first one the silences.
type EscalationListReply struct {
	Alerts   []Alert   `json:"alerts"`
	Silences []Silence `json:"silences,omitempty"`
	Next     string    `json:"next,omitempty"` // where the next page begins; absent: there is none
}

// AllAlerts asks for a listing page by page.
func AllAlerts(q EscalationList, ask func(EscalationList) (EscalationListReply, error)) (EscalationListReply, error) {
	var all EscalationListReply
	for {
		page, err := ask(q)
		if err != nil {
			return EscalationListReply{}, err
		}
		all.Alerts, all.Silences = append(all.Alerts, page.Alerts...), append(all.Silences, page.Silences...)
		if page.Next == "" || page.Next == q.After {
			return all, nil
		}
		q.After = page.Next
	}
}

// EscalationRef names an alert, or a task of one.
type EscalationRef struct {
	ID string `json:"id"`
}

// EscalationAnswer decides about an alert, or about one task of it; the verb is
// in the subject. A repeat with the same RequestID is the same answer. So is,
// without one, the same answer to the same Seq, or to the same alert.
type EscalationAnswer struct {
	ID        string           `json:"id"`
	Seq       uint64           `json:"seq,omitzero"`         // of a task: the latest record that the caller has seen; refused if the wait that it is of is over
	RequestID string           `json:"request_id,omitempty"` // one token, chosen by the caller
	AgentID   subjects.AgentID `json:"agent_id,omitempty"`
	Text      string           `json:"text,omitempty"`
	Result    json.RawMessage  `json:"result,omitzero"`
}

// EscalationAnswered says what the decision has done so far; the rest follows.
type EscalationAnswered struct {
	ID       string   `json:"id"`
	Verb     string   `json:"verb"`
	By       string   `json:"by"`
	Tasks    int      `json:"tasks"`              // that it is about
	Applied  int      `json:"applied"`            // to how many by now
	Problems []string `json:"problems,omitempty"` // of the others, a few
	// Duplicate says that this is a repeat of an answer that was taken before.
	Duplicate bool `json:"duplicate,omitzero"`
}

// EscalationStatus asks whether humans can be told.
type EscalationStatus struct{}

// EscalationStatusReply is how the worker that answers is.
type EscalationStatusReply struct {
	Contacts    []string  `json:"contacts"`
	Open        int       `json:"open"`         // alerts
	Waiting     int       `json:"waiting"`      // tasks
	ChangeLog   string    `json:"change_log"`   // its path
	LogLines    uint64    `json:"log_lines"`    // that the file has
	LogFailures uint64    `json:"log_failures"` // not written, since then
	LogError    string    `json:"log_error,omitempty"`
	Refused     uint64    `json:"refused"` // links and answers, since then
	Started     time.Time `json:"started"`
}

// TypeAlertEvent is the type of AlertEvent.
const TypeAlertEvent = "ALERT_EVENT"

// AlertEvent is something that happened to an alert.
type AlertEvent struct {
	Header
	AlertID string          `json:"alert_id"`
	Event   string          `json:"event"` // triggered | called | not_called | acknowledged | ack_timeout | answered | resolved | silenced | heard | silence | refused | answer_refused | change_log_failed
	Time    time.Time       `json:"time"`
	By      string          `json:"by,omitempty"`
	Contact string          `json:"contact,omitempty"`
	Call    int             `json:"call,omitzero"`
	TaskID  subjects.TaskID `json:"task_id,omitempty"`
	Count   int             `json:"count,omitzero"`
	Message string          `json:"message,omitempty"`
	Unknown Unknown         `json:",unknown"`
}

func (r *EscalationList) check(p *problems) {
	nanos, id, _ := strings.Cut(r.After, ".")
	if _, err := strconv.ParseInt(nanos, 10, 64); r.After != "" && (err != nil || !subjects.ValidToken(id)) {
		p.invalid("/after", "expected the next of a page before, got %q", clip(r.After))
	}
}

func (r *EscalationRef) check(p *problems) { p.token("/id", "id", r.ID, true) }

func (r *EscalationAnswer) check(p *problems) {
	p.token("/id", "id", r.ID, true)
	p.token("/request_id", "request_id", r.RequestID, false)
	p.agentID("/agent_id", r.AgentID, false)
}

// Check tells what is wrong with the decision to verb.
func (r *EscalationAnswer) Check(verb string) error {
	var p problems
	p.human(verb, r.AgentID, r.Text, r.Result)
	return p.err()
}

func (s *Silence) check(p *problems) {
	p.token("/silence_id", "silence_id", s.SilenceID, false)
	p.labels("/match", s.Match)
	if len(s.Match) == 0 && s.SilenceID == "" {
		p.invalid("/match", "expected what alerts have in common, such as code or agent, got nothing")
	}
	if len(s.Reason) > maxHumanText || strings.TrimSpace(s.Reason) == "" && s.SilenceID == "" {
		p.invalid("/reason", "expected why, got %d bytes", len(s.Reason))
	}
	if s.Until.IsZero() {
		p.invalid("/until", "expected a time, got nothing")
	}
}
