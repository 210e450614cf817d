package gateway

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestPageOfMany: a page of many tasks costs the memory of a page. AllocsPerRun
// takes no other test beside it.
func TestPageOfMany(t *testing.T) {
	f := newFeed(func(bus.Msg, error) {})
	const all, size = 10_000, 50
	var want []subjects.TaskID
	for i := range all {
		id := subjects.TaskID(fmt.Sprintf("t%05d", i))
		f.index[id] = &listed{id: id, from: "a2a", updated: int64(i / 3)} // some in the same millisecond
		want = append(want, id)
	}
	slices.Reverse(want)
	q := query{from: "a2a", size: size}
	if n := testing.AllocsPerRun(10, func() { f.find(q) }); n > 2 {
		t.Errorf("a page takes %v allocations, want at most 2", n)
	}
	var got []subjects.TaskID
	for {
		found, total := f.find(q)
		if total != all || len(found) > size+1 {
			t.Fatalf("find = %d of %d, want at most %d of %d", len(found), total, size+1, all)
		}
		for _, l := range found[:min(size, len(found))] {
			got = append(got, l.id)
		}
		if len(found) <= size {
			break
		}
		q.after = cursor{found[size-1].updated, found[size-1].id}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all pages (-want +got):\n%s", diff)
	}
}

// TestEndedAreBounded: of the tasks that have ended, ListTasks knows the latest.
func TestEndedAreBounded(t *testing.T) {
	t.Parallel()
	f := newFeed(func(bus.Msg, error) {})
	f.maxEnded = 3
	began := time.Now()
	for i, state := range []fleet.State{fleet.StateWorking, fleet.StateDone, fleet.StateError, fleet.StateDone, fleet.StateCanceled, fleet.StateWorking, fleet.StateDone} {
		ev := recorded(subjects.TaskID(fmt.Sprintf("t%d", i)), 1, state)
		ev.Time = began.Add(time.Duration(i) * time.Second)
		f.record(bus.Msg{Subject: subjects.Task(ev.TaskID), Data: fleet.MustEncode(ev)})
	}
	if diff := cmp.Diff([]subjects.TaskID{"t0", "t3", "t4", "t5", "t6"}, slices.Sorted(maps.Keys(f.index))); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
}

// TestPagesPassOverWhatIsGone: pages are full although some of the tasks are gone,
// and no task is missing.
func TestPagesPassOverWhatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		answers(t, w, "task", "events", func(data []byte) any {
			req, err := fleet.DecodeRequest[fleet.TaskEvents](data)
			if err == nil && strings.HasPrefix(string(req.TaskID), "gone") {
				err = subjects.Errorf(subjects.CodeNotFound, "there is no such task")
			}
			if err != nil {
				return fleet.ErrorReply{Error: subjects.AsError(err)}
			}
			return fleet.TaskEventsReply{Events: []fleet.Event{*recorded(req.TaskID, 1, fleet.StateWorking)}}
		})
		for i := range 9 {
			for _, name := range []string{"gone-a", "there", "gone-b", "gone-c"} {
				id := subjects.TaskID(fmt.Sprintf("%s-%d", name, i))
				w.feed.index[id] = &listed{id: id, from: anonymous, updated: int64(i)}
			}
		}
		var got []string
		req := &a2apb.ListTasksRequest{PageSize: new(int32(2))}
		for {
			res, err := w.listTasks(t.Context(), &call{from: anonymous}, req)
			if err != nil {
				t.Fatal(err)
			}
			var page []string
			for _, task := range res.GetTasks() {
				page = append(page, task.GetId())
			}
			got = append(got, strings.Join(page, " "))
			if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		want := []string{"there-8 there-7", "there-6 there-5", "there-4 there-3", "there-2 there-1", "there-0"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages (-want +got):\n%s", diff)
		}
	})
}

// TestPagesAreReadAtOnce: of what may be gone as much is read at once as a page has,
// to the end.
func TestPagesAreReadAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		_, err := w.cfg.Bus.Subscribe(subjects.API(anonymous, "task", "events"), "", func(m bus.Msg) {
			time.AfterFunc(time.Second, func() {
				req, err := fleet.DecodeRequest[fleet.TaskEvents](m.Data)
				var reply any = fleet.TaskEventsReply{Events: []fleet.Event{*recorded(req.TaskID, 1, fleet.StateWorking)}}
				if strings.HasPrefix(string(req.TaskID), "gone") {
					reply = fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeNotFound, "there is no such task")}
				}
				if err = errors.Join(err, m.Respond(fleet.MustEncode(reply), nil)); err != nil {
					t.Error(err)
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			id := subjects.TaskID(fmt.Sprintf("gone-%d", i))
			if i < 3 || i == 90 || i == 99 {
				id = subjects.TaskID(fmt.Sprintf("there-%d", i))
			}
			w.feed.index[id] = &listed{id: id, from: anonymous, updated: int64(100 - i)}
		}
		began := time.Now()
		res, err := w.listTasks(t.Context(), &call{from: anonymous}, &a2apb.ListTasksRequest{PageSize: new(int32(4))})
		if err != nil || len(res.GetTasks()) != 4 || res.GetTasks()[3].GetId() != "there-90" {
			t.Fatalf("listTasks = %v, %v, want four tasks", res, err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("a page took %s", took)
		}
		if res, err = w.listTasks(t.Context(), &call{from: anonymous}, &a2apb.ListTasksRequest{PageSize: new(int32(4)), PageToken: res.GetNextPageToken()}); err != nil ||
			len(res.GetTasks()) != 1 || res.GetNextPageToken() != "" {
			t.Errorf("the next page is %v, %v, want one task", res, err)
		}
	})
}

// TestEndedAreThoseOfRouters: ListTasks knows as many ended tasks as routers keep.
func TestEndedAreThoseOfRouters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		for want, cfg := range map[int]Config{maxEnded: {Bus: b}, 3: {Bus: b, KeepEnded: 3}} {
			if w, err := New(cfg); err != nil || w.feed.maxEnded != want {
				t.Errorf("New(%d) knows %d ended tasks, %v, want %d", cfg.KeepEnded, w.feed.maxEnded, err, want)
			}
		}
	})
}
