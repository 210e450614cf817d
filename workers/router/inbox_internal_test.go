package router

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
)

// What has become a task leaves the raw door, but for the last of it.
func TestTheInboxIsCleared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Bus(t)
		serving(t, srv, "r1")
		for i := range 5 {
			if _, err := b.Store(t.Context(), subjects.Dispatch("boss"), fmt.Appendf(nil, `{"task":{"task_id":"t%d"},"brief":"x"}`, i), "", nil); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(2 * lookAtDisk)
		if s, err := b.StreamState(t.Context(), subjects.StreamInbox); err != nil || s.Msgs != 1 || s.LastSeq != 5 {
			t.Errorf("it holds %d messages up to %d, %v; want the last one, 5", s.Msgs, s.LastSeq, err)
		}
		if s, err := b.StreamState(t.Context(), subjects.StreamTasks); err != nil || s.Subjects != 5 {
			t.Errorf("%d tasks, %v, want 5", s.Subjects, err)
		}
	})
}
