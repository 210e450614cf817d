package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is one tool, ready to be added to a caller's server.
type tool struct {
	name string
	add  func(s *sdk.Server, c *caller)
}

// kind is what a tool does to the world.
type kind int

const (
	reads  kind = iota // nothing
	adds               // new things
	alters             // what is there
)

// progress tells the client how far a call has come.
type progress func(ctx context.Context, done, of int, message string)

// newTool makes a tool of a function; edit may refine the schema that its
// arguments have by their type.
func newTool[In any](w *Worker, name, title string, k kind, do func(context.Context, *caller, *In, progress) (any, error), edit func(*jsonschema.Schema)) (tool, error) {
	m, ok := w.manuals[name]
	if !ok || m.short == "" || m.more == "" {
		return tool{}, fmt.Errorf("there is no help for %s", name)
	}
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		return tool{}, fmt.Errorf("schema of %s: %w", name, err)
	}
	if edit != nil {
		edit(schema)
	}
	def := &sdk.Tool{
		Name: name, Title: title, Description: m.short, InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{Title: title, ReadOnlyHint: k == reads, DestructiveHint: new(k == alters), IdempotentHint: k != adds, OpenWorldHint: new(k == adds)},
	}
	return tool{name: name, add: func(s *sdk.Server, c *caller) {
		sdk.AddTool(s, def, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
			ctx, cancel := context.WithTimeout(ctx, maxCall)
			defer cancel()
			out, err := do(ctx, c, &in, notifier(req))
			if text, ok := out.(string); ok && err == nil {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
			}
			return nil, out, err
		})
	}}, nil
}

// notifier tells the client, if it asked to be told.
func notifier(req *sdk.CallToolRequest) progress {
	token := req.Params.GetProgressToken()
	return func(ctx context.Context, done, of int, message string) {
		if token != nil && req.Session != nil {
			// A client that is gone has no use for it.
			_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(done), Total: float64(of), Message: message,
			})
		}
	}
}

// toolbox makes the tools, in the order in which they are listed.
func toolbox(w *Worker) (all []tool, err error) {
	add := func(t tool, e error) {
		if err == nil {
			all, err = append(all, t), e
		}
	}
	add(newTool(w, "fleet_agents", "List agents", reads, agents, nil))
	add(newTool(w, "fleet_dispatch", "Dispatch a task", adds, dispatchOne, termsSchema))
	add(newTool(w, "fleet_dispatch_many", "Dispatch many tasks", adds, dispatchMany, func(s *jsonschema.Schema) {
		bounds(s.Properties["tasks"], 1)
		termsSchema(s.Properties["tasks"].Items)
		termsSchema(s.Properties["common"])
	}))
	add(newTool(w, "fleet_wait", "Wait for tasks", reads, wait, func(s *jsonschema.Schema) {
		bounds(s.Properties["task_ids"], 0)
		bounds(s.Properties["message_ids"], 0)
		enum(s, "need", "all", "any")
		limits(s, "timeout_seconds", 0, maxWait.Seconds())
		preset(s, "timeout_seconds", defaultWait.Seconds())
	}))
	add(newTool(w, "fleet_result", "Read a result", reads, result, func(s *jsonschema.Schema) {
		limits(s, "offset", 0, 1<<40)
		limits(s, "limit", 1, maxPage)
		preset(s, "limit", defaultPage)
	}))
	add(newTool(w, "fleet_status", "Look at tasks", reads, status, func(s *jsonschema.Schema) {
		enum(s, "state", "queued", "working", "input_required", "done", "partial", "error", "blocked", "canceled", "expired")
		limits(s, "limit", 1, maxMany)
		preset(s, "limit", defaultList)
	}))
	add(newTool(w, "fleet_cancel", "Cancel tasks", alters, cancel, func(s *jsonschema.Schema) {
		bounds(s.Properties["task_ids"], 1)
	}))
	add(newTool(w, "fleet_message", "Talk to a task or an agent", adds, message, func(s *jsonschema.Schema) {
		enum(s, "action", "do", "info")
		enum(s, "reply", "yes", "no")
		limits(s, "wait_seconds", 0, maxWait.Seconds())
		preset(s, "wait_seconds", 0.0)
	}))
	if w.cfg.Escalations {
		add(newTool(w, "fleet_answer_escalation", "Decide for the human", alters, answerEscalation, func(s *jsonschema.Schema) {
			enum(s, "decision", "retry", "reassign", "answer", "complete", "cancel")
		}))
	}
	var names []string
	for _, t := range all {
		names = append(names, t.name)
	}
	add(newTool(w, "fleet_help", "How to use the fleet", reads, help, func(s *jsonschema.Schema) {
		enum(s, "tool", append(names, "fleet_help")...)
	}))
	return all, err
}

func enum(s *jsonschema.Schema, property string, values ...string) {
	for _, v := range values {
		s.Properties[property].Enum = append(s.Properties[property].Enum, v)
	}
}

func limits(s *jsonschema.Schema, property string, least, most float64) {
	s.Properties[property].Minimum, s.Properties[property].Maximum = &least, &most
}

func preset[T any](s *jsonschema.Schema, property string, v T) {
	if data, err := json.Marshal(v); err == nil {
		s.Properties[property].Default = data
	}
}

func bounds(list *jsonschema.Schema, least int) {
	list.MinItems, list.MaxItems = &least, new(maxMany)
	list.Type, list.Types = "array", nil // null is no list
}

// helpIn is the argument of fleet_help.
type helpIn struct {
	Tool string `json:"tool,omitempty" jsonschema:"the tool that you want to know about; leave it out for the overview"`
}

func help(_ context.Context, c *caller, in *helpIn, _ progress) (any, error) {
	if in.Tool != "" {
		return c.w.manuals[in.Tool].whole(in.Tool), nil
	}
	var text strings.Builder
	text.WriteString(c.w.manuals["fleet_help"].more + "\n\nEvery tool in short (fleet_help with `tool` says more):\n")
	for _, name := range slices.Sorted(maps.Keys(c.w.manuals)) {
		if name != "fleet_answer_escalation" || c.w.cfg.Escalations {
			text.WriteString("\n- " + name + ": " + c.w.manuals[name].short)
		}
	}
	return text.String(), nil
}
