package gateway

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// onBus is a gateway on a bus of its own, where the test is the fleet.
func onBus(t *testing.T) *Worker {
	t.Helper()
	w := door(t)
	w.cfg.Bus = bustest.NewFake(t).Bus(t)
	return w
}

// answers has fn answer the calls of one of the fleet's API; nil is no answer.
func answers(t *testing.T, w *Worker, noun, verb string, fn func(data []byte) any) {
	t.Helper()
	_, err := w.cfg.Bus.Subscribe(subjects.API(anonymous, noun, verb), "", func(m bus.Msg) {
		if reply := fn(m.Data); reply != nil {
			if err := m.Respond(fleet.MustEncode(reply), nil); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// taken is the task that a dispatch names.
func taken(t *testing.T, data []byte) subjects.TaskID {
	t.Helper()
	var d struct {
		Task struct {
			ID subjects.TaskID `json:"task_id"`
		} `json:"task"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Error(err)
	}
	return d.Task.ID
}

// recorded is a record of a task that the tail has brought.
func recorded(id subjects.TaskID, seq uint64, state fleet.State) *fleet.Event {
	ev := &fleet.Event{TaskID: id, Seq: seq, Kind: fleet.KindWorking, State: state, Time: time.Now()}
	if state.Terminal() {
		ev.Kind = fleet.KindOutcome
	}
	ev.Facts.From, ev.Facts.ContextID, ev.Facts.Deadline = anonymous, "c", time.Now().Add(time.Hour)
	return ev
}

func tell(w *Worker, ev *fleet.Event) {
	w.feed.record(bus.Msg{Subject: subjects.Task(ev.TaskID), Data: fleet.MustEncode(ev)})
}

func brief() *a2apb.SendMessageRequest {
	return &a2apb.SendMessageRequest{Message: &a2apb.Message{
		MessageId: "m", Role: a2apb.Role_ROLE_USER, Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: "x"}}},
	}}
}

// TestStoppingTellsTheTask: who waits for a task at a gateway that stops is told
// the task as it is. They were told to repeat the call, which would be another
// task.
func TestStoppingTellsTheTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		ids := make(chan subjects.TaskID, 1)
		answers(t, w, "task", "dispatch", func(data []byte) any {
			id := taken(t, data)
			tell(w, recorded(id, 1, fleet.StateWorking))
			ids <- id
			return fleet.Dispatched{TaskID: id, State: fleet.StateQueued, Deadline: time.Now().Add(time.Hour)}
		})
		ctx, cancel := w.during(t.Context())
		defer cancel()
		var res *a2apb.SendMessageResponse
		done := make(chan error, 1)
		go func() {
			var err error
			res, err = w.sendMessage(ctx, &call{from: anonymous}, brief())
			done <- err
		}()
		id := <-ids
		synctest.Wait()
		w.stop()
		if err := <-done; err != nil {
			t.Fatalf("sendMessage = %v, want the task as it is", err)
		}
		if got := res.GetTask(); got.GetId() != string(id) || got.GetStatus().GetState() != a2apb.TaskState_TASK_STATE_WORKING {
			t.Errorf("sendMessage = %v, want the task %s, at work", res, id)
		}
	})
}

// TestLostAnswer: who sends a message that the fleet may have taken is told the
// task that it would be. Only with an idempotency key they may repeat it.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		ids := make(chan subjects.TaskID, 1)
		answers(t, w, "task", "dispatch", func(data []byte) any {
			select {
			case ids <- taken(t, data):
			default: // asked again
			}
			return nil
		})
		_, err := w.sendMessage(t.Context(), &call{from: anonymous}, brief())
		id, f := <-ids, asFault(err)
		if f.kind != kindUnavailable || f.meta["taskId"] != string(id) || !strings.Contains(f.message, string(id)) {
			t.Errorf("sendMessage = %v with %v, want UNAVAILABLE and the task %s", f, f.meta, id)
		}
		if f.retry != 0 || strings.Contains(f.message, "repeat") {
			t.Errorf("sendMessage = %v, retry after %s: a repeat would be another task", f, f.retry)
		}
		_, err = w.sendMessage(t.Context(), &call{from: anonymous, key: "k"}, brief())
		if f := asFault(err); f.kind != kindUnavailable || f.retry == 0 || !strings.Contains(f.message, "repeat") {
			t.Errorf("with a key: sendMessage = %v, retry after %s, want to be told to repeat it", f, f.retry)
		}
	})
}

// TestTakenWithoutItsPushConfig: a task whose push notification config is refused
// has begun all the same; its sender is told which it is.
func TestTakenWithoutItsPushConfig(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		kv, err := w.cfg.Bus.KV(t.Context(), subjects.BucketPush)
		if err != nil {
			t.Fatal(err)
		}
		w.push = newPusher(w)
		withHooks(w)
		w.push.kv = kv
		config := &a2apb.TaskPushNotificationConfig{Id: "mine", Url: "https://hooks.example.org/a"}
		ids := make(chan subjects.TaskID, 1)
		answers(t, w, "task", "dispatch", func(data []byte) any {
			id := taken(t, data)
			if err := w.push.set(t.Context(), newPush(&call{from: "bob"}, config, recorded(id, 1, fleet.StateWorking), 0)); err != nil {
				t.Error(err)
			}
			ids <- id
			return fleet.Dispatched{TaskID: id, State: fleet.StateQueued, Deadline: time.Now().Add(time.Hour)}
		})
		req := brief()
		req.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: config}
		_, err = w.sendMessage(t.Context(), &call{from: anonymous}, req)
		id, f := <-ids, asFault(err)
		if f.kind != kindInvalidParams || f.meta["taskId"] != string(id) || !strings.Contains(f.message, "the message was taken") {
			t.Errorf("sendMessage = %v with %v, want INVALID_PARAMS and the task %s", f, f.meta, id)
		}
	})
}
