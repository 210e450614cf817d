package run_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

func vector(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "$expect")
	data, err = json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVectors(t *testing.T) {
	t.Parallel()
	data := vector(t, "task-definition.json")
	d, err := run.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	d.Type, d.ProtocolVersion = "", ""
	var want, got any
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(fleet.MustEncode(d), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err = run.Decode(vector(t, "bad-cycle.json"))
	if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeCycle || !strings.Contains(e.Message, "a → b → a") {
		t.Errorf("bad-cycle: %v, want cycle with its name", err)
	}
}

// Everything that is wrong is said at once.
func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := run.Read([]byte(`
task_id: "a b"
timeout: 60
output_location: ../x
agents:
  - {agent_id: x, dependencies: [y, nobody]}
  - {agent_id: y, dependencies: [x], timeout: 61}
  - {agent_id: x}
  - {}
  - {id: z, result_schema: {type: nonsense}}
`))
	e := subjects.AsError(err)
	if e == nil {
		t.Fatal("accepted")
	}
	var at []string
	for _, p := range append([]*subjects.Error{e}, e.Also...) {
		at = append(at, string(p.Code)+" "+p.Pointer)
	}
	want := []string{
		"invalid_id /task_id", "invalid_message /output_location", "invalid_message /agents/1/timeout", "invalid_message /agents/2/id", "invalid_message /agents/3/id",
		"invalid_message /agents/4/result_schema",
		"invalid_message /agents/0/dependencies/1", "cycle /agents/0/dependencies",
	}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// Whatever comes is refused in our words, or is the same once it is written and
// read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte("task_id: x\nagents:\n  - {agent_id: a, dependencies: [b]}\n  - {id: b, agent_id: a, brief: \"${a}\"}\n"))
	f.Add([]byte(`{"agents":[{"id":"a","dependencies":["a"]}]}`))
	f.Add([]byte(`{"agents":[{"id":"a","sequence":1,"timeout":3,"on_failure":"continue","more":1}],"shared_data":{"a":[1]},"timeout":4}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := run.Read(data)
		if err != nil {
			if e := subjects.AsError(err); !slices.Contains(subjects.Codes(), e.Code) || e.Code == subjects.CodeInternal {
				t.Fatalf("error %v is not one of ours", err)
			}
			return
		}
		once := fleet.MustEncode(d)
		again, err := run.Decode(once)
		if err != nil {
			t.Fatalf("%v of what was encoded: %s", err, once)
		}
		if diff := cmp.Diff(string(once), string(fleet.MustEncode(again))); diff != "" {
			t.Fatalf("it changes (-once +again):\n%s", diff)
		}
	})
}

// FuzzDecodeRecord: what is in the stream of runs is a record that can be written
// again, or refused.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"run_id":"r","from":"boss","state":"running","definition":{"agents":[{"id":"a","brief":"x"}]},"nodes":{"a":{"state":"dispatched"}}}`))
	f.Add([]byte(`{"nodes":{"":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := run.DecodeRecord(data)
		if err != nil {
			return
		}
		if _, err := run.DecodeRecord(fleet.MustEncode(r)); err != nil {
			t.Fatalf("%s is not read again: %v", fleet.MustEncode(r), err)
		}
	})
}
