package router

import (
	"context"
	"crypto/rand"
	"slices"

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
	return w.show(ctx, &view{ev: n}, false), nil
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
