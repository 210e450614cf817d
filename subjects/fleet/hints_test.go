package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

const mark = "TASK DISPATCH (inline)\n"

var deadline = time.Date(2026, 5, 31, 21, 0, 0, 0, time.UTC)

func TestInlineHints(t *testing.T) {
	t.Parallel()
	head := fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}
	for _, tt := range []struct {
		name, in string
		want     fleet.Dispatch
	}{
		{
			"every hint", mark + `task_id: t-1
priority: urgent
reply_schema: json
token_budget: 4000
type: "code: review"
timeout_seconds: 90.5
max_retries: 0
agent: bob
alternatives: [ann, 'eve']
on_blocked: wait
escalate: never
result_schema: {"type": "object"}
session_id: a2a-20251122T110000Z-7f3a9c21
idempotency_key: 'it''s'
run_id: r-1
required_mcp: [context_mode, "a, b"]
required_capabilities:
  - terminal
  - "file"
model_tier: sonnet
clean_repo: yes
labels: {"gpu": "1"}
protocol_version: 2.1
deadline: 2026-05-31T21:00:00Z

Brief: Do it.

priority: low stays in the brief
`,
			fleet.Dispatch{
				Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: "2.1"},
				Task: fleet.Task{
					TaskID: "t-1", Priority: fleet.Critical, ReplySchema: fleet.ReplyJSON, TokenBudget: 4000, Type: "code: review",
					TimeoutSeconds: 90.5, MaxRetries: new(0), Agent: "bob", Alternatives: []subjects.AgentID{"ann", "eve"},
					OnBlocked: fleet.OnBlockedWait, Escalate: fleet.EscalateNever, ResultSchema: json.RawMessage(`{"type":"object"}`),
					SessionID: "a2a-20251122T110000Z-7f3a9c21", IdempotencyKey: "it's", RunID: "r-1",
				},
				Requirements: fleet.Requirements{
					RequiredMCP: []string{"context_mode", "a, b"}, RequiredCapabilities: []string{"terminal", "file"},
					ModelTier: "sonnet", CleanRepo: true, Labels: map[string]string{"gpu": "1"},
				},
				Deadline: new(deadline), Brief: "Do it.\n\npriority: low stays in the brief",
			},
		},
		{
			"no mark, all hints", "priority: high\r\nagent: bob\r\n\r\nFix it.\r\n",
			fleet.Dispatch{Task: fleet.Task{Priority: fleet.High, Agent: "bob"}, Brief: "Fix it."},
		},
		{
			"no mark, Brief at once", "required_mcp: a, b\nBrief: Fix it.",
			fleet.Dispatch{Requirements: fleet.Requirements{RequiredMCP: []string{"a", "b"}}, Brief: "Fix it."},
		},
		{"mark alone", mark + "\nFix it.", fleet.Dispatch{Brief: "Fix it."}},
		{"mark in small letters", "\n  task dispatch (INLINE)  \npriority: low\n\nbrief: Fix it.", fleet.Dispatch{Task: fleet.Task{Priority: fleet.Low}, Brief: "Fix it."}},
		{"empty values", mark + "priority:\nrequired_mcp: []\nalternatives:\n\nx", fleet.Dispatch{Requirements: fleet.Requirements{RequiredMCP: []string{}}, Brief: "x"}},
		{"a list of one", mark + "required_mcp: context_mode\n\nx", fleet.Dispatch{Requirements: fleet.Requirements{RequiredMCP: []string{"context_mode"}}, Brief: "x"}},

		{"a brief", "Refactor the auth module...", fleet.Dispatch{Brief: "Refactor the auth module..."}},
		{"a brief with a colon", "note: call me", fleet.Dispatch{Brief: "note: call me"}},
		{"a brief that begins with a hint", "priority: high\nFix the parser", fleet.Dispatch{Brief: "priority: high\nFix the parser"}},
		{"a brief of a hint alone", "type: the parser panics", fleet.Dispatch{Brief: "type: the parser panics"}},
		{"a hint with a bad value", "priority: whenever\n\nFix it", fleet.Dispatch{Brief: "priority: whenever\n\nFix it"}},
		{"a hint with a bad id", "agent: who knows\n\nFix it", fleet.Dispatch{Brief: "agent: who knows\n\nFix it"}},
		{"hints without a brief", "priority: high\nagent: bob\n\n", fleet.Dispatch{Brief: "priority: high\nagent: bob\n\n"}},
		{"a list", "- one\n- two", fleet.Dispatch{Brief: "- one\n- two"}},
		{"many brackets", strings.Repeat("[{", 100), fleet.Dispatch{Brief: strings.Repeat("[{", 100)}},
		{"JSON later", `fix {"a":1}`, fleet.Dispatch{Brief: `fix {"a":1}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := fleet.DecodeDispatch([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if tt.want.Type == "" {
				tt.want.Header = head
			}
			if tt.want.Task.Priority == "" {
				tt.want.Task.Priority = fleet.Normal
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestInlineHintsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in      string
		code          subjects.Code
		pointer, says string
	}{
		{"unknown key", mark + "priority: high\nurgency: 3\n\nx", invalidMessage, "", `line 3: "urgency" is not a hint`},
		{"no key", mark + "Fix it", invalidMessage, "", `line 2: expected key: value, got "Fix it"`},
		{"value", mark + "priority: whenever\n\nx", invalidMessage, "/task/priority", "line 2: expected one of"},
		{"number", mark + "token_budget: 4k\n\nx", invalidMessage, "/task/token_budget", `line 2: expected a number, got "4k"`},
		{"fraction", mark + "token_budget: 1.5\n\nx", invalidMessage, "/task/token_budget", "line 2: expected integer"},
		{"boolean", mark + "clean_repo: maybe\n\nx", invalidMessage, "/requirements/clean_repo", "line 2: expected true or false"},
		{"object", mark + "labels: gpu\n\nx", invalidMessage, "/requirements/labels", "line 2: expected a JSON object"},
		{"list for one", mark + "priority:\n- high\n\nx", invalidMessage, "/task/priority", "line 2: expected one value, got a list"},
		{"quotation", mark + "type: \"a\n\nx", invalidMessage, "/task/type", "line 2: expected a closed quotation"},
		{"quotation in a list", mark + "required_mcp: ['a]\n\nx", invalidMessage, "/requirements/required_mcp", "line 2: expected a closed quotation"},
		{"id", "\n\n" + mark + "\r\nx", "", "", ""},
		{"id in a list", mark + "priority: low\nalternatives: [a, b.c]\n\nx", invalidID, "/task/alternatives/1", "line 3: agent_id"},
		{"twice", mark + "agent: a\nagent: b\n\nx", invalidMessage, "/task/agent", "line 3: agent is there twice"},
		{"deadline", mark + "deadline: soon\n\nx", invalidMessage, "/deadline", "line 2: expected a time"},
		{"no brief", mark + "priority: low\n", invalidMessage, "/brief", "expected text"},
		{"version", mark + "protocol_version: 3.0\n\nx", subjects.CodeVersionMismatch, "/protocol_version", "line 2:"},
		{"version without mark", "protocol_version: 3.0\n\nx", subjects.CodeVersionMismatch, "/protocol_version", ""},
		{"not UTF-8", "x\xff", invalidMessage, "", "not UTF-8"},
		{"too large", strings.Repeat("x", fleet.MaxMessage+1), subjects.CodePayloadTooLarge, "", "at most"},
		{"too large as JSON", "x" + strings.Repeat("\x01", fleet.MaxMessage/4), subjects.CodePayloadTooLarge, "", "as JSON"},
		{"too large as JSON with mark", mark + "\nx" + strings.Repeat("\n\"", fleet.MaxMessage/3), subjects.CodePayloadTooLarge, "", "as JSON"},
		{"blank of another script", "\u2003", invalidMessage, "/brief", "got nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := fleet.DecodeDispatch([]byte(tt.in))
			if subjects.CodeOf(err) != tt.code {
				t.Fatalf("error %v, want %q", err, tt.code)
			}
			if err == nil {
				return
			}
			if e := subjects.AsError(err); e.Pointer != tt.pointer || !strings.Contains(e.Message, tt.says) {
				t.Errorf("got %v, want %q with %q", e, tt.pointer, tt.says)
			}
		})
	}
}

// What looks like a mistake is accepted, and the answer says so.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]fleet.Warning{
		`{"brief":"x","task":{"token_budgt":1}}`:          {Pointer: "/task/token_budgt", Remedy: "did you mean token_budget?"},
		`{"brief":"x","prioritty":"high"}`:                {Pointer: "/prioritty", Remedy: "did you mean priority of task? It belongs in the object task"},
		`{"brief":"x","task_id":"x"}`:                     {Pointer: "/task_id", Remedy: "did you mean task_id of task? It belongs in the object task"},
		`{"brief":"x","model_tier":"x"}`:                  {Pointer: "/model_tier", Remedy: "did you mean model_tier of requirements? It belongs in the object requirements"},
		`{"brief":"x","requirements":{"clean_rep":true}}`: {Pointer: "/requirements/clean_rep", Remedy: "did you mean clean_repo?"},
		"priorty: high\ntoken_budget: 4000\n\nFix it.":    {Remedy: "did you mean priority?"},
		"priority: hgih\n\nFix it.":                       {Pointer: "/task/priority"},
		`{"brief":"x","protocol_version":"2.3","more":1}`: {},
		`{"brief":"x","task":{"task_id":"t"}}`:            {},
		"priority: high\n\nFix it.":                       {},
		"Note: this is prose.\n\nFix it.":                 {},
		"Fix it: now":                                     {},
	} {
		d, err := fleet.DecodeDispatch([]byte(in))
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		got := d.Warnings()
		if want == (fleet.Warning{}) {
			if got != nil {
				t.Errorf("%q: %+v, want nothing", in, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Pointer != want.Pointer || got[0].Remedy != want.Remedy || got[0].Message == "" {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
}
