package schedules_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/mesh"
	"parley/subjects/run"
	"parley/subjects/schedule"
	"parley/workers/schedules"
)

// start runs a schedules worker until stop is called or the test ends, and
// waits until it serves.
func start(t *testing.T, b *bus.Bus, beat ...time.Duration) (stop func()) {
	t.Helper()
	w, err := schedules.New(schedules.Config{Bus: b, Operators: []subjects.AgentID{"operator"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range beat {
		w.Beat(d)
	}
	return bustest.Serve(t, w)
}

// begun is what a fleet was asked to begin.
type begun struct {
	noun, id string
	from     subjects.AgentID
	at       time.Time
	said     json.RawMessage
}

// fakeFleet plays the workers that a schedule turns to: what is begun goes on
// until it is ended.
type fakeFleet struct {
	mu      sync.Mutex
	begun   []begun
	ended   map[string]bool
	calls   map[string]int  // by id: how often it was begun
	refuse  *subjects.Error // everything
	onBegin func(begun)
	instant bool        // what is begun has ended
	renewed []time.Time // sessions
	gone    bool        // there is no session
}

func newFleet() *fakeFleet {
	return &fakeFleet{ended: map[string]bool{}, calls: map[string]int{}}
}

// serve answers on b until the test ends or stop is called.
func (f *fakeFleet) serve(t *testing.T, b *bus.Bus) (stop func()) {
	t.Helper()
	s := bus.Service{Name: "fleet", Version: "0.0.0"}
	for _, e := range []struct {
		noun, verb string
		handle     func(from subjects.AgentID, data []byte) (any, error)
	}{
		{"task", "dispatch", func(from subjects.AgentID, data []byte) (any, error) {
			d, err := fleet.DecodeDispatch(data)
			if err != nil {
				return nil, err
			}
			return fleet.Dispatched{TaskID: d.Task.TaskID}, f.begin("task", string(d.Task.TaskID), from, data)
		}},
		{"run", "start", func(from subjects.AgentID, data []byte) (any, error) {
			d, err := run.Decode(data)
			if err != nil {
				return nil, err
			}
			return run.Started{RunID: d.TaskID}, f.begin("run", string(d.TaskID), from, data)
		}},
		{"mesh", "send", func(from subjects.AgentID, data []byte) (any, error) {
			m, err := mesh.DecodeMessage(data)
			if err != nil {
				return nil, err
			}
			return mesh.Sent{MessageID: m.MessageID}, f.begin("mesh", string(m.MessageID), from, data)
		}},
		{"task", "get", func(_ subjects.AgentID, data []byte) (any, error) {
			q, err := fleet.DecodeRequest[fleet.TaskRef](data)
			v := fleet.TaskView{State: fleet.StateWorking}
			if f.over(string(q.TaskID)) {
				v.State = fleet.StateDone
			}
			return v, err
		}},
		{"run", "get", func(_ subjects.AgentID, data []byte) (any, error) {
			q, err := fleet.DecodeRequest[run.Ref](data)
			v := run.Record{State: run.Running}
			if f.over(string(q.RunID)) {
				v.State = run.Done
			}
			return v, err
		}},
		{"mesh", "get", func(_ subjects.AgentID, data []byte) (any, error) {
			q, err := fleet.DecodeRequest[mesh.Ref](data)
			v := mesh.View{Ack: mesh.Ack{State: mesh.Accepted}}
			if f.over(string(q.MessageID)) {
				v.Ack.State = mesh.Answered
			}
			return v, err
		}},
		{"session", "update", func(_ subjects.AgentID, data []byte) (any, error) {
			_, err := fleet.DecodeRequest[handshake.Update](data)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.renewed = append(f.renewed, time.Now())
			return handshake.Opened{}, err
		}},
		{"session", "get", func(_ subjects.AgentID, data []byte) (any, error) {
			q, err := fleet.DecodeRequest[handshake.Ref](data)
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.gone && err == nil {
				err = subjects.Errorf(subjects.CodeNotFound, "there is no session %q that you may use", q.SessionID).At("/session_id")
			}
			return handshake.View{}, err
		}},
		{"task", "cancel", func(_ subjects.AgentID, data []byte) (any, error) {
			q, err := fleet.DecodeRequest[fleet.TaskCancel](data)
			f.end(string(q.TaskID))
			return fleet.TaskView{}, err
		}},
		{"run", "cancel", func(_ subjects.AgentID, data []byte) (any, error) {
			q, err := fleet.DecodeRequest[run.Ref](data)
			f.end(string(q.RunID))
			return run.Record{}, err
		}},
	} {
		pattern := subjects.APIPattern(e.noun, e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: e.noun + "_" + e.verb, Subject: pattern,
			Handle: func(_ context.Context, m bus.Msg) ([]byte, error) {
				vars, _ := subjects.Tokens(pattern, m.Subject)
				v, err := e.handle(subjects.AgentID(vars[0]), m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	stop, err := b.Serve(context.WithoutCancel(t.Context()), s)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	return stop
}

func (f *fakeFleet) begin(noun, id string, from subjects.AgentID, said []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return f.refuse
	}
	f.calls[id]++
	if f.calls[id] > 1 {
		return nil
	}
	what := begun{noun: noun, id: id, from: from, at: time.Now().UTC(), said: said}
	f.begun = append(f.begun, what)
	f.ended[id] = f.instant
	if f.onBegin != nil {
		f.onBegin(what)
	}
	return nil
}

func (f *fakeFleet) over(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[id]
}

func (f *fakeFleet) end(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[id] = true
}

func (f *fakeFleet) refuseAll(e *subjects.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = e
}

// loseSessions has every session be gone, or there.
func (f *fakeFleet) loseSessions(gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = gone
}

// all is what was begun so far.
func (f *fakeFleet) all() []begun {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.begun)
}

// awaitBegun waits until n things were begun, and returns all of them.
func (f *fakeFleet) awaitBegun(t *testing.T, n int) []begun {
	t.Helper()
	bustest.Eventually(t, "what is to be begun", func() bool { return len(f.all()) >= n })
	all := f.all()
	if len(all) != n {
		t.Fatalf("%d were begun, want %d: %+v", len(all), n, all)
	}
	return all
}

// ask calls the API of schedules.
func ask[T any](t *testing.T, b *bus.Bus, from subjects.AgentID, verb string, req any) (T, error) {
	t.Helper()
	data, raw := req.(string)
	if !raw {
		data = string(fleet.MustEncode(req))
	}
	m, err := b.Request(t.Context(), subjects.API(from, "schedule", verb), []byte(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	return fleet.DecodeReply[T](m.Data)
}

func must[T any](t *testing.T, b *bus.Bus, from subjects.AgentID, verb string, req any) T {
	t.Helper()
	v, err := ask[T](t, b, from, verb, req)
	if err != nil {
		t.Fatalf("schedule %s %v: %v", verb, req, err)
	}
	return v
}

// create makes a schedule of ann's that dispatches a task; more are further
// members of its definition.
func create(t *testing.T, b *bus.Bus, name, more string) schedule.View {
	t.Helper()
	return must[schedule.View](t, b, "ann", "create", `{"name":"`+name+`",`+more+`,"dispatch":{"brief":"do it"}}`)
}

func get(t *testing.T, b *bus.Bus, name string) schedule.View {
	t.Helper()
	return must[schedule.View](t, b, "ann", "get", schedule.Ref{Name: schedule.Name(name)})
}

// pass lets time pass, which is fake.
func pass(d time.Duration) { <-time.After(d) }
