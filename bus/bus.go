package bus

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/natscontext"

	"parley/subjects"
)

// closeTimeout bounds how long Close and Drain wait.
const closeTimeout = 5 * time.Second

// Config says how to reach NATS. One of URL, Context and InProcess is needed.
type Config struct {
	URL         string // nats://host:port, comma separated
	Context     string // a NATS CLI context: its name, or the path of its file
	Creds, NKey string // paths of a credentials file, of an nkey seed file

	User, Password, Token string
	// Credentials gives user and password anew for each connection, where they
	// cannot be used twice. A connection that is lost is then tried again for
	// ever, however often it was refused.
	Credentials func() (user, password string)

	CA, Cert, Key string // paths of PEM files
	TLSFirst      bool   // TLS before the server's INFO

	Name        string                     // of the client, shown by nats server report connections
	InboxPrefix string                     // default _INBOX
	InProcess   nats.InProcessConnProvider // an embedded server

	// SyncAlways says that the server fsyncs before it acknowledges
	// (sync_interval: always). CommitAuto groups the writes of unreplicated
	// streams only then. No client can see it: where it is not so, only speed
	// is lost.
	SyncAlways bool

	// Open is an address at which this process has everybody who reaches it use
	// the fleet, "" where it has none. Its services tell.
	Open string

	// Refused hears of each request to a Service that was answered with an error
	// of the contract, and with which; nil: nobody does. It must not block.
	Refused func(subject string, err *subjects.Error)

	ConnectTimeout time.Duration // in total, default 10 s
	Log            *slog.Logger  // nil discards

	// FakeTime is for tests in a synctest bubble, see bustest: whatever would
	// put a timer of the bubble into the client's pool is done otherwise.
	// Subscriptions are drained in a way that may drop what arrives in the very
	// moment, and a connection that is lost stays lost.
	FakeTime bool
}

func (c Config) withDefaults() Config {
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.URL == "" && c.InProcess != nil {
		c.URL = "nats://in-process"
	}
	return c
}

func (c Config) validate() error {
	if c.URL == "" && c.Context == "" {
		return errors.New("bus: no server given: set a URL or a NATS context")
	}
	return nil
}

// Bus is a connection to NATS. All methods are safe for concurrent use.
type Bus struct {
	// Fixed after Connect.
	cfg Config
	log *slog.Logger
	nc  *nats.Conn
	js  jetstream.JetStream
	api string // prefix of the JetStream API, "$JS.API."

	epoch  atomic.Pointer[epoch] // of the connection that is up, replaced at each reconnect
	guard  atomic.Pointer[Guard]
	signer atomic.Pointer[Signer]

	readers atomic.Uint64 // subscriptions that were made
	limited atomic.Bool   // the server may deny what is published

	clock clock

	skips skipped // messages that nobody here could read
	id    string  // of this process among those of the fleet

	heard sync.Map // by stream: *atomic.Uint64, the highest sequence that tails have heard

	mu      sync.Mutex
	waiting map[*waiter]struct{} // guarded by mu
}

// epoch is the life of one connection: ctx ends when the next one is up. What
// was asked before and not answered will not be answered.
type epoch struct {
	tries tries
	ctx   context.Context //nolint:containedctx // it is the signal itself
	end   context.CancelFunc
}

func newEpoch() *epoch {
	ctx, end := context.WithCancel(context.Background())
	return &epoch{ctx: ctx, end: end}
}

// Connect connects within c.ConnectTimeout and keeps trying till then; the
// error names the address and the last cause. Once connected it reconnects for
// ever.
func Connect(ctx context.Context, c Config) (*Bus, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	b := &Bus{cfg: c, log: c.Log, id: crand.Text(), waiting: map[*waiter]struct{}{}}
	b.epoch.Store(newEpoch())
	b.limited.Store(c.asksWho())
	opts, err := b.options()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	var settings natscontext.Settings
	var last error
	connect := func() error {
		if c.Context != "" {
			b.nc, settings, last = natscontext.Connect(contextPath(c.Context), opts...)
		} else {
			b.nc, last = nats.Connect(c.URL, opts...)
		}
		if last != nil && !retryConnect(last) {
			return backoff.Permanent(last)
		}
		return last
	}
	if err := backoff.Retry(connect, backoff.WithContext(newBackoff(50*time.Millisecond, time.Second), ctx)); err != nil {
		return nil, redactedError{c.URL, connectError(cmp.Or(c.URL, "context "+c.Context), err, last)}
	}
	if err := b.openJetStream(settings); err != nil {
		b.nc.Close()
		return nil, err
	}
	return b, nil
}

func (b *Bus) openJetStream(s natscontext.Settings) error {
	var err error
	switch {
	case s.JSDomain != "":
		b.api = "$JS." + s.JSDomain + ".API."
		b.js, err = jetstream.NewWithDomain(b.nc, s.JSDomain)
	case s.JSAPIPrefix != "":
		b.api = strings.TrimSuffix(s.JSAPIPrefix, ".") + "."
		b.js, err = jetstream.NewWithAPIPrefix(b.nc, strings.TrimSuffix(s.JSAPIPrefix, "."))
	default:
		b.api = jetstream.DefaultAPIPrefix
		b.js, err = jetstream.New(b.nc)
	}
	return wrap("open JetStream", err)
}

// contextPath makes the path of a context file absolute; a name stays.
func contextPath(c string) string {
	if strings.ContainsRune(c, filepath.Separator) || strings.HasSuffix(c, ".json") {
		if abs, err := filepath.Abs(c); err == nil {
			return abs
		}
	}
	return c
}

// retryConnect reports whether waiting may help. Wrong credentials, unreadable
// files and certificates that nobody trusts do not heal by themselves.
func retryConnect(err error) bool {
	if mapped := mapError(err); errors.Is(mapped, ErrDenied) || errors.Is(mapped, ErrTLS) {
		return false
	}
	_, network := errors.AsType[*net.OpError](err)
	_, name := errors.AsType[*net.DNSError](err)
	return network || name || errors.Is(err, io.EOF) || errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrStaleConnection)
}

// connectError is what ended the tries, and the last one's own error.
func connectError(where string, err, last error) error {
	switch {
	case errors.Is(last, nats.ErrNoServers): // that is what the client makes of it
		last = errors.New("connection refused: nobody listens there")
	case last != nil:
		last = mapError(last)
	}
	if end := mapError(err); last != nil && (errors.Is(end, ErrTimeout) || errors.Is(end, context.Canceled)) && !errors.Is(last, ErrTimeout) {
		return fmt.Errorf("connect to %s: %w (%w)", where, last, end)
	}
	if last == nil { // not even tried
		last = mapError(err)
	}
	return fmt.Errorf("connect to %s: %w", where, last)
}

func newBackoff(first, most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first), backoff.WithMaxInterval(most), backoff.WithMaxElapsedTime(0))
}

func (b *Bus) options() ([]nats.Option, error) {
	c := b.cfg
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(min(c.ConnectTimeout, 5*time.Second)),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // the credentials file may be renewed
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.DrainTimeout(closeTimeout),
		// Its default, 65 536, has every read in batches clear half a megabyte.
		nats.SyncQueueLen(4 * maxRead),
		nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(b.onError),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err == nil { // as asked
				b.log.Debug("nats disconnected")
				return
			}
			b.log.Warn("nats disconnected", slog.Any("error", err))
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.log.Info("nats reconnected", slog.String("url", nc.ConnectedUrlRedacted()))
			b.onReconnect()
		}),
	}
	if c.FakeTime {
		opts = append(opts, nats.NoReconnect())
	}
	if c.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.InProcess))
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.Credentials != nil {
		opts = append(opts, nats.UserInfoHandler(c.Credentials), nats.IgnoreAuthErrorAbort(), nats.CustomReconnectDelay(reconnectDelay))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(c.Token))
	}
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.Creds))
	}
	if c.NKey != "" {
		nkey, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("read nkey seed %s: %w", c.NKey, mapError(err))
		}
		opts = append(opts, nkey)
	}
	if c.CA != "" {
		opts = append(opts, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		opts = append(opts, nats.ClientCert(c.Cert, c.Key))
	}
	if c.TLSFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts, nil
}

// reconnectDelay is how long to wait after having tried every server so often:
// a quarter of a second and more, up to 15 s.
func reconnectDelay(tries int) time.Duration {
	d := min(250*time.Millisecond<<min(tries, 8), 10*time.Second)
	return d + rand.N(d/2) //nolint:gosec // jitter
}

// Close drains subscriptions and what is still to be sent, for at most 5 s.
func (b *Bus) Close() {
	if b.cfg.FakeTime {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if b.nc.IsConnected() {
			_ = b.Ping(ctx)
		}
		b.nc.Close()
		return
	}
	closed := make(chan struct{})
	b.nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	if b.nc.IsClosed() {
		return
	}
	if !b.nc.IsConnected() || b.nc.Drain() != nil { // nobody is there to drain to
		b.nc.Close()
		return
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		b.nc.Close()
	}
}

// MaxPayload is the largest message, in bytes, that the server takes.
func (b *Bus) MaxPayload() int64 { return b.nc.MaxPayload() }

// Connected reports whether the connection is up now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// Ping makes a round trip to the server: what was published before it has
// been taken by the server when it returns nil.
func (b *Bus) Ping(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, closeTimeout)
	defer cancel()
	return wrap("ping", b.nc.FlushWithContext(ctx))
}

// reconnected returns a channel that is closed at the next reconnect.
func (b *Bus) reconnected() <-chan struct{} { return b.epoch.Load().ctx.Done() }

func (b *Bus) onReconnect() { b.epoch.Swap(newEpoch()).end() }

// untilReconnect calls f at the next reconnect, unless stop is called before.
func (b *Bus) untilReconnect(f func()) (stop func() bool) {
	return context.AfterFunc(b.epoch.Load().ctx, f)
}

// The server's text is the only place that names the subject.
var deniedPublish = regexp.MustCompile(`(?i)publish to "(\S+)"`)

func (b *Bus) onError(_ *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		if m := deniedPublish.FindStringSubmatch(err.Error()); m != nil {
			subject = m[1]
			b.deny(subject)
		}
		b.log.Error("nats permission denied", slog.String("subject", subject), slog.Any("error", err))
	case errors.Is(err, nats.ErrSlowConsumer):
		dropped := 0
		if sub != nil {
			dropped, _ = sub.Dropped()
		}
		b.log.Error("nats slow consumer, messages dropped", slog.String("subject", subject), slog.Int("dropped", dropped))
	default:
		b.log.Warn("nats error", slog.String("subject", subject), slog.Any("error", err))
	}
}

func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}
