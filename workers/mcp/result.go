package mcp

import (
	"context"
	"strings"
	"unicode/utf8"

	"parley/subjects"
	"parley/subjects/fleet"
)

// How long a page of a result is, in characters.
const (
	defaultPage = 8000
	maxPage     = 40000
)

type resultIn struct {
	TaskID     subjects.TaskID `json:"task_id" jsonschema:"the task"`
	ArtifactID string          `json:"artifact_id,omitempty" jsonschema:"read this artifact instead of the output"`
	Offset     int             `json:"offset,omitempty" jsonschema:"character to begin at, as next_offset says"`
	Limit      int             `json:"limit,omitempty" jsonschema:"characters of a page"`
}

type resultOut struct {
	TaskID        subjects.TaskID  `json:"task_id"`
	State         fleet.State      `json:"state"`
	Ended         bool             `json:"ended"`
	Status        fleet.Status     `json:"status,omitempty"`
	Agent         subjects.AgentID `json:"agent,omitempty"`
	Text          string           `json:"text"`
	Offset        int              `json:"offset"`
	TotalChars    int              `json:"total_chars"`
	NextOffset    int              `json:"next_offset,omitempty"`
	NextSteps     []string         `json:"next_steps,omitempty"`
	Remaining     []string         `json:"remaining,omitempty"`
	Error         string           `json:"error,omitempty"`
	BlockedReason string           `json:"blocked_reason,omitempty"`
	Artifacts     []*artifact      `json:"artifacts,omitempty"`
	Tokens        int64            `json:"tokens_spent,omitempty"`
	Next          string           `json:"next,omitempty"`
}

// artifact is a piece of output that an agent published.
type artifact struct {
	ArtifactID string `json:"artifact_id"`
	Name       string `json:"name,omitempty"`
	Chars      int    `json:"chars"`

	text string
}

func result(ctx context.Context, c *caller, in *resultIn, _ progress) (any, error) {
	v, err := ask[fleet.TaskView](ctx, c, "task", "get", 0, fleet.TaskRef{TaskID: in.TaskID})
	if err != nil {
		return nil, err
	}
	o := &resultOut{TaskID: v.TaskID, State: v.State, Ended: v.State.Terminal(), Agent: v.AgentID, Offset: in.Offset, Tokens: v.TokensSpent}
	if o.Artifacts, err = c.artifacts(ctx, in.TaskID); err != nil {
		return nil, err
	}
	text := ""
	if r := v.Result; r != nil {
		o.Status, o.Agent, o.NextSteps, o.Remaining = r.Status, r.AgentID, r.NextSteps, r.Remaining
		if r.Error != nil {
			o.Error = reason(&fleet.Reason{Code: r.Error.Code, Message: r.Error.Message})
		}
		if r.BlockedReason != nil {
			o.BlockedReason = *r.BlockedReason
		}
		text = rendered(r)
	}
	switch {
	case in.ArtifactID != "":
		a := find(o.Artifacts, in.ArtifactID)
		if a == nil {
			return nil, &refusal{code: subjects.CodeNotFound, argument: "artifact_id", message: "the task has no such artifact", remedy: "fleet_result without artifact_id lists those that it has"}
		}
		text = a.text
	case !o.Ended:
		o.Next = "the task has not ended, so it has no result: fleet_wait tells when it has"
	}
	o.TotalChars = utf8.RuneCountInString(text)
	if in.Offset > o.TotalChars {
		return nil, bad("offset", "it lies behind the end", "offset is what next_offset said, or 0")
	}
	o.Text = page(text, in.Offset, in.Limit)
	if end := in.Offset + utf8.RuneCountInString(o.Text); end < o.TotalChars {
		o.NextOffset = end
		o.Next = "there is more: call fleet_result again with offset set to next_offset"
	}
	return o, nil
}

func find(all []*artifact, id string) *artifact {
	for _, a := range all {
		if a.ArtifactID == id {
			return a
		}
	}
	return nil
}

// artifacts puts together what the agent of the last attempt published.
func (c *caller) artifacts(ctx context.Context, id subjects.TaskID) ([]*artifact, error) {
	var all []*artifact
	err := c.events(ctx, id, func(ev *fleet.Event) {
		if ev.Kind == fleet.KindWorking {
			all = nil // another attempt begins afresh
		}
		a := ev.Data.Artifact
		if a == nil {
			return
		}
		mine := find(all, a.ArtifactID)
		if mine == nil {
			mine = &artifact{ArtifactID: a.ArtifactID}
			all = append(all, mine)
		}
		if a.Name != "" {
			mine.Name = a.Name
		}
		if !a.Append {
			mine.text = ""
		}
		mine.text += partsText(a.Parts)
		mine.Chars = utf8.RuneCountInString(mine.text)
	})
	return all, err
}

// events reads the records of a task.
func (c *caller) events(ctx context.Context, id subjects.TaskID, fn func(*fleet.Event)) error {
	var after uint64
	for {
		p, err := ask[fleet.TaskEventsReply](ctx, c, "task", "events", 0, fleet.TaskEvents{TaskID: id, AfterSeq: after, Limit: 1000})
		if err != nil {
			return err
		}
		for i := range p.Events {
			fn(&p.Events[i])
			after = p.Events[i].Seq
		}
		if !p.More {
			return nil
		}
	}
}

// line is text in one line of at most maxLine characters.
func line(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if short := page(s, 0, maxLine); short != s {
		return short + "…"
	}
	return s
}
