package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	f := fleetOf(announceOf("a", parallel(3)))
	in := f.Get("a", "main")
	step := func(name string, want int, do func()) {
		t.Helper()
		if do(); in.Used() != want {
			t.Errorf("%s: %d slots used, want %d", name, in.Used(), want)
		}
	}
	beat := func(active int, ids ...subjects.TaskID) {
		b := &fleet.Heartbeat{ActiveTasks: active}
		for _, id := range ids {
			b.Holding = append(b.Holding, fleet.Holding{TaskID: id, Attempt: 1})
		}
		f.Beat("a", "main", b, now0)
	}
	step("an offer", 1, func() { f.Offer(in, +1) })
	step("accepted", 2, func() { f.Hold("a", "main", "t1", 1) })
	step("offer over", 1, func() { f.Offer(in, -1) })
	step("the same by heartbeat", 1, func() { beat(1, "t1") })
	step("another that no record names", 2, func() { beat(2, "t1", "t2") })
	step("more by its own account", 3, func() { beat(3, "t1", "t2") })
	step("the record lets go", 3, func() { f.Release("a", "main", "t1", now0) })
	step("the agent has done with it", 2, func() { f.Finish("a", "main", "t1", now0) })
	step("twice", 2, func() { f.Finish("a", "main", "t1", now0) })
	step("held since the last heartbeat", 2, func() { f.Hold("a", "main", "t3", 1) })
	step("and done before the next", 2, func() { f.Finish("a", "main", "t3", now0) })
	step("and let go", 2, func() { f.Release("a", "main", "t3", now0) })
	step("all done", 0, func() { beat(0) })
	step("counted, not listed", 1, func() { f.Hold("a", "main", "t4", 1); beat(1) })
	step("done, not listed", 1, func() { f.Finish("a", "main", "t4", now0) })
	step("repeated", 1, func() { f.Finish("a", "main", "t4", now0) })
	step("let go, not listed", 0, func() { f.Release("a", "main", "t4", now0) })
}

func TestLease(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	c := f.Compile(Need{})
	at := func(s int) time.Time { return now0.Add(time.Duration(s) * time.Second) }
	none := 0.0
	lost := func(now time.Time) string {
		var ids []string
		for _, in := range f.Expire(now) {
			ids = append(ids, string(in.Agent))
		}
		return strings.Join(ids, " ")
	}
	f.Announce(announceOf("old"), at(-3000), at(0))
	f.Announce(announceOf("beats"), at(0), at(0))
	f.Announce(announceOf("person", func(a *fleet.Announce) { a.HeartbeatSeconds, a.TTLSeconds = &none, 100 }), at(0), at(0))
	f.Hold("unheard", "main", "t", 1)
	live := func() (s string) {
		for in := range f.All() {
			if in.Live {
				s += string(in.Agent) + " "
			}
		}
		return s
	}
	if got := live(); got != "beats person " {
		t.Errorf("live = %q", got)
	}
	f.Beat("beats", "main", &fleet.Heartbeat{}, at(20))
	if got := lost(at(40)); got != "old unheard" && got != "unheard old" && got != "unheard" {
		t.Errorf("lost by 40 s = %q", got)
	}
	if got := lost(at(49)); got != "" {
		t.Errorf("lost by 49 s = %q", got)
	}
	if got := lost(at(50)); got != "beats" {
		t.Errorf("lost by 50 s = %q", got)
	}
	if got := f.NextExpiry(); got.After(at(100)) {
		t.Errorf("NextExpiry = %s", got)
	}
	if in, ok := f.Choose(c, Want{}, at(99)); !ok || in.Agent != "person" {
		t.Errorf("Choose at 99 s = %+v", in)
	}
	if _, ok := f.Choose(c, Want{}, at(100)); ok {
		t.Error("an announce outlived its ttl")
	}
	if got := lost(at(101)); got != "person" {
		t.Errorf("lost by 101 s = %q", got)
	}
	if _, known := f.Beat("beats", "main", &fleet.Heartbeat{}, at(200)); !known || live() != "beats " {
		t.Error("a heartbeat did not bring it back")
	}
	lost(at(30*86400 + 300))
	for in := range f.All() {
		if in.Agent == "person" || in.Agent == "old" || in.Agent == "beats" {
			t.Errorf("%s is remembered a month later", in.Agent)
		}
	}
	if f.Get("unheard", "main") == nil {
		t.Error("the holder of a task was forgotten")
	}
}

func TestGoneUntilHeardAgain(t *testing.T) {
	t.Parallel()
	none := 0.0
	f := fleetOf(announceOf("a"), announceOf("p", func(a *fleet.Announce) { a.HeartbeatSeconds = &none }))
	a, p := f.Get("a", "main"), f.Get("p", "main")
	f.Gone("a", "main")
	f.Gone("p", "main")
	f.Announce(announceOf("a"), a.LastSeen, now0) // the announce is read again
	if a.Live || p.Live {
		t.Error("live though nobody answered")
	}
	f.Beat("a", "main", &fleet.Heartbeat{}, now0.Add(time.Second))
	f.Expire(now0.Add(time.Second))
	if !a.Live || p.Live {
		t.Errorf("after a heartbeat of a: live %t %t", a.Live, p.Live)
	}
	if f.Expire(now0.Add(30 * time.Second)); !p.Live {
		t.Error("who sends no heartbeats is never asked again")
	}
	f.Gone("a", "main")
	f.Hold("a", "main", "t", 1)
	if got := f.Expire(now0.Add(31 * time.Second)); len(got) != 1 || got[0] != a {
		t.Errorf("lost = %v, want a: it stays gone", got)
	}
}

func TestEpochs(t *testing.T) {
	t.Parallel()
	epoch := func(n int64) func(*fleet.Announce) {
		return func(a *fleet.Announce) { a.Worker.Epoch = n }
	}
	f := fleetOf(announceOf("a", epoch(5)))
	in := f.Get("a", "main")
	f.Beat("a", "main", &fleet.Heartbeat{Epoch: 5, ActiveTasks: 1, Holding: []fleet.Holding{{TaskID: "t", Attempt: 1}}}, now0)
	if f.Beat("a", "main", &fleet.Heartbeat{Epoch: 4}, now0); in.Active != 1 {
		t.Error("an earlier epoch's heartbeat was taken")
	}
	if _, changed := f.Announce(announceOf("a", epoch(4), tier("opus")), now0, now0); changed || in.Announce.Worker.ModelTier != "sonnet" {
		t.Error("an earlier epoch's announce was taken")
	}
	if _, changed := f.Announce(announceOf("a", epoch(6)), now0, now0); !changed || in.Epoch != 6 || len(in.Holding) != 0 || in.Active != 0 {
		t.Errorf("after a restart: %+v", in)
	}
	f.Beat("a", "main", &fleet.Heartbeat{Epoch: 7}, now0)
	if in.Epoch != 7 {
		t.Errorf("epoch = %d, want 7", in.Epoch)
	}
	if _, changed := f.Announce(announceOf("a", epoch(7)), now0, now0); !changed {
		t.Error("the announce of the new epoch changed nothing")
	}
	if _, changed := f.Announce(announceOf("a", epoch(7)), now0.Add(time.Second), now0.Add(time.Second)); changed {
		t.Error("the same announce again changed something")
	}
}

// An instance whose older process goes on beating is told of once for each newer
// process, and not for a heartbeat that was on its way.
func TestTwoProcessesOfOneInstance(t *testing.T) {
	t.Parallel()
	c := testCore()
	freeAgent(t, c)
	var got []int64
	for _, epoch := range []int64{1, 2, 1, 1, 2, 1, 1, 1, 3, 2, 1, 2, 1, 2} {
		got = append(got, c.beat("a", "main", &fleet.Heartbeat{Epoch: epoch}, now0))
	}
	if diff := cmp.Diff([]int64{0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 0}, got); diff != "" {
		t.Errorf("rivals (-want +got):\n%s", diff)
	}
}

// A heartbeat is newer than an announce that was stored before it, whichever
// the router reads first.
func TestHeartbeatBeforeAnnounce(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	b := &fleet.Heartbeat{ActiveTasks: 2, MCPHealth: fleet.MCPHealth{"git": fleet.HealthError, "new": fleet.HealthOK}}
	in, known := f.Beat("a", "main", b, now0)
	if known || in.Announce != nil || !in.Live {
		t.Errorf("first heartbeat: known %t, %+v", known, in)
	}
	if f.CanNow(f.Compile(Need{}), in, now0) {
		t.Error("an instance without announce is offered tasks")
	}
	old := announceOf("a")
	f.Announce(old, now0.Add(-time.Minute), now0)
	want := fleet.MCPHealth{"git": fleet.HealthError, "new": fleet.HealthOK, "trek": fleet.HealthTimeout}
	if diff := cmp.Diff(want, in.Announce.MCPHealth); diff != "" || in.Active != 2 {
		t.Errorf("active %d, health (-want +got):\n%s", in.Active, diff)
	}
	if old.MCPHealth["git"] != fleet.HealthOK {
		t.Error("the caller's announce was changed")
	}
	f.Announce(announceOf("a"), now0.Add(time.Second), now0.Add(time.Second))
	if in.Announce.MCPHealth["git"] != fleet.HealthOK || in.Active != 0 {
		t.Errorf("a newer announce does not count: %+v", in)
	}
}

func TestDrainAndCoolAllInstances(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	c := f.Compile(Need{})
	f.Drain("a", true, "ops")
	for i := range 3 {
		f.Announce(announceOf("a", func(a *fleet.Announce) { a.Worker.InstanceID = subjects.InstanceID(fmt.Sprint("i", i)) }), now0, now0)
	}
	if _, ok := f.Choose(c, Want{}, now0); ok {
		t.Error("a drained agent was chosen")
	}
	g := f.Generation()
	f.Drain("a", false, "")
	f.Cool("a", now0.Add(time.Minute), subjects.CodeAgentLost)
	if _, ok := f.Choose(c, Want{}, now0.Add(10*time.Second)); ok || f.Generation() == g {
		t.Error("a cooling agent was chosen, or the generation is the same")
	}
	if in := f.Get("a", "i1"); in.CoolUntil() == nil || in.DrainedBy() != "" {
		t.Errorf("cool until %v, drained by %q", in.CoolUntil(), in.DrainedBy())
	}
	f.Cool("a", now0.Add(20*time.Second), "")
	f.Cool("a", now0.Add(25*time.Second), "")
	g = f.Generation()
	n := 0
	for range f.Of("a") {
		n++
	}
	if _, ok := f.Choose(c, Want{}, now0.Add(25*time.Second)); !ok || f.Generation() == g || n != 3 {
		t.Error("the agent does not come back after its cool-down")
	}
}

func TestBusyEndsWithNews(t *testing.T) {
	t.Parallel()
	f := fleetOf(announceOf("a"))
	in, c := f.Get("a", "main"), f.Compile(Need{})
	if until := f.Busy(in, 2*time.Minute); until != now0.Add(time.Minute) {
		t.Errorf("it asked for two minutes, and rests until %s", until)
	}
	if f.Beat("a", "main", &fleet.Heartbeat{}, now0); f.CanNow(c, in, now0) {
		t.Error("a heartbeat without news ended what it asked for")
	}
	if f.Beat("a", "main", &fleet.Heartbeat{ActiveTasks: 1}, now0); !f.CanNow(c, in, now0) {
		t.Error("a heartbeat with news did not end it")
	}
	f.Busy(in, 0)
	if f.Beat("a", "main", &fleet.Heartbeat{ActiveTasks: 1}, now0); !f.CanNow(c, in, now0) {
		t.Error("a heartbeat that shows a free slot did not end a rest that nobody asked for")
	}
	f.Busy(in, 0)
	if f.Finish("a", "main", "t", now0); !f.CanNow(c, in, now0) {
		t.Error("a result did not end it")
	}
}

// The rests of an instance that refuses again and again as busy grow to a second,
// and begin anew once it has accepted.
func TestBusyRestsGrow(t *testing.T) {
	t.Parallel()
	f := fleetOf(announceOf("a"))
	in := f.Get("a", "main")
	var rests []time.Duration
	for range 9 {
		rests = append(rests, f.Busy(in, 0).Sub(now0)/time.Millisecond)
	}
	f.Accepted(in)
	rests = append(rests, f.Busy(in, 0).Sub(now0)/time.Millisecond)
	if diff := cmp.Diff([]time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000, 10}, rests); diff != "" {
		t.Errorf("in milliseconds (-want +got):\n%s", diff)
	}
}

// Heartbeats that name others each time add no more names than there is room for,
// before the announce and after it; what is known changes all the same.
func TestHealthIsBounded(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	beats := func(first, git string) {
		for beat := range 20 {
			health := fleet.MCPHealth{"git": git}
			for i := range 200 {
				health[fmt.Sprint(first, beat, "-", i)] = fleet.HealthOK
			}
			f.Beat("a", "main", &fleet.Heartbeat{MCPHealth: health}, now0)
		}
	}
	beats("a", fleet.HealthOK)
	f.Announce(announceOf("a"), now0.Add(-time.Minute), now0)
	generation := f.generation
	beats("b", fleet.HealthError)
	in := f.Get("a", "main")
	if n, own := len(in.Announce.MCPHealth), len(in.health); n > 300 || own > 300 || in.Announce.MCPHealth["git"] != fleet.HealthError {
		t.Errorf("%d names, %d of them heard, git is %s; want some 256 at most", n, own, in.Announce.MCPHealth["git"])
	}
	if got := f.generation - generation; got != 1 {
		t.Errorf("the fleet has changed %d times, want once", got)
	}
}

// Who is gone for good is not known any more: at once, or when it holds nothing
// more. Who announces itself later is.
func TestRetiredInstancesAreForgotten(t *testing.T) {
	t.Parallel()
	f := fleetOf(announceOf("a"), announceOf("b"))
	gone := announceOf("a")
	gone.Stopped, gone.Retired = true, true
	f.Hold("a", "main", "t1", 1)
	f.Announce(gone, now0.Add(time.Second), now0.Add(time.Second))
	if f.Get("a", "main") == nil {
		t.Error("an instance is forgotten that a record names")
	}
	f.Release("a", "main", "t1", now0.Add(time.Second))
	f.Expire(now0.Add(time.Hour))
	if f.Get("a", "main") != nil {
		t.Error("an instance that is gone for good is known")
	}
	if in, _ := f.Announce(gone, now0.Add(time.Second), now0.Add(time.Hour)); in != nil || f.Get("a", "main") != nil {
		t.Error("it is known again, as its last announce is read once more")
	}
	f.Retire("b", now0.Add(2*time.Second))
	if f.Get("b", "main") != nil {
		t.Error("b is known, though an operator has said that it is gone")
	}
	if in, _ := f.Announce(announceOf("b"), now0, now0.Add(time.Hour)); in != nil {
		t.Error("b is known again by an old announce")
	}
	if in, _ := f.Announce(announceOf("b"), now0.Add(time.Hour), now0.Add(time.Hour)); in == nil || !in.Live {
		t.Error("b is not known, though it is back")
	}
}

// TestLowerEpoch: what a process with a lower epoch says counts once the other one
// has been silent for its lease, and what that one held is lost by then. A process
// that was only cut off counts again when it is heard.
func TestLowerEpoch(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	at := func(s int) time.Time { return now0.Add(time.Duration(s) * time.Second) }
	process := func(epoch int64, tool string) *fleet.Announce {
		a := announceOf("a")
		a.Worker.Epoch, a.Capabilities.Tools = epoch, []string{tool}
		return a
	}
	beat := func(epoch int64, s int) *Instance {
		in, _ := f.Beat("a", "main", &fleet.Heartbeat{Epoch: epoch}, at(s))
		return in
	}
	is := func(when string, epoch int64, tool string) {
		t.Helper()
		if in := f.Get("a", "main"); in.Epoch != epoch || in.Announce.Capabilities.Tools[0] != tool || in.Announce.Worker.Epoch != epoch {
			t.Errorf("%s: epoch %d with %v, want %d with %s", when, in.Epoch, in.Announce.Capabilities.Tools, epoch, tool)
		}
	}
	f.Announce(process(20, "saw"), at(0), at(0))
	f.Hold("a", "main", "t1", 1)
	beat(20, 1)
	f.Announce(process(10, "axe"), at(2), at(2))
	beat(10, 3)
	beat(10, 30)
	is("within the lease", 20, "saw")
	if lost := f.Expire(at(31)); len(lost) != 1 || len(lost[0].Held) != 1 {
		t.Errorf("%d instances are lost, want the one that holds t1", len(lost))
	}
	is("after the lease", 20, "saw")
	beat(15, 32)
	is("heartbeats of another one", 20, "saw")
	if in := beat(10, 33); !in.Live || in.stale != 0 {
		t.Errorf("live %t, %d stale heartbeats; want it to be the one that counts", in.Live, in.stale)
	}
	is("the first heartbeat then", 10, "axe")
	f.Announce(process(20, "saw"), at(34), at(34))
	is("the other one is back", 20, "saw")
	f.Expire(at(100))
	f.Announce(process(10, "axe"), at(101), at(101))
	is("announced after the lease", 10, "axe")
}
