package escalation_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// TestWaitsThatEndAtOnce: a wait that is over while it is taken in leaves
// nothing behind that people would be called about.
func TestWaitsThatEndAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	log := filepath.Join(t.TempDir(), "CHANGE.log")
	var stops []func()
	for range 2 {
		_, stop := w.worker(escalation.Config{ChangeLog: log})
		stops = append(stops, stop)
	}
	const n = 40
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for k := i; k < n; k += 4 {
				id := subjects.TaskID(fmt.Sprintf("t%d", k))
				w.wait(id, "a", subjects.CodeAgentError)
				w.goOn(id)
			}
		})
	}
	writers.Wait()
	kv, err := w.bus.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	waiting := func() (tasks int) {
		keys, err := kv.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			if strings.HasPrefix(k, "task.") {
				tasks++
			}
		}
		return tasks
	}
	eventually(t, "every escalation was taken in, and nobody waits", func() bool { return len(lines(t, log)) == n && waiting() == 0 })
	for _, stop := range stops {
		stop() // once what it has in hand is done
	}
	w.worker(escalation.Config{ChangeLog: log}) // does what they have left
	eventually(t, "nobody waits", func() bool { return waiting() == 0 })
}

// TestBriefs: people read what tasks are about, also of those beyond the first
// that a call names, once they are among the oldest.
func TestBriefs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall")})
	const n = 24
	id := func(i int) subjects.TaskID { return subjects.TaskID(fmt.Sprintf("t%02d", i)) }
	for i := range n {
		w.record(id(i), "", func(e *fleet.Event) {
			e.Data.Dispatch = fleet.MustEncode(&fleet.Dispatch{
				Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}, Brief: fmt.Sprintf("do\n the %s", id(i)),
			})
		})
		m, err := w.bus.Last(t.Context(), subjects.StreamTasks, subjects.Task(id(i)))
		if err != nil {
			t.Fatal(err)
		}
		w.record(id(i), "3", func(e *fleet.Event) {
			e.Kind, e.State, e.Facts.Await, e.Facts.DispatchSeq = fleet.KindHuman, fleet.StateInputRequired, fleet.AwaitHuman, m.Seq
			e.Data.Dispatch, e.Reason = nil, &fleet.Reason{Code: subjects.CodeAgentError, Message: "m"}
		})
	}
	shown := func() fleet.Alert {
		l := w.list()
		if len(l) != 1 {
			return fleet.Alert{}
		}
		m, err := w.bus.Request(t.Context(), subjects.API("operator", "escalation", "get"), fleet.MustEncode(fleet.EscalationRef{ID: l[0].AlertID}), nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := fleet.DecodeReply[fleet.Alert](m.Data)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	told := func() (right int) {
		a := shown()
		for i := range a.Tasks {
			if a.Tasks[i].Brief == "do the "+string(a.Tasks[i].TaskID) {
				right++
			}
		}
		return right
	}
	eventually(t, "all tasks with what they are about", func() bool { return told() == n })
	for i := range 12 {
		w.goOn(id(i))
	}
	eventually(t, "the rest of them", func() bool {
		l := w.list()
		return len(l) == 1 && l[0].Count == n-12 && told() == n-12 && len(l[0].Tasks) > 0 && l[0].Tasks[0].Brief == "do the "+string(id(12))
	})
}

// TestEveryEscalationIsKept: a worker that catches up keeps each escalation of a
// task, also those of one level that follow upon each other closely.
func TestEveryEscalationIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	const tasks, each = 40, 4
	for i := range tasks {
		for k := range each {
			w.record(subjects.TaskID(fmt.Sprintf("t%d", i)), "1", func(e *fleet.Event) {
				e.Kind, e.State, e.Reason = fleet.KindRetry, fleet.StateQueued, &fleet.Reason{Code: subjects.CodeAgentError, Message: "m"}
				e.Facts.Attempts = append(e.Facts.Attempts, fleet.Attempt{Attempt: k + 1, AgentID: "a", Code: subjects.CodeAgentError, Ended: e.Time, Level: 1})
			})
		}
	}
	log := filepath.Join(t.TempDir(), "CHANGE.log")
	w.worker(escalation.Config{ChangeLog: log})
	w.wait("last", "a", subjects.CodeAgentError)
	eventually(t, "the last escalation", func() bool { return len(lines(t, log)) == 1 })
	eventually(t, "every escalation is kept", func() bool { return len(w.escalations()) == tasks*each+1 })
	seen := map[subjects.TaskID]uint64{}
	for _, e := range w.escalations() {
		if e.Seq <= seen[e.TaskID] {
			t.Errorf("escalation %d of task %s comes after %d", e.Seq, e.TaskID, seen[e.TaskID])
		}
		seen[e.TaskID] = e.Seq
	}
}

// TestWaitsAfterItsAlertIsGone: whoever waits again after what was kept of the
// last alert of the group has gone, and the mark of that too, is told of.
func TestWaitsAfterItsAlertIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall"), GroupBy: []string{"task"}})
	w.wait("t", "a", subjects.CodeAgentError)
	w.only(1, 1)
	w.goOn("t")
	bustest.Eventually(t, "the alert is over", func() bool { return w.list()[0].State == fleet.AlertResolved })
	bucket := "KV_" + subjects.BucketAlerts
	s, err := w.bus.StreamState(t.Context(), bucket)
	if err == nil {
		err = w.bus.PurgeBefore(t.Context(), bucket, s.LastSeq+1) // as a fortnight does, and the five minutes of a mark
	}
	if err != nil {
		t.Fatal(err)
	}
	w.wait("t", "a", subjects.CodeAgentError)
	bustest.Eventually(t, "another alert, called", func() bool {
		l := w.list()
		return len(l) == 1 && l[0].State == fleet.AlertTriggered && l[0].Calls > 0
	})
}

// However many alerts there are, and however much was answered, operators can list
// them.
func TestListingOfMuch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	kv, err := w.bus.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	const n = 40
	result := fleet.MustEncode(strings.Repeat("x", 200<<10))
	began := time.Now()
	for i := range n {
		a := fleet.Alert{
			AlertID: fmt.Sprintf("g%02d-1", i), Number: 1, State: fleet.AlertResolved, Since: began.Add(time.Duration(i/10) * time.Second),
			Answer: &fleet.AlertAnswer{HumanAnswer: fleet.HumanAnswer{Verb: "complete", By: "alice", Time: began}, Result: result},
		}
		if _, err := kv.Create(t.Context(), fmt.Sprintf("alert.g%02d", i), fleet.MustEncode(a), 0); err != nil {
			t.Fatal(err)
		}
	}
	w.worker(escalation.Config{})
	if _, err := call[fleet.Silence](w, "silence", fleet.Silence{Match: map[string]string{"mcp": "git"}, Reason: "repair", Until: began.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	got := w.list()
	for i, a := range got {
		if want := fmt.Sprintf("g%02d-1", i); a.AlertID != want || a.Answer == nil || len(a.Answer.Result) != len(result) {
			t.Errorf("at %d is %s, want %s with its answer", i, a.AlertID, want)
		}
	}
	first, err := call[fleet.EscalationListReply](w, "list", fleet.EscalationList{All: true})
	if err != nil || len(got) != n || len(first.Alerts) == n || first.Next == "" || len(first.Silences) != 1 {
		t.Errorf("%d alerts, %d of them and %d silences on the first page, then %q, %v", len(got), len(first.Alerts), len(first.Silences), first.Next, err)
	}
}
