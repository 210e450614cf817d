package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/workers/telemetry"
)

// TestDangers provokes each thing that is unsafe, or not known to be safe.
func TestDangers(t *testing.T) {
	t.Parallel()
	lazy := &varz{Name: "n2"}
	lazy.JetStream.Config.SyncInterval = int64(2 * time.Minute)
	safe := &varz{Name: "n1"}
	safe.JetStream.Config.SyncAlways = true
	well := func(change func(*bus.StreamFigures)) []bus.StreamFigures {
		two := []bus.StreamFigures{{Name: "FLEET_TASKS", Replicas: 3, Cluster: "c"}, {Name: "FLEET_RUNS", Replicas: 3, Cluster: "c"}}
		change(&two[1])
		return two
	}
	for _, c := range []struct {
		name   string
		change func(*seen)
		about  string // "" for nothing
		says   string
	}{
		{"well", func(*seen) {}, "", ""},
		{"lazy by the settings", func(s *seen) { s.durability.SyncAlways = false }, telemetry.UnsafeSync, "a power cut loses"},
		{"a lazy server", func(s *seen) { s.pages = append(s.pages, lazy) }, telemetry.UnsafeSync, "server n2 acknowledges writes before they are on the disk (sync_interval 2m0s)"},
		{"a page that does not answer", func(s *seen) { s.unread = errors.New("n3 is away") }, telemetry.Unverified, "n3 is away"},
		{"no pages", func(s *seen) { s.monitored, s.pages = false, nil }, telemetry.Unverified, "durability unverified: nobody has looked"},
		{"its own server", func(s *seen) { s.monitored, s.pages, s.durability.Embedded = false, nil, true }, "", ""},
		{"a stream of one copy", func(s *seen) { s.streams = well(func(f *bus.StreamFigures) { f.Replicas = 1 }) }, telemetry.UnsafeCopies, "1 streams have fewer than 3 copies, FLEET_RUNS has 1"},
		{"the only copy on the only server", func(s *seen) { s.streams = []bus.StreamFigures{{Replicas: 1}} }, "", ""},
		{"in memory", func(s *seen) { s.streams = well(func(f *bus.StreamFigures) { f.InMemory = true }) }, telemetry.UnsafeStorage, "FLEET_RUNS is in memory"},
		{"streams that do not answer", func(s *seen) { s.unanswered = errors.New("FLEET_LOG is away") }, telemetry.Unverified, "FLEET_LOG is away"},
		{"streams that nobody looks at", func(s *seen) { s.off = true }, telemetry.Unverified, "--provision off"},
	} {
		s := seen{durability: bus.Durability{SyncAlways: true}, monitored: true, pages: []*varz{safe}, streams: well(func(*bus.StreamFigures) {})}
		c.change(&s)
		switch got := s.dangers(); {
		case c.about == "" && len(got) == 0:
		case len(got) != 1 || got[0].about != c.about || !strings.Contains(got[0].says, c.says):
			t.Errorf("%s: %v, want %s: %q", c.name, got, c.about, c.says)
		}
	}
}

// TestSafetyIsLookedAtAgain: what becomes unsafe while workers run is told of
// within a minute or so, once.
func TestSafetyIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var copies atomic.Int64
		copies.Store(3)
		log := newBuffer()
		s := &safety{log: slog.New(slog.NewTextHandler(log, nil)), look: func(context.Context) []danger {
			if n := copies.Load(); n < enough {
				return []danger{{telemetry.UnsafeCopies, "too few"}}
			}
			return nil
		}}
		s.again(t.Context())
		bustest.Run(t, s.Run)
		wants := func(said int, unsafe ...string) {
			t.Helper()
			if diff := cmp.Diff(unsafe, s.Unsafe()); diff != "" || s.figures()[telemetry.UnsafeCopies] != (len(unsafe) > 0) || s.figures()[telemetry.UnsafeSync] {
				t.Errorf("Unsafe (-want +got):\n%s, figures %v", diff, s.figures())
			}
			if got := strings.Count(log.String(), "UNSAFE"); got != said {
				t.Errorf("said %d times, want %d:\n%s", got, said, log)
			}
		}
		wants(0)
		copies.Store(1)
		time.Sleep(3 * safetyEvery)
		wants(1, "too few")
		copies.Store(3)
		time.Sleep(2 * safetyEvery)
		wants(1)
		if !strings.Contains(log.String(), "safe now") {
			t.Errorf("nobody says that it is well again:\n%s", log)
		}
	})
}
