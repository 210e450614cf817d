package bus

import (
	"sync"
	"time"
)

// Bounds of what is believed about clocks.
const (
	clocksAgree = time.Second     // apart by less, the clock here is taken as it is
	clockTry    = 2 * time.Second // a canary that took longer says too little
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
// now. Between those two nobody can say when.
func (c *clock) learn(began, stored time.Time) {
	took := time.Since(began)
	ours := stored.Sub(began.Add(took / 2))
	c.mu.Lock()
	defer c.mu.Unlock()
	if took > clockTry {
		return
	}
	if ours.Abs() <= clocksAgree+took/2 {
		ours = 0
	}
	c.at, c.ours = began, ours
}

// Now is the time by the servers' clocks, as the last canary has told it; the
// clock of this machine where they agree, or nothing is known. What is decided
// by a time that others read is decided by this one.
func (b *Bus) Now() time.Time { return b.clock.now().UTC() }

// ClockAhead is how far the clock of this machine is ahead of the servers', 0
// where they agree within a second.
func (b *Bus) ClockAhead() time.Duration {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	return -b.clock.ours
}
