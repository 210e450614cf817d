package fleet

import (
	"slices"
	"strings"
	"time"

	"parley/subjects"
)

// Bounds of a dispatch.
const (
	maxTimeout      = 30 * 24 * 3600 // seconds
	maxRetries      = 100
	maxLosses       = 100
	maxAlternatives = 32
	maxRequired     = 64
	maxKey          = 255 // bytes of an idempotency key
)

// urgent is another word for Critical.
const urgent = "urgent"

// DeadlineAt is when the task expires if it is accepted at now. A deadline that
// has passed is deadline_exceeded, one beyond MaxDeadline is invalid_message.
func (d *Dispatch) DeadlineAt(now time.Time) (time.Time, error) {
	if d.Deadline == nil {
		return now.Add(DefaultDeadline), nil
	}
	switch left := d.Deadline.Sub(now); {
	case left <= 0:
		return time.Time{}, subjects.Errorf(subjects.CodeDeadlineExceeded, "the deadline %s has passed",
			d.Deadline.UTC().Format(time.RFC3339)).
			At("/deadline").WithRemedy("send a later deadline, or leave it out for 72 hours")
	case left > MaxDeadline:
		return time.Time{}, invalid("/deadline", "expected at most 30 days from now, got %s",
			d.Deadline.UTC().Format(time.RFC3339)).
			WithRemedy("send an earlier deadline, or leave it out for 72 hours")
	}
	return *d.Deadline, nil
}

func (d *Dispatch) check(p *problems) {
	d.Task.check(p)
	d.Requirements.check(p)
	p.object("/input/metadata", d.metadata())
	if null(d.Context) {
		d.Context = nil
	}
	var parts []Part
	if d.Input != nil {
		parts = d.Input.Parts
	}
	p.parts("/input/parts", parts)
	if len(parts) == 0 && strings.TrimSpace(d.Brief) == "" {
		p.add(invalid("/brief", "expected text that says what to do, got nothing").
			WithRemedy("send a brief, or input.parts"))
	}
	p.Traceparent("/traceparent", d.Traceparent)
	p.agentID("/from", d.From, false)
	p.attempt("/attempt", d.Attempt)
	p.epoch("/epoch", d.Epoch)
	p.token("/offer_id", "offer_id", d.OfferID, false)
	p.counted("/tokens_left", d.TokensLeft, maxCount)
}

func (d *Dispatch) metadata() *rawJSON {
	if d.Input == nil {
		return new(rawJSON)
	}
	return &d.Input.Metadata
}

func (t *Task) check(p *problems) {
	p.taskID("/task/task_id", t.TaskID, false)
	switch t.Priority {
	case "":
		t.Priority = Normal
	case urgent:
		t.Priority = Critical
	case Critical, High, Normal, Low:
	default:
		p.invalid("/task/priority", "expected one of critical, urgent, high, normal, low, got %q", clip(string(t.Priority)))
	}
	p.oneOf("/task/reply_schema", t.ReplySchema, ReplyProse, ReplyStructured, ReplyJSON)
	p.counted("/task/token_budget", t.TokenBudget, maxCount)
	p.shared("/task/session_token_budget", t.SessionBudget, "session_id", string(t.SessionID))
	p.shared("/task/run_token_budget", t.RunBudget, "run_id", string(t.RunID))
	p.between("/task/timeout_seconds", t.TimeoutSeconds, 0, maxTimeout)
	if n := t.MaxRetries; n != nil {
		p.counted("/task/max_retries", int64(*n), maxRetries)
	}
	p.counted("/task/max_losses", int64(t.MaxLosses), maxLosses)
	p.agentID("/task/agent", t.Agent, false)
	t.checkAlternatives(p)
	p.oneOf("/task/on_blocked", t.OnBlocked, OnBlockedReroute, OnBlockedWait, OnBlockedFail, OnBlockedEscalate)
	p.oneOf("/task/escalate", t.Escalate, EscalateAuto, EscalateAlways, EscalateNever)
	p.between("/task/alert_repeat", t.AlertRepeat, 0, maxTimeout)
	p.between("/task/give_up_after", t.GiveUpAfter, 0, maxTimeout)
	t.checkSchema(p)
	p.sessionID("/task/session_id", t.SessionID)
	if len(t.IdempotencyKey) > maxKey || !printable(t.IdempotencyKey, ' ') {
		p.invalid("/task/idempotency_key", "expected at most %d printable ASCII characters", maxKey)
	}
	p.runID("/task/run_id", t.RunID)
}

// shared checks a budget of a session or run, which must be named.
func (p *problems) shared(pointer string, budget int64, of, id string) {
	p.counted(pointer, budget, maxCount)
	if budget > 0 && id == "" {
		p.add(invalid(pointer, "it is a budget of nothing, as there is no %s", of).WithRemedy("send " + of + ", too"))
	}
}

func (t *Task) checkAlternatives(p *problems) {
	const at = "/task/alternatives"
	if len(t.Alternatives) > maxAlternatives {
		p.invalid(at, "expected at most %d agents, got %d", maxAlternatives, len(t.Alternatives))
		return
	}
	for i, id := range t.Alternatives {
		p.agentID(index(at, i), id, true)
		if slices.Contains(t.Alternatives[:i], id) {
			p.invalid(index(at, i), "%q is there twice", clip(string(id)))
		}
	}
}

func (r *Requirements) check(p *problems) {
	p.names("/requirements/required_mcp", r.RequiredMCP, maxRequired)
	p.names("/requirements/required_capabilities", r.RequiredCapabilities, maxRequired)
	p.word("/requirements/model_tier", r.ModelTier)
	p.labels("/requirements/labels", r.Labels)
}
