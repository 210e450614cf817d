package sessions

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// atOnce is how many calls a worker deals with at a time, and maxWaiting how many
// of them may wait for news of a context. The rest is for the others.
const (
	atOnce     = 1 << 12
	maxWaiting = atOnce / 4 * 3
)

// service is the session part of the API. Reads that wait end with run.
func (w *Worker) service(run context.Context) bus.Service {
	s := bus.Service{
		Name: "sessions", Version: w.cfg.Version, Queue: "sessions",
		Description: "Keeps sessions and their contexts",
		Metadata:    map[string]string{"kind": "sessions"},
		Concurrency: atOnce,
	}
	for _, e := range []struct {
		verb   string
		handle func(context.Context, subjects.AgentID, []byte) (any, error)
	}{
		{"create", endpoint(w.create)},
		{"get", endpoint(w.get)},
		{"update", endpoint(w.update)},
		{"delete", endpoint(w.remove)},
		{"list", endpoint(w.list)},
		{"handshake", endpoint(w.greet)},
		{"append", endpoint(w.appendEntry)},
		{"context", endpoint(func(ctx context.Context, from subjects.AgentID, r *handshake.Read) (any, error) {
			return w.readContext(ctx, run, from, r)
		})},
		{"put", endpoint(w.put)},
		{"fetch", endpoint(w.fetch)},
		{"offer", endpoint(w.offer)},
	} {
		pattern, timeout := subjects.APIPattern("session", e.verb), bus.StoreTime
		if e.verb == "append" || e.verb == "context" { // who looks at 64 MiB, or waits for news, has their own
			timeout = 0
		}
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "session_" + e.verb, Subject: pattern, Timeout: timeout,
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "the subject names no caller")
				}
				v, err := e.handle(ctx, subjects.AgentID(vars[0]), m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

// endpoint decodes a request for its handler.
func endpoint[T any, M interface {
	*T
	handshake.Request
}](handle func(context.Context, subjects.AgentID, *T) (any, error)) func(context.Context, subjects.AgentID, []byte) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
		r, err := handshake.DecodeRequest[T, M](data)
		if err != nil {
			return nil, err
		}
		return handle(ctx, from, r)
	}
}

func noSession(id subjects.SessionID) error {
	return subjects.Errorf(subjects.CodeNotFound, "there is no session %q that you may use", id).At("/session_id").
		WithRemedy("sessions are kept 24 h after their last renewal; parley session ls shows yours")
}

func (w *Worker) operator(id subjects.AgentID) bool { return slices.Contains(w.cfg.Operators, id) }

// lookUp asks the leader: what is known here may be behind what another worker
// has just stored, and a session that was deleted is over for everybody.
func (w *Worker) lookUp(ctx context.Context, id subjects.SessionID) (stored, error) {
	e, err := w.sessions.Get(ctx, string(id))
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return stored{}, noSession(id)
	case err != nil:
		return stored{}, unavailable(err)
	}
	s, err := decodeStored(e)
	if err != nil {
		return stored{}, err
	}
	if !w.now().Before(s.keptUntil()) {
		return stored{}, noSession(id)
	}
	return s, nil
}

// use finds a session for who may use it. Somebody who may not hears the same
// as of one that does not exist, unless a token was given: then what is wrong
// with that.
func (w *Worker) use(ctx context.Context, from subjects.AgentID, id subjects.SessionID, token string) (stored, error) {
	if token != "" {
		if err := w.keys.check(ctx, id, token, w.now()); err != nil {
			return stored{}, w.refuse(ctx, id, from, err)
		}
		return w.lookUp(ctx, id)
	}
	return w.own(ctx, from, id)
}

// own finds a session for its owner, or an operator.
func (w *Worker) own(ctx context.Context, from subjects.AgentID, id subjects.SessionID) (stored, error) {
	s, err := w.lookUp(ctx, id)
	if err != nil {
		return stored{}, err
	}
	if s.session.Orchestrator != from && !w.operator(from) {
		return stored{}, w.refuse(ctx, id, from, noSession(id))
	}
	return s, nil
}

// newSessionID is 16 random bytes with the time.
func newSessionID(now time.Time) subjects.SessionID {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	return subjects.NewSessionID(now, random)
}

func (w *Worker) create(ctx context.Context, from subjects.AgentID, r *handshake.Create) (any, error) {
	if _, err := subjects.ParseAgentID(string(from)); err != nil {
		return nil, err
	}
	now := w.now().Truncate(time.Second)
	s := handshake.Session{
		SessionID: newSessionID(now), Orchestrator: from, CreatedAt: now, ExpiresAt: now.Add(handshake.TokenLife),
		TaskID: r.TaskID, TaskMetadata: r.TaskMetadata,
	}
	if _, err := w.sessions.Telling(workers.Line(s.SessionID, from, handshake.EventSessionCreate, &s)).Create(ctx, string(s.SessionID), fleet.MustEncode(&s), 0); err != nil {
		return nil, storeError(err)
	}
	crash.Point("after_session_create")
	return w.opened(ctx, s)
}

func storeError(err error) error {
	if errors.Is(err, bus.ErrFull) {
		return subjects.Errorf(subjects.CodeRateLimited, "the store of sessions is full").RetryAfter(time.Minute)
	}
	return unavailable(err)
}

// opened is what the owner of a session gets to hear.
func (w *Worker) opened(ctx context.Context, s handshake.Session) (any, error) {
	token, err := w.keys.token(ctx, s.SessionID, s.ExpiresAt)
	if err != nil {
		return nil, unavailable(err)
	}
	kept := s.ExpiresAt.Add(handshake.SessionLife - handshake.TokenLife)
	return &handshake.Opened{Session: s, Token: token, KeptUntil: kept}, nil
}

func (w *Worker) get(ctx context.Context, from subjects.AgentID, r *handshake.Ref) (any, error) {
	s, err := w.use(ctx, from, r.SessionID, r.Token)
	if err != nil {
		return nil, err
	}
	l := w.logOf(r.SessionID)
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.release()
	if err := l.catchUp(ctx, w.bus); err != nil {
		return nil, err
	}
	return &handshake.View{Session: s.session, Version: l.version, KeptUntil: s.keptUntil()}, nil
}

func (w *Worker) update(ctx context.Context, from subjects.AgentID, r *handshake.Update) (any, error) {
	for {
		s, err := w.own(ctx, from, r.SessionID)
		if err != nil {
			return nil, err
		}
		n := s.session
		n.ExpiresAt = w.now().Truncate(time.Second).Add(handshake.TokenLife)
		n.TaskID = cmp.Or(r.TaskID, n.TaskID)
		if r.TaskMetadata != nil {
			n.TaskMetadata = *r.TaskMetadata
		}
		told := workers.Line(n.SessionID, from, handshake.EventSessionUpdate, &n)
		rev, err := w.sessions.Telling(told).Update(ctx, string(r.SessionID), fleet.MustEncode(&n), s.revision)
		switch {
		case errors.Is(err, bus.ErrConflict): // another was faster: look again
		case err != nil:
			return nil, storeError(err)
		default:
			crash.Point("after_session_update")
			w.learn(stored{session: n, revision: rev, at: w.now()})
			return w.opened(ctx, n)
		}
	}
}

// learn takes in a record that was just written.
func (w *Worker) learn(s stored) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.revision > w.known[s.session.SessionID].revision {
		w.known[s.session.SessionID] = s
	}
}

func (w *Worker) remove(ctx context.Context, from subjects.AgentID, r *handshake.Ref) (any, error) {
	s, err := w.own(ctx, from, r.SessionID)
	if err != nil {
		return nil, err
	}
	if plant.Bug("delete_lost") {
		return &handshake.Deleted{SessionID: r.SessionID, OK: true}, nil
	}
	for {
		told := workers.Line(r.SessionID, from, handshake.EventSessionDelete, struct{}{})
		if err = w.sessions.Telling(told).DeleteRevision(ctx, string(r.SessionID), s.revision); err == nil {
			break
		} else if !errors.Is(err, bus.ErrConflict) {
			return nil, storeError(err)
		}
		if s, err = w.lookUp(ctx, r.SessionID); err != nil {
			return nil, err
		}
	}
	crash.Point("after_session_delete")
	w.mu.Lock()
	w.forgetLocked(r.SessionID)
	w.mu.Unlock()
	w.drop(ctx, []subjects.SessionID{r.SessionID})
	return &handshake.Deleted{SessionID: r.SessionID, OK: true}, nil
}

func (w *Worker) list(_ context.Context, from subjects.AgentID, r *handshake.List) (any, error) {
	now := w.now()
	reply := &handshake.ListReply{Sessions: []handshake.View{}}
	w.mu.Lock()
	for _, s := range w.known {
		if (s.session.Orchestrator == from || w.operator(from)) && now.Before(s.keptUntil()) {
			reply.Sessions = append(reply.Sessions, handshake.View{Session: s.session, KeptUntil: s.keptUntil()})
		}
	}
	w.mu.Unlock()
	slices.SortFunc(reply.Sessions, func(a, b handshake.View) int {
		return cmp.Or(b.Session.CreatedAt.Compare(a.Session.CreatedAt), cmp.Compare(a.Session.SessionID, b.Session.SessionID))
	})
	reply.Total = len(reply.Sessions)
	reply.Sessions = reply.Sessions[:min(reply.Total, cmp.Or(r.Limit, 100))]
	return reply, nil
}

// greet passes a handshake on: init to the target, its ack back, and to a
// target that accepts the context.
func (w *Worker) greet(ctx context.Context, from subjects.AgentID, r *handshake.Greet) (any, error) {
	if r.Initiator.AgentID != from {
		return nil, subjects.Errorf(subjects.CodeForbidden, "the initiator is %s, the subject says %s", r.Initiator.AgentID, from).
			At("/initiator/agent_id").WithRemedy("name yourself: the subject alone says who asks")
	}
	if _, err := w.use(ctx, from, r.SessionID, r.Token); err != nil {
		return nil, err
	}
	target := r.Target.AgentID
	shake := map[string]any{"initiator": from, "target": target, "task_id": r.Task.TaskID}
	w.note(ctx, r.SessionID, from, handshake.EventInit, shake)
	reply, err := w.tell(ctx, target, &r.Init)
	if err != nil {
		return nil, err
	}
	ack, err := handshake.DecodeAck(reply)
	switch {
	case err != nil:
		return nil, subjects.Errorf(subjects.CodeAgentError, "the answer of %s is no handshake_ack: %w", target, err)
	case ack.SessionID != r.SessionID || ack.Target.AgentID != target:
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s answers as %s, for session %s", target, ack.Target.AgentID, ack.SessionID)
	}
	shake["accepted"] = ack.Accepted
	w.note(ctx, r.SessionID, target, handshake.EventAck, shake)
	if !ack.Accepted {
		return ack, nil
	}
	before, err := w.boundedContext(ctx, r.SessionID)
	if err != nil {
		return nil, err
	}
	view, err := fleet.DecodeStored[handshake.ContextView](before)
	if err != nil {
		return nil, err
	}
	if _, err := w.tell(ctx, target, exchange(view, w.now())); err != nil {
		return nil, err
	}
	w.note(ctx, r.SessionID, target, handshake.EventExchange, map[string]any{"version": view.Context.Version})
	return ack, nil
}

const tellTimeout = 2 * time.Second

// tell asks an agent something of the handshake.
func (w *Worker) tell(ctx context.Context, target subjects.AgentID, m any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	reply, err := w.bus.Request(ctx, subjects.Handshake(target), fleet.MustEncode(m), nil)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeAgentLost, "%s does not answer a handshake: %w", target, err).
			WithRemedy("parley agent ls shows who is live")
	}
	return reply.Data, nil
}

// exchange is phase 3 of the handshake: what came before.
func exchange(v *handshake.ContextView, now time.Time) *handshake.Exchange {
	m := &handshake.Exchange{
		Header:    handshake.Header{ProtocolVersion: handshake.Version, MessageType: handshake.TypeExchange},
		SessionID: v.SessionID, Timestamp: now,
	}
	m.Context.SharedData, m.Context.Constraints = v.Context.SharedData, v.Context.Constraints
	for i := range v.Context.PreviousAgents {
		e := &v.Context.PreviousAgents[i]
		output := e.Output
		if len(output) == 0 && e.OutputFile != "" {
			output = fleet.MustEncode(e.OutputFile)
		}
		m.Context.PreviousResults = append(m.Context.PreviousResults, handshake.PreviousResult{
			AgentID: e.AgentID, Output: output, Timestamp: e.ExecutionTime,
		})
	}
	return m
}

// boundedContext is what goes with an offer or a handshake.
func (w *Worker) boundedContext(ctx context.Context, id subjects.SessionID) (json.RawMessage, error) {
	l := w.logOf(id)
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.release()
	if err := l.catchUp(ctx, w.bus); err != nil {
		return nil, err
	}
	return l.bounded(), nil
}

// offer gives a router what goes with an offer.
func (w *Worker) offer(ctx context.Context, from subjects.AgentID, r *handshake.OfferContext) (any, error) {
	if from != handshake.Router {
		return nil, subjects.Errorf(subjects.CodeForbidden, "only routers ask for the context of an offer")
	}
	if _, err := w.own(ctx, r.From, r.SessionID); err != nil {
		return nil, err
	}
	w.outcomes.await(ctx, r.AfterSeq)
	view, err := w.boundedContext(ctx, r.SessionID)
	if err != nil {
		return nil, err
	}
	token, err := w.keys.token(ctx, r.SessionID, w.now().Add(handshake.TokenLife))
	if err != nil {
		return nil, unavailable(err)
	}
	return &handshake.OfferContextReply{Context: view, Token: token}, nil
}
