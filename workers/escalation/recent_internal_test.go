package escalation

import (
	"fmt"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
)

// What a task waits for is known from when its record was fetched until one
// that ends the wait was read, in whatever order the fetching comes.
func TestRecent(t *testing.T) {
	t.Parallel()
	waits := func(task subjects.TaskID, seq uint64) *fleet.Event {
		return &fleet.Event{TaskID: task, Seq: seq, State: fleet.StateInputRequired, Facts: fleet.Facts{Await: fleet.AwaitHuman}}
	}
	var r recent
	first := waits("t", 2)
	r.put(first, 10)
	if r.get("t", 2) != nil {
		t.Error("what nobody expects is known")
	}
	r.expect("t", 10)
	if r.get("t", 2) != nil {
		t.Error("it is known before it is fetched")
	}
	r.put(first, 10)
	if r.get("t", 2) != first || r.get("t", 4) != nil || r.get("u", 2) != nil {
		t.Error("its record is not known as that and no other")
	}
	r.over("t")
	if r.get("t", 2) != nil {
		t.Error("it is known after the end of the wait")
	}
	r.put(first, 10)
	if r.get("t", 2) != nil {
		t.Error("a record that was fetched late is believed")
	}
	second := waits("t", 4)
	r.expect("t", 20)
	r.put(first, 10)
	r.put(second, 20)
	if r.get("t", 2) != nil || r.get("t", 4) != second {
		t.Error("the second wait is not known as such")
	}
	ended := waits("v", 7)
	ended.State = fleet.StateError
	r.expect("v", 30)
	r.put(ended, 30)
	if r.get("v", 7) != nil {
		t.Error("what has ended waits")
	}
}

func TestRecentForgets(t *testing.T) {
	t.Parallel()
	var r recent
	id := func(i int) subjects.TaskID { return subjects.TaskID(fmt.Sprintf("t%d", i)) }
	const n = 3 * maxRecent
	for i := range n {
		r.expect(id(i), uint64(i+1))
		r.put(&fleet.Event{TaskID: id(i), Seq: 2, State: fleet.StateInputRequired, Facts: fleet.Facts{Await: fleet.AwaitHuman}}, uint64(i+1))
		r.expect(id(i), uint64(i+1)) // takes no second place
	}
	if len(r.tasks) != maxRecent || len(r.order) != maxRecent {
		t.Fatalf("%d tasks in %d places are remembered, want %d", len(r.tasks), len(r.order), maxRecent)
	}
	for i := n - maxRecent; i < n; i++ {
		if r.tasks[id(i)] == nil {
			t.Fatalf("task %d of %d is forgotten", i, n)
		}
	}
}
