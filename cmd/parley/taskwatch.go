package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// How often records are asked for: rarely where they are heard as well.
const (
	pollBesideLive = 2 * time.Second
	pollAlone      = 500 * time.Millisecond
)

func (a *app) taskWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch [TASK]", Short: "Follow a task to its end, or everything that happens",
		Long: `Follow a task to its end: every record as it is stored, from the first on, and the
agent's progress while it is told. The exit code tells how the task ended.

Without a task an operator hears what happens to all tasks from now on.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneTask(cmd, args)
		},
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			if len(args) == 0 {
				return a.watchAll(ctx, c)
			}
			_, err := byTask(ctx, c, args[0], func(id subjects.TaskID) (struct{}, error) { return struct{}{}, a.watch(ctx, c, id) })
			return err
		}),
	}
}

// listen hears the subjects until stop is called. What comes faster than it is
// printed waits in the subscription.
func listen(ctx context.Context, b *bus.Bus, subjects ...string) (heard <-chan bus.Msg, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	ch := make(chan bus.Msg)
	var subs []*bus.Subscription
	stop = func() {
		cancel()
		for _, s := range subs {
			_ = s.Unsubscribe() // the connection is closed next
		}
	}
	for _, subject := range subjects {
		s, err := b.Subscribe(subject, "", func(m bus.Msg) {
			select {
			case ch <- m:
			case <-ctx.Done():
			}
		})
		if err != nil {
			stop()
			return nil, nil, err
		}
		subs = append(subs, s)
	}
	if err := b.Ping(ctx); err != nil { // from here on the server passes on what it hears
		stop()
		return nil, nil, err
	}
	return ch, stop, nil
}

// watcher follows one task.
type watcher struct {
	app   *app
	c     *client
	id    subjects.TaskID
	seq   uint64 // of the last record that was printed
	state fleet.State
}

// watch prints a task's records until the last. Live messages are heard by
// operators alone and may be lost; asking for the records fills every gap.
func (a *app) watch(ctx context.Context, c *client, id subjects.TaskID) error {
	w := &watcher{app: a, c: c, id: id}
	every := pollAlone
	var heard <-chan bus.Msg
	if slices.Contains(a.conf.Operators, a.conf.As) {
		ch, stop, err := listen(ctx, c.bus, subjects.Event(id), "fleet.progress.*."+string(id))
		if err != nil {
			return err
		}
		defer stop()
		heard, every = ch, pollBesideLive
	}
	if err := w.poll(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	told := false
	for !w.state.Terminal() {
		var err error
		select {
		case <-ctx.Done():
			return interrupted(ctx, id)
		case m := <-heard:
			err = w.hear(ctx, m)
		case <-tick.C:
			err = w.poll(ctx)
		}
		switch {
		case err == nil:
			told = false
		case ctx.Err() != nil:
			return interrupted(ctx, id)
		case !away(err):
			return err
		case !told:
			a.notice("still watching: %v", err)
			told = true
		}
	}
	if a.json() {
		return outcomeError(w.state) // the last record has told it
	}
	r, err := call[fleet.TaskView](ctx, c, "task", "get", fleet.TaskRef{TaskID: id})
	if err != nil {
		return err
	}
	if err := a.printOutcome(r); err != nil {
		return err
	}
	return outcomeError(w.state)
}

// poll prints the records that are stored and have not been printed.
func (w *watcher) poll(ctx context.Context) error {
	for {
		r, err := call[fleet.TaskEventsReply](ctx, w.c, "task", "events", fleet.TaskEvents{TaskID: w.id, AfterSeq: w.seq, Limit: 500})
		if err != nil {
			return err
		}
		for i := range r.value.Events {
			if err := w.record(&r.value.Events[i], nil); err != nil {
				return err
			}
		}
		if !r.value.More || len(r.value.Events) == 0 {
			return nil
		}
	}
}

// hear takes a live message: the next record is printed, a gap is filled, what
// is known is dropped.
func (w *watcher) hear(ctx context.Context, m bus.Msg) error {
	if _, ok := subjects.Tokens(subjects.ProgressPattern, m.Subject); ok {
		w.app.progress(m, "")
		return nil
	}
	e, err := fleet.DecodeEvent(m.Data)
	switch {
	case err != nil, e.Seq <= w.seq:
		return nil //nolint:nilerr // what cannot be read is asked for by the next poll
	case e.Seq > w.seq+1:
		return w.poll(ctx)
	}
	return w.record(e, m.Data)
}

// record prints one record; raw is how it came, nil if that is not known.
func (w *watcher) record(e *fleet.Event, raw []byte) error {
	if e.Seq <= w.seq {
		return nil
	}
	w.seq, w.state = e.Seq, e.State
	return w.app.printRecord(e, raw, "")
}

// printRecord prints a record as one line.
func (a *app) printRecord(e *fleet.Event, raw []byte, task string) error {
	if a.json() {
		if raw == nil {
			return a.printValue(e)
		}
		return a.printJSON(raw)
	}
	line := fmt.Sprintf("%s  %s#%-3d %-9s %s", e.Time.Local().Format(time.TimeOnly), task, e.Seq, e.Kind, a.padded(e.State))
	if agent := who(e.AgentID, e.InstanceID); agent != "" {
		line += fmt.Sprintf("  %s (attempt %d)", agent, e.Attempt)
	}
	if d := oneLine(detail(e)); d != "" {
		line += "  " + printable(d)
	}
	a.print(strings.TrimRight(line, " "))
	if e.Kind == fleet.KindQuestion {
		a.notice("          parley task answer %s TEXT", e.TaskID)
	}
	return nil
}

// padded is a state in a column.
func (a *app) padded(s fleet.State) string {
	width := len(fleet.StateInputRequired)
	return string(a.state(s)) + strings.Repeat(" ", max(width-len(s), 0))
}

// progress prints what an agent tells while it works. It is told live only, so
// JSON output, which is the records, leaves it out.
func (a *app) progress(m bus.Msg, task string) {
	p, err := fleet.DecodeProgress(m.Data)
	if err != nil || a.json() {
		return
	}
	var s []string
	if p.Percent != nil {
		s = append(s, fmt.Sprintf("%.0f %%", *p.Percent))
	}
	if p.TokensSpent != nil {
		s = append(s, thousands(*p.TokensSpent)+" tokens")
	}
	if p.Text != "" {
		s = append(s, oneLine(p.Text))
	}
	if len(s) == 0 {
		return // artifacts and questions become records
	}
	a.print(fmt.Sprintf("%s  %s     %s", a.now().Local().Format(time.TimeOnly), task, a.paint(faint, strings.Join(s, ", "))))
}

// watchAll prints what happens to all tasks until ctx ends.
func (a *app) watchAll(ctx context.Context, c *client) error {
	heard, stop, err := listen(ctx, c.bus, subjects.EventPattern, subjects.ProgressPattern)
	if err != nil {
		return err
	}
	defer stop()
	a.notice("watching every task; Ctrl-C ends it")
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-heard:
			if vars, ok := subjects.Tokens(subjects.ProgressPattern, m.Subject); ok {
				a.progress(m, vars[1]+"  ")
				continue
			}
			e, err := fleet.DecodeEvent(m.Data)
			if err != nil {
				a.notice("unreadable record on %s: %v", m.Subject, err)
				continue
			}
			if err := a.printRecord(e, m.Data, string(e.TaskID)+"  "); err != nil {
				return err
			}
		}
	}
}
