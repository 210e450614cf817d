package runs

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// This file decides what the next record of a run is. It reads no clock and
// does no I/O: a record and what happened go in, the next record comes out.

// Outcome is how a node's task has ended.
type Outcome struct {
	Node   run.NodeID
	TaskID subjects.TaskID
	Status run.Status // State is Done, Failed or Canceled
}

// Plan is what follows from a record.
type Plan struct {
	Record   *run.Record  // the next one; nil: nothing changes
	Dispatch []run.NodeID // begun by it, in the order in which they are to be dispatched
	Cancel   []run.NodeID // whose tasks are to be canceled
}

// Next is what follows from r at now, given what has ended since. An outcome
// of another task than the node's own counts for nothing. r is not changed.
func Next(r *run.Record, ended []Outcome, taskID func(run.NodeID, int) subjects.TaskID, now time.Time) Plan {
	if r.State.Ended() {
		return Plan{}
	}
	s := scheduler{Record: *r, now: now, taskID: taskID}
	s.Nodes = maps.Clone(r.Nodes)
	for _, o := range ended {
		s.take(o)
	}
	reason, failing := s.failing()
	switch {
	case !now.Before(s.Deadline):
		s.stop(run.Expired, &fleet.Reason{Code: subjects.CodeDeadlineExceeded, Message: "the run's deadline has passed"})
	case failing:
		s.skipWaiting()
	case s.State == run.Running:
		s.begin()
	}
	s.finish(reason)
	if !s.changed {
		return Plan{}
	}
	return Plan{Record: &s.Record, Dispatch: s.dispatch, Cancel: s.cancel}
}

// Cancel is r with everything that has not ended canceled.
func Cancel(r *run.Record, why string, now time.Time) Plan {
	if r.State.Ended() {
		return Plan{}
	}
	s := scheduler{Record: *r, now: now}
	s.Nodes = maps.Clone(r.Nodes)
	s.stop(run.Canceled, &fleet.Reason{Code: subjects.CodeCanceled, Message: why})
	return Plan{Record: &s.Record, Cancel: s.cancel}
}

// Retry is r running again: what succeeded stays, all else is to be done again.
// It is nil when there is nothing to retry.
func Retry(r *run.Record, deadline time.Time) *run.Record {
	if !r.State.Ended() {
		return nil
	}
	next := *r
	next.Nodes = maps.Clone(r.Nodes)
	again := false
	for name, n := range next.Nodes {
		if n.State != run.Done {
			next.Nodes[name] = run.Status{State: run.Waiting, Generation: n.Generation, Tokens: n.Tokens}
			again = true
		}
	}
	if !again {
		return nil
	}
	next.State, next.Reason, next.Ended, next.Deadline = run.Running, nil, nil, deadline
	return &next
}

// scheduler is a record on its way to the next.
type scheduler struct {
	run.Record
	now      time.Time
	taskID   func(run.NodeID, int) subjects.TaskID
	changed  bool
	dispatch []run.NodeID
	cancel   []run.NodeID
}

func (s *scheduler) set(name run.NodeID, n run.Status) { s.Nodes[name], s.changed = n, true }

// take takes in an outcome.
func (s *scheduler) take(o Outcome) {
	n, known := s.Nodes[o.Node]
	if !known || n.State != run.Dispatched || n.TaskID != o.TaskID || !o.Status.State.Ended() {
		return
	}
	next := o.Status
	next.Generation, next.TaskID, next.Begun = n.Generation, n.TaskID, n.Begun
	if next.Ended == nil {
		next.Ended = new(s.now)
	}
	s.Tokens += next.Tokens
	next.Tokens += n.Tokens // of earlier generations
	s.set(o.Node, next)
}

// failing says that nothing more is to be begun, and why.
func (s *scheduler) failing() (*fleet.Reason, bool) {
	for i := range s.Definition.Agents {
		d := &s.Definition.Agents[i]
		n := s.Nodes[d.Name()]
		if n.State != run.Failed && n.State != run.Canceled || d.OnFailure == run.OnFailureContinue {
			continue
		}
		r := &fleet.Reason{Code: subjects.CodeAgentError, Message: "node " + string(d.Name()) + " has failed"}
		if n.Reason != nil {
			r.Code, r.Message = n.Reason.Code, "node "+string(d.Name())+": "+n.Reason.Message
		}
		return r, true
	}
	if b := s.Definition.TokenBudget; b > 0 && s.Tokens >= b && s.waits() {
		return &fleet.Reason{Code: subjects.CodeBudgetExhausted, Message: "the run's token budget is spent"}, true
	}
	return nil, false
}

func (s *scheduler) waits() bool {
	for _, n := range s.Nodes {
		if n.State == run.Waiting {
			return true
		}
	}
	return false
}

func (s *scheduler) skipWaiting() {
	for name, n := range s.Nodes {
		if n.State == run.Waiting {
			n.State = run.Skipped
			s.set(name, n)
		}
	}
}

// begin dispatches the nodes whose dependencies have ended well enough, in the
// order of their sequence.
func (s *scheduler) begin() {
	var ready []*run.Node
	byName := make(map[run.NodeID]*run.Node, len(s.Definition.Agents))
	for i := range s.Definition.Agents {
		byName[s.Definition.Agents[i].Name()] = &s.Definition.Agents[i]
	}
	for i := range s.Definition.Agents {
		d := &s.Definition.Agents[i]
		if s.Nodes[d.Name()].State == run.Waiting && !slices.ContainsFunc(d.Dependencies, func(dep run.NodeID) bool {
			n := s.Nodes[dep]
			if plant.Bug("node_early") {
				return false
			}
			return n.State != run.Done && (!n.State.Ended() || byName[dep].OnFailure != run.OnFailureContinue)
		}) {
			ready = append(ready, d)
		}
	}
	slices.SortStableFunc(ready, func(a, b *run.Node) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, d := range ready {
		name := d.Name()
		n := s.Nodes[name]
		n.State, n.Generation, n.Begun = run.Dispatched, n.Generation+1, new(s.now)
		n.TaskID = s.taskID(name, n.Generation)
		s.set(name, n)
		s.dispatch = append(s.dispatch, name)
	}
}

// stop ends the run now, and whatever of it has not ended.
func (s *scheduler) stop(state run.State, why *fleet.Reason) {
	for i := range s.Definition.Agents {
		name := s.Definition.Agents[i].Name()
		n := s.Nodes[name]
		switch n.State {
		case run.Waiting:
			n.State = run.Skipped
		case run.Dispatched:
			n.State, n.Ended = run.Canceled, new(s.now)
			s.cancel = append(s.cancel, name)
		default:
			continue
		}
		s.set(name, n)
	}
	s.State, s.Reason, s.Ended, s.changed = state, why, new(s.now), true
}

// finish ends a run of which every node has ended.
func (s *scheduler) finish(failure *fleet.Reason) {
	if s.State.Ended() {
		return
	}
	for _, n := range s.Nodes {
		if !n.State.Ended() {
			return
		}
	}
	s.State, s.Reason, s.Ended, s.changed = run.Done, failure, new(s.now), true
	if failure != nil {
		s.State = run.Failed
	}
}
