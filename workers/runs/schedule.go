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

// Verdict is what the condition of a node came to.
type Verdict struct {
	Begin bool
	Err   string // it could not be evaluated
}

// News is what happened since a record.
type News struct {
	Ended    []Outcome
	Verdicts map[run.NodeID]Verdict // of the nodes that a Plan asked about
}

// Plan is what follows from a record.
type Plan struct {
	Record   *run.Record  // the next one; nil: nothing changes
	Dispatch []run.NodeID // begun by it, in the order in which they are to be dispatched
	Cancel   []run.NodeID // whose tasks are to be canceled
	Ask      []run.NodeID // could begin if their conditions hold
}

// Next is what follows from r at now, given what has happened since. An outcome
// of another task than the node's own counts for nothing. r is not changed.
func Next(r *run.Record, news News, taskID func(run.NodeID, int) subjects.TaskID, now time.Time) Plan {
	if r.State.Ended() {
		return Plan{}
	}
	s := scheduler{Record: *r, now: now, taskID: taskID, verdicts: news.Verdicts}
	s.Nodes = maps.Clone(r.Nodes)
	for _, o := range news.Ended {
		s.take(o)
	}
	reason, failing := s.failing()
	switch {
	case !now.Before(s.Deadline):
		s.stop(run.Expired, &fleet.Reason{Code: subjects.CodeDeadlineExceeded, Message: "the run's deadline has passed"})
	case failing:
		s.skipWaiting(reason.Message)
	case s.State == run.Running:
		s.begin()
		if reason, failing = s.failing(); failing {
			s.skipWaiting(reason.Message)
		}
	}
	s.finish(reason)
	if !s.changed {
		return Plan{Ask: s.ask}
	}
	return Plan{Record: &s.Record, Dispatch: s.dispatch, Cancel: s.cancel, Ask: s.ask}
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
// What a condition has skipped in a run that went well stays skipped. It is nil
// when there is nothing to retry.
func Retry(r *run.Record, deadline time.Time) *run.Record {
	if !r.State.Ended() {
		return nil
	}
	next := *r
	next.Nodes = maps.Clone(r.Nodes)
	again := false
	for name, n := range next.Nodes {
		if n.State == run.Done {
			continue
		}
		next.Nodes[name] = run.Status{State: run.Waiting, Generation: n.Generation, Tokens: n.Tokens, Items: n.Items}
		again = again || n.State != run.Skipped || r.State != run.Done
	}
	if !again {
		return nil
	}
	next.State, next.Reason, next.Ended, next.Deadline, next.Cancel = run.Running, nil, nil, deadline, ""
	return &next
}

// scheduler is a record on its way to the next.
type scheduler struct {
	run.Record
	now      time.Time
	taskID   func(run.NodeID, int) subjects.TaskID
	changed  bool
	verdicts map[run.NodeID]Verdict
	dispatch []run.NodeID
	cancel   []run.NodeID
	ask      []run.NodeID
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
	next.Reason = run.Short(next.Reason)
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

func (s *scheduler) skipWaiting(why string) {
	for name, n := range s.Nodes {
		if n.State == run.Waiting {
			s.skip(name, n, why)
		}
	}
}

func (s *scheduler) skip(name run.NodeID, n run.Status, why string) {
	n.State, n.Note = run.Skipped, run.Short(&fleet.Reason{Message: why}).Message
	s.set(name, n)
}

// begin dispatches the nodes whose dependencies have ended well enough, in the
// order of their sequence. What a condition skips may settle what depends on
// it, so it looks again.
func (s *scheduler) begin() {
	byName := make(map[run.NodeID]*run.Node, len(s.Definition.Agents))
	for i := range s.Definition.Agents {
		byName[s.Definition.Agents[i].Name()] = &s.Definition.Agents[i]
	}
	var ready []*run.Node
	for settled := true; settled; {
		ready, s.ask, settled = nil, nil, false
		for i := range s.Definition.Agents {
			d := &s.Definition.Agents[i]
			if s.Nodes[d.Name()].State != run.Waiting || !s.ready(d, byName) {
				continue
			}
			switch s.admit(d) {
			case run.Dispatched:
				ready = append(ready, d)
			case run.Waiting:
				s.ask = append(s.ask, d.Name())
			default:
				settled = true
			}
		}
		if _, failing := s.failing(); failing { // a condition that cannot be evaluated
			s.ask = nil
			return
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

// ready reports whether all that d depends on has ended, and well enough.
func (s *scheduler) ready(d *run.Node, byName map[run.NodeID]*run.Node) bool {
	return plant.Bug("node_early") || !slices.ContainsFunc(d.Dependencies, func(dep run.NodeID) bool {
		switch state := s.Nodes[dep].State; state {
		case run.Done, run.Skipped:
			return false
		default:
			return !state.Ended() || byName[dep].OnFailure != run.OnFailureContinue
		}
	})
}

// admit settles whether a node that is ready begins: Dispatched, or Waiting for
// its verdict, or how it has ended.
func (s *scheduler) admit(d *run.Node) run.State {
	name := d.Name()
	n := s.Nodes[name]
	skipped := func(dep run.NodeID) bool { return s.Nodes[dep].State == run.Skipped }
	if len(d.Dependencies) > 0 && !slices.ContainsFunc(d.Dependencies, func(dep run.NodeID) bool { return !skipped(dep) }) {
		s.skip(name, n, "all that it depends on was skipped")
		return run.Skipped
	}
	if d.When == "" {
		return run.Dispatched
	}
	v, known := s.verdicts[name]
	switch {
	case !known:
		return run.Waiting
	case v.Err != "":
		n.State, n.Ended = run.Failed, new(s.now)
		n.Reason = run.Short(&fleet.Reason{Code: subjects.CodeInvalidMessage, Message: "its condition: " + v.Err})
		s.set(name, n)
		return run.Failed
	case !v.Begin:
		s.skip(name, n, "not "+d.When)
		return run.Skipped
	}
	return run.Dispatched
}

// stop ends the run now, and whatever of it has not ended.
func (s *scheduler) stop(state run.State, why *fleet.Reason) {
	for i := range s.Definition.Agents {
		name := s.Definition.Agents[i].Name()
		n := s.Nodes[name]
		switch n.State {
		case run.Waiting:
			n.State, n.Note = run.Skipped, "the run was "+string(state)
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
