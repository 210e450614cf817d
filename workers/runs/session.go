package runs

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/run"
)

// A run works in a session of whoever started it: its nodes are dispatched with
// it, so each gets the context with its offer, with the results of what ended
// before, and leaves its own there. Neither waits for the session for long:
// what a node needs of those before it is in its brief, too.
const (
	sessionAgain = 30 * time.Second // where it could not be opened
	sessionRenew = 6 * time.Hour    // it ends a day after its last renewal
)

// session is what a driver knows of its run's session.
type session struct {
	tried   time.Time
	renewed time.Time

	opened, instead subjects.SessionID // the run's next one, and the one of its record until then
}

// openSession gives the run a session where it has none, and has it kept.
func (d *driver) openSession(ctx context.Context, rec *run.Record) subjects.SessionID {
	now := time.Now()
	s := &d.session
	if s.opened != "" && rec.SessionID == s.instead {
		return s.opened // the record is yet to be stored
	}
	s.opened = ""
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
	s.renewed, s.tried = now, time.Time{}
	s.opened, s.instead = o.Session.SessionID, rec.SessionID
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
// session, which would hold thousands of them. Their outputs have that many bytes.
func (d *driver) tellSession(ctx context.Context, rec *run.Record, node *run.Node, o *Outcome, bytes int) {
	if rec.SessionID == "" {
		return
	}
	e := handshake.Entry{Status: "completed", TaskID: o.TaskID, Findings: fleet.MustEncode(map[string]any{"node": node.Name(), "items": o.Status.Items})}
	if o.Status.State != run.Done {
		e.Status = "failed"
	}
	if bytes <= handshake.MaxInline { // all are read for it
		as := *rec
		as.Nodes = map[run.NodeID]run.Status{node.Name(): o.Status}
		if output, err := d.outputOf(ctx, &as, node.Name()); err == nil && len(output) <= handshake.MaxInline {
			e.Output = output
		}
	}
	d.append(ctx, rec, &handshake.Append{SessionID: rec.SessionID, Entry: e, Key: string(o.TaskID), Redact: true})
}
