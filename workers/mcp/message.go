package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

type messageIn struct {
	TaskID subjects.TaskID  `json:"task_id,omitempty" jsonschema:"a task under way: the text answers its open question, or is added to what it says"`
	To     subjects.AgentID `json:"to,omitempty" jsonschema:"an agent, instead of task_id"`
	Text   string           `json:"text" jsonschema:"what you have to say"`
	Data   map[string]any   `json:"data,omitempty" jsonschema:"with to: JSON that goes with the text"`
	Action mesh.Action      `json:"action,omitempty" jsonschema:"with to: do asks for something, info (default) only tells it"`
	Reply  mesh.Reply       `json:"reply,omitempty" jsonschema:"with to: whether an answer is wanted; default yes"`
	Ref    mesh.MessageID   `json:"ref,omitempty" jsonschema:"with to: the message that this one answers"`
	Thread mesh.ThreadID    `json:"thread_id,omitempty" jsonschema:"with to: the thread that it belongs to"`
	Wait   float64          `json:"wait_seconds,omitempty" jsonschema:"with to: how long to wait for the answer"`
}

// sentMessage is what has become of a message.
type sentMessage struct {
	MessageID mesh.MessageID   `json:"message_id"`
	ThreadID  mesh.ThreadID    `json:"thread_id,omitempty"`
	To        subjects.AgentID `json:"to,omitempty"`
	State     mesh.State       `json:"state"`
	Ended     bool             `json:"ended"` // nothing more will come
	Answer    string           `json:"answer,omitempty"`
	AnswerID  mesh.MessageID   `json:"answer_id,omitempty"` // ref of what you say to it
	Reason    string           `json:"reason,omitempty"`
	Next      string           `json:"next,omitempty"`
}

func message(ctx context.Context, c *caller, in *messageIn, _ progress) (any, error) {
	switch {
	case (in.TaskID == "") == (in.To == ""):
		return nil, bad("to", "expected either a task_id or an agent in to", "task_id for a task under way, to for an agent")
	case strings.TrimSpace(in.Text) == "":
		return nil, bad("text", "it is empty", "say something")
	case in.TaskID != "":
		return c.tellTask(ctx, in)
	}
	m := mesh.Message{
		Header: fleet.Header{Type: mesh.TypeMessage, ProtocolVersion: fleet.Version}, MessageID: mesh.MessageID(strings.ToLower(rand.Text())),
		To: in.To, Action: in.Action, Reply: in.Reply, Ref: in.Ref, ThreadID: in.Thread, Text: in.Text, Collect: in.Reply != mesh.No,
	}
	if m.Action == "" {
		m.Action = mesh.Info
	}
	if m.Reply == "" {
		m.Reply = mesh.Yes
	}
	if in.Data != nil {
		data, err := json.Marshal(in.Data)
		if err != nil {
			return nil, bad("data", err.Error(), "")
		}
		m.Data = data
	}
	until := time.Now().Add(min(time.Duration(in.Wait*float64(time.Second)), maxWait))
	s, err := ask[mesh.Sent](ctx, c, "mesh", "send", 0, &m)
	if err != nil {
		return nil, err
	}
	o := &sentMessage{MessageID: s.MessageID, ThreadID: s.ThreadID, To: in.To, State: s.State}
	if m.Reply == mesh.No {
		o.Next = "it is on its way; no answer is expected"
		return o, nil
	}
	if in.Wait > 0 {
		w := &waiting{c: c, until: until}
		enough, stop := w.begin(ctx)
		// It is sent: its id is told, whatever the wait comes to.
		_ = w.answers(ctx, enough, []mesh.MessageID{s.MessageID}, stop)
		stop()
		if len(w.messages) == 1 {
			o = w.messages[0]
			o.ThreadID = s.ThreadID
		}
	}
	if !o.Ended {
		o.Next = "no answer yet: fleet_wait with this message_id waits for it"
	}
	return o, nil
}

// answered is what has become of a message that wants an answer.
func answered(a *mesh.Answer) *sentMessage {
	m := &sentMessage{MessageID: a.MessageID, To: a.To, State: a.State, Reason: reason(a.Reason), Ended: a.State.Ended(true) && a.State != mesh.Answered}
	if r := a.Reply; r != nil {
		m.Ended, m.Answer, m.AnswerID, m.ThreadID = true, r.Body(), r.MessageID, r.ThreadID
		if len(r.Data) > 0 {
			m.Answer = strings.TrimSpace(m.Answer + "\n\n" + plain(r.Data))
		}
		if r.Error != nil {
			m.Reason = reason(r.Error)
		}
	}
	return m
}

// toldTask says what a message to a task was.
type toldTask struct {
	*task
	Was string `json:"message_was"` // answer | follow_up
}

// tellTask answers the open question of a task, or adds to what it says.
func (c *caller) tellTask(ctx context.Context, in *messageIn) (any, error) {
	if in.Data != nil || in.Action != "" || in.Reply != "" || in.Ref != "" || in.Thread != "" {
		return nil, bad("task_id", "data, action, reply, ref and thread_id are for messages to an agent", "leave them out; everything to be said to a task is its text")
	}
	v, err := ask[fleet.TaskView](ctx, c, "task", "get", 0, fleet.TaskRef{TaskID: in.TaskID})
	if err != nil {
		return nil, err
	}
	o := &toldTask{Was: "follow_up"}
	switch {
	case v.State.Terminal():
		return nil, &refusal{code: subjects.CodeInvalidMessage, argument: "task_id", message: "the task has ended: it is " + string(v.State), remedy: "fleet_result has its result; for more, dispatch a new task"}
	case v.Question != nil:
		o.Was = "answer"
		v, err = ask[fleet.TaskView](ctx, c, "task", "answer", 0, fleet.TaskAnswer{TaskID: in.TaskID, QuestionID: v.Question.ID, Text: in.Text})
	default:
		v, err = ask[fleet.TaskView](ctx, c, "task", "message", 0, fleet.TaskMessage{TaskID: in.TaskID, ID: rand.Text(), Text: in.Text})
	}
	if err != nil {
		return nil, err
	}
	o.task = shown(&v)
	return o, nil
}

type escalationIn struct {
	TaskID   subjects.TaskID  `json:"task_id,omitempty" jsonschema:"the task that waits"`
	AlertID  string           `json:"alert_id,omitempty" jsonschema:"the alert, instead of task_id"`
	Decision string           `json:"decision" jsonschema:"what is to happen"`
	AgentID  subjects.AgentID `json:"agent_id,omitempty" jsonschema:"reassign: to whom"`
	Text     string           `json:"text,omitempty" jsonschema:"answer: what the next agent is told; cancel: why"`
	Output   string           `json:"output,omitempty" jsonschema:"complete: the result"`
}

func answerEscalation(ctx context.Context, c *caller, in *escalationIn, _ progress) (any, error) {
	id := string(in.TaskID)
	switch {
	case (id == "") == (in.AlertID == ""):
		return nil, bad("task_id", "expected either a task_id or an alert_id", "fleet_status with state input_required lists the tasks that wait")
	case id == "":
		id = in.AlertID
	}
	a := fleet.EscalationAnswer{ID: id, RequestID: rand.Text(), AgentID: in.AgentID, Text: in.Text}
	switch {
	case in.Decision == fleet.VerbReassign && in.AgentID == "":
		return nil, bad("agent_id", "reassign needs to know to whom", "fleet_agents lists the agents")
	case in.Decision == fleet.VerbAnswer && in.Text == "":
		return nil, bad("text", "answer needs a text for the next agent", "")
	case in.Decision == fleet.VerbComplete:
		if in.Output == "" {
			return nil, bad("output", "complete needs the result", "")
		}
		output, err := json.Marshal(in.Output)
		if err != nil {
			return nil, bad("output", err.Error(), "")
		}
		a.Result = fleet.MustEncode(&fleet.Result{
			Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version},
			Status: fleet.StatusDone, NextSteps: []string{}, Output: output,
		})
	}
	return ask[fleet.EscalationAnswered](ctx, c, "escalation", in.Decision, 0, &a)
}
