package registry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"parley/subjects/fleet"
)

// What figures name at most; the rest of them are called other.
const (
	maxTiers = 20
	maxMCP   = 50
	other    = "other"
)

// Figures count the instances that this registry knows; any goroutine may call
// it.
func (w *Worker) Figures() fleet.AgentFigures {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view == nil {
		return fleet.AgentFigures{}
	}
	return w.view.figures(w.now())
}

// missedFor is how long figures count an instance as lost: whoever said that it
// goes is not missed, and who has been replaced is not missed for ever.
const missedFor = time.Hour

func (v *view) figures(now time.Time) fleet.AgentFigures {
	agents := make(map[fleet.AgentCount]int)
	servers := make(map[fleet.MCPCount]int)
	for k, in := range v.instances {
		if gone(in, now) {
			continue
		}
		state := v.stateOf(k, in, now)
		if state == fleet.AgentMissing && (in.draining || in.announce.Stopped || now.Sub(in.seen) > missedFor) {
			continue
		}
		agents[fleet.AgentCount{State: state, Tier: cmp.Or(in.announce.Worker.ModelTier, "none")}]++
		if state == fleet.AgentMissing {
			continue
		}
		for name, health := range in.announce.MCPHealth {
			servers[fleet.MCPCount{Name: name, Health: health}]++
		}
	}
	tier := known(agents, maxTiers, func(c fleet.AgentCount) string { return c.Tier })
	mcp := known(servers, maxMCP, func(c fleet.MCPCount) string { return c.Name })
	return fleet.AgentFigures{
		Agents: summed(agents, func(c *fleet.AgentCount, n int) { c.Tier, c.N = tier(c.Tier), n }),
		MCP:    summed(servers, func(c *fleet.MCPCount, n int) { c.Name, c.N = mcp(c.Name), n }),
	}
}

// stateOf is what an instance is doing.
func (v *view) stateOf(k key, in *instance, now time.Time) string {
	_, byOperator := v.drains[k.agent]
	switch {
	case !alive(in, now):
		return fleet.AgentMissing
	case in.draining || byOperator:
		return fleet.AgentDrains
	case v.cools[k.agent].Until.After(now):
		return fleet.AgentCooled
	case in.active > 0:
		return fleet.AgentBusy
	}
	return fleet.AgentIdle
}

// known keeps the names that occur most, and calls the others other.
func known[C comparable](counts map[C]int, most int, name func(C) string) func(string) string {
	by := make(map[string]int)
	for c, n := range counts {
		by[name(c)] += n
	}
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(by[b]-by[a], cmp.Compare(a, b)) })
	kept := make(map[string]bool, most)
	for _, n := range names[:min(len(names), most)] {
		kept[n] = true
	}
	return func(s string) string {
		if kept[s] {
			return s
		}
		return other
	}
}

// summed lists the counts under the names that remain, in order.
func summed[C interface {
	fleet.AgentCount | fleet.MCPCount
}](counts map[C]int, named func(*C, int),
) []C {
	sums := make(map[C]int)
	for c, n := range counts {
		named(&c, 0)
		sums[c] += n
	}
	list := make([]C, 0, len(sums))
	for c, n := range sums {
		named(&c, n)
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b C) int { return cmp.Compare(text(a), text(b)) })
	return list
}

func text(c any) string {
	switch c := c.(type) {
	case fleet.AgentCount:
		return c.State + " " + c.Tier
	case fleet.MCPCount:
		return c.Name + " " + c.Health
	}
	return ""
}
