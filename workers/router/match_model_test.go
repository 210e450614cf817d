package router

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

var (
	modelTools    = []string{"terminal", "file", "review"}
	modelServers  = []string{"git", "trek"}
	modelTiers    = []string{"", "haiku", "sonnet", "opus", "gpt"}
	modelAgents   = []subjects.AgentID{"a", "b", "c", "d"}
	modelTasks    = []subjects.TaskID{"t1", "t2", "t3"}
	modelSessions = []subjects.SessionID{"s1", "s2"}
)

func subset[T any](t *rapid.T, of []T, name string) []T {
	var out []T
	for i, v := range of {
		if rapid.Bool().Draw(t, fmt.Sprint(name, i)) {
			out = append(out, v)
		}
	}
	return out
}

func genAnnounce(t *rapid.T) *fleet.Announce {
	a := &fleet.Announce{
		Worker: fleet.Worker{
			AgentID:     rapid.SampledFrom(modelAgents).Draw(t, "agent"),
			InstanceID:  rapid.SampledFrom([]subjects.InstanceID{"", "i2"}).Draw(t, "instance"),
			ModelTier:   rapid.SampledFrom(modelTiers).Draw(t, "tier"),
			Epoch:       rapid.Int64Range(0, 2).Draw(t, "epoch"),
			MaxParallel: rapid.IntRange(0, 3).Draw(t, "max"),
		},
		Capabilities: fleet.Capabilities{
			Tools: subset(t, modelTools, "tool"), MCPServers: subset(t, modelServers, "server"),
		},
		MCPHealth: genHealth(t),
		Draining:  rapid.IntRange(0, 5).Draw(t, "draining") == 0,
		Session:   fleet.SessionState{ActiveTasks: rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "active")},
	}
	for _, k := range subset(t, []string{"os", "gpu"}, "label") {
		if a.Worker.Labels == nil {
			a.Worker.Labels = make(map[string]string)
		}
		a.Worker.Labels[k] = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value")
	}
	if rapid.Bool().Draw(t, "repo") {
		a.Session.RepoState = &fleet.RepoState{Clean: rapid.Bool().Draw(t, "clean")}
	}
	if rapid.Bool().Draw(t, "context") {
		a.Session.ContextID = string(rapid.SampledFrom(modelSessions).Draw(t, "session"))
	}
	if rapid.Bool().Draw(t, "heartbeat") {
		a.HeartbeatSeconds = new(rapid.SampledFrom([]float64{0, 1, 60}).Draw(t, "seconds"))
	}
	return a
}

func genHealth(t *rapid.T) fleet.MCPHealth {
	h := make(fleet.MCPHealth)
	for _, s := range subset(t, modelServers, "health") {
		h[s] = rapid.SampledFrom([]string{"ok", "ok", "error"}).Draw(t, "state")
	}
	return h
}

func genNeed(t *rapid.T) Need {
	n := Need{Requirements: fleet.Requirements{
		RequiredMCP: subset(t, modelServers, "mcp"), RequiredCapabilities: subset(t, modelTools, "cap"),
		ModelTier: rapid.SampledFrom(modelTiers).Draw(t, "tier"), CleanRepo: rapid.IntRange(0, 3).Draw(t, "clean") == 0,
	}}
	if rapid.IntRange(0, 3).Draw(t, "labelled") == 0 {
		n.Requirements.Labels = map[string]string{"os": "x"}
	}
	if rapid.IntRange(0, 3).Draw(t, "few") == 0 {
		n.Only = subset(t, modelAgents, "only")
	}
	if rapid.IntRange(0, 3).Draw(t, "some") == 0 {
		n.Exclude = subset(t, modelAgents, "not")
	}
	return n
}

// TestFleetModel does anything to a fleet in any order, and compares what it
// answers with what a plain reading of its instances gives.
func TestFleetModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, now := NewFleet(), now0
		agent := func(t *rapid.T) subjects.AgentID { return rapid.SampledFrom(modelAgents).Draw(t, "agent") }
		task := func(t *rapid.T) subjects.TaskID { return rapid.SampledFrom(modelTasks).Draw(t, "task") }
		inst := func(t *rapid.T) subjects.InstanceID {
			return rapid.SampledFrom([]subjects.InstanceID{"main", "i2"}).Draw(t, "instance")
		}
		some := func(t *rapid.T) *Instance {
			if len(f.order) == 0 {
				t.Skip("nobody yet")
			}
			return rapid.SampledFrom(f.order).Draw(t, "in")
		}
		seconds := func(t *rapid.T, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, "seconds")) * time.Second
		}
		t.Repeat(map[string]func(*rapid.T){
			"announce": func(t *rapid.T) { f.Announce(genAnnounce(t), now.Add(-seconds(t, 40)), now) },
			"announced just now": func(t *rapid.T) {
				a := genAnnounce(t)
				if in, _ := f.Announce(a, now, now); in == nil {
					t.Fatal("no instance")
				}
			},
			"beat": func(t *rapid.T) {
				b := &fleet.Heartbeat{
					Epoch:       rapid.Int64Range(0, 2).Draw(t, "epoch"),
					ActiveTasks: rapid.IntRange(0, 2).Draw(t, "active"), Draining: rapid.IntRange(0, 5).Draw(t, "draining") == 0,
				}
				for _, id := range subset(t, modelTasks, "holding") {
					b.Holding = append(b.Holding, fleet.Holding{TaskID: id, Attempt: 1})
				}
				if rapid.Bool().Draw(t, "news") {
					b.MCPHealth = genHealth(t)
				}
				f.Beat(agent(t), inst(t), b, now)
			},
			"hold":    func(t *rapid.T) { f.Hold(agent(t), inst(t), task(t), 1) },
			"release": func(t *rapid.T) { f.Release(agent(t), inst(t), task(t), now) },
			"finish":  func(t *rapid.T) { f.Finish(agent(t), inst(t), task(t), now) },
			"offer":   func(t *rapid.T) { f.Offer(some(t), rapid.SampledFrom([]int{1, -1}).Draw(t, "n")) },
			"drain":   func(t *rapid.T) { f.Drain(agent(t), rapid.Bool().Draw(t, "on"), "ops") },
			"cool":    func(t *rapid.T) { f.Cool(agent(t), now.Add(seconds(t, 60)), subjects.CodeAgentLost) },
			"busy":    func(t *rapid.T) { f.Busy(some(t), seconds(t, 60)) },
			"limit": func(t *rapid.T) {
				a, tier := agent(t), rapid.SampledFrom([]string{"", "sonnet", "opus"}).Draw(t, "tier")
				l := &fleet.AccountLimit{Account: string(a), Tier: tier, Until: now, ProbeAt: now.Add(seconds(t, 60))}
				if rapid.Bool().Draw(t, "probe") {
					l.Probe = &fleet.LimitProbe{TaskID: task(t), Attempt: 1, At: now}
				}
				if rapid.IntRange(0, 2).Draw(t, "over") == 0 {
					l = nil
				}
				f.SetLimit(fleet.LimitKey(string(a), tier), l)
			},
			"gone":    func(t *rapid.T) { f.Gone(agent(t), inst(t)) },
			"missed":  func(t *rapid.T) { f.Missed(some(t)) },
			"answers": func(t *rapid.T) { f.Answered(some(t)) },
			"warm": func(t *rapid.T) {
				f.Warm(agent(t), inst(t), rapid.SampledFrom(modelSessions).Draw(t, "session"))
			},
			"expire": func(t *rapid.T) {
				now = now.Add(seconds(t, 40))
				if rapid.IntRange(0, 20).Draw(t, "long") == 0 {
					now = now.Add(rapid.SampledFrom([]time.Duration{25 * time.Hour, keepInstance + time.Hour}).Draw(t, "for"))
				}
				for _, in := range f.Expire(now) {
					if in.Live {
						t.Fatalf("%s/%s is lost and live", in.Agent, in.ID)
					}
				}
				if next := f.NextExpiry(); !next.IsZero() && !next.After(now) {
					t.Fatalf("NextExpiry = %s at %s", next, now)
				}
			},
			"": func(t *rapid.T) {
				checkIndex(t, f)
				checkTimes(t, f, now)
				checkAnswers(t, f, now)
			},
		})
	})
}

// checkIndex rebuilds all that the fleet keeps twice.
func checkIndex(t *rapid.T, f *Fleet) {
	if !slices.IsSortedFunc(f.order, byID) || len(f.order) != len(f.instances) {
		t.Fatalf("order: %d of %d instances", len(f.order), len(f.instances))
	}
	want := features{}
	hold := map[subjects.TaskID]int{}
	places := map[subjects.AgentID]int{}
	armed := map[*Instance]bool{}
	for _, e := range f.due {
		armed[e.in] = armed[e.in] || e.in != nil && e.at == e.in.due
	}
	for _, in := range f.order {
		p := in.place
		in.each(func(x feature) {
			if want[x] == nil {
				want[x] = new(placeSet)
			}
			want[x].add(p)
		})
		extra := 0
		for id := range in.Holding {
			hold[id]++
			if _, held := in.Held[id]; !held {
				extra++
			}
			if !slices.Contains(f.holders[id], in) {
				t.Fatalf("%s is not among the holders of %s", in.Agent, id)
			}
		}
		if in.extra != extra {
			t.Fatalf("%s/%s: %d tasks beyond those of the records, want %d", in.Agent, in.ID, in.extra, extra)
		}
		places[in.Agent]++
		if f.at[p] != in || !f.agents[in.Agent].places.has(p) || f.instances[agentInstance{in.Agent, in.ID}] != in || !armed[in] {
			t.Fatalf("%s/%s is not where it should be", in.Agent, in.ID)
		}
		if limited := f.closedLimit(in) != nil; limited != in.limited {
			t.Fatalf("%s/%s: limited %t, want %t", in.Agent, in.ID, in.limited, limited)
		}
		open := in.Announce != nil && in.Live && !in.Draining && !in.rests() && !in.limited && in.Free()
		if f.open.has(p) != open || f.serving.has(p) != in.serves() || f.idle.has(p) != (in.Used() == 0) || f.announced.has(p) != (in.Announce != nil) ||
			f.load[p] != in.load() || f.idleSince[p] != in.IdleSince.UnixNano() {
			t.Fatalf("%s/%s: open %t, idle %t, load %d; it is %+v", in.Agent, in.ID, f.open.has(p), f.idle.has(p), f.load[p], in)
		}
	}
	for _, b := range []bitmap{f.open, f.idle, f.announced, f.serving} {
		for p := range b.all() {
			if f.at[p] == nil {
				t.Fatalf("nobody is at %d", p)
			}
		}
	}
	if diff := gocmp.Diff(want, f.features, gocmp.AllowUnexported(placeSet{}, feature{})); diff != "" {
		t.Fatalf("features (-want +got):\n%s", diff)
	}
	for id, list := range f.holders {
		if len(list) != hold[id] {
			t.Fatalf("%d holders of %s, want %d", len(list), id, hold[id])
		}
	}
	for id, a := range f.agents {
		if a.places.n != places[id] || places[id] == 0 && !a.drained && !a.cooling {
			t.Fatalf("agent %s: %+v, want %d instances", id, a, places[id])
		}
	}
}

// checkTimes sees that nothing lasts longer than it should.
func checkTimes(t *rapid.T, f *Fleet, now time.Time) {
	f.advance(now)
	for in := range f.All() {
		ends := in.LastSeen.Add(3 * in.Heartbeat)
		if in.Heartbeat == 0 {
			ends = in.LastSeen.Add(in.TTL)
		}
		if in.Live && !ends.After(now) || in.busy && !in.busyUntil.After(now) || !in.restUntil.IsZero() && !in.restUntil.After(now) || in.owner.cooling && !in.owner.coolUntil.After(now) ||
			in.gone && !in.lapsed && in.Heartbeat == 0 && !in.goneUntil.After(now) {
			t.Fatalf("at %s: %+v", now, in)
		}
	}
}

// checkAnswers compares Choose, CanNow, Explain and Capable with plain readings.
func checkAnswers(t *rapid.T, f *Fleet, now time.Time) {
	n := genNeed(t)
	if rapid.IntRange(0, 3).Draw(t, "leave out") == 0 {
		x := escalation.Exclusion{Agent: rapid.SampledFrom(modelAgents).Draw(t, "left out")}
		if rapid.Bool().Draw(t, "for a while") {
			x.Since = now.Add(-time.Minute)
			x.Until = now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "until")) * time.Minute)
		}
		if x.Until.IsZero() || rapid.Bool().Draw(t, "one instance") {
			x.Instance = "main"
		}
		n.LeaveOut = []escalation.Exclusion{x}
	}
	c := f.Compile(n)
	w := Want{}
	if rapid.Bool().Draw(t, "in a session") {
		w.Session = rapid.SampledFrom(modelSessions).Draw(t, "session")
	}
	if rapid.IntRange(0, 4).Draw(t, "of a task") == 0 {
		w.Task = rapid.SampledFrom(modelTasks).Draw(t, "task")
	}
	served := slices.ContainsFunc(f.order, func(in *Instance) bool { return in.serves() && f.fits(c, in) })
	if got := f.Served(c); got != served {
		t.Fatalf("Served = %t, want %t", got, served)
	}
	if open := slices.ContainsFunc(f.order, func(in *Instance) bool { return f.CanNow(c, in, now) }); open && !served {
		t.Fatal("somebody can now, and nobody serves")
	}
	verdicts := make(map[*Instance]fleet.AgentVerdict)
	for _, v := range f.Explain(c, now) {
		verdicts[f.Get(v.AgentID, v.InstanceID)] = v
	}
	var best *Instance
	could := false
	for in := range f.All() {
		v, ok := verdicts[in]
		eligible := naiveReady(f, in) && naiveFits(n, in, true, now) && in.Free()
		if !ok || v.Eligible != eligible || v.Eligible != (len(v.Reasons) == 0) || v.Eligible != (v.Order > 0) {
			t.Fatalf("Explain(%s) of %s/%s = %+v, want eligible %t", c.Key(), in.Agent, in.ID, v, eligible)
		}
		if got := f.CanNow(c, in, now); got != eligible {
			t.Fatalf("CanNow(%s, %s/%s) = %t", c.Key(), in.Agent, in.ID, got)
		}
		_, holds := in.Holding[w.Task]
		if eligible || holds && naiveReady(f, in) && naiveFits(n, in, true, now) {
			if best == nil || naiveLess(n, w, in, best) {
				best = in
			}
		}
		could = could || in.Announce != nil && naiveFits(n, in, false, now)
	}
	got, ok := f.Choose(c, w, now)
	if got != best || ok != (best != nil) {
		t.Fatalf("Choose(%s, %+v) = %+v, want %+v", c.Key(), w, got, best)
	}
	if got, why := f.Capable(c); got != could || could != (len(why) == 0) {
		t.Fatalf("Capable(%s) = %t, %v, want %t", c.Key(), got, why, could)
	}
	if got != nil && w == (Want{}) && verdicts[got].Order != 1 {
		t.Fatalf("Choose takes number %d of Explain", verdicts[got].Order)
	}
}

func naiveReady(f *Fleet, in *Instance) bool {
	a := in.Announce
	for _, l := range f.limits {
		if a != nil && l.Account == string(in.Agent) && (l.Tier == "" || l.Tier == a.Worker.ModelTier) &&
			(l.ProbeAt.After(f.now) || l.Probe != nil || l.trying > 0) {
			return false
		}
	}
	return a != nil && in.Live && !in.Draining && in.CoolUntil() == nil && !in.busy && in.restUntil.IsZero()
}

// naiveFits reads the requirements; well = as the agent is now.
func naiveFits(n Need, in *Instance, well bool, now time.Time) bool {
	a, r := in.Announce, n.Requirements
	if len(n.Only) > 0 && !slices.Contains(n.Only, in.Agent) || slices.Contains(n.Exclude, in.Agent) {
		return false
	}
	for _, x := range n.LeaveOut {
		if x.Agent == in.Agent && (x.Instance == "" || x.Instance == in.ID) &&
			(x.Until.IsZero() || well && x.Until.After(now) && !in.newsAt.After(x.Since)) {
			return false
		}
	}
	for _, c := range r.RequiredCapabilities {
		if !slices.Contains(a.Capabilities.Tools, c) {
			return false
		}
	}
	for _, s := range r.RequiredMCP {
		health, ok := a.MCPHealth[s]
		if well && health != "ok" || !ok && !slices.Contains(a.Capabilities.MCPServers, s) {
			return false
		}
	}
	for k, v := range r.Labels {
		if a.Worker.Labels[k] != v {
			return false
		}
	}
	if well && r.CleanRepo && (a.Session.RepoState == nil || !a.Session.RepoState.Clean) {
		return false
	}
	return r.ModelTier == "" || naiveAbove(r.ModelTier, a.Worker.ModelTier) >= 0
}

func naiveAbove(asked, has string) int {
	rank := map[string]int{"haiku": 1, "sonnet": 2, "opus": 3}
	switch {
	case asked == "" || asked == has:
		return 0
	case rank[asked] == 0 || rank[has] == 0:
		return -1
	}
	return rank[has] - rank[asked]
}

func naiveLess(n Need, w Want, a, b *Instance) bool {
	rank := func(in *Instance) []float64 {
		held := slices.Collect(maps.Keys(in.Held))
		for id := range in.Holding {
			if !slices.Contains(held, id) {
				held = append(held, id)
			}
		}
		out := []float64{1, float64(naiveAbove(n.Requirements.ModelTier, in.Announce.Worker.ModelTier)), 0, 1, float64(in.IdleSince.Sub(now0))}
		if _, ok := in.Holding[w.Task]; ok {
			out[0] = 0
		}
		out[2] = min(1, float64(max(in.Active, len(held)+in.Offering))/float64(in.Max))
		if w.Session != "" && (in.session == w.Session || in.Announce.Session.ContextID == string(w.Session)) {
			out[3] = 0
		}
		if out[0] == 0 {
			out[3] = 1 // those who hold it are not compared by session
		}
		return out
	}
	return cmp.Or(slices.Compare(rank(a), rank(b)), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.ID, b.ID)) < 0
}

func TestPlaceSet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s placeSet
		want := make(map[uint32]bool)
		other := bitmap{}
		for range 300 {
			other.add(rapid.Uint32Range(0, 999).Draw(t, "other"))
		}
		full := append(bitmap(nil), make(bitmap, 16)...)
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			add, most := rapid.Bool().Draw(t, "add"), rapid.SampledFrom([]uint32{300, 999}).Draw(t, "most")
			for range rapid.IntRange(0, 200).Draw(t, "n") {
				p := rapid.Uint32Range(0, most).Draw(t, "p")
				if add {
					s.add(p)
					want[p] = true
				} else {
					s.remove(p)
					delete(want, p)
				}
			}
			got := slices.Collect(s.all())
			if diff := gocmp.Diff(slices.Sorted(maps.Keys(want)), got); diff != "" || s.n != len(want) {
				t.Fatalf("n %d (-want +got):\n%s", s.n, diff)
			}
			and, not, or := slices.Clone(other), slices.Clone(other), slices.Clone(full)
			s.and(and)
			s.andNot(not)
			s.or(or)
			for p := range uint32(1000) {
				if s.has(p) != want[p] || and.has(p) != (want[p] && other.has(p)) || not.has(p) != (other.has(p) && !want[p]) || or.has(p) != want[p] {
					t.Fatalf("%d: has %t and %t not %t or %t", p, s.has(p), and.has(p), not.has(p), or.has(p))
				}
			}
		}
	})
}
