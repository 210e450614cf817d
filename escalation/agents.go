package escalation

import (
	"slices"

	"parley/subjects"
	"parley/subjects/fleet"
)

// This file derives who may do a task from its record alone.

// Blocked reports whether code says that the agent could not begin, rather than
// that it failed. A TASK_RESULT blocked without a code counts as
// no_capable_agent.
func Blocked(code subjects.Code) bool {
	switch code {
	case subjects.CodeMCPUnhealthy, subjects.CodeDirtyRepo, subjects.CodeNoCapableAgent, subjects.CodeForbidden, subjects.CodeHostNotAllowed:
		return true
	}
	return false
}

// Excluded are the agents that have failed a task, in the order in which they
// did. One that is to try again (its newest attempt that counts was answered by
// level 1) is not among them, nor is one that only handed the task back.
func Excluded(attempts []fleet.Attempt) []subjects.AgentID {
	var out []subjects.AgentID
	n := counted(attempts)
	for i, a := range attempts[:n] {
		again := i == n-1 && a.Level == 1
		if a.Level > 0 && !again && !slices.Contains(out, a.AgentID) {
			out = append(out, a.AgentID)
		}
	}
	if n > 0 && attempts[n-1].Level == 1 {
		out = slices.DeleteFunc(out, func(id subjects.AgentID) bool { return id == attempts[n-1].AgentID })
	}
	return out
}

// Only are the agents that alone may do a task from here on; none = anybody who
// is not excluded. While level 1 answers, it is the agent that tries again; for
// a pinned task its pin, then its alternatives; for any other, at level 2, its
// untried alternatives while there are any.
func Only(p fleet.Policy, attempts []fleet.Attempt) []subjects.AgentID {
	n := counted(attempts)
	switch {
	case n == 0 && p.Agent != "":
		return []subjects.AgentID{p.Agent}
	case n == 0:
		return nil
	case attempts[n-1].Level == 1:
		return []subjects.AgentID{attempts[n-1].AgentID}
	}
	only, exhausted := candidates(p, Excluded(attempts))
	if exhausted {
		return []subjects.AgentID{p.Agent} // who is excluded: nobody may
	}
	return only
}

// May are who may do a task, given what a human decided last (nil: nothing):
// reassigned, that agent alone; tried again, whoever its policy names, those
// that failed before as well.
func May(p fleet.Policy, attempts []fleet.Attempt, human *fleet.HumanAnswer) (only, exclude []subjects.AgentID) {
	switch {
	case human == nil:
		return Only(p, attempts), Excluded(attempts)
	case human.AgentID != "":
		return []subjects.AgentID{human.AgentID}, nil
	case p.Agent != "":
		return append([]subjects.AgentID{p.Agent}, p.Alternatives...), nil
	}
	return nil, nil
}

// counted is the length of attempts up to the newest that counts: what was
// handed back since is as if it had not been.
func counted(attempts []fleet.Attempt) int {
	n := len(attempts)
	for n > 0 && attempts[n-1].Level == 0 {
		n--
	}
	return n
}

// candidates are who may take over at level 2, none = anybody; exhausted says
// that nobody may.
func candidates(p fleet.Policy, failed []subjects.AgentID) (only []subjects.AgentID, exhausted bool) {
	for _, a := range p.Alternatives {
		if !slices.Contains(failed, a) && !slices.Contains(only, a) {
			only = append(only, a)
		}
	}
	return only, len(only) == 0 && p.Agent != ""
}
