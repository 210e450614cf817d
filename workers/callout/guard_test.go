package callout_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers/callout"
)

// fleetOf is an open server with n processes of a fleet that wants signed
// messages, each with a door for task get, results and dispatches.
type fleetOf struct {
	*world
	server *bustest.Server
	served atomic.Int64 // calls of task get
	taken  atomic.Int64 // results
	queued chan bus.Msg // dispatches
	client *bus.Bus
	key    identity.Key
}

func newFleet(t *testing.T, n int) *fleetOf {
	t.Helper()
	f := &fleetOf{server: bustest.New(t), queued: make(chan bus.Msg, 100)}
	f.world = &world{server: f.server, ttl: time.Hour}
	f.worker = f.server.Bus(t)
	for i := range n {
		b := f.server.Connect(t)
		ids := open(t, b, callout.Terms{Signed: true})
		w, err := callout.New(callout.Config{Bus: b, Identities: ids})
		if err != nil {
			t.Fatal(err)
		}
		bustest.Serve(t, w)
		stop, err := b.Serve(t.Context(), bus.Service{Name: "router", Version: "1.0.0", Endpoints: []bus.Endpoint{{
			Name: "get", Subject: subjects.APIPattern("task", "get"),
			Handle: func(context.Context, bus.Msg) ([]byte, error) { f.served.Add(1); return []byte("{}"), nil },
		}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		probe, err := b.Subscribe(subjects.APIPattern("task", probeOf(i)), "", func(m bus.Msg) { _ = m.Respond([]byte("{}"), nil) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = probe.Drain() })
		sub, err := b.Subscribe(subjects.ResultPattern, "routers", func(m bus.Msg) { f.taken.Add(1); _ = m.Respond([]byte("{}"), nil) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Drain() })
		bustest.Run(t, func(ctx context.Context) error {
			return b.Consume(ctx, bus.Consumer{Stream: subjects.StreamInbox, Durable: "routers", DeadLetter: true}, func(_ context.Context, m bus.Msg) error {
				f.queued <- m
				if m.Delivered == 1 {
					return bus.Later(errors.New("once more"), time.Millisecond)
				}
				return nil
			})
		})
		if err := b.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// Whoever signs as a worker may add an identity; so may an operator.
	admin := f.server.Connect(t)
	open(t, admin, callout.Terms{Signed: true})
	f.worker = admin
	f.client = f.server.Connect(t)
	f.key = f.add(t, identity.Add{AgentID: "bot"})
	return f
}

// signed are the headers of a message by bot.
func (f *fleetOf) signed(subject string, body []byte, at time.Time) bus.Header {
	p := identity.Proof{AgentID: "bot", Timestamp: identity.Timestamp(at), Nonce: rand.Text()}
	p.Sign(f.key, subject, body)
	return headers(&p)
}

func headers(p *identity.Proof) bus.Header {
	return bus.Header{
		subjects.HeaderAgent: {string(p.AgentID)}, subjects.HeaderTimestamp: {p.Timestamp},
		subjects.HeaderNonce: {p.Nonce}, subjects.HeaderSignature: {p.Signature},
	}
}

func (f *fleetOf) ask(t *testing.T, subject string, body []byte, h bus.Header) subjects.Code {
	t.Helper()
	m, err := f.client.Request(t.Context(), subject, body, h)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fleet.DecodeReply[struct{}](m.Data)
	return subjects.CodeOf(err)
}

// probeOf is a verb that the process i alone answers, and judges as all others.
func probeOf(i int) string { return "probe" + strconv.Itoa(i) }

// learn waits until each of n processes has heard of an agent's key, with which
// sign signs.
func (f *fleetOf) learn(t *testing.T, n int, who subjects.AgentID, sign func(subject string) bus.Header) {
	t.Helper()
	for i := range n {
		subject := subjects.API(who, "task", probeOf(i))
		bustest.Eventually(t, "a process to know the key", func() bool { return f.ask(t, subject, nil, sign(subject)) == "" })
	}
}

// learnBot waits until each of n processes has heard of bot's key.
func (f *fleetOf) learnBot(t *testing.T, n int) {
	t.Helper()
	f.learn(t, n, "bot", func(subject string) bus.Header { return f.signed(subject, nil, time.Now()) })
}

func TestSignedRequests(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.learnBot(t, 2)
	body, now := []byte(`{"task_id":"t1"}`), time.Now()
	for _, subject := range []string{subjects.API("bot", "task", "get"), subjects.Result("bot", "t1")} {
		count := &f.served
		if subject == subjects.Result("bot", "t1") {
			count = &f.taken
		}
		good := f.signed(subject, body, now)
		if code := f.ask(t, subject, body, good); code != "" || count.Load() != 1 {
			t.Fatalf("%s: %s, handled %d times, want once", subject, code, count.Load())
		}
		for range 6 { // whichever process it comes to
			if code := f.ask(t, subject, body, good); code != subjects.CodeAuthFailed {
				t.Errorf("%s replayed: %q, want auth_failed", subject, code)
			}
		}
		other := f.signed(subject, body, now)
		other[subjects.HeaderAgent] = []string{"eve"}
		for what, c := range map[string]struct {
			body []byte
			h    bus.Header
			want subjects.Code
		}{
			"unsigned":      {body, nil, subjects.CodeAuthFailed},
			"another body":  {[]byte("{}"), f.signed(subject, body, now), subjects.CodeAuthFailed},
			"other subject": {body, f.signed(subject+"x", body, now), subjects.CodeAuthFailed},
			"old":           {body, f.signed(subject, body, now.Add(-identity.Window-time.Minute)), subjects.CodeAuthFailed},
			"early":         {body, f.signed(subject, body, now.Add(identity.Window+time.Minute)), subjects.CodeAuthFailed},
			"other agent":   {body, other, subjects.CodeForbidden},
		} {
			if code := f.ask(t, subject, c.body, c.h); code != c.want {
				t.Errorf("%s, %s: %q, want %q", subject, what, code, c.want)
			}
		}
		if n := count.Load(); n != 1 {
			t.Errorf("%s: handled %d times, want once", subject, n)
		}
	}
	f.audited(t, "bot", handshake.EventAuthRefused, subjects.CodeAuthFailed)
	// A client that signs needs to do nothing more.
	f.client.SetSigner(callout.Signer("bot", f.key, time.Now))
	for range 3 {
		if code := f.ask(t, subjects.API("bot", "task", "get"), body, nil); code != "" {
			t.Errorf("signed by the bus: %s", code)
		}
	}
	// Nor does a process that has no business with bot's key.
	if code := f.ask(t, subjects.API("eve", "task", "get"), body, nil); code != subjects.CodeAuthFailed {
		t.Errorf("as another: %q, want auth_failed", code)
	}
	if _, err := ask[identity.View](t, f.worker, "revoke", &identity.Revoke{AgentID: "bot"}); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "bot to be out", func() bool {
		return f.ask(t, subjects.API("bot", "task", "get"), body, nil) == subjects.CodeAuthFailed
	})
}

// The headers survive the stream, a message that comes again is no replay, and
// what is not signed becomes a dead letter.
func TestSignedDispatch(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.learnBot(t, 2)
	subject, body := subjects.Dispatch("bot"), []byte("say hello")
	h := f.signed(subject, body, time.Now())
	sent := maps.Clone(h)
	if _, err := f.client.Store(t.Context(), subject, body, "", h); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		select {
		case m := <-f.queued:
			for name := range sent {
				if m.Header.Get(name) != sent.Get(name) {
					t.Errorf("delivery %d: %s is %q, want %q", n+1, name, m.Header.Get(name), sent.Get(name))
				}
			}
		case <-time.After(bustest.Patience):
			t.Fatal("the dispatch did not come, twice")
		}
	}
	for what, h := range map[string]bus.Header{"unsigned": nil, "replayed": sent} {
		before, err := f.worker.StreamState(t.Context(), subjects.StreamDLQ)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.client.Store(t.Context(), subject, body, "", h); err != nil {
			t.Fatal(err)
		}
		bustest.Eventually(t, what+": a dead letter", func() bool {
			s, err := f.worker.StreamState(t.Context(), subjects.StreamDLQ)
			return err == nil && s.LastSeq == before.LastSeq+1
		})
	}
	select {
	case m := <-f.queued:
		t.Errorf("%s was handled", m.Data)
	default:
	}
}

// In the form v0 the first body wins, and v1 ends it.
func TestSignedPlainly(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.key = f.add(t, identity.Add{AgentID: "plain", Signatures: identity.V0})
	subject := subjects.API("plain", "task", "get")
	at := time.Now()
	plain := func() bus.Header {
		at = at.Add(time.Second)
		p := identity.Proof{AgentID: "plain", Timestamp: identity.Timestamp(at)}
		p.SignPlain(f.key.Secret)
		h := headers(&p)
		delete(h, subjects.HeaderNonce)
		return h
	}
	first := plain() // may be repeated, to a process that has not heard of the key yet
	f.learn(t, 2, "plain", func(string) bus.Header { return first })
	h := plain()
	for range 4 {
		if code := f.ask(t, subject, []byte("a"), h); code != "" {
			t.Errorf("the same again: %s", code)
		}
		if code := f.ask(t, subject, []byte("b"), h); code != subjects.CodeAuthFailed {
			t.Errorf("another body: %q, want auth_failed", code)
		}
	}
	p := identity.Proof{AgentID: "plain", Timestamp: identity.Timestamp(time.Now()), Nonce: rand.Text()}
	p.Sign(f.key, subject, nil)
	if code := f.ask(t, subject, nil, headers(&p)); code != "" {
		t.Fatalf("v1: %s", code)
	}
	for range 6 {
		if code := f.ask(t, subject, []byte("a"), plain()); code != subjects.CodeAuthFailed {
			t.Errorf("v0 after v1: %q, want auth_failed", code)
		}
	}
}

// What looks like the form v0 and proves nothing costs the store no read; what
// proves who sends it does.
func TestForgedPlainly(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	f.add(t, identity.Add{AgentID: "gray", Signatures: identity.V0})
	key := f.add(t, identity.Add{AgentID: "plain", Signatures: identity.V0})
	plain := func(who subjects.AgentID, secret []byte, at time.Time) bus.Header {
		p := identity.Proof{AgentID: who, Timestamp: identity.Timestamp(at)}
		p.SignPlain(secret)
		return headers(&p)
	}
	now := time.Now()
	first := plain("plain", key.Secret, now)
	f.learn(t, 1, "plain", func(string) bus.Header { return first })
	reads := make(chan string, 100)
	sub, err := f.client.Subscribe("$JS.API.STREAM.MSG.GET.KV_"+subjects.BucketIdentities, "", func(m bus.Msg) { reads <- string(m.Data) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	for _, who := range []subjects.AgentID{"gray", "eve"} {
		h := plain(who, []byte("of nobody who has an identity at all"), now)
		if code := f.ask(t, subjects.API(who, "task", "get"), nil, h); code != subjects.CodeAuthFailed {
			t.Errorf("forged as %s: %q, want auth_failed", who, code)
		}
	}
	if code := f.ask(t, subjects.API("plain", "task", "get"), nil, plain("plain", key.Secret, now.Add(2*time.Second))); code != "" {
		t.Fatalf("v0: %s", code)
	}
	bustest.Eventually(t, "the store to be asked", func() bool { return len(reads) > 0 })
	if what := <-reads; !strings.Contains(what, ".v1.plain") {
		t.Errorf("the store was first asked for %s, want for v1 of plain", what)
	}
}

// An agent announces what its identity allows, or nobody hears of it.
func TestAnnounces(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		terms   callout.Terms
		agent   subjects.AgentID
		tier    string
		refused subjects.Code
	}{
		"allowed":               {agent: "bot", tier: "haiku"},
		"above its tier":        {agent: "bot", tier: "opus", refused: subjects.CodeForbidden},
		"no identity":           {agent: "free", tier: "opus"},
		"no identity, strictly": {terms: callout.Terms{Strict: true}, agent: "free", refused: subjects.CodeForbidden},
		"not signed":            {terms: callout.Terms{Signed: true}, agent: "bot", tier: "haiku", refused: subjects.CodeAuthFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := bustest.New(t)
			b := s.Bus(t)
			w := &world{server: s, worker: b, ttl: time.Hour}
			w.run(t, b, open(t, b, callout.Terms{}))
			w.add(t, identity.Add{AgentID: "bot", MaxTier: "sonnet"})
			client := s.Connect(t)
			a := fleet.Announce{
				Header: fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version},
				Worker: fleet.Worker{AgentID: c.agent, ModelTier: c.tier, Epoch: 1},
			}
			if _, err := client.Store(t.Context(), subjects.Announce(c.agent, "main"), fleet.MustEncode(&a), "", nil); err != nil {
				t.Fatal(err)
			}
			reader := s.Connect(t)
			open(t, reader, c.terms)
			var heard, refused atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := reader.Tail(ctx, bus.Tail{
				Stream: subjects.StreamAnnounce, LastPerSubject: true,
				Handle:   func(bus.Msg) { heard.Add(1) },
				Refused:  func(bus.Msg, error) { refused.Add(1) },
				CaughtUp: func(uint64) { cancel() },
			})
			if err != nil {
				t.Fatal(err)
			}
			if (heard.Load() == 1) != (c.refused == "") || heard.Load()+refused.Load() != 1 {
				t.Errorf("heard %d, refused %d, want it refused as %q", heard.Load(), refused.Load(), c.refused)
			}
			if c.refused != "" {
				w.audited(t, c.agent, handshake.EventAuthRefused, c.refused)
			}
		})
	}
}

// A process that has not heard yet of an identity, or of what it may do now,
// looks into the store before it passes over what a stream has from it: however
// much of somebody else it passes over.
func TestAnnounceOfAnIdentityJustAdded(t *testing.T) {
	t.Parallel()
	const crowd = 25
	for name, terms := range map[string]callout.Terms{"signed": {Signed: true}, "strict": {Strict: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 1)
			reader := f.server.Connect(t)
			old := f.add(t, identity.Add{AgentID: "old", MaxTier: "haiku"})
			if _, err := callout.Open(t.Context(), reader, terms, slog.New(slog.DiscardHandler)); err != nil { // it hears of nothing more
				t.Fatal(err)
			}
			if _, err := ask[identity.Issued](t, f.worker, "add", &identity.Add{AgentID: "old", Update: true, MaxTier: "sonnet"}); err != nil {
				t.Fatal(err)
			}
			announce := func(id subjects.AgentID, instance string, k identity.Key, tier string) {
				subject := subjects.Announce(id, subjects.InstanceID(instance))
				a := fleet.MustEncode(&fleet.Announce{
					Header: fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version}, Worker: fleet.Worker{AgentID: id, Epoch: 1, ModelTier: tier},
				})
				p := identity.Proof{AgentID: id, Timestamp: identity.Timestamp(time.Now()), Nonce: rand.Text()}
				p.Sign(k, subject, a)
				if _, err := f.client.Store(t.Context(), subject, a, "", headers(&p)); err != nil {
					t.Fatal(err)
				}
			}
			announce("old", "main", old, "sonnet")
			for i := range crowd {
				announce("old", fmt.Sprint("bad", i), old, "opus")
			}
			for i := range crowd {
				id := subjects.AgentID(fmt.Sprint("new", i))
				announce(id, "main", f.add(t, identity.Add{AgentID: id}), "")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			heard, refused := 0, 0
			err := reader.Tail(ctx, bus.Tail{
				Stream: subjects.StreamAnnounce, Handle: func(bus.Msg) { heard++ },
				Refused: func(bus.Msg, error) { refused++ }, CaughtUp: func(uint64) { cancel() },
			})
			if err != nil || heard != crowd+1 || refused != crowd {
				t.Errorf("heard %d, refused %d, %v, want %d and %d", heard, refused, err, crowd+1, crowd)
			}
		})
	}
}

// What a stream has under a name that no agent can have is passed over, and
// holds up nothing.
func TestStoredUnderNoName(t *testing.T) {
	t.Parallel()
	for name, terms := range map[string]callout.Terms{"signed": {Signed: true}, "strict": {Strict: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 1)
			reader := f.server.Connect(t)
			if _, err := callout.Open(t.Context(), reader, terms, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			h := bus.Header{subjects.HeaderAgent: {"x$y"}, subjects.HeaderSignature: {"00"}}
			if _, err := f.client.Store(t.Context(), "fleet.announce.x$y.main", []byte("{}"), "", h); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
			defer cancel()
			refused := ""
			err := reader.Tail(ctx, bus.Tail{
				Stream: subjects.StreamAnnounce, Handle: func(bus.Msg) { t.Error("it was let in") },
				Refused: func(_ bus.Msg, err error) { refused = string(subjects.CodeOf(err)) }, CaughtUp: func(uint64) { cancel() },
			})
			if err != nil || refused != string(subjects.CodeInvalidID) {
				t.Errorf("refused with %q, %v, want %q", refused, err, subjects.CodeInvalidID)
			}
		})
	}
}

// A heartbeat goes to several workers of one process: each gets it once, and
// none a second time.
func TestSignedHeartbeats(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	f.learnBot(t, 1)
	b := f.server.Connect(t)
	open(t, b, callout.Terms{Signed: true})
	heard := [2]chan string{make(chan string, 10), make(chan string, 10)}
	for i := range heard {
		sub, err := b.Subscribe(subjects.HeartbeatPattern, "", func(m bus.Msg) { heard[i] <- string(m.Data) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Unsubscribe() })
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	subject := subjects.Heartbeat("bot", "main")
	first := f.signed(subject, []byte("one"), time.Now())
	for _, m := range []struct {
		body string
		h    bus.Header
	}{{"one", first}, {"one", first}, {"unsigned", nil}, {"two", f.signed(subject, []byte("two"), time.Now())}} {
		if err := f.client.Publish(subject, []byte(m.body), m.h); err != nil {
			t.Fatal(err)
		}
	}
	for i := range heard {
		for _, want := range []string{"one", "two"} {
			select {
			case got := <-heard[i]:
				if got != want {
					t.Errorf("subscription %d heard %q, want %q", i, got, want)
				}
			case <-time.After(bustest.Patience):
				t.Fatalf("subscription %d did not hear %q", i, want)
			}
		}
	}
}
