package router

import (
	"strings"
	"testing"

	"parley/subjects/fleet"
)

// TestLabelsTellClassesApart: a label is short, readable, and no two classes
// have the same.
func TestLabelsTellClassesApart(t *testing.T) {
	t.Parallel()
	label := func(r fleet.Requirements) string { return (&class{Class: newClass(Need{Requirements: r})}).label() }
	if got := label(fleet.Requirements{}); got != "any" {
		t.Errorf("no requirements: %q", got)
	}
	if got, want := label(fleet.Requirements{ModelTier: "opus", CleanRepo: true}), `tier="opus";clean`; got != want {
		t.Errorf("label = %q, want %q", got, want)
	}
	long := strings.Repeat("é", 200)
	a, b := label(fleet.Requirements{RequiredMCP: []string{long + "a"}}), label(fleet.Requirements{RequiredMCP: []string{long + "b"}})
	if a == b || len(a) > maxLabel+20 || !strings.HasPrefix(a, `mcp="éé`) {
		t.Errorf("labels %q and %q", a, b)
	}
}
