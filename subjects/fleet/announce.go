package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"parley/subjects"
)

// Bounds of an announce.
const (
	maxParallel  = 10000
	minHeartbeat = 0.1   // seconds
	maxHeartbeat = 3600  // seconds
	maxTTL       = 86400 // seconds
	maxHolding   = 10000
)

// MaxParallel is how many tasks the instance takes at once, 1 unless it says
// more.
func (a *Announce) MaxParallel() int { return max(a.Worker.MaxParallel, 1) }

// Heartbeat is the interval of the instance's heartbeats, DefaultHeartbeat when
// it says nothing; 0 means that there are none.
func (a *Announce) Heartbeat() time.Duration {
	if a.HeartbeatSeconds == nil {
		return DefaultHeartbeat
	}
	return seconds(*a.HeartbeatSeconds)
}

// Instance is the instance that announces, DefaultInstance when unnamed.
func (a *Announce) Instance() subjects.InstanceID {
	return cmp.Or(a.Worker.InstanceID, subjects.DefaultInstance)
}

// TTL is how long an announce without heartbeats lives.
func (a *Announce) TTL() time.Duration {
	return cmp.Or(seconds(a.TTLSeconds), DefaultTTL)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (a *Announce) check(p *problems) {
	w := &a.Worker
	p.agentID("/worker/agent_id", w.AgentID, true)
	p.instanceID("/worker/instance_id", w.InstanceID)
	p.word("/worker/model_tier", w.ModelTier)
	p.counted("/worker/context_window", w.ContextWindow, maxCount)
	p.epoch("/worker/epoch", w.Epoch)
	p.counted("/worker/max_parallel", int64(w.MaxParallel), maxParallel)
	p.counted("/worker/max_messages", int64(w.MaxMessages), maxParallel)
	p.labels("/worker/labels", w.Labels)
	p.names("/capabilities/tools", a.Capabilities.Tools, 0)
	p.names("/capabilities/mcp_servers", a.Capabilities.MCPServers, 0)
	for i := range a.Capabilities.Skills {
		s := a.Capabilities.Skills[i]
		if len(s) == 0 || s[0] != '{' {
			p.invalid(index("/capabilities/skills", i), "expected object, got %s", kindOf(s))
		}
	}
	p.health("/mcp_health", a.MCPHealth)
	p.counted("/session/active_tasks", int64(a.Session.ActiveTasks), maxCount)
	if h := a.HeartbeatSeconds; h != nil && *h != 0 {
		p.between("/heartbeat_seconds", *h, minHeartbeat, maxHeartbeat)
	}
	p.between("/ttl_seconds", a.TTLSeconds, 0, maxTTL)
}

func (h *Heartbeat) check(p *problems) {
	p.epoch("/epoch", h.Epoch)
	p.counted("/active_tasks", int64(h.ActiveTasks), maxCount)
	if len(h.Holding) > maxHolding {
		p.invalid("/holding", "expected at most %d entries, got %d", maxHolding, len(h.Holding))
		return
	}
	for i := range h.Holding {
		e := &h.Holding[i]
		known := e.Attempt >= 0 && (e.OfferID == "" || subjects.ValidToken(e.OfferID)) && e.TokensSpent >= 0 && e.TokensSpent <= maxCount
		if !subjects.ValidToken(string(e.TaskID)) || !known {
			at := index("/holding", i)
			p.taskID(at+"/task_id", e.TaskID, true)
			p.attempt(at+"/attempt", e.Attempt)
			p.token(at+"/offer_id", "offer_id", e.OfferID, false)
			p.counted(at+"/tokens_spent", e.TokensSpent, maxCount)
		}
	}
	p.health("/mcp_health", h.MCPHealth)
}

// health checks names only: the values are an open set, of which HealthOK alone
// counts as healthy.
func (p *problems) health(pointer string, health MCPHealth) {
	for name, value := range health {
		if name == "" || len(name) > maxName || len(value) > maxName {
			p.invalid(pointer, "expected names of 1 to %d bytes and values of at most %d", maxName, maxName)
			return
		}
	}
}

// maxServers is beyond how many names heartbeats add no more.
const maxServers = 256

// With is h with what a heartbeat says has changed. Names that h does not have
// come in as long as there is room; an announce may have any number of them. h
// is not changed.
func (h MCPHealth) With(news MCPHealth) MCPHealth {
	merged := make(MCPHealth, len(h)+min(len(news), maxServers))
	maps.Copy(merged, h)
	for _, name := range slices.Sorted(maps.Keys(news)) { // the same ones, whoever hears it
		if _, known := merged[name]; known || len(merged) < maxServers {
			merged[name] = news[name]
		}
	}
	return merged
}

func (p *problems) epoch(pointer string, epoch int64) {
	if epoch < 0 {
		p.invalid(pointer, "expected the start time in nanoseconds, got %d", epoch)
	}
}

func (p *problems) attempt(pointer string, attempt int) {
	if attempt < 0 {
		p.invalid(pointer, "expected an attempt, counted from 1, got %d", attempt)
	}
}

func (e *AgentEvent) check(p *problems) {
	p.agentID("/agent_id", e.AgentID, true)
	p.instanceID("/instance_id", e.InstanceID)
	p.epoch("/epoch", e.Epoch)
	p.reason("/reason", e.Reason)
}
