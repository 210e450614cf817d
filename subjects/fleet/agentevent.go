package fleet

import (
	"time"

	"parley/subjects"
)

// TypeAgentEvent is the type of AgentEvent.
const TypeAgentEvent = "AGENT_EVENT"

// AgentEvent tells a change in an instance's life, for whoever watches: nobody
// decides by it. It is not kept, and several registries may tell the same
// change: a reader drops what repeats the last event of that instance and
// epoch.
type AgentEvent struct {
	Header
	AgentID    subjects.AgentID    `json:"agent_id"`
	InstanceID subjects.InstanceID `json:"instance_id"`
	Epoch      int64               `json:"epoch,omitzero"`
	Event      string              `json:"event"` // live | lost | stopped | draining | resumed
	Time       time.Time           `json:"time"`
	Reason     *Reason             `json:"reason,omitempty"`  // lost: why
	By         subjects.AgentID    `json:"by,omitempty"`      // draining: the operator who drains it; absent: itself
	Message    string              `json:"message,omitempty"` // draining: what the operator said
	Unknown    Unknown             `json:",unknown"`
}

// Values of AgentEvent.Event.
const (
	AgentLive     = "live"
	AgentLost     = "lost"
	AgentStopped  = "stopped" // it ended by itself, and said so
	AgentDraining = "draining"
	AgentResumed  = "resumed"
)

// The bucket FLEET_AGENTS holds what operators and routers say of an agent, by
// DrainKey (an AgentDrained), CoolKey (an AgentCooling) and RetiredKey (an
// AgentRetired). A key that is gone says that it is over.
const (
	RetiredKeyPrefix = "retired."

	DrainKeyPrefix = "drain."
	CoolKeyPrefix  = "cool."
)

// DrainKey is where it is kept that an operator drains agent a.
func DrainKey(a subjects.AgentID) string { return DrainKeyPrefix + string(a) }

// CoolKey is where it is kept that agent a cools down after a failure.
func CoolKey(a subjects.AgentID) string { return CoolKeyPrefix + string(a) }

// RetiredKey is where it is kept that agent a is gone for good.
func RetiredKey(a subjects.AgentID) string { return RetiredKeyPrefix + string(a) }

// AgentRetired says that the instances of an agent that have announced themselves
// until a time are gone for good.
type AgentRetired struct {
	By     subjects.AgentID `json:"by"`
	Reason string           `json:"reason,omitempty"`
	At     time.Time        `json:"at"`
}

// AgentDrained says who drains an agent, and why.
type AgentDrained struct {
	By     subjects.AgentID `json:"by"`
	Reason string           `json:"reason,omitempty"`
	At     time.Time        `json:"at"`
}

// AgentCooling says until when an agent is offered nothing, and after what.
type AgentCooling struct {
	Until time.Time     `json:"until"`
	Code  subjects.Code `json:"code,omitempty"`
}
