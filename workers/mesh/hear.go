package mesh

import (
	"log/slog"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

func (w *Worker) onAnnounce(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.AnnouncePattern, m.Subject)
	if !ok {
		return
	}
	a, err := fleet.DecodeAnnounce(m.Data)
	if err != nil || string(a.Worker.AgentID) != vars[0] || string(a.Instance()) != vars[1] {
		return // routers and the registry say so
	}
	w.with(func(c *core, _ time.Time) {
		c.agents.announced(a, m.Time)
		c.wake(a.Worker.AgentID)
	})
}

func (w *Worker) onHeartbeat(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.HeartbeatPattern, m.Subject)
	if !ok {
		return
	}
	agent, err := subjects.ParseAgentID(vars[0])
	if err != nil {
		return // a worker's
	}
	hb, err := fleet.DecodeHeartbeat(m.Data)
	if err != nil {
		return
	}
	w.mu.Lock()
	woke := w.core.agents.beat(agent, subjects.InstanceID(vars[1]), hb, w.now())
	if woke {
		w.core.wake(agent)
	}
	w.mu.Unlock()
	if woke {
		w.wake()
	}
}

func (w *Worker) onMeshBeat(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.MeshHeartbeatPattern, m.Subject)
	hb, err := fleet.DecodeRequest[fleet.RouterHeartbeat](m.Data)
	if err != nil {
		w.cfg.Bus.Skip(m, err)
	}
	if !ok || err != nil {
		return
	}
	id := subjects.InstanceID(vars[0])
	if id == w.cfg.ID {
		w.mu.Lock()
		w.core.echo = w.now()
		w.mu.Unlock()
		return
	}
	w.with(func(c *core, now time.Time) {
		if hb.Leaving && c.ring.Left(id) || !hb.Leaving && c.ring.Heard(id, now) {
			c.wakeAll()
		}
	})
	if hb.Hello {
		w.sayAlive(fleet.RouterHeartbeat{})
	}
}

func (w *Worker) onMessage(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.MeshPattern, m.Subject)
	if !ok {
		return
	}
	msg, err := mesh.DecodeMessage(m.Data)
	if err != nil { // its sender is told, once it is a message of somebody
		w.cfg.Bus.Skip(m, err)
	}
	to, from := subjects.AgentID(vars[0]), subjects.AgentID(vars[1])
	var e *entry
	w.with(func(c *core, _ time.Time) {
		e = c.message(stored{from, to, m.Seq, len(m.Data), m.Time, msg, err})
	})
	if e == nil {
		attrs := []any{slog.String("from", vars[1]), slog.Uint64("seq", m.Seq)}
		if msg != nil {
			attrs = append(attrs, slog.String("message_id", string(msg.MessageID)))
		}
		w.log.Debug("message was sent before", attrs...)
		return
	}
	w.bells.ring(inboxBell(to), messageBell(e.key))
	if e.ref != "" {
		w.bells.ring(messageBell(key{to, e.ref}))
	}
}

func (w *Worker) onRecord(m bus.Msg) {
	a, err := mesh.DecodeAck(m.Data)
	vars, ok := subjects.Tokens(subjects.MeshStatePattern, m.Subject)
	if err == nil && (!ok || string(a.From) != vars[0] || string(a.MessageID) != vars[1]) {
		err = subjects.Misplaced("message")
	}
	if err != nil {
		w.cfg.Bus.Skip(m, err)
		return
	}
	w.heard(a, m.Seq)
}

// heard takes in a record, of this worker or another.
func (w *Worker) heard(a *mesh.Ack, rev uint64) {
	w.with(func(c *core, now time.Time) { c.record(a, rev, now) })
	w.bells.ring(messageBell(key{a.From, a.MessageID}))
}
