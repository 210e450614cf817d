package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects/fleet"
)

func (a *app) topCommand() *cobra.Command {
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use: "top", Short: "Watch the fleet: tasks, queues, agents, escalations, rates", Args: cobra.NoArgs,
		Long: `Watch the fleet: tasks, queues, agents, escalations, and rates since the last look.
q ends it. Where standard output is no terminal, or with -o json, it shows once
what is there now.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			if every < time.Second {
				return usage("--every %s: expected one second or more", every)
			}
			if isTerminal(a.stdout) && !a.json() {
				return a.watchTop(ctx, c, every)
			}
			look, err := lookAt(ctx, c)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printValue(look)
			}
			a.print(strings.TrimRight((&top{now: look, width: 100, clock: a.timeOfDay}).render(), "\n"))
			return nil
		}),
	}
	bind(cmd.Flags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	cmd.Flags().DurationVar(&every, "every", every, "time between two looks")
	return cmd
}

// look is what the workers tell of themselves at one time.
type look struct {
	At        time.Time           `json:"time"`
	Tasks     fleet.Figures       `json:"tasks"`
	Routers   int                 `json:"routers"`
	Agents    *fleet.AgentFigures `json:"agents,omitempty"`    // absent without a registry
	Escalated *fleet.AlertFigures `json:"escalated,omitempty"` // absent without an escalation worker
}

// lookAt asks the workers. Only routers must answer.
func lookAt(ctx context.Context, c *client) (*look, error) {
	r := &look{At: time.Now().UTC()}
	var agents []fleet.AgentFigures
	var alerts []fleet.AlertFigures
	var errAgents, errAlerts error
	var all sync.WaitGroup
	all.Go(func() { agents, errAgents = told[fleet.AgentFigures](ctx, c, "registry") })
	all.Go(func() { alerts, errAlerts = told[fleet.AlertFigures](ctx, c, "escalation") })
	f, err := fleetFigures(ctx, c)
	all.Wait()
	if err := errors.Join(err, errAgents, errAlerts); err != nil {
		return nil, err
	}
	r.Tasks, r.Routers = f.Figures, f.Routers
	if len(agents) > 0 {
		r.Agents = &agents[0]
	}
	if len(alerts) > 0 {
		r.Escalated = &alerts[0]
	}
	return r, nil
}

// told is what each worker of a service tells; none is no error.
func told[T any](ctx context.Context, c *client, service string) ([]T, error) {
	all, err := c.bus.ServiceFigures(ctx, service)
	if err != nil && !errors.Is(err, bus.ErrNoResponders) {
		return nil, c.unanswered(err, service, "figures")
	}
	list := make([]T, len(all))
	for i, s := range all {
		if err := json.Unmarshal(s.Data, &list[i]); err != nil {
			return nil, failed("the %s %s tells no figures: %w", service, s.ID, err).next("let all workers be of one version")
		}
	}
	return list, nil
}

// watchTop draws until q.
func (a *app) watchTop(ctx context.Context, c *client, every time.Duration) error {
	m := &top{every: every, clock: a.timeOfDay, ask: func() (*look, error) { return lookAt(ctx, c) }}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(a.stdin), tea.WithOutput(a.stdout), tea.WithEnvironment(a.environ)).Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil // a signal ends it as q does
	}
	return err
}

// top is the view: bubbletea's model. Everything happens in its messages.
type top struct {
	ask   func() (*look, error)
	every time.Duration
	clock func(time.Time) string // writes a time of day, as people here read it

	now, before   *look // the last two looks; nil: none yet
	err           error // of the last try
	width, height int   // 0: not known, so nothing is cut
}

type (
	looked  struct{ look *look } // a look is there
	missed  struct{ err error }  // none is
	another struct{}             // time for one
)

// Init implements tea.Model.
func (t *top) Init() tea.Cmd { return t.look }

func (t *top) look() tea.Msg {
	l, err := t.ask()
	if err != nil {
		return missed{err}
	}
	return looked{l}
}

// Update implements tea.Model.
func (t *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		t.width, t.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		if s := msg.String(); s == "q" || s == "esc" || s == "ctrl+c" {
			return t, tea.Quit
		}
	case looked:
		t.before, t.now, t.err = t.now, msg.look, nil
		return t, t.wait()
	case missed:
		t.err = msg.err
		return t, t.wait()
	case another:
		return t, t.look
	}
	return t, nil
}

func (t *top) wait() tea.Cmd { return tea.Tick(t.every, func(time.Time) tea.Msg { return another{} }) }

// View implements tea.Model.
func (t *top) View() tea.View {
	v := tea.NewView(t.render())
	v.AltScreen = true
	return v
}

// render is the screen as text, which needs no colour to be read.
func (t *top) render() string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch {
	case t.now == nil && t.err == nil:
		say("Asking the fleet …")
	case t.now == nil:
		say("The fleet does not answer: %s", oneLine(t.err.Error()))
	default:
		t.fill(say)
	}
	if t.height > 0 && len(lines) > t.height {
		lines = append(lines[:max(0, t.height-1)], "…")
	}
	for i, l := range lines {
		l = printable(l)
		if t.width > 0 {
			l = ansi.Truncate(l, t.width, "…")
		}
		lines[i] = l
	}
	return strings.Join(lines, "\n") + "\n"
}

func (t *top) fill(say func(string, ...any)) {
	f := &t.now.Tasks
	say("Parley   %s   %d routers, up %s", t.now.At.Format(time.TimeOnly), t.now.Routers, t.now.At.Sub(f.Since).Round(time.Second))
	if t.err != nil {
		say("OLD: the fleet does not answer any more: %s", oneLine(t.err.Error()))
	}
	say("")
	say("Tasks        %6d queued   %6d working   %6d wait for an answer", f.States[fleet.StateQueued], f.States[fleet.StateWorking], f.States[fleet.StateInputRequired])
	say("So far       %6d received %6d completed %6d failed   %6d canceled", f.Received, f.Completed, f.Failed, f.Canceled)
	if b := t.before; b != nil {
		rate := func(now, before uint64) float64 {
			if d := t.now.At.Sub(b.At).Seconds(); d > 0 && now > before {
				return float64(now-before) / d
			}
			return 0 // a worker began anew
		}
		say("A second     %6.1f received %6.1f completed %6.1f failed   %6.1f webhooks", rate(f.Received, b.Tasks.Received),
			rate(f.Completed, b.Tasks.Completed), rate(f.Failed, b.Tasks.Failed), rate(f.Webhooks.Attempts, b.Tasks.Webhooks.Attempts))
	}
	say("Webhooks     %6d done     %6d failed", f.Webhooks.Succeeded, f.Webhooks.Failed)
	if e := t.now.Escalated; e != nil {
		say("Escalations  %6d tasks wait for a human, in %d alerts", e.Waiting, e.Alerts)
	} else {
		say("Escalations       – no escalation worker runs")
	}
	say("")
	t.fillAgents(say)
	for _, l := range f.Limits[:min(len(f.Limits), 5)] {
		say("Limit        %s", limitLine(&l, t.clock))
	}
	var whys []string
	for _, w := range f.Waiting {
		whys = append(whys, fmt.Sprintf("%d %s", w.Tasks, w.Why))
	}
	if len(whys) > 0 {
		say("They wait    %s", strings.Join(whys, ", "))
	}
	say("")
	if len(f.Classes) == 0 {
		say("Nothing waits")
		return
	}
	say("Waiting   Oldest  For an agent with")
	for _, c := range f.Classes {
		say("%7d %8s  %s", c.Depth, (time.Duration(c.OldestSeconds) * time.Second).String(), c.Class)
	}
}

func (t *top) fillAgents(say func(string, ...any)) {
	if t.now.Agents == nil {
		say("Agents            – no registry runs")
		return
	}
	sums := map[string]int{}
	for _, c := range t.now.Agents.Agents {
		sums[c.State] += c.N
	}
	say("Agents       %6d idle     %6d busy      %6d draining %6d cooling %6d lost", sums[fleet.AgentIdle], sums[fleet.AgentBusy],
		sums[fleet.AgentDrains], sums[fleet.AgentCooled], sums[fleet.AgentMissing])
	var ill []string
	for _, c := range t.now.Agents.MCP {
		if c.Health != fleet.HealthOK {
			ill = append(ill, fmt.Sprintf("%s %s (%d)", c.Name, c.Health, c.N))
		}
	}
	if slices.Sort(ill); len(ill) > 0 {
		say("MCP servers  %s", strings.Join(ill, ", "))
	}
}
