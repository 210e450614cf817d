package agent

import (
	"fmt"
	"strings"
	"time"

	"parley/subjects/fleet"
)

// Prompt is a task in words, for whoever knows nothing of the fleet: the brief,
// after what should be known of the task's past, and before how to answer. Most
// tasks have neither.
func Prompt(d *fleet.Dispatch) string {
	var b strings.Builder
	preamble(&b, d)
	b.WriteString(d.Brief)
	for _, m := range d.Messages {
		if m.Text != "" {
			b.WriteString("\n\n# Added since\n\n" + m.Text)
		}
	}
	for _, part := range instructions(d) {
		b.WriteString("\n\n" + part)
	}
	if !strings.HasSuffix(b.String(), "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}

// preamble tells what was tried before and what the session knows.
func preamble(b *strings.Builder, d *fleet.Dispatch) {
	if len(d.Tried) > 0 {
		b.WriteString("# What was tried before\n\n")
		for _, t := range d.Tried {
			b.WriteString("- ")
			if t.Attempt > 0 {
				fmt.Fprintf(b, "attempt %d, ", t.Attempt)
			}
			fmt.Fprintf(b, "%s: %s", t.AgentID, t.Code)
			if t.Message != "" {
				fmt.Fprintf(b, ": %s", strings.Join(strings.Fields(t.Message), " "))
			}
			b.WriteByte('\n')
		}
		b.WriteByte('\n')
	}
	if d.Human != nil && d.Human.Text != "" {
		fmt.Fprintf(b, "# What a human says about it\n\n%s\n\n", d.Human.Text)
	}
	if len(d.Context) > 0 {
		fmt.Fprintf(b, "# Context (JSON)\n\n%s\n\n", d.Context)
	}
	if b.Len() > 0 {
		b.WriteString("# The task\n\n")
	}
}

// instructions say how to answer: phase 3 of S1.
func instructions(d *fleet.Dispatch) []string {
	var out []string
	schema := string(d.Task.ResultSchema)
	switch {
	case d.Task.ReplySchema == fleet.ReplyStructured:
		s := `When you are done, end your answer with one JSON object of this form, in a code fence:
{"type":"TASK_RESULT","protocol_version":"` + fleet.Version + `","task_id":"` + string(d.Task.TaskID) + `","status":"done","tokens_spent":0,"next_steps":[],"blocked_reason":null,"artifacts":{}}
"status" is one of: done; partial (list what is left in "remaining"); blocked (say why in "blocked_reason"); error (say what failed in "error": {"message": "…"}).`
		if schema != "" {
			s += "\nAdd \"output\", a JSON value that is valid by this JSON Schema:\n" + schema
		}
		out = append(out, s)
	case schema != "":
		out = append(out, "Answer with exactly one JSON value and nothing else. It must be valid by this JSON Schema:\n"+schema)
	case d.Task.ReplySchema == fleet.ReplyJSON:
		out = append(out, "Answer with exactly one JSON value and nothing else.")
	}
	return out
}

// contractEnv is the task's contract for whoever reads no JSON. Of the offer,
// which has it all, file is the path.
func contractEnv(d *fleet.Dispatch, file string) []string {
	env := []string{
		"PARLEY_TASK_ID=" + string(d.Task.TaskID),
		fmt.Sprintf("PARLEY_ATTEMPT=%d", d.Attempt),
		"PARLEY_FROM=" + string(d.From),
		"PARLEY_PRIORITY=" + string(d.Task.Priority),
		"PARLEY_REPLY_SCHEMA=" + orProse(d.Task.ReplySchema),
		"PARLEY_SESSION_ID=" + string(d.Task.SessionID),
		"PARLEY_CONTRACT=" + file,
	}
	if d.Deadline != nil {
		env = append(env, "PARLEY_DEADLINE="+d.Deadline.UTC().Format(time.RFC3339))
	}
	if d.Input != nil && d.Task.Type == messageType {
		env = append(env, "PARLEY_MESSAGE_ID="+d.Input.MessageID, "PARLEY_THREAD_ID="+d.Input.ContextID)
	}
	if d.Traceparent != "" {
		env = append(env, "TRACEPARENT="+d.Traceparent)
	}
	if b := (&Task{Dispatch: d}).budget(); b > 0 {
		env = append(env, fmt.Sprintf("PARLEY_TOKEN_BUDGET=%d", b))
	}
	return env
}

func orProse(s string) string {
	if s == "" {
		return fleet.ReplyProse
	}
	return s
}
