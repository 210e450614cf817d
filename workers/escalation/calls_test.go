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
