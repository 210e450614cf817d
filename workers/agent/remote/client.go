package remote

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"
)

// Card is what a card tells, for people and programs.
type Card struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Version     string          `json:"version"`
	Streaming   bool            `json:"streaming"`
	Push        bool            `json:"push_notifications"`
	Interfaces  []Interface     `json:"interfaces"`
	Skills      []Skill         `json:"skills"`
	Security    []string        `json:"security"`
	Signed      bool            `json:"signed"`
	Raw         json.RawMessage `json:"card"`
}

// Interface is one of the ways in which a card says that its agent is reached.
type Interface struct {
	URL     string `json:"url"`
	Binding string `json:"binding"`
	Version string `json:"version"`
	Refused string `json:"refused,omitempty"` // why it is not used; "": it may be
}

// Skill is one of an agent's skills.
type Skill struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Discover gets the agent's card.
func (r *Remote) Discover(ctx context.Context) (*Card, error) {
	card, err := r.fetch(ctx)
	if err != nil {
		return nil, r.failure(err)
	}
	r.keep(card)
	raw, err := json.Marshal(card)
	if err != nil {
		return nil, err
	}
	c := &Card{
		Name: card.Name, Description: card.Description, Version: card.Version, Raw: raw, Signed: len(card.Signatures) > 0,
		Streaming: card.Capabilities.Streaming, Push: card.Capabilities.PushNotifications,
		Interfaces: []Interface{}, Skills: []Skill{}, Security: []string{},
	}
	some, refused := r.usable(card)
	for _, i := range some {
		c.Interfaces = append(c.Interfaces, Interface{URL: i.URL, Binding: string(i.ProtocolBinding), Version: string(i.ProtocolVersion)})
	}
	for _, text := range refused {
		for _, i := range card.SupportedInterfaces {
			if why, ok := strings.CutPrefix(text, i.URL+": "); ok {
				c.Interfaces = append(c.Interfaces, Interface{URL: i.URL, Binding: string(i.ProtocolBinding), Version: string(i.ProtocolVersion), Refused: why})
				break
			}
		}
	}
	for _, s := range card.Skills {
		c.Skills = append(c.Skills, Skill{ID: s.ID, Name: s.Name, Description: s.Description})
	}
	for name := range card.SecuritySchemes {
		c.Security = append(c.Security, string(name))
	}
	return c, nil
}

// Message is what Send sends.
type Message struct {
	Text      string
	TaskID    string // of the task that it belongs to; "" for a new one
	ContextID string
	ID        string // messageId and idempotency key; "" for a random one
	Now       bool   // come back as soon as the task exists
}

// Told is one thing that an agent tells of a task.
type Told struct {
	TaskID string          // "" where there is no task
	State  string          // such as TASK_STATE_WORKING; "" where none is told
	Text   string          // of the message or artifact that comes with it
	Event  json.RawMessage // all of it, as A2A has it
}

// Send sends a message and calls each for whatever the agent tells, until the
// task ends or waits for somebody.
func (r *Remote) Send(ctx context.Context, m Message, each func(Told) error) error {
	card, err := r.current(ctx)
	if err != nil {
		return r.failure(err)
	}
	c, err := r.connect(ctx, card, r.cfg.Trace)
	if err != nil {
		return r.failure(err)
	}
	defer func() { _ = c.Destroy() }()
	msg := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(m.Text))
	msg.ID, msg.TaskID, msg.ContextID = orElse(m.ID, uuid.NewString()), a2a.TaskID(m.TaskID), m.ContextID
	req := &a2a.SendMessageRequest{Message: msg, Config: &a2a.SendMessageConfig{ReturnImmediately: m.Now}}
	if m.Now {
		res, err := c.SendMessage(withKey(ctx, msg.ID), req)
		if err != nil {
			return r.failure(err)
		}
		return eachOf(res, each)
	}
	for e, err := range c.SendStreamingMessage(withKey(ctx, msg.ID), req) {
		if err != nil {
			return r.failure(err)
		}
		if err := eachOf(e, each); err != nil {
			return err
		}
	}
	return nil
}

func eachOf(e a2a.Event, each func(Told) error) error {
	data, err := json.Marshal(a2a.StreamResponse{Event: e})
	if err != nil {
		return err
	}
	t := Told{Event: data}
	switch e := e.(type) {
	case *a2a.Task:
		t.TaskID, t.State, t.Text = string(e.ID), string(e.Status.State), textOf(e.Status.Message)
		if e.Status.State.Terminal() {
			for _, a := range e.Artifacts {
				t.Text = strings.TrimPrefix(t.Text+"\n"+artifactText(a), "\n")
			}
		}
	case *a2a.TaskStatusUpdateEvent:
		t.TaskID, t.State, t.Text = string(e.TaskID), string(e.Status.State), textOf(e.Status.Message)
	case *a2a.TaskArtifactUpdateEvent:
		t.TaskID, t.Text = string(e.TaskID), artifactText(e.Artifact)
	case *a2a.Message:
		t.Text = textOf(e)
	}
	return each(t)
}

func artifactText(a *a2a.Artifact) string {
	if a == nil {
		return ""
	}
	return textOf(&a2a.Message{Parts: a.Parts})
}

// Cancel cancels a task of the agent's.
func (r *Remote) Cancel(ctx context.Context, task string, each func(Told) error) error {
	card, err := r.current(ctx)
	if err != nil {
		return r.failure(err)
	}
	c, err := r.connect(ctx, card, r.cfg.Trace)
	if err != nil {
		return r.failure(err)
	}
	defer func() { _ = c.Destroy() }()
	t, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: a2a.TaskID(task)})
	if err != nil {
		return r.failure(err)
	}
	return eachOf(t, each)
}
