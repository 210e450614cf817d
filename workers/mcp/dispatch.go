package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"

	"parley/subjects"
	"parley/subjects/fleet"
)

// maxMany is how many tasks one call may be about, dispatchesAtOnce how many of
// them are dispatched at a time.
const (
	maxMany          = 100
	dispatchesAtOnce = 16
)

// terms are the arguments of a dispatch.
type terms struct {
	Brief string         `json:"brief" jsonschema:"what is to be done, in full: goal, facts and paths, limits, and what to hand back. The agent knows nothing else"`
	Data  map[string]any `json:"data,omitempty" jsonschema:"JSON that goes with the brief"`
	common
	IdempotencyKey string `json:"idempotency_key,omitempty" jsonschema:"calls with the same key and arguments within 24 hours are one task"`
}

// common are those that several tasks may have in common.
type common struct {
	Agent                subjects.AgentID   `json:"agent,omitempty" jsonschema:"id of the one agent that may do it; leave it out to let the fleet choose"`
	Alternatives         []subjects.AgentID `json:"alternatives,omitempty" jsonschema:"with agent: others that may, if it fails"`
	Priority             fleet.Priority     `json:"priority,omitempty" jsonschema:"how urgent it is; default normal"`
	RequiredCapabilities []string           `json:"required_capabilities,omitempty" jsonschema:"tools or skills that the agent must have, as fleet_agents names them"`
	RequiredMCP          []string           `json:"required_mcp,omitempty" jsonschema:"MCP servers that must be ok at the agent"`
	ModelTier            string             `json:"model_tier,omitempty" jsonschema:"the least model tier, as fleet_agents names them"`
	Labels               map[string]string  `json:"labels,omitempty" jsonschema:"labels that the agent must have"`
	CleanRepo            bool               `json:"clean_repo,omitempty" jsonschema:"only an agent whose git work tree is clean"`
	TokenBudget          int64              `json:"token_budget,omitempty" jsonschema:"tokens that all attempts together may spend; 0 is no bound"`
	TimeoutSeconds       float64            `json:"timeout_seconds,omitempty" jsonschema:"time for one attempt; default 3600"`
	DeadlineSeconds      float64            `json:"deadline_seconds,omitempty" jsonschema:"seconds from now after which the task expires; default 72 hours, at most 30 days"`
	MaxRetries           *int               `json:"max_retries,omitempty" jsonschema:"repeats by the same agent; default 3"`
	MaxLosses            int                `json:"max_losses,omitempty" jsonschema:"agents that may be lost in a row before a human decides, 1 to 100; default 3"`
	OnBlocked            string             `json:"on_blocked,omitempty" jsonschema:"what happens when no agent can do it"`
	Escalate             string             `json:"escalate,omitempty" jsonschema:"whether it may wait for a human when all agents have failed; auto: where somebody can be called"`
	ResultSchema         map[string]any     `json:"result_schema,omitempty" jsonschema:"JSON Schema (2020-12) that the result must follow"`
	SessionID            subjects.SessionID `json:"session_id,omitempty" jsonschema:"session whose context the agent gets"`
	RunID                subjects.RunID     `json:"run_id,omitempty" jsonschema:"group of tasks that this one belongs to"`
}

// termsSchema refines the schema of terms or of common.
func termsSchema(s *jsonschema.Schema) {
	enum(s, "priority", "critical", "high", "normal", "low")
	enum(s, "on_blocked", fleet.OnBlockedReroute, fleet.OnBlockedWait, fleet.OnBlockedFail, fleet.OnBlockedEscalate)
	enum(s, "escalate", fleet.EscalateAuto, fleet.EscalateAlways, fleet.EscalateNever)
	limits(s, "token_budget", 0, 1<<53)
	limits(s, "timeout_seconds", 0, fleet.MaxDeadline.Seconds())
	limits(s, "deadline_seconds", 0, fleet.MaxDeadline.Seconds())
	if brief := s.Properties["brief"]; brief != nil {
		brief.MinLength = new(1)
	}
}

// dispatched is what a model is told of a task that was accepted, or refused.
type dispatched struct {
	TaskID    subjects.TaskID `json:"task_id,omitempty"`
	State     fleet.State     `json:"state,omitempty"`
	Deadline  *time.Time      `json:"deadline,omitempty"`
	Duplicate bool            `json:"duplicate,omitempty"` // it was dispatched before
	Error     string          `json:"error,omitempty"`
	Next      string          `json:"next,omitempty"`
}

func dispatchOne(ctx context.Context, c *caller, in *terms, _ progress) (any, error) {
	d, err := c.dispatch(ctx, in)
	if err != nil {
		return nil, err
	}
	d.Next = "the task runs in the background: fleet_wait with its task_id tells when it has ended"
	return d, nil
}

// dispatch gives the fleet one task.
func (c *caller) dispatch(ctx context.Context, in *terms) (*dispatched, error) {
	d, err := newDispatch(in, time.Now())
	if err != nil {
		return nil, err
	}
	r, err := ask[fleet.Dispatched](ctx, c, "task", "dispatch", 0, d)
	if no, ok := errors.AsType[*refusal](err); ok && no.code == subjects.CodeUnavailable && d.Task.TaskID != "" {
		no.message += fmt.Sprintf("; it may have accepted this as task %s", d.Task.TaskID)
		no.remedy = "before you dispatch it again, ask fleet_wait for that task_id: what it does not know was not accepted"
	}
	if err != nil {
		return nil, err
	}
	return &dispatched{TaskID: r.TaskID, State: r.State, Deadline: &r.Deadline, Duplicate: r.Duplicate && in.IdempotencyKey != ""}, nil
}

// newDispatch is the dispatch that terms make. Without a key, its task id is
// chosen here, so that asking twice makes one task.
func newDispatch(in *terms, now time.Time) (*fleet.Dispatch, error) {
	d := &fleet.Dispatch{
		Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
		Task: fleet.Task{
			Priority: in.Priority, TokenBudget: in.TokenBudget, TimeoutSeconds: in.TimeoutSeconds, MaxRetries: in.MaxRetries, MaxLosses: in.MaxLosses,
			Agent: in.Agent, Alternatives: in.Alternatives, OnBlocked: in.OnBlocked, Escalate: in.Escalate,
			SessionID: in.SessionID, RunID: in.RunID, IdempotencyKey: in.IdempotencyKey,
		},
		Requirements: fleet.Requirements{
			RequiredMCP: in.RequiredMCP, RequiredCapabilities: in.RequiredCapabilities,
			ModelTier: in.ModelTier, CleanRepo: in.CleanRepo, Labels: in.Labels,
		},
		Brief: in.Brief,
	}
	if in.ResultSchema != nil {
		data, err := json.Marshal(in.ResultSchema)
		if err != nil {
			return nil, bad("result_schema", err.Error(), "")
		}
		d.Task.ResultSchema, d.Task.ReplySchema = data, fleet.ReplyJSON
	}
	if in.Data != nil {
		data, err := json.Marshal(in.Data)
		if err != nil {
			return nil, bad("data", err.Error(), "")
		}
		d.Input = &fleet.Input{Parts: []fleet.Part{{Text: &in.Brief}, {Data: data}}}
	}
	if in.IdempotencyKey != "" {
		if in.DeadlineSeconds > 0 {
			return nil, bad("deadline_seconds", "it cannot go with idempotency_key, since a repeat would be another deadline", "leave one of them out")
		}
		return d, nil
	}
	if in.DeadlineSeconds > 0 {
		// Whoever says 30 days means it, whatever time the call takes.
		d.Deadline = new(now.Add(time.Duration(in.DeadlineSeconds * float64(time.Second))).UTC())
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	d.Task.TaskID = subjects.TaskID(id.String())
	return d, nil
}

type manyIn struct {
	Tasks  []terms `json:"tasks" jsonschema:"the tasks, each with the arguments of fleet_dispatch"`
	Common common  `json:"common,omitzero" jsonschema:"arguments of every task that does not have them itself"`
}

type manyOut struct {
	Accepted int           `json:"accepted"`
	Refused  int           `json:"refused"`
	Results  []*dispatched `json:"results"` // in the order of tasks
	Next     string        `json:"next"`
}

func dispatchMany(ctx context.Context, c *caller, in *manyIn, tell progress) (any, error) {
	out := &manyOut{Results: make([]*dispatched, len(in.Tasks))}
	var mu sync.Mutex // guards out
	each(len(in.Tasks), dispatchesAtOnce, func(i int) {
		t := in.Tasks[i]
		t.common = t.or(&in.Common)
		d, err := c.dispatch(ctx, &t)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.Refused++
			out.Results[i] = &dispatched{Error: err.Error()}
			return
		}
		out.Accepted++
		out.Results[i] = d
		tell(ctx, out.Accepted, len(in.Tasks), "dispatched")
	})
	out.Next = "fleet_wait with all the task_ids"
	if out.Refused > 0 {
		out.Next = "correct what was refused and dispatch that again, nothing else; " + out.Next
	}
	return out, nil
}

// or is c, and what c leaves out as d has it.
func (c common) or(d *common) common {
	c.Agent, c.Priority, c.ModelTier = cmp.Or(c.Agent, d.Agent), cmp.Or(c.Priority, d.Priority), cmp.Or(c.ModelTier, d.ModelTier)
	c.CleanRepo, c.TokenBudget = c.CleanRepo || d.CleanRepo, cmp.Or(c.TokenBudget, d.TokenBudget)
	c.TimeoutSeconds, c.DeadlineSeconds = cmp.Or(c.TimeoutSeconds, d.TimeoutSeconds), cmp.Or(c.DeadlineSeconds, d.DeadlineSeconds)
	c.MaxRetries, c.OnBlocked, c.Escalate = cmp.Or(c.MaxRetries, d.MaxRetries), cmp.Or(c.OnBlocked, d.OnBlocked), cmp.Or(c.Escalate, d.Escalate)
	c.MaxLosses = cmp.Or(c.MaxLosses, d.MaxLosses)
	c.SessionID, c.RunID = cmp.Or(c.SessionID, d.SessionID), cmp.Or(c.RunID, d.RunID)
	if c.Alternatives == nil {
		c.Alternatives = d.Alternatives
	}
	if c.RequiredCapabilities == nil {
		c.RequiredCapabilities = d.RequiredCapabilities
	}
	if c.RequiredMCP == nil {
		c.RequiredMCP = d.RequiredMCP
	}
	if c.Labels == nil {
		c.Labels = d.Labels
	}
	if c.ResultSchema == nil {
		c.ResultSchema = d.ResultSchema
	}
	return c
}

// each calls fn for 0 to n-1, some at a time, and returns when all have.
func each(n, atOnce int, fn func(i int)) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			fn(i)
		})
	}
	all.Wait()
}
