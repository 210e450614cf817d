package router

import (
	"cmp"
	"context"
	"slices"

	"parley/subjects"
	"parley/subjects/fleet"
)

// found is a task that a listing shows.
type found struct {
	id       subjects.TaskID
	seq      uint64 // stream sequence of its latest record
	firstSeq uint64
	created  int64
}

// find looks for the newest tasks that match, or the oldest: the live ones first,
// then those that ended lately. total counts all that match.
func (w *Worker) find(from subjects.AgentID, req fleet.TaskList, limit int) (out []found, total int, counts map[fleet.State]int) {
	all := w.operator(from)
	counts = make(map[fleet.State]int)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.core
	me := c.x.nameOf[string(from)]
	order := newestFirst
	if req.OldestFirst {
		order = oldestFirst
	}
	for s, e := range c.x.all() {
		if !all && e.from != me {
			continue
		}
		state := e.state.state()
		counts[state]++
		if req.State != "" && req.State != state {
			continue
		}
		if h := c.hot[s]; req.Waiting && (state != fleet.StateQueued && state != fleet.StateInputRequired || h != nil && held(h.ev)) {
			continue
		}
		if h := c.hot[s]; req.AgentID != "" && (h == nil || h.ev.AgentID != req.AgentID) {
			continue
		}
		total++
		out = append(out, found{c.x.id(s), e.lastSeq, e.firstSeq, e.created})
		if len(out) >= 4*limit { // keep the first, in bounded memory
			slices.SortFunc(out, order)
			out = out[:limit]
		}
	}
	slices.SortFunc(out, order)
	for _, t := range c.recent.newest() {
		if req.Waiting || !all && t.From != from || req.State != "" && req.State != t.State || req.AgentID != "" && req.AgentID != t.Agent {
			continue
		}
		total++
		out = append(out, found{id: t.ID, seq: t.Seq})
	}
	return out[:min(limit, len(out))], total, counts
}

func oldestFirst(a, b found) int { return cmp.Compare(a.created, b.created) }
func newestFirst(a, b found) int { return oldestFirst(b, a) }

// atSeq reads the record that a listing found.
func (w *Worker) atSeq(ctx context.Context, f found) (*view, error) {
	m, err := w.bus.Get(ctx, subjects.StreamTasks, f.seq)
	if err != nil {
		return nil, err
	}
	ev, err := fleet.DecodeEvent(m.Data)
	if err != nil {
		return nil, err
	}
	v := &view{ev: ev, lastSeq: f.seq, firstSeq: ev.Facts.DispatchSeq, dispatch: ev.Data.Dispatch}
	if ev.Seq == 1 {
		v.firstSeq = m.Seq
	}
	return v, nil
}
