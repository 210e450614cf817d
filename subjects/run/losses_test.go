package run_test

import (
	"testing"

	"parley/subjects/run"
)

// TestNodeLosses: a node says how many agents its task may lose.
func TestNodeLosses(t *testing.T) {
	t.Parallel()
	n := run.Node{ID: "a", Brief: "x", MaxLosses: 5}
	if got := n.Dispatch(&run.Definition{}).Task.MaxLosses; got != 5 {
		t.Errorf("the task may lose %d agents, want 5", got)
	}
}
