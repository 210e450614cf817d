package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// boss dispatches tasks through raw NATS, and repeats until it is answered.
type boss struct {
	nc   *nats.Conn
	name string
}

// dispatch is a TASK_DISPATCH.
type dispatch struct {
	Task         dispatchTask         `json:"task"`
	Requirements dispatchRequirements `json:"requirements,omitzero"`
	Deadline     *time.Time           `json:"deadline,omitempty"`
	Brief        string               `json:"brief"`
}

type dispatchTask struct {
	TaskID         string  `json:"task_id,omitempty"`
	Priority       string  `json:"priority,omitempty"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitzero"`
	MaxRetries     *int    `json:"max_retries,omitempty"`
	Agent          string  `json:"agent,omitempty"`
	IdempotencyKey string  `json:"idempotency_key,omitempty"`
	Escalate       string  `json:"escalate,omitempty"`
}

type dispatchRequirements struct {
	Labels map[string]string `json:"labels,omitempty"`
}

// refusal is an answer of the API that is an error.
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return r.Code + ": " + r.Message }

// view is a task as the API shows it.
type view struct {
	TaskID string `json:"task_id"`
	State  string `json:"state"`
}

// tryFor is how long one request may take: a router that is killed does not
// answer.
const tryFor = time.Second

// call asks the API until it is answered with something final.
func (b boss) call(ctx context.Context, noun, verb string, req any) (view, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return view{}, err
	}
	for {
		try, cancel := context.WithTimeout(ctx, tryFor)
		m, err := b.nc.RequestWithContext(try, "fleet.api."+b.name+"."+noun+"."+verb, data)
		cancel()
		if err == nil {
			var reply struct {
				view
				Error *refusal `json:"error"`
			}
			if err := json.Unmarshal(m.Data, &reply); err != nil {
				return view{}, fmt.Errorf("%s %s answered %q: %w", noun, verb, m.Data, err)
			}
			switch {
			case reply.Error == nil:
				return reply.view, nil
			case reply.Error.Code != "unavailable" && reply.Error.Code != "rate_limited":
				return view{}, reply.Error
			}
			err = reply.Error
		}
		last := err
		if pause(ctx, 20*time.Millisecond) != nil {
			return view{}, fmt.Errorf("%s %s: %w (last: %w)", noun, verb, ctx.Err(), last)
		}
	}
}

// dispatch sends d through the API until it is acknowledged.
func (b boss) dispatch(ctx context.Context, d dispatch) (string, error) {
	v, err := b.call(ctx, "task", "dispatch", d)
	return v.TaskID, err
}

// drop puts body into the raw door until JetStream acknowledges it. Repeats
// are told by id.
func (b boss) drop(ctx context.Context, id string, body []byte) error {
	js, err := jetstream.New(b.nc)
	if err != nil {
		return err
	}
	for {
		try, cancel := context.WithTimeout(ctx, tryFor)
		_, err := js.Publish(try, "fleet.dispatch."+b.name, body, jetstream.WithMsgID(id))
		cancel()
		if err == nil {
			return nil
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the raw door: %w (last: %w)", ctx.Err(), err)
		}
	}
}

// answer answers the question of a task.
func (b boss) answer(ctx context.Context, task, question, text string) error {
	_, err := b.call(ctx, "task", "answer", map[string]string{"task_id": task, "question_id": question, "text": text})
	return err
}
