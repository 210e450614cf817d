package fleet

import "slices"

// Bounds of what is told while a task is worked on.
const maxRefID = 256 // bytes of a question's or an artifact's id

func (a *Ack) check(p *problems) {
	p.epoch("/epoch", a.Epoch)
	p.between("/estimated_duration", a.EstimatedDuration, 0, maxTimeout)
	p.between("/retry_after_seconds", a.RetryAfterSeconds, 0, maxTimeout)
	p.word("/limit_tier", a.LimitTier)
	p.reason("/reason", a.Reason)
}

func (g *Progress) check(p *problems) {
	p.taskID("/task_id", g.TaskID, false)
	p.attempt("/attempt", g.Attempt)
	p.epoch("/epoch", g.Epoch)
	if g.Percent != nil {
		p.between("/percent", *g.Percent, 0, 100)
	}
	if g.TokensSpent != nil {
		p.counted("/tokens_spent", *g.TokensSpent, maxCount)
	}
	if a := g.Artifact; a != nil {
		p.refID("/artifact/artifact_id", a.ArtifactID)
		p.parts("/artifact/parts", a.Parts)
	}
	if q := g.Question; q != nil {
		p.refID("/question/id", q.ID)
		p.parts("/question/parts", q.Parts)
		if q.Text == "" && len(q.Parts) == 0 {
			p.invalid("/question/text", "a question needs text or parts")
		}
	}
}

func (p *problems) refID(pointer, id string) {
	if id == "" || len(id) > maxRefID {
		p.invalid(pointer, "expected 1 to %d bytes, got %d", maxRefID, len(id))
	}
}

func (c *Control) check(p *problems) {
	actions := []string{ActionCancel, ActionDrain, ActionResume, ActionInput}
	if !slices.Contains(actions, c.Action) {
		p.invalid("/action", "expected one of CANCEL, DRAIN, RESUME, INPUT, got %q", clip(c.Action))
	}
	p.taskID("/task_id", c.TaskID, c.Action == ActionCancel || c.Action == ActionInput)
	p.attempt("/attempt", c.Attempt)
	p.token("/offer_id", "offer_id", c.OfferID, false)
	p.reason("/reason", c.Reason)
	p.parts("/parts", c.Parts)
	switch {
	case c.Action == ActionInput && c.ID != "":
		p.refID("/id", c.ID)
	case c.Action == ActionInput:
		p.refID("/question_id", c.QuestionID)
	}
}

func (e *Event) check(p *problems) {
	p.taskID("/task_id", e.TaskID, true)
	if e.Seq == 0 {
		p.invalid("/seq", "expected a sequence, counted from 1, got 0")
	}
	if e.Kind == "" {
		p.invalid("/kind", "expected the kind of the record, got nothing")
	}
	if e.State == "" {
		p.invalid("/state", "expected a state of a task, got nothing")
	}
	p.state(e.State, false)
	p.attempt("/attempt", e.Attempt)
}
