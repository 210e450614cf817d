package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// Crash points of the workers that others talk to, :2 the second time.
var (
	meshPoints = []string{
		"before_mesh_store", "after_mesh_store", "before_mesh_record", "after_mesh_record", "after_mesh_hand", "before_mesh_record:2", "after_mesh_record:2",
	}
	pushPoints = []string{"before_push_config", "after_push_config", "before_push", "after_push", "before_push:2", "after_push:2", "after_push_noted", "after_push_remove"}
	a2ePoints  = []string{
		"before_a2e_session", "after_a2e_session", "before_a2e_record", "after_a2e_record", "before_a2e_record:2", "after_a2e_record:2", "after_a2e_close",
	}
)

// toDoor asks until something other than unavailable is answered.
func toDoor(ctx context.Context, b *bus.Bus, subject string, request any, h bus.Header) ([]byte, error) {
	m, err := b.RequestUntil(ctx, subject, fleet.MustEncode(request), h, 2*time.Second, func(m bus.Msg) bool {
		return strings.Contains(string(m.Data), `"unavailable"`) || strings.Contains(string(m.Data), `"UNAVAILABLE"`)
	})
	return m.Data, err
}

// crashDoor starts a worker that dies at point, or loses acknowledgements, and
// another one in its place, while somebody talks to it.
func crashDoor(t *testing.T, f *testFleet, worker, point, lost string, act func(context.Context, *bus.Bus) error) {
	t.Helper()
	first := f.serve(worker+"-1", crashBinary(t), worker, nil, crashEnv(point))
	b, err := bus.Connect(t.Context(), bus.Config{URL: f.url, Name: "ann", ConnectTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	acted := make(chan error, 1)
	go func() { acted <- act(ctx, b) }()
	if dies(t, first, point) {
		f.serve(worker+"-2", parleyBinary(t), worker, nil)
	}
	if err := <-acted; err != nil {
		t.Fatal(err)
	}
	checkLost(t, first, point, lost)
}

// TestMeshCrash has the mesh worker die at every one of its steps, and another
// one take over, or lose acknowledgements: what was sent is dealt with once, in
// order, and its sender knows.
func TestMeshCrash(t *testing.T) {
	sweep(t, meshPoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry")
		l := &meshLog{got: map[string][]string{}}
		life, end := context.WithCancel(t.Context())
		var bob sync.WaitGroup
		defer bob.Wait()
		defer end()
		bob.Go(func() {
			b, err := bus.Connect(life, bus.Config{URL: f.url, Name: "bob", ConnectTimeout: patience})
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
			defer b.Close()
			if err := meshInstance(life, b, "bob", l); err != nil {
				t.Errorf("agent: %v", err)
			}
		})
		sent := []meshSent{{"ann", "bob", "m-1", false}, {"ann", "bob", "m-2", true}}
		crashDoor(t, f, "mesh", point, "fleet.mesh", func(ctx context.Context, b *bus.Bus) error {
			for _, m := range sent {
				body := map[string]any{"to": m.to, "message_id": m.id, "text": "hello", "action": "info", "reply": map[bool]string{true: "yes", false: "no"}[m.reply]}
				data, err := toDoor(ctx, b, subjects.API("ann", "mesh", "send"), body, nil)
				if err == nil {
					_, err = fleet.DecodeReply[mesh.Sent](data)
				}
				if err != nil {
					return fmt.Errorf("send %s: %w", m.id, err)
				}
			}
			return waitFor(ctx, func() bool {
				s := meshStates(t, f.nc)
				return !slices.ContainsFunc(sent, func(m meshSent) bool {
					a, ok := lastAck(ctx, s, m.from, m.id)
					return !ok || !endedMesh(a.State, m.reply)
				})
			})
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := l.got["bob ann"]; !slices.Equal(got, []string{"m-1", "m-2"}) {
			t.Errorf("bob dealt with %v, want m-1 and m-2, each once", got)
		}
	})
}

// TestPushCrash has the gateway die at every step of its push notifications, and
// another one take over, or lose acknowledgements: each event of the task is in
// the outbox once, in order, and a config that was deleted is gone.
func TestPushCrash(t *testing.T) {
	sweep(t, pushPoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry,router,webhooks")
		f.man(t, &sleeper{done: map[string]int{}})
		want := []string{"task", "statusUpdate", "artifactUpdate", "statusUpdate"}
		var task string
		crashDoor(t, f, "gateway", point, "fleet.webhook.", func(ctx context.Context, b *bus.Bus) error {
			data, err := toDoor(ctx, b, "fleet.a2a.ann.SendMessage", map[string]any{
				"message":       map[string]any{"messageId": "m", "role": "ROLE_USER", "parts": []any{map[string]any{"text": "look"}}},
				"configuration": map[string]any{"returnImmediately": true, "taskPushNotificationConfig": map[string]any{"url": "https://example.com/hook"}},
			}, bus.Header{"A2A-Version": {"1.0"}, "Idempotency-Key": {"k"}})
			var reply struct {
				Task struct {
					ID string `json:"id"`
				} `json:"task"`
			}
			if err == nil {
				err = json.Unmarshal(data, &reply)
			}
			if task = reply.Task.ID; err != nil || task == "" {
				return fmt.Errorf("SendMessage = %s, %w", data, err)
			}
			if err := waitFor(ctx, func() bool { return len(outbox(ctx, t, f, task)) >= len(want) }); err != nil {
				return err
			}
			return dropPush(ctx, b, task)
		})
		if got := outbox(t.Context(), t, f, task); !slices.Equal(got, want) {
			t.Errorf("in the outbox are %v, want %v", got, want)
		}
	})
}

// dropPush deletes the config of a task, and looks whether it is gone.
func dropPush(ctx context.Context, b *bus.Bus, task string) error {
	list := func() (ids []string, err error) {
		data, err := toDoor(ctx, b, "fleet.a2a.ann.ListTaskPushNotificationConfigs", map[string]any{"taskId": task}, bus.Header{"A2A-Version": {"1.0"}})
		var reply struct {
			Configs []struct {
				ID string `json:"id"`
			} `json:"configs"`
		}
		if err == nil {
			err = json.Unmarshal(data, &reply)
		}
		for _, c := range reply.Configs {
			ids = append(ids, c.ID)
		}
		return ids, err
	}
	ids, err := list()
	if err != nil || len(ids) != 1 {
		return fmt.Errorf("the task has the configs %v, want one: %w", ids, err)
	}
	_, err = toDoor(ctx, b, "fleet.a2a.ann.DeleteTaskPushNotificationConfig", map[string]any{"taskId": task, "id": ids[0]}, bus.Header{"A2A-Version": {"1.0"}})
	if err != nil {
		return err
	}
	if ids, err = list(); err != nil || len(ids) > 0 {
		return fmt.Errorf("the task has the configs %v, want none: %w", ids, err)
	}
	return nil
}

// outbox lists what is to be pushed of a task, in order.
func outbox(ctx context.Context, t *testing.T, f *testFleet, task string) (kinds []string) {
	t.Helper()
	js, err := jetstream.New(f.nc)
	if err != nil {
		t.Fatal(err)
	}
	err = f.eachOf(ctx, js, "FLEET_WEBHOOKS", "fleet.webhook."+task+".*", func(m *jetstream.RawStreamMsg) error {
		var d struct {
			Body map[string]json.RawMessage `json:"body"`
		}
		if err := json.Unmarshal(m.Data, &d); err != nil {
			return err
		}
		for kind := range d.Body {
			kinds = append(kinds, kind)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}

// TestA2ECrash has the A2E worker die at every one of its steps, and another one
// take over, or lose acknowledgements: each task is one task, and what has ended
// makes room for the next, though the session may have one at a time; a session
// that was closed is over.
func TestA2ECrash(t *testing.T) {
	sweep(t, a2ePoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry,router,sessions")
		isa := &sleeper{done: map[string]int{}}
		f.man(t, isa)
		var closed string
		crashDoor(t, f, "a2e", point, "$KV.", func(ctx context.Context, b *bus.Bus) error {
			ask := func(what string, m map[string]any) (a a2eMessage, err error) {
				m["a2e"], m["type"], m["ts"] = "1.0", what+"/req", 1
				m["id"] = "x"
				data, err := toDoor(ctx, b, subjects.API("ann", "a2e", what), m, nil)
				if err == nil {
					err = json.Unmarshal(data, &a)
				}
				if err != nil || !a.OK {
					return a, fmt.Errorf("%s = %s, %w", what, data, err)
				}
				return a, nil
			}
			hello, err := ask("handshake", map[string]any{"agent_id": "ann", "agent_caps": []string{"env"}})
			if err != nil {
				return err
			}
			for _, id := range []string{"t-1", "t-2", "t-3", "t-4", "t-5", "t-6"} {
				call := map[string]any{
					"session_id": hello.SessionID, "call": "dispatch", "wait_seconds": 5,
					"params": map[string]any{"task": map[string]string{"task_id": id}, "brief": "look"},
				}
				if a, err := ask("call", call); err != nil || a.Result.State != "done" {
					return fmt.Errorf("%s is %s: %w", id, a.Result.State, err)
				}
			}
			closed = hello.SessionID
			_, _ = ask("call", map[string]any{"session_id": closed, "call": "close"}) // whoever repeats it is refused
			return nil
		})
		for _, s := range f.kept(t, "FLEET_A2E") {
			if strings.HasPrefix(s, closed+"=") {
				t.Errorf("the session was closed, and is kept: %s", s)
			}
		}
		isa.mu.Lock()
		defer isa.mu.Unlock()
		if len(isa.done) != 6 {
			t.Errorf("%d tasks were done, want 6", len(isa.done))
		}
		for id, n := range isa.done {
			if n != 1 {
				t.Errorf("%s was done %d times", id, n)
			}
		}
	})
}

// waitFor looks until ok, or ctx ends.
func waitFor(ctx context.Context, ok func() bool) error {
	for !ok() {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
