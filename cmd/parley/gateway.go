package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/handshake"
	"parley/workers"
	"parley/workers/access"
	"parley/workers/gateway"
	"parley/workers/gateway/a2anats"
)

// gateway makes the gateway as the settings say; its pages go to h.
func (a *app) gateway(b *bus.Bus, log *slog.Logger, h *health) (workers.Worker, error) {
	c := a.conf
	auth, err := a.gatewayAuth(c.HTTP, "the A2A gateway", b, log)
	if err != nil {
		return workers.Worker{}, err
	}
	cfg := gateway.Config{
		Bus: b, Name: c.A2AName, Version: semver(), URL: c.A2AURL, Open: c.A2AOpen, Origins: c.A2AOrigin, Rate: c.A2ARate, Log: log,
		Push: !slices.Contains(c.A2AWithout, "push"), NoStreaming: slices.Contains(c.A2AWithout, "streaming"),
		NoLegacy: slices.Contains(c.A2AWithout, "0.3"), Required: c.A2ARequire, PushEndpoint: c.A2APush, KeepEnded: c.KeepEnded, Auth: auth, NATS: a2anats.Root, NATSURL: c.A2ANATS,
		Registry: gateway.Registry{URL: c.A2ARegistry, Token: c.A2ARegToken, Each: time.Duration(c.A2ARegEach)},
	}
	for _, what := range c.A2AWithout {
		if !slices.Contains([]string{"push", "streaming", "0.3"}, what) {
			return workers.Worker{}, usage("--a2a-without: expected push, streaming or 0.3, got %q", what)
		}
	}
	if c.A2ARegistry != "" && c.A2AURL == "" {
		return workers.Worker{}, usage("--a2a-registry: the fleet's card must say where clients reach it").next("give --a2a-url, too")
	}
	if c.A2AKey != "" && c.A2AURL == "" {
		return workers.Worker{}, usage("--a2a-key: a signed card must name an address of ours, not the host that a request names").next("give --a2a-url, too")
	}
	if c.A2AKey != "" {
		if cfg.CardKey, err = os.ReadFile(c.A2AKey); err != nil {
			return workers.Worker{}, usage("--a2a-key: %w", err)
		}
	}
	w, err := gateway.New(cfg)
	if err != nil {
		return workers.Worker{}, err
	}
	for pattern, page := range w.Handlers() {
		h.serve(pattern, page)
	}
	return workers.Worker{Name: w.Name(), Run: w.Run, Ready: w.Ready}, nil
}

// httpDoor is that of what stands beside the gateway, at address: who may call
// is said for all of them at once.
func (a *app) httpDoor(b *bus.Bus, address, what string, anonymous subjects.AgentID, log *slog.Logger) (*gateway.Door, error) {
	auth, err := a.gatewayAuth(address, what, b, log)
	if err != nil {
		return nil, err
	}
	c := a.conf
	door, err := gateway.NewDoor(gateway.DoorConfig{Auth: auth, Open: c.A2AOpen, Origins: c.A2AOrigin, Rate: c.A2ARate, URL: c.A2AURL, Anonymous: anonymous})
	if err != nil {
		return nil, usage("--a2a-url: %w", err)
	}
	return door, nil
}

// gatewayAuth is who may call, over HTTP at address, what is called what.
func (a *app) gatewayAuth(address, what string, b *bus.Bus, log *slog.Logger) (gateway.Auth, error) {
	c := a.conf
	tokens, err := readTokens("--a2a-tokens", c.A2ATokens)
	if err != nil {
		return gateway.Auth{}, err
	}
	if len(tokens) == 0 && c.A2AIssuer == "" && c.HTTPCA == "" && !c.A2AOpen && !localOnly(address) {
		return gateway.Auth{}, usage("--http %s can be reached from other machines, and %s would ask nobody who they are", address, what).
			next("give --a2a-tokens, --a2a-issuer or --http-client-ca; or --a2a-open; or leave gateway and a2e out of --workers")
	}
	if c.A2AIssuer != "" && c.A2AAud == "" {
		return gateway.Auth{}, usage("--a2a-issuer needs --a2a-audience: a token that is meant for somebody else is none for the fleet")
	}
	notes := workers.NewNotes(b, log)
	refused := func(ctx context.Context, address, why string) {
		notes.Refuse(ctx, "", access.Unknown, handshake.EventAuthRefused, workers.Refusal{
			Code: subjects.CodeAuthFailed, Action: "http", Message: workers.Clip(why), Address: workers.Clip(address),
		})
	}
	return gateway.Auth{Tokens: tokens, Issuer: c.A2AIssuer, Audience: c.A2AAud, Certificates: c.HTTPCA != "", Now: b.Now, Refused: refused}, nil
}

// open is the address at which this process lets everybody use the fleet who
// reaches it, "" where it asks who they are, or only this machine reaches it.
func (c *config) open() string {
	doors := c.MCP || has(c.Workers, "gateway") || has(c.Workers, "a2e")
	if !c.A2AOpen || !doors || c.A2ATokens != "" || c.A2AIssuer != "" || c.HTTPCA != "" || localOnly(c.HTTP) {
		return ""
	}
	return c.HTTP
}

// localOnly reports whether an address is reached from this machine alone.
func localOnly(address string) bool {
	if address == "off" || address == "" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// readTokens reads a file of lines "caller token", which a flag names.
func readTokens(flag, path string) (map[string]subjects.AgentID, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // none is a valid setting
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("%s: %w", flag, err)
	}
	tokens := make(map[string]subjects.AgentID)
	s := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		caller, token, _ := strings.Cut(line, " ")
		token = strings.TrimSpace(token)
		id, err := subjects.ParseAgentID(caller)
		if err != nil || len(token) < minToken || strings.ContainsAny(token, " \t") {
			return nil, usage("%s %s, line %d: expected a caller's id and a token of at least %d characters", flag, path, n, minToken)
		}
		if _, twice := tokens[token]; twice {
			return nil, usage("%s %s, line %d: the token is there twice", flag, path, n)
		}
		tokens[token] = id
	}
	if len(tokens) == 0 {
		return nil, usage("%s %s names nobody", flag, path)
	}
	return tokens, s.Err()
}

const minToken = 16

// httpTLS is the TLS of the HTTP port.
func (c *config) httpTLS() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.HTTPCert, c.HTTPKey)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.HTTPCA == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(c.HTTPCA)
	if err != nil {
		return nil, err
	}
	conf.ClientCAs = x509.NewCertPool()
	if !conf.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %w", c.HTTPCA, errors.New("no certificate in it"))
	}
	conf.ClientAuth = tls.VerifyClientCertIfGiven
	return conf, nil
}
