package router

import (
	"testing"

	"parley/subjects/fleet"
)

// A record that asks a human anew says so, also after one that asked before.
func TestEscalated(t *testing.T) {
	t.Parallel()
	working := &fleet.Event{Kind: fleet.KindWorking, State: fleet.StateWorking}
	asks := func(kind string, since uint64) *fleet.Event {
		return &fleet.Event{
			Kind: kind, State: fleet.StateInputRequired,
			Facts: fleet.Facts{Await: fleet.AwaitHuman, AskedSeq: since},
		}
	}
	for _, tt := range []struct {
		name   string
		cur, n *fleet.Event
		want   string
	}{
		{"begins", working, asks(fleet.KindHuman, 3), "3"},
		{"goes on", asks(fleet.KindHuman, 3), asks(fleet.KindSpent, 3), ""},
		{"begins anew", asks(fleet.KindHuman, 3), asks(fleet.KindHuman, 4), "3"},
		{"is over", asks(fleet.KindHuman, 3), working, "0"},
		{"never was", working, working, ""},
	} {
		if got := escalated(tt.cur, tt.n); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
