package escalation_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// purge has the records of a task go, as they do a day after its end.
func (w *world) purge(id subjects.TaskID) {
	w.t.Helper()
	if err := w.bus.Purge(w.t.Context(), subjects.StreamTasks, subjects.Task(id)); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, id)
}

// TestAnIDThatIsUsedAgain: the task is another one, and humans are told of it as
// of the first, also where that waited just as late in its life; what is read
// again is told once all the same.
func TestAnIDThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	log := filepath.Join(t.TempDir(), "CHANGE.log")
	cfg := escalation.Config{Chain: quick("oncall"), ChangeLog: log}
	_, stop := w.worker(cfg)
	for life := range 2 {
		w.record("t", "", func(*fleet.Event) {})
		w.wait("t", "a", subjects.CodeAgentError)
		bustest.Eventually(t, "its escalation", func() bool { return len(w.escalations()) == life+1 })
		bustest.Eventually(t, "an open alert", func() bool {
			l := w.list()
			return len(l) == 1 && l[0].State == fleet.AlertTriggered && l[0].Count == 1
		})
		if life == 0 {
			w.goOn("t")
			bustest.Eventually(t, "the end of the alert", func() bool { return w.list()[0].State == fleet.AlertResolved })
			w.purge("t")
		}
	}
	bustest.Eventually(t, "both lines", func() bool { return len(lines(t, log)) == 2 })
	stop()
	if err := deletePosition(w); err != nil {
		t.Fatal(err)
	}
	w.worker(cfg)
	w.wait("u", "a", subjects.CodeAgentError)
	bustest.Eventually(t, "the next one", func() bool { return len(lines(t, log)) >= 3 })
	if n, l := len(w.escalations()), lines(t, log); n != 3 || len(l) != 3 || l[0][:12] == l[1][:12] {
		t.Errorf("%d escalations, lines %q", n, l)
	}
}

// TestAWaitThatIsOverUnread: who waited while no record of its end could be read is
// called about no more.
func TestAWaitThatIsOverUnread(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	_, stop := w.worker(escalation.Config{Chain: quick("oncall")})
	w.wait("gone", "a", subjects.CodeAgentError)
	w.wait("other", "b", subjects.CodeAgentError)
	w.wait("waits", "c", subjects.CodeAgentError)
	for _, id := range []subjects.TaskID{"gone", "other", "waits"} {
		w.age(id, time.Hour)
	}
	stop()
	w.purge("gone")
	w.purge("other")
	w.record("other", "", func(*fleet.Event) {})
	w.record("other", "", func(e *fleet.Event) { e.Kind, e.State = fleet.KindWorking, fleet.StateWorking })
	w.worker(escalation.Config{Chain: quick("oncall")})
	bustest.Eventually(t, "the alert of the task that waits is the only one", func() bool {
		open := []string{}
		for _, a := range w.list() {
			if a.State != fleet.AlertResolved {
				open = append(open, a.Group["agent"])
			}
		}
		return slices.Equal(open, []string{"c"})
	})
}

// age has a task wait for longer than it does, once the alert names it.
func (w *world) age(id subjects.TaskID, by time.Duration) {
	w.t.Helper()
	kv, err := w.bus.KV(w.t.Context(), subjects.BucketAlerts)
	if err != nil {
		w.t.Fatal(err)
	}
	var e bus.Entry
	bustest.Eventually(w.t, "its wait is kept", func() bool {
		e, err = kv.Get(w.t.Context(), "task."+string(id))
		return err == nil
	})
	var entry map[string]any
	if err := json.Unmarshal(e.Value, &entry); err != nil {
		w.t.Fatal(err)
	}
	entry["task"].(map[string]any)["since"] = time.Now().UTC().Add(-by)
	if _, err := kv.Update(w.t.Context(), e.Key, fleet.MustEncode(entry), e.Revision); err != nil {
		w.t.Fatal(err)
	}
}

// TestEndsWithItsStream: a worker whose records cannot be read any more, since
// their stream is another one, ends, and does not seem to work.
func TestEndsWithItsStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	e, err := escalation.New(escalation.Config{Bus: w.srv.Connect(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	w.record("t", "", func(*fleet.Event) {})
	w.wait("t", "a", subjects.CodeAgentError)
	bustest.Eventually(t, "it reads", func() bool { return len(w.escalations()) == 1 })
	if _, err := w.bus.Request(t.Context(), "$JS.API.STREAM.DELETE."+subjects.StreamTasks, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.bus.Provision(t.Context(), bus.Provisioning{}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it reads on for ever, or until it is told to end")
	}
}
