package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// askTimeout is how long a call of the fleet's API may take, the time included
// in which a worker is replaced.
const askTimeout = 15 * time.Second

// writeTimeout is how long a reader may take nothing, unless Config says.
const writeTimeout = 30 * time.Second

// keepAlive is how long a stream is quiet at most, unless Config says: the official
// Python client takes one for lost after 5 s.
const keepAlive = 3 * time.Second

// errDraining ends the streams of a gateway that stops.
var errDraining = errors.New("the gateway is stopping")

// Config is what a gateway needs.
type Config struct {
	Bus         *bus.Bus // required
	Name        string   // of the fleet, in its card; absent Parley
	Description string   // in its card
	Version     string   // in its card
	URL         string   // where clients reach it; absent: as each request says
	Auth        Auth     // who may call; absent: everybody on this machine
	Open        bool     // without Auth: everybody may, from anywhere
	Origins     []string // of the web, that may call
	Rate        float64  // calls per second and caller; 0: no limit
	CardKey     []byte   // signs cards, with URL: a private key, PKCS #8 in PEM; absent: none does
	Push        bool     // push notifications, by the outbox of the webhooks, while one answers
	NoStreaming bool     // streams are neither declared nor served
	NoLegacy    bool     // clients of version 0.3 are not served
	Required    []string // extensions that a message must activate, by their URIs
	// PushEndpoint is the webhook endpoint that signs them; absent: none does.
	PushEndpoint string
	KeepEnded    int // ended tasks that routers keep at most; absent: their default

	// NATS is the root of the subjects on which the NATS binding is served, such
	// as fleet.a2a; absent: it is not. NATSURL is where clients reach the server,
	// for cards; absent: cards do not name the binding.
	NATS, NATSURL string
	Registry      Registry // a shared one that is told the fleet's card

	KeepAlive    time.Duration // between comments on a quiet stream; absent 3 s
	NATSAlive    time.Duration // between alive frames of a call over NATS; absent 15 s
	WriteTimeout time.Duration // for a reader that does not read; absent 30 s

	Log *slog.Logger // nil: discarded
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "Parley")
	c.Description = cmp.Or(c.Description, "A fleet of agents: it gives each task to the one that fits best, and sees it through")
	c.Version = cmp.Or(c.Version, "0.0.0")
	c.Registry.Each = cmp.Or(c.Registry.Each, DefaultAnnounceEach)
	c.KeepAlive = cmp.Or(c.KeepAlive, keepAlive)
	c.NATSAlive = cmp.Or(c.NATSAlive, 15*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, writeTimeout)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Worker is a gateway. New is required.
type Worker struct {
	// fixed after New
	cfg             Config
	log             *slog.Logger
	auth            *authenticator
	limits          *limits
	ops             map[string]*operation
	rpc             *grpc.Server
	publicHost      string          // of cfg.URL, without a port
	publicAuthority string          // of cfg.URL
	work            context.Context //nolint:containedctx // of the streams: it ends when Run's does
	stop            context.CancelFunc

	signer  *cardSigner // nil: cards are not signed
	feed    *feed
	push    *pusher // nil: not supported
	nats    *natsDoor
	listing shared[[]fleet.AgentView]
	hooks   shared[time.Time] // when a worker was seen last that delivers push notifications
	cards   cardPages
	ready   atomic.Bool
}

// New checks cfg and wires a gateway; it starts nothing. Its Handlers answer
// once Run has caught up.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if cfg.Bus == nil {
		return nil, errors.New("gateway: no bus")
	}
	w := &Worker{
		cfg: cfg, log: cfg.Log.With(slog.String("component", "gateway")),
		auth: newAuthenticator(cfg.Auth), limits: newLimits(cfg.Rate),
	}
	if cfg.URL != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("gateway: %q is not an address such as https://fleet.example.org", cfg.URL)
		}
		for len(w.cfg.URL) > 0 && w.cfg.URL[len(w.cfg.URL)-1] == '/' {
			w.cfg.URL = w.cfg.URL[:len(w.cfg.URL)-1]
		}
		w.publicHost, w.publicAuthority = u.Hostname(), u.Host
	}
	if err := cfg.Registry.check(cfg.URL); err != nil {
		return nil, err
	}
	for _, id := range cfg.Auth.Tokens {
		if _, err := subjects.ParseAgentID(string(id)); err != nil {
			return nil, fmt.Errorf("gateway: a token's caller: %w", err)
		}
	}
	if len(cfg.CardKey) > 0 {
		if cfg.URL == "" {
			return nil, errors.New("gateway: signed cards need Config.URL: without it a card names the host of each request")
		}
		var err error
		if w.signer, err = newCardSigner(cfg.CardKey, w.cfg.URL+pathKeys); err != nil {
			return nil, fmt.Errorf("gateway: the key of the cards: %w", err)
		}
	}
	w.feed = newFeed(cfg.Bus.Skip)
	w.feed.maxEnded = cmp.Or(cfg.KeepEnded, maxEnded)
	if cfg.Push {
		w.push = newPusher(w)
		w.feed.heardOf = w.push.mark
	}
	w.ops = w.operations()
	w.rpc = newGRPC(w)
	w.nats = newNATS(w, cfg.NATS)
	w.work, w.stop = context.WithCancel(context.Background())
	return w, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "gateway" }

// Ready returns nil once the gateway knows every task and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the tasks")
	}
	return nil
}

// Run reads the records of all tasks until ctx ends; then it ends the streams,
// whose clients resume elsewhere. A gateway runs once.
func (w *Worker) Run(ctx context.Context) error {
	defer w.stop()
	defer w.ready.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if w.push != nil {
		var err error
		if w.push.kv, err = w.cfg.Bus.KV(ctx, subjects.BucketPush); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		var pushing sync.WaitGroup
		defer pushing.Wait()
		defer cancel()
		pushing.Go(func() { fail(w.push.run(run)) })
	}
	if w.cfg.Registry.URL != "" {
		var telling sync.WaitGroup
		defer telling.Wait()
		defer cancel()
		telling.Go(func() { w.announce(ctx) })
	}
	leave, err := w.cfg.Bus.Serve(ctx, bus.Service{ // for who asks which workers there are
		Name: w.Name(), Version: w.cfg.Version, Description: "Opens the fleet to A2A", Metadata: map[string]string{"kind": w.Name()},
	})
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	defer leave()
	progress, err := w.cfg.Bus.Subscribe(subjects.ProgressPattern, "", w.feed.progress)
	if err != nil {
		return fmt.Errorf("gateway: hear progress: %w", err)
	}
	defer func() { _ = progress.Unsubscribe() }()
	var over sync.WaitGroup
	defer over.Wait()
	defer fail(nil)
	err = w.cfg.Bus.Tail(run, bus.Tail{
		Stream: subjects.StreamTasks, Subjects: []string{subjects.TaskPattern}, LastPerSubject: true,
		Handle: w.feed.record,
		CaughtUp: func(uint64) {
			serving := func() {
				w.ready.Store(true)
				w.log.Info("gateway serves")
			}
			if w.cfg.NATS == "" {
				serving()
				return
			}
			over.Go(func() {
				if err := w.nats.run(run, serving); err != nil {
					fail(err)
				}
			})
		},
	})
	if err == nil && ctx.Err() == nil {
		err = context.Cause(run) // of the NATS binding, or of push notifications
	}
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}
