package callout

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"parley/bus/callout"
	"parley/subjects"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers"
)

// decide answers a server, and tells the audit.
func (w *Worker) decide(ctx context.Context, r callout.Request) (callout.Grant, error) {
	p, err := proofOf(r)
	var g callout.Grant
	if err == nil {
		g, err = w.judge(ctx, p, r.Host, w.cfg.Bus.Now())
	}
	who := subjects.AgentID(r.User)
	if p != nil {
		who = p.AgentID
	}
	if err != nil {
		return g, w.refuse(ctx, who, r, err)
	}
	w.log.Info("connection granted", slog.String("agent_id", string(who)), slog.String("host", r.Host), slog.Time("expires", g.Expires))
	w.ids.notes.Tell(ctx, p.SessionID, who, handshake.EventAuthGranted, struct {
		Address string    `json:"address"`
		KeyID   string    `json:"key_id,omitempty"`
		Form    string    `json:"form"`
		Expires time.Time `json:"expires"`
	}{r.Host, p.KeyID(), p.Form(), g.Expires})
	return g, nil
}

// refuse tells log and audit, and what the server logs: the code alone.
func (w *Worker) refuse(ctx context.Context, who subjects.AgentID, r callout.Request, err error) error {
	code, level, answer := subjects.CodeOf(err), slog.LevelWarn, callout.ErrSilent
	if code != subjects.CodeUnavailable && code != subjects.CodeInternal {
		answer = subjects.Errorf(code, "the connection is refused")
		told := workers.Refusal{Code: code, Message: subjects.AsError(err).Message, Action: "connect", Address: r.Host}
		if !w.ids.notes.Refuse(ctx, "", orUnknown(who), handshake.EventAuthRefused, told) {
			level = slog.LevelDebug // there are too many of these
		}
	}
	w.log.Log(ctx, level, "connection refused", slog.String("agent_id", string(orUnknown(who))), slog.String("host", r.Host), slog.String("code", string(code)), slog.Any("error", err))
	return answer
}

// proofOf reads the proof that a connection carries as its password or token.
func proofOf(r callout.Request) (*identity.Proof, error) {
	p, err := identity.ParsePassword(cmp.Or(r.Password, r.Token))
	if err != nil {
		return nil, err
	}
	if r.User != "" && r.User != string(p.AgentID) {
		return nil, subjects.Errorf(subjects.CodeAuthFailed, "the user is not the one whose identity it is").
			WithRemedy("connect as the user that the identity names, or with a token and without a user")
	}
	if r.Kind == "LEAFNODE" {
		return nil, subjects.Errorf(subjects.CodeForbidden, "a leaf node is no agent").
			WithRemedy("give leaf nodes a key of their own")
	}
	return p, nil
}

// judge says what who proves p may, connecting from host.
func (w *Worker) judge(ctx context.Context, p *identity.Proof, host string, now time.Time) (callout.Grant, error) {
	id := p.AgentID
	k, seen, _ := w.ids.of(id)
	err := identity.Verify(k.judged(now, seen), p, identity.Connect, nil)
	if err != nil && !w.looks.Allow() {
		return callout.Grant{}, err
	}
	// The store has the last word: what is known here may be older.
	k, known, serr := w.ids.now(ctx, id)
	if serr != nil {
		return callout.Grant{}, serr
	}
	if p.Form() == identity.V0 && !seen {
		if seen, serr = w.ids.hasSeenV1(ctx, id); serr != nil {
			return callout.Grant{}, serr
		}
	}
	if err := identity.Verify(k.judged(now, seen), p, identity.Connect, nil); err != nil {
		return callout.Grant{}, err
	}
	if !known || p.KeyID() == identity.WorkersKey {
		return callout.Grant{}, subjects.Errorf(subjects.CodeAuthFailed, "the identity is not known")
	}
	if err := k.record.Claims(p); err != nil {
		return callout.Grant{}, err
	}
	if k.record.AllowedHosts != nil && !w.hosts.allow(ctx, k.record.AllowedHosts, host) {
		return callout.Grant{}, subjects.Errorf(subjects.CodeHostNotAllowed, "the identity %s may not connect from %s", id, host).
			WithRemedy("use an allowed host, or have an operator add this one: parley identity add --update --host")
	}
	if _, again, err := w.ids.useOnce(ctx, p.Once(), "connection"); err != nil {
		return callout.Grant{}, err
	} else if again {
		return callout.Grant{}, replayed()
	}
	if p.Form() == identity.V1 {
		if err := w.ids.sawV1(ctx, id); err != nil {
			return callout.Grant{}, err
		}
	}
	return w.grant(&k.record, p, now), nil
}

// grant is what the catalogue allows an identity, until the connection or its
// key is over.
func (w *Worker) grant(r *identity.Record, p *identity.Proof, now time.Time) callout.Grant {
	g := callout.Grant{User: string(r.AgentID), Responds: subjects.Responds(r.Role), Expires: now.Add(w.cfg.TTL)}
	g.Publish, g.Subscribe = subjects.Permissions(r.Role, r.AgentID)
	for _, key := range r.Active(now) {
		if key.ID == p.KeyID() && !key.Until.IsZero() && key.Until.Before(g.Expires) {
			g.Expires = key.Until
		}
	}
	return g
}
