package bus

import (
	"sync"
	"time"
)

// Bounds of what is believed about clocks.
const (
	clocksAgree = time.Second            // apart by less, the clock here is taken as it is
	clocksSlack = 100 * time.Millisecond // between the clocks of two servers, or what drifts meanwhile
	clockTry    = 2 * time.Second        // a canary that took longer says too little
)

// clock is how far the clock of this machine is from those of the servers.
type clock struct {
	mu   sync.Mutex
	at   time.Time     // guarded by mu: when it was learned, with a monotonic reading; zero: never
	ours time.Duration // guarded by mu: what is to be added to at
}

// now goes on from when it was learned by the monotonic clock: whoever sets the
// machine's clock meanwhile changes nothing.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return time.Now()
	}
	return c.at.Add(time.Since(c.at) + c.ours)
}

// learn takes in that something was stored at a time, after began and before
// now. Between those two nobody can say when: what is known stays as long as it may
// be so still, or the time would jump to and fro with how long canaries take. Nor
// does it jump by a second as a clock that was found wrong comes nearer: that one
// is taken as it is once it may be right.
func (c *clock) learn(began, stored time.Time) {
	took := time.Since(began)
	ours, unsure := stored.Sub(began.Add(took/2)), took/2+clocksSlack
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case took > clockTry:
		return
	case (ours - c.ours).Abs() <= unsure:
		ours = c.ours
	case ours.Abs() <= unsure, c.ours == 0 && ours.Abs() <= clocksAgree+took/2:
		ours = 0
	}
	c.at, c.ours = began, ours
}

// Now is the time by the servers' clocks, as the last canary has told it; the
// clock of this machine where they agree, or nothing is known. What is decided
// by a time that others read is decided by this one.
func (b *Bus) Now() time.Time { return b.clock.now().UTC() }

// ClockAhead is how far the clock of this machine is ahead of the servers', 0
// where they agree within a second; where they did not, once they agree as
// closely as can be told.
func (b *Bus) ClockAhead() time.Duration {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	return -b.clock.ours
}
