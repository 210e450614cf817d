package escalation_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// TestCallNamesTheOldest: of many tasks a call names the 20 that have waited for
// longest, and counts the others.
func TestCallNamesTheOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		var want, got []string
		for i := range 25 {
			id := fmt.Sprintf("t%02d", 50-i) // the oldest is not the first by its name
			w.wait(subjects.TaskID(id), "a", subjects.CodeAgentError)
			if i < 20 {
				want = append(want, id)
			}
			time.Sleep(time.Millisecond)
		}
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		time.Sleep(10 * time.Second)
		calls := w.deliveries()
		if len(calls) != 1 {
			t.Fatalf("%d calls, want 1", len(calls))
		}
		m := calls[0].message
		for _, task := range m.Tasks {
			got = append(got, string(task.TaskID))
		}
		if diff := cmp.Diff(want, got); diff != "" || m.Count != 25 || m.Omitted != 5 {
			t.Errorf("of %d tasks it omits %d and names (-want +got):\n%s", m.Count, m.Omitted, diff)
		}
	})
}

// TestAlertsThatEndGo: an alert of what ends is kept for a fortnight after it is
// over; the others are kept with their number.
func TestAlertsThatEndGo(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]string{"task": "1209600s", "run": "1209600s", "session": "1209600s", "agent": ""} {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bustest.New(t))
			w.worker(escalation.Config{Chain: quick("oncall"), GroupBy: []string{group}})
			w.wait("t", "a", subjects.CodeAgentError)
			w.only(1, 1)
			w.goOn("t")
			bustest.Eventually(t, "the alert is over", func() bool { return w.list()[0].State == fleet.AlertResolved })
			msgs, _, err := w.bus.History(t.Context(), "KV_"+subjects.BucketAlerts, "$KV."+subjects.BucketAlerts+".alert.*", 1, 1)
			if err != nil || len(msgs) != 1 {
				t.Fatalf("%d alerts, %v", len(msgs), err)
			}
			if ttl := msgs[0].Header.Get("Nats-TTL"); ttl != want {
				t.Errorf("kept for %q, want %q", ttl, want)
			}
		})
	}
}
