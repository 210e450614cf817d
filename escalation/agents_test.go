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

func TestExcludedAndOnly(t *testing.T) {
	t.Parallel()
	pinned := fleet.Policy{Agent: "p", Alternatives: []subjects.AgentID{"q", "r", "q"}}
	open := fleet.Policy{Alternatives: []subjects.AgentID{"q", "r"}}
	for _, tt := range []struct {
		name     string
		policy   fleet.Policy
		attempts []fleet.Attempt
		excluded []subjects.AgentID
		only     []subjects.AgentID
	}{
		{name: "new"},
		{name: "new, pinned", policy: pinned, only: []subjects.AgentID{"p"}},
		{name: "new, with alternatives", policy: open},
		{
			name: "to try again", policy: open, attempts: []fleet.Attempt{{AgentID: "a", Level: 1}},
			only: []subjects.AgentID{"a"},
		},
		{
			name: "to try again, handed back", policy: open,
			attempts: []fleet.Attempt{{AgentID: "a", Level: 1}, {AgentID: "a"}, {AgentID: "a"}},
			only:     []subjects.AgentID{"a"},
		},
		{
			name: "handed back", policy: pinned, attempts: []fleet.Attempt{{AgentID: "p"}},
			only: []subjects.AgentID{"p"},
		},
		{
			name: "pin failed", policy: pinned,
			attempts: []fleet.Attempt{{AgentID: "p", Level: 1}, {AgentID: "p", Level: 2}},
			excluded: []subjects.AgentID{"p"}, only: []subjects.AgentID{"q", "r"},
		},
		{
			name: "one alternative left", policy: open,
			attempts: []fleet.Attempt{{AgentID: "a", Level: 2}, {AgentID: "q", Level: 2}},
			excluded: []subjects.AgentID{"a", "q"}, only: []subjects.AgentID{"r"},
		},
		{
			name: "no alternative left", policy: open,
			attempts: []fleet.Attempt{{AgentID: "r", Level: 2}, {AgentID: "q", Level: 2}, {AgentID: "b"}},
			excluded: []subjects.AgentID{"r", "q"},
		},
		{
			name: "nobody left, pinned", policy: fleet.Policy{Agent: "p"}, attempts: []fleet.Attempt{{AgentID: "p", Level: 3}},
			excluded: []subjects.AgentID{"p"}, only: []subjects.AgentID{"p"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.excluded, escalation.Excluded(tt.attempts)); diff != "" {
				t.Errorf("Excluded (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.only, escalation.Only(tt.policy, tt.attempts)); diff != "" {
				t.Errorf("Only (-want +got):\n%s", diff)
			}
		})
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
		var action escalation.Action
		s, action = escalation.Next(s, start)
		_, another := action.(escalation.Reassign)
		human, asked := action.(escalation.AskHuman)
		if another != (i < 99) || asked != (i == 99) {
			t.Fatalf("the failure of agent %d is answered by %T", i+1, action)
		}
		if asked && (human.Message != "100 agents have failed it, no more are asked; the last: it broke" || s.Attempts[i].Level != 3) {
			t.Errorf("the human is told %q, of level %d", human.Message, s.Attempts[i].Level)
		}
	}
}
