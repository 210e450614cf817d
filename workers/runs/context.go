package runs

import (
	"context"
	"encoding/json"
	"fmt"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// maxContext bounds what a node is told of those before it, in bytes.
const maxContext = 512 << 10

// before is what a task is told of what came before.
type before struct {
	brief *run.Template // nil: the node has none
	block contextBlock
}

// contextBlock is S2's context, as it stands in a brief.
type contextBlock struct {
	PreviousResults []run.Previous  `json:"previous_results"`
	SharedData      json.RawMessage `json:"shared_data,omitzero"`
	Item            json.RawMessage `json:"item,omitzero"` // of a fan-out
	Index           *int            `json:"index,omitempty"`
}

// dispatchOf is the task of a node: the same bytes whoever makes it.
func (d *driver) dispatchOf(ctx context.Context, rec *run.Record, node *run.Node, task subjects.TaskID) (*fleet.Dispatch, error) {
	out, t, err := d.prepare(ctx, rec, node)
	if err != nil {
		return nil, err
	}
	out.Task.TaskID, out.Task.SessionID = task, rec.SessionID
	return t.fill(out, nil, 0)
}

// prepare is what the tasks of a node have in common.
func (d *driver) prepare(ctx context.Context, rec *run.Record, node *run.Node) (*fleet.Dispatch, before, error) {
	out := node.Dispatch(&rec.Definition)
	out.Task.NodeID = string(node.Name())
	out.Task.RunID, out.Task.RunBudget, out.Deadline = rec.RunID, rec.Definition.TokenBudget, &rec.Deadline
	out.Traceparent = fleet.TraceOf(rec.RunID, rec.Traceparent).In(fleet.SpanRun, 0)
	if out.Brief == "" {
		out.Brief = rec.Definition.Description
	}
	if out.Brief == "" {
		out.Brief = "Do your part of the run " + string(rec.RunID) + "."
	}
	var t before
	outputs := map[run.NodeID]json.RawMessage{}
	t.block.PreviousResults, t.block.SharedData = []run.Previous{}, rec.Definition.SharedData
	size := 0
	for _, dep := range node.Dependencies {
		n := rec.Nodes[dep]
		output, err := d.outputOf(ctx, rec, dep)
		if err != nil {
			return nil, t, err
		}
		outputs[dep] = output
		p := run.Previous{AgentID: n.AgentID, Node: dep, Status: n.State, Reason: n.Reason, Output: output}
		switch {
		case node.FanOut != nil && node.FanOut.From == dep: // each item gets its own
			p.Output = nil
		case size+len(output) > maxContext:
			p.Output = fleet.MustEncode(fmt.Sprintf("(%d bytes: see the output of the run)", len(output)))
		default:
			size += len(output)
		}
		t.block.PreviousResults = append(t.block.PreviousResults, p)
	}
	if node.Brief == "" {
		return out, t, nil
	}
	var err error
	t.brief, err = run.ParseTemplate(node.Brief, outputs, node.FanOut != nil)
	return out, t, err
}

// item is the task of an item of a fan-out.
func (t before) item(base *fleet.Dispatch, task subjects.TaskID, index int, item json.RawMessage) (*fleet.Dispatch, error) {
	d := *base
	d.Task.TaskID = task
	t.block.Item, t.block.Index = item, &index
	return t.fill(&d, item, index)
}

// fill makes the brief of d.
func (t before) fill(d *fleet.Dispatch, item json.RawMessage, index int) (*fleet.Dispatch, error) {
	bare := d.Brief
	if t.brief != nil {
		var err error
		if bare, err = t.brief.Fill(item, index); err != nil {
			return nil, err
		}
	}
	d.Brief = bare
	if len(t.block.PreviousResults) == 0 && len(t.block.SharedData) == 0 && len(t.block.Item) == 0 {
		return d, nil
	}
	block, err := fleet.Encode(t.block)
	if err != nil {
		return nil, err
	}
	d.Brief = bare + "\n\n# What came before (JSON)\n\n" + string(block)
	if len(d.Brief) < maxContext/2 || len(fleet.MustEncode(d)) <= fleet.MaxMessage {
		return d, nil
	}
	// Without what is quoted, or can be read elsewhere; whether the rest fits is
	// the door's to say.
	t.block.PreviousResults = append([]run.Previous{}, t.block.PreviousResults...)
	for i := range t.block.PreviousResults {
		t.block.PreviousResults[i].Output = fleet.MustEncode("(left out for its size: see the output of the run)")
	}
	d.Brief = bare + "\n\n# What came before (JSON)\n\n" + string(fleet.MustEncode(t.block))
	return d, nil
}

// judge evaluates the condition of a node whose dependencies have ended.
func (d *driver) judge(ctx context.Context, rec *run.Record, name run.NodeID) (Verdict, error) {
	for i := range rec.Definition.Agents {
		node := &rec.Definition.Agents[i]
		if node.Name() != name {
			continue
		}
		c, err := run.Compile(node.When)
		if err != nil {
			return Verdict{Err: err.Error()}, nil
		}
		b := run.Before{Outputs: map[run.NodeID]json.RawMessage{}, Status: map[run.NodeID]run.State{}, Shared: rec.Definition.SharedData}
		for _, dep := range node.Dependencies {
			b.Status[dep] = rec.Nodes[dep].State
			var output json.RawMessage
			output, err = d.outputOf(ctx, rec, dep)
			if code := subjects.CodeOf(err); err != nil && !again(code) {
				return Verdict{Err: err.Error()}, nil
			}
			if err != nil {
				return Verdict{}, err
			}
			b.Outputs[dep] = output
		}
		holds, err := c.Holds(b)
		if err != nil {
			return Verdict{Err: err.Error()}, nil //nolint:nilerr // that is what the verdict says
		}
		return Verdict{Begin: holds}, nil
	}
	return Verdict{Err: "there is no such node"}, nil
}
