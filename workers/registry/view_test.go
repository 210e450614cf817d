package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

var began = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

func announce(epoch int64, change ...func(*fleet.Announce)) *fleet.Announce {
	a := &fleet.Announce{Worker: fleet.Worker{Epoch: epoch}}
	for _, f := range change {
		f(a)
	}
	return a
}

func every(seconds float64) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.HeartbeatSeconds = &seconds }
}

var one = key{"claude", "main"}

// told lists events as "agent event".
func told(events []fleet.AgentEvent) []string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.AgentID)+" "+e.Event)
	}
	return out
}

func wantEvents(t *testing.T, what string, got []fleet.AgentEvent, want ...string) {
	t.Helper()
	if g := told(got); !slices.Equal(g, want) {
		t.Errorf("%s: events %v, want %v", what, g, want)
	}
}

func live(v *view, now time.Time) []bool {
	var out []bool
	for _, a := range v.list("", true, key{}, now) {
		out = append(out, a.Live)
	}
	return out
}

func TestViewLivesByHeartbeats(t *testing.T) {
	t.Parallel()
	v := newView(began)
	wantEvents(t, "announce", v.announced(one, announce(7), at(1), at(1)), "claude live")
	wantEvents(t, "heartbeat", v.heard(one, &fleet.Heartbeat{Epoch: 7, ActiveTasks: 2}, at(11)))
	wantEvents(t, "three missed", v.sweep(at(41)))
	wantEvents(t, "more than three missed", v.sweep(at(41.1)), "claude lost")
	wantEvents(t, "still lost", v.sweep(at(50)))
	wantEvents(t, "old process", v.heard(one, &fleet.Heartbeat{Epoch: 6}, at(51)))
	wantEvents(t, "back", v.heard(one, &fleet.Heartbeat{Epoch: 7}, at(52)), "claude live")
	wantEvents(t, "restarted", v.announced(one, announce(8), at(53), at(53)), "claude live")
	wantEvents(t, "announce of the old process, late", v.announced(one, announce(7), at(54), at(54)))
	if got := v.list("claude", true, key{}, at(55))[0].Announce.Worker; got.Epoch != 8 || got.AgentID != "claude" || got.InstanceID != "main" {
		t.Errorf("listed worker %+v, want epoch 8 of claude main", got)
	}
}

// A process whose epoch is lower than that of the one before it counts once that
// one is lost: by its next heartbeat, or by an announce that comes then.
func TestViewOfALowerEpoch(t *testing.T) {
	t.Parallel()
	v := newView(began)
	is := func(when string, at time.Time, epoch int64, live bool) {
		t.Helper()
		if a := v.list("claude", true, key{}, at)[0]; a.Announce.Worker.Epoch != epoch || a.Live != live {
			t.Errorf("%s: epoch %d, live %t; want %d, %t", when, a.Announce.Worker.Epoch, a.Live, epoch, live)
		}
	}
	wantEvents(t, "announce", v.announced(one, announce(7), at(1), at(1)), "claude live")
	wantEvents(t, "lower, announced", v.announced(one, announce(5), at(2), at(2)))
	wantEvents(t, "lower, heard", v.heard(one, &fleet.Heartbeat{Epoch: 5}, at(12)))
	is("within the lease", at(12), 7, true)
	wantEvents(t, "the other one is lost", v.sweep(at(32)), "claude lost")
	wantEvents(t, "one that never announced", v.heard(one, &fleet.Heartbeat{Epoch: 6}, at(33)))
	wantEvents(t, "the one that did", v.heard(one, &fleet.Heartbeat{Epoch: 5, ActiveTasks: 1}, at(34)), "claude live")
	is("after the lease", at(34), 5, true)
	wantEvents(t, "lost as well", v.sweep(at(70)), "claude lost")
	wantEvents(t, "lower still, announced then", v.announced(one, announce(3), at(71), at(71)), "claude live")
	is("at the end", at(72), 3, true)
}

func TestViewLeases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   *fleet.Announce
		want time.Duration
	}{
		{"default", announce(1), 30 * time.Second},
		{"own interval", announce(1, every(2)), 6 * time.Second},
		{"no heartbeats", announce(1, every(0)), time.Hour},
		{"no heartbeats, own life", announce(1, every(0), func(a *fleet.Announce) { a.TTLSeconds = 60 }), time.Minute},
	} {
		if got := lease(c.in); got != c.want {
			t.Errorf("%s: lease %v, want %v", c.name, got, c.want)
		}
	}
}

func TestViewSaysNothingOfWhatItFound(t *testing.T) {
	t.Parallel()
	v := newView(began)
	two := key{"codex", "main"}
	three := key{"gone", "main"}
	wantEvents(t, "found, announced just now", v.announced(one, announce(1), at(-5), at(0)))
	wantEvents(t, "found, announced long ago", v.announced(two, announce(1), at(-3000), at(0)))
	wantEvents(t, "found, dead", v.announced(three, announce(1), at(-3000), at(0)))
	if got, want := live(v, at(0)), []bool{true, false, false}; !slices.Equal(got, want) {
		t.Errorf("live %v, want %v", got, want)
	}
	wantEvents(t, "heard for the first time", v.heard(two, &fleet.Heartbeat{Epoch: 1}, at(4)))
	wantEvents(t, "sweep within the lease", v.sweep(at(10)))
	wantEvents(t, "one is lost, three was never there", v.sweep(at(31)), "claude lost")
	wantEvents(t, "three comes after all", v.heard(three, &fleet.Heartbeat{Epoch: 1}, at(40)), "gone live")
	wantEvents(t, "codex restarts", v.announced(two, announce(2), at(41), at(41)), "codex live")
}

func TestViewDrains(t *testing.T) {
	t.Parallel()
	v := newView(began)
	v.announced(one, announce(1), at(1), at(1))
	drain := &fleet.AgentDrained{By: "operator", Reason: "maintenance", At: at(2)}
	events := v.drain("claude", drain, at(2))
	wantEvents(t, "operator drains", events, "claude draining")
	if e := events[0]; e.By != "operator" || e.Message != "maintenance" {
		t.Errorf("drained by %q because of %q, want operator, maintenance", e.By, e.Message)
	}
	got := v.list("claude", true, key{}, at(3))[0]
	if !got.Draining || got.DrainedBy != "operator" {
		t.Errorf("draining %v by %q, want true by operator", got.Draining, got.DrainedBy)
	}
	wantEvents(t, "drains itself too", v.heard(one, &fleet.Heartbeat{Epoch: 1, Draining: true}, at(4)))
	wantEvents(t, "operator resumes", v.drain("claude", nil, at(5)))
	wantEvents(t, "resumes itself", v.heard(one, &fleet.Heartbeat{Epoch: 1}, at(6)), "claude resumed")
	wantEvents(t, "drain of a stranger", v.drain("nobody", drain, at(7)))
}

func TestViewLeavesOutWhatAnotherTold(t *testing.T) {
	t.Parallel()
	v := newView(began)
	v.announced(one, announce(1), at(1), at(1))
	v.told(one, &fleet.AgentEvent{AgentID: "claude", InstanceID: "main", Epoch: 1, Event: fleet.AgentLost})
	wantEvents(t, "lost, but told already", v.sweep(at(40)))
	wantEvents(t, "back", v.heard(one, &fleet.Heartbeat{Epoch: 1}, at(41)), "claude live")
}

func TestViewLists(t *testing.T) {
	t.Parallel()
	v := newView(began)
	b := key{"codex", "b"}
	v.announced(b, announce(1, func(a *fleet.Announce) {
		a.MCPHealth = fleet.MCPHealth{"git": fleet.HealthOK, "web": fleet.HealthOK}
	}), at(1), at(1))
	v.announced(key{"codex", "a"}, announce(1), at(1), at(1))
	v.announced(one, announce(1, func(a *fleet.Announce) { a.Session.ActiveTasks = 1 }), at(1), at(1))
	before := v.list("codex", true, key{}, at(1))
	v.heard(b, &fleet.Heartbeat{
		Epoch: 1, ActiveTasks: 1, MCPHealth: fleet.MCPHealth{"web": fleet.HealthTimeout},
		Holding: []fleet.Holding{{TaskID: "t1", Attempt: 1}},
	}, at(2))
	v.cool("codex", &fleet.AgentCooling{Until: at(60), Code: subjects.CodeRateLimited})

	var names []string
	for _, a := range v.list("", true, key{}, at(3)) {
		names = append(names, string(a.Announce.Worker.AgentID)+"/"+string(a.Announce.Worker.InstanceID))
	}
	if want := []string{"claude/main", "codex/a", "codex/b"}; !slices.Equal(names, want) {
		t.Errorf("listed %v, want %v", names, want)
	}
	got := v.list("codex", true, key{}, at(3))[1]
	if got.Announce.MCPHealth["web"] != fleet.HealthTimeout || got.Announce.MCPHealth["git"] != fleet.HealthOK {
		t.Errorf("health %v, want git ok and web timeout", got.Announce.MCPHealth)
	}
	if before[1].Announce.MCPHealth["web"] != fleet.HealthOK {
		t.Error("a heartbeat changed a listing that had been handed out")
	}
	if got.Active != 1 || len(got.Holding) != 1 || !got.LastSeen.Equal(at(2)) {
		t.Errorf("active %d, holding %v, seen %v", got.Active, got.Holding, got.LastSeen)
	}
	if got.CoolUntil == nil || !got.CoolUntil.Equal(at(60)) {
		t.Errorf("cool until %v, want %v", got.CoolUntil, at(60))
	}
	if got.CoolCode != subjects.CodeRateLimited {
		t.Errorf("it cools down after %q, want rate_limited", got.CoolCode)
	}
	if got := v.list("codex", true, key{}, at(60))[0]; got.CoolUntil != nil {
		t.Errorf("cool until %v after it was over", got.CoolUntil)
	}
	if got := v.list("nobody", true, key{}, at(3)); len(got) != 0 {
		t.Errorf("listed %v for nobody", got)
	}
}

func TestViewForgets(t *testing.T) {
	t.Parallel()
	v := newView(began)
	v.announced(one, announce(1), at(1), at(1))
	v.sweep(at(60))
	v.sweep(at(keptFor.Seconds()))
	if got := len(v.list("", true, key{}, at(60))); got != 1 {
		t.Fatalf("%d listed while the announce is kept, want 1", got)
	}
	v.sweep(at(keptFor.Seconds() + 2))
	if got := len(v.list("", true, key{}, at(60))); got != 0 {
		t.Errorf("%d listed after the announce has gone, want 0", got)
	}
}

// Announces are kept for longer than who is gone is listed.
func TestViewPassesOverWhoIsLongGone(t *testing.T) {
	t.Parallel()
	v := newView(began)
	week, back := began.Add(-7*24*time.Hour), key{"codex", "main"}
	for _, k := range []key{one, back} {
		wantEvents(t, "found, gone for a week", v.announced(k, announce(1), week, at(0)))
	}
	if got := v.list("", true, key{}, at(0)); len(got) != 0 {
		t.Errorf("listed %v, want nobody", got)
	}
	if got := v.figures(at(0)); len(got.Agents) != 0 {
		t.Errorf("counted %v, want nobody", got.Agents)
	}
	wantEvents(t, "a look meanwhile", v.sweep(at(1)))
	v.heard(back, &fleet.Heartbeat{Epoch: 1}, at(5))
	if got := v.list("", true, key{}, at(6)); len(got) != 1 || !got[0].Live || got[0].Announce.Worker.AgentID != "codex" {
		t.Errorf("listed %v, want the one that was heard", got)
	}
	if v.sweep(at(31)); len(v.instances) != 1 {
		t.Errorf("%d instances are remembered after a lease, want 1", len(v.instances))
	}
}

// Heartbeats tell of no more than a listing has room for.
func TestViewOfWhoSaysTooMuch(t *testing.T) {
	t.Parallel()
	v := newView(began)
	health := func(value string) fleet.MCPHealth {
		h := fleet.MCPHealth{}
		for i := range 4000 {
			h[fmt.Sprintf("%0200d", i)] = value
		}
		return h
	}
	v.announced(one, announce(7, func(a *fleet.Announce) { a.MCPHealth = health("") }), at(1), at(1))
	v.heard(one, &fleet.Heartbeat{Epoch: 7, MCPHealth: health(strings.Repeat("x", 200))}, at(2))
	data, err := page(v.list("", true, key{}, at(3)), 0)
	if err != nil || len(data) > maxPage || !strings.Contains(string(data), `"agent_id":"claude"`) {
		t.Errorf("a page of %d bytes, %v; want claude, without all that health", len(data), err)
	}
}

// Heartbeats that name others each time add no more names than there is room for;
// what is known changes all the same.
func TestViewOfEverNewServers(t *testing.T) {
	t.Parallel()
	v := newView(began)
	v.announced(one, announce(7, func(a *fleet.Announce) { a.MCPHealth = fleet.MCPHealth{"git": fleet.HealthOK} }), at(1), at(1))
	for beat := range 20 {
		health := fleet.MCPHealth{"git": fleet.HealthError}
		for i := range 200 {
			health[fmt.Sprint(beat, "-", i)] = fleet.HealthOK
		}
		v.heard(one, &fleet.Heartbeat{Epoch: 7, MCPHealth: health}, at(2))
	}
	if h := v.instances[one].announce.MCPHealth; len(h) > 256 || h["git"] != fleet.HealthError || h["0-7"] != fleet.HealthOK {
		t.Errorf("%d names, git is %s; want 256 at most, the first ones among them", len(h), h["git"])
	}
}

// Who has stopped leaves the listing at once, who is lost after minutes; all are
// listed where all are asked for.
func TestViewListsWhoIsHere(t *testing.T) {
	t.Parallel()
	v := newView(began)
	other := key{"codex", "main"}
	v.announced(one, announce(7), at(1), at(1))
	v.announced(other, announce(3), at(1), at(1))
	stopped := announce(7)
	stopped.Draining, stopped.Stopped = true, true
	wantEvents(t, "stopped", v.announced(one, stopped, at(2), at(2)), "claude stopped")
	wantEvents(t, "a heartbeat that was under way", v.heard(one, &fleet.Heartbeat{Epoch: 7}, at(3)))
	wantEvents(t, "its lease is over", v.sweep(at(100)), "codex lost")
	for seconds, want := range map[float64]int{3: 1, 100: 1, 30 + listedFor.Seconds(): 1, 40 + listedFor.Seconds(): 0} {
		if got := v.list("", false, key{}, at(seconds)); len(got) != want {
			t.Errorf("after %g s %d are listed, want %d", seconds, len(got), want)
		}
	}
	if got := v.list("", true, key{}, at(1000)); len(got) != 2 || !got[0].Stopped || got[0].Live || got[1].Stopped {
		t.Errorf("all: %+v, want claude, stopped, and codex, lost", got)
	}
	wantEvents(t, "a new process", v.announced(one, announce(8), at(1001), at(1001)), "claude live")
}

// Who is gone for good is known no more, by its own word or by an operator's.
func TestViewForgetsWhoIsGoneForGood(t *testing.T) {
	t.Parallel()
	v := newView(began)
	v.announced(one, announce(7), at(1), at(1))
	gone := announce(7)
	gone.Stopped, gone.Retired = true, true
	wantEvents(t, "retired", v.announced(one, gone, at(2), at(2)), "claude stopped")
	v.announced(key{"codex", "main"}, announce(3), at(3), at(3))
	if n := v.retire("codex", &fleet.AgentRetired{At: at(4)}); n != 1 {
		t.Errorf("%d instances are forgotten, want 1", n)
	}
	v.announced(key{"codex", "main"}, announce(3), at(3), at(5)) // read again
	wantEvents(t, "read again", v.announced(one, gone, at(2), at(5)))
	if got := v.list("", true, key{}, at(5)); len(got) != 0 {
		t.Errorf("listed: %+v, want nobody", got)
	}
	v.announced(key{"codex", "main"}, announce(4), at(6), at(6))
	if got := v.list("", false, key{}, at(6)); len(got) != 1 {
		t.Errorf("listed: %+v, want codex, which is back", got)
	}
}
