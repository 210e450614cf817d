package runs

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/run"
)

// A run works in a session of whoever started it: its nodes are dispatched with
// it, so each gets the context with its offer, and leaves its result there. A
// run never waits for its session for long: what a node needs of those before
// it is in its brief, too.
const (
	sessionAgain = 30 * time.Second      // where it could not be opened
	sessionRenew = 6 * time.Hour         // it ends a day after its last renewal
	contextSoon  = 50 * time.Millisecond // by when it is heard, if at all
	contextWait  = 2 * time.Second       // for the results of dependencies to be in it
	contextPage  = 100
)

// session is what a driver knows of its run's session.
type session struct {
	tried   time.Time
	renewed time.Time
	version uint64                   // of the context, up to which it was read
	seen    map[subjects.TaskID]bool // whose results are in it, or are not waited for any more
	news    *news
	of      subjects.SessionID // that news is of
}

// news is what is heard of a session.
type news struct {
	kick chan struct{} // capacity 1

	mu    sync.Mutex
	tasks []subjects.TaskID // whose results have come in; guarded by mu
}

// onNews hears that a context has a new version.
func (w *Worker) onNews(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.ContextNewsPattern, m.Subject)
	task := subjects.TaskID(m.Header.Get(subjects.HeaderTask))
	if !ok || task == "" {
		return
	}
	w.mu.Lock()
	n := w.news[subjects.SessionID(vars[0])]
	w.mu.Unlock()
	if n == nil {
		return
	}
	n.mu.Lock()
	n.tasks = append(n.tasks, task)
	n.mu.Unlock()
	kick(n.kick)
}

// follow hears of a session from now on; of none, of no more.
func (d *driver) follow(id subjects.SessionID) {
	if id == d.session.of {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.news, d.session.of)
	d.session.of, d.session.news = id, nil
	if id != "" {
		d.session.news = &news{kick: make(chan struct{}, 1)}
		d.news[id] = d.session.news
	}
}

// takeNews notes what was heard.
func (s *session) takeNews() {
	s.news.mu.Lock()
	defer s.news.mu.Unlock()
	for _, task := range s.news.tasks {
		s.seen[task] = true
	}
	s.news.tasks = nil
}

// openSession gives the run a session where it has none, and has it kept.
func (d *driver) openSession(ctx context.Context, rec *run.Record) subjects.SessionID {
	now := time.Now()
	s := &d.session
	if now.Sub(s.tried) < sessionAgain {
		return rec.SessionID
	}
	if rec.SessionID != "" {
		if now.Sub(s.renewed) < sessionRenew {
			return rec.SessionID
		}
		s.tried = now
		_, err := call[handshake.Opened](ctx, d.Worker, rec.From, "session", "update", handshake.Update{SessionID: rec.SessionID})
		if err == nil {
			s.renewed = now
		}
		if subjects.CodeOf(err) != subjects.CodeNotFound {
			return rec.SessionID
		}
	}
	s.tried = now
	o, err := call[handshake.Opened](ctx, d.Worker, rec.From, "session", "create", handshake.Create{TaskMetadata: handshake.TaskMetadata{
		Type: rec.Definition.TaskType, Priority: string(rec.Definition.Priority), Timeout: rec.Definition.Timeout,
	}})
	if err != nil {
		d.log.Warn("the run goes on without a session", slog.Any("error", err))
		return ""
	}
	s.renewed, s.version, s.tried = now, 0, time.Time{}
	if len(rec.Definition.SharedData) > 0 {
		a := handshake.Append{SessionID: o.Session.SessionID, Entry: handshake.Entry{Status: "started"}, Key: "run", Redact: true}
		if err := json.Unmarshal(rec.Definition.SharedData, &a.SharedData); err == nil {
			d.append(ctx, rec, &a)
		}
	}
	return o.Session.SessionID
}

// append adds to the context of the run's session.
func (d *driver) append(ctx context.Context, rec *run.Record, a *handshake.Append) {
	if _, err := call[handshake.Appended](ctx, d.Worker, rec.From, "session", "append", a); err != nil {
		d.log.Warn("the session lacks something of the run", slog.String("session_id", string(a.SessionID)), slog.Any("error", err))
	}
}

// tellSession adds what a fan-out has come to; its items are tasks without the
// session, which would hold thousands of them.
func (d *driver) tellSession(ctx context.Context, rec *run.Record, node *run.Node, o *Outcome) {
	if rec.SessionID == "" {
		return
	}
	e := handshake.Entry{Status: "completed", TaskID: o.TaskID, Findings: fleet.MustEncode(map[string]any{"node": node.Name(), "items": o.Status.Items})}
	if o.Status.State != run.Done {
		e.Status = "failed"
	}
	as := *rec
	as.Nodes = map[run.NodeID]run.Status{node.Name(): o.Status}
	if output, err := d.outputOf(ctx, &as, node.Name()); err == nil && len(output) <= handshake.MaxInline {
		e.Output = output
	}
	d.append(ctx, rec, &handshake.Append{SessionID: rec.SessionID, Entry: e, Key: string(o.TaskID), Redact: true})
}

// awaitContext waits until the results of what the nodes that are dispatched
// now depend on are in the session.
func (d *driver) awaitContext(ctx context.Context, rec *run.Record) {
	d.follow(rec.SessionID)
	if rec.SessionID == "" {
		return
	}
	d.session.takeNews()
	lacks := d.lacks(rec)
	if len(lacks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, contextWait)
	defer cancel()
	// Mostly it is heard at once; who comes later, or has missed it, reads.
	soon := time.NewTimer(contextSoon)
	defer soon.Stop()
	for heard := true; heard && len(lacks) > 0; lacks = d.session.without(lacks) {
		select {
		case <-d.session.news.kick:
			d.session.takeNews()
		case <-soon.C:
			heard = false
		case <-ctx.Done():
			return
		}
	}
	until := time.Now().Add(contextWait)
	for len(lacks) > 0 {
		page, err := call[handshake.ReadReply](ctx, d.Worker, rec.From, "session", "context", handshake.Read{
			SessionID: rec.SessionID, AfterVersion: d.session.version, Limit: contextPage, WaitSeconds: max(time.Until(until).Seconds(), 0),
		})
		if err != nil || len(page.Records) == 0 {
			d.log.Debug("dispatched before the session has all results", slog.Any("error", err))
			break
		}
		for _, r := range page.Records {
			d.session.version = r.Version
			d.session.seen[r.Entry.TaskID] = true
		}
		lacks = d.session.without(lacks)
	}
	for _, task := range lacks {
		d.session.seen[task] = true
	}
}

// lacks are the tasks whose results are to be in the session by now.
func (d *driver) lacks(rec *run.Record) (list []subjects.TaskID) {
	byName := make(map[run.NodeID]*run.Node, len(rec.Definition.Agents))
	for i := range rec.Definition.Agents {
		byName[rec.Definition.Agents[i].Name()] = &rec.Definition.Agents[i]
	}
	for name, node := range byName {
		if n := rec.Nodes[name]; n.State != run.Dispatched || node.FanOut != nil || d.told[n.TaskID] {
			continue
		}
		for _, dep := range node.Dependencies {
			if n := rec.Nodes[dep]; n.TaskID != "" && byName[dep].FanOut == nil {
				list = append(list, n.TaskID)
			}
		}
	}
	return d.session.without(list)
}

// without leaves out what is in the session.
func (s *session) without(list []subjects.TaskID) []subjects.TaskID {
	return slices.DeleteFunc(list, func(task subjects.TaskID) bool { return s.seen[task] })
}
