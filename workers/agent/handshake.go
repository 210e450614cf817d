package agent

import (
	"log/slog"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// handshakeQueue lets one instance of the agent answer.
const handshakeQueue = "agent"

// onHandshake answers the handshake of the session protocol: an init with
// whether the agent could begin now, a context with that it has come. The agent
// holds nothing from it: tasks come as offers, with their session's context.
func (w *Worker) onHandshake(m bus.Msg) {
	if x, err := handshake.DecodeExchange(m.Data); err == nil {
		w.log.Info("told the context of a session", slog.String("session_id", string(x.SessionID)), slog.Int("entries", len(x.Context.PreviousResults)))
		w.respond(m, &fleet.ControlReply{OK: true})
		return
	}
	i, err := handshake.DecodeInit(m.Data)
	if err == nil && i.Target.AgentID != w.cfg.ID {
		err = subjects.Errorf(subjects.CodeForbidden, "it is meant for %s, this is %s", i.Target.AgentID, w.cfg.ID).At("/target/agent_id")
	}
	if err != nil {
		w.log.Warn("refuse a handshake", slog.Any("error", err))
		w.respond(m, &fleet.ErrorReply{Error: subjects.AsError(err)})
		return
	}
	agentType := w.cfg.AgentType
	if agentType == "" {
		agentType = handshake.Virtual
	}
	ack := &handshake.Ack{
		Header:    handshake.Header{ProtocolVersion: handshake.Version, MessageType: handshake.TypeAck},
		SessionID: i.SessionID, Timestamp: time.Now().UTC(),
		Target: handshake.Party{
			AgentID: w.cfg.ID, AgentType: agentType, Status: handshake.StatusReady, Capabilities: orEmpty(w.abilities().capabilities),
		},
	}
	if busy := w.hand.busy(); busy != "" {
		ack.Target.Status = "busy"
		ack.Reason = &fleet.Reason{Code: subjects.CodeAgentBusy, Message: busy}
	} else {
		ack.Accepted = true
	}
	w.log.Info("shook hands", slog.String("session_id", string(i.SessionID)), slog.String("initiator", string(i.Initiator.AgentID)), slog.Bool("accepted", ack.Accepted))
	w.respond(m, ack)
}

// busy says why no further task would be taken now, "" if one would.
func (a *hand) busy() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.draining || a.stopping:
		return "it is draining"
	case a.running >= a.max:
		return "all its slots are taken"
	}
	return ""
}
