package fleet_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

func TestDecodeRequest(t *testing.T) {
	t.Parallel()
	got, err := fleet.DecodeRequest[fleet.TaskEvents]([]byte(`{"task_id":"a","after_seq":7,"new":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fleet.TaskEvents{TaskID: "a", AfterSeq: 7}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if list, err := fleet.DecodeRequest[fleet.TaskList](nil); err != nil || !cmp.Equal(list, fleet.TaskList{}) {
		t.Errorf("empty TaskList = %+v, %v, want the zero value", list, err)
	}
	if list, err := fleet.DecodeRequest[fleet.AgentList]([]byte(" \n")); err != nil || list != (fleet.AgentList{}) {
		t.Errorf("blank AgentList = %+v, %v, want the zero value", list, err)
	}
}

func request[T any](data string) error {
	_, err := fleet.DecodeRequest[T]([]byte(data))
	return err
}

func TestDecodeRequestRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		err     error
		code    subjects.Code
		pointer string
	}{
		{"no task", request[fleet.TaskRef](""), invalidMessage, "/task_id"},
		{"task id", request[fleet.TaskRef](`{"task_id":"a.b"}`), invalidID, "/task_id"},
		{"kind", request[fleet.TaskRef](`{"task_id":7}`), invalidMessage, "/task_id"},
		{"not an object", request[fleet.TaskRef](`"abc"`), invalidMessage, ""},
		{"null", request[fleet.TaskList](`null`), invalidMessage, ""},
		{"plain text", request[fleet.TaskRef](`abc`), invalidMessage, ""},
		{"wait too long", request[fleet.TaskWait](`{"task_id":"a","timeout_seconds":61}`), invalidMessage, "/timeout_seconds"},
		{"wait nothing", request[fleet.TaskWait](`{}`), invalidMessage, "/task_id"},
		{"too many events", request[fleet.TaskEvents](`{"task_id":"a","limit":1001}`), invalidMessage, "/limit"},
		{"negative sequence", request[fleet.TaskEvents](`{"task_id":"a","after_seq":-1}`), invalidMessage, "/after_seq"},
		{"cancel nothing", request[fleet.TaskCancel](`{}`), invalidMessage, "/task_id"},
		{"answer nothing", request[fleet.TaskAnswer](`{"task_id":"a"}`), invalidMessage, "/text"},
		{"answer part", request[fleet.TaskAnswer](`{"task_id":"a","parts":[{}]}`), invalidMessage, "/parts/0"},
		{"state", request[fleet.TaskList](`{"state":"x"}`), invalidMessage, "/state"},
		{"list limit", request[fleet.TaskList](`{"limit":-1}`), invalidMessage, "/limit"},
		{"agent", request[fleet.AgentList](`{"agent_id":"*"}`), invalidID, "/agent_id"},
		{"agents limit", request[fleet.AgentList](`{"limit":1001}`), invalidMessage, "/limit"},
		{"agents after", request[fleet.AgentList](`{"after":"bob"}`), invalidMessage, "/after"},
		{"alerts after", request[fleet.EscalationList](`{"after":"x.a-1"}`), invalidMessage, "/after"},
		{"drain nobody", request[fleet.AgentDrain](``), invalidMessage, "/agent_id"},
		{"too large", request[fleet.TaskList](strings.Repeat(" ", fleet.MaxMessage) + "{}"), subjects.CodePayloadTooLarge, ""},
	} {
		if subjects.CodeOf(tt.err) != tt.code || subjects.AsError(tt.err).Pointer != tt.pointer {
			t.Errorf("%s: %v, want %s at %q", tt.name, tt.err, tt.code, tt.pointer)
		}
	}
}

func TestDecodeReply(t *testing.T) {
	t.Parallel()
	refused := subjects.Errorf(subjects.CodeRateLimited, "too many").At("/task").WithRemedy("wait").RetryAfter(2e9)
	refused.Also = []*subjects.Error{subjects.Errorf(subjects.CodeInvalidID, "and this")}
	_, err := fleet.DecodeReply[fleet.TaskView](fleet.MustEncode(fleet.ErrorReply{Error: refused}))
	got, ok := errors.AsType[*subjects.Error](err)
	if !ok {
		t.Fatalf("error %v, want a *subjects.Error", err)
	}
	if diff := cmp.Diff(refused, got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}

	view := fleet.TaskView{TaskID: "a", State: fleet.StateError, Result: &fleet.Result{
		Status: fleet.StatusError, NextSteps: []string{}, Error: &fleet.ResultError{Code: "agent_error", Message: "boom"},
	}}
	back, err := fleet.DecodeReply[fleet.TaskView](fleet.MustEncode(view))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(view, back); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
	if r, err := fleet.DecodeReply[fleet.Result](fleet.MustEncode(view.Result)); err != nil || r.Error == nil {
		t.Errorf("a result with an error = %+v, %v, want the result", r, err)
	}
	for _, in := range []string{"", "null", "[]", "x", `{"task_id":1}`} {
		if _, err := fleet.DecodeReply[fleet.TaskView]([]byte(in)); subjects.CodeOf(err) != invalidMessage {
			t.Errorf("DecodeReply(%q) = %v, want invalid_message", in, err)
		}
	}
}

func TestDecodeControlReply(t *testing.T) {
	t.Parallel()
	r, err := fleet.DecodeControlReply([]byte(`{"ok":false,"error":{"code":"not_found","message":"no such task"}}`))
	if err != nil || r.OK || r.Error == nil || r.Error.Code != subjects.CodeNotFound {
		t.Errorf("DecodeControlReply = %+v, %v", r, err)
	}
	for _, in := range []string{"", "null", "true", `{"ok":"yes"}`} {
		if _, err := fleet.DecodeControlReply([]byte(in)); subjects.CodeOf(err) != invalidMessage {
			t.Errorf("DecodeControlReply(%q) = %v, want invalid_message", in, err)
		}
	}
}

func TestDecodeAgentEvent(t *testing.T) {
	t.Parallel()
	want := &fleet.AgentEvent{
		Header:  fleet.Header{Type: fleet.TypeAgentEvent, ProtocolVersion: fleet.Version},
		AgentID: "bob", InstanceID: "main", Epoch: 7, Event: fleet.AgentLive, Time: deadline,
	}
	got, err := fleet.DecodeAgentEvent(fleet.MustEncode(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := fleet.DecodeAgentEvent([]byte(`{"event":"live"}`)); subjects.CodeOf(err) != invalidMessage {
		t.Errorf("an event of nobody: %v, want invalid_message", err)
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	labels := map[string]string{}
	unknown := fleet.Unknown{}
	for k := range strings.SplitSeq("q w e r t z u i o p", " ") {
		labels[k] = k
		unknown["new_"+k] = json.RawMessage(`{"b":1,"a":2}`)
	}
	a := fleet.Announce{Worker: fleet.Worker{AgentID: "a", Labels: labels}, Unknown: unknown}
	first := string(fleet.MustEncode(&a))
	for range 10 {
		if again := string(fleet.MustEncode(&a)); again != first {
			t.Fatalf("equal values encode to\n%s\n%s", first, again)
		}
	}
	if got := string(fleet.MustEncode("a\xffb")); got != "\"a\ufffdb\"" {
		t.Errorf("text that is not UTF-8 encodes to %s", got)
	}
	_, err := fleet.Encode(fleet.Result{Output: json.RawMessage(`{"a":`)})
	if subjects.CodeOf(err) != subjects.CodeInternal {
		t.Errorf("Encode(broken raw JSON) = %v, want internal", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("MustEncode(broken raw JSON) does not panic")
		}
	}()
	fleet.MustEncode(fleet.Result{Output: json.RawMessage(`{"a":`)})
}

func TestTypeOf(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"type":"TASK_RESULT"}`:                   "TASK_RESULT",
		` {"a":{"type":"X"},"type":"TASK_RESULT"}`: "TASK_RESULT",
		`{"type":"TASK_RESULT","broken`:            "TASK_RESULT",
		`{"\u0074ype":"TASK\u005fRESULT"}`:         "TASK_RESULT",
		`{"type":7}`:                               "",
		`{"a":{"type":"X"}}`:                       "",
		`["type"]`:                                 "",
		`prose`:                                    "",
		``:                                         "",
		`{"a":` + strings.Repeat(`{"type":`, 20000): "",
	} {
		if got := fleet.TypeOf([]byte(in)); got != want {
			t.Errorf("TypeOf(%.40s) = %q, want %q", in, got, want)
		}
	}
}

// A trace is passed on if it is one by W3C's rules, and refused otherwise.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, v := range []string{
		good[:54], good + "0", strings.ToUpper(good), "ff" + good[2:], strings.Replace(good, "-00f067", "_00f067", 1),
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
	} {
		_, err := fleet.DecodeDispatch([]byte(`{"brief":"x","traceparent":"` + v + `"}`))
		if e := subjects.AsError(err); err == nil || e.Code != subjects.CodeInvalidMessage || e.Pointer != "/traceparent" {
			t.Errorf("DecodeDispatch with traceparent %q = %v", v, err)
		}
	}
	d, err := fleet.DecodeDispatch([]byte(`{"brief":"x","traceparent":"` + good + `"}`))
	if err != nil || d.Traceparent != good || !fleet.ValidTraceparent(good) {
		t.Errorf("DecodeDispatch = %+v, %v", d, err)
	}
}
