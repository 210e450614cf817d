package a2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/schematest"
)

// kinds are the messages, by schema.
var kinds = map[string]struct {
	decode func([]byte) (any, error)
	sample string
}{
	"a2e-handshake-req":  {untyped(a2e.DecodeRequest), `{"a2e":"1.0","type":"handshake/req","id":"a","ts":1,"agent_id":"x","agent_caps":["tools"],"auth_token":"t","more":1}`},
	"a2e-handshake-resp": {untyped(a2e.DecodeResponse), `{"a2e":"1.0","type":"handshake/resp","id":"b","ts":1,"req_id":"a","ok":false,"reason":"no_caps","accepted_caps":[],"error":{"code":"no_capable_agent","message":"none"}}`},
	"a2e-call-req":       {untyped(a2e.DecodeCall), `{"a2e":"1.0","type":"call/req","id":"c","ts":1.5,"session_id":"a2a-20251122T120000Z-7f3a9c21","call":"get","params":{"task_id":"t"},"wait_seconds":3,"more":{}}`},
	"a2e-call-resp":      {untyped(a2e.DecodeReply), `{"a2e":"1.0","type":"call/resp","id":"d","ts":2,"req_id":"c","ok":true,"result":{"task_id":"t"}}`},
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

// vectors are the messages of the source, by name.
func vectors(tb testing.TB) map[string][]byte {
	tb.Helper()
	paths, err := filepath.Glob("testdata/vectors/*.json")
	if err != nil || len(paths) != 5 {
		tb.Fatalf("%d vectors, %v", len(paths), err)
	}
	all := map[string][]byte{}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			tb.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(p), ".json")] = data
	}
	return all
}

// expected takes the member $expect out of a vector, and gives it.
func expected(tb testing.TB, data []byte) (expect string, rest []byte) {
	tb.Helper()
	m := map[string]any{}
	if err := json.Unmarshal(data, &m); err != nil {
		tb.Fatal(err)
	}
	expect, _ = m["$expect"].(string)
	delete(m, "$expect")
	rest, err := json.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return expect, rest
}

// validate holds data against a schema.
var validate = schematest.Validator(a2e.Schemas(), a2e.Schema)

// TestVectors: whatever can be read is read, passes its schema, and is written
// back as it was; what is refused by the message alone is refused here. That a
// wrong token and missing capabilities are refused is tested where it is known
// what is right (workers/a2e).
func TestVectors(t *testing.T) {
	t.Parallel()
	for name, vector := range vectors(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect, data := expected(t, vector)
			kind := "a2e-handshake-req"
			if name == "handshake-resp" {
				kind = "a2e-handshake-resp"
			}
			got, err := kinds[kind].decode(data)
			if expect == a2e.ReasonVersion {
				if string(subjects.CodeOf(err)) != expect || validate(t, kind, data) == nil {
					t.Errorf("decoded %+v, %v, want %s by the decoder and by the schema", got, err, expect)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := validate(t, kind, data); err != nil {
				t.Errorf("the schema refuses it: %v", err)
			}
			if diff := cmp.Diff(schematest.Value(t, data), schematest.Value(t, fleet.MustEncode(got))); diff != "" {
				t.Errorf("encoded back (-vector +got):\n%s", diff)
			}
		})
	}
	if len(kinds) != len(a2e.Schemas()) {
		t.Errorf("%d kinds, %d schemas", len(kinds), len(a2e.Schemas()))
	}
}

func TestSamplesKeepWhatTheyHold(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		got, err := kind.decode([]byte(kind.sample))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := validate(t, name, []byte(kind.sample)); err != nil {
			t.Errorf("%s: the schema refuses it: %v", name, err)
		}
		if diff := cmp.Diff(schematest.Value(t, []byte(kind.sample)), schematest.Value(t, fleet.MustEncode(got))); diff != "" {
			t.Errorf("%s encoded back (-want +got):\n%s", name, diff)
		}
	}
}

// with is a sample with one member replaced; nil takes it out.
func with(t *testing.T, name, member string, v any) []byte {
	t.Helper()
	m := schematest.Value(t, []byte(kinds[name].sample)).(map[string]any)
	if m[member] = v; v == nil {
		delete(m, member)
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// refusals are what no decoder takes, and where it says so.
var refusals = []struct {
	kind, member string
	value        any
	pointer      string
	code         subjects.Code
}{
	{"a2e-handshake-req", "a2e", "2.0", "/a2e", subjects.CodeVersionMismatch},
	{"a2e-handshake-req", "a2e", "1", "/a2e", subjects.CodeVersionMismatch},
	{"a2e-handshake-req", "a2e", nil, "/a2e", subjects.CodeVersionMismatch},
	{"a2e-handshake-req", "type", "handshake/resp", "/type", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "id", "", "/id", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "id", strings.Repeat("x", 129), "/id", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "ts", nil, "/ts", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "ts", "now", "/ts", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "ts", -1, "/ts", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "agent_id", "a.b", "/agent_id", subjects.CodeInvalidID},
	{"a2e-handshake-req", "agent_id", "router", "/agent_id", subjects.CodeInvalidID},
	{"a2e-handshake-req", "agent_id", nil, "/agent_id", subjects.CodeInvalidID},
	{"a2e-handshake-req", "agent_caps", []any{"tools", "flying"}, "/agent_caps/1", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "agent_caps", []any{"tools", "tools"}, "/agent_caps/1", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "agent_caps", "tools", "/agent_caps", subjects.CodeInvalidMessage},
	{"a2e-handshake-req", "auth_token", strings.Repeat("x", 4097), "/auth_token", subjects.CodeInvalidMessage},
	{"a2e-handshake-resp", "reason", "because", "/reason", subjects.CodeInvalidMessage},
	{"a2e-handshake-resp", "ok", true, "/session_id", subjects.CodeInvalidID},
	{"a2e-call-req", "call", "fly", "/call", subjects.CodeInvalidMessage},
	{"a2e-call-req", "params", []any{}, "/params", subjects.CodeInvalidMessage},
	{"a2e-call-req", "session_id", "s1", "/session_id", subjects.CodeInvalidID},
	{"a2e-call-req", "wait_seconds", 61, "/wait_seconds", subjects.CodeInvalidMessage},
	{"a2e-call-req", "wait_seconds", -1, "/wait_seconds", subjects.CodeInvalidMessage},
	{"a2e-call-resp", "type", "call/req", "/type", subjects.CodeInvalidMessage},
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, r := range refusals {
		_, err := kinds[r.kind].decode(with(t, r.kind, r.member, r.value))
		if e := subjects.AsError(err); subjects.CodeOf(err) != r.code || e.Pointer != r.pointer {
			t.Errorf("%s with %s %.40v: %v, want %s at %s", r.kind, r.member, r.value, err, r.code, r.pointer)
		}
	}
	for _, text := range []string{"", "null", "[]", `{"a2e":1}`, `{"a2e":"1.0","a2e":"1.0"}`, strings.Repeat("[", 10_000), `{"a":"` + strings.Repeat("x", 1<<20) + `"}`} {
		for name, kind := range kinds {
			if _, err := kind.decode([]byte(text)); err == nil || !slices.Contains(subjects.Codes(), subjects.CodeOf(err)) {
				t.Errorf("%s of %.20q: %v, want an error of the contract", name, text, err)
			}
		}
	}
}

// TestRefusalSpeaksTheFourReasons: every error of the contract is one of them.
func TestRefusalSpeaksTheFourReasons(t *testing.T) {
	t.Parallel()
	want := map[subjects.Code]string{
		subjects.CodeAuthFailed: a2e.ReasonAuth, subjects.CodeForbidden: a2e.ReasonAuth, subjects.CodeHostNotAllowed: a2e.ReasonAuth,
		subjects.CodeVersionMismatch: a2e.ReasonVersion, subjects.CodeNoCapableAgent: a2e.ReasonNoCaps,
	}
	head := a2e.Header{A2E: a2e.Version, Type: a2e.TypeResponse, ID: "x", TS: 1}
	for _, code := range subjects.Codes() {
		r := a2e.Refusal(head, "a", subjects.Errorf(code, "no"))
		expect := want[code]
		if expect == "" {
			expect = a2e.ReasonServer
		}
		if r.Reason != expect || r.OK {
			t.Errorf("%s is refused as %q, want %q", code, r.Reason, expect)
		}
		if _, err := a2e.DecodeResponse(fleet.MustEncode(r)); err != nil {
			t.Errorf("%s: %v", code, err)
		}
	}
	hidden := a2e.Refusal(head, "a", errors.New("a secret path"))
	if hidden.Reason != a2e.ReasonServer || strings.Contains(string(fleet.MustEncode(hidden)), "secret") {
		t.Errorf("refused as %+v", hidden)
	}
}

func fuzz(f *testing.F, name string) {
	f.Helper()
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		f.Add([]byte(kinds[kind].sample))
	}
	for _, data := range vectors(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a2e.ReadHeader(data) // must not panic
		got, err := kinds[name].decode(data)
		if err != nil {
			if !slices.Contains(subjects.Codes(), subjects.CodeOf(err)) || subjects.CodeOf(err) == subjects.CodeInternal {
				t.Fatalf("error %v is not one of ours", err)
			}
			return
		}
		if err := validate(t, name, data); err != nil {
			t.Fatalf("the schema refuses what is accepted: %v", err)
		}
		text := fleet.MustEncode(got)
		again, err := kinds[name].decode(text)
		if err != nil || !bytes.Equal(fleet.MustEncode(again), text) {
			t.Fatalf("%s is not stable: %v", text, err)
		}
	})
}

func FuzzDecodeRequest(f *testing.F)  { fuzz(f, "a2e-handshake-req") }
func FuzzDecodeResponse(f *testing.F) { fuzz(f, "a2e-handshake-resp") }
func FuzzDecodeCall(f *testing.F)     { fuzz(f, "a2e-call-req") }
func FuzzDecodeReply(f *testing.F)    { fuzz(f, "a2e-call-resp") }
