package schedules_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/schedule"
)

// dialect are expressions that JetStream carries out itself, too. only is the
// one time at which it does not say what a clock says: an hour that is skipped.
var dialect = []struct{ cron, zone, only string }{
	{cron: "0 */20 * * * *", zone: "Europe/Berlin"},
	{cron: "0 5-59/17 1-4 * * *", zone: "Europe/Berlin"},
	{cron: "30 15 0,1,3,12 25-31 * SUN", zone: "Europe/Berlin"},
	{cron: "0 0 9 * 3,10 SUN", zone: "Europe/Berlin"},
	{cron: "0 30 2 * * *", zone: "Europe/Berlin", only: "2000-03-26T01:30:00Z"},
	{cron: "0 15 */2 * * ?", zone: "Australia/Lord_Howe"},
	{cron: "0 45 23 * * 0,3", zone: "Asia/Kathmandu"},
	{cron: "@hourly", zone: "America/New_York"},
	{cron: "@daily", zone: "UTC"},
}

// What a schedule's clock says is what JetStream does with the same expression,
// over a day in which clocks change.
func TestServerAgrees(t *testing.T) {
	for _, begin := range []time.Time{
		time.Date(2000, 3, 25, 13, 0, 0, 0, time.UTC), // on the 26th, in Lord Howe and in Berlin
		time.Date(2000, 10, 28, 13, 0, 0, 0, time.UTC),
	} {
		t.Run(begin.Format(time.DateOnly), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { serverAgrees(t, begin) })
		})
	}
}

func serverAgrees(t *testing.T, begin time.Time) {
	pass(time.Until(begin))
	b := bustest.NewFake(t).Bus(t)
	var mu sync.Mutex
	got := map[string][]string{}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.Tail(ctx, bus.Tail{Stream: subjects.StreamTimers, Subjects: []string{subjects.TickPattern}, Handle: func(m bus.Msg) {
			mu.Lock()
			defer mu.Unlock()
			got[m.Subject] = append(got[m.Subject], m.Time.Truncate(time.Second).Format(time.RFC3339))
		}})
	}()
	stored := time.Now()
	for i, d := range dialect {
		name := fmt.Sprint("d", i)
		_, err := b.Store(t.Context(), subjects.Timer("x", name), nil, "", bus.Header{
			"Nats-Schedule": {d.cron}, "Nats-Schedule-Time-Zone": {d.zone}, "Nats-Schedule-Target": {subjects.Tick("x", name)},
		})
		if err != nil {
			t.Fatalf("%s: %v", d.cron, err)
		}
	}
	pass(30*time.Hour + 10*time.Second)
	until := time.Now().Add(-5 * time.Second)
	mu.Lock()
	defer mu.Unlock()
	for i, d := range dialect {
		def := schedule.Definition{Cron: d.cron, TimeZone: d.zone}
		c, err := def.Clock(stored)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for next := c.Next(stored); next.Before(until); next = c.Next(next) {
			if at := next.Format(time.RFC3339); at != d.only {
				want = append(want, at)
			}
		}
		if diff := cmp.Diff(want, got[subjects.Tick("x", fmt.Sprint("d", i))]); diff != "" || len(want) == 0 {
			t.Errorf("%s in %s: %d times (-clock +server):\n%s", d.cron, d.zone, len(want), diff)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
