package fleet_test

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	invalidMessage = subjects.CodeInvalidMessage
	invalidID      = subjects.CodeInvalidID
)

// refusal is a message that its decoder must refuse.
type refusal struct {
	name, typ, in string
	code          subjects.Code
	pointer       string
	says          string // part of the message
	lenient       bool   // its schema cannot say so (see fleet.Schema)
}

func task(member string) string {
	return `{"brief":"x","task":{` + member + `}}`
}

func list(n int, item string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(item, "#", strconv.Itoa(i))
	}
	return "[" + strings.Join(items, ",") + "]"
}

// refusals of messages of any kind.
var refusals = []refusal{
	{name: "empty", typ: "TASK_DISPATCH", in: "", code: invalidMessage, says: "empty"},
	{name: "blank", typ: "TASK_DISPATCH", in: " \n", code: invalidMessage, says: "empty"},
	{name: "null", typ: "HEARTBEAT", in: " null", code: invalidMessage, says: "expected object, got null"},
	{name: "array", typ: "HEARTBEAT", in: "[]", code: invalidMessage, says: "expected object, got array"},
	{name: "text", typ: "HEARTBEAT", in: `"x"`, code: invalidMessage, says: "expected object, got string"},
	{name: "not JSON", typ: "HEARTBEAT", in: `{epoch:1}`, code: invalidMessage, says: "not JSON at byte 1"},
	{name: "cut short", typ: "TASK_DISPATCH", in: `{"brief":"x`, code: invalidMessage, pointer: "/brief", says: "ends too early"},
	{name: "trailing", typ: "TASK_DISPATCH", in: `{"brief":"x"}{}`, code: invalidMessage, says: "not JSON at byte 13"},
	{name: "twice", typ: "TASK_DISPATCH", in: `{"brief":"x","task":{"type":"a","type":"b"}}`, code: invalidMessage, pointer: "/task/type", says: "twice", lenient: true},
	{name: "unknown twice", typ: "TASK_DISPATCH", in: `{"brief":"x","new":1,"new":2}`, code: invalidMessage, pointer: "/new", says: "twice", lenient: true},
	{name: "not UTF-8", typ: "TASK_DISPATCH", in: "{\"brief\":\"\xff\"}", code: invalidMessage, pointer: "/brief", says: "UTF-8", lenient: true},
	{name: "half a surrogate", typ: "TASK_DISPATCH", in: `{"brief":"\ud800"}`, code: invalidMessage, pointer: "/brief", lenient: true},
	{name: "too deep", typ: "TASK_DISPATCH", in: `{"brief":"x","new":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "}", code: invalidMessage, says: "deeper than 64", lenient: true},
	{name: "too large", typ: "TASK_DISPATCH", in: `{"brief":"` + strings.Repeat("x", fleet.MaxMessage) + `"}`, code: subjects.CodePayloadTooLarge, says: "at most 1048576", lenient: true},
	{name: "other type", typ: "TASK_DISPATCH", in: `{"type":"TASK_RESULT","status":"done"}`, code: invalidMessage, pointer: "/type", says: `expected "TASK_DISPATCH", got "TASK_RESULT"`},
	{name: "type of another kind", typ: "TASK_DISPATCH", in: `{"type":7,"brief":"x"}`, code: invalidMessage, pointer: "/type", says: "expected string, got number"},
	{name: "other case", typ: "TASK_DISPATCH", in: `{"Brief":"x"}`, code: invalidMessage, pointer: "/brief", says: "got nothing"},
	{name: "other major", typ: "TASK_DISPATCH", in: `{"protocol_version":"1.9","brief":"x"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version", says: `"1.9"`},
	{name: "no version", typ: "TASK_DISPATCH", in: `{"protocol_version":"two","brief":"x"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "2. is none", typ: "TASK_DISPATCH", in: `{"protocol_version":"2.","brief":"x"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "20 is not 2", typ: "TASK_DISPATCH", in: `{"protocol_version":"20","brief":"x"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "version wins over type", typ: "TASK_DISPATCH", in: `{"type":"X","protocol_version":"3.0"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "version wins over rules", typ: "TASK_DISPATCH", in: `{"brief":"","task":{"task_id":"a.b"},"protocol_version":"3.0"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "version wins over kinds", typ: "TASK_DISPATCH", in: `{"brief":[],"protocol_version":"3.0"}`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "version wins over syntax", typ: "TASK_DISPATCH", in: `{"protocol_version":"3.0","brief":`, code: subjects.CodeVersionMismatch, pointer: "/protocol_version"},
	{name: "type wins over kinds", typ: "TASK_DISPATCH", in: `{"brief":[],"type":"X"}`, code: invalidMessage, pointer: "/type"},
}

var dispatchRefusals = []refusal{
	{name: "no brief", in: `{}`, code: invalidMessage, pointer: "/brief"},
	{name: "blank brief", in: `{"brief":" \n"}`, code: invalidMessage, pointer: "/brief"},
	{name: "brief is a number", in: `{"brief":3}`, code: invalidMessage, pointer: "/brief", says: "expected string, got number"},
	{name: "no parts", in: `{"input":{"parts":[]}}`, code: invalidMessage, pointer: "/brief"},
	{name: "task is a list", in: `{"brief":"x","task":[]}`, code: invalidMessage, pointer: "/task", says: "expected object, got array"},
	{name: "task id", in: task(`"task_id":"a b"`), code: invalidID, pointer: "/task/task_id"},
	{name: "long task id", in: task(`"task_id":"` + strings.Repeat("x", 65) + `"`), code: invalidID, pointer: "/task/task_id"},
	{name: "priority", in: task(`"priority":"High"`), code: invalidMessage, pointer: "/task/priority", says: `got "High"`},
	{name: "reply schema", in: task(`"reply_schema":"xml"`), code: invalidMessage, pointer: "/task/reply_schema"},
	{name: "negative budget", in: task(`"token_budget":-1`), code: invalidMessage, pointer: "/task/token_budget", says: "got -1"},
	{name: "budget beyond 2^53", in: task(`"token_budget":9007199254740992`), code: invalidMessage, pointer: "/task/token_budget"},
	{name: "budget beyond 2^63", in: task(`"token_budget":99999999999999999999`), code: invalidMessage, pointer: "/task/token_budget", says: "expected integer, got number 99999999999999999999"},
	{name: "budget with fraction", in: task(`"token_budget":1.5`), code: invalidMessage, pointer: "/task/token_budget", says: "expected integer, got number 1.5"},
	{name: "budget as float", in: task(`"token_budget":4000.0`), code: invalidMessage, pointer: "/task/token_budget", lenient: true},
	{name: "budget as text", in: task(`"token_budget":"4000"`), code: invalidMessage, pointer: "/task/token_budget", says: "expected integer, got string"},
	{name: "negative timeout", in: task(`"timeout_seconds":-0.5`), code: invalidMessage, pointer: "/task/timeout_seconds", says: "expected 0 to 2592000, got -0.5"},
	{name: "long timeout", in: task(`"timeout_seconds":2592001`), code: invalidMessage, pointer: "/task/timeout_seconds"},
	{name: "endless timeout", in: task(`"timeout_seconds":1e999`), code: invalidMessage, pointer: "/task/timeout_seconds", says: "fits 64 bits"},
	{name: "negative retries", in: task(`"max_retries":-1`), code: invalidMessage, pointer: "/task/max_retries"},
	{name: "many retries", in: task(`"max_retries":101`), code: invalidMessage, pointer: "/task/max_retries"},
	{name: "agent", in: task(`"agent":"a.>"`), code: invalidID, pointer: "/task/agent"},
	{name: "reserved agent", in: task(`"agent":"router"`), code: invalidID, pointer: "/task/agent", says: "reserved"},
	{name: "alternative", in: task(`"alternatives":["a","*"]`), code: invalidID, pointer: "/task/alternatives/1"},
	{name: "empty alternative", in: task(`"alternatives":[""]`), code: invalidMessage, pointer: "/task/alternatives/0"},
	{name: "alternative twice", in: task(`"alternatives":["a","b","a"]`), code: invalidMessage, pointer: "/task/alternatives/2", says: "twice"},
	{name: "many alternatives", in: task(`"alternatives":` + list(33, `"a#"`)), code: invalidMessage, pointer: "/task/alternatives", says: "at most 32"},
	{name: "on_blocked", in: task(`"on_blocked":"panic"`), code: invalidMessage, pointer: "/task/on_blocked"},
	{name: "escalate", in: task(`"escalate":"maybe"`), code: invalidMessage, pointer: "/task/escalate"},
	{name: "result schema", in: task(`"result_schema":"{}"`), code: invalidMessage, pointer: "/task/result_schema", says: "expected object or boolean, got string"},
	{name: "result schema number", in: task(`"result_schema":12`), code: invalidMessage, pointer: "/task/result_schema", says: "got number 12"},
	{name: "result schema that does not compile", in: task(`"result_schema":{"type":"nonsense"}`), code: invalidMessage, pointer: "/task/result_schema", says: "does not compile"},
	{name: "result schema that refers outside", in: task(`"result_schema":{"$ref":"https://example.com/x"}`), code: invalidMessage, pointer: "/task/result_schema", says: "are not followed", lenient: true},
	{name: "session id", in: task(`"session_id":"s-1"`), code: invalidID, pointer: "/task/session_id"},
	{name: "session id of month 13", in: task(`"session_id":"a2a-20251322T110000Z-7f3a9c21"`), code: invalidID, pointer: "/task/session_id", lenient: true},
	{name: "session id with fraction", in: task(`"session_id":"a2a-20251122T110000.5Z-7f3a9c21"`), code: invalidID, pointer: "/task/session_id"},
	{name: "long key", in: task(`"idempotency_key":"` + strings.Repeat("k", 256) + `"`), code: invalidMessage, pointer: "/task/idempotency_key"},
	{name: "key with control", in: task(`"idempotency_key":"a\nb"`), code: invalidMessage, pointer: "/task/idempotency_key"},
	{name: "run id", in: task(`"run_id":"a/b"`), code: invalidID, pointer: "/task/run_id"},
	{name: "empty requirement", in: `{"brief":"x","requirements":{"required_mcp":["a",""]}}`, code: invalidMessage, pointer: "/requirements/required_mcp/1"},
	{name: "null requirement", in: `{"brief":"x","requirements":{"required_mcp":[null]}}`, code: invalidMessage, pointer: "/requirements/required_mcp/0"},
	{name: "long requirement", in: `{"brief":"x","requirements":{"required_capabilities":["` + strings.Repeat("x", 257) + `"]}}`, code: invalidMessage, pointer: "/requirements/required_capabilities/0"},
	{name: "long requirement in bytes", in: `{"brief":"x","requirements":{"required_capabilities":["` + strings.Repeat("é", 200) + `"]}}`, code: invalidMessage, pointer: "/requirements/required_capabilities/0", lenient: true},
	{name: "many requirements", in: `{"brief":"x","requirements":{"required_mcp":` + list(65, `"m#"`) + `}}`, code: invalidMessage, pointer: "/requirements/required_mcp"},
	{name: "tier", in: `{"brief":"x","requirements":{"model_tier":"very large"}}`, code: invalidMessage, pointer: "/requirements/model_tier"},
	{name: "many labels", in: `{"brief":"x","requirements":{"labels":{` + strings.Trim(list(33, `"l#":"v"`), "[]") + `}}}`, code: invalidMessage, pointer: "/requirements/labels"},
	{name: "unnamed label", in: `{"brief":"x","requirements":{"labels":{"":"v"}}}`, code: invalidMessage, pointer: "/requirements/labels"},
	{name: "long label", in: `{"brief":"x","requirements":{"labels":{"a/b":"` + strings.Repeat("x", 257) + `"}}}`, code: invalidMessage, pointer: "/requirements/labels/a~1b"},
	{name: "label is a number", in: `{"brief":"x","requirements":{"labels":{"gpu":1}}}`, code: invalidMessage, pointer: "/requirements/labels/gpu", says: "expected string, got number"},
	{name: "clean repo", in: `{"brief":"x","requirements":{"clean_repo":"yes"}}`, code: invalidMessage, pointer: "/requirements/clean_repo", says: "expected boolean, got string"},
	{name: "deadline", in: `{"brief":"x","deadline":"tomorrow"}`, code: invalidMessage, pointer: "/deadline", says: "expected a time"},
	{name: "deadline without zone", in: `{"brief":"x","deadline":"2026-05-31T21:00:00"}`, code: invalidMessage, pointer: "/deadline"},
	{name: "deadline is a number", in: `{"brief":"x","deadline":1780261200}`, code: invalidMessage, pointer: "/deadline", says: "got number"},
	{name: "part with two", in: `{"input":{"parts":[{"text":"a"},{"text":"a","url":"b"}]}}`, code: invalidMessage, pointer: "/input/parts/1", says: "got text and url"},
	{name: "part with none", in: `{"input":{"parts":[{"filename":"a"}]}}`, code: invalidMessage, pointer: "/input/parts/0", says: "got nothing"},
	{name: "part is null", in: `{"input":{"parts":[null]}}`, code: invalidMessage, pointer: "/input/parts/0"},
	{name: "part of null text", in: `{"input":{"parts":[{"text":null}]}}`, code: invalidMessage, pointer: "/input/parts/0"},
	{name: "raw", in: `{"input":{"parts":[{"raw":"abc"}]}}`, code: invalidMessage, pointer: "/input/parts/0/raw", says: "base64"},
	{name: "raw with lines", in: `{"input":{"parts":[{"raw":"YWJj\n"}]}}`, code: invalidMessage, pointer: "/input/parts/0/raw"},
	{name: "raw with loose bits", in: `{"input":{"parts":[{"raw":"YR=="}]}}`, code: invalidMessage, pointer: "/input/parts/0/raw"},
	{name: "metadata", in: `{"brief":"x","input":{"metadata":[]}}`, code: invalidMessage, pointer: "/input/metadata", says: "expected object, got array"},
	{name: "from", in: `{"brief":"x","from":"a.b"}`, code: invalidID, pointer: "/from"},
	{name: "attempt", in: `{"brief":"x","attempt":-1}`, code: invalidMessage, pointer: "/attempt"},
}

var resultRefusals = []refusal{
	{name: "no status", in: `{}`, code: invalidMessage, pointer: "/status"},
	{name: "status", in: `{"status":"finished"}`, code: invalidMessage, pointer: "/status", says: `got "finished"`},
	{name: "null status", in: `{"status":null}`, code: invalidMessage, pointer: "/status"},
	{name: "tokens", in: `{"status":"done","tokens_spent":-1}`, code: invalidMessage, pointer: "/tokens_spent"},
	{name: "blocked without reason", in: `{"status":"blocked"}`, code: invalidMessage, pointer: "/blocked_reason"},
	{name: "blocked with blank reason", in: `{"status":"blocked","blocked_reason":" "}`, code: invalidMessage, pointer: "/blocked_reason"},
	{name: "error without error", in: `{"status":"error"}`, code: invalidMessage, pointer: "/error", says: "got nothing"},
	{name: "error without message", in: `{"status":"error","error":{"code":"x"}}`, code: invalidMessage, pointer: "/error/message"},
	{name: "error is blank", in: `{"status":"error","error":" "}`, code: invalidMessage, pointer: "/error/message"},
	{name: "error is a number", in: `{"status":"error","error":4}`, code: invalidMessage, pointer: "/error", says: "expected object, got number"},
	{name: "error message is a number", in: `{"status":"error","error":{"message":4}}`, code: invalidMessage, pointer: "/error/message", says: "expected string, got number"},
	{name: "partial without rest", in: `{"status":"partial","next_steps":[]}`, code: invalidMessage, pointer: "/remaining"},
	{name: "artifacts", in: `{"status":"done","artifacts":["a"]}`, code: invalidMessage, pointer: "/artifacts", says: "expected object, got array"},
	{name: "state", in: `{"status":"done","state":"working"}`, code: invalidMessage, pointer: "/state"},
	{name: "next steps", in: `{"status":"done","next_steps":"none"}`, code: invalidMessage, pointer: "/next_steps", says: "expected array, got string"},
	{name: "part", in: `{"status":"done","parts":[{}]}`, code: invalidMessage, pointer: "/parts/0"},
	{name: "agent", in: `{"status":"done","agent_id":"a b"}`, code: invalidID, pointer: "/agent_id"},
	{name: "instance", in: `{"status":"done","instance_id":"a b"}`, code: invalidID, pointer: "/instance_id"},
	{name: "epoch", in: `{"status":"done","epoch":-1}`, code: invalidMessage, pointer: "/epoch"},
	{name: "http status", in: `{"status":"error","error":{"message":"x","http_status":1000}}`, code: invalidMessage, pointer: "/error/http_status"},
}

var announceRefusals = []refusal{
	{name: "no worker", in: `{}`, code: invalidMessage, pointer: "/worker/agent_id", says: "got nothing"},
	{name: "agent", in: `{"worker":{"agent_id":"a.b"}}`, code: invalidID, pointer: "/worker/agent_id"},
	{name: "reserved agent", in: `{"worker":{"agent_id":"registry"}}`, code: invalidID, pointer: "/worker/agent_id"},
	{name: "instance", in: `{"worker":{"agent_id":"a","instance_id":"*"}}`, code: invalidID, pointer: "/worker/instance_id"},
	{name: "tier", in: `{"worker":{"agent_id":"a","model_tier":"a b"}}`, code: invalidMessage, pointer: "/worker/model_tier"},
	{name: "messages", in: `{"worker":{"agent_id":"a","max_messages":-1}}`, code: invalidMessage, pointer: "/worker/max_messages"},
	{name: "parallel", in: `{"worker":{"agent_id":"a","max_parallel":10001}}`, code: invalidMessage, pointer: "/worker/max_parallel"},
	{name: "window", in: `{"worker":{"agent_id":"a","context_window":-1}}`, code: invalidMessage, pointer: "/worker/context_window"},
	{name: "heartbeat", in: `{"worker":{"agent_id":"a"},"heartbeat_seconds":0.05}`, code: invalidMessage, pointer: "/heartbeat_seconds"},
	{name: "slow heartbeat", in: `{"worker":{"agent_id":"a"},"heartbeat_seconds":3601}`, code: invalidMessage, pointer: "/heartbeat_seconds"},
	{name: "ttl", in: `{"worker":{"agent_id":"a"},"ttl_seconds":86401}`, code: invalidMessage, pointer: "/ttl_seconds"},
	{name: "tool", in: `{"worker":{"agent_id":"a"},"capabilities":{"tools":[""]}}`, code: invalidMessage, pointer: "/capabilities/tools/0"},
	{name: "skill", in: `{"worker":{"agent_id":"a"},"capabilities":{"skills":["x"]}}`, code: invalidMessage, pointer: "/capabilities/skills/0", says: "expected object, got string"},
	{name: "null skill", in: `{"worker":{"agent_id":"a"},"capabilities":{"skills":[null]}}`, code: invalidMessage, pointer: "/capabilities/skills/0"},
	{name: "unnamed server", in: `{"worker":{"agent_id":"a"},"mcp_health":{"":"ok"}}`, code: invalidMessage, pointer: "/mcp_health"},
	{name: "active", in: `{"worker":{"agent_id":"a"},"session":{"active_tasks":-1}}`, code: invalidMessage, pointer: "/session/active_tasks"},
	{name: "probed", in: `{"worker":{"agent_id":"a"},"mcp_probed_at":{"x":"now"}}`, code: invalidMessage, pointer: "/mcp_probed_at/x", says: "expected a time"},
}

var liveRefusals = []refusal{
	{name: "heartbeat epoch", typ: "HEARTBEAT", in: `{"epoch":-1}`, code: invalidMessage, pointer: "/epoch"},
	{name: "held task", typ: "HEARTBEAT", in: `{"holding":[{"task_id":"a"},{"task_id":"b.c"}]}`, code: invalidID, pointer: "/holding/1/task_id"},
	{name: "held nothing", typ: "HEARTBEAT", in: `{"holding":[{"attempt":1}]}`, code: invalidMessage, pointer: "/holding/0/task_id"},
	{name: "held attempt", typ: "HEARTBEAT", in: `{"holding":[{"task_id":"a","attempt":-1}]}`, code: invalidMessage, pointer: "/holding/0/attempt"},
	{name: "holds too many", typ: "HEARTBEAT", in: `{"holding":` + list(10001, `{"task_id":"t#"}`) + `}`, code: invalidMessage, pointer: "/holding"},
	{name: "ack without answer", typ: "HANDSHAKE_ACK", in: `{}`, code: invalidMessage, pointer: "/accepted", says: "got nothing"},
	{name: "ack of null", typ: "HANDSHAKE_ACK", in: `{"accepted":null}`, code: invalidMessage, pointer: "/accepted"},
	{name: "ack with result", typ: "HANDSHAKE_ACK", in: `{"type":"TASK_RESULT","status":"done"}`, code: invalidMessage, pointer: "/type"},
	{name: "reason without code", typ: "HANDSHAKE_ACK", in: `{"accepted":false,"reason":{"message":"no"}}`, code: invalidMessage, pointer: "/reason/code"},
	{name: "duration", typ: "HANDSHAKE_ACK", in: `{"accepted":true,"estimated_duration":-1}`, code: invalidMessage, pointer: "/estimated_duration"},
	{name: "percent", typ: "TASK_PROGRESS", in: `{"percent":101}`, code: invalidMessage, pointer: "/percent"},
	{name: "tokens", typ: "TASK_PROGRESS", in: `{"tokens_spent":-1}`, code: invalidMessage, pointer: "/tokens_spent"},
	{name: "artifact without id", typ: "TASK_PROGRESS", in: `{"artifact":{"parts":[]}}`, code: invalidMessage, pointer: "/artifact/artifact_id"},
	{name: "artifact part", typ: "TASK_PROGRESS", in: `{"artifact":{"artifact_id":"a","parts":[{}]}}`, code: invalidMessage, pointer: "/artifact/parts/0"},
	{name: "question without id", typ: "TASK_PROGRESS", in: `{"question":{"text":"which?"}}`, code: invalidMessage, pointer: "/question/id"},
	{name: "question without text", typ: "TASK_PROGRESS", in: `{"question":{"id":"q"}}`, code: invalidMessage, pointer: "/question/text"},
	{name: "progress task", typ: "TASK_PROGRESS", in: `{"task_id":"a b"}`, code: invalidID, pointer: "/task_id"},
	{name: "action", typ: "CONTROL", in: `{"action":"STOP"}`, code: invalidMessage, pointer: "/action"},
	{name: "no action", typ: "CONTROL", in: `{}`, code: invalidMessage, pointer: "/action"},
	{name: "cancel what", typ: "CONTROL", in: `{"action":"CANCEL"}`, code: invalidMessage, pointer: "/task_id"},
	{name: "input to what", typ: "CONTROL", in: `{"action":"INPUT","task_id":"a"}`, code: invalidMessage, pointer: "/question_id"},
	{name: "event of nothing", typ: "TASK_EVENT", in: `{"seq":1,"kind":"queued","state":"queued"}`, code: invalidMessage, pointer: "/task_id"},
	{name: "event without seq", typ: "TASK_EVENT", in: `{"task_id":"a","kind":"queued","state":"queued"}`, code: invalidMessage, pointer: "/seq"},
	{name: "event without kind", typ: "TASK_EVENT", in: `{"task_id":"a","seq":1,"state":"queued"}`, code: invalidMessage, pointer: "/kind"},
	{name: "event without state", typ: "TASK_EVENT", in: `{"task_id":"a","seq":1,"kind":"queued"}`, code: invalidMessage, pointer: "/state"},
	{name: "event state", typ: "TASK_EVENT", in: `{"task_id":"a","seq":1,"kind":"queued","state":"lost"}`, code: invalidMessage, pointer: "/state"},
	{name: "event seq", typ: "TASK_EVENT", in: `{"task_id":"a","seq":-1,"kind":"queued","state":"queued"}`, code: invalidMessage, pointer: "/seq", says: "expected non-negative integer"},
	{name: "event facts", typ: "TASK_EVENT", in: `{"task_id":"a","seq":1,"kind":"queued","state":"queued","facts":{"policy":{"max_retries":"3"}}}`, code: invalidMessage, pointer: "/facts/policy/max_retries"},
}

func allRefusals() []refusal {
	all := append([]refusal{}, refusals...)
	for typ, list := range map[string][]refusal{
		fleet.TypeDispatch: dispatchRefusals, fleet.TypeResult: resultRefusals, fleet.TypeAnnounce: announceRefusals, "": liveRefusals,
		fleet.TypeDelivery: deliveryRefusals,
	} {
		for _, r := range list {
			if r.typ == "" {
				r.typ = typ
			}
			all = append(all, r)
		}
	}
	return all
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range allRefusals() {
		t.Run(tt.typ+"/"+tt.name, func(t *testing.T) {
			t.Parallel()
			v, err := decoders[tt.typ]([]byte(tt.in))
			if v != nil || err == nil {
				t.Fatalf("decoded to %+v, %v, want %s", v, err, tt.code)
			}
			e, ok := errors.AsType[*subjects.Error](err)
			if !ok || e.Code != tt.code || e.Pointer != tt.pointer || !strings.Contains(e.Message, tt.says) {
				t.Errorf("got %v, want %s at %q with %q", err, tt.code, tt.pointer, tt.says)
			}
			if schemaErr := validate(t, schemaOf[tt.typ], []byte(tt.in)); (schemaErr == nil) != tt.lenient {
				t.Errorf("schema: %v, want lenient %v", schemaErr, tt.lenient)
			}
		})
	}
}

func TestRefusalTellsAll(t *testing.T) {
	t.Parallel()
	_, err := fleet.DecodeDispatch(vector(t, "fleet/bad-priority-and-budget.json"))
	e := subjects.AsError(err)
	got := []string{e.Pointer}
	for _, also := range e.Also {
		got = append(got, also.Pointer)
	}
	if diff := cmp.Diff([]string{"/task/priority", "/task/token_budget", "/brief"}, got); diff != "" {
		t.Errorf("pointers (-want +got):\n%s", diff)
	}
	_, err = fleet.DecodeDispatch([]byte(`{"requirements":{"required_mcp":` + list(64, `""`) + `}}`))
	if e := subjects.AsError(err); len(e.Also) != 15 {
		t.Errorf("%d further problems, want 15 of 64", len(e.Also))
	}
	_, err = fleet.DecodeDispatch(nil)
	if e := subjects.AsError(err); !strings.Contains(e.Remedy, "--force-stdin") {
		t.Errorf("remedy of an empty dispatch: %q", e.Remedy)
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, typ, in, want string }{
		{
			"defaults", "TASK_DISPATCH", `{"brief":"x"}`,
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"priority":"normal"},"requirements":{"required_mcp":[],"required_capabilities":[]},"brief":"x"}`,
		},
		{
			"urgent is critical", "TASK_DISPATCH", task(`"priority":"urgent"`),
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"priority":"critical"},"requirements":{"required_mcp":[],"required_capabilities":[]},"brief":"x"}`,
		},
		{
			"null is absent", "TASK_DISPATCH",
			`{"type":null,"protocol_version":null,"task":{"task_id":null,"max_retries":null,"result_schema":null,"alternatives":null},"requirements":null,"deadline":null,"input":null,"brief":"x","context":null}`,
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"priority":"normal"},"requirements":{"required_mcp":[],"required_capabilities":[]},"brief":"x"}`,
		},
		{
			"unknown members stay", "TASK_DISPATCH",
			`{"protocol_version":"2.7.1","brief":"x","zeta":{"a":[1.50]},"alpha":null,"task":{"colour":"red","priority":"low"},"requirements":{"required_mcp":[],"required_capabilities":[],"gpu":2}}`,
			`{"type":"TASK_DISPATCH","protocol_version":"2.7.1","task":{"priority":"low","colour":"red"},"requirements":{"required_mcp":[],"required_capabilities":[],"gpu":2},"brief":"x","alpha":null,"zeta":{"a":[1.50]}}`,
		},
		{
			"parts for a brief", "TASK_DISPATCH",
			`{"input":{"parts":[{"text":""},{"data":null},{"data":{"a":1},"url":null},{"url":"https://x"},{"raw":"YWI=","mediaType":"text/plain","filename":"f"}]}}`,
			`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"priority":"normal"},"requirements":{"required_mcp":[],"required_capabilities":[]},"brief":"","input":{"parts":[{"text":""},{"data":null},{"data":{"a":1}},{"url":"https://x"},{"raw":"YWI=","mediaType":"text/plain","filename":"f"}]}}`,
		},
		{"schema may be a boolean", "TASK_DISPATCH", task(`"result_schema":true`), `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"priority":"normal","result_schema":true},"requirements":{"required_mcp":[],"required_capabilities":[]},"brief":"x"}`},
		{"partial by next steps", "TASK_RESULT", `{"status":"partial","next_steps":["b"]}`, `{"type":"TASK_RESULT","protocol_version":"2.0","status":"partial","tokens_spent":0,"next_steps":["b"],"blocked_reason":null}`},
		{"partial by remaining", "TASK_RESULT", `{"status":"partial","remaining":["b"]}`, `{"type":"TASK_RESULT","protocol_version":"2.0","status":"partial","tokens_spent":0,"next_steps":[],"blocked_reason":null,"remaining":["b"]}`},
		{"error as text", "TASK_RESULT", `{"status":"error","error":"boom"}`, `{"type":"TASK_RESULT","protocol_version":"2.0","status":"error","tokens_spent":0,"next_steps":[],"blocked_reason":null,"error":{"code":"agent_error","message":"boom","retryable":false}}`},
		{"empty artifacts and null output stay", "TASK_RESULT", `{"status":"done","artifacts":{},"output":null}`, `{"type":"TASK_RESULT","protocol_version":"2.0","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null,"artifacts":{},"output":null}`},
		{"shortest ack", "HANDSHAKE_ACK", `{"accepted":true}`, `{"type":"HANDSHAKE_ACK","protocol_version":"2.0","accepted":true}`},
		{"shortest refusal", "HANDSHAKE_ACK", ` {"x":{"accepted":true},"accepted":false}`, `{"type":"HANDSHAKE_ACK","protocol_version":"2.0","accepted":false,"x":{"accepted":true}}`},
		{"heartbeat", "HEARTBEAT", `{"epoch":1,"active_tasks":0,"holding":[{"task_id":"a","attempt":2}]}`, `{"type":"HEARTBEAT","protocol_version":"2.0","epoch":1,"active_tasks":0,"holding":[{"task_id":"a","attempt":2}]}`},
		{"control", "CONTROL", `{"action":"DRAIN"}`, `{"type":"CONTROL","protocol_version":"2.0","action":"DRAIN"}`},
		{"announce", "SESSION_ANNOUNCE", `{"worker":{"agent_id":"a"},"heartbeat_seconds":0}`, `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0","worker":{"agent_id":"a"},"capabilities":{"tools":[],"mcp_servers":[]},"heartbeat_seconds":0}`},
		{"question", "TASK_PROGRESS", `{"question":{"id":"q","text":"which?"},"percent":0}`, `{"type":"TASK_PROGRESS","protocol_version":"2.0","percent":0,"question":{"id":"q","text":"which?"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := decoders[tt.typ]([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if err := validate(t, schemaOf[tt.typ], []byte(tt.in)); err != nil {
				t.Errorf("schema: %v", err)
			}
			if diff := cmp.Diff(tt.want, string(fleet.MustEncode(got))); diff != "" {
				t.Errorf("encoded back (-want +got):\n%s", diff)
			}
		})
	}
}

// A record wraps a message, so it may be longer and deeper than one.
func TestDecodeEventIsLargerThanAMessage(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 62) + strings.Repeat("]", 62)
	dispatch := `{"brief":"` + strings.Repeat("x", fleet.MaxMessage-200) + `","new":` + deep + `}`
	if _, err := fleet.DecodeDispatch([]byte(dispatch)); err != nil {
		t.Fatal(err)
	}
	ev := typicalEvent()
	ev.Data.Dispatch = []byte(dispatch)
	got, err := fleet.DecodeEvent(fleet.MustEncode(ev))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Data.Dispatch, ev.Data.Dispatch) {
		t.Error("the dispatch in the record is not what it was")
	}
}

// An offer repeats a dispatch, so it may be longer than one.
func TestDecodeOffer(t *testing.T) {
	t.Parallel()
	offer := fleet.Dispatch{Brief: strings.Repeat("x", fleet.MaxMessage-100), From: "o", Attempt: 2, Tried: []fleet.Tried{
		{AgentID: "a", Code: subjects.CodeAgentError, Message: strings.Repeat("x", 500)},
	}}
	data := fleet.MustEncode(offer)
	if _, err := fleet.DecodeDispatch(data); subjects.CodeOf(err) != subjects.CodePayloadTooLarge {
		t.Errorf("DecodeDispatch = %v, want payload_too_large", err)
	}
	got, err := fleet.DecodeOffer(data)
	if err != nil || got.Attempt != 2 || len(got.Tried) != 1 || got.Type != fleet.TypeDispatch {
		t.Errorf("DecodeOffer = %.100v, %v", got, err)
	}
	for in, pointer := range map[string]string{`{"brief":"x"}`: "/attempt", "x": "", `{"attempt":1}`: "/brief"} {
		if _, err := fleet.DecodeOffer([]byte(in)); subjects.CodeOf(err) != invalidMessage || subjects.AsError(err).Pointer != pointer {
			t.Errorf("DecodeOffer(%s) = %v, want invalid_message at %q", in, err, pointer)
		}
	}
}

func TestDeadlineAt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name     string
		deadline time.Duration // from now; 0 = absent
		want     time.Duration
		code     subjects.Code
	}{
		{"absent", 0, 72 * time.Hour, ""},
		{"soon", time.Nanosecond, time.Nanosecond, ""},
		{"at most", fleet.MaxDeadline, fleet.MaxDeadline, ""},
		{"too far", fleet.MaxDeadline + 1, 0, invalidMessage},
		{"past", -1, 0, subjects.CodeDeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var d fleet.Dispatch
			if tt.deadline != 0 {
				d.Deadline = new(now.Add(tt.deadline))
			}
			got, err := d.DeadlineAt(now)
			if subjects.CodeOf(err) != tt.code || err != nil && subjects.AsError(err).Pointer != "/deadline" {
				t.Fatalf("error %v, want %q at /deadline", err, tt.code)
			}
			if want := now.Add(tt.want); err == nil && !got.Equal(want) {
				t.Errorf("DeadlineAt = %v, want %v", got, want)
			}
		})
	}
	d := fleet.Dispatch{Deadline: &now}
	if _, err := d.DeadlineAt(now); subjects.CodeOf(err) != subjects.CodeDeadlineExceeded {
		t.Errorf("a deadline that is now: %v, want deadline_exceeded", err)
	}
}

func TestAnnounceDefaults(t *testing.T) {
	t.Parallel()
	var a fleet.Announce
	if a.MaxParallel() != 1 || a.Heartbeat() != 10*time.Second || a.Instance() != "main" || a.TTL() != time.Hour {
		t.Errorf("defaults: %d %v %s %v", a.MaxParallel(), a.Heartbeat(), a.Instance(), a.TTL())
	}
	a.Worker.MaxParallel, a.Worker.InstanceID = 4, "i1"
	a.HeartbeatSeconds, a.TTLSeconds = new(0.5), 90
	if a.MaxParallel() != 4 || a.Heartbeat() != 500*time.Millisecond || a.Instance() != "i1" || a.TTL() != 90*time.Second {
		t.Errorf("values: %d %v %s %v", a.MaxParallel(), a.Heartbeat(), a.Instance(), a.TTL())
	}
	a.HeartbeatSeconds = new(0.0)
	if a.Heartbeat() != 0 {
		t.Errorf("Heartbeat() = %v, want none", a.Heartbeat())
	}
}
