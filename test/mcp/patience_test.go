package mcp_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/mcp"
)

// slowFleet answers every call only just in time, and no task or message ends.
// While deaf is set, nobody says how messages stand.
func slowFleet(t *testing.T, b *bus.Bus, deaf *atomic.Bool) {
	t.Helper()
	s := bus.Service{Name: "slow", Version: "0.0.0"}
	serve := func(noun, verb string, answer func(context.Context) any) {
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: noun + "_" + verb, Subject: subjects.APIPattern(noun, verb),
			Handle: func(ctx context.Context, _ bus.Msg) ([]byte, error) {
				<-time.After(7900 * time.Millisecond)
				return fleet.Encode(answer(ctx))
			},
		})
	}
	says := func(v any) func(context.Context) any { return func(context.Context) any { return v } }
	serve("task", "dispatch", says(fleet.Dispatched{TaskID: "t", State: fleet.StateQueued}))
	for _, verb := range []string{"get", "wait", "cancel", "message"} {
		serve("task", verb, says(fleet.TaskView{TaskID: "t", State: fleet.StateWorking}))
	}
	var pages atomic.Int64
	serve("task", "events", func(context.Context) any { return fleet.TaskEventsReply{More: pages.Add(1)%20 != 0} })
	serve("mesh", "send", says(mesh.Sent{MessageID: "m", ThreadID: "th", State: mesh.Accepted}))
	serve("mesh", "wait", func(ctx context.Context) any {
		if deaf.Load() {
			<-ctx.Done()
		}
		return mesh.Answers{Answers: []mesh.Answer{{MessageID: "m", State: mesh.Accepted}}}
	})
	stop, err := b.Serve(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
}

// Clients give up on a call after a minute: none takes longer, however slow the
// fleet is, and what is known by then is told.
func TestNoCallTakesAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Bus(t)
		var deaf atomic.Bool
		slowFleet(t, b, &deaf)
		server, err := mcp.New(mcp.Config{Bus: srv.Connect(t)})
		if err != nil {
			t.Fatal(err)
		}
		m := (&world{t: t, srv: srv, bus: b, mcp: server}).overPipe(t, "operator")
		var tasks []args
		var ids []string
		for range 100 {
			tasks, ids = append(tasks, args{"brief": "x"}), append(ids, "t")
		}
		for _, tt := range []struct {
			tool string
			in   args
			deaf bool
			want []string
		}{
			{tool: "fleet_dispatch", in: args{"brief": "x"}, want: []string{`"task_id":"t"`}},
			{tool: "fleet_dispatch_many", in: args{"tasks": tasks}, want: []string{`"accepted":100`}},
			{tool: "fleet_wait", in: args{"task_ids": ids, "timeout_seconds": 50}, want: []string{`"waiting":100`}},
			{tool: "fleet_wait", in: args{"message_ids": []string{"m"}, "timeout_seconds": 50}, want: []string{`"waiting":1`}},
			{tool: "fleet_result", in: args{"task_id": "t"}, want: []string{"the fleet does not answer"}},
			{tool: "fleet_status", in: args{"task_id": "t", "events": true}, want: []string{"the fleet does not answer"}},
			{tool: "fleet_cancel", in: args{"task_ids": ids}, want: []string{`"canceled":false`}},
			{tool: "fleet_message", in: args{"task_id": "t", "text": "x"}, want: []string{`"message_was":"follow_up"`}},
			{tool: "fleet_message", in: args{"to": "a", "text": "x", "wait_seconds": 50}, want: []string{`"message_id":"m"`, "fleet_wait"}},
			{tool: "fleet_message", in: args{"to": "a", "text": "x", "wait_seconds": 50}, deaf: true, want: []string{`"message_id":"m"`, "fleet_wait"}},
		} {
			deaf.Store(tt.deaf)
			began := time.Now()
			text, _ := m.raw(tt.tool, tt.in)
			if took := time.Since(began); took >= time.Minute {
				t.Errorf("%s takes %s", tt.tool, took)
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s says %.300s, want %s", tt.tool, text, want)
				}
			}
		}
	})
}

// moodyFleet answers one call of the API, about tasks, as answer does; the
// model calls it.
func moodyFleet(t *testing.T, verb string, answer func() ([]byte, error)) *model {
	t.Helper()
	srv := bustest.NewFake(t)
	b := srv.Bus(t)
	stop, err := b.Serve(t.Context(), bus.Service{Name: "moody", Version: "0.0.0", Endpoints: []bus.Endpoint{{
		Name: "task_" + verb, Subject: subjects.APIPattern("task", verb),
		Handle: func(context.Context, bus.Msg) ([]byte, error) { return answer() },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	server, err := mcp.New(mcp.Config{Bus: srv.Connect(t)})
	if err != nil {
		t.Fatal(err)
	}
	return (&world{t: t, srv: srv, bus: b, mcp: server}).overPipe(t, "operator")
}

// away is the answer of a router that cannot reach the records.
func away() ([]byte, error) {
	return nil, subjects.Errorf(subjects.CodeUnavailable, "the records cannot be reached")
}

// A router that cannot say whether a dispatch was stored leaves the task id.
func TestUnavailableDispatchIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		moodyFleet(t, "dispatch", away).fails("fleet_dispatch", args{"brief": "x"},
			"unavailable", "the records cannot be reached", "may have accepted this as task ", "ask fleet_wait for that task_id")
	})
}

// A fleet that is away for a while ends no task: waiting goes on, and what was
// seen last is told. What it says of a task for good ends the waiting.
func TestWaitOutlastsTheFleet(t *testing.T) {
	t.Parallel()
	working := func() ([]byte, error) {
		<-time.After(time.Second)
		return fleet.Encode(fleet.TaskView{TaskID: "t", State: fleet.StateWorking})
	}
	unknown := func() ([]byte, error) { return nil, subjects.Errorf(subjects.CodeNotFound, "no such task") }
	for name, c := range map[string]struct {
		first, then func() ([]byte, error) // then: after 10 s
		want        waited
		says        string // is in the task's error
	}{
		"away, then there": {away, working, waited{Waiting: 1, Tasks: []shownTask{{TaskID: "t", State: "working"}}}, ""},
		"there, then away": {working, away, waited{Waiting: 1, Tasks: []shownTask{{TaskID: "t", State: "working"}}}, ""},
		"away":             {away, away, waited{Waiting: 1, Tasks: []shownTask{{TaskID: "t"}}}, "unavailable"},
		"unknown":          {away, unknown, waited{Done: true, Ended: 1, Tasks: []shownTask{{TaskID: "t"}}}, "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				m := moodyFleet(t, "wait", func() ([]byte, error) {
					if time.Since(began) < 10*time.Second {
						return c.first()
					}
					return c.then()
				})
				var got waited
				m.call("fleet_wait", args{"task_ids": []string{"t"}, "timeout_seconds": 20}, &got)
				said := got.Tasks[0].Error
				got.Tasks[0].Error, got.Next = "", ""
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("fleet_wait (-want +got):\n%s", diff)
				}
				if !strings.Contains(said, c.says) || (said == "") != (c.says == "") {
					t.Errorf("its error is %q, want %q in it", said, c.says)
				}
			})
		})
	}
}

// half is a fleet in which one task has ended, and of whose mesh answer speaks. stop
// takes all of it away.
func half(t *testing.T, cfg mcp.Config, answer func() ([]byte, error)) (m *model, stop func()) {
	t.Helper()
	srv := bustest.NewFake(t)
	b := srv.Bus(t)
	s := bus.Service{Name: "half", Version: "0.0.0"}
	serve := func(noun, verb string, answer func(data []byte) ([]byte, error)) {
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: noun + "_" + verb, Subject: subjects.APIPattern(noun, verb),
			Handle: func(_ context.Context, m bus.Msg) ([]byte, error) { return answer(m.Data) },
		})
	}
	for _, verb := range []string{"wait", "get"} {
		serve("task", verb, func(data []byte) ([]byte, error) {
			req, err := fleet.DecodeRequest[fleet.TaskWait](data)
			if err != nil {
				return nil, err
			}
			v := fleet.TaskView{TaskID: req.TaskID, State: fleet.StateDone}
			if req.TaskID != "ended" {
				v.State = fleet.StateWorking
				<-time.After(time.Duration(req.TimeoutSeconds * float64(time.Second)))
			}
			return fleet.Encode(v)
		})
	}
	serve("mesh", "wait", func([]byte) ([]byte, error) { return answer() })
	stop, err := b.Serve(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	cfg.Bus = srv.Connect(t)
	server, err := mcp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return (&world{t: t, srv: srv, bus: b, mcp: server}).overPipe(t, "operator"), stop
}

// A mesh that is away for a while ends no waiting either, and what tasks came to is
// told. What it says of a message for good ends the waiting.
func TestWaitOutlastsTheMesh(t *testing.T) {
	t.Parallel()
	answered := func() ([]byte, error) {
		return fleet.Encode(mesh.Answers{Done: true, Answers: []mesh.Answer{{MessageID: "m", State: mesh.Answered, Reply: &mesh.Message{MessageID: "r", Text: "yes"}}}})
	}
	for name, c := range map[string]struct {
		then           func() ([]byte, error) // after 6 s, in which it is away
		ended, waiting int
	}{
		"for a while": {answered, 2, 0},
		"for good":    {away, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				m, _ := half(t, mcp.Config{}, func() ([]byte, error) {
					if time.Since(began) < 6*time.Second {
						return away()
					}
					return c.then()
				})
				var got waited
				m.call("fleet_wait", args{"task_ids": []string{"ended"}, "message_ids": []string{"m"}, "timeout_seconds": 20}, &got)
				if got.Ended != c.ended || got.Waiting != c.waiting || got.Done != (c.waiting == 0) || len(got.Tasks) != 1 || !got.Tasks[0].Ended {
					t.Errorf("fleet_wait gave %+v, want the task that ended, %d ended and %d waiting", got, c.ended, c.waiting)
				}
				if len(got.Messages) != 1 || got.Messages[0].MessageID != "m" {
					t.Errorf("it says %+v of the messages, want how that one stands", got.Messages)
				}
			})
		})
	}
	t.Run("unknown message", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m, _ := half(t, mcp.Config{}, func() ([]byte, error) { return nil, subjects.Errorf(subjects.CodeNotFound, "no such message") })
			began := time.Now()
			m.fails("fleet_wait", args{"task_ids": []string{"works"}, "message_ids": []string{"m"}, "timeout_seconds": 20}, "no such message")
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("it took %v to say so", took)
			}
		})
	})
}

// Who waits while the process drains is told at once how things stand, whether the
// fleet is still there or not.
func TestWaitEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]args{
		"a task":    {"task_ids": []string{"works"}, "timeout_seconds": 50},
		"a message": {"message_ids": []string{"m"}, "timeout_seconds": 50},
		"both":      {"task_ids": []string{"works"}, "message_ids": []string{"m"}, "timeout_seconds": 50},
	} {
		for _, after := range []time.Duration{time.Second, 11 * time.Second} {
			t.Run(name+" after "+after.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					stopping := make(chan struct{})
					m, stop := half(t, mcp.Config{Stopping: stopping}, func() ([]byte, error) {
						<-time.After(2 * time.Second)
						return fleet.Encode(mesh.Answers{Answers: []mesh.Answer{{MessageID: "m", State: mesh.Accepted}}})
					})
					gone := make(chan struct{})
					time.AfterFunc(after, func() {
						close(stopping)
						stop()
						close(gone)
					})
					began := time.Now()
					var got waited
					m.call("fleet_wait", in, &got)
					if took := time.Since(began); took > after+3*time.Second {
						t.Errorf("it ended %v after the process began to stop", took-after)
					}
					if got.Done || got.Waiting != len(got.Tasks)+len(got.Messages) || got.Waiting == 0 {
						t.Errorf("fleet_wait gave %+v, want all of it waiting", got)
					}
					<-gone
				})
			})
		}
	}
}
