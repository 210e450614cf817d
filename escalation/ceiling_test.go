package escalation_test

import (
	"strings"
	"testing"
	"time"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// A budget that the task shares with others is one that it has: once it is
// spent nothing begins without a human, whoever spent it.
func TestCeilings(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0).UTC()
	failed := []fleet.Attempt{{Attempt: 1, AgentID: "a", Code: subjects.CodeAgentError, Retryable: true, Message: "m"}}
	for _, c := range []struct {
		name     string
		spent    int64
		starting bool
		attempts []fleet.Attempt
		asks     bool
	}{
		{"to begin, with something left", 9, true, nil, false},
		{"to begin, with nothing left", 10, true, nil, true},
		{"to begin again, with nothing left", 11, true, failed, true},
		{"failed, with something left", 9, false, failed, false},
		{"failed, with nothing left", 10, false, failed, true},
	} {
		s := escalation.State{
			Policy: fleet.Policy{MaxRetries: 3}, Attempts: c.attempts, Deadline: now.Add(time.Hour), HumanContact: true, Starting: c.starting,
			Ceilings: []escalation.Ceiling{{Of: "run", Budget: 10, Spent: c.spent}},
		}
		_, action := escalation.Next(s, now)
		ask, asks := action.(escalation.AskHuman)
		if asks != c.asks {
			t.Errorf("%s: %#v", c.name, action)
		}
		if asks && (ask.Code != subjects.CodeBudgetExhausted || !strings.HasPrefix(ask.Message, "the run's token budget of 10 is spent (")) {
			t.Errorf("%s: %+v", c.name, ask)
		}
	}
}
