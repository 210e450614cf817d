package escalation_test

import (
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// TestQuiet: a silence holds calls until it ends, and an agent that is away
// holds those about its tasks.
func TestQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		s, err := call[fleet.Silence](w, "silence", fleet.Silence{Match: map[string]string{"code": "dirty_repo"}, Reason: "we know", Until: time.Now().Add(time.Hour)})
		if err != nil || s.By != "operator" {
			t.Fatalf("silence = %+v, %v", s, err)
		}
		w.wait("silent", "a", subjects.CodeDirtyRepo)
		w.waits(fleet.WaitingCause{
			Waiting: fleet.Waiting{Why: fleet.WaitAway, Who: "b"}, Tasks: 1, TaskID: "away", Deadline: time.Now().Add(10 * time.Second),
		})
		time.Sleep(15 * time.Second)
		w.wait("folded", "b", subjects.CodeAgentError)
		time.Sleep(time.Minute)
		ds := w.deliveries()
		if len(ds) != 1 || ds[0].message.Group["cause"] != "away" {
			t.Fatalf("calls = %+v, want one about agent b being away", ds)
		}
		time.Sleep(10 * time.Minute)
		if l := w.list(); len(l) != 3 || l[2].Held != "agent b is away: alert "+l[1].AlertID {
			t.Errorf("alerts = %+v, want the one about the task held by the one about its agent", l)
		}
		w.waits() // b is back
		time.Sleep(time.Minute)
		if ds = w.deliveries(); len(ds) != 2 || ds[1].message.Tasks[0].TaskID != "folded" {
			t.Fatalf("%d calls, want a second one, about what was folded", len(ds))
		}
		w.goOn("folded")
		time.Sleep(time.Hour)
		if ds = w.deliveries(); len(ds) != 3 || ds[2].message.Tasks[0].TaskID != "silent" {
			t.Fatalf("%d calls, want a third one, as the silence has ended", len(ds))
		}
		for _, bad := range []fleet.Silence{
			{Match: map[string]string{"mood": "x"}, Reason: "r", Until: time.Now().Add(time.Hour)},
			{Reason: "r", Until: time.Now().Add(time.Hour)},
			{Match: map[string]string{"code": "x"}, Until: time.Now().Add(time.Hour)},
			{Match: map[string]string{"code": "x"}, Reason: "r"},
			{Match: map[string]string{"code": "x"}, Reason: "r", Until: time.Now().Add(31 * 24 * time.Hour)},
			{SilenceID: "none", Until: time.Now()},
		} {
			if _, err := call[fleet.Silence](w, "silence", bad); err == nil {
				t.Errorf("silence %+v is taken", bad)
			}
		}
	})
}

// TestSilenceWithoutAStore: a silence that cannot be stored is refused, in time
// for who asks.
func TestSilenceWithoutAStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		if _, err := w.bus.Request(t.Context(), "$JS.API.STREAM.DELETE.KV_"+subjects.BucketAlerts, nil, nil); err != nil {
			t.Fatal(err)
		}
		_, err := call[fleet.Silence](w, "silence", fleet.Silence{Match: map[string]string{"code": "dirty_repo"}, Reason: "we know", Until: time.Now().Add(time.Hour)})
		if subjects.CodeOf(err) != subjects.CodeUnavailable {
			t.Errorf("silence = %v, want unavailable", err)
		}
	})
}
