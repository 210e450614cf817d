package fleet_test

import (
	"encoding/json"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// typicalEvent is a working record of about 600 bytes.
func typicalEvent() *fleet.Event {
	at := time.Date(2026, 5, 31, 20, 0, 0, 123456789, time.UTC)
	ends := at.Add(time.Hour)
	return &fleet.Event{
		Header: fleet.Header{Type: fleet.TypeEvent, ProtocolVersion: fleet.Version},
		TaskID: "0196f1c2-7b3a-7c11-9d52-3f1f4f0d8a11", Seq: 2, Kind: fleet.KindWorking,
		State: fleet.StateWorking, Attempt: 1, AgentID: "claude-code", InstanceID: "i7f3a9c21",
		Epoch: at.UnixNano(), Time: at, WriteID: "r1-000042",
		Facts: fleet.Facts{
			From: "orchestrator", Created: at, Deadline: at.Add(72 * time.Hour), Priority: fleet.High,
			Requirements: fleet.Requirements{RequiredMCP: []string{"context_mode"}, RequiredCapabilities: []string{"terminal", "file"}},
			Policy:       fleet.Policy{MaxRetries: 3}, Timeout: 3600, TokenBudget: 4000,
			PayloadHash: "9f86d081884c7d659a2feaa0c55ad015", DispatchSeq: 4711, AttemptEnds: &ends,
		},
	}
}

func BenchmarkDecodeDispatch(b *testing.B) {
	data := vector(b, "fleet/task-dispatch.json")
	benchmarkDecode(b, data, fleet.DecodeDispatch)
}

func BenchmarkDecodeResult(b *testing.B) {
	data := vector(b, "fleet/task-result-done.json")
	benchmarkDecode(b, data, fleet.DecodeResult)
}

func BenchmarkDecodeEvent(b *testing.B) {
	benchmarkDecode(b, fleet.MustEncode(typicalEvent()), fleet.DecodeEvent)
}

func BenchmarkDecodeHeartbeat(b *testing.B) {
	h := fleet.Heartbeat{Epoch: 1, ActiveTasks: 4}
	for _, id := range []subjects.TaskID{"a", "b", "c", "d"} {
		h.Holding = append(h.Holding, fleet.Holding{TaskID: id, Attempt: 1})
	}
	benchmarkDecode(b, fleet.MustEncode(h), fleet.DecodeHeartbeat)
}

func benchmarkDecode[T any](b *testing.B, data []byte, decode func([]byte) (T, error)) {
	b.Helper()
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := decode(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeEvent(b *testing.B) {
	b.ReportAllocs()
	ev := typicalEvent()
	b.SetBytes(int64(len(fleet.MustEncode(ev))))
	for b.Loop() {
		if _, err := fleet.Encode(ev); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStandardEvent decodes what BenchmarkDecodeEvent does with the
// standard library, which checks less: a yardstick.
func BenchmarkStandardEvent(b *testing.B) {
	data := fleet.MustEncode(typicalEvent())
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		var ev fleet.Event
		if err := json.Unmarshal(data, &ev); err != nil {
			b.Fatal(err)
		}
	}
}
