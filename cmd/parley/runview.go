package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/subjects"
	runwire "parley/subjects/run"
)

// followRun shows what happens to a run until it ends, then prints its output:
// on a terminal as a tree that is drawn anew, elsewhere line by line.
func (a *app) followRun(ctx context.Context, c *client, id subjects.RunID, file string) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	seen := map[runwire.NodeID]string{}
	screen := &redraw{to: a.stderr}
	for {
		r, err := call[runwire.Record](ctx, c, "run", "get", runwire.Ref{RunID: id})
		switch {
		case ctx.Err() != nil: // said below
		case err != nil && !away(err):
			return err
		case err == nil:
			if isTerminal(a.stderr) && !a.json() {
				screen.show(tree(&r.value, a.colours(a.stderr)))
			} else {
				a.tellNodes(&r.value, seen)
			}
			if r.value.State.Ended() {
				return a.endOfRun(ctx, c, &r.value, file)
			}
		}
		select {
		case <-ctx.Done():
			return &problem{
				what: "interrupted; the run goes on", exit: exitInterrupted, err: ctx.Err(),
				then: "parley run watch " + string(id) + "  or  parley run cancel " + string(id),
			}
		case <-tick.C:
		}
	}
}

// tellNodes says which nodes have come to another state.
func (a *app) tellNodes(r *runwire.Record, seen map[runwire.NodeID]string) {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	for i := range r.Definition.Agents {
		name := r.Definition.Agents[i].Name()
		n := r.Nodes[name]
		now := fmt.Sprint(n.State, progress(n))
		if seen[name] == now || n.State == runwire.Waiting {
			continue
		}
		seen[name] = now
		text := fmt.Sprintf("%s %s", name, strings.TrimSpace(fmt.Sprintf("%s%s %s", n.State, progress(n), printable(nodeNote(n)))))
		lines = append(lines, line{a.changedAt(n), text})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	for _, l := range lines {
		a.notice("%s  %s", l.at.Local().Format(time.TimeOnly), l.text)
	}
}

// changedAt is when a node came to its state, as far as that is kept.
func (a *app) changedAt(n runwire.Status) time.Time {
	switch {
	case n.Ended != nil:
		return *n.Ended
	case n.Begun != nil && n.Items == nil:
		return *n.Begun
	}
	return a.now() // an item of a fan-out has ended
}

// nodeNote is what is to be said of how a node has ended.
func nodeNote(n runwire.Status) string { return cmp.Or(reason(n.Reason), n.Note) }

// progress is how far a fan-out is.
func progress(n runwire.Status) string {
	if n.Items == nil {
		return ""
	}
	s := fmt.Sprintf(" %d/%d", n.Items.Done, n.Items.Total)
	if n.Items.Failed > 0 {
		s += fmt.Sprintf(" (%d failed)", n.Items.Failed)
	}
	return s
}

// redraw shows lines in the place of those before.
type redraw struct {
	to    io.Writer
	shown int
	last  string
}

func (s *redraw) show(lines []string) {
	text := strings.Join(lines, "\n") + "\n"
	if text == s.last {
		return
	}
	if s.shown > 0 {
		fmt.Fprintf(s.to, "\x1b[%dA\x1b[J", s.shown)
	}
	fmt.Fprint(s.to, "\x1b[?7l"+text+"\x1b[?7h") // lines are cut, not wrapped: they are counted
	s.shown, s.last = len(lines), text
}

// maxTree is how many nodes a tree shows.
const maxTree = 40

// tree draws a run: each node below the last of those that it depends on. Of a
// large one, what is under way or has failed comes before what waits or is done.
func tree(r *runwire.Record, colours bool) []string {
	p := &painter{r: r, colours: colours, below: map[runwire.NodeID][]*runwire.Node{}, hidden: hide(r)}
	var roots []*runwire.Node
	depth := depths(&r.Definition)
	for i := range r.Definition.Agents {
		n := &r.Definition.Agents[i]
		if len(n.Dependencies) == 0 {
			roots = append(roots, n)
			continue
		}
		parent := slices.MaxFunc(n.Dependencies, func(a, b runwire.NodeID) int { return depth[a] - depth[b] })
		p.below[parent] = append(p.below[parent], n)
	}
	p.lines = append(p.lines, strings.TrimSpace(fmt.Sprintf("%s  %s %s", r.RunID, p.state(r.State), printable(reason(r.Reason)))))
	p.draw(roots, "", "")
	if len(p.hidden) > 0 {
		p.lines = append(p.lines, fmt.Sprintf("… and %d more: parley run get %s", len(p.hidden), r.RunID))
	}
	return p.lines
}

// hide picks what a large tree leaves out.
func hide(r *runwire.Record) map[runwire.NodeID]bool {
	hidden := map[runwire.NodeID]bool{}
	for _, s := range []runwire.State{runwire.Skipped, runwire.Waiting, runwire.Done, runwire.Canceled, runwire.Dispatched, runwire.Failed} {
		for i := range r.Definition.Agents {
			if name := r.Definition.Agents[i].Name(); r.Nodes[name].State == s && len(r.Nodes)-len(hidden) > maxTree {
				hidden[name] = true
			}
		}
	}
	return hidden
}

// depths is how many nodes there are at least before each, on its longest way.
func depths(d *runwire.Definition) map[runwire.NodeID]int {
	depth := map[runwire.NodeID]int{}
	for changed := true; changed; { // a definition has no circle
		changed = false
		for i := range d.Agents {
			n := &d.Agents[i]
			for _, dep := range n.Dependencies {
				if depth[dep] >= depth[n.Name()] {
					depth[n.Name()], changed = depth[dep]+1, true
				}
			}
		}
	}
	return depth
}

type painter struct {
	r       *runwire.Record
	colours bool
	below   map[runwire.NodeID][]*runwire.Node
	hidden  map[runwire.NodeID]bool
	lines   []string
}

func (p *painter) draw(nodes []*runwire.Node, prefix, parent string) {
	slices.SortStableFunc(nodes, func(a, b *runwire.Node) int { return a.Sequence - b.Sequence })
	for i, n := range nodes {
		branch, next := "├─ ", "│  "
		if i == len(nodes)-1 {
			branch, next = "└─ ", "   "
		}
		name := n.Name()
		if p.hidden[name] { // what is below it moves up
			p.draw(p.below[name], prefix, parent)
			continue
		}
		s := p.r.Nodes[name]
		line := fmt.Sprintf("%s%s  %s%s", prefix+branch, name, p.state(s.State), progress(s))
		if s.AgentID != "" && string(s.AgentID) != string(name) {
			line += "  by " + string(s.AgentID)
		}
		if s.Begun != nil && s.Ended != nil {
			line += "  " + roughly(s.Ended.Sub(*s.Begun))
		}
		if others := slices.DeleteFunc(slices.Clone(n.Dependencies), func(d runwire.NodeID) bool { return string(d) == parent }); len(others) > 0 && parent != "" {
			line += "  after " + cut(joined(others), 40)
		}
		if text := printable(nodeNote(s)); text != "" {
			line += "  " + cut(oneLine(text), 60)
		}
		p.lines = append(p.lines, line)
		p.draw(p.below[name], prefix+next, string(name))
	}
}

// shade is how a state looks: on a terminal, and in a drawing.
type shade struct {
	colour    colour
	fill, ink string
}

func shadeOf(s runwire.State) shade {
	switch s {
	case runwire.Dispatched, runwire.Running:
		return shade{blue, "#cfe2ff", "#084298"}
	case runwire.Done:
		return shade{green, "#d1e7dd", "#0f5132"}
	case runwire.Failed, runwire.Expired:
		return shade{red, "#f8d7da", "#842029"}
	case runwire.Canceled, runwire.Paused:
		return shade{yellow, "#fff3cd", "#664d03"}
	case runwire.Skipped:
		return shade{faint, "#ffffff", "#999999"}
	default:
		return shade{plain, "#eeeeee", "#333333"}
	}
}

func (p *painter) state(s runwire.State) string {
	if !p.colours {
		return string(s)
	}
	return string(shadeOf(s).colour) + string(s) + string(plain)
}

// mermaidName is a node's name where Mermaid takes it as it stands.
func mermaidName(i int, name runwire.NodeID) string {
	keyword := slices.Contains([]string{"end", "graph", "flowchart", "subgraph", "class", "classdef", "click", "style", "linkstyle", "default", "direction", "href", "call"}, strings.ToLower(string(name)))
	if keyword || strings.Contains(string(name), "--") || strings.Trim(string(name), "-") != string(name) {
		return fmt.Sprintf("node_%d", i)
	}
	return string(name)
}

// graph draws a definition; with nodes, in the colours of their states.
func graph(d *runwire.Definition, nodes map[runwire.NodeID]runwire.Status, dot bool) string {
	names := map[runwire.NodeID]string{}
	for i := range d.Agents {
		name := d.Agents[i].Name()
		if names[name] = mermaidName(i, name); dot {
			names[name] = fmt.Sprintf("%q", string(name))
		}
	}
	var b strings.Builder
	if dot {
		b.WriteString("digraph run {\n  rankdir=LR\n  node [style=filled fillcolor=white]\n")
	} else {
		b.WriteString("flowchart LR\n")
	}
	used := map[runwire.State]bool{}
	for i := range d.Agents {
		n := &d.Agents[i]
		state, known := nodes[n.Name()]
		label := graphLabel(n, state)
		switch {
		case dot && known:
			fmt.Fprintf(&b, "  %s [label=%q fillcolor=%q fontcolor=%q]\n", names[n.Name()], label, shadeOf(state.State).fill, shadeOf(state.State).ink)
		case dot:
			fmt.Fprintf(&b, "  %s [label=%q]\n", names[n.Name()], label)
		case known:
			used[state.State] = true
			fmt.Fprintf(&b, "  %s[\"%s\"]:::%s\n", names[n.Name()], label, state.State)
		default:
			fmt.Fprintf(&b, "  %s[\"%s\"]\n", names[n.Name()], label)
		}
		for _, dep := range n.Dependencies {
			arrow := "-->"
			if dot {
				arrow = "->"
			}
			fmt.Fprintf(&b, "  %s %s %s\n", names[dep], arrow, names[n.Name()])
		}
	}
	for _, s := range slices.Sorted(maps.Keys(used)) {
		fmt.Fprintf(&b, "  classDef %s fill:%s,color:%s,stroke:%s\n", s, shadeOf(s).fill, shadeOf(s).ink, shadeOf(s).ink)
	}
	if dot {
		b.WriteString("}\n")
	}
	return b.String()
}

func graphLabel(n *runwire.Node, s runwire.Status) string {
	label := string(n.Name())
	if n.AgentID != "" && label != string(n.AgentID) {
		label += ": " + string(n.AgentID)
	}
	switch {
	case s.Items != nil:
		label += progress(s)
	case n.FanOut != nil:
		label += " (each)"
	}
	return label
}
