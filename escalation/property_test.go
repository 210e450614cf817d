package escalation_test

import (
	stdcmp "cmp"
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
		subjects.CodeForbidden, subjects.CodeLoginRequired, subjects.CodePermissionDenied, subjects.CodeCheckFailed, subjects.CodeBudgetExhausted, subjects.CodeAgentBusy, subjects.CodeUnavailable, "new_code",
	}
)

func genState(t *rapid.T) escalation.State {
	agent := rapid.SampledFrom(roster)
	s := escalation.State{
		Policy: fleet.Policy{
			MaxRetries:   rapid.IntRange(0, 4).Draw(t, "max_retries"),
			MaxLosses:    rapid.IntRange(0, 4).Draw(t, "max_losses"),
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
	t     *rapid.T
	s     escalation.State
	now   time.Time
	able  map[subjects.AgentID]bool // could do it, now or later
	retry subjects.AgentID          // level 1 is pending
	tries int                       // attempts that were tries at the work
	tried map[subjects.AgentID]bool
	lost  fleet.Counters // as they must be
}

// TestThePolicyEnds runs fleets in which nothing ever succeeds.
func TestThePolicyEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, s: genState(t), now: start,
			able: make(map[subjects.AgentID]bool), tried: make(map[subjects.AgentID]bool),
		}
		for _, id := range roster {
			w.able[id] = rapid.Bool().Draw(t, "able "+string(id))
		}
		for step := 0; !w.step(); step++ {
			if step > 500 {
				t.Fatalf("no end in sight: %+v", w.s)
			}
		}
		w.checkLevels()
	})
}

// may lists who could do the task by its record, ever and now, and when the first
// of those comes back who may not now.
func (w *world) may() (ever, now []subjects.AgentID, back time.Time) {
	c := escalation.CandidatesOf(w.s.Policy, w.s.Attempts, w.s.Widened, nil)
	for _, id := range roster {
		if !w.able[id] || len(c.Only) > 0 && !slices.Contains(c.Only, id) {
			continue
		}
		out, until := false, time.Time{}
		for _, e := range c.Exclude {
			switch {
			case e.Agent != id:
			case e.Until.IsZero():
				out = true
			default:
				until = later(until, e.Until)
			}
		}
		switch {
		case out:
			continue
		case !until.After(w.now):
			now = append(now, id)
		case back.IsZero() || until.Before(back):
			back = until
		}
		ever = append(ever, id)
	}
	return ever, now, back
}

// step lets one thing go wrong and reports whether the task has ended.
func (w *world) step() (ended bool) {
	w.s.Nobody, w.s.Away, w.s.RetryAfter = nil, false, 0
	ever, may, back := w.may()
	switch {
	case len(ever) == 0:
		w.s.Nobody = []fleet.Reason{{Code: subjects.CodeNoCapableAgent, Message: "nobody"}}
	case len(may) == 0:
		w.now = back
		return !w.now.Before(w.s.Deadline)
	case rapid.IntRange(0, 9).Draw(w.t, "leave") == 0:
		w.s.Away = true
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
	case w.s.Policy.Agent != "" && !slices.Contains(w.named(), agent):
		w.t.Fatalf("pinned to %v, but %s tries", w.named(), agent)
	case w.retry != "" && agent != w.retry && w.s.Widened == 0:
		w.t.Fatalf("level 1 goes to %s, not to %s", agent, w.retry)
	}
	if c := w.s.Counters; c != nil && rapid.IntRange(0, 3).Draw(w.t, "artifact") == 0 {
		c.Losses, w.lost.Losses = 0, 0
	}
	w.s.Made++
	a := fleet.Attempt{
		Attempt: w.s.Made, AgentID: agent, InstanceID: "i", Ended: w.now,
		Code:      rapid.SampledFrom(codes).Draw(w.t, "code"),
		Retryable: rapid.Bool().Draw(w.t, "retryable"),
		Tokens:    rapid.SampledFrom([]int64{0, 0, 200}).Draw(w.t, "tokens"),
	}
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 300).Draw(w.t, "took")) * time.Second)
	w.s.TokensSpent += a.Tokens
	w.s.RetryAfter = time.Duration(rapid.IntRange(0, 100).Draw(w.t, "after")) * time.Second
	w.s.Attempts = append(w.s.Attempts, a)
	switch class := escalation.ClassOf(a.Code); {
	case class == escalation.ClassLoss:
		w.lost.Losses++
		w.lost.LossesTotal++
	case class.CountsAsTry():
		w.tries++
		w.tried[agent] = true
		w.retry = ""
	}
	if limit := len(w.tried) + w.s.Policy.MaxRetries; w.tries > limit {
		w.t.Fatalf("%d tries by %d agents, with %d retries", w.tries, len(w.tried), w.s.Policy.MaxRetries)
	}
	if most := stdcmp.Or(w.s.Policy.MaxLosses, fleet.DefaultMaxLosses); w.lost.Losses > most || w.lost.LossesTotal > 4*most || w.s.Made > 100 {
		w.t.Fatalf("%+v of %d losses in %d attempts", w.lost, most, w.s.Made)
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
	if !late {
		w.lost.Retries = w.s.Counters.Retries
		if diff := cmp.Diff(&w.lost, w.s.Counters); diff != "" {
			w.t.Fatalf("counters (-want +got):\n%s", diff)
		}
	}
	class := escalation.ClassOf(last.Code)
	switch a := action.(type) {
	case escalation.Retry:
		if !a.At.Before(w.s.Deadline) || a.At.Before(w.now.Add(w.s.RetryAfter)) || a.Agent != last.AgentID || !class.CountsAsTry() {
			w.t.Fatalf("%+v at %s after %+v", a, w.now, last)
		}
		w.now, w.retry = a.At, a.Agent
	case escalation.Reassign:
		w.retry = ""
	case escalation.Requeue:
		if !class.Requeues() || last.Level != 0 {
			w.t.Fatalf("queued again after %+v", last)
		}
		w.now = later(w.now, a.At)
	case escalation.Widen:
	case escalation.Wait:
		if w.s.Nobody != nil {
			w.now = w.s.Deadline
		}
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

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// checkTop sees that level 3 is not reached while somebody else might do it.
func (w *world) checkTop(last fleet.Attempt, code subjects.Code) {
	onBlocked := w.s.Policy.OnBlocked
	atOnce := escalation.Blocked(code) && (onBlocked == fleet.OnBlockedFail || onBlocked == fleet.OnBlockedEscalate)
	if code == subjects.CodeBudgetExhausted || atOnce {
		return
	}
	most := stdcmp.Or(w.s.Policy.MaxLosses, fleet.DefaultMaxLosses)
	switch c := w.s.Counters; {
	case code == subjects.CodeAgentLost && (c.Losses >= most || c.LossesTotal >= 4*most), w.s.Made >= 100:
		return
	case escalation.ClassOf(last.Code).Requeues() && w.s.Nobody == nil:
		w.t.Fatalf("level 3 (%s) after %+v with %+v", code, last, c)
	}
	exclude := escalation.Excluded(w.s.Policy, w.s.Attempts)
	for _, id := range roster {
		out := slices.ContainsFunc(exclude, func(e escalation.Exclusion) bool { return e.Agent == id && e.Until.IsZero() })
		if w.able[id] && !out && (w.s.Policy.Agent == "" || slices.Contains(w.named(), id)) {
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
