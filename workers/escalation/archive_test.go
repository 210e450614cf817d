package escalation_test

import (
	"bytes"
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// TestAnAlertIsKeptBeforeItIsReplaced: what is over is there at any moment, also
// where the worker ends as the next alert of the group begins.
func TestAnAlertIsKeptBeforeItIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall")})
	w.wait("t1", "a", subjects.CodeAgentError)
	bustest.Eventually(t, "an alert", func() bool { return len(w.list()) == 1 })
	first := w.list()[0].AlertID
	if _, err := call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: first}); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "its end", func() bool { return w.list()[0].State == fleet.AlertResolved })
	kv, err := w.bus.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	next := []byte(strings.TrimSuffix(first, "1") + "2")
	replaced := make(chan uint64, 1)
	go kv.Watch(t.Context(), func(e bus.Entry) {
		if strings.HasPrefix(e.Key, "alert.") && bytes.Contains(e.Value, next) {
			select {
			case replaced <- e.Revision:
			default:
			}
		}
	})
	w.wait("t2", "a", subjects.CodeAgentError)
	at := <-replaced
	if old, err := kv.Get(t.Context(), "old."+first); err != nil || old.Revision > at {
		t.Errorf("it is kept as revision %d, %v; it was replaced at %d", old.Revision, err, at)
	}
}
