package mcp

import (
	"context"
	"fmt"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// defaultList is how many tasks are listed, maxEvents how many events shown.
const (
	defaultList = 20
	maxEvents   = 50
	maxLine     = 300
)

type statusIn struct {
	TaskID  subjects.TaskID  `json:"task_id,omitempty" jsonschema:"the task; leave it out to list tasks"`
	Events  bool             `json:"events,omitempty" jsonschema:"with task_id: what happened to it, the latest 50 events"`
	Explain bool             `json:"explain,omitempty" jsonschema:"with task_id: why each agent was or was not chosen"`
	State   fleet.State      `json:"state,omitempty" jsonschema:"list: only tasks in this state"`
	AgentID subjects.AgentID `json:"agent_id,omitempty" jsonschema:"list: only tasks of this agent"`
	Limit   int              `json:"limit,omitempty" jsonschema:"list: how many at most"`
}

type statusOut struct {
	*task
	Priority    fleet.Priority `json:"priority,omitempty"`
	Deadline    *time.Time     `json:"deadline,omitempty"`
	NotBefore   *time.Time     `json:"not_before,omitempty"`
	TokenBudget int64          `json:"token_budget,omitempty"`
	Attempts    []string       `json:"ended_attempts,omitempty"`
	Events      []string       `json:"events,omitempty"`
	Earlier     int            `json:"earlier_events,omitempty"`
	Explanation string         `json:"explanation,omitempty"`
	Agents      []string       `json:"agents,omitempty"`
}

type listOut struct {
	Count map[fleet.State]int `json:"count"` // live tasks
	Total int                 `json:"total"` // that match
	Tasks []*task             `json:"tasks"`
}

func status(ctx context.Context, c *caller, in *statusIn, _ progress) (any, error) {
	if in.TaskID == "" {
		return c.list(ctx, in)
	}
	v, err := ask[fleet.TaskView](ctx, c, "task", "get", 0, fleet.TaskRef{TaskID: in.TaskID})
	if err != nil {
		return nil, err
	}
	o := &statusOut{task: shown(&v), Priority: v.Priority, Deadline: &v.Deadline, NotBefore: v.NotBefore, TokenBudget: v.TokenBudget}
	for _, a := range v.Attempts {
		o.Attempts = append(o.Attempts, line(fmt.Sprintf("%d by %s: %s", a.Attempt, a.AgentID, reason(&fleet.Reason{Code: a.Code, Message: a.Message}))))
	}
	if in.Events {
		err := c.events(ctx, in.TaskID, func(ev *fleet.Event) { o.Events = append(o.Events, line(happened(ev))) })
		if err != nil {
			return nil, err
		}
		if o.Earlier = max(0, len(o.Events)-maxEvents); o.Earlier > 0 {
			o.Events = o.Events[o.Earlier:]
		}
	}
	if in.Explain {
		x, err := ask[fleet.TaskExplanation](ctx, c, "task", "explain", 0, fleet.TaskRef{TaskID: in.TaskID})
		if err != nil {
			return nil, err
		}
		o.Explanation = x.Summary
		for i := range x.Agents {
			o.Agents = append(o.Agents, line(judged(&x.Agents[i])))
		}
	}
	return o, nil
}

// happened is an event in a line.
func happened(ev *fleet.Event) string {
	s := ev.Time.UTC().Format(time.RFC3339) + " " + ev.Kind
	if ev.Kind != string(ev.State) {
		s += " (" + string(ev.State) + ")"
	}
	if ev.AgentID != "" {
		s += " " + string(ev.AgentID)
	}
	if r := reason(ev.Reason); r != "" {
		s += ": " + r
	}
	switch d := &ev.Data; {
	case d.Question != nil:
		s += ": " + d.Question.Text
	case d.Answer != nil:
		s += ": " + d.Answer.Text
	case d.Message != nil:
		s += ": " + d.Message.Text
	case d.Artifact != nil:
		s += ": " + d.Artifact.ArtifactID + " " + partsText(d.Artifact.Parts)
	}
	return s
}

// judged is what matching says of an agent, in a line.
func judged(a *fleet.AgentVerdict) string {
	s := string(a.AgentID) + ": "
	switch {
	case a.Holder:
		return s + "works on it"
	case a.Eligible:
		return s + fmt.Sprintf("can do it, number %d in line", a.Order)
	}
	for i := range a.Reasons {
		if i > 0 {
			s += "; "
		}
		s += reason(&a.Reasons[i])
	}
	return s
}

func (c *caller) list(ctx context.Context, in *statusIn) (any, error) {
	if in.Events || in.Explain {
		return nil, bad("task_id", "events and explain are about one task", "give its task_id, or leave them out")
	}
	l, err := ask[fleet.TaskListReply](ctx, c, "task", "list", 0, fleet.TaskList{State: in.State, AgentID: in.AgentID, Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	o := &listOut{Count: l.Count, Total: l.Total, Tasks: []*task{}}
	for i := range l.Tasks {
		o.Tasks = append(o.Tasks, shown(&l.Tasks[i]))
	}
	return o, nil
}

type cancelIn struct {
	TaskIDs []subjects.TaskID `json:"task_ids" jsonschema:"the tasks"`
	Reason  string            `json:"reason,omitempty" jsonschema:"why; kept with the task and told to its agent"`
}

type canceled struct {
	TaskID   subjects.TaskID `json:"task_id"`
	Canceled bool            `json:"canceled"`
	State    fleet.State     `json:"state,omitempty"`
	Error    string          `json:"error,omitempty"`
}

type cancelOut struct {
	Results []*canceled `json:"results"`
}

func cancel(ctx context.Context, c *caller, in *cancelIn, _ progress) (any, error) {
	o := &cancelOut{Results: make([]*canceled, len(in.TaskIDs))}
	each(len(in.TaskIDs), dispatchesAtOnce, func(i int) {
		r := &canceled{TaskID: in.TaskIDs[i]}
		o.Results[i] = r
		v, err := ask[fleet.TaskView](ctx, c, "task", "cancel", 0, fleet.TaskCancel{TaskID: r.TaskID, Reason: in.Reason})
		if err != nil {
			r.Error = err.Error()
			return
		}
		r.State, r.Canceled = v.State, v.State == fleet.StateCanceled
	})
	return o, nil
}
