package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

// found is a TASK_RESULT of task id.
func found(id, more string) string {
	return `{"type":"TASK_RESULT","task_id":"` + id + `","status":"done"` + more + `}`
}

func TestFindResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in, want string // the task id; "" none
	}{
		{"bare", found("a", ""), "a"},
		{"in a sentence", "Done: " + found("a", "") + ". Bye.", "a"},
		{"in a fence", "Done.\n```json\n" + found("a", "") + "\n```\nBye.", "a"},
		{"in an open fence", "Done.\n```\n" + found("a", ""), "a"},
		{"the last of two", found("a", "") + found("b", ""), "b"},
		{"the last valid", found("a", "") + " then " + strings.Replace(found("b", ""), "done", "dome", 1), "a"},
		{"over many lines", "{\n  \"type\" :\t\"TASK_RESULT\" ,\r\n\"task_id\":\"a\",\"status\":\"done\"\n}", "a"},
		{"type comes last", `{"task_id":"a","status":"done","output":{"x":[1,{"y":null}]},"type":"TASK_RESULT"}`, "a"},
		{"inside a list", "[1, " + found("a", "") + ", 2]", "a"},
		{"inside an object", `{"result": ` + found("a", "") + `}`, "a"},
		{"inside an object that never ends", `{"result": ` + found("a", ""), "a"},
		{"after braces", "func f() { return {x} }\n" + found("a", ""), "a"},
		{"after an open brace and quote", `{"never closed ` + found("a", ""), "a"},
		{"after an open quote on another line", "{\"never\nclosed\n" + found("a", ""), "a"},
		{"after many braces", strings.Repeat("{", 1000) + found("a", ""), "a"},
		{"braces in its strings", found("a", `,"output":"} { \"type\" ] }"`), "a"},
		{"outer before inner", found("a", `,"artifacts":`+found("b", "")), "a"},
		{"quoted in a string", `{"text":"{\"type\":\"TASK_RESULT\",\"status\":\"done\"}"}`, ""},
		{"without its type", `{"task_id":"a","status":"done"}`, ""},
		{"of another type", `{"type":"TASK_DISPATCH","x":"TASK_RESULT"}`, ""},
		{"type of an inner object", `{"status":"done","x":{"type":"TASK_RESULT"}}`, ""},
		{"status missing", `{"type":"TASK_RESULT"}`, ""},
		{"trailing comma", `{"type":"TASK_RESULT","task_id":"a","status":"done",}`, ""},
		{"a name twice", found("a", `,"status":"done"`), ""},
		{"other major", found("a", `,"protocol_version":"3.0"`), ""},
		{"too deep", found("a", `,"output":`+strings.Repeat("[", 64)+strings.Repeat("]", 64)), ""},
		{"not UTF-8", found("a", "") + "\xff", ""},
		{"nothing", "", ""},
		{"ends in a string", `{"a":"TASK_RESULT\`, ""},
		{"ends after a name", `{"TASK_RESULT"`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, ok := fleet.FindResult(tt.in)
			if ok != (tt.want != "") || ok && r.TaskID != subjects.TaskID(tt.want) || !ok && r != nil {
				t.Errorf("FindResult = %+v, %v, want %q", r, ok, tt.want)
			}
		})
	}
}

// Text made to be slow costs no more than text of its length.
func TestFindResultIsLinear(t *testing.T) {
	t.Parallel()
	const size = fleet.MaxMessage
	for name, unit := range map[string]string{
		"braces":            `{`,
		"quoted braces":     `{"`,
		"names":             `{"a":`,
		"long names":        `{"` + strings.Repeat("a", 1000) + `":`,
		"lists":             `{"a":[`,
		"braced strings":    `{"a {`,
		"backslashes":       `{"\`,
		"invalid results":   `{"type":"TASK_RESULT"} `,
		"nested candidates": `{"type":"TASK_RESULT","artifacts":`,
	} {
		in := strings.Repeat(unit, size/len(unit)) + ` "TASK_RESULT"`
		if name == "nested candidates" {
			in += strings.Repeat("}", size/len(unit))
		}
		start := time.Now()
		if r, ok := fleet.FindResult(in); ok {
			t.Errorf("%s: found %+v", name, r)
		}
		if took := time.Since(start); took > 2*time.Minute { // each brace looked at from each brace takes ten
			t.Errorf("%s: %v for 1 MiB", name, took)
		}
	}
}

func TestReadResult(t *testing.T) {
	t.Parallel()
	head := `{"type":"TASK_RESULT","protocol_version":"2.0"`
	done := head + `,"status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null,"output":`
	for _, tt := range []struct{ name, in, want string }{
		{"a result", found("a", ""), head + `,"task_id":"a","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null}`},
		{"a result without type", ` {"status":"blocked","blocked_reason":"x"}`, head + `,"status":"blocked","tokens_spent":0,"next_steps":[],"blocked_reason":"x"}`},
		{"prose with one", "Ok {so}: " + found("a", ""), head + `,"task_id":"a","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null}`},
		{"a result and prose", found("a", "") + "\nthat is all", head + `,"task_id":"a","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null}`},
		{"prose", "  It \"works\" now.\n", done + `"It \"works\" now."}`},
		{"prose with many brackets", strings.Repeat("{[", 50), done + `"` + strings.Repeat("{[", 50) + `"}`},
		{"prose in braces", "{ it works }", done + `"{ it works }"}`},
		{"a number", "42", done + `"42"}`},
		{"foreign JSON", `{"findings": [1, 2]}`, done + `{"findings":[1,2]}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := fleet.ReadResult([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(fleet.MustEncode(r))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, tt := range []struct {
		name, in string
		code     subjects.Code
		pointer  string
	}{
		{"empty", " ", invalidMessage, ""},
		{"blank of another script", "\u2003", invalidMessage, ""},
		{"not UTF-8", "x\xff", invalidMessage, ""},
		{"too large", strings.Repeat("x", fleet.MaxMessage+1), subjects.CodePayloadTooLarge, ""},
		{"too large as JSON", strings.Repeat("\x01", fleet.MaxMessage/4), subjects.CodePayloadTooLarge, ""},
		{"too deep", `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "}", invalidMessage, ""},
		{"bad result", `{"type":"TASK_RESULT","status":"x"}`, invalidMessage, "/status"},
		{"bad result in prose", `so: {"type":"TASK_RESULT","status":"blocked"}`, invalidMessage, "/blocked_reason"},
		{"nearly a result", `{"task_id":"a","state":"blocked"}`, invalidMessage, "/status"},
		{"nothing of anything", `{}`, invalidMessage, "/status"},
		{"broken JSON", `{"status":"blocked","blocked_reason":"x",}`, invalidMessage, ""},
		{"another message", `{"type":"TASK_PROGRESS"}`, invalidMessage, "/type"},
		{"other major", `{"type":"TASK_RESULT","protocol_version":"3.0"}`, subjects.CodeVersionMismatch, "/protocol_version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := fleet.ReadResult([]byte(tt.in))
			if subjects.CodeOf(err) != tt.code || err != nil && subjects.AsError(err).Pointer != tt.pointer {
				t.Errorf("ReadResult = %+v, %v, want %s at %q", r, err, tt.code, tt.pointer)
			}
		})
	}
}
