package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Bounds of the progress that is not stored yet. Each task costs one write in
// flushEvery, and only so many writes are under way at a time: where the store is
// slower than the agents, the oldest lines are left out.
const (
	flushEvery  = 2 * time.Second
	flushTry    = 10 * time.Second
	flushAtOnce = 4
	maxPending  = 20_000 // lines, of all tasks
	maxLine     = 500    // bytes of a text
)

// progress collects what agents tell while they work, and stores it in chunks.
type progress struct {
	bus *bus.Bus
	log *slog.Logger

	mu      sync.Mutex // guards all below
	pending map[subjects.TaskID][]fleet.ProgressLine
	lines   int
	dropped int
}

func newProgress(b *bus.Bus, log *slog.Logger) *progress {
	return &progress{bus: b, log: log, pending: map[subjects.TaskID][]fleet.ProgressLine{}}
}

// onProgress takes what an agent tells of a task.
func (p *progress) onProgress(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.ProgressPattern, m.Subject)
	if !ok {
		return
	}
	told, err := fleet.DecodeProgress(m.Data)
	if err != nil || told.Text == "" && told.Percent == nil {
		return // artifacts and questions are records
	}
	p.add(subjects.TaskID(vars[1]), fleet.ProgressLine{
		Time: p.bus.Now(), AgentID: subjects.AgentID(vars[0]), Attempt: told.Attempt,
		Text: clip(told.Text), Percent: told.Percent, TokensSpent: told.TokensSpent,
	})
}

func clip(s string) string {
	if len(s) <= maxLine {
		return s
	}
	return strings.ToValidUTF8(s[:maxLine], "") + "…"
}

// add keeps a line until it is stored.
func (p *progress) add(task subjects.TaskID, line fleet.ProgressLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := p.pending[task]
	switch {
	case len(lines) == fleet.MaxProgressLines: // no more of a task is promised
		lines = slices.Delete(lines, 0, 1)
		p.lines--
	case p.lines >= maxPending:
		p.dropped++
		return
	}
	p.pending[task] = append(lines, line)
	p.lines++
}

// run stores what is pending until ctx ends, and once more then.
func (p *progress) run(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushEvery)
			defer cancel()
			p.flush(last)
			return
		}
	}
}

// flush stores what is pending, a chunk for each task.
func (p *progress) flush(ctx context.Context) {
	p.mu.Lock()
	pending, dropped := p.pending, p.dropped
	p.pending, p.lines, p.dropped = map[subjects.TaskID][]fleet.ProgressLine{}, 0, 0
	p.mu.Unlock()
	if dropped > 0 {
		p.log.Warn("progress left out", slog.Int("lines", dropped))
	}
	slots := make(chan struct{}, flushAtOnce)
	var all sync.WaitGroup
	for task, lines := range pending {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := p.store(ctx, task, lines); err != nil {
				p.log.Warn("progress not stored", slog.String("task_id", string(task)), slog.Int("lines", len(lines)), slog.Any("error", err))
			}
		})
	}
	all.Wait()
}

func (p *progress) store(ctx context.Context, task subjects.TaskID, lines []fleet.ProgressLine) error {
	ctx, cancel := context.WithTimeout(ctx, flushTry)
	defer cancel()
	_, err := p.bus.Store(ctx, subjects.TaskLog(task), fleet.MustEncode(&fleet.ProgressChunk{Lines: lines}), rand.Text(), nil)
	crash.Point("after_progress")
	return err
}

// logs answers task.logs, to whom a router shows the task. Lines of an agent that
// never held the task are left out.
func (w *Worker) logs(ctx context.Context, m bus.Msg) ([]byte, error) {
	vars, ok := subjects.Tokens(subjects.APIPattern("task", "logs"), m.Subject)
	if !ok {
		return nil, subjects.Errorf(subjects.CodeInvalidID, "the subject %q names no caller", m.Subject)
	}
	q, err := fleet.DecodeRequest[fleet.TaskLogs](m.Data)
	if err != nil {
		return nil, err
	}
	got, err := w.cfg.Bus.Request(ctx, subjects.API(subjects.AgentID(vars[0]), "task", "get"), fleet.MustEncode(&fleet.TaskRef{TaskID: q.TaskID}), nil)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "no router answers: %w", err).RetryAfter(time.Second)
	}
	task, err := fleet.DecodeReply[fleet.TaskView](got.Data)
	if err != nil {
		return nil, err
	}
	chunks, _, err := w.cfg.Bus.History(ctx, subjects.StreamProgress, subjects.TaskLog(q.TaskID), q.AfterSeq+1, fleet.MaxProgressLines)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "the progress cannot be read: %w", err).RetryAfter(time.Second)
	}
	reply := &fleet.TaskLogsReply{TaskID: q.TaskID, State: task.State, Lines: []fleet.ProgressLine{}, NextSeq: q.AfterSeq}
	for _, chunk := range chunks {
		reply.NextSeq = chunk.Seq
		c, err := fleet.DecodeStored[fleet.ProgressChunk](chunk.Data)
		if err != nil {
			w.log.Warn("progress not read", slog.String("task_id", string(q.TaskID)), slog.Uint64("seq", chunk.Seq), slog.Any("error", err))
			continue
		}
		for _, line := range c.Lines {
			if held(&task, line.AgentID) {
				reply.Lines = append(reply.Lines, line)
			}
		}
	}
	slices.SortStableFunc(reply.Lines, func(a, b fleet.ProgressLine) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Attempt, b.Attempt))
	})
	reply.Lines = reply.Lines[max(len(reply.Lines)-fleet.MaxProgressLines, 0):]
	return fleet.Encode(reply)
}

// held reports whether an agent has had a task in hand.
func held(t *fleet.TaskView, agent subjects.AgentID) bool {
	return t.AgentID == agent || slices.ContainsFunc(t.Attempts, func(a fleet.Attempt) bool { return a.AgentID == agent }) ||
		t.Result != nil && t.Result.AgentID == agent
}
