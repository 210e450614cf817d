package router

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// onDrive takes in what the bucket FLEET_AGENTS says of an agent. Routers alone
// write it, at the word of operators or of failures.
func (w *Worker) onDrive(e bus.Entry) {
	if agent, ok := strings.CutPrefix(e.Key, fleet.DrainKeyPrefix); ok {
		d, err := fleet.DecodeRequest[fleet.AgentDrained](e.Value)
		if err != nil {
			w.drive.Skip(e, err)
			return
		}
		w.with(func(c *core, now time.Time) {
			c.fleet.Drain(subjects.AgentID(agent), !e.Deleted, string(d.By))
			c.feedAll(subjects.AgentID(agent), now)
		})
		return
	}
	if agent, ok := strings.CutPrefix(e.Key, fleet.RetiredKeyPrefix); ok {
		r, err := fleet.DecodeRequest[fleet.AgentRetired](e.Value)
		if err != nil {
			w.log.Warn("retired agent not read", slog.String("agent_id", agent), slog.Any("error", err))
			return
		}
		if e.Deleted {
			r.At = time.Time{}
		}
		w.with(func(c *core, _ time.Time) { c.fleet.Retire(subjects.AgentID(agent), r.At) })
		return
	}
	if agent, ok := strings.CutPrefix(e.Key, fleet.CoolKeyPrefix); ok {
		d, err := fleet.DecodeRequest[fleet.AgentCooling](e.Value)
		if err != nil {
			w.drive.Skip(e, err)
			return
		}
		w.with(func(c *core, now time.Time) {
			c.cool(subjects.AgentID(agent), d.Until, d.Code)
		})
		return
	}
	if strings.HasPrefix(e.Key, fleet.LimitKeyPrefix) {
		w.onLimit(e)
	}
}

// feedAll gives every instance of agent something to do.
func (c *core) feedAll(agent subjects.AgentID, now time.Time) {
	for in := range c.fleet.Of(agent) {
		c.feed(in, now)
	}
}

// cool lets an agent rest, and wakes it when it has.
func (c *core) cool(agent subjects.AgentID, until time.Time, code subjects.Code) {
	if a := c.fleet.agent(agent); !until.IsZero() && until.Before(a.coolUntil) {
		return // it asked for a longer rest already
	}
	c.fleet.Cool(agent, until, code)
	if !until.IsZero() {
		c.warmAt[agent] = until
	}
}

// busy leaves an instance alone that refused an offer as busy: it knows its
// own capacity best. asked is for how long, 0 where it did not say.
func (c *core) busy(in *Instance, asked time.Duration) { c.warmBy(in.Agent, c.fleet.Busy(in, asked)) }

// accepted notes that an instance has taken a task: it is not busy.
func (c *core) accepted(h holder) {
	if in := c.fleet.Get(h.agent, h.instance); in != nil {
		c.fleet.Accepted(in)
	}
}

// missed leaves an instance alone that did not answer an offer in time.
func (c *core) missed(in *Instance) { c.warmBy(in.Agent, c.fleet.Missed(in)) }

// warmBy has agent fed at a time at the latest.
func (c *core) warmBy(agent subjects.AgentID, until time.Time) {
	if at := c.warmAt[agent]; at.IsZero() || until.Before(at) {
		c.warmAt[agent] = until
	}
}

// warm feeds the agents that have rested, and those that were busy.
func (c *core) warm(now time.Time) {
	for agent, at := range c.warmAt {
		if !at.After(now) {
			delete(c.warmAt, agent)
			c.feedAll(agent, now)
		}
	}
}

// coolDown tells every router that agent is to rest.
func (w *Worker) coolDown(ctx context.Context, agent subjects.AgentID, until time.Time, code subjects.Code) {
	w.with(func(c *core, _ time.Time) { c.cool(agent, until, code) })
	if err := w.keepCool(ctx, agent, fleet.AgentCooling{Until: until, Code: code}); err != nil {
		w.log.Warn("write an agent's cool-down", slog.String("agent_id", string(agent)), slog.Any("error", err))
	}
}

// keepCool stores a cool-down unless there is one that lasts longer.
func (w *Worker) keepCool(ctx context.Context, agent subjects.AgentID, cool fleet.AgentCooling) error {
	key, value := fleet.CoolKey(agent), fleet.MustEncode(cool)
	for {
		e, err := w.drive.Get(ctx, key)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			_, err = w.drive.Create(ctx, key, value, 0)
		case err != nil:
			return err
		default:
			if was, derr := fleet.DecodeRequest[fleet.AgentCooling](e.Value); derr == nil && was.Until.After(cool.Until) {
				return nil
			}
			_, err = w.drive.Update(ctx, key, value, e.Revision)
		}
		if !errors.Is(err, bus.ErrConflict) && !errors.Is(err, bus.ErrExists) {
			crash.Point("after_cool")
			return err
		}
	}
}

// apiDrain serves agent drain and agent resume.
func (w *Worker) apiDrain(on bool) func(context.Context, subjects.AgentID, []byte) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
		req, err := fleet.DecodeRequest[fleet.AgentDrain](data)
		if err != nil {
			return nil, err
		}
		agent, err := subjects.ParseAgentID(string(req.AgentID))
		if err != nil {
			return nil, subjects.AsError(err).At("/agent_id")
		}
		if from != agent && !w.operator(from) {
			return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not drain %s", from, agent).
				WithRemedy("an operator may, and an agent itself")
		}
		action := fleet.ActionResume
		if on {
			action = fleet.ActionDrain
		}
		if err := w.storeDrain(ctx, agent, on, from, req.Reason); err != nil {
			return nil, unavailable(err)
		}
		return w.drainNow(agent, on, from, action), nil
	}
}

// storeDrain keeps that an agent is drained, or is no more, and says so to the
// audit.
func (w *Worker) storeDrain(ctx context.Context, agent subjects.AgentID, on bool, by subjects.AgentID, reason string) error {
	key, event := fleet.DrainKey(agent), handshake.EventAgentResume
	if on {
		event = handshake.EventAgentDrain
	}
	kv := w.drive.Telling(workers.Line("", by, event, struct {
		AgentID subjects.AgentID `json:"agent_id"`
		Message string           `json:"message,omitempty"`
	}{agent, workers.Clip(reason)}))
	value := fleet.MustEncode(fleet.AgentDrained{By: by, Reason: reason, At: w.now()})
	for {
		was, err := w.drive.Get(ctx, key)
		switch {
		case errors.Is(err, bus.ErrNotFound) && !on:
			return nil // it is not drained
		case errors.Is(err, bus.ErrNotFound):
			_, err = kv.Create(ctx, key, value, 0)
		case err != nil:
			return err
		case on:
			_, err = kv.Update(ctx, key, value, was.Revision)
		default:
			err = kv.DeleteRevision(ctx, key, was.Revision)
		}
		if !errors.Is(err, bus.ErrConflict) && !errors.Is(err, bus.ErrExists) {
			crash.Point("after_drain")
			return err
		}
	}
}

// drainNow applies the change here, tells the agent's instances, and lists them.
func (w *Worker) drainNow(agent subjects.AgentID, on bool, by subjects.AgentID, action string) fleet.AgentListReply {
	reply := fleet.AgentListReply{Agents: []fleet.AgentView{}}
	var live []instanceKey
	w.with(func(c *core, now time.Time) {
		c.fleet.Drain(agent, on, string(by))
		for in := range c.fleet.All() {
			if in.Agent != agent {
				continue
			}
			c.feed(in, now)
			if in.Announce == nil {
				continue
			}
			reply.Agents = append(reply.Agents, fleet.AgentView{
				Announce: *in.Announce, Live: in.Live, Draining: on || in.Announce.Draining,
				DrainedBy: drainedBy(on, by), LastSeen: in.LastSeen, Active: in.Active,
			})
			if in.Live {
				live = append(live, instanceKey{in.Agent, in.ID})
			}
		}
	})
	for _, to := range live {
		w.wg.Go(func() {
			w.control(w.work, to, &fleet.Control{
				Header: fleet.Header{Type: fleet.TypeControl, ProtocolVersion: fleet.Version}, Action: action,
			})
		})
	}
	return reply
}

func drainedBy(on bool, by subjects.AgentID) string {
	if on {
		return string(by)
	}
	return ""
}

func (w *Worker) onAnnounce(m bus.Msg) {
	defer w.announced.Store(m.Seq)
	vars, ok := subjects.Tokens(subjects.AnnouncePattern, m.Subject)
	if !ok {
		return
	}
	a, err := fleet.DecodeAnnounce(m.Data)
	if err == nil && (string(a.Worker.AgentID) != vars[0] || string(a.Instance()) != vars[1]) {
		err = subjects.Errorf(subjects.CodeForbidden, "it announces %s/%s", a.Worker.AgentID, a.Instance()).At("/worker")
	}
	if err != nil {
		w.bus.Skip(m, err)
		return
	}
	w.with(func(c *core, now time.Time) { c.announce(a, m.Time, now) })
}

func (w *Worker) onHeartbeat(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.HeartbeatPattern, m.Subject)
	if !ok {
		return
	}
	if vars[0] == "router" {
		w.onRouterBeat(subjects.InstanceID(vars[1]), m)
		return
	}
	hb, err := fleet.DecodeHeartbeat(m.Data)
	if err != nil {
		w.bus.Skip(m, err)
		return
	}
	var rival int64
	w.with(func(c *core, now time.Time) {
		rival = c.beat(subjects.AgentID(vars[0]), subjects.InstanceID(vars[1]), hb, now)
	})
	if rival != 0 {
		w.log.Warn("a process with a lower epoch than another one of its instance is offered nothing while that one is heard: each process needs an --instance of its own, and an epoch that grows",
			slog.String("agent_id", vars[0]), slog.String("instance_id", vars[1]), slog.Int64("epoch", hb.Epoch), slog.Int64("newer_epoch", rival))
	}
}

func (w *Worker) onRouterBeat(id subjects.InstanceID, m bus.Msg) {
	hb, err := fleet.DecodeRequest[fleet.RouterHeartbeat](m.Data)
	if err != nil {
		w.bus.Skip(m, err)
	}
	if err != nil || id == w.cfg.ID {
		return
	}
	w.with(func(c *core, now time.Time) {
		if hb.Leaving && c.ring.Left(id) || !hb.Leaving && c.ring.Heard(id, now) {
			c.ringChanged(now)
		}
	})
	if hb.Hello {
		w.sayHello(fleet.RouterHeartbeat{Epoch: w.epoch})
	}
}
