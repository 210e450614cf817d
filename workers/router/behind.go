package router

import (
	"sync"

	"parley/subjects"
)

// waiters counts, of each agent, the messages that wait: for a record which this
// router does not have, or, as failures, for their turn. To claim what no record
// says costs an agent nothing, and the other places are for the other agents.
type waiters struct {
	most int // of one agent; fixed

	mu sync.Mutex
	of map[subjects.AgentID]int
}

// enter reports whether one more of the agent may wait; leave ends that.
func (b *waiters) enter(agent subjects.AgentID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[agent] >= b.most {
		return false
	}
	b.of = put(b.of, agent, b.of[agent]+1)
	return true
}

func (b *waiters) leave(agent subjects.AgentID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[agent]--; b.of[agent] == 0 {
		delete(b.of, agent)
	}
}
