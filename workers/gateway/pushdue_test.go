package gateway

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// hook stores a config of a task as its caller's.
func (w *Worker) hook(t *testing.T, c *pushConfig) {
	t.Helper()
	c.URL, c.Until = "https://hooks.example.org/"+string(c.From), time.Now().Add(time.Hour)
	if err := w.push.set(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// TestToldTasksAreNotRead: the records of a task are read for nobody who was told
// its end, as everybody was of most tasks that a gateway hears of when it starts.
func TestToldTasksAreNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		var asked atomic.Int64
		answers(t, w, "task", "events", func(data []byte) any {
			asked.Add(1)
			req, err := fleet.DecodeRequest[fleet.TaskEvents](data)
			if err != nil {
				t.Error(err)
			}
			return fleet.TaskEventsReply{Events: []fleet.Event{*recorded(req.TaskID, 1, fleet.StateWorking)}}
		})
		kv, err := w.cfg.Bus.KV(t.Context(), subjects.BucketPush)
		if err != nil {
			t.Fatal(err)
		}
		w.push = newPusher(w)
		withHooks(w)
		w.push.kv = kv
		for n := range 30 {
			w.hook(t, &pushConfig{ID: "c", TaskID: subjects.TaskID(fmt.Sprint("t", n)), From: anonymous, Sent: 1, Done: true})
		}
		w.hook(t, &pushConfig{ID: "told", TaskID: "live", From: anonymous, Sent: 1, Done: true})
		w.hook(t, &pushConfig{ID: "c", TaskID: "live", From: anonymous})
		runPush(t, w)
		<-time.After(time.Minute)
		if n := asked.Swap(0); n != 1 {
			t.Errorf("at its start it asks for records %d times, want once, for those of the task that lives", n)
		}
		for n := range 30 {
			w.push.mark(subjects.TaskID(fmt.Sprint("t", n)), 1)
		}
		w.push.mark("live", 1)
		<-time.After(time.Minute)
		if n := asked.Load(); n != 1 {
			t.Errorf("after a record of each it asks %d times, want once", n)
		}
	})
}

// TestOneTaskFindsRoom: while there is no room in the outbox one task is tried from
// time to time, however many wait, and all are once there is some.
func TestOneTaskFindsRoom(t *testing.T) {
	t.Parallel()
	const tasks = 100
	p, now := newPusher(door(t)), time.Now()
	for n := range tasks {
		p.dirty[subjects.TaskID(fmt.Sprint("t", n))] = true
	}
	p.roomless.refused(now)
	for _, tt := range []struct {
		what string
		at   time.Time
		want int
	}{{"just then", now, 0}, {"a second later", now.Add(outboxAge), 1}} {
		got := p.take(tt.at)
		if len(got) != tt.want {
			t.Errorf("%s %d tasks are tried, want %d", tt.what, len(got), tt.want)
		}
		for _, task := range got {
			p.done(t.Context(), task, errNoRoom)
		}
	}
	one := p.take(now.Add(outboxAge))
	p.roomless.told(true, now)
	p.done(t.Context(), one[0], nil)
	select {
	case <-p.wake:
	default:
		t.Error("nobody sees to the others once there is room")
	}
	if n := len(p.take(now)); n != tasks-1 {
		t.Errorf("%d tasks are tried once there is room, want %d", n, tasks-1)
	}
}

// TestPushByWhatEachSees: who sees a task no more loses their own configs, and is
// told nothing; its owner keeps theirs, and is told.
func TestPushByWhatEachSees(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const former = subjects.AgentID("former") // an operator, once
		w, now := pushing(t)
		none := fleet.MustEncode(fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeNotFound, "there is no such task")})
		if _, err := w.cfg.Bus.Subscribe(subjects.API(former, "task", "events"), "", func(m bus.Msg) {
			if err := m.Respond(none, nil); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		w.hook(t, &pushConfig{ID: "owner", TaskID: "t1", From: anonymous, Sent: 1})
		for n := range 3 {
			w.hook(t, &pushConfig{ID: fmt.Sprint("former", n), TaskID: "t1", From: former, Sent: 1})
		}
		now.Store(recorded("t1", 2, fleet.StateDone))
		runPush(t, w)
		<-time.After(time.Minute)
		if all, err := w.push.list(t.Context(), anonymous, "t1"); err != nil || len(all) != 1 || !all[0].Done {
			t.Errorf("configs of the owner %+v, %v, want one that is told the end", all, err)
		}
		if all, err := w.push.list(t.Context(), former, "t1"); err != nil || len(all) != 0 {
			t.Errorf("configs of who sees the task no more %+v, %v, want none", all, err)
		}
		told, _, err := w.cfg.Bus.History(t.Context(), subjects.StreamWebhooks, subjects.Webhook("t1", "*"), 1, 100)
		if err != nil || len(told) == 0 {
			t.Errorf("%d deliveries, %v, want some", len(told), err)
		}
		for _, m := range told {
			if d, err := fleet.DecodeDelivery(m.Data); err != nil || d.URL != "https://hooks.example.org/"+string(anonymous) {
				t.Errorf("a delivery to %+v, %v, want to the owner alone", d, err)
			}
		}
	})
}

// TestFailureOfOneCaller: what cannot be read for one caller is told to others.
func TestFailureOfOneCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, now := pushing(t) // where nobody answers what others ask
		w.hook(t, &pushConfig{ID: "owner", TaskID: "t1", From: anonymous, Sent: 1})
		w.hook(t, &pushConfig{ID: "other", TaskID: "t1", From: "other", Sent: 1})
		now.Store(recorded("t1", 2, fleet.StateDone))
		for _, from := range []subjects.AgentID{anonymous, "other"} {
			all, err := w.push.list(t.Context(), from, "t1")
			if err != nil || len(all) != 1 {
				t.Fatalf("configs %+v, %v", all, err)
			}
			w.push.learn(pushKey("t1", all[0].ID), kept{pushConfig: all[0], rev: 1})
		}
		if err := w.push.push(t.Context(), "t1"); err == nil || errors.Is(err, errNoRoom) {
			t.Errorf("push = %v, want that somebody's records cannot be read", err)
		}
		if all, err := w.push.list(t.Context(), anonymous, "t1"); err != nil || len(all) != 1 || !all[0].Done {
			t.Errorf("configs of the owner %+v, %v, want one that is told the end", all, err)
		}
	})
}
