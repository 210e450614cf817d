package fleet

import (
	"encoding/json"
	"time"

	"parley/subjects"
)

// Requests and replies of the API, fleet.api.<from>.<noun>.<verb>. Every reply
// may instead be an ErrorReply.

// ErrorReply is the reply of an API call that was refused.
type ErrorReply struct {
	Error *subjects.Error `json:"error"`
}

// Dispatched is the reply to task dispatch (whose request is a Dispatch, or a
// plain-text brief with inline hints).
type Dispatched struct {
	TaskID    subjects.TaskID `json:"task_id"`
	State     State           `json:"state"`
	Deadline  time.Time       `json:"deadline"`
	Duplicate bool            `json:"duplicate,omitzero"` // the task existed already
	Warnings  []Warning       `json:"warnings,omitempty"` // what looks like a mistake in the dispatch
}

// TaskRef asks about one task: task get, task explain.
type TaskRef struct {
	TaskID subjects.TaskID `json:"task_id"`
}

// TaskWait asks for the outcome, waiting for it: task wait. The reply is a
// TaskView, terminal or not when the time is over.
type TaskWait struct {
	TaskID         subjects.TaskID `json:"task_id"`
	TimeoutSeconds float64         `json:"timeout_seconds,omitzero"` // absent 4, at most 60
}

// TaskEvents asks for records: task events.
type TaskEvents struct {
	TaskID   subjects.TaskID `json:"task_id"`
	AfterSeq uint64          `json:"after_seq,omitzero"`
	Limit    int             `json:"limit,omitzero"` // absent 100, at most 1000
}

// TaskEventsReply is a page of records; More says that the next page is not
// empty.
type TaskEventsReply struct {
	Events []Event `json:"events"`
	More   bool    `json:"more,omitzero"`
}

// TaskCancel ends a task: task cancel. The reply is a TaskView.
type TaskCancel struct {
	TaskID subjects.TaskID `json:"task_id"`
	Reason string          `json:"reason,omitempty"`
}

// TaskAnswer answers the open question of a task: task answer. The reply is a
// TaskView.
type TaskAnswer struct {
	TaskID     subjects.TaskID `json:"task_id"`
	QuestionID string          `json:"question_id,omitempty"` // absent: the open one
	MessageID  string          `json:"message_id,omitempty"`  // as the sender calls it
	Text       string          `json:"text,omitempty"`
	Parts      []Part          `json:"parts,omitempty"`
	MessageExtras
}

// TaskMessage adds a follow-up to a task that has not ended: task message. The
// reply is a TaskView. A repeat with the same ID is the same message.
type TaskMessage struct {
	TaskID    subjects.TaskID `json:"task_id"`
	ID        string          `json:"id,omitempty"`         // absent: a new one
	MessageID string          `json:"message_id,omitempty"` // as the sender calls it
	Text      string          `json:"text,omitempty"`
	Parts     []Part          `json:"parts,omitempty"`
	MessageExtras
}

// TaskResume answers a task that waits for a human: task resume. The reply is a
// TaskView. It is safe to repeat with the same AnswerID.
type TaskResume struct {
	TaskID   subjects.TaskID  `json:"task_id"`
	Seq      uint64           `json:"seq,omitzero"` // the latest record that the caller has seen of the wait; absent: whatever waits
	Verb     string           `json:"verb"`
	AgentID  subjects.AgentID `json:"agent_id,omitempty"`  // reassign
	Text     string           `json:"text,omitempty"`      // answer; cancel: why
	Result   json.RawMessage  `json:"result,omitzero"`     // complete: a TASK_RESULT, done or partial
	By       string           `json:"by,omitempty"`        // for whom the caller speaks; the escalation worker's alone
	AnswerID string           `json:"answer_id,omitempty"` // one token
}

// TaskView is a task as its latest record tells it.
type TaskView struct {
	TaskID      subjects.TaskID     `json:"task_id"`
	State       State               `json:"state"`
	From        subjects.AgentID    `json:"from"`
	Priority    Priority            `json:"priority"`
	Attempt     int                 `json:"attempt"`
	AgentID     subjects.AgentID    `json:"agent_id,omitempty"`
	InstanceID  subjects.InstanceID `json:"instance_id,omitempty"`
	Created     time.Time           `json:"created"`
	Updated     time.Time           `json:"updated"`
	Deadline    time.Time           `json:"deadline"`
	TokensSpent int64               `json:"tokens_spent"`
	TokenBudget int64               `json:"token_budget,omitzero"`
	Shared      []SharedBudget      `json:"shared_budgets,omitempty"`
	Seq         uint64              `json:"seq"`
	Reason      *Reason             `json:"reason,omitempty"`
	NotBefore   *time.Time          `json:"not_before,omitempty"`
	Await       string              `json:"await,omitempty"` // input_required: agent_question | human
	Question    *Question           `json:"question,omitempty"`
	AlertAt     *time.Time          `json:"alert_at,omitempty"`
	GiveUpAt    *time.Time          `json:"give_up_at,omitempty"`
	Human       *HumanAnswer        `json:"human,omitempty"`   // the last one's decision
	Waiting     *Waiting            `json:"waiting,omitempty"` // why it waits, where it does
	Attempts    []Attempt           `json:"attempts,omitempty"`
	Brief       string              `json:"brief,omitempty"` // task get and list: its first 200 characters
	Type        string              `json:"type,omitempty"`  // these and Node: task get and list
	NodeID      string              `json:"node_id,omitempty"`
	RunID       subjects.RunID      `json:"run_id,omitempty"`
	SessionID   subjects.SessionID  `json:"session_id,omitempty"`
	Labels      map[string]string   `json:"labels,omitempty"` // that its agent must have
	Result      *Result             `json:"result,omitempty"` // once terminal
	// Duplicate says, in the reply to task resume, that this is a repeat of an
	// answer that was taken before.
	Duplicate bool `json:"duplicate,omitzero"`
	// Delivered is added by task message and task answer: now, or next_attempt;
	// absent where the agent did not say it in time.
	Delivered string `json:"delivered,omitempty"`
}

// Waiting says why a task waits. It is computed when it is read.
type Waiting struct {
	Why     string     `json:"why"`
	Until   *time.Time `json:"until,omitempty"`  // when the cause ends, where that is known
	Guessed bool       `json:"guessed,omitzero"` // limited: nobody named Until; the account is tried again then
	Since   time.Time  `json:"since,omitzero"`
	Who     string     `json:"who,omitempty"` // the agent; limited: the account
	Message string     `json:"message,omitempty"`
}

// Values of Waiting.Why.
const (
	WaitBusy       = "busy"         // those who could are at capacity, or it is its turn next
	WaitRetry      = "retry"        // it is tried again later
	WaitLimited    = "limited"      // the account of those who could is limited
	WaitAway       = "away"         // those who could are not heard
	WaitUnwell     = "unwell"       // what those who could need is not well
	WaitDrained    = "drained"      // those who could drain
	WaitNoAgentYet = "no_agent_yet" // nobody who could has announced itself
	WaitHuman      = "human"        // a human decides
)

// WaitingCause is one reason for which tasks wait in the fleet.
type WaitingCause struct {
	Waiting
	Class    string          `json:"class"` // of the oldest of the tasks: what it asks for
	Tasks    int             `json:"tasks"`
	Silent   int             `json:"silent,omitzero"`   // of them, of which nobody is to be told (escalate: never)
	Late     int             `json:"late,omitzero"`     // of the others, whose deadline comes before Until
	Oldest   time.Time       `json:"oldest,omitzero"`   // when the oldest of the others was dispatched
	Deadline time.Time       `json:"deadline,omitzero"` // the first of theirs
	TaskID   subjects.TaskID `json:"task_id,omitempty"` // that one
	// OldestSilent is when the oldest of the silent ones was dispatched.
	OldestSilent time.Time `json:"oldest_silent,omitzero"`
}

// TaskWaitingReply is the reply to task waiting, which has no request: why tasks
// wait, as one router sees it.
type TaskWaitingReply struct {
	Causes []WaitingCause `json:"causes"`
	Ready  bool           `json:"ready"`         // the router has listened for as long as it needs to judge
	More   bool           `json:"more,omitzero"` // there are more causes than these
}

// AgentLimits asks for the limits of accounts (agent limits), or ends those of one
// (agent lift, an operator's). The reply is an AgentLimitsReply: what there is, or
// was.
type AgentLimits struct {
	Account string `json:"account,omitempty"` // absent: all; agent lift needs it
}

// AgentLimitsReply lists limits by account and model tier.
type AgentLimitsReply struct {
	Limits []AccountLimit `json:"limits"`
}

// SharedBudget is what all tasks of a session or run may spend together, and
// have.
type SharedBudget struct {
	Of          string `json:"of"` // session or run
	TokenBudget int64  `json:"token_budget"`
	TokensSpent int64  `json:"tokens_spent"`
}

// TaskList asks for the tasks that live and those that ended lately: task list.
type TaskList struct {
	State   State            `json:"state,omitempty"`  // only these
	Waiting bool             `json:"waiting,omitzero"` // only those that wait: queued, or for a human
	AgentID subjects.AgentID `json:"agent_id,omitempty"`
	From    subjects.AgentID `json:"from,omitempty"`
	Since   *time.Time       `json:"since,omitempty"`   // created then or later
	IDPart  string           `json:"id_part,omitempty"` // the beginning or the end of the id
	// These are looked for in the newest tasks only: see TaskListReply.Searched.
	RunID     subjects.RunID     `json:"run_id,omitempty"`
	SessionID subjects.SessionID `json:"session_id,omitempty"`
	Labels    map[string]string  `json:"labels,omitempty"`
	Text      string             `json:"text,omitempty"` // in the id, the brief, the type or the reason, in any case
	Limit     int                `json:"limit,omitzero"` // absent 100, at most 1000
	// OldestFirst asks for those that live the longest; the newest come first
	// otherwise.
	OldestFirst bool `json:"oldest_first,omitzero"`
}

// TaskListReply lists tasks, newest first unless it was asked for otherwise.
type TaskListReply struct {
	Tasks []TaskView    `json:"tasks"`
	Total int           `json:"total"`           // that match, listed or not
	Count map[State]int `json:"count,omitempty"` // live ones, by state
	// Searched is how many tasks were looked at, where there are more and the rest
	// may match, too.
	Searched int `json:"searched,omitzero"`
}

// TaskExplanation says, per agent, why it was or was not chosen: task explain.
type TaskExplanation struct {
	TaskID  subjects.TaskID `json:"task_id"`
	State   State           `json:"state"`
	Summary string          `json:"summary"`
	Waiting *Waiting        `json:"waiting,omitempty"` // why it waits, where it does
	Agents  []AgentVerdict  `json:"agents"`
	Omitted int             `json:"omitted,omitzero"` // agents that are not eligible, left out of a long list
}

// AgentVerdict is what matching says of one instance. No reasons: eligible.
// Order is its place among the eligible, from 1.
type AgentVerdict struct {
	AgentID    subjects.AgentID    `json:"agent_id"`
	InstanceID subjects.InstanceID `json:"instance_id"`
	Eligible   bool                `json:"eligible"`
	Order      int                 `json:"order,omitzero"`
	Holder     bool                `json:"holder,omitzero"`
	Reasons    []Reason            `json:"reasons,omitempty"`
}

// AgentList asks for agents: agent list.
type AgentList struct {
	AgentID subjects.AgentID `json:"agent_id,omitempty"` // only this one, however long it is gone
	All     bool             `json:"all,omitzero"`       // those, too, that have stopped, or are lost for minutes
	After   string           `json:"after,omitempty"`    // the next of the page before
	Limit   int              `json:"limit,omitzero"`     // absent as many as a reply has room for; at most 1000
}

// AgentListReply lists instances by agent and instance id, a page of them.
type AgentListReply struct {
	Agents []AgentView `json:"agents"`
	Next   string      `json:"next,omitempty"` // where the next page begins; absent: there is none
}

// AllAgents asks for a listing page by page.
func AllAgents(q AgentList, ask func(AgentList) (AgentListReply, error)) ([]AgentView, error) {
	var all []AgentView
	for {
		page, err := ask(q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Agents...)
		if page.Next == "" || page.Next == q.After {
			return all, nil
		}
		q.After = page.Next
	}
}

// AgentView is one instance as the registry sees it.
type AgentView struct {
	Announce  Announce      `json:"announce"`
	Live      bool          `json:"live"`
	Stopped   bool          `json:"stopped,omitzero"`     // it has ended by itself
	Draining  bool          `json:"draining,omitzero"`    // by itself or by an operator
	DrainedBy string        `json:"drained_by,omitempty"` // the operator
	LastSeen  time.Time     `json:"last_seen"`
	Active    int           `json:"active_tasks"`
	Holding   []Holding     `json:"holding,omitempty"`
	CoolUntil *time.Time    `json:"cool_until,omitempty"`
	CoolCode  subjects.Code `json:"cool_code,omitempty"`
	Limit     *AccountLimit `json:"limit,omitempty"` // of its account, while it is not open
}

// AgentDrain asks for an agent to be drained or resumed: agent drain, agent
// resume. The reply is an AgentListReply.
type AgentDrain struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Reason  string           `json:"reason,omitempty"`
}

// AgentForget says that an agent is gone for good: agent forget. The reply is an
// AgentForgotten.
type AgentForget struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Reason  string           `json:"reason,omitempty"`
}

// AgentForgotten says how many instances are known no more.
type AgentForgotten struct {
	AgentID   subjects.AgentID `json:"agent_id"`
	Instances int              `json:"instances"`
}

// MaxProgressLines is how many lines of progress task logs answers with at most,
// the last ones.
const MaxProgressLines = 200

// TaskLogs asks for what the agents of a task have told while they worked: task
// logs.
type TaskLogs struct {
	TaskID   subjects.TaskID `json:"task_id"`
	AfterSeq uint64          `json:"after_seq,omitzero"` // the next_seq of an earlier reply
}

// TaskLogsReply is the lines in the order of their times. They are best effort.
type TaskLogsReply struct {
	TaskID  subjects.TaskID `json:"task_id"`
	State   State           `json:"state"`
	Lines   []ProgressLine  `json:"lines"`
	NextSeq uint64          `json:"next_seq,omitzero"` // what follows is asked for with it
}

// ProgressLine is what an agent has told at a time.
type ProgressLine struct {
	Time        time.Time        `json:"time"`
	AgentID     subjects.AgentID `json:"agent_id"`
	Attempt     int              `json:"attempt,omitzero"`
	Text        string           `json:"text,omitempty"`
	Percent     *float64         `json:"percent,omitempty"`
	TokensSpent *int64           `json:"tokens_spent,omitempty"`
}

// ProgressChunk is lines of progress as they are stored.
type ProgressChunk struct {
	Lines []ProgressLine `json:"lines"`
}
