package bus

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTheServersTime learns the time from when a canary was stored.
func TestTheServersTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := func(d time.Duration) { <-time.After(d) }
		var c clock
		if got := c.now(); !got.Equal(time.Now()) {
			t.Errorf("before anything is known it is %s", got)
		}
		for _, s := range []struct {
			name      string
			took, off time.Duration // of the servers' clocks
			want      time.Duration
		}{
			{"they agree", 100 * time.Millisecond, 900 * time.Millisecond, 0},
			{"ahead", 100 * time.Millisecond, -5 * time.Minute, -5 * time.Minute},
			{"too slow to say", 3 * time.Second, time.Hour, -5 * time.Minute},
			{"behind", 100 * time.Millisecond, 5 * time.Minute, 5 * time.Minute},
			{"right again", 1500 * time.Millisecond, 0, 0},
			{"apart by more than a second", 100 * time.Millisecond, 1200 * time.Millisecond, 1200 * time.Millisecond},
			{"still so, and slower to say", 600 * time.Millisecond, 1200 * time.Millisecond, 1200 * time.Millisecond},
			{"as far as can be told", 600 * time.Millisecond, 900 * time.Millisecond, 1200 * time.Millisecond},
			{"on another server", 100 * time.Millisecond, 1100 * time.Millisecond, 1200 * time.Millisecond},
			{"drifting away", 100 * time.Millisecond, 1400 * time.Millisecond, 1400 * time.Millisecond},
			{"set right by and by", 100 * time.Millisecond, 800 * time.Millisecond, 800 * time.Millisecond},
			{"slower to say than it is wrong", 1800 * time.Millisecond, 800 * time.Millisecond, 800 * time.Millisecond},
			{"nearly right", 100 * time.Millisecond, 120 * time.Millisecond, 0},
			{"drifting, within a second", 100 * time.Millisecond, 900 * time.Millisecond, 0},
			{"set by an hour", 100 * time.Millisecond, -time.Hour, -time.Hour},
			{"and back", 100 * time.Millisecond, 0, 0},
		} {
			began := time.Now()
			wait(s.took / 2)
			stored := time.Now().Add(s.off)
			wait(s.took / 2)
			c.learn(began, stored)
			wait(time.Second)
			if off := time.Until(c.now()); (off - s.want).Abs() > 50*time.Millisecond {
				t.Errorf("%s: it is %s from the clock here, want %s", s.name, off, s.want)
			}
		}
	})
}
