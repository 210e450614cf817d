package agent_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func TestAnnounce(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{
		Handler: agent.Echo{}, Instance: "one", Model: "claude-opus-4-8", ModelTier: "opus", ContextWindow: 200000,
		Tools: []string{"terminal"}, Labels: map[string]string{"zone": "a"}, AgentType: "virtual", MaxParallel: 4,
		Skills: []json.RawMessage{[]byte(`{"id":"review"}`)},
	})
	got := next(t, "the announce", r.announces)
	bustest.Eventually(t, "the agent is ready", func() bool { return a.Ready() == nil })
	want := fleet.Announce{
		Header: fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version},
		Worker: fleet.Worker{
			AgentID: "bob", Model: "claude-opus-4-8", ModelTier: "opus", ContextWindow: 200000, InstanceID: "one",
			Epoch: a.Epoch(), MaxParallel: 4, Labels: map[string]string{"zone": "a"}, AgentType: "virtual",
		},
		Capabilities: fleet.Capabilities{Tools: []string{"terminal"}, MCPServers: []string{}, Skills: []json.RawMessage{[]byte(`{"id":"review"}`)}},
		Session:      fleet.SessionState{SessionFresh: true}, HeartbeatSeconds: new(0.1),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("announce (-want +got):\n%s", diff)
	}
}

// The kept announce of an agent that has stopped says that it drains.
func TestFarewell(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.Echo{}, Heartbeat: time.Hour})
	a.end()
	await(t, "the last heartbeat", r.beats, func(h fleet.Heartbeat) bool { return h.Draining })
	m, err := r.b.Last(t.Context(), subjects.StreamAnnounce, subjects.Announce("bob", a.Instance()))
	if err != nil {
		t.Fatal(err)
	}
	if x, err := fleet.DecodeAnnounce(m.Data); err != nil || !x.Draining {
		t.Errorf("kept announce = %s, %v, want draining", m.Data, err)
	}
}
