package handshake

import (
	"encoding/hex"
	"strconv"
	"strings"
)

func (s *Session) check(p *problems) {
	p.sessionID(s.SessionID)
	p.agentID("/orchestrator", s.Orchestrator)
	p.time("/created_at", s.CreatedAt)
	p.time("/expires_at", s.ExpiresAt)
	if s.ExpiresAt.Before(s.CreatedAt) {
		p.add(invalid("/expires_at", "expected a time after created_at"))
	}
	p.taskID("/task_id", s.TaskID, false)
	s.TaskMetadata.check(p)
}

func (m *TaskMetadata) check(p *problems) {
	p.word("/task_metadata/type", m.Type, maxWord, false)
	p.priority("/task_metadata/priority", m.Priority)
	p.seconds("/task_metadata/timeout", m.Timeout)
}

func (p *problems) priority(pointer, v string) {
	p.oneOf(pointer, v, "low", "normal", "high", "critical", "urgent")
}

func (a *Party) check(p *problems, at string) {
	p.agentID(at+"/agent_id", a.AgentID)
	p.oneOf(at+"/agent_type", a.AgentType, Virtual, Registered)
	p.word(at+"/status", a.Status, maxWord, false)
	p.names(at+"/capabilities", a.Capabilities)
}

func (m *Init) check(p *problems) {
	p.sessionID(m.SessionID)
	m.Initiator.check(p, "/initiator")
	m.Target.check(p, "/target")
	p.taskID("/task/task_id", m.Task.TaskID, true)
	p.priority("/task/priority", m.Task.Priority)
	p.seconds("/task/timeout", m.Task.Timeout)
	p.entries("/context/previous_agents", m.Context.PreviousAgents)
	p.time("/timestamp", m.Timestamp)
}

func (m *Ack) check(p *problems) {
	p.sessionID(m.SessionID)
	m.Target.check(p, "/target")
	p.seconds("/estimated_duration", m.EstimatedDuration)
	if m.Reason != nil && m.Reason.Code == "" {
		p.add(invalid("/reason/code", "expected a code, got nothing"))
	}
	p.time("/timestamp", m.Timestamp)
}

func (m *Exchange) check(p *problems) {
	p.sessionID(m.SessionID)
	for i := range m.Context.PreviousResults {
		at := "/context/previous_results/" + strconv.Itoa(i)
		p.agentID(at+"/agent_id", m.Context.PreviousResults[i].AgentID)
		p.time(at+"/timestamp", m.Context.PreviousResults[i].Timestamp)
	}
	m.Context.Constraints.check(p, "/context/constraints")
	p.time("/timestamp", m.Timestamp)
}

func (c *Constraints) check(p *problems, at string) {
	if c == nil {
		return
	}
	p.seconds(at+"/max_execution_time", c.MaxExecutionTime)
	p.word(at+"/required_output_format", c.RequiredOutputFormat, maxWord, false)
	p.word(at+"/output_location", c.OutputLocation, maxPath, false)
}

func (v *ContextView) check(p *problems) {
	p.sessionID(v.SessionID)
	p.entries("/context/previous_agents", v.Context.PreviousAgents)
	v.Context.Constraints.check(p, "/context/constraints")
}

func (p *problems) entries(at string, list []Entry) {
	for i := range list {
		list[i].checkAt(p, at+"/"+strconv.Itoa(i))
	}
}

func (e *Entry) check(p *problems) { e.checkAt(p, "") }

func (e *Entry) checkAt(p *problems, at string) {
	p.agentID(at+"/agent_id", e.AgentID)
	p.time(at+"/execution_time", e.ExecutionTime)
	e.checkWork(p, at)
}

// checkWork checks what the agent itself says.
func (e *Entry) checkWork(p *problems, at string) {
	p.word(at+"/output_file", e.OutputFile, maxPath, false)
	p.word(at+"/status", e.Status, maxWord, true)
	p.object(at+"/findings", &e.Findings)
	p.taskID(at+"/task_id", e.TaskID, false)
	if string(e.Output) == "null" {
		e.Output = nil
	}
	if e.Stored != nil {
		if len(e.Output) > 0 {
			p.add(invalid(at+"/stored", "expected either output or stored, got both"))
		}
		p.digest(at+"/stored/digest", e.Stored.Digest)
		if e.Stored.Size <= 0 {
			p.add(invalid(at+"/stored/size", "expected the number of bytes, got %d", e.Stored.Size))
		}
	}
}

const digestPrefix = "sha256:"

func (p *problems) digest(pointer, v string) {
	sum, ok := strings.CutPrefix(v, digestPrefix)
	if b, err := hex.DecodeString(sum); !ok || err != nil || len(b) != 32 || strings.ToLower(sum) != sum {
		p.add(invalid(pointer, "expected sha256: and 64 lower-case hex digits, got %q", clip(v)))
	}
}

func (d *Identity) check(p *problems) {
	p.agentID("/agent_id", d.AgentID)
	p.oneOf("/agent_type", d.AgentType, Virtual, Registered)
	p.word("/signature", d.Signature, maxName, true)
	p.names("/capabilities", d.Capabilities)
	p.names("/allowed_hosts", d.AllowedHosts)
	p.word("/version", d.Version, maxWord, false)
}

func (l *LogLine) check(p *problems) {
	p.time("/timestamp", l.Timestamp)
	if l.SessionID != "" { // what belongs to no session is told as well
		p.sessionID(l.SessionID)
	}
	p.agentID("/agent_id", l.AgentID)
	p.word("/event_type", l.EventType, maxWord, true)
	p.object("/data", &l.Data)
	if l.Data == nil {
		p.add(invalid("/data", "expected object, got nothing"))
	}
}
