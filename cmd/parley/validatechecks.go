package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	messages "parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

const groupStart = "start"

// checks lists all checks, in the order in which they are made: those of the
// session need the first ones.
func checks() []check {
	return slices.Concat([]check{
		{groupStart, "simulated agents are live", func(ctx context.Context, v *validation) (string, error) { return v.startAgents(ctx) }},
		{groupStart, "a session is opened", openSession},
	}, sessionChecks(), handshakeChecks(), contextChecks(), authChecks(), proofChecks(), escalationChecks(), a2eChecks(), endChecks())
}

// refusedWith turns the refusal that must come into the finding, and anything
// else into the error. Who is not even let in by the broker is refused, too.
func refusedWith(err error, codes ...subjects.Code) (string, error) {
	switch {
	case err == nil:
		return "", fmt.Errorf("it was allowed, want %v", codes)
	case errors.Is(err, bus.ErrDenied):
		return "refused by the broker", nil
	}
	e, ours := errors.AsType[*subjects.Error](err)
	if !ours || !slices.Contains(codes, e.Code) {
		return "", fmt.Errorf("refused with %w, want %v", err, codes)
	}
	return "refused: " + string(e.Code), nil
}

func openSession(ctx context.Context, v *validation) (string, error) {
	r, err := call[handshake.Opened](ctx, v.c, "session", "create", handshake.Create{TaskMetadata: handshake.TaskMetadata{Type: "validation"}})
	if err != nil {
		return "", err
	}
	v.sessions = append(v.sessions, r.value.Session.SessionID)
	if _, err := subjects.ParseSessionID(string(r.value.Session.SessionID)); err != nil {
		return "", err
	}
	if life := r.value.Session.ExpiresAt.Sub(r.value.Session.CreatedAt); life != handshake.TokenLife || r.value.Session.Orchestrator != v.c.from {
		return "", fmt.Errorf("its token lasts %s, its owner is %s; want %s and %s", life, r.value.Session.Orchestrator, handshake.TokenLife, v.c.from)
	}
	v.session = r.value
	return string(r.value.Session.SessionID), nil
}

func (v *validation) ref(token string) handshake.Ref {
	return handshake.Ref{SessionID: v.session.Session.SessionID, Token: token}
}

func sessionChecks() []check {
	const group = "sessions"
	return []check{
		{group, "its owner reads it", func(ctx context.Context, v *validation) (string, error) {
			r, err := call[handshake.View](ctx, v.c, "session", "get", v.ref(""))
			return fmt.Sprintf("version %d, kept until %s", r.value.Version, r.value.KeptUntil.Format(time.RFC3339)), err
		}},
		{group, "its owner renews it", func(ctx context.Context, v *validation) (string, error) {
			r, err := call[handshake.Opened](ctx, v.c, "session", "update", handshake.Update{SessionID: v.session.Session.SessionID})
			if err == nil && (r.value.Token == "" || r.value.Session.ExpiresAt.Before(v.session.Session.ExpiresAt)) {
				err = fmt.Errorf("its token lasts until %s, which is no later than before", r.value.Session.ExpiresAt)
			}
			return "until " + r.value.Session.ExpiresAt.Format(time.RFC3339), err
		}},
		{group, "others do not see it", func(ctx context.Context, v *validation) (string, error) {
			_, err := call[handshake.View](ctx, v.stranger, "session", "get", v.ref(""))
			return refusedWith(err, subjects.CodeNotFound)
		}},
		{group, "others do not renew it, with its token neither", func(ctx context.Context, v *validation) (string, error) {
			_, err := call[handshake.Opened](ctx, v.stranger, "session", "update", handshake.Update{SessionID: v.session.Session.SessionID})
			return refusedWith(err, subjects.CodeNotFound)
		}},
	}
}

// greeting is a handshake_init to target.
func (v *validation) greeting(target subjects.AgentID) handshake.Greet {
	return handshake.Greet{Init: handshake.Init{
		Header:    handshake.Header{ProtocolVersion: handshake.Version, MessageType: handshake.TypeInit},
		SessionID: v.session.Session.SessionID, Initiator: handshake.Party{AgentID: v.c.from}, Target: handshake.Party{AgentID: target},
		Task: handshake.Task{TaskID: subjects.TaskID(v.prefix() + "greeting"), Description: "validate"}, Timestamp: time.Now().UTC(),
	}}
}

func handshakeChecks() []check {
	const group = "handshake"
	return []check{
		{group, "every simulated agent accepts", func(ctx context.Context, v *validation) (string, error) {
			for _, id := range v.agents {
				r, err := call[handshake.Ack](ctx, v.c, "session", "handshake", v.greeting(id))
				if err != nil {
					return "", fmt.Errorf("%s: %w", id, err)
				}
				if a := r.value; !a.Accepted || a.Target.AgentID != id || a.Target.Status != handshake.StatusReady {
					return "", fmt.Errorf("%s answers accepted %v as %s, %s", id, a.Accepted, a.Target.AgentID, a.Target.Status)
				}
			}
			return fmt.Sprintf("%d acknowledged", len(v.agents)), nil
		}},
		{group, "nobody is spoken for", func(ctx context.Context, v *validation) (string, error) {
			g := v.greeting(v.agents[0])
			g.Initiator.AgentID = v.stranger.from
			_, err := call[handshake.Ack](ctx, v.c, "session", "handshake", g)
			return refusedWith(err, subjects.CodeForbidden)
		}},
		{group, "another version is refused", func(ctx context.Context, v *validation) (string, error) {
			g := v.greeting(v.agents[0])
			g.ProtocolVersion = "2.0"
			_, err := call[handshake.Ack](ctx, v.c, "session", "handshake", g)
			return refusedWith(err, subjects.CodeVersionMismatch)
		}},
		{group, "who is not there is told of", func(ctx context.Context, v *validation) (string, error) {
			_, err := call[handshake.Ack](ctx, v.c, "session", "handshake", v.greeting(v.stranger.from))
			return refusedWith(err, subjects.CodeAgentLost)
		}},
	}
}

// appendTo adds to the context of the session.
func (v *validation) appendTo(ctx context.Context, by *client, change func(*handshake.Append)) (handshake.Appended, error) {
	q := handshake.Append{SessionID: v.session.Session.SessionID, Entry: handshake.Entry{Status: "completed", Output: fleet.MustEncode("validated")}}
	change(&q)
	r, err := call[handshake.Appended](ctx, by, "session", "append", q)
	return r.value, err
}

func contextChecks() []check {
	const group = "context"
	return []check{
		{group, "each agent gets what those before it did", relay},
		{group, "appends are versions without gaps", func(ctx context.Context, v *validation) (string, error) {
			for range 3 {
				a, err := v.appendTo(ctx, v.c, func(*handshake.Append) {})
				if err != nil {
					return "", err
				}
				if v.version++; a.Version != v.version {
					return "", fmt.Errorf("version %d, want %d", a.Version, v.version)
				}
			}
			return fmt.Sprintf("up to %d", v.version), nil
		}},
		{group, "an append to what has changed is refused", func(ctx context.Context, v *validation) (string, error) {
			_, err := v.appendTo(ctx, v.c, func(q *handshake.Append) { q.AfterVersion = new(uint64) })
			return refusedWith(err, subjects.CodeContextConflict)
		}},
		{group, "a secret is refused", func(ctx context.Context, v *validation) (string, error) {
			leak := "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a" // made up
			_, err := v.appendTo(ctx, v.c, func(q *handshake.Append) { q.Entry.Output = fleet.MustEncode(leak) })
			if err != nil && strings.Contains(err.Error(), leak) {
				return "", errors.New("the error shows the secret")
			}
			return refusedWith(err, subjects.CodeSecretInContext)
		}},
	}
}

// relay has the agents work one after the other, and wants that each sees those
// before it.
func relay(ctx context.Context, v *validation) (string, error) {
	for i, id := range v.agents {
		task, err := v.dispatch(ctx, fmt.Sprintf("relay-%d", i), briefReport, func(t *fleet.Task) {
			t.Agent, t.SessionID = id, v.session.Session.SessionID
		})
		if err != nil {
			return "", err
		}
		t, err := v.ended(ctx, task)
		if err != nil {
			return "", err
		}
		var got saw
		if t.State != fleet.StateDone || t.Result == nil || json.Unmarshal(t.Result.Output, &got) != nil {
			return "", fmt.Errorf("%s ended as %s", task, t.State)
		}
		if !slices.Equal(got.Before, v.agents[:i]) {
			return "", fmt.Errorf("%s saw %v before it, want %v", id, got.Before, v.agents[:i])
		}
		v.version = uint64(i + 1)
		err = v.until(ctx, "the result of "+string(task)+" in the context", func() (bool, error) {
			r, rerr := call[handshake.ReadReply](ctx, v.c, "session", "context", handshake.Read{SessionID: v.session.Session.SessionID, AfterVersion: uint64(i)})
			return rerr == nil && len(r.value.Records) == 1 && r.value.Records[0].Entry.TaskID == task, rerr
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d results, version %d", len(v.agents), v.version), nil
}

func authChecks() []check {
	const group = "authentication"
	withToken := func(token func(v *validation) (string, error), codes ...subjects.Code) func(context.Context, *validation) (string, error) {
		return func(ctx context.Context, v *validation) (string, error) {
			t, err := token(v)
			if err != nil {
				return "", err
			}
			_, err = call[handshake.View](ctx, v.stranger, "session", "get", v.ref(t))
			return refusedWith(err, codes...)
		}
	}
	return []check{
		{group, "a good token is let in", func(ctx context.Context, v *validation) (string, error) {
			_, err := call[handshake.View](ctx, v.stranger, "session", "get", v.ref(v.session.Token))
			if errors.Is(err, bus.ErrDenied) {
				return "", notHere("these credentials may not act as somebody else")
			}
			return "let in", err
		}},
		{group, "a bad token is refused", withToken(func(v *validation) (string, error) {
			return v.session.Token[:max(len(v.session.Token)-4, 0)] + "AAAA", nil
		}, subjects.CodeAuthFailed)},
		{group, "a token cannot be made to last longer", withToken(func(v *validation) (string, error) {
			parts := strings.Split(v.session.Token, ".")
			if len(parts) != 4 {
				return "", errors.New("the token is not of four parts")
			}
			parts[2] = "99999999999"
			return strings.Join(parts, "."), nil
		}, subjects.CodeAuthFailed)},
		{group, "a token of another session is refused", func(ctx context.Context, v *validation) (string, error) {
			r, err := call[handshake.Opened](ctx, v.c, "session", "create", handshake.Create{})
			if err != nil {
				return "", err
			}
			v.sessions = append(v.sessions, r.value.Session.SessionID)
			_, err = call[handshake.View](ctx, v.stranger, "session", "get", v.ref(r.value.Token))
			return refusedWith(err, subjects.CodeAuthFailed)
		}},
		{group, "a replayed append counts once", func(ctx context.Context, v *validation) (string, error) {
			same := func(q *handshake.Append) { q.Key = "replayed" }
			first, err := v.appendTo(ctx, v.c, same)
			if err != nil {
				return "", err
			}
			again, err := v.appendTo(ctx, v.c, same)
			if err == nil && (again.Version != first.Version || !again.Duplicate) {
				err = fmt.Errorf("it is version %d, and then %d", first.Version, again.Version)
			}
			v.version = first.Version
			return fmt.Sprintf("version %d, twice", first.Version), err
		}},
		{group, "nobody appends as somebody else", func(ctx context.Context, v *validation) (string, error) {
			_, err := v.appendTo(ctx, v.stranger, func(q *handshake.Append) { q.Token, q.Entry.AgentID = v.session.Token, v.agents[0] })
			return refusedWith(err, subjects.CodeForbidden)
		}},
		{group, "a result of somebody else does not count", forgedResult},
	}
}

// forgedResult hands in a result of a task that somebody else holds.
func forgedResult(ctx context.Context, v *validation) (string, error) {
	task, err := v.dispatch(ctx, "held", briefHold, func(t *fleet.Task) { t.Agent = v.agents[0] })
	if err != nil {
		return "", err
	}
	err = v.until(ctx, "an agent to hold the task", func() (bool, error) {
		r, rerr := call[fleet.TaskView](ctx, v.c, "task", "get", fleet.TaskRef{TaskID: task})
		return r.value.State == fleet.StateWorking, rerr
	})
	if err != nil {
		return "", err
	}
	forged := fleet.MustEncode(fleet.Result{TaskID: task, Status: fleet.StatusDone, Output: fleet.MustEncode("forged"), NextSteps: []string{}})
	found := "refused by the broker"
	m, err := v.c.bus.Request(ctx, subjects.Result(v.stranger.from, task), forged, nil)
	switch {
	case errors.Is(err, bus.ErrDenied):
	case err != nil:
		return "", err
	default:
		found = "refused"
		r, derr := fleet.DecodeReply[fleet.ResultReply](m.Data)
		if derr == nil && r.OK {
			return "", errors.New("it was taken")
		}
	}
	t, err := call[fleet.TaskView](ctx, v.c, "task", "cancel", fleet.TaskCancel{TaskID: task, Reason: "validated"})
	if err == nil && (t.value.State != fleet.StateCanceled || t.value.AgentID != v.agents[0]) {
		err = fmt.Errorf("the task ended as %s, by %s", t.value.State, t.value.AgentID)
	}
	return found, err
}

func escalationChecks() []check {
	const group = "escalation"
	levels := func(t *fleet.TaskView) (levels []int) {
		for _, a := range t.Attempts {
			levels = append(levels, a.Level)
		}
		return levels
	}
	return []check{
		{group, "level 1: the same agent tries again", func(ctx context.Context, v *validation) (string, error) {
			task, err := v.dispatch(ctx, "level-1", briefOnce, func(t *fleet.Task) { t.Agent = v.faulty[0] })
			if err != nil {
				return "", err
			}
			t, err := v.ended(ctx, task)
			if err == nil && (t.State != fleet.StateDone || t.Attempt != 2 || t.AgentID != v.faulty[0] || !slices.Equal(levels(&t), []int{1})) {
				err = fmt.Errorf("%s after %d attempts, by %s, levels %v", t.State, t.Attempt, t.AgentID, levels(&t))
			}
			return "done at the second attempt", err
		}},
		{group, "level 2: another agent gets it", func(ctx context.Context, v *validation) (string, error) {
			task, err := v.dispatch(ctx, "level-2", briefRefuse, func(t *fleet.Task) { t.Agent, t.Alternatives = v.faulty[0], v.faulty[1:] })
			if err != nil {
				return "", err
			}
			t, err := v.ended(ctx, task)
			if err == nil && (len(t.Attempts) != 2 || t.Attempts[0].AgentID != v.faulty[0] || t.Attempts[0].Level != 2 || t.Attempts[1].AgentID != v.faulty[1]) {
				err = fmt.Errorf("%s, attempts %+v", t.State, t.Attempts)
			}
			return "after one that refused", err
		}},
		{group, "level 3: the end is told, with its reason", func(ctx context.Context, v *validation) (string, error) {
			t, err := v.ended(ctx, subjects.TaskID(v.prefix()+"level-2"))
			if err == nil && (t.State != fleet.StateBlocked || len(t.Attempts) != 2 || t.Attempts[1].Level != 3 || t.Result == nil || t.Result.BlockedReason == nil) {
				err = fmt.Errorf("it ended as %s, attempts %+v", t.State, t.Attempts)
			}
			return "blocked; nobody was called", err
		}},
	}
}

func a2eChecks() []check {
	const group = "a2e"
	shake := func(version string, caps ...messages.Capability) func(context.Context, *validation) (messages.Response, error) {
		return func(ctx context.Context, v *validation) (messages.Response, error) {
			lives, err := v.c.bus.ServiceLives(ctx, "a2e")
			if err != nil || !lives {
				return messages.Response{}, notHere("no worker a2e can be asked")
			}
			r, err := call[messages.Response](ctx, v.c, "a2e", "handshake", messages.Request{
				Header:  messages.Header{A2E: version, Type: messages.TypeRequest, ID: v.id, TS: float64(time.Now().Unix())},
				AgentID: v.c.from, AgentCaps: caps,
			})
			if err == nil && r.value.OK {
				v.sessions = append(v.sessions, subjects.SessionID(r.value.SessionID))
			}
			if err == nil && r.value.Reason == messages.ReasonAuth {
				err = notHere("this fleet asks for an auth_token")
			}
			return r.value, err
		}
	}
	refused := func(reason string, f func(context.Context, *validation) (messages.Response, error)) func(context.Context, *validation) (string, error) {
		return func(ctx context.Context, v *validation) (string, error) {
			r, err := f(ctx, v)
			if err == nil && r.Reason != reason {
				err = fmt.Errorf("ok %v, reason %q, want %s", r.OK, r.Reason, reason)
			}
			return "refused: " + r.Reason, err
		}
	}
	return []check{
		{group, "an agent is let in", func(ctx context.Context, v *validation) (string, error) {
			r, err := shake(messages.Version, messages.Env, messages.Memory)(ctx, v)
			if err == nil && !r.OK {
				err = fmt.Errorf("refused: %s", r.Reason)
			}
			return fmt.Sprintf("%d at a time", r.MaxParallel), err
		}},
		{group, "another version is refused", refused(messages.ReasonVersion, shake("2.0", messages.Env))},
		{group, "an agent for whom nothing is there is refused", refused(messages.ReasonNoCaps, shake(messages.Version))},
	}
}

func endChecks() []check {
	const group = "sessions"
	return []check{
		{group, "its owner ends it, and its token with it", func(ctx context.Context, v *validation) (string, error) {
			if _, err := call[handshake.Deleted](ctx, v.c, "session", "delete", v.ref("")); err != nil {
				return "", err
			}
			_, err := call[handshake.View](ctx, v.c, "session", "get", v.ref(v.session.Token))
			return refusedWith(err, subjects.CodeNotFound)
		}},
	}
}
