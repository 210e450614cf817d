package schedule

import (
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Requests and replies of the API, fleet.api.<from>.schedule.<verb>. Every reply
// may instead be an ErrorReply. schedule create takes a Definition; a repeat of
// it is no other schedule.

// Ref names a schedule: schedule get, pause, resume, remove. The reply is a
// View.
type Ref struct {
	Name Name             `json:"name"`
	From subjects.AgentID `json:"from,omitempty"` // absent: the caller; another one's is for operators
}

// Check adds every problem of r.
func (r *Ref) Check(p *fleet.Problems) {
	name(p, "/name", string(r.Name), true)
	agent(p, "/from", r.From)
}

// View is a schedule as it stands.
type View struct {
	Record
	Upcoming  []time.Time `json:"upcoming,omitempty"` // the next times, at most 5
	Duplicate bool        `json:"duplicate,omitzero"` // it was created before
}

// ListRequest asks for schedules: schedule list.
type ListRequest struct {
	All bool `json:"all,omitzero"` // not the caller's alone; for operators
}

// Check finds nothing wrong.
func (*ListRequest) Check(*fleet.Problems) {}

// List is the reply to schedule list, by creator and name.
type List struct {
	Schedules []Record `json:"schedules"`
}

// RunNow has a schedule do what it does, now: schedule run.
type RunNow struct {
	Ref
	RequestID string `json:"request_id"` // a repeat with the same one begins nothing new
}

// Check adds every problem of r.
func (r *RunNow) Check(p *fleet.Problems) {
	r.Ref.Check(p)
	name(p, "/request_id", r.RequestID, true)
}

// RunNowReply says what will be begun.
type RunNowReply struct {
	ID string `json:"id"` // of the task, run or message
}
