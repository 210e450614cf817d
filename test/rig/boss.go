package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Boss dispatches tasks through raw NATS, and repeats until it is answered.
type Boss struct {
	NC   *nats.Conn
	Name string
}

// Dispatch is a TASK_DISPATCH.
type Dispatch struct {
	Task         DispatchTask         `json:"task"`
	Requirements DispatchRequirements `json:"requirements,omitzero"`
	Deadline     *time.Time           `json:"deadline,omitempty"`
	Brief        string               `json:"brief"`
}

// DispatchTask is its task.
type DispatchTask struct {
	TaskID         string  `json:"task_id,omitempty"`
	Priority       string  `json:"priority,omitempty"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitzero"`
	MaxRetries     *int    `json:"max_retries,omitempty"`
	Agent          string  `json:"agent,omitempty"`
	IdempotencyKey string  `json:"idempotency_key,omitempty"`
	Escalate       string  `json:"escalate,omitempty"`
}

// DispatchRequirements are what its agent must have.
type DispatchRequirements struct {
	Labels map[string]string `json:"labels,omitempty"`
}

// Refusal is an answer of the API that is an error.
type Refusal struct { //nolint:errname // a word of the contract
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// View is a task as the API shows it.
type View struct {
	TaskID string `json:"task_id"`
	State  string `json:"state"`
}

// TryFor is how long one request may take: a router that is killed does not
// answer.
const TryFor = time.Second

// Call asks the API until it is answered with something final.
func (b Boss) Call(ctx context.Context, noun, verb string, req any) (View, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return View{}, err
	}
	for {
		try, cancel := context.WithTimeout(ctx, TryFor)
		m, err := b.NC.RequestWithContext(try, "fleet.api."+b.Name+"."+noun+"."+verb, data)
		cancel()
		if err == nil {
			var reply struct {
				View
				Error *Refusal `json:"error"`
			}
			if err := json.Unmarshal(m.Data, &reply); err != nil {
				return View{}, fmt.Errorf("%s %s answered %q: %w", noun, verb, m.Data, err)
			}
			switch {
			case reply.Error == nil:
				return reply.View, nil
			case reply.Error.Code != "unavailable" && reply.Error.Code != "rate_limited":
				return View{}, reply.Error
			}
			err = reply.Error
		}
		last := err
		if Pause(ctx, 20*time.Millisecond) != nil {
			return View{}, fmt.Errorf("%s %s: %w (last: %w)", noun, verb, ctx.Err(), last)
		}
	}
}

// Dispatch sends d through the API until it is acknowledged.
func (b Boss) Dispatch(ctx context.Context, d Dispatch) (string, error) {
	v, err := b.Call(ctx, "task", "dispatch", d)
	return v.TaskID, err
}

// Drop puts body into the raw door until JetStream acknowledges it. Repeats
// are told by id.
func (b Boss) Drop(ctx context.Context, id string, body []byte) error {
	js, err := jetstream.New(b.NC)
	if err != nil {
		return err
	}
	for {
		try, cancel := context.WithTimeout(ctx, TryFor)
		_, err := js.Publish(try, "fleet.dispatch."+b.Name, body, jetstream.WithMsgID(id))
		cancel()
		if err == nil {
			return nil
		}
		if Pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the raw door: %w (last: %w)", ctx.Err(), err)
		}
	}
}

// Answer answers the question of a task.
func (b Boss) Answer(ctx context.Context, task, question, text string) error {
	_, err := b.Call(ctx, "task", "answer", map[string]string{"task_id": task, "question_id": question, "text": text})
	return err
}

// Give dispatches d by one of the two doors.
func (b Boss) Give(ctx context.Context, d Dispatch, raw bool) error {
	if !raw {
		id, err := b.Dispatch(ctx, d)
		if err == nil && id != d.Task.TaskID {
			err = fmt.Errorf("task %s was acknowledged as %s", d.Task.TaskID, id)
		}
		return err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return b.Drop(ctx, d.Task.TaskID, data)
}
