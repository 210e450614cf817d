package schedules_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/schedule"
)

const inSession = `"dispatch":{"brief":"x","task":{"session_id":"a2a-20000101T000000Z-0123456789abcdef"}}}`

// No agent is woken without the context that it is to have: a schedule whose
// session is gone says so, and one is not created.
func TestSessionIsGone(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		must[schedule.View](t, b, "ann", "create", `{"name":"s","every_seconds":60,`+inSession)
		pass(90 * time.Second)
		f.end(f.awaitBegun(t, 1)[0].id)
		f.loseSessions(true)
		pass(2 * time.Minute)
		f.awaitBegun(t, 1)
		v := get(t, b, "s")
		if v.Last.Reason == nil || v.Last.Reason.Code != subjects.CodeNotFound || v.Begun != 1 || v.Refused != 2 || v.State != schedule.Active {
			t.Errorf("without a session: %+v", v.Record)
		}
		_, err := ask[schedule.View](t, b, "ann", "create", `{"name":"other","every_seconds":60,`+inSession)
		if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeNotFound || e.Pointer != "/dispatch/task/session_id" {
			t.Errorf("create = %v, want not_found at /dispatch/task/session_id", err)
		}
		if v = must[schedule.View](t, b, "ann", "create", `{"name":"s","every_seconds":60,`+inSession); !v.Duplicate {
			t.Error("created again, it is no repeat")
		}
		f.loseSessions(false)
		pass(time.Minute)
		f.awaitBegun(t, 2)
	})
}

// Of the times that come while what was begun is under way, 100 wait.
func TestQueueIsBounded(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		create(t, b, "s", `"every_seconds":60,"overlap":"queue"`)
		pass(121*time.Minute + 30*time.Second)
		f.awaitBegun(t, 1)
		if v := get(t, b, "s"); len(v.Waiting) != 100 || v.Skipped != 20 || v.Missed != 0 {
			t.Errorf("%d wait, %d were skipped, %d missed; want 100, 20, 0", len(v.Waiting), v.Skipped, v.Missed)
		}
		_, err := ask[schedule.RunNowReply](t, b, "ann", "run", schedule.RunNow{Ref: schedule.Ref{Name: "s"}, RequestID: "one"})
		if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeRateLimited || e.RetryAfterSeconds <= 0 {
			t.Errorf("run now = %v, want rate_limited, and when to repeat it", err)
		}
	})
}

// An agent has 1000 schedules at most, and may repeat the creation of each.
func TestSchedulesOfAnAgentAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		start(t, b, time.Hour)
		const most = 1000
		for i := range most {
			create(t, b, fmt.Sprint("s", i), `"every_seconds":31536000`)
		}
		for _, name := range []string{"more", "again"} {
			_, err := ask[schedule.View](t, b, "ann", "create", `{"name":"`+name+`","every_seconds":60,"dispatch":{"brief":"x"}}`)
			if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeRateLimited || e.RetryAfterSeconds <= 0 {
				t.Errorf("the schedule %s after %d = %v, want rate_limited, and when to repeat it", name, most, err)
			}
		}
		if v := create(t, b, "s7", `"every_seconds":31536000`); !v.Duplicate {
			t.Error("s7, created again, is no repeat")
		}
		must[schedule.View](t, b, "bob", "create", `{"name":"more","every_seconds":60,"dispatch":{"brief":"x"}}`)
		must[schedule.View](t, b, "ann", "remove", schedule.Ref{Name: "s7"})
		pass(time.Second) // until that is heard
		create(t, b, "more", `"every_seconds":60`)
	})
}

// A schedule that has ended is forgotten after seven days; others never are.
func TestEndedAreForgotten(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		create(t, b, "s", `"every_seconds":3600`)
		create(t, b, "once", `"at":"`+time.Now().Add(time.Minute).UTC().Format(time.RFC3339)+`"`)
		pass(2 * time.Minute)
		f.awaitBegun(t, 1)
		if v := get(t, b, "once"); v.State != schedule.Ended || v.Last.Begun == nil {
			t.Errorf("it stands at %+v", v.Record)
		}
		for name, want := range map[string]string{"s": "", "once": "604800s"} {
			m, err := b.Last(t.Context(), "KV_"+subjects.BucketSchedules, "$KV."+subjects.BucketSchedules+".ann."+name)
			if err != nil {
				t.Fatal(err)
			}
			if ttl := m.Header.Get("Nats-TTL"); ttl != want {
				t.Errorf("%s is kept for %q, want %q", name, ttl, want)
			}
		}
	})
}
