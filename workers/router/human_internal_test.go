package router

import (
	"testing"
	"time"

	"parley/subjects"
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

// TestSpentLate: tokens that are told after an attempt's end count once, also
// where it is not said which attempt they are of.
func TestSpentLate(t *testing.T) {
	t.Parallel()
	e := &fleet.Event{State: fleet.StateQueued, Facts: fleet.Facts{Attempts: []fleet.Attempt{
		{Attempt: 1, AgentID: "a"}, {Attempt: 2, AgentID: "a", Tokens: 10},
	}}}
	for _, tt := range []struct {
		name string
		c    claim
		want int // the attempt
	}{
		{"of no attempt", claim{agent: "a"}, 0},
		{"told before", claim{agent: "a", attempt: 2}, 0},
		{"of one that told nothing", claim{agent: "a", attempt: 1}, 1},
		{"of somebody else", claim{agent: "b"}, 0},
	} {
		got := 0
		if n := spentLate(e, tt.c, 10, time.Now()); n != nil {
			got = n.Data.Spent.Attempt
		}
		if got != tt.want {
			t.Errorf("%s: counted for attempt %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestBeside: what is said of a task that waits does not hide why it waits.
func TestBeside(t *testing.T) {
	t.Parallel()
	e := &fleet.Event{
		Seq: 3, Kind: fleet.KindHuman, State: fleet.StateInputRequired, Reason: &fleet.Reason{Code: subjects.CodeAgentLost, Message: "gone"},
		Facts: fleet.Facts{Await: fleet.AwaitHuman, AskedSeq: 3, Attempts: []fleet.Attempt{{Attempt: 1, AgentID: "a"}}},
	}
	now := time.Now()
	for kind, n := range map[string]*fleet.Event{
		fleet.KindSpent:    spentLate(e, claim{agent: "a", attempt: 1}, 10, now),
		fleet.KindMessage:  added(e, fleet.Message{}, now),
		fleet.KindArtifact: published(e, &fleet.Artifact{}, now),
	} {
		if n.Kind != kind || n.Seq != 4 || n.State != e.State || n.Reason != e.Reason || n.Facts.AskedSeq != 3 {
			t.Errorf("%s: %+v, want the state and the reason of the record before", kind, n)
		}
	}
}
