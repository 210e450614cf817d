package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// The agents of the story.
const (
	demoGood  = "nova" // fine
	demoSmall = "pico" // has a smaller model
	demoSick  = "rust" // has an MCP server that never answers
)

// play plays every act.
func (d *demo) play(ctx context.Context) error {
	return d.acts(ctx, []act{
		{"Three agents announce themselves", d.announces},
		{"A task goes to the agent that can do it", d.matches},
		{"Plain text is enough", d.inline},
		{"What nobody can do is blocked at once", d.blocked},
		{"An agent is killed in mid-task", d.kills},
		{"A cancel reaches the process that works", d.cancels},
		{"A human is called, and answers", d.asks},
		{"Every task has one outcome", d.concludes},
	})
}

// act is a part of a story.
type act struct {
	title string
	play  func(context.Context) error
}

func (d *demo) acts(ctx context.Context, all []act) error {
	for i, act := range all {
		d.breathe(ctx)
		d.begin(i+1, act.title)
		if err := act.play(ctx); err != nil {
			return err
		}
	}
	return nil
}

// announces: act 1.
func (d *demo) announces(ctx context.Context) error {
	d.say("%s is fine, %s has a smaller model, %s has an MCP server that never answers.", demoGood, demoSmall, demoSick)
	d.say("(To be quick, each also gets %s.)", strings.Join(demoPace(), " "))
	const server = `{"mcpServers": {"github": {"command": %q, "args": ["demo", "mcp"%s]}}}`
	for name, hang := range map[string]string{"mcp.json": "", "dead.json": `, "--hang"`} {
		if err := os.WriteFile(d.path(name), fmt.Appendf(nil, server, d.exe, hang), 0o600); err != nil {
			return err
		}
	}
	work := []string{d.exe, "demo", "work"}
	for _, hire := range []func() error{
		func() error {
			return d.hire(demoGood, []string{"--tier", "sonnet", "--mcp", d.path("mcp.json"), "--max-parallel", "2"}, work)
		},
		func() error {
			return d.hire(demoSmall, []string{"--tier", "haiku", "--mcp", d.path("mcp.json"), "--driver", "echo"}, nil)
		},
		func() error {
			return d.hire(demoSick, []string{"--tier", "sonnet", "--mcp", d.path("dead.json")}, work)
		},
	} {
		if err := hire(); err != nil {
			return err
		}
	}
	health := make(map[subjects.AgentID]string)
	err := d.until(ctx, "three agents that have probed their MCP servers", func() (bool, error) {
		list, err := d.list(ctx)
		clear(health)
		for _, v := range list {
			if h := v.Announce.MCPHealth["github"]; v.Live && h != fleet.HealthUnknown {
				health[v.Announce.Worker.AgentID] = h
			}
		}
		// A server that is slow on a busy machine is asked again.
		return len(health) == len(d.agents) && health[demoGood] == fleet.HealthOK && health[demoSmall] == fleet.HealthOK, err
	})
	if err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "agent", "ls"); err != nil {
		return err
	}
	return d.check(health[demoGood] == fleet.HealthOK && health[demoSmall] == fleet.HealthOK && health[demoSick] == fleet.HealthTimeout,
		"the MCP server answers at %s and %s, and not at %s: each was started, asked and pinged", demoGood, demoSmall, demoSick)
}

// matches: act 2.
func (d *demo) matches(ctx context.Context) error {
	const id = "review"
	if err := d.parley(ctx, exitOK, "task", "send", "--id", id, "--mcp", "github", "--tier", "sonnet",
		"Review pull request 7. (takes 2s)"); err != nil {
		return err
	}
	if _, err := d.taken(ctx, id); err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "task", "explain", id); err != nil {
		return err
	}
	r, err := call[fleet.TaskExplanation](ctx, d.client, "task", "explain", fleet.TaskRef{TaskID: id})
	if err != nil {
		return err
	}
	why := make(map[subjects.AgentID]subjects.Code)
	for _, v := range r.value.Agents {
		for _, reason := range v.Reasons {
			why[v.AgentID] = reason.Code
		}
	}
	if err := d.check(why[demoSick] == subjects.CodeMCPUnhealthy && why[demoSmall] == subjects.CodeNoCapableAgent,
		"%s is not asked for want of a healthy MCP server, %s for want of a model", demoSick, demoSmall); err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "task", "wait", id); err != nil {
		return err
	}
	v, err := d.task(ctx, id)
	if err != nil {
		return err
	}
	return d.check(v.State == fleet.StateDone && v.AgentID == demoGood && v.Attempt == 1 && v.TokensSpent == 1200,
		"%s did it in one attempt, for 1,200 tokens", demoGood)
}

// inline: act 3.
func (d *demo) inline(ctx context.Context) error {
	const id, text = "greet", "TASK DISPATCH (inline)\ntask_id: greet\nmodel_tier: haiku\n\nBrief: Good morning, fleet!"
	d.say("The stock nats command line will do. JetStream acknowledges; from then on it is the fleet's.")
	subject := subjects.Dispatch("me")
	d.typed("nats", "req", "--raw", subject, text)
	m, err := d.client.bus.Request(ctx, subject, []byte(text), nil)
	if err != nil {
		return err
	}
	d.say("%s", printable(string(m.Data)))
	err = d.until(ctx, "a record of the task", func() (bool, error) {
		if _, err = d.task(ctx, id); isNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "task", "wait", id); err != nil {
		return err
	}
	v, err := d.task(ctx, id)
	if err != nil {
		return err
	}
	return d.check(v.State == fleet.StateDone && v.AgentID == demoSmall && v.From == "me",
		"it went to %s: the smallest model that will do, of those that are free", demoSmall)
}

// blocked: act 4.
func (d *demo) blocked(ctx context.Context) error {
	const id = "flight"
	// A router that has just begun does not take silence for absence.
	waitUntil(ctx, d.settled)
	if err := d.parley(ctx, exitBlocked, "task", "send", "--wait", "--id", id, "--mcp", "moon_base", "--tier", "opus",
		"Fly me to the moon."); err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "task", "explain", id); err != nil {
		return err
	}
	v, err := d.task(ctx, id)
	if err != nil {
		return err
	}
	named := v.Reason != nil
	for id := range d.agents {
		named = named && strings.Contains(v.Reason.Message, id)
	}
	took := v.Updated.Sub(v.Created)
	return d.check(v.State == fleet.StateBlocked && named && v.Attempt == 0 && v.TokensSpent == 0,
		"blocked within %s, with what each agent lacks; no attempt, no tokens spent", roughly(took))
}

// kills: act 5.
func (d *demo) kills(ctx context.Context) error {
	const id = "migrate"
	if err := d.parley(ctx, exitOK, "task", "send", "--id", id, "--tier", "sonnet", "Migrate the billing tables. (takes 2s)"); err != nil {
		return err
	}
	v, err := d.taken(ctx, id)
	if err != nil {
		return err
	}
	victim := v.AgentID
	pid, err := d.working(ctx, id, 1)
	if err != nil {
		return err
	}
	agent := d.agents[string(victim)]
	if agent == nil {
		return fmt.Errorf("it is not so that one of the three has the task, but %q", victim)
	}
	d.say("%s has it: agent process %d, with process %d at work. No farewell for either:", victim, agent.cmd.Process.Pid, pid)
	d.typed("kill", "-9", strconv.Itoa(agent.cmd.Process.Pid))
	if err := agent.kill(); err != nil {
		return fmt.Errorf("kill %s: %w", victim, err)
	}
	if err := d.parley(ctx, exitOK, "task", "watch", id); err != nil {
		return err
	}
	if v, err = d.task(ctx, id); err != nil {
		return err
	}
	if err := d.check(len(v.Attempts) == 1 && v.Attempts[0].AgentID == victim && v.Attempts[0].Code == subjects.CodeAgentLost,
		"three heartbeats missed, and the lease of %s was over", victim); err != nil {
		return err
	}
	if err := d.check(v.State == fleet.StateDone && v.Attempt == 2 && v.AgentID != victim,
		"%s did the task, in attempt 2", v.AgentID); err != nil {
		return err
	}
	return d.over(ctx, pid, fmt.Sprintf("process %d, which worked for %s, died with it", pid, victim))
}

// cancels: act 6.
func (d *demo) cancels(ctx context.Context) error {
	const id = "reindex"
	if err := d.parley(ctx, exitOK, "task", "send", "--id", id, "--mcp", "github", "--tier", "sonnet", "Index everything again. (takes 10m)"); err != nil {
		return err
	}
	pid, err := d.working(ctx, id, 1)
	if err != nil {
		return err
	}
	if err := d.check(lives(pid), "process %d is at work", pid); err != nil {
		return err
	}
	begin := time.Now()
	if err := d.parley(ctx, exitOK, "task", "cancel", id, "--reason", "changed our mind"); err != nil {
		return err
	}
	if err := d.over(ctx, pid, fmt.Sprintf("process %d is gone", pid)); err != nil {
		return err
	}
	took := time.Since(begin)
	v, err := d.task(ctx, id)
	if err != nil {
		return err
	}
	err = d.until(ctx, "the slot to be free", func() (bool, error) {
		var list []fleet.AgentView
		list, err = d.list(ctx)
		return slices.ContainsFunc(list, func(w fleet.AgentView) bool {
			return w.Announce.Worker.AgentID == v.AgentID && w.Live && w.Active == 0
		}), err
	})
	if err != nil {
		return err
	}
	return d.check(v.State == fleet.StateCanceled, "the task is canceled and its slot at %s is free; all of it took %s", v.AgentID, roughly(took))
}

// concludes: act 8.
func (d *demo) concludes(ctx context.Context) error {
	if err := d.parley(ctx, exitOK, "task", "ls"); err != nil {
		return err
	}
	want := map[subjects.TaskID]fleet.State{
		"review": fleet.StateDone, "greet": fleet.StateDone, "flight": fleet.StateBlocked,
		"migrate": fleet.StateDone, "reindex": fleet.StateCanceled,
		"deploy": fleet.StateDone,
	}
	records := 0
	for id, state := range want {
		r, err := call[fleet.TaskEventsReply](ctx, d.client, "task", "events", fleet.TaskEvents{TaskID: id, Limit: 1000})
		if err != nil {
			return err
		}
		events := r.value.Events
		records += len(events)
		for i, e := range events {
			if last := i == len(events)-1; e.Seq != uint64(i+1) || e.State.Terminal() != last || last && e.State != state {
				return fmt.Errorf("it is not so that task %s ends once, as %s: record %d has number %d and says %s", id, state, i+1, e.Seq, e.State)
			}
		}
	}
	if err := d.check(records > len(want), "%d tasks, %d outcomes: each is its task's last record, and no record is missing", len(want), len(want)); err != nil {
		return err
	}
	return d.parley(ctx, exitOK, "agent", "ls")
}

// task is a task as it is now.
func (d *demo) task(ctx context.Context, id subjects.TaskID) (fleet.TaskView, error) {
	r, err := call[fleet.TaskView](ctx, d.client, "task", "get", fleet.TaskRef{TaskID: id})
	return r.value, err
}

// list is every agent as it is now.
func (d *demo) list(ctx context.Context) ([]fleet.AgentView, error) {
	r, err := d.client.agents(ctx, fleet.AgentList{})
	return r.value.Agents, err
}

// taken waits until an agent has the task.
func (d *demo) taken(ctx context.Context, id subjects.TaskID) (v fleet.TaskView, err error) {
	err = d.until(ctx, "an agent to take task "+string(id), func() (bool, error) {
		v, err = d.task(ctx, id)
		return v.State == fleet.StateWorking, err
	})
	return v, err
}

// working waits until a process works on the task.
func (d *demo) working(ctx context.Context, id string, attempt int) (pid int, err error) {
	err = d.until(ctx, "a process to work on task "+id, func() (bool, error) {
		pid, err = d.workerPID(id, attempt)
		return pid != 0, err
	})
	return pid, err
}

// over waits until a process is no more, and claims it in the given words.
func (d *demo) over(ctx context.Context, pid int, claim string) error {
	err := d.until(ctx, fmt.Sprintf("process %d to end", pid), func() (bool, error) { return !lives(pid), nil })
	if err != nil {
		return err
	}
	return d.check(true, "%s", claim)
}

// until asks again and again until it is so.
func (d *demo) until(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, demoPatience, fmt.Errorf("waited %s for %s", demoPatience, what))
	defer cancel()
	for {
		ok, err := is()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case ok || err != nil:
			return err
		}
		if err := d.alive(); err != nil {
			return err
		}
		waitUntil(ctx, time.Now().Add(10*time.Millisecond))
	}
}
