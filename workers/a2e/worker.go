package a2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/workers"
)

// Config is what an A2E worker needs. Only Bus is required.
type Config struct {
	Bus *bus.Bus
	// Tokens are the auth_tokens that count, each with the agent that it proves.
	// Absent: any will do.
	Tokens map[string]subjects.AgentID
	// MaxParallel is how many tasks and runs a session may have under way;
	// absent: 4.
	MaxParallel int
	Listener    net.Listener // of connections, which Run closes; nil: none
	Version     string       // of the program, SemVer; shown by nats micro ls
	Log         *slog.Logger // nil: discarded
}

func (c Config) withDefaults() Config {
	c.MaxParallel = cmp.Or(c.MaxParallel, a2e.DefaultMaxParallel)
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

const mostParallel = 1000

func (c Config) validate() error {
	switch {
	case c.Bus == nil:
		return errors.New("a2e: Config.Bus is required")
	case c.MaxParallel < 1 || c.MaxParallel > mostParallel:
		return fmt.Errorf("a2e: Config.MaxParallel is %d, want 1 to %d", c.MaxParallel, mostParallel)
	}
	for _, id := range c.Tokens {
		if _, err := subjects.ParseAgentID(string(id)); err != nil {
			return fmt.Errorf("a2e: a token's agent: %w", err)
		}
	}
	return nil
}

// Worker is an A2E worker. New is required.
type Worker struct {
	// fixed after New
	cfg    Config
	bus    *bus.Bus
	log    *slog.Logger
	hashed map[[sha256.Size]byte]subjects.AgentID

	sessions *bus.KV // fixed by Run before anything is served

	notes *workers.Notes
	ready atomic.Bool
	work  context.Context //nolint:containedctx // of the waits: it ends when Run's does
	stop  context.CancelCauseFunc
}

// New checks cfg and wires a worker; it starts nothing. It answers once Run
// serves, and it runs once.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, bus: cfg.Bus, log: cfg.Log.With(slog.String("component", "a2e")), hashed: map[[sha256.Size]byte]subjects.AgentID{},
	}
	w.notes = workers.NewNotes(w.bus, w.log)
	for token, id := range cfg.Tokens {
		w.hashed[sha256.Sum256([]byte(token))] = id
	}
	w.work, w.stop = context.WithCancelCause(context.Background())
	return w, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "a2e" }

// Ready returns nil once the worker serves.
func (w *Worker) Ready() error {
	switch {
	case !w.bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("opening the sessions")
	}
	return nil
}

// errStopping ends the waits of a worker that stops.
var errStopping = errors.New("the environment is stopping")

// Run serves until ctx ends; waits are then answered as unavailable, other calls
// in hand to their end.
func (w *Worker) Run(ctx context.Context) (err error) {
	defer w.stop(errStopping)
	if w.sessions, err = w.bus.KV(ctx, subjects.BucketA2E); err != nil {
		return fmt.Errorf("a2e: %w", err)
	}
	stop, err := w.bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("a2e: serve the API: %w", err)
	}
	defer stop()
	defer w.stop(errStopping) // first: what waits is answered before stop waits for it
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("a2e worker serves")
	if w.cfg.Listener == nil {
		<-ctx.Done()
		return nil
	}
	if err := (Door{Backend: w, Log: w.log}).Serve(ctx, w.cfg.Listener); err != nil {
		return fmt.Errorf("a2e: take connections: %w", err)
	}
	return nil
}

func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "a2e", Version: w.cfg.Version, Queue: "a2e",
		Description: "The fleet as the environment of an agent", Metadata: map[string]string{"kind": "a2e"},
	}
	for _, e := range []struct {
		verb, request, reply string
		handle               func(ctx context.Context, c caller, data []byte) (any, error)
	}{
		{"handshake", a2e.TypeRequest, a2e.TypeResponse, func(ctx context.Context, c caller, data []byte) (any, error) {
			r, _, err := w.shake(ctx, c, data)
			return r, err
		}},
		{"call", a2e.TypeCall, a2e.TypeReply, func(ctx context.Context, c caller, data []byte) (any, error) {
			return w.call(ctx, c, data), nil
		}},
	} {
		pattern := subjects.APIPattern("a2e", e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "a2e_" + e.verb, Subject: pattern, Metadata: map[string]string{"request": e.request, "reply": e.reply},
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "the subject names no caller")
				}
				v, err := e.handle(ctx, caller{id: subjects.AgentID(vars[0]), how: "nats"}, m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

// caller is who calls, as far as the transport knows.
type caller struct {
	id      subjects.AgentID // "": it does not say
	trusted bool             // it has proved that it is id
	refused error            // it was to prove who it is, and did not
	token   string           // of the session, over HTTP
	how     string           // the transport
	session string           // of the connection, whose only one it is
}

// authenticate says whether the caller is the agent that it says it is.
func (w *Worker) authenticate(c caller, r *a2e.Request) error {
	switch {
	case c.id != "" && c.id != r.AgentID:
		return subjects.Errorf(subjects.CodeForbidden, "the caller is %s, the request says %s", c.id, r.AgentID).
			At("/agent_id").WithRemedy("name yourself")
	case c.trusted:
		return nil
	case len(w.hashed) > 0:
		if !w.proves(r.AuthToken, r.AgentID) {
			return subjects.Errorf(subjects.CodeAuthFailed, "the auth_token does not prove that the caller is %s", r.AgentID).
				At("/auth_token").WithRemedy("send the token that the fleet has for this agent")
		}
		return nil
	}
	return c.refused
}

// proves compares a token with every one that counts, in constant time.
func (w *Worker) proves(token string, id subjects.AgentID) (ok bool) {
	sum := sha256.Sum256([]byte(token))
	for h, owner := range w.hashed {
		if subtle.ConstantTimeCompare(h[:], sum[:]) == 1 && owner == id {
			ok = true
		}
	}
	return ok
}
