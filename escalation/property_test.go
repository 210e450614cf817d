package escalation_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

var (
	roster = []subjects.AgentID{"a", "b", "c", "d", "e"}
	codes  = []subjects.Code{
		subjects.CodeAgentError, subjects.CodeAgentTimeout, subjects.CodeResultInvalid, subjects.CodeAgentLost,
		subjects.CodeRateLimited, subjects.CodeMCPUnhealthy, subjects.CodeDirtyRepo, subjects.CodeNoCapableAgent,
		subjects.CodeForbidden, subjects.CodeBudgetExhausted, subjects.CodeAgentBusy, subjects.CodeUnavailable, "new_code",
	}
)

func genState(t *rapid.T) escalation.State {
	agent := rapid.SampledFrom(roster)
	s := escalation.State{
		Policy: fleet.Policy{
			MaxRetries:   rapid.IntRange(0, 4).Draw(t, "max_retries"),
			Alternatives: rapid.SliceOfN(agent, 0, 3).Draw(t, "alternatives"),
			OnBlocked:    rapid.SampledFrom([]string{"", "reroute", "wait", "fail", "escalate"}).Draw(t, "on_blocked"),
			Escalate:     rapid.SampledFrom([]string{"", "auto", "always", "never"}).Draw(t, "escalate"),
		},
		Deadline:     start.Add(time.Duration(rapid.IntRange(1, 3600).Draw(t, "deadline")) * time.Second),
		TokenBudget:  rapid.SampledFrom([]int64{0, 0, 500}).Draw(t, "budget"),
		HumanContact: rapid.Bool().Draw(t, "human"),
		Seed:         rapid.Uint64().Draw(t, "seed"),
	}
	if rapid.Bool().Draw(t, "pinned") {
		s.Policy.Agent = agent.Draw(t, "pin")
	}
	return s
}

// world is a fleet that does all it can to keep a task from getting done.
type world struct {
	t       *rapid.T
	s       escalation.State
	now     time.Time
	able    map[subjects.AgentID]bool // could do it, now or later
	retry   subjects.AgentID          // level 1 is pending
	started int                       // attempts that were not handed back
	failed  map[subjects.AgentID]bool // answered by level 2
	tried   map[subjects.AgentID]bool
	busy    int
}

// TestTheLadderEnds runs fleets in which nothing ever succeeds.
func TestTheLadderEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, s: genState(t), now: start,
			able: make(map[subjects.AgentID]bool), failed: make(map[subjects.AgentID]bool),
			tried: make(map[subjects.AgentID]bool),
		}
		for _, id := range roster {
			w.able[id] = rapid.Bool().Draw(t, "able "+string(id))
		}
		for step := 0; !w.step(); step++ {
			if step > 200 {
				t.Fatalf("no end in sight: %+v", w.s)
			}
		}
		w.checkLevels()
	})
}

// may lists who may and could do the task by its record.
func (w *world) may() []subjects.AgentID {
	not := escalation.Excluded(w.s.Attempts)
	only := escalation.Only(w.s.Policy, w.s.Attempts)
	var out []subjects.AgentID
	for _, id := range roster {
		if w.able[id] && !slices.Contains(not, id) && (len(only) == 0 || slices.Contains(only, id)) {
			out = append(out, id)
		}
	}
	return out
}

// step lets one thing go wrong and reports whether the task has ended.
func (w *world) step() (ended bool) {
	w.s.Nobody, w.s.Gone, w.s.RetryAfter = nil, false, 0
	switch may := w.may(); {
	case len(may) == 0:
		w.s.Nobody = []fleet.Reason{{Code: subjects.CodeNoCapableAgent, Message: "nobody"}}
		w.retry = ""
	case w.retry != "" && rapid.IntRange(0, 9).Draw(w.t, "leaves") == 0:
		w.s.Gone = true
		w.retry = ""
	default:
		w.attempt(rapid.SampledFrom(may).Draw(w.t, "agent"))
	}
	before := w.s
	before.Attempts = slices.Clone(before.Attempts)
	next, action := escalation.Next(w.s, w.now)
	if diff := cmp.Diff(before, w.s); diff != "" {
		w.t.Fatalf("Next changed its argument: %s", diff)
	}
	again, same := escalation.Next(before, w.now)
	if diff := cmp.Diff(again, next) + cmp.Diff(same, action); diff != "" {
		w.t.Fatalf("Next is not repeatable: %s", diff)
	}
	w.s = next
	return w.obey(action)
}

// named are the agents that the policy names.
func (w *world) named() []subjects.AgentID {
	return append([]subjects.AgentID{w.s.Policy.Agent}, w.s.Policy.Alternatives...)
}

// attempt has agent try, and fail.
func (w *world) attempt(agent subjects.AgentID) {
	switch {
	case !w.now.Before(w.s.Deadline):
		// The deadline is the router's to watch; it asks no more.
	case w.s.TokenBudget > 0 && w.s.TokensSpent >= w.s.TokenBudget:
		w.t.Fatalf("an attempt starts with %d of %d tokens spent", w.s.TokensSpent, w.s.TokenBudget)
	case w.failed[agent]:
		w.t.Fatalf("level 2 goes back to %s", agent)
	case w.s.Policy.Agent != "" && !slices.Contains(w.named(), agent):
		w.t.Fatalf("pinned to %v, but %s tries", w.named(), agent)
	case w.retry != "" && agent != w.retry:
		w.t.Fatalf("level 1 goes to %s, not to %s", agent, w.retry)
	}
	a := fleet.Attempt{
		Attempt: len(w.s.Attempts) + 1, AgentID: agent,
		Code:      rapid.SampledFrom(codes).Draw(w.t, "code"),
		Retryable: rapid.Bool().Draw(w.t, "retryable"),
		Tokens:    rapid.SampledFrom([]int64{0, 0, 200}).Draw(w.t, "tokens"),
	}
	if a.Code == subjects.CodeAgentBusy {
		if w.busy++; w.busy > 10 {
			a.Code = subjects.CodeAgentError
		}
	}
	if a.Code != subjects.CodeAgentBusy {
		w.started++
		w.retry = ""
	}
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 300).Draw(w.t, "took")) * time.Second)
	w.s.TokensSpent += a.Tokens
	w.s.RetryAfter = time.Duration(rapid.IntRange(0, 100).Draw(w.t, "after")) * time.Second
	w.s.Gone = rapid.IntRange(0, 4).Draw(w.t, "gone") == 0
	w.s.Attempts = append(w.s.Attempts, a)
	if a.Code != subjects.CodeAgentBusy {
		w.tried[agent] = true
	}
	if limit := len(w.tried) + w.s.Policy.MaxRetries; w.started > limit {
		w.t.Fatalf("%d attempts by %d agents, with %d retries", w.started, len(w.tried), w.s.Policy.MaxRetries)
	}
}

func (w *world) obey(action escalation.Action) (ended bool) {
	late := !w.now.Before(w.s.Deadline)
	if _, ok := action.(escalation.Expire); ok != late {
		w.t.Fatalf("%T at %s, deadline %s", action, w.now, w.s.Deadline)
	}
	last := fleet.Attempt{}
	if n := len(w.s.Attempts); n > 0 {
		last = w.s.Attempts[n-1]
	}
	switch a := action.(type) {
	case escalation.Retry:
		if !a.At.Before(w.s.Deadline) || a.At.Before(w.now.Add(w.s.RetryAfter)) || a.Agent != last.AgentID {
			w.t.Fatalf("%+v at %s after %+v", a, w.now, last)
		}
		w.now, w.retry = a.At, a.Agent
	case escalation.Reassign:
		if diff := cmp.Diff(escalation.Excluded(w.s.Attempts), a.Exclude) + cmp.Diff(escalation.Only(w.s.Policy, w.s.Attempts), a.Only); diff != "" {
			w.t.Fatalf("the record says otherwise than the action: %s", diff)
		}
		for _, id := range a.Exclude {
			w.failed[id] = true
		}
		w.retry = ""
	case escalation.Return:
		if last.Code != subjects.CodeAgentBusy || last.Level != 0 {
			w.t.Fatalf("returned after %+v", last)
		}
	case escalation.Wait:
		w.now = w.s.Deadline
	case escalation.AskHuman:
		w.checkTop(last, a.Code)
		return true
	case escalation.GiveUp:
		w.checkTop(last, a.Code)
		if blocked := a.State == fleet.StateBlocked; blocked != escalation.Blocked(a.Code) {
			w.t.Fatalf("%+v", a)
		}
		return true
	case escalation.Expire:
		return true
	}
	return false
}

// checkTop sees that level 3 is not reached while somebody else might do it.
func (w *world) checkTop(last fleet.Attempt, code subjects.Code) {
	onBlocked := w.s.Policy.OnBlocked
	atOnce := escalation.Blocked(code) && (onBlocked == fleet.OnBlockedFail || onBlocked == fleet.OnBlockedEscalate)
	if code == subjects.CodeBudgetExhausted || atOnce {
		return
	}
	not := escalation.Excluded(w.s.Attempts)
	for _, id := range roster {
		if w.able[id] && !slices.Contains(not, id) && (w.s.Policy.Agent == "" || slices.Contains(w.named(), id)) {
			w.t.Fatalf("level 3 (%s) after %+v, but %s could do it", code, last, id)
		}
	}
}

// checkLevels sees that levels go 1* 2* 3.
func (w *world) checkLevels() {
	highest := 0
	for i, a := range w.s.Attempts {
		if a.Level == 0 {
			continue
		}
		if a.Level < highest || highest == 3 || a.Level == 3 && i != len(w.s.Attempts)-1 {
			w.t.Fatalf("levels%s", levels(w.s.Attempts))
		}
		highest = a.Level
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := escalation.Backoff{
			Base:       time.Duration(rapid.IntRange(1, 5000).Draw(t, "base")) * time.Millisecond,
			Max:        time.Duration(rapid.IntRange(1, 60000).Draw(t, "max")) * time.Millisecond,
			Multiplier: rapid.Float64Range(1, 4).Draw(t, "multiplier"),
			Jitter:     rapid.Float64Range(0.01, 0.9).Draw(t, "jitter"),
		}
		n, seed := rapid.IntRange(0, 50).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
		want := float64(b.Base)
		for range n {
			want = min(want*b.Multiplier, float64(b.Max))
		}
		want = min(want, float64(b.Max))
		got := b.Delay(n, seed)
		if low, high := want*(1-b.Jitter)-float64(n+2), want*(1+b.Jitter)+1; float64(got) < low || float64(got) > high {
			t.Fatalf("%+v.Delay(%d) = %s, want %s to %s", b, n, got, time.Duration(low), time.Duration(high))
		}
		if again := b.Delay(n, seed); again != got {
			t.Fatalf("Delay = %s, then %s", got, again)
		}
	})
}

func TestDelaysDiffer(t *testing.T) {
	t.Parallel()
	seen := make(map[time.Duration]bool)
	for seed := range uint64(1000) {
		seen[escalation.Backoff{}.Delay(0, seed)] = true
	}
	if len(seen) < 990 {
		t.Errorf("1000 tasks retry at %d different times", len(seen))
	}
	if d := (escalation.Backoff{Jitter: -1}).Delay(3, 7); d != 8*time.Second {
		t.Errorf("fourth delay without jitter = %s, want 8s", d)
	}
}
