package router

import (
	"cmp"
	"context"
	"slices"
	"strings"

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
// then those that ended lately. total counts all that match. Where the request
// asks for what only the records tell, see matches.
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
		if req.From != "" && c.x.from(e) != req.From || req.Since != nil && e.created < req.Since.UnixNano() || !c.x.hasPart(s, req.IDPart) {
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
		if req.From != "" && req.From != t.From || req.Since != nil && t.Ended.Before(*req.Since) || !hasPart(string(t.ID), req.IDPart) {
			continue
		}
		total++
		out = append(out, found{id: t.ID, seq: t.Seq})
	}
	return out[:min(limit, len(out))], total, counts
}

// hasPart reports whether id begins or ends with part.
func hasPart(id, part string) bool { return strings.HasPrefix(id, part) || strings.HasSuffix(id, part) }

// needsRecords reports whether only the records tell what matches.
func needsRecords(req *fleet.TaskList) bool {
	return req.RunID != "" || req.SessionID != "" || len(req.Labels) > 0 || req.Text != "" || req.Since != nil
}

// matches reports whether a task is one that was asked for.
func matches(req *fleet.TaskList, t *fleet.TaskView) bool {
	for name, value := range req.Labels {
		if v, has := t.Labels[name]; !has || v != value {
			return false
		}
	}
	if req.RunID != "" && t.RunID != req.RunID || req.SessionID != "" && t.SessionID != req.SessionID ||
		req.Since != nil && t.Created.Before(*req.Since) {
		return false
	}
	if req.Text == "" {
		return true
	}
	why := ""
	if t.Reason != nil {
		why = t.Reason.Message
	}
	return slices.ContainsFunc([]string{string(t.TaskID), t.Brief, t.Type, t.NodeID, why}, func(s string) bool {
		return strings.Contains(strings.ToLower(s), strings.ToLower(req.Text))
	})
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
