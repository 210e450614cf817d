package a2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/run"
	"parley/workers"
)

// session is the record of a session: what was agreed, and what is under way.
type session struct {
	SessionID   subjects.SessionID `json:"session_id"`
	AgentID     subjects.AgentID   `json:"agent_id"`
	Caps        []a2e.Capability   `json:"caps"` // that were accepted
	MaxParallel int                `json:"max_parallel"`
	Until       time.Time          `json:"until"`
	Proof       []byte             `json:"proof,omitempty"` // SHA-256 of the token for calls over HTTP
	ProofUntil  time.Time          `json:"proof_until,omitzero"`
	UnderWay    []work             `json:"under_way,omitempty"`

	revision uint64
}

// work is a task or a run that counts against max_parallel.
type work struct {
	TaskID subjects.TaskID `json:"task_id,omitempty"`
	RunID  subjects.RunID  `json:"run_id,omitempty"`
	Since  time.Time       `json:"since"`
}

func (a work) is(b work) bool { return a.TaskID == b.TaskID && a.RunID == b.RunID }

// young protects what is just being dispatched from being taken for lost.
const young = 30 * time.Second

// shake answers a handshake/req. The error is of a message that is none. The
// token is what the session is used with over HTTP.
func (w *Worker) shake(ctx context.Context, c caller, data []byte) (*a2e.Response, string, error) {
	head := a2e.Header{A2E: a2e.Version, Type: a2e.TypeResponse, ID: newID(), TS: stamp(time.Now())}
	r, err := a2e.DecodeRequest(data)
	var req string
	switch {
	case err == nil:
		req = r.ID
	case subjects.CodeOf(err) == subjects.CodeVersionMismatch:
		req = a2e.ReadHeader(data).ID
		r = &a2e.Request{AgentID: c.id}
	default:
		return nil, "", err
	}
	var s *session
	var accepted []a2e.Accepted
	var token string
	if err == nil {
		s, accepted, token, err = w.open(ctx, c, r)
	}
	if err != nil {
		if subjects.CodeOf(err) == subjects.CodeInternal {
			w.log.Error("shake hands", slog.String("agent_id", string(r.AgentID)), slog.Any("error", err))
		}
		w.refuse(ctx, r.AgentID, c.how, err)
		return a2e.Refusal(head, req, err), "", nil
	}
	w.notes.Tell(ctx, s.SessionID, s.AgentID, handshake.EventAck, map[string]any{
		"protocol": "a2e", "transport": c.how, "accepted": true, "capabilities": s.Caps, "max_parallel": s.MaxParallel,
	})
	return &a2e.Response{
		Header: head, ReqID: req, SessionID: string(s.SessionID), AcceptedCaps: accepted, MaxParallel: s.MaxParallel, OK: true,
	}, token, nil
}

// open authenticates, negotiates, and stores the session.
func (w *Worker) open(ctx context.Context, c caller, r *a2e.Request) (*session, []a2e.Accepted, string, error) {
	if !w.ready.Load() {
		return nil, nil, "", unavailable(errStopping)
	}
	if err := w.authenticate(c, r); err != nil {
		return nil, nil, "", err
	}
	v, err := w.look(ctx, r.AgentID)
	if err != nil {
		return nil, nil, "", err
	}
	accepted, some := negotiate(r.AgentCaps, v)
	if !some {
		return nil, nil, "", noCaps(accepted)
	}
	opened, err := ask[handshake.Opened](ctx, w, r.AgentID, "session", "create", fleet.MustEncode(handshake.Create{TaskMetadata: handshake.TaskMetadata{Type: "a2e"}}))
	if err != nil {
		return nil, nil, "", err
	}
	// Not the token of the session: whoever gets one of its tasks has that.
	token := rand.Text()
	s := &session{
		SessionID: opened.Session.SessionID, AgentID: r.AgentID, MaxParallel: w.cfg.MaxParallel, Until: opened.KeptUntil,
		Proof: hashed(token), ProofUntil: opened.Session.ExpiresAt,
	}
	for _, a := range accepted {
		if a.Enabled {
			s.Caps = append(s.Caps, a.Capability)
		}
	}
	w.notes.Tell(ctx, s.SessionID, s.AgentID, handshake.EventInit, map[string]any{"protocol": "a2e", "transport": c.how, "capabilities": r.AgentCaps})
	ctx, cancel := context.WithTimeout(ctx, bus.StoreTime)
	defer cancel()
	crash.Point("before_a2e_session")
	if _, err := w.sessions.Create(ctx, string(s.SessionID), fleet.MustEncode(s), 0); err != nil {
		return nil, nil, "", unavailable(err)
	}
	crash.Point("after_a2e_session")
	return s, accepted, token, nil
}

// look asks the fleet what it has now.
func (w *Worker) look(ctx context.Context, who subjects.AgentID) (*view, error) {
	v := &view{services: map[string]bool{}}
	names := []string{serviceRouter, serviceSessions, serviceRuns}
	lives, failed := make([]bool, len(names)), make([]error, len(names)+1)
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { lives[i], failed[i] = w.bus.ServiceLives(ctx, name) })
	}
	all.Go(func() {
		agents, err := fleet.AllAgents(fleet.AgentList{}, func(q fleet.AgentList) (fleet.AgentListReply, error) {
			return ask[fleet.AgentListReply](ctx, w, who, "agent", "list", fleet.MustEncode(q))
		})
		if errors.Is(err, bus.ErrNoResponders) {
			return // no registry: nobody is known
		}
		failed[len(names)] = err
		v.agents = slices.DeleteFunc(agents, func(a fleet.AgentView) bool { return !a.Live || a.Draining })
	})
	all.Wait()
	for i, name := range names {
		v.services[name] = lives[i]
	}
	if err := errors.Join(failed...); err != nil {
		return nil, unavailable(err)
	}
	return v, nil
}

// load finds a session for its caller.
func (w *Worker) load(ctx context.Context, c caller, id string) (*session, error) {
	if !w.ready.Load() {
		return nil, unavailable(errStopping)
	}
	if id == "" {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected the session_id of the handshake, got nothing").At("/session_id")
	}
	if c.session != "" && id != c.session {
		return nil, gone(id)
	}
	s, err := w.read(ctx, subjects.SessionID(id))
	if err != nil {
		return nil, err
	}
	switch {
	case c.id != "" && c.id != s.AgentID:
		return nil, gone(id)
	case c.id == "" || c.how == transportHTTP: // the token is the proof
		return s, s.proved(c.token, w.bus.Now())
	}
	return s, nil
}

// proved says whether token is that of the handshake over HTTP.
func (s *session) proved(token string, now time.Time) error {
	switch {
	case token == "":
		return subjects.Errorf(subjects.CodeAuthFailed, "the call has no token of its session").
			WithRemedy("send the header " + headerToken + " that the handshake answered")
	case subtle.ConstantTimeCompare(hashed(token), s.Proof) != 1:
		return subjects.Errorf(subjects.CodeAuthFailed, "the token is not one of session %s", s.SessionID).
			WithRemedy("send the header " + headerToken + " that the handshake answered")
	case !now.Before(s.ProofUntil):
		return gone(string(s.SessionID))
	}
	return nil
}

func hashed(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

func gone(id string) error {
	return subjects.Errorf(subjects.CodeSessionExpired, "there is no session %q of this caller, or it is over", id).At("/session_id").
		WithRemedy("shake hands again; the tasks of an earlier session go on, and get finds them by their ids")
}

func (w *Worker) read(ctx context.Context, id subjects.SessionID) (*session, error) {
	e, err := w.sessions.Get(ctx, string(id))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, gone(string(id))
	}
	if err != nil {
		return nil, unavailable(err)
	}
	s := &session{revision: e.Revision}
	if err := json.Unmarshal(e.Value, s); err != nil {
		return nil, fmt.Errorf("decode session %s: %w", id, err)
	}
	if !w.bus.Now().Before(s.Until) {
		return nil, gone(string(id))
	}
	return s, nil
}

// begin counts a piece of work, or refuses it at once when the session has all
// that it may under way. What it knows already counts once, and is not fresh.
func (w *Worker) begin(ctx context.Context, s *session, b work) (fresh bool, err error) {
	b.Since = w.bus.Now().UTC()
	err = w.change(ctx, s, func(s *session) (bool, error) {
		fresh = false
		if slices.ContainsFunc(s.UnderWay, b.is) {
			return false, nil
		}
		if len(s.UnderWay) >= s.MaxParallel {
			if err := w.forgetEnded(ctx, s); err != nil {
				return false, err
			}
		}
		if len(s.UnderWay) >= s.MaxParallel && !plant.Bug("parallel_ignored") {
			return false, subjects.Errorf(subjects.CodeRateLimited, "the session may have %d at a time under way, and has: %s", s.MaxParallel, named(s.UnderWay)).
				WithRemedy("wait until one has ended, or cancel one").RetryAfter(time.Second)
		}
		s.UnderWay = append(s.UnderWay, b)
		fresh = true
		return true, nil
	})
	return fresh, err
}

// end no longer counts a piece of work. Failing at it costs nothing but a look
// when the session is full.
func (w *Worker) end(ctx context.Context, s *session, b work) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	err := w.change(ctx, s, func(s *session) (bool, error) {
		before := len(s.UnderWay)
		s.UnderWay = slices.DeleteFunc(s.UnderWay, b.is)
		return len(s.UnderWay) < before, nil
	})
	if err != nil && subjects.CodeOf(err) != subjects.CodeSessionExpired {
		w.log.Debug("work not counted off", slog.String("session_id", string(s.SessionID)), slog.Any("error", err))
	}
}

func named(list []work) string {
	names := make([]string, 0, len(list))
	for _, b := range list[:min(len(list), maxNamed)] {
		names = append(names, string(b.TaskID)+string(b.RunID))
	}
	return strings.Join(names, ", ")
}

// change changes the record by compare-and-set, if f says so.
func (w *Worker) change(ctx context.Context, s *session, f func(*session) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, bus.StoreTime)
	defer cancel()
	for {
		next, err := w.read(ctx, s.SessionID)
		if err != nil {
			return err
		}
		if changed, err := f(next); err != nil || !changed {
			return err
		}
		crash.Point("before_a2e_record")
		_, err = w.sessions.Update(ctx, string(s.SessionID), fleet.MustEncode(next), next.revision)
		if err == nil {
			crash.Point("after_a2e_record")
			return nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			return unavailable(err)
		}
	}
}

// forgetEnded takes out of s what has ended, or was never dispatched because
// its worker died.
func (w *Worker) forgetEnded(ctx context.Context, s *session) error {
	var kept []work
	for _, b := range s.UnderWay {
		over, err := w.over(ctx, s, b)
		if err != nil {
			return err
		}
		if !over {
			kept = append(kept, b)
		}
	}
	s.UnderWay = kept
	return nil
}

func (w *Worker) over(ctx context.Context, s *session, b work) (over bool, err error) {
	if b.RunID != "" {
		var r run.Record
		r, err = ask[run.Record](ctx, w, s.AgentID, "run", "get", fleet.MustEncode(run.Ref{RunID: b.RunID}))
		over = r.State.Ended()
	} else {
		var v fleet.TaskView
		v, err = ask[fleet.TaskView](ctx, w, s.AgentID, "task", "get", fleet.MustEncode(fleet.TaskRef{TaskID: b.TaskID}))
		over = v.State.Terminal()
	}
	if subjects.CodeOf(err) == subjects.CodeNotFound {
		return w.bus.Now().Sub(b.Since) > young, nil
	}
	return over, err
}

// close ends a session; what is under way goes on.
func (w *Worker) close(ctx context.Context, s *session) error {
	if err := w.sessions.Delete(ctx, string(s.SessionID)); err != nil {
		return unavailable(err)
	}
	crash.Point("after_a2e_close")
	w.log.Debug("session is over", slog.String("session_id", string(s.SessionID)), slog.Int("under_way", len(s.UnderWay)))
	return nil
}

// refuse tells the audit that somebody was not let in.
func (w *Worker) refuse(ctx context.Context, who subjects.AgentID, how string, err error) {
	code := subjects.CodeOf(err)
	if code != subjects.CodeUnavailable && code != subjects.CodeInternal {
		w.notes.Refuse(ctx, "", who, handshake.EventRefused, workers.Refusal{Code: code, Action: "a2e", Transport: how})
	}
}

func newID() string { return strings.ToLower(rand.Text()[:16]) }

// stamp is a time in seconds.
func stamp(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
