package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// codex reads what codex exec --json prints: a line per event. The last message
// of the agent is its answer. An item of type error is a warning; only
// turn.failed, or an error that no turn survived, is a failure.
type codex struct {
	thread    string
	message   string
	answered  bool
	completed bool
	failed    string
	warned    string // the last error event
	usage     *codexUsage
	calls     callLog
	past      *totals
}

// codexUsage is cumulative over the thread. Input includes what was cached.
type codexUsage struct {
	Input      int64 `json:"input_tokens"`
	Cached     int64 `json:"cached_input_tokens"`
	CacheWrite int64 `json:"cache_write_input_tokens"`
	Output     int64 `json:"output_tokens"` // reasoning included
}

type codexEvent struct {
	Type    string `json:"type"`
	Thread  string `json:"thread_id"`
	Message string `json:"message"`
	Item    struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Message string `json:"message"`
		Command string `json:"command"`
		Status  string `json:"status"` // completed, failed or declined, once it is completed
		Output  string `json:"aggregated_output"`
		Exit    int    `json:"exit_code"`
		Server  string `json:"server"` // of mcp_tool_call
		Tool    string `json:"tool"`
		Changes []struct {
			Path string `json:"path"`
		} `json:"changes"` // of file_change
	} `json:"item"`
	Usage *codexUsage `json:"usage"`
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

func (c *codex) line(b []byte, cut bool) (note string, tokens int64) {
	b = bytes.TrimSpace(b)
	var e codexEvent
	if cut || len(b) == 0 || b[0] != '{' || json.Unmarshal(b, &e) != nil {
		return "", 0
	}
	switch e.Type {
	case "thread.started":
		c.thread = e.Thread
	case "item.started", "item.completed":
		return c.item(&e), 0
	case "turn.completed":
		c.completed, c.failed, c.usage = true, "", e.Usage
		return "", c.past.since(c.spent()).tokens()
	case "turn.failed":
		c.failed = cmp.Or(e.Error.Message, c.warned, "the turn failed")
	case "error":
		c.warned = cmp.Or(e.Message, "an error that says nothing")
		return firstLine(c.warned), 0
	}
	return "", 0
}

// codexRefused is what a command prints that Codex's sandbox did not let do its
// work: Codex itself says only that the command failed.
var codexRefused = regexp.MustCompile(`(?i)read-only file system|operation not permitted|permission denied|` +
	`network is unreachable|could not resolve host|denied by (?:the )?sandbox|blocked by (?:the )?sandbox`)

// call notes what became of a call.
func (c *codex) call(e *codexEvent) {
	i := &e.Item
	call := toolCall{Kind: i.Type}
	switch i.Type {
	case "command_execution":
		call.Title, call.ExitCode = firstLine(i.Command), i.Exit
	case "mcp_tool_call":
		call.Title = i.Server + "/" + i.Tool
	case "file_change":
		var paths []string
		for _, change := range i.Changes {
			paths = append(paths, change.Path)
		}
		call.Title = clip(strings.Join(paths, " "), 500)
	default:
		return
	}
	switch {
	case i.Status == "completed":
		c.calls.succeed(call)
	case i.Status == "declined":
		call.By = "nobody"
		c.calls.deny(call)
	case i.Status != "failed":
	case i.Type == "file_change", i.Type == "command_execution" && codexRefused.MatchString(i.Output):
		c.calls.deny(call)
	default:
		c.calls.fail(call)
	}
}

func (c *codex) item(e *codexEvent) (note string) {
	if e.Type == "item.completed" {
		c.call(e)
	}
	switch e.Item.Type {
	case "agent_message":
		if e.Type == "item.completed" {
			c.message, c.answered = e.Item.Text, true
		}
		return firstLine(e.Item.Text)
	case "error":
		return "warning: " + firstLine(e.Item.Message)
	case "command_execution":
		return firstLine(e.Item.Command)
	}
	return ""
}

func (c *codex) spent() *spent {
	if c.usage == nil {
		return &spent{Tool: "codex", Session: c.thread}
	}
	u := c.usage
	return &spent{
		Tool: "codex", Session: c.thread, cumulative: true,
		Input:         max(u.Input-u.Cached-u.CacheWrite, 0),
		CacheCreation: u.CacheWrite, CacheRead: u.Cached, Output: u.Output,
	}
}

func (c *codex) report(now time.Time) report {
	r := report{text: c.message, answered: c.answered && c.completed, calls: &c.calls}
	if c.usage != nil {
		r.spent = c.spent()
	}
	switch failed := cmp.Or(c.failed, c.warned); {
	case c.failed != "", !c.completed && c.warned != "":
		r.fail = codexFailure(failed, now)
	}
	return r
}

// codexStatus is how codex words an HTTP status; it says it in no other way.
var codexStatus = regexp.MustCompile(`(?i)\bstatus(?: code)?:? (\d{3})\b`)

func codexFailure(message string, now time.Time) *Fail {
	status := 0
	if m := codexStatus.FindStringSubmatch(message); m != nil {
		status, _ = strconv.Atoi(m[1])
	}
	return apiFailure(status, message, now)
}
