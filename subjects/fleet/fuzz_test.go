package fleet_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
)

// seed adds the vectors, the complete messages, and all that is refused.
func seed(f *testing.F) {
	f.Helper()
	paths, err := filepath.Glob("testdata/vectors/*/*")
	if err != nil || len(paths) == 0 {
		f.Fatalf("found vectors %v, %v", paths, err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, text := range complete {
		f.Add([]byte(text))
	}
	for _, r := range allRefusals() {
		if len(r.in) < 1<<12 {
			f.Add([]byte(r.in))
		}
	}
}

// ours checks that an error is one of the contract.
func ours(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*subjects.Error](err)
	if !ok || !slices.Contains(subjects.Codes(), e.Code) || e.Message == "" {
		t.Fatalf("error %v (%T) is not one of ours", err, err)
	}
	if _, err := fleet.Encode(fleet.ErrorReply{Error: e}); err != nil {
		t.Fatalf("the error does not encode: %v", err)
	}
}

// fuzz: no panic; errors are ours; what is accepted is accepted by its schema,
// and is the same after it was encoded and decoded again.
func fuzz(f *testing.F, typ string) {
	f.Helper()
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decoders[typ](data)
		if err != nil {
			ours(t, err)
			return
		}
		if json := len(data) > 0 && data[0] == '{'; json {
			if err := validate(t, schemaOf[typ], data); err != nil {
				t.Fatalf("the schema refuses what is accepted: %v", err)
			}
		}
		stable(t, typ, got)
	})
}

func FuzzDecodeAnnounce(f *testing.F)  { fuzz(f, fleet.TypeAnnounce) }
func FuzzDecodeHeartbeat(f *testing.F) { fuzz(f, fleet.TypeHeartbeat) }
func FuzzDecodeDispatch(f *testing.F)  { fuzz(f, fleet.TypeDispatch) }
func FuzzDecodeResult(f *testing.F)    { fuzz(f, fleet.TypeResult) }
func FuzzDecodeAck(f *testing.F)       { fuzz(f, fleet.TypeAck) }
func FuzzDecodeProgress(f *testing.F)  { fuzz(f, fleet.TypeProgress) }
func FuzzDecodeControl(f *testing.F)   { fuzz(f, fleet.TypeControl) }
func FuzzDecodeEvent(f *testing.F)     { fuzz(f, fleet.TypeEvent) }

func FuzzDecodeDelivery(f *testing.F)      { fuzz(f, fleet.TypeDelivery) }
func FuzzDecodeDeliveryState(f *testing.F) { fuzz(f, fleet.TypeDeliveryState) }

// FuzzDecodeText: whatever is text is a dispatch or refused in our words, and
// without the mark it is refused only for what it is as a whole.
func FuzzDecodeText(f *testing.F) {
	for _, s := range []string{
		"priority: high\n\nx", "required_mcp: [a, 'b', \"c\"]\nBrief: x", "labels: {\"a\":\"b\"}\nalternatives:\n- a\n- b\n\nx",
		"token_budget: 1e3\ndeadline: 2026-05-31T21:00:00Z\n\nx", "note: call me",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, s string, marked bool) {
		if marked {
			s = mark + s
		}
		got, err := fleet.DecodeDispatch([]byte(s))
		if err != nil {
			ours(t, err)
			return
		}
		stable(t, fleet.TypeDispatch, got)
	})
}

func FuzzReadResult(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := fleet.ReadResult(data)
		if err != nil {
			ours(t, err)
			return
		}
		stable(t, fleet.TypeResult, r)
	})
}

// FuzzFindResult: what is found is valid, and is found again in what it was
// encoded to.
func FuzzFindResult(f *testing.F) {
	f.Add("prose ", `{"type":"TASK_RESULT","status":"done"}`, " prose")
	f.Add("{\"a {", `{"type":"TASK_RESULT","status":"partial","remaining":["x"]}`, "}")
	f.Add("```json\n", `{"type":"TASK_RESULT","status":"blocked"}`, "\n```")
	f.Fuzz(func(t *testing.T, before, middle, after string) {
		r, ok := fleet.FindResult(before + middle + after)
		if ok != (r != nil) {
			t.Fatalf("found %v, %v", r, ok)
		}
		if !ok {
			return
		}
		stable(t, fleet.TypeResult, r)
		text := string(fleet.MustEncode(r))
		again, ok := fleet.FindResult(before[:0] + "x " + text + " y")
		if !ok || string(fleet.MustEncode(again)) != text {
			t.Fatalf("%s is not found again", text)
		}
	})
}

// FuzzReply: replies and requests of the API.
func FuzzReply(f *testing.F) {
	seed(f)
	f.Add([]byte(`{"error":{"code":"not_found","message":"no such task"}}`))
	f.Add([]byte(`{"task_id":"a","state":"done","result":{"status":"done"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := fleet.DecodeRequest[fleet.TaskAnswer](data); err != nil {
			ours(t, err)
		}
		if _, err := fleet.DecodeControlReply(data); err != nil {
			ours(t, err)
		}
		v, err := fleet.DecodeReply[fleet.TaskView](data)
		if err != nil {
			if e, ok := errors.AsType[*subjects.Error](err); !ok || e.Code == "" { // its code is the peer's
				t.Fatalf("error %v", err)
			}
			return
		}
		again, err := fleet.DecodeReply[fleet.TaskView](fleet.MustEncode(v))
		if err != nil || string(fleet.MustEncode(again)) != string(fleet.MustEncode(v)) {
			t.Fatalf("%s is not stable: %v", fleet.MustEncode(v), err)
		}
	})
}
