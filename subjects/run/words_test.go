package run_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/subjects/schematest"
)

// validate holds data against a schema.
var validate = schematest.Validator(run.Schemas(), run.Schema)

// What the decoder and the schema say of the same text. A schema sees no
// circle, and nothing that ties one node to another.
func TestSchemasAgreeWithTheDecoder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in       string
		ok, seen bool // the decoder takes it; the schema refuses it
	}{
		{string(vector(t, "task-definition.json")), true, false},
		{string(vector(t, "bad-cycle.json")), false, false},
		{`{"agents":[{"id":"a"}]}`, true, false},
		{`{"agents":[{"id":"a","fan_out":{"items":[1,{}],"concurrency":3},"when":"true","on_failure":"escalate"}]}`, true, false},
		{`{"agents":[{"id":"a","result_schema":{"type":"string"},"max_retries":0,"max_losses":5,"alternatives":["b"]}],"shared_data":{}}`, true, false},
		{`{"agents":[]}`, false, true},
		{`{}`, false, true},
		{`{"agents":[{"id":"a b"}]}`, false, true},
		{`{"agents":[{"id":"a","on_failure":"pray"}]}`, false, true},
		{`{"agents":[{"id":"a","on_blocked":"pray"}]}`, false, true},
		{`{"agents":[{"id":"a","timeout":-1}]}`, false, true},
		{`{"agents":[{"id":"a","max_retries":101}]}`, false, true},
		{`{"agents":[{"id":"a","max_losses":101}]}`, false, true},
		{`{"agents":[{"id":"a","token_budget":-1}]}`, false, true},
		{`{"agents":[{"id":"a","alternatives":["b c"]}]}`, false, true},
		{`{"agents":[{"id":"a","result_schema":3}]}`, false, true},
		{`{"agents":[{"id":"a","result_schema":{"type":"nonsense"}}]}`, false, true},
		{`{"agents":[{"id":"a","fan_out":{"items":[],"concurrency":-1}}]}`, false, true},
		{`{"agents":[{"id":"a","fan_out":{"from":"a","pointer":"x"}}]}`, false, true},
		{`{"agents":[{"id":"a","when":1}]}`, false, true},
		{`{"agents":[{"id":"a"}],"shared_data":[1]}`, false, true},
		{`{"agents":[{"id":"a","timeout":86401}]}`, false, false},
		{`{"agents":[{"id":"a","timeout":86401}],"timeout":86401}`, true, false},
		{`{"agents":[{"id":"a"}],"output_location":"/etc/x"}`, false, false},
		{`{"agents":[{"id":"a"}],"task_type":"x"}`, false, true},
		{`{"agents":[{"id":"a"}],"priority":"x"}`, false, true},
		{`{"agents":[{"id":"a"}],"token_budget":1.5}`, false, true},
		{`{"agents":[{"id":"a"}],"created_at":"yesterday"}`, false, true},
		{`{"agents":[{"id":"a"}],"protocol_version":"3.0"}`, false, true},
		{`{"agents":[{"id":"a"}],"type":"TASK_RESULT"}`, false, true},
	} {
		_, err := run.Decode([]byte(tt.in))
		refusal := validate(t, "task-definition", []byte(tt.in))
		if (err == nil) != tt.ok || (refusal != nil) != tt.seen {
			t.Errorf("%.80s: decoder %v, schema %v", tt.in, err, refusal)
		}
	}
	for name, title := range map[string]string{"task-definition": run.TypeDefinition, "run-record": run.TypeRecord, "run-output": run.TypeOutput} {
		text, err := run.Schema(name)
		if err != nil || !bytes.Contains(text, []byte(`"title": "`+title+`"`)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := run.Schema("nothing"); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("Schema(nothing) = %v", err)
	}
	r := run.Record{
		Header: fleet.Header{Type: run.TypeRecord, ProtocolVersion: fleet.Version}, RunID: "r", From: "boss", State: run.Running,
		Nodes: map[run.NodeID]run.Status{"a": {State: run.Done, Items: &run.Items{Total: 2}}},
	}
	if err := validate(t, "run-record", fleet.MustEncode(&r)); err != nil {
		t.Error(err)
	}
	o := run.Output{Header: fleet.Header{Type: run.TypeOutput}, RunID: "r", State: run.Done, Results: []run.Result{
		{Node: "a", Status: r.Nodes["a"], Each: []run.Item{{Index: 1, Status: run.Status{State: run.Failed}, Result: &fleet.Result{}}}},
	}}
	if err := validate(t, "run-output", fleet.MustEncode(&o)); err != nil {
		t.Error(err)
	}
	if validate(t, "run-record", []byte(`{}`)) == nil || validate(t, "run-output", []byte(`{"results":[{}]}`)) == nil {
		t.Error("a record or an output without anything is valid")
	}
}

// What is wrong with the words of a node is said with its place.
func TestWordsOfNodes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"id":"b","brief":"${a}"}`:                                                          "/agents/1/brief",
		`{"id":"b","when":"outputs.a > 1"}`:                                                  "/agents/1/when",
		`{"id":"b","when":"status[\"a\"] == \"done\""}`:                                      "/agents/1/when",
		`{"id":"b","dependencies":["a"],"when":"outputs.a +"}`:                               "/agents/1/when",
		`{"id":"b","dependencies":["a"],"when":"nobody > 1"}`:                                "/agents/1/when",
		`{"id":"b","dependencies":["a"],"when":"1 + 1"}`:                                     "/agents/1/when",
		`{"id":"b","dependencies":["a"],"when":"now().Year() > 1"}`:                          "/agents/1/when",
		`{"id":"b","fan_out":{}}`:                                                            "/agents/1/fan_out",
		`{"id":"b","fan_out":{"from":"a"}}`:                                                  "/agents/1/fan_out/from",
		`{"id":"b","fan_out":{"items":[],"from":"a"}}`:                                       "/agents/1/fan_out",
		`{"id":"b","fan_out":{"items":[],"pointer":"/a"}}`:                                   "/agents/1/fan_out/pointer",
		`{"id":"b","fan_out":{"items":[` + strings.Repeat("1,", run.MaxItems) + `1]}}`:       "/agents/1/fan_out/items",
		`{"id":"b","requirements":{"labels":{"":"x"}}}`:                                      "/agents/1/requirements/labels",
		`{"id":"b","agent_id":"router"}`:                                                     "/agents/1/agent_id",
		`{"id":"b","timeout":9e9}`:                                                           "/agents/1/timeout",
		`{"id":"b","dependencies":["a"],"brief":"${a} ${a/x/0} $${HOME} $${item} $${b"}`:     "",
		`{"id":"b","dependencies":["a"],"brief":"${a} ${HOME}"}`:                             "/agents/1/brief",
		`{"id":"b","dependencies":["a"],"brief":"${item}"}`:                                  "/agents/1/brief",
		`{"id":"b","brieef":"x"}`:                                                            "/agents/1/brieef",
		`{"id":"b","depends_on":["a"]}`:                                                      "/agents/1/depends_on",
		`{"id":"b","requirements":{"required_mpc":["a"]}}`:                                   "/agents/1/requirements/required_mpc",
		`{"id":"b","fan_out":{"items":[],"concurency":1}}`:                                   "/agents/1/fan_out/concurency",
		`{"id":"b","dependencies":["a"],"when":"outputs.a?.x == 1 && status.a == \"done\""}`: "",
		`{"id":"b","fan_out":{"items":[]},"brief":"${item/x} ${index}"}`:                     "",
	} {
		_, err := run.Decode([]byte(`{"agents":[{"id":"a"},` + in + `]}`))
		if want == "" && err == nil {
			continue
		}
		if e := subjects.AsError(err); e == nil || e.Pointer != want || want == "" {
			t.Errorf("%.80s: %v at %s, want %q", in, err, e.Pointer, want)
		}
	}
}

// A member that is not known is refused with the one that is meant; a definition
// of a later version may have more members.
func TestUnknownMembers(t *testing.T) {
	t.Parallel()
	_, err := run.Read([]byte("agnts:\n  - {id: a, brieef: x}\n"))
	if e := subjects.AsError(err); e == nil || e.Pointer != "/agnts" || e.Remedy != "did you mean agents?" {
		t.Errorf("agnts: %+v", e)
	}
	_, err = run.Read([]byte("agents:\n  - {id: a}\n  - {id: b, depends_on: [a]}\n"))
	if e := subjects.AsError(err); e == nil || e.Pointer != "/agents/1/depends_on" || e.Remedy != "did you mean dependencies?" {
		t.Errorf("depends_on: %+v", e)
	}
	if _, err := run.Read([]byte("protocol_version: \"2.1\"\nagents:\n  - {id: a, colour: red}\n")); err != nil {
		t.Errorf("of a later version: %v", err)
	}
}

// The record of the largest definition, with every word as long as it can be,
// is a message that the bus takes.
func TestLargestRecord(t *testing.T) {
	t.Parallel()
	var d run.Definition
	r := run.Record{RunID: "r", From: "boss", State: run.Running, Nodes: map[run.NodeID]run.Status{}}
	long, now := strings.Repeat("\"", 5000), time.Unix(1_800_000_000, 123_456_789)
	for i := range run.MaxNodes {
		n := run.Node{ID: run.NodeID(strings.Repeat("x", 60) + strconv.Itoa(i)), Brief: strings.Repeat("b", 900)}
		d.Agents = append(d.Agents, n)
		r.Nodes[n.ID] = run.Status{
			State: run.Dispatched, Generation: 1e9, TaskID: subjects.TaskID(strings.Repeat("t", 64)), AgentID: subjects.AgentID(strings.Repeat("a", 64)),
			Attempts: 1e9, Tokens: 1e15, Begun: &now, Ended: &now, Reason: run.Short(&fleet.Reason{Code: subjects.CodeAgentError, Message: long}),
			Items: &run.Items{Total: 1e4, Done: 1e4, Failed: 1e4, Chunks: 1e4},
		}
	}
	text := fleet.MustEncode(&d)
	if _, err := run.Decode(text); err != nil || len(text) < fleet.MaxMessage*9/10 {
		t.Errorf("%d bytes: %v", len(text), err)
	}
	r.Definition = d
	if n := len(fleet.MustEncode(&r)); n > 3<<20 {
		t.Errorf("its record takes %d bytes", n)
	}
}

// A small text that stands for a large one is refused before it is one.
func TestYAMLThatGrows(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("x0: &x0 [a,a,a,a,a,a,a,a,a,a]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&b, "x%d: &x%d [%s*x%d]\n", i, i, strings.Repeat(fmt.Sprintf("*x%d,", i-1), 9), i-1)
	}
	b.WriteString("agents: [{id: a}]\n")
	for _, in := range []string{
		b.String(), "a: " + strings.Repeat("[", 1<<15), "a: " + strings.Repeat("{a: ", 1<<13), strings.Repeat("- ", 1<<15), strings.Repeat("? ", 1<<15),
	} {
		if _, err := run.Read([]byte(in)); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
			t.Errorf("%.20q: %v", in, err)
		}
	}
}

// quoted is what a brief can quote.
type quoted struct {
	Outputs map[run.NodeID]json.RawMessage
	Item    json.RawMessage // of a fan-out; nil: none
	Index   int             // of the item
}

func quote(brief string, q quoted) (string, error) {
	t, err := run.ParseTemplate(brief, q.Outputs, q.Item != nil)
	if err != nil {
		return "", err
	}
	return t.Fill(q.Item, q.Index)
}

func TestQuote(t *testing.T) {
	t.Parallel()
	q := quoted{Outputs: map[run.NodeID]json.RawMessage{
		"a": json.RawMessage(`"text with ${b}"`), "b": json.RawMessage(`{"x/y":[1,{"z~":"deep"}]}`), "none": nil,
	}}
	for in, want := range map[string]string{
		"${a}":                     "text with ${b}", // what is quoted is not looked at again
		"<${b/x~1y/0}>":            "<1>",
		"${b/x~1y/1/z~0}":          "deep",
		"${b/x~1y/01}${b/x~1y/2}":  "",
		"${b/x~1y/-}${b/q}${a/q}":  "",
		"${none}${none/x}":         "",
		"${c} ${ ${} ${a b} $a ${": "${c} ${ ${} ${a b} $a ${",
		"${item} ${index}":         "${item} ${index}",
		"$${a} $${c/x}${b/q}$$${":  "${a} ${c/x}$$${",
		"${b/x~1y}${b/x~1y}":       `[1,{"z~":"deep"}][1,{"z~":"deep"}]`,
	} {
		if got, err := quote(in, q); got != want || err != nil {
			t.Errorf("Quote(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	q.Item, q.Index = json.RawMessage(`{"name":"n"}`), 3
	if got, err := quote("${index} ${item/name} ${item}", q); got != `3 n {"name":"n"}` || err != nil {
		t.Errorf("of an item: %q, %v", got, err)
	}
}

// What a brief comes to is bounded, and so is what that costs.
func TestQuoteIsBounded(t *testing.T) {
	t.Parallel()
	item := fleet.MustEncode(strings.Repeat("x", 100<<10))
	part := json.RawMessage(`["` + strings.Repeat("x", 1<<20) + `",1]`)
	for name, tt := range map[string]struct {
		brief string
		q     quoted
		fits  bool
	}{
		"nothing quoted":     {strings.Repeat("x", fleet.MaxMessage), quoted{}, true},
		"too long by itself": {strings.Repeat("x", fleet.MaxMessage+1), quoted{}, false},
		"as long as it may":  {strings.Repeat("${item}", 10) + strings.Repeat("x", 24<<10), quoted{Item: item}, true},
		"too long a text":    {strings.Repeat("${item}", 100), quoted{Item: item}, false},
		"too long behind":    {strings.Repeat("${item}", 10) + strings.Repeat("x", 24<<10+1), quoted{Item: item}, false},
		"some parts":         {strings.Repeat("${item/1}", 10), quoted{Item: part}, true},
		"parts of too much":  {strings.Repeat("${item/1}", 300), quoted{Item: part}, false},
	} {
		got, err := quote(tt.brief, tt.q)
		if tt.fits && err != nil || !tt.fits && (subjects.CodeOf(err) != subjects.CodePayloadTooLarge || got != "") {
			t.Errorf("%s: %d bytes, %v; want it to fit: %v", name, len(got), err, tt.fits)
		}
	}
	if got, err := quote(strings.Repeat("${", 500_000)+"}", quoted{}); len(got) != 1_000_001 || err != nil {
		t.Errorf("of what looks like quotes: %d bytes, %v", len(got), err)
	}
}

func TestUnfold(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{
		`[1,2]`: 2, `[]`: 0, `"[1,2,3]"`: 3, `{"a":1}`: -1, `null`: -1, ``: -1, `"x"`: -1, `"null"`: -1,
		"[" + strings.Repeat("1,", run.MaxItems) + "1]": -1,
	} {
		list, err := (&run.FanOut{From: "a"}).Unfold(json.RawMessage(in))
		if err != nil && want >= 0 || err == nil && len(list) != want {
			t.Errorf("Unfold(%.20s) = %d items, %v, want %d", in, len(list), err, want)
		}
	}
	if list, err := (&run.FanOut{From: "a", Pointer: "/l/0"}).Unfold(json.RawMessage(`{"l":[["x"]]}`)); err != nil || len(list) != 1 {
		t.Errorf("by a pointer: %s, %v", list, err)
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	b := run.Before{
		Outputs: map[run.NodeID]json.RawMessage{"a": json.RawMessage(`{"n":7,"f":0.5,"list":[1,2],"s":"x"}`), "t": json.RawMessage(`"{\"n\":1}"`), "none": nil},
		Status:  map[run.NodeID]run.State{"a": run.Done, "none": run.Skipped}, Shared: json.RawMessage(`{"least":7}`),
	}
	for in, want := range map[string]bool{
		`outputs.a.n >= shared.least`:                     true,
		`outputs.a.n == 7 && outputs.a.f < 1`:             true,
		`outputs["a"].s in ["x", "y"]`:                    true,
		`len(outputs.a.list) > 2`:                         false,
		`outputs.none == nil && status.none == "skipped"`: true,
		`any(outputs.a.list, # == 2)`:                     true,
		`fromJSON(outputs.t).n == 1`:                      true,
		`outputs.a?.missing?.deeper == nil`:               true,
	} {
		c, err := run.Compile(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := c.Holds(b); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{`outputs.a.s > 1`, `outputs.a.n`, `outputs.none.x`} {
		if c, err := run.Compile(in); err == nil {
			if got, err := c.Holds(b); err == nil {
				t.Errorf("%s: %v, want an error", in, got)
			}
		}
	}
	for _, in := range []string{
		`sum(1..9) > 3`, `let x = outputs; x.a == nil`, `any(outputs.a.list, any(outputs.a.list, # > 1))`, `len(replace(outputs.a.s, "x", outputs.a.s)) > 1`,
		`repeat("x", 9) == ""`, `date("2026-01-01").Year() > 1`, strings.Repeat(" ", 2000) + "true",
	} {
		if _, err := run.Compile(in); err == nil {
			t.Errorf("%.80s is allowed", in)
		}
	}
	c, err := run.Compile(`outputs.a.n > 1 || status["b-c"] == "done" || outputs[shared.x] == 1`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]run.NodeID{"a", "b-c"}, c.Nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// No condition, however odd, does more than fail.
func FuzzCondition(f *testing.F) {
	for _, s := range []string{`outputs.a.n > 1`, `status["a"] == "done"`, `1/0 > 1`, `reduce(1..9, # + #acc) > 3`, `let x = outputs; x.a == nil`, `now()`} {
		f.Add(s, `{"n":1}`)
	}
	f.Fuzz(func(t *testing.T, text, output string) {
		c, err := run.Compile(text)
		if err != nil || !json.Valid([]byte(output)) {
			return
		}
		b := run.Before{Outputs: map[run.NodeID]json.RawMessage{"a": json.RawMessage(output)}}
		got, err := c.Holds(b)
		again, errAgain := c.Holds(b)
		if got != again || (err == nil) != (errAgain == nil) {
			t.Fatalf("%v, %v, then %v, %v", got, err, again, errAgain)
		}
	})
}

func FuzzQuote(f *testing.F) {
	f.Add("${a/x/0} ${item} ${", `{"x":["${a}"]}`)
	f.Fuzz(func(t *testing.T, brief, output string) {
		if !json.Valid([]byte(output)) {
			return
		}
		raw := json.RawMessage(output)
		if got, err := quote(brief, quoted{}); got != brief || err != nil {
			t.Fatalf("Quote(%q) = %q, %v without anything to quote", brief, got, err)
		}
		_, _ = quote(brief, quoted{Outputs: map[run.NodeID]json.RawMessage{"a": raw}, Item: raw})
		if got, err := quote("<${a}>", quoted{Outputs: map[run.NodeID]json.RawMessage{"a": raw}}); !strings.HasPrefix(got, "<") || !strings.HasSuffix(got, ">") {
			t.Fatalf("quoted as %q, %v", got, err)
		}
	})
}
