package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// silencePoints are the crash points of silences: one is set, changed, removed;
// one ends.
var silencePoints = []string{"after_silence", "after_silence:2", "after_silence:3", "after_silence_end"}

// TestSilenceCrash has the escalation worker die as it sets, changes, removes and
// ends a silence, and another one take over, or lose acknowledgements: what was
// answered holds, and in the end there is none.
func TestSilenceCrash(t *testing.T) {
	sweep(t, silencePoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry")
		first := f.escalation("escalation-1", crashBinary(t), freeAddress(t), crashEnv(point))
		b, err := bus.Connect(t.Context(), bus.Config{URL: f.url, Name: "operator", ConnectTimeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		acted := make(chan error, 1)
		go func() { acted <- silences(ctx, b, point == "after_silence") }()
		if dies(t, first, point) {
			f.escalation("escalation-2", parleyBinary(t), freeAddress(t))
		}
		if err := <-acted; err != nil {
			t.Fatal(err)
		}
		until(t, "no silence in the store", func() bool {
			return !slices.ContainsFunc(f.kept(t, subjects.BucketAlerts), func(kv string) bool { return strings.HasPrefix(kv, "silence.") })
		})
		checkLost(t, first, point, "$KV.FLEET_ALERTS.")
	})
}

// silences sets one, changes and removes it, and sees another one end. Whoever is
// not told that one was set sets another: orphan says that this may be.
func silences(ctx context.Context, b *bus.Bus, orphan bool) error {
	set := func(s fleet.Silence) (is fleet.Silence, err error) {
		s.Match, s.Reason, s.Until = map[string]string{"agent": "b"}, "maintenance", s.Until.UTC()
		data, err := toDoor(ctx, b, subjects.API("operator", "escalation", "silence"), s, nil)
		if err != nil {
			return is, err
		}
		return fleet.DecodeReply[fleet.Silence](data)
	}
	list := func() ([]fleet.Silence, error) {
		data, err := toDoor(ctx, b, subjects.API("operator", "escalation", "list"), fleet.EscalationList{}, nil)
		if err != nil {
			return nil, err
		}
		l, err := fleet.DecodeReply[fleet.EscalationListReply](data)
		return l.Silences, err
	}
	hour := time.Now().Add(time.Hour).Truncate(time.Second)
	s, err := set(fleet.Silence{Until: hour})
	if err != nil {
		return fmt.Errorf("set: %w", err)
	}
	if _, err := set(fleet.Silence{SilenceID: s.SilenceID, Until: hour.Add(time.Hour)}); err != nil {
		return fmt.Errorf("change: %w", err)
	}
	there, err := list()
	holds := slices.ContainsFunc(there, func(is fleet.Silence) bool { return is.SilenceID == s.SilenceID && is.Until.Equal(hour.Add(time.Hour)) })
	if err != nil || !holds || len(there) != 1 && (!orphan || len(there) != 2) {
		return fmt.Errorf("the silences are %+v: %w", there, err)
	}
	for _, is := range there {
		_, err := set(fleet.Silence{SilenceID: is.SilenceID, Until: time.Now().Add(-time.Minute)})
		if err != nil && subjects.CodeOf(err) != subjects.CodeNotFound { // it was removed, and nobody said so
			return fmt.Errorf("remove: %w", err)
		}
	}
	if _, err := set(fleet.Silence{Until: time.Now().Add(5 * time.Second)}); err != nil {
		return fmt.Errorf("set: %w", err)
	}
	for {
		there, err := list()
		if err == nil && len(there) == 0 {
			return nil
		}
		if perr := pause(ctx, 50*time.Millisecond); perr != nil {
			return fmt.Errorf("the silences are %+v: %w, %w", there, perr, err)
		}
	}
}
