package subjects_test

import (
	"testing"

	"parley/subjects"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"agent_id", "brief", "dependencies", "id", "priority", "token_budget"}
	for name, want := range map[string]string{
		"brieef": "brief", "prioritty": "priority", "token_budgt": "token_budget", "depends_on": "dependencies",
		"agent": "agent_id", "di": "id", "cost": "", "": "", "x": "", "zebra": "",
	} {
		if got := subjects.Nearest(name, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}
