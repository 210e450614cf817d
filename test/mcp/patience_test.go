package mcp_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
