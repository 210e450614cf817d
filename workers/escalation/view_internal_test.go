package escalation

import (
	"encoding/json"
	"testing"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestHeldByCause: the alert that an agent is away holds those about its tasks, and
// one about tasks that lost it does not: it may be here again.
func TestHeldByCause(t *testing.T) {
	t.Parallel()
	v := newView()
	g := v.group("broken", map[string]string{"agent": "a", "code": string(subjects.CodeAgentError)})
	raise := func(id string, labels map[string]string) {
		v.group(id, labels)
		v.putAlert(id, fleet.Alert{AlertID: id + "-1", Number: 1, State: fleet.AlertTriggered, Group: labels}, 1)
	}
	raise("lost", map[string]string{"agent": "a", "code": string(subjects.CodeAgentLost)})
	other := newCause(fleet.WaitingCause{Waiting: fleet.Waiting{Why: fleet.WaitUnwell, Who: "a"}}, time.Now())
	raise(other.Group, other.Labels)
	if got := v.held(g, time.Now()); got != "" {
		t.Errorf("held = %q, want that it is not", got)
	}
	away := newCause(fleet.WaitingCause{Waiting: fleet.Waiting{Why: fleet.WaitAway, Who: "a"}}, time.Now())
	raise(away.Group, away.Labels)
	if got, want := v.held(g, time.Now()), "agent a is away: alert "+away.Group+"-1"; got != want {
		t.Errorf("held = %q, want %q", got, want)
	}
	if n := v.held(v.groups[away.Group], time.Now()); n != "" {
		t.Errorf("the alert about the agent is held itself: %q", n)
	}
}

// TestASilenceThatWasExtended: whoever sees to its former end, and has yet to hear
// of the new one, goes by what is stored.
func TestASilenceThatWasExtended(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	w, err := New(Config{Bus: b})
	if err != nil {
		t.Fatal(err)
	}
	if w.kv, err = b.KV(t.Context(), subjects.BucketAlerts); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	for id, until := range map[string]time.Time{"extended": now.Add(time.Hour), "over": now, "gone": {}} {
		w.view.silences[id] = fleet.Silence{SilenceID: id, Until: now}
		if !until.IsZero() {
			if _, err := w.kv.Put(t.Context(), silenceKey+id, fleet.MustEncode(fleet.Silence{SilenceID: id, Until: until})); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.endSilences(t.Context(), now)
	if s, known := w.view.silences["extended"]; len(w.view.silences) != 1 || !known || !s.Until.Equal(now.Add(time.Hour)) {
		t.Errorf("silences %v, want the extended one", w.view.silences)
	}
	e, err := w.kv.Get(t.Context(), silenceKey+"extended")
	var s fleet.Silence
	if err != nil || json.Unmarshal(e.Value, &s) != nil || !s.Until.Equal(now.Add(time.Hour)) {
		t.Errorf("stored: %s, %v", e.Value, err)
	}
}

// TestAfter: a wait is later than another one of its life, and of a former one.
func TestAfter(t *testing.T) {
	t.Parallel()
	is := func(dispatch, seq uint64) *waiting {
		return &waiting{Dispatch: dispatch, Task: fleet.AlertTask{Seq: seq}}
	}
	for _, tt := range []struct {
		m, old *waiting
		want   bool
	}{
		{is(7, 3), is(7, 2), true},
		{is(7, 2), is(7, 2), false},
		{is(9, 2), is(7, 5), true},
		{is(7, 5), is(9, 2), false},
		{is(7, 3), is(0, 1), true}, // began with record 1, which names none
	} {
		if got := tt.m.after(tt.old); got != tt.want {
			t.Errorf("record %d of %d after record %d of %d: %v", tt.m.Task.Seq, tt.m.Dispatch, tt.old.Task.Seq, tt.old.Dispatch, got)
		}
	}
}
