package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
)

func (a *app) taskRetry() *cobra.Command {
	var wait bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "retry TASK", Short: "Send a task that has ended again, as a new one", Args: oneTask,
		Long: `Send a task that has ended again, with the same brief and the same terms, and print
the id of the new task. It has as much time as the first one had. A task that waits
for a human goes on by parley escalation retry.`,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			d, err := a.sameDispatch(ctx, c, args[0])
			if err != nil {
				return err
			}
			return a.send(ctx, c, d, wait, limit)
		}),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the outcome and print it")
	cmd.Flags().DurationVar(&limit, "for", 0, "with --wait: how long at most (0: until it has ended)")
	return cmd
}

// sameDispatch is the dispatch of a task that has ended, for a new one.
func (a *app) sameDispatch(ctx context.Context, c *client, typed string) (*fleet.Dispatch, error) {
	r, err := onTask[fleet.TaskView](ctx, c, "get", typed, func(id subjects.TaskID) any { return fleet.TaskRef{TaskID: id} })
	if err != nil {
		return nil, err
	}
	t := &r.value
	switch {
	case t.State.Terminal():
	case t.Await == fleet.AwaitHuman:
		return nil, failed("task %s waits for a human", t.TaskID).next("parley escalation retry " + string(t.TaskID))
	default:
		return nil, failed("task %s is %s still", t.TaskID, t.State).next("parley task cancel " + string(t.TaskID) + "  ends it")
	}
	events, err := call[fleet.TaskEventsReply](ctx, c, "task", "events", fleet.TaskEvents{TaskID: t.TaskID, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(events.value.Events) == 0 || len(events.value.Events[0].Data.Dispatch) == 0 {
		return nil, failed("task %s has no dispatch that could be sent again", t.TaskID).next("parley task send BRIEF")
	}
	d, err := fleet.DecodeDispatch(events.value.Events[0].Data.Dispatch)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, failed("make a task id: %w", err)
	}
	d.Task.TaskID, d.Task.IdempotencyKey, d.Traceparent = subjects.TaskID(id.String()), "", ""
	if d.Deadline != nil {
		until := a.now().Add(t.Deadline.Sub(t.Created)).UTC().Truncate(time.Millisecond)
		d.Deadline = &until
	}
	a.notice("again: task %s, which ended as %s", t.TaskID, t.State)
	return d, nil
}

func (a *app) taskTell() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "tell TASK [TEXT…]", Short: "Tell the agent that works on a task something more",
		Long: `Add a message to a task that has not ended. The agent at work gets it, and each
that works on the task later. A question that the task waits with is answered by
parley task answer.`,
		Args:              taskAndText("the text"),
		ValidArgsFunction: a.completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.text(args[1:], file, "a text")
			if err != nil {
				return err
			}
			q := fleet.TaskMessage{ID: rand.Text(), Text: strings.TrimSpace(string(text))}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				r, err := onTask[fleet.TaskView](ctx, c, "message", args[0], func(id subjects.TaskID) any {
					q.TaskID = id
					return q
				})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(r.raw)
				}
				a.notice("told; task %s is %s", r.value.TaskID, r.value.State)
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the text from a file, - for standard input")
	return cmd
}

// usageOf says what a result tells of the model's use, beside the tokens.
func usageOf(r *fleet.Result) (cost, session string) {
	var u struct {
		Tool      string  `json:"tool"`
		Session   string  `json:"session"`
		CostUSD   float64 `json:"cost_usd"`
		CacheRead int64   `json:"cache_read_tokens"`
	}
	if r == nil || json.Unmarshal(r.Unknown["usage"], &u) != nil {
		return "", ""
	}
	var parts []string
	if u.CostUSD > 0 {
		parts = append(parts, dollars(u.CostUSD))
	}
	if u.CacheRead > 0 {
		parts = append(parts, thousands(u.CacheRead)+" tokens read from the cache")
	}
	return strings.Join(parts, ", "), strings.TrimSpace(u.Tool + " " + u.Session)
}

// artifacts are the artifacts of a result, one a line.
func artifacts(r *fleet.Result) string {
	var all map[string]json.RawMessage
	if json.Unmarshal(r.Artifacts, &all) != nil {
		return ""
	}
	var lines []string
	for _, name := range sortedNames(all) {
		lines = append(lines, name+": "+oneLine(plainly(all[name])))
	}
	return strings.Join(lines, "\n")
}

// plainly is JSON as a person reads it: a text as it is, a list of texts with
// commas between them.
func plainly(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return strings.Join(list, ", ")
	}
	return string(raw)
}
