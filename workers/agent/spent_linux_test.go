package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// turn is what Claude Code prints of a message that has spent 600 tokens.
func turn(id string) string {
	return `echo '{"type":"assistant","session_id":"s","message":{"id":"` + id + `","usage":{"input_tokens":500,"output_tokens":100}}}'; `
}

// A session that is resumed tells its total: what it has spent since is counted,
// by a process that comes later too.
func TestResumedSession(t *testing.T) {
	t.Parallel()
	vectors, err := filepath.Abs("testdata/cli-agents")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		usage agent.Usage
		files []string
		want  []int64
	}{
		{agent.UsageClaude, []string{"claude-session-id.jsonl", "claude-resume.jsonl", "claude-session-id.jsonl"}, []int64{120, 120, 120}},
		{agent.UsageCodex, []string{"codex-remember.jsonl", "codex-resume.jsonl", "codex-remember.jsonl"}, []int64{120, 120, 120}},
	} {
		state := filepath.Join(t.TempDir(), "state")
		for i, file := range c.files {
			var told []int64
			e := shell(t, `cat "$V/`+file+`"`, agent.ExecConfig{Usage: c.usage, StateDir: state, Set: []string{"V=" + vectors}})
			got, err := e.Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(_ string, tokens *int64) {
				if tokens != nil {
					told = append(told, *tokens)
				}
			}))
			if err != nil || got.TokensSpent != c.want[i] {
				t.Errorf("%s, %s: %d tokens, %v; want %d", c.usage, file, got.TokensSpent, err, c.want[i])
			}
			if n := len(told); c.usage == agent.UsageCodex && (n == 0 || told[n-1] != c.want[i]) {
				t.Errorf("%s: progress told %d, want %d at last", file, told, c.want[i])
			}
		}
		if files, err := os.ReadDir(state); err != nil || len(files) != 1 {
			t.Errorf("%s: kept %v, %v; want one total", c.usage, files, err)
		}
	}
}

// The figures of a message grow while it comes in, whatever an assistant event
// says afterwards.
func TestPartialMessages(t *testing.T) {
	t.Parallel()
	got, err := agent.Read(agent.UsageClaude, `{"type":"stream_event","session_id":"s","event":{"type":"message_start","message":{"id":"a","usage":{"input_tokens":100,"output_tokens":1}}}}
{"type":"stream_event","session_id":"s","parent_tool_use_id":"p","event":{"type":"message_start","message":{"id":"b","usage":{"input_tokens":7,"output_tokens":1}}}}
{"type":"stream_event","session_id":"s","event":{"type":"message_delta","usage":{"output_tokens":20}}}
{"type":"stream_event","session_id":"s","parent_tool_use_id":"p","event":{"type":"message_delta","usage":{"output_tokens":3}}}
{"type":"assistant","session_id":"s","message":{"id":"a","usage":{"input_tokens":100,"output_tokens":1}}}
`, nil)
	if err == nil || got.TokensSpent != 130 {
		t.Errorf("%d tokens, %v; want 130 of a command without a result", got.TokensSpent, err)
	}
}

// A token budget stops a running attempt, with what it has spent by then.
func TestBudgetStops(t *testing.T) {
	t.Parallel()
	script := turn("a") + turn("b") + `read x <"$GO"; ` + turn("c")
	for name, set := range map[string]func(*fleet.Dispatch){
		"the task's":       func(d *fleet.Dispatch) { d.Task.TokenBudget = 1000 },
		"what is left":     func(d *fleet.Dispatch) { d.Task.TokenBudget, d.TokensLeft = 5000, 1000 },
		"a session's":      func(d *fleet.Dispatch) { d.TokensLeft = 1000 },
		"smaller than one": func(d *fleet.Dispatch) { d.TokensLeft = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFIFO(t) // nobody ever writes
			r := newRouter(t)
			a := r.start(agent.Config{Handler: shell(t, script, agent.ExecConfig{Usage: agent.UsageClaude, Set: []string{"GO=" + f.path}})})
			d := dispatch("t1", "x")
			set(d)
			a.give(d)
			got := r.result("t1")
			if code(got) != subjects.CodeBudgetExhausted || got.TokensSpent != 1200 && (name != "smaller than one" || got.TokensSpent != 600) || got.TokensSource != "measured" {
				t.Errorf("result = %s, %d tokens %s; want budget_exhausted, 1200 measured", code(got), got.TokensSpent, got.TokensSource)
			}
		})
	}
}

// The same holds for any handler that tells what it spends, and for messages.
func TestBudgetOfHandlers(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		task.Progress("", -1, 900)
		task.Progress("", -1, 1100)
		<-ctx.Done()
		return fleet.Result{}, ctx.Err()
	})})
	d := dispatch("t1", "x")
	d.Task.TokenBudget = 1000
	a.give(d)
	if got := r.result("t1"); code(got) != subjects.CodeBudgetExhausted || got.TokensSpent != 1100 {
		t.Errorf("result = %s, %d tokens; want budget_exhausted, 1100", code(got), got.TokensSpent)
	}
	f := newFIFO(t)
	e := shell(t, turn("a")+turn("b")+`read x <"$GO"`, agent.ExecConfig{Usage: agent.UsageClaude, Set: []string{"GO=" + f.path}})
	d.Task.TokenBudget = 1000
	if got, err := e.Handle(t.Context(), &agent.Task{Dispatch: d}); err == nil || got.TokensSpent != 1200 { // as a message has it
		t.Errorf("%d tokens, %v; want an error with 1200", got.TokensSpent, err)
	}
}

// What a canceled task has spent is handed in, and heartbeats say it before.
func TestCanceledHasSpent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why, code subjects.Code
	}{
		"canceled":   {subjects.CodeCanceled, subjects.CodeCanceled},
		"superseded": {subjects.CodeSuperseded, subjects.CodeAgentBusy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFIFO(t)
			r := newRouter(t)
			a := r.start(agent.Config{Handler: shell(t, turn("a")+`read x <"$GO"`, agent.ExecConfig{Usage: agent.UsageClaude, Set: []string{"GO=" + f.path}})})
			a.give(dispatch("t1", "x"))
			await(t, "a heartbeat with tokens", r.beats, func(h fleet.Heartbeat) bool {
				return len(h.Holding) == 1 && h.Holding[0].TokensSpent == 600
			})
			a.cancel("t1", 1, c.why)
			if got := r.result("t1"); code(got) != c.code || got.TokensSpent != 600 {
				t.Errorf("result = %s, %d tokens; want %s, 600", code(got), got.TokensSpent, c.code)
			}
			a.gone()
		})
	}
}
