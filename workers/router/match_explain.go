package router

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Bounds of what Capable tells.
const (
	maxReasons = 20 // distinct ones
	maxNamed   = 3  // agents named per reason
)

// Explain says of every instance why it would or would not be offered a task
// of class c now: first the eligible in Choose's order (of a task without
// session that nobody holds), then the others by agent and instance id. It
// asks each instance, not the index that Choose asks.
func (f *Fleet) Explain(c *Class, now time.Time) []fleet.AgentVerdict {
	f.advance(now)
	eligible := make([]*Instance, 0, len(f.order))
	var rest []fleet.AgentVerdict
	for _, in := range f.order {
		reasons := append(f.unready(in), c.unfit(in, f.now)...)
		if len(reasons) == 0 && !in.Free() {
			reasons = append(reasons, busyReason("%d of %d slots are taken", in.Used(), in.Max))
		}
		if len(reasons) == 0 {
			eligible = append(eligible, in)
			continue
		}
		rest = append(rest, fleet.AgentVerdict{AgentID: in.Agent, InstanceID: in.ID, Reasons: reasons})
	}
	slices.SortFunc(eligible, func(a, b *Instance) int { return c.compare(a, b, "") })
	verdicts := make([]fleet.AgentVerdict, 0, len(f.order))
	for i, in := range eligible {
		verdicts = append(verdicts, fleet.AgentVerdict{AgentID: in.Agent, InstanceID: in.ID, Eligible: true, Order: i + 1})
	}
	return append(verdicts, rest...)
}

func reason(code subjects.Code, format string, args ...any) fleet.Reason {
	return fleet.Reason{Code: code, Message: fmt.Sprintf(format, args...)}
}

func busyReason(format string, args ...any) fleet.Reason {
	return reason(subjects.CodeAgentBusy, format, args...)
}

// unready tells why the instance is not to be offered anything, except for want
// of a slot.
func (f *Fleet) unready(in *Instance) []fleet.Reason {
	var why []fleet.Reason
	switch {
	case in.Live:
	case !in.heard:
		why = append(why, reason(subjects.CodeAgentLost, "it has not been heard yet"))
	case in.gone && !in.lapsed:
		why = append(why, reason(subjects.CodeAgentLost, "it did not answer an offer and has not been heard since"))
	default:
		why = append(why, reason(subjects.CodeAgentLost, "it was last heard at %s", stamp(in.LastSeen)))
	}
	if in.Announce == nil {
		why = append(why, reason(subjects.CodeNoCapableAgent, "it has not announced itself"))
	}
	if in.drainsItself() {
		why = append(why, reason(subjects.CodeUnavailable, "it is draining"))
	}
	if in.owner.drained {
		why = append(why, reason(subjects.CodeUnavailable, "it was drained by %s", cmp.Or(in.owner.drainedBy, "an operator")))
	}
	if in.owner.cooling {
		why = append(why, reason(cmp.Or(in.owner.coolCode, subjects.CodeUnavailable), "it rests until %s", stamp(in.owner.coolUntil)))
	}
	if l := f.closedLimit(in); l != nil {
		why = append(why, reason(subjects.CodeRateLimited, "%s", l.explain(f.now)))
	}
	if in.busy {
		why = append(why, busyReason("it said that it is busy; asked again at %s", stamp(in.busyUntil)))
	}
	if !in.restUntil.IsZero() {
		why = append(why, busyReason("it was late to answer %d times; asked again at %s", in.misses, stamp(in.restUntil)))
	}
	return why
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// unfit tells what c asks for and the instance does not have.
func (c *Class) unfit(in *Instance, now time.Time) []fleet.Reason {
	var why []fleet.Reason
	if x := c.leavesOut(in, false, now); x != nil && !x.Until.IsZero() {
		why = append(why, busyReason("it could not begin this task; asked again at %s, or when it announces something new", stamp(x.Until)))
	}
	c.lacks(in, func(l lack) { why = append(why, reason(subjects.CodeNoCapableAgent, "%s", c.tell(l))) })
	if in.Announce == nil {
		return why
	}
	return append(why, c.sick(in)...)
}

// lack is one reason why an instance could never do a task of a class. It is
// written out only where it is told: Capable looks at many that are the same.
type lack struct {
	kind        lackKind
	name, value string
}

type lackKind uint8

const (
	lacksNothing lackKind = iota
	lacksTool
	lacksServer
	lacksTier
	lacksLabel
	otherLabel
	hasFailed
	couldNotBegin
	notNamed
	notAnnounced
)

func (c *Class) tell(l lack) string {
	switch l.kind {
	case lacksTool:
		return fmt.Sprintf("no capability %q", l.name)
	case lacksServer:
		return fmt.Sprintf("no MCP server %q", l.name)
	case lacksTier:
		tier := "no model tier"
		if l.name != "" {
			tier = fmt.Sprintf("model tier %q", l.name)
		}
		if len(c.tiers) > 1 {
			return fmt.Sprintf("%s, %q or higher is asked for", tier, c.tiers[0])
		}
		return fmt.Sprintf("%s, %q is asked for", tier, c.tiers[0])
	case lacksLabel:
		return fmt.Sprintf("no label %q", l.name)
	case otherLabel:
		return fmt.Sprintf("label %q is not %q", l.name, l.value)
	case hasFailed:
		return "it has failed this task before"
	case couldNotBegin:
		return "it could not begin this task"
	case notNamed:
		return "the task is for " + nameAgents(c.only) + " only"
	case notAnnounced:
		return "it has not announced itself"
	case lacksNothing:
	}
	return ""
}

// lacks yields what keeps the instance from ever doing a task of c, as far as
// its announce shows: not how well it is.
func (c *Class) lacks(in *Instance, yield func(lack)) {
	if l := c.barred(in); l.kind != lacksNothing {
		yield(l)
	}
	a := in.Announce
	if a == nil {
		return
	}
	for _, t := range c.tools {
		if !slices.Contains(a.Capabilities.Tools, t) && !slices.Contains(in.skills, t) {
			yield(lack{kind: lacksTool, name: t})
		}
	}
	for _, s := range c.mcp {
		if !knowsServer(a, s) {
			yield(lack{kind: lacksServer, name: s})
		}
	}
	if c.above(in) < 0 {
		yield(lack{kind: lacksTier, name: a.Worker.ModelTier})
	}
	for _, l := range c.label {
		if v, ok := a.Worker.Labels[l.name]; !ok {
			yield(lack{kind: lacksLabel, name: l.name})
		} else if v != l.value {
			yield(lack{otherLabel, l.name, l.value})
		}
	}
}

// barred tells whether c leaves the instance's agent out by name.
func (c *Class) barred(in *Instance) lack {
	switch {
	case slices.Contains(c.not, in.Agent):
		return lack{kind: hasFailed}
	case len(c.only) > 0 && !slices.Contains(c.only, in.Agent):
		return lack{kind: notNamed}
	case c.leavesOut(in, true, time.Time{}) != nil:
		return lack{kind: couldNotBegin}
	}
	return lack{}
}

// sick tells what keeps the instance from doing a task of c for now.
func (c *Class) sick(in *Instance) []fleet.Reason {
	var why []fleet.Reason
	a := in.Announce
	for _, s := range c.mcp {
		switch health, ok := a.MCPHealth[s]; {
		case ok && health == fleet.HealthOK, !knowsServer(a, s):
		case !ok:
			why = append(why, reason(subjects.CodeMCPUnhealthy, "MCP server %q has not been probed", s))
		default:
			why = append(why, reason(subjects.CodeMCPUnhealthy, "MCP server %q is %s", s, health))
		}
	}
	if r := a.Session.RepoState; c.clean && r == nil {
		why = append(why, reason(subjects.CodeDirtyRepo, "the state of its work tree is not known"))
	} else if c.clean && !r.Clean {
		why = append(why, reason(subjects.CodeDirtyRepo, "its work tree is not clean"))
	}
	return why
}

// knowsServer reports whether the announce lists the MCP server at all, healthy
// or not.
func knowsServer(a *fleet.Announce, server string) bool {
	_, probed := a.MCPHealth[server]
	return probed || slices.Contains(a.Capabilities.MCPServers, server)
}

// Capable reports whether anybody could ever do a task of class c, judged over
// every announce kept: live or not, busy, sick, draining or resting. If nobody
// could, reasons tells why, the most frequent first.
func (f *Fleet) Capable(c *Class) (could bool, reasons []fleet.Reason) {
	if c.judged != f.generation+1 {
		c.judged, c.could, c.why = f.generation+1, f.capable(c), nil
		if !c.could {
			c.why = f.whyNobody(c)
		}
	}
	return c.could, slices.Clone(c.why)
}

func (f *Fleet) capable(c *Class) bool {
	b := append(f.scratch[0][:0], f.announced...)
	f.scratch[0] = b
	return f.narrow(c, b, hasMCP) && f.leastTier(c, b)
}

// whyNobody gathers what every agent that has announced itself lacks.
func (f *Fleet) whyNobody(c *Class) []fleet.Reason {
	agents := make(map[lack][]subjects.AgentID)
	announced := make(map[subjects.AgentID]bool)
	for _, in := range f.order {
		if in.Announce == nil {
			continue
		}
		if len(c.only) > 0 {
			announced[in.Agent] = true
		}
		c.lacks(in, func(l lack) {
			if named := agents[l]; len(named) == 0 || named[len(named)-1] != in.Agent {
				agents[l] = append(named, in.Agent)
			}
		})
	}
	for _, id := range c.only {
		if l := (lack{kind: notAnnounced}); !announced[id] {
			agents[l] = append(agents[l], id)
		}
	}
	if len(agents) == 0 {
		return []fleet.Reason{reason(subjects.CodeNoCapableAgent, "no agent has announced itself")}
	}
	lacks := slices.SortedFunc(maps.Keys(agents), func(a, b lack) int {
		return cmp.Or(cmp.Compare(len(agents[b]), len(agents[a])), cmp.Compare(a.kind, b.kind),
			cmp.Compare(a.name, b.name), cmp.Compare(a.value, b.value))
	})
	var why []fleet.Reason
	for i, l := range lacks {
		if i == maxReasons {
			return append(why, reason(subjects.CodeNoCapableAgent, "and %d more reasons", len(lacks)-i))
		}
		why = append(why, reason(subjects.CodeNoCapableAgent, "%s: %s", nameAgents(agents[l]), c.tell(l)))
	}
	return why
}

// nameAgents names a few and counts the rest.
func nameAgents(ids []subjects.AgentID) string {
	var b strings.Builder
	for i, id := range ids[:min(len(ids), maxNamed)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(id))
	}
	if n := len(ids) - maxNamed; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}
