package fleet_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schematest"
)

// complete are messages with every member there is.
var complete = map[string]string{
	fleet.TypeAnnounce: `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0",
		"worker":{"agent_id":"a","model":"m","model_tier":"sonnet","context_window":1,"instance_id":"i","epoch":1,"max_parallel":2,"max_messages":3,"labels":{"gpu":"1"},"agent_type":"virtual"},
		"capabilities":{"tools":["t"],"mcp_servers":["s"],"skills":[{"id":"k"}]},"mcp_health":{"s":"ok"},
		"session":{"context_id":"c","active_tasks":1,"repo_state":{"branch":"main","clean":true},"session_fresh":true},
		"heartbeat_seconds":1.5,"ttl_seconds":60,"draining":true,"mcp_probed_at":{"s":"2026-05-31T21:00:00Z"},"new":1}`,
	fleet.TypeHeartbeat: `{"type":"HEARTBEAT","protocol_version":"2.0","epoch":1,"active_tasks":1,
		"holding":[{"task_id":"t","attempt":1,"tokens_spent":1}],"mcp_health":{"s":"timeout"},"draining":true,"new":1}`,
	fleet.TypeDispatch: `{"type":"TASK_DISPATCH","protocol_version":"2.0",
		"task":{"task_id":"t","priority":"high","reply_schema":"json","token_budget":1,"session_token_budget":1,"run_token_budget":1,"type":"review","timeout_seconds":1.5,"max_retries":1,
			"agent":"a","alternatives":["b","c"],"on_blocked":"wait","escalate":"never","alert_repeat":60,"give_up_after":600.5,"result_schema":{"type":"object"},
			"session_id":"a2a-20251122T110000Z-7f3a9c21","idempotency_key":"k","run_id":"r"},
		"requirements":{"required_mcp":["s"],"required_capabilities":["c"],"model_tier":"opus","clean_repo":true,"labels":{"gpu":"1"}},
		"deadline":"2026-05-31T21:00:00Z","brief":"b",
		"input":{"message_id":"m","context_id":"c","parts":[{"text":"t"},{"data":1},{"url":"u","mediaType":"a/b"},{"raw":"YWI=","filename":"f"}],"metadata":{"a":1}},
		"from":"o","attempt":1,"epoch":5,"context":{"a":1},"tokens_left":1,"tried":[{"attempt":1,"agent_id":"x","code":"agent_error","message":"m"}],
		"human":{"verb":"answer","by":"b","agent_id":"a","text":"t","answer_id":"i","time":"2026-05-31T21:00:00Z"},"new":1}`,
	fleet.TypeResult: `{"type":"TASK_RESULT","protocol_version":"2.0","task_id":"t","status":"done","tokens_spent":1,"next_steps":["n"],
		"blocked_reason":"b","artifacts":{"pr":"u"},"attempt":1,"epoch":1,"agent_id":"a","instance_id":"i","tokens_source":"measured",
		"error":{"code":"c","message":"m","retryable":true,"retry_after_seconds":1.5,"http_status":429,
			"reset_at":"2026-05-31T21:00:00Z","limit_tier":"opus"},"remaining":["r"],"output":{"a":1},
		"parts":[{"text":"t"}],"as_message":true,"state":"done","new":1}`,
	fleet.TypeAck: `{"type":"HANDSHAKE_ACK","protocol_version":"2.0","accepted":false,"epoch":1,"estimated_duration":1.5,
		"reason":{"code":"agent_busy","message":"m"},"retry_after_seconds":1,"reset_at":"2026-05-31T21:00:00Z","limit_tier":"opus","new":1}`,
	fleet.TypeDelivery: `{"type":"WEBHOOK_DELIVERY","protocol_version":"2.0","delivery_id":"d","endpoint":"push","url":"https://a.example/hook?x=1",
		"headers":{"X-Token":"t"},"content_type":"application/a2a+json","body":{"a":1},"order":"t","schedule":"push",
		"not_after":"2026-05-31T21:00:00Z","task_id":"t","new":1}`,
	fleet.TypeDeliveryState: `{"type":"WEBHOOK_STATE","protocol_version":"2.0","delivery_id":"d","state":"pending","endpoint":"human","order":"t",
		"schedule":"human","task_id":"t","queued":"2026-05-31T21:00:00Z","updated":"2026-05-31T21:00:01Z","not_after":"2026-06-01T21:00:00Z",
		"attempts":1,"sending":{"by":"w","lease_seconds":15},"next_at":"2026-05-31T21:00:05Z","hold_until":"2026-05-31T21:00:05Z","status":503,
		"error":{"code":"unavailable","message":"m"},"duration_ms":3,"replays":1,"by":"op","new":1}`,
	fleet.TypeProgress: `{"type":"TASK_PROGRESS","protocol_version":"2.0","task_id":"t","attempt":1,"epoch":1,"text":"x","percent":50,"tokens_spent":1,
		"artifact":{"artifact_id":"a","name":"n","parts":[{"text":"t"}],"append":true,"last_chunk":true},
		"question":{"id":"q","text":"t","parts":[{"text":"t"}]},"new":1}`,
	fleet.TypeControl: `{"type":"CONTROL","protocol_version":"2.0","action":"INPUT","task_id":"t","attempt":1,
		"reason":{"code":"c","message":"m"},"question_id":"q","text":"x","parts":[{"text":"t"}],"new":1}`,
	fleet.TypeEvent: `{"type":"TASK_EVENT","protocol_version":"2.0","task_id":"t","seq":1,"kind":"queued","state":"queued","attempt":1,
		"agent_id":"a","instance_id":"i","epoch":1,"time":"2026-05-31T21:00:00Z","reason":{"code":"c","message":"m"},
		"data":{"dispatch":{"brief":"b"},"result":{"status":"done"},"artifact":{"artifact_id":"a","name":"n","parts":[{"text":"t"}],"append":true,"last_chunk":true},
			"question":{"id":"q","text":"t","parts":[{"text":"t"}]},"answer":{"question_id":"q","from":"f","text":"t","parts":[{"text":"t"}]},
			"human":{"verb":"retry","by":"b","agent_id":"a","text":"t","answer_id":"i","time":"2026-05-31T21:00:00Z"}},
		"facts":{"from":"o","created":"2026-05-31T21:00:00Z","deadline":"2026-05-31T21:00:00Z","priority":"high",
			"requirements":{"required_mcp":["s"],"required_capabilities":["c"],"model_tier":"opus","clean_repo":true,"labels":{"gpu":"1"}},
			"policy":{"max_retries":1,"agent":"a","alternatives":["b"],"on_blocked":"wait","escalate":"never","alert_repeat":60,"give_up_after":600.5},
			"timeout_seconds":1.5,"token_budget":1,"session_token_budget":1,"run_token_budget":1,"reply_schema":"json","has_result_schema":true,"session_id":"s","run_id":"r","payload_hash":"h","dispatch_seq":1,
			"tokens_spent":1,"attempts":[{"attempt":1,"agent_id":"a","instance_id":"i","epoch":1,"ended":"2026-05-31T21:00:00Z","code":"c","message":"m","retryable":true,"tokens":1,"level":1}],
			"not_before":"2026-05-31T21:00:00Z","attempt_ends":"2026-05-31T21:00:00Z","clock_left_seconds":1.5,"await":"human",
			"question":{"id":"q","text":"t"},"answer":{"question_id":"q","text":"t"},"asked_seq":1,"alert_at":"2026-05-31T21:00:00Z","give_up_at":"2026-05-31T21:00:00Z",
			"human":{"verb":"retry","by":"b","time":"2026-05-31T21:00:00Z"}},"write_id":"w","new":1}`,
}

// palette are values to put in the place of others. It leaves out what schemas
// cannot tell (see fleet.Schema).
var palette = sync.OnceValue(func() []any {
	var values []any
	for _, text := range []string{
		`null`, `true`, `false`, `0`, `1`, `-1`, `0.05`, `1.5`, `100`, `101`, `2592001`, `9007199254740991`, `9007199254740992`,
		`""`, `" "`, `"x"`, `"a.b"`, `"a b"`, `"router"`, `"done"`, `"blocked"`, `"error"`, `"partial"`, `"working"`, `"canceled"`,
		`"urgent"`, `"structured"`, `"reroute"`, `"auto"`, `"DRAIN"`, `"CANCEL"`, `"2"`, `"2.11"`, `"3.0"`, `"2026-05-31T21:00:00Z"`,
		`"2026-05-31T21:00:00.5+02:00"`, `"2026-05-31"`, `"YWI="`, `"YWJ="`, `"a2a-20251122T110000Z-7f3a9c21"`, `"a\nb"`,
		`"` + strings.Repeat("x", 65) + `"`, `"` + strings.Repeat("x", 257) + `"`,
		`[]`, `["a"]`, `["a","a"]`, `[""]`, `[null]`, `[{}]`, `[{"text":"x"}]`, `[{"task_id":"t"}]`, list(33, `"a#"`), list(65, `"a#"`),
		`{}`, `{"a":"b"}`, `{"":"b"}`, `{"text":"x"}`, `{"text":"x","url":"y"}`, `{"data":null}`, `{"data":null,"text":null}`, `{"message":"m"}`, `{"code":"c"}`,
	} {
		values = append(values, parse(text))
	}
	return values
})

func parse(text string) any {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(fmt.Sprintf("%v in %s", err, text))
	}
	return v
}

// places counts the values in v, v itself first.
func places(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += places(e)
		}
	case []any:
		for _, e := range v {
			n += places(e)
		}
	}
	return n
}

// removed stands for the lack of a member.
type removed struct{}

// put returns v with the value at the place changed, counted as places does.
func put(v any, place *int, with any) any {
	*place--
	if *place == -1 {
		return with
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			e := put(v[k], place, with)
			if _, gone := e.(removed); !gone {
				out[k] = e
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			e = put(e, place, with)
			if _, gone := e.(removed); !gone {
				out = append(out, e)
			}
		}
		return out
	}
	return v
}

// agree checks that decoder and schema say the same of a message, and that what
// was decoded is stable: encoded and decoded again it is the same.
func agree(t schematest.T, typ string, message any) {
	t.Helper()
	data, err := json.Marshal(message)
	if err != nil {
		t.Fatalf("%v", err)
	}
	got, err := decoders[typ](data)
	schemaErr := validate(t, schemaOf[typ], data)
	if (err == nil) != (schemaErr == nil) {
		t.Fatalf("%s\ndecoder: %v\nschema: %v", data, err, schemaErr)
	}
	if err == nil {
		stable(t, typ, got)
	} else if code := subjects.CodeOf(err); code != invalidMessage && code != invalidID && code != subjects.CodeVersionMismatch {
		t.Fatalf("%s\nerror %v", data, err)
	}
}

func stable(t schematest.T, typ string, got any) {
	t.Helper()
	once := fleet.MustEncode(got)
	again, err := decoders[typ](once)
	if err != nil {
		t.Fatalf("what was decoded is refused: %v\n%s", err, once)
	}
	if twice := fleet.MustEncode(again); string(once) != string(twice) {
		t.Fatalf("encoded once and twice:\n%s\n%s", once, twice)
	}
	if err := validate(t, schemaOf[typ], once); err != nil {
		t.Fatalf("what was encoded is refused by its schema: %v\n%s", err, once)
	}
}

// TestDecodersAgreeWithSchemas puts every value of the palette in every place
// of every message.
func TestDecodersAgreeWithSchemas(t *testing.T) {
	t.Parallel()
	for typ, text := range complete {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			whole := parse(text)
			agree(t, typ, whole)
			for i := 1; i < places(whole); i++ {
				for _, with := range append([]any{removed{}}, palette()...) {
					place := i
					agree(t, typ, put(whole, &place, with))
				}
			}
		})
	}
}

// TestDecodersAgreeOnMore changes several places at once.
func TestDecodersAgreeOnMore(t *testing.T) {
	t.Parallel()
	types := slices.Sorted(maps.Keys(complete))
	with := append([]any{removed{}, removed{}, removed{}}, palette()...)
	rapid.Check(t, func(t *rapid.T) {
		typ := rapid.SampledFrom(types).Draw(t, "type")
		message := parse(complete[typ])
		for range rapid.IntRange(2, 12).Draw(t, "changes") {
			if n := places(message); n > 1 {
				place := rapid.IntRange(1, n-1).Draw(t, "place")
				message = put(message, &place, rapid.SampledFrom(with).Draw(t, "with"))
			}
		}
		agree(t, typ, message)
	})
}

var (
	anID     = rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`)
	anAgent  = rapid.Map(anID, func(s string) subjects.AgentID { return subjects.AgentID(s) }).Filter(func(a subjects.AgentID) bool { return a != "router" && a != "registry" })
	aText    = rapid.String()
	aName    = rapid.StringN(1, 64, 256)
	someText = rapid.SliceOfN(aText, 0, 4)
	names    = rapid.SliceOfN(aName, 0, 8)
	labelSet = rapid.MapOfN(aName, rapid.StringN(0, 64, 256), 0, 8)
	aCount   = rapid.Int64Range(0, 1<<53-1)
	aTime    = rapid.Custom(func(t *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "nanoseconds")).UTC()
	})
	aPart = rapid.Custom(func(t *rapid.T) fleet.Part {
		p := fleet.Part{MediaType: aText.Draw(t, "media type"), Filename: aText.Draw(t, "filename")}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			p.Text = new(aText.Draw(t, "text"))
		case 1:
			p.Data = fleet.MustEncode(labelSet.Draw(t, "data"))
		case 2:
			p.URL = aName.Draw(t, "url")
		case 3:
			p.Raw = "YWI="
		}
		return p
	})
)

// TestDispatchRoundTrip: what we write is read as it was.
func TestDispatchRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := &fleet.Dispatch{
			Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
			Task: fleet.Task{
				TaskID: subjects.TaskID(anID.Draw(t, "task")), TokenBudget: aCount.Draw(t, "budget"), Type: aText.Draw(t, "type"),
				Priority:       rapid.SampledFrom([]fleet.Priority{fleet.Critical, fleet.High, fleet.Normal, fleet.Low}).Draw(t, "priority"),
				ReplySchema:    rapid.SampledFrom([]string{"", fleet.ReplyProse, fleet.ReplyStructured, fleet.ReplyJSON}).Draw(t, "reply"),
				TimeoutSeconds: rapid.Float64Range(0, 2592000).Draw(t, "timeout"),
				MaxRetries:     rapid.Ptr(rapid.IntRange(0, 100), true).Draw(t, "retries"),
				Agent:          anAgent.Draw(t, "agent"), Alternatives: rapid.SliceOfNDistinct(anAgent, 0, 5, rapid.ID).Draw(t, "alternatives"),
			},
			Requirements: fleet.Requirements{
				RequiredMCP: names.Draw(t, "mcp"), RequiredCapabilities: names.Draw(t, "capabilities"), Labels: labelSet.Draw(t, "labels"),
			},
			Deadline: rapid.Ptr(aTime, true).Draw(t, "deadline"),
			Brief:    "x" + aText.Draw(t, "brief"),
			Input: rapid.Ptr(rapid.Custom(func(t *rapid.T) fleet.Input {
				return fleet.Input{MessageID: "m", Parts: rapid.SliceOfN(aPart, 0, 3).Draw(t, "parts")}
			}), true).Draw(t, "input"),
		}
		roundTrip(t, want, fleet.DecodeDispatch)
	})
}

// TestResultRoundTrip: what we write is read as it was, alone and in prose.
func TestResultRoundTrip(t *testing.T) {
	// Not in parallel: generators that two tests draw from at a time race.
	rapid.Check(t, func(t *rapid.T) {
		want := &fleet.Result{
			Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version},
			TaskID: subjects.TaskID(anID.Draw(t, "task")), TokensSpent: aCount.Draw(t, "tokens"),
			Status:    rapid.SampledFrom([]fleet.Status{fleet.StatusDone, fleet.StatusBlocked, fleet.StatusError, fleet.StatusPartial}).Draw(t, "status"),
			NextSteps: someText.Draw(t, "next"), Remaining: append(someText.Draw(t, "remaining"), "last"),
			BlockedReason: new("x" + aText.Draw(t, "reason")), AgentID: anAgent.Draw(t, "agent"),
			Error:  &fleet.ResultError{Code: "agent_error", Message: "x" + aText.Draw(t, "message")},
			Output: fleet.MustEncode(aText.Draw(t, "output")), Parts: rapid.SliceOfN(aPart, 0, 3).Draw(t, "parts"),
		}
		roundTrip(t, want, fleet.DecodeResult)
		// Prose without a quote or a brace cannot hide what follows it.
		prose := rapid.StringOf(rapid.RuneFrom([]rune("ab \n`[]}:,\\"))).Draw(t, "prose")
		got, ok := fleet.FindResult(prose + string(fleet.MustEncode(want)) + prose)
		if !ok {
			t.Fatalf("not found in prose")
		}
		same(t, want, got)
	})
}

func roundTrip[T any](t *rapid.T, want T, decode func([]byte) (T, error)) {
	t.Helper()
	got, err := decode(fleet.MustEncode(want))
	if err != nil {
		t.Fatalf("%v in %s", err, fleet.MustEncode(want))
	}
	same(t, want, got)
}

// same compares but for empty and absent lists, which mean the same.
func same(t *rapid.T, want, got any) {
	t.Helper()
	empty := cmp.FilterValues(func(a, b []string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())
	agents := cmp.FilterValues(func(a, b []subjects.AgentID) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())
	parts := cmp.FilterValues(func(a, b []fleet.Part) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())
	labels := cmp.FilterValues(func(a, b map[string]string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())
	if diff := cmp.Diff(want, got, empty, agents, parts, labels); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}
