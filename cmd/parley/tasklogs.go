package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
)

func (a *app) taskLogs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs TASK", Short: "Print what the agents of a task have told while they worked", Args: oneTask,
		Long: `Print the progress of a task: the last 200 lines, which are kept for 24 hours. With
--follow it goes on until the task has ended.`,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			q := fleet.TaskLogs{TaskID: subjects.TaskID(args[0])}
			lines, over := 0, false // over: it had ended a while ago, too
			for {
				r, err := onTask[fleet.TaskLogsReply](ctx, c, "logs", string(q.TaskID), func(id subjects.TaskID) any {
					q.TaskID = id
					return q
				})
				switch {
				case err == nil:
					if err := a.printProgress(r, follow); err != nil {
						return err
					}
					lines += len(r.value.Lines)
					if !follow || over {
						if lines == 0 {
							a.notice("task %s is %s; no progress of it is kept", r.value.TaskID, r.value.State)
						}
						return nil
					}
					q.AfterSeq, over = r.value.NextSeq, r.value.State.Terminal()
				case ctx.Err() != nil:
					return interrupted(ctx, q.TaskID)
				case !follow || !away(err):
					return err
				}
				select {
				case <-ctx.Done():
					return interrupted(ctx, q.TaskID)
				case <-time.After(logsEach):
				}
			}
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the task has ended")
	return cmd
}

// logsEach is how often progress is asked for: a little longer than it takes to be
// stored, so that what is told at the end is seen.
const logsEach = 2500 * time.Millisecond

// printProgress prints lines of progress.
func (a *app) printProgress(r reply[fleet.TaskLogsReply], follow bool) error {
	if a.json() && (!follow || len(r.value.Lines) > 0) {
		return a.printList(r.raw, "lines")
	}
	for i := range r.value.Lines {
		l := &r.value.Lines[i]
		var s []string
		if l.Percent != nil {
			s = append(s, fmt.Sprintf("%.0f %%", *l.Percent))
		}
		if l.TokensSpent != nil {
			s = append(s, thousands(*l.TokensSpent)+" tokens")
		}
		if l.Text != "" {
			s = append(s, oneLine(l.Text))
		}
		a.print(printable(fmt.Sprintf("%s  %s  %s", l.Time.Local().Format(time.TimeOnly), l.AgentID, strings.Join(s, ", "))))
	}
	return nil
}
