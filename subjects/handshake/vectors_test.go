package handshake_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/schematest"
)

// kinds are the messages: by vector, its decoder and schema.
var kinds = map[string]struct {
	schema string
	decode func([]byte) (any, error)
}{
	"session":          {"session", untyped(handshake.DecodeSession)},
	"handshake-init":   {"session-handshake-init", untyped(handshake.DecodeInit)},
	"handshake-ack":    {"session-handshake-ack", untyped(handshake.DecodeAck)},
	"context-exchange": {"session-context-exchange", untyped(handshake.DecodeExchange)},
	"context":          {"session-context", untyped(handshake.DecodeContext)},
	"identity":         {"session-identity", untyped(handshake.DecodeIdentity)},
	"log-line":         {"session-log-line", untyped(handshake.DecodeLogLine)},
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

func vector(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "vectors", name+".json"))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// validate holds data against a schema.
var validate = schematest.Validator(handshake.Schemas(), handshake.Schema)

func TestVectors(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := vector(t, name)
			got, err := kind.decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate(t, kind.schema, data); err != nil {
				t.Errorf("the schema refuses it: %v", err)
			}
			if diff := cmp.Diff(schematest.Value(t, data), schematest.Value(t, fleet.MustEncode(got))); diff != "" {
				t.Errorf("encoded back (-vector +got):\n%s", diff)
			}
		})
	}
	if len(kinds) != len(handshake.Schemas()) {
		t.Errorf("%d kinds, %d schemas", len(kinds), len(handshake.Schemas()))
	}
}

// with is a vector with one place replaced; an empty value takes it out.
func with(t *testing.T, name, pointer string, v any) []byte {
	t.Helper()
	root := schematest.Value(t, vector(t, name))
	at := root
	path := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for _, step := range path[:len(path)-1] {
		switch x := at.(type) {
		case map[string]any:
			at = x[step]
		case []any:
			at = x[0]
		}
	}
	m := at.(map[string]any)
	if v == nil {
		delete(m, path[len(path)-1])
	} else {
		m[path[len(path)-1]] = v
	}
	data, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// refusals are what no decoder takes, and where it says so.
var refusals = []struct {
	vector, pointer string
	value           any
	code            subjects.Code
}{
	{"session", "/session_id", "a2a-1-2", subjects.CodeInvalidID},
	{"session", "/orchestrator", "a.b", subjects.CodeInvalidID},
	{"session", "/created_at", "yesterday", subjects.CodeInvalidMessage},
	{"session", "/created_at", nil, subjects.CodeInvalidMessage},
	{"session", "/expires_at", "2025-11-22T11:00:00Z", subjects.CodeInvalidMessage},
	{"session", "/task_id", "a b", subjects.CodeInvalidID},
	{"session", "/task_metadata/priority", "soon", subjects.CodeInvalidMessage},
	{"session", "/task_metadata/timeout", -1, subjects.CodeInvalidMessage},
	{"handshake-init", "/protocol_version", "2.0", subjects.CodeVersionMismatch},
	{"handshake-init", "/protocol_version", "1.", subjects.CodeVersionMismatch},
	{"handshake-init", "/message_type", "handshake_ack", subjects.CodeInvalidMessage},
	{"handshake-init", "/initiator/agent_type", "real", subjects.CodeInvalidMessage},
	{"handshake-init", "/target/agent_id", nil, subjects.CodeInvalidID},
	{"handshake-init", "/task/task_id", nil, subjects.CodeInvalidID},
	{"handshake-init", "/task/timeout", 1e9, subjects.CodeInvalidMessage},
	{"handshake-init", "/timestamp", nil, subjects.CodeInvalidMessage},
	{"handshake-ack", "/target/capabilities", []any{""}, subjects.CodeInvalidMessage},
	{"handshake-ack", "/estimated_duration", -1, subjects.CodeInvalidMessage},
	{"handshake-ack", "/reason", map[string]any{"message": "no"}, subjects.CodeInvalidMessage},
	{"context-exchange", "/context/previous_results/0/agent_id", "", subjects.CodeInvalidID},
	{"context-exchange", "/context/constraints/max_execution_time", -5, subjects.CodeInvalidMessage},
	{"context", "/context/previous_agents/0/status", "", subjects.CodeInvalidMessage},
	{"context", "/context/previous_agents/0/findings", []any{}, subjects.CodeInvalidMessage},
	{"context", "/context/previous_agents/0/stored", map[string]any{"digest": "md5:1", "size": 1}, subjects.CodeInvalidMessage},
	{"identity", "/signature", "", subjects.CodeInvalidMessage},
	{"identity", "/agent_id", "router", subjects.CodeInvalidID},
	{"log-line", "/event_type", nil, subjects.CodeInvalidMessage},
	{"log-line", "/data", nil, subjects.CodeInvalidMessage},
	{"log-line", "/data", "text", subjects.CodeInvalidMessage},
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, r := range refusals {
		data := with(t, r.vector, r.pointer, r.value)
		_, err := kinds[r.vector].decode(data)
		e := subjects.AsError(err)
		if subjects.CodeOf(err) != r.code || !strings.HasPrefix(e.Pointer, r.pointer) {
			t.Errorf("%s with %v at %s: %v, want %s there", r.vector, r.value, r.pointer, err, r.code)
		}
	}
	for _, text := range []string{"", "null", "[]", `{"session_id":1}`, `{"a":1,"a":2}`, strings.Repeat("[", 10_000), `{"a":"` + strings.Repeat("x", 1<<20) + `"}`} {
		for name, kind := range kinds {
			if _, err := kind.decode([]byte(text)); err == nil || !slices.Contains(subjects.Codes(), subjects.CodeOf(err)) {
				t.Errorf("%s of %.20q: %v, want an error of the contract", name, text, err)
			}
		}
	}
}

// TestProblemsAreToldTogether: a message with several faults is told all.
func TestProblemsAreToldTogether(t *testing.T) {
	t.Parallel()
	_, err := handshake.DecodeSession([]byte(`{"session_id":"x","orchestrator":"a.b"}`))
	if e := subjects.AsError(err); len(e.Also) != 3 {
		t.Errorf("%d further problems in %v, want 3", len(e.Also), e)
	}
}

func fuzz(f *testing.F, name string) {
	f.Helper()
	f.Add(vector(f, name))
	for other := range kinds {
		f.Add(vector(f, other))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := kinds[name].decode(data)
		if err != nil {
			if !slices.Contains(subjects.Codes(), subjects.CodeOf(err)) || subjects.CodeOf(err) == subjects.CodeInternal {
				t.Fatalf("error %v is not one of ours", err)
			}
			return
		}
		if err := validate(t, kinds[name].schema, data); err != nil {
			t.Fatalf("the schema refuses what is accepted: %v", err)
		}
		text := fleet.MustEncode(got)
		again, err := kinds[name].decode(text)
		if err != nil || !bytes.Equal(fleet.MustEncode(again), text) {
			t.Fatalf("%s is not stable: %v", text, err)
		}
	})
}

func FuzzDecodeSession(f *testing.F)  { fuzz(f, "session") }
func FuzzDecodeInit(f *testing.F)     { fuzz(f, "handshake-init") }
func FuzzDecodeAck(f *testing.F)      { fuzz(f, "handshake-ack") }
func FuzzDecodeExchange(f *testing.F) { fuzz(f, "context-exchange") }
func FuzzDecodeContext(f *testing.F)  { fuzz(f, "context") }
func FuzzDecodeIdentity(f *testing.F) { fuzz(f, "identity") }
func FuzzDecodeLogLine(f *testing.F)  { fuzz(f, "log-line") }

// FuzzDecodeRequest: the requests of the session API.
func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"session_id":"a2a-20251122T120000Z-7f3a9c21","entry":{"status":"completed","output":"x"},"after_version":3}`))
	f.Add([]byte(`{"session_id":"a2a-20251122T120000Z-7f3a9c21","digest":"sha256:00","index":1,"data":"AAAA"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, err := range []error{
			second(handshake.DecodeRequest[handshake.Append](data)), second(handshake.DecodeRequest[handshake.Create](data)),
			second(handshake.DecodeRequest[handshake.Put](data)), second(handshake.DecodeRequest[handshake.Read](data)),
			second(handshake.DecodeRequest[handshake.Greet](data)), second(handshake.DecodeRequest[handshake.Update](data)),
		} {
			if err != nil && (!slices.Contains(subjects.Codes(), subjects.CodeOf(err)) || subjects.CodeOf(err) == subjects.CodeInternal) {
				t.Fatalf("error %v is not one of ours", err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// FuzzDecodeRecord: what is in the stream of contexts is a version that can be
// written again, and folded, or refused.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"session_id":"a2a-20251122T120000Z-7f3a9c21","version":1,"entry":{"agent_id":"a","status":"completed","output":"x"}}`))
	f.Add([]byte(`{"version":18446744073709551615,"shared_data":{"":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := handshake.DecodeRecord(data)
		if err != nil {
			return
		}
		_ = handshake.Fold(r.SessionID, []handshake.Record{*r, *r})
		if _, err := handshake.DecodeRecord(fleet.MustEncode(r)); err != nil {
			t.Fatalf("%s is not read again: %v", fleet.MustEncode(r), err)
		}
	})
}
