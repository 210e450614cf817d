package bus

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"parley/subjects"
)

// Guard judges what others sent before a handler sees it. An error refuses: an
// *subjects.Error is what the sender is answered. A nil function judges
// nothing, and costs nothing.
type Guard struct {
	// Message judges requests, and messages as they come. reader tells one
	// subscription from another, all of which get the same; Shared says that one
	// of several receivers got it, so that none of them sees all.
	Message func(ctx context.Context, m Msg, reader uint64) error
	// Stored judges messages of streams as they are read, repeats of what was
	// read before among them. After an error of the code unavailable or internal
	// it is asked again.
	Stored func(m Msg) error
}

// Shared is the reader of what goes to one of several receivers.
const Shared uint64 = 0

// Signer returns the headers that prove who sends data, with the headers h, to
// subject; nil where there is nothing to prove.
type Signer func(subject string, data []byte, h Header) Header

// SetGuard has everything judged that comes in by Subscribe, Serve, Consume and
// Tail from now on.
func (b *Bus) SetGuard(g Guard) { b.guard.Store(&g) }

// SetSigner has everything signed that is published, requested and stored from
// now on, each try anew.
func (b *Bus) SetSigner(s Signer) { b.signer.Store(&s) }

// Conn is the connection itself, for the packages below this one.
func (b *Bus) Conn() *nats.Conn { return b.nc }

// admitTry bounds the judging of one message.
const admitTry = 5 * time.Second

// judging is how many messages of one subscription are judged at a time.
const judging = 256

// admit is what the guard says of a message; nil without one.
func (b *Bus) admit(ctx context.Context, m Msg, reader uint64) error {
	g := b.guard.Load()
	if g == nil || g.Message == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, admitTry)
	defer cancel()
	return g.Message(ctx, m, reader)
}

// admitStored is what the guard says of a stream's message.
func (b *Bus) admitStored(m Msg) error {
	if g := b.guard.Load(); g != nil && g.Stored != nil {
		return g.Stored(m)
	}
	return nil
}

// unjudged reports whether a refusal says nothing of the message: it may be
// admitted later.
func unjudged(err error) bool {
	code := subjects.CodeOf(err)
	return code == subjects.CodeUnavailable || code == subjects.CodeInternal
}

// guarded calls fn for what the guard admits, and answers what it does not.
func (b *Bus) guarded(m Msg, reader uint64, fn func(Msg)) {
	err := b.admit(context.Background(), m, reader)
	if err == nil {
		b.handle(m, fn)
		return
	}
	b.log.Debug("message refused", slog.String("subject", m.Subject), slog.Any("error", err))
	if m.Reply == "" {
		return
	}
	if err := m.Respond(Refusal(err)); err != nil {
		b.log.Warn("refusal not sent", slog.String("subject", m.Subject), slog.Any("error", err))
	}
}

// signed is m with the headers that prove who sends it.
func (b *Bus) signed(m *nats.Msg) *nats.Msg {
	s := b.signer.Load()
	if s == nil {
		return m
	}
	proof := (*s)(m.Subject, m.Data, Header(m.Header))
	if proof == nil {
		return m
	}
	header := make(nats.Header, len(m.Header)+len(proof))
	maps.Copy(header, m.Header)
	maps.Copy(header, nats.Header(proof))
	return &nats.Msg{Subject: m.Subject, Reply: m.Reply, Header: header, Data: m.Data}
}
