package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
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

// LimitKeyPrefix begins the keys of the bucket FLEET_AGENTS that hold the limits
// of accounts (an AccountLimit each). A key that is gone says that the account is
// open.
const LimitKeyPrefix = "limit."

// LimitKey is where the limit of an account is kept; tier is "" for a limit of all
// model tiers.
func LimitKey(account, tier string) string {
	sum := sha256.Sum256([]byte(account + "\x00" + tier))
	return LimitKeyPrefix + hex.EncodeToString(sum[:8])
}

// Account is the account that limits of the announced instance hold for.
func (a *Announce) Account() string {
	return cmp.Or(a.Worker.Labels[LabelAccount], string(a.Worker.AgentID))
}

// AccountLimit says until when no instance of an account is offered anything
// (ADR 23). After ProbeAt the account is half open: one attempt at a time over all
// routers, until one of them shows that the limit is over.
type AccountLimit struct {
	Account string           `json:"account"`
	Tier    string           `json:"tier,omitempty"` // "": all model tiers
	By      subjects.AgentID `json:"by,omitempty"`   // the agent that reported it
	Message string           `json:"message,omitempty"`
	Since   time.Time        `json:"since"`
	Until   time.Time        `json:"until"`           // the reset, by the servers' clocks
	ProbeAt time.Time        `json:"probe_at"`        // Until, and up to 30 s more
	Step    int              `json:"step,omitzero"`   // reports in a row that named no reset
	Probe   *LimitProbe      `json:"probe,omitempty"` // half open: the attempt under way
}

// LimitProbe is the one attempt of a half-open account.
type LimitProbe struct {
	TaskID  subjects.TaskID `json:"task_id"`
	Attempt int             `json:"attempt"`
	At      time.Time       `json:"at"`
}

// HalfOpen reports whether the account may begin an attempt at now, as a probe.
func (l *AccountLimit) HalfOpen(now time.Time) bool { return !l.ProbeAt.After(now) }

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

// AgentCooling says until when an agent is offered nothing, and after what: its
// last attempts were all lost (agent_lost).
type AgentCooling struct {
	Until time.Time     `json:"until"`
	Code  subjects.Code `json:"code,omitempty"`
}
