package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// meshWait is how long one call for answers stays open.
const meshWait = 20 * time.Second

// Question is what a task asks other agents.
type Question struct {
	To      []subjects.AgentID
	Text    string
	Action  mesh.Action   // absent info
	Need    int           // answers wanted; absent all
	Timeout time.Duration // absent 10 min
}

// AskAgents asks other agents through the mesh in mid-task and waits for their
// answers: one for each receiver, in their order. The tokens that they cost
// count as the task's, and its budget is theirs. The error is ctx's cause, or
// what the fleet said; that some did not answer is no error, see State.
func (t *Task) AskAgents(ctx context.Context, q Question) ([]mesh.Answer, error) {
	if t.line == nil {
		return nil, errors.New("nobody to ask")
	}
	return t.line.askAgents(ctx, q)
}

func (l link) askAgents(ctx context.Context, q Question) ([]mesh.Answer, error) {
	if len(q.To) == 0 || len(q.To) > mesh.MaxReceivers {
		return nil, errors.New("a question needs 1 to 256 receivers")
	}
	d := l.h.task.Dispatch
	budget := l.h.task.budget()
	if budget > 0 {
		if budget -= l.h.lent.Load() + l.h.spent.Load(); budget <= 0 {
			return nil, subjects.Errorf(subjects.CodeBudgetExhausted, "the task's token budget is spent")
		}
	}
	timeout := cmp.Or(q.Timeout, 10*time.Minute)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ids := make([]mesh.MessageID, len(q.To))
	thread := mesh.ThreadID(strings.ToLower(rand.Text()))
	for i, to := range q.To {
		ids[i] = mesh.MessageID(strings.ToLower(rand.Text()))
		m := &mesh.Message{
			Header:    fleet.Header{Type: mesh.TypeMessage, ProtocolVersion: fleet.Version},
			MessageID: ids[i], To: to, ThreadID: thread, Action: cmp.Or(q.Action, mesh.Info), Reply: mesh.Yes, Text: q.Text,
			Collect: true, TaskID: l.h.id, RunID: d.Task.RunID, TokenBudget: budget, Traceparent: d.Traceparent,
			ReplyTimeoutSeconds: timeout.Seconds(), TTLSeconds: timeout.Seconds(),
		}
		if err := l.w.tellMesh(ctx, "send", m, nil); err != nil {
			return nil, err
		}
	}
	return l.collect(ctx, ids, q.Need)
}

// collect waits for the answers to messages.
func (l link) collect(ctx context.Context, ids []mesh.MessageID, need int) ([]mesh.Answer, error) {
	counted := map[mesh.MessageID]bool{}
	for {
		var r mesh.Answers
		err := l.w.tellMesh(ctx, "wait", &mesh.Wait{MessageIDs: ids, Need: need, TimeoutSeconds: meshWait.Seconds()}, &r)
		for _, a := range r.Answers {
			if a.Reply != nil && !counted[a.MessageID] {
				counted[a.MessageID] = true
				l.h.lent.Add(a.Reply.TokensSpent)
			}
		}
		switch {
		case err == nil && r.Done:
			return r.Answers, nil
		case ctx.Err() != nil:
			return r.Answers, context.Cause(ctx)
		case err != nil:
			return nil, err
		}
	}
}
