package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	messages "parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/workers"
	"parley/workers/a2e"
)

// a2e makes the A2E worker as the settings say; its pages go to h.
func (a *app) a2e(b *bus.Bus, log *slog.Logger, h *health) (workers.Worker, error) {
	flag, path := "--a2e-tokens", a.conf.A2ETokens
	if path == "" {
		flag, path = "--a2a-tokens", a.conf.A2ATokens
	}
	tokens, err := readTokens(flag, path)
	if err != nil {
		return workers.Worker{}, err
	}
	gate, err := a.httpDoor(b, a.conf.HTTP, "the A2E door", "", log)
	if err != nil {
		return workers.Worker{}, err
	}
	cfg := a2e.Config{Bus: b, Tokens: tokens, MaxParallel: a.conf.A2EParallel, Version: semver(), Log: log}
	if cfg.Listener, err = listenA2E(a.conf.A2EListen, len(tokens) > 0); err != nil {
		return workers.Worker{}, err
	}
	w, err := a2e.New(cfg)
	if err != nil {
		return workers.Worker{}, err
	}
	for pattern, page := range w.Handlers(gate.Caller) {
		h.serve(pattern, gate.Page(page))
	}
	return workers.Worker{Name: w.Name(), Run: w.Run, Ready: w.Ready}, nil
}

const unixPrefix = "unix:"

// listenA2E takes the address of connections; nil for none. A socket of the file
// system is for its owner alone.
func listenA2E(address string, asks bool) (net.Listener, error) {
	if address == "" || address == "off" {
		return nil, nil //nolint:nilnil // none is a valid setting
	}
	path, unix := strings.CutPrefix(address, unixPrefix)
	if !unix {
		if !asks && !localOnly(address) {
			return nil, usage("--a2e-listen %s can be reached from other machines, and would ask nobody who they are", address).
				next("give --a2e-tokens, or listen on 127.0.0.1 or unix:/path")
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, usage("--a2e-listen %s: %w", address, err).next("give an address such as 127.0.0.1:7412 or unix:/path")
		}
		return l, nil
	}
	l, err := listenUnix(path)
	if err != nil {
		return nil, usage("--a2e-listen %s: %w", address, err).next("give a path in a directory that you may write, which no other process listens on")
	}
	return l, nil
}

// listenUnix takes the place of a socket that nobody listens on any more.
func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
		c, derr := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "unix", path)
		if derr == nil {
			return nil, errors.Join(errors.New("another process listens there"), c.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (a *app) a2eCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "a2e", Short: "Use the fleet as an agent's environment: A2E, as lines of JSON", Args: cobra.NoArgs,
		Long: `Use the fleet as an agent's environment: speak A2E 1.0 on standard input and output,
one message of JSON on each line. The first is the handshake, whose agent_id must
be --as; calls follow until the input ends.`,
		Example: `  parley a2e --as my-agent < session.jsonl`,
		RunE:    a.ask(func(ctx context.Context, c *client, _ []string) error { return a.talkA2E(ctx, c) }),
	}
	bind(cmd.Flags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	return cmd
}

// talkA2E is one session on standard input and output.
func (a *app) talkA2E(ctx context.Context, c *client) error {
	door := a2e.Door{Backend: a2eClient{c}, Log: a.clientLog(), Handshake: 24 * time.Hour, Idle: -1, Linger: -1}
	if err := door.Conn(ctx, a.stdin, a.stdout); err != nil {
		return err
	}
	return ctx.Err()
}

// a2eClient has the fleet answer what comes over standard input.
type a2eClient struct{ *client }

// Handshake passes a handshake/req on.
func (c a2eClient) Handshake(ctx context.Context, req []byte) (*messages.Response, error) {
	m, err := c.pass(ctx, "handshake", req, c.timeout)
	if err != nil {
		return nil, err
	}
	r, err := fleet.DecodeReply[messages.Response](m)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Call passes a call/req on.
func (c a2eClient) Call(ctx context.Context, _ subjects.AgentID, session string, req []byte) (*messages.Reply, error) {
	call, err := messages.DecodeCall(req)
	if err != nil {
		return nil, err
	}
	call.SessionID = cmp.Or(call.SessionID, session)
	if call.SessionID != session {
		return nil, subjects.Errorf(subjects.CodeSessionExpired, "the session of this connection is %s", session).At("/session_id").
			WithRemedy("leave session_id out")
	}
	m, err := c.pass(ctx, "call", fleet.MustEncode(call), c.timeout+messages.MaxWait*time.Second)
	if err != nil {
		return nil, err
	}
	return messages.DecodeReply(m)
}

// pass asks the fleet's A2E worker.
func (c a2eClient) pass(ctx context.Context, verb string, req []byte, most time.Duration) ([]byte, error) {
	own := *c.client
	own.timeout = most
	m, err := own.request(ctx, subjects.API(c.from, "a2e", verb), req)
	switch {
	case errors.Is(err, bus.ErrDenied):
		return nil, subjects.Errorf(subjects.CodeForbidden, "these credentials may not ask as %s", c.from).
			WithRemedy("name yourself with --as, or use that identity's credentials")
	case err != nil:
		return nil, subjects.Errorf(subjects.CodeUnavailable, "no A2E worker answers: %w", err).
			WithRemedy("parley serve --workers a2e  starts one").RetryAfter(time.Second)
	}
	return m.Data, nil
}

var _ a2e.Backend = a2eClient{}
