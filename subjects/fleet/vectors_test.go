package fleet_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schematest"
)

func vector(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "vectors", name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// decoders by message type; each returns the message as it would be encoded.
var decoders = map[string]func([]byte) (any, error){
	fleet.TypeAnnounce:  untyped(fleet.DecodeAnnounce),
	fleet.TypeHeartbeat: untyped(fleet.DecodeHeartbeat),
	fleet.TypeDispatch:  untyped(fleet.DecodeDispatch),
	fleet.TypeResult:    untyped(fleet.DecodeResult),
	fleet.TypeAck:       untyped(fleet.DecodeAck),
	fleet.TypeProgress:  untyped(fleet.DecodeProgress),
	fleet.TypeControl:   untyped(fleet.DecodeControl),
	fleet.TypeEvent:     untyped(fleet.DecodeEvent),

	fleet.TypeDelivery:      untyped(fleet.DecodeDelivery),
	fleet.TypeDeliveryState: untyped(fleet.DecodeDeliveryState),
}

// schemaOf names the schema of a message type.
var schemaOf = map[string]string{
	fleet.TypeAnnounce:  "session-announce",
	fleet.TypeHeartbeat: "heartbeat",
	fleet.TypeDispatch:  "task-dispatch",
	fleet.TypeResult:    "task-result",
	fleet.TypeAck:       "handshake-ack",
	fleet.TypeProgress:  "task-progress",
	fleet.TypeControl:   "control",
	fleet.TypeEvent:     "task-event",

	fleet.TypeDelivery:      "webhook-delivery",
	fleet.TypeDeliveryState: "webhook-state",

	fleet.EscalationType: "escalation",
}

// untyped forgets the type of a decoder, but not whether it returned nil.
func untyped[T any](decode func([]byte) (*T, error)) func([]byte) (any, error) {
	return func(data []byte) (any, error) {
		v, err := decode(data)
		if err != nil {
			return nil, err
		}
		return v, nil
	}
}

func TestVectors(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/vectors/fleet/*.json")
	if err != nil || len(paths) < 7 {
		t.Fatalf("found vectors %v, %v", paths, err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			members, ok := schematest.Value(t, vector(t, "fleet/"+name)).(map[string]any)
			if !ok {
				t.Fatal("not an object")
			}
			expect, bad := members["$expect"].(string)
			if bad != strings.HasPrefix(name, "bad-") {
				t.Fatalf("$expect is %q", expect)
			}
			delete(members, "$expect")
			data, err := json.Marshal(members)
			if err != nil {
				t.Fatal(err)
			}
			typ := fleet.TypeOf(data)
			got, err := decoders[typ](data)
			schemaErr := validate(t, schemaOf[typ], data)
			if bad {
				if string(subjects.CodeOf(err)) != expect {
					t.Errorf("decode: %v, want %s", err, expect)
				}
				if schemaErr == nil {
					t.Error("the schema accepts it")
				}
				return
			}
			if err != nil || schemaErr != nil {
				t.Fatalf("decoder: %v; schema: %v", err, schemaErr)
			}
			if diff := cmp.Diff(any(members), schematest.Value(t, fleet.MustEncode(got))); diff != "" {
				t.Errorf("encoded back (-vector +got):\n%s", diff)
			}
		})
	}
}

func TestVectorInline(t *testing.T) {
	t.Parallel()
	got, err := fleet.DecodeDispatch(vector(t, "fleet/task-dispatch-inline.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := &fleet.Dispatch{
		Header:       fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
		Task:         fleet.Task{Priority: fleet.High, ReplySchema: fleet.ReplyStructured, TokenBudget: 4000},
		Requirements: fleet.Requirements{RequiredMCP: []string{"context_mode"}},
		Brief:        "Refactor the auth module...",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVectorResultInProse(t *testing.T) {
	t.Parallel()
	text := vector(t, "fleet/task-result-in-prose.txt")
	got, err := fleet.ReadResult(text)
	if err != nil {
		t.Fatal(err)
	}
	want := &fleet.Result{
		Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version},
		TaskID: "abc-123", Status: fleet.StatusPartial, TokensSpent: 2110,
		NextSteps: []string{"Update the integration tests"},
		Artifacts: json.RawMessage(`{"files_changed":["src/auth/token_refresh.py"]}`),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := fleet.DecodeResult(text); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
		t.Errorf("DecodeResult(prose) = %v, want invalid_message", err)
	}
}

// What CLI agents print is for the exec driver, but must never pass for a
// TASK_RESULT, nor break anything.
func TestVectorsOfCLIAgents(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/vectors/cli-agents/*")
	if err != nil || len(paths) < 7 {
		t.Fatalf("found vectors %v, %v", paths, err)
	}
	for _, path := range paths {
		text := vector(t, "cli-agents/"+filepath.Base(path))
		if r, ok := fleet.FindResult(string(text)); ok {
			t.Errorf("FindResult(%s) = %+v, want none", path, r)
		}
	}
}
