package mcp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// How long a call waits, and how long each of the questions that it consists
// of: a task that asks something is seen at the end of one. A call takes no
// longer than to wait and to look once more: clients give up after a minute.
const (
	maxWait     = 50 * time.Second
	maxCall     = maxWait + patience
	defaultWait = 30 * time.Second
	slice       = 2 * time.Second
	pause       = time.Second // before a fleet that is away is asked again
	waitsAtOnce = maxMany
)

type waitIn struct {
	TaskIDs    []subjects.TaskID `json:"task_ids,omitempty" jsonschema:"tasks to wait for"`
	MessageIDs []mesh.MessageID  `json:"message_ids,omitempty" jsonschema:"messages sent by fleet_message whose answers to wait for"`
	Need       string            `json:"need,omitempty" jsonschema:"all (default): wait for every one; any: for the first"`
	Timeout    float64           `json:"timeout_seconds,omitempty" jsonschema:"how long to wait at most; 0 looks without waiting"`
}

type waitOut struct {
	Done      bool              `json:"done"`
	Ended     int               `json:"ended"`
	Waiting   int               `json:"waiting"`
	Attention []subjects.TaskID `json:"attention,omitempty"` // their agents have a question
	Tasks     []*task           `json:"tasks,omitempty"`     // in the order asked for
	Messages  []*sentMessage    `json:"messages,omitempty"`
	Next      string            `json:"next"`
}

func wait(ctx context.Context, c *caller, in *waitIn, tell progress) (any, error) {
	if len(in.TaskIDs)+len(in.MessageIDs) == 0 {
		return nil, bad("task_ids", "expected at least one task id or message id", "fleet_dispatch gives task ids, fleet_status lists them")
	}
	for _, id := range in.TaskIDs {
		if _, err := subjects.ParseTaskID(string(id)); err != nil {
			return nil, told(err, "task")
		}
	}
	w := &waiting{
		c: c, any: in.Need == "any", until: time.Now().Add(min(time.Duration(in.Timeout*float64(time.Second)), maxWait)),
		tasks: make([]*task, len(in.TaskIDs)), tell: func(ctx context.Context, ended int) { tell(ctx, ended, len(in.TaskIDs)+len(in.MessageIDs), "ended") },
	}
	if err := w.run(ctx, in); err != nil {
		return nil, err
	}
	return w.out(), nil
}

// waiting is one call of fleet_wait.
type waiting struct {
	c     *caller
	any   bool
	until time.Time
	tell  func(ctx context.Context, ended int)
	away  string // answers': why nobody said how messages stand

	mu       sync.Mutex // guards what follows
	tasks    []*task
	messages []*sentMessage
	ended    int
}

// run waits for all there is to wait for. The first that is enough ends the
// others.
func (w *waiting) run(ctx context.Context, in *waitIn) error {
	enough, stop := w.begin(ctx)
	defer stop()
	var all sync.WaitGroup
	var failed error
	if len(in.MessageIDs) > 0 {
		all.Go(func() {
			err := w.answers(ctx, enough, in.MessageIDs, stop)
			if err != nil {
				stop()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			failed = err
			if len(w.messages) == 0 { // nobody has said how they stand
				for _, id := range in.MessageIDs {
					w.messages = append(w.messages, &sentMessage{MessageID: id, Reason: w.away})
				}
			}
		})
	}
	each(len(in.TaskIDs), waitsAtOnce, func(i int) { w.task(ctx, enough, i, in.TaskIDs[i], stop) })
	all.Wait()
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return failed
}

// errDraining ends the waiting of a process that stops.
var errDraining = errors.New("the process is stopping")

// begin is a context that ends when there is enough, or the process drains: what
// knows of the fleet may be gone then. stop ends it.
func (w *waiting) begin(ctx context.Context) (enough context.Context, stop func()) {
	enough, end := context.WithCancelCause(ctx)
	go func() { // ends with enough
		select {
		case <-w.c.w.cfg.Stopping:
			end(errDraining)
		case <-enough.Done():
		}
	}()
	return enough, func() { end(nil) }
}

// draining reports whether the process stops.
func draining(enough context.Context) bool { return errors.Is(context.Cause(enough), errDraining) }

// task looks at one task until it needs no more looking at.
func (w *waiting) task(ctx, enough context.Context, i int, id subjects.TaskID, stop func()) {
	for {
		stay := max(min(time.Until(w.until), slice), 10*time.Millisecond)
		v, err := w.look(ctx, enough, id, stay, w.tasks[i] != nil)
		t := &task{TaskID: id}
		switch {
		case errors.Is(err, context.Canceled):
			return // nobody listens
		case unavailable(err) && w.tasks[i] != nil && !w.tasks[i].away:
			t = w.tasks[i] // what was seen last counts
		case err != nil:
			t.Error, t.away = err.Error(), unavailable(err)
		default:
			t = shown(&v)
		}
		w.mu.Lock()
		w.tasks[i] = t
		if t.over() {
			w.ended++
			w.tell(ctx, w.ended)
		}
		w.mu.Unlock()
		asks := t.WaitsFor == fleet.AwaitAgentQuestion
		if asks || w.any && t.Ended {
			stop()
		}
		if asks || t.over() || enough.Err() != nil || !time.Now().Before(w.until) {
			return
		}
		if err != nil { // it may have been told at once
			w.rest(enough)
		}
	}
}

// rest is before a fleet that is away is asked again.
func (w *waiting) rest(enough context.Context) {
	select {
	case <-time.After(min(pause, time.Until(w.until))):
	case <-enough.Done():
	}
}

// look asks for a task as it is when it has ended, or after stay; at once where
// there is enough already. Of one that was seen before nobody asks a fleet that may
// be gone.
func (w *waiting) look(ctx, enough context.Context, id subjects.TaskID, stay time.Duration, seen bool) (fleet.TaskView, error) {
	if enough.Err() == nil {
		v, err := ask[fleet.TaskView](enough, w.c, "task", "wait", stay, fleet.TaskWait{TaskID: id, TimeoutSeconds: stay.Seconds()})
		if err == nil || enough.Err() == nil {
			return v, err
		}
	}
	if draining(enough) {
		if seen {
			return fleet.TaskView{}, errGone
		}
		last, cancel := context.WithTimeout(ctx, replacement)
		defer cancel()
		ctx = last
	}
	return ask[fleet.TaskView](ctx, w.c, "task", "get", 0, fleet.TaskRef{TaskID: id})
}

// errGone stands for the answer of a fleet that may be gone.
var errGone = &refusal{code: subjects.CodeUnavailable, message: "the fleet may be gone"}

// answers waits for the answers to messages. A mesh that is away is asked again.
func (w *waiting) answers(ctx, enough context.Context, ids []mesh.MessageID, stop func()) error {
	need := 0
	if w.any {
		need = 1
	}
	for {
		stay := max(min(time.Until(w.until), slice), 10*time.Millisecond)
		if draining(enough) {
			return nil
		}
		listen := enough
		if enough.Err() != nil {
			listen, stay = ctx, 10*time.Millisecond
		}
		a, err := ask[mesh.Answers](listen, w.c, "mesh", "wait", stay, mesh.Wait{MessageIDs: ids, Need: need, TimeoutSeconds: stay.Seconds()})
		switch {
		case draining(enough) && err != nil:
			return nil
		case err == nil:
		case ctx.Err() == nil && listen.Err() != nil: // there is enough: how they stand now is told
			continue
		case !unavailable(err):
			return err
		case enough.Err() != nil || !time.Now().Before(w.until):
			w.away = err.Error()
			return nil
		default:
			w.rest(enough)
			continue
		}
		w.mu.Lock()
		w.messages = w.messages[:0]
		got := 0
		for i := range a.Answers {
			m := answered(&a.Answers[i])
			w.messages = append(w.messages, m)
			if m.Ended {
				got++
			}
		}
		w.mu.Unlock()
		if w.any && got > 0 {
			stop()
		}
		if a.Done || enough.Err() != nil || !time.Now().Before(w.until) {
			return nil
		}
	}
}

func (w *waiting) out() *waitOut {
	o := &waitOut{Tasks: w.tasks, Messages: w.messages}
	count := func(ended bool) {
		if ended {
			o.Ended++
		} else {
			o.Waiting++
		}
	}
	for _, t := range w.tasks {
		count(t.over())
		if t.WaitsFor == fleet.AwaitAgentQuestion {
			o.Attention = append(o.Attention, t.TaskID)
		}
	}
	for _, m := range w.messages {
		count(m.Ended)
	}
	first := func(t *task) bool { return t.Ended }
	o.Done = o.Waiting == 0 || w.any && (slices.ContainsFunc(w.tasks, first) || slices.ContainsFunc(w.messages, func(m *sentMessage) bool { return m.Ended }))
	switch {
	case len(o.Attention) > 0:
		o.Next = "an agent has a question: answer it with fleet_message (task_id, text), then call fleet_wait again"
	case !o.Done:
		o.Next = "not ended yet, which is no error: call fleet_wait again with the same ids"
	case slices.ContainsFunc(w.tasks, func(t *task) bool { return t.Chars > preview }):
		o.Next = "fleet_result gives the whole of a long output"
	default:
		o.Next = "all there is to wait for has ended"
	}
	return o
}
