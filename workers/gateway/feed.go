package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// maxWaiting is how many records wait in memory for one slow reader. Beyond
// that they are read from the store again when it is ready for them.
const maxWaiting = 64

// feed is what one replica hears of all tasks: a single tail of the records,
// handed on in memory to whoever watches a task, and the index of ListTasks.
type feed struct {
	skip     func(bus.Msg, error) // what cannot be read
	maxEnded int
	heardOf  func(id subjects.TaskID, seq uint64) // called for every record of a task; seq is 0 where it was not read

	mu    sync.Mutex
	heard map[subjects.TaskID][]*watch
	index map[subjects.TaskID]*listed
	ended []*listed // of the index, in the order of their ends
}

// maxEnded is how many ended tasks ListTasks knows: as many as routers keep,
// where nobody says otherwise.
const maxEnded = 1_000_000

func newFeed(skip func(bus.Msg, error)) *feed {
	return &feed{
		skip: skip, maxEnded: maxEnded, heardOf: func(subjects.TaskID, uint64) {},
		heard: make(map[subjects.TaskID][]*watch), index: make(map[subjects.TaskID]*listed),
	}
}

// listed is what ListTasks needs to know of a task.
type listed struct {
	id      subjects.TaskID
	from    subjects.AgentID
	agent   subjects.AgentID // pinned to it
	context string
	state   fleet.State
	updated int64 // ms, as clients see it
}

var contextMark = []byte(`"context_id":"`)

// record takes in one record of the tail.
func (f *feed) record(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject)
	if !ok {
		return
	}
	id := subjects.TaskID(vars[0])
	var seq uint64
	defer func() { f.heardOf(id, seq) }()
	f.mu.Lock()
	watched := len(f.heard[id]) > 0
	f.mu.Unlock()
	if !watched && !bytes.Contains(m.Data, contextMark) {
		return // not of A2A, and nobody looks
	}
	ev, err := fleet.DecodeEvent(m.Data)
	if err == nil && ev.TaskID != id {
		err = subjects.Misplaced("task")
	}
	if err != nil {
		f.skip(m, err)
		return
	}
	seq = ev.Seq
	f.mu.Lock()
	defer f.mu.Unlock()
	if ev.Facts.ContextID != "" {
		l := f.index[id]
		if l == nil {
			l = &listed{id: id, from: ev.Facts.From, agent: ev.Facts.Policy.Agent, context: ev.Facts.ContextID}
			f.index[id] = l
		}
		if ev.State.Terminal() && !l.state.Terminal() {
			f.ended = append(f.ended, l)
		}
		l.state, l.updated = ev.State, ev.Time.UnixMilli()
	}
	f.sweep(ev.Time)
	for _, w := range f.heard[id] {
		w.add(ev)
	}
}

// sweep drops tasks from the index whose records are gone: those that ended long
// ago, and the oldest where there are too many. It needs the lock.
func (f *feed) sweep(now time.Time) {
	for len(f.ended) > 0 {
		l := f.ended[0]
		if len(f.ended) <= f.maxEnded && now.Sub(time.UnixMilli(l.updated)) <= keepEnded {
			return
		}
		f.ended[0], f.ended = nil, f.ended[1:]
		if f.index[l.id] == l && l.state.Terminal() {
			delete(f.index, l.id)
		}
	}
}

// forget drops a task from the index: its records are gone.
func (f *feed) forget(id subjects.TaskID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.index, id)
}

// watch is one reader's queue of the records of one task.
type watch struct {
	task subjects.TaskID
	wake chan struct{} // capacity 1

	onProgress func(said) (early bool, err error) // called by follow; nil: nobody wants to know

	mu     sync.Mutex
	queue  []*fleet.Event
	missed bool  // some were dropped: read the store
	said   *said // the latest progress that was not told yet
}

// said is progress that an agent reports.
type said struct {
	agent   subjects.AgentID
	attempt int // 0: it does not say
	text    string
	at      time.Time
}

// progress takes in a message of the agents that is no record.
func (f *feed) progress(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.ProgressPattern, m.Subject)
	if !ok {
		return
	}
	id := subjects.TaskID(vars[1])
	f.mu.Lock()
	watched := len(f.heard[id]) > 0
	f.mu.Unlock()
	if !watched {
		return
	}
	p, err := fleet.DecodeProgress(m.Data)
	if err != nil || p.Text == "" || p.Artifact != nil || p.Question != nil {
		return
	}
	s := &said{subjects.AgentID(vars[0]), p.Attempt, p.Text, time.Now()}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.heard[id] {
		w.mu.Lock()
		w.said = s
		w.mu.Unlock()
		w.kick()
	}
}

// sendProgress has follow send progress, too: between records the latest as of p, once
// p has the record since. What a slow reader misses is not kept.
func (w *watch) sendProgress(p *picture, since uint64, send func(frame) error) {
	w.onProgress = func(s said) (early bool, err error) {
		f, early := p.progress(s, string(w.task)+"-"+rand.Text())
		if f == nil || p.seq < since {
			return early || p.seq < since, nil
		}
		return false, send(*f)
	}
}

// tellProgress tells the latest progress that was not told yet. What is early waits
// for the next record.
func (w *watch) tellProgress() error {
	w.mu.Lock()
	s := w.said
	w.said = nil
	w.mu.Unlock()
	if s == nil || w.onProgress == nil {
		return nil
	}
	early, err := w.onProgress(*s)
	if early {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.said = cmp.Or(w.said, s)
	}
	return err
}

func (w *watch) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// watch begins to hear of a task; end it with unwatch.
func (f *feed) watch(id subjects.TaskID) *watch {
	w := &watch{task: id, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard[id] = append(f.heard[id], w)
	return w
}

func (f *feed) unwatch(w *watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest := slices.DeleteFunc(f.heard[w.task], func(o *watch) bool { return o == w })
	if len(rest) == 0 {
		delete(f.heard, w.task)
		return
	}
	f.heard[w.task] = rest
}

func (w *watch) add(ev *fleet.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxWaiting {
		w.queue, w.missed = nil, true
	}
	if !w.missed {
		w.queue = append(w.queue, ev)
	}
	w.kick()
}

// take empties the queue; missed says that some are not in it.
func (w *watch) take() (queue []*fleet.Event, missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue, missed = w.queue, w.missed
	w.queue, w.missed = nil, false
	return queue, missed
}

// errStop ends follow without an error.
var errStop = errors.New("stop")

// follow calls fn with every record of the watch's task behind after, in order
// and each once, until fn returns an error or ctx ends. With history it begins
// with what is stored; without, after must be 0 and the task must be new.
func (w *Worker) follow(ctx context.Context, from subjects.AgentID, x *watch, after uint64, history bool, fn func(*fleet.Event) error) error {
	last := after
	tell := func(ev *fleet.Event) error {
		if ev.Seq <= last {
			return nil
		}
		last = ev.Seq
		return fn(ev)
	}
	for {
		if history {
			if err := w.events(ctx, from, x.task, last, tell); err != nil {
				return stopped(ctx, err)
			}
		}
		queue, missed := x.take()
		history = missed
		for _, ev := range queue {
			if ev.Seq > last+1 {
				history = true
				break
			}
			if err := tell(ev); err != nil {
				return stopped(ctx, err)
			}
		}
		if history {
			continue
		}
		if err := x.tellProgress(); err != nil {
			return stopped(ctx, err)
		}
		select {
		case <-x.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stopped is why following a task ended with err: nil if it was to.
func stopped(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errStop):
		return nil
	case ctx.Err() != nil: // it may be what broke the reading
		return context.Cause(ctx)
	}
	return err
}

// events calls fn with the stored records of a task behind after.
func (w *Worker) events(ctx context.Context, from subjects.AgentID, id subjects.TaskID, after uint64, fn func(*fleet.Event) error) error {
	for {
		page, err := ask[fleet.TaskEventsReply](ctx, w, from, "task", "events", fleet.TaskEvents{TaskID: id, AfterSeq: after, Limit: 1000})
		if err != nil {
			return err
		}
		for i := range page.Events {
			ev := &page.Events[i]
			after = ev.Seq
			if err := fn(ev); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
	}
}

// picture reads a task as it is now, as the caller sees it.
func (w *Worker) picture(ctx context.Context, c *call, id subjects.TaskID) (*picture, error) {
	p := &picture{quiet: true, reports: c.wantsReports()}
	err := w.events(ctx, c.from, id, 0, func(ev *fleet.Event) error { p.add(ev); return nil })
	if err == nil && p.task == nil {
		err = noTask(id)
	}
	if err != nil {
		return nil, err
	}
	p.quiet = false
	p.report()
	return p, nil
}

func noTask(id subjects.TaskID) *fault {
	return faultf(kindTaskNotFound, "there is no task "+clean(string(id)))
}

// ask calls the fleet's API as from. While no worker answers for a moment, as
// when one is just being replaced, it is asked again.
func ask[T any](ctx context.Context, w *Worker, from subjects.AgentID, noun, verb string, req any) (T, error) {
	data, ok := req.([]byte)
	if !ok {
		data = fleet.MustEncode(req)
	}
	return askWith[T](ctx, w, subjects.API(from, noun, verb), data, nil)
}

// askWith is ask with headers.
func askWith[T any](ctx context.Context, w *Worker, subject string, data []byte, h bus.Header) (T, error) {
	var none T
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, bus.ErrTimeout)
	defer cancel()
	m, err := w.cfg.Bus.RequestUntil(ctx, subject, data, h, 0, nil)
	if err != nil {
		return none, err
	}
	return fleet.DecodeReply[T](m.Data)
}
