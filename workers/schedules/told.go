package schedules

import (
	"time"

	"parley/subjects"
	"parley/subjects/handshake"
	"parley/subjects/schedule"
	"parley/workers"
)

// line is the data of a line of the audit about a schedule.
type line struct {
	Schedule schedule.Name    `json:"schedule"`
	From     subjects.AgentID `json:"from"` // whose it is
	Kind     string           `json:"kind"` // create, pause, resume, run, remove, begin, refuse, miss, skip, cancel, end
	State    schedule.State   `json:"state"`
	ID       string           `json:"id,omitempty"`   // of what is begun, or canceled
	Time     *time.Time       `json:"time,omitempty"` // at which that was due, or asked for
	Count    int              `json:"count,omitzero"` // of times that were missed or skipped
	Code     subjects.Code    `json:"code,omitempty"`
	Message  string           `json:"message,omitempty"`
}

// told is what the audit is told of a call of who.
func told(r *schedule.Record, who subjects.AgentID, kind string) []byte {
	return says(r, who, line{Kind: kind})
}

func says(r *schedule.Record, who subjects.AgentID, l line) []byte {
	l.Schedule, l.From, l.State = r.Definition.Name, r.From, r.State
	return workers.Line("", who, handshake.EventSchedule, l)
}

// toldOf is what it is told of what a change did beside its call, if there was
// one: what was begun, missed and skipped, and the end.
func toldOf(was, is *schedule.Record) (lines []byte) {
	add := func(l line) { lines = append(lines, says(is, is.From, l)...) }
	if n := is.Missed - was.Missed; n > 0 {
		add(line{Kind: "miss", Count: n})
	}
	if n := is.Skipped - was.Skipped; n > 0 {
		add(line{Kind: "skip", Count: n})
	}
	if is.Cancel != "" && was.Cancel == "" {
		add(line{Kind: "cancel", ID: is.Cancel})
	}
	switch last := is.Last; {
	case is.Begun > was.Begun:
		add(line{Kind: "begin", ID: last.ID, Time: &last.Time})
	case is.Refused > was.Refused:
		add(line{Kind: "refuse", ID: last.ID, Time: &last.Time, Code: last.Reason.Code, Message: workers.Clip(last.Reason.Message)})
	}
	if is.State == schedule.Ended && was.State != schedule.Ended {
		add(line{Kind: "end"})
	}
	return lines
}
