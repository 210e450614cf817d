package escalation

import (
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// This file derives who may do a task from its record alone.

// Blocked reports whether code says that the agent could not begin, rather than
// that it failed. A TASK_RESULT blocked without a code counts as
// no_capable_agent.
func Blocked(code subjects.Code) bool { return ClassOf(code).Blocks() }

// Exclusion leaves an agent, or one of its instances, out of a task.
type Exclusion struct {
	Agent    subjects.AgentID
	Instance subjects.InstanceID // "": every instance of the agent
	Since    time.Time           // set with Until
	// Until is when the exclusion ends; zero: not before the task does. It ends
	// earlier once the instance has announced something new after Since.
	Until time.Time
}

// forGood reports whether e excludes the whole agent until the task ends.
func (e Exclusion) forGood() bool { return e.Instance == "" && e.Until.IsZero() }

// Pauses of a task with on_blocked: wait, before it is offered again to those who
// could not begin it.
const (
	pauseFirst = time.Minute
	pauseMost  = 30 * time.Minute
)

// Candidates are those who may do a task from here on.
type Candidates struct {
	Only    []subjects.AgentID // none: anybody
	Exclude []Exclusion
	// Wider says that others may have the task, too, while all of Only are away,
	// limited or left out.
	Wider bool
}

// Allow reports whether an instance may have the task, now or, where it is left out
// for a while only, later.
func (c *Candidates) Allow(agent subjects.AgentID, instance subjects.InstanceID) bool {
	if len(c.Only) > 0 && !slices.Contains(c.Only, agent) {
		return false
	}
	return !slices.ContainsFunc(c.Exclude, func(e Exclusion) bool {
		return e.Agent == agent && (e.Instance == "" || e.Instance == instance) && e.Until.IsZero()
	})
}

// CandidatesOf are those who may do a task by its record; widened is how many
// steps of candidates were skipped, human what a human decided last (nil:
// nothing). Reassigned, that agent alone may; tried again by a human, whoever the
// policy names may, also those that failed before.
func CandidatesOf(p fleet.Policy, attempts []fleet.Attempt, widened int, human *fleet.HumanAnswer) Candidates {
	switch {
	case human == nil && len(attempts) == 0 && p.Agent == "":
		return Candidates{} // nearly all tasks
	case human == nil:
	case human.AgentID != "":
		return Candidates{Only: []subjects.AgentID{human.AgentID}}
	case p.Agent != "":
		return Candidates{Only: append([]subjects.AgentID{p.Agent}, p.Alternatives...)}
	default:
		return Candidates{}
	}
	exclude := Excluded(p, attempts)
	all := steps(p, attempts, exclude)
	last := min(widened, len(all)-1)
	c := Candidates{Exclude: exclude, Wider: last < len(all)-1}
	for _, step := range all[:last+1] {
		if step == nil {
			c.Only = nil // anybody
			break
		}
		c.Only = append(c.Only, step...)
	}
	return c
}

// Excluded are the agents and instances that are left out of a task, in the order
// in which they failed it: an agent after its last try, or by its own statement
// that it cannot; an instance whose condition was not met. A loss, a limit and a
// task that was handed back exclude nobody.
func Excluded(p fleet.Policy, attempts []fleet.Attempt) []Exclusion {
	var out []Exclusion
	times := make(map[subjects.AgentID]int) // statements by each agent
	add := func(e Exclusion) {
		if i := slices.IndexFunc(out, func(o Exclusion) bool { return o.Agent == e.Agent && o.Instance == e.Instance }); i >= 0 {
			if !out[i].Until.IsZero() {
				out[i] = e
			}
			return
		}
		out = append(out, e)
	}
	for i := range attempts {
		a := &attempts[i]
		switch class := ClassOf(a.Code); {
		case class.CountsAsTry() && a.Level > 1:
			add(Exclusion{Agent: a.AgentID})
		case class == ClassStatement && a.Level > 0:
			e := Exclusion{Agent: a.AgentID}
			if times[a.AgentID]++; p.OnBlocked == fleet.OnBlockedWait && times[a.AgentID] <= p.MaxRetries {
				e.Since, e.Until = a.Ended, a.Ended.Add(pauseFirst)
			}
			add(e)
		case class == ClassCondition && a.Level > 0:
			e := Exclusion{Agent: a.AgentID, Instance: a.InstanceID}
			if times[a.AgentID]++; p.OnBlocked == fleet.OnBlockedWait {
				e.Since, e.Until = a.Ended, a.Ended.Add(pause(times[a.AgentID]))
			}
			add(e)
		}
	}
	return out
}

// pause is how long an instance is left alone whose condition was not met for the
// nth time.
func pause(n int) time.Duration {
	d := pauseFirst
	for range n - 1 {
		if d *= 2; d >= pauseMost {
			return pauseMost
		}
	}
	return d
}

// steps are the candidates of a task, first choice first; nil is anybody. There is
// at least one step.
func steps(p fleet.Policy, attempts []fleet.Attempt, exclude []Exclusion) [][]subjects.AgentID {
	left := func(ids ...subjects.AgentID) []subjects.AgentID {
		var out []subjects.AgentID
		for _, id := range ids {
			if id != "" && !slices.Contains(out, id) && !isExcluded(exclude, id) {
				out = append(out, id)
			}
		}
		return out
	}
	var all [][]subjects.AgentID
	add := func(ids []subjects.AgentID) {
		if len(ids) > 0 {
			all = append(all, ids)
		}
	}
	again := retrying(attempts, exclude)
	add(left(again))
	switch {
	case p.Agent != "":
		if p.Agent != again {
			add(left(p.Agent))
		}
		add(left(p.Alternatives...))
		if len(all) == 0 {
			add([]subjects.AgentID{p.Agent}) // who is excluded: nobody may
		}
	case again != "" || len(exclude) > 0:
		add(left(p.Alternatives...))
		all = append(all, nil)
	default:
		all = append(all, nil)
	}
	return all
}

func isExcluded(exclude []Exclusion, id subjects.AgentID) bool {
	return slices.ContainsFunc(exclude, func(e Exclusion) bool { return e.Agent == id && e.forGood() })
}

// retrying is the agent that is to try again, "" for none.
func retrying(attempts []fleet.Attempt, exclude []Exclusion) subjects.AgentID {
	for _, a := range slices.Backward(attempts) {
		if a.Level == 1 && ClassOf(a.Code).CountsAsTry() {
			if isExcluded(exclude, a.AgentID) {
				return ""
			}
			return a.AgentID
		}
	}
	return ""
}

// exhausted reports whether nobody may do the task any more.
func exhausted(p fleet.Policy, exclude []Exclusion) bool {
	if p.Agent == "" || !isExcluded(exclude, p.Agent) {
		return false
	}
	return !slices.ContainsFunc(p.Alternatives, func(id subjects.AgentID) bool { return !isExcluded(exclude, id) })
}
