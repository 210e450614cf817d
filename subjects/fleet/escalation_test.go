package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schematest"
)

// TestEscalationVector: the source's message is valid as it stands, and comes
// back field for field.
func TestEscalationVector(t *testing.T) {
	t.Parallel()
	data := vector(t, "handshake/escalation.json")
	got, err := fleet.DecodeEscalation(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, "escalation", data); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(schematest.Value(t, data), schematest.Value(t, fleet.MustEncode(got))); diff != "" {
		t.Errorf("encoded back (-vector +got):\n%s", diff)
	}
}

func TestNewEscalation(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	e := &fleet.Event{
		TaskID: "t", Seq: 4, Attempt: 1, Time: at, State: fleet.StateQueued,
		Reason: &fleet.Reason{Code: subjects.CodeAgentTimeout, Message: "no result"},
		Facts: fleet.Facts{
			SessionID: "a2a-20251122T120000Z-7f3a9c21",
			Policy:    fleet.Policy{Alternatives: []subjects.AgentID{"status", "ops"}},
			Attempts:  []fleet.Attempt{{Attempt: 1, AgentID: "status", Code: subjects.CodeAgentTimeout, Message: "no result", Level: 2}},
		},
	}
	want := &fleet.Escalation{
		ProtocolVersion: "1.0.0", MessageType: "escalation", SessionID: "a2a-20251122T120000Z-7f3a9c21", Level: 2,
		Reason: "timeout", OriginalAgent: "status", AlternativeAgent: "ops", Timestamp: at, TaskID: "t", Seq: 4, Attempt: 1, State: fleet.StateQueued,
		Traceparent: fleet.TraceOf(subjects.TaskID("t"), "").In(fleet.SpanEscalate, 4),
		Error: fleet.EscalationError{
			Code: "AGENT_TIMEOUT", Message: "no result",
			Details: json.RawMessage(`{"tried":[{"attempt":1,"agent_id":"status","code":"agent_timeout","message":"no result"}]}`),
		},
	}
	got := fleet.NewEscalation(e, 2)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := validate(t, "escalation", fleet.MustEncode(got)); err != nil {
		t.Error(err)
	}
	for code, reason := range map[subjects.Code]string{
		subjects.CodeAgentError: "agent_failure", subjects.CodeAgentLost: "agent_failure",
		subjects.CodeMCPUnhealthy: "error", subjects.CodeBudgetExhausted: "error",
	} {
		e.Reason.Code = code
		if got := fleet.NewEscalation(e, 3).Reason; got != reason {
			t.Errorf("reason of %s = %s, want %s", code, got, reason)
		}
	}
}

func TestEscalationRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ from, to, code, pointer string }{
		{`"1.0.0"`, `"2.0.0"`, "version_mismatch", "/protocol_version"},
		{`"escalation"`, `"handshake_ack"`, "invalid_message", "/message_type"},
		{`"escalation_level": 2`, `"escalation_level": 4`, "invalid_message", "/escalation_level"},
		{`"reason": "timeout"`, `"reason": "mood"`, "invalid_message", "/reason"},
		{`"AGENT_TIMEOUT"`, `""`, "invalid_message", "/error/code"},
		{`"details": {}`, `"details": []`, "invalid_message", "/error/details"},
		{`"status-agent"`, `"status agent"`, "invalid_id", "/original_agent"},
		{`a2a-20251122T120000Z-7f3a9c21`, `x`, "invalid_id", "/session_id"},
	} {
		data := strings.Replace(string(vector(t, "handshake/escalation.json")), tt.from, tt.to, 1)
		_, err := fleet.DecodeEscalation([]byte(data))
		e := subjects.AsError(err)
		if err == nil || string(e.Code) != tt.code || e.Pointer != tt.pointer {
			t.Errorf("%s: %v at %s, want %s at %s", tt.to, err, e.Pointer, tt.code, tt.pointer)
		}
		if validate(t, "escalation", []byte(data)) == nil {
			t.Errorf("%s: the schema accepts it", tt.to)
		}
	}
}

// FuzzDecodeEscalation: what is decoded encodes, to the same message, and its
// schema accepts it.
func FuzzDecodeEscalation(f *testing.F) {
	f.Add([]byte(`{"escalation_level":2,"reason":"timeout","error":{"code":"X","details":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := fleet.DecodeEscalation(data)
		if err != nil {
			_ = subjects.AsError(err)
			return
		}
		again, err := fleet.DecodeEscalation(fleet.MustEncode(m))
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	})
}
