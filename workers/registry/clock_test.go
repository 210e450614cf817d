package registry_test

import (
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Who lives is reckoned by the servers' clocks, by which announces are dated.
func TestServersClock(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	plain := s.Bus(t)
	b := s.ConnectAhead(t, s.Config())
	told := events(t, plain)
	start(t, b)
	a := announcement(1)
	a.HeartbeatSeconds = new(0.2)
	store(t, plain, subjects.Announce("claude", "one"), a)
	next(t, told, fleet.AgentLive)
	next(t, told, fleet.AgentLost)
}
