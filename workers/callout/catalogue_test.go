package callout_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/callout"
)

// subjectsHeard counts what a process of the fleet was given, by subject.
type subjectsHeard struct {
	mu sync.Mutex
	n  map[string]int
}

func (h *subjectsHeard) add(subject string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == nil {
		h.n = map[string]int{}
	}
	h.n[subject]++
}

func (h *subjectsHeard) of(subject string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n[subject]
}

// TestEveryIngressIsSigned walks the catalogue: whatever workers hear, alone or
// from a stream that clients write, is heard signed by its author only. What
// streams tell of themselves nobody can sign; a subject that is in no catalogue
// is refused.
func TestEveryIngressIsSigned(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	f.learnBot(t, 1)
	b := f.server.Connect(t)
	open(t, b, callout.Terms{Signed: true})
	var heard, refused subjectsHeard
	bot := f.server.Connect(t)
	bot.SetSigner(callout.Signer("bot", f.key, time.Now))
	type ingress struct {
		subject, stream string
		client, free    bool
	}
	list := []ingress{{subject: "fleet.brandnew.bot"}}
	streams := map[string][]string{}
	for _, e := range subjects.Catalogue() {
		in := ingress{subjects.Named(e, "bot"), e.Stream, subjects.WrittenByClients(e), false}
		if !subjects.ReadByWorkers(e) || in.stream != "" && !in.client || strings.HasPrefix(in.subject, "fleet.told.") {
			continue // what workers store, permissions keep from clients
		}
		in.free = subjects.Republished(in.subject)
		list = append(list, in)
		if in.stream != "" {
			streams[in.stream] = append(streams[in.stream], in.subject)
		}
	}
	if len(list) < 60 || !slices.ContainsFunc(list, func(i ingress) bool { return strings.HasPrefix(i.subject, "fleet.a2a.bot.") }) {
		t.Fatalf("%d ways in: this test would notice nothing", len(list))
	}
	for _, in := range list {
		if in.stream != "" {
			continue
		}
		sub, err := b.Subscribe(in.subject, "", func(m bus.Msg) { heard.add(m.Subject) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Unsubscribe() })
	}
	delete(streams, subjects.StreamInbox) // consumed, see TestSignedDispatch
	for stream := range streams {
		bustest.Run(t, func(ctx context.Context) error {
			return b.Tail(ctx, bus.Tail{
				Stream: stream, Handle: func(m bus.Msg) { heard.add(m.Subject) },
				Refused: func(m bus.Msg, err error) {
					if subjects.CodeOf(err) == subjects.CodeAuthFailed {
						refused.add(m.Subject)
					}
				},
			})
		})
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	announce := fleet.MustEncode(&fleet.Announce{Worker: fleet.Worker{AgentID: "bot", InstanceID: "x"}})
	say := func(from *bus.Bus, in ingress) {
		t.Helper()
		var err error
		switch in.stream {
		case subjects.StreamInbox:
			return
		case "":
			err = from.Publish(in.subject, []byte("{}"), nil)
		default:
			_, err = from.Store(t.Context(), in.subject, announce, "", nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", in.subject, err)
		}
	}
	for _, in := range list {
		say(f.client, in) // unsigned
	}
	for _, in := range list {
		if in.stream != "" && in.stream != subjects.StreamInbox { // a stream may keep the last one only
			bustest.Eventually(t, in.subject+" to be refused", func() bool { return refused.of(in.subject) == 1 })
		}
	}
	for _, in := range list {
		switch {
		case in.subject == "fleet.brandnew.bot":
			say(bot, in)
		case in.client:
			say(bot, in)
		default:
			say(bot, in)
			say(f.worker, in) // signs with the workers' key
		}
	}
	for _, in := range list {
		want := 1
		switch {
		case in.stream == subjects.StreamInbox:
			continue
		case in.subject == "fleet.brandnew.bot":
			want = 0
		case in.free:
			want = 3
		}
		bustest.Eventually(t, in.subject+" to be heard signed", func() bool { return heard.of(in.subject) >= want })
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, in := range list {
		want := 1
		switch {
		case in.stream == subjects.StreamInbox, in.subject == "fleet.brandnew.bot":
			want = 0
		case in.free:
			want = 3
		}
		if n := heard.of(in.subject); n != want {
			t.Errorf("%s: heard %d times, want %d", in.subject, n, want)
		}
	}
}
