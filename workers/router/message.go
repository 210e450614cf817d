package router

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Bounds of a task's follow-ups: every record repeats them.
const (
	maxMessages     = 64
	maxMessagesSize = 128 << 10
)

// apiMessage adds a follow-up to a task that has not ended.
func (w *Worker) apiMessage(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskMessage](data)
	if err != nil {
		return nil, err
	}
	if _, err := w.visible(ctx, from, req.TaskID); err != nil {
		return nil, err
	}
	if req.ID == "" {
		req.ID = rand.Text()
	}
	m := fleet.Message{
		ID: req.ID, MessageID: req.MessageID, From: from, Text: req.Text, Parts: req.Parts, MessageExtras: req.MessageExtras,
	}
	n, err := w.change(ctx, req.TaskID, func(v *view) (*fleet.Event, error) {
		messages := v.ev.Facts.Messages
		if slices.ContainsFunc(messages, func(old fleet.Message) bool { return old.ID == m.ID }) {
			return nil, nil
		}
		if v.ev.State.Terminal() {
			return nil, subjects.Errorf(subjects.CodeInvalidMessage, "task %s has ended: it is %s", req.TaskID, v.ev.State).
				At("/task_id").WithRemedy("dispatch a new task")
		}
		if len(messages) >= maxMessages || sizeOfMessages(append(slices.Clip(messages), m)) > maxMessagesSize {
			return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "the follow-ups of a task are at most %d and %d KiB together",
				maxMessages, maxMessagesSize>>10).WithRemedy("pass large content by reference, or dispatch a new task")
		}
		return added(v.ev, m, w.now()), nil
	})
	if err != nil {
		return nil, err
	}
	return w.delivered(ctx, n, inputOfMessage(n.TaskID, &m)), nil
}

// deliverTimeout is how long a sender waits to hear when its message reaches
// whoever works on the task.
const deliverTimeout = 2 * time.Second

// delivered gives a message that is stored to the task's holder, and shows the
// task with when the holder's work gets it. Nothing depends on that: who holds the
// task is told until it has taken the message.
func (w *Worker) delivered(ctx context.Context, e *fleet.Event, c *fleet.Control) fleet.TaskView {
	v := w.show(ctx, &view{ev: e}, false)
	if !held(e) {
		if !e.State.Terminal() {
			v.Delivered = fleet.DeliveredNextAttempt
		}
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	reply, err := w.bus.Request(ctx, subjects.Control(e.AgentID, e.InstanceID), fleet.MustEncode(c), nil)
	if err != nil {
		return v
	}
	if r, err := fleet.DecodeControlReply(reply.Data); err == nil && r.OK {
		v.Delivered = r.Delivered
	}
	return v
}

// inputOfMessage gives a follow-up to whoever works on the task.
func inputOfMessage(task subjects.TaskID, m *fleet.Message) *fleet.Control {
	return &fleet.Control{
		Header: fleet.Header{Type: fleet.TypeControl, ProtocolVersion: fleet.Version}, Action: fleet.ActionInput, TaskID: task,
		ID: m.ID, MessageID: m.MessageID, Text: m.Text, Parts: m.Parts, MessageExtras: m.MessageExtras,
	}
}

// inputOfAnswer gives the answer to a question to whoever works on the task.
func inputOfAnswer(task subjects.TaskID, a *fleet.Answer) *fleet.Control {
	return &fleet.Control{
		Header: fleet.Header{Type: fleet.TypeControl, ProtocolVersion: fleet.Version}, Action: fleet.ActionInput, TaskID: task,
		QuestionID: a.QuestionID, MessageID: a.MessageID, Text: a.Text, Parts: a.Parts, MessageExtras: a.MessageExtras,
	}
}

// sizeOfMessages is how long follow-ups are, as JSON: text that parts have, too, counts
// once.
func sizeOfMessages(messages []fleet.Message) (n int) {
	for _, m := range messages {
		if len(m.Parts) > 0 {
			m.Text = ""
		}
		n += len(fleet.MustEncode(m))
	}
	return n
}
