package router

import (
	"iter"
	"math"
	"slices"
	"strings"
	"time"
	"weak"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// An instance that is not heard any more is remembered for as long as a task
// may wait for it, which is as long as the stream keeps its announce; or for a
// day, if another one of its agent that was heard since can do all that it can.
const (
	keepInstance   = fleet.MaxDeadline
	keepSuperseded = 24 * time.Hour
)

// forgetEvery is how often those are looked at that were not heard for a day.
const forgetEvery = time.Hour

// noPlace marks an instance that the fleet has forgotten.
const noPlace = ^uint32(0)

// Fleet is the router's view of the agents: a value without clock, lock or
// I/O. The caller passes now and keeps others out, readers too: every method
// that is given now first does what has become due by then.
//
// What can be asked of many instances at once is kept as sets of their places
// (small numbers that are used again), the rest in flat arrays by place.
type Fleet struct {
	agents    map[subjects.AgentID]*agentState
	instances map[agentInstance]*Instance
	order     []*Instance       // by agent and instance id
	at        []*Instance       // by place; nil where nobody is
	unused    []uint32          // places where nobody is
	rank      []uint32          // by place: index in order; valid while ranked
	load      []uint32          // by place: Instance.load
	idleSince []int64           // by place: Instance.IdleSince, ns
	features  features          // what instances have, by place
	announced bitmap            // places of instances with an announce
	open      bitmap            // … that may be offered something and have room
	idle      bitmap            // places of instances with nothing in hand
	serving   bitmap            // … that take tasks, or will again without saying anything new
	holders   holders           // who says that it holds a task
	due       expiries          // when to look at an instance or agent again
	lost      []*Instance       // whose lease has ended, not yet told
	classes   compiledCache     // of those that somebody still holds
	limits    map[string]*limit // by key: of accounts that are not open
	// believes reports whether the label account of an agent is believed; nil:
	// always.
	believes func(agent subjects.AgentID, account string) bool
	scratch  [2]bitmap // of Choose and Capable

	now        time.Time // latest that any caller has passed
	generation uint64
	ranked     bool
}

type agentInstance struct {
	agent    subjects.AgentID
	instance subjects.InstanceID
}

// holders lists who names a task among what it holds: nearly always one.
type holders map[subjects.TaskID][]*Instance

type compiledCache struct {
	byKey map[string]weak.Pointer[Class]
	sweep int // drop the dead ones when there are so many
}

// agentState is what is true of all instances of an agent.
type agentState struct {
	id        subjects.AgentID
	places    placeSet
	drained   bool
	drainedBy string
	retiredAt time.Time // gone for good what announced itself until then
	cooling   bool
	coolUntil time.Time
	coolCode  subjects.Code // why
	due       int64         // of its earliest expiry, 0 none
}

// Instance is one running process of an agent, as the router sees it. It is
// read-only for callers, and theirs only as long as they keep others out; the
// announce it points to never changes.
type Instance struct {
	Agent    subjects.AgentID
	ID       subjects.InstanceID
	Epoch    int64
	Announce *fleet.Announce // with the health of the latest heartbeats; nil while none is known

	Heartbeat time.Duration // 0: it lives TTL from each announce
	TTL       time.Duration
	LastSeen  time.Time // zero: named by a record, never heard
	Live      bool
	Draining  bool // by itself or by an operator

	Max       int // tasks at once
	Active    int // tasks, by its own account
	IdleSince time.Time
	Held      map[subjects.TaskID]int // by the records: task and attempt
	Holding   map[subjects.TaskID]int // by its heartbeats: task and attempt
	Offering  int                     // offers in flight

	extra      int // tasks in Holding that are not in Held
	owner      *agentState
	place      uint32
	drains     bool      // it says that it drains
	retired    bool      // it is gone for good
	heard      bool      // ever
	gone       bool      // did not answer; cleared when it is heard again
	lapsed     bool      // its lease has ended
	untold     bool      // it is in Fleet.lost
	limited    bool      // its account is, or is being probed
	account    string    // that its limits hold for
	newsAt     time.Time // when it last announced something new, or its health changed
	busy       bool      // refused as busy
	busyAsked  bool      // for a time that it named
	refusals   int       // as busy, in a row
	known      time.Time // since when
	announceAt time.Time // store time of Announce
	goneUntil  time.Time // set for instances without heartbeats
	busyUntil  time.Time
	misses     int             // offers in a row that it did not answer in time
	restUntil  time.Time       // after those, whatever is heard of it
	stale      int             // heartbeats of earlier epochs since this one began
	earlier    *fleet.Announce // of an earlier epoch, which counts once this one is silent
	earlierAt  time.Time
	due        int64 // of its earliest expiry, 0 none
	skills     []string
	session    subjects.SessionID // of the latest task
	health     fleet.MCPHealth    // heard in heartbeats since healthAt
	healthAt   time.Time
	// fresh are tasks held by the records since its latest account of itself,
	// so that Active cannot include them.
	fresh map[subjects.TaskID]struct{}
}

// NewFleet returns a Fleet without agents.
func NewFleet() *Fleet {
	return &Fleet{
		agents:    make(map[subjects.AgentID]*agentState),
		instances: make(map[agentInstance]*Instance),
		features:  make(features),
		holders:   make(holders),
		limits:    make(map[string]*limit),
		classes:   compiledCache{byKey: make(map[string]weak.Pointer[Class]), sweep: 64},
	}
}

// Used is how many of the instance's slots are taken: by what the records and
// its heartbeats say that it holds and what is being offered, or by its own
// account if that is more.
func (in *Instance) Used() int {
	return max(in.Active, len(in.Held)+in.extra+in.Offering)
}

// load is the share of its slots that are taken, as a fraction of 1<<32.
func (in *Instance) load() uint32 {
	used := in.Used()
	if used >= in.Max {
		return math.MaxUint32
	}
	return uint32(uint64(used) << 32 / uint64(in.Max))
}

// Free reports whether the instance has a slot free.
func (in *Instance) Free() bool { return in.Used() < in.Max }

// CoolUntil is when the agent's cool-down ends, nil when there is none.
func (in *Instance) CoolUntil() *time.Time {
	if !in.owner.cooling {
		return nil
	}
	return new(in.owner.coolUntil)
}

// DrainedBy is the operator who drained the agent, "" when none did.
func (in *Instance) DrainedBy() string { return in.owner.drainedBy }

// rests reports whether the instance is not to be asked for a while.
func (in *Instance) rests() bool { return in.owner.cooling || in.busy || !in.restUntil.IsZero() }

// Get returns an instance, or nil.
func (f *Fleet) Get(agent subjects.AgentID, inst subjects.InstanceID) *Instance {
	return f.instances[agentInstance{agent, inst}]
}

// All yields every instance by agent and instance id. The fleet must not
// change meanwhile.
func (f *Fleet) All() iter.Seq[*Instance] { return slices.Values(f.order) }

// Of yields the instances of one agent, in no particular order. The fleet must
// not change meanwhile.
func (f *Fleet) Of(agent subjects.AgentID) iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		a := f.agents[agent]
		if a == nil {
			return
		}
		for p := range a.places.all() {
			if !yield(f.at[p]) {
				return
			}
		}
	}
}

// Generation changes whenever somebody may have become able, now or ever, to do
// what nobody could before, or the other way round, other than by a slot that
// was taken or freed.
func (f *Fleet) Generation() uint64 { return f.generation }

// instance returns the instance, made on first mention.
func (f *Fleet) instance(agent subjects.AgentID, inst subjects.InstanceID) (in *Instance, known bool) {
	key := agentInstance{agent, inst}
	if in = f.instances[key]; in != nil {
		return in, true
	}
	in = &Instance{
		Agent: agent, ID: inst, Heartbeat: fleet.DefaultHeartbeat, TTL: fleet.DefaultTTL, Max: 1,
		owner: f.agent(agent), known: f.now,
	}
	if n := len(f.unused); n > 0 {
		in.place, f.unused = f.unused[n-1], f.unused[:n-1]
	} else {
		in.place = uint32(len(f.at))
		f.at = append(f.at, nil)
		f.rank = append(f.rank, 0)
		f.load, f.idleSince = append(f.load, 0), append(f.idleSince, 0)
	}
	f.at[in.place] = in
	f.instances[key] = in
	in.owner.places.add(in.place)
	i, _ := slices.BinarySearchFunc(f.order, in, byID)
	f.order = slices.Insert(f.order, i, in)
	f.ranked = false
	f.addFeatures(in)
	f.refresh(in)
	return in, false
}

func byID(a, b *Instance) int {
	if c := strings.Compare(string(a.Agent), string(b.Agent)); c != 0 {
		return c
	}
	return strings.Compare(string(a.ID), string(b.ID))
}

func (f *Fleet) agent(id subjects.AgentID) *agentState {
	a := f.agents[id]
	if a == nil {
		a = &agentState{id: id}
		f.agents[id] = a
	}
	return a
}

// unplace takes the instance out of the order by id.
func (f *Fleet) unplace(in *Instance) {
	if i, ok := slices.BinarySearchFunc(f.order, in, byID); ok {
		f.order = slices.Delete(f.order, i, i+1)
		f.ranked = false
	}
}

// refresh brings what follows from the instance's fields up to date.
func (f *Fleet) refresh(in *Instance) {
	if in.place == noPlace {
		return
	}
	p, used := in.place, in.Used()
	in.Live = in.heard && !in.gone && (!in.lapsed || plant.Bug("ghost_offered"))
	in.Draining = in.drainsItself() || in.owner.drained
	in.limited = f.closedLimit(in) != nil
	f.load[p], f.idleSince[p] = in.load(), in.IdleSince.UnixNano()
	f.announced.set(p, in.Announce != nil)
	f.idle.set(p, used == 0)
	f.open.set(p, in.ready() && used < in.Max)
	if serves := in.serves(); serves != f.serving.has(p) {
		f.serving.set(p, serves)
		f.generation++
	}
	f.arm(in)
}

// drainsItself reports whether the instance says that it drains: in its latest
// heartbeat, or in its announce until the next one.
func (in *Instance) drainsItself() bool {
	return in.drains || in.Announce != nil && in.Announce.Draining
}

// serves reports whether the instance takes tasks, now or when it has room: it
// is alive, neither drains nor cools down, and its account is not limited.
func (in *Instance) serves() bool {
	return in.Announce != nil && in.heard && !in.lapsed && !in.Draining && !in.owner.cooling && !in.limited
}

// ready reports whether the instance may be offered anything at all.
func (in *Instance) ready() bool {
	return in.Announce != nil && in.Live && !in.Draining && !in.limited && !in.rests()
}

// refreshAll brings the agent's instances up to date.
func (f *Fleet) refreshAll(a *agentState) {
	for p := range a.places.all() {
		f.refresh(f.at[p])
	}
	f.generation++
	f.armAgent(a)
	f.tidy(a)
}

// tidy forgets an agent about which nothing is known.
func (f *Fleet) tidy(a *agentState) {
	if a.places.n == 0 && !a.drained && !a.cooling && a.retiredAt.IsZero() {
		a.due = 0
		delete(f.agents, a.id)
	}
}

func put[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	if m == nil {
		m = make(map[K]V, 1)
	}
	m[k] = v
	return m
}
