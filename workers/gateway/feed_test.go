package gateway

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestIndexForgets: what ListTasks knows goes with the records of its tasks, and
// no sooner.
func TestIndexForgets(t *testing.T) {
	t.Parallel()
	f := newFeed(func(bus.Msg, error) {})
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	record := func(id subjects.TaskID, state fleet.State, at time.Time, deadline time.Duration) {
		kind := fleet.KindOutcome
		if !state.Terminal() {
			kind = fleet.KindWorking
		}
		ev := fleet.Event{TaskID: id, Seq: 1, Kind: kind, State: state, Time: at}
		ev.Facts.From, ev.Facts.ContextID, ev.Facts.Deadline = "a2a", "c", began.Add(deadline)
		f.record(bus.Msg{Subject: subjects.Task(id), Data: fleet.MustEncode(&ev)})
	}
	record("ended", fleet.StateDone, began, time.Hour)
	record("ended-early", fleet.StateDone, began, 72*time.Hour)
	record("works", fleet.StateWorking, began, time.Hour)
	for _, tt := range []struct {
		after time.Duration
		want  []subjects.TaskID
	}{
		{time.Hour, []subjects.TaskID{"ended", "ended-early", "tick", "works"}},
		{24 * time.Hour, []subjects.TaskID{"ended", "ended-early", "tick", "works"}},
		{26 * time.Hour, []subjects.TaskID{"tick", "works"}},
	} {
		record("tick", fleet.StateWorking, began.Add(tt.after), 1000*time.Hour)
		if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(f.index))); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", tt.after, diff)
		}
	}
}
