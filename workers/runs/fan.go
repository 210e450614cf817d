package runs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// Bounds of a fan-out.
const (
	fanCalls   = 256                   // calls in hand
	chunkEvery = 50 * time.Millisecond // what ended meanwhile is stored together
	chunkBytes = 256 << 10
	askMost    = 5 * time.Minute // between two questions about one task
	tickEvery  = time.Second
)

// fan is a node of a run that is a task for each item of a list. What has ended
// is in its chunks; all else follows from them.
type fan struct {
	*driver
	rec    *run.Record
	node   *run.Node
	status run.Status // of the node
	log    *slog.Logger
	halt   func() // ends its work and waits for that

	alone bool // what this pool knows nothing of was not begun in this generation; owned by work

	mu     sync.Mutex // guards all below
	over   *Outcome
	count  *run.Items
	paused bool
}

// fan gives the fan-out of a node that is under way, and begins to work on it.
func (d *driver) fan(ctx context.Context, rec *run.Record, node *run.Node, n run.Status) *fan {
	f := d.fans[n.TaskID]
	if f == nil {
		f = &fan{driver: d, rec: rec, node: node, status: n, paused: rec.State == run.Paused, alone: d.begun[n.TaskID], log: d.log.With(slog.String("node", string(node.Name())))}
		d.fans[n.TaskID] = f
		work, stop := context.WithCancel(ctx)
		over := make(chan struct{})
		f.halt = func() { stop(); <-over }
		d.running.Go(func() {
			defer close(over)
			defer stop()
			f.work(work)
		})
	}
	return f
}

func (f *fan) outcome() *Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over
}

func (f *fan) items() *run.Items {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// pause has it begin nothing more while on.
func (f *fan) pause(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = on
}

// pausing says that nothing more is begun for now.
func (f *fan) pausing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paused
}

// work works on the items until all have ended, or ctx.
func (f *fan) work(ctx context.Context) {
	for {
		o, err := f.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			f.mu.Lock()
			f.over, f.count = o, o.Status.Items
			f.mu.Unlock()
			kick(f.l.kick)
			return
		}
		if !errors.Is(err, bus.ErrConflict) {
			f.log.Warn("fan-out is begun again where it was", slog.Any("error", err))
		}
		timer := time.NewTimer(againAfter)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// once works on what the chunks do not have.
func (f *fan) once(ctx context.Context) (*Outcome, error) {
	output, err := f.outputOf(ctx, f.rec, f.node.FanOut.From)
	var list []json.RawMessage
	if err == nil {
		list, err = f.node.FanOut.Unfold(output)
	}
	var base *fleet.Dispatch
	var told before
	if err == nil {
		base, told, err = f.prepare(ctx, f.rec, f.node)
	}
	if code := subjects.CodeOf(err); err != nil && !again(code) {
		e := subjects.AsError(err)
		return &Outcome{Node: f.node.Name(), TaskID: f.status.TaskID, Status: run.Status{
			State: run.Failed, Reason: run.Short(&fleet.Reason{Code: e.Code, Message: e.Message}),
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	stored, err := f.readChunks(ctx, f.rec.RunID, f.node.Name(), 0, -1)
	if err != nil {
		return nil, err
	}
	p := newPool(f, list, base, told)
	defer p.close()
	p.merge(stored)
	if err := p.run(ctx); err != nil {
		f.alone = false // there is what this pool has begun
		return nil, err
	}
	o := p.outcome()
	f.tellSession(ctx, f.rec, f.node, o, p.outputs)
	return o, nil
}
