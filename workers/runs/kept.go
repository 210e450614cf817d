package runs

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// The result of a task is stored beside the record which says that its node has
// ended, not before: what follows waits for both. So the last record of a run
// that goes on may know of ends whose results were lost with the worker. Their
// tasks have them, and whoever takes over gets them there. When a run ends, all
// results are stored before its last record.

// kept is what a driver knows of results.
type kept struct {
	mu     sync.Mutex
	fresh  map[subjects.TaskID]*fleet.Result // ended in this turn, or the last; guarded by mu
	stored map[subjects.TaskID]bool          // guarded by mu
}

func newKept() kept {
	return kept{fresh: map[subjects.TaskID]*fleet.Result{}, stored: map[subjects.TaskID]bool{}}
}

// add notes what a task has come to, which is yet to be stored.
func (k *kept) add(task subjects.TaskID, r *fleet.Result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fresh[task] = r
}

// forget drops what is stored, once those that follow were told of it.
func (k *kept) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for task := range k.fresh {
		if k.stored[task] {
			delete(k.fresh, task)
		}
	}
}

func (k *kept) of(task subjects.TaskID) *fleet.Result {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fresh[task]
}

func (k *kept) isStored(task subjects.TaskID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stored[task]
}

// unstored are those that are yet to be stored.
func (k *kept) unstored() map[subjects.TaskID]*fleet.Result {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := map[subjects.TaskID]*fleet.Result{}
	for task, r := range k.fresh {
		if !k.stored[task] {
			list[task] = r
		}
	}
	return list
}

// keep stores what a task has come to.
func (d *driver) keep(ctx context.Context, r subjects.RunID, task subjects.TaskID, res *fleet.Result) error {
	crash.Point("before_run_result")
	err := d.storeResult(ctx, r, task, res)
	if err == nil {
		d.kept.mu.Lock()
		defer d.kept.mu.Unlock()
		d.kept.stored[task] = true
	}
	return err
}

// storeResults stores what has ended since it was last called.
func (d *driver) storeResults(ctx context.Context, r subjects.RunID) error {
	list := d.kept.unstored()
	errs := make(chan error, len(list))
	slots := make(chan struct{}, callsAtOnce)
	var wg sync.WaitGroup
	for task, res := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs <- d.keep(ctx, r, task, res)
		})
	}
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}

// lastResults has every result stored of a run that ends with rec.
func (d *driver) lastResults(ctx context.Context, rec *run.Record) error {
	if err := d.storeResults(ctx, rec.RunID); err != nil {
		return err
	}
	for i := range rec.Definition.Agents {
		node := &rec.Definition.Agents[i]
		n := rec.Nodes[node.Name()]
		if node.FanOut != nil || n.State != run.Done && n.State != run.Failed || d.kept.isStored(n.TaskID) {
			continue
		}
		if _, err := d.resultOf(ctx, rec, n); err != nil {
			return err
		}
	}
	return nil
}

// resultOf is what a node's task has come to; nil when it has not.
func (d *driver) resultOf(ctx context.Context, rec *run.Record, n run.Status) (*fleet.Result, error) {
	if res := d.kept.of(n.TaskID); res != nil {
		return res, nil
	}
	res, err := d.result(ctx, rec.RunID, n.TaskID)
	if res != nil || err != nil || n.TaskID == "" || !n.State.Ended() {
		return res, err
	}
	v, err := call[fleet.TaskView](ctx, d.Worker, rec.From, "task", "get", fleet.TaskRef{TaskID: n.TaskID})
	switch {
	case subjects.CodeOf(err) == subjects.CodeNotFound:
		d.log.Error("the result of a task was lost with a worker, a day ago", slog.String("task_id", string(n.TaskID)))
		return nil, nil //nolint:nilnil // it has none
	case err != nil || !v.State.Terminal():
		return nil, err
	}
	res = ending(&v).result
	return res, d.keep(ctx, rec.RunID, n.TaskID, res)
}
