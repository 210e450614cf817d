package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers/agent"
)

// check is one thing that a fleet must do. A check that returns notHere was not
// made.
type check struct {
	group, name string
	run         func(ctx context.Context, v *validation) (found string, err error)
}

// notHere says why a check could not be made in this fleet.
type notHere string //nolint:errname // it reads as what it is: return notHere("…")

// Error gives the reason.
func (n notHere) Error() string { return string(n) }

// How a check may end.
const (
	checkPassed  = "passed"
	checkFailed  = "failed"
	checkSkipped = "skipped"
)

// verdict is a check that was made.
type verdict struct {
	Group   string  `json:"group"`
	Check   string  `json:"check"`
	Status  string  `json:"status"` // passed | failed | skipped
	Found   string  `json:"found,omitempty"`
	Seconds float64 `json:"seconds"`
}

// validationReport is what comes of all checks.
type validationReport struct {
	Server    string             `json:"server"`
	As        subjects.AgentID   `json:"as"`
	Started   time.Time          `json:"started"`
	Seconds   float64            `json:"seconds"`
	Simulated []subjects.AgentID `json:"simulated_agents"`
	Passed    int                `json:"passed"`
	Failed    int                `json:"failed"`
	Skipped   int                `json:"skipped"`
	Checks    []verdict          `json:"checks"`
}

// simulated are the roles of the reference run, each with its agent.
var simulated = []struct{ role, agent string }{ //nolint:gochecknoglobals // a table
	{"discovery", "validate-discovery"},
	{"compose", "validate-compose"},
	{"secrets", "validate-secrets"},
	{"review", "validate-review"},
}

func (a *app) validateCommand() *cobra.Command {
	var output string
	chosen := make([]bool, len(simulated))
	cmd := &cobra.Command{
		Use: "validate", Short: "Try out sessions, handshake, context, authentication and escalation on the live fleet", Args: cobra.NoArgs,
		Long: `Try out sessions, handshake, context, authentication and escalation on the live
fleet, with agents that are simulated by this command: they take its tasks alone.
Nobody is called, and what it makes it takes away again; ended tasks are kept for
a day, as all are. The exit code is 1 if anything is not as it must be.

Where you come by an identity it must be an operator's: the simulated agents get
identities, which are revoked at the end, and proofs and signatures are tried.
Where you come by credentials of parley auth, take the workers', who may announce
anybody: PARLEY_CREDS=DIR/creds/default/worker.creds.

The agents stand for those of the reference run, discovery, compose, secrets and
review: all of them, or those that are named.`,
		Example: `  parley validate --output-file report.json
  parley validate --simulate-discovery --simulate-review --output-file report.json`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			var agents []subjects.AgentID
			for i, s := range simulated {
				if chosen[i] {
					agents = append(agents, subjects.AgentID(s.agent))
				}
			}
			if len(agents) == 0 {
				for _, s := range simulated {
					agents = append(agents, subjects.AgentID(s.agent))
				}
			}
			return a.validate(ctx, c, agents, output)
		}),
	}
	bind(cmd.Flags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	cmd.Flags().StringVar(&output, "output-file", "", "write the report to this file, as JSON")
	for i, s := range simulated {
		cmd.Flags().BoolVar(&chosen[i], "simulate-"+s.role, false, "take part as "+s.agent)
	}
	return cmd
}

// validate makes all checks, prints and writes the report.
func (a *app) validate(ctx context.Context, c *client, agents []subjects.AgentID, output string) error {
	v := &validation{
		app: a, c: c, agents: agents, id: strings.ToLower(rand.Text()[:10]),
		report: validationReport{Server: c.server, As: c.from, Started: a.now().UTC(), Simulated: agents, Checks: []verdict{}},
	}
	v.stranger = &client{bus: c.bus, from: subjects.AgentID("validate-stranger-" + v.id), timeout: c.timeout, server: c.server}
	v.all(ctx)
	v.cleanUp(ctx)
	r := &v.report
	r.Seconds = time.Since(v.began).Round(time.Millisecond).Seconds()
	if output != "" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(output, append(data, '\n'), 0o600)
		}
		if err != nil {
			return failed("write the report: %w", err)
		}
	}
	if err := a.printValidation(r); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if r.Failed > 0 {
		return &problem{what: fmt.Sprintf("%d of %d checks failed", r.Failed, len(r.Checks)), exit: exitFailed, err: errors.New("failed")}
	}
	return nil
}

func (a *app) printValidation(r *validationReport) error {
	if a.json() {
		return a.printValue(r)
	}
	g := a.grid("Validation", []string{"Group", "Check", "Is", "Found"})
	for _, c := range r.Checks {
		is := a.paint(green, c.Status)
		switch c.Status {
		case checkFailed:
			is = a.paint(red, c.Status)
		case checkSkipped:
			is = a.paint(yellow, c.Status)
		}
		g.add(c.Group, c.Check, is, c.Found)
	}
	g.print()
	a.print(fmt.Sprintf("%d passed, %d failed, %d skipped, in %.1f s, with %d simulated agents on %s",
		r.Passed, r.Failed, r.Skipped, r.Seconds, len(r.Simulated), printable(r.Server)))
	return nil
}

// validation is one run of all checks, and what they have in common.
type validation struct {
	app      *app
	c        *client
	stranger *client // somebody else
	id       string  // of this run
	agents   []subjects.AgentID
	faulty   [2]subjects.AgentID // that fail as they are told to
	report   validationReport
	began    time.Time

	stop    context.CancelFunc // of the agents
	running sync.WaitGroup
	buses   []*bus.Bus

	session  handshake.Opened // that most checks use
	sessions []subjects.SessionID
	tasks    []subjects.TaskID
	version  uint64 // of the session's context

	issued []subjects.AgentID // who got an identity
	proofs proofs
}

const (
	checkLimit    = 40 * time.Second // of one check
	validateGrace = 5 * time.Second  // to clean up
)

// all makes the checks, one after the other. Without its agents or a session
// there is nothing to check.
func (v *validation) all(ctx context.Context) {
	v.began = time.Now()
	for _, c := range checks() {
		if ctx.Err() != nil {
			return
		}
		if !v.make(ctx, c) && c.group == groupStart {
			return
		}
	}
}

// make makes one check.
func (v *validation) make(ctx context.Context, c check) bool {
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	found, err := c.run(limited, v)
	d := verdict{Group: c.group, Check: c.name, Status: checkPassed, Found: found, Seconds: time.Since(begin).Round(time.Millisecond).Seconds()}
	why, skipped := errors.AsType[notHere](err)
	switch {
	case skipped:
		d.Status, d.Found = checkSkipped, string(why)
		v.report.Skipped++
	case err != nil:
		d.Status, d.Found = checkFailed, oneLine(explain(err).what)
		v.report.Failed++
	default:
		v.report.Passed++
	}
	v.report.Checks = append(v.report.Checks, d)
	return d.Status != checkFailed
}

// cleanUp ends what the checks have begun.
func (v *validation) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), validateGrace)
	defer cancel()
	left := 0
	for _, id := range v.tasks {
		if t, err := call[fleet.TaskView](ctx, v.c, "task", "get", fleet.TaskRef{TaskID: id}); err != nil || t.value.State.Terminal() {
			continue
		}
		if _, err := call[fleet.TaskView](ctx, v.c, "task", "cancel", fleet.TaskCancel{TaskID: id, Reason: "the validation is over"}); err != nil {
			left++
		}
	}
	for _, id := range v.sessions {
		_, err := call[handshake.Deleted](ctx, v.c, "session", "delete", handshake.Ref{SessionID: id})
		if err != nil && !isNotFound(err) {
			left++
		}
	}
	if v.stop != nil {
		v.stop()
	}
	v.running.Wait()
	for _, id := range v.issued {
		if _, err := call[identity.View](ctx, v.c, "identity", "revoke", &identity.Revoke{AgentID: id, Reason: "the validation is over"}); err != nil {
			v.app.notice("the identity %s was not revoked: %v", id, err)
		}
	}
	for _, b := range v.buses {
		b.Close()
	}
	if left > 0 {
		v.app.notice("%d of its tasks and sessions were not ended; they are gone within a day", left)
	}
}

// startAgents connects the simulated agents and waits until the fleet knows
// them.
func (v *validation) startAgents(ctx context.Context) (string, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	v.stop = stop
	// Whoever fails is not asked again for a while, so these are of this run only.
	v.faulty = [2]subjects.AgentID{subjects.AgentID("validate-faulty-1-" + v.id), subjects.AgentID("validate-faulty-2-" + v.id)}
	if v.byIdentity() { // where names are proven, somebody else is
		b, err := v.join(ctx, v.stranger.from)
		if err != nil {
			return "", err
		}
		v.stranger.bus = b
	}
	all := append(v.faulty[:], v.agents...)
	for _, id := range all {
		b, err := v.join(ctx, id)
		if err != nil {
			return "", err
		}
		w, err := agent.New(agent.Config{
			ID: id, Bus: b, MaxParallel: 4, Heartbeat: time.Second, Grace: -1, AgentType: handshake.Virtual, OneOff: true, Log: v.app.clientLog(),
			Only:    func(d *fleet.Dispatch) bool { return strings.HasPrefix(string(d.Task.TaskID), v.prefix()) },
			Handler: agent.HandlerFunc(simulate),
		})
		if err != nil {
			return "", err
		}
		v.running.Go(func() {
			if err := w.Run(life); err != nil {
				v.app.notice("%s: %v", id, err)
			}
		})
	}
	return fmt.Sprintf("%d are live", len(all)), v.until(ctx, "the simulated agents to be live (by parley auth, may these credentials announce them? the workers' may)", func() (bool, error) {
		r, err := v.c.agents(ctx, fleet.AgentList{})
		live := map[subjects.AgentID]bool{}
		for _, in := range r.value.Agents {
			if in.Live {
				live[in.Announce.Worker.AgentID] = true
			}
		}
		for _, id := range all {
			if !live[id] {
				return false, err
			}
		}
		return true, err
	})
}

// until asks until ok, for the time of a check.
func (v *validation) until(ctx context.Context, what string, ok func() (bool, error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := ok(); err != nil || done {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s", what)
		}
	}
}

// What a simulated agent is told to do, as the brief.
const (
	briefReport = "report who has been at work before"
	briefOnce   = "fail once"
	briefRefuse = "refuse"
	briefHold   = "hold until told otherwise"
)

// saw is what a simulated agent reports: who was at work before it.
type saw struct {
	Before []subjects.AgentID `json:"before"`
}

// simulate does the tasks of the checks.
func simulate(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	switch t.Dispatch.Brief {
	case briefOnce:
		if t.Dispatch.Attempt == 1 {
			return fleet.Result{}, &agent.Fail{Message: "as it was told to", Retryable: true}
		}
	case briefRefuse:
		return fleet.Result{}, agent.Blocked("as it was told to")
	case briefHold:
		<-ctx.Done()
		return fleet.Result{}, context.Cause(ctx)
	}
	report := saw{Before: []subjects.AgentID{}}
	if len(t.Dispatch.Context) > 0 {
		view, err := handshake.DecodeContext(t.Dispatch.Context)
		if err != nil {
			return fleet.Result{}, err
		}
		for i := range view.Context.PreviousAgents {
			report.Before = append(report.Before, view.Context.PreviousAgents[i].AgentID)
		}
	}
	return fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode(report)}, nil
}

func (v *validation) prefix() string { return "validate-" + v.id + "-" }

// dispatch hands out a task of the validation.
func (v *validation) dispatch(ctx context.Context, name, brief string, change func(*fleet.Task)) (subjects.TaskID, error) {
	d := fleet.Dispatch{Brief: brief, Task: fleet.Task{
		TaskID: subjects.TaskID(v.prefix() + name), Type: "validation", TimeoutSeconds: checkLimit.Seconds(), Escalate: fleet.EscalateNever,
	}}
	change(&d.Task)
	v.tasks = append(v.tasks, d.Task.TaskID)
	_, err := call[fleet.Dispatched](ctx, v.c, "task", "dispatch", &d)
	return d.Task.TaskID, err
}

// ended waits for the end of a task.
func (v *validation) ended(ctx context.Context, id subjects.TaskID) (t fleet.TaskView, err error) {
	err = v.until(ctx, "the end of "+string(id), func() (bool, error) {
		r, rerr := call[fleet.TaskView](ctx, v.c, "task", "wait", fleet.TaskWait{TaskID: id, TimeoutSeconds: 2})
		t = r.value
		return t.State.Terminal(), rerr
	})
	return t, err
}
