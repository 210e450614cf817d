package agent_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/agent"
)

// greeting is a handshake_init for bob.
func greeting(t *testing.T, target subjects.AgentID) []byte {
	t.Helper()
	data, err := os.ReadFile("../../subjects/handshake/testdata/vectors/handshake-init.json")
	if err != nil {
		t.Fatal(err)
	}
	i, err := handshake.DecodeInit(data)
	if err != nil {
		t.Fatal(err)
	}
	i.Target.AgentID = target
	return fleet.MustEncode(i)
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	release := make(chan struct{})
	a := r.start(agent.Config{Tools: []string{"status_check"}, Handler: agent.HandlerFunc(func(context.Context, *agent.Task) (fleet.Result, error) {
		<-release
		return fleet.Result{Status: fleet.StatusDone}, nil
	})})
	ask := func(data []byte) json.RawMessage {
		t.Helper()
		m, err := r.b.Request(t.Context(), subjects.Handshake("bob"), data, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.Data
	}
	ack, err := handshake.DecodeAck(ask(greeting(t, "bob")))
	if err != nil || !ack.Accepted || ack.Target.Status != handshake.StatusReady || ack.Target.AgentID != "bob" ||
		len(ack.Target.Capabilities) != 1 || ack.SessionID != "a2a-20251122T120000Z-7f3a9c21" {
		t.Errorf("ack %+v, %v, want ready", ack, err)
	}
	exchange, err := os.ReadFile("../../subjects/handshake/testdata/vectors/context-exchange.json")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := fleet.DecodeControlReply(ask(exchange)); err != nil || !p.OK {
		t.Errorf("the context is answered %+v, %v, want ok", p, err)
	}
	if _, err := fleet.DecodeReply[handshake.Ack](ask(greeting(t, "eve"))); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("a greeting for another is answered %v, want forbidden", err)
	}
	if _, err := fleet.DecodeReply[handshake.Ack](ask([]byte(`{"message_type":"handshake_init"}`))); subjects.CodeOf(err) != subjects.CodeVersionMismatch {
		t.Errorf("a greeting without a version is answered %v, want version_mismatch", err)
	}
	a.give(dispatch("t1", "x"))
	ack, err = handshake.DecodeAck(ask(greeting(t, "bob")))
	if err != nil || ack.Accepted || ack.Reason == nil || ack.Reason.Code != subjects.CodeAgentBusy {
		t.Errorf("ack with no slot free %+v, %v, want agent_busy", ack, err)
	}
	close(release)
	r.result("t1")
}
