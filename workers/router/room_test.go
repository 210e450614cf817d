package router

import (
	"testing"
	"time"
)

// Classes that stand still leave those that flow half of the room.
func TestRoomForTasksThatFlow(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e6, 0)
	flows := &class{offeredAt: now.Add(-flowsFor).UnixNano()}
	still := &class{offeredAt: now.Add(-flowsFor - 1).UnixNano()}
	full := &class{queued: maxHotStill}
	for _, tt := range []struct {
		name    string
		class   *class
		hotIdle int
		want    bool
	}{
		{"still, room", still, 999, true},
		{"still, half is taken", still, 1000, false},
		{"still, enough of its own", full, 0, false},
		{"flows, half is taken", flows, 1999, true},
		{"flows, all is taken", flows, 2000, false},
	} {
		c := &core{maxHot: 2000, hotIdle: tt.hotIdle}
		if got := c.roomFor(tt.class, now); got != tt.want {
			t.Errorf("%s: roomFor = %t", tt.name, got)
		}
	}
}
