package runs

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// cancelNode has the tasks of a node canceled that is so in next.
func (d *driver) cancelNode(ctx context.Context, rec *run.Record, name run.NodeID, next *run.Record) error {
	for _, node := range inSequence(&rec.Definition) {
		if node.Name() != name || node.FanOut == nil {
			continue
		}
		items, err := d.cancelItems(ctx, rec, node, next.Reason)
		if err == nil && items != nil {
			n := next.Nodes[name]
			n.Items = items
			next.Nodes[name] = n
		}
		return err
	}
	task := rec.Nodes[name].TaskID
	return d.cancelTask(ctx, rec.From, task, next.Reason, d.sentUntil(task))
}

// sentUntil is until when another driver may have sent what belongs to the task
// of a node, and it is not stored yet; zero: there was none.
func (d *driver) sentUntil(task subjects.TaskID) time.Time {
	if !d.others[task] || d.told[task] || d.begun[task] {
		return time.Time{}
	}
	return d.since.Add(doubtful)
}

// cancelItems has every task canceled that an item may have under way, and says
// what had ended by then. Nothing more of the node is begun here.
func (d *driver) cancelItems(ctx context.Context, rec *run.Record, node *run.Node, why *fleet.Reason) (*run.Items, error) {
	n := rec.Nodes[node.Name()]
	if f := d.fans[n.TaskID]; f != nil {
		f.halt()
	}
	var list []json.RawMessage
	output, err := d.outputOf(ctx, rec, node.FanOut.From)
	if err == nil {
		list, err = node.FanOut.Unfold(output)
	}
	if code := subjects.CodeOf(err); err != nil && again(code) {
		return nil, err
	} else if err != nil {
		return nil, nil //nolint:nilerr // it has no items
	}
	chunks, err := d.readChunks(ctx, rec.RunID, node.Name(), 0, -1)
	if err != nil {
		return nil, err
	}
	count := &run.Items{Total: len(list), Chunks: len(chunks)}
	over := map[int]bool{}
	for _, c := range chunks {
		for _, i := range c.Items {
			switch {
			case over[i.Index] || i.State != run.Done && i.Generation != n.Generation:
				continue
			case i.State == run.Done:
				count.Done++
			default:
				count.Failed++
			}
			over[i.Index] = true
		}
	}
	var wg sync.WaitGroup
	errs, until := make(chan error, len(list)), d.sentUntil(n.TaskID)
	slots := make(chan struct{}, fanCalls)
	for i := range list {
		if over[i] {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs <- d.cancelTask(ctx, rec.From, ItemID(rec.RunID, node.Name(), n.Generation, i), why, until)
		})
	}
	wg.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return count, err
}
