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
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

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
	making  sync.Mutex // one brief at a time: they are large

	ended   map[int]run.Item // for good, or in this generation
	next    int              // the first that was not begun
	sought  int              // the first that is yet to be sought, see seek
	open    map[subjects.TaskID]*open
	late    []int // to be begun again: they were refused for now
	failed  *run.Item
	outputs int        // bytes of what those that are done have come to, results that are stored by themselves excepted
	lately  int        // ended since the last tick
	pending []run.Item // ended, not stored yet
	bytes   int
	chunks  int
}

// open is an item whose task is under way.
type open struct {
	index  int
	kind   callKind  // of questions about it
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
	kind  callKind
}

// callKind says what a call is for.
type callKind int

const (
	toBegin callKind = iota // it is a dispatch
	toAsk                   // how far is what was begun
	toSeek                  // was it begun
)

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

// take notes that an item has ended. Its result is in memory for as long as it
// is not stored.
func (p *pool) take(i run.Item) {
	if _, known := p.ended[i.Index]; known {
		return
	}
	if i.Result != nil && i.State == run.Done {
		p.outputs += len(i.Result.Output)
	}
	i.Result = nil
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
		p.seek(ctx)
		over := len(p.open) == 0 && p.inCalls == 0 && (p.next == len(p.list) && len(p.late) == 0 || p.stopped() && p.sought == len(p.list))
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

// seek looks, once nothing more is begun, for what others have begun that may
// be under way still: it is awaited, too.
func (p *pool) seek(ctx context.Context) {
	if !p.stopped() {
		return
	}
	if p.alone {
		p.sought = len(p.list)
	}
	for ; p.sought < len(p.list) && p.inCalls < fanCalls; p.sought++ {
		i, task := p.sought, ItemID(p.rec.RunID, p.node.Name(), p.status.Generation, p.sought)
		if _, over := p.ended[i]; over || p.open[task] != nil {
			continue
		}
		p.open[task] = &open{index: i, kind: toSeek, wait: pollEvery, asking: true}
		p.listen(task, p.box)
		p.call(task, i, toSeek, func() (*end, error) { return p.get(ctx, p.rec.From, task) })
	}
}

func (p *pool) beginItem(ctx context.Context, i int) {
	task := ItemID(p.rec.RunID, p.node.Name(), p.status.Generation, i)
	p.open[task] = &open{index: i, kind: toAsk, wait: pollEvery, asking: true}
	p.listen(task, p.box)
	p.call(task, i, toBegin, func() (*end, error) {
		p.making.Lock()
		if err := ctx.Err(); err != nil { // nothing more is begun
			p.making.Unlock()
			return nil, err
		}
		d, err := p.told.item(p.base, task, i, p.list[i])
		p.making.Unlock()
		if err != nil {
			return refused(err), nil
		}
		// What is on its way arrives: whoever ends this pool is to know of it.
		return p.dispatch(context.WithoutCancel(ctx), p.rec.From, d)
	})
}

func (p *pool) call(task subjects.TaskID, i int, kind callKind, f func() (*end, error)) {
	p.inCalls++
	p.calls.Go(func() {
		e, err := f()
		p.done <- called{i, task, e, err, kind} // done has room for all calls
	})
}

// answered takes in what a call has come to.
func (p *pool) answered(c called) {
	p.inCalls--
	o := p.open[c.task]
	switch {
	case o == nil: // it was heard meanwhile
	case c.kind == toSeek && c.e != nil && c.e.unknown && !p.doubts.of(c.task): // it was never begun
		delete(p.open, c.task)
		p.listen(c.task, nil)
	case c.e != nil && (c.kind != toSeek || !c.e.unknown):
		p.end(c.index, c.task, c.e)
	case c.err != nil && c.kind == toBegin: // not now
		delete(p.open, c.task)
		p.listen(c.task, nil)
		p.late = append(p.late, c.index)
		if subjects.CodeOf(c.err) != subjects.CodeRateLimited { // the answer may be lost alone
			p.alone, p.sought = false, min(p.sought, c.index)
		}
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
	p.lately++
	p.bytes += size
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
		crash.Point("after_run_chunk")
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
	p.alone = p.alone && len(stored) == 0
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
// refused for now. While many are heard of, those that are not mostly wait for
// their turn, so few are asked about.
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
	now, most := time.Now(), fanCalls
	if p.lately > 0 {
		most = min(16+p.lately/32, fanCalls)
	}
	p.lately = 0
	for task, o := range p.open {
		if most == 0 || p.inCalls >= fanCalls {
			return
		}
		if !o.asking && now.After(o.ask) {
			o.asking = true
			most--
			p.call(task, o.index, o.kind, func() (*end, error) { return p.get(ctx, p.rec.From, task) })
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
