package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	runwire "parley/subjects/run"
)

// teamRun is the run of the second story.
const teamRun = `task_id: release
task_type: multi-agent-run
description: Get release 7 out.
timeout: 45
agents:
  - id: survey
    agent_id: atlas
    dependencies: []
    brief: See what has changed. (takes 300ms)
  - id: build
    agent_id: fern
    alternatives: [moss]
    max_retries: 0
    dependencies: [survey]
    brief: Build it. (fails 1 times) (takes 1500ms)
  - id: notes
    agent_id: quill
    dependencies: [survey]
    brief: Write the release notes. (asks atlas) (takes 1500ms)
  - id: review
    agent_id: atlas
    dependencies: [build, notes]
    brief: |
      Review it. (takes 300ms)
      Build: ${build}
      Notes: ${notes}
`

// demoAsks says in a brief who is to be asked in the middle of it.
var demoAsks = regexp.MustCompile(`\(asks ([a-z]+)\)`)

// demoAnswer is what an agent of the demo knows.
const demoAnswer = "Mention the new port, 8080."

// askInDemo asks another agent in the middle of a task, as any program can.
func (a *app) askInDemo(ctx context.Context, to string) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", failed("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, exe, "mesh", "ask", "--to", to, "--action", "info", "--for", "15s", "-o", "json", "What must the notes mention?")
	cmd.Env = a.environ
	out, err := cmd.Output()
	if err != nil {
		return "", failed("ask %s: %w", to, err)
	}
	var got mesh.Answers
	if err := json.Unmarshal(out, &got); err != nil || len(got.Answers) != 1 || got.Answers[0].Reply == nil {
		return "", failed("%s does not answer: %s", to, out)
	}
	return strings.TrimSpace(got.Answers[0].Reply.Text), nil
}

// team plays the second story.
func (d *demo) team(ctx context.Context) error {
	return d.acts(ctx, []act{
		{"A team of four", d.gathers},
		{"One run, four nodes", d.plans},
		{"The run, live", d.runs},
		{"What has become of it", d.reports},
	})
}

// gathers: act 1.
func (d *demo) gathers(ctx context.Context) error {
	d.say("atlas knows the project, fern builds, moss can build too, quill writes.")
	d.say("(To be quick, each also gets %s.)", strings.Join(demoPace(), " "))
	for _, id := range []string{"atlas", "fern", "moss", "quill"} {
		told := []string{"--env", "PARLEY_SERVER", "--set", "PARLEY_AS=" + id}
		if err := d.hire(id, told, []string{d.exe, "demo", "work"}); err != nil {
			return err
		}
	}
	err := d.until(ctx, "four agents", func() (bool, error) {
		list, err := d.list(ctx)
		live := 0
		for _, v := range list {
			if v.Live {
				live++
			}
		}
		return live == len(d.agents), err
	})
	if err != nil {
		return err
	}
	return d.check(true, "all four have announced themselves")
}

// plans: act 2.
func (d *demo) plans(ctx context.Context) error {
	path := d.path("release.yaml")
	if err := os.WriteFile(path, []byte(teamRun), 0o600); err != nil {
		return err
	}
	d.typed("cat", path)
	d.say("%s", strings.TrimSpace(teamRun))
	if err := d.parley(ctx, exitOK, "run", "graph", path); err != nil {
		return err
	}
	return d.parley(ctx, exitOK, "run", "start", path)
}

// runs: act 3. It tells what happens as it happens.
func (d *demo) runs(ctx context.Context) error {
	heard := newOverheard()
	sub, err := d.client.bus.Subscribe(subjects.MeshPattern, "", heard.add)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is closed soon
	begin := time.Now()
	seen := map[string]string{}
	err = d.until(ctx, "the end of the run", func() (bool, error) {
		r, err := d.release(ctx)
		if err != nil {
			return false, err
		}
		for _, line := range heard.take() {
			d.say("%6s  %s", clockOf(begin), line)
		}
		for i := range r.Definition.Agents {
			name := r.Definition.Agents[i].Name()
			for _, line := range d.node(ctx, name, r.Nodes[name], seen) {
				d.say("%6s  %s", clockOf(begin), line)
			}
		}
		return r.State.Ended() && heard.count() >= 2, nil
	})
	if err != nil {
		return err
	}
	for _, line := range heard.take() {
		d.say("%6s  %s", clockOf(begin), line)
	}
	r, err := d.release(ctx)
	if err != nil {
		return err
	}
	if err := d.check(r.State == runwire.Done, "the run is done"); err != nil {
		return err
	}
	build, notes := r.Nodes["build"], r.Nodes["notes"]
	together := build.Begun != nil && notes.Begun != nil && build.Begun.Before(*notes.Ended) && notes.Begun.Before(*build.Ended)
	return d.check(together, "build and notes were worked on at the same time, after survey and before review")
}

// node tells what is new about a node.
func (d *demo) node(ctx context.Context, name runwire.NodeID, n runwire.Status, seen map[string]string) (lines []string) {
	say := func(what, now, line string) {
		if now != "" && seen[what] != now {
			seen[what] = now
			lines = append(lines, line)
		}
	}
	if n.TaskID != "" && seen["end "+string(name)] == "" {
		if v, err := d.task(ctx, n.TaskID); err == nil {
			for _, a := range v.Attempts {
				say("failed "+string(name)+string(a.AgentID), "failed", fmt.Sprintf("%-7s %s failed: %s", name, a.AgentID, oneLine(printable(a.Message))))
			}
			if v.AgentID != "" {
				say("at "+string(name), string(v.AgentID), fmt.Sprintf("%-7s %s works on it", name, v.AgentID))
			}
		}
	}
	if n.State.Ended() {
		say("end "+string(name), string(n.State), fmt.Sprintf("%-7s %s", name, d.app.paint(green, string(n.State))))
	}
	return lines
}

// reports: act 4.
func (d *demo) reports(ctx context.Context) error {
	if err := d.parley(ctx, exitOK, "run", "get", "release"); err != nil {
		return err
	}
	r, err := call[runwire.Output](ctx, d.client, "run", "output", runwire.Ref{RunID: "release"})
	if err != nil {
		return err
	}
	said := map[runwire.NodeID]string{}
	for _, res := range r.value.Results {
		if res.Result != nil {
			said[res.Node] = runwire.Text(res.Result.Output)
		}
	}
	rec, err := d.release(ctx)
	if err != nil {
		return err
	}
	build, err := d.task(ctx, rec.Nodes["build"].TaskID)
	if err != nil {
		return err
	}
	for _, claim := range []struct {
		ok   bool
		text string
	}{
		{
			len(build.Attempts) == 1 && build.Attempts[0].AgentID == "fern" && build.AgentID == "moss" && build.State == fleet.StateDone,
			"fern failed at build, and moss took over",
		},
		{strings.Contains(said["notes"], demoAnswer), "quill asked atlas in the middle of its notes, and used the answer: " + demoAnswer},
		{len(said) == 4 && r.value.State == runwire.Done, "one document has what all four nodes came to"},
	} {
		if err := d.check(claim.ok, "%s", claim.text); err != nil {
			return err
		}
	}
	return nil
}

// release is the run as it is now.
func (d *demo) release(ctx context.Context) (*runwire.Record, error) {
	r, err := call[runwire.Record](ctx, d.client, "run", "get", runwire.Ref{RunID: "release"})
	if err != nil {
		return nil, err
	}
	return &r.value, nil
}

// clockOf is how long something has gone on.
func clockOf(begin time.Time) string { return fmt.Sprintf("%.1fs", time.Since(begin).Seconds()) }

// overheard is what agents said to each other.
type overheard struct {
	mu    sync.Mutex
	lines []string
	n     int
}

func newOverheard() *overheard { return &overheard{} }

func (o *overheard) add(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.MeshPattern, m.Subject)
	msg, err := mesh.DecodeMessage(m.Data)
	if !ok || err != nil {
		return
	}
	verb := "asks"
	if msg.Ref != "" {
		verb = "answers"
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	o.lines = append(o.lines, fmt.Sprintf("        %s %s %s: %s", vars[1], verb, vars[0], oneLine(printable(mesh.Clean(msg.Body())))))
}

func (o *overheard) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.lines
	o.lines = nil
	return lines
}

func (o *overheard) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}
