package router

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
)

// What has become a task leaves the raw door after a while, but for the last of
// it; until then its servers may need it.
func TestTheInboxIsCleared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Bus(t)
		serving(t, srv, "r1")
		dispatch := func(from, to int) {
			for i := from; i <= to; i++ {
				if _, err := b.Store(t.Context(), subjects.Dispatch("boss"), fmt.Appendf(nil, `{"task":{"task_id":"t%d"},"brief":"x"}`, i), "", nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		holds := func(when string, first, last uint64) {
			t.Helper()
			if s, err := b.StreamState(t.Context(), subjects.StreamInbox); err != nil || s.FirstSeq != first || s.LastSeq != last {
				t.Errorf("%s it holds messages %d to %d, %v; want %d to %d", when, s.FirstSeq, s.LastSeq, err, first, last)
			}
		}
		dispatch(1, 5)
		<-time.After(keepInbox / 2)
		dispatch(6, 9)
		<-time.After(keepInbox/2 - 2*lookAtDisk)
		holds("before its time", 1, 9)
		<-time.After(4 * lookAtDisk)
		holds("once the first five are old", 5, 9)
		<-time.After(keepInbox)
		holds("once all are old", 9, 9)
		dispatch(10, 10)
		<-time.After(2 * lookAtDisk)
		holds("with one that is young", 9, 10)
		if s, err := b.StreamState(t.Context(), subjects.StreamTasks); err != nil || s.Subjects != 10 {
			t.Errorf("%d tasks, %v, want 10", s.Subjects, err)
		}
	})
}
