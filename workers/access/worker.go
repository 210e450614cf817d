package access

import (
	"context"
	"errors"
	"strings"

	"parley/subjects"
	"parley/subjects/handshake"
	"parley/workers"
)

// Actions of a Refusal.
const (
	Connect   = "connect"
	Publish   = "publish"
	Subscribe = "subscribe"
	Request   = "request"
)

// Unknown is who did not prove a name.
const Unknown subjects.AgentID = "unknown"

// Refusal is something that somebody was not let do.
type Refusal struct {
	Key     string // what the user proved, or tried to prove, to hold
	Action  string // Connect, Publish, Subscribe or Request
	Subject string // "" for Connect
	Address string
	Code    subjects.Code // of a Request; the others say it themselves
}

// Config is what the worker needs. All of it is required.
type Config struct {
	Notes *workers.Notes
	// Whose names, for what a broker refused, who has a key, Unknown where nobody has. False: it is
	// somebody's of another tenant, whose affair this is.
	Whose func(key string) (subjects.AgentID, bool)
}

const (
	queued  = 1024
	maxText = 200 // of what a client chose, in bytes
)

// Worker tells the audit of refusals. New is required.
type Worker struct {
	cfg   Config
	queue chan Refusal
}

// New wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	if cfg.Notes == nil || cfg.Whose == nil {
		return nil, errors.New("access: Config.Notes and Config.Whose are required")
	}
	return &Worker{cfg: cfg, queue: make(chan Refusal, queued)}, nil
}

// Refused takes a refusal; it never waits.
func (w *Worker) Refused(r Refusal) {
	select {
	case w.queue <- r:
	default:
		w.cfg.Notes.Unsaid()
	}
}

// told are the codes of requests that are told. Others are everyday's: a task
// that is not there, an agent that is busy.
var told = map[subjects.Code]bool{
	subjects.CodeForbidden: true, subjects.CodeAuthFailed: true, subjects.CodeHostNotAllowed: true,
	subjects.CodePayloadTooLarge: true, subjects.CodeInvalidMessage: true,
}

// Asked takes the error that a request to the API was answered with; it never
// waits.
func (w *Worker) Asked(subject string, err *subjects.Error) {
	tokens := strings.Split(subject, ".") // fleet.api.<from>.<noun>.<verb>
	if !told[err.Code] || len(tokens) != 5 {
		return
	}
	if tokens[3] == "session" && err.Code == subjects.CodeAuthFailed {
		return // the sessions worker tells of tokens, and of which session
	}
	w.Refused(Refusal{Action: Request, Subject: subject, Code: err.Code})
}

// Run tells refusals until ctx ends, and those that wait then.
func (w *Worker) Run(ctx context.Context) error {
	for {
		select {
		case r := <-w.queue:
			w.tell(ctx, r)
		case <-ctx.Done():
			for len(w.queue) > 0 {
				w.tell(ctx, <-w.queue)
			}
			return nil
		}
	}
}

// line says who did what; false: it is not for this fleet's audit.
func (w *Worker) line(r Refusal) (who subjects.AgentID, d workers.Refusal, ours bool) {
	d = workers.Refusal{Code: subjects.CodeForbidden, Action: r.Action, Subject: clip(r.Subject), Address: clip(r.Address)}
	if r.Action == Request { // the subject proves who it was
		d.Code = r.Code
		id, err := subjects.ParseAgentID(strings.Split(r.Subject, ".")[2])
		return id, d, err == nil
	}
	who, ours = w.cfg.Whose(r.Key)
	if r.Action == Connect {
		d.Code = subjects.CodeAuthFailed
		if who != Unknown {
			d.Claimed = who
		}
		who = Unknown
	}
	return who, d, ours
}

func (w *Worker) tell(ctx context.Context, r Refusal) {
	if who, d, ours := w.line(r); ours {
		w.cfg.Notes.Refuse(ctx, "", who, handshake.EventRefused, d)
	}
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
