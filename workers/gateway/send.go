package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// idsOfKeys is the name space of the ids that idempotency keys give.
var idsOfKeys = uuid.MustParse("6f0f9a52-6a5e-5c55-8d0d-3c1f1a0f7a11")

// idOfKey is an id of something of a task: the same for every repeat under the
// caller's idempotency key, "" without one.
func idOfKey(c *call, what string, task subjects.TaskID) string {
	if c.key == "" {
		return ""
	}
	return uuid.NewSHA1(idsOfKeys, []byte(string(c.from)+"\x00"+c.key+"\x00"+what+"\x00"+string(task))).String()
}

// sent is a message that the fleet has taken: new work, or a follow-up.
type sent struct {
	watch *watch
	since uint64 // the record that took the message
	fresh bool   // a new task: every record comes by the watch
}

// deliver hands a message to the fleet. The watch must be ended by the caller.
func (w *Worker) deliver(ctx context.Context, c *call, req *a2apb.SendMessageRequest) (*sent, error) {
	m := req.GetMessage()
	parts, contract, err := checkMessage(m)
	if err != nil {
		return nil, err
	}
	tenant, err := tenantOf(req.GetTenant())
	if err != nil {
		return nil, err
	}
	active, err := activated(c.extensions, m.GetMetadata(), m.GetExtensions(), w.cfg.Required)
	if err != nil {
		return nil, err
	}
	c.activate(active)
	if contract != nil {
		c.key = pick(c.key, contract.IdempotencyKey)
	}
	var s *sent
	if m.GetTaskId() != "" {
		s, err = w.followUp(ctx, c, tenant, m, parts)
	} else {
		s, err = w.dispatch(ctx, c, tenant, req, parts, contract)
	}
	push := req.GetConfiguration().GetTaskPushNotificationConfig()
	if err != nil || push == nil {
		return s, err
	}
	// The receiver is told from the record on that took the message.
	cfg := newPush(c, push, &fleet.Event{TaskID: s.watch.task, Facts: fleet.Facts{Deadline: time.Now().Add(fleet.MaxDeadline)}}, s.since-1)
	if err := w.push.set(ctx, cfg); err != nil {
		w.feed.unwatch(s.watch)
		return nil, about(c, cfg.TaskID, "the message was taken, its push notification config was not", err)
	}
	return s, nil
}

// checkMessage holds a message against the specification.
func checkMessage(m *a2apb.Message) ([]fleet.Part, *Contract, error) {
	switch {
	case m == nil:
		return nil, nil, badField("message", "it is missing")
	case m.GetMessageId() == "":
		return nil, nil, badField("message.messageId", "it is missing")
	case m.GetRole() != a2apb.Role_ROLE_USER:
		return nil, nil, badField("message.role", "expected ROLE_USER")
	case len(m.GetParts()) == 0:
		return nil, nil, badField("message.parts", "expected at least one part")
	}
	for _, id := range []struct{ field, value string }{
		{"message.messageId", m.GetMessageId()}, {"message.contextId", m.GetContextId()},
	} {
		if len(id.value) > maxForeignID {
			return nil, nil, badField(id.field, "expected at most "+strconv.Itoa(maxForeignID)+" bytes")
		}
	}
	parts, err := fleetParts("message.parts", m.GetParts())
	if err != nil {
		return nil, nil, err
	}
	contract, err := readContract(m.GetMetadata())
	if err != nil {
		return nil, nil, err
	}
	return parts, contract, nil
}

// maxForeignID bounds the ids that clients choose.
const maxForeignID = 256

// tenantOf is the agent that a tenant stands for; "" is the fleet.
func tenantOf(tenant string) (subjects.AgentID, error) {
	if tenant == "" {
		return "", nil
	}
	id, err := subjects.ParseAgentID(tenant)
	if err != nil {
		return "", badField("tenant", "it is not the id of an agent")
	}
	return id, nil
}

// dispatch makes a message a new task.
func (w *Worker) dispatch(ctx context.Context, c *call, tenant subjects.AgentID, req *a2apb.SendMessageRequest, parts []fleet.Part, contract *Contract) (*sent, error) {
	d, err := newDispatch(c, tenant, req, parts, contract)
	if err != nil {
		return nil, err
	}
	data, err := fleet.Encode(d)
	if err != nil {
		return nil, err
	}
	if d.Task.TaskID == "" {
		return w.dispatched(ctx, c, data, nil)
	}
	s, err := w.dispatched(ctx, c, data, w.feed.watch(d.Task.TaskID))
	return s, unsure(c, d.Task.TaskID, err)
}

// unsure is err of handing a message to the fleet, which may have taken it unless
// it has refused it.
func unsure(c *call, task subjects.TaskID, err error) error {
	if err == nil {
		return nil
	}
	switch asFault(err).kind {
	case kindUnavailable, kindInternal:
		return about(c, task, "the message may have been taken", err)
	}
	return err
}

// newDispatch is the dispatch that a message makes. Under an idempotency key the
// same request must be the same dispatch, byte for byte, and the fleet names the
// task.
func newDispatch(c *call, tenant subjects.AgentID, req *a2apb.SendMessageRequest, parts []fleet.Part, contract *Contract) (*fleet.Dispatch, error) {
	m := req.GetMessage()
	more, err := extrasOf(m)
	if err != nil {
		return nil, err
	}
	d := &fleet.Dispatch{
		Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
		Input: &fleet.Input{
			MessageID: m.GetMessageId(), ContextID: m.GetContextId(), Parts: parts, Metadata: more.Metadata,
			Extensions: more.Extensions, ReferenceTaskIDs: more.ReferenceTaskIDs,
			AcceptedOutputModes: req.GetConfiguration().GetAcceptedOutputModes(),
		},
	}
	if contract != nil {
		contract.apply(d)
	}
	d.Task.Agent = tenant
	if c.key != "" {
		d.Task.IdempotencyKey = c.key
		d.Input.ContextID = pick(d.Input.ContextID, uuid.NewSHA1(idsOfKeys, []byte(string(c.from)+"\x00"+c.key)).String())
		return d, nil
	}
	v7, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	d.Task.TaskID = subjects.TaskID(v7.String())
	d.Input.ContextID = pick(d.Input.ContextID, uuid.NewString())
	return d, nil
}

// dispatched asks the fleet to take a dispatch. With a watch, its task id is
// chosen here, which makes a repeat safe.
func (w *Worker) dispatched(ctx context.Context, c *call, data []byte, x *watch) (*sent, error) {
	h := bus.Header{} // the trace is there: a repeated request has another one
	if c.traceparent != "" {
		h.Set(subjects.HeaderTraceparent, c.traceparent)
	}
	reply, err := askWith[fleet.Dispatched](ctx, w, subjects.API(c.from, "task", "dispatch"), data, h)
	if err != nil {
		if x != nil {
			w.feed.unwatch(x)
		}
		return nil, err
	}
	if x != nil {
		return &sent{watch: x, since: 1, fresh: true}, nil
	}
	return &sent{watch: w.feed.watch(reply.TaskID), since: 1}, nil
}

// followUp hands a message to a task that exists.
func (w *Worker) followUp(ctx context.Context, c *call, tenant subjects.AgentID, m *a2apb.Message, parts []fleet.Part) (*sent, error) {
	p, err := w.visible(ctx, c, tenant, m.GetTaskId())
	if err != nil {
		return nil, err
	}
	id := subjects.TaskID(m.GetTaskId())
	switch {
	case m.GetContextId() != "" && m.GetContextId() != p.task.GetContextId():
		return nil, badField("message.contextId", "the task belongs to another context")
	}
	more, err := extrasOf(m)
	if err != nil {
		return nil, err
	}
	since, err := p.taken(c, m.GetMessageId(), parts, more)
	switch {
	case err != nil:
		return nil, err
	case since > 0:
		return &sent{watch: w.feed.watch(id), since: since}, nil
	case p.last.State.Terminal():
		return nil, faultf(kindUnsupported, "the task has ended: it is "+string(p.last.State)+"; send a message without taskId for a new one")
	}
	x := w.feed.watch(id)
	view, err := w.hand(ctx, c, p, m.GetMessageId(), parts, more)
	if err != nil {
		w.feed.unwatch(x)
		return nil, unsure(c, id, err)
	}
	return &sent{watch: x, since: view.Seq}, nil
}

// hand gives a message to the task: as the answer when it has a question open,
// otherwise as a follow-up.
func (w *Worker) hand(ctx context.Context, c *call, p *picture, messageID string, parts []fleet.Part, more fleet.MessageExtras) (fleet.TaskView, error) {
	id := subjects.TaskID(p.task.GetId())
	if q := p.last.Facts.Question; q != nil {
		return ask[fleet.TaskView](ctx, w, c.from, "task", "answer", fleet.TaskAnswer{
			TaskID: id, QuestionID: q.ID, MessageID: messageID, Parts: parts, MessageExtras: more,
		})
	}
	return ask[fleet.TaskView](ctx, w, c.from, "task", "message", fleet.TaskMessage{
		TaskID: id, ID: pick(idOfKey(c, "message", id), rand.Text()), MessageID: messageID, Parts: parts, MessageExtras: more,
	})
}

// extrasOf is what a message carries beside its id and its parts.
func extrasOf(m *a2apb.Message) (fleet.MessageExtras, error) {
	meta, err := metadataJSON(m.GetMetadata())
	if err != nil {
		return fleet.MessageExtras{}, badField("message.metadata", "not JSON")
	}
	return fleet.MessageExtras{Metadata: meta, Extensions: m.GetExtensions(), ReferenceTaskIDs: m.GetReferenceTaskIds()}, nil
}

// taken is the record that took a message under the caller's idempotency key
// before, 0 if none did. Another message under that key is refused. Answers keep
// no key: one is the same by whom, by its messageId and by what it says.
func (p *picture) taken(c *call, messageID string, parts []fleet.Part, more fleet.MessageExtras) (uint64, error) {
	if c.key == "" {
		return 0, nil
	}
	id, says := idOfKey(c, "message", subjects.TaskID(p.task.GetId())), whatSays(messageID, parts, more)
	for _, in := range p.inputs {
		if a := in.answer; a != nil && a.From == c.from && bytes.Equal(whatSays(a.MessageID, a.Parts, a.MessageExtras), says) {
			return in.seq, nil
		}
		if m := in.message; m != nil && m.ID == id {
			if !bytes.Equal(whatSays(m.MessageID, m.Parts, m.MessageExtras), says) {
				return 0, faultf(kindConflict, "the idempotency key belongs to another message; use a new one")
			}
			return in.seq, nil
		}
	}
	return 0, nil
}

// whatSays is a message in bytes: the same for the same message.
func whatSays(messageID string, parts []fleet.Part, more fleet.MessageExtras) []byte {
	return fleet.MustEncode(fleet.Message{MessageID: messageID, Parts: parts, MessageExtras: more})
}

// sendMessage is the operation SendMessage.
func (w *Worker) sendMessage(ctx context.Context, c *call, req *a2apb.SendMessageRequest) (*a2apb.SendMessageResponse, error) {
	conf := req.GetConfiguration()
	if err := w.checkConfiguration(ctx, c, conf); err != nil {
		return nil, err
	}
	s, err := w.deliver(ctx, c, req)
	if err != nil {
		return nil, err
	}
	defer w.feed.unwatch(s.watch)
	p := &picture{quiet: true, reports: c.wantsReports()}
	err = w.follow(ctx, c.from, s.watch, 0, !s.fresh, func(ev *fleet.Event) error {
		p.add(ev)
		if ev.Seq < s.since {
			return nil
		}
		if conf.GetReturnImmediately() || ev.State.Terminal() || interrupted(ev) {
			return errStop
		}
		return nil
	})
	if errors.Is(err, errDraining) && p.seq >= s.since {
		err = nil // the task as it is: a repeat at another gateway could be another task
	}
	if err != nil {
		return nil, about(c, s.watch.task, "the message was taken", err)
	}
	p.report()
	if r := p.result; r != nil && r.AsMessage && r.Status == fleet.StatusDone {
		return &a2apb.SendMessageResponse{Payload: &a2apb.SendMessageResponse_Message{Message: p.answer()}}, nil
	}
	return &a2apb.SendMessageResponse{Payload: &a2apb.SendMessageResponse_Task{Task: trimmed(p.task, historyLength(conf))}}, nil
}

// checkConfiguration refuses what cannot be done.
func (w *Worker) checkConfiguration(ctx context.Context, c *call, conf *a2apb.SendMessageConfiguration) error {
	if n := conf.GetHistoryLength(); n < 0 {
		return badField("configuration.historyLength", "expected 0 or more")
	}
	if p := conf.GetTaskPushNotificationConfig(); p != nil {
		return w.checkPush(ctx, c, p)
	}
	return nil
}

// sendStreamingMessage is the operation SendStreamingMessage. The stream ends
// when the task has ended, or waits for somebody.
func (w *Worker) sendStreamingMessage(ctx context.Context, c *call, req *a2apb.SendMessageRequest, send func(frame) error) error {
	if err := w.checkConfiguration(ctx, c, req.GetConfiguration()); err != nil {
		return err
	}
	s, err := w.deliver(ctx, c, req)
	if err != nil {
		return err
	}
	defer w.feed.unwatch(s.watch)
	p := &picture{reports: c.wantsReports()}
	s.watch.sendProgress(p, s.since, send)
	err = w.follow(ctx, c.from, s.watch, 0, !s.fresh, func(ev *fleet.Event) error {
		frames := p.add(ev)
		switch {
		case ev.Seq < s.since:
			return nil
		case ev.Seq == s.since: // the task as it is now comes first
			frames = []frame{{id: frameID(ev.Seq, 0, 1), msg: taskFrame(p, req.GetConfiguration())}}
		}
		for _, f := range frames {
			if err := send(f); err != nil {
				return err
			}
		}
		if ev.State.Terminal() || interrupted(ev) {
			return errStop
		}
		return nil
	})
	if err != nil {
		return about(c, s.watch.task, "the message was taken", err)
	}
	return nil
}

// historyLength is how much of the history a client wants; nil is all.
func historyLength(conf *a2apb.SendMessageConfiguration) *int32 {
	if conf == nil {
		return nil
	}
	return conf.HistoryLength
}

func taskFrame(p *picture, conf *a2apb.SendMessageConfiguration) *a2apb.StreamResponse {
	return &a2apb.StreamResponse{Payload: &a2apb.StreamResponse_Task{Task: trimmed(p.snapshot(), historyLength(conf))}}
}
