package escalation_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

func TestCandidatesOf(t *testing.T) {
	t.Parallel()
	pinned := fleet.Policy{Agent: "p", Alternatives: []subjects.AgentID{"q", "r", "q"}}
	open := fleet.Policy{Alternatives: []subjects.AgentID{"q", "r"}}
	failed := func(id subjects.AgentID, level int) fleet.Attempt {
		return fleet.Attempt{AgentID: id, Code: subjects.CodeAgentError, Level: level, Ended: start}
	}
	ended := func(id subjects.AgentID, code subjects.Code) fleet.Attempt {
		return fleet.Attempt{AgentID: id, InstanceID: "i", Code: code, Level: 2, Ended: start}
	}
	wait := fleet.Policy{OnBlocked: fleet.OnBlockedWait, MaxRetries: 1}
	for _, tt := range []struct {
		name     string
		policy   fleet.Policy
		attempts []fleet.Attempt
		widened  int
		human    *fleet.HumanAnswer
		want     escalation.Candidates
	}{
		{name: "new"},
		{name: "new, pinned", policy: pinned, want: escalation.Candidates{Only: []subjects.AgentID{"p"}, Wider: true}},
		{name: "new, pinned without alternatives", policy: fleet.Policy{Agent: "p"}, want: escalation.Candidates{Only: []subjects.AgentID{"p"}}},
		{name: "pin away", policy: pinned, widened: 1, want: escalation.Candidates{Only: []subjects.AgentID{"p", "q", "r"}}},
		{name: "new, with alternatives", policy: open},
		{
			name: "to try again", policy: open, attempts: []fleet.Attempt{failed("a", 1)},
			want: escalation.Candidates{Only: []subjects.AgentID{"a"}, Wider: true},
		},
		{
			name: "to try again, away", policy: open, attempts: []fleet.Attempt{failed("a", 1)}, widened: 1,
			want: escalation.Candidates{Only: []subjects.AgentID{"a", "q", "r"}, Wider: true},
		},
		{name: "to try again, all away", policy: open, attempts: []fleet.Attempt{failed("a", 1)}, widened: 2},
		{
			name: "to try again, handed back", policy: open,
			attempts: []fleet.Attempt{failed("a", 1), {AgentID: "a", Code: subjects.CodeAgentBusy}},
			want:     escalation.Candidates{Only: []subjects.AgentID{"a"}, Wider: true},
		},
		{
			name: "handed back", policy: pinned, attempts: []fleet.Attempt{{AgentID: "p", Code: subjects.CodeAgentBusy}},
			want: escalation.Candidates{Only: []subjects.AgentID{"p"}, Wider: true},
		},
		{
			name: "pin failed", policy: pinned, attempts: []fleet.Attempt{failed("p", 1), failed("p", 2)},
			want: escalation.Candidates{Only: []subjects.AgentID{"q", "r"}, Exclude: []escalation.Exclusion{{Agent: "p"}}},
		},
		{
			name: "one alternative left", policy: open, attempts: []fleet.Attempt{failed("a", 2), failed("q", 2)},
			want: escalation.Candidates{
				Only: []subjects.AgentID{"r"}, Wider: true, Exclude: []escalation.Exclusion{{Agent: "a"}, {Agent: "q"}},
			},
		},
		{
			name: "no alternative left", policy: open, attempts: []fleet.Attempt{failed("r", 2), failed("q", 2)},
			want: escalation.Candidates{Exclude: []escalation.Exclusion{{Agent: "r"}, {Agent: "q"}}},
		},
		{
			name: "nobody left, pinned", policy: fleet.Policy{Agent: "p"}, attempts: []fleet.Attempt{failed("p", 3)},
			want: escalation.Candidates{Only: []subjects.AgentID{"p"}, Exclude: []escalation.Exclusion{{Agent: "p"}}},
		},
		{
			name:     "a loss and a limit exclude nobody, whatever a former build answered",
			attempts: []fleet.Attempt{ended("a", subjects.CodeAgentLost), ended("a", subjects.CodeRateLimited)},
		},
		{
			name: "a condition excludes the instance", attempts: []fleet.Attempt{ended("a", subjects.CodeMCPUnhealthy)},
			want: escalation.Candidates{Exclude: []escalation.Exclusion{{Agent: "a", Instance: "i"}}},
		},
		{
			name: "a statement excludes the agent", attempts: []fleet.Attempt{ended("a", subjects.CodePermissionDenied)},
			want: escalation.Candidates{Exclude: []escalation.Exclusion{{Agent: "a"}}},
		},
		{
			name: "waiting, a condition excludes for a while", policy: wait,
			attempts: []fleet.Attempt{ended("a", subjects.CodeDirtyRepo), ended("a", subjects.CodeDirtyRepo)},
			want: escalation.Candidates{Exclude: []escalation.Exclusion{
				{Agent: "a", Instance: "i", Since: start, Until: start.Add(2 * time.Minute)},
			}},
		},
		{
			name: "waiting, a statement excludes for a while", policy: wait,
			attempts: []fleet.Attempt{ended("a", subjects.CodeForbidden)},
			want: escalation.Candidates{Exclude: []escalation.Exclusion{
				{Agent: "a", Since: start, Until: start.Add(time.Minute)},
			}},
		},
		{
			name: "waiting, a statement excludes at last", policy: wait,
			attempts: []fleet.Attempt{ended("a", subjects.CodeForbidden), ended("a", subjects.CodeForbidden)},
			want:     escalation.Candidates{Exclude: []escalation.Exclusion{{Agent: "a"}}},
		},
		{
			name: "reassigned by a human", policy: pinned, attempts: []fleet.Attempt{failed("x", 3)}, human: &fleet.HumanAnswer{AgentID: "x"},
			want: escalation.Candidates{Only: []subjects.AgentID{"x"}},
		},
		{
			name: "tried again by a human", policy: pinned, attempts: []fleet.Attempt{failed("p", 3)}, human: &fleet.HumanAnswer{},
			want: escalation.Candidates{Only: []subjects.AgentID{"p", "q", "r", "q"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := escalation.CandidatesOf(tt.policy, tt.attempts, tt.widened, tt.human)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestClassOf(t *testing.T) {
	t.Parallel()
	for code, want := range map[subjects.Code]escalation.Class{
		subjects.CodeResultInvalid: escalation.ClassResult, subjects.CodeCheckFailed: escalation.ClassResult,
		subjects.CodeSecretInChanges: escalation.ClassResult,
		subjects.CodeAgentError:      escalation.ClassAgent, subjects.CodeAgentTimeout: escalation.ClassAgent,
		"": escalation.ClassAgent, "new_code": escalation.ClassAgent, subjects.CodeInternal: escalation.ClassAgent,
		subjects.CodeAgentLost: escalation.ClassLoss, subjects.CodeAgentBusy: escalation.ClassHandBack,
		subjects.CodeRateLimited:  escalation.ClassCapacity,
		subjects.CodeMCPUnhealthy: escalation.ClassCondition, subjects.CodeDirtyRepo: escalation.ClassCondition,
		subjects.CodeLoginRequired: escalation.ClassCondition, subjects.CodeSetupFailed: escalation.ClassCondition,
		subjects.CodeNoCapableAgent: escalation.ClassStatement, subjects.CodeForbidden: escalation.ClassStatement,
		subjects.CodeHostNotAllowed: escalation.ClassStatement, subjects.CodePermissionDenied: escalation.ClassStatement,
		subjects.CodeBudgetExhausted: escalation.ClassBudget,
	} {
		if got := escalation.ClassOf(code); got != want {
			t.Errorf("ClassOf(%q) = %s, want %s", code, got, want)
		}
	}
	if got := escalation.SaidByAgent(subjects.CodeAgentLost); got != subjects.CodeAgentError {
		t.Errorf("an agent that says agent_lost itself counts as %s", got)
	}
	if got := escalation.SaidByAgent(subjects.CodeRateLimited); got != subjects.CodeRateLimited {
		t.Errorf("an agent that says rate_limited counts as %s", got)
	}
}

// A record of a build that kept no counters is counted by its attempts.
func TestCountersOfFormerBuilds(t *testing.T) {
	t.Parallel()
	s := escalation.State{Policy: fleet.Policy{MaxRetries: 2}, Deadline: start.Add(time.Hour), Attempts: []fleet.Attempt{
		{AgentID: "a", Code: subjects.CodeAgentError, Level: 1},
		{AgentID: "b", Code: subjects.CodeAgentLost, Level: 2},
		{AgentID: "c", Code: subjects.CodeAgentLost},
	}}
	s, action := escalation.Next(s, start)
	if diff := cmp.Diff(&fleet.Counters{Retries: 1, Losses: 2, LossesTotal: 2}, s.Counters); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := action.(escalation.Requeue); !ok {
		t.Errorf("the second loss is answered by %#v", action)
	}
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	for code, want := range map[subjects.Code]bool{
		subjects.CodeMCPUnhealthy: true, subjects.CodeDirtyRepo: true, subjects.CodeNoCapableAgent: true,
		subjects.CodeForbidden: true, subjects.CodeAgentBusy: false, subjects.CodeAgentError: false,
		subjects.CodeRateLimited: false, subjects.CodeBudgetExhausted: false, "": false,
	} {
		if got := escalation.Blocked(code); got != want {
			t.Errorf("Blocked(%q) = %t, want %t", code, got, want)
		}
	}
}

func TestNothingHasHappened(t *testing.T) {
	t.Parallel()
	s := escalation.State{Deadline: start.Add(1)}
	if _, a := escalation.Next(s, start); a != (escalation.Wait{}) {
		t.Errorf("Next = %#v, want Wait", a)
	}
	if got := (escalation.AskHuman{Code: subjects.CodeDirtyRepo, Message: "x"}).End(); got.State != fleet.StateBlocked {
		t.Errorf("End = %+v, want blocked", got)
	}
}

// After a hundred agents have failed a task, it is not another that is missing.
func TestAHundredAgentsFail(t *testing.T) {
	t.Parallel()
	s := escalation.State{Deadline: start.Add(time.Hour), HumanContact: true}
	for i := range 100 {
		s.Attempts = append(s.Attempts, fleet.Attempt{
			Attempt: i + 1, AgentID: subjects.AgentID(fmt.Sprintf("a%d", i)), Ended: start, Code: subjects.CodeAgentError, Message: "it broke",
		})
		s.Made = i + 1
		var action escalation.Action
		s, action = escalation.Next(s, start)
		_, another := action.(escalation.Reassign)
		human, asked := action.(escalation.AskHuman)
		if another != (i < 99) || asked != (i == 99) {
			t.Fatalf("the failure of agent %d is answered by %T", i+1, action)
		}
		if asked && (human.Message != "100 attempts have failed, no more are made; the last: it broke" || s.Attempts[i].Level != 3) {
			t.Errorf("the human is told %q, of level %d", human.Message, s.Attempts[i].Level)
		}
	}
}
