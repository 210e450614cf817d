package escalation_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// away is a cause: agent bob is not there, and n tasks wait for him.
func away(n int, deadline time.Time) fleet.WaitingCause {
	return fleet.WaitingCause{
		Waiting: fleet.Waiting{Why: fleet.WaitAway, Who: "bob", Message: "last heard Friday"}, Tasks: n, TaskID: "t0",
		Oldest: time.Now().UTC(), Deadline: deadline.UTC(),
	}
}

// callsAbout is how often people were called so far about tasks that wait, by cause.
func callsAbout(w *world) map[string]int {
	n := make(map[string]int)
	for _, d := range w.deliveries() {
		g := d.message.Group
		n[g["cause"]+" "+g["agent"]+g["account"]]++
	}
	return n
}

// TestNotifiedOncePerCause: tasks that wait for an agent are one alert after ten
// minutes, however many they are and however many workers look; it is resolved when
// the agent is back, and the next absence is another one.
func TestNotifiedOncePerCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		log := filepath.Join(t.TempDir(), "CHANGE.log")
		cfg := escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}, ChangeLog: log, URL: "http://parley.example"}
		_, stop := w.worker(cfg)
		w.worker(cfg)
		far := time.Now().Add(72 * time.Hour)
		for i := range 9 * 12 { // for nine minutes
			w.waits(away(i+1, far))
			time.Sleep(5 * time.Second)
		}
		stop() // whoever comes next goes on with what is kept
		w.worker(cfg)
		if ds := w.deliveries(); len(ds) != 0 || len(lines(t, log)) != 0 {
			t.Fatalf("%d calls before it is due, lines %q", len(ds), lines(t, log))
		}
		for i := range 8 * 12 {
			w.waits(away(200+i, far))
			time.Sleep(5 * time.Second)
		}
		ds := w.deliveries()
		if len(ds) != 1 {
			t.Fatalf("%d calls, want one, however many tasks come", len(ds))
		}
		m := ds[0].message
		if m.Count < 200 || m.Waiting == nil || m.Waiting.TaskID != "t0" || len(m.Tasks) != 0 || len(m.Answers) != 1 || m.GiveUpAt == nil ||
			!strings.Contains(m.Summary, "tasks wait: agent bob is away: last heard Friday") {
			t.Errorf("call = %+v", m)
		}
		logged := lines(t, log)
		if len(logged) != 1 {
			t.Fatalf("lines of CHANGE.log = %q, want one", logged)
		}
		if e, err := fleet.DecodeEscalation([]byte(logged[0])); err != nil || e.Level != 3 || e.Error.Code != "WAITING" || e.OriginalAgent != "bob" {
			t.Errorf("line = %s, %v", logged[0], err)
		}
		w.waits()
		time.Sleep(30 * time.Second)
		l := w.list()
		if len(l) != 1 || l[0].State != fleet.AlertResolved {
			t.Fatalf("alerts = %+v, want one that is resolved", l)
		}
		w.waits(away(1, far))
		time.Sleep(11 * time.Minute)
		if ds = w.deliveries(); len(ds) != 2 || ds[1].message.AlertID == m.AlertID {
			t.Errorf("%d calls, want one more under another id", len(ds))
		}
	})
}

// TestWhenPeopleAreNotified: at once where a limit ends too late, never where it ends
// in time, nobody where all are silent, and after half of what is left where that is
// less than ten minutes.
func TestWhenPeopleAreNotified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		now := time.Now().UTC()
		reset, far, soon := now.Add(5*time.Hour), now.Add(72*time.Hour), now.Add(4*time.Minute)
		limit := func(who string, change func(*fleet.WaitingCause)) fleet.WaitingCause {
			k := fleet.WaitingCause{Waiting: fleet.Waiting{Why: fleet.WaitLimited, Who: who, Until: &reset}, Tasks: 7, Deadline: far}
			change(&k)
			return k
		}
		silent, busy := away(3, far), away(1, far)
		silent.Who, silent.Silent = "quiet", 3
		busy.Why = fleet.WaitBusy
		short := away(1, soon)
		short.Who = "short"
		causes := []fleet.WaitingCause{
			limit("intime", func(*fleet.WaitingCause) {}),
			limit("late", func(k *fleet.WaitingCause) { k.Late, k.Deadline = 2, now.Add(time.Hour) }),
			limit("guessed", func(k *fleet.WaitingCause) { k.Guessed = true }),
			limit("lateSilent", func(k *fleet.WaitingCause) { k.Silent = 7 }),
			silent, busy, short, away(1, far),
			{Waiting: fleet.Waiting{Why: fleet.WaitNoAgentYet}, Tasks: 1, Deadline: far},
			{Waiting: fleet.Waiting{Why: fleet.WaitUnwell, Who: "ill"}, Tasks: 1, Deadline: far},
			{Waiting: fleet.Waiting{Why: fleet.WaitDrained, Who: "dry"}, Tasks: 1, Deadline: far},
		}
		w.waits(causes...)
		for _, tt := range []struct {
			after time.Duration
			want  string
		}{
			{10 * time.Second, "limited late"},
			{2*time.Minute + 15*time.Second, "limited late, away short"},
			{9*time.Minute + 30*time.Second, "limited late, away short"},
			{10*time.Minute + 15*time.Second, "limited late, away short, limited guessed, away bob, no_agent_yet , unwell ill, drained dry"},
		} {
			time.Sleep(tt.after - time.Since(now))
			got, n := callsAbout(w), 0
			for who := range strings.SplitSeq(tt.want, ", ") {
				n++
				if got[who] != 1 {
					t.Errorf("after %s: %d calls about %q, want one", tt.after, got[who], who)
				}
			}
			if len(got) != n {
				t.Errorf("after %s: calls %v, want %s", tt.after, got, tt.want)
			}
		}
		// The late ones have expired, the limit lasts: it is the same cause.
		causes[1].Late = 0
		w.waits(causes...)
		time.Sleep(time.Minute)
		for _, a := range w.list() {
			if a.State != fleet.AlertTriggered {
				t.Errorf("alert %v is %s while its cause lasts", a.Group, a.State)
			}
		}
	})
}

// TestNothingToDecide: an alert about tasks that wait can be acknowledged and
// silenced; a decision is refused, and the error says what to do instead.
func TestNothingToDecide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		reset := time.Now().Add(5 * time.Hour)
		late := fleet.WaitingCause{Waiting: fleet.Waiting{Why: fleet.WaitLimited, Who: "claude", Until: &reset}, Tasks: 2, Late: 1, Deadline: time.Now().Add(time.Hour)}
		w.waits(late)
		time.Sleep(15 * time.Second)
		l := w.list()
		if len(l) != 1 || l[0].Count != 2 || l[0].Waiting == nil {
			t.Fatalf("alerts = %+v", l)
		}
		for _, verb := range []string{fleet.VerbRetry, fleet.VerbCancel} {
			_, err := call[fleet.EscalationAnswered](w, verb, fleet.EscalationAnswer{ID: l[0].AlertID})
			e := subjects.AsError(err)
			if err == nil || e.Code != subjects.CodeInvalidMessage || !strings.Contains(e.Remedy, "parley agent limits --lift claude") || !strings.Contains(e.Remedy, "task cancel") {
				t.Errorf("%s: %v (%s)", verb, err, e.Remedy)
			}
		}
		if a, err := call[fleet.Alert](w, "ack", fleet.EscalationRef{ID: l[0].AlertID}); err != nil || a.State != fleet.AlertAcknowledged {
			t.Errorf("ack: %+v, %v", a, err)
		}
		if _, err := call[fleet.Silence](w, "silence", fleet.Silence{
			Match: map[string]string{"cause": "away"}, Reason: "holidays", Until: time.Now().Add(100 * time.Hour),
		}); err != nil {
			t.Fatal(err)
		}
		w.waits(late, away(1, time.Now().Add(72*time.Hour)))
		time.Sleep(20 * time.Minute)
		if got := callsAbout(w); len(got) != 1 || got["limited claude"] != 1 {
			t.Errorf("calls %v, want one about the limit", got)
		}
		for _, a := range w.list() {
			if a.Group["cause"] == "away" && !strings.HasPrefix(a.Held, "silence ") {
				t.Errorf("alert %+v is not held by the silence", a)
			}
		}
	})
}

// TestACauseOutlastsARouter: a router that does not know yet who is there, or does not
// answer, ends no alert; neither does one that sees it otherwise for a moment.
func TestACauseOutlastsARouter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		cause := away(1, time.Now().Add(time.Minute))
		w.waits(cause)
		time.Sleep(time.Minute)
		for _, reply := range []fleet.TaskWaitingReply{{}, {Ready: true, More: true}} {
			w.mu.Lock()
			w.causes = reply
			w.mu.Unlock()
			time.Sleep(time.Minute)
		}
		w.waits()
		time.Sleep(6 * time.Second)
		w.waits(cause)
		time.Sleep(time.Minute)
		if l := w.list(); len(l) != 1 || l[0].State != fleet.AlertTriggered || l[0].Number != 1 {
			t.Errorf("alerts = %+v, want the first one, open", l)
		}
	})
}

// TestCauseThatCannotBeRead: an entry of any shape is left alone.
func TestCauseThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		kv, err := w.bus.KV(t.Context(), subjects.BucketAlerts)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range []string{"", "{", "[]", `{"group":"x"}`, `{"group":"x","labels":{"cause":"away"}}`, `null`} {
			if _, err := kv.Put(t.Context(), fmt.Sprintf("wait.k%d", i), json.RawMessage(v)); err != nil {
				t.Fatal(err)
			}
		}
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		w.waits(away(1, time.Now().Add(time.Minute)))
		time.Sleep(time.Minute)
		if got := callsAbout(w); got["away bob"] != 1 {
			t.Errorf("calls %v, want one", got)
		}
	})
}
