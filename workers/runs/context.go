package runs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// maxContext bounds what a node is told of those before it, in bytes.
const maxContext = 512 << 10

// dispatchOf is the task of a node: the same bytes whoever makes it.
func (w *Worker) dispatchOf(ctx context.Context, rec *run.Record, d *run.Node, task subjects.TaskID) (*fleet.Dispatch, error) {
	previous, outputs, err := w.previous(ctx, rec, d)
	if err != nil {
		return nil, err
	}
	told, err := fleet.Encode(struct {
		PreviousResults []run.Previous  `json:"previous_results"`
		SharedData      json.RawMessage `json:"shared_data,omitempty"`
	}{previous, rec.Definition.SharedData})
	if err != nil {
		return nil, err
	}
	brief := run.Quote(d.Brief, outputs)
	if brief == "" {
		brief = rec.Definition.Description
	}
	if brief == "" {
		brief = "Do your part of the run " + string(rec.RunID) + "."
	}
	if len(previous) > 0 || len(rec.Definition.SharedData) > 0 {
		brief += "\n\n# Context (JSON)\n\n" + string(told)
	}
	out := &fleet.Dispatch{
		Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
		Task: fleet.Task{
			TaskID: task, Priority: rec.Definition.Priority, TokenBudget: d.TokenBudget, Type: rec.Definition.TaskType,
			TimeoutSeconds: d.Timeout, MaxRetries: d.MaxRetries, Agent: d.AgentID, Alternatives: d.Alternatives,
			ResultSchema: d.ResultSchema, RunID: rec.RunID, Escalate: fleet.EscalateNever,
		},
		Deadline: &rec.Deadline, Brief: brief,
	}
	if d.Requirements != nil {
		out.Requirements = *d.Requirements
	}
	return out, nil
}

// previous is what a node is told of those that it depends on.
func (w *Worker) previous(ctx context.Context, rec *run.Record, d *run.Node) (list []run.Previous, outputs map[run.NodeID]string, err error) {
	list, outputs = []run.Previous{}, map[run.NodeID]string{}
	size := 0
	for _, dep := range d.Dependencies {
		n := rec.Nodes[dep]
		res, err := w.result(ctx, rec.RunID, n.TaskID)
		if err != nil {
			return nil, nil, err
		}
		p := run.Previous{AgentID: n.AgentID, Node: dep, Status: n.State, Reason: n.Reason}
		if res != nil {
			p.Output = res.Output
		}
		if size += len(p.Output); size > maxContext {
			p.Output = fleet.MustEncode(fmt.Sprintf("(%d bytes: see task %s)", len(p.Output), n.TaskID))
		}
		outputs[dep] = run.Text(p.Output)
		list = append(list, p)
	}
	return list, outputs, nil
}

// output is the document of a run that has ended. It follows from what is
// stored alone.
func (w *Worker) output(ctx context.Context, rec *run.Record) ([]byte, error) {
	out := run.Output{
		RunID: rec.RunID, TaskType: rec.Definition.TaskType, Description: rec.Definition.Description,
		State: rec.State, Reason: rec.Reason, Created: rec.Created, Ended: *rec.Ended, Tokens: rec.Tokens,
	}
	for i := range rec.Definition.Agents {
		name := rec.Definition.Agents[i].Name()
		n := rec.Nodes[name]
		res, err := w.result(ctx, rec.RunID, n.TaskID)
		if err != nil {
			return nil, err
		}
		out.Results = append(out.Results, run.Result{Node: name, Status: n, Result: res})
	}
	raw, err := fleet.Encode(&out)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// checkLocation says what is wrong with where a run is to leave its document.
func (w *Worker) checkLocation(at string) error {
	switch {
	case at == "":
		return nil
	case w.out == nil:
		return subjects.Errorf(subjects.CodeInvalidMessage, "this fleet writes no files").At("/output_location").
			WithRemedy("leave it out, and read the document with run output")
	case !filepath.IsLocal(filepath.FromSlash(at)) || path.Clean(at) == ".":
		return subjects.Errorf(subjects.CodeInvalidMessage, "%q leads out of the output directory", at).At("/output_location").
			WithRemedy("give a path below it, such as results/run.json")
	}
	return nil
}

// writeOutput leaves a run's document where it is to be: whole or not at all.
func (w *Worker) writeOutput(ctx context.Context, rec *run.Record) error {
	at := rec.Definition.OutputLocation
	if at == "" || w.out == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	data, err := w.output(ctx, rec)
	if err != nil {
		return err
	}
	at = filepath.FromSlash(path.Clean(at))
	if dir := filepath.Dir(at); dir != "." {
		if err := w.out.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make the directory of the output: %w", err)
		}
	}
	temp := at + "." + string(rec.RunID) + ".tmp"
	if err := w.out.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	if err := w.out.Rename(temp, at); err != nil {
		return errors.Join(fmt.Errorf("write the output: %w", err), w.out.Remove(temp))
	}
	return nil
}
