package router

import (
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Who has left is out of its lease, and the router has listened for as long.
func TestWhoHasLeft(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		meets func(c *core)
		after time.Duration
		want  bool
	}{
		{"heard", func(*core) {}, 20 * time.Second, false},
		{"not heard for its lease", func(*core) {}, 31 * time.Second, true},
		{"missed an offer", func(c *core) { c.fleet.Gone("a", "main") }, 20 * time.Second, false},
		{"heard as another instance", func(c *core) {
			c.fleet.Beat("a", "other", &fleet.Heartbeat{Epoch: 1}, now0.Add(20*time.Second))
		}, 31 * time.Second, false},
		{"before the router listened", func(c *core) { c.listens = now0.Add(20 * time.Second) }, 40 * time.Second, false},
		{"since the router listens", func(c *core) { c.listens = now0.Add(20 * time.Second) }, 51 * time.Second, true},
		{"while the router listens", func(c *core) { c.settled, c.settleAt = false, now0.Add(time.Hour) }, 40 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := testCore()
			c.ticked = now0
			freeAgent(t, c)
			tt.meets(c)
			ticks(c, now0, tt.after)
			now := now0.Add(tt.after)
			if got := c.left("a", now); got != tt.want {
				t.Errorf("left = %t, want %t", got, tt.want)
			}
			c.fleet.advance(now.Add(time.Minute))
			if c.left("a", now.Add(time.Minute)) {
				t.Error("it has, for a router that has stood still")
			}
		})
	}
}

// What an agent that has left was to try again goes to others also where a task
// waits that it was to try first.
func TestARetryBehindAPinnedTask(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	freeAgent(t, c)
	gone := now0.Add(time.Minute)
	ticks(c, now0, time.Minute)
	c.apply(testRecord(t, "first", `,"agent":"a"`, gone), 1, gone)
	q := testRecord(t, "again", `,"max_retries":1`, gone)
	w := working(q, holder{"a", "main", 1}, gone)
	again, _ := failed(w, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, gone)
	c.apply(again, 2, gone)
	c.take()
	for now := gone; !now.After(gone.Add(5 * time.Second)); now = now.Add(tickEvery) {
		c.tick(now)
		for _, e := range c.take() {
			if s, ok := e.(orphaned); ok && s.task == "again" {
				return
			}
		}
	}
	t.Error("nobody asks what becomes of it")
}
