package agent_test

import (
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	now := time.Now()
	health := fleet.MCPHealth{"git": fleet.HealthOK, "web": fleet.HealthDegraded, "new": fleet.HealthUnknown}
	clean, dirty := &fleet.RepoState{Branch: "main", Clean: true}, &fleet.RepoState{Branch: "main"}
	for name, c := range map[string]struct {
		needs    fleet.Requirements
		deadline time.Duration
		repo     *fleet.RepoState
		tier     string
		want     subjects.Code
	}{
		"nothing asked":    {},
		"healthy":          {needs: fleet.Requirements{RequiredMCP: []string{"git"}}},
		"degraded":         {needs: fleet.Requirements{RequiredMCP: []string{"web"}}, want: subjects.CodeMCPUnhealthy},
		"not yet probed":   {needs: fleet.Requirements{RequiredMCP: []string{"new"}}, want: subjects.CodeMCPUnhealthy},
		"capable":          {needs: fleet.Requirements{RequiredCapabilities: []string{"terminal"}}},
		"not capable":      {needs: fleet.Requirements{RequiredCapabilities: []string{"terminal", "x"}}, want: subjects.CodeNoCapableAgent},
		"same tier":        {needs: fleet.Requirements{ModelTier: "sonnet"}, tier: "sonnet"},
		"higher tier":      {needs: fleet.Requirements{ModelTier: "haiku"}, tier: "opus"},
		"lower tier":       {needs: fleet.Requirements{ModelTier: "opus"}, tier: "sonnet", want: subjects.CodeNoCapableAgent},
		"no tier":          {needs: fleet.Requirements{ModelTier: "haiku"}, want: subjects.CodeNoCapableAgent},
		"unknown tier":     {needs: fleet.Requirements{ModelTier: "mega"}, tier: "sonnet"},
		"label":            {needs: fleet.Requirements{Labels: map[string]string{"zone": "a"}}},
		"other label":      {needs: fleet.Requirements{Labels: map[string]string{"zone": "b"}}, want: subjects.CodeNoCapableAgent},
		"clean":            {needs: fleet.Requirements{CleanRepo: true}, repo: clean},
		"dirty":            {needs: fleet.Requirements{CleanRepo: true}, repo: dirty, want: subjects.CodeDirtyRepo},
		"dirty, who cares": {repo: dirty},
		"no repository":    {needs: fleet.Requirements{CleanRepo: true}, want: subjects.CodeDirtyRepo},
		"deadline passed":  {deadline: -time.Hour, want: subjects.CodeDeadlineExceeded},
		"deadline is now":  {deadline: -time.Minute, want: subjects.CodeDeadlineExceeded},
	} {
		d := dispatch("t1", "x")
		d.Requirements = c.needs
		d.Deadline = new(now.Add(time.Minute + c.deadline))
		got := agent.Check(d, health, c.repo, c.tier, now)
		switch {
		case (got == nil) != (c.want == ""):
			t.Errorf("%s: check = %+v, want %q", name, got, c.want)
		case got != nil && (got.Code != c.want || got.Message == "" || got.Retryable):
			t.Errorf("%s: check = %+v, want %q", name, got, c.want)
		}
	}
}
