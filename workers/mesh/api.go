package mesh

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// Defaults and bounds of calls.
const (
	defaultWait  = 4 * time.Second
	defaultLimit = 100
	maxReply     = 900 << 10 // bytes of a list
)

func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "mesh", Version: w.cfg.Version, Queue: "mesh",
		Description: "Carries messages between agents",
		Metadata:    map[string]string{"kind": "mesh"},
	}
	for _, e := range []struct {
		verb, request, reply string
		handle               func(ctx context.Context, from subjects.AgentID, data []byte) (any, error)
	}{
		{"send", "MESH_MESSAGE", "Sent", w.send},
		{"get", "Ref", "View", w.get},
		{"inbox", "Inbox", "List", w.inbox},
		{"thread", "Thread", "List", w.thread},
		{"wait", "Wait", "Answers", w.wait},
		{"done", "Done", "MESH_ACK", w.done},
	} {
		pattern := subjects.APIPattern("mesh", e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "mesh_" + e.verb, Subject: pattern,
			Metadata: map[string]string{"request": e.request, "reply": e.reply},
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, _ := subjects.Tokens(pattern, m.Subject)
				if len(vars) == 0 {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "the subject %q names no caller", m.Subject)
				}
				from, err := subjects.ParseAgentID(vars[0])
				if err != nil {
					return nil, err
				}
				v, err := e.handle(ctx, from, m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

// send stores a message for its sender, after everything that can be said of it
// now is said.
func (w *Worker) send(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	m, err := mesh.DecodeMessage(data)
	if err != nil {
		return nil, err
	}
	to := m.Receiver()
	switch {
	case to == "":
		return nil, subjects.Errorf(subjects.CodeInvalidID, "expected the agent that it is for, got nothing").At("/to")
	case m.From != "" && m.From != from:
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s cannot send a message from %s", from, m.From).At("/from")
	}
	if m.MessageID == "" {
		m.MessageID = mesh.MessageID(strings.ToLower(rand.Text()))
	}
	m.From, m.To, m.Agent, m.Text, m.Message = from, to, "", m.Body(), ""
	m.Attempt, m.Untrusted = 0, false
	if data, err = fleet.Encode(m); err != nil {
		return nil, err
	}
	if len(data) > w.cfg.Limits.MaxBytes {
		return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "%d bytes; at most %d are allowed between agents", len(data), w.cfg.Limits.MaxBytes).
			WithRemedy("send a link to it")
	}
	w.mu.Lock()
	known := w.core.entries[key{from, m.MessageID}]
	wait := w.core.limited(from, to, w.now())
	w.mu.Unlock()
	if known != nil {
		a, _ := w.snapshot(known)
		return &mesh.Sent{MessageID: known.id, ThreadID: known.thread, State: stateOf(a), Duplicate: true}, nil
	}
	if wait > 0 {
		return nil, subjects.Errorf(subjects.CodeRateLimited, "too many messages from %s", from).RetryAfter(wait).
			WithRemedy("send fewer of them, or wait")
	}
	crash.Point("before_mesh_store")
	if _, err := w.cfg.Bus.Store(ctx, subjects.Mesh(to, from), data, string(from)+"."+string(m.MessageID), nil); err != nil {
		return nil, notStored(err)
	}
	crash.Point("after_mesh_store")
	thread := m.ThreadID
	w.mu.Lock()
	if e := w.core.find(&entry{key: key{from, m.MessageID}, to: to, ref: m.Ref, thread: thread}); thread == "" && e != nil {
		thread = e.thread
	}
	w.mu.Unlock()
	return &mesh.Sent{MessageID: m.MessageID, ThreadID: cmp.Or(thread, mesh.ThreadID(m.MessageID)), State: mesh.Accepted}, nil
}

// notStored says what a refused write means to the caller.
func notStored(err error) error {
	if errors.Is(err, bus.ErrFull) {
		return subjects.Errorf(subjects.CodeRateLimited, "the mesh is full: %w", err).RetryAfter(time.Minute)
	}
	return subjects.Errorf(subjects.CodeUnavailable, "the message is not stored: %w", err).RetryAfter(time.Second)
}

func stateOf(a *mesh.Ack) mesh.State { return cmp.Or(a.State, mesh.Accepted) }

func (w *Worker) get(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[mesh.Ref](data)
	if err != nil {
		return nil, err
	}
	sender := cmp.Or(q.From, from)
	w.mu.Lock()
	e := w.core.entries[key{sender, q.MessageID}]
	w.mu.Unlock()
	if e == nil || !w.mayRead(from, e) {
		return nil, unknown(q.MessageID)
	}
	return w.view(ctx, e)
}

func unknown(id mesh.MessageID) error {
	return subjects.Errorf(subjects.CodeNotFound, "no message %q of yours is kept", id).At("/message_id").
		WithRemedy("messages are kept for a day after their end")
}

func (w *Worker) mayRead(who subjects.AgentID, e *entry) bool {
	return who == e.from || who == e.to || w.operator(who)
}

func (w *Worker) view(ctx context.Context, e *entry) (*mesh.View, error) {
	m, err := w.read(ctx, e)
	if err != nil {
		return nil, notStored(err)
	}
	v := &mesh.View{Message: *m}
	stateMsg, err := w.cfg.Bus.Last(ctx, subjects.StreamMeshState, subjects.MeshState(e.from, string(e.id)))
	if errors.Is(err, bus.ErrNotFound) {
		a, _ := w.snapshot(e)
		a.State, a.Time = stateOf(a), e.at
		v.Ack = *a
		return v, nil
	}
	if err == nil {
		var a *mesh.Ack
		if a, err = mesh.DecodeAck(stateMsg.Data); err == nil {
			v.Ack = *a
			return v, nil
		}
	}
	return nil, notStored(err)
}

// list views the last entries, as many as fit into a reply.
func (w *Worker) list(ctx context.Context, entries []*entry, limit int) (*mesh.List, error) {
	entries = entries[max(len(entries)-cmp.Or(limit, defaultLimit), 0):]
	l := &mesh.List{Messages: []mesh.View{}}
	size := 0
	for _, e := range slices.Backward(entries) {
		v, err := w.view(ctx, e)
		if err != nil {
			return nil, err
		}
		if size += sizeOf(v); size > maxReply && len(l.Messages) > 0 {
			break
		}
		l.Messages = append(l.Messages, *v)
	}
	slices.Reverse(l.Messages)
	return l, nil
}

// sizeOf is about how many bytes of a reply a view has.
func sizeOf(v *mesh.View) int { return len(v.Message.Text) + len(v.Message.Data) + 1024 }

func (w *Worker) thread(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[mesh.Thread](data)
	if err != nil {
		return nil, err
	}
	var mine []*entry
	w.mu.Lock()
	for _, e := range w.core.threads[q.ThreadID] {
		if w.mayRead(from, e) {
			mine = append(mine, e)
		}
	}
	w.mu.Unlock()
	if len(mine) == 0 {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no thread %q with a message of yours is kept", q.ThreadID).At("/thread_id").
			WithRemedy("messages are kept for a day after their end")
	}
	return w.list(ctx, mine, q.Limit)
}

func (w *Worker) inbox(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[mesh.Inbox](data)
	if err != nil {
		return nil, err
	}
	rung, stop := w.bells.wait(inboxBell(from))
	defer stop()
	over := time.NewTimer(time.Duration(q.WaitSeconds * float64(time.Second)))
	defer over.Stop()
	for {
		found := w.messagesTo(from, q.All)
		if len(found) > 0 || q.WaitSeconds == 0 {
			return w.taken(ctx, found, &q)
		}
		select {
		case _, more := <-rung:
			if more {
				continue
			}
		case <-over.C:
		case <-ctx.Done():
		}
		return &mesh.List{Messages: []mesh.View{}}, nil
	}
}

// messagesTo lists what waits for an agent; all: whatever is kept.
func (w *Worker) messagesTo(to subjects.AgentID, all bool) (found []*entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.core.log {
		if e.to == to && e.refusal == nil && (all || !e.state.Left() && !e.fetched) {
			found = append(found, e)
		}
	}
	return found
}

// taken answers an inbox call, and takes the messages if it says so: those
// that no instance has, the oldest first, as many as fit into a reply.
func (w *Worker) taken(ctx context.Context, found []*entry, q *mesh.Inbox) (*mesh.List, error) {
	if !q.Take {
		return w.list(ctx, found, q.Limit)
	}
	l := &mesh.List{Messages: []mesh.View{}}
	size := 0
	for _, e := range found[:min(len(found), cmp.Or(q.Limit, defaultLimit))] {
		v, err := w.view(ctx, e)
		if err != nil && len(l.Messages) == 0 {
			return nil, err
		}
		if err != nil || size+sizeOf(v) > maxReply && len(l.Messages) > 0 {
			break // what was taken before is told
		}
		took, err := w.takeOut(ctx, e)
		if err != nil {
			break // as above
		}
		if took != nil {
			v.Ack = *took
			l.Messages = append(l.Messages, *v)
			size += sizeOf(v)
		}
	}
	return l, nil
}

// takeOut makes a message processed by hand; nil when an instance has it, or
// somebody was first.
func (w *Worker) takeOut(ctx context.Context, e *entry) (*mesh.Ack, error) {
	a, rev := w.snapshot(e)
	if a.State != "" && a.State != mesh.Accepted {
		return nil, nil //nolint:nilnil // not this time is no error
	}
	a.State = mesh.Processed
	_, err := w.write(ctx, a, rev)
	if errors.Is(err, bus.ErrConflict) {
		return nil, nil //nolint:nilnil // as above
	}
	return a, err
}
