package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	fanCalls   = 64                    // calls in hand
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

	mu     sync.Mutex // guards all below
	over   *Outcome
	count  *run.Items
	paused bool
}

// fan gives the fan-out of a node that is under way, and begins to work on it.
func (d *driver) fan(ctx context.Context, rec *run.Record, node *run.Node, n run.Status) *fan {
	f := d.fans[n.TaskID]
	if f == nil {
		f = &fan{driver: d, rec: rec, node: node, status: n, paused: rec.State == run.Paused, log: d.log.With(slog.String("node", string(node.Name())))}
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
		return nil, err
	}
	o := p.outcome()
	f.tellSession(ctx, f.rec, f.node, o)
	return o, nil
}

// pool is the items of a fan-out at work. It is one goroutine's.
type pool struct {
	*fan
	list []json.RawMessage
	base *fleet.Dispatch
	told before
	most int // tasks at a time

	box     *box
	calls   sync.WaitGroup
	stop    context.CancelFunc
	done    chan called
	inCalls int

	ended   map[int]run.Item // for good, or in this generation
	next    int              // the first that was not begun
	open    map[subjects.TaskID]*open
	late    []int // to be begun again: they were refused for now
	failed  *run.Item
	pending []run.Item // ended, not stored yet
	bytes   int
	chunks  int
}

// open is an item whose task is under way.
type open struct {
	index  int
	ask    time.Time // when the next question about it is due
	wait   time.Duration
	asking bool
}

// called is what a call has come to.
type called struct {
	index int
	task  subjects.TaskID
	e     *end
	err   error
	begun bool // it was a dispatch
}

func newPool(f *fan, list []json.RawMessage, base *fleet.Dispatch, told before) *pool {
	most := f.node.FanOut.Concurrency
	if most == 0 {
		most = max(len(list), 1)
	}
	f.mu.Lock()
	f.count = &run.Items{Total: len(list)}
	f.mu.Unlock()
	return &pool{
		fan: f, list: list, base: base, told: told, most: most, box: newBox(make(chan struct{}, 1)), stop: func() {},
		done: make(chan called, fanCalls), ended: map[int]run.Item{}, open: map[subjects.TaskID]*open{},
	}
}

// close ends what run has left.
func (p *pool) close() {
	p.stop()
	p.calls.Wait()
	for task := range p.open {
		p.listen(task, nil)
	}
}

// merge takes in chunks, of this worker or another.
func (p *pool) merge(chunks []run.Chunk) {
	for _, c := range chunks {
		for _, i := range c.Items {
			if i.State == run.Done || i.Generation == p.status.Generation {
				i.Result = nil
				p.take(i)
			}
		}
	}
	p.stored(len(chunks))
}

// stored notes that there are more chunks.
func (p *pool) stored(more int) {
	p.chunks += more
	p.mu.Lock()
	defer p.mu.Unlock()
	n := *p.count
	n.Chunks = p.chunks
	p.count = &n
}

// take notes that an item has ended.
func (p *pool) take(i run.Item) {
	if _, known := p.ended[i.Index]; known {
		return
	}
	p.ended[i.Index] = i
	if i.State != run.Done && p.failed == nil {
		p.failed = &i
	}
	if p.open[i.TaskID] != nil {
		delete(p.open, i.TaskID)
		p.listen(i.TaskID, nil)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := *p.count
	if i.State == run.Done {
		n.Done++
	} else {
		n.Failed++
	}
	p.count = &n
}

// run works until all items have ended and are stored, or until those have
// that were under way when one failed for good.
func (p *pool) run(ctx context.Context) error {
	ctx, p.stop = context.WithCancel(ctx)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	flush := time.NewTicker(chunkEvery)
	defer flush.Stop()
	for {
		p.begin(ctx)
		over := len(p.open) == 0 && p.inCalls == 0 && (p.next == len(p.list) && len(p.late) == 0 || p.stopped())
		if over || p.bytes > chunkBytes {
			if err := p.flush(ctx); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case c := <-p.done:
			p.answered(c)
		case <-p.box.kick:
			p.hear()
		case <-flush.C:
			err = p.flush(ctx)
		case <-tick.C:
			p.askAll(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// stopped says that nothing more is begun.
func (p *pool) stopped() bool { return p.failed != nil && p.node.OnFailure != run.OnFailureContinue }

// begin dispatches as many items as may be under way.
func (p *pool) begin(ctx context.Context) {
	for p.next < len(p.list) && len(p.open) < p.most && p.inCalls < fanCalls && len(p.late) == 0 && !p.stopped() && !p.pausing() {
		if _, over := p.ended[p.next]; !over {
			p.beginItem(ctx, p.next)
		}
		p.next++
	}
}

func (p *pool) beginItem(ctx context.Context, i int) {
	task := ItemID(p.rec.RunID, p.node.Name(), p.status.Generation, i)
	p.open[task] = &open{index: i, wait: pollEvery, asking: true}
	p.listen(task, p.box)
	p.call(task, i, true, func() (*end, error) {
		d, err := p.told.item(p.base, p.node, task, i, p.list[i])
		if err != nil {
			return refused(err), nil
		}
		return p.dispatch(ctx, p.rec.From, d)
	})
}

func (p *pool) call(task subjects.TaskID, i int, begun bool, f func() (*end, error)) {
	p.inCalls++
	p.calls.Go(func() {
		e, err := f()
		p.done <- called{i, task, e, err, begun} // done has room for all calls
	})
}

// answered takes in what a call has come to.
func (p *pool) answered(c called) {
	p.inCalls--
	o := p.open[c.task]
	switch {
	case o == nil: // it was heard meanwhile
	case c.e != nil:
		p.end(c.index, c.task, c.e)
	case c.err != nil && c.begun: // not now
		delete(p.open, c.task)
		p.listen(c.task, nil)
		p.late = append(p.late, c.index)
	default:
		o.asking, o.ask = false, time.Now().Add(o.wait)
		o.wait = min(2*o.wait, askMost)
	}
}

// hear takes in what was heard.
func (p *pool) hear() {
	for task, record := range p.box.take() {
		o := p.open[task]
		if o == nil {
			continue
		}
		e, err := endOf(record)
		if err != nil { // it is asked about in time
			p.log.Error("record of a task cannot be read", slog.String("task_id", string(task)), slog.Any("error", err))
			continue
		}
		p.end(o.index, task, e)
	}
}

// end takes in the end of an item's task, which is yet to be stored.
func (p *pool) end(i int, task subjects.TaskID, e *end) {
	it := run.Item{Index: i, Status: e.status, Result: e.result}
	it.Generation, it.TaskID = p.status.Generation, task
	size := len(e.result.Output) + 512
	for _, part := range e.result.Parts {
		size += len(part.Raw) + len(part.Data)
	}
	p.pending = append(p.pending, it)
	p.bytes += size
	it.Result = nil // in memory for as long as it is not stored
	p.take(it)
}

// flush stores what has ended.
func (p *pool) flush(ctx context.Context) error {
	for len(p.pending) > 0 {
		batch, err := p.storeChunk(ctx, p.rec.RunID, p.node.Name(), p.chunks, p.pending)
		if errors.Is(err, bus.ErrConflict) { // another worker is at it, too: what it has counts
			var stored []run.Chunk
			if stored, err = p.readChunks(ctx, p.rec.RunID, p.node.Name(), p.chunks, -1); err == nil && len(stored) == 0 {
				err = bus.ErrConflict
			}
			p.drop(stored)
		}
		if err != nil {
			return err
		}
		if batch > 0 {
			p.pending = p.pending[batch:]
			p.stored(1)
		}
	}
	p.pending, p.bytes = nil, 0
	return nil
}

// drop takes in chunks that another worker has stored.
func (p *pool) drop(stored []run.Chunk) {
	there := map[subjects.TaskID]bool{}
	for _, c := range stored {
		for _, i := range c.Items {
			there[i.TaskID] = true
		}
	}
	p.merge(stored)
	left := p.pending[:0:0]
	for _, i := range p.pending {
		if !there[i.TaskID] {
			left = append(left, i)
		}
	}
	p.pending = left
}

// askAll asks about what was not heard of for long, and begins again what was
// refused for now.
func (p *pool) askAll(ctx context.Context) {
	late := p.late
	p.late = nil
	for n, i := range late {
		if _, over := p.ended[i]; over {
			continue
		}
		if p.inCalls >= fanCalls || p.stopped() || p.pausing() {
			p.late = append(p.late, late[n:]...)
			break
		}
		p.beginItem(ctx, i)
	}
	if p.stopped() {
		p.late = nil
	}
	now := time.Now()
	for task, o := range p.open {
		if p.inCalls >= fanCalls {
			return
		}
		if !o.asking && now.After(o.ask) {
			o.asking = true
			p.call(task, o.index, false, func() (*end, error) { return p.get(ctx, p.rec.From, task) })
		}
	}
}

// outcome is how the node has ended.
func (p *pool) outcome() *Outcome {
	s := run.Status{State: run.Done, Items: p.items()}
	for _, i := range p.ended {
		if i.Generation == p.status.Generation {
			s.Tokens += i.Tokens
			s.Attempts += i.Attempts
		}
	}
	if p.failed != nil {
		s.State = run.Failed
		r := &fleet.Reason{Code: subjects.CodeAgentError, Message: fmt.Sprintf("item %d has %s", p.failed.Index, p.failed.State)}
		if p.failed.Reason != nil {
			r = &fleet.Reason{Code: p.failed.Reason.Code, Message: fmt.Sprintf("item %d: %s", p.failed.Index, p.failed.Reason.Message)}
		}
		s.Reason = run.Short(r)
	}
	return &Outcome{Node: p.node.Name(), TaskID: p.status.TaskID, Status: s}
}
