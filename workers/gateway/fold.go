package gateway

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects"
	"parley/subjects/fleet"
)

// This file turns the records of a task into the A2A task and its events. It
// does no I/O: the same records give the same frames on every replica.

// stateOf is what a state of the fleet is in A2A.
func stateOf(s fleet.State) a2apb.TaskState {
	switch s {
	case fleet.StateQueued:
		return a2apb.TaskState_TASK_STATE_SUBMITTED
	case fleet.StateWorking:
		return a2apb.TaskState_TASK_STATE_WORKING
	case fleet.StateInputRequired:
		return a2apb.TaskState_TASK_STATE_INPUT_REQUIRED
	case fleet.StateDone, fleet.StatePartial:
		return a2apb.TaskState_TASK_STATE_COMPLETED
	case fleet.StateError, fleet.StateExpired:
		return a2apb.TaskState_TASK_STATE_FAILED
	case fleet.StateBlocked:
		return a2apb.TaskState_TASK_STATE_REJECTED
	case fleet.StateCanceled:
		return a2apb.TaskState_TASK_STATE_CANCELED
	}
	return a2apb.TaskState_TASK_STATE_UNSPECIFIED
}

// frame is one event of a stream. Its id says where a stream goes on: after
// the record of that number, or with ".k" after k frames of the one behind it.
// Progress is no record and has no id: a stream goes on behind the event before.
type frame struct {
	id  string
	msg *a2apb.StreamResponse // nil: the stream has begun, and nothing is to be told yet
}

// picture is a task as its records up to seq tell it.
type picture struct {
	task   *a2apb.Task
	seq    uint64
	last   *fleet.Event
	result *fleet.Result // once it has ended
	inputs []input       // what callers have added, in order
	quiet  bool          // nobody wants frames; report is called when the task is wanted

	reports bool // the client has activated the extension: it is told how the task is
}

// input is a follow-up or an answer, and the record that took it.
type input struct {
	seq     uint64
	message *fleet.Message
	answer  *fleet.Answer
}

// add takes in the next record and returns what a stream tells of it.
func (p *picture) add(ev *fleet.Event) []frame {
	if p.task == nil {
		p.task = &a2apb.Task{Id: string(ev.TaskID), ContextId: contextOf(ev)}
	}
	p.seq, p.last = ev.Seq, ev
	if ev.Data.Message != nil || ev.Data.Answer != nil {
		p.inputs = append(p.inputs, input{ev.Seq, ev.Data.Message, ev.Data.Answer})
	}
	var out []*a2apb.StreamResponse
	if ev.Kind == fleet.KindQueued {
		p.begin(ev)
	}
	if d := ev.Data.Message; d != nil {
		p.task.History = append(p.task.History, p.said(pick(d.MessageID, d.ID), d.Text, d.Parts, d.MessageExtras))
	}
	if a := ev.Data.Artifact; a != nil {
		out = append(out, p.artifact(&a2apb.Artifact{
			ArtifactId: a.ArtifactID, Name: a.Name, Parts: a2aParts(a.Parts),
			Metadata: structOf(a.Unknown[partMetadata]),
		}, a.Append, a.LastChunk))
	}
	if ev.State.Terminal() {
		out = append(out, p.outcome(ev)...)
	}
	p.status(ev)
	if p.quiet {
		return nil
	}
	p.report()
	switch ev.Kind {
	case fleet.KindQueued:
		out = append(out, &a2apb.StreamResponse{Payload: &a2apb.StreamResponse_Task{Task: p.snapshot()}})
	case fleet.KindArtifact, fleet.KindSpent:
	default:
		out = append(out, &a2apb.StreamResponse{Payload: &a2apb.StreamResponse_StatusUpdate{StatusUpdate: &a2apb.TaskStatusUpdateEvent{
			TaskId: p.task.Id, ContextId: p.task.ContextId,
			Status: cloned(p.task.Status), Metadata: p.task.Metadata,
		}}})
	}
	frames := make([]frame, len(out))
	for i, msg := range out {
		frames[i] = frame{id: frameID(ev.Seq, i, len(out)), msg: msg}
	}
	return frames
}

// progress is what a stream tells of the progress that an agent reports; nil if the
// agent is not the one at work. It is early where its attempt has no record yet. id is
// that of the message.
func (p *picture) progress(s said, id string) (f *frame, early bool) {
	switch {
	case p.last == nil || p.last.State == fleet.StateQueued || s.attempt > p.last.Attempt:
		return nil, true
	case p.last.State != fleet.StateWorking || p.last.AgentID != s.agent || s.attempt != 0 && s.attempt != p.last.Attempt:
		return nil, false
	}
	p.report()
	return &frame{msg: &a2apb.StreamResponse{Payload: &a2apb.StreamResponse_StatusUpdate{StatusUpdate: &a2apb.TaskStatusUpdateEvent{
		TaskId: p.task.Id, ContextId: p.task.ContextId, Metadata: p.task.Metadata,
		Status: &a2apb.TaskStatus{
			State: a2apb.TaskState_TASK_STATE_WORKING, Message: p.message(a2apb.Role_ROLE_AGENT, id, partsOf(s.text, nil)), Timestamp: stamp(s.at),
		},
	}}}}, false
}

// report says in the task's metadata how it is, if the client wants to know.
func (p *picture) report() {
	if !p.reports {
		return
	}
	p.task.Metadata = toStruct(map[string]any{ContractURI: contractOf(p.last, p.result)})
}

// frameID is the id of frame i of n of a record.
func frameID(seq uint64, i, n int) string {
	if i == n-1 {
		return strconv.FormatUint(seq, 10)
	}
	return strconv.FormatUint(seq-1, 10) + "." + strconv.Itoa(i+1)
}

// snapshot is the task as it is now, safe to keep.
func (p *picture) snapshot() *a2apb.Task { return cloned(p.task) }

func cloned[M proto.Message](m M) M {
	c, _ := proto.Clone(m).(M)
	return c
}

func contextOf(ev *fleet.Event) string {
	return pick(ev.Facts.ContextID, string(ev.TaskID))
}

func pick(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// begin takes in what the task began with.
func (p *picture) begin(ev *fleet.Event) {
	d, err := fleet.DecodeReply[fleet.Dispatch](ev.Data.Dispatch)
	if err != nil {
		return
	}
	in := d.Input
	if in == nil {
		in = &fleet.Input{}
	}
	p.task.History = append(p.task.History, p.said(pick(in.MessageID, string(ev.TaskID)), d.Brief, in.Parts, fleet.MessageExtras{
		Metadata: in.Metadata, Extensions: in.Extensions, ReferenceTaskIDs: in.ReferenceTaskIDs,
	}))
}

// said is a message of the caller's.
func (p *picture) said(id, text string, parts []fleet.Part, more fleet.MessageExtras) *a2apb.Message {
	m := p.message(a2apb.Role_ROLE_USER, id, partsOf(text, parts))
	m.Metadata, m.Extensions, m.ReferenceTaskIds = structOf(more.Metadata), more.Extensions, more.ReferenceTaskIDs
	return m
}

func (p *picture) message(role a2apb.Role, id string, parts []*a2apb.Part) *a2apb.Message {
	return &a2apb.Message{
		MessageId: clean(id), ContextId: p.task.ContextId, TaskId: p.task.Id, Role: role, Parts: parts,
	}
}

// status sets the task's status. What the agent said last goes into the history
// once somebody has answered, or something else has happened.
func (p *picture) status(ev *fleet.Event) {
	before := p.task.GetStatus().GetMessage()
	if p.task.Status != nil && (ev.Kind == fleet.KindArtifact || ev.Kind == fleet.KindMessage || ev.Kind == fleet.KindSpent) {
		p.task.Status.Timestamp = stamp(ev.Time)
		return
	}
	if before != nil {
		p.task.History = append(p.task.History, before)
	}
	if a := ev.Data.Answer; a != nil {
		p.task.History = append(p.task.History, p.said(pick(a.MessageID, a.QuestionID+"-answer"), a.Text, a.Parts, a.MessageExtras))
	}
	p.task.Status = &a2apb.TaskStatus{State: stateOf(ev.State), Message: p.says(ev), Timestamp: stamp(ev.Time)}
}

// stamp is a time in milliseconds, as A2A writes it.
func stamp(t time.Time) *timestamppb.Timestamp {
	return timestamppb.New(t.UTC().Truncate(time.Millisecond))
}

// says is the message of a status: a question, or why it is as it is.
func (p *picture) says(ev *fleet.Event) *a2apb.Message {
	switch {
	case ev.Data.Question != nil:
		q := ev.Data.Question
		return p.message(a2apb.Role_ROLE_AGENT, q.ID, partsOf(q.Text, q.Parts))
	case p.result != nil && p.result.AsMessage && p.result.Status == fleet.StatusDone:
		return p.answer()
	case ev.Reason != nil && (ev.State.Terminal() || ev.State == fleet.StateInputRequired):
		text := string(ev.Reason.Code)
		if ev.Reason.Message != "" {
			text += ": " + ev.Reason.Message
		}
		return p.message(a2apb.Role_ROLE_AGENT, p.task.Id+"-"+strconv.FormatUint(ev.Seq, 10), partsOf(text, nil))
	}
	return nil
}

// answer is the result as a message.
func (p *picture) answer() *a2apb.Message {
	m := p.message(a2apb.Role_ROLE_AGENT, p.task.Id+"-result", p.resultParts())
	if len(m.Parts) == 0 {
		m.Parts = partsOf("", nil)
	}
	return m
}

func (p *picture) resultParts() []*a2apb.Part {
	switch r := p.result; {
	case len(r.Parts) > 0:
		return a2aParts(r.Parts)
	case len(r.Output) > 0 && string(r.Output) != "null":
		return []*a2apb.Part{outputPart(r.Output)}
	}
	return nil
}

// outcome takes in the result: its content becomes artifacts.
func (p *picture) outcome(ev *fleet.Event) []*a2apb.StreamResponse {
	r, err := fleet.DecodeReply[fleet.Result](ev.Data.Result)
	if err != nil {
		return nil
	}
	p.result = &r
	if r.AsMessage && r.Status == fleet.StatusDone {
		return nil
	}
	var out []*a2apb.StreamResponse
	if parts := p.resultParts(); len(parts) > 0 {
		out = append(out, p.artifact(&a2apb.Artifact{ArtifactId: p.freeID("result", ev.Seq), Name: "result", Parts: parts}, false, true))
	}
	if given := bytes.TrimSpace(r.Artifacts); len(given) > 2 && given[0] == '{' {
		out = append(out, p.artifact(&a2apb.Artifact{
			ArtifactId: p.freeID("artifacts", ev.Seq), Name: "artifacts",
			Parts: []*a2apb.Part{{Content: &a2apb.Part_Data{Data: valueOf(given)}, MediaType: "application/json"}},
		}, false, true))
	}
	return out
}

// freeID is id, unless the agent has used it already.
func (p *picture) freeID(id string, seq uint64) string {
	for _, a := range p.task.Artifacts {
		if a.ArtifactId == id {
			return id + "-" + strconv.FormatUint(seq, 10)
		}
	}
	return id
}

// artifact takes in an artifact, whole or a chunk.
func (p *picture) artifact(a *a2apb.Artifact, more, last bool) *a2apb.StreamResponse {
	var told *a2apb.Artifact
	if !p.quiet {
		told = cloned(a)
	}
	i := 0
	for i < len(p.task.Artifacts) && p.task.Artifacts[i].ArtifactId != a.ArtifactId {
		i++
	}
	switch {
	case i == len(p.task.Artifacts):
		p.task.Artifacts = append(p.task.Artifacts, a)
		more = false // nothing is there to append to
	case more:
		p.task.Artifacts[i].Parts = append(p.task.Artifacts[i].Parts, a.Parts...)
	default:
		p.task.Artifacts[i] = a
	}
	if p.quiet {
		return nil
	}
	update := &a2apb.TaskArtifactUpdateEvent{TaskId: p.task.Id, ContextId: p.task.ContextId, Artifact: told, Append: more, LastChunk: last}
	if p.reports {
		update.Metadata = toStruct(map[string]any{ContractURI: map[string]any{"seq": p.seq}})
	}
	return &a2apb.StreamResponse{Payload: &a2apb.StreamResponse_ArtifactUpdate{ArtifactUpdate: update}}
}

// withoutReport is an event for who has not activated the extension.
func withoutReport(msg *a2apb.StreamResponse) *a2apb.StreamResponse {
	msg = cloned(msg)
	switch e := msg.GetPayload().(type) {
	case *a2apb.StreamResponse_Task:
		e.Task.Metadata = nil
	case *a2apb.StreamResponse_StatusUpdate:
		e.StatusUpdate.Metadata = nil
	case *a2apb.StreamResponse_ArtifactUpdate:
		e.ArtifactUpdate.Metadata = nil
	}
	return msg
}

// interrupted reports whether the task waits for somebody.
func interrupted(ev *fleet.Event) bool { return ev.State == fleet.StateInputRequired }

// report is what a task carries back in the extension.
type report struct {
	Seq           uint64           `json:"seq"`
	State         fleet.State      `json:"state"`
	Status        fleet.Status     `json:"status,omitempty"`
	AgentID       subjects.AgentID `json:"agent_id,omitempty"`
	Attempt       int              `json:"attempt,omitempty"`
	Priority      fleet.Priority   `json:"priority,omitempty"`
	Deadline      *time.Time       `json:"deadline,omitempty"`
	TokensSpent   int64            `json:"tokens_spent"`
	NextSteps     []string         `json:"next_steps,omitempty"`
	Remaining     []string         `json:"remaining,omitempty"`
	BlockedReason *string          `json:"blocked_reason,omitempty"`
	Error         json.RawMessage  `json:"error,omitempty"`
	Await         string           `json:"await,omitempty"`
	Attempts      []fleetAttempt   `json:"attempts,omitempty"`
}

type fleetAttempt struct {
	Attempt int              `json:"attempt"`
	AgentID subjects.AgentID `json:"agent_id"`
	Ended   time.Time        `json:"ended"`
	Code    subjects.Code    `json:"code"`
	Message string           `json:"message,omitempty"`
	Tokens  int64            `json:"tokens,omitempty"`
}

// contractOf is what the extension tells of a task.
func contractOf(ev *fleet.Event, r *fleet.Result) report {
	deadline := ev.Facts.Deadline
	out := report{
		Seq: ev.Seq, State: ev.State, AgentID: ev.AgentID, Attempt: ev.Attempt, Priority: ev.Facts.Priority,
		Deadline: &deadline, TokensSpent: ev.Facts.TokensSpent, Await: ev.Facts.Await,
	}
	for _, a := range ev.Facts.Attempts {
		out.Attempts = append(out.Attempts, fleetAttempt{a.Attempt, a.AgentID, a.Ended, a.Code, clean(a.Message), a.Tokens})
	}
	if r != nil {
		out.Status, out.NextSteps, out.Remaining, out.BlockedReason = r.Status, r.NextSteps, r.Remaining, r.BlockedReason
		out.TokensSpent = r.TokensSpent
		if r.Error != nil {
			out.Error = fleet.MustEncode(r.Error)
		}
	}
	return out
}
