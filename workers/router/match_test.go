package router

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

// announceOf is an announce of instance "main"; change adds to it.
func announceOf(id string, change ...func(*fleet.Announce)) *fleet.Announce {
	a := &fleet.Announce{
		Worker: fleet.Worker{AgentID: subjects.AgentID(id), ModelTier: "sonnet", MaxParallel: 4, Labels: map[string]string{"os": "linux"}},
		Capabilities: fleet.Capabilities{
			Tools: []string{"terminal", "file"}, MCPServers: []string{"git", "trek", "memory"},
			Skills: []json.RawMessage{json.RawMessage(`{"id":"review","name":"Code review"}`)},
		},
		MCPHealth: fleet.MCPHealth{"git": fleet.HealthOK, "trek": fleet.HealthTimeout},
		Session:   fleet.SessionState{RepoState: &fleet.RepoState{Branch: "main", Clean: true}},
	}
	for _, c := range change {
		c(a)
	}
	return a
}

func tier(t string) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.Worker.ModelTier = t }
}

func parallel(n int) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.Worker.MaxParallel = n }
}

// fleetOf has the agents of as announce themselves a second apart, now0 last.
func fleetOf(as ...*fleet.Announce) *Fleet {
	f := NewFleet()
	for i, a := range as {
		at := now0.Add(time.Duration(i-len(as)) * time.Second)
		f.Announce(a, at, at)
	}
	f.advance(now0)
	return f
}

func chosen(t *testing.T, f *Fleet, n Need, w Want, now time.Time) string {
	t.Helper()
	in, ok := f.Choose(f.Compile(n), w, now)
	if !ok {
		return ""
	}
	return string(in.Agent)
}

func TestEligible(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		need  Need
		agent func(*fleet.Announce)
		after func(*Fleet)
		want  string // codes and messages; "" = eligible
		could bool
	}{
		{name: "nothing asked", could: true},
		{name: "tool", need: Need{Requirements: fleet.Requirements{RequiredCapabilities: []string{"terminal"}}}, could: true},
		{name: "skill by id", need: Need{Requirements: fleet.Requirements{RequiredCapabilities: []string{"review"}}}, could: true},
		{name: "skill by name", need: Need{Requirements: fleet.Requirements{RequiredCapabilities: []string{"Code review"}}}, could: true},
		{
			name: "tool missing", need: Need{Requirements: fleet.Requirements{RequiredCapabilities: []string{"terminal", "browser"}}},
			want: `no_capable_agent no capability "browser"`,
		},
		{name: "mcp ok", need: Need{Requirements: fleet.Requirements{RequiredMCP: []string{"git"}}}, could: true},
		{
			name: "mcp sick", need: Need{Requirements: fleet.Requirements{RequiredMCP: []string{"git", "trek"}}}, could: true,
			want: `mcp_unhealthy MCP server "trek" is timeout`,
		},
		{
			name: "mcp not probed", need: Need{Requirements: fleet.Requirements{RequiredMCP: []string{"memory"}}}, could: true,
			want: `mcp_unhealthy MCP server "memory" has not been probed`,
		},
		{
			name: "mcp missing", need: Need{Requirements: fleet.Requirements{RequiredMCP: []string{"sql"}}},
			want: `no_capable_agent no MCP server "sql"`,
		},
		{
			name: "mcp heals", need: Need{Requirements: fleet.Requirements{RequiredMCP: []string{"trek"}}}, could: true,
			after: func(f *Fleet) {
				f.Beat("a", "main", &fleet.Heartbeat{MCPHealth: fleet.MCPHealth{"trek": fleet.HealthOK}}, now0)
			},
		},
		{name: "tier equal", need: Need{Requirements: fleet.Requirements{ModelTier: "sonnet"}}, could: true},
		{name: "tier above", need: Need{Requirements: fleet.Requirements{ModelTier: "haiku"}}, could: true},
		{
			name: "tier below", need: Need{Requirements: fleet.Requirements{ModelTier: "opus"}},
			want: `no_capable_agent model tier "sonnet", "opus" is asked for`,
		},
		{
			name: "tier unknown", need: Need{Requirements: fleet.Requirements{ModelTier: "haiku"}}, agent: tier(""),
			want: `no_capable_agent no model tier, "haiku" or higher is asked for`,
		},
		{
			name: "tier outside the order", need: Need{Requirements: fleet.Requirements{ModelTier: "haiku"}}, agent: tier("gpt"),
			want: `no_capable_agent model tier "gpt", "haiku" or higher is asked for`,
		},
		{name: "tier outside the order, asked", need: Need{Requirements: fleet.Requirements{ModelTier: "gpt"}}, agent: tier("gpt"), could: true},
		{name: "label", need: Need{Requirements: fleet.Requirements{Labels: map[string]string{"os": "linux"}}}, could: true},
		{
			name: "label differs", need: Need{Requirements: fleet.Requirements{Labels: map[string]string{"os": "bsd", "gpu": "yes"}}},
			want: `no_capable_agent no label "gpu"; no_capable_agent label "os" is not "bsd"`,
		},
		{name: "clean", need: Need{Requirements: fleet.Requirements{CleanRepo: true}}, could: true},
		{
			name: "dirty", need: Need{Requirements: fleet.Requirements{CleanRepo: true}}, could: true,
			agent: func(a *fleet.Announce) { a.Session.RepoState.Clean = false },
			want:  "dirty_repo its work tree is not clean",
		},
		{
			name: "tree not known", need: Need{Requirements: fleet.Requirements{CleanRepo: true}}, could: true,
			agent: func(a *fleet.Announce) { a.Session.RepoState = nil },
			want:  "dirty_repo the state of its work tree is not known",
		},
		{name: "only", need: Need{Only: []subjects.AgentID{"x", "a"}}, could: true},
		{name: "only others", need: Need{Only: []subjects.AgentID{"x"}}, want: "no_capable_agent the task is for x only"},
		{name: "excluded", need: Need{Exclude: []subjects.AgentID{"a"}}, want: "no_capable_agent it has failed this task before"},
		{
			name: "draining", agent: func(a *fleet.Announce) { a.Draining = true }, could: true,
			want: "unavailable it is draining",
		},
		{
			name: "draining by heartbeat", could: true,
			after: func(f *Fleet) { f.Beat("a", "main", &fleet.Heartbeat{Draining: true}, now0) },
			want:  "unavailable it is draining",
		},
		{
			name: "drained", after: func(f *Fleet) { f.Drain("a", true, "ops") }, could: true,
			want: "unavailable it was drained by ops",
		},
		{name: "resumed", after: func(f *Fleet) { f.Drain("a", true, "ops"); f.Drain("a", false, "") }, could: true},
		{
			name: "cooling", after: func(f *Fleet) { f.Cool("a", now0.Add(time.Minute), subjects.CodeAgentLost) }, could: true,
			want: "agent_lost it rests until 2026-03-01T12:01:00Z",
		},
		{
			name: "busy by its word", after: func(f *Fleet) { f.Busy(f.Get("a", "main"), time.Second) }, could: true,
			want: "agent_busy it said that it is busy; asked again at 2026-03-01T12:00:01Z",
		},
		{
			name: "no slot", agent: parallel(1), after: func(f *Fleet) { f.Hold("a", "main", "t", 1) }, could: true,
			want: "agent_busy 1 of 1 slots are taken",
		},
		{
			name: "silent", after: func(f *Fleet) { f.Expire(now0.Add(29 * time.Second)) }, could: true,
			want: "agent_lost it was last heard at 2026-03-01T11:59:59Z",
		},
		{
			name: "gone", after: func(f *Fleet) { f.Gone("a", "main") }, could: true,
			want: "agent_lost it did not answer an offer and has not been heard since",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := fleetOf(announceOf("a"))
			if tt.agent != nil {
				f = fleetOf(announceOf("a", tt.agent))
			}
			if tt.after != nil {
				tt.after(f)
			}
			c, now := f.Compile(tt.need), f.now
			v := f.Explain(c, now)
			var got []string
			for _, r := range v[0].Reasons {
				got = append(got, string(r.Code)+" "+r.Message)
			}
			if s := strings.Join(got, "; "); s != tt.want || v[0].Eligible != (tt.want == "") {
				t.Errorf("Explain = %q (eligible %t), want %q", s, v[0].Eligible, tt.want)
			}
			if in, ok := f.Choose(c, Want{}, now); ok != (tt.want == "") {
				t.Errorf("Choose = %+v, %t", in, ok)
			}
			if got := f.CanNow(c, f.Get("a", "main"), now); got != (tt.want == "") {
				t.Errorf("CanNow = %t", got)
			}
			if could, why := f.Capable(c); could != tt.could || could != (len(why) == 0) {
				t.Errorf("Capable = %t, %v, want %t", could, why, tt.could)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	holds := func(ids ...subjects.TaskID) *fleet.Heartbeat {
		b := &fleet.Heartbeat{ActiveTasks: len(ids)}
		for _, id := range ids {
			b.Holding = append(b.Holding, fleet.Holding{TaskID: id, Attempt: 1})
		}
		return b
	}
	session := subjects.SessionID("a2a-20260301T120000Z-00000001")
	for _, tt := range []struct {
		name  string
		need  Need
		want  Want
		agent []*fleet.Announce
		after func(*Fleet)
		got   string
	}{
		{name: "longest idle", agent: []*fleet.Announce{announceOf("b"), announceOf("a")}, got: "b"},
		{
			name: "fewest tiers above", need: Need{Requirements: fleet.Requirements{ModelTier: "haiku"}},
			agent: []*fleet.Announce{announceOf("o", tier("opus")), announceOf("s"), announceOf("x", tier("gpt"))}, got: "s",
		},
		{
			name: "any tier when none is asked", agent: []*fleet.Announce{announceOf("o", tier("opus")), announceOf("h", tier("haiku"))}, got: "o",
		},
		{
			name: "least loaded, by share", agent: []*fleet.Announce{announceOf("a", parallel(2)), announceOf("b", parallel(8))},
			after: func(f *Fleet) {
				f.Hold("a", "main", "t1", 1)
				f.Beat("b", "main", holds("t2", "t3", "t4"), now0)
			}, got: "b",
		},
		{
			name: "tier before load", need: Need{Requirements: fleet.Requirements{ModelTier: "sonnet"}},
			agent: []*fleet.Announce{announceOf("o", tier("opus")), announceOf("s")},
			after: func(f *Fleet) { f.Hold("s", "main", "t1", 1) }, got: "s",
		},
		{
			name: "warm by announce", want: Want{Session: session},
			agent: []*fleet.Announce{announceOf("a"), announceOf("b", func(a *fleet.Announce) { a.Session.ContextID = string(session) })},
			got:   "b",
		},
		{
			name: "warm by its last task", want: Want{Session: session},
			agent: []*fleet.Announce{announceOf("a"), announceOf("b")},
			after: func(f *Fleet) { f.Warm("b", "main", session) }, got: "b",
		},
		{
			name: "load before warmth", want: Want{Session: session},
			agent: []*fleet.Announce{announceOf("a"), announceOf("b")},
			after: func(f *Fleet) { f.Warm("b", "main", session); f.Hold("b", "main", "t", 1) }, got: "a",
		},
		{
			name: "who holds it already, even without a free slot", want: Want{Task: "t"},
			agent: []*fleet.Announce{announceOf("a"), announceOf("b", parallel(1))},
			after: func(f *Fleet) { f.Beat("b", "main", holds("t"), now0) }, got: "b",
		},
		{
			name: "who holds it already, unless it has failed", want: Want{Task: "t"}, need: Need{Exclude: []subjects.AgentID{"b"}},
			agent: []*fleet.Announce{announceOf("a"), announceOf("b", parallel(1))},
			after: func(f *Fleet) { f.Beat("b", "main", holds("t"), now0) }, got: "a",
		},
		{
			name: "idle again goes to the back", agent: []*fleet.Announce{announceOf("a"), announceOf("b")},
			after: func(f *Fleet) {
				f.Beat("a", "main", holds("x"), now0)
				f.Beat("a", "main", holds(), now0)
			}, got: "b",
		},
		{
			name: "released goes to the back", agent: []*fleet.Announce{announceOf("a"), announceOf("b")},
			after: func(f *Fleet) { f.Hold("a", "main", "t", 1); f.Release("a", "main", "t", now0) }, got: "b",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := fleetOf(tt.agent...)
			if tt.after != nil {
				tt.after(f)
			}
			if got := chosen(t, f, tt.need, tt.want, now0); got != tt.got {
				t.Errorf("Choose = %q, want %q", got, tt.got)
			}
		})
	}
}

func TestEqualsByID(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	f.Announce(announceOf("b"), now0, now0)
	f.Announce(announceOf("c"), now0, now0)
	if got := chosen(t, f, Need{}, Want{}, now0); got != "b" {
		t.Errorf("Choose = %q, want b", got)
	}
	f.Announce(announceOf("d"), now0, now0)
	if got := chosen(t, f, Need{}, Want{}, now0); got != "b" {
		t.Errorf("with d, Choose = %q, want b", got)
	}
	f.Announce(announceOf("a"), now0, now0)
	if got := chosen(t, f, Need{}, Want{}, now0); got != "a" {
		t.Errorf("with a, Choose = %q, want a", got)
	}
}

func TestOlderAnnounceIsDropped(t *testing.T) {
	t.Parallel()
	f := fleetOf(announceOf("a"))
	in, changed := f.Announce(announceOf("a", tier("opus")), now0.Add(-time.Hour), now0)
	if changed || in.Announce.Worker.ModelTier != "sonnet" {
		t.Errorf("changed %t: %+v", changed, in.Announce.Worker)
	}
	if in, _ := f.Announce(announceOf("b"), now0.Add(-time.Hour), now0); in.Live {
		t.Error("an announce of an hour ago makes it live")
	}
}

func TestGeneration(t *testing.T) {
	t.Parallel()
	f := fleetOf(announceOf("a"))
	for _, tt := range []struct {
		name string
		do   func()
		want bool
	}{
		{"the same announce", func() { f.Announce(announceOf("a"), now0, now0) }, false},
		{"a heartbeat", func() { f.Beat("a", "main", &fleet.Heartbeat{}, now0) }, false},
		{"health", func() {
			f.Beat("a", "main", &fleet.Heartbeat{MCPHealth: fleet.MCPHealth{"git": fleet.HealthError}}, now0)
		}, true},
		{"the same health", func() {
			f.Beat("a", "main", &fleet.Heartbeat{MCPHealth: fleet.MCPHealth{"git": fleet.HealthError}}, now0)
		}, false},
		{"a task", func() { f.Hold("a", "main", "t", 1); f.Release("a", "main", "t", now0) }, false},
		{"draining", func() { f.Beat("a", "main", &fleet.Heartbeat{Draining: true}, now0) }, true},
		{"an announce", func() { f.Announce(announceOf("a", tier("opus")), now0, now0) }, true},
		{"back to life", func() { f.Gone("a", "main"); f.Beat("a", "main", &fleet.Heartbeat{}, now0) }, true},
		{"no more busy", func() { f.Busy(f.Get("a", "main"), 1); f.Expire(now0.Add(1)) }, true},
	} {
		g := f.Generation()
		if tt.do(); (f.Generation() != g) != tt.want {
			t.Errorf("%s: changed %t, want %t", tt.name, f.Generation() != g, tt.want)
		}
	}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	n := Need{
		Requirements: fleet.Requirements{
			RequiredMCP: []string{"b", "a", "b"}, RequiredCapabilities: []string{`x";y`, "c"}, ModelTier: "haiku", CleanRepo: true,
			Labels: map[string]string{"k": "v", "a": "b"},
		},
		Only: []subjects.AgentID{"z", "y"}, Exclude: []subjects.AgentID{"w"},
	}
	same := n
	same.Requirements.RequiredMCP = []string{"a", "b"}
	same.Only = []subjects.AgentID{"y", "z", "y"}
	c := f.Compile(n)
	const want = `tier="haiku";clean;cap="c";cap="x\";y";mcp="a";mcp="b";label="a":"b";label="k":"v";only="y";only="z";not="w";`
	if c.Key() != want {
		t.Errorf("Key = %s", c.Key())
	}
	if f.Compile(same) != c {
		t.Error("equal needs give two classes")
	}
	// Routers of every version agree on owners by these.
	if got := c.Hash(); got != 0xc303ad66702e1466 {
		t.Errorf("Hash = %#x", got)
	}
	if got := f.Compile(Need{}); got.Key() != "" || got == c || got.Hash() == c.Hash() {
		t.Errorf("the empty need: %q %#x", got.Key(), got.Hash())
	}
	for i := range 10000 {
		f.Compile(Need{Exclude: []subjects.AgentID{subjects.AgentID(strconv.Itoa(i))}})
		if i%500 == 0 {
			runtime.GC()
		}
	}
	if len(f.classes.byKey) > 3000 {
		t.Errorf("%d classes are kept that nobody uses", len(f.classes.byKey))
	}
}

func TestWhyNobody(t *testing.T) {
	t.Parallel()
	empty := NewFleet()
	_, why := empty.Capable(empty.Compile(Need{}))
	if diff := cmp.Diff([]fleet.Reason{{Code: subjects.CodeNoCapableAgent, Message: "no agent has announced itself"}}, why); diff != "" {
		t.Errorf("an empty fleet (-want +got):\n%s", diff)
	}
	var as []*fleet.Announce
	for i := range 30 {
		as = append(as, announceOf(fmt.Sprintf("agent%02d", i), tier(fmt.Sprintf("t%02d", i))))
	}
	f := fleetOf(as...)
	c := f.Compile(Need{Requirements: fleet.Requirements{RequiredCapabilities: []string{"sql"}, ModelTier: "opus"}})
	could, why := f.Capable(c)
	if could || len(why) != maxReasons+1 {
		t.Fatalf("Capable = %t, %d reasons", could, len(why))
	}
	if got, want := why[0].Message, `agent00, agent01, agent02 and 27 more: no capability "sql"`; got != want {
		t.Errorf("first reason = %s, want %s", got, want)
	}
	if got, want := why[maxReasons].Message, "and 11 more reasons"; got != want {
		t.Errorf("last reason = %s, want %s", got, want)
	}
	f.Announce(announceOf("new", tier("opus"), func(a *fleet.Announce) { a.Capabilities.Tools = []string{"sql"} }), now0, now0)
	if could, why = f.Capable(c); !could || why != nil {
		t.Errorf("after somebody came who could: %t, %v", could, why)
	}
	_, why = f.Capable(f.Compile(Need{Only: []subjects.AgentID{"ghost"}}))
	if len(why) != 2 || why[1].Message != "ghost: it has not announced itself" {
		t.Errorf("pinned to a stranger: %v", why)
	}
}
