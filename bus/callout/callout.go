// Package callout answers a NATS server that asks who may connect (auth
// callout). It is a package of its own so that clients do not link it.
//
// Several processes may serve; each question goes to one of them. What is not
// answered in time the server refuses, so whatever breaks here, nobody gets in
// by it.
package callout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	service "github.com/synadia-io/callout.go"

	"parley/bus"
)

// Timeout is how long a decision may take. Servers wait no longer than their
// authorization timeout, which is 2 s unless configured.
const Timeout = 1500 * time.Millisecond

// endpoints is how many questions are answered at a time.
const endpoints = 16

// ErrSilent says that a question is to be left without an answer, so that the
// server refuses when its time is over.
var ErrSilent = errors.New("no answer")

// Config says what to answer.
type Config struct {
	Name    string
	Issuer  string // seed of the account key that the servers know as issuer
	XKey    string // seed of the curve key that they encrypt with; "" for none
	Account string // of those that are let in, default $G
	Log     *slog.Logger

	// Decide says what a connection may; an error refuses it, and goes into the
	// server's log, not to the client.
	Decide func(ctx context.Context, r Request) (Grant, error)
}

// Request is who wants to connect.
type Request struct {
	User, Password, Token string
	Host                  string // its address
	Client                string // what it calls itself
	Kind                  string // how it connects: STANDARD, WEBSOCKET, LEAFNODE …
}

// Grant is what a connection may, and until when.
type Grant struct {
	User               string
	Publish, Subscribe []string
	Responds           bool // it may answer requests
	Expires            time.Time
}

// Serve answers until stop is called, which waits for those in hand. An error
// may name a file or an option, never a seed.
func Serve(ctx context.Context, b *bus.Bus, c Config) (stop func(), err error) {
	issuer, err := nkeys.FromSeed([]byte(c.Issuer))
	if err != nil || !strings.HasPrefix(c.Issuer, "SA") {
		return nil, errors.New("auth callout: the issuer is not the seed of an account key (SA…)")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Account = cmp.Or(c.Account, "$G")
	s := &server{cfg: c, issuer: issuer}
	s.work, s.abort = context.WithCancel(context.WithoutCancel(ctx))
	opts := []service.Option{
		service.Name(c.Name), service.ResponseSignerKey(issuer), service.ServiceEndpoints(endpoints),
		service.Logger(logger{c.Log}), service.ErrCallback(func(error) {}), service.Authorizer(s.authorize),
	}
	if c.XKey != "" {
		xkey, xerr := nkeys.FromCurveSeed([]byte(c.XKey))
		if xerr != nil {
			return nil, errors.New("auth callout: the encryption key is not the seed of a curve key (SX…)")
		}
		opts = append(opts, service.EncryptionKey(xkey))
	}
	svc, err := service.NewAuthorizationService(b.Conn(), opts...)
	if err != nil {
		s.abort()
		return nil, fmt.Errorf("auth callout: %w", err)
	}
	if err := b.Ping(ctx); err != nil { // the server knows the subscriptions
		s.abort()
		return nil, errors.Join(fmt.Errorf("auth callout: %w", err), svc.Stop())
	}
	return sync.OnceFunc(func() {
		if err := svc.Stop(); err != nil {
			c.Log.Debug("auth callout not stopped", slog.Any("error", err))
		}
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
		timer := time.AfterFunc(Timeout, s.abort)
		defer timer.Stop()
		s.inHand.Wait()
		s.abort()
	}), nil
}

type server struct {
	cfg    Config
	issuer nkeys.KeyPair
	work   context.Context //nolint:containedctx // the decisions' context, lives as long as the service
	abort  context.CancelFunc

	mu       sync.Mutex
	stopping bool // guarded by mu
	inHand   sync.WaitGroup
}

// begin counts a question in; false once stop was called.
func (s *server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.inHand.Add(1)
	}
	return !s.stopping
}

// authorize answers one question with a user's claims, or not at all.
func (s *server) authorize(r *jwt.AuthorizationRequest) (token string, err error) {
	if !s.begin() {
		return "", service.ErrAbortRequest
	}
	defer s.inHand.Done()
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("auth callout panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			token, err = "", service.ErrAbortRequest
		}
	}()
	ctx, cancel := context.WithTimeout(s.work, Timeout)
	defer cancel()
	g, err := s.cfg.Decide(ctx, Request{
		User: r.ConnectOptions.Username, Password: r.ConnectOptions.Password, Token: r.ConnectOptions.Token,
		Host: r.ClientInformation.Host, Client: r.ClientInformation.Name, Kind: r.ClientInformation.Type,
	})
	switch {
	case errors.Is(err, ErrSilent), ctx.Err() != nil:
		return "", service.ErrAbortRequest
	case err != nil:
		return "", err
	case g.User == "" || len(g.Publish)+len(g.Subscribe) == 0: // no limit would be all
		return "", errors.New("nothing is granted")
	}
	c := jwt.NewUserClaims(r.UserNkey)
	c.Name, c.Audience, c.Expires = g.User, s.cfg.Account, g.Expires.Unix()
	c.Pub.Allow.Add(g.Publish...)
	c.Sub.Allow.Add(g.Subscribe...)
	if g.Responds {
		c.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: 2 * time.Minute}
	}
	return c.Encode(s.issuer)
}

// logger hands the service's lines to slog, where the decisions are told
// already.
type logger struct{ log *slog.Logger }

func (l logger) say(format string, v []any) {
	l.log.Debug("auth callout", slog.String("text", strings.TrimSpace(fmt.Sprintf(format, v...))))
}

func (l logger) Noticef(format string, v ...any) { l.say(format, v) }
func (l logger) Warnf(format string, v ...any)   { l.say(format, v) }
func (l logger) Fatalf(format string, v ...any)  { l.say(format, v) }
func (l logger) Errorf(format string, v ...any)  { l.say(format, v) }
func (l logger) Debugf(format string, v ...any)  { l.say(format, v) }
func (l logger) Tracef(format string, v ...any)  { l.say(format, v) }
