package router

import (
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
)

// TestWaitersLeaveRoom checks that calls that wait for tasks never take every
// place: dispatches need some.
func TestWaitersLeaveRoom(t *testing.T) {
	t.Parallel()
	var w Worker
	w.waiting.Store(maxWaiting)
	_, err := w.apiWait(t.Context(), "boss", fleet.MustEncode(fleet.TaskWait{TaskID: "t"}))
	if subjects.CodeOf(err) != subjects.CodeRateLimited {
		t.Errorf("%v, want rate_limited", err)
	}
	if n := w.waiting.Load(); n != maxWaiting {
		t.Errorf("%d wait afterwards, want %d", n, maxWaiting)
	}
}
