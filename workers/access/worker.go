package access

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
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

// Config is what the worker needs. All but Log is required.
type Config struct {
	// Tell stores a line of the audit at its subject.
	Tell func(ctx context.Context, subject string, line []byte, id string) error
	// Whose names, for what a broker refused, who has a key, Unknown where nobody has. False: it is
	// somebody's of another tenant, whose affair this is.
	Whose func(key string) (subjects.AgentID, bool)
	Log   *slog.Logger // nil: discarded
}

const (
	perSecond = 20
	atOnce    = 100
	queued    = 1024
	tellTry   = 5 * time.Second
	maxText   = 200 // of what a client chose, in bytes
)

// Worker tells the audit of refusals. New is required.
type Worker struct {
	cfg    Config
	log    *slog.Logger
	queue  chan Refusal
	limit  *rate.Limiter
	unsaid atomic.Int64
}

// New wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	if cfg.Tell == nil || cfg.Whose == nil {
		return nil, errors.New("access: Config.Tell and Config.Whose are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Worker{
		cfg: cfg, log: cfg.Log.With(slog.String("component", "access")),
		queue: make(chan Refusal, queued), limit: rate.NewLimiter(perSecond, atOnce),
	}, nil
}

// Refused takes a refusal; it never waits.
func (w *Worker) Refused(r Refusal) {
	select {
	case w.queue <- r:
	default:
		w.unsaid.Add(1)
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

// refused is the data of a line.
type refused struct {
	Code    subjects.Code    `json:"code"`
	Action  string           `json:"action"`
	Subject string           `json:"subject,omitempty"`
	Address string           `json:"address,omitempty"`
	Claimed subjects.AgentID `json:"claimed,omitempty"` // a name that was not proven
	Unsaid  int64            `json:"unsaid,omitzero"`
}

// line says who did what; false: it is not for this fleet's audit.
func (w *Worker) line(r Refusal) (who subjects.AgentID, d refused, ours bool) {
	d = refused{Code: subjects.CodeForbidden, Action: r.Action, Subject: clip(r.Subject), Address: clip(r.Address)}
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
	who, d, ours := w.line(r)
	if !ours {
		return
	}
	if !w.limit.Allow() {
		w.unsaid.Add(1)
		return
	}
	d.Unsaid = w.unsaid.Swap(0)
	l := handshake.LogLine{
		Timestamp: time.Now().UTC(), AgentID: who, EventType: handshake.EventRefused, Data: fleet.MustEncode(d),
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTry) // also while stopping
	defer cancel()
	if err := w.cfg.Tell(ctx, subjects.Log("", who), fleet.MustEncode(&l), uuid.NewString()); err != nil {
		w.log.Error("the audit was not told", slog.String("agent_id", string(who)), slog.String("action", d.Action), slog.Any("error", err))
	}
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
