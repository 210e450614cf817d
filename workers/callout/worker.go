package callout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"parley/bus"
	"parley/bus/callout"
	"parley/subjects"
)

// DefaultTTL is how long a connection lasts before it has to prove itself anew.
const DefaultTTL = 15 * time.Minute

// Resolver finds the addresses of the hosts that records name.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config is what a callout worker needs. Bus and Identities are required.
type Config struct {
	Bus        *bus.Bus
	Identities *Identities
	Operators  []subjects.AgentID // may change identities
	Issuer     string             // seed of the account key that servers know as issuer; "": no server asks
	XKey       string             // seed of the curve key that they encrypt with; "" for none
	Account    string             // of those that are let in; "" for a server without accounts
	TTL        time.Duration      // of a connection, default DefaultTTL
	Resolver   Resolver           // default the system's
	Version    string             // of the program, SemVer; shown by nats micro ls
	Log        *slog.Logger       // nil: discarded
}

func (c Config) withDefaults() Config {
	if len(c.Operators) == 0 {
		c.Operators = []subjects.AgentID{"operator"}
	}
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Bus == nil || c.Identities == nil:
		return errors.New("callout: Config.Bus and Config.Identities are required")
	case c.TTL < time.Second:
		return fmt.Errorf("callout: connections of %s are too short", c.TTL)
	}
	return nil
}

// Looks into the store for somebody whose proof is wrong by what is known here:
// the record may be newer.
const (
	looksPerSecond = 10
	looksAtOnce    = 20
)

// Worker is a callout worker. New is required.
type Worker struct {
	// Fixed after New.
	cfg   Config
	ids   *Identities
	log   *slog.Logger
	hosts *hosts
	looks *rate.Limiter

	ready atomic.Bool
}

// New checks cfg and wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, ids: cfg.Identities, log: cfg.Log.With(slog.String("component", "callout")),
		hosts: newHosts(cfg.Resolver), looks: rate.NewLimiter(looksPerSecond, looksAtOnce),
	}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "callout" }

// Ready returns nil once the worker answers.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("not serving yet")
	}
	return nil
}

// Run serves until ctx ends, answers what is in hand and returns.
func (w *Worker) Run(ctx context.Context) error {
	stop, err := w.cfg.Bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("callout: serve the API: %w", err)
	}
	defer stop()
	if w.cfg.Issuer != "" {
		stopCallout, err := callout.Serve(ctx, w.cfg.Bus, callout.Config{
			Name: "auth-callout", Issuer: w.cfg.Issuer, XKey: w.cfg.XKey, Account: w.cfg.Account,
			Log: w.log, Decide: w.decide,
		})
		if err != nil {
			return fmt.Errorf("callout: %w", err)
		}
		defer stopCallout()
	}
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("callout worker serves", slog.Bool("answers_servers", w.cfg.Issuer != ""))
	<-ctx.Done()
	return nil
}
