package agent_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func TestReadAnswer(t *testing.T) {
	t.Parallel()
	const result = `{"type":"TASK_RESULT","task_id":"x","status":"partial","tokens_spent":5,"next_steps":["more"],"blocked_reason":null}`
	const schema = `{"type":"object"}`
	for name, c := range map[string]struct {
		text, reply, schema string
		output              string
		status              fleet.Status // absent done
		fails               subjects.Code
	}{
		"prose":                       {text: " hello\n", output: `"hello"`},
		"nothing":                     {text: "", output: `""`},
		"prose full of braces":        {text: strings.Repeat("{[", 200), output: `"` + strings.Repeat("{[", 200) + `"`},
		"bad UTF-8":                   {text: "a\xffb", output: `"a�b"`},
		"JSON when nobody asked":      {text: `{"a":1}`, output: `"{\"a\":1}"`},
		"JSON":                        {text: `[1, 2]`, reply: fleet.ReplyJSON, output: `[1, 2]`},
		"JSON in a fence":             {text: "Here:\n```json\n{\"a\":1}\n```\nThat's it.", reply: fleet.ReplyJSON, output: `{"a":1}`},
		"no JSON":                     {text: "sorry", reply: fleet.ReplyJSON, fails: subjects.CodeResultInvalid},
		"nothing for JSON":            {text: "", reply: fleet.ReplyJSON, fails: subjects.CodeResultInvalid},
		"JSON by schema":              {text: `{"a":1}`, schema: schema, output: `{"a":1}`},
		"text where a schema is":      {text: `hello`, schema: schema, output: `"hello"`},
		"a TASK_RESULT":               {text: result, status: fleet.StatusPartial, output: mustQuote(result)},
		"a TASK_RESULT by schema":     {text: result, schema: schema, status: fleet.StatusPartial},
		"a TASK_RESULT with a defect": {text: `{"type":"TASK_RESULT","status":"perfect"}`, fails: subjects.CodeResultInvalid},
	} {
		d := dispatch("t1", "x")
		d.Task.ReplySchema = c.reply
		if c.schema != "" {
			d.Task.ResultSchema = []byte(c.schema)
		}
		got, err := agent.ReadAnswer(c.text, d)
		if code, _ := fail(err); code != c.fails {
			t.Errorf("%s: error = %v, want code %q", name, err, c.fails)
			continue
		}
		if c.fails != "" {
			continue
		}
		if c.status == "" {
			c.status = fleet.StatusDone
		}
		if string(got.Output) != c.output || got.Status != c.status {
			t.Errorf("%s: %s %s, want %s %s", name, got.Status, got.Output, c.status, c.output)
		}
	}
}

func mustQuote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// The vector of the source: TASK_RESULT in an agent's prose.
func TestReadAnswerVector(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/task-result-in-prose.txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := agent.ReadAnswer(string(data), dispatch("t1", "x"))
	if err != nil || got.Status != fleet.StatusPartial || got.TokensSpent != 2110 || len(got.NextSteps) != 1 {
		t.Errorf("ReadAnswer = %+v, %v", got, err)
	}
}

func TestPrompt(t *testing.T) {
	t.Parallel()
	d := dispatch("t1", "Do it.")
	if got := agent.Prompt(d); got != "Do it.\n" {
		t.Errorf("plain prompt = %q", got)
	}
	d.Tried = []fleet.Tried{{AgentID: "carol", Code: subjects.CodeAgentTimeout, Message: "no\nresult"}, {AgentID: "dan", Code: subjects.CodeAgentLost}}
	d.Context = []byte(`{"shared_data":{"a":1}}`)
	d.Task.ReplySchema = fleet.ReplyJSON
	want := `# What was tried before

- carol: agent_timeout: no result
- dan: agent_lost

# Context (JSON)

{"shared_data":{"a":1}}

# The task

Do it.

Answer with exactly one JSON value and nothing else.
`
	if diff := cmp.Diff(want, agent.Prompt(d)); diff != "" {
		t.Errorf("prompt (-want +got):\n%s", diff)
	}
	d = dispatch("t1", "Do it.")
	d.Task.ResultSchema = []byte(`{"type":"object"}`)
	if got := agent.Prompt(d); !strings.HasSuffix(got, "It must be valid by this JSON Schema:\n{\"type\":\"object\"}\n") {
		t.Errorf("prompt with a schema = %q", got)
	}
	// The form that is shown is one that is understood.
	d.Task.ReplySchema = fleet.ReplyStructured
	got := agent.Prompt(d)
	if r, ok := fleet.FindResult(got); !ok || r.TaskID != "t1" || !strings.Contains(got, `Add "output"`) {
		t.Errorf("structured prompt = %q", got)
	}
}

func TestEnv(t *testing.T) {
	t.Parallel()
	env := []string{"PATH=/a", "LC_ALL=C", "SECRET=x", "CLAUDECODE=1", "HOME=/h", "junk", "PATH=/b", "ANTHROPIC_API_KEY=k", "MY_A=1"}
	got := agent.ChildEnv(env, []string{"CLAUDECODE", "ANTHROPIC_API_KEY", "MY_*"})
	want := []string{"PATH=/b", "LC_ALL=C", "HOME=/h", "ANTHROPIC_API_KEY=k", "MY_A=1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ChildEnv (-want +got):\n%s", diff)
	}
	for in, want := range map[string]string{
		"plain": "plain", "${HOME}/x": "/h/x", "${NOPE:-y}": "y", "${HOME:-y}": "/h", "a${": "a${", "$HOME": "$HOME", "${PATH}${HOME}": "/b/h",
	} {
		if got, err := agent.ExpandEnv(in, env); err != nil || got != want {
			t.Errorf("ExpandEnv(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	if _, err := agent.ExpandEnv("${NOPE}", env); err == nil {
		t.Error("ExpandEnv of a missing name = nil, want an error")
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	got := agent.Lines(4, "ab", "c\r\n\nabcde", "fgh\nx")
	if diff := cmp.Diff([]string{"abc", "", "abcd|cut", "x"}, got); diff != "" {
		t.Errorf("Lines (-want +got):\n%s", diff)
	}
	if got := agent.Clip("aé", 2); got != "a… (3 bytes)" {
		t.Errorf("Clip = %q", got)
	}
}
