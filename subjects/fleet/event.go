package fleet

import (
	"cmp"
	"encoding/json"
	"time"

	"parley/subjects"
)

// State is where a task is in its life.
type State string

// The states. Every one from StateDone on is terminal.
const (
	StateQueued        State = "queued"
	StateWorking       State = "working"
	StateInputRequired State = "input_required"
	StateDone          State = "done"
	StatePartial       State = "partial"
	StateError         State = "error"
	StateBlocked       State = "blocked"
	StateCanceled      State = "canceled"
	StateExpired       State = "expired"
)

// Terminal reports whether no record can follow.
func (s State) Terminal() bool {
	switch s {
	case StateDone, StatePartial, StateError, StateBlocked, StateCanceled, StateExpired:
		return true
	case StateQueued, StateWorking, StateInputRequired:
		return false
	}
	return false
}

// Kinds of record, in the header Fleet-Kind and in Event.Kind: what happened,
// where State says what is.
const (
	KindQueued   = "queued"   // accepted from a dispatch
	KindWorking  = "working"  // an agent accepted the offer
	KindArtifact = "artifact" // the agent published a piece of output
	KindQuestion = "question" // the agent asks; the task is input_required
	KindAnswer   = "answer"   // somebody answered; the task is working again
	KindMessage  = "message"  // somebody adds to what the task says; its state stays
	KindRetry    = "retry"    // level 1: the same agent again, not before NotBefore
	KindReroute  = "reroute"  // level 2: another agent
	KindReturned = "returned" // the agent handed it back unfailed: it drains, or its account is limited
	KindLost     = "lost"     // the agent is gone; the task is queued again (ADR 23)
	KindWidened  = "widened"  // those who come first are away or limited: others may have it, too
	KindHuman    = "human"    // level 3: waits for a human
	KindResumed  = "resumed"  // a human answered; the task is queued again
	KindSpent    = "spent"    // an attempt that had ended told late what it spent
	KindOutcome  = "outcome"  // the one outcome; State says which
)

// Event is TASK_EVENT, one record of a task: what happened, and all that a
// router needs to go on from here (the brief excepted). It is stored by
// compare-and-set on fleet.task.<task> and then heard on fleet.event.<task>.
type Event struct {
	Header
	TaskID     subjects.TaskID     `json:"task_id"`
	Seq        uint64              `json:"seq"` // from 1, without gaps, per task
	Kind       string              `json:"kind"`
	State      State               `json:"state"`
	Attempt    int                 `json:"attempt"`               // of the latest offer accepted; 0 = none yet
	AgentID    subjects.AgentID    `json:"agent_id,omitempty"`    // the holder
	InstanceID subjects.InstanceID `json:"instance_id,omitempty"` // the holder's
	Epoch      int64               `json:"epoch,omitzero"`        // the holder's
	Time       time.Time           `json:"time"`
	Reason     *Reason             `json:"reason,omitempty"`
	Data       Data                `json:"data,omitzero"`
	Facts      Facts               `json:"facts"`
	WriteID    string              `json:"write_id"` // unique; one's own read back means stored
	Unknown    Unknown             `json:",unknown"`
}

// Data is the payload of a record, by kind.
type Data struct {
	Dispatch json.RawMessage `json:"dispatch,omitzero"` // queued: the whole TASK_DISPATCH
	Result   json.RawMessage `json:"result,omitzero"`   // outcome: the TASK_RESULT; retry, reroute: the failed one
	Artifact *Artifact       `json:"artifact,omitempty"`
	Question *Question       `json:"question,omitempty"`
	Answer   *Answer         `json:"answer,omitempty"`
	Message  *Message        `json:"message,omitempty"`
	Human    *HumanAnswer    `json:"human,omitempty"` // resumed, outcome: what a human decided
	Spent    *Spent          `json:"spent,omitempty"` // spent: by whom; outcome: by the attempt that a cancel ended
	Unknown  Unknown         `json:",unknown"`
}

// Spent is what an attempt told late.
type Spent struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Attempt int              `json:"attempt"`
	Tokens  int64            `json:"tokens"`
	Unknown Unknown          `json:",unknown"`
}

// Answer is what somebody answered to a question.
type Answer struct {
	QuestionID string           `json:"question_id"`
	From       subjects.AgentID `json:"from,omitempty"`
	MessageID  string           `json:"message_id,omitempty"` // as its sender calls it
	Text       string           `json:"text,omitempty"`
	Parts      []Part           `json:"parts,omitempty"`
	Unknown    Unknown          `json:",unknown"`
}

// Message is a follow-up: what somebody adds to a task that is under way. Every
// attempt hears all of them: those of before in the offer, later ones as INPUT.
type Message struct {
	ID        string           `json:"id"`                   // unique in its task
	MessageID string           `json:"message_id,omitempty"` // as its sender calls it
	From      subjects.AgentID `json:"from,omitempty"`
	Text      string           `json:"text,omitempty"`
	Parts     []Part           `json:"parts,omitempty"`
	Metadata  json.RawMessage  `json:"metadata,omitzero"` // an object
	Unknown   Unknown          `json:",unknown"`
}

// Facts is what stays true of a task from record to record: its terms, fixed
// when it was accepted, and what has become of it so far.
type Facts struct {
	From         subjects.AgentID `json:"from"`
	Created      time.Time        `json:"created"`
	Deadline     time.Time        `json:"deadline"`
	Priority     Priority         `json:"priority"`
	Requirements Requirements     `json:"requirements"`
	Policy       Policy           `json:"policy"`
	Timeout      float64          `json:"timeout_seconds"` // per attempt
	TokenBudget  int64            `json:"token_budget,omitzero"`
	// SessionBudget and RunBudget are for all tasks of the session or run
	// together.
	SessionBudget int64              `json:"session_token_budget,omitzero"`
	RunBudget     int64              `json:"run_token_budget,omitzero"`
	ReplySchema   string             `json:"reply_schema,omitempty"`
	HasSchema     bool               `json:"has_result_schema,omitzero"`
	SessionID     subjects.SessionID `json:"session_id,omitempty"`
	RunID         subjects.RunID     `json:"run_id,omitempty"`
	ContextID     string             `json:"context_id,omitempty"`  // of its input
	Traceparent   string             `json:"traceparent,omitempty"` // its caller's
	PayloadHash   string             `json:"payload_hash"`          // of the dispatch, hex SHA-256
	DispatchSeq   uint64             `json:"dispatch_seq,omitzero"` // stream sequence of record 1; absent in it

	TokensSpent int64      `json:"tokens_spent,omitzero"`       // over all ended attempts
	Attempts    []Attempt  `json:"attempts,omitempty"`          // every ended attempt, oldest first
	NotBefore   *time.Time `json:"not_before,omitempty"`        // queued: offered no earlier
	AttemptEnds *time.Time `json:"attempt_ends,omitempty"`      // working: agent_timeout then
	ClockLeft   float64    `json:"clock_left_seconds,omitzero"` // input_required: what AttemptEnds had left
	Await       string     `json:"await,omitempty"`             // input_required: agent_question | human
	Question    *Question  `json:"question,omitempty"`          // the open question
	Answer      *Answer    `json:"answer,omitempty"`            // the last answer, until the attempt ends
	Heard       []string   `json:"heard,omitempty"`             // which messages the attempt's latest artifacts and questions came by
	Messages    []Message  `json:"messages,omitempty"`          // every follow-up, oldest first
	Counters    *Counters  `json:"counters,omitempty"`          // what its ended attempts count against; absent: counted from Attempts
	Widened     int        `json:"widened,omitzero"`            // steps of candidates that were skipped, until the next attempt ends

	AskedSeq uint64       `json:"asked_seq,omitzero"`   // waits for a human: the record since which it does
	AlertAt  *time.Time   `json:"alert_at,omitempty"`   // waits for a human: who is told again from then on
	GiveUpAt *time.Time   `json:"give_up_at,omitempty"` // waits for a human: no longer than this
	Human    *HumanAnswer `json:"human,omitempty"`      // what the last human decided, until the attempt that it began ends
	// Decisions are the latest answers of humans that took effect, oldest first,
	// so that a repeat of one is known.
	Decisions []Decision `json:"decisions,omitempty"`
	Unknown   Unknown    `json:",unknown"`
}

// MaxDecisions is how many answers of humans a task remembers.
const MaxDecisions = 16

// Decision is what is remembered of a human's answer for as long as the task is
// kept.
type Decision struct {
	AnswerID string  `json:"answer_id"`
	By       string  `json:"by"`
	Digest   string  `json:"digest"` // of what was decided: the same in a true repeat
	Unknown  Unknown `json:",unknown"`
}

// Counters are what the ended attempts of a task count against (ADR 23).
type Counters struct {
	Retries     int `json:"retries"`      // repeats by the first agent, at most Policy.MaxRetries
	Losses      int `json:"losses"`       // in a row; a stored artifact or question begins the row anew
	LossesTotal int `json:"losses_total"` // since the task was accepted, or a human decided
}

// HumanAnswer is what a human decided about a task that waited for one.
type HumanAnswer struct {
	Verb     string           `json:"verb"`                // retry | reassign | answer | complete | cancel
	By       string           `json:"by"`                  // who: an id, or "<contact> by link"
	AgentID  subjects.AgentID `json:"agent_id,omitempty"`  // reassign: to whom
	Text     string           `json:"text,omitempty"`      // for the next agent, or why
	AnswerID string           `json:"answer_id,omitempty"` // the same in every repeat
	Time     time.Time        `json:"time"`
	Unknown  Unknown          `json:",unknown"`
}

// Verbs of HumanAnswer.
const (
	VerbRetry    = "retry"    // whoever may do it tries once more
	VerbReassign = "reassign" // that agent, and no other
	VerbAnswer   = "answer"   // as retry, and the next agent is told the text
	VerbComplete = "complete" // the human did it: here is the result
	VerbCancel   = "cancel"   // nobody needs it any more
)

// HumanVerbs lists what a human may decide.
func HumanVerbs() []string {
	return []string{VerbRetry, VerbReassign, VerbAnswer, VerbComplete, VerbCancel}
}

// Values of Facts.Await.
const (
	AwaitAgentQuestion = "agent_question"
	AwaitHuman         = "human"
)

// Policy is how failures of a task are met, fixed when it was accepted.
type Policy struct {
	MaxRetries   int                `json:"max_retries"`
	MaxLosses    int                `json:"max_losses,omitzero"` // absent: DefaultMaxLosses
	Agent        subjects.AgentID   `json:"agent,omitempty"`     // pin
	Alternatives []subjects.AgentID `json:"alternatives,omitempty"`
	OnBlocked    string             `json:"on_blocked,omitempty"`
	Escalate     string             `json:"escalate,omitempty"`
	AlertRepeat  float64            `json:"alert_repeat,omitzero"`  // seconds
	GiveUpAfter  float64            `json:"give_up_after,omitzero"` // seconds
	Unknown      Unknown            `json:",unknown"`
}

// Repeat is after how long people are told again.
func (p *Policy) Repeat() time.Duration {
	return cmp.Or(time.Duration(p.AlertRepeat*float64(time.Second)), DefaultAlertRepeat)
}

// Attempt is one agent's try at a task, ended.
type Attempt struct {
	Attempt    int                 `json:"attempt"`
	AgentID    subjects.AgentID    `json:"agent_id"`
	InstanceID subjects.InstanceID `json:"instance_id,omitempty"`
	Epoch      int64               `json:"epoch,omitzero"`
	Ended      time.Time           `json:"ended"`
	Code       subjects.Code       `json:"code"`
	Message    string              `json:"message,omitempty"`
	Retryable  bool                `json:"retryable,omitzero"`
	Tokens     int64               `json:"tokens,omitzero"`
	Refused    bool                `json:"refused,omitzero"` // the offer was: the agent never held the task
	// Level is what escalation answered: 1 the same agent, 2 another, 3 a human
	// or the end; 0 when the attempt was handed back and does not count.
	Level   int     `json:"level,omitzero"`
	Unknown Unknown `json:",unknown"`
}

// Tried is what an agent is told of an earlier attempt.
type Tried struct {
	Attempt int              `json:"attempt,omitzero"`
	AgentID subjects.AgentID `json:"agent_id"`
	Code    subjects.Code    `json:"code"`
	Message string           `json:"message,omitempty"`
	Unknown Unknown          `json:",unknown"`
}
